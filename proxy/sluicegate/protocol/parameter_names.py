"""The names that requests give their parameters, and what poses as one of them.

Pure. Servers' parsers are not ours: some read `Name` as `name` (CVE-2026-27896), some take `request_state` for
`requestState`. What a server could read as one of these words must be that word, or it would be read there and was
judged by nobody. A request that rules, approvers and the audit log look at has the parameters that MCP gives it, and no
others: nobody would have seen those.
"""

import re
from functools import lru_cache
from typing import Any, Final
from unicodedata import normalize

from sluicegate.protocol.jsonrpc import Json, is_id
from sluicegate.protocol.methods import PARAMS

_WORDS: Final = frozenset(
    {
        "_meta", "name", "arguments", "uri", "ref", "argument", "context", "cursor", "level", "notifications",
        "inputResponses", "requestState", "task", "taskId",
    }
)  # fmt: skip
_NOT_SEEN: Final = re.compile(r"[^\w\n]+|_+")
_ASCII_NOT_SEEN: Final = bytes(byte for byte in range(128) if not chr(byte).isalnum() and chr(byte) != "\n")
# `normalize` makes up to 18 characters of one of these, which no name of a parameter has.
_LIGATURES: Final = re.compile("[\uFDF0-\uFDFC]+")
MAX_PARAMS: Final = 100
MAX_NAME: Final = 512
MAX_TOKEN: Final = 2**63
MAX_FOREIGN: Final = 16 * 1024
"""Characters of all names of one object that are not ASCII: each takes up to 600 ns to be compared."""
_MAX_FOREIGN_OF_SERVER: Final = 256
"""The same of an object in a server's answer, which may have dozens of them. MCP names its members in ASCII."""
# Of a completion: what is judged, and what MCP has beside it
_MEMBERS: Final = {
    "ref": frozenset({"type", "name", "uri", "title"}), "argument": frozenset({"name", "value"}),
    "context": frozenset({"arguments"}),
}  # fmt: skip


def is_token(value: Any) -> bool:
    """Whether that can be a progress token (basic/utilities/progress, every revision), of the size of an id: Sluice
    keeps one as long as its task lives. A boolean is no integer."""
    return is_id(value) and (type(value) is str or abs(value) < MAX_TOKEN)


def check(method: str, params: Json) -> str | None:
    """What is wrong with the parameters besides `_meta`. Those that the method does not have are taken out."""
    owned = PARAMS.get(method, _WORDS)
    if not owned.issuperset(params):
        if len(params) > MAX_PARAMS:
            return f"more than {MAX_PARAMS} parameters"
        if (key := look_alike(params, _WORDS)) is not None:
            return f"{key[:MAX_NAME]!a} is no key here"
        if method in PARAMS:
            for name in [name for name in params if name not in owned]:
                del params[name]
    for name in () if _MEMBERS.keys().isdisjoint(params) else _MEMBERS:  # on the way of every call: most have none
        held = params.get(name)
        if isinstance(held, dict) and len(held) > MAX_PARAMS:
            return f"more than {MAX_PARAMS} members of {name}"
        if (key := look_alike(held, _MEMBERS[name])) is not None:
            return f"{key[:MAX_NAME]!a} is no key here"
    if "arguments" in params and not isinstance(params["arguments"], dict):
        if params["arguments"] is not None:
            return "arguments must be an object"
        del params["arguments"]  # some clients write null where they have none
    return None


def look_alike(held: Any, words: frozenset[str]) -> str | None:
    """The first key that is another spelling of one of these words, or too long to be judged."""
    if not isinstance(held, dict) or words.issuperset(held):
        return None
    keys: list[str] = [key for key in held if key not in words]
    if len(longest := max(keys, key=len)) > MAX_NAME:
        return longest
    foreign = [key for key in keys if not key.isascii()]
    if foreign and sum(map(len, foreign)) > MAX_FOREIGN:
        return foreign[-1]
    seen = _plain_words(words)
    return _spelt(keys if not foreign else [key for key in keys if key.isascii()], seen) or _spelt(foreign, seen)


def may_pose(held: Json, words: frozenset[str]) -> bool:
    """Whether a member of what a server says may be read as one of these words. Of very many it is not looked for."""
    if words.issuperset(held):
        return False
    is_much = len(held) > MAX_PARAMS or sum(len(key) for key in held if not key.isascii()) > _MAX_FOREIGN_OF_SERVER
    return is_much or look_alike(held, words) is not None


def _spelt(keys: list[str], words: frozenset[str]) -> str | None:
    """The first of the keys that reads like one of these words."""
    plain = _plain(keys)
    if words.isdisjoint(plain):
        return None
    return next(key for key, seen in zip(keys, plain, strict=True) if seen in words)


@lru_cache(1024)
def _plain_words(words: frozenset[str]) -> frozenset[str]:
    return frozenset(_plain([*words]))


def _plain(keys: list[str]) -> list[str]:
    """Without case, width, separators, accents and what is not seen: as the most careless parser reads them. All at
    once, since there may be 20,000."""
    if not keys:
        return []  # else one that is empty
    text = "\n".join(keys)
    if text.count("\n") >= len(keys):
        text = "\n".join(key.replace("\n", "") for key in keys)
    if text.isascii():
        return text.encode().translate(None, _ASCII_NOT_SEEN).lower().decode().split("\n")
    # Marks go first: `normalize` puts a run of them in order in time that grows with the square of its length.
    text = normalize("NFKD", _LIGATURES.sub("", _NOT_SEEN.sub("", text)))
    # A dotless i is the capital of i to who compares capitals.
    return _NOT_SEEN.sub("", text.upper().casefold()).split("\n")
