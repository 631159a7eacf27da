"""What a server leaves unfinished counts over all its streams and bodies, and the largest of them goes."""

import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from peers.fleet import free_port, wait_for_port
from peers.fleet import running as running_program
from scripted_servers import Rig, running, until

from sluicegate.downstream.transport.stdio_transport import Lines
from sluicegate.http.sse import EventParser, StreamPosition
from sluicegate.protocol.model import Client, Failure, Result
from sluicegate.runtime.unfinished import PART, SMALL, TooMuchUnfinished, Unfinished

SERVER = str(Path(__file__).parents[1] / "unfinished_server.py")
KIB, MIB = 1024, 1024 * 1024
MOST = 600 * KIB


class Stream:
    """One that only says whether it was given up."""

    is_over = False

    def give_up(self) -> None:
        self.is_over = True


# ---------------------------------------------------------------- what counts


def test_the_largest_goes_whoever_asks_for_more() -> None:
    one, two, three = Stream(), Stream(), Stream()
    all_of_them = Unfinished(100)
    all_of_them.hold(one, 60)
    all_of_them.hold(two, 30)
    all_of_them.hold(three, 20)
    assert (one.is_over, two.is_over, all_of_them.held) == (True, False, 50)
    with pytest.raises(TooMuchUnfinished):
        all_of_them.hold(one, 61)  # its reader has not heard of its end yet
    with pytest.raises(TooMuchUnfinished):
        all_of_them.hold(three, 80)
    assert (two.is_over, all_of_them.held) == (False, 30)


def test_of_equal_ones_that_one_goes_which_asks() -> None:
    one, two = Stream(), Stream()
    both = Unfinished(100)
    both.hold(one, 60)
    with pytest.raises(TooMuchUnfinished):
        both.hold(two, 60)
    assert not one.is_over and both.held == 60


def test_a_stream_that_is_gone_holds_nothing() -> None:
    all_of_them = Unfinished(100)
    one = EventParser(StreamPosition(), MIB, unfinished=Unfinished(MIB))
    all_of_them.hold(one, 60)
    del one
    gc.collect()
    assert all_of_them.held == 0


@pytest.mark.parametrize("cut", [7, 8 * KIB])
def test_an_event_counts_until_it_ends(cut: int) -> None:
    every = Unfinished(MIB)
    events = EventParser(StreamPosition(), MIB, unfinished=every)

    def fed(data: bytes) -> list[Any]:
        return [event for at in range(0, len(data), cut) for event in events.feed(data[at : at + cut])]

    assert fed(b"data: " + b"x" * (SMALL - 6)) == [] and every.held == 0
    assert fed(b"x" * SMALL) == [] and 2 * SMALL < every.held < 2 * SMALL + PART * (2 * SMALL / cut + 9)
    assert fed(b"\n\n") == [b"x" * (2 * SMALL - 6)] and every.held == 0


def test_lists_of_short_texts_count_as_what_they_take() -> None:
    every = Unfinished(MIB)
    events = EventParser(StreamPosition(), MIB, unfinished=every)
    with pytest.raises(TooMuchUnfinished):
        for _ in range(20):
            events.feed(b"data:a\n" * KIB)
    assert every.held == 0


def test_a_stream_that_was_given_up_ends_with_its_next_piece() -> None:
    every, told = Unfinished(100 * KIB), list[Exception]()
    small = EventParser(StreamPosition(), MIB, unfinished=every)
    large = EventParser(StreamPosition(), MIB, unfinished=every, close=told.append)
    small.feed(b"data:" + b"x" * 20 * KIB)
    large.feed(b"data:" + b"x" * 60 * KIB)
    small.feed(b"x" * 30 * KIB)
    assert len(told) == 1 and every.held < 60 * KIB
    with pytest.raises(TooMuchUnfinished):
        large.feed(b'"}\n\ndata: {"what": "follows"}\n\n')
    assert small.feed(b"\n\n") == [b"x" * 50 * KIB]


def test_the_lines_of_two_pipes_count_together() -> None:
    every, told = Unfinished(100 * KIB), list[Exception]()
    one, two = Lines(MIB, unfinished=every, end=told.append), Lines(MIB, unfinished=every)
    assert one.feed(b"first\n" + b"x" * 60 * KIB) == [b"first"]
    assert two.feed(b"x" * 45 * KIB) == [] and len(told) == 1
    assert two.feed(b"\n") == [b"x" * 45 * KIB] and every.held == 0


# ---------------------------------------------------------------- real servers


@asynccontextmanager
async def unfinished_server(where: str, folder: Path) -> AsyncIterator[Rig]:
    settings: dict[str, Any] = {"era": "legacy", "max_result": MIB, "unfinished": Unfinished(MOST)}
    if where == "pipe":
        async with running(command=(sys.executable, SERVER, "--stdio"), **settings) as rig:
            yield rig
        return
    port, log = free_port(), folder / "server.log"
    with running_program([sys.executable, SERVER, str(port)], log) as program:
        wait_for_port(port, program, log)
        path = "sse" if where == "sse" else "mcp"
        transport = "sse" if where == "sse" else "http"
        async with running(url=f"http://127.0.0.1:{port}/{path}", transport=transport, **settings) as rig:
            yield rig


@pytest.mark.parametrize("where", ["get", "stream", "body", "sse", "pipe"])
async def test_the_largest_message_of_a_server_is_given_up_and_others_go_on(where: str, tmp_path: Path) -> None:
    async with unfinished_server(where, tmp_path) as rig, anyio.create_task_group() as group:
        every, ended = rig.server.settings.unfinished, list[str]()

        async def leave(session: str, size: int) -> None:
            client = Client("key:a", revision="2025-11-25", session=session)
            params = {"name": "leave", "arguments": {"size": size * KIB, "where": where}}
            outcome = await rig.request("tools/call", params, client)
            assert isinstance(outcome, Result)
            if reason := outcome.value.get("_meta", {}).get("dev.sluice/reason"):
                assert (session, reason) == ("large", "result_too_large"), outcome
                ended.append(session)

        async def left(session: str, size: int, held: int) -> None:
            group.start_soon(leave, session, size)
            await until(lambda: abs(every.held - held * KIB) < 30 * KIB)

        await left("large", 300, 300)
        await left("small", 150, 450)
        await left("another", 200, 350)
        if where in ("stream", "body"):
            await until(lambda: ended == ["large"])
        for session in ("large", "small", "another"):
            if where not in ("sse", "pipe") or session == "large":  # the others wait for the end of what has begun
                client = Client("key:a", revision="2025-11-25", session=session)
                assert await rig.tool("say", client=client) == "said"
        assert abs(every.held - 350 * KIB) < 30 * KIB
        group.cancel_scope.cancel()


async def test_what_asks_for_too_much_alone_says_so(tmp_path: Path) -> None:
    async with unfinished_server("stream", tmp_path) as rig:
        for where in ("stream", "body"):
            params = {"name": "leave", "arguments": {"size": 700 * KIB, "where": where}}
            outcome = await rig.request("tools/call", params)
            assert isinstance(outcome, Result) and not isinstance(outcome, Failure)
            assert "beside all else that the server has not finished" in outcome.value["content"][0]["text"]
        assert rig.server.settings.unfinished.held == 0 and await rig.tool("say") == "said"
