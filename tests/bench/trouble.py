"""What troublesome servers cost the healthy ones behind the same Sluice: one that is slow, one that never answers, one
that refuses connections, one that talks without end, one whose results are a megabyte.

Load of fixed concurrency on healthy servers, with and without the trouble going on, in turns within one run: the ratio
of the p99 counts, and is budgeted. Driven by run.py; the result is kept in results/trouble.json.
"""

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import httpx
from bed import Bed, Json, Plan, is_open, sluice
from load import Call, Figures, legacy_call, legacy_session, message, middle
from load import run as load
from subjects import HERE, LOAD_CORE, free_port, running

CONCURRENCY, CLIENTS, SECONDS = 16, 8, 3
BUDGET = 1.5
RESULTS = HERE / "results" / "trouble.json"
BAD = ("slow", "dead", "gone", "flood", "huge")
REFUSED = ("dead", "gone", "flood")


def servers(healthy: str, bad: str) -> dict[str, Json]:
    good = {f"s{n}": {"url": f"{healthy}/s{n}/mcp", "required": True, "concurrency": 64} for n in range(3)}
    urls = {name: f"{bad}/{name}" for name in BAD} | {"gone": f"http://127.0.0.1:{free_port()}/mcp"}
    return good | {name: {"url": url, "timeout": "5s", "max_time": "10s"} for name, url in urls.items()}


@contextmanager
def calling(bed: Bed, names: tuple[str, ...], bad: str) -> Iterator[Counter[str]]:
    """Eight clients that call the bad servers in turns, over and over; counts what came of it."""
    if "flood" in names:
        httpx.post(f"{bad}/loud", trust_env=False)
    over, came = threading.Event(), Counter[str]()

    def call(number: int) -> None:
        with httpx.Client(trust_env=False, timeout=15) as client:
            headers = legacy_session(bed.subject, client)
            while not over.is_set():
                name = names[number % len(names)]
                number += 1
                came[name if _call(client, bed, headers, name, over) else f"{name} failed"] += 1
                if name in REFUSED:
                    time.sleep(0.1)  # refused at once: without a pause this would be load as any other

    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    try:
        yield came
    finally:
        httpx.post(f"{bad}/quiet", trust_env=False)
        over.set()
        for thread in threads:
            thread.join(20)


def _call(client: httpx.Client, bed: Bed, headers: dict[str, str], name: str, over: threading.Event) -> bool:
    body = message("tools/call", {"name": f"{name}__do_0", "arguments": {"text": "hello"}})
    try:
        with client.stream("POST", bed.subject.url, headers=headers, json=body) as answer:
            for _ in answer.iter_bytes():
                if over.is_set():
                    break
    except httpx.HTTPError:
        return False
    return True


def main(machine: Json, command: list[str], folder: Path, rounds: int = 12, bad: tuple[str, ...] = BAD) -> int:
    if LOAD_CORE in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {LOAD_CORE})  # the clients of the bad servers are load, too
    ports = free_port(), free_port()
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    many = [sys.executable, str(HERE / "many_server.py"), str(ports[0]), "5", "0"]
    trouble = [sys.executable, str(HERE / "trouble_server.py"), str(ports[1])]
    with (
        running(LOAD_CORE, many, folder / "many.log", lambda: is_open(ports[0])),
        running(LOAD_CORE, trouble, folder / "trouble.log", lambda: is_open(ports[1])),
        sluice(folder / "sluice", Plan(servers(*urls)), command) as bed,
        httpx.Client(trust_env=False, timeout=30) as client,
    ):
        calls = [legacy_call(replace(bed.subject, tool=f"s{n}__do_0"), client) for n in range(3)]
        load(bed.subject, calls[0], CONCURRENCY, 2, folder, LOAD_CORE)
        calm: list[Figures] = []
        troubled: list[Figures] = []
        came = Counter[str]()
        for number in range(rounds):
            call: Call = calls[number % len(calls)]
            calm.append(load(bed.subject, call, CONCURRENCY, SECONDS, folder, LOAD_CORE))
            with calling(bed, bad, urls[1]) as found:
                troubled.append(load(bed.subject, call, CONCURRENCY, SECONDS, folder, LOAD_CORE))
            came += found
        memory = bed.subject.memory()
    pairs = list(zip(calm, troubled, strict=True))
    ratios = {what: round(median(getattr(b, what) / getattr(a, what) for a, b in pairs), 2) for what in ("p50", "p99")}
    print(f"calls to the bad ones meanwhile: {dict(came)}; {memory:.0f} MiB after it")
    for name, figures in (("calm", middle(calm)), ("trouble", middle(troubled))):
        spent = f"{figures.rate:6.0f} calls/s, CPU {figures.cpu:4.0f} us a call"
        print(f"{name:8s} p50 {figures.p50:7.0f} us, p99 {figures.p99:7.0f} us, {spent}")
    print(f"ratio    p50 {ratios['p50']:7.2f}   , p99 {ratios['p99']:7.2f} (budget {BUDGET})")
    if bad == BAD:
        runs = {"calm": asdict(middle(calm)), "trouble": asdict(middle(troubled))}
        kept = {"machine": machine, "concurrency": CONCURRENCY, "bad_clients": CLIENTS, "ratio": ratios, **runs}
        RESULTS.write_text(json.dumps(kept, indent=2) + "\n")
    return 0
