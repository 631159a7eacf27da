"""Our cursor: where a walk over many servers' pages stands, as one opaque text.

Knows neither keys nor ciphers: sealing is done by functions it is given. A cursor is bound to who asked, to the
list and to the servers that it has still to visit, and to no connection and no replica, so that it survives restarts
and works on every replica (2026-07-28 server/utilities/pagination: opaque to clients; -32602 for an invalid one).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from sluicegate.protocol.jsonrpc import Json

PURPOSE: Final = "cursor"

Seal = Callable[[str, Json, str], str]
"""(purpose, payload, bound) -> token. `bound` is authenticated and not contained."""
Unseal = Callable[[str, str, str], Json | None]
"""(purpose, token, bound) -> payload, or None for a token that was not sealed like this."""


@dataclass(frozen=True, slots=True)
class Position:
    """The server reached, that server's own cursor, and how many items of that page were given out.
    A cursor of None is the first page; the empty string is a cursor like any other."""

    server: str
    cursor: str | None = None
    offset: int = 0


Generations = Mapping[str, str]
"""For each server a digest of it and of those after it: what a walk that has come so far still depends on. A list that
is not made of servers depends on none."""


def generations(servers: Json) -> Generations:
    """`servers` says of each who it is and how it is named. The order of servers is the order of the walk and counts;
    the order of keys within a server does not."""
    found, later = dict[str, str](), ""
    for server in reversed(servers.items()):
        found[server[0]] = later = sha256(json.dumps([server, later], sort_keys=True).encode()).hexdigest()
    return found


def seal_cursor(position: Position, *, principal: str, method: str, generations: Generations, seal: Seal) -> str:
    payload: Json = {"s": position.server, "c": position.cursor, "o": position.offset}
    payload["g"] = generations.get(position.server, "")
    return seal(PURPOSE, payload, _bound(principal, method))


def open_cursor(text: Any, *, principal: str, method: str, generations: Generations, unseal: Unseal) -> Position | None:
    """The position in a cursor; None if it was altered, made for someone or something else, or is stale."""
    if not isinstance(text, str):
        return None
    payload = unseal(PURPOSE, text, _bound(principal, method))
    position = None if payload is None else _position(payload)
    if payload is None or position is None or payload.get("g") != generations.get(position.server, ""):
        return None
    return position


def _bound(*parts: str) -> str:
    return json.dumps(parts)  # a list of strings has one JSON text, and that text one reading


def _position(payload: Json) -> Position | None:
    """Another release may have sealed it with the same key, so its shape is not taken for granted."""
    server, cursor, offset = payload.get("s"), payload.get("c"), payload.get("o")
    if not isinstance(server, str) or not isinstance(cursor, str | None):
        return None
    if type(offset) is not int or offset < 0:
        return None
    return Position(server, cursor, offset)
