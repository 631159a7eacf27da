"""How the command line speaks: data on stdout, talk on stderr, colours by meaning, progress, and the exit codes of the
contract.

With `--json`, stdout has JSON or nothing: why there is nothing is in the exit code, and in an object on stderr.
What servers wrote (names, descriptions) is shown with its control characters made visible, so that it cannot
steer a terminal.

Only a terminal gets colours and progress. Who sets `NO_COLOR` (no-color.org) or has `TERM=dumb` gets plain text, and
every colour stands on a word that says the same. `rich` is imported when there is progress to show, and never by who
serves.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

from sluicegate import config
from sluicegate.policy.finding import PolicyFinding as PolicyFinding
from sluicegate.policy.target import printable as printable


class Unreachable(Exception):
    """No Sluice answers: why, and what to do."""


class Code(IntEnum):
    OK = 0
    NEGATIVE = 1
    USAGE = 2
    CONFIG = 3
    UNREACHABLE = 4
    AUTH = 5
    ASK = 10
    INTERNAL = 70
    INTERRUPTED = 130


def info(text: str) -> None:
    """Writes to stderr, for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def print_out(text: str) -> None:
    """Writes to stdout, for the reader of our output."""
    print(text, flush=True)


def print_json(value: Any) -> None:
    print_out(json.dumps(value, indent=2))


def json_object(text: str) -> dict[str, Any]:
    """What a person wrote as a JSON object. Raises `ValueError` for all else, and for what another reader could read
    otherwise: a name that comes twice, and numbers that JSON does not have."""
    try:
        found = json.loads(text, parse_constant=_no_number, object_pairs_hook=_with_unique_names)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is another value")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _with_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a name twice")
    return found


def give(as_json: bool, value: Any, lines: Iterable[str]) -> None:
    """The data of a command: as JSON, or as lines for a person."""
    if as_json:
        print_json(value)
        return
    for line in lines:
        print_out(line)


class Stopped(Exception):
    """Ends a command: `args` are why, one sentence each, the most important one first; what follows are hints."""

    def __init__(self, code: Code, *reasons: str) -> None:
        super().__init__(*reasons)
        self.code = code


def stop(code: Code, *reasons: str) -> NoReturn:
    raise Stopped(code, *reasons)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions that task groups wrapped, or the one that none did."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


def load(
    named: Path | None, *, quietly: bool = False, only_errors: bool = False, for_http: bool = False
) -> tuple[Path, config.Config]:
    """The config of a command that needs one, and its file. Its findings are said; those that make it unusable are
    raised."""
    path = config.find_config(named)
    checked = config.check(path)
    if checked.config is None:
        raise config.ConfigError(checked.findings)
    closed = config.locate(path, config.nobody_gets_in(checked.config)) if for_http else []
    findings = [*checked.findings, *(finding for finding in closed if finding not in checked.findings)]
    for finding in () if quietly else checked.errors if only_errors else findings:
        info(str(finding))
    return path, checked.config


def load_sound(named: Path | None) -> tuple[Path, config.Config, config.ConfigError | None]:
    """The file and what it says. With errors in it, the sections that say where its Sluice is, and those errors. Raises
    `ConfigError` where not even that can be told."""
    path = config.find_config(named)
    try:
        return *load(path, quietly=True), None
    except config.ConfigError as error:
        if (readable := config.sound_part(path)) is None:
            raise
        return path, readable, error


def located(path: Path, findings: Iterable[PolicyFinding]) -> list[config.ConfigFinding]:
    """The policy's findings as those of the config at `path`, which their files are relative to."""
    return [
        config.ConfigFinding(
            str(path.parent / one.file), one.line, one.column, one.code, one.message, one.hint, one.level
        )
        for one in findings
    ]


_NAMES: Final[Mapping[int, str]] = {
    Code.NEGATIVE: "failed", Code.USAGE: "usage", Code.CONFIG: "config", Code.UNREACHABLE: "unreachable",
    Code.AUTH: "unauthorized", Code.ASK: "needs_approval", Code.INTERNAL: "internal", Code.INTERRUPTED: "interrupted",
}  # fmt: skip


def error_object(code: int, reasons: Sequence[str]) -> dict[str, Any]:
    """Why a command with `--json` failed: the exit code and its name, the first reason, and the hints that follow."""
    message, *hints = reasons or [""]
    about = {"code": _NAMES[code], "exit": int(code), "message": message}
    return {"error": about | ({"hint": "\n".join(hints)} if hints else {})}


def with_config(command: str, named: Path | None) -> str:
    """A command that a hint shows, for the config file of this one."""
    return command if named is None else f"{command} -c {shlex.quote(str(named.absolute()))}"


def count(number: int, noun: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number:,} {noun}" + ("s" if number != 1 else "")


def table(rows: Iterable[Sequence[str]], state: str = "") -> str:
    """Rows in columns, two spaces apart. Below the head `state`, words have the colour of their meaning."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths[-1] = 0  # nothing follows that has to be below one another
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    if state in cells[0]:
        column = cells[0].index(state)
        for row in padded[1:]:
            row[column] = coloured(row[column])
    return "\n".join("  ".join(row).rstrip() for row in padded)


_GREEN, _RED, _YELLOW, _GREY = 32, 31, 33, 90
COLOURS: Final[Mapping[str, int]] = dict.fromkeys(
    ("ok", "up", "good", "approved", "accepted", "consumed", "installed", "allow", "fixed", "added"), _GREEN
) | dict.fromkeys(
    ("bad", "down", "denied", "deny", "error", "failed", "revoked", "tool_error", "protocol_error", "changed",
     "removed"), _RED
) | dict.fromkeys(
    ("starting", "pending", "partially_approved", "ask", "warning", "new", "returned", "outcome_unknown"), _YELLOW
) | dict.fromkeys(("disabled", "expired", "cancelled", "superseded", "absent"), _GREY)  # fmt: skip
"""The words of tables and first words of lines that have a colour, in small letters."""


def has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, like: str = "") -> str:
    """Text for stdout in the colour of a word: of `like`, or of its own without the blanks around it."""
    code = COLOURS.get(like or text.strip().lower())
    return text if code is None or not has_colours(sys.stdout) else f"\x1b[{code}m{text}\x1b[0m"


def with_first_word(line: str) -> str:
    word, blank, rest = line.partition(" ")
    return coloured(word) + blank + rest


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows on stderr how far something is, if that is a terminal: gives a function that is told how much more of
    `total` is done."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda more: None
        return
    for name in ("rich", "pygments"):  # `__main__` hides them from libraries that would import them in vain
        if sys.modules.get(name, ...) is None:
            del sys.modules[name]
    with import_module("sluicegate.cli.progress_bar").shown(what, total) as advance:
        yield advance
