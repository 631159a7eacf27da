"""subscriptions/listen: one client's stream of changes, made of many servers' notifications.

Knows servers by what they hold open and lists as snapshots. Told is what changed for this client: a change of a
tool that it may not see is none. (2026-07-28 basic/patterns/subscriptions: the acknowledgement comes first, only
requested kinds follow, nothing is replayed.)
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from proxy.call import Call, Failure, Outcome, Result, Server, session_scope
from proxy.catalog import merge
from proxy.catalog.snapshot import KINDS, digest
from proxy.era.revisions import LISTS
from proxy.hub import Event, Hub
from proxy.lists import Lists, MayList
from proxy.message import INVALID_PARAMS, Json, Notification

MaySee = Callable[[Call, str], bool]
"""(call, server key): whether this client has any right on that server."""

# What a server says to one legacy client outside of its calls
_SAID: Final = frozenset({"notifications/message", "notifications/elicitation/complete"})
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
ACKNOWLEDGE_WITHIN: Final = 0.5
RETRY_FIRST: Final = 0.5
RETRY_MOST: Final = 30.0
STRIDE: Final = 16  # items that are judged in a row

_RESOURCES: Final = LISTS["resources/list"].changed
# key in the filter -> (notification, capability)
_FILTERS: Final = {entry.filter: (entry.changed, entry.capability) for entry in LISTS.values()}

Digests = dict[tuple[str, str], bytes]


class Listener:
    def __init__(
        self, servers: Mapping[str, Server], lists: Lists, hub: Hub, may_list: MayList, may_see: MaySee
    ) -> None:
        self._servers = servers
        self._lists = lists
        self._hub = hub
        self._may_list = may_list
        self._may_see = may_see
        self._transparent = lists.settings.transparent

    async def listen(self, call: Call) -> Outcome:
        """Lasts until the client goes away (cancellation) or the hub closes."""
        wanted = _wanted(call.params.get("notifications"))
        if isinstance(wanted, Failure):
            return wanted
        methods = {_FILTERS[key][0] for key in wanted}
        with ExitStack() as stack:
            events = stack.enter_context(self._hub.subscribe(lambda event: self._concerns(call, methods, event)))
            stack.enter_context(self._lists.watch(call.client))
            async with anyio.create_task_group() as group:
                reached = await self._reach_servers(call, group, stack)
                honoured = [key for key in wanted if self._may_promise(call, key)]
                told = {_FILTERS[key][0] for key in honoured}
                seen = await self._digests(call, told)
                await call.emit(Notification(ACKNOWLEDGED, {"notifications": dict.fromkeys(honoured, True)}))
                async for event in events:
                    self._reach_also(call, event.server, reached, group, stack)
                    if event.notification.method in _SAID:
                        await call.emit(event.notification)
                    elif event.notification.method in told and await self._is_news(call, event, seen):
                        await call.emit(Notification(event.notification.method, {}))
                group.cancel_scope.cancel()
        return Result({})

    def _concerns(self, call: Call, methods: set[str], event: Event) -> bool:
        """Scopes are asked anew each time: a server's era, and so its scope, may be known only after it is up."""
        if event.notification.method in _SAID:
            session = call.client.session
            return session is not None and event.scope == session_scope(session) and self._may_see(call, event.server)
        if event.notification.method not in methods:
            return False
        return event.scope is None or event.scope == self._servers[event.server].scope(call.client)

    def _may_promise(self, call: Call, key: str) -> bool:
        if not self._transparent:
            return True
        snapshot = self._lists.known(next(iter(self._servers)), call.client)
        declared = merge.relayed(snapshot.about["capabilities"]) if snapshot else merge.MERGED
        return "listChanged" in declared.get(_FILTERS[key][1], {})

    # ------------------------------------------------------------ servers

    async def _reach_servers(self, call: Call, group: TaskGroup, stack: ExitStack) -> set[str]:
        """Returns when every server that is up is live, or in time for the acknowledgement."""
        seen = [server for key, server in self._servers.items() if self._may_see(call, key)]
        seen = [server for server in seen if server.status != "disabled"]
        up = [server for server in seen if server.status == "up"]
        live = {server.key: anyio.Event() for server in seen}
        for server in seen:
            group.start_soon(self._reach, call, server, live[server.key], stack)
        with anyio.move_on_after(ACKNOWLEDGE_WITHIN):
            for server in up:
                await live[server.key].wait()
        return set(live)

    def _reach_also(self, call: Call, key: str, reached: set[str], group: TaskGroup, stack: ExitStack) -> None:
        """A changed policy may show a client what it did not see before."""
        server = self._servers[key]
        if key not in reached and server.status != "disabled" and self._may_see(call, key):
            reached.add(key)
            group.start_soon(self._reach, call, server, anyio.Event(), stack)

    async def _reach(self, call: Call, server: Server, live: anyio.Event, stack: ExitStack) -> None:
        """Has the server's changes reach the hub, as soon as it can be reached, until the stack is unwound."""
        delay = 0.0
        while True:
            await server.ready()
            try:
                stack.callback(await server.hold(call.client))
                break
            except ConnectionError:
                live.set()  # nobody waits for a server that is down
                delay = min(max(RETRY_FIRST, 2 * delay), RETRY_MOST)
                await anyio.sleep(delay)
        if delay:
            for kind in KINDS.values():
                self._lists.changed(server.key, server.scope(call.client), kind)
        await self._lists.snapshot(server.key, call.client)
        live.set()

    # ------------------------------------------------------------ events

    async def _digests(self, call: Call, methods: set[str]) -> Digests:
        """What this client could see when it was acknowledged: whatever differs from then on is news."""
        seen: Digests = {}
        for key in self._servers:
            for method in _held(methods):
                seen[key, method] = await self._digest(call, key, method)
        return seen

    async def _is_news(self, call: Call, event: Event, seen: Digests) -> bool:
        """One server behind us is relayed as it is. Else a list must differ from the one this client could have
        seen before; of resources that cannot be told, for nobody holds them."""
        changed = self._transparent
        for method in _held((event.notification.method,)):
            now = await self._digest(call, event.server, method)
            changed = changed or now != seen.get((event.server, method))
            seen[event.server, method] = now
        return changed or (event.notification.method == _RESOURCES and self._has_resources(call, event.server))

    def _has_resources(self, call: Call, key: str) -> bool:
        snapshot = self._lists.known(key, call.client)
        return snapshot is not None and snapshot.declares("resources") and self._may_see(call, key)

    async def _digest(self, call: Call, key: str, method: str) -> bytes:
        """Of what a list would answer now: nothing while the server is down. Judging a long list for the first time
        takes a while; others must not wait for it."""
        await checkpoint()
        snapshot = self._lists.known(key, call.client)
        if snapshot is None or self._servers[key].status == "down":
            return digest(())
        shown = []
        for index, entry in enumerate(snapshot.entries(method), 1):
            if index % STRIDE == 0:
                await checkpoint()
            if self._may_list(call, key, entry.target):
                shown.append(entry)
        return digest(shown)


def _held(notifications: Iterable[str]) -> list[str]:
    return [method for method in KINDS if LISTS[method].changed in notifications]


def _wanted(filter: Any) -> list[str] | Failure:
    """The keys of the filter that ask for a kind of change. Subscriptions to single resources are not honoured,
    and so not acknowledged."""
    if not isinstance(filter, dict):
        return Failure(INVALID_PARAMS, "notifications must be an object")
    for key in _FILTERS:
        if not isinstance(filter.get(key, False), bool):
            return Failure(INVALID_PARAMS, f"notifications.{key} must be a boolean")
    uris: Json | list[Any] = filter.get("resourceSubscriptions", [])
    if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
        return Failure(INVALID_PARAMS, "notifications.resourceSubscriptions must be a list of URIs")
    return [key for key in _FILTERS if filter.get(key)]
