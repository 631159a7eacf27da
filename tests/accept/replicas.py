"""What a call costs where several replicas are one Sluice: one that gets it for another, and each of one, two or three.

CPU of all replicas that have a part in it, beside the same calls at one; the median of rounds that take turns. Two and
three replicas are compared with as many Sluices that share nothing, too: on two cores whoever else runs takes caches
and turns, and no fleet can change that. The config is that of the benchmark. Run it with: make accept ARGS=--replicas,
or ARGS="--replicas 3" for fewer rounds.

The two cores of a rented machine are often two threads of one: what runs on one makes the other slower, and its CPU
time longer. Replicas on other machines do not. So both replicas of a request at the wrong one are on one core, where
they take turns; how they fare on two cores is printed beside it, with what a busy core costs the other one.
"""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import httpx
from load import Call, legacy_call, modern_call, run
from peers.postgres import Cluster, postgres
from subjects import FULL, LOAD_CORE, SUBJECT_CORE, Subject, fast_server, pinned, provide_tools, sluice

ROUNDS, SECONDS = 15, 1
STRAY_BAR: Final = 1.3
SCALING_BAR: Final = 0.1
CORES: Final = (SUBJECT_CORE, LOAD_CORE)
AT_ONCE: Final = (1, 16)
"""Calls at each replica that clients call."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Calls that are made at the same time, and all replicas that work for them."""

    replicas: Sequence[Subject]
    calls: Sequence[Call]

    def cpu(self, at_once: int, folder: Path) -> list[float]:
        """Microseconds of a call at each replica."""
        os.sync()  # or what one leaves unsynced is paid for by the next
        for one in self.replicas:
            one.rest()
        before = [one.cpu() for one in self.replicas]
        with ThreadPoolExecutor(len(self.calls)) as pool:
            rates = pool.map(lambda number: self._load(number, at_once, folder), range(len(self.calls)))
            made = sum(rates) * SECONDS
        return [(one.cpu() - used) / made * 1e6 for one, used in zip(self.replicas, before, strict=True)]

    def _load(self, number: int, at_once: int, folder: Path) -> float:
        (own := folder / f"load-{number}").mkdir(exist_ok=True)
        return run(self.replicas[number], self.calls[number], at_once, SECONDS, own, LOAD_CORE).rate


def main(words: list[str]) -> int:
    """The exit code: 0 if both bars are held."""
    provide_tools()
    rounds = int(words[0]) if words else ROUNDS
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-replicas-")))
        engine = stack.enter_context(postgres())
        backend = stack.enter_context(fast_server(folder, LOAD_CORE))
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=30))
        start = partial(fleet, stack, engine, backend, folder)
        two, three = (start(f"of_{count}", count) for count in (2, 3))
        turns_taken = start("on_one_core", 2, SUBJECT_CORE)
        apart = [start(f"alone_{number}", 1)[0] for number in range(3)]
        print(f"a loop takes {beside_a_loop():.2f} times its CPU while the other core is busy, too", flush=True)
        good = [
            strays(turns_taken, client, rounds, folder, "both on one core", STRAY_BAR),
            strays(two, client, rounds, folder, "on two cores", None),
            scaling([two, three], apart, client, rounds, folder),
        ]
    return 0 if all(good) else 1


def beside_a_loop() -> float:
    """What a core takes from the other one: 1 where they share nothing."""
    code = "import time\nbegan = time.process_time()\nfor _ in range(10**7): pass\nprint(time.process_time() - began)"
    loop = "while True: pass"

    def took() -> float:
        command = pinned(SUBJECT_CORE, [sys.executable, "-c", code])
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    alone, beside = list[float](), list[float]()
    for _ in range(5):
        alone.append(took())
        with subprocess.Popen(pinned(LOAD_CORE, [sys.executable, "-c", loop])) as other:
            time.sleep(0.1)
            beside.append(took())
            other.kill()
    return median(beside) / median(alone)


def fleet(
    stack: ExitStack, engine: Cluster, backend: Subject, folder: Path, name: str, count: int,
    cores: int | Sequence[int] = CORES,
) -> list[Subject]:  # fmt: skip
    """So many replicas, on a database of their own."""
    engine.ask(f"CREATE DATABASE {name}")
    setup = replace(FULL, database=f"{engine.url.rpartition('/')[0]}/{name}")
    command, key = [sys.executable, "-m", "sluicegate"], secrets.token_urlsafe(32)
    return [
        stack.enter_context(
            sluice(folder / name / replica, cores, backend, command, replace(setup, replica=replica), key)
        ) for replica in (f"r{number}" for number in range(count))
    ]  # fmt: skip


def strays(
    replicas: list[Subject], client: httpx.Client, rounds: int, folder: Path, where: str, bar: float | None
) -> bool:
    """Calls of a session, at the replica that has it and at another one."""
    home, other = replicas
    call = legacy_call(home, client)
    there = replace(call, url=other.url)
    client.post(there.url, headers=there.headers, content=there.body).raise_for_status()
    ways = {"right": Measured(replicas, [call]), "wrong": Measured(replicas, [there])}
    good = True
    for at_once in AT_ONCE:
        right, wrong = turns(ways, at_once, rounds, folder).values()
        ratio = over(wrong, right)
        is_held = bar is None or ratio <= bar
        good &= is_held
        owner, between = (median(one[at] for one in wrong) for at in range(2))
        limit = "no bar" if bar is None else f"at most {bar}"
        print(f"at the wrong replica, {where}, {at_once} at once: CPU of its owner {owner:.0f} us a call and of the "
              f"one that passes it on {between:.0f}, at the right one {middle(right):.0f} us: {ratio:.2f} ({limit})"
              f"{'' if is_held else '   MISSED'}", flush=True)  # fmt: skip
    return good


def scaling(
    fleets: Sequence[Sequence[Subject]], apart: Sequence[Subject], client: httpx.Client, rounds: int, folder: Path
) -> bool:
    """Calls that any replica serves, at all of them; at one alone, and at as many as they are that share nothing."""
    calls = {one.pid: modern_call(one, client) for one in (*apart, *(one for replicas in fleets for one in replicas))}
    groups = [apart[:1], *fleets, *(apart[: len(one)] for one in fleets)]
    ways = {str(number): Measured(group, [calls[one.pid] for one in group]) for number, group in enumerate(groups)}
    good = True
    for at_once in AT_ONCE:
        one, *rest = turns(ways, at_once, rounds, folder).values()
        together, beside = rest[: len(fleets)], rest[len(fleets) :]
        ratios = [over(found, one) for found in together]
        is_held = all(abs(ratio - 1) <= SCALING_BAR for ratio in ratios)
        good &= is_held
        print(f"2 and 3 replicas, {at_once} at once at each: CPU {shown(together)} us a call, of one alone "
              f"{middle(one):.0f}: {', '.join(f'{ratio:.2f}' for ratio in ratios)} (within {SCALING_BAR:.0%})"
              f"{'' if is_held else '   MISSED'}; of as many that share nothing {shown(beside)}: "
              f"{', '.join(f'{over(*both):.2f}' for both in zip(together, beside, strict=True))}",
              flush=True)  # fmt: skip
    return good


Found = list[list[float]]
"""Of each round, what a call took at each replica."""


def turns(ways: dict[str, Measured], at_once: int, rounds: int, folder: Path) -> dict[str, Found]:
    """The first round warms up."""
    found: dict[str, Found] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in list(ways) if number % 2 else reversed(ways):
            cpu = ways[name].cpu(at_once, folder)
            if number:
                found[name].append(cpu)
    return found


def over(these: Found, those: Found) -> float:
    return median(sum(one) / sum(other) for one, other in zip(these, those, strict=True))


def middle(these: Found) -> float:
    return median(map(sum, these))


def shown(these: Sequence[Found]) -> str:
    return " and ".join(f"{middle(one):.0f}" for one in these)
