"""What every way in shares: servers, lists, router, guards, wired into one Handler.

Functions of one room are handed to another here; nothing about MCP is decided.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from proxy import __version__, telemetry
from proxy.app import slices
from proxy.app.auditing import KEYS, note_policy, open_audit, pin_notes
from proxy.app.judging import Judging, judging
from proxy.audit.log import Audit
from proxy.call import Ask, Call, Client, Guard, Handler, Outcome, Publish, Result
from proxy.catalog import cursor
from proxy.catalog.uris import Rewriting
from proxy.config import Config, Rate
from proxy.downstream.server import DownstreamServer
from proxy.guards import chain
from proxy.guards.approve import approve
from proxy.guards.commit import commit
from proxy.guards.enforce import enforce
from proxy.guards.inspect import inspect
from proxy.guards.measure import measure
from proxy.guards.name import name, signed
from proxy.guards.quota import quota
from proxy.guards.record import record
from proxy.guards.seal import seal
from proxy.guards.throttle import throttle
from proxy.hub import Hub
from proxy.lists import Lists, Resolver
from proxy.lists.pinboard import Pinboard
from proxy.message import Json, Response
from proxy.metrics import Metrics
from proxy.policy.judge import Judge
from proxy.policy.outputs import Outputs
from proxy.policy.rates import Windows
from proxy.router import Cursors, Router
from proxy.store.keys import KeyRing, Sealer
from proxy.store.sqlite import SqliteStore

ME: Final[Json] = {"name": "sluice", "title": "Sluice", "version": __version__}
DATABASE: Final = "sluice.db"


@dataclass(frozen=True, slots=True)
class Core:
    """What every way in shares: one handler, and what stands behind it."""

    handler: Handler
    servers: Mapping[str, DownstreamServer]
    lists: Lists
    pins: Pinboard
    router: Router
    metrics: Metrics
    audit: Audit | None
    asking: "Asking"
    judging: Judging

    def end_session(self, session: str) -> None:
        for server in self.servers.values():
            server.end_session(session)

    def abandon(self, call_id: str) -> None:
        """A call has ended that waited for its client's answers."""
        for server in self.servers.values():
            server.abandon(call_id)

    def describe(self) -> list[Json]:
        return [server.describe() for server in self.servers.values()]

    async def ready(self) -> None:
        """Every server has come up or has failed to for the first time."""
        for server in self.servers.values():
            await server.ready()

    async def tools(self, client: Client) -> list[Json]:
        """The merged catalog of tools as that client sees it, all pages."""
        found: list[Json] = []
        params: Json = {}
        while True:
            outcome = await self.router(Call(client, "tools/list", params))
            if not isinstance(outcome, Result):
                return found
            found += outcome.value["tools"]
            if "nextCursor" not in outcome.value:
                return found
            params = {"cursor": outcome.value["nextCursor"]}


@asynccontextmanager
async def core(config: Config, transport: str = "http", file: Path | None = None) -> AsyncIterator[Core]:
    """Servers are dialled, everything is wired; closed in the opposite order. What `file` says later on is taken into
    use. Raises `PolicyError` where the policy cannot be."""
    async with AsyncExitStack() as stack:
        judges = await stack.enter_async_context(judging(config, file, transport))
        judge = judges.judge
        directory = Path(config.state.dir)
        ring = KeyRing.load(directory / KEYS, "seal")
        store = SqliteStore(directory / DATABASE)
        stack.push_async_callback(store.close)
        audit = await stack.enter_async_context(open_audit(config, transport, judge))
        hub, sealer = Hub(), Sealer(ring)
        announce, asking = _Later(), Asking()
        servers = {
            key: DownstreamServer(
                slices.server(key, server, config),
                publish=announce,
                client_info=ME,
                ask=partial(asking, key if server.prefix else ""),
            )
            for key, server in config.servers.items()
            if server.enabled
        }
        pins = Pinboard(slices.pins(config), store, pin_notes(audit))
        await pins.load()
        stack.push_async_callback(pins.flush)
        lists = Lists(slices.lists(config, servers), servers, hub, store, pins)
        announce.publish = lists.publish
        judges.ask(pins.has_accepted)
        pins.moved = partial(_pins_moved, judges, lists)
        stack.callback(lists.close)
        metrics = Metrics(
            version=__version__,
            servers=lambda: {key: server.status == "up" for key, server in servers.items()},
            classify=judge.classify,
        )
        metrics.watch(policy=judges.state)
        judges.on_change = partial(_reconsider, lists, metrics, audit)
        judges.on_config.append(lambda config: note_policy(audit, judge))
        note_policy(audit, judge)
        if audit is not None:
            metrics.watch(audit=audit.tally)
        router, handler = _wire(config, servers, lists, hub, sealer, store, metrics, audit, judge)
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        for key, server in servers.items():
            group.start_soon(telemetry.supervise, f"server {key}", server.run)
            stack.push_async_callback(server.aclose)
        group.start_soon(telemetry.supervise, "pins", pins.watch)
        if audit is not None:
            group.start_soon(telemetry.supervise, "audit retention", audit.run)
        stack.callback(hub.close)
        yield Core(handler, servers, lists, pins, router, metrics, audit, asking, judges)


def _pins_moved(judges: Judging, lists: Lists, server: str) -> None:
    lists.serve_anew(server)
    judges.forget_accepted(server)


def _reconsider(lists: Lists, metrics: Metrics, audit: Audit | None, server: str | None) -> None:
    """Rights may have changed: whoever remembers what follows from them looks again."""
    metrics.forget()
    if audit is not None:
        audit.composer.forget()
    lists.reconsider(server)


class Asking:
    """Servers ask outside of calls through whichever way in has the session; there is one, and it comes last."""

    through: Ask | None = None

    async def __call__(self, server: str, session: str, method: str, params: Json) -> Response | None:
        """`server` is the name to show, empty where Sluice stands for that server alone."""
        if self.through is None:
            return None
        shown = signed({"method": method, "params": params}, server)["params"] if server else params
        return await self.through(session, method, shown)


class _Later:
    """Servers publish to the lists, and the lists are made of the servers: the wire between them comes second."""

    publish: Publish

    def __call__(self, *args: object) -> None:
        self.publish(*args)  # type: ignore[arg-type]


def _wire(
    config: Config, servers: Mapping[str, DownstreamServer], lists: Lists, hub: Hub, sealer: Sealer,
    store: SqliteStore, metrics: Metrics, audit: Audit | None, judge: Judge,
) -> tuple[Router, Handler]:  # fmt: skip
    rewriting = {
        key: Rewriting(server.prefix, server.uris == "plain") if server.prefix else None
        for key, server in config.servers.items()
    }
    resolver = Resolver(lists, judge.may_list)
    cursors = Cursors(sealer.seal, sealer.unseal, cursor.generation(slices.generation(config)))
    router = Router(servers, lists, resolver, hub, cursors, judge.may_list, judge.may_see)
    handler = chain(
        {
            "measure": measure(metrics.call) if config.telemetry.metrics else None,
            "record": record(audit.outcome if audit else None),
            "throttle": _limited(throttle, config.limits.per_client),
            "name": name(resolver.resolve, rewriting.__getitem__),
            "seal": seal(sealer.seal, sealer.unseal),
            "enforce": enforce(judge.decide, judge.check_arguments, judge.explains),
            "quota": _limited(quota, config.limits.per_tool),
            "approve": approve(),
            "commit": commit(store.spend, audit.intent if audit else None),
            "inspect": inspect(strict, Outputs().check) if (strict := slices.results(config)) else None,
        },
        _timed(router, metrics) if config.telemetry.metrics else router,
    )
    return router, handler


def _timed(router: Router, metrics: Metrics) -> Handler:
    """What servers take is measured inside all guards: the difference to `measure` is our own share."""
    guard = measure(metrics.server_call)

    async def handle(call: Call) -> Outcome:
        return await router(call) if call.target is None else await guard(call, router)

    return handle


def _limited(guard: Callable[[Windows], Guard], limit: Rate | None) -> Guard | None:
    return guard(Windows(limit.amount, limit.seconds)) if limit else None
