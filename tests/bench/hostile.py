"""What hostile clients and servers cost the healthy ones: four clients with a good key and no right at all, and two
servers, at full speed, with every shape of message.

Load of fixed concurrency on a healthy server, in pairs of a quiet and a hostile run; the median of the pairs' ratios
of the p99 counts, and the longest answer of /livez in any hostile run. The hostile load has what the healthy one leaves
of their core, so that the ratio is Sluice's and not that core's. Driven by run.py; the result of all shapes is
kept in results/hostile.json.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from urllib.parse import quote

import httpx
from bed import Bed, Json, Plan, is_open, sluice
from load import META, MODERN, legacy_call, legacy_session, message, plain_headers
from load import run as load
from shapes import SHAPES
from subjects import HERE, LOAD_CORE, Subject, free_port, pinned, running

CONCURRENCY, CONNECTIONS, CLIENTS, SERVERS = 16, 4, 4, 2
BARS = {"ratio": 1.5, "livez": 50.0}
WARM = 1.0  # seconds: by then each hostile peer has used up what it may take at once, which /livez is held against
QUIET = 0.5  # seconds without work: longer than a request waits for its turn before it looks again
IDLE = "chrt", "--idle", "0"
SHORT = "^(wide, small|batches)$"
RESULTS = HERE / "results" / "hostile.json"
KIB, MIB = 1024, 1024 * 1024
SMALL, LARGE, MOST, RESULT = 15 * KIB, MIB, 4 * MIB - KIB, 7 * MIB
BATCHED = "2025-03-26"
SCRIPT = """
wrk.method = "POST"
wrk.body = io.open([[%s]], "rb"):read("*a")
%s
done = function(summary) io.write("RESULT ", summary.requests, "\\n") end
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """`value` is the argument of the clients' calls, `result` the shape of the servers' answers with its bytes; `batch`
    calls in one body; `headers` more of them; `connections` of each client."""

    name: str
    value: str
    result: tuple[str, int]
    batch: int = 1
    headers: Mapping[str, str] | None = None
    connections: int = CONNECTIONS


def attacks() -> Iterator[Attack]:
    wide = "wide", 180 * KIB  # as many values as a result may have
    for name, shape in SHAPES.items():
        yield Attack(f"{name}, small", shape(SMALL), (name, SMALL))
        yield Attack(f"{name}, large", shape(LARGE), (name, LARGE))
    yield Attack("wide, all allowed", SHAPES["wide"](38 * KIB), wide)
    yield Attack("text, all allowed", SHAPES["text"](MOST), ("text", RESULT))
    yield Attack("long escapes, all allowed", SHAPES["long escapes"](MOST), ("long escapes", RESULT))
    yield Attack("over in flight", SHAPES["text"](MOST), wide, connections=32)
    yield Attack("tiny", "0", ("wide", 1))
    yield Attack("batches", "0", wide, batch=50)
    yield Attack("many headers", "0", wide, headers={f"X-{n}": "v" * 20 for n in range(400)})


def servers(healthy: str, bad: str, attack: Attack) -> dict[str, Json]:
    shape, size = attack.result
    good: Json = {"url": f"{healthy}/s/mcp", "required": True, "concurrency": 64}
    return {"s": good} | {f"bad{n}": {"url": f"{bad}/shape/{n}/{size}/{quote(shape)}"} for n in range(SERVERS)}


def bodies(attack: Attack, bed: Bed, client: httpx.Client) -> Iterator[tuple[dict[str, str], str, int]]:
    """Headers, body and connections of each hostile load: the clients without rights, two in each era, and who calls
    the hostile servers, one call after the other, as anybody may."""
    for number, key in enumerate(bed.keys[-CLIENTS:]):
        stranger = replace(bed.subject, headers=(("Authorization", f"Bearer {key}"),))
        params: Json = {"name": "s__do_0", "arguments": {"text": "VALUE"}}
        if number % 2 or attack.batch > 1:
            headers = legacy_session(stranger, client, BATCHED)
        else:
            params |= {"_meta": META}
            routing = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "s__do_0"}
            headers = {**plain_headers(stranger), **routing}
        calls = [json.dumps(message("tools/call", params, id)) for id in range(attack.batch)]
        body = calls[0] if attack.batch == 1 else f"[{','.join(calls)}]"
        yield headers | dict(attack.headers or {}), body.replace('"VALUE"', attack.value), attack.connections
    for number in range(SERVERS):
        body = json.dumps(message("tools/call", {"name": f"bad{number}__do_0", "arguments": {"text": ""}}))
        yield legacy_session(bed.subject, client), body, 1


@contextmanager
def attacking(attack: Attack, bed: Bed, client: httpx.Client, folder: Path, idle: Sequence[str]) -> Iterator[Json]:
    """All of it at once, as fast as Sluice answers; gives how many were answered, and how long /livez took."""
    started, found, over = [], Json(requests=0, livez=0.0), threading.Event()
    for number, (headers, body, connections) in enumerate([*bodies(attack, bed, client)]):  # sessions before the attack
        file, script = folder / f"{number}.body", folder / f"{number}.lua"
        file.write_text(body)
        lines = [f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in headers.items()]
        script.write_text(SCRIPT % (file, "\n".join(lines)))
        options = ["-t1", f"-c{connections}", "-d60s", "--timeout", "20s", "-s", str(script), bed.subject.url]
        command = [*idle, *pinned(LOAD_CORE, ["wrk", *options])]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    watch = threading.Thread(target=_watch, args=(bed.admin, over, found))
    watch.start()
    time.sleep(WARM)
    try:
        yield found
    finally:
        over.set()
        watch.join()
        for process in started:
            process.send_signal(signal.SIGINT)
        for process in started:
            found["requests"] += int(process.communicate()[0].rpartition("RESULT ")[2])


def _watch(admin: str, over: threading.Event, found: Json) -> None:
    """Asks for /livez twenty times a second; keeps the longest answer, in ms."""
    with httpx.Client(trust_env=False, timeout=30) as client:
        while True:
            began = time.perf_counter()
            client.get(f"{admin}/livez").raise_for_status()
            found["livez"] = max(found["livez"], (time.perf_counter() - began) * 1e3)
            if over.wait(0.05):
                return


def settle(subject: Subject) -> None:
    """Returns when Sluice has ended the attack's connections, and is done with their requests. The load's processes are
    gone, but what they sent is still in buffers, or waits for its turn: it would be counted to the next run, which is
    a quiet one."""
    port = httpx.URL(subject.url).port or 80
    while _connections(port) > CLIENTS * CONNECTIONS:
        time.sleep(0.1)
    while True:
        before = subject.cpu()
        time.sleep(QUIET)
        if subject.cpu() - before < QUIET / 50:
            return


def _connections(port: int) -> int:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] != "0A" for line in lines)


class Attacked(Subject):
    """Never at rest."""

    def rest(self) -> None:
        pass


def measure(
    attack: Attack, urls: list[str], command: list[str], folder: Path, pairs: int, seconds: int, idle: Sequence[str]
) -> Json:
    plan = Plan(servers(*urls, attack), keys=1 + CLIENTS, strangers=CLIENTS)
    with sluice(folder, plan, command) as bed, httpx.Client(trust_env=False, timeout=30) as client:
        call = legacy_call(replace(bed.subject, tool="s__do_0"), client)
        attacked = Attacked(bed.subject.pid, bed.subject.url)
        quiet, hostile, seen = [], [], []
        for _ in range(pairs):
            quiet.append(load(bed.subject, call, CONCURRENCY, seconds, folder, LOAD_CORE).p99)
            with attacking(attack, bed, client, folder, idle) as found:
                hostile.append(load(attacked, call, CONCURRENCY, seconds, folder, LOAD_CORE).p99)
            seen.append(found)
            settle(bed.subject)
    return {
        "shape": attack.name,
        "ratio": round(median(b / a for a, b in zip(quiet, hostile, strict=True)), 2),
        "quiet": round(median(quiet)),
        "hostile": round(median(hostile)),
        "livez": round(max(found["livez"] for found in seen), 1),
        "requests": round(median(found["requests"] for found in seen)),
    }


def report(rows: list[Json]) -> str:
    lines = [f"{'shape':28s}{'ratio':>7s}{'quiet us':>10s}{'hostile us':>12s}{'livez ms':>10s}{'requests':>10s}"]
    for row in rows:
        figures = f"{row['quiet']:10d}{row['hostile']:12d}{row['livez']:10.1f}{row['requests']:10d}"
        lines.append(f"{row['shape']:28s}{row['ratio']:7.2f}{figures}")
    for what, bar in BARS.items():
        worst = max(rows, key=lambda row: float(row[what]))
        lines.append(f"worst {what}: {worst[what]:.2f} ({worst['shape']}), at most {bar:g}")
    return "\n".join(lines)


def main(machine: Json, command: list[str], folder: Path, only: str = "", is_short: bool = False) -> int:
    """`only` is a pattern of shapes. Whether all bars hold is the exit code; in the short form, whether all shapes were
    answered."""
    if LOAD_CORE in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {LOAD_CORE})
    pairs, seconds = (2, 1) if is_short else (12, 1)
    chosen = [attack for attack in attacks() if re.search(only or (SHORT if is_short else ""), attack.name)]
    ports = free_port(), free_port()
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    healthy = [sys.executable, str(HERE / "many_server.py"), str(ports[0]), "5", "0"]
    idle = () if is_short else IDLE  # the short form is for busy machines, too, which leave nothing to such processes
    bad = [*idle, sys.executable, str(HERE / "trouble_server.py"), str(ports[1])]
    rows = []
    with (
        running(LOAD_CORE, healthy, folder / "many.log", lambda: is_open(ports[0])),
        running(LOAD_CORE, bad, folder / "trouble.log", lambda: is_open(ports[1])),
    ):
        for number, attack in enumerate(chosen):
            rows.append(measure(attack, urls, command, folder / str(number), pairs, seconds, idle))
            print(f"bench: {rows[-1]}", file=sys.stderr)
    print(report(rows))
    if is_short:
        return 0 if all(row["requests"] for row in rows) else 1
    if not only:
        RESULTS.write_text(json.dumps({"machine": machine, "bars": BARS, "rows": rows}, indent=2) + "\n")
    return 0 if all(row[what] <= bar for row in rows for what, bar in BARS.items()) else 1
