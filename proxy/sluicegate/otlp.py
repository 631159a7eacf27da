"""Where spans go: an OTLP collector over HTTP. Needs the extra `otel`, so it is imported only where one is configured.

Spans are sent in batches by a thread of the SDK's; what a collector does not take is dropped there and slows nobody.
"""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def provider(endpoint: str, version: str) -> TracerProvider:
    """`endpoint` is the collector's base URL, as in OTEL_EXPORTER_OTLP_ENDPOINT. `shutdown` sends what is left, in a
    worker thread. Headers, sampling and batching follow the OTEL_* variables of the environment."""
    resource = Resource.create({"service.name": "sluice", "service.version": version})
    made = TracerProvider(resource=resource, shutdown_on_exit=False)  # whoever opened it does
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")))
    return made
