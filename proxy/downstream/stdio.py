"""A server that is a child process: one JSON-RPC message a line on its stdin and stdout.

Knows pipes, lines and signals; knows no MCP. The child is the leader of its own process group, so that what it
starts dies with it, and gets an environment of named variables only: ours holds other servers' secrets.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping
from typing import Final, cast

import anyio
from anyio.abc import TaskGroup

from proxy.downstream.connection import Receive
from proxy.downstream.exchange import Exchange
from proxy.downstream.settings import MAX_MESSAGE, Lost, ServerSettings
from proxy.era.modern_server import Headers
from proxy.era.revisions import Revision

log = logging.getLogger(__name__)

_INHERITED: Final = frozenset({"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "TMPDIR", "LANG", "LANGUAGE"})
MAX_UNREAD: Final = MAX_MESSAGE
"""Bytes that a child may leave unread on its stdin before further calls are refused."""
GRACE: Final = 2.0
"""Seconds for each step of the stop ladder."""
# A child that answers and exits: its last words may still be in the pipe when its exit is known.
_LAST_WORDS: Final = 0.5
MAX_STDERR: Final = 64 * 1024
_MAX_STDERR_LINE: Final = 2000


def environment(configured: Mapping[str, str], ours: Mapping[str, str] | None = None) -> dict[str, str]:
    ours = os.environ if ours is None else ours
    inherited = {name: value for name, value in ours.items() if name in _INHERITED or name.startswith("LC_")}
    return {**inherited, **configured}


class Tail:
    """The last of what a server said on stderr, over all its restarts."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        self._data += data[-MAX_STDERR:]
        if len(self._data) > 2 * MAX_STDERR:  # cut seldom: each cut moves what stays
            del self._data[:-MAX_STDERR]

    def lines(self, last: int = 20) -> list[str]:
        text = self._data[-MAX_STDERR:].decode("utf-8", "replace")
        return [line[:_MAX_STDERR_LINE] for line in text.splitlines()[-last:]]


class Lines:
    """Bytes as they come, lines as they are: joined once, searched once, bounded."""

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now. Raises `ValueError` when one is longer than it may be."""
        *lines, rest = data.split(b"\n")
        if lines and self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts.clear()
            self._size = 0
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        if self._size > self._limit or any(len(line) > self._limit for line in lines):
            raise ValueError(f"a line of more than {self._limit} bytes")
        return lines


class ChildWire(asyncio.SubprocessProtocol):
    """The `Wire` of one child process."""

    is_private = False

    def __init__(self, settings: ServerSettings, stderr: Tail) -> None:
        self._settings = settings
        self._stderr = stderr
        self._lines = Lines()
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._exited = asyncio.Event()
        self.pid: int | None = None

    def bind(self, receive: Receive, retire: Callable[[str, bool], None]) -> None:
        self._receive = receive
        self._retire = retire

    async def open(self, group: TaskGroup) -> None:
        settings, command = self._settings, self._settings.command or ()
        env = environment(settings.env)
        try:
            transport, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: self, *command, env=env, cwd=settings.cwd, close_fds=True, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise Lost(f"cannot start {command[0] if command else '?'}: {error}", sent=False) from None
        self._transport = transport
        self._stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        self.pid = self._transport.get_pid()

    # ------------------------------------------------------------ to the child

    async def send(self, exchange: Exchange, body: bytes, headers: Headers) -> None:
        self._write(body)

    async def notify(self, body: bytes) -> None:
        self._write(body)

    def tell(self, body: bytes) -> None:
        try:
            self._write(body)
        except Lost:
            pass  # who cannot be reached needs no telling

    def _write(self, body: bytes) -> None:
        stdin = self._stdin
        if stdin is None or stdin.is_closing():
            raise Lost("the server's process has closed its input", sent=False, gone=True)
        if stdin.get_write_buffer_size() > MAX_UNREAD:
            raise Lost("the server does not read its input", sent=False)
        stdin.write(body + b"\n")

    def agreed(self, revision: Revision) -> None:
        """Nothing on this wire depends on the revision."""

    async def live(self) -> None:
        """What a child says by itself is always heard."""

    # ------------------------------------------------------------ from the child, called by the event loop

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            return self._stderr.add(data)
        try:
            lines = self._lines.feed(data)
        except ValueError as error:
            self._retire(f"the server wrote {error}", True)
            return self._mute()
        for line in lines:
            if line and line != b"\r":
                self._receive(line, None)

    def _mute(self) -> None:
        """Nothing more is read: what would follow is the rest of something that is no message."""
        if self._transport is not None and (pipe := self._transport.get_pipe_transport(1)) is not None:
            pipe.close()

    def pipe_connection_lost(self, fd: int, error: Exception | None) -> None:
        if fd == 1:
            self._retire("the server closed its output", True)
        elif fd == 0:
            # It may still answer what it has read; but nothing new can be asked.
            asyncio.get_running_loop().call_later(_LAST_WORDS, self._retire, "the server closed its input", True)

    def process_exited(self) -> None:
        self._exited.set()
        code = None if self._transport is None else self._transport.get_returncode()
        why = f"the server's process ended with {_exit(code)}"
        asyncio.get_running_loop().call_later(_LAST_WORDS, self._retire, why, True)

    # ------------------------------------------------------------ the stop ladder

    async def close(self) -> None:
        """2026-07-28 basic/transports/stdio#shutdown: close stdin, wait, then signals; to the whole group, and to
        what is left of it after its leader has gone. Returns when the child has been reaped."""
        if self._transport is None:
            return
        with anyio.CancelScope(shield=True):
            if self._stdin is not None:
                self._stdin.close() if self._stdin.get_write_buffer_size() == 0 else self._stdin.abort()
            if await self._is_gone():
                self._signal(signal.SIGTERM)  # a grandchild that outlived its parent
            else:
                self._signal(signal.SIGTERM)
                await self._is_gone()
            await self._kill_rest()
            self._transport.close()

    async def _is_gone(self) -> bool:
        with anyio.move_on_after(GRACE):
            await self._exited.wait()
        return self._exited.is_set()

    async def _kill_rest(self) -> None:
        with anyio.move_on_after(GRACE if self._exited.is_set() else 0):
            while self._signal(0):  # noqa: ASYNC110 - a process group has no event
                await anyio.sleep(0.02)
        self._signal(signal.SIGKILL)
        await self._is_gone()

    def _signal(self, number: int) -> bool:
        """Whether there was somebody in the child's process group. Its number is not reused while there is."""
        try:
            os.killpg(cast(int, self.pid), number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _exit(code: int | None) -> str:
    if code is None:
        return "an unknown status"
    return f"status {code}" if code >= 0 else f"signal {-code}"
