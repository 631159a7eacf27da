"""The one benchmark: Sluice and nginx in front of the same fast server, in one run, on the same cores.

    python tests/bench/run.py [--short] [--command "sluice"]

Ratios count, not times: a machine twice as slow gives the same table. Core 0 has what is measured, core 1 the load
and the fast server. Needs Linux; nginx and wrk come from Debian. Results: tests/bench/results/latest.json.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from load import Call, Figures, legacy_call, legacy_session, middle, modern_call, run
from subjects import SERVERS, Subject, fast_server, nginx, provide_tools, sluice

RESULTS = Path(__file__).parent / "results" / "latest.json"
SUBJECT_CORE, LOAD_CORE = 0, 1
CONCURRENCIES = (1, 16)  # for latency, and for CPU per call
BUDGET, AIM = 8.0, 4.0
SHORT_LIMIT = 20.0  # a shared CI machine is noisy: only a gross mistake fails there
LIBRARIES = ("httptools", "httpx", "pydantic-core", "uvicorn", "uvloop")


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often; `warm_up` rounds do not count."""

    seconds: int
    warm_up: int
    rounds: int
    sessions: int
    churn: int


FULL = Plan(seconds=4, warm_up=1, rounds=5, sessions=500, churn=10_000)
SHORT = Plan(seconds=1, warm_up=0, rounds=1, sessions=0, churn=0)


@dataclass(slots=True)
class Row:
    """One line of the table."""

    name: str
    subject: Subject
    call: Call
    runs: dict[int, list[Figures]] = field(default_factory=lambda: {c: [] for c in CONCURRENCIES})

    def middle(self, concurrency: int) -> Figures:
        return middle(self.runs[concurrency])


def measure(rows: list[Row], plan: Plan, folder: Path) -> None:
    """Rounds of all rows, not rows of all rounds: what else the machine does then hits all of them."""
    for round in range(plan.warm_up + plan.rounds):
        counts = round >= plan.warm_up
        for row in rows:
            for concurrency in CONCURRENCIES:
                seconds = plan.seconds if counts else 1
                figures = run(row.subject, row.call, concurrency, seconds, folder, LOAD_CORE)
                if counts:
                    row.runs[concurrency].append(figures)
        print(f"bench: round {round + 1} of {plan.warm_up + plan.rounds}", file=sys.stderr)


def ratio(row: Row, base: Row, concurrency: int) -> float:
    """CPU per call relative to nginx in the same round; the median over the rounds."""
    pairs = zip(row.runs[concurrency], base.runs[concurrency], strict=True)
    return median(mine.cpu / theirs.cpu for mine, theirs in pairs)


def session_memory(subject: Subject, plan: Plan) -> dict[str, float]:
    """What legacy sessions that were used once and then sit idle keep (KiB each), and what many of them leave
    behind (MiB) when they are gone."""

    def used_once(client: httpx.Client) -> dict[str, str]:
        headers = legacy_session(subject, client)
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        client.post(subject.url, headers=headers, json=body).raise_for_status()
        return headers

    with httpx.Client(trust_env=False) as client:
        for _ in range(200):
            client.delete(subject.url, headers=used_once(client))
        before = subject.memory()
        kept = [used_once(client) for _ in range(plan.sessions)]
        idle = (subject.memory() - before) * 1024 / plan.sessions
        for headers in kept:
            client.delete(subject.url, headers=headers)
        before = subject.memory()
        for _ in range(plan.churn):
            client.delete(subject.url, headers=used_once(client))
        return {"idle_session_kib": idle, "left_by_churn_mib": subject.memory() - before}


def machine() -> dict[str, Any]:
    """What ran this, without saying whose it is."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    programs = {"nginx": ["nginx", "-v"], "wrk": ["wrk", "-v"]}
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        **{library: version(library) for library in LIBRARIES},
        **{name: _first_line(command) for name, command in programs.items()},
    }


def _first_line(command: list[str]) -> str:
    environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return (done.stdout + done.stderr).splitlines()[0].partition(" Copyright")[0]


def table(rows: list[Row], bases: dict[str, Row], direct: Row) -> str:
    """At concurrency 16 the load never lets a core sleep; at 1 every hop sleeps and wakes, in nginx as in Sluice."""
    cost = f"{'CPU us':>8s}{'ratio':>7s}"
    lines = [f"{'':15s}{'concurrency 16, us':>39s}  |{'concurrency 1, us':>37s}"]
    lines.append(f"{'':15s}{cost}{'calls/s':>9s}{'p50':>7s}{'p99':>8s}  |{cost}{'p50':>7s}{'added':>7s}{'p99':>8s}")
    for row in rows:
        full, one, base = row.middle(16), row.middle(1), bases.get(row.name)
        ratios = [f"{ratio(row, base, concurrency):.1f}x" if base else "" for concurrency in (16, 1)]
        added = "" if row is direct else f"{one.p50 - direct.middle(1).p50:.0f}"
        left = f"{row.name:15s}{full.cpu:8.1f}{ratios[0]:>7s}{full.rate:9.0f}{full.p50:7.0f}{full.p99:8.0f}"
        lines.append(f"{left}  |{one.cpu:8.1f}{ratios[1]:>7s}{one.p50:7.0f}{added:>7s}{one.p99:8.0f}")
    return "\n".join(lines)


def bench(plan: Plan, command: list[str], folder: Path) -> tuple[dict[str, Any], str]:
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=30))
        backend = stack.enter_context(fast_server(folder, LOAD_CORE))
        plain = stack.enter_context(nginx(folder, SUBJECT_CORE, backend))
        proxy = stack.enter_context(sluice(folder, SUBJECT_CORE, backend, command))
        idle = proxy.memory()
        makers: dict[str, Callable[[Subject, httpx.Client], Call]] = {"legacy": legacy_call, "modern": modern_call}
        direct = Row("server itself", backend, legacy_call(backend, client))
        rows = [direct]
        bases: dict[str, Row] = {}
        for era, make in makers.items():
            base = Row(f"nginx {era}", plain, make(plain, client))
            bases[f"sluice {era}"] = base
            rows += [base, Row(f"sluice {era}", proxy, make(proxy, client))]
        rows.sort(key=lambda row: row.name.startswith("sluice"))
        measure(rows, plan, folder)
        memory = {"idle_mib": idle, "after_load_mib": proxy.memory()}
        if plan.sessions:
            memory |= session_memory(proxy, plan)
        ratios = {row.name: round(ratio(row, bases[row.name], 16), 2) for row in rows if row.name in bases}
        added = {row.name: row.middle(1).p50 - direct.middle(1).p50 for row in rows if row.name in bases}
        result = {
            "plan": {**asdict(plan), "servers": SERVERS, "with": "key auth, tool allow list, metrics"},
            "ratio_to_nginx": ratios,
            "p50_added_us": added,
            "memory": {name: round(value, 1) for name, value in memory.items()},
            "rows": {row.name: {c: asdict(row.middle(c)) for c in CONCURRENCIES} for row in rows},
        }
        return result, table(rows, bases, direct)


def report(result: dict[str, Any], lines: str) -> str:
    memory = result["memory"]
    text = [lines, "", f"memory: idle with {SERVERS} servers {memory['idle_mib']} MiB (budget 80)"]
    if "idle_session_kib" in memory:
        text[-1] += f", an idle legacy session {memory['idle_session_kib']} KiB (budget 32)"
        text[-1] += f", left by {result['plan']['churn']} sessions {memory['left_by_churn_mib']} MiB (budget 5)"
    text.append(f"CPU per call relative to nginx: budget {BUDGET:g}x, aim {AIM:g}x; p50 added: budget 1 ms, aim 0.3 ms")
    return "\n".join(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=f"a few seconds; fails only over {SHORT_LIMIT:g}x")
    parser.add_argument("--command", default=f"{sys.executable} -m proxy", help="how Sluice is started")
    options = parser.parse_args()
    if not sys.platform.startswith("linux"):
        sys.exit("BENCH NOT RUN: it reads /proc and pins cores, so it needs Linux")
    provide_tools()
    if len(os.sched_getaffinity(0)) < 2:
        print("bench: ONE CORE ONLY: latencies and calls/s mean little here, CPU per call still does", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        plan = SHORT if options.short else FULL
        result, lines = bench(plan, shlex.split(options.command), Path(folder))
    print(report(result, lines))
    if options.short:
        return 1 if max(result["ratio_to_nginx"].values()) > SHORT_LIMIT else 0
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
