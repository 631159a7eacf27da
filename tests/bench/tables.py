"""The figures as text: one table, the budgets under it, and the published table. Knows results as they are in
results/latest.json; measures nothing."""

from textwrap import fill
from typing import Any, Final

from subjects import FULL, RULES, SERVERS

BUDGET: Final = 8.0
AIM: Final = 4.0
POLICY_BUDGETS: Final = {"first_ms": 300.0, "longest_slice_ms": 20.0, "again_ms": 5.0}
NGINX: Final = "nginx"
CONCURRENCIES: Final = ("1", "16", "64", "256")
Json = dict[str, Any]


def table(result: Json) -> str:
    """From 16 calls at once on the load never lets a core sleep; at 1 every hop sleeps and wakes, in nginx as in
    Sluice."""
    lines, kind = [], ""
    for row in result["rows"]:
        if row["kind"] != kind:
            kind = row["kind"]
            heads = f"{'at once':>9s}{'CPU us':>10s}{'ratio':>9s}{'calls/s':>9s}{'p50 us':>9s}{'p99 us':>9s}{'MiB':>7s}"
            lines += ["", f"{kind:24s}{heads}"]
        for concurrency, at in row["at"].items():
            figures = f"{at['rate']:9.0f}{at['p50']:9.0f}{at['p99']:9.0f}{at['memory']:7.0f}"
            lines.append(f"  {row['name']:22s}{concurrency:>9s}{at['cpu']:10.1f}{_marked(row, at):>9s}{figures}")
    compared = [f"* to {row['to']}" for row in result["rows"] if _is_other(row)]
    return "\n".join(["ratio: CPU per call relative to nginx with the same bytes", *compared, *lines])


def _marked(row: Json, at: Json) -> str:
    return "" if at["ratio"] is None else _times(at) + ("*" if _is_other(row) else "")


def _times(at: Json) -> str:
    return f"{at['ratio']:,.{1 if at['ratio'] < 100 else 0}f}x"


def _is_other(row: Json) -> bool:
    return row["to"] not in (None, NGINX)


def _found(result: Json, kind: str, name: str, concurrency: str) -> Json | None:
    rows = (row["at"] for row in result["rows"] if row["kind"] == kind and row["name"] == name)
    return next((at[concurrency] for at in rows if concurrency in at), None)


def worst(result: Json) -> float:
    """The largest ratio to nginx at 16."""
    return max(float(row["at"]["16"]["ratio"] or 0) for row in result["rows"])


def report(result: Json) -> str:
    memory = result["memory"]
    text = [table(result), ""]
    if memory:
        text.append(
            f"memory: idle with {SERVERS} servers {memory['idle_mib']} MiB (budget 80), an idle legacy session "
            f"{memory['idle_session_kib']} KiB (budget 32), left by {result['plan']['churn']} sessions "
            f"{memory['left_by_churn_mib']} MiB (budget 5)"
        )
    text.append(f"disk: an append with fdatasync takes {result['fdatasync_us']:.0f} us, part of every p50 with fsync")
    for kind in dict.fromkeys(row["kind"] for row in result["rows"]):
        text += _audit_share(result, kind) + _added(result, kind)
    text.append(f"CPU per call relative to nginx at 16: budget {BUDGET:g}x, aim {AIM:g}x; p50 added: budget 1 ms")
    return "\n".join(text)


def _audit_share(result: Json, kind: str) -> list[str]:
    """What the log with its sync takes of a call."""
    without, full = (_found(result, kind, setup.name, "16") for setup in (RULES, FULL))
    if without is None or full is None:
        return []
    most = full["cpu"] - without["cpu"]
    return [
        f"The audit log with its sync takes {most:.0f} us of a call at 16 ({kind}), {most / full['cpu']:.0%} of it."
    ]


def _added(result: Json, kind: str) -> list[str]:
    plain, full = (_found(result, kind, name, "1") for name in (NGINX, FULL.name))
    if plain is None or full is None:
        return []
    return [f"p50 at 1 ({kind}): {full['p50']:.0f} us, {full['p50'] - plain['p50']:.0f} more than nginx's."]


def policy_report(found: dict[str, float]) -> str:
    """What tests/policy/bench_policy.py measured, next to its budgets."""
    head = f"policy: {found['tools']:g} tools under {found['rows']:g} rows, {found['shown']:g} shown"
    lines = [f"  {name:18s}{found[name]:8.2f}  (budget {budget:g})" for name, budget in POLICY_BUDGETS.items()]
    return "\n".join([head, *lines])


def published(result: Json) -> str:
    """The table of docs/explanation/performance.md, and what it was measured on."""
    lines = [
        "| CPU us a call (times nginx), by calls at once | 1 | 16 | 64 | 256 | calls/s, 64 | p50, p99 us, 16 | MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    kind = ""
    for row in result["rows"]:
        if row["kind"] != kind:
            kind = row["kind"]
            lines.append(f"| **{kind}** | | | | | | | |")
        lines.append("| " + " | ".join([row["name"], *_cells(row["at"], _is_other(row))]) + " |")
    on, memory = result["machine"], result["memory"]
    about = [
        f"{on['date']}, {on['cores']} cores, {on['cpu']}, Python {on['python']}, {on['nginx'].split()[-1]};",
        f"the middle of {result['plan']['rounds']} rounds.",
        f"Before them the machine had a load of {on['load']}; over 1, latencies and calls/s say little.",
        *_audit_share(result, result["rows"][0]["kind"]),
        f"The disk's own sync takes {result['fdatasync_us']} us.",
        f"Idle, Sluice takes {memory['idle_mib']:.0f} MiB with {SERVERS} servers,",
        f"and {memory['idle_session_kib']:.0f} KiB a legacy session.",
    ]
    return "\n".join([*lines, "", fill(" ".join(about), 120)])


def _cells(at: Json, is_other: bool) -> list[str]:
    costs = [f"{at[c]['cpu']:,.0f}{_bracketed(at[c], is_other)}" if c in at else "" for c in CONCURRENCIES]
    middle, rate = at["16"], f"{at['64']['rate']:,.0f}" if "64" in at else ""
    return [*costs, rate, f"{middle['p50']:,.0f}, {middle['p99']:,.0f}", f"{middle['memory']:.0f}"]


def _bracketed(figures: Json, is_other: bool) -> str:
    return "" if figures["ratio"] is None or is_other else f" ({_times(figures)})"
