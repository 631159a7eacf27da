"""Answers that nobody reads: how many bytes of them one client may have, over all its connections."""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from listen_harness import A, B, Site, call, messages, modern, open_session, patch, post, site, until
from test_listen_sse import stream

from sluicegate.listen.settings import ListenSettings
from sluicegate.protocol.jsonrpc import Notification
from sluicegate.protocol.model import Call, Outcome, Result

ONE = 12_000_000
"""Bytes: more than the system's buffers take."""
MOST = 2 * ONE
SETTINGS = patch(ListenSettings(), "limits", in_flight=MOST)


def unwritten(here: Site) -> int:
    connections: Any = here.server._server.server_state.connections
    return sum(one.transport.get_write_buffer_size() for one in connections)


def large(here: Site) -> None:
    async def tool(call: Call) -> Outcome:
        return Result({"content": [{"type": "text", "text": "x" * ONE}]})

    here.handler.tool_large = tool  # type: ignore[attr-defined]


async def settled() -> None:
    for _ in range(200):
        await anyio.lowlevel.checkpoint()


async def ask(client: httpx.AsyncClient, era: str) -> int:
    headers, body = modern("tools/call", name="echo") if era == "modern" else ({}, call("echo"))
    return (await client.post("/mcp", json=body, headers=headers)).status_code


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_answers_that_are_not_read_count_for_their_client(era: str) -> None:
    async with site(SETTINGS) as here, here.client() as client, here.client(B) as other:
        large(here)
        session = await open_session(client)
        await open_session(other)
        before = len(here.handler.calls)
        for _ in range(12):
            headers, body = modern("tools/call", name="large") if era == "modern" else ({}, call("large"))
            lines = [f"{name}: {value}" for name, value in headers.items()] or [f"Mcp-Session-Id: {session}"]
            (await here.raw(post(body, *lines))).pause()
        await until(lambda: len(here.handler.calls) >= before + 3 and unwritten(here) > MOST)
        await settled()
        assert unwritten(here) < MOST + ONE + 1_000_000
        assert await ask(client, era) == 429
        assert await ask(other, era) == 200
        for raw in here.raws:
            raw.close()
        with anyio.fail_after(20):
            while await ask(client, era) != 200:
                await anyio.lowlevel.checkpoint()


async def test_so_do_those_on_event_streams() -> None:
    async with site(SETTINGS) as here, here.client() as client:
        large(here)
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(stream(here)) for _ in range(8)]
            for one in streams:
                await one.initialize()
                one.raw.pause()
            for one in streams:
                assert await one.post(call("large")) in (202, 429)
            await until(lambda: unwritten(here) > MOST)
            await settled()
            assert unwritten(here) < MOST + ONE + 1_000_000
            assert (await client.post("/mcp", json=call("echo"))).status_code == 429


async def test_large_answers_of_a_batch_are_events_of_a_stream() -> None:
    async with site() as here, here.client() as client:
        await open_session(client, "2025-03-26")
        answer = await client.post("/mcp", json=[call("echo", id=id, text="x" * 100_000) for id in range(20)])
        assert answer.headers["content-type"] == "text/event-stream"
        assert sorted(message["id"] for message in messages(answer.text)) == list(range(20))


async def test_of_a_batch_that_is_not_read_one_answer_waits() -> None:
    async with site() as here, here.client() as client:
        large(here)
        session = await open_session(client, "2025-03-26")
        body = [call("large", id=id) for id in range(12)]
        raw = await here.raw(post(body, f"Mcp-Session-Id: {session}"))  # type: ignore[arg-type]
        raw.pause()
        await until(lambda: unwritten(here) > 1_000_000)
        await settled()
        assert unwritten(here) < ONE + 1_000_000


async def test_so_does_what_is_sent_once_more() -> None:
    async with site(patch(SETTINGS, "sessions", kept_bytes=20 * ONE)) as here, here.client() as client:
        async def tool(call: Call) -> Outcome:
            await call.emit(Notification("notifications/progress", {"progressToken": "t", "progress": 1}))
            return Result({"content": [{"type": "text", "text": "x" * ONE}]})

        here.handler.tool_large = tool  # type: ignore[attr-defined]
        session = await open_session(client)
        for _ in range(8):
            assert (await client.post("/mcp", json=call("large"))).status_code == 200
        for number in range(1, 9):
            lines = ["GET /mcp HTTP/1.1", "Host: localhost", f"Authorization: Bearer {A}", "Accept: text/event-stream"]
            lines += [f"Mcp-Session-Id: {session}", f"Last-Event-ID: {number}-0", "", ""]
            (await here.raw("\r\n".join(lines).encode())).pause()
        await until(lambda: unwritten(here) > MOST)
        await settled()
        assert unwritten(here) < MOST + ONE + 1_000_000


@pytest.mark.parametrize("revision", ["2025-11-25", "2025-03-26"])
async def test_so_does_the_end_of_a_stream_that_was_resumed(revision: str) -> None:
    """The old connection was asked how much of it was read."""
    async with site(SETTINGS) as here, here.client() as client:
        said = anyio.Semaphore(0)

        async def tool(call: Call) -> Outcome:
            await call.emit(Notification("notifications/progress", {"progressToken": "t", "progress": 1}))
            said.release()
            await here.handler.go.wait()
            return Result({"content": [{"type": "text", "text": "x" * ONE}]})

        here.handler.tool_large = tool  # type: ignore[attr-defined]
        session = await open_session(client, revision)
        for number in range(1, 9):
            body: Any = call("large") if revision == "2025-11-25" else [call("large")]
            first = await here.raw(post(body, f"Mcp-Session-Id: {session}"))
            await said.acquire()
            first.close()
            lines = ["GET /mcp HTTP/1.1", "Host: localhost", f"Authorization: Bearer {A}", "Accept: text/event-stream"]
            lines += [f"Mcp-Session-Id: {session}", f"Last-Event-ID: {number}-0", "", ""]
            again = await here.raw("\r\n".join(lines).encode())
            await again.reader.readuntil(b"progress")
            again.pause()
        here.handler.go.set()
        await until(lambda: unwritten(here) > MOST)
        await settled()
        assert unwritten(here) < MOST + ONE + 1_000_000
