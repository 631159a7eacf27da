"""`sluice state`: tables for a role that may make none, and what was kept in SQLite, brought into PostgreSQL once."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from database_bed import ROWS, Json, api, approve, command, database, machine, seen, settings
from peers.postgres import Cluster, postgres
from policy_bed import Bed, bed, client_keys, reason

__all__ = ["database"]

KEYS = client_keys(ann=[], lea=["role:lead"], zed=[])


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        cluster.ask("CREATE ROLE plain LOGIN")
        yield cluster


def on_disk(folder: Path) -> Json:
    """The same Sluice before it had a database."""
    whole = settings(folder, "unused")
    clients = {"keys": KEYS, "local": {"roles": ["role:lead"]}}
    return {**whole, "clients": clients, "state": {"dir": str(folder / "state")}}


def moved(folder: Path, database: str) -> Json:
    """With the keys that it had in files."""
    whole = settings(folder, database)
    rings = {name: (folder / "state" / "keys" / name).read_text() for name in ("seal", "digest", "sign")}
    whole["state"]["keys"] |= rings
    return {**whole, "clients": {"keys": KEYS}}


def config_of(folder: Path, whole: Json) -> Path:
    file = folder / "moved.yaml"
    file.write_text(json.dumps({"version": 1, "policy": {"files": ["policy.csv"]}, **whole}))
    return file


def imported(one: Bed, file: Path) -> Json:
    done = command(one, "state", "import", "--json", config=file)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_where_the_role_may_make_no_tables_serve_says_which_command_does(tmp_path: Path, database: str) -> None:
    folder = machine(tmp_path, "one")
    plain = settings(folder, database.replace("postgres@", "plain@"))
    with bed(folder, ROWS, ready=False, **plain) as process:
        assert process.process.process.wait(30) == 3
        assert "run `sluice state migrate --as ROLE`" in process.process.log()
    done = command(process, "state", "migrate", "--as", "postgres", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["before"] == 0, done.stderr
    with bed(folder, ROWS, **plain) as process:
        assert reason(process.call("ann", "bank__wire", to="bob")) == "approval_pending"


def test_what_was_kept_on_disk_is_in_the_database_once_and_counts_there(tmp_path: Path, database: str) -> None:
    folder = machine(tmp_path, "one")
    with bed(folder, ROWS, **on_disk(folder)) as one:
        answer = one.call("ann", "bank__wire", to="bob")
        id = answer.json()["result"]["_meta"]["dev.sluice/approval"]["id"]
        assert approve(one, id) == 200
        assert api(one, "blocks", method="POST", json={"what": "bank/look"}).status_code == 200
        file = config_of(folder, moved(folder, database))
        done = command(one, "state", "import", config=file)
        assert done.returncode == 1 and "a Sluice has" in done.stderr and "stop it first" in done.stderr, done.stderr
    assert command(one, "keys", "revoke", "zed").returncode == 0
    brought = imported(one, file)
    assert brought["imported"]["approvals"] == 1 and brought["imported"]["pins"] == 1
    assert brought["imported"]["revoked keys"] == 1 and brought["imported"]["lists of blocks"] == 1
    with bed(folder, ROWS, **moved(folder, database)) as other:
        assert other.call("zed", "bank__look", to="bob").status_code == 401
        assert "error" in other.call("ann", "bank__look").json()
        assert other.call("ann", "bank__wire", to="bob").json()["result"].get("isError") is not True
        assert reason(other.call("ann", "bank__wire", to="bob")) == "approval_pending"
        assert seen(other) == ["wire"]
