"""Taps: they stand between two programs, hand every byte on unchanged, and keep what passed.

`Tap` stands in front of an HTTP server, in a thread of its own; `tee.py` in front of one on stdio, as a process. What
was kept is read afterwards, so that nothing here can change what is under test but by a little time.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httptools

Json = dict[str, Any]

TEE = Path(__file__).with_name("tee.py")


@dataclass(slots=True)
class Half:
    """One request or one response."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    method: str = ""
    target: str = ""

    def messages(self) -> list[Any]:
        """Every JSON-RPC message in it; the members of an array one by one."""
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            lines = self.body.decode().splitlines()
            texts = [line[5:].strip() for line in lines[: _whole(self.body, lines)] if line.startswith("data:")]
            values = [json.loads(text) for text in texts if text.startswith(("{", "["))]
        else:
            try:
                values = [json.loads(self.body)] if self.body else []
            except ValueError:
                return []  # cut off, or what a test made so
        return [part for value in values for part in (value if isinstance(value, list) else [value])]


def _whole(body: bytes, lines: list[str]) -> int:
    """The last line of a stream that was cut off is no line."""
    return len(lines) if body.endswith(b"\n") else len(lines) - 1


class _Reader:
    """Collects the halves of one direction of one connection."""

    def __init__(self, parser: Callable[[Any], Any]) -> None:
        self.halves: list[Half] = []
        self._parser = parser(self)
        self._is_request = parser is httptools.HttpRequestParser

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            pass  # tests send what is no HTTP, too

    def on_message_begin(self) -> None:
        self.halves.append(Half())

    def on_url(self, url: bytes) -> None:
        self.halves[-1].target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.halves[-1].headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        if self._is_request:
            self.halves[-1].method = self._parser.get_method().decode()

    def on_body(self, data: bytes) -> None:
        self.halves[-1].body += data


class Connection:
    """What went in and out, in the order in which it did."""

    def __init__(self) -> None:
        self.asked, self.said = bytearray(), bytearray()

    def exchanges(self) -> list[tuple[Half, Half]]:
        asked, said = _Reader(httptools.HttpRequestParser), _Reader(httptools.HttpResponseParser)
        asked.feed(bytes(self.asked))
        said.feed(bytes(self.said))
        answers = [half for half in said.halves if half.headers]  # 100 Continue has none
        return list(zip(asked.halves, [*answers, *([Half()] * len(asked.halves))], strict=False))


class Tap:
    """In front of the HTTP endpoint `url`; `self.url` is its own. A context manager."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        assert where.hostname and where.port, url
        self._peer = (where.hostname, where.port)
        self._path = where.path
        self._ready: Future[int] = Future()
        self.connections: list[Connection] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> "Tap":
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._ready.result(10)}{self._path}"
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self._ready.set_result(server.sockets[0].getsockname()[1])
        await self._over.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer_reader, peer_writer = await asyncio.open_connection(*self._peer, limit=1 << 20)
        connection = Connection()
        self.connections.append(connection)
        pumps = [
            asyncio.create_task(_pump(reader, peer_writer, connection.asked)),
            asyncio.create_task(_pump(peer_reader, writer, connection.said)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if pumps[0].done() and not pumps[1].done():
                # The asking side has closed: a reader that only shut down its own half still gets its answer.
                await asyncio.wait(pumps, timeout=0 if pumps[0].exception() else 0.5)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            peer_writer.close()
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    while data := await reader.read(1 << 16):
        kept += data  # before it is handed on: what is answered must be known
        writer.write(data)
        await writer.drain()
    writer.write_eof()


def tee(command: list[str], record: Path) -> list[str]:
    """The command that starts `command` and keeps what passes in the file `record`."""
    return [sys.executable, str(TEE), str(record), *command]
