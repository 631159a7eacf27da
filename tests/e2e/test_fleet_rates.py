"""What a fleet has once for all replicas: a client's rates, and how many calls at once a server takes."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from database_bed import bank, database, machine, seen
from fleet_stage import NAMES, Replica
from peers.postgres import Cluster, postgres
from policy_bed import Bed, reason

from sluicegate.policy.leases import LeaseTerms

__all__ = ["database"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


@contextmanager
def fleet(folder: Path, database: str, **config: Any) -> Iterator[tuple[list[Replica], list[Bed]]]:
    """Three replicas that know each other."""
    config = {"drain_delay": "200ms", **config}
    replicas = [Replica(name, machine(folder, name), database, config) for name in NAMES]
    with ExitStack() as stack:
        for one in replicas:
            stack.callback(one.close)
        beds = [one.start() for one in replicas]
        for at in beds:
            at.until(lambda at=at: f"sluice_fleet_replicas {len(beds)}.0" in metrics(at))  # type: ignore[misc]
        yield replicas, beds


def metrics(at: Bed) -> str:
    return httpx.get(f"{at.process.admin}/metrics", timeout=20).text


def passes(at: Bed) -> bool:
    answer = at.call("ann", "bank__look")
    assert reason(answer) in ("", "rate_limited"), answer.text
    return reason(answer) == ""


def test_calls_that_are_spread_have_the_rate_once(tmp_path: Path, database: str) -> None:
    with fleet(tmp_path, database, limits={"per_tool": "20/h", "per_client": "1000/s"}) as (_, beds):
        passed, refused = 0, 0
        for at in cycle(beds):
            refused, passed = (0, passed + 1) if passes(at) else (refused + 1, passed)
            if passed >= 20 and refused > 60:
                break
        terms = LeaseTerms(20, 3600, 3)
        assert 20 <= passed <= 20 + 3 * terms.lease
        assert seen(beds[0]) == ["look"] * passed


def test_what_a_replica_had_leased_that_was_killed_is_free(tmp_path: Path, database: str) -> None:
    with fleet(tmp_path, database, limits={"per_tool": "3/h"}) as (replicas, beds):
        first, other, _ = beds
        assert passes(first)
        first.until(lambda: leased(database, "r0") == [1])
        replicas[0].stop(signal.SIGKILL)
        assert passes(other), "without a lease"
        assert not passes(other)
        other.until(lambda: passes(other))


def leased(database: str, name: str) -> list[int]:
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT leased FROM sluice_leased WHERE holder LIKE %s", (f"{name}.%",)).fetchall()
        return [row[0] for row in rows]


def test_without_the_database_each_replica_has_its_part(tmp_path: Path) -> None:
    with postgres("fsync=off") as own, fleet(tmp_path, own.url, limits={"per_tool": "11/h"}) as (_, beds):
        assert [at.names("ann") for at in beds] == [["bank__wire", "bank__look"]] * 3  # their servers are known
        own.pause()
        try:
            for at, part in zip(beds, (4, 4, 3), strict=True):
                for _ in range(part):
                    at.until(lambda at=at: passes(at))  # type: ignore[misc]
                assert not any(passes(at) for _ in range(10))
        finally:
            own.resume()
        assert seen(beds[0]) == ["look"] * 11


def test_what_a_server_takes_at_once_is_shared_and_whoever_has_no_part_says_so(tmp_path: Path, database: str) -> None:
    servers = {"bank": {**bank(tmp_path), "concurrency": 2}}
    with fleet(tmp_path, database, servers=servers) as (replicas, beds):
        await_parts(beds, [1, 1, 0])
        assert [reason(at.call("ann", "bank__look")) for at in beds[:2]] == ["", ""]
        third = beds[2]  # it learns from the others what the server lists, and a little later that this is pinned
        third.until(lambda: reason(third.call("ann", "bank__look")) == "server_unavailable")
        assert "fewer calls at once than Sluice has replicas" in third.call("ann", "bank__look").text
        replicas[0].stop()
        await_parts(beds[1:], [1, 1])
        assert [reason(at.call("ann", "bank__look")) for at in beds[1:]] == ["", ""]


def await_parts(beds: list[Bed], parts: list[int]) -> None:
    for at, part in zip(beds, parts, strict=True):
        row = f'sluice_server_concurrency_limit{{server="bank"}} {part}.0'
        at.until(lambda at=at, row=row: row in metrics(at))  # type: ignore[misc]
