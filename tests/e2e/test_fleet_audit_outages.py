"""The audit log of a replica while the database's standby hangs: it goes on, and what the database knows of it comes
after."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from database_bed import api, command
from e2e.test_fleet import metric, replica
from peers.postgres import Cluster, pair
from policy_bed import Bed, reason

ROWS = "p, role:authenticated, bank, *, *, allow\np, role:lead, sluice, admin:audit, *, allow\n"


@pytest.fixture
def replicated() -> Iterator[tuple[Cluster, Cluster]]:
    with pair() as both:
        yield both


def replicated_head(cluster: Cluster) -> int:
    """How far the log has come, as the database says: 0 before the first checkpoint."""
    with psycopg.connect(cluster.url) as engine:
        row = engine.execute("SELECT value FROM sluice_item WHERE key = %s", (b"audit/head/sluice-r0",)).fetchone()
    return 0 if row is None else int(json.loads(row[0])["seq"])


def own_head(at: Bed) -> int:
    return int(api(at, "audit/head").json()["seq"])


def proved(at: Bed, *logs: Path) -> Any:
    answer = json.loads(command(at, "audit", "verify", "--fleet", *map(str, logs), "--json").stdout)
    return answer["ok"], {one["writer"]: [finding["text"] for finding in one["findings"]] for one in answer["writers"]}


def test_heads_of_audit_logs_come_after_a_standby_that_hung(
    tmp_path: Path, replicated: tuple[Cluster, Cluster]
) -> None:
    primary, standby = replicated
    with replica(tmp_path, "r0", primary.url, ROWS, audit={"checkpoints": {"every": "500ms"}}) as at:
        assert reason(at.call("ann", "bank__look")) == ""
        at.until(lambda: replicated_head(primary) > 0)
        standby.pause()
        try:
            before = replicated_head(primary)
            at.until(lambda: reason(at.call("ann", "bank__look")) == "" and own_head(at) > before + 20)
            at.until(lambda: metric(at, "sluice_state_up") == 0)
            assert replicated_head(primary) < own_head(at)
            assert at.process.get("/readyz")[0] == 200
        finally:
            standby.resume()
        at.until(lambda: replicated_head(primary) == own_head(at))
        log = at.folder / "audit"
        behind = replicated_head(primary)
        assert proved(at, log) == (True, {"sluice-r0": []})
        file = log / "sluice-r0.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(line for line in lines if json.loads(line)["seq"] < behind))
        assert "are cut off" in proved(at, log)[1]["sluice-r0"][0]


def test_heads_of_audit_logs_are_whole_again_behind_a_failover(
    tmp_path: Path, replicated: tuple[Cluster, Cluster]
) -> None:
    """What the first database had not confirmed is gone with it. The replica has that in its log, and says it again."""
    primary, standby = replicated
    both = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    with replica(tmp_path, "r0", both, ROWS, audit={"checkpoints": {"every": "500ms"}}) as at:
        assert reason(at.call("ann", "bank__look")) == ""  # so that its tools are recorded
        at.until(lambda: replicated_head(primary) > 0)
        standby.pause()
        try:
            before = own_head(at)
            at.until(lambda: reason(at.call("ann", "bank__look")) == "" and own_head(at) > before + 20)
            primary.stop(signal.SIGKILL)
        finally:
            standby.resume()
        standby.ask("SELECT pg_promote()")
        at.until(lambda: replicated_head(standby) == own_head(at))
        assert reason(at.call("ann", "bank__look")) == ""
        assert proved(at, at.folder / "audit")[0] is True
