"""A server that a command reaches by itself, to see whether it answers and what tools it lists."""

import logging
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from sluicegate import config
from sluicegate.app import settings
from sluicegate.app.logins import WithoutToken, may_log_in
from sluicegate.app.servers import ME
from sluicegate.app.services import open_egress
from sluicegate.audit.redact import Redactor
from sluicegate.catalog_cache.list_walk import walk
from sluicegate.downstream.server import DownstreamServer
from sluicegate.downstream.transport.http_transport import http_client
from sluicegate.protocol.model import Client

_ME: Final = Client("local")
_ENDS: Final = () if sys.platform == "win32" else (signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class ReachedServer:
    """How a server was reached, or was not. `tools` is None where it was not asked for them."""

    seconds: float = 0.0
    is_up: bool = False
    error: str = ""
    exit: str = ""
    stderr: list[str] = field(default_factory=list)
    noise: str = ""
    tools: list[dict[str, Any]] | None = None
    needs_login: bool = False
    hangs: bool = False
    is_starting: bool = False


@contextmanager
def quiet_log() -> Iterator[None]:
    """What becomes of servers is in what is told of them."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


async def reach_these(
    loaded: config.Config, limits: Mapping[str, float], done: Callable[[int], None]
) -> dict[str, ReachedServer]:
    """Starts or reaches servers of a config, all at once, and lists their tools. `limits` are the seconds that each has
    for both. Whatever ends this ends them, too."""
    reached: dict[str, ReachedServer] = {}
    received: list[signal.Signals] = []

    async def one(key: str) -> None:
        reached[key] = await reach(key, loaded.servers[key], loaded, limits[key])
        done(1)

    async def end(group: TaskGroup) -> None:
        with anyio.open_signal_receiver(*_ENDS) as signals:
            received.append(await anext(signals))
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as all_of_it:
        if _ENDS:
            all_of_it.start_soon(end, all_of_it)
        async with anyio.create_task_group() as group:
            for key in limits:
                group.start_soon(one, key)
        all_of_it.cancel_scope.cancel()
    if received:
        sys.exit(128 + received[0])
    return reached


async def reach(key: str, section: config.AnyServer, loaded: config.Config, limit_seconds: float) -> ReachedServer:
    redact = Redactor(secrets.token_bytes(32), loaded.audit.redact.keys, loaded.audit.redact.pointers).written
    about = settings.server(key, section, loaded, lambda number: number, redact)
    account = WithoutToken(key, "") if may_log_in(section) else None
    about = replace(about, lazy=False, timeout=limit_seconds, account=account)
    http = http_client(about, open_egress(loaded, None))
    server = DownstreamServer(about, publish=lambda *heard: None, client_info=ME, http=http)
    reached, began = ReachedServer(), time.monotonic()
    async with anyio.create_task_group() as group:
        group.start_soon(server.run)
        with anyio.move_on_after(limit_seconds) as limit:
            await server.ready(is_needed=True)
            reached.is_up = server.status == "up"
            if reached.is_up:
                listed = await walk(server, _ME, "tools/list", limit_seconds, settings.bounds(loaded))
                reached.tools = None if listed is None else [one for one in listed.items if isinstance(one, dict)]
        reached.seconds = time.monotonic() - began
        row = server.describe()
        reached.exit, reached.stderr, reached.noise = row["exit"], row["stderr"], row["noise"]
        reached.error, reached.needs_login = row["last_error"], server.life.login_needed is not None
        if limit.cancelled_caught:
            what = "it did not list its tools" if reached.is_up else "it did not answer"
            reached.hangs = not reached.is_up
            reached.error, reached.is_up = f"{what} within {limit_seconds:g} seconds", False
        elif reached.is_up and reached.tools is None:
            reached.error, reached.is_up = reached.error or "it refused to list its tools", False
        await server.aclose()
        group.cancel_scope.cancel()
    return reached
