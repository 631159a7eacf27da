"""Writes wait for the end of the turn, and come out as they went in."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sluicegate.runtime.write_coalescer import MOST, WriteCoalescer, write_coalescer_of


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.WriteTransport, socket.socket]]:
    """A transport, and the socket at its other end, which is read without waiting."""
    near, far = socket.socketpair()
    far.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=near)
    try:
        yield transport, far
    finally:
        transport.abort()
        far.close()


def seen(far: socket.socket) -> bytes:
    try:
        return far.recv(1000)
    except BlockingIOError:
        return b""


async def test_what_one_turn_writes_leaves_at_its_end_in_the_order_it_came() -> None:
    loop, box = asyncio.get_running_loop(), WriteCoalescer()
    async with connected() as (transport, far):
        for data in (b"1", b"2", b"3"):
            box.put(loop, transport, data)
        assert seen(far) == b""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen(far) == b"123"
        box.put(loop, transport, b"4")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen(far) == b"4", "it waits for the end of every turn"


async def test_so_many_do_not_wait_longer() -> None:
    loop, box = asyncio.get_running_loop(), WriteCoalescer()
    async with connected() as (transport, far):
        for _ in range(MOST - 1):
            box.put(loop, transport, b"x")
        assert seen(far) == b""
        box.put(loop, transport, b"x")
        assert seen(far) == b"x" * MOST


async def test_who_cannot_wait_flushes() -> None:
    loop, box = asyncio.get_running_loop(), WriteCoalescer()
    async with connected() as (transport, far):
        box.put(loop, transport, b"1")
        box.flush()
        transport.write(b"2")
        assert seen(far) == b"12"


async def test_what_was_aborted_is_dropped_and_others_are_not() -> None:
    loop, box = asyncio.get_running_loop(), WriteCoalescer()
    async with connected() as (gone, far), connected() as (transport, other):
        box.put(loop, gone, b"never")
        box.put(loop, transport, b"still")
        gone.abort()
        box.flush()
        assert (seen(far), seen(other)) == (b"", b"still")


async def test_one_that_fails_takes_no_other_with_it() -> None:
    loop, box = asyncio.get_running_loop(), WriteCoalescer()
    async with connected() as (broken, _), connected() as (transport, far):
        broken.write_eof()
        box.put(loop, broken, b"too late")
        box.put(loop, transport, b"still")
        with pytest.raises(RuntimeError):
            box.flush()
        assert seen(far) == b"still"


async def test_an_event_loop_has_one() -> None:
    loop = asyncio.get_running_loop()
    assert write_coalescer_of(loop) is write_coalescer_of(loop)
