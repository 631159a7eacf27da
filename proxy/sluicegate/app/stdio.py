"""Serving a client on stdin and stdout: by a firewall of our own, or by that of a process that was here first.

Several desktop clients with one config share its servers, sessions and limits: the first process runs the firewall, the
others carry lines to it, and one of them takes over when it ends.
"""

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from sluicegate import __version__, telemetry
from sluicegate.app.core import ME, Core, core
from sluicegate.app.instance_lock import InstanceLock
from sluicegate.config import Config, Limits, load
from sluicegate.listen import line_streams, stdio
from sluicegate.listen.stdio import BridgeStreams, Line, SessionTranscript, pump, relay
from sluicegate.protocol.jsonrpc import Json, Response
from sluicegate.protocol.model import SLUICE, Asker, AskSession, Call, Client, Outcome

log = logging.getLogger(__name__)

JOIN: Final = "/join"
"""Asked at the admin socket by a process that is about to join this Sluice."""
_TOOLSET: Final = b"toolset "
"""What a process that joins says first, with the name of its client's toolset. No message begins so."""
_CHUNK: Final = 4096
_AGAIN: Final = 0.05
_PATIENCE: Final = 5.0  # seconds that the Sluice that runs has to say what is in force
Serve = Callable[[line_streams.LineReader, line_streams.LineWriter, str], Coroutine[Any, Any, None]]
"""Serves one client on a pair of streams. It has the toolset of that name."""


async def serve_stdio(config: Config, *, file: Path | None = None, toolset: str = "") -> None:
    """One client on stdin and stdout, until it closes stdin or SIGTERM comes. Without a file it shares nothing. It has
    the toolset of that name; "" for the one of its roles, or none."""
    telemetry.configure(config.log.level, config.log.format)
    async with _standard_streams() as (reader, writer):
        lock = InstanceLock(Path(config.state.dir), file) if file is not None else None
        if lock is not None and lock.unshared:
            log.warning(f"{lock.unshared}: every client runs a Sluice of its own, and commands work on state.dir alone")
        if file is None or lock is None or lock.unshared:
            async with core(config, "stdio", file) as inner:
                await _server(config, inner)(reader, writer, toolset)
        elif lock.take():
            async with _firewall(config, file, lock) as serve:
                await serve(reader, writer, toolset)
        else:
            await _go_along(file, lock, reader, writer, config.limits.max_request, toolset)


async def join_stdio(file: Path, state: Path, toolset: str = "") -> bool:
    """The same for a file that cannot be used, by way of the Sluice that runs with it: False where none does. Raises
    `ConfigError` if that one ends and the file still cannot be used."""
    telemetry.configure("info", "auto")
    lock = InstanceLock(state, file)
    found = None if lock.unshared else await lock.connect()
    if found is None:
        return False
    found[1].close()
    async with _standard_streams() as (reader, writer):
        await _go_along(file, lock, reader, writer, Limits().max_request, toolset)
    return True


@asynccontextmanager
async def _standard_streams() -> AsyncIterator[tuple[line_streams.LineReader, line_streams.LineWriter]]:
    """From here on whatever is printed goes to stderr, and stdout carries MCP alone."""
    async with line_streams.standard_streams() as (stdin, writer):
        with _until_sigterm(stdin) as reader:
            yield reader, writer


class _Endable:
    """A reader that can be ended from here as if its peer had closed it."""

    def __init__(self, inner: line_streams.LineReader) -> None:
        self._inner = inner
        self._is_over = False
        self._reading = anyio.CancelScope()

    async def read(self, n: int) -> bytes:
        with anyio.CancelScope() as self._reading:
            if not self._is_over:
                return await self._inner.read(n)
        return b""

    def end(self) -> None:
        self._is_over = True
        self._reading.cancel()


@contextmanager
def _until_sigterm(stdin: line_streams.LineReader) -> Iterator[line_streams.LineReader]:
    """Who started us may send SIGTERM (2026-07-28 basic/transports/stdio#shutdown). It is the end of stdin in other
    words, so that open calls, servers and the audit log end as they do then."""
    if sys.platform == "win32":
        yield stdin
        return
    reader, loop = _Endable(stdin), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, reader.end)
    try:
        yield reader
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@asynccontextmanager
async def _firewall(config: Config, file: Path, lock: InstanceLock) -> AsyncIterator[Serve]:
    async with core(config, "stdio", file) as inner:
        serve = _server(config, inner)
        answer = partial(_answer_operators, config, inner)
        async with lock.open(partial(_joined, serve), partial(_at_socket, answer)):
            yield serve


@asynccontextmanager
async def _at_socket(answer: Callable[[socket.socket], Coroutine[Any, Any, None]], address: str) -> AsyncIterator[None]:
    """The socket is closed once nobody waits for it any more: uvloop ends the process at a closed descriptor."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.setblocking(False)
        listener.bind(address)
        listener.listen()
        async with anyio.create_task_group() as group:
            group.start_soon(answer, listener)
            yield
            group.cancel_scope.cancel()


async def _answer_operators(config: Config, inner: Core, listener: socket.socket) -> None:
    """Serves the admin API and the console. Few desktop clients' Sluices are ever asked, so what they need is imported
    when somebody connects: in a thread, because it takes a fifth of a second."""
    await anyio.wait_readable(listener)
    desktop = await anyio.to_thread.run_sync(import_module, "sluicegate.app.desktop_admin")
    await desktop.serve_desktop_admin(config, inner, listener)


async def _joined(serve: Serve, reader: line_streams.LineReader, writer: line_streams.LineWriter) -> None:
    """Serves a client of another process, which may say first which toolset it has."""
    begun = more = await reader.read(_CHUNK)
    while more and b"\n" not in begun and len(begun) < _CHUNK and begun.startswith(_TOOLSET[: len(begun)]):
        begun += (more := await reader.read(_CHUNK))
    toolset = b""
    if begun.startswith(_TOOLSET):
        toolset, _, begun = begun.removeprefix(_TOOLSET).partition(b"\n")
    await serve(_Resumed(begun, reader), writer, toolset.decode("ascii", "replace"))


class _Resumed:
    """A reader of which a part was read already."""

    def __init__(self, begun: bytes, inner: line_streams.LineReader) -> None:
        self._begun, self._inner = begun, inner

    async def read(self, n: int) -> bytes:
        if not self._begun:
            return await self._inner.read(n)
        found, self._begun = self._begun[:n], self._begun[n:]
        return found


def _server(config: Config, inner: Core) -> Serve:
    """Each client is the local one."""
    limits, everybody = config.limits, _Everybody()
    inner.behind.sessions.set(everybody)
    has_begun = False

    def handle(call: Call) -> Awaitable[Outcome]:
        nonlocal has_begun
        if not has_begun and (call.client.session is not None or call.client.era == "modern"):
            has_begun = True
            return _begin(inner, call)
        return inner.handler(call)

    async def serve(reader: line_streams.LineReader, writer: line_streams.LineWriter, toolset: str) -> None:
        with everybody.one() as offer_ask:
            await stdio.serve(
                handle, reader=reader, writer=writer, client=_client(config, inner, toolset),
                server_info=ME, on_session_end=inner.end_session, max_line=limits.max_request,
                max_depth=limits.max_depth, max_nodes=limits.nodes, max_batch=limits.max_batch,
                on_abandoned=inner.abandon, offer_ask=offer_ask, until_free=inner.until_free,
            )  # fmt: skip

    return serve


def _client(config: Config, inner: Core, toolset: str) -> Client:
    """With a toolset that is not there for it, nothing is."""
    client = Client("local", config.clients.local.roles)
    found = inner.services.judging.judge.enter(client, toolset)
    if found is None:
        log.warning("this toolset is not there for this client: it sees nothing", extra={"toolset": toolset})
    return replace(client, toolset=toolset if found is None else found)


async def _begin(inner: Core, call: Call) -> Outcome:
    """The first answer needs no server, and its client waits: they start behind it."""
    if call.method == "server/discover":
        try:
            return await inner.handler(call)
        finally:
            inner.behind.control.expect(call.client)
    inner.behind.control.expect(call.client)
    return await inner.handler(call)


async def _go_along(
    file: Path, lock: InstanceLock, reader: line_streams.LineReader, writer: line_streams.LineWriter, max_line: int,
    toolset: str,
) -> None:  # fmt: skip
    """Carries this client's lines to whoever runs the firewall: another process, and some day this one."""
    past = SessionTranscript(ME)
    send, inbox = anyio.create_memory_object_stream[Line](0)
    async with anyio.create_task_group() as group:
        group.start_soon(pump, reader, max_line, send)
        async with AsyncExitStack() as ours, inbox:
            while not await _carried(lock, inbox, writer, past, toolset):
                if lock.take():  # with the file as it is by now
                    await ours.enter_async_context(_firewall(load(file), file, lock))
                else:  # whoever holds the lock is not ready yet, or about to end
                    await anyio.sleep(_AGAIN)
        group.cancel_scope.cancel()


async def _carried(
    lock: InstanceLock, inbox: MemoryObjectReceiveStream[Line], writer: line_streams.LineWriter,
    past: SessionTranscript, toolset: str,
) -> bool:  # fmt: skip
    """Whether the client is done; not yet where nobody answers, and where who did has ended."""
    if not lock.is_ours:
        await _join(lock)
    sluice = await lock.connect()
    if sluice is not None:  # also without one, or the client could say so itself
        sluice[1].write(_TOOLSET + toolset.encode() + b"\n")
    return sluice is not None and await relay(inbox, writer, BridgeStreams(*sluice), past)


async def _join(lock: InstanceLock) -> None:
    """Has whoever runs the firewall read the file again, and says what is in force there."""
    if (address := lock.admin()) is None:
        return
    answer = None
    with anyio.move_on_after(_PATIENCE):
        peers = await anyio.to_thread.run_sync(import_module, "sluicegate.admin.peers")
        answer = await peers.Peer(0, None, address).ask({"method": "GET", "path": JOIN, "headers": []}, b"")
    if answer is None or answer.status_code != 200:
        log.warning("the Sluice that runs does not say what is in force")
        return
    state = json.loads(answer.body)
    log.info("joined the Sluice that runs", extra={name: state[name] for name in ("version", "policy", "since")})
    if state["version"] != __version__:
        log.warning("another version of Sluice runs: close all clients to start this one", extra={"this": __version__})
    for note in state["notes"]:
        log.warning(note)


class _Everybody:
    """All clients of this process: a question outside of calls is for the one whose session it names."""

    def __init__(self) -> None:
        self._asks: set[AskSession] = set()

    @contextmanager
    def one(self) -> Iterator[Callable[[AskSession], None]]:
        offered: list[AskSession] = []

        def offer(ask: AskSession) -> None:
            offered.append(ask)
            self._asks.add(ask)

        try:
            yield offer
        finally:
            self._asks.difference_update(offered)

    def is_idle(self, session: str) -> bool:
        """A session on stdin and stdout is open while it lasts."""
        return False

    async def ask(self, session: str, method: str, params: Json, asker: Asker = SLUICE) -> Response | None:
        for ask in tuple(self._asks):
            if (answer := await ask(session, method, params, asker)) is not None:
                return answer
        return None
