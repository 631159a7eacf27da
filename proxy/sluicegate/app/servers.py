"""Downstream servers, what they list, which definitions are pinned, and how servers reach clients outside of calls.

Functions of one room are handed to another here. What a task is, `router/tasks.py` decides.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import anyio

from sluicegate import __version__, telemetry
from sluicegate.app import metric_sources, settings
from sluicegate.app.approvals import current, redactor
from sluicegate.app.late import Late
from sluicegate.app.logins import may_log_in
from sluicegate.app.replicas import Replicas
from sluicegate.app.server_control import ServerControl, ServerTables
from sluicegate.app.services import PolicyService, Services
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.catalog import part_uris
from sluicegate.catalog_cache import CatalogCache, Resolver
from sluicegate.catalog_cache.definition_pins import DefinitionPins, PinEvent
from sluicegate.config import AnyServer, Config
from sluicegate.downstream.accounts import AccountServers, AnyDownstream
from sluicegate.downstream.large_answers import PROCESSES, LargeAnswers
from sluicegate.downstream.server import DownstreamServer
from sluicegate.downstream.settings import UNFINISHED, ServerSettings
from sluicegate.downstream.transport.http_transport import http_client
from sluicegate.guards.approval_tasks import ApprovalTaskDeps, ApprovalTasks, Job
from sluicegate.guards.inspect import InspectParams, inspect_params
from sluicegate.guards.name import signed
from sluicegate.hub import Event, Hub
from sluicegate.protocol import input_requests_server, reserved_keys, tasks
from sluicegate.protocol.jsonrpc import Json, Notification, Response
from sluicegate.protocol.methods import ABOUT_A_TASK
from sluicegate.protocol.model import (
    Ask,
    Asker,
    Call,
    Client,
    Failure,
    Handler,
    Outcome,
    Publish,
    Target,
    session_scope,
)
from sluicegate.router.large_results import LargeResults
from sluicegate.router.tasks import TaskRouter
from sluicegate.runtime.unfinished import Unfinished

log = logging.getLogger(__name__)


class Tasking:
    """What the servers' rooms need of the router, which is made of the servers, and so after them."""

    def __init__(self, inspected: InspectParams, hub: Hub, publish: Publish) -> None:
        self.inspected, self._hub, self._publish = inspected, hub, publish
        self.router = Late[TaskRouter]()
        self.large_results = Late[LargeResults]()
        self.start = Late[Callable[[Job], object]]()
        """Runs a job that nobody waits for."""
        self.may_still = Late[Callable[[Call], bool]](lambda call: True)
        """Whether the rights of now let a call be sent that has waited. Nobody calls before it is set."""

    def approval_tasks(
        self, queue: ApprovalQueue, current: Callable[[Client], Client | None], again: Handler,
        abandon: Callable[[str, str], None],
    ) -> ApprovalTasks:  # fmt: skip
        """Calls that wait for a person as tasks of our own."""
        router = self.router()
        deps = ApprovalTaskDeps(
            again=again, start=lambda job: self.start()(job), unfit=router.offers.unfit, may_hold=router.may_hold,
            keep=router.keep, hand_over=router.hand_over, forget=router.forget, about=router.about,
            announce=self.publish, current=current, abandon=abandon,
        )  # fmt: skip
        return ApprovalTasks(queue, deps)

    def publish(self, server: str, scope: str | None, notification: Notification) -> None:
        """Passes a server's notification on; one about a task is for the client that has this task alone."""
        if notification.method != tasks.STATUS:
            params = self.inspected(server, reserved_keys.without_hop(notification.params))
            if params is not None:
                self._publish(server, scope, replace(notification, params=params))
        elif (found := self.router().heard(server, notification)) is not None:
            self._hub.publish(Event(server, session_scope(found[0]), found[1]))

    def ask(self, server: str, ask: Ask) -> Ask:
        """A question outside of any call may be a task's: its client knows that by our id."""

        async def asked(session: str, method: str, params: Json) -> Response | None:
            shown = self.inspected(server, params)
            if shown is None:
                return None
            own = tasks.relation(params)
            if own is not None:
                shown = tasks.related(shown, self.router().public_id(server, own, session))
            return await ask(session, method, shown)

        return asked

    async def resolve(self, resolver: Resolver, call: Call) -> Target | Outcome | None:
        if call.method in ABOUT_A_TASK:
            return await self.router().resolve(call)
        if call.method == "resources/read" and part_uris.is_own(call.params.get("uri")):
            return await self.large_results().resolve(call, resolver.resolve)
        return await resolver.resolve(call) or resolver.unlisted(call)


CLIENT_WAIT: Final = 2.0  # seconds; a desktop client speaks as soon as it has started us
ME: Final[Json] = {"name": "sluice", "title": "Sluice", "version": __version__}


class ClientSessions(Protocol):
    """The sessions of the clients, as the HTTP listener or the streams on stdin and stdout have them."""

    async def ask(self, session: str, method: str, params: Json, asker: Asker) -> Response | None: ...

    def is_idle(self, session: str) -> bool:
        """Whether a session has no open stream and no open call."""
        ...


async def _ask_client(
    sessions: Late[ClientSessions | None], asker: Asker, session: str, method: str, params: Json
) -> Response | None:
    """Asks a client outside of a call."""
    return None if (there := sessions()) is None else await there.ask(session, method, params, asker)


def _allowed(services: Services, server: str, is_alone: bool, client: Client, ask: Json) -> Json | None:
    """A question outside of calls, by the rules of those in calls; its user sees the name of the server. None where it
    may not be asked, or not by a server on which this client has no right by now."""
    if not _may_see(services.judging, client, server):
        log.info("a question of a server without a right is not passed on", extra={"server": server})
        return None
    judged = input_requests_server.judged({"": ask}, client, services.own_pages)
    shown: Json | None = None if isinstance(judged, Failure) else signed(judged[""], server, is_alone)
    return shown


def _may_see(judges: PolicyService, client: Client, server: str) -> bool:
    """Whether a client has any right on a server by the rules of now."""
    now = current(judges, client)
    return now is not None and judges.judge.may_see(Call(now, "tools/list", {}), server)


@dataclass(frozen=True, slots=True)
class Backends:
    control: ServerControl
    servers: Mapping[str, AnyDownstream]
    lists: CatalogCache
    pins: DefinitionPins
    hub: Hub
    sessions: Late[ClientSessions | None]
    tasking: Tasking


@asynccontextmanager
async def open_backends(services: Services, transport: str) -> AsyncIterator[Backends]:
    """Servers are made here, and reached when they are run."""
    judges, metrics, config = services.judging, services.metrics, services.config
    hub, sessions, cache = Hub(), Late[ClientSessions | None](None), Late[CatalogCache]()
    tables = ServerTables()
    processes = anyio.Semaphore(PROCESSES)
    tasking = Tasking(inspect_params(tables.inspection), hub, lambda *notified: cache().publish(*notified))
    redact = redactor(config).written
    telemetry.redact_with(redact)

    def is_idle(session: str) -> bool:
        return (there := sessions()) is not None and there.is_idle(session)

    def one_server(about: ServerSettings, publish: Publish, client_wait: float) -> DownstreamServer:
        about = _with_share(about, services.replicas)
        http = http_client(about, services.egress)
        asker = Asker(about.key, partial(_allowed, services, about.key, about.is_mirrored))
        ask = tasking.ask(about.key, partial(_ask_client, sessions, asker))
        return DownstreamServer(
            about, http=http, publish=publish, client_info=ME, ask=ask, store=services.store,
            moved=lambda server: cache().moved(server), is_idle=is_idle, client_wait=client_wait,
        )  # fmt: skip

    def server(key: str, section: AnyServer, config: Config) -> AnyDownstream:
        about = settings.server(key, section, config, services.partition.of, redact, services.own_pages)
        paged = LargeAnswers(config.limits.paged_results, processes) if section.results_over == "page" else None
        unfinished = Unfinished(about.max_result * max(about.concurrency, UNFINISHED))
        about = replace(about, may_still=lambda call: tasking.may_still()(call), large=paged, unfinished=unfinished,
                        clock=services.clock)  # fmt: skip
        client_wait = CLIENT_WAIT if transport == "stdio" else 0.0
        if not may_log_in(section):
            return one_server(about, tasking.publish, client_wait)
        index = services.logins

        def for_login(login: str, publish: Publish) -> DownstreamServer:
            account = index.account(key, about.identity, login)
            return one_server(replace(about, account=account), publish, 0.0 if login else client_wait)

        return AccountServers(for_login, partial(index.find, key), index.abouts(key), tasking.publish,
                              lambda key: cache().moved(key), index.has_any(key))

    async with AsyncExitStack() as stack:
        while True:
            config = judges.config
            on_pin = partial(_pin_changed, services)
            pins = DefinitionPins(settings.pins(config), services.store, on_pin, watch=services.watch)
            await pins.books.load()
            if judges.config.servers == config.servers:  # else it was reloaded meanwhile
                break
        for key, why in config.disabled.items():
            log.warning("server is disabled", extra={"server": key, "why": why})
        control = ServerControl(
            services.config.keeping_servers_of(config), transport, server, tables, services.partition.switched_off,
            partial(_may_see, judges),
        )
        servers = control.servers
        if services.replicas is not None:
            services.replicas.shares.attach(control.shared)
        services.logins.on_change.set(control.take_logins)
        for key in servers:
            if notice := pins.notice(key):
                log.warning(notice, extra={"server": key, "hint": f"sluice pins diff {key}"})
        stack.push_async_callback(pins.books.aclose)
        lists = CatalogCache(
            settings.lists(control.config, servers, transport), servers, hub, services.store, pins,
            services.logins.lends, lambda client, server: judges.judge.may_see(Call(client, "tools/list", {}), server),
        )  # fmt: skip
        stack.callback(lists.close)
        cache.set(lists)
        control.attach(lists, pins)
        judges.on_config.insert(0, control.take)
        judges.on_config.insert(0, services.logins.configure)  # first: servers are made with it
        judges.later.prepared.set(control.prepared)
        pins.books.on_moved(judges.forget_accepted)  # after the lists, which are told first
        judges.later.has_accepted.set(pins.has_accepted)
        judges.later.on_change.set(partial(_reconsider, services, lists))
        metrics.watch(partial(metric_sources.servers, control))
        metrics.watch(partial(metric_sources.definitions, servers, lists, pins))
        yield Backends(control, servers, lists, pins, hub, sessions, tasking)


def _with_share(about: ServerSettings, replicas: Replicas | None) -> ServerSettings:
    return about if replicas is None else replace(about, concurrency=replicas.shares.of(about.key, about.concurrency))


def _pin_changed(services: Services, event: PinEvent) -> None:
    if event.what in ("withheld", "reported"):
        services.metrics.definition_changed(event.server, event.kind)
    services.notes.pin(event)


def _reconsider(services: Services, lists: CatalogCache, servers: Iterable[str] | None) -> None:
    """Rights may have changed: whoever remembers what follows from them looks again."""
    services.notes.policy()
    services.metrics.forget()
    if services.audit is not None:
        services.audit.composer.forget()
    lists.reconsider(servers)
