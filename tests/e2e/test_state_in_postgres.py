"""A Sluice whose state is in PostgreSQL: what it kept is there on another machine, and only what must happen once needs
the engine."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from database_bed import ROWS, api, approve, command, database, machine, seen, settings
from e2e.sluice_process import COMMAND, ROOT, clean_environment
from peers.postgres import Cluster, postgres
from policy_bed import bed, reason

__all__ = ["database"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres() as cluster:
        yield cluster


def test_what_was_approved_on_a_machine_that_died_is_used_once_on_another(tmp_path: Path, database: str) -> None:
    first, second = machine(tmp_path, "first"), machine(tmp_path, "second")
    with bed(first, ROWS, **settings(first, database)) as one:
        answer = one.call("ann", "bank__wire", to="bob")
        id = answer.json()["result"]["_meta"]["dev.sluice/approval"]["id"]
        assert approve(one, id) == 200
        os.kill(one.process.process.pid, signal.SIGKILL)
        one.process.process.wait()
        kept = json.loads(command(one, "approvals", "list", "--state", "all", "--json").stdout)["approvals"]
        assert [(row["id"], row["state"]) for row in kept] == [(id, "approved")]
    with bed(second, ROWS, **settings(second, database)) as other:
        assert not (second / "state" / "sluice.db").exists() and not (second / "state" / "keys").exists()
        assert other.call("ann", "bank__wire", to="bob").json()["result"].get("isError") is not True
        assert reason(other.call("ann", "bank__wire", to="bob")) == "approval_pending"
        assert seen(other) == ["wire"]


def test_a_key_that_is_revoked_on_another_machine_is_refused(tmp_path: Path, database: str) -> None:
    here, there = machine(tmp_path, "here"), machine(tmp_path, "there")
    with bed(here, ROWS, **settings(here, database)) as process:
        assert process.call("ann", "bank__look").status_code == 200
        config = json.loads(process.process.config.read_text())
        config["state"]["dir"] = str(there / "state")
        (there / "policy.csv").write_text(ROWS)
        (there / "sluice.yaml").write_text(json.dumps(config))
        done = command(process, "keys", "revoke", "ann", config=there / "sluice.yaml")
        assert done.returncode == 0, done.stderr
        assert "ann is revoked; its sessions and streams end" in done.stderr and "note:" not in done.stderr
        process.until(lambda: process.call("ann", "bank__look").status_code == 401)
        assert not (here / "state" / "revoked").exists()
        rows = json.loads(command(process, "keys", "list", "--json").stdout)["keys"]
        assert {row["name"]: row["state"] for row in rows} == {"ann": "revoked", "lea": "good"}
    folder = machine(tmp_path, "third")
    with bed(folder, ROWS, **settings(folder, database)) as process:
        assert process.call("ann", "bank__look").status_code == 401


def test_commands_on_another_machine_change_nothing_beside_the_sluice_that_runs(
    tmp_path: Path, database: str
) -> None:
    here, there = machine(tmp_path, "here"), machine(tmp_path, "there")
    with bed(here, ROWS, **settings(here, database)) as process:
        answer = process.call("ann", "bank__wire", to="bob")
        id = answer.json()["result"]["_meta"]["dev.sluice/approval"]["id"]
        config = json.loads(process.process.config.read_text())
        config["state"]["dir"], config["listen"] = str(there / "state"), {}
        (there / "policy.csv").write_text(ROWS)
        (there / "sluice.yaml").write_text(json.dumps(config))
        done = command(process, "approve", id, config=there / "sluice.yaml")
        assert done.returncode == 3 and "a Sluice runs on this database (process " in done.stderr, done.stderr
        assert api(process, f"approvals/{id}").json()["state"] == "pending"
        config["state"]["password"] = "${file:/none}"
        (there / "sluice.yaml").write_text(json.dumps(config))
        done = command(process, "keys", "revoke", "ann", config=there / "sluice.yaml")
        assert done.returncode == 4 and "the config has errors" in done.stderr


def test_without_the_engine_plain_calls_go_on_and_nothing_is_used_once(tmp_path: Path, engine: Cluster) -> None:
    folder = machine(tmp_path, "one")
    with bed(folder, ROWS, **settings(folder, engine.url)) as process:
        assert process.call("ann", "bank__look").status_code == 200
        notes = process.notes()
        assert any("PostgreSQL may lose what it has confirmed" in note for note in notes), notes
        engine.pause()
        try:
            for _ in range(20):
                assert "result" in process.call("ann", "bank__look").json()
            assert reason(process.call("ann", "bank__wire", to="bob")) == "store_unavailable"
            process.until(lambda: "the store in PostgreSQL cannot be used" in process.process.get("/readyz")[1])
            revoked = command(process, "keys", "revoke", "lea")
            assert revoked.returncode == 4 and "on this machine alone" in revoked.stderr
            explained = command(process, "explain", "tools/call", "bank__look", "--as", "ann", "--offline")
            assert explained.returncode == 4 and "PostgreSQL (state.url)" in explained.stderr
        finally:
            engine.resume()
        process.until(lambda: process.process.get("/readyz")[0] == 200)
        assert reason(process.call("ann", "bank__wire", to="bob")) == "approval_pending"
        assert seen(process) == ["look"] * 21


def test_commands_read_the_database_where_no_sluice_runs(tmp_path: Path, database: str) -> None:
    folder = machine(tmp_path, "one")
    with bed(folder, ROWS, **settings(folder, database)) as process:
        assert process.names("ann") == ["bank__wire", "bank__look"]
    pins = json.loads(command(process, "pins", "list", "--all", "--json").stdout)["pins"]
    assert sorted(row["name"] for row in pins if row["kind"] == "tool") == ["look", "wire"]
    explained = command(process, "explain", "tools/call", "bank__nothing", "--as", "ann", "--offline")
    assert "no tool" in explained.stdout + explained.stderr
    assert command(process, "check").returncode == 0
    rotated = command(process, "keys", "rotate", "seal")
    assert rotated.returncode == 3 and "state.keys.seal" in rotated.stderr


def test_several_workers_share_the_database_and_its_lease(tmp_path: Path, database: str) -> None:
    folder = machine(tmp_path, "one")
    with bed(folder, ROWS, arguments=["--workers", "2"], **settings(folder, database)) as process:
        answers = [process.call(who, "bank__wire", to="bob") for who in ("ann", "lea")]
        assert [reason(answer) for answer in answers] == ["approval_pending"] * 2
        assert len(api(process, "approvals").json()["approvals"]) == 2
        assert "waiting for the lease" not in process.process.log()


def test_doctor_looks_at_the_database(tmp_path: Path, engine: Cluster) -> None:
    folder = machine(tmp_path, "one")
    (folder / "policy.csv").write_text(ROWS)
    made = {**settings(folder, engine.url), "policy": {"files": ["policy.csv"]}}
    said = []
    for url in (engine.url, "postgresql://127.0.0.1:1/none"):
        made["state"]["url"] = url
        (folder / "sluice.yaml").write_text(json.dumps(made))
        line = [*COMMAND, "doctor", "-c", str(folder / "sluice.yaml")]
        done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env=clean_environment(), check=False)
        said.append(next(row for row in done.stdout.splitlines() if "state.url" in row))
    assert said[0].startswith("warning") and "synchronous_standby_names is empty" in said[0]
    assert said[1].startswith("failed") and "refused" in said[1]
