"""What there is before any server is: the judge, the store, keys, the audit log, metrics, who collects traces.

Opened in this order, closed in the opposite one, when everything that uses them has ended.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from opentelemetry.trace import Tracer

from sluicegate import __version__
from sluicegate.app import metric_sources
from sluicegate.app.approval_wiring import DATABASE
from sluicegate.app.audit_wiring import KEYS, Notes, open_audit
from sluicegate.app.egress_rules import open_egress
from sluicegate.app.policy_service import PolicyService, open_policy_service
from sluicegate.app.tracing import open_tracer
from sluicegate.app.worker_partition import WHOLE, WorkerPartition
from sluicegate.audit.log import AuditLog
from sluicegate.config import Config, StdioServer
from sluicegate.http.egress import Egress
from sluicegate.metrics import Metrics
from sluicegate.protocol.elicitation_urls import OwnUrls
from sluicegate.store.keys import KeyRing, Sealer
from sluicegate.store.sqlite import SqliteStore


@dataclass(frozen=True, slots=True)
class Services:
    config: Config
    """As it was at the start; what is in force now, `open_policy_service` has."""
    judging: PolicyService
    sealer: Sealer
    store: SqliteStore
    audit: AuditLog | None
    metrics: Metrics
    notes: Notes
    egress: Egress
    tracer: Tracer | None
    share: WorkerPartition
    own_pages: OwnUrls


@asynccontextmanager
async def open_services(
    config: Config, file: Path | None, transport: str, share: WorkerPartition = WHOLE
) -> AsyncIterator[Services]:
    """Raises `PolicyError` where the policy cannot be used."""
    async with AsyncExitStack() as stack:
        judges = await stack.enter_async_context(open_policy_service(config, file, transport))
        judge, directory = judges.judge, Path(config.state.dir)
        sealer = Sealer(KeyRing.load(directory / KEYS, "seal"))
        store = SqliteStore(directory / DATABASE)
        stack.push_async_callback(store.close)
        audit = await stack.enter_async_context(open_audit(config, transport, judge))
        tracer = await stack.enter_async_context(open_tracer(config))
        metrics = Metrics(
            version=__version__, classify=judge.classify, transport="pipe" if transport == "stdio" else "tcp",
            piped=frozenset(key for key, server in config.servers.items() if isinstance(server, StdioServer)),
        )  # fmt: skip
        metrics.watch(lambda: judges.state().samples())
        if audit is not None:
            metrics.watch(lambda: audit.tally().samples())
        metric_sources.expect(metrics, config)
        judges.on_config.append(partial(metric_sources.expect, metrics))
        notes = Notes(audit, judge, judges.config)
        judges.on_config.append(notes.reloaded)
        judges.reload.on_rejected = notes.rejected
        notes.policy()
        egress = open_egress(config, audit)
        yield Services(config, judges, sealer, store, audit, metrics, notes, egress, tracer, share, OwnUrls())
