"""Sinks beside the file: HTTP collectors and syslog servers, fed from the file at their own pace.

A thread for each reads the log from a remembered position on, so that a sink that is down loses nothing and slows
nobody. A record may arrive twice (after a crash between sending and remembering), never not at all; over UDP,
which nobody acknowledges, that cannot be promised.
"""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import anyio
import httpx

from sluicegate.audit.chain import Link
from sluicegate.audit.follow import Follower
from sluicegate.audit.posting import TIMEOUT, Poster
from sluicegate.audit.settings import SinkSettings
from sluicegate.store import private

log = logging.getLogger(__name__)

BATCH: Final = 500
_POLL: Final = 1.0
_PAUSE: Final = (1.0, 60.0)
_PAUSE_WHERE_CALLS_WAIT: Final = 5.0
_PATIENCE: Final = 3.0
# RFC 5424: facility 13 (log audit), severity 5 (notice) and 6 (informational)
_NOTICE, _INFORMATIONAL = 13 * 8 + 5, 13 * 8 + 6
_MAX_DATAGRAM: Final = 60_000

Records = Sequence[tuple[Link, bytes]]


class Channel(Protocol):
    """Raises `OSError` or `httpx.HTTPError` if any of it may not have arrived."""

    def send(self, records: Records) -> None: ...

    def close(self) -> None: ...


class AuditSink:
    """Sends one writer's records to one place. `seq` is the last that has arrived, and `arrived` the last since the
    start: the position on the disk may be ahead of a log that lost its end. Where calls wait for that, `on_delivery` is
    called from its thread when more has arrived, or cannot."""

    on_delivery: Callable[[], None] | None = None
    arrived = 0

    def __init__(self, settings: SinkSettings, directory: Path, state: Path, writer: str) -> None:
        self.name, self.sent, self.failures = settings.name, 0, 0
        self.is_down = False
        self.busy_since: float | None = None  # monotonic; None while it has everything
        self._position = state / f"{writer}.{settings.name}.position"
        self.seq = _read_position(self._position)
        self._channel = open_channel(settings)
        self._follower = Follower(directory, writer, self.seq)
        self._directory, self._writer = directory, writer
        self._stopped, self._bell = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"audit sink {settings.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is not sent by now is sent after the next start."""
        self._stopped.set()
        self.ring()
        self._thread.join(_PATIENCE)

    def ring(self) -> None:
        """Wakes the thread for a record that a call waits for. A sink that is down is not retried earlier."""
        self._bell.set()

    def _run(self) -> None:
        pause, longest = _PAUSE[0], _PAUSE[1] if self.on_delivery is None else _PAUSE_WHERE_CALLS_WAIT
        while not self._stopped.is_set():
            self.busy_since = self.busy_since or time.monotonic()
            self._bell.clear()
            try:
                if not self._step():
                    self.busy_since = None
                    self._bell.wait(_POLL)
                pause = _PAUSE[0]
            except (OSError, httpx.HTTPError) as error:
                self.failures += 1
                self._tell(is_down=True)
                log.warning("an audit sink is down", extra={"sink": self.name, "error": type(error).__name__})
                self._follower.close()
                self._follower = Follower(self._directory, self._writer, self.seq)
                self._stopped.wait(pause)
                pause = min(pause * 2, longest)
        self._follower.close()
        self._channel.close()

    def _step(self) -> bool:
        """Sends the next records; False if there are none."""
        records = self._follower.read(BATCH)
        if not records:
            return False
        self._channel.send(records)
        self.seq = self.arrived = records[-1][0].seq
        self.sent += len(records)
        self._tell(is_down=False)
        private.write(self._position, json.dumps({"seq": self.seq}).encode("ascii"), replace=True)
        return True

    def _tell(self, *, is_down: bool) -> None:
        self.is_down = is_down
        if self.on_delivery is not None:
            self.on_delivery()


def _read_position(path: Path) -> int:
    try:
        seq = json.loads(path.read_bytes())["seq"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0  # rather twice than never
    return seq if isinstance(seq, int) else 0


def open_channel(settings: SinkSettings) -> Channel:
    """Raises ValueError for a URL that no sink can send to."""
    channel = CHANNELS.get(urlsplit(settings.to).scheme)
    if channel is None:
        raise ValueError("a sink is an http(s) URL, or tcp://host:port or udp://host:port of a syslog server")
    return channel(settings)


class _Http:
    """POSTs records as JSON lines; any 2xx is their arrival."""

    def __init__(self, settings: SinkSettings) -> None:
        self._url = settings.to
        self._poster = Poster({"content-type": "application/x-ndjson", **settings.headers})

    def send(self, records: Records) -> None:
        body = b"".join(line + b"\n" for _, line in records)
        self._poster.post(self._url, body)

    def close(self) -> None:
        self._poster.close()


class _Syslog:
    """RFC 5424 over TCP (octet counting, RFC 6587) or UDP."""

    def __init__(self, settings: SinkSettings) -> None:
        """Raises ValueError for a URL without a host."""
        parts = urlsplit(settings.to)
        if not parts.hostname:
            raise ValueError("a sink that is a syslog server has a host in its URL")
        self._kind = parts.scheme
        self._address = parts.hostname, parts.port or (601 if self._kind == "tcp" else 514)
        self._socket: socket.socket | None = None

    def send(self, records: Records) -> None:
        try:
            connected = self._connect()
            for link, line in records:
                message = syslog(link, line)
                if self._kind == "udp":
                    connected.send(message[:_MAX_DATAGRAM])
                else:
                    connected.sendall(b"%d %b" % (len(message), message))
            _check_alive(connected, self._kind)
        except OSError:
            self.close()
            raise

    def _connect(self) -> socket.socket:
        if self._socket is None:
            if self._kind == "tcp":
                self._socket = socket.create_connection(self._address, TIMEOUT)
            else:
                family, type, protocol, _, address = socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)[0]
                self._socket = socket.socket(family, type, protocol)
                self._socket.connect(address)
            self._socket.settimeout(TIMEOUT)
        return self._socket

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _check_alive(connected: socket.socket, kind: str) -> None:
    """Syslog has no answer; a server that has closed is seen here and not one batch later."""
    if kind == "udp":
        return
    connected.setblocking(False)
    try:
        if not connected.recv(1):
            raise ConnectionResetError("the syslog server has closed")
    except BlockingIOError:
        return
    finally:
        connected.settimeout(TIMEOUT)


def syslog(link: Link, line: bytes) -> bytes:
    """One record as an RFC 5424 message. Its time may have six digits of a second, no more."""
    notable = link.type in ("admin", "identity", "policy", "pin", "approval")
    time = f"{link.time[:26]}Z" if len(link.time) > 27 else link.time
    header = f"<{_NOTICE if notable else _INFORMATIONAL}>1 {time} {_host()} sluice {link.writer} {link.type} - "
    return header.encode("ascii") + line


def _host() -> str:
    name = "".join(char for char in socket.gethostname() if "!" <= char <= "~")
    return name[:255] or "-"


CHANNELS: Final[Mapping[str, Callable[[SinkSettings], Channel]]] = {
    "http": _Http, "https": _Http, "tcp": _Syslog, "udp": _Syslog,
}  # fmt: skip
"""What sends to a sink, by the scheme of its URL; `config/audit.py` has the same schemes."""


# ---------------------------------------------------------------- calls that wait for a sink

CONFIRM_WITHIN: Final = 5.0
"""Seconds that a call waits for the sink."""


class SinkConfirmation:
    """Intents that a sink must have, too, before their calls go on. On the event loop, beside the thread of that sink.
    The sink gets the records that the log has by then in one batch. All calls whose intent is in it go on together.
    While the sink is down, these calls are refused at once, as with a full disk. If it hangs, they are refused after
    `CONFIRM_WITHIN`. `classes` are those of the calls that wait."""

    def __init__(self, sink: AuditSink, classes: Iterable[str]) -> None:
        self.sink, self.classes = sink, tuple(classes)
        self.refused = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Future[bool], int] = {}
        sink.on_delivery = self._tell

    @property
    def problem(self) -> str:
        if not self.sink.is_down:
            return ""
        return f"the audit sink {self.sink.name} confirms nothing: calls that {' or '.join(self.classes)} are refused"

    def awaits(self, class_: str) -> bool:
        """Whether calls of this class wait. Empty: nobody knows what the call does, so that it waits."""
        return not class_ or class_ in self.classes

    async def has(self, seq: int) -> bool:
        """Whether the sink has the record of that number; waits for it."""
        if self.sink.arrived >= seq or await self._waited(seq):
            return True
        self.refused += 1
        return False

    async def _waited(self, seq: int) -> bool:
        if self.sink.is_down:
            return False
        done: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[done] = seq
        self.sink.ring()
        try:
            with anyio.move_on_after(CONFIRM_WITHIN):
                return await done
            return False
        finally:
            self._waiting.pop(done, None)

    def _tell(self) -> None:
        """In the sink's thread."""
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        for done, seq in self._waiting.items():
            if not done.done() and (self.sink.arrived >= seq or self.sink.is_down):
                done.set_result(self.sink.arrived >= seq)
