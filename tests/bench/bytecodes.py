"""Where a call's work is done: bytecodes and function calls of the event loop's thread, by room.

    python tests/bench/bytecodes.py [--functions 40]

Counted, not timed, and of several batches the smallest: what a Sluice does by the clock happens beside calls, and more
often where these are slow. So the same on any machine, and a change of the hot path shows to the digit. The
interpreter takes two thirds of what a call costs the CPU; the rest (the kernel, JSON, hashes, the audit writer's
thread) is in `make bench`.
"""

import argparse
import atexit
import http.client
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from load import Call

BATCHES, CALLS, WARM_UP = 15, 10, 100
FILE = "SLUICE_BENCH_BYTECODES"


# ---------------------------------------------------------------- inside the process that is looked at


class Tracer:
    """Counts from one SIGUSR1 to the next, and keeps the smallest of what it has counted so."""

    def __init__(self) -> None:
        self.codes: Counter[CodeType] = Counter()
        self.calls: Counter[CodeType] = Counter()
        self._least: tuple[Counter[CodeType], Counter[CodeType]] | None = None
        self._is_on = False

    def toggle(self, *_: object) -> None:
        self._is_on = not self._is_on
        sys.settrace(self._called if self._is_on else None)
        if self._is_on:
            self.codes, self.calls = Counter(), Counter()
        elif self._least is None or self.codes.total() < self._least[0].total():
            self._least = self.codes, self.calls
        Path(os.environ[FILE]).touch()  # that it was heard: a signal waits until the loop turns

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.calls[frame.f_code] += 1
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self.codes[frame.f_code] += 1
        return self._step

    def write(self) -> None:
        codes, calls = self._least or (self.codes, self.calls)
        rows = [[code.co_filename, code.co_qualname, count, calls[code]] for code, count in codes.items()]
        Path(os.environ[FILE]).write_text(json.dumps(rows))


def look_at_sluice() -> None:
    tracer = Tracer()
    signal.signal(signal.SIGUSR1, tracer.toggle)
    atexit.register(tracer.write)
    from sluicegate.__main__ import main

    main()


# ---------------------------------------------------------------- outside


def counted(kind: str, counts: Path) -> list[tuple[str, str, float, float]]:
    """(file, function, bytecodes a call, times it is entered in a call), of calls of that kind."""
    import httpx
    from load import found_call, legacy_call, modern_call
    from subjects import FULL, LOAD_CORE, SUBJECT_CORE, allowing_hook, fast_server, sluice

    os.environ[FILE] = str(counts)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=60))
        backend = stack.enter_context(fast_server(Path(folder), LOAD_CORE))
        hook = stack.enter_context(allowing_hook(Path(folder), LOAD_CORE)) if kind == "hooked" else ""
        setup = replace(FULL, search=kind == "found", hook=hook)
        with sluice(Path(folder), SUBJECT_CORE, backend, [sys.executable, __file__], setup) as subject:
            calls = {"legacy": legacy_call, "modern": modern_call, "found": found_call, "hooked": modern_call}
            count(calls[kind](subject, client), subject.pid, counts)
    return rows(counts)


class Asker:
    """One connection on which a call is made again and again."""

    def __init__(self, call: "Call") -> None:
        scheme, _, rest = call.url.partition("://")
        assert scheme == "http"
        host, _, path = rest.partition("/")
        body = call.body.encode()
        lines = [f"POST /{path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
        head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in call.headers.items()), "", ""])
        name, _, port = host.partition(":")
        self._connection = socket.create_connection((name, int(port)))
        self._request = head.encode() + body

    def ask(self, times: int) -> None:
        for _ in range(times):
            self._connection.sendall(self._request)  # in one piece, as most clients send it
            answer = http.client.HTTPResponse(self._connection)
            answer.begin()
            assert answer.status == 200 and answer.read()


def count(call: "Call", pid: int, counts: Path) -> None:
    """Has the process count what the call takes; the figures are in `counts` when it has ended."""

    def toggle() -> None:
        os.kill(pid, signal.SIGUSR1)
        while not counts.exists():
            time.sleep(0.001)
        counts.unlink()

    asker = Asker(call)
    asker.ask(WARM_UP)
    for _ in range(BATCHES):
        toggle()
        asker.ask(CALLS)
        toggle()


def rows(counts: Path) -> list[tuple[str, str, float, float]]:
    return [(file, name, codes / CALLS, calls / CALLS) for file, name, codes, calls in json.loads(counts.read_text())]


def room(file: str) -> str:
    """`listen`, `message.py`; all that is not Sluice's is `libraries`."""
    _, found, rest = file.rpartition("/sluicegate/")
    return rest.partition("/")[0] if found else "libraries"


def report(kind: str, rows: list[tuple[str, str, float, float]], most: int) -> str:
    codes, calls = Counter[str](), Counter[str]()
    for file, _, count, entered in rows:
        codes[room(file)] += count  # type: ignore[assignment]
        calls[room(file)] += entered  # type: ignore[assignment]
    total = sum(codes.values())
    lines = [f"{kind}: {total:.0f} bytecodes, functions entered or resumed {sum(calls.values()):.0f} times"]
    lines += [f"  {name:12s}{count:7.0f}{count / total:7.0%}{calls[name]:7.0f}" for name, count in codes.most_common()]
    functions = sorted(rows, key=lambda row: -row[2])[:most]
    lines += [f"  {count:7.0f}{entered:7.2f}  {room(file)} {name}" for file, name, count, entered in functions]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", type=int, default=0, help="how many functions are named, the greediest first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        for kind in ("legacy", "modern", "found", "hooked"):
            print(report(kind, counted(kind, Path(folder) / kind), options.functions), flush=True)


if __name__ == "__main__":
    if FILE in os.environ:
        look_at_sluice()
    else:
        main()
