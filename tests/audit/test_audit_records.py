"""What a record says, that every one fits the published schema, and that nobody can write a second line."""

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from audit_kit import (
    CLIENT,
    DIGEST_KEY,
    ITEM,
    OK,
    SCHEMA,
    TARGET,
    check_one,
    make_call,
    one_call,
    open_audit,
    records,
    segments,
)

from sluicegate.audit import credentials
from sluicegate.audit import record as composing
from sluicegate.audit.chain import read
from sluicegate.audit.log import MAX_ADDRESSES, IdentityFailures
from sluicegate.audit.record import NOTES, TYPES, Body, Composer, Stamp, fingerprint, needs_intent
from sluicegate.audit.redact import MAX_RESULT, Redactor, dump
from sluicegate.audit.settings import Checkpointing, Rotation
from sluicegate.catalog_cache.definition_pins import PinEvent
from sluicegate.outcomes import classify
from sluicegate.protocol.canonical_json import canonical
from sluicegate.protocol.model import (
    REASON,
    Call,
    Client,
    Failure,
    InputRequired,
    Outcome,
    Result,
    Target,
    Verdict,
    not_found,
    refuse,
)

NAUGHTY = [
    'a"b\\', "line\nbreak", "\r\n{\"v\":1}", "\x1b[31mred\x1b[0m", "nul\0", "\u2028\u2029", "\x7f\x9b31m",
    "\u202egnp.exe", "lone \ud800 surrogate", "\ud83d\ude00"[:1], "\U0001f600", "ünïcode", "\U000e0041",
    "x" * 100_000, "", "﻿",
    '","seq":1,"prev":"' + "0" * 64,
]  # fmt: skip


def body(data: Body) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(b"{%b}" % (data if isinstance(data, bytes) else data()))
    return value


def intent(made: Composer, call: Call) -> dict[str, Any]:
    return body(made.intent(call, made.about(call), None))


def composer(**how: Any) -> Composer:
    return Composer(Redactor(b"k" * 32), **how)


async def test_every_record_fits_the_published_schema(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    check = jsonschema.Draft202012Validator(SCHEMA)
    async with open_audit(tmp_path, rotate=Rotation(size=8_000), checkpoints=Checkpointing(records=5)) as audit:
        for number, outcome in enumerate(
            (OK, Failure(-32603, "no"), InputRequired({}), refuse("tools/call", "timeout", "x"))
        ):
            await one_call(audit, f"c{number}", outcome)
        await one_call(audit, "list", method="tools/list", target=None)
        traced = make_call("traced", meta={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
                           client=replace(CLIENT, session="secret-session", revision="2025-06-18",
                                          toolset="dev"))  # fmt: skip
        traced.trail.resume("c0", 1)
        await audit.intent(traced, {"id": "a1", "approver": "key:lead"})
        audit.outcome(traced, None, 1.0)
        audit.note("approval", {"approval": {"id": "a1", "state": "approved", "approver": "key:lead"}})
        audit.note("policy", {"what": "in_force", "revision": "abc", "mode": "enforce"})
        audit.note("pin", asdict(PinEvent("github", "modern", "tool", "x", "withheld", "a" * 64, "b" * 64)))
        audit.note("decision", {"principal": "key:a", "server": "sluice", "object": "admin:pins", "act": "write",
                                "decision": {"verdict": "deny", "rule": "no row"}})  # fmt: skip
        audit.note("decision", {"what": "ssrf_blocked", "for": "client key:a", "host": "h.example",
                                "address": "10.0.0.1", "why": "a private address"})  # fmt: skip
        audit.note("identity", {"what": "login_asked", "server": "github", "principal": "key:a", "by": "key:lead"})
        audit.note("identity", {"what": "client_logged_in", "principal": "jwt:https://idp.example#amy", "grant": "g1"})
        audit.note("identity", {"what": "client_login_failed", "why": "the code was used already"})
        audit.note("admin", {"act": "key_revoked", "name": "x"})
        audit.identity_failure("192.0.2.1", "bad key")
        await audit.intent(make_call("cut off"))
    async with open_audit(tmp_path, (b"s" * 32, b"n" * 32)) as audit:
        path = tmp_path / "audit" / "sluice.jsonl"
        path.rename(path.with_name("moved.jsonl"))
        await one_call(audit, "refused")
    found = records(tmp_path)
    for record in found:
        assert not list(check.iter_errors(record)), record
    assert {record["type"] for record in found} == set(TYPES)
    assert {"type", "properties", "required"} <= SCHEMA.keys()


@pytest.mark.parametrize("text", NAUGHTY)
async def test_whatever_a_peer_chooses_makes_one_valid_line(tmp_path: Path, text: str) -> None:
    target = Target("github", "tool", text, text, {"name": text})
    client = Client(text, (text, f"group:{text}"), text, info={"name": text, "version": text}, session=text)
    async with open_audit(tmp_path) as audit:
        call = make_call("c1", {text: [text, {text: text}]}, target=target, client=client)
        assert await audit.intent(call)
        audit.outcome(call, Failure(-32000, text, {"reason": text}), 0.1)
        audit.outcome(make_call("c2", target=None, method=text, params={"name": text}), None, 0.1)
        audit.note("admin", {"act": text, text: text})
        audit.identity_failure(text, text)
    data = b"".join(path.read_bytes() for path in segments(tmp_path))
    assert all(0x20 <= byte < 0x7F or byte == 0x0A for byte in data), "printable ASCII and line breaks"
    lines = data.splitlines()
    assert len(lines) == 1 + 5 + 2  # the opening, ours, stop and checkpoint
    for line in lines:
        assert read(line) is not None
        json.loads(line)["v"]
        json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8")  # strict readers take it, too
        assert len(line) < 200_000


def test_an_intent_says_who_what_and_why() -> None:
    made = composer(classify=lambda target: "write", revision=lambda: "r7", transport="stdio")
    said = intent(made, make_call("c1", {"title": "x", "password": "p"}))
    assert said["principal"] == "key:ci-bot" and said["roles"] == ["role:ci"] and said["groups"] == ["group:dev"]
    assert (said["server"], said["own"], said["public"], said["class"]) == (
        "github",
        "create_issue",
        TARGET.public,
        "write",
    )
    assert said["decision"] == {"verdict": "allow", "rule": "policy.csv:17", "policy": "r7"}
    assert said["definition"] == fingerprint(ITEM) and said["transport"] == "stdio"
    assert said["client"] == {"name": "probe", "version": "1"} and said["owner"] == "team-ci"
    assert said["arguments"]["title"] == "x" and "p" != said["arguments"]["password"]


def test_what_peers_call_themselves_and_their_things_holds_no_secret() -> None:
    secret = "Zx9Qw7Lm3Tb8Vn2Kp5Xy"
    named = f"password={secret}"
    client = Client("key:a", info={"name": named, "version": named})
    target = Target("git", "tool", named, f"git__{named}")
    for call in (
        make_call("c1", {named: 1}, target=target, client=client),
        make_call("c2", target=None, params={"name": named}),
        make_call("c3", meta={"traceparent": f"00-{secret}-1-01"}),
    ):
        assert secret not in json.dumps(intent(composer(), call))


def test_a_changed_definition_has_another_fingerprint() -> None:
    made = composer()
    one = intent(made, make_call("c1"))["definition"]
    two = intent(made, make_call("c2", target=replace(TARGET, item={**ITEM, "description": "evil"})))
    again = intent(made, make_call("c3"))["definition"]
    assert one == again != two["definition"]


@pytest.mark.parametrize(
    ("mode", "fields"),
    [("none", set()), ("digest", {"arguments_digest"}), ("redacted", {"arguments_digest", "arguments"}),
     ("full", {"arguments_digest", "arguments"})],
)  # fmt: skip
def test_arguments_are_told_as_far_as_wanted(mode: Any, fields: set[str]) -> None:
    said = intent(composer(arguments=mode), make_call("c1", {"password": "hunter2", "t": "ghp_" + "a" * 36}))
    assert {name for name in said if name.startswith("arguments")} == fields
    text = json.dumps(said)
    assert ("hunter2" in text) is (mode == "full")
    assert "ghp_" not in text, "a token is in no mode"


@pytest.mark.parametrize(
    ("outcome", "word", "reason"),
    [
        (None, "cancelled", ""),
        (OK, "ok", ""),
        (InputRequired({}), "ok", "input_required"),
        (Result({"isError": True}), "tool_error", ""),
        (Result({"isError": True, "_meta": {REASON: "timeout"}}), "tool_error", ""),
        (Failure(-32603, "x", {"reason": "denied"}), "protocol_error", ""),
        (refuse("tools/call", "audit_unavailable", "x"), "denied", "audit_unavailable"),
        (refuse("prompts/get", "outcome_unknown", "x"), "unknown", "outcome_unknown"),
        (refuse("prompts/get", "server_unavailable", "x"), "tool_error", "server_unavailable"),
        (Failure(-32602, "bad"), "protocol_error", ""),
    ],
)
def test_an_ending_has_one_word(outcome: Outcome | None, word: str, reason: str) -> None:
    assert classify(outcome, make_call())[:2] == (word, reason)


def test_a_denial_is_told_though_the_client_was_told_that_it_is_unknown() -> None:
    denied = make_call(verdict=Verdict.DENY)
    assert classify(not_found("tools/call", denied.params), denied) == ("denied", "denied", -32602)
    nothing = make_call(target=None, params={"name": "made_up"})
    assert classify(not_found("tools/call", nothing.params), nothing) == ("protocol_error", "not_found", -32602)
    assert body(composer().outcome(nothing, None, not_found("tools/call", nothing.params), 0))["asked"] == "made_up"


def test_only_what_can_do_something_needs_an_intent() -> None:
    needing = {method for method in ("tools/call", "tools/list", "prompts/get", "resources/read", "completion/complete",
                                     "subscriptions/listen") if needs_intent(make_call(method=method))}  # fmt: skip
    assert needing == {"tools/call", "prompts/get", "resources/read"}
    for filter in ({"resourceSubscriptions": ["file:///a"]}, {"taskIds": ["a"]}):
        assert needs_intent(make_call(method="subscriptions/listen", params={"notifications": filter}))


def test_a_note_is_of_a_known_type() -> None:
    for type in sorted(NOTES):
        assert body(composer().note(type, {}))["type"] == type
    with pytest.raises(ValueError, match="no such note"):
        composer().note("intent", {})


def test_times_are_utc_with_nanoseconds() -> None:
    assert Stamp()(1_790_856_000_000_000_007) == "2026-10-01T12:00:00.000000007Z"
    assert Stamp()()[:4] == time.strftime("%Y", time.gmtime())


async def test_who_is_not_let_in_is_summed_up() -> None:
    notes: list[dict[str, Any]] = []
    failures = IdentityFailures(notes.append, window=0.01)
    for _ in range(3):
        for number in range(MAX_ADDRESSES + 50):
            failures.add(f"192.0.2.{number}", "bad key")
    with anyio.fail_after(20):
        while not notes:  # noqa: ASYNC110
            await anyio.sleep(0.005)
    assert len(notes) == MAX_ADDRESSES + 1
    assert sum(note["count"] for note in notes) == 3 * (MAX_ADDRESSES + 50)
    assert notes[-1] == {"address": "other", "count": 150, "reasons": {"bad key": 150}, "window": 0.01}


def result_record(outcome: Outcome, **settings: Any) -> Any:
    composer = Composer(Redactor(DIGEST_KEY, pointers={"github/*": ["/structuredContent/person"]}), **settings)
    call = make_call()
    return body(composer.outcome(call, composer.about(call), outcome, 0.1))


def test_long_names_are_not_remembered() -> None:
    made = composer()
    for own in ("x" * 4_096, "x"):
        target = Target("git", "res", own, own)
        assert body(f'"a":1,{made._target(target)}'.encode())["kind"] == "res"
    assert len(made._targets) == 1


def test_a_pointer_with_a_number_that_python_does_not_read_leads_nowhere() -> None:
    redactor = Redactor(DIGEST_KEY, pointers={"github/*": [f"/structuredContent/{'1' * 5_000}"]})
    call = make_call()
    composer = Composer(redactor, results="redacted")
    outcome = Result({"content": [], "structuredContent": ["x"]})
    assert body(composer.outcome(call, composer.about(call), outcome, 0.1))["result"] == outcome.value


def test_results_are_told_as_far_as_wanted() -> None:
    assert not {"result", "result_digest"} & result_record(OK, results="none").keys()
    assert "result" not in result_record(OK) and "result_digest" in result_record(OK)
    assert result_record(OK, results="redacted")["result"] == OK.value


@pytest.mark.parametrize(("results", "is_at_once"), [("none", True), ("digest", False), ("redacted", False)])
def test_a_long_result_is_read_in_a_thread(results: Any, is_at_once: bool) -> None:
    composer, call = Composer(Redactor(DIGEST_KEY), results=results), make_call()
    record = composer.outcome(call, composer.about(call), Result({"content": [], "_meta": {"x": "a" * 300_000}}), 0.1)
    assert isinstance(record, bytes) is is_at_once


def test_results_are_redacted_as_arguments_are() -> None:
    text = json.dumps({"api_key": "marble-1", "port": 80})
    shown = result_record(
        Result({
            "content": [{"type": "text", "text": text}, {"type": "text", "text": "DB_PASSWORD=marble-2"}],
            "structuredContent": {"session_id": "marble-3", "person": "marble-4", "n": 7},
            "_meta": {"token": "marble-5"},
        }),
        results="redacted",
    )  # fmt: skip
    assert "marble" not in json.dumps(shown) and json.dumps(shown).count("[redacted:") == 5
    assert shown["result"]["structuredContent"]["n"] == 7 and "result_cut" not in shown


@pytest.mark.parametrize(
    "value",
    [
        {"content": [{"type": "text", "text": "x" * 1_000_000}]},
        {"content": [{"type": "text", "text": "\U0001f600" * 4_000}] * 10},
        {"content": [], "structuredContent": {"rows": [{"id": n, "on": True} for n in range(50_000)]}},
        {"content": [], "structuredContent": {str(n) * 50: n for n in range(2_000)}},
        {"content": [], "structuredContent": {"n": [10**39 + n for n in range(2_000)]}},
        {"content": [], "structuredContent": {"\U0001f600" * 250 + str(n): [] for n in range(200)}},
    ],
)
def test_a_large_result_is_cut_and_the_cut_is_marked(value: Any) -> None:
    shown = result_record(Result(value), results="redacted")
    assert len(dump(shown["result"])) <= MAX_RESULT and shown["result_cut"] is True
    assert "more)" in dump(shown["result"])


def test_notes_keep_their_own_names_and_lose_the_secrets_of_their_texts() -> None:
    fields = {"reasons": {"credential": 1}, "token": "t-1", "approval": {"comment": "password: marble-1"}}
    shown = json.loads(b"{%b}" % Composer(Redactor(DIGEST_KEY)).note("identity", fields))
    assert shown["reasons"] == {"credential": 1} and shown["token"] == "t-1"
    assert shown["approval"]["comment"].startswith("password: [redacted:")


@pytest.mark.parametrize("who", [
    "jwt:https://login.example.com#ann@example.com", "jwt:https://tenant.auth0.com/#auth0|5f7c8ec7c33c6c004bbafe82",
    "jwt:https://accounts.google.com#104356789012345678901", "jwt:http://127.0.0.1:8080#ann", "key:0tk27mx7ay_1zv_e5ps",
    "jwt:https://oidc.example.com/id/ABC#system:serviceaccount:ns:sa", "key:yng5by1-a2ro_gubbb8ayn1", "key:hunter2",
])  # fmt: skip
def test_whoever_decided_reads_as_in_records_of_calls(who: str) -> None:
    fields = {"principal": who, "by": who, "what": who, "approval": {"approver": who, "comment": f"token: {'x7' * 20}"}}
    shown = json.loads(b"{%b}" % Composer(Redactor(DIGEST_KEY)).note("approval", fields))
    call = intent(composer(), make_call(client=Client(who)))
    shown_as = {shown["principal"], shown["by"], shown["what"], shown["approval"]["approver"], call["principal"]}
    assert shown_as == {who}
    assert shown["approval"]["comment"].startswith("token: [redacted:")
    token = "jwt:https://a.example#ghp_" + "a1B2" * 9
    shown = json.loads(b"{%b}" % Composer(Redactor(DIGEST_KEY)).note("admin", {"by": token}))
    assert "a1B2" not in shown["by"], "a credential stays out of every record"


def test_no_result_is_kept_that_sluice_withheld_or_refused() -> None:
    for outcome in (refuse("tools/call", "denied", "withheld"), Failure(-32000, "broken"), None):
        assert "result" not in result_record(outcome, results="redacted")


@pytest.mark.parametrize(
    "arguments",
    [
        {"t": "password: aB3$xx9; " * 55_000}, {"t": ["the token of a " * 270] * 250}, {"t": list(range(150_000))},
        {f"k{n}": n for n in range(80_000)}, {"x" * 1_000_000: 1}, {"t": [[[["a"] * 40] * 40] * 40]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("has_intent", [True, False])
async def test_the_event_loop_searches_no_large_arguments(
    arguments: dict[str, Any], has_intent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments are searched for secrets in a thread, also those of a call that was refused."""
    searched: dict[int, int] = Counter()
    find, encode = credentials.find, composing.canonical

    def count_searched(text: str, *rest: Any) -> Any:
        searched[threading.get_ident()] += len(text)
        return find(text, *rest)

    def count_encoded(value: Any) -> str:
        if value is arguments:
            searched[threading.get_ident()] += 1_000_000
        return encode(value)

    monkeypatch.setattr(credentials, "find", count_searched)
    monkeypatch.setattr(composing, "canonical", count_encoded)
    async with open_audit(tmp_path) as audit:
        call = make_call("c1", arguments)
        if has_intent:
            assert await audit.intent(call)
        audit.outcome(call, Failure(-32602, "no"), 0.1)
    assert searched[threading.get_ident()] < 4_096 < max(searched.values())
    kinds = {"intent", "outcome"} if has_intent else {"outcome"}
    written = [found for found in records(tmp_path) if found.get("call") == "c1"]
    assert {found["type"] for found in written} == kinds
    assert written[0]["arguments_digest"] == Redactor(DIGEST_KEY).digest(canonical(arguments).encode())
    assert "aB3$xx9" not in json.dumps(written)


async def test_a_record_that_cannot_be_composed_refuses_its_call_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    endless: dict[str, Any] = {"t": "x" * 5_000}
    endless["self"] = endless
    async with open_audit(tmp_path) as audit:
        first, second = audit.intent(make_call("c1", endless)), audit.intent(make_call("c2", {"t": "x" * 5_000}))
        assert [await first, await second] == [False, True]
        assert audit.tally().lost == 1
    assert [found["call"] for found in records(tmp_path, "intent")] == ["c2"]
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        "an audit record cannot be composed"
    ]


@pytest.mark.parametrize("has_intent", [True, False])
async def test_a_record_that_takes_long_delays_no_other_and_is_written_at_the_stop(
    has_intent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trail says what its composing took, for whoever sent its arguments."""
    began, large, go, encode = time.monotonic(), {"t": "x" * 5_000}, threading.Event(), composing.canonical

    def wait(value: Any) -> str:
        assert value is not large or go.wait(10)
        return encode(value)

    monkeypatch.setattr(composing, "canonical", wait)
    async with open_audit(tmp_path) as audit:
        slow = make_call("c1", large)
        asked = asyncio.ensure_future(audit.intent(slow)) if has_intent else None
        if asked is None:
            audit.outcome(slow, Failure(-32602, "no"), 0.1)
        assert await audit.intent(make_call("c2", {"t": "small"}))
        await asyncio.sleep(0)
        assert slow.trail.composing is not None and not slow.trail.composing.done()
        go.set()
        if asked is not None:
            assert await asked
    assert slow.trail.composing.done() and 0.0 < slow.trail.compose_seconds <= time.monotonic() - began
    assert [found["call"] for found in records(tmp_path) if "call" in found] == ["c2", "c1"]


async def test_what_a_large_answer_takes_is_told_apart_from_what_its_call_did(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        call = make_call("c1", {"t": "small"})
        assert await audit.intent(call)
        audit.outcome(call, Result({"content": [{"type": "text", "text": "x" * 4_000_000}]}), 0.1)
        assert call.trail.composing is not None
        await call.trail.composing
    assert call.trail.answer_seconds > 0.0 and call.trail.compose_seconds == 0.0


async def test_a_client_whose_records_take_long_delays_those_of_another_by_one(tmp_path: Path) -> None:
    large, other = {"t": "x" * 5_000}, replace(CLIENT, principal="key:other")
    async with open_audit(tmp_path) as audit:
        for number in range(40):
            audit.outcome(make_call(f"c{number}", large), Failure(-32602, "no"), 0.1)
        assert await asyncio.gather(*(audit.intent(make_call(id, large, client=other)) for id in ("o1", "o2")))
    calls = [found["call"] for found in records(tmp_path) if "call" in found]
    assert len(calls) == 42 and calls.index("o1") <= 1 and calls.index("o2") <= 3


@pytest.mark.parametrize("arguments", [{"t": "x" * 5_000}, {"t": "small"}])
async def test_a_call_that_is_cancelled_while_its_intent_is_composed_has_both_records_in_order(
    arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, encode = threading.Event(), composing.canonical

    def wait(value: Any) -> str:
        assert value is not arguments or len(value["t"]) < 100 or go.wait(10)
        return encode(value)

    monkeypatch.setattr(composing, "canonical", wait)
    async with open_audit(tmp_path) as audit:
        call = make_call("c1", arguments)
        asked = asyncio.ensure_future(audit.intent(call))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        audit.outcome(call, None, 0.1)
        go.set()
    written = [found for found in records(tmp_path) if "call" in found]
    assert [(found["type"], found.get("outcome")) for found in written] == [("intent", None), ("outcome", "cancelled")]
    assert "arguments_digest" in written[0] and check_one(tmp_path).ok


@pytest.mark.parametrize("error", [MemoryError, OSError, TimeoutError, ValueError])
async def test_whatever_ends_the_composing_of_a_record_is_counted_as_a_lost_one(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, encode = {"t": "x" * 5_000}, composing.canonical

    def fail(value: Any) -> str:
        if value is large:
            raise error
        return encode(value)

    monkeypatch.setattr(composing, "canonical", fail)
    async with open_audit(tmp_path) as audit:
        assert not await audit.intent(make_call("c1", large))
        audit.outcome(make_call("c2", large), Failure(-32602, "no"), 0.1)
    assert audit.tally().lost == 2
