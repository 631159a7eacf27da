"""What a terminal gets beside text: colours by meaning, and the progress of what takes long.

Only a terminal gets them. Who sets `NO_COLOR` (no-color.org) or has `TERM=dumb` gets plain text, and every colour
stands on a word that says the same. `rich` is imported when there is progress to show, and never by who serves.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Final, TextIO

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
