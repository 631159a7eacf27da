"""Logs for developers, and the keeping alive of long-lived tasks.

Knows structlog and nothing of Sluice. Everything goes to stderr (stdout belongs to data, in stdio mode to
MCP alone): as lines for people on a terminal, as JSON elsewhere. Whatever a record carries may come from
a peer, so `clean` makes it impossible for a value to look like a second record or to fill a disk.
"""

import json
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, TextIO

import anyio
import structlog  # only who reads lines at a terminal needs it

Format = Literal["auto", "text", "json"]

MAX_TEXT = 2_000
MAX_TRACE = 16_000
MAX_ITEMS = 50
_MAX_PLACES: Final = 10_000  # lines of code that log, and servers of which they say something
_ROOM: Final = 32  # for what says how much was left out
MAX_DEPTH = 4
# Control characters of ASCII and Latin-1, line separators, bidirectional overrides, lone surrogates.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# casbin logs every decision at INFO, urllib3 what a peer sent; the HTTP libraries log URLs, and URLs carry secrets.
_SILENT: Final = ("casbin", "urllib3")
_QUIET: Final = ("httpx", "httpcore", "uvicorn")


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")


def clean_text(text: str, limit: int = MAX_TEXT) -> str:
    """The text on one line, without anything a terminal obeys, at most about `limit` characters."""
    cut = len(text) - limit
    return _UNSAFE.sub(_escape, text if cut <= 0 else f"{text[:limit]}... ({cut} more)")


def _whole(text: str, limit: int) -> str:
    return text


Redact = Callable[[str, int], str]
_redact: Redact = _whole


def redact_with(redact: Redact = _whole) -> None:
    """From here on `redact` takes secrets out of what is logged; it is given a text and how much of it may be kept."""
    global _redact
    _redact = redact


def _clean_trace(text: str) -> str:
    """A traceback keeps its lines, each indented: what an exception says cannot start a line of its own."""
    text = _redact(text[-MAX_TRACE:], MAX_TRACE)
    return "\n".join("  " + _UNSAFE.sub(_escape, line) for line in text.split("\n"))


def _clean(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return clean_text(_redact(value, MAX_TEXT - _ROOM))
    if depth > 0 and isinstance(value, dict):
        items = list(value.items())[:MAX_ITEMS]
        return {clean_text(str(key), 100): _clean(item, depth - 1) for key, item in items}
    if depth > 0 and isinstance(value, list | tuple):
        return [_clean(item, depth - 1) for item in value[:MAX_ITEMS]]
    return clean_text(_redact(repr(value), MAX_TEXT - _ROOM))


def clean(record: Mapping[str, Any]) -> dict[str, Any]:
    """Every field escaped and bounded."""
    return {
        clean_text(key, 100): _clean_trace(value) if key == "exception" and isinstance(value, str)
        else _clean(value, MAX_DEPTH)
        for key, value in record.items()
    }  # fmt: skip


class Throttle(logging.Filter):
    """At most `burst` records in `seconds` from one line of code about one server: whoever makes us log cannot fill a
    disk. The last one says that there may be more, and the next one after that time how many there were.

    Threads may count one record twice or not at all."""

    def __init__(self, burst: int = 50, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._burst, self._seconds, self._clock = burst, seconds, clock
        self._places: dict[tuple[str, int, str], _LogSource] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        about = str(getattr(record, "server", ""))  # its key: one server must not silence what is said of another
        if len(self._places) >= _MAX_PLACES:
            self._places.clear()
        source = self._places.setdefault((record.pathname, record.lineno, about), _LogSource(self._clock()))
        if self._clock() - source.since >= self._seconds:
            if source.count > self._burst:
                record.left_out = source.count - self._burst
            source.since, source.count = self._clock(), 0
        source.count += 1
        if source.count == self._burst:
            record.muted_for = round(source.since + self._seconds - self._clock(), 1)
        return source.count <= self._burst


@dataclass(slots=True)
class _LogSource:
    since: float
    count: int = 0


_STANDARD: Final = frozenset(vars(logging.makeLogRecord({})))
_PROCESS: Final = ContextVar[Mapping[str, Any]]("process", default={})  # noqa: B039 - it is never changed


class _Lines(logging.Formatter):
    """What happened, whose word it is, when, and the fields of the record."""

    def __init__(self, is_human: bool, render: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self._is_human, self._render = is_human, render

    def format(self, record: logging.LogRecord) -> str:
        now = datetime.now(UTC)
        when = now.astimezone().strftime("%H:%M:%S") if self._is_human else now.isoformat().replace("+00:00", "Z")
        about = {"level": record.levelname.lower(), "logger": record.name, "timestamp": when}
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        line = {"event": record.getMessage(), **_PROCESS.get(), **about, **fields}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return self._render(clean(line))


def _renderer(stream: TextIO) -> Callable[[dict[str, Any]], str]:
    console = structlog.dev.ConsoleRenderer(
        colors=stream.isatty() and not os.environ.get("NO_COLOR"),
        repr_native_str=True,
        exception_formatter=structlog.dev.plain_traceback,
    )
    return partial(console, None, "")


def configure(level: str = "info", format: Format = "auto", stream: TextIO | None = None) -> None:
    """Route the standard library's logging to `stream` (stderr). May be called again."""
    stream = stream or sys.stderr
    is_human = format == "text" or (format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Lines(is_human, _renderer(stream) if is_human else partial(json.dumps, default=repr)))
    handler.addFilter(Throttle())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _SILENT:
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL + 1)
        logger.propagate = False  # children that set a level of their own end here, too
        logger.handlers[:] = [logging.NullHandler()]
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def name_process(**fields: Any) -> None:
    """What every line of this task, and of those that it starts, says of the process it comes from."""
    _PROCESS.set({**_PROCESS.get(), **fields})


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between restarts, doubling from `first` to `last`; a run of `healthy` seconds starts over."""

    first: float = 1.0
    last: float = 30.0
    healthy: float = 60.0

    def pause(self, failures: int) -> float:
        """Seconds to wait after that many failures in a row (1, 2, ...)."""
        return min(self.last, self.first * 2.0 ** min(failures - 1, 30))


DEFAULT_BACKOFF: Final = Backoff()
# How often each supervised task has crashed since the start; read by whoever shows it.
crashes: Final[Counter[str]] = Counter()


async def supervise(
    name: str, function: Callable[[], Awaitable[object]], *, backoff: Backoff = DEFAULT_BACKOFF
) -> None:
    """Run `function` until it returns. A crash is logged, counted and answered by a restart after a pause;
    cancellation passes."""
    log = logging.getLogger(__name__)
    failures = 0
    crashes[name] += 0  # for Prometheus a series that begins with 1 has not increased
    while True:
        started = time.monotonic()
        try:
            await function()
            return
        except Exception:
            failures = 1 if time.monotonic() - started >= backoff.healthy else failures + 1
            crashes[name] += 1
            pause = backoff.pause(failures)
            log.exception("task crashed", extra={"task": name, "failures": failures, "restart_in": pause})
        await anyio.sleep(pause)
