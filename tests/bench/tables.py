"""The figures as text: one table, the budgets under it. Knows rows and numbers; measures nothing."""

from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from load import Call, Figures, middle
from subjects import SERVERS, Subject

CONCURRENCIES: Final = (1, 16, 64)
BUDGET: Final = 8.0
AIM: Final = 4.0
POLICY_BUDGETS: Final = {"first_ms": 300.0, "longest_slice_ms": 20.0, "again_ms": 5.0}


@dataclass(slots=True)
class Row:
    """One line of the table. `base` is nginx with the same bytes; none for what nothing is compared with."""

    name: str
    subject: Subject
    call: Call
    base: "Row | None" = None
    runs: dict[int, list[Figures]] = field(default_factory=lambda: {c: [] for c in CONCURRENCIES})

    def middle(self, concurrency: int) -> Figures:
        return middle(self.runs[concurrency])

    def ratio(self, concurrency: int) -> float:
        """CPU per call relative to nginx in the same round; the median over the rounds. 0 where there is no base."""
        if self.base is None:
            return 0.0
        pairs = zip(self.runs[concurrency], self.base.runs[concurrency], strict=True)
        return median(mine.cpu / theirs.cpu for mine, theirs in pairs)


def table(rows: list[Row]) -> str:
    """At concurrency 16 and 64 the load never lets a core sleep; at 1 every hop sleeps and wakes, in nginx as in
    Sluice. `added` is to the p50 of the server itself."""
    cost, direct = f"{'CPU us':>8s}{'ratio':>7s}", rows[0]
    heads = [f"{'concurrency 16':>39s}", f"{'concurrency 1':>29s}", f"{'concurrency 64':>24s}"]
    columns = [f"{cost}{'calls/s':>9s}{'p50 us':>7s}{'p99':>8s}", f"{cost}{'p50 us':>7s}{'added':>7s}"]
    lines = [" |".join([f"{'':26s}", *heads]), " |".join([f"{'':26s}", *columns, f"{cost}{'calls/s':>9s}"])]
    for row in rows:
        full, one, many = row.middle(16), row.middle(1), row.middle(64)
        added = "" if row is direct else f"{one.p50 - direct.middle(1).p50:.0f}"
        lines.append(
            f"{row.name:26s} |{_cost(row, 16)}{full.rate:9.0f}{full.p50:7.0f}{full.p99:8.0f} "
            f"|{_cost(row, 1)}{one.p50:7.0f}{added:>7s} |{_cost(row, 64)}{many.rate:9.0f}"
        )
    return "\n".join(lines)


def _cost(row: Row, concurrency: int) -> str:
    ratio = f"{row.ratio(concurrency):.1f}x" if row.base else ""
    return f"{row.middle(concurrency).cpu:8.1f}{ratio:>7s}"


def audit_share(rows: list[Row], without: str, full: str) -> dict[str, dict[str, float]]:
    """What the log with its sync takes of a call's CPU at 16, by era; nothing where one of the two was not measured."""
    named = {row.name: row.middle(16).cpu for row in rows}
    pairs = {era: (named.get(f"{era} {without}"), named.get(f"{era} {full}")) for era in ("legacy", "modern")}
    return {
        era: {"us": round(most - less, 1), "share": round((most - less) / most, 3)}
        for era, (less, most) in pairs.items()
        if less is not None and most is not None
    }


def report(result: dict[str, Any], lines: str) -> str:
    memory = result["memory"]
    text = [lines, "", f"memory: idle with {SERVERS} servers {memory['idle_mib']} MiB (budget 80)"]
    if "idle_session_kib" in memory:
        text[-1] += f", an idle legacy session {memory['idle_session_kib']} KiB (budget 32)"
        text[-1] += f", left by {result['plan']['churn']} sessions {memory['left_by_churn_mib']} MiB (budget 5)"
    text.append(f"disk: an append with fdatasync takes {result['fdatasync_us']:.0f} us, part of every p50 with fsync")
    for era, audit in result["audit_share"].items():
        text.append(f"audit: {audit['us']:.0f} us of CPU of a {era} call at 16 with fsync, {audit['share']:.0%} of it")
    text.append(f"CPU per call relative to nginx at 16: budget {BUDGET:g}x, aim {AIM:g}x; p50 added: budget 1 ms")
    return "\n".join(text)


def policy_report(found: dict[str, float]) -> str:
    """What tests/policy/bench_policy.py measured, next to its budgets."""
    head = f"policy: {found['tools']:g} tools under {found['rows']:g} rows, {found['shown']:g} shown"
    lines = [f"  {name:18s}{found[name]:8.2f}  (budget {budget:g})" for name, budget in POLICY_BUDGETS.items()]
    return "\n".join([head, *lines])
