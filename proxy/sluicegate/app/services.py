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
from sluicegate.app import observing
from sluicegate.app.approving import DATABASE
from sluicegate.app.auditing import KEYS, Notes, open_audit
from sluicegate.app.judging import Judging, judging
from sluicegate.app.reaching import open_egress
from sluicegate.app.share import WHOLE, Share
from sluicegate.app.tracing import open_tracer
from sluicegate.audit.log import Audit
from sluicegate.config import Config, StdioServer
from sluicegate.era.web_pages import OwnPages
from sluicegate.metrics import Metrics
from sluicegate.network.egress import Egress
from sluicegate.store.keys import KeyRing, Sealer
from sluicegate.store.sqlite import SqliteStore


@dataclass(frozen=True, slots=True)
class Services:
    config: Config
    """As it was at the start; what is in force now, `judging` has."""
    judging: Judging
    sealer: Sealer
    store: SqliteStore
    audit: Audit | None
    metrics: Metrics
    notes: Notes
    egress: Egress
    tracer: Tracer | None
    share: Share
    own_pages: OwnPages


@asynccontextmanager
async def open_services(
    config: Config, file: Path | None, transport: str, share: Share = WHOLE
) -> AsyncIterator[Services]:
    """Raises `PolicyError` where the policy cannot be used."""
    async with AsyncExitStack() as stack:
        judges = await stack.enter_async_context(judging(config, file, transport))
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
        observing.expect(metrics, config)
        judges.on_config.append(partial(observing.expect, metrics))
        notes = Notes(audit, judge, judges.config)
        judges.on_config.append(notes.reloaded)
        judges.reload.on_rejected = notes.rejected
        notes.policy()
        egress = open_egress(config, audit)
        yield Services(config, judges, sealer, store, audit, metrics, notes, egress, tracer, share, OwnPages())
