"""Serving over HTTP: the port for clients, the admin port beside it, and the life from greeting to drain."""

import gc
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from proxy import __version__, admin, telemetry
from proxy.admin.approvals import Approvals
from proxy.admin.page import Page, link
from proxy.app import observing, slices
from proxy.app.admitting import bearer_of, identities
from proxy.app.approving import people
from proxy.app.core import ME, Core, core
from proxy.call import Client
from proxy.config import Address, Config
from proxy.downstream.server import DownstreamServer
from proxy.listen import settings as listening
from proxy.listen.asgi import asgi
from proxy.listen.identity import Identity, Principal
from proxy.listen.listener import Listener
from proxy.listen.serve import HttpServer as Port
from proxy.message import Json
from proxy.store.keys import new_operator_token

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Running:
    """A Sluice that serves over HTTP. `endpoint` and `admin` are URLs."""

    endpoint: str
    admin: str
    core: Core
    stop: Callable[[], None]
    """Ends it at once. Leaving the context lets open calls end first, within the drain time."""

    def servers(self) -> list[Json]:
        return self.core.describe()

    async def ready(self) -> None:
        await self.core.ready()


@asynccontextmanager
async def running(config: Config, file: Path | None = None) -> AsyncIterator[Running]:
    """A Sluice that listens on both its ports. Raises `OSError` where a port cannot be had, `PolicyError` where the
    policy cannot be used. What `file` says later on is taken into use."""
    async with AsyncExitStack() as stack:
        token = new_operator_token(Path(config.state.dir))
        inner = await stack.enter_async_context(core(config, file=file))
        clients, operators = identities(inner)
        refused = inner.services.audit.identity_failure if inner.services.audit is not None else None
        listener = Listener(inner.handler, ME, clients, slices.listening(config), inner.end_session, refused,
                            on_abandoned=inner.abandon, on_sweep=inner.keep)  # fmt: skip
        inner.behind.asking.through = listener.ask
        inner.services.metrics.watch(partial(observing.listener, listener))
        wire = listening.Wire(headers=config.limits.headers)
        port = Port(listener, config.listen.mcp.host, config.listen.mcp.port, wire, config.drain)
        backstage = _admin_port(config, inner, operators, token, refused, port)
        port.bind()
        backstage.bind()
        if slices.has_reachable_pages(config):
            inner.pages.link = partial(link, inner.services.sealer.seal, _url(config.listen.admin, backstage.port))
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        group.start_soon(telemetry.supervise, "sessions", listener.run)
        await group.start(backstage.run)
        # Left, not cancelled: this group ends when the last open call has, or the drain time is over.
        calls = await stack.enter_async_context(anyio.create_task_group())
        await calls.start(port.run)
        # The other way round: not ready, and nothing is accepted any more; then streams end, and who waits is answered.
        stack.callback(inner.desk.release)
        stack.callback(listener.close)
        stack.callback(port.stop)
        urls = _url(config.listen.mcp, port.port) + "/mcp", _url(config.listen.admin, backstage.port)
        yield Running(*urls, inner, partial(port.stop, now=True))


def _url(address: Address, port: int) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"http://{host}:{port}"


def _admin_port(
    config: Config, inner: Core, identity: Identity, token: str, refused: Callable[[str, str], None] | None, front: Port
) -> Port:
    judges = inner.services.judging
    page = Page(inner.desk, judges.client_of, inner.services.sealer.unseal)

    async def list_tools(principal: str) -> list[Json] | None:
        client = judges.client_of(principal)
        return None if client is None else await inner.tools(client)

    def principal_of(token: str) -> str | None:
        found = identity.identify(_bearer(token), True, None)
        return None if found is None else found.name

    async def admit(token: str) -> tuple[str | None, str]:
        found = await identity.verify(_bearer(token))
        return (found.name, "") if isinstance(found, Principal) else (None, found.reason)

    def operator(principal: str) -> Client | None:
        return bearer_of(identity, principal) or judges.client_of(principal)

    def may(principal: str, area: str, act: str) -> bool:
        client = operator(principal)
        return client is not None and judges.judge.may_administer(client, area, act)

    application = admin.application(
        admin.Settings(token, frozenset(config.listen.allowed_hosts), frozenset(config.listen.allowed_origins)),
        admin.Sources(
            ready=partial(_unready, config, inner, front),
            metrics=inner.services.metrics.scrape if config.telemetry.metrics else None,
            describe_servers=inner.describe,
            list_tools=list_tools,
            pins=inner.behind.pins,
            approvals=Approvals(inner.desk, people(judges, inner.services.audit, operator), inner.desk.book.store),
            page=page,
            principal_of=principal_of,
            admit=admit,
            may=may,
            denied=inner.services.notes.denied,
            refused=refused,
            audit=inner.services.audit,
            notes=judges.notes,
        ),
    )
    return Port(asgi(application), config.listen.admin.host, config.listen.admin.port, drain=5.0)


def _bearer(token: str) -> bytes:
    return b"Bearer " + token.encode("utf-8", "surrogatepass")


def _unready(config: Config, inner: Core, front: Port) -> list[str]:
    """Why Sluice is not ready: it is about to end, nothing can be decided, calls could not be recorded, or a server
    that is `required` is not up. Others may come when they can."""
    unwritable = inner.services.audit.problem if inner.services.audit is not None else None
    inner.services.judging.look()
    reasons = ["Sluice is stopping: open calls may end"] * front.is_stopping
    reasons += [inner.services.judging.judge.problem] * (inner.services.judging.judge.problem != "")
    reasons += [f"the audit log cannot be written: {unwritable}"] * (unwritable is not None)
    return reasons + [
        f"server {key} is {server.status}"
        for key, server in inner.behind.servers.items()
        if config.servers[key].required and server.status != "up"
    ]


async def serve(config: Config, *, announce: Announce, file: Path | None = None) -> None:
    """Until SIGTERM or SIGINT; open calls may end then, and a second signal ends it at once. SIGHUP has `file` read
    again. Raises `KeyboardInterrupt` at the end if it was SIGINT."""
    telemetry.configure(config.log.level, config.log.format)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as group:
            async with running(config, file) as sluice:
                group.start_soon(_reload_at_hangup, sluice)
                for line in _greeting(config, sluice):
                    announce(line)
                group.start_soon(_announce_servers, sluice, announce)
                received = await anext(signals)
                sluice.core.services.notes.act("drain", by=received.name)
                announce(f"stopping: open calls have {config.drain:g}s to end; a second signal ends them now")
                group.start_soon(_stop_at_next, signals, sluice)
            group.cancel_scope.cancel()
    if received == signal.SIGINT:
        raise KeyboardInterrupt


async def _reload_at_hangup(sluice: Running) -> None:
    if sys.platform == "win32":
        return
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            sluice.core.services.notes.act("reload", by="SIGHUP")
            sluice.core.services.judging.reload.ask()


async def _stop_at_next(signals: AsyncIterator[signal.Signals], sluice: Running) -> None:
    await anext(signals)
    sluice.stop()


def _greeting(config: Config, sluice: Running) -> list[str]:
    lines = [
        f"Sluice {__version__}",
        f"  endpoint  {sluice.endpoint}",
        f"  admin     {sluice.admin}  (/livez /readyz{' /metrics' if config.telemetry.metrics else ''})",
    ]
    judge = sluice.core.services.judging.judge
    if config.policy.use == "open":
        lines.append("  POLICY    open: every client may use everything that is not on a deny list (development only)")
    elif judge.law.is_shadow:
        lines.append(f"  POLICY    shadow mode until {config.policy.until}: what it denies is let through and logged")
    else:
        lines.append(f"  policy    {config.policy.use or 'your own'}, revision {judge.revision()}")
    return lines


async def _announce_servers(sluice: Running, announce: Announce) -> None:
    """One line per server, as each comes up or fails."""
    started = time.monotonic()

    async def one(server: DownstreamServer) -> None:
        await server.ready()
        told = server.describe()
        how = f"{'/'.join(told['eras']) or '-':<13} {time.monotonic() - started:4.1f}s"
        announce(f"  server    {server.key:<20} {server.status:<9} {how}  {told['last_error']}".rstrip())

    async with anyio.create_task_group() as group:
        for server in sluice.core.behind.servers.values():
            group.start_soon(one, server)
    _calm_collector()


def _calm_collector() -> None:
    """What lives as long as the process is no longer walked, and the rest less often: a call makes no cycles. The
    defaults cost 15 us of CPU a call, of about 200."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
