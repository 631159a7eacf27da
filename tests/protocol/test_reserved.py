"""What a peer writes under Sluice's names is taken out, however it is spelt, and nothing else is."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol import legacy_server, modern_server
from sluicegate.protocol.jsonrpc import Response
from sluicegate.protocol.methods import RESULTS
from sluicegate.protocol.model import Call, Client, Result
from sluicegate.protocol.reserved_keys import PREFIX, REASONS, for_server, from_client, from_server, without_hop
from sluicegate.protocol.revisions import RELATED_TASK, SERVER_INFO, SUBSCRIPTION_ID

KEYS = st.text(max_size=8) | st.sampled_from(
    ["_meta", "params", "result", "data", "reason", "dev.sluice", "dev/sluice/"]
)
RESERVED = st.text(max_size=4).map(lambda rest: PREFIX + rest)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | RESERVED | st.sampled_from(sorted(REASONS)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | RESERVED, inner, max_size=4),
    max_leaves=20,
)
MESSAGES = st.dictionaries(st.sampled_from(["jsonrpc", "id", "result", "params"]) | RESERVED, VALUES, max_size=4)


def spelt(value: Any, seed: int) -> bytes:
    """JSON in which each character of a string may be written as an escape."""
    dice = random.Random(seed)

    def string(text: str) -> str:
        plain = json.dumps(text, ensure_ascii=True)
        if "\\" in plain:
            return plain

        def one(char: str) -> str:
            if char == "/" and dice.random() < 0.3:
                return "\\/"
            return f"\\u{ord(char):04x}" if dice.random() < 0.3 else char

        return '"' + "".join(map(one, text)) + '"'

    def whole(value: Any) -> str:
        if isinstance(value, str):
            return string(value)
        if isinstance(value, dict):
            return "{" + ",".join(f"{string(key)}:{whole(inner)}" for key, inner in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(whole, value)) + "]"
        return json.dumps(value)

    return whole(value).encode("utf-8", "surrogatepass")


def without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without(inner) for key, inner in value.items() if not key.startswith(PREFIX)}
    return [without(inner) for inner in value] if isinstance(value, list) else value


@given(MESSAGES, st.integers())
def test_no_key_of_ours_is_left_and_all_else_is(message: Any, seed: int) -> None:
    data = spelt(message, seed)
    wanted = without(json.loads(data))
    for read in (from_server, from_client):
        found = read(json.loads(data), data)
        meta = message.get("params", {}).get("_meta") if isinstance(message.get("params"), dict) else None
        if read is from_client and isinstance(meta, dict) and isinstance(meta.get("dev.sluice/reason"), str):
            wanted["params"]["_meta"]["dev.sluice/reason"] = meta["dev.sluice/reason"]
        if read is from_client or not _is_error(wanted.get("result")):
            assert found == wanted


def _is_error(result: Any) -> bool:
    return isinstance(result, dict) and "error" in result


@given(st.sampled_from(sorted(REASONS)), st.booleans(), st.integers())
def test_a_reason_of_ours_in_an_error_is_taken_out(word: str, is_nested: bool, seed: int) -> None:
    ours = {"reason": word, "approval": {"id": "apr_000000000000", "state": "approved"}}
    error = {"code": 1, "message": "", "data": {**ours, "more": {"reason": word}}}
    message = {"result": {"error": error}} if is_nested else {"error": error}
    data = spelt(message, seed)
    found = from_server(json.loads(data), data)
    assert (found["result"] if is_nested else found)["error"]["data"] == {"more": {"reason": word}}


class Unread(bytes):
    """In which nobody may look for anything: that takes 2 ms a MiB."""

    def __contains__(self, part: object) -> bool:
        raise AssertionError("a long text is searched")


def test_a_long_text_is_not_searched_for_a_reason_of_ours() -> None:
    error = {"code": 1, "message": "", "data": {"reason": "denied", "a": "x" * 300_000}}
    found = from_server({"error": error}, Unread(json.dumps({"error": error}).encode()))
    assert found["error"]["data"].keys() == {"a"}


def test_names_of_ours_in_other_letters_are_taken_out() -> None:
    for key in ("DEV.sluice/reason", "Dev.Sluice/approval", "dev.\u017fluice/x"):
        for read in (from_server, from_client):
            message = {"params": {"_meta": {key: "x", "a": 1}}}
            for is_escaped in (False, True):
                data = json.dumps(message, ensure_ascii=is_escaped).encode()
                assert read(json.loads(data), data) == {"params": {"_meta": {"a": 1}}}
    error = {"error": {"data": {"Reason": "denied", "REASON": "Denied", "Approval": {"id": "x"}, "b": 1}}}
    assert from_server(error, json.dumps(error).encode()) == {"error": {"data": {"b": 1}}}


@pytest.mark.parametrize("more", [["x" * 10_000], [1] * 10_000], ids=["few values", "many values"])
@pytest.mark.parametrize("key", ['"dev.sluice/x"', '"DEV.\u017fluice\\/x"', '"\\u0064ev.sluice/x"'])
@pytest.mark.parametrize("read", [from_server, from_client])
def test_names_of_ours_are_taken_out_of_a_long_message(read: Any, key: str, more: Any) -> None:
    data = f'{{"result":{{"more":{json.dumps(more)},"_meta":{{"a":1,{key}:1}}}}}}'.encode()
    assert read(json.loads(data), data) == {"result": {"more": more, "_meta": {"a": 1}}}


def test_what_a_tool_says_in_structure_stays() -> None:
    message = {"result": {"structuredContent": {"error": {"data": {"reason": "timeout"}}}}}
    assert from_server(json.loads(json.dumps(message)), json.dumps(message).encode()) == message


def test_in_a_batch_each_message_is_judged_and_what_is_no_message_is_let_alone() -> None:
    meta = {"dev.sluice/reason": "why", "dev.sluice/x": 1, "a": 2}
    requests = [{"params": {"_meta": dict(meta)}}, {"params": [dict(meta)]}, {"params": {"_meta": [1]}}, 7, None]
    found = from_client(json.loads(json.dumps(requests)), json.dumps(requests).encode())
    kept = {"dev.sluice/reason": "why", "a": 2}
    assert found == [{"params": {"_meta": kept}}, {"params": [{"a": 2}]}, {"params": {"_meta": [1]}}, 7, None]
    for other in (1, None, {"b": 1}, ["why"]):  # a reason is a text
        odd = {"params": {"_meta": {"dev.sluice/reason": other}}}
        assert from_client(odd, json.dumps(odd).encode()) == {"params": {"_meta": {}}}
    error = {"error": {"data": []}}
    for body in (7, "dev.sluice/", [["dev.sluice/"]], {"params": "dev.sluice/"}, {"error": "x"}, error):
        for read in (from_client, from_server):
            assert read(json.loads(json.dumps(body)), json.dumps(body).encode()) == body
    answers = [{"error": {"data": {"reason": reason}}} for reason in ("denied", "because", 1)]
    assert from_server(answers, json.dumps(answers).encode()) == [
        {"error": {"data": {}}}, {"error": {"data": {"reason": "because"}}}, {"error": {"data": {"reason": 1}}},
    ]  # fmt: skip


def test_a_server_does_not_see_the_reason_and_sees_all_else() -> None:
    assert for_server({"dev.sluice/reason": "why", "a": 1}) == {"a": 1}
    assert for_server(plain := {"a": 1}) is plain


HOP = {key: {"name": "sluice"} for key in (SERVER_INFO, SUBSCRIPTION_ID, RELATED_TASK)}


@pytest.mark.parametrize("server", [legacy_server, modern_server])
@pytest.mark.parametrize("method", sorted(RESULTS))
def test_what_a_server_says_of_its_own_hop_is_in_no_result(server: Any, method: str) -> None:
    call = Call(Client("key:a", revision="2026-07-28"), method, {})
    key, kind = RESULTS[method]
    value = {key: kind(), "_meta": {**HOP, "k": 1}}
    outcome = server.outcome(call, Response(1, value))
    assert isinstance(outcome, Result) and outcome.value["_meta"] == {"k": 1}
    bare = server.outcome(call, Response(1, {**value, "_meta": HOP}))
    assert isinstance(bare, Result) and "_meta" not in bare.value


def test_what_a_sender_says_of_its_own_hop_is_taken_out_and_nothing_else_is_copied() -> None:
    for plain in ({}, {"_meta": {}}, {"_meta": {"k": 1}}, {"_meta": [1]}, {"_meta": None}):
        assert without_hop(plain) is plain
    assert without_hop({"a": 1, "_meta": HOP}) == {"a": 1}
    assert without_hop({"a": 1, "_meta": {**HOP, "k": 1}}) == {"a": 1, "_meta": {"k": 1}}
