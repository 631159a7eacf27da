"""What several workers cost, and what they bring: the same calls of eight clients to one process and to `--workers 2`.

Where four cores are free, each worker has a core and the calls a second count; else all of them share one, and the CPU
per call does. Driven by run.py; the result is kept in results/workers.json.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import httpx
from bed import Bed, Json, Plan, sluice
from load import Call, legacy_call
from load import run as load
from subjects import LOAD_CORE, SUBJECT_CORE, Subject, fast_server

CLIENTS, SECONDS, WORKERS = 8, 1, 2
# Calls at once to one process and to all workers: the same in all, where less is shared, and the same for each.
LOADS = {"16 in all": (16, 16), "64 in all": (64, 64), "16 for each": (16, 16 * WORKERS)}
FASTER, DEARER = 1.7, 1.1
RESULTS = Path(__file__).parent / "results" / "workers.json"


class Family(Subject):
    """A process and the workers that it started."""

    def _members(self) -> list[Subject]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [Subject(pid, self.url) for pid in (self.pid, *map(int, children))]

    def cpu(self) -> float:
        return sum(member.cpu() for member in self._members())

    def memory(self) -> float:
        return sum(member.memory() for member in self._members())


def measured(bed: Bed, calls: list[Call], concurrency: int, folder: Path, cores: list[int]) -> Json:
    """CPU microseconds of a call and calls a second, of all clients at once; each keeps to connections of its own."""
    subject = bed.subject

    def client(number: int) -> float:
        own = folder / str(number)
        own.mkdir(exist_ok=True)
        core = cores[number % len(cores)]
        return load(subject, calls[number], concurrency // CLIENTS, SECONDS, own, core).rate

    before = subject.cpu()
    with ThreadPoolExecutor(CLIENTS) as pool:
        rate = sum(pool.map(client, range(CLIENTS)))
    return {"cpu": (subject.cpu() - before) / (rate * SECONDS) * 1e6, "rate": rate, "memory": subject.memory()}


def calls_of(bed: Bed, client: httpx.Client) -> list[Call]:
    keys = ({"Authorization": f"Bearer {key}"} for key in bed.keys)
    return [legacy_call(replace(bed.subject, headers=tuple(key.items())), client) for key in keys]


def main(machine: Json, command: list[str], folder: Path, rounds: int = 15) -> int:
    free = sorted(os.sched_getaffinity(0))
    has_cores = len(free) >= 2 * WORKERS
    cores, loads = (free[:WORKERS], free[WORKERS:]) if has_cores else ([SUBJECT_CORE], [LOAD_CORE])
    with ExitStack() as stack:
        backend = stack.enter_context(fast_server(folder, loads[0]))
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=30))
        plan = Plan({"fast": {"url": backend.url, "concurrency": 256}}, keys=CLIENTS)

        def started(name: str, *options: str) -> tuple[Bed, list[Call]]:
            bed = stack.enter_context(sluice(folder / name, plan, command, "fast__echo", cores, options))
            one = bed.subject
            bed = replace(bed, subject=Family(one.pid, one.url, one.tool, one.headers))
            return bed, calls_of(bed, client)

        beds = {"one": started("one"), "several": started("several", "--workers", str(WORKERS))}
        found: dict[str, Json] = {}
        for name, at_once in LOADS.items():
            rows = [
                {which: measured(*beds[which], n, folder, loads) for which, n in zip(beds, at_once, strict=True)}
                for _ in range(rounds + 1)
            ][1:]
            ratio = {w: round(median(r["several"][w] / r["one"][w] for r in rows), 2) for w in ("cpu", "rate")}
            found[name] = {"ratio": ratio, "rounds": rows}
            budget = f"calls/s at least {FASTER}" if has_cores else f"CPU at most {DEARER}"
            print(f"{WORKERS} workers to one, {name}: CPU {ratio['cpu']}, calls/s {ratio['rate']} ({budget})")
    RESULTS.write_text(json.dumps({"machine": machine, "cores": len(cores), "at": found}, indent=2) + "\n")
    return 0
