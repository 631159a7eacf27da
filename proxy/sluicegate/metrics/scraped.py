"""Series that are asked for at each scrape instead of being fed: how things stand, and counts that others keep.

`TABLE` declares them all. Whoever knows gives samples, in the event loop's thread; what is rendered later, in a worker
thread, is what was said then. Knows no room.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

Sample = tuple[str, tuple[str, ...], float]
"""Name of the series as in `TABLE`, values of its labels, value."""
Source = Callable[[], Iterable[Sample]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A series of the table; `text` says what to do about it."""

    labels: tuple[str, ...]
    text: str
    is_counter: bool = False


def _gauge(text: str, *labels: str) -> Asked:
    return Asked(labels, text)


def _counter(text: str, *labels: str) -> Asked:
    return Asked(labels, text, is_counter=True)


TABLE: Final[Mapping[str, Asked]] = {
    # servers
    "sluice_server_up": _gauge(
        "1 if the server can be reached. At 0 its tools are not listed and its calls fail: `sluice servers` says why.",
        "server",
    ),
    "sluice_server_restarts": _counter(
        "Connections to the server that ended by themselves (for a started server: its process). A steady rise is a "
        "server that crashes: `sluice servers` shows what it wrote last.",
        "server",
    ),
    "sluice_server_inflight": _gauge(
        "Calls at the server now. Near sluice_server_concurrency_limit: raise servers.KEY.concurrency, or find out why "
        "the server is slow.",
        "server",
    ),
    "sluice_server_concurrency_limit": _gauge(
        "Calls that the server gets at once from here, at most: a share of servers.KEY.concurrency, which raises it.",
        "server",
    ),
    "sluice_server_waiting": _gauge(
        "Calls that wait for a place at the server. More than a few for long: it is too slow for what is asked of it.",
        "server",
    ),
    "sluice_circuit_state": _gauge(
        "0 closed, 1 half-open, 2 open: five calls in a row failed, and next ones may be refused: `sluice servers`.",
        "server",
    ),
    "sluice_logins": _gauge(
        "Logins to the server, by state: ok, expired (refreshed when it is used next), needed (somebody has to log in "
        "again), refused (the server takes no token). `sluice logins` shows whose.",
        "server", "state",
    ),
    "sluice_login_flows": _counter(
        "Logins that were begun (asked), and how they ended (done, failed). Many failed: the log says why.",
        "server", "result",
    ),
    "sluice_login_refresh": _counter(
        "Refreshed tokens (ok), and refreshes that failed: unavailable (the authorization server was away), "
        "invalid_grant (somebody has to log in again), lost (the newest token was lost in a crash).",
        "server", "result",
    ),
    # the catalog
    "sluice_catalog_tools": _gauge(
        "Tools that the server listed last. A sudden change is a new version of it, or a part of it that fails.",
        "server",
    ),
    "sluice_tools_list_tokens": _gauge(
        "About how many tokens (bytes / 4) the last list of tools of a client had. Too many: `sluice tools --cost`, "
        "toolsets, search.", "client", "toolset",
    ),
    "sluice_definitions_withheld": _gauge(
        "Definitions that nobody gets until a person accepts them: `sluice pins list`.", "server",
    ),
    # approvals
    "sluice_approvals_pending": _gauge(
        "Calls that wait for a person. If it stays up, approvers are not reached: see approvals.notify.", "profile"
    ),
    "sluice_approval_oldest_pending_seconds": _gauge(
        "How long the oldest call that waits for a person has been waiting: state pending in `sluice audit approvals "
        "--since 1h`. See approvals.notify.",
    ),
    "sluice_approvals": _counter(
        "Approvals that came to a state. Many expired: nobody looks. Many superseded: the policy changes under them.",
        "profile", "result",
    ),
    # hooks
    "sluice_hook_verdicts": _counter(
        "What hooks said of calls and results. Many failed: the hook is down, too slow for its timeout, answers what "
        "is no verdict, or a client has too many calls.", "hook", "on", "verdict",
    ),
    "sluice_hook_seconds": _counter(
        "Seconds that hooks took to answer. Divided by sluice_hook_verdicts: how long a call waits for one answer.",
        "hook",
    ),
    # the policy
    "sluice_policy_info": _gauge(
        "Always 1; `revision` is a digest of the policy in force. Several at once: replicas decide differently.",
        "revision",
    ),
    "sluice_policy_shadow": _gauge(
        "1 while the policy is in shadow mode: what its rows deny is let through. It ends at policy.until."
    ),
    "sluice_policy_blocks": _gauge(
        "How many clients, servers and tools are blocked now, whatever the policy says: `sluice block` shows them."
    ),
    "sluice_policy_reload_success": _gauge(
        "0 while the config or policy on disk cannot be used, so that an older one is in force: /readyz says why."
    ),
    "sluice_policy_last_reload_timestamp_seconds": _gauge(
        "When the config and policy in force were taken into use, as Unix time. Before the last change on disk: see "
        "sluice_policy_reload_success, and /readyz for what needs a restart."
    ),
    "sluice_decision_errors": _counter(
        "Decisions that raised, and so denied. Any rise is a bug: report it with its log."
    ),
    # the audit log
    "sluice_audit_records": _counter(
        "Audit records by sink. result=refused are calls that were not let through because nothing could be recorded, "
        "result=failed are failures of a sink: see the log, the disk, and /readyz.",
        "sink", "result",
    ),
    "sluice_audit_lost": _counter(
        "Audit records that no file has. Any rise is a gap in the audit log: see the disk and audit.on_failure."
    ),
    "sluice_audit_queue_depth": _gauge(
        "Records that wait to be written. Near 10,000 calls are refused: the disk is too slow, or full."
    ),
    "sluice_audit_lag_seconds": _gauge(
        "How long the sink has been behind. sink=file: the disk hangs or is full. Others: down, or too slow.",
        "sink",
    ),
    # Sluice itself
    "sluice_inflight": _gauge(
        "Calls of clients that are open now, lists and streams included. Those that stay are held."
    ),
    "sluice_streams_open": _gauge(
        "Event streams that are open for clients to listen on. limits.streams bounds them for each client."
    ),
    "sluice_ratelimit_decisions": _counter(
        "Requests by what the limits said (scope: client or tool). Many of result=limited: a client that loops, or a "
        "limit that is too low (limits.per_client, limits.per_tool).",
        "scope", "result",
    ),
    "sluice_credentials_refused": _counter(
        "Requests without a good credential, by reason, such as none, expired or audience; admin_*, login_* and "
        "client_login at those pages. `sluice audit search --type identity` shows from where.",
        "reason",
    ),
    "sluice_sessions": _gauge(
        "Open sessions of legacy clients. One that only rises is a client that never ends its sessions."
    ),
    "sluice_event_loop_tasks": _gauge(
        "Tasks of the event loop: some for each server, session, stream and open call. Where they rise and those do "
        "not, it is a bug: report it."
    ),
    "sluice_fleet_replicas": _gauge(
        "Replicas of the fleet that live, as this one sees them. Fewer than were started: look which one is not ready."
    ),
    "sluice_fleet_revisions": _gauge(
        "Policies that replicas of the fleet have in force, as this one sees them. Above 1 they decide differently: "
        "see sluice_policy_info."
    ),
    "sluice_fleet_silent_logs": _gauge(
        "Audit logs that the database knows and no living replica writes: `sluice audit verify --fleet`, then "
        "`sluice audit retire` for a replica that is gone for good."
    ),
    "sluice_state_up": _gauge(
        "0 while a replica cannot use the database: what must happen once is refused, and after state.stale all is."
    ),
    "sluice_state_stale_seconds": _gauge(
        "How long a replica has had no word from the database. Above state.stale it serves nothing, for keys may be "
        "revoked."
    ),
    "sluice_clock_offset_seconds": _gauge(
        "By how much the clock of the database is ahead of the replica's. Above 1 or below -1: set up NTP on the "
        "machines."
    ),
    "sluice_forwarded": _counter(
        "Requests that were passed on to the replica of their session, or the worker of their client, by result: "
        "answered, gone (it has ended), unreachable or broken. A balancer that keeps clients where they are leaves "
        "few.",
        "result",
    ),
    "sluice_task_crashes": _counter(
        "Crashes of background tasks, which were started again. Any rise is a bug: report it with its log.", "task"
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tally:
    """How the audit log does: records by (sink, result), those that are lost, those that wait to be written, and for
    how many seconds each sink has been behind."""

    records: Mapping[tuple[str, str], int]
    lost: int
    waiting: int = 0
    lag: Mapping[str, float] = field(default_factory=dict)

    def samples(self) -> Iterator[Sample]:
        for labels, count in self.records.items():
            yield "sluice_audit_records", labels, count
        yield "sluice_audit_lost", (), self.lost
        yield "sluice_audit_queue_depth", (), self.waiting
        for sink, seconds in self.lag.items():
            yield "sluice_audit_lag_seconds", (sink,), seconds


class Scraped:
    """The collector of the table. A series without any sample is not shown."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._samples: list[Sample] = []

    def sample(self) -> None:
        self._samples = [sample for source in self.sources for sample in source()]

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, labels, value in self._samples:
            family = families.get(name) or families.setdefault(name, _family(name))
            family.add_metric(labels, value)
        yield from families.values()


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    asked = TABLE[name]
    kind = CounterMetricFamily if asked.is_counter else GaugeMetricFamily
    return kind(name, asked.text, labels=asked.labels)
