"""The credentials that are known by their look, whatever stands around them. Pure.

`vendors.tsv` has a row for each vendor: prefixes or a pattern, name, source. The source `gitleaks` is
https://github.com/gitleaks/gitleaks (config/gitleaks.toml, MIT License), from which prefixes are taken. Its patterns
are for an engine that never backtracks. Here one class of characters with a bound follows each prefix: linear work.
"""

import base64
import json
import re
from collections.abc import Iterator
from typing import Final

from sluicegate.audit import tables
from sluicegate.audit.bounded import BoundedPattern, lazy
from sluicegate.audit.names import is_secret_name
from sluicegate.audit.values import is_no_value, is_random

Span = tuple[int, int]

_PREFIXES: Final = [re.escape(prefix) for row in tables.rows("vendors", "prefix") for prefix in row[0].split()]
_PATTERNS: Final = [row[0] for row in tables.rows("vendors", "pattern")]
# What follows a prefix: 16 characters or more, of which one is a digit.
_TOKEN: Final = (
    rf"(?:{'|'.join(_PREFIXES)})(?=[A-Za-z_\-.+/=]{{0,80}}\d|[A-Za-z]{{20}})"
    r"[A-Za-z0-9_.+/=~\-]{15,1500}[A-Za-z0-9_=\-]"
)
# Only what a key consists of: an approver has to see a command that stands between the two lines.
_BASE64: Final = "[A-Za-z0-9+/=]"
_LAST_LINES: Final = rf"(?={_BASE64}{{0,11}}(?:\s|\\{{1,8}}[nr]){{0,8}}(?:=[A-Za-z0-9+/]{{4}}\s{{0,4}})?-----END)"
# What stands before a line of a key that a program shows: its number, a quotation mark.
_MARGIN: Final = (
    r"(?:\d{1,5}(?:[\t:|→]|\\{1,8}t)|[>|#*])[ \t]{0,2}"
    rf"(?={_BASE64}{{12}}|{_BASE64}{{0,11}}\s{{0,4}}(?:\d{{1,5}}\s)?-----END)"
)
_KEY_BODY: Final = (
    rf"(?:\s|\\{{1,8}}[nrt]|{_MARGIN}|{_BASE64}{{12}}|(?<={_BASE64}{{12}}){_BASE64}|{_BASE64}{_LAST_LINES}"
    r"|(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset):[\w,./+ \-]{0,100}){0,8000}+"
)
_PEM: Final = r"[A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
_PRIVATE_KEY: Final = BoundedPattern(rf"-----BEGIN {_PEM}{_KEY_BODY}(?:-----END {_PEM})?")
# Parameters of a URL's query that are secrets, and those that are secrets if they look like one.
_PARAMETERS: Final = "|".join(row[0] for row in tables.rows("vendors", "parameter"))
_LOOKS: Final = lazy(
    "|".join(
        (
            *(row[0] for row in tables.rows("vendors", "look")),
            rf"(?:(?<=[?&;#])|(?<=\\u0026))(?i:{_PARAMETERS})=[^\s&;#\"'<>`\\]{{1,2048}}",
            rf"(?:(?<![A-Za-z0-9])|(?<=\[\dm)|(?<=\[\d\dm))(?:{'|'.join((_TOKEN, *_PATTERNS))})",
        )
    )
)
# One look decides for most texts: each pattern needs a run like this, a URL, a parameter or a private key.
_RUN: Final = lazy(r"[A-Za-z0-9_+/=.\-]{16}")
_FAKE: Final = lazy(r"([xX*.])\1{5}")


def may_look_secret(text: str) -> bool:
    """Whether `by_look` may find something; a no is sure."""
    return _RUN.search(text) is not None or "://" in text or "=" in text or "-----BEGIN" in text


def by_look(text: str) -> Iterator[Span]:
    if "-----BEGIN" in text:
        yield from (found.span() for found in _PRIVATE_KEY.find_all(text) if _FAKE.search(found[0]) is None)
    if may_look_secret(text):
        for match in _LOOKS.finditer(text):
            found = match[0]
            before = text[max(0, match.start() - 6) : match.start()]
            is_parameter = before.endswith(("?", "&", ";", "#", "\\u0026"))
            sign = ":" if before.endswith("://") else "=" if is_parameter else ""
            is_scheme = not sign and " " in found[:10]  # `Bearer YOUR_TOKEN`
            has_value = is_scheme or (sign != "" and sign in found)
            is_reference = has_value and is_no_value(found.partition(sign or " ")[2])
            is_cursor = _is_cursor(found, text[match.end() : match.end() + 1])
            if _FAKE.search(found) is None and not is_reference and not is_cursor:
                yield match.span()


def _is_cursor(found: str, after: str) -> bool:
    """Whether a text is no token but JSON in base64 with the place in a list: `{"offset": 200}`."""
    if not found.startswith("eyJ") or "." in found or len(found) > 512 or after == ".":
        return False
    try:
        value = json.loads(base64.urlsafe_b64decode(found + "=" * (-len(found) % 4)))
    except (ValueError, RecursionError):
        return False
    return not ({"alg", "typ", "kid"} & set(value)) and all(
        isinstance(item, str | int | float | None) and not (is_secret_name(name) or is_random(str(item)))
        for name, item in value.items()
    )
