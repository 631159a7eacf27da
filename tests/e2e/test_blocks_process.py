"""`sluice block`: a person stops a tool, a server or a client at a Sluice that runs, and lets it go on again."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run
from e2e.sluice_process import COMMAND, ROOT, clean_environment
from policy_bed import RECORDER, Bed, bearer, bed, client_keys, key_of, recorder

Json = dict[str, Any]
ROWS = """\
p, role:authenticated, *, *, *, allow
p, local, sluice, admin:*, *, allow
p, role:lead, sluice, admin:*, *, allow
p, role:lead, sluice, admin:policy, *, allow
p, role:reader, sluice, admin:policy, read, allow
p2, *, bank, tool:wire, *, one-of-leads
"""


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with running(tmp_path_factory.mktemp("city")) as process:
        yield process


@pytest.fixture
def town(city: Bed) -> Iterator[Bed]:
    """One Sluice for all tests that leave it as it was but for what is blocked. A call that waits for a person is
    another test's as well, so each of them is told apart by its arguments."""
    yield city
    for what in [note.removeprefix("blocked: ") for note in city.notes()]:
        assert said(city, "unblock", what).returncode == 0


@pytest.fixture
def village(tmp_path: Path) -> Iterator[Bed]:
    """A Sluice of a test's own."""
    with running(tmp_path) as process:
        yield process


def running(folder: Path, **more: Any) -> Any:
    keys = client_keys(ann=[], lea=["role:lead"], rob=["role:reader"])
    servers = {key: section(folder, key) for key in ("bank", "mail")}
    config: Json = {"clients": {"keys": keys}, "approvals": {"hold_for": "100ms"}, **more}
    return bed(folder, ROWS, servers, **config)


def section(folder: Path, key: str) -> Json:
    if not (folder / key).exists():
        return recorder(folder, key, tools=["wire", "look"], resources=["file:///a"])
    return {"command": sys.executable, "args": [RECORDER, str(folder / key)], "sharing": "shared", "era": "legacy"}


def said(town: Bed, *words: str, who: str = "") -> "subprocess.CompletedProcess[str]":
    return run(ROOT, *words, "-c", str(town.process.config), env={"SLUICE_KEY": key_of(who)} if who else {})


def in_a_process(town: Bed, *words: str) -> "subprocess.CompletedProcess[str]":
    line = [*COMMAND, *words, "-c", str(town.process.config)]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env=clean_environment(), check=False)


def block(town: Bed, what: str) -> None:
    """Where it does not matter how it came to be blocked."""
    url = f"{town.process.admin}/api/v1/blocks"
    httpx.post(url, json={"what": what}, headers=bearer("lea"), timeout=20).raise_for_status()


def is_served(town: Bed, name: str, who: str = "ann", **arguments: Any) -> bool:
    return "result" in (answer := town.call(who, name, **arguments).json()) and not answer["result"].get("isError")


def test_a_tool_is_blocked_and_unblocked_for_everybody_at_once(town: Bed) -> None:
    before = len(town.audit())
    assert is_served(town, "bank__look")
    done = in_a_process(town, "block", "bank__look", "--reason", "it leaks")
    assert (done.returncode, done.stdout) == (0, "bank/look is blocked\n"), done.stderr
    assert not is_served(town, "bank__look") and not is_served(town, "bank__look", "lea")
    assert is_served(town, "mail__look")
    assert sorted(town.names("ann")) == ["bank__wire", "mail__look", "mail__wire"]
    assert town.notes() == ["blocked: bank/look"]
    explained = json.loads(said(town, "explain", "call", "bank__look", "--as", "ann", "--json").stdout)
    assert (explained["verdict"], explained["rule"]) == ("deny", "block: bank/look")
    shown = json.loads(said(town, "block", "--json").stdout)["blocks"]
    assert [(row["what"], row["until"], row["by"], row["reason"]) for row in shown] == [
        ("bank/look", "", "local", "it leaks")
    ]
    assert "it leaks" not in town.call("ann", "bank__look").text
    assert in_a_process(town, "unblock", "bank/look").stdout == "bank/look is not blocked any more\n"
    assert is_served(town, "bank__look") and town.notes() == []
    acts = [record for record in town.audit()[before:] if record.get("act") in ("block", "unblock")]
    assert [(one["act"], one["what"], one["by"]) for one in acts] == [
        ("block", "bank/look", "local"), ("unblock", "bank/look", "local")
    ]  # fmt: skip
    decided = [one["decision"] for one in town.audit()[before:] if one["type"] == "outcome" and "decision" in one]
    assert {one["rule"] for one in decided if one["verdict"] == "deny"} == {"block: bank/look"}


def test_a_server_and_a_client_are_blocked_as_a_whole(town: Bed) -> None:
    assert said(town, "block", "bank").returncode == 0
    assert sorted(town.names("ann")) == ["mail__look", "mail__wire"] and town.names("ann", "resources") == ["mail+file:///a"]
    read = town.ask("ann", "resources/read", uri="bank+file:///a").json()
    assert "error" in read, read
    assert said(town, "block", "key:lea").returncode == 0
    assert town.names("lea") == [] and not is_served(town, "mail__look", "lea") and is_served(town, "mail__look")
    refused = httpx.get(f"{town.process.admin}/api/v1/blocks", headers=bearer("lea"), timeout=20)
    assert refused.status_code == 403
    assert said(town, "unblock", "key:lea").returncode == 0
    assert httpx.get(f"{town.process.admin}/api/v1/blocks", headers=bearer("lea"), timeout=20).status_code == 200


def test_a_block_with_a_time_is_over_by_itself_and_one_without_outlives_a_start(tmp_path: Path) -> None:
    with running(tmp_path) as town:
        assert said(town, "block", "mail", "--for", "5s").returncode == 0
        assert not is_served(town, "mail__look")
        block(town, "bank/wi*")
        town.until(lambda: is_served(town, "mail__look"))
        assert [row["what"] for row in json.loads(said(town, "block", "--json").stdout)["blocks"]] == ["bank/wi*"]
        os.kill(town.process.process.pid, signal.SIGKILL)
        town.process.process.wait()
    with running(tmp_path) as town:
        assert "bank__wire" not in town.names("ann")


def test_what_waits_for_a_person_is_not_executed_once_it_is_blocked(town: Bed) -> None:
    before = town.seen("bank")
    waiting = town.call("ann", "bank__wire", to="bob").json()["result"]["_meta"]["dev.sluice/approval"]["id"]
    api = f"{town.process.admin}/api/v1/approvals/{waiting}"
    seen = httpx.get(api, headers=bearer("lea"), timeout=20).json()["digest"]
    block(town, "bank")
    body = {"decision": "approve", "seen_digest": seen}
    httpx.post(f"{api}/decisions", json=body, headers=bearer("lea"), timeout=20)
    assert not is_served(town, "bank__wire", to="bob")
    assert town.seen("bank") == before


def test_nor_is_a_call_that_is_held_open(tmp_path: Path) -> None:
    with running(tmp_path, approvals={"hold_for": "20s"}) as town, ThreadPoolExecutor(1) as pool:
        api = f"{town.process.admin}/api/v1/approvals"
        asked: list[Json] = []

        def look() -> int:
            found = httpx.get(api, headers=bearer("lea"), timeout=20).json()["approvals"]
            asked.extend(one for one in found if one["id"] not in {other["id"] for other in asked})
            return len(asked)

        for count, what in enumerate(("bank", "bank/wire", "key:ann"), 1):
            held = pool.submit(town.call, "ann", "bank__wire", to=what)
            town.until(lambda count=count: look() == count)  # type: ignore[misc]
            block(town, what)
            body = {"decision": "approve", "seen_digest": asked[-1]["digest"]}
            httpx.post(f"{api}/{asked[-1]['id']}/decisions", json=body, headers=bearer("lea"), timeout=20)
            answer = held.result().json()
            assert "error" in answer or answer["result"]["isError"], (what, answer)
            assert town.seen("bank") == [], what
            assert said(town, "unblock", what).returncode == 0


def test_mistakes_are_clear_and_block_nothing(town: Bed) -> None:
    for words, code, text in [
        (["block", "ann"], 2, "a client is written key:NAME, and these are the servers: bank, mail"),
        (["block", "nowhere/wire"], 2, "no server has that: bank, mail"),
        (["block", "bank", "--for", "soon"], 2, "not a duration"),
        (["block", "bank", "--for", "0s"], 2, "more than nothing"),
        (["block", "--for", "1h"], 2, "need WHAT"),
        (["unblock", "bank"], 1, "bank is not blocked; what is: nothing"),
    ]:
        done = said(town, *words)
        assert done.returncode == code and text in done.stderr, (words, done)
    assert said(town, "block").stderr == "nothing is blocked\n"


def test_what_can_match_nothing_is_blocked_and_said(village: Bed) -> None:
    done = said(village, "block", "bank/lock")
    assert "note: no list of bank is known, so nothing says whether it has lock" in done.stderr
    assert len(village.names("ann")) == 4
    assert "note: bank lists no tool lock; did you mean look?" in said(village, "block", "bank/lock").stderr
    assert "note: the config has no key:an" in said(village, "block", "key:an").stderr
    assert "note: no token of https://idp.test is taken" in said(village, "block", "jwt:https://idp.test#ann").stderr
    assert "note" not in said(village, "block", "bank/loo?").stderr


def test_it_needs_the_right_to_change_the_policy(town: Bed) -> None:
    done = said(town, "block", "bank", who="rob")
    assert done.returncode == 5 and "admin:policy write" in done.stderr, done
    assert said(town, "block", who="rob").returncode == 0
    assert said(town, "block", "bank", who="lea").returncode == 0
    shown = json.loads(said(town, "block", "--json", who="rob").stdout)["blocks"]
    assert [row["by"] for row in shown] == ["key:lea"]
    assert said(town, "unblock", "bank", who="rob").returncode == 5
    wrong = {"for": -1}, {"for": True}, {"for": 1e300}, {"for": "1h"}, {"more": 1}, {"reason": "x" * 501}, {"what": 1}
    for body in ({}, [], {"what": ""}, *({"what": "bank", **one} for one in wrong)):
        answer = httpx.post(f"{town.process.admin}/api/v1/blocks", json=body, headers=bearer("lea"), timeout=20)
        assert answer.status_code == 400, body


def test_where_no_sluice_runs_the_next_one_obeys(tmp_path: Path) -> None:
    with running(tmp_path) as town:
        pass
    done = said(town, "block", "bank/look")
    assert (done.returncode, done.stdout) == (0, "bank/look is blocked\n"), done.stderr
    assert "bank/look" in said(town, "block").stdout
    explained = said(town, "explain", "call", "bank__look", "--as", "ann")
    assert explained.returncode == 1 and "block: bank/look" in explained.stdout, explained
    with running(tmp_path) as town:
        assert not is_served(town, "bank__look") and is_served(town, "mail__look")
        assert [one["act"] for one in town.audit() if one["type"] == "admin"].count("block") == 1


def test_a_mistake_in_the_file_keeps_nobody_from_blocking(tmp_path: Path) -> None:
    """The admin port is in the file, beside the mistake. Where nobody answers, the file is needed whole."""
    with running(tmp_path) as town:
        config = json.loads(town.process.config.read_text())
        town.write(json.dumps(config | {"limitz": {}}), "sluice.yaml")
        done = said(town, "block", "bank/look")
        assert (done.returncode, done.stdout) == (0, "bank/look is blocked\n"), done.stderr
        assert "unknown-key" in done.stderr and not is_served(town, "bank__look")
        town.write(json.dumps(config | {"limitz": {}, "listen": {"admn": 1}}), "sluice.yaml")
        assert said(town, "unblock", "bank/look").returncode == 3
    for listen in (config["listen"], {"admn": 1}):
        town.write(json.dumps(config | {"limitz": {}, "listen": listen}), "sluice.yaml")
        assert said(town, "unblock", "bank/look").returncode == 3


def test_every_worker_obeys(tmp_path: Path) -> None:
    with running(tmp_path, arguments=("--workers", "2")) as town:
        block(town, "key:ann")
        town.until(lambda: not any(is_served(town, "bank__look") for _ in range(6)))
        assert is_served(town, "bank__look", "rob")


def test_a_block_is_not_made_shorter_by_another_one(town: Bed) -> None:
    assert said(town, "block", "bank", "--for", "1h").returncode == 0
    shorter = said(town, "block", "bank", "--for", "5s")
    assert shorter.returncode == 1 and "bank is blocked for longer, until 2" in shorter.stderr, shorter
    assert said(town, "block", "bank").returncode == 0
    shorter = said(town, "block", "bank", "--for", "2h")
    assert "bank is blocked for longer, until somebody ends that: unblock it first" in shorter.stderr, shorter
    assert [row["until"] for row in json.loads(said(town, "block", "--json").stdout)["blocks"]] == [""]


def test_whoever_runs_sluice_may_block_and_unblock_themselves(town: Bed) -> None:
    assert said(town, "block", "local").returncode == 0
    assert said(town, "unblock", "local").returncode == 0


def test_what_a_person_approved_does_not_count_once_they_are_blocked(town: Bed) -> None:
    before = town.seen("bank")
    waiting = town.call("ann", "bank__wire", to="eve").json()["result"]["_meta"]["dev.sluice/approval"]["id"]
    api = f"{town.process.admin}/api/v1/approvals/{waiting}"
    seen = httpx.get(api, headers=bearer("lea"), timeout=20).json()["digest"]
    body = {"decision": "approve", "seen_digest": seen}
    assert httpx.post(f"{api}/decisions", json=body, headers=bearer("lea"), timeout=20).status_code == 200
    assert said(town, "block", "key:lea").returncode == 0
    assert not is_served(town, "bank__wire", to="eve")
    assert town.seen("bank") == before


def test_a_sluice_that_cannot_read_what_is_blocked_serves_nothing_until_it_can(tmp_path: Path) -> None:
    with running(tmp_path) as town:
        block(town, "bank/look")
    with database(town) as rows:
        (kept,) = rows.execute("SELECT value FROM item WHERE key = 'policy/blocks'").fetchone()
        rows.execute("UPDATE item SET value = ? WHERE key = 'policy/blocks'", (b"{",))
    with running(tmp_path, ready=False) as town:
        town.process.wait_answering()
        assert town.names("ann") == [] and not is_served(town, "mail__look")
        unready = httpx.get(f"{town.process.admin}/readyz", timeout=20)
        assert unready.status_code == 503 and "nobody knows what is blocked" in unready.text
        with database(town) as rows:
            rows.execute("UPDATE item SET value = ? WHERE key = 'policy/blocks'", (kept,))
        town.until(lambda: is_served(town, "mail__look"))
        assert not is_served(town, "bank__look")


@contextmanager
def database(town: Bed) -> Iterator[sqlite3.Connection]:
    (path,) = town.process.config.parent.rglob("*.db")
    with closing(sqlite3.connect(path)) as rows, rows:
        yield rows


def test_the_sluice_that_runs_is_asked_where_it_listens_and_not_where_the_file_says_by_now(village: Bed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = json.loads(village.process.config.read_text())
        config["listen"]["admin"] = f"127.0.0.1:{other.getsockname()[1]}"
        village.process.config.write_text(json.dumps(config))
        done = said(village, "block", "bank")
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert done.returncode == 0 and not is_served(village, "bank__wire"), done


def test_a_second_start_that_cannot_listen_leaves_the_operator_of_the_first_one(town: Bed) -> None:
    assert in_a_process(town, "serve").returncode != 0
    assert said(town, "block", "bank").returncode == 0 and not is_served(town, "bank__wire")
