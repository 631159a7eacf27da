"""Regular expressions that stop: each search has what is left of its text's processor time, and raises `TimeoutError`
when that is used up.

`re` cannot be interrupted and holds the interpreter's lock (https://github.com/python/cpython/issues/67878). The
engine here (https://pypi.org/project/regex) takes a limit with each search and can release the lock meanwhile.
Peers write the texts that are searched, so a limit is needed even where no slow text is known.
"""

import re
from contextvars import ContextVar
from functools import cached_property
from time import thread_time
from typing import Any, Final, cast

import regex

from sluicegate.deferred import DeferredPattern

_START: Final = 0.03  # seconds of processor time for one value, whatever its size
_PER_CHARACTER: Final = 15e-6  # seconds more for each character: ten times what a text takes
_RELEASED: Final = 2_048  # characters from which other threads run meanwhile; taking the lock again costs too


# When the searches of this thread's value end, in the thread's processor time.
_end: Final[ContextVar[float]] = ContextVar("end of the searches", default=0.0)


def begin() -> None:
    """Time for one value begins: the arguments of a call, a result, one text."""
    _end.set(thread_time() + _START)


def extend(characters: int) -> None:
    """A text of this length is about to be searched."""
    _end.set(_end.get() + characters * _PER_CHARACTER)


def _limits(text: str) -> dict[str, Any]:
    left = _end.get() - thread_time()
    if left <= 0:
        raise TimeoutError("no processor time is left for this text")
    return {"timeout": left, "concurrent": len(text) >= _RELEASED}


class LazyPattern(DeferredPattern):
    """What `lazy` makes. Compiling it takes none of a text's time."""

    def __getattr__(self, name: str) -> Any:
        started = thread_time()
        method = super().__getattr__(name)
        _end.set(_end.get() + thread_time() - started)
        return method


def lazy(expression: str) -> re.Pattern[str]:
    """An expression of `re` that is compiled when it is first used: compiling all takes a tenth of a start."""
    return cast("re.Pattern[str]", LazyPattern(expression))


class BoundedPattern:
    """An expression whose searches end in time; it is compiled when it is first used."""

    def __init__(self, expression: str) -> None:
        self.pattern: Final = expression

    @cached_property
    def compiled(self) -> "regex.Pattern":
        started = thread_time()
        made = regex.compile(self.pattern, cache_pattern=False)  # its cache would forget what others compile
        _end.set(_end.get() + thread_time() - started)
        return made

    def match(self, text: str, at: int = 0) -> re.Match[str] | None:
        found: re.Match[str] | None = self.compiled.match(text, at, **_limits(text))
        return found

    def fullmatch(self, text: str) -> re.Match[str] | None:
        found: re.Match[str] | None = self.compiled.fullmatch(text, **_limits(text))
        return found

    def search(self, text: str) -> re.Match[str] | None:
        found: re.Match[str] | None = self.compiled.search(text, **_limits(text))
        return found

    def find_all(self, text: str, start: int = 0, end: int | None = None) -> list[re.Match[str]]:
        return list(self.compiled.finditer(text, start, end, **_limits(text)))
