"""What writes or destroys goes on once a collector has its record, too: whatever happens to the disk of a replica, no
such call is lost to the audit log."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psycopg
import pytest
from database_bed import Json, command, database, settings
from e2e.test_fleet import at_once, metric, replica
from e2e.test_fleet_outages import executed
from peers.collector import Collector, collector
from peers.postgres import Cluster, postgres
from policy_bed import Bed, reason

__all__ = ["database"]
ROWS = "p, role:authenticated, bank, *, *, allow\n"


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Collector]:
    with collector(tmp_path) as made:
        yield made


@contextmanager
def two(folder: Path, database: str, kept: Collector) -> Iterator[list[Bed]]:
    audit = {"sinks": [{"name": "kept", "to": kept.url}], "confirm": {"sink": "kept"}, "checkpoints": {"every": "1h"}}
    bank = {**settings(folder / "r0" / "sluice", database)["servers"]["bank"], "tools": {"classes": {"look": "read"}}}
    with ExitStack() as stack:
        about: Json = {"audit": audit, "servers": {"bank": bank}, "ready": False}
        yield at_once(stack, (replica(folder, name, database, ROWS, **about) for name in ("r0", "r1")))


def has_head(database: str, writer: str) -> bool:
    with psycopg.connect(database) as engine:
        key = f"audit/head/{writer}".encode()
        return engine.execute("SELECT 1 FROM sluice_item WHERE key = %s", (key,)).fetchone() is not None


def wired(at: Bed, number: str) -> str:
    return reason(at.call("ann", "bank__wire", to=number))


def test_with_a_disk_no_record_is_lost_of_what_writes(tmp_path: Path, database: str, kept: Collector) -> None:
    with two(tmp_path, database, kept) as (here, there):
        here.until(lambda: has_head(database, "sluice-r0"))  # from its start, long before a checkpoint is due
        answered: list[str] = []

        def load(kind: int) -> None:
            with suppress(httpx.HTTPError):  # until it is killed
                for number in range(10_000):
                    assert wired(here, f"{kind}-{number}") == ""
                    answered.append(f"{kind}-{number}")

        threads = [threading.Thread(target=load, args=(kind,)) for kind in range(4)]
        for one in threads:
            one.start()
        here.until(lambda: len(answered) >= 60)
        os.kill(here.process.process.pid, signal.SIGKILL)
        here.process.process.wait()
        shutil.rmtree(here.folder / "audit")
        for one in threads:
            one.join()
        copy = tmp_path / "copy"
        copy.mkdir()
        lines = kept.lines("sluice-r0")
        intents = [one for one in map(json.loads, lines.values()) if one["type"] == "intent"]
        done = executed(there, "wire")
        assert set(answered) <= set(done) <= {one["arguments"]["to"] for one in intents} and len(done) >= 60
        (copy / "sluice-r0.jsonl").write_bytes(b"".join(lines[seq] for seq in sorted(lines)))
        there.process.interrupt()

        def proved(*logs: Path) -> dict[str, list[str]]:
            answer: Json = json.loads(command(there, "audit", "verify", "--fleet", *map(str, logs), "--json").stdout)
            return {one["writer"]: [finding["text"] for finding in one["findings"]] for one in answer["writers"]}

        assert "are cut off" in proved(there.folder / "audit")["sluice-r0"][0]
        assert proved(there.folder / "audit", copy) == {"sluice-r0": [], "sluice-r1": []}


@pytest.mark.parametrize("how", ["pause", "kill"])
def test_without_the_collector_what_writes_is_refused_and_what_reads_goes_on(
    tmp_path: Path, database: str, kept: Collector, how: str
) -> None:
    with two(tmp_path, database, kept) as (here, there):
        assert [wired(at, "before") for at in (here, there)] == ["", ""]
        getattr(kept, how)()
        assert wired(here, "meanwhile") == "audit_unavailable"
        assert reason(here.call("ann", "bank__look")) == ""
        if how == "kill":  # one that hangs is known to be down only when its time is over
            here.until(lambda: any("the audit sink kept confirms nothing" in note for note in here.notes()))
            assert wired(here, "meanwhile") == "audit_unavailable"
        assert here.process.get("/readyz")[0] == 200
        getattr(kept, {"pause": "resume", "kill": "start"}[how])()
        here.until(lambda: wired(here, "after") == "")
        assert executed(here, "wire") == {"before": 2, "after": 1}
        assert metric(here, 'sluice_audit_records_total{result="refused",sink="kept"}') >= 1
        here.until(lambda: "meanwhile" in str(kept.lines("sluice-r0")))
