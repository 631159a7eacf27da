"""What a call costs where several replicas are one Sluice: one that gets it for another, and each of one, two or three.

CPU of all replicas that have a part in it, beside the same calls at one; the median of rounds that take turns. The
config is that of the benchmark. Run it with: make accept ARGS=--replicas, or ARGS="--replicas 3" for fewer rounds.
"""

import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

import httpx
from load import Call, legacy_call, modern_call, run
from peers.postgres import Cluster, postgres
from subjects import FULL, LOAD_CORE, SUBJECT_CORE, Subject, fast_server, provide_tools, sluice

ROUNDS, SECONDS = 15, 1
STRAY_BAR: Final = 1.3
SCALING_BAR: Final = 0.1
CORES: Final = (SUBJECT_CORE, LOAD_CORE)
"""Of every replica: on one core they would take each other's caches, which those on other machines do not."""
AT_ONCE: Final = (1, 16)
"""Calls at each replica that clients call."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Calls that are made at the same time, and all replicas that work for them."""

    replicas: Sequence[Subject]
    calls: Sequence[Call]

    def cpu(self, at_once: int, folder: Path) -> float:
        """Microseconds of a call."""
        os.sync()  # or what one leaves unsynced is paid for by the next
        for one in self.replicas:
            one.rest()
        before = self._used()
        with ThreadPoolExecutor(len(self.calls)) as pool:
            rates = pool.map(lambda number: self._load(number, at_once, folder), range(len(self.calls)))
            made = sum(rates) * SECONDS
        return (self._used() - before) / made * 1e6

    def _load(self, number: int, at_once: int, folder: Path) -> float:
        (own := folder / f"load-{number}").mkdir(exist_ok=True)
        return run(self.replicas[number], self.calls[number], at_once, SECONDS, own, LOAD_CORE).rate

    def _used(self) -> float:
        return sum(one.cpu() for one in self.replicas)


def main(words: list[str]) -> int:
    """The exit code: 0 if both bars are held."""
    provide_tools()
    rounds = int(words[0]) if words else ROUNDS
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-replicas-")))
        engine = stack.enter_context(postgres())
        backend = stack.enter_context(fast_server(folder, LOAD_CORE))
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=30))
        fleets = [fleet(stack, engine, backend, folder, count) for count in (1, 2, 3)]
        good = [strays(fleets[1], client, rounds, folder), scaling(fleets, client, rounds, folder)]
    return 0 if all(good) else 1


def fleet(stack: ExitStack, engine: Cluster, backend: Subject, folder: Path, count: int) -> list[Subject]:
    """So many replicas, on a database of their own."""
    engine.ask(f"CREATE DATABASE of_{count}")
    setup = replace(FULL, database=f"{engine.url.rpartition('/')[0]}/of_{count}")
    command, key = [sys.executable, "-m", "sluicegate"], secrets.token_urlsafe(32)
    return [
        stack.enter_context(
            sluice(folder / f"of_{count}" / name, CORES, backend, command, replace(setup, replica=name), key)
        ) for name in (f"r{number}" for number in range(count))
    ]  # fmt: skip


def strays(replicas: list[Subject], client: httpx.Client, rounds: int, folder: Path) -> bool:
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
        good &= ratio <= STRAY_BAR
        print(f"at the wrong replica, {at_once} at once: CPU of both {median(wrong):.0f} us a call, at the right one "
              f"{median(right):.0f} us: {ratio:.2f} (at most {STRAY_BAR}){'' if ratio <= STRAY_BAR else '   MISSED'}",
              flush=True)  # fmt: skip
    return good


def scaling(fleets: list[list[Subject]], client: httpx.Client, rounds: int, folder: Path) -> bool:
    """Calls that any replica serves, at all of them."""
    ways = {str(len(one)): Measured(one, [modern_call(at, client) for at in one]) for one in fleets}
    good = True
    for at_once in AT_ONCE:
        first, *others = turns(ways, at_once, rounds, folder).values()
        ratios = [over(one, first) for one in others]
        is_held = all(abs(ratio - 1) <= SCALING_BAR for ratio in ratios)
        good &= is_held
        costs = ", ".join(f"{median(one):.0f}" for one in (first, *others))
        print(f"1, 2 and 3 replicas, {at_once} at once at each: CPU {costs} us a call, "
              f"{', '.join(f'{ratio:.2f}' for ratio in ratios)} of one (within {SCALING_BAR:.0%})"
              f"{'' if is_held else '   MISSED'}", flush=True)  # fmt: skip
    return good


def turns(ways: dict[str, Measured], at_once: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """What each takes in each round. The first round warms up."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in list(ways) if number % 2 else reversed(ways):
            cpu = ways[name].cpu(at_once, folder)
            if number:
                found[name].append(cpu)
    return found


def over(these: list[float], those: list[float]) -> float:
    return median(one / other for one, other in zip(these, those, strict=True))
