"""Spans of calls, as OpenTelemetry's conventions for MCP have them: one towards the client, and in it one towards the
server. They go to an OTLP collector over HTTP. Needs the extra `otel`, so it is imported only where one is configured.

The context comes from the call's `_meta` and goes on in the `_meta` of what is inside (`traceparent`, `tracestate`;
SEP-414), so that the audit log and the server see the same trace. `baggage` passes as it is. Spans are sent in batches
by a thread of the SDK's; what a collector does not take is dropped there and slows nobody.
"""

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from http.cookiejar import DefaultCookiePolicy
from importlib import import_module
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sluicegate.outcomes import label
from sluicegate.protocol.model import Call, Failure, Guard, Handler, Outcome, Target

MAX_TEXT: Final = 200
MAX_ANSWER: Final = 64 * 1024
_USUAL: Final = frozenset({"spans", "unknown", *(status.phrase for status in HTTPStatus)})
_CONTEXT: Final = TraceContextTextMapPropagator()
_NAMED: Final = {"tool": "gen_ai.tool.name", "prompt": "gen_ai.prompt.name", "res": "mcp.resource.uri"}


def provider(endpoint: str, version: str) -> TracerProvider:
    """`endpoint` is the collector's base URL, as in OTEL_EXPORTER_OTLP_ENDPOINT. `shutdown` sends what is left, in a
    worker thread. Headers, sampling and batching follow the OTEL_* variables of the environment."""
    resource = Resource.create({"service.name": "sluice", "service.version": version})
    made = TracerProvider(resource=resource, shutdown_on_exit=False)  # whoever opened it does
    logging.getLogger(OTLPSpanExporter.__module__).addFilter(_without_foreign_words)
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", session=_session())
    made.add_span_processor(BatchSpanProcessor(exporter))
    return made


def _session() -> Any:
    """What a collector answers is read as far as its connection needs it: all of it could fill memory. None where the
    environment names a provider of credentials, which makes its own."""
    if any(name.startswith("OTEL_PYTHON_EXPORTER_OTLP") and name.endswith("_PROVIDER") for name in os.environ):
        return None
    session = import_module("requests").Session()  # the exporter's own library
    session.hooks["response"].append(_cut)
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    return session


def _without_foreign_words(record: logging.LogRecord) -> bool:
    """Removes a collector's own words from a log record: its reason phrase, and errors that repeat what it sent."""
    record.args = tuple(map(_usual, record.args)) if isinstance(record.args, tuple) else None
    return True


def _usual(arg: object) -> object:
    if isinstance(arg, Exception):
        return type(arg).__name__
    return "words of its own" if isinstance(arg, str) and arg not in _USUAL else arg


def _cut(response: Any, **_: Any) -> None:
    response._content = response.raw.read(MAX_ANSWER, decode_content=False)
    response._content_consumed = True
    if len(response._content) == MAX_ANSWER:
        response.raw.close()  # `close` would give the connection back, with the rest of the answer in it


def guards(provider: TracerProvider, version: str) -> tuple[Guard, Guard]:
    """Spans towards clients, outside of all guards, and towards servers, inside of them."""
    tracer = provider.get_tracer("sluice", version)
    return spans(tracer, SpanKind.SERVER), spans(tracer, SpanKind.CLIENT)


def spans(tracer: Tracer, kind: SpanKind) -> Guard:
    """A span around whatever is inside: `SpanKind.SERVER` outside of all guards, `SpanKind.CLIENT` at the router."""

    async def guard(call: Call, inner: Handler) -> Outcome:
        # What a client says of its trace; anything but text is nothing.
        named = {key: value for key in ("traceparent", "tracestate") if isinstance(value := call.meta.get(key), str)}
        parent = _CONTEXT.extract(named)
        span = tracer.start_span(call.method, context=parent, kind=kind)
        carrier: dict[str, str] = {}
        _CONTEXT.inject(carrier, trace.set_span_in_context(span, parent))
        outcome: Outcome | None = None
        try:
            outcome = await inner(replace(call, meta={**call.meta, **carrier}))
            return outcome
        finally:
            _finish(span, kind, call, outcome)
            span.end()

    return guard


def _finish(span: Span, kind: SpanKind, call: Call, outcome: Outcome | None) -> None:
    """Names are known at the end only; those that no list has are a client's inventions, and not repeated."""
    if not span.is_recording():
        return
    target = call.target or call.trail.target
    span.set_attributes(dict(_attributes(kind, call, target)))
    if target is not None and target.kind != "res":
        span.update_name(f"{call.method} {_name(kind, target)}")
    word, _ = label(outcome, call)
    if word != "ok":
        span.set_attribute("error.type", word)
        span.set_status(StatusCode.ERROR)
    if isinstance(outcome, Failure):
        span.set_attribute("rpc.response.status_code", str(outcome.code))


def _attributes(kind: SpanKind, call: Call, target: Target | None) -> Iterator[tuple[str, str]]:
    yield "mcp.method.name", call.method
    yield "sluice.call", call.trail.id
    if kind is SpanKind.SERVER:
        yield "mcp.protocol.version", call.client.revision
        yield "sluice.client", call.client.principal[:MAX_TEXT]
    if call.method == "tools/call":
        yield "gen_ai.operation.name", "execute_tool"
    if target is None:
        return
    yield "sluice.server", target.server
    if target.item is not None:
        yield _NAMED[target.kind], _name(kind, target)[:MAX_TEXT]
    if kind is SpanKind.SERVER and call.trail.decisions:
        yield "sluice.rule", call.trail.decisions[-1].rule[:MAX_TEXT]


def _name(kind: SpanKind, target: Target) -> str:
    """The public name towards clients, the own one towards servers."""
    if target.item is None:
        return "_other"
    return target.public if kind is SpanKind.SERVER else target.own
