"""How Sluice grows: with sessions, streams, servers, rules, resources and tools, each alone, in real processes.

A table a curve: what one more of it costs should stay what it is while the rest of the table grows. Driven by run.py;
the result is kept in results/growth.json.
"""

import asyncio
import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Any

import httpx
from bed import START, Bed, Json, Plan, Stream, is_open, open_stream, sluice
from load import HELLO, LEGACY, Call, message, modern_call, plain_headers
from load import run as load
from subjects import HERE, LOAD_CORE, SUBJECT_CORE, Subject, free_port, pinned, running

RESULTS = HERE / "results" / "growth.json"
ALLOW = "p, role:bench, *, *, *, allow\n"
Row = dict[str, float]


@contextmanager
def many_servers(folder: Path, tools: int, resources: int = 0) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, str(HERE / "many_server.py"), str(port), str(tools), str(resources)]
    with running(LOAD_CORE, command, folder / f"many{port}.log", lambda: is_open(port)):
        yield f"http://127.0.0.1:{port}"


def servers(base: str, count: int) -> dict[str, Json]:
    return {f"s{n}": {"url": f"{base}/s{n}/mcp", "required": True, "concurrency": 64} for n in range(count)}


class Growth:
    """What all curves need: a folder for each measurement and the command that starts Sluice."""

    def __init__(self, folder: Path, command: list[str], rounds: int) -> None:
        self.folder, self.command, self.rounds = folder, command, rounds
        self._beds = 0
        self._client = httpx.Client(trust_env=False, timeout=60)

    def bed(self, plan: Plan) -> Any:
        self._beds += 1
        return sluice(self.folder / str(self._beds), plan, self.command, "s0__do_0")

    def cpu(self, subject: Subject, call: Call) -> float:
        """Microseconds of Sluice for one call at concurrency 16: the median of the rounds, after one to warm up."""
        figures = [load(subject, call, 16, 1, self.folder, LOAD_CORE).cpu for _ in range(self.rounds + 1)]
        return median(figures[1:])

    # ------------------------------------------------------------ sessions and streams

    def sessions(self) -> Iterator[Row]:
        """Legacy sessions that listed once and then sit idle."""
        with many_servers(self.folder, 1) as base, self.bed(Plan(servers(base, 10))) as bed:
            call = modern_call(bed.subject, self._client)
            idle_sessions(bed, 200)
            before, opened = bed.subject.memory(), 0
            for count in (0, 100, 1_000, 10_000):
                worked, added = bed.subject.cpu(), count - opened
                idle_sessions(bed, added)
                worked, opened = (bed.subject.cpu() - worked) * 1e3, count
                kib = (bed.subject.memory() - before) * 1024 / count if count else 0.0
                each = worked / added if added else 0.0
                cpu = self.cpu(bed.subject, call)
                yield {"sessions": count, "KiB each": kib, "CPU us a call": cpu, "CPU ms to open one": each}

    def streams(self, keys: int) -> Iterator[Row]:
        """Open listen streams of modern clients, of one client or each of its own, when a list changes."""
        for count in (10, 100, 1_000):
            with many_servers(self.folder, 20) as base:
                with self.bed(Plan(servers(base, 10), keys=min(count, keys))) as bed:
                    bed.post("tools/list", {})
                    yield asyncio.run(hear(bed, base, count))

    # ------------------------------------------------------------ servers, rules, resources

    def servers(self) -> Iterator[Row]:
        """HTTP servers of 20 tools each."""
        for count in (10, 50, 100):
            with many_servers(self.folder, 20) as base, self.bed(Plan(servers(base, count))) as bed:
                memory = bed.subject.memory()
                first, again = first_and_again(bed)
                cpu = self.cpu(bed.subject, modern_call(bed.subject, self._client))
                yield {"servers": count, "ready s": bed.ready_after, "idle MiB": memory, "first list ms": first,
                       "again ms": again, "CPU us a call": cpu}  # fmt: skip

    def rules(self) -> Iterator[Row]:
        """Rows of a policy, a fifth of them for whoever calls, over 10 servers of 20 tools."""
        for count in (100, 1_000, 10_000):
            rows = policy_rows(count)
            loaded = seconds_to_check(self.folder, rows, self.command, self.rounds)
            with many_servers(self.folder, 20) as base, self.bed(Plan(servers(base, 10), rows)) as bed:
                first, again = first_and_again(bed)
                cpu = self.cpu(bed.subject, modern_call(bed.subject, self._client))
                yield {"rows": count, "check CPU s": loaded, "ready s": bed.ready_after, "first list ms": first,
                       "again ms": again, "CPU us a call": cpu}  # fmt: skip

    def resources(self) -> Iterator[Row]:
        """Walked through to the end, in pages of 100 on both sides."""
        for count in (1_000, 10_000, 50_000):
            with many_servers(self.folder, 1, count) as base, self.bed(Plan(servers(base, 1), page=100)) as bed:
                bed.post("resources/list", {})
                before, worked = bed.subject.memory(), bed.subject.cpu()
                seconds, found = walk(bed)
                assert found == count, f"{found} of {count} resources"
                used = bed.subject.cpu() - worked
                yield {"resources": count, "walk s": seconds, "CPU s": used,
                       "more MiB": bed.subject.memory() - before, "CPU ms a page": used * 1e5 / count}  # fmt: skip

    def list_again(self) -> Iterator[Row]:
        """A list of tools, in one page, and the same again: what was judged and encoded once is not once more."""
        for count in (500, 2_000, 4_000):
            with many_servers(self.folder, count // 50) as base:
                with self.bed(Plan(servers(base, 50), policy_rows(1_000), page=10_000)) as bed:
                    first, again = first_and_again(bed)
                    worked, body = bed.subject.cpu(), b""
                    for _ in range(50):
                        _, body = bed.post("tools/list", {})
                    used = (bed.subject.cpu() - worked) * 1e3 / 50
                    yield {"tools": body.count(b'"inputSchema"'), "KiB": len(body) / 1024, "first ms": first,
                           "again ms": again, "again CPU ms": used, "CPU us a tool": used * 1e3 / count}  # fmt: skip

    # ------------------------------------------------------------ start

    def start(self) -> Iterator[Row]:
        """`sluice --help`, and `sluice serve` until it is ready, with servers of which one may hang."""
        helped = [seconds_of([*self.command, "--help"]) for _ in range(self.rounds)]
        yield {"servers": 0, "hang": 0, "seconds": median(helped)}
        for count, hanging in ((1, 0), (10, 0), (10, 1)):
            times = []
            for _ in range(self.rounds):
                with many_servers(self.folder, 20) as base:
                    told = servers(base, count - hanging)
                    told |= {f"hang{n}": {"url": f"{base}/hang{n}"} for n in range(hanging)}
                    with self.bed(Plan(told)) as bed:
                        bed.post("tools/list", {})
                        times.append(bed.ready_after)
            yield {"servers": count, "hang": hanging, "seconds": median(times)}


# ---------------------------------------------------------------- what is done to it


def idle_sessions(bed: Bed, count: int) -> None:
    """Opens legacy sessions, has each list its tools once, and leaves them."""
    url = httpx.URL(bed.subject.url)
    connection = http.client.HTTPConnection(url.host, url.port)
    head = plain_headers(bed.subject)

    def post(body: Json, more: dict[str, str]) -> str:
        connection.request("POST", "/mcp", json.dumps(body), {**head, **more})
        answer = connection.getresponse()
        answer.read()
        assert answer.status < 300, answer.status
        return answer.getheader("mcp-session-id", "")

    for _ in range(count):
        more = {"Mcp-Session-Id": post(message("initialize", HELLO), {}), "MCP-Protocol-Version": LEGACY}
        post(message("notifications/initialized", {}, None), more)
        post(message("tools/list", {}), more)
    connection.close()


async def hear(bed: Bed, base: str, count: int) -> Row:
    """Opens streams, has the servers change, and waits until every stream was told."""
    before, worked = bed.subject.memory(), bed.subject.cpu()
    streams: list[Stream] = []
    while len(streams) < count:
        keys = [bed.keys[n % len(bed.keys)] for n in range(len(streams), min(count, len(streams) + 20))]
        streams += await asyncio.gather(*(open_stream(bed, key) for key in keys))
    await asyncio.sleep(1)
    kib = (bed.subject.memory() - before) * 1024 / count
    opened = (bed.subject.cpu() - worked) * 1e3 / count
    worked, began = bed.subject.cpu(), time.perf_counter()
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.post(f"{base}/change")
    async with asyncio.timeout(START):
        await asyncio.gather(*(stream.hear(b"tools/list_changed") for stream in streams))
    seconds = time.perf_counter() - began
    await asyncio.sleep(1)
    told = (bed.subject.cpu() - worked) * 1e3
    for stream in streams:
        stream.close()
    return {"streams": count, "KiB each": kib, "CPU ms to open one": opened, "all told s": seconds,
            "CPU ms": told, "CPU ms each": told / count}  # fmt: skip


def first_and_again(bed: Bed) -> tuple[float, float]:
    """Milliseconds of a first list, and of the same list again."""
    first, body = bed.post("tools/list", {})
    again = []
    for _ in range(5):
        seconds, body_again = bed.post("tools/list", {})
        assert len(body_again) == len(body)
        again.append(seconds)
    return first * 1e3, median(again) * 1e3


def walk(bed: Bed) -> tuple[float, int]:
    began, found, cursor = time.perf_counter(), 0, {}
    while True:
        result = json.loads(bed.post("resources/list", cursor)[1])["result"]
        found += len(result["resources"])
        if "nextCursor" not in result:
            return time.perf_counter() - began, found
        cursor = {"cursor": result["nextCursor"]}


def policy_rows(count: int) -> str:
    """For five roles on ten servers, half of them by a tool's name; who calls has one of the roles."""
    rows = [ALLOW]
    for n in range(count - 1):
        role = "role:bench" if n % 5 == 0 else f"role:team-{n % 5}"
        thing = f"tool:do_{n}" if n % 2 else f"tool:get_{n}_*"
        act, effect = ("read", "write")[n // 10 % 2], ("allow", "deny")[n % 7 == 0]
        rows.append(f"p, {role}, s{n % 10}, {thing}, {act}, {effect}\n")
    return "".join(rows)


def seconds_to_check(folder: Path, rows: str, command: list[str], rounds: int) -> float:
    """CPU seconds of `sluice check` to read and check them, without those for one row."""

    def check(text: str) -> float:
        file, policy = folder / "check.yaml", folder / "check.csv"
        policy.write_text(text)
        told = {f"s{n}": {"url": f"http://127.0.0.1:9/s{n}"} for n in range(10)}
        file.write_text(json.dumps({"version": 1, "servers": told, "policy": {"files": [str(policy)]}}))
        before = getrusage(RUSAGE_CHILDREN).ru_utime
        seconds_of([*command, "check", "-c", str(file)])
        return getrusage(RUSAGE_CHILDREN).ru_utime - before

    return median(check(rows) - check(ALLOW) for _ in range(rounds))


def seconds_of(command: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(pinned(SUBJECT_CORE, command), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return time.perf_counter() - began


# ---------------------------------------------------------------- all of it


def table(title: str, rows: list[Row]) -> str:
    widths = {name: max(len(name), 9) for name in rows[0]}
    lines = ["  ".join(f"{name:>{width}s}" for name, width in widths.items())]
    for row in rows:
        lines.append("  ".join(f"{_number(row[name]):>{width}s}" for name, width in widths.items()))
    return "\n".join([f"{title}:", *lines, ""])


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 or value == int(value) else f"{value:.2f}"


def main(machine: Json, command: list[str], folder: Path, only: str = "", rounds: int = 3) -> int:
    """`only` is a pattern of titles: the other curves stay as the last run left them."""
    growth = Growth(folder, command, rounds)
    curves: dict[str, Callable[[], Iterator[Row]]] = {
        "idle legacy sessions (10 servers; budget 32 KiB each)": growth.sessions,
        "listen streams of one client (10 servers)": lambda: growth.streams(1),
        "listen streams, each of its own client (10 servers)": lambda: growth.streams(1_000),
        "servers": growth.servers,
        "policy rows (10 servers)": growth.rules,
        "resources (1 server)": growth.resources,
        "a list of tools (50 servers, 1,000 rows)": growth.list_again,
        "start (the first line is --help)": growth.start,
    }
    found = json.loads(RESULTS.read_text())["curves"] if only else {}
    for title, curve in curves.items():
        if re.search(only, title):
            found[title] = [{name: round(value, 3) for name, value in row.items()} for row in curve()]
            print(table(title, found[title]), flush=True)
    RESULTS.write_text(json.dumps({"machine": machine, "curves": found}, indent=2) + "\n")
    return 0
