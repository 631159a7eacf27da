"""`/api/v1/pins`: what servers say of themselves, what of it waits for a person, and the person's word.

Pure but for the pins themselves, which are given. A definition is accepted by its fingerprint, so that nobody accepts
what came after the look.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from sluicegate.policy.pins import WORDS, PinKind, Wanted
from sluicegate.protocol.jsonrpc import Json, decode

_KINDS: Final[Mapping[Any, PinKind]] = {word: kind for kind, word in WORDS.items()}
_SHAPE: Final = (
    'the body is {"server": KEY, "accept": [{"kind": "tool|prompt|template|instructions", "name": NAME, '
    '"fingerprint": HEX}, ...]}'
)
_QUERY: Final = "the query is ?server=KEY, ?definitions=1 and ?waiting=1, each once, or nothing"

StatusAndBody = tuple[int, Json]
"""A status and the body that goes with it."""


class PinsApi(Protocol):
    def each_row(
        self, server: str | None = None, definitions: bool = False, waiting: bool = False
    ) -> AsyncIterator[Json]: ...

    async def accept(self, server: str, wanted: Iterable[Wanted], by: str) -> list[Json] | str: ...


async def show(pins: PinsApi, query: Mapping[str, Sequence[str]]) -> StatusAndBody:
    server, flags = query.get("server", [""]), [query.get(name, ["0"]) for name in ("definitions", "waiting")]
    if (
        set(query) - {"server", "definitions", "waiting"}
        or len(server) != 1
        or any(flag not in (["0"], ["1"]) for flag in flags)
    ):
        return 400, {"error": _QUERY}
    return 200, {"pins": [row async for row in pins.each_row(server[0] or None, *(flag == ["1"] for flag in flags))]}


async def accept(pins: PinsApi, body: bytes, by: str) -> StatusAndBody:
    """All that is named or nothing; 409 if something is not what the server gave last."""
    value = decode(body)
    wanted = _wanted(value)
    if wanted is None:
        return 400, {"error": _SHAPE}
    accepted = await pins.accept(value["server"], wanted, by)
    return (409, {"error": accepted}) if isinstance(accepted, str) else (200, {"pins": accepted})


def _wanted(value: Any) -> list[Wanted] | None:
    match value:
        case {"server": str(), "accept": list() as items, **rest} if not rest:
            found = [_one(item) for item in items]
            return None if None in found else [one for one in found if one is not None]
    return None


def _one(item: Any) -> Wanted | None:
    match item:
        case {"kind": str() as word, "name": str() as name, "fingerprint": str() as mark, **rest} if not rest:
            kind = _KINDS.get(word)
            if kind is not None:
                return Wanted(kind, "" if kind == "instructions" else name, mark)
    return None
