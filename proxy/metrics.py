"""Every Prometheus series, declared once, and what feeds them.

Knows calls and outcomes, no room. Label values come from the configuration and the catalog alone (a target
that was resolved and listed, a configured client), else they are `_other`: what a peer may choose freely
never makes a series. Each set of labels is looked up once; after that a call costs one dict hit.
"""

import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, get_args

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from proxy import telemetry
from proxy.call import REASON, Call, Client, Failure, InputRequired, Outcome, Reason, Result, Target, Verdict, not_found
from proxy.series import Count, Counter, Histogram, Seconds

disable_created_metrics()  # type: ignore[no-untyped-call]  # one more line a series, that nothing reads

OTHER: Final = "_other"
MAX_LABEL_SETS: Final = 2_000
MAX_CACHED: Final = 20_000
# OpenTelemetry semantic conventions for MCP: the buckets of mcp.*.operation.duration
BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
REASONS: Final = frozenset(get_args(Reason))
K = TypeVar("K")
V = TypeVar("V")
_CLASSES: Final = frozenset({"read", "write", "destroy"})

_CALLS = "Calls by clients. outcome=ok is fine; for the rest see the server's log (tool_error, timeout, \
server_unavailable, outcome_unknown), the policy (denied, unknown) or the client (protocol_error, invalid_arguments)."
_CLIENT_CALLS = "Calls by configured client. A client whose outcomes are mostly not ok has a wrong \
configuration or misses a right: `sluice explain --as CLIENT` says which."
_DECISIONS = "Decisions on calls. A rise of verdict=deny is a client that tries what it may not, or a policy \
that lost a row: see `sluice explain` and the audit log."
_SERVER_SECONDS = "Seconds a client waited for an answer. If slow, compare with \
mcp_client_operation_duration_seconds: the difference is Sluice's own share, the rest the server's."
_CLIENT_SECONDS = "Seconds a server took to answer. If slow or with error_type=timeout, look at that server; \
its `timeout` and `concurrency` are in the configuration."
_UP = "1 if the server can be reached. At 0 its tools are not listed and its calls fail: `sluice servers` says why."
_SESSIONS = "Open sessions of legacy clients. One that only rises is a client that never ends its sessions."
_BUILD = "Always 1; the labels say what runs. Different versions at once mean an unfinished roll-out."
_CRASHES = "Crashes of background tasks, which were started again. Any rise is a bug: report it with its log."

_AUDIT_RECORDS = "Audit records by sink. result=refused are calls that were not let through because nothing could be \
recorded, result=failed are failures of a sink: see the log, the disk, and /readyz."
_AUDIT_LOST = "Audit records that no file has. Any rise is a gap in the audit log: see the disk and audit.on_failure."


_POLICY = "Always 1; `revision` is a digest of the policy in force. Several at once: replicas decide differently."
_SHADOW = "1 while the policy is in shadow mode: what its rows deny is let through. It ends at policy.until."
_RELOADED = "0 while the config or policy on disk cannot be used, so that an older one is in force: /readyz says why."
_RELOADED_AT = "When the config and policy in force were taken into use, as Unix time."
_DECISION_ERRORS = "Decisions that raised, and so denied. Any rise is a bug: report it with its log."


@dataclass(frozen=True, slots=True)
class PolicyState:
    """Which policy is in force, and how it came to be. `is_newest`: nothing newer was rejected."""

    revision: str
    is_shadow: bool
    errors: int
    is_newest: bool
    since: float


@dataclass(frozen=True, slots=True)
class Tally:
    """How the audit log does: records by (sink, result), and those that are lost."""

    records: Mapping[tuple[str, str], int]
    lost: int


def describe(outcome: Outcome | None, call: Call) -> str:
    """The one word for how a call ended; None is a cancelled one. Reasons count only if they are of ours: a
    server can write into `_meta`, but it cannot invent words."""
    if outcome is None:
        return "cancelled"
    if isinstance(outcome, InputRequired):
        return "ok"
    if isinstance(outcome, Result):
        return _describe_result(outcome) if "isError" in outcome.value else "ok"
    return _describe_failure(outcome, call)


def _describe_result(outcome: Result) -> str:
    if outcome.value["isError"] is not True:
        return "ok"
    meta = outcome.value.get("_meta")
    return _reason(meta.get(REASON) if isinstance(meta, dict) else None) or "tool_error"


def _describe_failure(outcome: Failure, call: Call) -> str:
    reason = _reason(outcome.data.get("reason")) if isinstance(outcome.data, dict) else None
    if reason is not None:
        return reason
    if outcome != not_found(call.method, call.params):
        return "protocol_error"
    # To the client both look the same; here the truth is told.
    decisions = call.trail.decisions
    return "denied" if decisions and decisions[-1].verdict is Verdict.DENY else "unknown"


def _reason(value: object) -> str | None:
    return value if isinstance(value, str) and value in REASONS else None


@dataclass(frozen=True, slots=True)
class _Bound:
    """The series of one kind of call, labels bound."""

    calls: Count
    seconds: Seconds
    decisions: Count | None


class _Limit:
    """At most `MAX_LABEL_SETS` sets of labels for one series; after that the open labels say `_other`."""

    def __init__(self, open_labels: tuple[int, ...]) -> None:
        self._open, self._seen = open_labels, set[tuple[str, ...]]()

    def __call__(self, *values: str) -> tuple[str, ...]:
        if values in self._seen:
            return values
        if len(self._seen) >= MAX_LABEL_SETS:
            return tuple(OTHER if at in self._open and value else value for at, value in enumerate(values))
        self._seen.add(values)
        return values


class Metrics:
    """All series of one Sluice, in a registry of its own.

    The functions are asked at each scrape, from a worker thread (`servers`: key -> is it up; `sessions`: how
    many), or once for each new set of labels (`classify`: the class of a target: read, write or destroy).
    """

    def __init__(
        self,
        *,
        version: str,
        servers: Callable[[], Mapping[str, bool]] = dict,
        sessions: Callable[[], int] = int,
        classify: Callable[[Target], str] = lambda target: OTHER,
    ) -> None:
        self.registry = registry = CollectorRegistry()
        self._classify = classify
        self._calls = Counter("sluice_calls", _CALLS, ("server", "tool", "method", "outcome"), registry)
        self._client_calls = Counter("sluice_client_calls", _CLIENT_CALLS, ("client", "outcome"), registry)
        self._decisions = Counter("sluice_decisions", _DECISIONS, ("verdict", "server", "class"), registry)
        self._server_seconds = Histogram(
            "mcp_server_operation_duration_seconds", _SERVER_SECONDS,
            ("mcp_method_name", "gen_ai_tool_name", "error_type", "mcp_protocol_version"), BUCKETS, registry,
        )  # fmt: skip
        self._client_seconds = Histogram(
            "mcp_client_operation_duration_seconds", _CLIENT_SECONDS,
            ("server", "mcp_method_name", "gen_ai_tool_name", "error_type"), BUCKETS, registry,
        )  # fmt: skip
        build = Gauge("sluice_build_info", _BUILD, ("version", "python"), registry=registry)
        build.labels(version, platform.python_version()).set(1)
        self._sampled = _Sampled(servers, sessions)
        registry.register(self._sampled)
        ProcessCollector(registry=registry)
        self._limits = {
            "calls": _Limit((0, 1)), "clients": _Limit((0,)), "decisions": _Limit((1,)),
            "server_seconds": _Limit((1,)), "client_seconds": _Limit((0, 2)),
        }  # fmt: skip
        self._bound: dict[tuple[str, ...], _Bound] = {}
        self._bound_clients: dict[tuple[str, str], Count] = {}
        self._bound_servers: dict[tuple[str, ...], Seconds] = {}

    # ------------------------------------------------------------ what feeds them

    def call(self, call: Call, outcome: Outcome | None, seconds: float) -> None:
        """A client's call has ended. Its target is what the trail says was aimed at."""
        word = describe(outcome, call)
        target = call.target or call.trail.target
        decisions = call.trail.decisions
        verdict = decisions[-1].verdict.value if decisions else ""
        server, tool = ("", "") if target is None else (target.server, _tool(target))
        key = (call.method, server, tool, word, call.client.revision, verdict)
        bound = self._bound.get(key)
        if bound is None:
            bound = _keep(self._bound, key, self._bind(call, target, word, verdict))
        bound.calls.value += 1
        bound.seconds.observe(seconds)
        if bound.decisions is not None:
            bound.decisions.value += 1
        self._count_client(call.client, word)

    def server_call(self, call: Call, outcome: Outcome | None, seconds: float) -> None:
        """A server has answered a call (or was given up). Calls without a target, as lists are, do not count."""
        if call.target is None:
            return
        word = describe(outcome, call)
        key = (call.target.server, call.method, _tool(call.target), word)
        bound = self._bound_servers.get(key)
        if bound is None:
            own = call.target.own if _tool(call.target) not in ("", OTHER) else _tool(call.target)
            labels = self._limits["client_seconds"](call.target.server, call.method, own, _error_type(word))
            bound = _keep(self._bound_servers, key, self._client_seconds.labels(*labels))
        bound.observe(seconds)

    def _bind(self, call: Call, target: Target | None, word: str, verdict: str) -> _Bound:
        tool = own = ""
        server = "" if target is None else target.server
        if target is not None and target.kind == "tool":
            tool = _tool(target)
            own = OTHER if tool == OTHER else target.own
        elif call.method == "tools/call":
            server = tool = own = OTHER  # never resolved: the name is the client's own invention
        seconds = self._limits["server_seconds"](call.method, tool, _error_type(word), call.client.revision)
        return _Bound(
            self._calls.labels(*self._limits["calls"](server, own, call.method, word)),
            self._server_seconds.labels(*seconds),
            self._decided(target, verdict),
        )

    def _decided(self, target: Target | None, verdict: str) -> Count | None:
        if target is None or not verdict:
            return None
        class_ = self._classify(target)
        known = class_ if class_ in _CLASSES else OTHER
        return self._decisions.labels(*self._limits["decisions"](verdict, target.server, known))

    def _count_client(self, client: Client, word: str) -> None:
        key = (_configured(client.principal), word)
        counter = self._bound_clients.get(key)
        if counter is None:
            counter = _keep(self._bound_clients, key, self._client_calls.labels(*self._limits["clients"](*key)))
        counter.value += 1

    def watch(
        self, *, sessions: Callable[[], int] | None = None, audit: Callable[[], Tally] | None = None,
        policy: Callable[[], PolicyState] | None = None,
    ) -> None:  # fmt: skip
        """Says who knows the number of sessions (a listener, where there is one), and how the audit log and the
        policy do."""
        self._sampled.sessions = sessions or self._sampled.sessions
        self._sampled.audit = audit or self._sampled.audit
        self._sampled.policy = policy or self._sampled.policy

    def forget(self) -> None:
        """Labels are looked up anew: a changed policy may class a target differently."""
        self._bound.clear()

    # ------------------------------------------------------------ what is shown

    def render(self) -> tuple[bytes, str]:
        """All series in Prometheus' text form, and its content type. May take a while at 2,000 label sets each:
        call it in a worker thread."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def __repr__(self) -> str:
        return f"Metrics({len(self._bound)} kinds of calls, {len(self._bound_clients)} clients' outcomes)"


def _keep(cache: dict[K, V], key: K, value: V) -> V:
    if len(cache) >= MAX_CACHED:  # a catalog that never stops changing its names
        cache.clear()
    cache[key] = value
    return value


def _tool(target: Target) -> str:
    """The tool's public name. `_other` where no list has it (an unlisted name that is forwarded)."""
    if target.kind != "tool":
        return ""
    return target.public if target.item is not None else OTHER


def _configured(principal: str) -> str:
    """Keys are named in the configuration; the subject of a token is not, and may be anybody."""
    return principal if principal.startswith("key:") or principal in ("local", "anonymous") else OTHER


def _error_type(word: str) -> str:
    """`error.type` is absent (empty, to Prometheus) where there was no error."""
    return "" if word == "ok" else word


class _Sampled:
    """What is asked for at each scrape instead of being fed."""

    def __init__(self, servers: Callable[[], Mapping[str, bool]], sessions: Callable[[], int]) -> None:
        self._servers, self.sessions = servers, sessions
        self.audit: Callable[[], Tally] | None = None
        self.policy: Callable[[], PolicyState] | None = None

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("sluice_server_up", _UP, labels=("server",))
        for server, is_up in self._servers().items():
            up.add_metric((server,), float(is_up))
        yield up
        yield GaugeMetricFamily("sluice_sessions", _SESSIONS, value=self.sessions())
        crashes = CounterMetricFamily("sluice_task_crashes", _CRASHES, labels=("task",))
        for task, count in telemetry.crashes.copy().items():
            crashes.add_metric((task,), count)
        yield crashes
        if self.audit is not None:
            yield from _audited(self.audit())
        if self.policy is not None:
            yield from _judged(self.policy())


def _judged(state: PolicyState) -> Iterator[Metric]:
    info = GaugeMetricFamily("sluice_policy_info", _POLICY, labels=("revision",))
    info.add_metric((state.revision,), 1)
    yield info
    yield GaugeMetricFamily("sluice_policy_shadow", _SHADOW, value=float(state.is_shadow))
    yield GaugeMetricFamily("sluice_policy_reload_success", _RELOADED, value=float(state.is_newest))
    yield GaugeMetricFamily("sluice_policy_last_reload_timestamp_seconds", _RELOADED_AT, value=state.since)
    yield CounterMetricFamily("sluice_decision_errors", _DECISION_ERRORS, value=state.errors)


def _audited(tally: Tally) -> Iterator[Metric]:
    records = CounterMetricFamily("sluice_audit_records", _AUDIT_RECORDS, labels=("sink", "result"))
    for labels, count in tally.records.items():
        records.add_metric(labels, count)
    yield records
    yield CounterMetricFamily("sluice_audit_lost", _AUDIT_LOST, value=tally.lost)
