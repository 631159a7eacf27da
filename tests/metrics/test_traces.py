"""One trace through a client, Sluice and a server, as a collector gets it over OTLP."""

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.sluice_process import sluice
from e2e.wire import META, Client
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from waiting import until_so

Json = dict[str, Any]
TESTS = Path(__file__).parents[1]
MUCH = 256 * 1024 * 1024
SECRET = "sk-ant-api03-" + "s3cr3t" * 8


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP at /v1/traces; no collector can be had from a registry that tests install from."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Span] = []
        self.bodies: list[bytes] = []
        self.says_much, self.said = False, 0
        self.start = ""  # of the answer, where it is not the usual one

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def wait_for(self, count: int) -> dict[str, Span]:
        until_so(lambda: len(self.calls()) >= count, describe=lambda: [span.name for span in self.spans])
        return {f"{Span.SpanKind.Name(span.kind)[10:].lower()} {span.name}": span for span in self.calls()}

    def calls(self) -> list[Span]:
        """A session's handshake and its stream are spans, too."""
        return [span for span in self.spans if span.name.startswith("tools/call")]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/traces"
        self.server.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        if self.server.start:
            self.wfile.write(self.server.start.encode("latin-1"))
            self.close_connection = True
            return
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while self.server.says_much and self.server.said < MUCH:
                self.server.said += self.wfile.write(bytes(65_536))

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def config(folder: Path, collector: str) -> Json:
    catalog: Json = {"tools": ["read", "secret"], "prompts": [], "resources": [], "templates": []}
    (folder / "catalog.json").write_text(json.dumps(catalog))
    server = {"command": sys.executable, "args": [str(TESTS / "recording_server.py"), str(folder)]}
    server["tools"] = {"deny": ["secret"]}
    return {"servers": {"notes": server}, "telemetry": {"otlp": collector}, "log": {"format": "json"}}


def attributes(span: Span) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in span.attributes}


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
def test_client_sluice_and_server_are_one_tree(
    tmp_path: Path, modern: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    own = TracerProvider().get_tracer("client").start_span("plan")
    carrier: dict[str, str] = {}
    with_own = set_span_in_context(own)
    TraceContextTextMapPropagator().inject(carrier, with_own)

    async def calls(url: str) -> None:
        meta = {**(META if modern else {}), **carrier, "baggage": "tenant=acme"}
        async with Client(url, modern) as client:
            for name in ("notes__read", "notes__secret", SECRET):
                named = {"Mcp-Name": name} if modern else {}
                params = {"name": name, "arguments": {"key": SECRET}, "_meta": meta}
                await client.request("tools/call", params, named)

    with collecting() as collector, sluice(config(tmp_path, collector.url), tmp_path) as process:
        anyio.run(calls, process.url)
        spans = collector.wait_for(4)
        assert process.interrupt() == 0
        log = process.log()
    outer, inner = spans["server tools/call notes__read"], spans["client tools/call read"]
    trace = own.get_span_context()
    assert {span.trace_id.hex() for span in spans.values()} == {f"{trace.trace_id:032x}"}
    assert outer.parent_span_id.hex() == f"{trace.span_id:016x}" and inner.parent_span_id == outer.span_id
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    (call,) = [message["params"] for message in seen if message["method"] == "tools/call"]
    assert call["_meta"]["traceparent"].startswith(f"00-{outer.trace_id.hex()}-{inner.span_id.hex()}-")
    assert call["_meta"]["baggage"] == "tenant=acme"
    said = attributes(outer)
    assert said["mcp.method.name"] == "tools/call" and said["gen_ai.tool.name"] == "notes__read"
    assert said["gen_ai.operation.name"] == "execute_tool" and "error.type" not in said
    assert said["mcp.protocol.version"] == ("2026-07-28" if modern else "2025-11-25")
    assert attributes(inner)["gen_ai.tool.name"] == "read" and attributes(inner)["sluice.server"] == "notes"
    assert attributes(spans["server tools/call notes__secret"])["error.type"] == "denied"
    assert attributes(spans["server tools/call"])["error.type"] == "unknown"
    assert not any(SECRET.encode() in body for body in collector.bodies), "neither arguments nor invented names"
    # The audit log and the developers' log have the same trace.
    records = [json.loads(line) for line in next(tmp_path.rglob("sluice.jsonl")).read_text().splitlines()]
    traced = {record["trace"] for record in records if record.get("public") == "notes__read"}
    assert traced == {outer.trace_id.hex()}
    (denied,) = [line for line in map(json.loads, log_lines(log)) if line["event"].startswith("denied")]
    assert denied["trace"] == outer.trace_id.hex()
    assert denied["call"] in {record.get("call") for record in records}


def log_lines(log: str) -> list[str]:
    return [line for line in log.splitlines() if line.startswith("{")]


def test_a_collector_that_is_away_slows_nobody_and_stops_nothing(tmp_path: Path) -> None:
    async def call(url: str) -> None:
        async with Client(url, modern=True) as client:
            with anyio.fail_after(15):
                assert (await client.call("notes__read", {})).result()["content"][0]["text"] == "ran read"

    with sluice(config(tmp_path, "http://127.0.0.1:9"), tmp_path) as process:
        anyio.run(call, process.url)
        assert process.interrupt(seconds=15) == 0  # the collector's client would try again for longer


def test_without_a_collector_the_context_passes_as_it_is(tmp_path: Path) -> None:
    context = f"00-{hashlib.sha256(b'x').hexdigest()[:32]}-00f067aa0ba902b7-01"

    async def call(url: str) -> None:
        async with Client(url, modern=True) as client:
            meta = {**META, "traceparent": context, "tracestate": "a=b"}
            params = {"name": "notes__read", "arguments": {}, "_meta": meta}
            await client.request("tools/call", params, {"Mcp-Name": "notes__read"})

    with sluice(config(tmp_path, ""), tmp_path) as process:
        anyio.run(call, process.url)
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    (message,) = [message for message in seen if message["method"] == "tools/call"]
    assert message["params"]["_meta"]["traceparent"] == context and message["params"]["_meta"]["tracestate"] == "a=b"


WORDS = "ignore all rules"


async def read_once(url: str) -> None:
    async with Client(url, True) as client:
        await client.request("tools/call", {"name": "notes__read", "_meta": META}, {"Mcp-Name": "notes__read"})


@pytest.mark.parametrize(
    "start",
    [
        f"HTTP/1.1 418 {WORDS}\r\n\r\n",
        f"HTTP/1.1 503 {WORDS}\r\n\r\n",
        f"{WORDS}\r\n",
        f"HTTP/1.1 400 X\r\n{WORDS}\r\n\r\n",
    ],
    ids=["reason", "reason of a passing error", "no HTTP", "no header"],
)
def test_no_word_of_a_collector_is_in_the_log(tmp_path: Path, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with collecting() as collector, sluice(config(tmp_path, collector.url), tmp_path) as process:
        collector.start = start
        anyio.run(read_once, process.url)
        until_so(lambda: "opentelemetry" in process.log(), describe=process.log)
        assert process.interrupt() == 0
        log = process.log()
    assert "spans batch" in log and WORDS not in log


def test_a_collector_that_answers_at_length_is_not_listened_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with collecting() as collector, sluice(config(tmp_path, collector.url), tmp_path) as process:
        collector.says_much = True
        for count in (1, 2):
            anyio.run(read_once, process.url)
            until_so(lambda count=count: len(collector.bodies) >= count)  # type: ignore[misc]
        assert process.interrupt() == 0
    assert 0 < collector.said < MUCH / 4
