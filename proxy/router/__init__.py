"""The innermost Handler: one call becomes a call to one server, or an answer made of many.

Knows servers as Handlers, lists as snapshots and rights as functions; no policy, listener or connection. What is
called arrives with its target resolved and its params in own names; what is listed leaves with public ones.
`pages` cuts the lists, `listen` serves subscriptions.
"""

from collections.abc import Mapping

import anyio

from proxy.call import Call, Failure, Handler, Outcome, Result, Server, not_found
from proxy.catalog import merge
from proxy.catalog.snapshot import KINDS
from proxy.era.revisions import LISTS, SUPPORTED
from proxy.hub import Hub
from proxy.lists import Lists, MayList, Resolver
from proxy.message import METHOD_NOT_FOUND
from proxy.router.listen import Listener, MaySee
from proxy.router.pages import Cursors, Pages

__all__ = ["Cursors", "MayList", "MaySee", "Router"]

ROOTS_CHANGED = "notifications/roots/list_changed"
_RELAYED = ("tools/call", "prompts/get", "resources/read", "completion/complete")


class Router:
    """`may_list` judges an item, `may_see` a server; `cursors` seals what the pages of a list have in common."""

    def __init__(
        self, servers: Mapping[str, Server], lists: Lists, resolver: Resolver, hub: Hub, cursors: Cursors,
        may_list: MayList, may_see: MaySee,
    ) -> None:  # fmt: skip
        self._servers = servers
        self._lists = lists
        self._may_see = may_see
        self._transparent = lists.settings.transparent
        pages = Pages(servers, lists, resolver, cursors, may_list)
        self._handlers: Mapping[str, Handler] = {
            "server/discover": self._discover,
            "subscriptions/listen": Listener(servers, lists, hub, may_list, may_see).listen,
            "resources/list": self._if_declared(pages.walked),
            **dict.fromkeys(KINDS, self._if_declared(pages.held)),
            ROOTS_CHANGED: self._tell,
            **dict.fromkeys(_RELAYED, self._relay),
        }

    async def __call__(self, call: Call) -> Outcome:
        handler = self._handlers.get(call.method)
        if handler is None:
            return Failure(METHOD_NOT_FOUND, "Method not found")
        return await handler(call)

    async def _relay(self, call: Call) -> Outcome:
        if call.target is None:
            return not_found(call.method, call.params)
        return await self._servers[call.target.server](call)

    async def _tell(self, call: Call) -> Outcome:
        """What a legacy client tells all its servers: those that it is a legacy client to. For others it has no form
        (2026-07-28 client/roots: they ask when they need to know). One that hangs holds up nobody else."""
        async with anyio.create_task_group() as group:
            for key, server in self._servers.items():
                if server.status == "up" and server.era_for(call.client) == "legacy" and self._may_see(call, key):
                    group.start_soon(server, call)
        return Result({})

    async def _discover(self, call: Call) -> Outcome:
        known = await self._lists.all(call.client)
        seen = [(key, snapshot) for key, snapshot in known if self._may_see(call, key)]
        ttls = [snapshot.ttl_ms if snapshot and self._servers[key].status == "up" else 0 for key, snapshot in seen]
        ttl_ms = min(ttls, default=0)
        if self._transparent:
            about = next((snapshot.about for _, snapshot in seen if snapshot), None)
            return Result(merge.mirrored(about, SUPPORTED, ttl_ms))
        abouts = [(key, snapshot.about) for key, snapshot in seen if snapshot and self._servers[key].status != "down"]
        return Result(merge.merged(abouts, SUPPORTED, ttl_ms))

    def _if_declared(self, handler: Handler) -> Handler:
        """A list whose capability is not declared does not exist (conformance expects -32601); a merged front
        declares them all."""
        if not self._transparent:
            return handler

        async def declared(call: Call) -> Outcome:
            (_, snapshot), *_ = await self._lists.all(call.client)
            if snapshot is not None and not snapshot.declares(LISTS[call.method].capability):
                return Failure(METHOD_NOT_FOUND, "Method not found")
            return await handler(call)

        return declared
