"""subscriptions/listen: one client's stream of changes, made of many servers' notifications.

Knows servers by what they hold open and lists as snapshots. Told is what changed for this client: a change of a
tool that it may not see is none, and so is one of a resource that it may not read. (2026-07-28
basic/patterns/subscriptions: the acknowledgement comes first, only requested kinds follow, nothing is replayed.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from sluicegate.catalog import discover_merge
from sluicegate.catalog_cache import CatalogCache, Resolver
from sluicegate.hub import Event, Hub, Subscription
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json, Notification
from sluicegate.protocol.methods import LISTS, OF_A_SESSION
from sluicegate.protocol.model import Call, Emit, Failure, McpServer, Outcome, Result, session_scope
from sluicegate.router.subscriptions import UPDATED, Decide, Subscribing, Subscriptions
from sluicegate.router.task_subscriptions import MAX_FOLLOWED, FollowedTasks, TaskSubscriptions
from sluicegate.router.visible_lists import ListVersions, VisibleLists

MaySee = Callable[[Call, str], bool]
"""(call, server key): whether this client has any right on that server."""

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
REFUSED: Final = "dev.sluice/refused"
"""In `_meta` of the acknowledgement: why resources are not among those that are honoured, by URI."""
ACKNOWLEDGE_WITHIN: Final = 0.5
RETRY_FIRST: Final = 0.5
RETRY_MOST: Final = 30.0
MAX_RESOURCES: Final = 1_000

# key in the filter -> (notification, capability)
_FILTERS: Final = {entry.filter: (entry.changed, entry.capability) for entry in LISTS.values()}


@dataclass(slots=True)
class _Stream:
    """One listen call: what it wants, and what it needs servers for."""

    call: Call
    methods: frozenset[str]
    subscriptions: Subscriptions
    followed: FollowedTasks
    reached: set[str] = field(default_factory=set)
    releases: list[Callable[[], None]] = field(default_factory=list)

    def release(self) -> None:
        for release in self.releases:
            release()


class SubscriptionStreams:
    def __init__(
        self, servers: Mapping[str, McpServer], lists: CatalogCache, resolver: Resolver, hub: Hub, views: VisibleLists,
        may_see: MaySee, decide: Decide, following: TaskSubscriptions,
    ) -> None:  # fmt: skip
        self._servers = servers
        self._lists = lists
        self._hub = hub
        self._may_see = may_see
        self._transparent = lists.settings.transparent
        self._sight = ListVersions(servers, lists, views, may_see)
        self._subscribing = Subscribing(servers, lists, resolver, decide)
        self._following = following

    async def listen(self, call: Call) -> Outcome:
        """Lasts until the client goes away (cancellation) or the hub closes."""
        wanted = _wanted(call.params.get("notifications"))
        if isinstance(wanted, Failure):
            return wanted
        kinds, uris, ids = wanted
        if ids:  # several tell at once
            call = replace(call, emit=_in_turn(call.emit))
        methods = frozenset(_FILTERS[key][0] for key in kinds)
        subscriptions, followed = await self._subscribing.begin(call, uris), await self._following.begin(call, ids)
        ear = _Stream(call, methods, subscriptions, followed)
        try:
            with self._hub.subscribe(partial(self._concerns, call, methods)) as events, self._lists.watch(call.client):
                async with anyio.create_task_group() as group:
                    await self._reach_servers(ear, events, group)
                    await self._follow(ear, kinds, events, group)
                    group.cancel_scope.cancel()
        finally:
            ear.release()
        return Result({})

    async def _follow(self, ear: _Stream, kinds: list[str], events: Subscription, group: TaskGroup) -> None:
        call = ear.call
        honoured = [key for key in kinds if self._may_promise(call, key)]
        told = {_FILTERS[key][0] for key in honoured}
        await self._lists.recall(call.client)
        seen = await self._sight.look(call, told)
        ear.subscriptions.is_promised = True
        await call.emit(_acknowledgement(honoured, ear.subscriptions, ear.followed.ids))
        for id in ear.followed.ids:
            group.start_soon(ear.followed.follow, id)
        async for event in events:
            method = event.notification.method
            if ear.methods:
                self._reach_also(ear, event.server, group)
            if method in OF_A_SESSION:
                await call.emit(event.notification)
            elif method == UPDATED:
                for shown in ear.subscriptions.shown(event.server, event.notification.params):
                    await call.emit(shown)
            elif method in told:
                if await self._sight.look_again(call, event.server, method, seen):
                    await call.emit(Notification(method, {}))

    def _concerns(self, call: Call, methods: frozenset[str], event: Event) -> bool:
        """Scopes are asked anew each time: a server's era, and so its scope, may be known only after it is up."""
        if event.notification.method in OF_A_SESSION:
            session = call.client.session
            return session is not None and event.scope == session_scope(session) and self._may_see(call, event.server)
        if event.notification.method not in methods:
            return False
        return event.scope is None or event.scope == self._servers[event.server].scope(call.client)

    def _may_promise(self, call: Call, key: str) -> bool:
        if not self._transparent:
            return True
        snapshot = self._lists.current(next(iter(self._servers)), call.client)
        declared = discover_merge.relayed(snapshot.about["capabilities"]) if snapshot else discover_merge.MERGED
        return "listChanged" in declared.get(_FILTERS[key][1], {})

    # ------------------------------------------------------------ servers

    async def _reach_servers(self, ear: _Stream, events: Subscription, group: TaskGroup) -> None:
        """Returns when every server that is up is live, or in time for the acknowledgement. A legacy client waits for
        an answer to its subscription, as it would for that server's own."""
        live, subscribed = [], []
        for key, server in self._servers.items():
            if ear.methods and server.status != "disabled" and self._may_see(ear.call, key):
                is_up, reached = server.status == "up", self._reach_soon(ear, server, group)
                live += [reached] if is_up else []
        for key in ear.subscriptions.servers:
            settled = anyio.Event()
            group.start_soon(ear.subscriptions.pursue, key, partial(_put, events), ear.releases, settled)
            subscribed += [settled] if self._servers[key].status == "up" else []
        await _all(live, ACKNOWLEDGE_WITHIN)
        is_patient = ear.call.client.era == "legacy"
        await _all(subscribed, self._lists.settings.list_timeout if is_patient else ACKNOWLEDGE_WITHIN)

    def _reach_soon(self, ear: _Stream, server: McpServer, group: TaskGroup) -> anyio.Event:
        live = anyio.Event()
        ear.reached.add(server.key)
        group.start_soon(self._reach, ear, server, live)
        return live

    def _reach_also(self, ear: _Stream, key: str, group: TaskGroup) -> None:
        """A changed policy may show a client what it did not see before."""
        server = self._servers[key]
        if key not in ear.reached and server.status != "disabled" and self._may_see(ear.call, key):
            self._reach_soon(ear, server, group)

    async def _reach(self, ear: _Stream, server: McpServer, live: anyio.Event) -> None:
        """Has the server's changes reach the hub, as soon as it can be reached, until they are released."""
        client = ear.call.client
        delay = 0.0
        while True:
            await server.ready()
            try:
                ear.releases.append(await server.hold(client))
                break
            except ConnectionError:
                live.set()  # nobody waits for a server that is down
                delay = min(max(RETRY_FIRST, 2 * delay), RETRY_MOST)
                await anyio.sleep(delay)
        if delay:
            self._lists.outdate(server.key, server.scope(client))
        await self._lists.snapshot(server.key, client)
        live.set()


async def _all(events: list[anyio.Event], timeout: float) -> None:
    with anyio.move_on_after(timeout):
        for event in events:
            await event.wait()


def _put(events: Subscription, server: str, params: Json) -> None:
    """An update is for the subscriptions that it was asked for, and so passes no hub."""
    events.put(Event(server, None, Notification(UPDATED, params)))


def _in_turn(emit: Emit) -> Emit:
    lock = anyio.Lock()

    async def locked(notification: Notification) -> None:
        async with lock:
            await emit(notification)

    return locked


def _acknowledgement(honoured: list[str], subscriptions: Subscriptions, ids: list[str]) -> Notification:
    promised: Json = dict.fromkeys(honoured, True)
    if uris := subscriptions.honoured:
        promised["resourceSubscriptions"] = uris
    if ids:
        promised["taskIds"] = ids
    params: Json = {"notifications": promised}
    if refused := subscriptions.refused:
        errors = {uri: {"code": failure.code, "message": failure.message} for uri, failure in refused.items()}
        params["_meta"] = {REFUSED: errors}
    return Notification(ACKNOWLEDGED, params)


def _wanted(filter: Any) -> tuple[list[str], list[str], list[str]] | Failure:
    """The keys of the filter that ask for a kind of change, the resources, and the tasks."""
    if not isinstance(filter, dict):
        return Failure(INVALID_PARAMS, "notifications must be an object")
    for key in _FILTERS:
        if not isinstance(filter.get(key, False), bool):
            return Failure(INVALID_PARAMS, f"notifications.{key} must be a boolean")
    uris = _texts(filter, "resourceSubscriptions", "URIs")
    if isinstance(uris, Failure):
        return uris
    if len(uris) > MAX_RESOURCES:
        return Failure(INVALID_PARAMS, f"no more than {MAX_RESOURCES} resources in one subscription")
    ids = _texts(filter, "taskIds", "ids")
    if isinstance(ids, Failure):
        return ids
    if len(ids) > MAX_FOLLOWED:
        return Failure(INVALID_PARAMS, f"no more than {MAX_FOLLOWED} tasks in one subscription")
    return [key for key in _FILTERS if filter.get(key)], uris, ids


def _texts(filter: Json, key: str, what: str) -> list[str] | Failure:
    value = filter.get(key, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        return Failure(INVALID_PARAMS, f"notifications.{key} must be a list of {what}")
    return value
