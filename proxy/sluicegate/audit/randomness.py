"""Which words of a text are random: keys, tokens and lines of keys that no name and no vendor's prefix tells. Pure.

A random word changes between letters, capitals and digits all the time, and few of its letters stand in runs like
those of a language. Many random words are harmless: identifiers, digests, cursors, public keys, images. What stands
before one says so: its name, a prefix like `sha256-`, a URL or a path around it, the first line of a public key.
"""

import base64
from collections.abc import Iterator
from typing import Final

from sluicegate.audit import names, tables
from sluicegate.audit.bounded import lazy

Span = tuple[int, int]

# Certificates and public keys, which are stepped over, and words.
_WORD: Final = lazy(
    r"-----BEGIN (?![A-Z0-9 ]{0,30}PRIVATE)[A-Z0-9 ]{3,40}-----[^-]{0,16000}+"
    r"|(?<![\w+/=.%@#-])([A-Za-z0-9+/_-]{20,1000}+(?:={1,2}|(?![\w+/=%])))"
)
_RUNS: Final = lazy(
    r"[0-9a-f]{8,1000}+|[A-Z][a-z]{2,1000}+|[a-z]{4,1000}+|[A-Z]{5,1000}+|\d{5,1000}+|(?:[a-z]{1,2}|[A-Z]{1,2}|\d{1,2})(?=[_-])"
)
_LONG_RUNS: Final = lazy(r"[0-9a-f]{8,1000}+|[a-z]{7,1000}+|[A-Z]{9,1000}+")
_SWITCH: Final = lazy(r"(?<=[a-z])[A-Z]|(?<=[A-Za-z])\d|(?<=\d)[A-Za-z]")
_ONE_CASE: Final = lazy(r"(?:[a-z0-9]{1,1000}+|[A-Z0-9]{1,1000}+)={0,2}")
_HARMLESS: Final = lazy("|".join(row[0] for row in tables.rows("words", "harmless form")))
# What stands before a word, read backwards: a name and a sign, and the rest of a URL or a path.
_NAME: Final = lazy(r"[\[\"'`(]{0,4}[ \t]{0,8}(?:>=|[:=>|])[ \t]{0,8}[\"'`\])]{0,3}([\w.$ -]{1,60})")
_AROUND: Final = lazy(r"[^\s\"'`,;()<>{}]{0,200}+")
_BEFORE: Final = lazy(f"(?i:{'|'.join(row[0] for row in tables.rows('words', 'before harmless'))})$")
_EXPECTED: Final = lazy(
    r"(?i)public|digest|certificate|(?:page|sync|next|continuation)[ _-]?token|cursor"
    r"|(?<![a-z])(?:file|object|s3|image|blob|asset|cache|component|node|partition|sort|row)[ _-]?key$"
)
_ABOUT: Final = 200
_NEAR: Final = 40
# Last words of names under which random words are harmless.
_HARMLESS_NAMES: Final = frozenset(tables.words("harmless"))


def is_random(word: str) -> bool:
    """Whether no person and no naming scheme made a word."""
    if _HARMLESS.fullmatch(word) or word.count("_") + word.count("-") > len(word) / 12 + 1:
        return False
    is_one_case = _ONE_CASE.fullmatch(word) is not None
    if (is_one_case and len(word) < 26) or word.isalpha() or len(_SWITCH.findall(word)) < len(word) / 5:
        return False
    covered = sum(len(run[0]) for run in (_LONG_RUNS if is_one_case else _RUNS).finditer(word))
    return covered < len(word) * 0.5


def is_harmless_name(name: str) -> bool:
    """Whether random words are expected under a name: an identifier, a digest, an image."""
    if len(name) > names.MAX_NAME:  # nobody reads on: it is searched once for each text under it
        return False
    words = names.last_word(name), names.last_word(name.rstrip("0123456789-_ "))
    return not _HARMLESS_NAMES.isdisjoint(words) or _EXPECTED.search(name) is not None


def by_randomness(text: str) -> Iterator[Span]:
    """Where random words stand that nothing before them makes harmless."""
    for found in _WORD.finditer(text):
        if found[1] and is_random(found[1]) and not _is_text(found[1]):
            before = text[max(0, found.start() - _ABOUT) : found.start()]
            name, around = _NAME.match(before[::-1]), _AROUND.match(before[::-1])
            is_path = around is not None and ("/" in around[0] or "\\:" in around[0])
            if not (is_path or _BEFORE.search(before[-_NEAR:]) or (name and is_harmless_name(name[1][::-1].strip()))):
                yield found.span()


def _is_text(word: str) -> bool:
    """Whether a word is a text in base64 (RFC 4648), which `credentials` reads."""
    data = word.rstrip("=").replace("-", "+").replace("_", "/")
    inner = base64.b64decode(data[: len(data) // 4 * 4])
    return sum(32 <= byte < 127 or byte in b"\n\r\t" for byte in inner) > len(inner) * 0.95
