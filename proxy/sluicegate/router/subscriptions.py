"""The resources that one listen call subscribes to: which of them it may, at which servers, and what became of them.

Judged as a read of them would be, when they are subscribed to and at each update, so that a changed policy counts at
once; what cannot be subscribed to without a human's yes is not. Knows servers, the resolver and the decision; no
stream. (2026-07-28 basic/patterns/subscriptions, server/resources#subscriptions.)
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from sluicegate.catalog import uri_fields
from sluicegate.catalog.uris import is_clean
from sluicegate.catalog_cache import CatalogCache, Resolver
from sluicegate.protocol.jsonrpc import METHOD_NOT_FOUND, Json, Notification
from sluicegate.protocol.model import Call, Decision, Failure, McpServer, Target, Verdict, not_found

Decide = Callable[[Call, Target], Decision]

UPDATED: Final = "notifications/resources/updated"
STRIDE: Final = 16  # URIs that are judged in a row
RETRY_FIRST: Final = 0.5
RETRY_MOST: Final = 30.0

_NO_SUBSCRIPTIONS: Final = Failure(METHOD_NOT_FOUND, "The server of this resource has no subscriptions")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subscribing:
    """What is needed to subscribe, the same for all calls."""

    servers: Mapping[str, McpServer]
    lists: CatalogCache
    resolver: Resolver
    decide: Decide

    async def begin(self, call: Call, uris: Sequence[str]) -> "Subscriptions":
        """Nothing is asked of a server yet."""
        made = Subscriptions(self, replace(call, method="resources/read", params={}))
        for count, uri in enumerate(dict.fromkeys(uris), 1):
            if count % STRIDE == 0:
                await checkpoint()
            await made.add(uri)
        return made


class Subscriptions:
    """Those of one call. `refused` says why one that the client may read cannot be subscribed to; of others nothing
    is said, because what is denied looks like what does not exist. `is_promised` once the client was told what is
    honoured, so that it trusts in being told of updates."""

    __slots__ = ("_as_read", "_by_server", "_shared", "is_promised", "refused")

    def __init__(self, shared: Subscribing, as_read: Call) -> None:
        self._shared = shared
        self._as_read = as_read
        self._by_server: dict[str, dict[str, list[str]]] = defaultdict(dict)  # server -> own URI -> as it was given
        self.refused: dict[str, Failure] = {}
        self.is_promised = False

    def __repr__(self) -> str:
        return f"Subscriptions({len(self.honoured)} at {list(self._by_server)}, {len(self.refused)} refused)"

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self._by_server)

    @property
    def honoured(self) -> list[str]:
        return [uri for given in self._by_server.values() for uris in given.values() for uri in uris]

    async def add(self, uri: str) -> None:
        call = replace(self._as_read, params={"uri": uri})
        target = await self._shared.resolver.resolve(call)
        if target is None or not self._may_read(call, target):
            return
        snapshot = self._shared.lists.current(target.server, call.client)
        if snapshot is not None and not snapshot.subscribes:
            self.refused[uri] = _NO_SUBSCRIPTIONS
        else:
            self._by_server[target.server].setdefault(target.own, []).append(uri)

    def _may_read(self, call: Call, target: Target) -> bool:
        decision = self._shared.decide(call, target)
        if decision.verdict is not Verdict.ALLOW:
            client = call.client.principal
            log.info("denied a subscription to %s for %s by %s", target.public, client, decision.rule)
        return decision.verdict is Verdict.ALLOW

    # ------------------------------------------------------------ at the servers

    async def pursue(
        self, key: str, tell: Callable[[str, Json], None], releases: list[Callable[[], None]], settled: anyio.Event
    ) -> None:
        """Subscribes at one server as soon as it can be reached; `settled` when that is done or has to wait."""
        server, own = self._shared.servers[key], self._by_server[key]
        delay = 0.0
        while True:
            await server.ready()
            try:
                release, refused = await server.subscribe(self._as_read.client, tuple(own), partial(tell, key))
                break
            except ConnectionError:
                settled.set()
                delay = min(max(RETRY_FIRST, 2 * delay), RETRY_MOST)
                await anyio.sleep(delay)
        releases.append(release)
        for uri, failure in refused.items():
            self._refuse(key, uri, failure)
        settled.set()
        if delay or self.is_promised:
            for uri in own:
                tell(key, {"uri": uri})  # it may have been updated meanwhile

    def _refuse(self, key: str, own: str, failure: Failure) -> None:
        for uri in self._by_server[key].pop(own, ()):
            if failure == not_found("resources/read", {"uri": own}):
                continue  # word for word what does not exist
            data = uri_fields.error_data(failure.data, self._shared.lists.namings[key].uris.public)
            self.refused[uri] = Failure(failure.code, failure.message, data, failure.reason)

    # ------------------------------------------------------------ updates

    def shown(self, key: str, params: Json) -> list[Notification]:
        """An update as this client may see it: under the names that it gave, or that a sub-resource has."""
        own: str = params["uri"]
        public = self._shared.lists.namings[key].uris.public(own)
        given = self._by_server[key].get(own)
        if given is None and not is_clean(own):
            return []
        call = replace(self._as_read, params={"uri": public})
        if self._shared.decide(call, Target(key, "res", own, public)).verdict is not Verdict.ALLOW:
            return []
        return [Notification(UPDATED, {**params, "uri": uri}) for uri in given or (public,)]
