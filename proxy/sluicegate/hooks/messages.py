"""What a hook is told, and what its answer means: Sluice's own JSON, or the data API of Open Policy Agent. Pure.

An answer is a peer's text: it is bounded, its words are cleaned, and what is not understood is no verdict.
"""

from functools import lru_cache
from typing import Any, Final

from sluicegate.policy.display import visible
from sluicegate.policy.hidden_text import clean
from sluicegate.policy.hooked import HookVerdict, On, Word
from sluicegate.protocol.jsonrpc import Json, Malformed, decode, inside
from sluicegate.protocol.model import Call, Target

MAX_ANSWER: Final = 64 * 1024
MAX_REASON: Final = 300
MAX_NAME: Final = 128
_MAX_PROFILE: Final = 32
MAX_POINTERS: Final = 100
_SHORT: Final = 512  # bytes
MAX_POINTER: Final = 512
WORDS: Final[dict[On, frozenset[Word]]] = {
    "call": frozenset({"allow", "deny", "ask"}),
    "result": frozenset({"allow", "withhold", "redact"}),
    "approval": frozenset({"allow", "deny"}),
}


class NoVerdict(ValueError):
    """An answer that says nothing that a hook may say. The text repeats nothing of it."""


def about(on: On, call: Call, target: Target, class_: str, name: str) -> Json:
    """Who calls what. The same call of the same client gives the same text: the id and the time are headers."""
    client = call.client
    return {
        "version": 1, "on": on, "method": call.method,
        "client": {
            "principal": client.principal, "roles": list(client.roles), "owner": client.owner,
            "name": visible(name)[:MAX_NAME], "revision": client.revision,
            "toolset": client.toolset,
        },
        "server": target.server, "kind": target.kind, "name": target.own, "public": target.public, "class": class_,
    }  # fmt: skip


def read(on: On, form: str, hook: str, data: bytes) -> HookVerdict:
    """Raises `NoVerdict`."""
    return (_read_remembered if len(data) <= _SHORT else _read)(on, form, hook, data)


def _read(on: On, form: str, hook: str, data: bytes) -> HookVerdict:
    try:
        value = decode(data)
    except Malformed:
        raise NoVerdict("its answer is no JSON") from None
    if form == "opa":
        value = _from_opa(on, value)
    word = inside(value, "verdict")
    if not isinstance(word, str) or word not in WORDS[on]:
        raise NoVerdict(f"its answer has no verdict on a {on}")
    profile, pointers = value.get("profile", ""), value.get("redact", [])
    if word == "ask" and not (isinstance(profile, str) and 0 < len(profile) <= _MAX_PROFILE):
        raise NoVerdict("its answer names no profile")
    if word == "redact":
        _check_pointers(pointers)
    masked = tuple(pointers) if word == "redact" else ()
    reason, asked = _words(value.get("reason")), visible(profile) if word == "ask" else ""
    return HookVerdict(hook, on, word, reason, asked, masked)


_read_remembered = lru_cache(1_000)(_read)  # most answers are the same few words


def _from_opa(on: On, value: Any) -> Any:
    """https://www.openpolicyagent.org/docs/rest-api#get-a-document-with-input: `result` is absent where the rule is
    undefined. Policies say a boolean, an object with `allow`, or what our own form says."""
    result = inside(value, "result")
    is_allowed = result if isinstance(result, bool) else inside(result, "allow")
    if isinstance(result, dict) and "verdict" in result:
        return result
    if not isinstance(is_allowed, bool):
        raise NoVerdict("the rule is undefined, or says no boolean")
    no = "withhold" if on == "result" else "deny"
    return {"verdict": "allow" if is_allowed else no, "reason": inside(result, "reason")}


def _check_pointers(pointers: Any) -> None:
    if not isinstance(pointers, list) or not 0 < len(pointers) <= MAX_POINTERS:
        raise NoVerdict(f"it redacts no list of 1 to {MAX_POINTERS} JSON pointers")
    if not all(isinstance(one, str) and one.startswith("/") and len(one) <= MAX_POINTER for one in pointers):
        raise NoVerdict("it redacts by what is no JSON pointer")


def _words(text: Any) -> str:
    """On one line, without hidden characters, and without the quotation marks that end what somebody else says."""
    if not isinstance(text, str):
        return ""
    shown = visible(clean(text[: 2 * MAX_REASON], set())).replace('"', "'")
    return " ".join(shown.split())[:MAX_REASON]


def redacted(value: Json, verdict: HookVerdict) -> Json:
    """A copy of a result without what a hook redacts. Raises `NoVerdict` where there is no such place."""
    mark = f"[redacted by the hook {verdict.hook}]"
    for pointer in verdict.pointers:
        if "/" not in pointer[1:]:
            raise NoVerdict("it redacts a member that each result must have in its form")
        value = _without(value, [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")], mark)
    return value


def _without(value: Any, path: list[str], mark: str) -> Any:
    part, rest = path[0], path[1:]
    if isinstance(value, dict) and part in value:
        return {**value, part: _without(value[part], rest, mark) if rest else _replaced(part, value[part], mark)}
    if isinstance(value, list) and part.isdecimal() and part.isascii() and len(part) < 10 and int(part) < len(value):
        at = int(part)
        item = _without(value[at], rest, mark) if rest else _replaced("", value[at], mark)
        return [*value[:at], item, *value[at + 1 :]]
    raise NoVerdict("it redacts what is not there")


def _replaced(name: str, value: Any, mark: str) -> Any:
    """What stands in its place. Blocks of content stay blocks (2026-07-28 schema, ContentBlock), and data is base64."""
    if name in ("data", "blob") and isinstance(value, str):
        return ""
    if isinstance(value, dict):
        return {"type": "text", "text": mark} if not name and "type" in value else {}
    return [] if isinstance(value, list) else mark
