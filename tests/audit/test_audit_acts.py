"""What is done to Sluice itself stands in its audit log: by signals, in the config, at the admin port, by commands."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from audit_sluice import KEY, Sluice, records, start


@pytest.fixture(scope="module")
def sluice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    """The tests here use it up in their order: the last one stops it."""
    found = start(tmp_path_factory.mktemp("acts"), audit={"checkpoints": {"every": "0.2s"}}, log={"format": "json"})
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait(30)


def change(sluice: Sluice, edit: Callable[[dict[str, Any]], None]) -> None:
    file = sluice.folder / "sluice.yaml"
    config = json.loads(file.read_text())
    edit(config)
    scratch = file.with_suffix(".new")
    scratch.write_text(json.dumps(config))
    scratch.replace(file)


def wait_for(sluice: Sluice, type: str, **fields: Any) -> dict[str, Any]:
    """The first record like that; another process has no event to give."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        for record in records(sluice.folder, type):
            if all(record.get(name) == value for name, value in fields.items()):
                return record
        time.sleep(0.05)
    raise AssertionError(f"no {type} record with {fields}")


def test_the_policy_that_decides_is_said_at_the_start(sluice: Sluice) -> None:
    record = wait_for(sluice, "policy", what="in_force")
    assert record["mode"] == "enforce" and record["revision"]


def test_a_config_that_changed_or_cannot_be_used_is_said(sluice: Sluice) -> None:
    key = {"hash": f"sha256:{sha256(b'other').hexdigest()}", "roles": []}
    change(sluice, lambda config: config["clients"]["keys"].update(other=key))
    assert wait_for(sluice, "policy", what="reloaded")["changed"] == ["clients"]
    assert wait_for(sluice, "admin", act="key_added")["name"] == "other"
    other = {"hash": f"sha256:{sha256(b'another').hexdigest()}", "roles": []}
    change(sluice, lambda config: config["clients"]["keys"].update(other=other))
    assert wait_for(sluice, "admin", act="key_revoked")["name"] == "other"
    change(sluice, lambda config: config.update(polcy={}))
    assert wait_for(sluice, "policy", what="rejected")["problems"] == 1
    change(sluice, lambda config: config.pop("polcy"))
    sluice.process.send_signal(signal.SIGHUP)
    assert wait_for(sluice, "admin", act="reload")["by"] == "SIGHUP"


def test_the_newest_checkpoint_is_at_the_admin_port_and_vouches_for_the_log(sluice: Sluice) -> None:
    sluice.call("rec__note")
    wait_for(sluice, "checkpoint")
    token = (sluice.folder / "state" / "operator.token").read_text()
    answer = sluice.get("/api/v1/audit/head", token)
    assert answer.status_code == 200 and answer.json()["writer"] == "sluice"
    (sluice.folder / "kept").write_bytes(answer.content)
    elsewhere = ["audit", "verify", "audit", "--key", "state/audit/sign.pub", "--checkpoint", "kept"]
    assert sluice.run(*elsewhere).returncode == 0
    forged = answer.json() | {"seq": answer.json()["seq"] + 500}
    (sluice.folder / "kept").write_text(json.dumps(forged))
    assert sluice.run(*elsewhere).returncode == 1


def test_who_has_no_right_and_who_is_not_let_in_at_the_admin_port_is_said(sluice: Sluice) -> None:
    assert sluice.get("/api/v1/audit/head", KEY).status_code == 403
    record = wait_for(sluice, "decision", principal="key:probe")
    assert (record["object"], record["act"], record["decision"]["verdict"]) == ("admin:audit", "read", "deny")
    for path in ("/api/v1/servers", "/readyz", "/api/v1/audit/head"):
        sluice.get(path, "guess")
    assert sluice.get("/api/v1/servers", "").status_code == 401


def test_an_end_in_good_order_is_said_and_flushes_what_was_summed_up(sluice: Sluice) -> None:
    sluice.stop()
    found = records(sluice.folder)
    acts = [record["act"] for record in found if record["type"] == "admin"]
    assert acts[-2:] == ["drain", "stop"]
    (identity,) = [record for record in found if record["type"] == "identity"]
    assert identity["count"] == 4 and identity["reasons"] == {"admin_credential": 3, "admin_none": 1}


def test_a_definition_accepted_while_no_sluice_runs_is_said(tmp_path: Path) -> None:
    sluice = start(tmp_path, pin="block")
    sluice.call("rec__note")
    sluice.stop()
    assert not sluice.seen(), "nobody has accepted it"
    sluice.log.chmod(0o644)
    refused = sluice.run("pins", "accept", "rec", "--all")
    assert refused.returncode != 0 and "0600" in refused.stderr, "no record, no act"
    sluice.log.chmod(0o600)
    done = sluice.run("pins", "accept", "rec", "--all")
    assert done.returncode == 0, done.stderr
    accepted = [record for record in records(tmp_path, "pin") if record["what"] == "accepted"]
    assert {(record["name"], record["by"]) for record in accepted} == {
        (tool, "local") for tool in ("note", "fail", "show", "ask")
    }
    assert sluice.run("audit", "verify").returncode == 0


def test_a_new_signing_key_is_introduced_by_the_old_one(tmp_path: Path) -> None:
    sluice = start(tmp_path)
    sluice.stop()
    old = (tmp_path / "state" / "audit" / "sign.pub").read_bytes()
    assert sluice.run("keys", "rotate", "sign").returncode == 0
    assert sluice.run("keys", "rotate", "nothing").returncode == 2
    start(tmp_path).stop()
    acts = [record for record in records(tmp_path, "admin") if record["act"] in ("key_rotated", "start")]
    assert [record["act"] for record in acts][-2:] == ["key_rotated", "start"]
    assert acts[-1]["previous"] == old.split()[0].decode() and acts[-1]["sig"]
    (tmp_path / "old.pub").write_bytes(old)
    kept = str(next(tmp_path.glob("state/audit/*/sluice.checkpoint")))
    done = sluice.run("audit", "verify", "audit", "--key", "old.pub", "--checkpoint", kept)
    assert done.returncode == 0 and "introduced by key" in done.stderr, done
