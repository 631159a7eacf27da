"""The one benchmark: Sluice, nginx and FastMCP's proxy in front of the same fast server, in one run, on the same cores.

    python tests/bench/run.py [--short] [--python PYTHON] [--table] [--policy] [--audit]
    python tests/bench/run.py [--python PYTHON] [--growth] [--trouble] [--workers] [--hostile [--short]]
    python tests/bench/run.py [--python PYTHON] --peers [--peer NAME=PATH ...]

Ratios count, not times: a machine twice as slow gives the same table. Core 0 has what is measured, core 1 the load
and the fast server. Needs Linux; nginx, wrk and the Python that runs Sluice come from Debian, where they can.
Results: tests/bench/results/latest.json; `--table` writes the table in PAGE anew out of it. `--policy` and `--audit`
measure those alone, without a server: what a long list costs, and what a record costs.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gateway_page
import gateways
import growth
import hostile
import httpx
import interpreter
import several
import trouble
from load import Kind, legacy_session, make_call
from machine import disk, machine
from rows import CONCURRENCIES, Row, measure
from subjects import (
    CHILD,
    FASTMCP_SECONDS,
    FULL,
    LOAD_CORE,
    ROOT,
    SERVERS,
    STEPS,
    SUBJECT_CORE,
    Setup,
    Subject,
    fast_server,
    fastmcp,
    nginx,
    provide_tools,
    sluice,
)
from tables import BUDGET, policy_report, published, report, worst

RESULTS = Path(__file__).parent / "results" / "latest.json"
PAGE = ROOT / "docs" / "explanation" / "performance.md"
TABLE = re.compile(r"(?<=<!-- make bench ARGS=--table -->\n).*?(?=\n<!-- end of the table -->)", re.DOTALL)
SHORT_LIMIT = 3 * BUDGET  # a shared CI machine is noisy: only a gross mistake fails there
MOST = 256
LEGACY, MODERN = Kind("legacy JSON"), Kind("modern JSON", "modern")
OTHERS = (
    Kind("legacy, answered by SSE", suffix="_sse"),
    Kind("legacy, 1 KiB", suffix="_1k"),
    Kind("legacy, 28 KiB", suffix="_28k"),
    Kind("legacy, 1 MiB", suffix="_1024k"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, how long and how often. `steps` are measured for `stepped`, the last of them for `kinds`, too,
    and for these at `most` calls at once besides. `beside`: for the first kind also the server itself, a started one
    and FastMCP's proxy. `warms_up`: each row is run once before it counts."""

    stepped: tuple[Kind, ...]
    steps: tuple[Setup, ...]
    rounds: int
    seconds: int = 1
    kinds: tuple[Kind, ...] = ()
    most: tuple[int, ...] = ()
    warms_up: bool = False
    beside: bool = False
    sessions: int = 0
    churn: int = 0


WHOLE = Plan(
    (LEGACY, MODERN), STEPS, 5, kinds=OTHERS, most=(MOST,), warms_up=True, beside=True, sessions=500, churn=10_000
)
SHORT = Plan((LEGACY, MODERN), (FULL,), 1)


@dataclass(frozen=True, slots=True)
class Bench:
    """What all kinds of calls are measured with. `command` runs Sluice, `peer` is FastMCP's interpreter."""

    plan: Plan
    backend: Subject
    command: list[str]
    peer: str | None
    client: httpx.Client

    def kind(self, kind: Kind, folder: Path) -> list[dict[str, Any]]:
        """Every kind has processes of its own, so that the memory after it is of it."""
        folder.mkdir()
        with ExitStack() as stack:
            rows = self._rows(kind, folder, stack)
            measure(rows, self.plan.rounds, folder, self.plan.warms_up)
            return [row.result() for row in rows]

    def _rows(self, kind: Kind, folder: Path, stack: ExitStack) -> list[Row]:
        plan, most = self.plan, (*CONCURRENCIES, *self.plan.most)

        def row(name: str, subject: Subject, concurrencies: tuple[int, ...], base: Row | None = None) -> Row:
            return Row(
                kind.name, name, subject, make_call(kind, subject, self.client), concurrencies, base, plan.seconds
            )

        def started(setup: Setup) -> Subject:
            return stack.enter_context(sluice(folder / setup.name, SUBJECT_CORE, self.backend, self.command, setup))

        plain = row("nginx", stack.enter_context(nginx(folder, SUBJECT_CORE, self.backend)), most)
        is_first = plan.beside and kind is plan.stepped[0]
        rows = [row("server itself", self.backend, (1, 16))] if is_first else []
        rows.append(plain)
        for setup in plan.steps if kind in plan.stepped else (FULL,):
            rows.append(row(setup.name, started(setup), most if setup is FULL else CONCURRENCIES, plain))
        if is_first:
            rows.append(row(CHILD.name, started(CHILD), most, rows[-1]))
        if is_first and self.peer is not None:
            peer = stack.enter_context(fastmcp(folder, SUBJECT_CORE, self.backend, self.peer))
            rows.append(row(f"FastMCP proxy {interpreter.PEER_VERSION}", peer, (1, 16), plain))
            rows[-1].seconds = FASTMCP_SECONDS
        return rows

    def memory(self, folder: Path) -> dict[str, float]:
        with sluice(folder, SUBJECT_CORE, self.backend, self.command) as subject:
            found = {"idle_mib": subject.memory(), **session_memory(subject, self.plan)}
        return {name: round(value, 1) for name, value in found.items()}


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


def bench(plan: Plan, python: str, folder: Path) -> dict[str, Any]:
    peer = interpreter.provide_peer() if plan.beside else None
    with fast_server(folder, LOAD_CORE) as backend, httpx.Client(trust_env=False, timeout=30) as client:
        made = Bench(plan, backend, [python, "-m", "sluicegate"], peer, client)
        kinds = [*plan.stepped, *plan.kinds]
        rows = [row for at, kind in enumerate(kinds) for row in made.kind(kind, folder / str(at))]
        return {
            "plan": {**asdict(plan), "servers": SERVERS, "with": "key auth, tool allow list"},
            "fdatasync_us": round(disk(folder)[0]),
            "memory": made.memory(folder / "memory") if plan.sessions else {},
            "rows": rows,
        }


def script(path: str) -> str:
    """What another measurement prints, on the core of what is measured."""
    command = [sys.executable, str(ROOT / path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "proxy")}
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


def policy() -> dict[str, float]:
    """What a first list costs, and the same list again."""
    return dict(json.loads(script("tests/policy/bench_policy.py")))


def beside(options: argparse.Namespace, python: str) -> int:
    """What is measured without a comparison with nginx: how Sluice grows, what bad servers cost the healthy ones, what
    several workers bring, what hostile peers cost."""
    found, command = machine(interpreter.version_of(python)), [python, "-m", "sluicegate"]
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        if options.growth is not None:
            growth.main(found, command, Path(folder), options.growth)
        if options.trouble:
            trouble.main(found, command, Path(folder))
        if options.workers:
            several.main(found, command, Path(folder))
        if options.peers:
            gateways.main(found, command, Path(folder), dict(options.peer))
        if options.hostile is not None:
            return hostile.main(found, command, Path(folder), options.hostile, options.short)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=f"a few seconds; fails only over {SHORT_LIMIT:g}x")
    parser.add_argument("--python", help="what runs Sluice; Debian's, unless it is said")
    parser.add_argument("--table", action="store_true", help="the published table anew, out of the last results")
    parser.add_argument("--policy", action="store_true", help="a first list of 2,000 tools under 1,000 rows, alone")
    parser.add_argument("--growth", metavar="CURVE", nargs="?", const="", help="how it grows: all curves, or some")
    parser.add_argument("--trouble", action="store_true", help="what bad servers cost the healthy ones beside them")
    parser.add_argument("--workers", action="store_true", help="what two workers cost, and bring where cores are free")
    parser.add_argument("--hostile", metavar="SHAPE", nargs="?", const="", help="hostile clients and servers beside it")
    parser.add_argument("--peers", action="store_true", help="other gateways beside it, those that Go and pip install")
    parser.add_argument(
        "--peer", metavar="NAME=PATH", type=gateways.named, action="append", default=[],
        help=f"with --peers: the program of one of them ({', '.join(gateways.NAMES)})",
    )  # fmt: skip
    parser.add_argument("--audit", action="store_true", help="what a record costs, alone")
    options = parser.parse_args()
    options.peers = options.peers or bool(options.peer)
    if options.table:
        PAGE.write_text(TABLE.sub(lambda _: published(json.loads(RESULTS.read_text())), PAGE.read_text()))
        gateway_page.write()
    if options.policy:
        print(policy_report(policy()))
    if options.audit:
        print(script("tests/audit/bench_audit.py"), end="")
    if options.table or options.policy or options.audit:
        return 0
    if not sys.platform.startswith("linux"):
        sys.exit("BENCH NOT RUN: it reads /proc and pins cores, so it needs Linux")
    provide_tools()
    if len(os.sched_getaffinity(0)) < 2:
        print("bench: ONE CORE ONLY: latencies and calls/s mean little here, CPU per call still does", file=sys.stderr)
    python = options.python or interpreter.provide()
    found = machine(interpreter.version_of(python))
    others = options.trouble or options.workers or options.peers
    if options.growth is not None or options.hostile is not None or others:
        return beside(options, python)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        result = bench(SHORT if options.short else WHOLE, python, Path(folder))
    print(report(result))
    if options.short:
        return 1 if worst(result) > SHORT_LIMIT else 0
    RESULTS.parent.mkdir(exist_ok=True)
    first_list = policy()
    print(policy_report(first_list))
    RESULTS.write_text(json.dumps({"machine": found, **result, "policy": first_list}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
