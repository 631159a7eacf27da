"""What a bridge remembers of a conversation, and what it makes of that when one Sluice ends and another begins."""

import json
from typing import Any

import pytest

from sluicegate.listen.stdio import SessionTranscript
from sluicegate.protocol.jsonrpc import Json, Notification, Request, Response, encode

INFO: Json = {"name": "sluice", "version": "0"}
MODERN_META: Json = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}


def request(id: Any, method: str, **params: Any) -> bytes:
    return encode(Request(id, method, params))


def result(id: Any, **value: Any) -> bytes:
    return encode(Response(id, value))


def note(method: str, **params: Any) -> bytes:
    return encode(Notification(method, params))


def begun(revision: str = "2025-06-18") -> SessionTranscript:
    past = SessionTranscript(INFO)
    past.client_wrote(request(0, "initialize", protocolVersion=revision))
    assert past.server_wrote(result(0, protocolVersion=revision))
    past.client_wrote(note("notifications/initialized"))
    return past


def methods(past: SessionTranscript) -> list[str]:
    return [message.method for message in past.again() if not isinstance(message, Response)]


def test_a_successor_is_told_what_was_settled_and_its_answers_are_not_the_clients() -> None:
    past = begun()
    for id, method, params in (
        (1, "logging/setLevel", {"level": "info"}), (2, "resources/subscribe", {"uri": "a://1"}),
        (3, "resources/subscribe", {"uri": "a://2"}), (4, "resources/unsubscribe", {"uri": "a://1"}),
    ):  # fmt: skip
        past.client_wrote(request(id, method, **params))
        assert past.server_wrote(result(id))
    told = past.again()
    assert methods(past) == [
        "initialize", "notifications/initialized", "logging/setLevel", "resources/subscribe",
    ]  # fmt: skip
    repeated = [message for message in told if isinstance(message, Request)]
    assert repeated[0].params == {"protocolVersion": "2025-06-18"} and repeated[-1].params == {"uri": "a://2"}
    assert not any(past.server_wrote(result(message.id)) for message in repeated)
    assert past.server_wrote(result("bridge of the client's own"))


def test_what_was_refused_is_not_said_again() -> None:
    past = begun()
    past.client_wrote(request(1, "resources/subscribe", uri="a://1"))
    past.server_wrote(encode(Response(1, error={"code": -32002, "message": "no"})))
    assert methods(past) == ["initialize", "notifications/initialized"]


def test_before_the_handshake_is_answered_it_is_asked_again_and_its_answer_is_the_clients() -> None:
    past = SessionTranscript(INFO)
    past.client_wrote(request(0, "initialize", protocolVersion="2025-06-18"))
    assert [encode(message) for message in past.again()] == [request(0, "initialize", protocolVersion="2025-06-18")]
    assert past.server_wrote(result(0))


def test_a_call_is_never_made_twice_and_what_only_reads_is_asked_again() -> None:
    past = begun()
    past.client_wrote(request(7, "tools/call", name="pay"))
    past.client_wrote(request("7", "tools/list"))
    (farewell,) = past.lost()
    assert isinstance(farewell, Response) and farewell.id == 7 and farewell.result is not None
    assert farewell.result["isError"] and farewell.result["_meta"] == {"dev.sluice/reason": "outcome_unknown"}
    assert past.again()[-1] == Request("7", "tools/list", {}) and past.lost() == []


def test_a_modern_call_is_answered_in_its_own_form() -> None:
    past = SessionTranscript(INFO)
    past.client_wrote(request(7, "tools/call", name="pay", **MODERN_META))
    (farewell,) = past.lost()
    assert isinstance(farewell, Response) and farewell.result is not None
    assert farewell.result["resultType"] == "complete" and past.again() == []


def test_what_was_answered_or_cancelled_is_not_lost() -> None:
    past = begun()
    past.client_wrote(request(1, "tools/call", name="a"))
    past.client_wrote(request(2, "tools/call", name="b"))
    past.server_wrote(result(1))
    past.client_wrote(note("notifications/cancelled", requestId=2))
    assert past.lost() == []


@pytest.mark.parametrize("answered", [True, False])
def test_a_call_is_not_forgotten_over_another_request_of_the_same_id(answered: bool) -> None:
    past = begun()
    past.client_wrote(request(1, "tools/call", name="pay"))
    past.client_wrote(request(1, "ping"))
    if answered:
        past.server_wrote(result(1))
    (farewell,) = past.lost()
    assert isinstance(farewell, Response) and farewell.id == 1
    assert past.again()[-1] == Request(1, "ping", {}) or answered
    past.client_wrote(request(1, "tools/call", name="pay"))
    past.server_wrote(result(1))
    past.server_wrote(result(1))
    assert past.lost() == []


def test_open_questions_are_withdrawn_once() -> None:
    past = begun()
    for id in (101, 102, 103):
        past.server_wrote(request(id, "elicitation/create"))
    past.client_wrote(result(101, action="cancel"))
    past.server_wrote(note("notifications/cancelled", requestId=102))
    assert past.lost() == [Notification("notifications/cancelled", {"requestId": 103})]
    assert past.lost() == []


def test_batches_are_read_and_noise_is_left_to_whoever_gets_it() -> None:
    past = begun("2025-03-26")
    calls = [json.loads(request(id, "tools/call", name="a")) for id in (1, 2)]
    past.client_wrote(json.dumps(calls).encode())
    for noise in (b"{", b"1", b'{"jsonrpc":"2.0"}', b'{"jsonrpc":"2.0","id":[],"method":"x"}', b"[1]"):
        past.client_wrote(noise)
        assert past.server_wrote(noise)
    past.server_wrote(json.dumps([json.loads(result(1))]).encode())
    assert [message.id for message in past.lost() if isinstance(message, Response)] == [2]
