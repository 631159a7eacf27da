"""Globs as policy rows write them: `*`, `?`, `[seq]`, `[!seq]`, whole text, case kept (the rules of `fnmatchcase`).

Pure text. Matching is what a decision needs; `meets` and `covers` are what a linter needs: whether two globs can
match the same text, and whether one matches all that the other does.
"""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import Final

_MAGIC = re.compile(r"[*?\[]")
_STAR: Final = "*"
_ANY: Final = "?"

Token = str
"""`*`, `?`, a set with its brackets, or one literal character (a literal `*`, `?` or `[` as a set)."""


def is_glob(pattern: str) -> bool:
    return _MAGIC.search(pattern) is not None


def literal_start(pattern: str) -> str:
    """The literal text with which every match begins."""
    magic = _MAGIC.search(pattern)
    return pattern if magic is None else pattern[: magic.start()]


@lru_cache(maxsize=16_384)
def matcher(pattern: str) -> Callable[[str], object]:
    """A function that is true for what `pattern` matches. fnmatch keeps 256 compiled patterns, a policy has more."""
    return re.compile(translate(pattern)).match if is_glob(pattern) else pattern.__eq__


def matches(text: str, pattern: str) -> bool:
    return bool(matcher(pattern)(text))


def matches_folded(text: str, pattern: str) -> bool:
    """Whether it matches without regard to case."""
    return matches(text.lower(), pattern.lower())


def escape(text: str) -> str:
    """Text as a glob that matches it alone."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)


def has_open_set(pattern: str) -> bool:
    """Whether a `[` has no `]`: it would stand for itself, which is hardly what was meant."""
    return "[" in (token for token in tokens(pattern) if len(token) == 1)


@lru_cache(maxsize=16_384)
def tokens(pattern: str) -> tuple[Token, ...]:
    found: list[Token] = []
    position = 0
    while position < len(pattern):
        end = _end_of_set(pattern, position) if pattern[position] == "[" else position + 1
        token = pattern[position:end]
        if not (token == _STAR and found[-1:] == [_STAR]):
            found.append(token)
        position = end
    return tuple(found)


def _end_of_set(pattern: str, start: int) -> int:
    """As fnmatch reads it: a `]` right after `[` or `[!` belongs to the set; without an end, `[` is a character."""
    end = start + 1
    if pattern[end : end + 1] == "!":
        end += 1
    end = pattern.find("]", end + 1)
    return start + 1 if end < 0 else end + 1


@lru_cache(maxsize=16_384)
def meets(one: str, other: str) -> bool:
    """Whether some text may match both. Two sets are taken to meet."""
    a, b = tokens(one), tokens(other)
    todo, seen = [(0, 0)], {(0, 0)}
    while todo:
        i, j = todo.pop()
        if (i == len(a) and j == len(b)) or _takes_all(a, i, b) or _takes_all(b, j, a):
            return True
        for step in _steps(a, b, i, j) - seen:
            seen.add(step)
            todo.append(step)
    return False


def _takes_all(tokens: tuple[Token, ...], at: int, other: tuple[Token, ...]) -> bool:
    """Whether a star takes all that is left of the other, or all but a last star of it, which takes what follows here.
    Templates of servers are judged by such globs, 10,000 in a list."""
    return at < len(tokens) and tokens[at] == _STAR and (at == len(tokens) - 1 or other[-1:] == (_STAR,))


def _steps(a: tuple[Token, ...], b: tuple[Token, ...], i: int, j: int) -> set[tuple[int, int]]:
    steps = set()
    if i < len(a) and a[i] == _STAR:
        steps |= {(i + 1, j), (i, min(j + 1, len(b)))}
    if j < len(b) and b[j] == _STAR:
        steps |= {(i, j + 1), (min(i + 1, len(a)), j)}
    if i < len(a) and j < len(b) and _STAR not in (a[i], b[j]) and _same(a[i], b[j]):
        steps.add((i + 1, j + 1))
    return steps


def _same(x: Token, y: Token) -> bool:
    if _ANY in (x, y) or (len(x) > 1 and len(y) > 1):
        return True
    return fnmatchcase(x, y) if len(y) > 1 else fnmatchcase(y, x) if len(x) > 1 else x == y


@lru_cache(maxsize=16_384)
def covers(wide: str, narrow: str) -> bool:
    """Whether `wide` surely matches all that `narrow` matches. False where that is hard to tell."""
    a, b = tokens(wide), tokens(narrow)
    reached = {0}  # how much of `wide` may have been used up by what was read of `narrow`
    for token in b:
        reached = {after for at in _past_stars(a, reached) for after in _eat(a, at, token)}
        if not reached:
            return False
    return len(a) in _past_stars(a, reached)


def _past_stars(a: tuple[Token, ...], reached: set[int]) -> set[int]:
    return reached | {at + 1 for at in reached if at < len(a) and a[at] == _STAR}


def _eat(a: tuple[Token, ...], at: int, token: Token) -> set[int]:
    if at == len(a):
        return set()
    if a[at] == _STAR:
        return {at}
    whole = a[at] == token or (a[at] == _ANY and token != _STAR)
    in_set = len(a[at]) > 1 and len(token) == 1 and token not in (_STAR, _ANY) and fnmatchcase(token, a[at])
    return {at + 1} if token != _STAR and (whole or in_set) else set()
