"""Legacy clients over HTTP: sessions and whose they are, GET streams, resuming, batches."""

import asyncio
import json
from collections import Counter
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from listen_harness import (
    BAD_BATCHES,
    A,
    B,
    Raw,
    Site,
    call,
    events,
    key,
    messages,
    open_session,
    patch,
    post,
    site,
    until,
)
from loop_steps import Steps

from sluicegate.listen import legacy_http, listener
from sluicegate.listen.auth import IdentitySettings
from sluicegate.listen.http_exchange import HttpExchange
from sluicegate.listen.settings import ListenSettings
from sluicegate.protocol.jsonrpc import Notification

LATER = IdentitySettings(keys=(key("a", A, roles=("role:later",)),))
CHANGED = Notification("notifications/tools/list_changed", {})
OTHER = Notification("notifications/prompts/list_changed", {})
REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


def get(session: str, *extra: str, secret: str = A) -> bytes:
    lines = ["GET /mcp HTTP/1.1", "Host: localhost", f"Authorization: Bearer {secret}", "Accept: text/event-stream",
             f"Mcp-Session-Id: {session}", *extra]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def event(raw: Raw) -> dict[str, str]:
    """The next event of a raw stream."""
    data = (await raw.reader.readuntil(b"\n\n")).decode()
    _, _, after = data.rpartition("\r\n")  # the size of a chunk
    return dict(line.split(": ", 1) for line in after.split("\n") if line)


async def message(raw: Raw) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await event(raw))["data"])
    return found


async def stream(here: Site, session: str, *extra: str) -> Raw:
    raw = await here.raw(get(session, *extra))
    status, headers = await raw.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    return raw


async def listening(here: Site, count: int = 1) -> None:
    await until(lambda: len(here.handler.listening) == count)


# ---------------------------------------------------------------- sessions


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_session_is_opened_used_and_ended(revision: str) -> None:
    async with site() as here, here.client() as client:
        id = await open_session(client, revision)
        assert len(id) >= 32 and id.isascii()
        answer = await client.post("/mcp", json=call("echo", id="x", a=1))
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["id"] == "x"
        last = here.handler.calls[-1]
        assert (last.client.session, last.client.revision, last.client.principal) == (id, revision, "key:a")
        await listening(here)
        assert (await client.delete("/mcp")).status_code == 200
        assert here.ended == [id]
        await listening(here, 0)
        gone = await client.post("/mcp", json=call("echo"))
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, -32600)
        assert (await client.delete("/mcp")).status_code == 404
        assert (await client.get("/mcp")).status_code == 404


async def test_an_id_that_the_client_brings_is_never_adopted() -> None:
    async with site() as here, here.client() as client:
        client.headers["mcp-session-id"] = "chosen"
        assert (await client.post("/mcp", json=call("echo"))).status_code == 404
        assert await open_session(client) != "chosen"


async def test_without_a_session_there_is_only_initialize() -> None:
    async with site() as here, here.client() as client:
        for answer in (await client.post("/mcp", json=call("echo")), await client.get("/mcp"),
                       await client.delete("/mcp")):  # fmt: skip
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600)
        assert here.handler.calls == []


async def test_anothers_session_does_not_exist() -> None:
    async with site() as here, here.client() as mine, here.client(B) as other:
        id = await open_session(mine)
        raw = await stream(here, id)
        other.headers["mcp-session-id"] = id
        bodies = [call("echo"), {"jsonrpc": "2.0", "method": "notifications/initialized"}, [call("echo")]]
        for answer in (*[await other.post("/mcp", json=body) for body in bodies], await other.get("/mcp"),
                       await other.delete("/mcp")):  # fmt: skip
            assert answer.status_code == 404
            assert answer.json() == {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Session not found"}}
        assert (await mine.post("/mcp", json=call("echo"))).status_code == 200
        await listening(here)
        await here.handler.listening[0].emit(CHANGED)
        assert [(await event(raw))["id"], (await event(raw))["id"]] == ["0-0", "0-1"], "the stream stays up"
        assert here.ended == []


async def test_a_session_is_of_the_key_that_opened_it_and_has_the_roles_of_now() -> None:
    async with site() as here, here.client() as client:
        id = await open_session(client)
        here.identity.replace(IdentitySettings(keys=(key("a", A, roles=("role:new",)),)))
        assert (await client.post("/mcp", json=call("echo"))).status_code == 200
        assert here.handler.calls[-1].client.roles == ("role:new",)
        here.identity.replace(IdentitySettings(keys=(key("a", "second"),)))
        client.headers["authorization"] = "Bearer second"
        assert (await client.post("/mcp", json=call("echo"))).status_code == 404
        assert here.ended == [id]


async def test_a_revoked_key_ends_its_sessions() -> None:
    async with site() as here, here.client() as client:
        id = await open_session(client)
        raw = await stream(here, id)
        here.identity.replace(IdentitySettings())
        list(here.listener.sweep())
        assert here.ended == [id]
        await raw.closed()
        await listening(here, 0)


async def test_a_replaced_key_ends_its_sessions_with_what_they_run() -> None:
    """Nobody has to come with the new one."""
    async with site() as here, here.client() as client:
        id = await open_session(client)
        raw = await stream(here, id)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(client.post, "/mcp", json=call("wait")))
            await here.handler.waiting.wait()
            here.identity.replace(IdentitySettings(keys=(key("a", "second", roles=("role:a",), owner="team"),)))
            list(here.listener.sweep())
            with anyio.fail_after(5):
                await raw.closed()
                await here.handler.ended.wait()
        assert here.ended == [id] and here.handler.cancelled.count({}) == 1


async def test_an_idle_session_expires_and_a_used_one_does_not() -> None:
    now = [0.0]
    async with (
        site(patch(ListenSettings(), "sessions", idle=10.0), clock=lambda: now[0]) as here,
        here.client() as client,
    ):
        idle, streaming = await open_session(client), await open_session(client)
        raw = await stream(here, streaming)
        used = await open_session(client)
        now[0] = 9.0
        assert (await client.post("/mcp", json=call("echo"))).status_code == 200
        now[0] = 11.0
        list(here.listener.sweep())
        assert here.ended == [idle]
        raw.close()
        await until(lambda: here.server.connections == 1)
        now[0] = 20.0
        list(here.listener.sweep())
        assert here.ended == [idle, used]


async def test_the_many_sessions_of_a_revoked_key_end_in_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_SWEEP_EVERY", 0.01)
    async with site() as here, here.client() as client:
        for _ in range(60):
            await open_session(client)
        steps, ended = Steps(), Counter[int]()
        monkeypatch.setattr(here.listener.sessions, "_on_end", lambda id: ended.update([steps.now]))
        async with anyio.create_task_group() as group:
            group.start_soon(here.listener.run)
            here.identity.replace(IdentitySettings())
            await until(lambda: here.listener.open_sessions == 0)
            group.cancel_scope.cancel()
        steps.stop()
        assert ended.total() == 60 and max(ended.values()) <= 2


async def test_sessions_are_bounded_and_the_oldest_idle_of_the_same_principal_goes() -> None:
    async with site(patch(ListenSettings(), "sessions", per_principal=2, total=3)) as here:
        async with here.client() as mine, here.client(B) as other:
            theirs = await open_session(other)
            first, second = await open_session(mine), await open_session(mine)
            third = await open_session(mine)
            assert here.ended == [first]
            raws = [await stream(here, id) for id in (second, third)]
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t"}}
            body = {"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": params}
            refused = await mine.post("/mcp", json=body)
            assert (refused.status_code, refused.json()["id"]) == (503, 5)
            other.headers["mcp-session-id"] = theirs
            assert (await other.post("/mcp", json=call("echo"))).status_code == 200
            assert len(raws) == 2


async def test_where_all_sessions_are_too_many_whoever_has_most_loses_one() -> None:
    async with site(patch(ListenSettings(), "sessions", per_principal=3, total=3)) as here:
        async with here.client() as greedy, here.client(B) as other:
            first, second, third = [await open_session(greedy) for _ in range(3)]
            theirs = await open_session(other)
            assert here.ended == [first]
            again = await open_session(other)
            assert here.ended == [first, second]
            for id in (theirs, again):
                other.headers["mcp-session-id"] = id
                assert (await other.post("/mcp", json=call("echo"))).status_code == 200
            greedy.headers["mcp-session-id"] = third
            assert (await greedy.post("/mcp", json=call("echo"))).status_code == 200


@pytest.mark.parametrize(("header", "status"), [("2025-06-18", 200), ("1999-01-01", 400), ("", 400)])
async def test_the_version_header_is_one_that_we_speak(header: str, status: int) -> None:
    async with site() as here, here.client() as client:
        await open_session(client, "2025-11-25")
        answer = await client.post("/mcp", json=call("echo"), headers={"mcp-protocol-version": header})
        assert answer.status_code == status


async def test_a_handshake_that_fails_opens_nothing() -> None:
    async with site() as here, here.client() as client:
        answer = await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "initialize"})
        assert answer.json()["error"]["code"] == -32602
        assert "mcp-session-id" not in answer.headers
        assert len(here.listener.sessions) == 0


async def test_what_the_edge_answers_itself() -> None:
    async with site() as here, here.client() as client:
        await open_session(client)
        known = len(here.handler.calls)
        ping = await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert ping.json()["result"] == {}
        set_level = {"jsonrpc": "2.0", "id": 2, "method": "logging/setLevel", "params": {"level": "error"}}
        assert (await client.post("/mcp", json=set_level)).json()["result"] == {}
        bad = {**set_level, "params": {"level": "loud"}}
        assert (await client.post("/mcp", json=bad)).json()["error"]["code"] == -32602
        assert len([c for c in here.handler.calls[known:] if c.method != "subscriptions/listen"]) == 0
        await client.post("/mcp", json=call("echo"))
        assert here.handler.calls[-1].meta["io.modelcontextprotocol/logLevel"] == "error"
        response = {"jsonrpc": "2.0", "id": 77, "result": {}}
        answer = await client.post("/mcp", json=response)
        assert (answer.status_code, answer.content) == (202, b"")


# ---------------------------------------------------------------- cancelling


async def test_a_cancelled_request_gets_no_response() -> None:
    async with site() as here, here.client() as client, anyio.create_task_group() as tasks:
        await open_session(client)
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await client.post("/mcp", json=call("wait", id="7", n=1)))

        tasks.start_soon(ask)
        await here.handler.waiting.wait()
        for wrong in (7, "8", None, [], {}):
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": wrong}}
            assert (await client.post("/mcp", json=note)).status_code == 202
        assert here.handler.cancelled == []
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "7"}}
        assert (await client.post("/mcp", json=note)).status_code == 202
        await here.handler.ended.wait()
        assert here.handler.cancelled == [{"n": 1}]
        await until(lambda: bool(answers))
        assert (answers[0].status_code, events(answers[0].text)) == (200, [])


async def test_the_same_id_twice_is_served_twice_and_a_cancel_means_the_newer() -> None:
    async with site() as here, here.client() as client, anyio.create_task_group() as tasks:
        await open_session(client)
        answers: list[httpx.Response] = []

        async def ask(n: int) -> None:
            answers.append(await client.post("/mcp", json=call("wait", id=1, n=n)))

        for n in (1, 2):
            tasks.start_soon(ask, n)
            await until(lambda n=n: len(here.handler.calls) == n + 2)  # type: ignore[misc]
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await client.post("/mcp", json=note)
        await until(lambda: bool(here.handler.cancelled))
        assert here.handler.cancelled == [{"n": 2}]
        here.handler.go.set()
        await until(lambda: len(answers) == 2)
        assert [m["result"]["content"][0]["text"] for a in answers for m in messages_of(a)] == ["waited"]


def messages_of(answer: httpx.Response) -> list[dict[str, Any]]:
    return [answer.json()] if answer.headers["content-type"] == "application/json" else messages(answer.text)


async def test_another_session_cannot_cancel() -> None:
    async with site() as here, here.client() as mine, here.client() as other:
        id = await open_session(mine)
        await open_session(other)
        raw = await here.raw(post(call("wait", id=1), f"Mcp-Session-Id: {id}"))
        await here.handler.waiting.wait()
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        assert (await other.post("/mcp", json=note)).status_code == 202
        here.handler.go.set()
        assert (await raw.answer())[0] == 200
        assert here.handler.cancelled == []


async def test_going_away_is_no_cancel() -> None:
    async with site() as here, here.client() as client:
        id = await open_session(client)
        raw = await here.raw(post(call("wait"), f"Mcp-Session-Id: {id}"))
        await here.handler.waiting.wait()
        raw.close()
        await until(lambda: here.server.connections == 1)
        here.handler.go.set()
        await here.handler.ended.wait()
        assert here.handler.cancelled == []


async def test_requests_in_flight_have_a_bound_also_without_their_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_http, "MAX_OPEN", 3)
    async with site() as here, here.client() as client, here.client(B) as other:
        id = await open_session(client)
        await open_session(client)
        for number in range(3):
            here.handler.waiting = anyio.Event()
            raw = await here.raw(post(call("wait", id=number), f"Mcp-Session-Id: {id}"))
            await here.handler.waiting.wait()
            raw.close()
        refused = (await client.post("/mcp", json=call("echo"))).json()["result"]
        assert refused["isError"] and refused["_meta"]["dev.sluice/reason"] == "rate_limited"
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        begun = await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
        assert begun.json()["error"]["data"] == {"reason": "rate_limited"}
        await open_session(other)
        assert "isError" not in (await other.post("/mcp", json=call("echo"))).json()["result"]
        here.handler.go.set()
        await until(lambda: not here.listener._legacy._in_flight._counts)
        assert "isError" not in (await client.post("/mcp", json=call("echo"))).json()["result"]


async def test_the_end_of_a_session_cancels_what_runs() -> None:
    async with site() as here, here.client() as client:
        id = await open_session(client)
        raw = await here.raw(post(call("wait", n=1), f"Mcp-Session-Id: {id}"))
        await here.handler.waiting.wait()
        assert (await client.delete("/mcp")).status_code == 200
        await here.handler.ended.wait()
        assert here.handler.cancelled[0] == {"n": 1}
        assert (await raw.head())[0] == 200


# ---------------------------------------------------------------- the GET stream


async def test_changes_go_to_the_get_stream_with_ids() -> None:
    async with site() as here, here.client() as client:
        raw = await stream(here, await open_session(client))
        first = await event(raw)
        assert first["data"] == "" and first["retry"] == "1000" and first["id"] == "0-0"
        await listening(here)
        await here.handler.listening[0].emit(CHANGED)
        told = await event(raw)
        assert (told["id"], json.loads(told["data"])["method"]) == ("0-1", CHANGED.method)


@pytest.mark.parametrize("revision", REVISIONS[:3])
async def test_older_clients_get_no_empty_event(revision: str) -> None:
    async with site() as here, here.client() as client:
        raw = await stream(here, await open_session(client, revision))
        await listening(here)
        await here.handler.listening[0].emit(CHANGED)
        told = await event(raw)
        assert json.loads(told["data"])["method"] == CHANGED.method
        assert ("id" in told) == (revision != "2024-11-05")


async def test_without_a_stream_changes_are_told_once_each_when_it_opens() -> None:
    async with site() as here, here.client() as client:
        id = await open_session(client, "2025-06-18")
        await listening(here)
        for _ in range(1000):
            await here.handler.listening[0].emit(CHANGED)
            await here.handler.listening[0].emit(OTHER)
        raw = await stream(here, id)
        assert {(await message(raw))["method"], (await message(raw))["method"]} == {CHANGED.method, OTHER.method}
        last = Notification("notifications/resources/list_changed", {})
        await here.handler.listening[0].emit(last)
        assert (await message(raw))["method"] == last.method


async def test_a_newer_get_stream_replaces_the_older() -> None:
    async with site() as here, here.client() as client:
        id = await open_session(client, "2025-06-18")
        older = await stream(here, id)
        newer = await stream(here, id)
        await older.reader.readuntil(b"0\r\n\r\n")
        await listening(here)
        await here.handler.listening[0].emit(CHANGED)
        assert (await message(newer))["method"] == CHANGED.method


async def test_what_a_broken_get_stream_missed_is_told_on_resuming() -> None:
    async with site() as here, here.client() as client:
        id = await open_session(client, "2025-06-18")
        raw = await stream(here, id)
        await listening(here)
        for note in (CHANGED, OTHER, CHANGED):
            await here.handler.listening[0].emit(note)
        assert (await event(raw))["id"] == "0-1"
        again = await stream(here, id, "Last-Event-ID: 0-1")
        told = [await event(again), await event(again)]
        assert [json.loads(e["data"])["method"] for e in told] == [OTHER.method, CHANGED.method]
        assert [e["id"] for e in told] == ["0-4", "0-5"]


async def test_a_get_stream_shows_that_it_is_alive() -> None:
    async with site(patch(ListenSettings(), "pace", keep_alive=0.05)) as here, here.client() as client:
        raw = await stream(here, await open_session(client))
        await raw.reader.readuntil(b": \n\n")
        await raw.reader.readuntil(b": \n\n")


async def test_get_streams_are_bounded_for_each_principal() -> None:
    async with site(patch(ListenSettings(), "limits", streams=1)) as here, here.client() as client:
        await stream(here, await open_session(client))
        client.headers["mcp-session-id"] = await open_session(client)
        assert (await client.get("/mcp")).status_code == 429


async def test_very_many_changes_are_sent_together_and_who_asks_for_them_again_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with site() as here, here.client() as client:
        id = await open_session(client)
        session = here.listener.sessions._all[id]
        for number in range(500):
            session.outbox.put(Notification("notifications/resources/updated", {"uri": f"u:{number}"}))
        writes, steps, write, refused = Counter[int](), Steps(), HttpExchange.write, list[str]()

        async def counted(self: HttpExchange, data: bytes, patient: bool = False) -> bool:
            writes[steps.now] += 1
            return await write(self, data, patient)

        monkeypatch.setattr(HttpExchange, "write", counted)
        large = here.listener._context.large
        monkeypatch.setattr(large, "refused", lambda principal, seconds, longest=None: refused.append(principal))
        for last in ((), ("Last-Event-ID: 0-0",)):
            writes.clear()
            raw = await stream(here, id, *last)
            for number in range(500):
                found = await event(raw)
                while not found["data"]:  # the id before there is anything
                    found = await event(raw)
                assert json.loads(found["data"])["params"] == {"uri": f"u:{number}"}
            assert len(writes) > 5 and writes.total() < 15
            assert refused == ["key:a"] * len(last)
            raw.close()
            await until(lambda: session.push is None)
        steps.stop()


async def test_very_many_small_events_are_sent_in_pieces_between_which_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with site() as here, here.client() as client:
        id = await open_session(client)
        raw = await here.raw(post(call("slow", id=9), f"Mcp-Session-Id: {id}"))
        await raw.head()
        await event(raw), await event(raw)
        raw.close()
        await until(lambda: here.server.connections == 1)
        (answer,) = here.listener.sessions._all[id].answers.values()
        assert answer.log is not None
        for number in range(10_000):
            answer.log.add(b'{"number":%d}' % number, 1024 * 1024)
        writes, steps, write = Counter[int](), Steps(), HttpExchange.write

        async def counted(self: HttpExchange, data: bytes, patient: bool = False) -> bool:
            writes[steps.now] += 1
            return await write(self, data, patient)

        monkeypatch.setattr(HttpExchange, "write", counted)
        resumed = await stream(here, id, "Last-Event-ID: 1-1")
        for number in range(10_000):
            assert json.loads((await event(resumed))["data"]) == {"number": number}
        steps.stop()
        assert len(writes) > 5 and max(writes.values()) == 1 and writes.total() < 60
        resumed.close()
        here.handler.go.set()


async def test_a_get_wants_events() -> None:
    async with site() as here, here.client() as client:
        await open_session(client)
        assert (await client.get("/mcp", headers={"accept": "application/json"})).status_code == 406


# ---------------------------------------------------------------- resuming a request's stream


async def test_a_broken_stream_is_resumed_where_it_was() -> None:
    async with site() as here, here.client() as client:
        id = await open_session(client)
        raw = await here.raw(post(call("slow", id=9), f"Mcp-Session-Id: {id}"))
        await raw.head()
        priming, first = await event(raw), await event(raw)
        assert (priming["id"], priming["data"], priming["retry"]) == ("1-0", "", "1000")
        assert first["id"] == "1-1"
        raw.close()
        await until(lambda: here.server.connections == 1)
        resumed = await stream(here, id, "Last-Event-ID: 1-1")
        here.handler.go.set()
        second, last = await event(resumed), await event(resumed)
        assert (second["id"], last["id"]) == ("1-2", "1-3")
        assert json.loads(last["data"])["result"]["content"][0]["text"] == "late"
        await resumed.reader.readuntil(b"0\r\n\r\n")
        later = await client.get("/mcp", headers={"last-event-id": "1-0"})
        assert [e["id"] for e in events(later.text)] == ["1-1", "1-2", "1-3"]
        assert here.handler.cancelled == []


async def test_a_response_that_came_while_nobody_listened_is_kept() -> None:
    async with site() as here, here.client() as client:
        id = await open_session(client, "2025-06-18")
        raw = await here.raw(post(call("slow", id=9), f"Mcp-Session-Id: {id}"))
        await raw.head()
        assert (await event(raw))["id"] == "1-1"
        raw.close()
        await until(lambda: here.server.connections == 1)
        here.handler.go.set()
        await here.handler.ended.wait()
        later = await client.get("/mcp", headers={"last-event-id": "1-1"})
        assert [m.get("id") for m in messages(later.text)] == [None, 9]


@pytest.mark.parametrize("last", ["9-1", "x", "", "1", "-1-1", "1-1; x", "99999999999-1", "é"])
async def test_an_event_that_is_not_ours_cannot_be_resumed_from(last: str) -> None:
    async with site() as here, here.client() as client:
        await open_session(client)
        answer = await client.get("/mcp", headers={"last-event-id": last.encode("latin-1")})  # type: ignore[dict-item]
        assert answer.status_code == 400


async def test_streams_of_another_session_cannot_be_resumed() -> None:
    async with site() as here, here.client() as client:
        await open_session(client)
        assert len(events((await client.post("/mcp", json=call("progress"))).text)) == 5
        await open_session(client)
        assert (await client.get("/mcp", headers={"last-event-id": "1-0"})).status_code == 400


async def test_finished_streams_are_kept_for_a_while_and_in_bounds() -> None:
    now = [0.0]
    settings = patch(ListenSettings(), "sessions", kept_for=10.0, kept_bytes=2500)
    async with site(settings, clock=lambda: now[0]) as here, here.client() as client:
        await open_session(client, "2025-06-18")
        for _ in range(6):
            await client.post("/mcp", json=call("progress"))
        assert (await client.get("/mcp", headers={"last-event-id": "1-0"})).status_code == 400
        assert (await client.get("/mcp", headers={"last-event-id": "6-0"})).status_code == 200
        now[0] = 11.0
        list(here.listener.sweep())
        assert (await client.get("/mcp", headers={"last-event-id": "6-0"})).status_code == 400


async def test_the_finished_streams_of_one_client_take_no_place_of_others() -> None:
    """One that filled the memory had everybody else's answers forgotten, which could not be resumed then."""
    settings = patch(ListenSettings(), "sessions", kept_bytes=2500)
    async with site(settings) as here, here.client() as client, here.client(B) as other:
        for one in (other, client):
            await open_session(one, "2025-06-18")
            await one.post("/mcp", json=call("progress"))
        for _ in range(6):
            await client.post("/mcp", json=call("progress"))
        assert (await other.get("/mcp", headers={"last-event-id": "1-0"})).status_code == 200
        assert (await client.get("/mcp", headers={"last-event-id": "1-0"})).status_code == 400
        assert (await client.get("/mcp", headers={"last-event-id": "7-0"})).status_code == 200
        assert (await client.delete("/mcp")).status_code == (await other.delete("/mcp")).status_code == 200
        sessions = here.listener.sessions
        assert not (sessions._retained or sessions._kept or sessions._kept_bytes)


async def test_the_oldest_revision_has_no_event_ids() -> None:
    async with site() as here, here.client() as client:
        await open_session(client, "2024-11-05")
        answer = await client.post("/mcp", json=call("progress"))
        assert len(messages(answer.text)) == 4
        assert all("id" not in e for e in events(answer.text))


async def test_a_long_silence_becomes_a_stream_that_can_be_resumed() -> None:
    settings = patch(ListenSettings(), "pace", open_after=0.05, keep_alive=0.05)
    async with site(settings) as here, here.client() as client:
        id = await open_session(client)
        raw = await here.raw(post(call("wait", id=3), f"Mcp-Session-Id: {id}"))
        await raw.head()
        assert (await event(raw))["id"] == "1-0"
        await raw.reader.readuntil(b": \n\n")
        raw.close()
        here.handler.go.set()
        await here.handler.ended.wait()
        later = await client.get("/mcp", headers={"last-event-id": "1-0"})
        assert messages(later.text)[0]["id"] == 3


# ---------------------------------------------------------------- subscriptions


def subscription(method: str, uri: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": f"resources/{method}", "params": {"uri": uri}}


async def test_a_subscription_is_one_listen_call_with_the_union() -> None:
    async with site() as here, here.client() as client:
        await open_session(client)
        await listening(here)
        for uri in ("gh+file:///a", "gh+file:///b"):
            assert (await client.post("/mcp", json=subscription("subscribe", uri))).json()["result"] == {}
        await listening(here)
        wanted = here.handler.listening[0].params["notifications"]
        assert wanted["resourceSubscriptions"] == ["gh+file:///a", "gh+file:///b"]
        assert wanted["toolsListChanged"] is True
        assert (await client.post("/mcp", json=subscription("unsubscribe", "gh+file:///a"))).json()["result"] == {}
        await listening(here)
        assert here.handler.listening[0].params["notifications"]["resourceSubscriptions"] == ["gh+file:///b"]


async def test_a_subscription_that_is_not_honoured_is_a_resource_that_is_not_found() -> None:
    async with site() as here, here.client() as client:
        await open_session(client)
        await listening(here)
        here.handler.honours = False
        refused = (await client.post("/mcp", json=subscription("subscribe", "gh+file:///x"))).json()
        assert refused["error"]["code"] == -32002
        await listening(here)
        assert "resourceSubscriptions" not in here.handler.listening[0].params["notifications"]


async def test_a_subscription_that_waits_while_roles_change_is_judged_by_the_new_ones() -> None:
    async with site() as here, here.client() as client, anyio.create_task_group() as tasks:
        await open_session(client)
        await listening(here)
        here.handler.acknowledges.clear()
        answers: list[httpx.Response] = []

        async def subscribe() -> None:
            answers.append(await client.post("/mcp", json=subscription("subscribe", "gh+file:///a")))

        tasks.start_soon(subscribe)
        await listening(here, 2)
        here.identity.replace(LATER)
        assert (await client.post("/mcp", json=call("echo"))).status_code == 200
        here.handler.acknowledges.set()
        await until(lambda: bool(answers))
        await listening(here)
        heard = here.handler.listening[0]
        assert heard.client.roles == ("role:later",)
        assert heard.params["notifications"]["resourceSubscriptions"] == ["gh+file:///a"]


async def test_what_stopped_listening_does_not_begin_again_with_other_roles() -> None:
    async with site() as here, here.client() as client:
        await open_session(client)
        await listening(here)
        here.listener.close()
        await listening(here, 0)
        known = len(here.handler.calls)
        here.identity.replace(LATER)
        assert (await client.post("/mcp", json=call("echo"))).status_code == 200
        assert [one.method for one in here.handler.calls[known:]] == ["tools/call"]


# ---------------------------------------------------------------- batches


async def test_a_batch_is_answered_in_one_array() -> None:
    async with site() as here, here.client() as client:
        await open_session(client, "2025-03-26")
        note = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
        answer = await client.post("/mcp", json=[call("echo", id=1), note, call("none", id="1")])
        assert answer.headers["content-type"] == "application/json"
        assert {m["id"]: "result" in m for m in answer.json()} == {1: True, "1": False}


async def test_a_batch_runs_at_once_and_streams_if_something_is_said() -> None:
    async with site() as here, here.client() as client, anyio.create_task_group() as tasks:
        await open_session(client, "2025-03-26")
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await client.post("/mcp", json=[call("wait", id=1), call("slow", id=2), call("echo", id=3)]))

        tasks.start_soon(ask)
        await until(lambda: len(here.handler.calls) == 5)
        here.handler.go.set()
        await until(lambda: bool(answers))
        found = messages(answers[0].text)
        assert sorted(m["id"] for m in found if "id" in m) == [1, 2, 3]
        assert len([m for m in found if "method" in m]) == 2


async def test_a_batch_without_requests_is_accepted() -> None:
    async with site() as here, here.client() as client:
        await open_session(client, "2025-03-26")
        note = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
        answer = await client.post("/mcp", json=[note, {"jsonrpc": "2.0", "id": 1, "result": {}}])
        assert (answer.status_code, answer.content) == (202, b"")


@pytest.mark.parametrize("case", BAD_BATCHES)
async def test_a_bad_batch_is_refused_as_a_whole(case: str) -> None:
    async with site() as here, here.client() as client:
        await open_session(client, "2025-03-26", initialized=False)
        known = len(here.handler.calls)
        answer = await client.post("/mcp", json=BAD_BATCHES[case])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600)
        assert "id" not in answer.json()
        assert len(here.handler.calls) == known


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_other_revisions_have_no_batches(revision: str) -> None:
    async with site() as here, here.client() as client:
        await open_session(client, revision, initialized=False)
        answer = await client.post("/mcp", json=[call("echo")])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600)
        assert len(here.handler.calls) == 1


async def test_one_item_of_a_batch_can_be_cancelled() -> None:
    async with site() as here, here.client() as client, anyio.create_task_group() as tasks:
        await open_session(client, "2025-03-26")
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await client.post("/mcp", json=[call("wait", id=1), call("echo", id=2)]))

        tasks.start_soon(ask)
        await here.handler.waiting.wait()
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await client.post("/mcp", json=note)
        await until(lambda: bool(answers))
        assert [m["id"] for m in answers[0].json()] == [2]


def _waiters(lock: Any) -> int:
    return len(lock._waiters or ())


async def _when_it_waits(here: Site, client: httpx.AsyncClient, batch: Any, act: Any) -> None:
    """Acts while each request of the batch waits for its client's turn, which comes after that."""
    budget = here.listener._context.large.budget_of("key:a")
    budget.charge(0.02)
    turn = budget.turn
    waiting = partial(_waiters, turn)
    await turn.acquire()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(client.post, "/mcp", json=batch))
        await until(lambda: waiting() == 1)  # the batch itself
        group.start_soon(turn.acquire)
        await until(lambda: waiting() == 2)
        turn.release()
        await until(lambda: waiting() == len(batch))
        await act()
        turn.release()


async def test_requests_of_a_batch_that_wait_for_their_turn_end_with_their_session() -> None:
    async with site() as here, here.client() as client, here.client() as other:
        other.headers["mcp-session-id"] = await open_session(client, "2025-03-26")

        async def end() -> None:
            assert (await other.delete("/mcp")).status_code == 200

        await _when_it_waits(here, client, [call("echo", id=n) for n in range(4)], end)
        assert [one for one in here.handler.calls if one.method == "tools/call"] == []


@pytest.mark.parametrize(("settings", "ran"), [(LATER, 4), (IdentitySettings(), 0)], ids=["role", "key"])
async def test_requests_of_a_batch_that_wait_for_their_turn_go_by_the_key_as_it_is_then(
    settings: IdentitySettings, ran: int
) -> None:
    async with site() as here, here.client() as client:
        await open_session(client, "2025-03-26")

        async def change() -> None:
            here.identity.replace(settings)

        await _when_it_waits(here, client, [call("echo", id=n) for n in range(4)], change)
        roles = [one.client.roles for one in here.handler.calls if one.method == "tools/call"]
        assert roles == [("role:later",)] * ran
        role = "role:later" if ran else "role:a"
        await until(lambda: {one.client.roles for one in here.handler.listening} == {(role,)})


# ---------------------------------------------------------------- bounds


async def test_sessions_that_ended_leave_nothing_behind() -> None:
    async with site() as here, here.client() as client:
        for _ in range(50):
            await open_session(client)
            await client.delete("/mcp")
        await listening(here, 0)
        assert len(here.listener.sessions) == 0
        assert len(here.ended) == 50
        assert len(asyncio.all_tasks()) < 20
