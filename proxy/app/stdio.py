"""Serving one client on stdin and stdout."""

from functools import partial
from pathlib import Path

from proxy import telemetry
from proxy.app.core import ME, core
from proxy.call import Client
from proxy.config import Config
from proxy.listen import pipes, stdio


async def serve_stdio(config: Config, *, file: Path | None = None) -> None:
    """One client on stdin and stdout, until it closes stdin."""
    telemetry.configure(config.log.level, config.log.format)
    limits = config.limits
    # The streams first: from here on whatever is printed goes to stderr, and stdout carries MCP alone.
    async with pipes.standard_streams() as (reader, writer), core(config, "stdio", file) as inner:
        await stdio.serve(
            inner.handler, reader=reader, writer=writer, client=Client("local", config.clients.local.roles),
            server_info=ME, on_session_end=inner.end_session, max_line=limits.max_request,
            max_depth=limits.max_depth, max_batch=limits.max_batch, on_abandoned=inner.abandon,
            offer_ask=partial(setattr, inner.asking, "through"),
        )  # fmt: skip
