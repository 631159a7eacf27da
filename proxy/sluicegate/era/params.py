"""The names that requests give their parameters, and what poses as one of them.

Pure. Parameters that nobody here knows travel on untouched, and servers' parsers are not ours: some read `Name` as
`name` (CVE-2026-27896), some take `request_state` for `requestState`. What a server could read as one of these words
must be that word, or it would be read there and was judged by nobody.
"""

from typing import Any, Final
from unicodedata import normalize

from sluicegate.message import Json

_WORDS: Final = frozenset(
    {
        "_meta", "name", "arguments", "uri", "ref", "argument", "context", "cursor", "level", "notifications",
        "inputResponses", "requestState", "task", "taskId",
    }
)  # fmt: skip
_OF_A_REF: Final = frozenset({"type", "name", "uri", "title"})


def is_token(value: Any) -> bool:
    """Whether that can be a progress token (basic/utilities/progress, every revision): a boolean is no integer."""
    return isinstance(value, str | int) and not isinstance(value, bool)


def posing(params: Json) -> str | None:
    """The first key that is another spelling of a parameter's name."""
    found = None if _WORDS.issuperset(params) else _posing(params, _WORDS)
    if found is None and "ref" in params:
        found = _posing(params["ref"], _OF_A_REF)
    return found


def _posing(held: Any, words: frozenset[str]) -> str | None:
    if not isinstance(held, dict) or words.issuperset(held):
        return None
    plain = {_plain(word) for word in words}
    return next((key for key in held if key not in words and _plain(key) in plain), None)


def _plain(key: str) -> str:
    """Without case, width, separators and what is not seen: as the most careless parser reads it."""
    return "".join(char for char in normalize("NFKC", key).casefold() if char.isalnum())
