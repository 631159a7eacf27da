"""A rolling upgrade: replicas of the version before and of this one on one database. What one cannot read counts for
nothing."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from database_bed import api, approve, command, database, machine, seen, settings
from e2e import sluice_process
from e2e.test_fleet import replica
from fleet_stage import Session, forwarded
from peers.postgres import Cluster, postgres
from policy_bed import Bed, reason

from sluicegate.store import postgres_statements as migrations

__all__ = ["database"]
OLDER = str(Path(__file__).with_name("older_sluice.py"))


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


def version(database: str) -> "tuple[object, ...] | None":
    with psycopg.connect(database) as engine:
        return engine.execute("SELECT version, min_reader FROM sluice_schema").fetchone()


def change(database: str, statement: str) -> int:
    with psycopg.connect(database, autocommit=True) as engine:
        return engine.execute(statement.encode()).rowcount


def asked(at: Bed) -> str:
    result = at.call("ann", "bank__wire", to="bob").json()["result"]
    return str(result["_meta"]["dev.sluice/approval"]["id"])


def test_a_replica_of_the_version_before_serves_beside_one_of_today(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        with monkeypatch.context() as before:
            before.setattr(sluice_process, "COMMAND", [sys.executable, OLDER])
            old: Bed = stack.enter_context(replica(tmp_path, "old", database))
            assert version(database) == (1, 1)
        new: Bed = stack.enter_context(replica(tmp_path, "new", database))
        assert version(database) == (migrations.VERSION, migrations.OLDEST_READER)
        for home, other in ((old, new), (new, old)):
            session = Session(home)
            assert "isError" not in session.call(other, "bank__look").json()["result"]
            assert forwarded(other) == {"answered": 1.0}
        for number, (here, there) in enumerate(((old, new), (new, old)), 1):
            id = asked(here)
            there.until(lambda there=there, id=id: api(there, f"approvals/{id}").status_code == 200)
            assert approve(there, id) == 200
            assert "isError" not in there.call("ann", "bank__wire", to="bob").json()["result"]
            assert seen(here).count("wire") == number
        done = command(new, "keys", "revoke", "ann")
        assert done.returncode == 0, done.stderr
        assert [at.call("ann", "bank__look").status_code for at in (old, new)] == [401, 401]


def test_a_replica_of_the_version_before_starts_anew_on_the_tables_of_today(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replica(tmp_path, "new", database) as new:
        monkeypatch.setattr(sluice_process, "COMMAND", [sys.executable, OLDER])
        with replica(tmp_path, "old", database) as old:
            assert version(database) == (migrations.VERSION, migrations.OLDEST_READER)
            assert "isError" not in Session(old).call(new, "bank__look").json()["result"]
            newer = migrations.VERSION + 1
            assert change(database, f"UPDATE sluice_schema SET version = {newer}, min_reader = {newer}") == 1
            place = machine(tmp_path, "late")
            file = place / "sluice.yaml"
            late = {**json.loads(new.process.config.read_text()), "fleet": {"name": "late"}}
            late["state"] = settings(place, database)["state"]
            (place / "policy.csv").write_text((new.folder / "policy.csv").read_text())
            file.write_text(json.dumps(late | {"listen": {}}))
            done = command(None, "serve", config=file)
            assert done.returncode == 3 and f"which needs a Sluice that knows version {newer}" in done.stderr
            assert [at.call("ann", "bank__look").status_code for at in (old, new)] == [200, 200]


@pytest.mark.parametrize("member", ['"only_on": "mondays"', '"v": 2'])
def test_an_approval_with_something_that_is_not_known_here_counts_for_nothing(
    tmp_path: Path, database: str, member: str
) -> None:
    with replica(tmp_path, "a", database) as here, replica(tmp_path, "b", database) as there:
        id = asked(here)
        there.until(lambda: api(there, f"approvals/{id}").status_code == 200)
        assert approve(there, id) == 200
        newer = f"""
            UPDATE sluice_item
            SET value = convert_to('{{{member}, ' || substr(convert_from(value, 'UTF8'), 2), 'UTF8')
            WHERE key LIKE 'approval/open/%'
        """
        assert change(database, newer) == 1
        for at in (here, there):
            answer = at.call("ann", "bank__wire", to="bob")
            assert reason(answer) == "approval_pending", answer.text
            assert answer.json()["result"]["_meta"]["dev.sluice/approval"]["id"] != id
            answers = [
                api(at, f"approvals/{id}"), api(at, f"approvals/{id}/cancel", method="POST", json={}),
                api(at, f"approvals/{id}/decisions", method="POST", json={"decision": "deny"}),
            ]  # fmt: skip
            assert [one.status_code for one in answers] == [409] * 3, [one.text for one in answers]
            assert all("a newer Sluice wrote it" in one.text for one in answers)
            assert api(at, f"approvals/{id[:-1]}").status_code == 404
        with psycopg.connect(database) as engine:
            rows = engine.execute("SELECT convert_from(value, 'UTF8') FROM sluice_item WHERE key = %s",
                                  (f"approval/open/{id}".encode(),)).fetchall()  # fmt: skip
        assert [member in text for (text,) in rows] == [True], "nobody touches it"
        assert seen(here) == []
