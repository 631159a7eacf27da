"""Where a call's work is done: bytecodes and function calls of the event loop's thread, by room and by step.

    python tests/bench/bytecodes.py [--functions 40] [--page]

Counted, not timed, and of each function the least of several batches: what a Sluice does by the clock happens beside
calls, and more often where these are slow. So the same on any machine, and a change of the hot path shows to the digit.
The interpreter takes two thirds of what a call costs the CPU. The rest (the kernel, JSON, hashes, the audit writer's
thread) is in `make bench`.

A step begins in a function that has a comment `# Step N of docs/explanation/performance.md`. What a function does that
has none belongs to the step of whoever called or resumed it. `--page` writes the figures into that page.
"""

import argparse
import ast
import atexit
import http.client
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from load import Call

BATCHES, CALLS, WARM_UP = 15, 10, 100
PATIENCE = 60.0  # seconds for the process to begin or end a count
FILE = "SLUICE_BENCH_BYTECODES"
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "performance.md"
STEP = re.compile(r"# Step (\d+) of docs/explanation/performance\.md")
ROW = re.compile(r"^\| (\d+) \| (`.+`) \| (.+) \|[\d, ]*\|$", re.MULTILINE)
"""A step on the page: its number, where it is, what it does, and the bytecodes of a legacy and a modern call."""


def steps() -> dict[tuple[str, int], int]:
    """The step that begins in a function, by its file and first line."""
    found = {}
    for file in (ROOT / "proxy" / "sluicegate").rglob("*.py"):
        text = file.read_text("utf-8")
        for number, line in enumerate(text.splitlines(), 1) if STEP.search(text) else ():
            if match := STEP.search(line):
                found[str(file), _function_at(ast.parse(text), number)] = int(match[1])
    return found


def _function_at(tree: ast.Module, line: int) -> int:
    """Where the innermost function begins that has this line, as its code object says it."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    all = (node for node in ast.walk(tree) if isinstance(node, kinds))
    node = max((node for node in all if node.lineno <= line <= (node.end_lineno or 0)), key=lambda node: node.lineno)
    return min([node.lineno, *(part.lineno for part in node.decorator_list)])


class Counted(NamedTuple):
    """What one function does in one step of a call: `codes` bytecodes, entered or resumed `entered` times. Step 0 is
    outside of all."""

    file: str
    name: str
    step: int
    codes: float
    entered: float


# ---------------------------------------------------------------- inside the process that is looked at


Key = tuple[CodeType, int]


class Tracer:
    """Counts from one SIGUSR1 to the next, and keeps of each function the least that it did in a count: what every
    call does is in each, and what the clock brings is not."""

    def __init__(self) -> None:
        self.codes: Counter[Key] = Counter()
        self.calls: Counter[Key] = Counter()
        self._steps = steps()
        self._least: tuple[Counter[Key], Counter[Key]] | None = None
        self._is_on = False

    def toggle(self, *_: object) -> None:
        self._is_on = not self._is_on
        sys.settrace(self._called if self._is_on else None)
        if self._is_on:
            self.codes, self.calls = Counter(), Counter()
        elif self._least is None:
            self._least = self.codes, self.calls
        else:
            self._least = self._least[0] & self.codes, self._least[1] & self.calls
        Path(os.environ[FILE]).touch()  # that it was heard: a signal waits until the loop turns

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        key = frame.f_code, self._step_of(frame)
        codes = self.codes
        self.calls[key] += 1

        def step(frame: FrameType, event: str, arg: object) -> Any:
            if event == "opcode":
                codes[key] += 1
            return step

        return step

    def _step_of(self, frame: FrameType | None) -> int:
        while frame is not None:
            code = frame.f_code
            if found := self._steps.get((code.co_filename, code.co_firstlineno)):
                return found
            frame = frame.f_back
        return 0

    def write(self) -> None:
        codes, calls = self._least or (self.codes, self.calls)
        rows = [
            [code.co_filename, code.co_qualname, step, count, calls[code, step]]
            for (code, step), count in codes.items()
        ]
        Path(os.environ[FILE]).write_text(json.dumps(rows))


def look_at_sluice() -> None:
    tracer = Tracer()
    signal.signal(signal.SIGUSR1, tracer.toggle)
    atexit.register(tracer.write)
    from sluicegate.__main__ import main

    main()


# ---------------------------------------------------------------- outside


def counted(kind: str, counts: Path, database: str = "") -> list[Counted]:
    """Of calls of that kind. `database`: where state is, if not in SQLite."""
    import httpx
    from load import found_call, legacy_call, modern_call
    from subjects import FULL, LOAD_CORE, SUBJECT_CORE, allowing_hook, fast_server, sluice

    os.environ[FILE] = str(counts)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=60))
        backend = stack.enter_context(fast_server(Path(folder), LOAD_CORE))
        hook = stack.enter_context(allowing_hook(Path(folder), LOAD_CORE)) if kind == "hooked" else ""
        setup = replace(FULL, search=kind == "found", hook=hook, database=database)
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

    def close(self) -> None:
        self._connection.close()


def count(call: "Call", pid: int, counts: Path) -> None:
    """Has the process count what the call takes; the figures are in `counts` when it has ended."""

    def toggle() -> None:
        os.kill(pid, signal.SIGUSR1)
        until = time.monotonic() + PATIENCE
        while not counts.exists():
            assert time.monotonic() < until, "the process that counts has ended"
            time.sleep(0.001)
        counts.unlink()

    with closing(Asker(call)) as asker:
        asker.ask(WARM_UP)
        for _ in range(BATCHES):
            toggle()
            asker.ask(CALLS)
            toggle()


def rows(counts: Path) -> list[Counted]:
    return [Counted(*about, codes / CALLS, calls / CALLS) for *about, codes, calls in json.loads(counts.read_text())]


def room(file: str) -> str:
    """`listen`, `message.py`; all that is not Sluice's is `libraries`."""
    _, found, rest = file.rpartition("/sluicegate/")
    return rest.partition("/")[0] if found else "libraries"


def by_step(rows: list[Counted]) -> Counter[int]:
    codes = Counter[int]()
    for row in rows:
        codes[row.step] += row.codes  # type: ignore[assignment]
    return codes


def report(kind: str, rows: list[Counted], most: int) -> str:
    codes, calls = Counter[str](), Counter[str]()
    for row in rows:
        codes[room(row.file)] += row.codes  # type: ignore[assignment]
        calls[room(row.file)] += row.entered  # type: ignore[assignment]
    total, steps = sum(codes.values()), by_step(rows)
    lines = [f"{kind}: {total - steps[0]:.0f} bytecodes in steps, {steps[0]:.0f} outside of them"]
    lines.append(f"  functions entered or resumed {sum(row.entered for row in rows if row.step):.0f} times in steps")
    lines += [f"  {name:12s}{count:7.0f}{count / total:7.0%}{calls[name]:7.0f}" for name, count in codes.most_common()]
    lines += [f"  step {step:<7d}{count:7.0f}{count / total:7.0%}" for step, count in sorted(steps.items())]
    functions = sorted(rows, key=lambda row: -row.codes)[:most]
    lines += [f"  {row.codes:7.0f}{row.entered:7.2f}  {row.step:3d} {room(row.file)} {row.name}" for row in functions]
    return "\n".join(lines)


def with_figures(page: str, legacy: Counter[int], modern: Counter[int]) -> str:
    """The page with what each step costs."""

    def row(found: re.Match[str]) -> str:
        number, where, what = found.groups()
        return f"| {number} | {where} | {what} | {legacy[int(number)]:.0f}, {modern[int(number)]:.0f} |"

    return ROW.sub(row, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", type=int, default=0, help="how many functions are named, the greediest first")
    parser.add_argument("--page", action="store_true", help="the figures of the page anew")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        found = {}
        for kind in ("legacy", "modern", "found", "hooked"):
            found[kind] = counted(kind, Path(folder) / kind)
            print(report(kind, found[kind], options.functions), flush=True)
    if options.page:
        PAGE.write_text(with_figures(PAGE.read_text(), by_step(found["legacy"]), by_step(found["modern"])))


if __name__ == "__main__":
    if FILE in os.environ:
        look_at_sluice()
    else:
        main()
