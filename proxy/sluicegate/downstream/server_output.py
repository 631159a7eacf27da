"""What a server itself wrote (stderr, noise on stdout), made fit to be shown: cleaned, without secrets, bounded.

A server's stderr may hold anything: terminal orders, instructions to a model, the credentials that it was started
with. The values of its `env` and `headers`, of `${...}` in its arguments and of its URL's query are replaced by their
names, and all that the audit log redacts is redacted. A value of 6 characters or more is replaced wherever it stands;
one of 4 or 5 as a whole word; a shorter one not at all, for `DEBUG: 1` must not hide every 1.
"""

import json
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from sluicegate.deferred import deferred_pattern
from sluicegate.downstream.failures import Lost, as_lost, why_not
from sluicegate.downstream.settings import ServerSettings
from sluicegate.policy.display import visible
from sluicegate.policy.hidden_text import bare_text
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client

ANYWHERE: Final = 6
"""Characters of a value that is replaced also inside of words."""
_AS_A_WORD: Final = 4
_SCHEMES: Final = frozenset({"basic", "bearer", "digest", "token"})
LINES: Final = 8
"""Lines that are quoted in an answer and in the log."""
LINE: Final = 300
"""Characters of one of them."""
MAX_STDERR: Final = 8 * 1024  # cleaning it holds up calls
_DESCRIBED_LINES: Final = 20
_DESCRIBED_LINE: Final = 2000
_COLOURS: Final = deferred_pattern(r"\x1b\[[0-9;]{0,40}m")
_POSITION: Final = deferred_pattern(r"[0-9a-f]{8}-[0-9]{1,18}")
MAX_POSITIONS: Final = 64
_STEPS: Final = 20


class ServerOutput:
    """Cleans what one server wrote."""

    def __init__(self, settings: ServerSettings) -> None:
        self._redact = settings.redact
        self._names = dict(_named(settings))
        parts = [
            re.escape(value) if len(value) >= ANYWHERE else rf"(?<!\w){re.escape(value)}(?!\w)"
            for value in sorted(self._names, key=len, reverse=True)
        ]
        self._secrets = re.compile("|".join(parts)) if parts else None
        self._last: tuple[str, str] = "", ""  # what was cleaned last, and what became of it: many ask at once
        self._last_visible: tuple[str, list[str]] = "", []

    def clean(self, text: str) -> str:
        """The text as it may be shown and logged. Its lines stay lines."""
        text = bare_text(text)
        if self._secrets is not None:
            text = self._secrets.sub(lambda match: f"[{self._names[match.group()]}]", text)
        return self._redact(text)

    def lines(self, text: str, last: int = LINES, width: int = LINE) -> list[str]:
        """The last lines that are not empty, as a terminal would leave them, each at most about `width` characters."""
        left = _last_states(text)
        if left != self._last[0]:
            self._last = left, self.clean(left)
        lines = [line.rstrip() for line in self._last[1].splitlines() if line.strip()]
        return [line if len(line) <= width else f"{line[:width]}..." for line in lines[-last:]]

    def visible_lines(self, text: str) -> list[str]:
        """All lines that are not empty, with hidden characters made visible. A line that held a secret is shown as
        `clean` leaves it: what was hidden in it could hold a part of the secret."""
        if text == self._last_visible[0]:  # whoever follows asks with what it was given last
            return self._last_visible[1]
        whole = _last_states(text)
        written, bare, cleaned = whole.split("\n"), bare_text(whole).split("\n"), self.clean(whole).split("\n")
        if not len(written) == len(bare) == len(cleaned):  # a secret of several lines was taken out
            written = bare = cleaned
        shown = [
            visible(_COLOURS.sub("", line) if line_bare == line_cleaned else line_cleaned, "\t")
            for line, line_bare, line_cleaned in zip(written, bare, cleaned, strict=True)
        ]
        self._last_visible = text, [line.rstrip() for line in shown if line.strip()]
        return self._last_visible[1]


def _last_states(text: str) -> str:
    """Of a progress bar, only the last state. This comes first, so that it hides nothing from the search for
    secrets."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def _named(settings: ServerSettings) -> Iterator[tuple[str, str]]:
    """Yields each text to replace, with the name that replaces it."""
    yield from _parts("header", settings.headers)
    yield from _parts("env", settings.env)
    for value in settings.expanded:
        yield from ((form, "argument") for form in _forms(value))
    if settings.url:
        yield from ((form, "url") for part in _in_url(settings.url) for form in _forms(part))


def _parts(kind: str, values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        words = [word for word in value.split() if word.lower() not in _SCHEMES]
        for part in (value, *words, *_in_url(value)):
            yield from ((form, f"{kind}:{name}") for form in _forms(part))


def _in_url(value: str) -> list[str]:
    """Returns the secret parts of a URL."""
    try:
        url = urlsplit(value)
        return [part for part in (url.password, *(text for _, text in parse_qsl(url.query))) if part]
    except ValueError:
        return []


def _forms(value: str) -> set[str]:
    """Returns the forms in which programs print a value."""
    forms = {value, bare_text(value), quote(value, safe=""), json.dumps(value)[1:-1]}
    return {form for form in forms if len(form) >= _AS_A_WORD}


class StderrTail:
    """The last of what a server wrote on stderr, over all its restarts, and how its last process ended by itself."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._name = secrets.token_hex(4)
        self.noise = b""
        """The first line on stdout that was no message, whatever became of the rest."""
        self.written = 0
        """Bytes in all."""
        self.exit = ""

    def add(self, data: bytes) -> None:
        self.written += len(data)
        self._data += data[-MAX_STDERR - 1 :]
        if len(self._data) > 2 * MAX_STDERR:  # cut seldom: each cut moves what stays
            del self._data[: -MAX_STDERR - 1]

    def add_noise(self, line: bytes) -> None:
        """Adds a line that was written to stdout."""
        self.noise = self.noise or line
        self.add(b"(stdout) %b\n" % line)

    def text(self) -> str:
        """Without the rest of a line that was cut: it could be a part of a secret."""
        return self._whole().decode("utf-8", "replace")

    def _whole(self) -> bytes:
        data = bytes(self._data[-MAX_STDERR:])
        return data if len(data) == len(self._data) else data.partition(b"\n")[2]

    def since(self, positions: str) -> tuple[str, str, str]:
        """The part of the text that was there at the position of this object among `positions`, the text as it is now,
        and where that ends. A line that is still being written is left out: it could be a part of a secret."""
        whole = self._whole()
        unfinished = 0 if self.exit else len(whole) - whole.rfind(b"\n") - 1
        text, end = whole[: len(whole) - unfinished], self.written - unfinished
        before = b""
        for one in positions.split(",")[:MAX_POSITIONS]:
            if _POSITION.fullmatch(one) and one.startswith(f"{self._name}-"):
                newer = max(0, end - int(one.partition("-")[2]))
                before = text[: max(0, len(text) - newer)]
        return before.decode("utf-8", "replace"), text.decode("utf-8", "replace"), f"{self._name}-{end}"

    def forget(self, written: int) -> None:
        """Forgets the first so many bytes. A line that they do not end stays: its rest could be a part of a secret."""
        first = max(0, len(self._data) - (self.written - written))
        del self._data[: self._data.rfind(b"\n", 0, first) + 1]


class ServerHealth:
    """`error` is the last failure; `stderr` gives what the server wrote."""

    def __init__(self, settings: ServerSettings, stderr: Callable[[], StderrTail]) -> None:
        self._key, self._output, self._stderr = settings.key, ServerOutput(settings), stderr
        self._steps: deque[tuple[float, str, str]] = deque(maxlen=_STEPS)
        self.error = Lost("", sent=False)
        self.restarts = 0

    def note(self, step: str, why: str = "") -> None:
        """Keeps what became of the server, for whoever asks how it started. A step that repeats itself is kept once,
        with its last time."""
        if self._steps and self._steps[-1][1:] == (step, why):
            self._steps.pop()
        self._steps.append((time.time(), step, why))

    def failed(self, error: Exception, otherwise: str = "") -> None:
        self.error = as_lost(error, otherwise)

    def ended(self, why: str) -> None:
        """Notes that a connection ended by itself."""
        self.error = Lost(why, sent=False)
        self.restarts += 1

    def lines(self) -> list[str]:
        """The lines that may be quoted."""
        return self._output.lines(self._stderr().text())

    def why(self, client: Client) -> str:
        """Why the server cannot be reached, as far as that client may know."""
        return why_not(client, self._key, self.error, self.lines) if self.error.text else "it is still starting."

    def log(self, **more: Any) -> Json:
        """The fields of a record in the log."""
        return {"server": self._key, "why": str(self.error), "stderr": self.lines(), **more}

    def describe(self) -> Json:
        tail = self._stderr()
        lines = self._output.lines(tail.text(), _DESCRIBED_LINES, _DESCRIBED_LINE)
        steps = [{"at": _stamp(at), "step": step, "why": why} for at, step, why in self._steps]
        noise = "".join(self._output.lines(tail.noise.decode("utf-8", "replace"))[:1])
        about = {"last_error": str(self.error), "exit": tail.exit, "stderr": lines, "noise": noise}
        return about | {"timeline": steps}

    def output(self, after: str) -> Json:
        """The lines that came after a position, or all that are left; and the position of the next question. Both texts
        are cleaned whole, as a secret may begin before the position."""
        tail = self._stderr()
        before, text, position = tail.since(after)
        old = self._output.visible_lines(before) if before else []
        lines = self._output.visible_lines(text)
        first = next((at for at, pair in enumerate(zip(old, lines, strict=False)) if pair[0] != pair[1]), len(old))
        shown = [line if len(line) <= _DESCRIBED_LINE else f"{line[:_DESCRIBED_LINE]}..." for line in lines[first:]]
        return {"last_error": str(self.error), "exit": tail.exit, "lines": shown, "position": position}


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
