"""Who serves a request, where several processes are one Sluice: the one decision, for workers and for replicas.

Workers share a machine, and each serves its clients: one worker has all state of a client, its rates included. A
replica serves the ids that it issued: each begins with the replica's mark. Any replica serves an id without a mark. A
worker's ids have no mark, because a client that chose its worker could get a fresh rate. Knows ids and request heads,
and passes nothing on itself.
"""

from collections.abc import Callable
from typing import Final

from sluicegate.listen.http_exchange import HttpExchange
from sluicegate.listen.http_request import HOP, Headers
from sluicegate.listen.http_sse import session_id
from sluicegate.listen.streamable_http import version
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import MODERN

_MODERN: Final = MODERN.encode()
_GOES_ON: Final = ("requestState", "taskId", "cursor")


Owner = tuple[str, str]
"""Another process: the replica's mark or the worker's number, and where it takes requests."""


class OwnersByClient:
    """For the worker `index`. `number_of` gives the one that a principal belongs to."""

    def __init__(self, index: int, count: int, number_of: Callable[[str], int]) -> None:
        self._every = [None if at == index else (str(at), f"http://{at}/") for at in range(count)]
        self._number_of = number_of

    def of(self, exchange: HttpExchange, principal: str) -> Owner | None:
        """The other process that must serve this request, by its head. None if this or any process may serve it, or if
        that process has ended."""
        return self._every[self._number_of(principal)]

    def holder(self, exchange: HttpExchange, params: Json) -> Owner | None:
        """The same by its parameters: the process that issued their `requestState`, `taskId` or `cursor`."""
        return None

    def hop(self, exchange: HttpExchange) -> Headers:
        """What a request that is passed on says besides."""
        ends = exchange.peer.server, exchange.peer.client
        return [(HOP, " ".join(f"{end[0]} {end[1]}" if end else "- 0" for end in ends).encode())]


class OwnersByMark:
    """The same for a replica. `living` gives the other live replica that issued an id."""

    def __init__(self, living: Callable[[str], Owner | None]) -> None:
        self._living = living

    def of(self, exchange: HttpExchange, principal: str) -> Owner | None:
        if version(exchange) == _MODERN or self._is_passed_on(exchange):
            return None
        id, query = exchange.head.get(b"mcp-session-id"), exchange.head.query
        return self._living(session_id(query) if id is None else id.decode("latin-1")) if id or query else None

    def holder(self, exchange: HttpExchange, params: Json) -> Owner | None:
        if self._is_passed_on(exchange):
            return None
        for key in _GOES_ON:
            id = params.get(key)
            if isinstance(id, str) and (owner := self._living(id)) is not None:
                return owner
        return None

    def hop(self, exchange: HttpExchange) -> Headers:
        return [(b"x-forwarded-for", exchange.client.encode("ascii", "replace")), (HOP, b"1")]

    @staticmethod
    def _is_passed_on(exchange: HttpExchange) -> bool:
        """Also by somebody's URL that leads here, and not to the port for replicas."""
        return exchange.peer.connection.is_from_peer or HOP in exchange.head


Owners = OwnersByClient | OwnersByMark
