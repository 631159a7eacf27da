"""The innermost Handler: one call becomes a call to one server, or an answer made of many.

Knows servers as Handlers, lists as snapshots and rights as functions; no policy, listener or connection. What is
called arrives with its target resolved and its params in own names; what is listed leaves with public ones.
`pages` cuts the lists, `listen` serves subscriptions, `tasks` what is answered later.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Final

import anyio

from sluicegate.catalog import discover_merge
from sluicegate.catalog.snapshot import KINDS
from sluicegate.catalog_cache import CatalogCache, MayList, Resolver, ServerSnapshots, completeness
from sluicegate.hub import Hub
from sluicegate.protocol.jsonrpc import METHOD_NOT_FOUND, Json
from sluicegate.protocol.methods import ABOUT_A_TASK, JUDGED_BY_NAME, LISTS, ROOTS_CHANGED
from sluicegate.protocol.model import (
    Call,
    Client,
    Failure,
    Handler,
    McpServer,
    Outcome,
    Result,
    TaskStarted,
    not_found,
)
from sluicegate.protocol.revisions import SUPPORTED
from sluicegate.router.combined_lists import CombinedLists, Cursors
from sluicegate.router.large_results import DEFAULT_BOUNDS, LargeResultBounds, LargeResults
from sluicegate.router.subscription_stream import Decide, MaySee, SubscriptionStreams
from sluicegate.router.task_registry import MAX_TASKS, TaskRegistry
from sluicegate.router.task_subscriptions import TaskSubscriptions
from sluicegate.router.tasks import InspectState, ShownTask, TaskRouter, shown_whole, uninspected
from sluicegate.router.tool_search import WITHOUT, SearchDeps, ToolSearch
from sluicegate.router.visible_lists import PermissionKey, VisibleLists, no_permission_key
from sluicegate.store import Store

_LONG: Final = 0.5
"""Seconds. A list that takes longer has waited for a server, and rights may be others by then."""

__all__ = ["Cursors", "MayList", "MaySee", "Router"]



class Router:
    """`may_list` judges an item, `may_see` a server: they say the same as long as `permission_key` is equal. `decide`
    judges what is used, where hooks may refuse more. `cursors` seals what the pages of a list have in common. `current`
    gives a client with the rights of now."""

    def __init__(
        self, servers: Mapping[str, McpServer], lists: CatalogCache, resolver: Resolver, hub: Hub, cursors: Cursors,
        may_list: MayList, may_see: MaySee, decide: Decide, store: Store | None = None,
        permission_key: PermissionKey = no_permission_key, about_task: Handler | None = None,
        inspected: InspectState = uninspected, current: Callable[[Client], Client | None] = lambda client: client,
        mark: str = "", searching: SearchDeps = WITHOUT, large: LargeResultBounds = DEFAULT_BOUNDS,
        clock: Callable[[], float] = time.time, shown_task: ShownTask = shown_whole,
    ) -> None:  # fmt: skip
        self._servers, self._current = servers, current
        self._lists = lists
        self._may_see = may_see
        views = VisibleLists(may_list, permission_key, searching.is_pinned)
        self.search = ToolSearch(servers, lists, views, searching, permission_key)
        pages = CombinedLists(servers, lists, resolver, cursors, may_list, views, self.search, searching.tools)
        self._book = TaskRegistry(servers, store, clock, mark=mark)
        self.tasks = TaskRouter(servers, lists, self._book, may_list, may_see, cursors, inspected, shown_task)
        self.large_results = LargeResults(servers, store, large, clock)
        self.task_subscriptions = TaskSubscriptions(self.tasks, about_task)
        self._listener = SubscriptionStreams(
            servers, lists, resolver, hub, views, may_see, decide, self.task_subscriptions, inspected, current,
            shown_task,
        )  # fmt: skip
        self._handlers: Mapping[str, Handler] = {
            **dict.fromkeys(JUDGED_BY_NAME, self._relay),
            "server/discover": self._discover,
            "subscriptions/listen": self._listen,
            "resources/list": self._if_declared(pages.walked),
            **dict.fromkeys(KINDS, self._if_declared(pages.held)),
            ROOTS_CHANGED: self._notify,
            "tools/call": self._call_tool,
            "tasks/list": self.tasks.listed,
            **dict.fromkeys(ABOUT_A_TASK, self.tasks.about),
        }

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        """No coroutine: each of them is made, resumed at each wait of its call, and ended."""
        return self._handlers.get(call.method, _unknown)(call)

    async def _relay(self, call: Call) -> Outcome:
        if call.target is None:
            return not_found(call.method, call.params)
        if call.target.is_stored:
            return self._unavailable(call, call.target.server)
        if call.target.is_part:
            return await self.large_results.read(call)
        outcome = await self._servers[call.target.server](call)
        return outcome if call.trail.oversized is None else await self.large_results.keep(call, outcome)

    def _unavailable(self, call: Call, server: str) -> Outcome:
        """Nothing is called by a definition of which nobody knows whether the server still has it."""
        return self._servers[server].unavailable(call)

    async def _call_tool(self, call: Call) -> Outcome:
        # Step 9 of docs/explanation/performance.md
        if call.target is None:
            return not_found(call.method, call.params)
        if call.target.is_stored:
            return self._unavailable(call, call.target.server)
        if call.target.server in self._lists.replaced and not self._lists.has(call.client, call.target):
            return self._unavailable(call, call.target.server)
        server = self._servers[call.target.server]
        if "task" in call.params:
            return await self.tasks.begin(call, call.target, server)
        if self._book.count >= MAX_TASKS and (refused := await self.tasks.refuses(call)) is not None:
            return refused
        outcome = await server(call)
        if call.trail.oversized is not None:
            return await self.large_results.keep(call, outcome)
        return await self.tasks.keep(call, call.target, outcome) if isinstance(outcome, TaskStarted) else outcome

    async def _listen(self, call: Call) -> Outcome:
        return await self.tasks.objection(call) or await self._listener.listen(call)

    async def _notify(self, call: Call) -> Outcome:
        """What a legacy client tells all its servers: those that it is a legacy client to. For others it has no form
        (2026-07-28 client/roots: they ask when they need to know). One that hangs holds up nobody else."""
        async with anyio.create_task_group() as group:
            for key, server in self._servers.items():
                if server.status == "up" and server.era_for(call.client) == "legacy" and self._may_see(call, key):
                    group.start_soon(server, call)
        return Result({})

    async def _discover(self, call: Call) -> Outcome:
        snapshots = await self._lists.all(call.client, "greeting")
        seen = [(key, snapshot) for key, snapshot in snapshots if self._may_see(call, key)]
        ttls = [snapshot.ttl_ms if snapshot and self._servers[key].status == "up" else 0 for key, snapshot in seen]
        ttl_ms = min(ttls, default=0)
        if self._lists.settings.transparent:
            about = next((snapshot.about for _, snapshot in seen if snapshot), None)
            return Result(await self._with_tasks(call, snapshots, discover_merge.mirrored(about, SUPPORTED, ttl_ms)))
        abouts = [(key, snapshot.about) for key, snapshot in seen if snapshot and self._servers[key].shows(call.client)]
        subscribes = any(snapshot.subscribes for _, snapshot in seen if snapshot)  # also one that will come back
        lacking = ((key, completeness.missing(self._lists, key, found is not None)) for key, found in seen)
        missing = {key: why for key, why in lacking if why}
        value = discover_merge.merged(abouts, SUPPORTED, ttl_ms, subscribes, missing)
        return Result(await self._with_tasks(call, snapshots, value))

    async def _with_tasks(self, call: Call, snapshots: ServerSnapshots, value: Json) -> Json:
        """Tasks are declared to the one client whose servers have them in its own form."""
        declared = await self.tasks.offers.declared(call, snapshots)
        if not declared:
            return value
        capabilities: Json = {**value["capabilities"]}
        for name, parts in declared.items():
            capabilities[name] = {**capabilities.get(name, {}), **parts}
        return {**value, "capabilities": capabilities}

    def _if_declared(self, handler: Handler) -> Handler:
        """A list whose capability is not declared does not exist (conformance expects -32601); a merged front
        declares them all."""

        async def declared(call: Call) -> Outcome:
            if self._lists.settings.transparent:
                snapshots = await self._lists.all(call.client, "list")
                if any(one is not None and not one.declares(LISTS[call.method].capability) for _, one in snapshots):
                    return Failure(METHOD_NOT_FOUND, "Method not found")
            while True:
                began, outcome = monotonic(), await handler(call)
                client = self._current(call.client) if monotonic() - began > _LONG else call.client
                # One that cannot come in any more has no connection for the answer.
                if client is None or (client.roles, client.owner) == (call.client.roles, call.client.owner):
                    return outcome
                call = replace(call, client=client)

        return declared


async def _unknown(call: Call) -> Outcome:
    return Failure(METHOD_NOT_FOUND, "Method not found")
