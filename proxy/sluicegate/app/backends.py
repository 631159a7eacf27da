"""What is behind, wired: servers, what they list, what of it is pinned, and how they reach clients outside of calls."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from sluicegate import __version__, telemetry
from sluicegate.app import metric_sources, room_settings
from sluicegate.app.approval_wiring import redactor
from sluicegate.app.policy_service import PolicyService
from sluicegate.app.services import Services
from sluicegate.app.task_wiring import Tasking
from sluicegate.catalog_cache import CatalogCache
from sluicegate.catalog_cache.definition_pins import DefinitionPins, PinEvent
from sluicegate.config import AnyServer
from sluicegate.downstream.server import DownstreamServer
from sluicegate.downstream.transport.http_transport import http_client
from sluicegate.guards.inspect import outside_of_calls
from sluicegate.guards.name import signed
from sluicegate.hub import Hub
from sluicegate.protocol.jsonrpc import Json, Response
from sluicegate.protocol.model import Ask, Publish

log = logging.getLogger(__name__)

CLIENT_WAIT: Final = 2.0  # seconds; a desktop client speaks as soon as it has started us
ME: Final[Json] = {"name": "sluice", "title": "Sluice", "version": __version__}


class ClientQuestions:
    """Servers ask outside of calls through whichever way in has the session; there is one, and it comes last."""

    through: Ask | None = None
    is_idle: Callable[[str], bool] = staticmethod(lambda session: False)
    """Whether a session has no open stream and no open call. One on stdin and stdout is open while it lasts."""

    async def __call__(self, server: str, session: str, method: str, params: Json) -> Response | None:
        """`server` is the name to show."""
        if self.through is None:
            return None
        shown = signed({"method": method, "params": params}, server)["params"]
        return await self.through(session, method, shown)


class _Later:
    """Servers publish to the lists, and the lists are made of the servers: the wire between them comes second."""

    publish: Publish
    lists: CatalogCache

    def __call__(self, *args: object) -> None:
        self.publish(*args)  # type: ignore[arg-type]

    def moved(self, server: str) -> None:
        self.lists.moved(server)


@dataclass(frozen=True, slots=True)
class Backends:
    servers: Mapping[str, DownstreamServer]
    lists: CatalogCache
    pins: DefinitionPins
    hub: Hub
    asking: ClientQuestions
    tasking: Tasking


@asynccontextmanager
async def open_backends(services: Services, transport: str) -> AsyncIterator[Backends]:
    """Servers are made here, and reached when they are run."""
    config, judges, metrics = services.config, services.judging, services.metrics
    hub, announce, asking = Hub(), _Later(), ClientQuestions()
    tasking = Tasking(outside_of_calls(room_settings.results(config)))
    redact = redactor(config).written
    telemetry.redact_with(redact)

    def server(key: str, told: AnyServer) -> DownstreamServer:
        settings = room_settings.server(key, told, config, services.share.of, redact, services.own_pages)
        http, ask = http_client(settings, services.egress), tasking.ask(key, partial(asking, key))
        return DownstreamServer(
            settings, http=http, publish=announce, client_info=ME, ask=ask, store=services.store,
            moved=announce.moved, is_idle=lambda session: asking.is_idle(session),
            client_wait=CLIENT_WAIT if transport == "stdio" else 0.0,
        )  # fmt: skip

    for key, why in config.disabled.items():
        log.warning("server is disabled", extra={"server": key, "why": why})
    async with AsyncExitStack() as stack:
        servers = {key: server(key, told) for key, told in config.servers.items() if told.enabled}
        pins = DefinitionPins(room_settings.pins(config), services.store, partial(_pin_changed, services))
        await pins.load()
        for key in servers:
            if notice := pins.notice(key):
                log.warning(notice, extra={"server": key, "hint": f"sluice pins diff {key}"})
        stack.push_async_callback(pins.flush)
        lists = CatalogCache(room_settings.lists(config, servers, transport), servers, hub, services.store, pins)
        stack.callback(lists.close)
        announce.lists = lists
        announce.publish = tasking.publish(hub, lists.publish)
        judges.ask(pins.has_accepted)
        pins.moved = partial(_pins_moved, judges, lists)
        judges.on_change = partial(_reconsider, services, lists)
        metrics.watch(partial(metric_sources.servers, servers, config.disabled))
        metrics.watch(partial(metric_sources.definitions, servers, lists, pins))
        yield Backends(servers, lists, pins, hub, asking, tasking)


def _pins_moved(judges: PolicyService, lists: CatalogCache, server: str) -> None:
    lists.serve_anew(server)
    judges.forget_accepted(server)


def _pin_changed(services: Services, event: PinEvent) -> None:
    if event.what in ("withheld", "reported"):
        services.metrics.definition_changed(event.server, event.kind)
    services.notes.pin(event)


def _reconsider(services: Services, lists: CatalogCache, server: str | None) -> None:
    """Rights may have changed: whoever remembers what follows from them looks again."""
    services.notes.policy()
    services.metrics.forget()
    if services.audit is not None:
        services.audit.composer.forget()
    lists.reconsider(server)
