"""Injects faults into real processes under load, one at a time, and says which bars are held.

    python tests/chaos/run.py                 all of them; the figures go into tests/chaos/results.json
    python tests/chaos/run.py slow dns-moved  these alone; nothing is kept unless --json FILE
    python tests/chaos/run.py --list          what there is
    python tests/chaos/run.py --table         the kept figures, as docs/explanation/faults.md has them

A row takes a window without the fault, one with it, and the time until the faulted server answers again. Where the
ratio of the p99 is over the bar, more pairs of windows are taken, at most seven in all, and the median counts: five
calls make the p99 of a window, and one slow one moves it by half. What cannot be had on this machine is said, and is
not ok. Exit code: 0 if every bar is held.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import psycopg
from chaos_load import Spent
from chaos_stage import RATE, Audited, Stage
from faults import BARS, FAULTS, SYNC, Fault, of_killed_worker

RESULTS: Final = Path(__file__).with_name("results.json")
RATIO: Final = 1.5
PAIRS: Final = 7
DOWN: Final = 1.0  # seconds until a supervisor starts what ended
HELD: Final = 30.0  # seconds that a process is stopped: longer than many timeouts
LOST: Final = ("connection", "status 404", "status 503")
"""What a client is told that reached no Sluice, or whose session is gone."""
BROKEN: Final = (
    AssertionError, OSError, TimeoutError, LookupError, StopIteration, httpx.HTTPError, psycopg.Error,
    subprocess.SubprocessError,
)  # fmt: skip


@dataclass(slots=True)
class Row:
    """`windows` have the p99 without and with the fault, `ratios` theirs; `problems` say why it is not held."""

    name: str
    about: str
    bar: str
    calls: int = 0
    failed: int = 0
    words: dict[str, int] = field(default_factory=dict)
    windows: list[tuple[float, float]] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    recovery: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    impossible: str = ""
    span: tuple[float, float] = (0.0, 0.0)

    @property
    def is_held(self) -> bool:
        return not self.problems and not self.impossible

    @property
    def wants_more(self) -> bool:
        """Its first pair was over the bar, as one of a busy machine may be, and the median of all is not yet known."""
        over = sum(ratio > RATIO for ratio in self.ratios)
        is_open = max(over, len(self.ratios) - over) <= PAIRS // 2
        return not self.problems and bool(self.ratios) and self.ratios[0] > RATIO and is_open

    @property
    def slower(self) -> list[str]:
        if not self.ratios or median(self.ratios) <= RATIO:
            return []
        return [f"the p99 is {median(self.ratios):.2f} times that without the fault: {self.ratios}"]

    def line(self) -> str:
        word = "ok" if self.is_held else "NOT POSSIBLE HERE" if self.impossible else "NOT HELD"
        if self.impossible:
            return f"{word:10s} {self.name}: {self.impossible}"
        ratio = f"p99 {middle(self.ratios, self.windows)}" if self.ratios else "no p99"
        back = f"{median(self.recovery):.2f}" if self.recovery else "?"
        said = f"{self.calls} healthy calls, {self.failed} failed {self.words or ''}, {ratio}, back after {back} s"
        return f"{word:10s} {self.name:20s} {said}" + "".join(f"\n{'':11s}{one}" for one in self.problems)


def middle(ratios: list[float], windows: list[tuple[float, float]]) -> str:
    at = ratios.index(sorted(ratios)[len(ratios) // 2])
    return f"{windows[at][0]}, {windows[at][1]} ms ({ratios[at]})"


def p99(calls: list[Spent]) -> float:
    """Milliseconds."""
    taken = sorted(one.took for one in calls)
    return taken[min(len(taken) - 1, int(len(taken) * 0.99))] * 1e3 if taken else 0.0


async def inject(fault: Fault, stage: Stage, row: Row, seconds: float) -> None:
    """One pair of windows. Whose own server was faulted is waited for beside the next faults."""
    started = time.monotonic()
    is_own = fault.tool == "a__note"
    tool = "b__note" if is_own else fault.tool
    stage.aim(tool)
    if await stage.until_steady(fault.tool, started, good=fault.good) == float("inf"):
        row.problems.append(f"before the fault, {fault.tool} says {words(stage.calls(), fault.tool, started)}")
        return
    calm = time.monotonic()
    await asyncio.sleep(seconds)
    stage.met, began = 0, time.monotonic()
    async with fault.make(stage):
        await asyncio.sleep({"down": DOWN, "waits": HELD}.get(fault.bar, seconds))
        ended = time.monotonic()
    row.span = row.span[0] or calm, time.monotonic()
    met, whose = stage.met, ()
    if fault.bar == "worker":
        whose = tuple(key for key in stage.keys_of_workers() if of_killed_worker(key))
    recovery = asyncio.create_task(recover(fault, stage, row, whose, (calm, began, ended), met))
    if is_own or fault.bar != "beside":
        await recovery
    else:
        stage.recoveries.append(recovery)
        await asyncio.sleep(0.5)


async def recover(
    fault: Fault, stage: Stage, row: Row, whose: tuple[str, ...], times: tuple[float, float, float], met: int
) -> None:
    calm, began, ended = times
    since = began if fault.bar == "worker" else ended  # nobody heals a worker: it comes back meanwhile
    limit = 5.0 if fault.for_the_test else 60.0
    back = await stage.until_steady(fault.tool, since, limit, whose, fault.good)
    await asyncio.sleep(0.5)
    row.recovery.append(round(back - since, 2))
    stage.aim("b__note" if fault.tool == "a__note" else fault.tool, stop=True)
    is_beside = fault.tool != "a__note" and fault.bar == "beside"  # then the next faults have begun meanwhile
    until = ended + 0.3 if is_beside else max(ended, min(back, ended + limit))
    if (unanswered := await stage.until_ended(calm, until)) > 0:
        row.problems.append(f"healthy calls without an answer: {unanswered}")
    calls = [one for one in stage.calls() if one.due >= calm]
    judge(fault, row, calls, whose, (calm, began, ended, until))
    felt = [one for one in calls if one.tool == fault.tool and one.due < ended and one.due + one.took > began]
    if not met and all(one.word == fault.good and one.took < 0.5 for one in felt):
        row.problems.append("the fault reached nobody")
    if back == float("inf"):
        row.problems.append(f"{fault.tool} did not come back: {words(calls, fault.tool, ended)}")


def words(calls: list[Spent], tool: str, since: float, until: float = float("inf")) -> dict[str, int]:
    return dict(Counter(one.word for one in calls if one.tool == tool and since <= one.due < until))


def judge(
    fault: Fault, row: Row, calls: list[Spent], whose: tuple[str, ...], times: tuple[float, float, float, float]
) -> None:
    """The clients `whose` worker ended lose what was open; `times` are when the calm window and the fault began,
    when it was healed, and until when calls are its own."""
    start, began, ended, back = times
    healthy = [one for one in calls if one.tool == "a__note" and one.who not in whose]
    during = [one for one in healthy if began <= one.due < back]
    early = [one.word for one in healthy if start <= one.due and one.due + one.took < began and one.word != "ok"]
    early = [word for word in early if not is_expected(fault, word)]
    row.problems += [f"healthy calls failed before the fault: {dict(Counter(early))}"] if early else []
    failed = [one for one in during if one.word != "ok"]
    row.calls, row.failed = row.calls + len(during), row.failed + len(failed)
    row.words = dict(Counter(row.words) + Counter(one.word for one in failed))
    lost = [one.word for one in calls if one.who in whose and one.word != "ok" and not one.word.startswith(LOST)]
    strange = [one.word for one in failed if not is_expected(fault, one.word)] + lost
    row.problems += [f"healthy calls failed: {dict(Counter(strange))}"] if strange else []
    row.problems += ["no call was refused"] if fault.bar == "denied" and not failed else []
    if fault.bar in ("beside", "slower", "worker"):
        calm = p99([one for one in healthy if one.due < began])
        then = p99([one for one in healthy if began <= one.due < ended])
        allowed = 3 * SYNC if fault.bar == "slower" else 0  # one that was under way, a checkpoint's, and its own
        row.ratios.append(round(max(0.0, then - allowed) / calm, 2) if calm else float("inf"))
        row.windows.append((round(calm, 1), round(then, 1)))


def is_expected(fault: Fault, word: str) -> bool:
    return word == "audit_unavailable" if fault.bar == "denied" else fault.bar == "down" and word.startswith(LOST)


async def measured(fault: Fault, stage: Stage, row: Row, seconds: float) -> None:
    if fault.needs in stage.lacks:
        row.impossible = f"{fault.needs} cannot be had: {stage.lacks[fault.needs]}"
        return
    try:
        await inject(fault, stage, row, seconds)
    except BROKEN as error:
        row.problems.append(f"it broke: {error!r}")


def audit(rows: list[Row], audited: Audited, calls: list[Spent]) -> None:
    """What is wrong with the log is a problem of the row in whose time it was called, or of all where nobody knows."""
    refused = {one.number for one in calls if one.word == "audit_unavailable"}
    answered = {one.number for one in calls if one.word == "ok"}
    wrong = {
        "reached a server without an intent": audited.without_intent,
        "have not one outcome": audited.without_outcome,
        "were refused and reached a server": refused & audited.reached,
        "were answered and reached no server": answered - audited.reached,
    }
    known: set[int] = set()
    for row in rows:
        row.problems += [] if audited.is_verified or row.impossible else [f"audit verify: {audited.said[-300:]}"]
        numbers = {one.number for one in calls if row.span[0] <= one.due < row.span[1]}
        found = {what: len(some & numbers) for what, some in wrong.items() if some & numbers}
        row.problems += [f"calls that {what}: {count}" for what, count in found.items()]
        known |= numbers
    strays = {what: len(some - known) for what, some in wrong.items() if some - known}
    rows[-1].problems += [f"calls in nobody's time that {what}: {count}" for what, count in strays.items()]


async def staged(faults: list[Fault], seconds: float) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="sluice-chaos-") as folder:
        servers = {fault.tool.partition("__")[0] for fault in faults} | {"c"}
        stage = Stage(Path(folder), faults[0].plan, servers)
        async with stage.run():
            rows = [Row(fault.name, fault.about, BARS[fault.bar]) for fault in faults]
            for turn in range(PAIRS):
                for fault, row in zip(faults, rows, strict=True):
                    if turn == 0 or row.wants_more:
                        print(f"{time.strftime('%H:%M:%S')} {fault.name}", flush=True)
                        await measured(fault, stage, row, seconds)
                await asyncio.gather(*stage.recoveries)
            for row in rows:
                row.problems += row.slower
                print(row.line(), flush=True)
            await asyncio.sleep(1)
            await asyncio.to_thread(stage.end_load)
            await asyncio.to_thread(stage.end_sluice)
            audited = await asyncio.to_thread(stage.audited)
            held = [row.is_held for row in rows]
            audit(rows, audited, stage.calls())
            found = (f"{len(audited.reached)} calls reached servers, {len(audited.without_intent)} without an intent, "
                     f"{len(audited.without_outcome)} without one outcome")  # fmt: skip
            print(f"{'ok' if audited.is_verified else 'NOT HELD':10s} audit of these: {found}\n{'':11s}{audited.said}")
            for row, before in zip(rows, held, strict=True):
                if before and not row.is_held:
                    print(row.line(), flush=True)
            if not all(row.is_held for row in rows):
                print(f"--- Sluice's log ---\n{(Path(folder) / 'sluice.log').read_text()[-3000:]}")
    return rows


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    return {
        "date": time.strftime("%Y-%m-%d"), "cpu": model, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1),
        "kernel": platform.release().partition("-")[0], "python": platform.python_version(),
    }  # fmt: skip


def table(kept: dict[str, Any]) -> str:
    lines = ["| fault | what happens | healthy calls, failed | p99 without, with (ratio) | back after s |",
             "|---|---|---|---|---|"]  # fmt: skip
    for said in BARS.values():
        rows = [row for row in kept["rows"] if row["bar"] == said]
        lines += [f"| **{said}** | | | | |"] if rows else []
        lines += [_cells(row) for row in rows]
    on = kept["machine"]
    ran = f"{on['date']}, {on['cores']} cores, {on['cpu']}, Linux {on['kernel']}, Python {on['python']}"
    how = f"{kept['rate']:.0f} healthy calls a second, windows of {kept['seconds']:.0f} s; {kept['took']:.0f} s in all"
    return "\n".join([*lines, "", f"{ran}; a load of {on['load']} before it; {how}."])


def _cells(row: dict[str, Any]) -> str:
    if row["impossible"]:
        return f"| `{row['name']}` | {row['about']} | not possible here | | |"
    ratio = middle(row["ratios"], row["windows"]) if row["ratios"] else ""
    back = f"{median(row['recovery']):.1f}" if row["recovery"] else ""
    bad = f" **NOT HELD**: {'; '.join(row['problems'])}" if row["problems"] else ""
    return f"| `{row['name']}` | {row['about']} | {row['calls']:,}, {row['failed']:,}{bad} | {ratio} | {back} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults (default: all)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a window (4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go")
    parser.add_argument("--list", action="store_true", help="prints the faults")
    parser.add_argument("--table", action="store_true", help="prints the kept figures")
    told = parser.parse_args()
    known = {fault.name: fault for fault in FAULTS}
    if told.table:
        print(table(json.loads((told.json or RESULTS).read_text())))
        return 0
    if told.list or set(told.names) - set(known):
        print("\n".join(f"{fault.name:22s} {fault.about} ({BARS[fault.bar]})" for fault in FAULTS))
        return 0 if told.list else 2
    chosen = [fault for fault in FAULTS if (fault.name in told.names if told.names else not fault.for_the_test)]
    with suppress(OSError):
        os.nice(-10)  # what others do on this machine is no fault of ours
    began, on = time.monotonic(), machine()
    stages = [list(group) for _, group in groupby(chosen, lambda fault: fault.plan)]
    rows = [row for faults in stages for row in asyncio.run(staged(faults, told.seconds))]
    file = told.json or (None if told.names else RESULTS)
    if file is not None:
        kept = {"machine": on, "rate": RATE, "seconds": told.seconds, "took": round(time.monotonic() - began)}
        file.write_text(json.dumps(kept | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    bad = [row.name for row in rows if not row.is_held]
    took = time.monotonic() - began
    print(f"{len(rows) - len(bad)} of {len(rows)} held in {took:.0f} s" + "".join(f"\n  not: {name}" for name in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
