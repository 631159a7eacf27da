"""What an answer that is one event costs to take apart, in CPU microseconds: httpx-sse's `EventSource` over a stream of
bounded bytes, and our parser on the decoders beneath it.

    python tests/bench/event_cost.py [CALLS]
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
from httpx_sse import EventSource

sys.path.insert(0, str(Path(__file__).parents[2] / "proxy"))

from sluicegate.http.sse import EventParser, StreamPosition

LIMIT = 8 * 1024 * 1024
HEADERS = httpx.Headers({"content-type": "text/event-stream; charset=latin-1"})
ANSWER = (
    b'event: message\r\ndata: {"jsonrpc":"2.0","id":7,"result":'
    b'{"content":[{"type":"text","text":"the quick brown fox"}]}}\r\n\r\n'
)


class Bounded(httpx.AsyncByteStream):
    """The bytes of an answer, until an event is larger than it may be."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if len(self._content) > LIMIT:
            raise ValueError("too large")
        yield self._content


async def public() -> bytes:
    source = EventSource(httpx.Response(200, headers=HEADERS, stream=Bounded(ANSWER)))
    found = [event async for event in source.aiter_sse()]
    return found[0].data.encode("latin-1")


async def ours() -> bytes:
    return EventParser(StreamPosition(), LIMIT).feed(ANSWER)[0]


async def cost(name: str, take: Callable[[], Awaitable[bytes]], calls: int) -> None:
    best = float("inf")
    for _ in range(5):  # the first round warms up
        start = time.process_time()
        for _ in range(calls):
            assert (await take()).endswith(b"}")
        best = min(best, (time.process_time() - start) / calls)
    print(f"{name:44s} {best * 1e6:10.1f}")


async def main(calls: int) -> None:
    await cost("EventSource over bounded bytes", public, calls)
    await cost("EventParser", ours, calls)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
