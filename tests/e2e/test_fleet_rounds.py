"""What replicas promise of every call: one round in `make test`. SLUICE_FLEET_ROUNDS says how many (100 in a soak,
which has bars for times, too)."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import httpx
import pytest
from database_bed import Json, api, approve, database, seen
from e2e.test_fleet import at_once, fleet, replica
from e2e.test_fleet_outages import Load, plain
from fleet_stage import Session
from peers.postgres import Cluster, postgres
from policy_bed import Bed, reason

__all__ = ["database", "fleet"]
ROUNDS = int(os.environ.get("SLUICE_FLEET_ROUNDS", "1"))
IS_SOAK = "SLUICE_FLEET_ROUNDS" in os.environ


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


def wire(at: Bed, client: httpx.Client, start: threading.Barrier | None = None) -> httpx.Response:
    """The same call each time."""
    if start is not None:
        start.wait()
    return plain(client, at, "bob", "bank__wire")


def waiting(at: Bed) -> list[str]:
    return [row["id"] for row in api(at, "approvals?state=pending").json()["approvals"]]


def test_what_is_approved_at_one_is_used_once_among_all(fleet: list[Bed]) -> None:
    """Who comes too late is told so, or asks anew: that is what is approved in the next round."""
    here, there, _ = fleet
    racing = fleet * 2
    with ThreadPoolExecutor(len(racing)) as pool, ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(timeout=20)) for _ in racing]
        for _ in range(ROUNDS):
            id = wire(here, clients[0]).json()["result"]["_meta"]["dev.sluice/approval"]["id"]
            there.until(lambda id=id: api(there, f"approvals/{id}").status_code == 200)  # type: ignore[misc]
            assert approve(there, id) == 200
            start = threading.Barrier(len(racing))
            reasons = [reason(one) for one in pool.map(wire, racing, clients, [start] * len(racing))]
            assert reasons.count("") == 1 and set(reasons) <= {"", "approval_pending", "approval_denied"}, reasons
    print(f"{ROUNDS} approvals, each used by {len(racing)} calls at once: {len(seen(here))} executions (bar {ROUNDS})")
    assert seen(here) == ["wire"] * ROUNDS


def test_a_held_call_goes_on_when_another_replica_is_told(tmp_path: Path, database: str) -> None:
    """In a soak after any part of a second: replicas look at the database once in one."""
    took = []
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        holding: Json = {"approvals": {"hold_for": "2m"}, "ready": False}
        here, there = at_once(stack, (replica(tmp_path, name, database, **holding) for name in ("a", "b")))
        client = stack.enter_context(httpx.Client(timeout=130))
        for number in range(ROUNDS):
            held = pool.submit(wire, here, client)
            there.until(lambda: len(waiting(there)) == 1)
            (id,) = waiting(there)
            time.sleep(number / ROUNDS)
            began = time.monotonic()
            assert approve(there, id) == 200
            assert held.result().status_code == 200
            took.append(time.monotonic() - began)
        assert seen(here) == ["wire"] * ROUNDS
    print(f"held at one, decided at another, {ROUNDS} times: it went on after {median(took):.2f} s, at most "
          f"{max(took):.2f} s (bar 1.5)")  # fmt: skip
    if IS_SOAK:
        assert max(took) <= 1.5


def test_plain_calls_ask_the_database_nothing(tmp_path: Path) -> None:
    """Each of the looks that replicas take all the time has at most this many statements of one kind a second."""
    calls, looks = max(200, 100 * ROUNDS), 6
    count = "SELECT query, sum(calls) FROM pg_stat_statements GROUP BY query"
    with postgres("fsync=off", "shared_preload_libraries=pg_stat_statements") as own:
        own.ask("CREATE EXTENSION pg_stat_statements")
        with replica(tmp_path, "a", own.url) as at:
            load = Load([at], Session(at))
            before, began = dict(own.ask(count)), time.monotonic()
            with load.running():
                at.until(lambda: len(load.took) >= calls, 600)
            grown = {query: int(str(number)) - int(str(before.get(query, 0))) for query, number in own.ask(count)}
            took = time.monotonic() - began
            assert not load.failed, load.failed[:3]
            made = len(seen(at))
    most = max(grown, key=lambda query: grown[query])
    print(f"{made} plain calls in {took:.1f} s: at most {grown[most]} statements of one kind (bar {looks} a second)")
    assert made >= calls and grown[most] < looks * (took + 1), most
