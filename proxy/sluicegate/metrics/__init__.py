"""Every Prometheus series, declared once, and what feeds them.

Knows calls and outcomes, no room. Label values come from the configuration and the catalog alone (a target
that was resolved and listed, a configured client), else they are `_other`: what a peer may choose freely
never makes a series. Each set of labels is looked up once; after that a call costs one dict hit.
"""

import math
import platform
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import prometheus_client  # its own file imports servers and clients of HTTP: only who renders names it
from prometheus_client.metrics import Gauge, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry
from prometheus_client.utils import floatToGoString

from sluicegate import telemetry
from sluicegate.metrics.scraped import Sample, Scraped, Source, Tally
from sluicegate.outcomes import LABELS, label
from sluicegate.policy.memo import Memo
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.methods import TARGET_KINDS
from sluicegate.protocol.model import Call, Outcome, Target, Verdict

Labels = tuple[str, ...]

# prometheus_client's own counters take a lock for every number, and a call counts in five series. These are fed by one
# thread and scraped by any, so a scrape may see a call in one series and not yet in another.


class Count:
    """One set of labels of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Counter:
    def __init__(self, name: str, text: str, labels: Labels, registry: CollectorRegistry) -> None:
        self._head = (name, text)
        self._labels = labels
        self.series: dict[Labels, Count] = {}
        registry.register(self)

    def labels(self, *values: str) -> Count:
        return self.series.setdefault(values, Count())

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(*self._head, labels=self._labels)
        for values, count in self.series.copy().items():
            family.add_metric(values, count.value)
        yield family


class Seconds:
    """One set of labels of a histogram: `counts` has for each of `bounds` how many took no longer.

    `observe` only stores a number. `fold` counts all that were stored since the last time: sorted, they take half of
    the time."""

    __slots__ = ("_bounds", "_new", "counts", "observe", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._new: list[float] = []
        self.observe = self._new.append
        self.counts = [0] * len(bounds)
        self.sum = 0.0

    def fold(self) -> None:
        """Folds pending observations. Call it only in the thread that observes."""
        new = self._new
        if new:
            new.sort()
            self.counts = [count + bisect_right(new, end) for count, end in zip(self.counts, self._bounds, strict=True)]
            self.sum += sum(new)
            new.clear()


class Histogram:
    """`bounds` are the upper ends of its buckets, in seconds. What was observed is shown once it is folded in."""

    def __init__(
        self, name: str, text: str, labels: Labels, bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._head = (name, text)
        self._labels = labels
        self._bounds = (*bounds, math.inf)
        self._shown = [*map(floatToGoString, self._bounds)]
        self._series: dict[Labels, Seconds] = {}
        registry.register(self)

    def labels(self, *values: str) -> Seconds:
        return self._series.setdefault(values, Seconds(self._bounds))

    def fold(self) -> None:
        for seconds in self._series.values():
            seconds.fold()

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(*self._head, labels=self._labels)
        for values, seconds in self._series.copy().items():
            family.add_metric(values, list(zip(self._shown, seconds.counts, strict=True)), seconds.sum)
        yield family


__all__ = ["Metrics", "Sample", "Tally", "client_label"]

disable_created_metrics()  # type: ignore[no-untyped-call]  # one more line a series, that nothing reads

OTHER: Final = "_other"
MAX_LABEL_SETS: Final = 2_000
MAX_CACHED: Final = 20_000
# OpenTelemetry semantic conventions for MCP: the buckets of mcp.*.operation.duration
BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
OWN_BUCKETS: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
# Their attributes, in Prometheus' form. An empty label is an absent one.
CONVENTIONAL: Final = (
    "mcp_method_name", "gen_ai_operation_name", "gen_ai_tool_name", "gen_ai_prompt_name", "error_type",
    "rpc_response_status_code", "network_transport",
)  # fmt: skip
LAG_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
WAIT_BUCKETS: Final = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600)
_CLASSES: Final = frozenset({"read", "write", "destroy"})
CHANGED_KINDS: Final = ("tool", "prompt", "res", "instructions")

_CALLS = "Calls by clients. outcome=ok is fine; for the rest see the server's log (tool_error, timeout, \
server_unavailable, outcome_unknown), the policy (denied, unknown) or the client (protocol_error, invalid_arguments)."
_CLIENT_CALLS = "Calls by configured client. A client whose outcomes are mostly not ok has a wrong \
configuration or misses a right: `sluice explain --as CLIENT` says which."
_TOOLSET_CALLS = "Calls by clients that have a toolset. Many denied ones: the toolset lacks what its clients look for."
_DECISIONS = "Decisions on calls. A rise of verdict=deny is a client that tries what it may not, or a policy \
that lost a row: see `sluice explain` and the audit log."
_SERVER_SECONDS = "Seconds a client waited for an answer. If slow, compare with \
mcp_client_operation_duration_seconds: the difference is Sluice's own share, the rest the server's."
_CLIENT_SECONDS = "Seconds a server took to answer. If slow or with error_type=timeout, look at that server; \
its `timeout` and `concurrency` are in the configuration."
_OVERHEAD = "What Sluice adds to a call. phase=relay: its own work, without waiting for servers, people and the disk; \
if it rises, see CPU and sluice_event_loop_lag_seconds. phase=audit: the wait until the intent is on the disk."
_DECIDING = "Seconds that the policy took for a call. Most are remembered; a rise is a policy that is reloaded all the \
time, or has very many rows."
_LAG = "How late the event loop comes to what is due. Above 0.1 everybody waits: see CPU, and very large results."
_WAITS = "Seconds until an approval was given, refused or expired. Most take long? See approvals.notify, and who may \
decide."
_CHANGES = "Definitions (kind: tool, prompt, res, instructions) that are not what was pinned, or came after. Any rise \
wants a look: `sluice pins diff SERVER`."
_BUILD = "Always 1; the labels say what runs. Different versions at once mean an unfinished roll-out."


@dataclass(frozen=True, slots=True)
class _Bound:
    """The series of one kind of call, labels bound."""

    calls: Count
    seconds: Seconds
    client: Count
    decisions: Count | None
    toolset: Count | None


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

    def __len__(self) -> int:
        return len(self._seen)


class Metrics:
    """All series of one Sluice, in a registry of its own.

    `classify` is asked once for each new set of labels: the class of a target, which is read, write or destroy.
    """

    def __init__(
        self, *, version: str, classify: Callable[[Target], str] = lambda target: OTHER, transport: str = "tcp",
        piped: Callable[[str], bool] = lambda server: False,
    ) -> None:  # fmt: skip
        """`transport` is `network.transport` towards clients; towards servers it is tcp, for `piped` ones pipe."""
        self.registry = registry = CollectorRegistry()
        self._classify, self._transport, self._piped = classify, transport, piped
        self._calls = Counter("sluice_calls", _CALLS, ("server", "tool", "method", "outcome"), registry)
        self._client_calls = Counter("sluice_client_calls", _CLIENT_CALLS, ("client", "outcome"), registry)
        self._toolset_calls = Counter("sluice_toolset_calls", _TOOLSET_CALLS, ("toolset", "outcome"), registry)
        self._decisions = Counter("sluice_decisions", _DECISIONS, ("verdict", "server", "class"), registry)
        self._server_seconds = Histogram(
            "mcp_server_operation_duration_seconds", _SERVER_SECONDS, (*CONVENTIONAL, "mcp_protocol_version"),
            BUCKETS, registry,
        )  # fmt: skip
        self._client_seconds = Histogram(
            "mcp_client_operation_duration_seconds", _CLIENT_SECONDS, (*CONVENTIONAL, "server"), BUCKETS, registry,
        )  # fmt: skip
        self._overhead = Histogram("sluice_overhead_seconds", _OVERHEAD, ("phase",), OWN_BUCKETS, registry)
        self._relay, self._audit = self._overhead.labels("relay"), self._overhead.labels("audit")
        self._deciding = Histogram("sluice_decision_duration_seconds", _DECIDING, (), OWN_BUCKETS, registry).labels()
        self._lag = Histogram("sluice_event_loop_lag_seconds", _LAG, (), LAG_BUCKETS, registry).labels()
        self.decided = self._deciding.observe
        self.calls, self.server_calls = Count(), Count()  # open ones
        self._waits = Histogram("sluice_approval_wait_seconds", _WAITS, ("profile",), WAIT_BUCKETS, registry)
        self._folded = (
            self._server_seconds, self._client_seconds, self._overhead, self._deciding, self._lag, self._waits,
        )  # fmt: skip
        self._changes = Counter("sluice_tool_definition_changes", _CHANGES, ("server", "kind"), registry)
        build = Gauge("sluice_build_info", _BUILD, ("version", "python"), registry=registry)
        build.labels(version, platform.python_version()).set(1)
        self._scraped = Scraped()
        crashes = telemetry.crashes
        self.watch(lambda: [("sluice_task_crashes", (task,), count) for task, count in crashes.items()])
        self.watch(lambda: [("sluice_inflight", (), self.calls.value)])
        registry.register(self._scraped)
        ProcessCollector(registry=registry)
        self._limits = {
            "calls": _Limit((0, 1)), "clients": _Limit((0,)), "toolsets": _Limit((0,)), "decisions": _Limit((1,)),
            "changes": _Limit((0,)), "server_seconds": _Limit((2, 3)), "client_seconds": _Limit((2, 3, 7)),
        }  # fmt: skip
        # A catalog may change its names for ever.
        self._bound: Memo[tuple[Any, ...], _Bound] = Memo(MAX_CACHED)
        self._bound_servers: Memo[tuple[Any, ...], Seconds] = Memo(MAX_CACHED)

    def call(self, call: Call, outcome: Outcome | None, seconds: float) -> None:
        """A client's call has ended. Its target is what the trail says was aimed at."""
        trail, client = call.trail, call.client
        ending = label(outcome, call)
        target = call.target or trail.target
        decisions = trail.decisions
        verdict = decisions[-1].verdict if decisions else ""
        server, shown = ("", "") if target is None else (target.server, _shown(target))
        whose = client_label(client.principal)
        key = (call.method, server, shown, ending, client.revision, verdict, whose, client.toolset)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound.keep(key, self._bind(call, target, ending, verdict))
        bound.calls.value += 1
        bound.client.value += 1
        bound.seconds.observe(seconds)
        if bound.decisions is not None:
            bound.decisions.value += 1
        if bound.toolset is not None:
            bound.toolset.value += 1
        if target is not None:
            self._relay.observe(seconds - trail.wait_seconds - trail.audit_seconds)
            self._audit.observe(trail.audit_seconds)

    def server_call(self, call: Call, outcome: Outcome | None, seconds: float) -> None:
        """A server has answered a call (or was given up). Calls without a target, as lists are, do not count."""
        target = call.target
        if target is None:
            return
        call.trail.wait_seconds += seconds
        ending = label(outcome, call)
        key = (target.server, call.method, _shown(target), ending)
        bound = self._bound_servers.get(key)
        if bound is None:
            name = target.own if target.item is not None else OTHER
            transport = "pipe" if self._piped(target.server) else "tcp"
            labels = _conventional(call.method, target.kind, name, ending, transport)
            bound = self._client_seconds.labels(*self._limits["client_seconds"](*labels, target.server))
            self._bound_servers.keep(key, bound)
        bound.observe(seconds)

    def expect(
        self, servers: Iterable[str], clients: Iterable[str], profiles: Iterable[str], toolsets: Iterable[str] = ()
    ) -> None:
        """What the configuration names has its series from now on, with 0. For Prometheus a series that begins with 1
        has not increased. Half of a series' label sets stays free for what is called."""
        for server in servers:
            for word in LABELS - {"unknown"}:  # a name that is unknown has no server
                self._start("calls", self._calls, server, OTHER, "tools/call", word)
            for verdict, class_ in product(Verdict, sorted(_CLASSES)):
                self._start("decisions", self._decisions, verdict, server, class_)
            for kind in CHANGED_KINDS:
                self._start("changes", self._changes, server, kind)
        for client, word in product(clients, LABELS):
            self._start("clients", self._client_calls, client, word)
        for toolset, word in product(toolsets, LABELS):
            self._start("toolsets", self._toolset_calls, toolset, word)
        for profile in profiles:
            self._waits.labels(profile)

    def _start(self, name: str, counter: Counter, *labels: str) -> None:
        limit = self._limits[name]
        if len(limit) < MAX_LABEL_SETS // 2:
            counter.labels(*limit(*labels))

    def _bind(self, call: Call, target: Target | None, ending: tuple[str, str], verdict: str) -> _Bound:
        server = tool = public = ""
        kind: str = ""
        if target is not None:
            server, public, kind = target.server, _shown(target), target.kind
            tool = "" if kind != "tool" else target.own if public != OTHER else OTHER
        elif kind := TARGET_KINDS.get(call.method, ""):
            server = public = OTHER  # never resolved: the name is the client's own invention
            tool = OTHER if kind == "tool" else ""
        labels, word = _conventional(call.method, kind, public, ending, self._transport), ending[0]
        toolset = call.client.toolset
        return _Bound(
            self._calls.labels(*self._limits["calls"](server, tool, call.method, word)),
            self._server_seconds.labels(*self._limits["server_seconds"](*labels, call.client.revision)),
            self._client_calls.labels(*self._limits["clients"](client_label(call.client.principal), word)),
            self._decided(target, verdict),
            self._toolset_calls.labels(*self._limits["toolsets"](toolset, word)) if toolset else None,
        )

    def _decided(self, target: Target | None, verdict: str) -> Count | None:
        if target is None or not verdict:
            return None
        class_ = self._classify(target)
        class_label = class_ if class_ in _CLASSES else OTHER
        return self._decisions.labels(*self._limits["decisions"](verdict, target.server, class_label))

    def definition_changed(self, server: str, kind: str) -> None:
        """Of a configured server; `kind` is one of four."""
        self._changes.labels(*self._limits["changes"](server, kind)).value += 1

    def waited(self, profile: str, seconds: float) -> None:
        """A person decided after so long, or nobody did. The profile is a configured one."""
        self._waits.labels(profile).observe(seconds)

    def lagged(self, seconds: float) -> None:
        """The event loop came so late to what was due. Told a few times a second, so that not much waits for `fold`
        where nobody scrapes."""
        self._lag.observe(seconds)
        self.fold()

    def fold(self) -> None:
        """Whatever was observed is counted now. In the thread of the event loop, as all that observes."""
        for observed in self._folded:
            observed.fold()

    def watch(self, source: Source) -> None:
        """`source` is asked at each scrape, in the thread of the event loop."""
        self._scraped.sources.append(source)

    def forget(self) -> None:
        """Labels are looked up anew: a changed policy may class a target differently."""
        self._bound.clear()

    def counted(self) -> Json:
        """How many requests of clients have ended, and how many of them were calls and denied ones."""
        found = {"requests": 0, "calls": 0, "denied": 0}
        for (_, _, method, outcome), count in self._calls.series.items():
            found["requests"] += count.value
            if method in TARGET_KINDS:
                found["calls"] += count.value
                found["denied"] += count.value if outcome == "denied" else 0
        return found

    def scrape(self) -> Callable[[], tuple[bytes, str]]:
        """How things stand now. What it gives renders all series in Prometheus' text form, with its content type; that
        may take a while at 2,000 label sets each: call it in a worker thread."""
        self.fold()
        self._scraped.sample()
        return lambda: (prometheus_client.generate_latest(self.registry), prometheus_client.CONTENT_TYPE_LATEST)


def _shown(target: Target) -> str:
    """The public name of a tool or prompt. `_other` where no list has it (an unlisted name that is forwarded); none for
    resources, of which there is no end."""
    if target.kind == "res":
        return ""
    return target.public if target.item is not None else OTHER


def _conventional(method: str, kind: str, name: str, ending: tuple[str, str], transport: str) -> tuple[str, ...]:
    """The values of `CONVENTIONAL`. `error.type` is absent where there was no error."""
    operation = "execute_tool" if method == "tools/call" else ""
    word, code = ending
    tool, prompt = (name if kind == one else "" for one in ("tool", "prompt"))
    return method, operation, tool, prompt, "" if word == "ok" else word, code, transport


def client_label(principal: str) -> str:
    """Keys are named in the configuration; the subject of a token is not, and may be anybody."""
    return principal if principal.startswith("key:") or principal in ("local", "anonymous") else OTHER
