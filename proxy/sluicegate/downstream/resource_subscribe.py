"""How a set of watched resources is told to a server: one by one in the initialize era, as one stream in the modern.

Knows the requests of each era; knows not who wants what. What is refused is a Failure as a read of it would have.
<= 2025-11-25 server/resources#subscriptions, 2026-07-28 basic/patterns/subscriptions.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import islice
from typing import Final

import anyio

from sluicegate.downstream.change_streams import OVERLAP, ChangeStream
from sluicegate.protocol import legacy_server
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, Json, Response
from sluicegate.protocol.model import Call, Client, Failure, not_found

AT_ONCE: Final = 8
MAX_COUNTED: Final = 10_000
_NOBODY: Final = Client("")
_NOTHING: Final[Counter[str]] = Counter()

Ask = Callable[[str, Json], Awaitable[Response]]
"""(method, params) -> the server's answer."""


def has_subscriptions(capabilities: Json) -> bool:
    resources = capabilities.get("resources")
    return isinstance(resources, dict) and resources.get("subscribe") is True


def without(uris: frozenset[str]) -> Mapping[str, Failure]:
    """What a server that does not declare subscriptions says to them."""
    return dict.fromkeys(uris, Failure(METHOD_NOT_FOUND, "The server of this resource has no subscriptions"))


class OneByOne:
    """A session that remembers what was subscribed to."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._watched: set[str] = set()

    async def watch(self, uris: frozenset[str]) -> Mapping[str, Failure]:
        refused: dict[str, Failure] = {}
        added = iter(sorted(uris - self._watched))
        while some := list(islice(added, AT_ONCE)):
            await asyncio.gather(*(self._subscribe(uri, refused) for uri in some))
        for uri in self._watched - uris:
            self._watched.discard(uri)
            await self._ask("resources/unsubscribe", {"uri": uri})
        return refused

    async def _subscribe(self, uri: str, refused: dict[str, Failure]) -> None:
        params = {"uri": uri}
        answer = await self._ask("resources/subscribe", params)
        if answer.error is None:
            self._watched.add(uri)
        else:
            refused[uri] = legacy_server.failure(Call(_NOBODY, "resources/read", params), answer.error)


Begin = Callable[[Json, Callable[[Json], None], Callable[[bool], None]], ChangeStream]
"""(filter, who is told of updates, and of acknowledgements) -> a stream that runs."""


class OneStream:
    """A stream for the whole set; a stream for another set takes its place. While both are open an update comes on
    both: of a resource is told as often as the one says that says it more often. Where they differ in the end (what the
    server sent before the second was open may come after its acknowledgement), it is told once more."""

    def __init__(self, begin: Begin, tell: Callable[[Json], None], patience: float) -> None:
        self._begin, self._tell, self._patience = begin, tell, patience
        self._stream: ChangeStream | None = None
        self._watched: frozenset[str] = frozenset()
        self._open: dict[
            ChangeStream, Counter[str]
        ] = {}  # how often each has told of a resource, while there are several
        self._told: Counter[str] = Counter()

    async def watch(self, uris: frozenset[str]) -> Mapping[str, Failure]:
        if uris == self._watched:
            return {}
        if not uris:
            self._replace(None, uris)
            return {}
        heard: Counter[str] = Counter()
        wanted = {"resourceSubscriptions": sorted(uris)}
        stream = self._begin(wanted, partial(self._hear, heard), partial(self._live, heard, uris))
        self._open[stream] = heard
        try:
            with anyio.fail_after(self._patience):
                await stream.settled.wait()
        except BaseException:
            self._close(stream)
            raise
        if stream.honoured is None:  # also where the set has only shrunk: the larger one is as good
            self._close(stream)
            return dict.fromkeys(uris - self._watched, Failure(INTERNAL_ERROR, stream.problem))
        promised = stream.honoured.get("resourceSubscriptions")
        honoured = uris.intersection(uri for uri in promised or () if isinstance(uri, str))
        self._replace(stream, honoured)
        return {uri: not_found("resources/read", {"uri": uri}) for uri in uris - honoured}

    def _replace(self, stream: ChangeStream | None, watched: frozenset[str]) -> None:
        old, self._stream, self._watched = self._stream, stream, watched
        if old is not None and stream is not None:
            asyncio.get_running_loop().call_later(OVERLAP, self._retire, old)
        elif old is not None:
            self._close(old)

    def _retire(self, stream: ChangeStream) -> None:
        heard, kept = self._open.get(stream, _NOTHING), self._open.get(self._stream or stream, _NOTHING)
        both = self._watched.intersection(stream.wanted["resourceSubscriptions"])
        differing = [uri for uri in both if heard[uri] != kept[uri]]
        self._close(stream)
        for uri in differing:
            self._tell({"uri": uri})

    def _close(self, stream: ChangeStream) -> None:
        stream.close()
        self._open.pop(stream, None)
        if len(self._open) <= 1:
            self._begin_to_count()

    def _begin_to_count(self) -> None:
        for counts in (self._told, *self._open.values()):
            counts.clear()

    def _live(self, heard: Counter[str], uris: frozenset[str], is_again: bool) -> None:
        heard.clear()
        heard.update(self._told)
        for uri in uris if is_again else ():
            self._tell({"uri": uri})

    def _hear(self, heard: Counter[str], params: Json) -> None:
        uri = params.get("uri")
        if not isinstance(uri, str):
            return
        if len(self._open) > 1:
            if len(self._told) >= MAX_COUNTED:
                self._begin_to_count()
            heard[uri] += 1
            if heard[uri] <= self._told[uri]:
                return
            self._told[uri] = heard[uri]
        self._tell(params)
