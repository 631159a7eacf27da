"""Traces, wired: whether there are any, and who collects them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Final

import anyio
from opentelemetry.trace import SpanKind, Tracer

from sluicegate import __version__
from sluicegate.config import Config
from sluicegate.protocol.model import Call, Handler, Outcome
from sluicegate.tracing import spans

LAST_SPANS: Final = 3.0
"""Seconds that a collector has for the last spans: one that is away must not keep Sluice from ending."""


@asynccontextmanager
async def open_tracer(config: Config) -> AsyncIterator[Tracer | None]:
    """None where nobody collects: then a call pays nothing, and what a client says of its trace passes as it is."""
    endpoint = config.telemetry.otlp
    if not endpoint:
        yield None
        return
    # By name: the SDK is an extra, that the config's rules have looked for, and it takes 0.2 s to import.
    provider = import_module("sluicegate.otlp").provider(endpoint, __version__)
    try:
        yield provider.get_tracer("sluice", __version__)
    finally:
        with anyio.move_on_after(LAST_SPANS, shield=True):
            await anyio.to_thread.run_sync(provider.shutdown, abandon_on_cancel=True)


def towards_clients(tracer: Tracer | None, handler: Handler) -> Handler:
    return handler if tracer is None else _around(tracer, SpanKind.SERVER, handler)


def towards_servers(tracer: Tracer | None, handler: Handler) -> Handler:
    """Only what is about one server: a list may be answered without any."""
    if tracer is None:
        return handler
    spanned = _around(tracer, SpanKind.CLIENT, handler)

    async def handle(call: Call) -> Outcome:
        return await (handler(call) if call.target is None else spanned(call))

    return handle


def _around(tracer: Tracer, kind: SpanKind, inner: Handler) -> Handler:
    guard = spans(tracer, kind)

    async def handle(call: Call) -> Outcome:
        return await guard(call, inner)

    return handle
