"""The one benchmark: Sluice and nginx in front of the same fast server, in one run, on the same cores.

    python tests/bench/run.py [--short] [--python PYTHON] [--policy] [--audit]

Ratios count, not times: a machine twice as slow gives the same table. Core 0 has what is measured, core 1 the load
and the fast server. Needs Linux; nginx, wrk and the Python that runs Sluice come from Debian, where they can.
Results: tests/bench/results/latest.json. `--policy` and `--audit` measure those alone, without a server: what a long
list costs, and what a record costs.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import interpreter
from load import Call, legacy_call, legacy_session, modern_call, run
from subjects import FULL, ROOT, RULES, SERVERS, STEPS, Setup, Subject, fast_server, nginx, provide_tools, sluice
from tables import BUDGET, CONCURRENCIES, Row, audit_share, policy_report, report, table

RESULTS = Path(__file__).parent / "results" / "latest.json"
SUBJECT_CORE, LOAD_CORE = 0, 1
SHORT_LIMIT = 3 * BUDGET  # a shared CI machine is noisy: only a gross mistake fails there
LIBRARIES = ("httptools", "httpx", "pydantic-core", "uvicorn", "uvloop")
MAKERS: dict[str, Callable[[Subject, httpx.Client], Call]] = {"legacy": legacy_call, "modern": modern_call}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, how long and how often; `warm_up` rounds do not count."""

    setups: tuple[Setup, ...]
    seconds: int
    warm_up: int
    rounds: int
    sessions: int = 0
    churn: int = 0


WHOLE = Plan(STEPS, seconds=2, warm_up=1, rounds=4, sessions=500, churn=10_000)
SHORT = Plan((FULL,), seconds=1, warm_up=0, rounds=1)


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


def machine(python: str) -> dict[str, Any]:
    """What ran this, without saying whose it is; `python` is the version that ran Sluice."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    programs = {"nginx": ["nginx", "-v"], "wrk": ["wrk", "-v"]}
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release().partition("-")[0],
        "date": time.strftime("%Y-%m-%d"),
        "python": python,
        **{library: version(library) for library in LIBRARIES},
        **{name: _first_line(command) for name, command in programs.items()},
    }


def _first_line(command: list[str]) -> str:
    environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return (done.stdout + done.stderr).splitlines()[0].partition(" Copyright")[0]


def disk(folder: Path) -> float:
    """Microseconds of one append and fdatasync: what no program can take away."""
    fd = os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    started, rounds = time.perf_counter(), 200
    for _ in range(rounds):
        os.write(fd, b"x" * 800)
        os.fdatasync(fd)
    os.close(fd)
    return (time.perf_counter() - started) / rounds * 1e6


def rows_of(plain: Subject, proxies: dict[str, Subject], client: httpx.Client) -> Iterator[Row]:
    for era, make in MAKERS.items():
        base = Row(f"nginx {era}", plain, make(plain, client))
        yield base
        for name, proxy in proxies.items():
            yield Row(f"{era} {name}", proxy, make(proxy, client), base)


def bench(plan: Plan, command: list[str], folder: Path) -> tuple[dict[str, Any], str]:
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=30))
        backend = stack.enter_context(fast_server(folder, LOAD_CORE))
        plain = stack.enter_context(nginx(folder, SUBJECT_CORE, backend))
        proxies = {
            setup.name: stack.enter_context(sluice(folder / str(at), SUBJECT_CORE, backend, command, setup))
            for at, setup in enumerate(plan.setups)
        }
        full = proxies[FULL.name]
        idle, fdatasync = full.memory(), disk(folder)
        direct = Row("server itself", backend, legacy_call(backend, client))
        rows = [direct, *rows_of(plain, proxies, client)]
        measure(rows, plan, folder)
        memory = {"idle_mib": idle, "after_load_mib": full.memory()}
        if plan.sessions:
            memory |= session_memory(full, plan)
        compared = [row for row in rows if row.base is not None]
        result = {
            "plan": {**asdict(plan), "servers": SERVERS, "with": "key auth, tool allow list"},
            "ratio_to_nginx": {row.name: {c: round(row.ratio(c), 2) for c in CONCURRENCIES} for row in compared},
            "p50_added_us": {row.name: row.middle(1).p50 - direct.middle(1).p50 for row in compared},
            "audit_share": audit_share(rows, RULES.name, FULL.name),
            "fdatasync_us": round(fdatasync),
            "memory": {name: round(value, 1) for name, value in memory.items()},
            "rows": {row.name: {c: asdict(row.middle(c)) for c in CONCURRENCIES} for row in rows},
        }
        return result, table(rows)


def script(path: str) -> str:
    """What another measurement prints, on the core of what is measured."""
    command = [sys.executable, str(ROOT / path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


def policy() -> dict[str, float]:
    """What a first list costs, and the same list again."""
    return dict(json.loads(script("tests/policy/bench_policy.py")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=f"a few seconds; fails only over {SHORT_LIMIT:g}x")
    parser.add_argument("--python", help="what runs Sluice; Debian's, unless it is said")
    parser.add_argument("--policy", action="store_true", help="a first list of 2,000 tools under 1,000 rows, alone")
    parser.add_argument("--audit", action="store_true", help="what a record costs, alone")
    options = parser.parse_args()
    if options.policy:
        print(policy_report(policy()))
    if options.audit:
        print(script("tests/audit/bench_audit.py"), end="")
    if options.policy or options.audit:
        return 0
    if not sys.platform.startswith("linux"):
        sys.exit("BENCH NOT RUN: it reads /proc and pins cores, so it needs Linux")
    provide_tools()
    if len(os.sched_getaffinity(0)) < 2:
        print("bench: ONE CORE ONLY: latencies and calls/s mean little here, CPU per call still does", file=sys.stderr)
    python = options.python or interpreter.provide()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        plan = SHORT if options.short else WHOLE
        result, lines = bench(plan, [python, "-m", "proxy"], Path(folder))
    print(report(result, lines))
    if options.short:
        return 1 if max(found[16] for found in result["ratio_to_nginx"].values()) > SHORT_LIMIT else 0
    RESULTS.parent.mkdir(exist_ok=True)
    first_list = policy()
    print(policy_report(first_list))
    result = {"machine": machine(interpreter.version_of(python)), **result, "policy": first_list}
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
