"""A server that is a child process: one JSON-RPC message a line on its stdin and stdout.

The child gets an environment of named variables only: ours holds other
servers' secrets.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup

from sluicegate.downstream.failures import Lost
from sluicegate.downstream.server_output import StderrTail
from sluicegate.downstream.session.connection import Receive, ReceiveInPieces
from sluicegate.downstream.session.pending_request import PendingRequest
from sluicegate.downstream.settings import MAX_MESSAGE, ServerSettings
from sluicegate.downstream.transport import sandbox
from sluicegate.downstream.transport.process import Process, describe_exit, not_started
from sluicegate.downstream.transport.sandbox import Start
from sluicegate.protocol.modern_server import Headers
from sluicegate.protocol.revisions import Revision
from sluicegate.runtime.loop_budget import PIECE, VALUES, LoopBudget, is_large
from sluicegate.runtime.spool import Spool, SpoolFull
from sluicegate.runtime.unfinished import PART, SMALL, TooMuchUnfinished, Unfinished

_INHERITED: Final = frozenset(
    "HOME LOGNAME PATH SHELL TERM USER TMPDIR LANG LANGUAGE "
    # Windows: many programs do not start without them.
    "APPDATA COMSPEC HOMEDRIVE HOMEPATH LOCALAPPDATA PATHEXT PROCESSOR_ARCHITECTURE PROGRAMDATA PROGRAMFILES "
    "SYSTEMDRIVE SYSTEMROOT TEMP TMP USERNAME USERPROFILE WINDIR "
    # Files of certificate authorities: behind a proxy that opens TLS no package can be fetched without them.
    "CURL_CA_BUNDLE GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE SSL_CERT_DIR SSL_CERT_FILE".split()
)
_PROXIES: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})
MAX_UNREAD: Final = MAX_MESSAGE
"""Bytes that a child may leave unread on its stdin before further calls are refused."""
# Seconds. A child that answers and exits: its last words may still be in the pipe when its exit is known, and its
# status may be known only after its pipes have closed.
_LAST_WORDS: Final = 0.4
_MAX_NOISE: Final = 200
_EACH: Final = 64  # bytes whose time a line takes besides its own


def environment(
    configured: Mapping[str, str], ours: Mapping[str, str] | None = None, command: str = ""
) -> dict[str, str]:
    """PATH begins with the folder of a command that is written as a path: where `npx` is, `node` is found. A proxy is
    inherited unless its URL holds a password."""
    ours = os.environ if ours is None else ours
    inherited = {name: value for name, value in ours.items() if name in _INHERITED or name.startswith("LC_")}
    inherited |= {name: value for name, value in ours.items() if name.upper() in _PROXIES and "@" not in value}
    if os.path.isabs(command):
        inherited["PATH"] = os.pathsep.join((os.path.dirname(command), inherited.get("PATH", os.defpath)))
    return {**inherited, **configured}


def start_of(settings: ServerSettings) -> Start:
    """How a server is started that has no sandbox."""
    command = settings.command or ()
    return command, environment(settings.env, command=command[0] if command else ""), settings.cwd


class Lines:
    """Bytes as they come, lines as they are: joined once, searched once, bounded. A line over `limit` goes into a
    spool. `keep` makes one from the line's beginning; None refuses it. What has come of a line counts in `unfinished`,
    and `end` ends whoever reads where that is too much."""

    def __init__(
        self, limit: int = MAX_MESSAGE, keep: Callable[[bytes], Spool | None] = lambda data: None,
        unfinished: Unfinished | None = None, end: Callable[[TooMuchUnfinished], object] = lambda error: None,
    ) -> None:  # fmt: skip
        self._limit, self._keep = limit, keep
        self._small = min(limit, SMALL)
        self._unfinished, self._end = unfinished or Unfinished(), end
        self._parts: list[bytes] = []
        self._size = 0
        self._spool: Spool | None = None

    @property
    def is_spooling(self) -> bool:
        return self._spool is not None

    def feed(self, data: bytes) -> Sequence[bytes | Spool]:
        """The lines that are complete now. Raises `ValueError` when one is longer than it may be, and
        `TooMuchUnfinished`."""
        *lines, rest = data.split(b"\n")
        if self._spool is not None:
            return self._spooled(self._spool, lines, rest)
        if lines and self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
            self.drop()
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        is_long = len(data) > self._limit and any(len(line) > self._limit for line in lines)
        if self._size > self._small or is_long or (lines and len(lines[0]) > self._limit):
            return self._long(lines)
        return lines

    def drop(self) -> None:
        """Forgets what there is of a line."""
        self._parts.clear()
        self._size = 0
        self._unfinished.release(self)

    def give_up(self) -> None:
        self.drop()
        self._end(TooMuchUnfinished())

    def _long(self, lines: Sequence[bytes]) -> list[bytes | Spool]:
        found = [line if len(line) <= self._limit else self._into_spool(line) for line in lines]
        if self._size > self._limit:
            self._spool = self._into_spool(b"".join(self._parts))
            self.drop()
        elif self._size > self._small:
            self._unfinished.hold(self, self._size + PART * len(self._parts))
        return found

    def _into_spool(self, data: bytes) -> Spool:
        if (made := self._keep(data)) is None:
            raise ValueError(f"a line of more than {self._limit} bytes")
        return made

    def _spooled(self, spool: Spool, lines: list[bytes], rest: bytes) -> Sequence[bytes | Spool]:
        try:
            spool.write(lines[0] if lines else rest)
        except SpoolFull as full:
            raise ValueError(f"a line of {full}") from None
        if not lines:
            return ()
        self._spool = None
        return [spool, *self.feed(b"\n".join((*lines[1:], rest)))]


class StdioTransport:
    """The `Transport` of one child process. `stirred` is called for whatever the child writes to stderr."""

    is_private = False
    is_ending = False

    def __init__(
        self, settings: ServerSettings, stderr: StderrTail, budget: LoopBudget, stirred: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._stderr = stderr
        self._budget = budget
        self._lines = Lines(settings.max_result, settings.keep, settings.unfinished, self._overrun)
        self._unread: deque[bytes | Spool] = deque()
        self._is_deaf = self._is_closing = self._is_pausing = False
        self._is_reading = True
        self._why_ended = ""
        self._process: Process | None = None
        self._resting: asyncio.Task[None] | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._stdout: asyncio.ReadTransport | None = None
        self.pid: int | None = None
        self._stirred = stirred

    async def open(
        self, group: TaskGroup, receive: Receive, in_pieces: ReceiveInPieces, retire: Callable[[str, bool], None]
    ) -> None:
        self._receive, self._in_pieces, self._retire = receive, in_pieces, retire
        if self._process is not None:
            return  # it was asked for the other era first
        command, env, cwd = start_of(self._settings)
        if self._settings.sandbox is not None:
            command, env, cwd = await anyio.to_thread.run_sync(sandbox.prepared, self._settings, command, env, cwd)
        try:
            process = self._process = await Process.start(command, env, cwd, self._exited)
        except (OSError, ValueError) as error:
            raise not_started(command, env, cwd, error) from None
        self.pid = process.pid
        ended = partial(self._retire_soon, "the server closed its output")
        self._stdin = await process.write_to(partial(self._retire_soon, "the server closed its input"))
        self._stdout = await process.read_from(1, self._heard, ended)
        await process.read_from(2, self._wrote, _nothing)

    async def send(self, exchange: PendingRequest, body: bytes, headers: Headers) -> None:
        await self.notify(body)

    async def notify(self, body: bytes) -> None:
        try:
            self._write(body)
        except Lost as lost:
            if not lost.gone or self._process is None:
                raise
            with anyio.move_on_after(_LAST_WORDS):  # its end says more than that of its pipe
                await self._process.ended()
            raise Lost(self._why_ended or lost.text, sent=False, gone=True) from None

    def send_soon(self, *bodies: bytes) -> None:
        try:
            for body in bodies:
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

    def _heard(self, data: bytes) -> None:
        since = self._budget.now()
        try:
            lines = self._lines.feed(data)
        except (ValueError, TooMuchUnfinished) as error:
            return self._overrun(error)
        self._unread.extend(lines)
        if self._is_pausing:
            return
        if self._lines.is_spooling and not lines:
            if self._budget.charge_since(since) > 0.0:
                self._pause(self._rest())
            return
        self._work(since)

    def _overrun(self, error: Exception) -> None:
        self._retire(f"the server wrote {error}", True)
        self.discard_input()  # what would follow is the rest of something that is no message

    def _work(self, since: float) -> None:
        """Takes a piece of what was read. The rest has its turn after others: a chunk may be thousands of lines. Blank
        ones are no answer that somebody waits for, and count where there are more of them than of messages."""
        is_counted, size, blank = False, 0, 0
        while self._unread and size < PIECE and not self._is_deaf:
            line = self._unread.popleft()
            size += len(line) + _EACH
            if isinstance(line, Spool) or (len(line) > VALUES and is_large(line)):
                return self._pause(self._take_large(line))
            if line and line != b"\r":
                owner = self._receive(line, None)
                self._note_noise(line, owner)
                is_counted = is_counted or owner is None or not owner.is_over
                blank -= 1
            else:
                blank += 1
        is_over = (is_counted or blank > 0) and self._budget.charge_since(since) > 0.0
        if is_over or self._unread:
            self._pause(self._rest() if is_over else None)

    def _wrote(self, data: bytes) -> None:
        self._stderr.add(data)
        self._stirred()

    def _pause(self, until: Coroutine[None, None, None] | None) -> None:
        """A child that talks without end waits for its turn: the pipe is full meanwhile."""
        # It is not asked whether it reads: with Python 3.11.2 a pipe of asyncio cannot say.
        if self._stdout is not None and self._is_reading and not self._stdout.is_closing():
            self._stdout.pause_reading()
            self._is_reading = False
        self._is_pausing = True
        if until is not None:
            self._resting = asyncio.create_task(until)
        else:
            asyncio.get_running_loop().call_soon(self._resume)

    async def _rest(self) -> None:
        await self._budget.rest()
        self._resume()

    async def _take_large(self, line: bytes | Spool) -> None:
        owner = await self._budget.large(self._in_pieces(line, None))
        self._note_noise(line if isinstance(line, bytes) else line.head, owner)
        self._resume()

    def _note_noise(self, line: bytes, owner: PendingRequest | None) -> None:
        """Logs output that is no message and should have gone to stderr."""
        if owner is None and line[:1] not in b"{[":
            self._stderr.add_noise(line[:_MAX_NOISE])

    def _resume(self) -> None:
        self._is_pausing = False
        if self._unread:
            self._work(self._budget.now())
        if not self._is_pausing and self._stdout is not None and not self._stdout.is_closing():
            self._stdout.resume_reading()
            self._is_reading = True

    def discard_input(self) -> None:
        """A child that writes without end would take all of our time."""
        self._is_deaf = True
        self._unread.clear()
        self._lines.drop()
        if self._stdout is not None:
            self._stdout.close()

    def _exited(self, status: int) -> None:
        """Its last words may still be in the pipe; but no answer is worth more than the reason of its end."""
        self._why_ended = f"the server's process ended with {describe_exit(status)}"
        if not self._is_closing:
            self._stderr.exit = describe_exit(status)
        self._retire_soon(self._why_ended, _LAST_WORDS / 2)

    def _retire_soon(self, why: str, delay: float = _LAST_WORDS) -> None:
        self.is_ending = True
        asyncio.get_running_loop().call_later(delay, lambda: self._retire(why, True))

    async def close(self) -> None:
        self._is_closing = True
        self._lines.drop()
        if self._resting is not None:
            self._resting.cancel()
        if self._process is None:
            return
        if self._stdin is not None:
            # What is still unread would keep the pipe open: a child that does not read does not see its end.
            if self._stdin.get_write_buffer_size():
                self._stdin.abort()
            else:
                self._stdin.close()
        await self._process.stop()


def _nothing() -> None:
    """A child may close its stderr: nothing to do."""
