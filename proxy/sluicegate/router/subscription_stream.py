"""subscriptions/listen: one client's stream of changes, made of many servers' notifications.

Knows servers by what they hold open and lists as snapshots. The stream has what changed for this client: a change of a
tool that it may not see is none. (2026-07-28 basic/patterns/subscriptions: the acknowledgement comes first, only
requested kinds follow, nothing is replayed.)

A subscription to a resource is judged as a read of it would be, when it begins and at each update, so that a changed
policy counts at once; nobody subscribes to one that needs a human's or a hook's yes (server/resources#subscriptions).
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from sluicegate.catalog import discover_merge
from sluicegate.catalog.uris import is_clean
from sluicegate.catalog_cache import RECONFIGURED, CatalogCache, Resolver
from sluicegate.hub import Event, Hub, Subscription
from sluicegate.protocol import tasks
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, Json, Notification
from sluicegate.protocol.methods import LISTS, OF_A_SESSION
from sluicegate.protocol.model import (
    Call,
    Client,
    Decision,
    Emit,
    Failure,
    McpServer,
    Outcome,
    Release,
    Result,
    Target,
    TaskNotification,
    Verdict,
    not_found,
    session_scope,
)
from sluicegate.router.task_subscriptions import MAX_FOLLOWED, FollowedTasks, TaskSubscriptions
from sluicegate.router.tasks import InspectState, ShownTask
from sluicegate.router.visible_lists import LONG, ListVersions, VisibleLists
from sluicegate.runtime.loop_budget import STEP, budget_of

Decide = Callable[[Call, Target], Decision]

UPDATED: Final = "notifications/resources/updated"
STRIDE: Final = 4  # URIs that are judged in a row; a long one counts as several
_STRIDE_SECONDS: Final = 0.005
"""What counts at most of a row: the rest was spent waiting for a list."""

_ASKED: Final = Failure(METHOD_NOT_FOUND, "Nobody subscribes to a resource whose reads are asked about")
_REFUSED: Final = "The server refused the subscription"
_TOO_LONG: Final = Failure(INTERNAL_ERROR, "The URIs of this client's subscriptions are too long together")
_ENDED: Final = Failure(INTERNAL_ERROR, "This stream has ended")
_NO_SUBSCRIPTIONS: Final = Failure(METHOD_NOT_FOUND, "The server of this resource has no subscriptions")

log = logging.getLogger(__name__)

MaySee = Callable[[Call, str], bool]
"""(call, server key): whether this client has any right on that server."""

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
REFUSED: Final = "dev.sluice/refused"
"""In `_meta` of the acknowledgement: why resources are not among those that are honoured, by URI."""
STREAM: Final = "dev.sluice/stream"
"""In `_meta` of the acknowledgement to a legacy session: by what its stream is changed. No client gets to see it."""
CHANGE: Final = "dev.sluice/change"
"""In the params of a call: the resource that it names is one more, or one less, of that stream."""
ACKNOWLEDGE_WITHIN: Final = 0.5
RETRY_FIRST: Final = 0.5
RETRY_MOST: Final = 30.0
MAX_RESOURCES: Final = 1_000
MAX_CHARS: Final = 8 * 1024 * 1024
"""Of the URIs that one principal subscribes to. Each of its streams and sessions has its own copies of them, also while
their server is down."""

# key in the filter -> (notification, capability)
_FILTERS: Final = {entry.filter: (entry.changed, entry.capability) for entry in LISTS.values()}

T = TypeVar("T")


async def _when_reached(
    server: McpServer, attempt: Callable[[], Awaitable[T]], settled: anyio.Event, is_configured: Callable[[], bool]
) -> tuple[T, bool] | None:
    """What the attempt gives as soon as the server can be reached, and whether it could not at first; None for a server
    that is no longer configured. Nobody waits for a server that is down: `settled` is set then."""
    delay = 0.0
    while True:
        await server.ready()
        try:
            return await attempt(), delay > 0
        except ConnectionError:
            if not is_configured():
                return None
            settled.set()
            delay = min(max(RETRY_FIRST, 2 * delay), RETRY_MOST)
            await anyio.sleep(delay)


# ---------------------------------------------------------------- resources


@dataclass(frozen=True, slots=True)
class Subscribing:
    """What is needed to subscribe, the same for all calls. `chars` has how long the URIs of each principal are."""

    servers: Mapping[str, McpServer]
    lists: CatalogCache
    resolver: Resolver
    decide: Decide
    inspected: InspectState
    current: Callable[[Client], Client | None]
    chars: Counter[str] = field(default_factory=Counter)

    def now(self, call: Call) -> Call | None:
        """The same with the rights that its client has by now; None where it has none any more."""
        client = self.current(call.client)
        return None if client is None else replace(call, client=client)

    async def begin(self, call: Call, uris: Sequence[str]) -> "Subscriptions":
        """Nothing is asked of a server yet."""
        made = Subscriptions(self, replace(call, method="resources/read", params={}))
        spend, since, row = call.trail.spend, perf_counter(), 0
        try:
            for uri in dict.fromkeys(uris):
                row += 1 + len(uri) // LONG
                if row >= STRIDE:
                    await (checkpoint() if spend is None else spend(max(since, perf_counter() - _STRIDE_SECONDS)))
                    since, row = perf_counter(), 0
                await made.add(uri)
        except BaseException:
            made.end()
            raise
        return made


class Subscriptions:
    """Those of one call. `refused` says why one that the client may read cannot be subscribed to; of others nothing
    is said, because what is denied looks like what does not exist. `is_promised` once the client was told what is
    honoured, so that it trusts in being told of updates."""

    __slots__ = ("_as_read", "_by_server", "_honoured", "_releases", "_shared", "is_promised", "refused")

    def __init__(self, shared: Subscribing, as_read: Call) -> None:
        self._shared = shared
        self._as_read = as_read
        self._by_server: dict[str, dict[str, list[str]]] = defaultdict(dict)  # server -> own URI -> as it was given
        self._honoured: dict[str, tuple[str, str]] = {}  # as it was given -> server, own URI
        self._releases: dict[tuple[str, str], Release] = {}  # server, own URI -> what ends that
        self.refused: dict[str, Failure] = {}
        self.is_promised = False

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self._by_server)

    @property
    def honoured(self) -> Collection[str]:
        return self._honoured.keys()

    async def add(self, uri: str) -> Target | None:
        """Returns the resource if it is one more to subscribe to at its server."""
        call = replace(self._as_read, params={"uri": uri})
        target = await self._shared.resolver.resolve(call)
        if target is None or not self._may_read(call, target):
            return None
        snapshot = self._shared.lists.current(target.server, call.client)
        if snapshot is not None and not snapshot.subscribes:
            self.refused[uri] = _NO_SUBSCRIPTIONS
            return None
        if uri not in self._honoured and not self._count(uri, 1):
            self.refused[uri] = _TOO_LONG
            return None
        given = self._by_server[target.server].setdefault(target.own, [])
        if uri not in self._honoured:
            given.append(uri)
        self._honoured[uri] = target.server, target.own
        return target if len(given) == 1 else None

    def _count(self, uri: str, times: int) -> bool:
        """Returns False where its client has no room for it."""
        chars, whose = self._shared.chars, self._as_read.client.principal
        if times > 0 and chars[whose] + len(uri) > MAX_CHARS:
            return False
        chars[whose] += times * len(uri)
        if not chars[whose]:
            del chars[whose]
        return True

    def _forget(self, uri: str) -> tuple[str, str] | None:
        watch = self._honoured.pop(uri, None)
        if watch is not None:
            self._count(uri, -1)
        return watch

    def drop(self, uri: str) -> None:
        if (watch := self._forget(uri)) is None:
            return
        key, own = watch
        given = self._by_server[key][own]
        given.remove(uri)
        if not given:
            del self._by_server[key][own]
            self._release(key, own)

    def _release(self, key: str, own: str) -> None:
        if (release := self._releases.pop((key, own), None)) is not None:
            release(own)

    def end(self) -> None:
        for key, own in tuple(self._releases):
            self._release(key, own)
        for uri in tuple(self._honoured):
            self._forget(uri)

    def _may_read(self, call: Call, target: Target) -> bool:
        decision = self._shared.decide(call, target)
        if decision.verdict is not Verdict.ALLOW:
            client = call.client.principal
            log.info("denied a subscription to %s for %s by %s", target.public, client, decision.rule)
        if decision.verdict is Verdict.ASK:  # its client may list and read it
            self.refused[call.params["uri"]] = _ASKED
        return decision.verdict is Verdict.ALLOW

    # ------------------------------------------------------------ at the servers

    async def pursue(
        self, key: str, notify: Callable[[str, Json], None], settled: anyio.Event, added: str | None = None
    ) -> None:
        """Subscribes at one server as soon as it can be reached, to all or to the one that was added; `settled` when
        that is done or has to wait."""
        server, own = self._shared.servers[key], tuple(self._by_server[key]) if added is None else (added,)
        subscribe = partial(server.subscribe, self._as_read.client, own, partial(notify, key))
        reached = await _when_reached(server, subscribe, settled, lambda: self._shared.servers.get(key) is server)
        if reached is None:  # it was removed: nobody waits for it
            settled.set()
            return
        (release, refused), was_down = reached
        is_late = self.is_promised if added is None else settled.is_set()
        for uri in own:
            self._release(key, uri)  # of a server whose place this one has taken
            self._releases[key, uri] = release
            if uri not in self._by_server[key]:  # it was dropped meanwhile
                self._release(key, uri)
        for uri, failure in refused.items():
            self._refuse(key, uri, failure)
        settled.set()
        if was_down or is_late:
            for uri in own:
                notify(key, {"uri": uri})  # it may have been updated meanwhile

    def _refuse(self, key: str, own: str, failure: Failure) -> None:
        for uri in self._by_server[key].pop(own, ()):
            self._forget(uri)
            if failure == not_found("resources/read", {"uri": own}):
                continue  # word for word what does not exist
            shown = self._shared.inspected(key, {"message": failure.message})
            self.refused[uri] = Failure(failure.code, shown.get("message", _REFUSED))

    # ------------------------------------------------------------ updates

    def shown(self, key: str, own: str) -> list[Notification]:
        """An update as this client may see it: under the names that it gave, or that a sub-resource has. What
        else its server wrote is left out."""
        uris, given = self._shared.lists.namings[key].uris, self._by_server[key].get(own)
        if given is None and (uris.is_of_another(own) or not is_clean(own)):
            return []
        public = uris.public(own)
        call = self._shared.now(replace(self._as_read, params={"uri": public}))
        target = Target(key, "res", own, public)
        if call is None or self._shared.decide(call, target).verdict is not Verdict.ALLOW:
            return []
        return [Notification(UPDATED, {"uri": uri}) for uri in given or (public,)]


# ---------------------------------------------------------------- streams


@dataclass(slots=True)
class _Stream:
    """One `subscriptions/listen` call: what its client asked for, and which servers it needs for that."""

    call: Call
    methods: frozenset[str]
    subscriptions: Subscriptions
    followed: FollowedTasks
    events: Subscription
    group: TaskGroup
    reached: dict[str, McpServer] = field(default_factory=dict)
    """Another server may have the key by now."""
    releases: list[Callable[[], None]] = field(default_factory=list)

    def release(self) -> None:
        self.subscriptions.end()
        for release in self.releases:
            release()


class SubscriptionStreams:
    def __init__(
        self, servers: Mapping[str, McpServer], lists: CatalogCache, resolver: Resolver, hub: Hub, views: VisibleLists,
        may_see: MaySee, decide: Decide, task_subscriptions: TaskSubscriptions, inspected: InspectState,
        current: Callable[[Client], Client | None], shown_task: ShownTask,
    ) -> None:  # fmt: skip
        self._servers = servers
        self._lists = lists
        self._hub = hub
        self._may_see = may_see
        self._versions = ListVersions(servers, lists, views, may_see)
        self._subscribing = Subscribing(servers, lists, resolver, decide, inspected, current)
        self._task_subscriptions = task_subscriptions
        self._shown_task = shown_task
        self._changeable: dict[str, _Stream] = {}
        self._numbers = count(1)

    async def listen(self, call: Call) -> Outcome:
        """Runs until the client cancels it or the hub closes."""
        if call.client.era == "legacy" and CHANGE in call.params:
            return await self._change(call, **call.params[CHANGE])
        wanted = _wanted(call.params.get("notifications"))
        if isinstance(wanted, Failure):
            return wanted
        kinds, uris, ids = wanted
        if ids:  # several tell at once
            call = replace(call, emit=_in_turn(call.emit))
        methods = frozenset(_FILTERS[key][0] for key in kinds)
        followed = await self._task_subscriptions.begin(call, ids)
        subscriptions = await self._subscribing.begin(call, uris)  # until `release`, with nothing to wait for before
        accept, session = partial(self._concerns, call, methods), call.client.session
        with self._hub.subscribe(accept, session) as events, self._lists.walks.watchers.watch(call.client):
            group = anyio.create_task_group()
            stream = _Stream(call, methods, subscriptions, followed, events, group)
            name = f"{next(self._numbers)}"
            try:
                async with group:
                    await self._reach_servers(stream)
                    try:
                        await self._follow(stream, kinds, name)
                    finally:
                        self._changeable.pop(name, None)
                    group.cancel_scope.cancel()
            finally:
                stream.release()
        return Result({})

    async def _change(self, call: Call, stream: str, wanted: bool) -> Outcome:
        """One resource more or less of a legacy session's stream: no other one of them is judged again."""
        changed, (uri,) = self._changeable.get(stream), call.params["notifications"]["resourceSubscriptions"]
        if changed is None or changed.call.client.session != call.client.session:
            return _ENDED
        subscriptions = changed.subscriptions
        subscriptions.refused.pop(uri, None)
        is_kept = False
        try:
            target = await subscriptions.add(uri) if wanted else None
            if self._changeable.get(stream) is not changed:  # it ended meanwhile, as for a client with other roles
                return _ENDED
            if target is not None:
                settled, since = self._pursue(changed, target.server, target.own), perf_counter()
                await _all([settled], self._lists.settings.list_timeout)
                call.trail.wait_seconds += perf_counter() - since
                settled.set()  # from now on its client trusts in being told
            is_kept = wanted
        finally:
            if not is_kept:
                subscriptions.drop(uri)
        if not wanted or uri in subscriptions.honoured:
            return Result({})
        return subscriptions.refused.pop(uri, None) or not_found("resources/read", {"uri": uri})

    async def _follow(self, stream: _Stream, kinds: list[str], name: str) -> None:
        call, events, group = stream.call, stream.events, stream.group
        honoured = [key for key in kinds if self._may_promise(call, key)]
        announced = {_FILTERS[key][0] for key in honoured}
        await self._lists.recall(call.client)
        seen = await self._versions.look(call, announced)
        stream.subscriptions.is_promised = True
        acknowledgement = _acknowledgement(honoured, stream.subscriptions, stream.followed.ids)
        if call.client.era == "legacy":
            self._changeable[name] = stream
            acknowledgement.params.setdefault("_meta", {})[STREAM] = name
        await call.emit(acknowledgement)
        for id in stream.followed.ids:
            group.start_soon(stream.followed.follow, id)
        took = 0.0
        async for event in events:
            method = event.notification.method
            self._reach_also(stream, event.server)
            if method == RECONFIGURED:
                self._pursue(stream, event.server)
            elif method in OF_A_SESSION:
                if (passed_on := self._as_shown(call, event.notification)) is not None:
                    await call.emit(replace(passed_on, source=event.server))
            elif method == UPDATED:
                since = perf_counter()
                news = stream.subscriptions.shown(event.server, event.notification.params["uri"])
                took += perf_counter() - since
                for shown in news:
                    await call.emit(replace(shown, source=event.server))
                if took > STEP:  # a server may write what takes long to judge
                    await budget_of(event.server).charge_and_rest(perf_counter() - took)
                    took = 0.0
            elif method in announced and await self._versions.look_again(call, event.server, method, seen):
                await call.emit(Notification(method, {}))

    def _concerns(self, call: Call, methods: frozenset[str], event: Event) -> bool:
        """Scopes are asked anew each time: a server's era, and so its scope, may be known only after it is up."""
        if event.notification.method in OF_A_SESSION:
            session = call.client.session
            if session is None or event.scope != session_scope(session):
                return False
            now = self._subscribing.now(call)
            return now is not None and self._may_see(now, event.server)
        if event.notification.method == RECONFIGURED:
            return True
        if event.notification.method not in methods:
            return False
        return event.scope is None or event.scope == self._servers[event.server].scope(call.client)

    def _as_shown(self, call: Call, notification: Notification) -> Notification | None:
        """What `tasks/get` would say of it; None where that would say nothing."""
        if not isinstance(notification, TaskNotification):
            return notification
        asked, target = self._subscribing.now(replace(call, method="tasks/get", params={})), notification.target
        if asked is None or target is None or self._subscribing.decide(asked, target).verdict is not Verdict.ALLOW:
            return None
        if notification.method != tasks.STATUS:
            return notification  # progress, which hooks do not judge
        return replace(notification, params=self._shown_task(asked.client, target, notification.params))

    def _may_promise(self, call: Call, key: str) -> bool:
        if not self._lists.settings.transparent:
            return True
        snapshot = next((self._lists.current(server, call.client) for server in self._servers), None)
        declared = discover_merge.relayed(snapshot.about["capabilities"]) if snapshot else discover_merge.MERGED
        return "listChanged" in declared.get(_FILTERS[key][1], {})

    # ------------------------------------------------------------ servers

    async def _reach_servers(self, stream: _Stream) -> None:
        """Returns when every server that is up is live, or in time for the acknowledgement. A legacy client waits for
        an answer to its subscription, as it would for that server's own."""
        live, subscribed = [], []
        for key, server in self._servers.items():
            if stream.methods and server.status != "disabled" and self._may_see(stream.call, key):
                is_up, reached = server.status == "up", self._reach_soon(stream, server)
                live += [reached] if is_up else []
        for key in stream.subscriptions.servers:
            settled = self._pursue(stream, key)
            subscribed += [settled] if self._servers[key].status == "up" else []
        await _all(live, ACKNOWLEDGE_WITHIN)
        is_patient = stream.call.client.era == "legacy"
        await _all(subscribed, self._lists.settings.list_timeout if is_patient else ACKNOWLEDGE_WITHIN)

    def _pursue(self, stream: _Stream, key: str, added: str | None = None) -> anyio.Event:
        """Subscribes to what the stream follows at this server, at its start and once the server is another one, or to
        what was added."""
        settled = anyio.Event()
        if key in stream.subscriptions.servers:
            notify = partial(_put_update, stream.events)
            stream.group.start_soon(stream.subscriptions.pursue, key, notify, settled, added)
        return settled

    def _reach_soon(self, stream: _Stream, server: McpServer) -> anyio.Event:
        live = anyio.Event()
        stream.reached[server.key] = server
        stream.group.start_soon(self._reach, stream, server, live)
        return live

    def _reach_also(self, stream: _Stream, key: str) -> None:
        """A changed policy may show a client what it did not see before, and a server may be new."""
        server = self._servers[key]
        if self._servers.get(key) is not server or stream.reached.get(key) is server:
            return
        if stream.methods and server.status != "disabled" and self._may_see(stream.call, key):
            self._reach_soon(stream, server)

    async def _reach(self, stream: _Stream, server: McpServer, live: anyio.Event) -> None:
        """Has the server's changes reach the hub, as soon as it can be reached, until they are released."""
        client = stream.call.client
        reached = await _when_reached(
            server, partial(server.hold, client), live, lambda: self._servers.get(server.key) is server
        )
        if reached is None:
            return
        release, was_down = reached
        stream.releases.append(release)
        if was_down:
            self._lists.walks.outdate(server.key, server.scope(client))
        await self._lists.snapshot(server.key, client)
        live.set()


async def _all(events: list[anyio.Event], timeout: float) -> None:
    with anyio.move_on_after(timeout):
        for event in events:
            await event.wait()


def _put_update(events: Subscription, server: str, params: Json) -> None:
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
    if uris := list(subscriptions.honoured):
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
