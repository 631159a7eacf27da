"""A modern client over HTTP: one request, one answer, nothing remembered; going away cancels."""

import json

import anyio
import anyio.lowlevel
import pytest
from listen_harness import META, A, B, events, key, messages, modern, patch, post, site, until

from sluicegate.listen.auth import Identity, IdentitySettings
from sluicegate.listen.listener import Listener
from sluicegate.listen.settings import ListenSettings

SERVER_INFO = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def lines(headers: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}: {value}" for name, value in headers.items())


async def test_an_outcome_that_comes_first_is_json() -> None:
    headers, body = modern("tools/call", name="echo", id="x", arguments={"a": 1})
    async with site() as here, here.client() as client:
        answer = await client.post("/mcp", json=body, headers=headers)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers and "mcp-session-id" not in answer.headers
        message = answer.json()
        assert message["id"] == "x" and message["result"]["resultType"] == "complete"
        (call,) = here.handler.calls
        assert (call.client.principal, call.client.roles, call.client.owner) == ("key:a", ("role:a",), "team")
        assert (call.client.session, call.params) == (None, {"name": "echo", "arguments": {"a": 1}})
        assert call.trail.id


async def test_what_is_emitted_first_makes_a_stream() -> None:
    headers, body = modern("tools/call", name="progress", id=7)
    async with site() as here, here.client() as client:
        answer = await client.post("/mcp", json=body, headers=headers)
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["x-accel-buffering"] == "no"
        *notes, last = messages(answer.text)
        assert [note["params"]["progress"] for note in notes] == [0, 1, 2]
        assert last["id"] == 7
        assert all("id" not in event for event in events(answer.text)), "this revision has no event ids"


async def test_a_long_silence_becomes_a_stream_that_shows_it_is_alive() -> None:
    headers, body = modern("tools/call", name="wait")
    async with site(patch(ListenSettings(), "pace", open_after=0.05, keep_alive=0.05)) as here:
        raw = await here.raw(post(body, *lines(headers)))
        status, head = await raw.head()
        assert (status, head["content-type"]) == (200, "text/event-stream")
        await raw.reader.readuntil(b": \n\n")
        await raw.reader.readuntil(b": \n\n")
        here.handler.go.set()
        assert b"waited" in await raw.reader.readuntil(b"0\r\n\r\n")


@pytest.mark.parametrize("tool", ["wait", "slow"])
async def test_going_away_cancels(tool: str) -> None:
    headers, body = modern("tools/call", name=tool, arguments={"is": "mine"})
    async with site() as here, here.client() as other:
        raw = await here.raw(post(body, *lines(headers)))
        await here.handler.waiting.wait()
        raw.close()
        await until(lambda: not here.server.connections)
        if tool == "wait":
            await here.handler.ended.wait()
            assert here.handler.cancelled == [{"is": "mine"}]
        else:
            assert not here.handler.ended.is_set()
        headers, body = modern("tools/list")
        assert (await other.post("/mcp", json=body, headers=headers)).status_code == 200


async def test_a_listen_stream_is_acknowledged_first_and_ends_with_its_client() -> None:
    headers, body = modern("subscriptions/listen", id="sub", notifications={"toolsListChanged": True})
    async with site() as here:
        raw = await here.raw(post(body, *lines(headers)))
        await raw.reader.readuntil(b"\r\n\r\n")
        event = (await raw.reader.readuntil(b"\n\n")).decode()
        first = json.loads(event.split("data: ")[1])
        assert first["method"] == "notifications/subscriptions/acknowledged"
        assert first["params"]["_meta"][SUBSCRIPTION] == "sub"
        raw.close()
        await until(lambda: not here.handler.listening)
        assert here.handler.cancelled == ["listen"]


async def test_open_streams_are_bounded_for_each_principal() -> None:
    headers, body = modern("subscriptions/listen", notifications={})
    async with site(patch(ListenSettings(), "limits", streams=2)) as here, here.client() as client:
        open_ones = [await here.raw(post(body, *lines(headers))) for _ in range(2)]
        for raw in open_ones:
            await raw.reader.readuntil(b"acknowledged")
        refused = await client.post("/mcp", json=body, headers=headers)
        assert (refused.status_code, refused.json()["id"]) == (429, 1)
        other = await here.raw(post(body, *lines(headers), secret=B))
        await other.reader.readuntil(b"acknowledged")
        open_ones[0].close()
        await until(lambda: len(here.handler.listening) == 2)
        again = await here.raw(post(body, *lines(headers)))
        await again.reader.readuntil(b"acknowledged")


async def test_a_revoked_key_loses_its_streams() -> None:
    headers, body = modern("subscriptions/listen", notifications={})
    async with site() as here:
        raw = await here.raw(post(body, *lines(headers)))
        await raw.reader.readuntil(b"acknowledged")
        here.identity.replace(IdentitySettings())
        list(here.listener.sweep())
        await raw.closed()
        await until(lambda: not here.handler.listening)
        assert (await (await here.raw(post(body, *lines(headers)))).answer())[0] == 401


ENDED = "the credential was revoked or has expired meanwhile"
KEYS_AFTER = {"removed": (), "replaced": (key("a", "second", roles=("role:a",), owner="team"),)}


@pytest.mark.parametrize("how", KEYS_AFTER)
@pytest.mark.parametrize("tool", ["wait", "slow"])
async def test_a_call_ends_with_the_key_that_made_it(how: str, tool: str) -> None:
    headers, body = modern("tools/call", name=tool, arguments={})
    async with site() as here:
        raw = await here.raw(post(body, *lines(headers)))
        await here.handler.waiting.wait()
        here.identity.replace(IdentitySettings(keys=(key("a", A, roles=("role:other",)),)))
        list(here.listener.sweep())
        assert len(here.handler.cancelled) == 0, "other roles end no call"
        here.identity.replace(IdentitySettings(keys=KEYS_AFTER[how]))
        list(here.listener.sweep())
        with anyio.fail_after(5):
            if tool == "slow":  # its answer is a stream already
                assert b"late" not in await raw.closed()
            else:
                status, _, said = await raw.answer()
                assert (status, json.loads(said)["error"]["message"]) == (403, ENDED)
                assert await raw.closed() == b""
                await until(lambda: here.handler.cancelled == [{}])


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"mcp-method": "tools/list"}, 400, -32020),
        ({"mcp-name": "other"}, 400, -32020),
        ({"mcp-name": None}, 400, -32020),
        ({"mcp-method": None}, 400, -32020),
        ({"mcp-protocol-version": "2025-11-25"}, 400, -32020),
        ({"mcp-protocol-version": None}, 400, -32020),
    ],
)
async def test_headers_say_what_the_body_says(change: dict[str, str | None], status: int, code: int) -> None:
    headers, body = modern("tools/call", name="echo")
    merged = {name: value for name, value in {**headers, **change}.items() if value is not None}
    async with site() as here, here.client() as client:
        answer = await client.post("/mcp", json=body, headers=merged)
        assert (answer.status_code, answer.json()["error"]["code"], answer.json()["id"]) == (status, code, 1)
        assert here.handler.calls == []


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "no/such"])
async def test_other_eras_methods_are_not_found(method: str) -> None:
    headers, body = modern(method, id="m")
    async with site() as here, here.client() as client:
        answer = await client.post("/mcp", json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"], answer.json()["id"]) == (404, -32601, "m")


async def test_the_header_alone_makes_a_request_modern() -> None:
    async with site() as here, here.client() as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
        answer = await client.post("/mcp", json=body, headers={"mcp-protocol-version": "2026-07-28"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)
        assert len(here.listener.sessions) == 0


async def test_a_revision_that_does_not_exist_is_told_what_does() -> None:
    meta = {**META, "io.modelcontextprotocol/protocolVersion": "v999.0.0"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {"mcp-protocol-version": "v999.0.0", "mcp-method": "tools/list"}
    async with site() as here, here.client() as client:
        answer = await client.post("/mcp", json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32022)
        assert answer.json()["error"]["data"]["requested"] == "v999.0.0"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_get_and_delete_are_not_of_this_revision(method: str) -> None:
    async with site() as here, here.client() as client:
        answer = await client.request(method, "/mcp", headers={"mcp-protocol-version": "2026-07-28"})
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST, OPTIONS")


async def test_notifications_are_accepted_without_a_word() -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "_meta": META}}
    async with site() as here, here.client() as client:
        answer = await client.post("/mcp", json=note, headers={"mcp-protocol-version": "2026-07-28"})
        assert (answer.status_code, answer.content) == (202, b"")
        response = {"jsonrpc": "2.0", "id": 1, "result": {}}
        answer = await client.post("/mcp", json=response, headers={"mcp-protocol-version": "2026-07-28"})
        assert answer.status_code == 400


async def test_a_session_id_means_nothing_here() -> None:
    headers, body = modern("tools/list")
    async with site() as here, here.client() as client:
        answer = await client.post("/mcp", json=body, headers={**headers, "mcp-session-id": "made-up"})
        assert answer.status_code == 200


async def test_many_clients_with_the_same_ids_get_their_own_answers() -> None:
    async with site() as here, anyio.create_task_group() as tasks:

        async def one(name: int) -> None:
            async with here.client() as client:
                for n in range(10):
                    headers, body = modern("tools/call", name="echo", id=n, arguments={"who": name, "n": n})
                    answer = (await client.post("/mcp", json=body, headers=headers)).json()
                    assert answer["id"] == n
                    assert json.loads(answer["result"]["content"][0]["text"]) == {"who": name, "n": n}

        for name in range(20):
            tasks.start_soon(one, name)


async def test_old_sessions_are_swept_while_it_runs() -> None:
    listener = Listener(lambda call: None, {}, Identity(IdentitySettings()), ListenSettings(), print)  # type: ignore
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.run)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_the_calls_of_a_revoked_key_end_in_short_steps() -> None:
    headers, body = modern("tools/call", name="wait", arguments={})
    async with site() as here:
        for _ in range(200):
            await here.raw(post(body, *lines(headers)))
        await until(lambda: len(here.handler.calls) == 200)
        here.identity.replace(IdentitySettings())
        left = []
        for _ in here.listener.sweep():
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            left.append(200 - len(here.handler.cancelled))
        assert len({0, *left}) > 3, left
        await until(lambda: len(here.handler.cancelled) == 200)
