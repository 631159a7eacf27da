"""What every way in shares: services, what is behind, people who are asked, and the one Handler made of them.

Everything is opened in an order and closed in the opposite one; nothing about MCP is decided.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

import anyio

from sluicegate import telemetry
from sluicegate.app import approvals, metric_sources, settings
from sluicegate.app.approvals import PageLink, open_queue
from sluicegate.app.late import Late
from sluicegate.app.partition import WHOLE, Partition
from sluicegate.app.pipeline import NO_HOOKS, pipeline
from sluicegate.app.servers import ME, Backends, open_backends
from sluicegate.app.services import Services, open_services
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.approval.webhook import Receiver, Webhooks
from sluicegate.catalog_cache import completeness
from sluicegate.config import Config
from sluicegate.downstream.transport.process import memory
from sluicegate.downstream.transport.stray_processes import end_forsaken
from sluicegate.policy.files import LoadedPolicy
from sluicegate.policy.rates import Windows
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Call, Client, Handler, Result
from sluicegate.router import Router

__all__ = ["ME", "Core", "core"]

# By name: most configs have no fleet, and no hooks.
SHARED_RATES: Final = "sluicegate.app.shared_rates"
_HOOKS: Final = "sluicegate.app.hooks"


@dataclass(frozen=True, slots=True)
class Core:
    """One handler, and what stands behind it."""

    handler: Handler
    router: Router
    services: Services
    behind: Backends
    queue: ApprovalQueue
    page_link: Late[PageLink]
    until_free: Callable[[str], float]

    def end_session(self, session: str) -> None:
        self.queue.grants.end_session(session)
        self.behind.control.end_session(session)

    def abandon(self, call_id: str) -> None:
        """A call has ended that waited for its client's answers."""
        for server in self.behind.servers.values():
            server.abandon(call_id)

    def keep(self, holders: Container[str]) -> None:
        """Nobody else can come in any more, so nobody waits for them."""
        for server in self.behind.servers.values():
            server.retain(holders)

    def describe(self) -> list[Json]:
        """A row for each server that is enabled, also for those that lack a variable."""
        off, pins = self.behind.control.disabled.items(), self.behind.pins
        rows: list[Json] = [{"key": key, "transport": "-", "status": "disabled", "last_error": why} for key, why in off]
        lists, servers = self.behind.lists, tuple(self.behind.servers.items())
        sections = self.behind.control.config.servers
        more = {
            key: {
                "pins": pins.notice(key), "lists": completeness.describe(lists, key),
                **({"required": True} if sections[key].required else {}),
            }
            for key, _ in servers
        }  # fmt: skip
        return [server.describe() | more[key] for key, server in servers] + rows

    async def measured(self) -> list[Json]:
        """`describe`, and the memory of each server's processes: they are looked up in a thread, file by file."""
        rows = self.describe()
        used = await anyio.to_thread.run_sync(lambda: [memory(row.get("pids", ())) for row in rows])
        return [row | ({"memory": size} if "pids" in row else {}) for row, size in zip(rows, used, strict=True)]

    async def ready(self) -> None:
        """Waits until each server has come up, or has failed to, for the first time."""
        for server in tuple(self.behind.servers.values()):
            await server.ready()

    async def listed(self, client: Client, method: str) -> list[Json]:
        """A merged list as that client sees it, all pages, after each server has said what it has: pins are made of
        that, also of what this client may not see."""
        await self.behind.lists.look(client)
        found: list[Json] = []
        params: Json = {}
        while True:
            outcome = await self.router(Call(client, method, params))
            if not isinstance(outcome, Result):
                return found
            found += outcome.value[LISTS[method].key]
            if "nextCursor" not in outcome.value:
                return found
            params = {"cursor": outcome.value["nextCursor"]}

    async def resources(self, client: Client, cursor: str) -> Json | None:
        """One page of the merged resources as that client sees them, and its templates beside the first page. The list
        may have no end, and is held nowhere whole. None: the cursor is not one of this list."""
        outcome = await self.router(Call(client, "resources/list", {"cursor": cursor} if cursor else {}))
        if not isinstance(outcome, Result) and cursor:
            return None
        value = outcome.value if isinstance(outcome, Result) else {"resources": []}
        templates = [] if cursor else await self.listed(client, "resources/templates/list")
        next_page = {"next": value["nextCursor"]} if "nextCursor" in value else {}
        return {"resources": value["resources"], "templates": templates, **next_page}

    def output(self, key: str, after: str) -> Json | None:
        """What a server wrote to stderr after a position; None if there is no such server."""
        if key in self.behind.control.servers:
            return self.behind.servers[key].output(after)
        off = self.behind.control.disabled.get(key)
        about = {"server": key, "transport": "-", "status": "disabled", "exit": "", "lines": [], "position": ""}
        return None if off is None else {**about, "last_error": off}


@asynccontextmanager
async def core(
    config: Config, transport: str = "http", file: Path | None = None, partition: Partition = WHOLE,
    given_policy: LoadedPolicy | None = None,
) -> AsyncIterator[Core]:  # fmt: skip
    """Servers are dialled, everything is wired; closed in the opposite order. What `file` says later on is taken into
    use, unless it is a `given_policy`: then what we are told is. Raises `PolicyError` where the policy cannot be."""
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(open_services(config, file, transport, partition, given_policy))
        behind = await stack.enter_async_context(open_backends(services, transport))
        queue = open_queue(
            config, services.judging, services.store, services.audit, partition, services.clock, services.watch
        )
        page_link = Late[PageLink](lambda approval: "")
        services.metrics.watch(partial(approvals.samples, queue))
        queue.watchers.append(partial(approvals.time_waits, services.metrics.waited, services.clock))
        opened = import_module(_HOOKS).open_hooks(services) if config.hooks else nullcontext(NO_HOOKS)
        hooks = await stack.enter_async_context(opened)
        windows = _windows(services)
        router, handler, until_free = pipeline(services, behind, queue, page_link, windows, hooks)
        made = Core(handler, router, services, behind, queue, page_link, until_free)
        await queue.refresh()
        queue.reconsider()  # the file may have changed while nothing ran
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        stack.push_async_callback(behind.control.tasks.aclose)
        group.start_soon(anyio.to_thread.run_sync, end_forsaken)
        behind.tasking.start.set(lambda job: group.start_soon(telemetry.supervise, "held call", job))
        for name, run in _tasks(made):
            group.start_soon(telemetry.supervise, name, run)
        if windows and services.replicas is not None:
            holder = services.replicas.mark
            settle = partial(import_module(SHARED_RATES).settle, services.store, holder, windows)
            group.start_soon(telemetry.supervise, "rates", settle)
        stack.callback(behind.hub.close)
        yield made


def _windows(services: Services) -> dict[str, Windows]:
    """Those that the config limits, by scope."""
    limits = {"client": services.config.limits.per_client, "tool": services.config.limits.per_tool}
    rates = {scope: limit for scope, limit in limits.items() if limit is not None}
    if services.replicas is None:
        return {scope: Windows(rate.amount, rate.seconds) for scope, rate in rates.items()}
    shared: dict[str, Windows] = import_module(SHARED_RATES).shared(rates, services.replicas)  # few have a fleet
    return shared


def _tasks(made: Core) -> Iterator[tuple[str, Callable[[], Awaitable[object]]]]:
    services, behind = made.services, made.behind
    yield "servers", behind.control.tasks.run
    yield "approvals", made.queue.run
    judges = services.judging

    def receivers() -> tuple[Receiver, ...]:
        roles_of = judges.judge.roles_by_policy
        return settings.receivers(judges.config, judges.reload.transport, judges.client_of, roles_of)

    yield "webhooks", Webhooks(made.queue, receivers).run
    yield "pins", behind.pins.books.watch
    yield "loop", partial(metric_sources.watch_loop, services.metrics.lagged)
    if services.audit is not None:
        yield "audit retention", services.audit.run
