"""Commands beside `sluice stdio`: they find the Sluice that a desktop client runs, also after its file was edited and
after another client took over, and what only reads leaves no trace in the audit log."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from e2e.desktop_clients import Desktop, owner_of
from e2e.sluice_process import COMMAND, ROOT, clean_environment, stdio_command
from policy_bed import client_keys, key_of, recorder
from waiting import until_so as until

from sluicegate.app.instance_lock import InstanceLock

Json = dict[str, Any]
ROWS = """\
p, role:everyone, bank, *, *, allow
p2, *, bank, tool:pay, *, confirm
p, local, sluice, admin:*, *, allow
p, key:eve, sluice, admin:approvals, read, allow
"""


def prepare(folder: Path, **more: Any) -> list[str]:
    """The command of a desktop client: a server `bank`, whose tool `pay` a person confirms."""
    (folder / "policy.csv").write_text(ROWS)
    config: Json = {
        "servers": {"bank": recorder(folder, "bank", tools=["pay", "look"])}, "policy": {"files": ["policy.csv"]},
        "approvals": {"hold_for": "100ms"}, "clients": {"local": {"roles": []}, "keys": client_keys(ann=[], eve=[])},
    }  # fmt: skip
    return stdio_command(config | more, folder)


@contextmanager
def client(command: list[str], name: str = "one", **environment: str) -> Iterator[Desktop]:
    desktop = Desktop(command, name, **environment)
    try:
        yield desktop
    finally:
        desktop.close()


@contextmanager
def served(command: list[str], name: str = "one", **environment: str) -> Iterator[Desktop]:
    with client(command, name, **environment) as desktop:
        about = {"name": name, "version": "1"}
        desktop.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=about)
        desktop.send(method="notifications/initialized")
        until(lambda: desktop.tools() >= {"bank__look"})
        yield desktop


def edit(folder: Path, change: Callable[[Json], None]) -> None:
    file, draft = folder / "sluice.yaml", folder / "draft"
    config = json.loads(file.read_text())
    change(config)
    draft.write_text(json.dumps(config))
    draft.replace(file)


def deny_look(config: Json) -> None:
    config["servers"]["bank"]["tools"] = {"deny": ["look"]}


def command(folder: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return run(folder, *words, "-c", "sluice.yaml", env=environment)


def in_a_process(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    line = [*COMMAND, *words, "-c", str(folder / "sluice.yaml")]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env=clean_environment(), check=False)


def shown(folder: Path, *words: str, **environment: str) -> Any:
    done = command(folder, *words, "--json", **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ask_to_pay(desktop: Desktop, **arguments: Any) -> str:
    """The id of the approval that the call waits for."""
    result = desktop.ask("tools/call", name="bank__pay", arguments=arguments)["result"]
    assert result["_meta"]["dev.sluice/reason"] == "approval_pending", result
    return str(result["_meta"]["dev.sluice/approval"]["id"])


def audit(folder: Path) -> dict[str, list[Json]]:
    files = sorted((folder / "audit").glob("*.jsonl*"))
    return {file.name: [json.loads(line) for line in file.read_text().splitlines()] for file in files}


def spoil(folder: Path, how: str) -> None:
    """A mistake in the file, which the running Sluice does not follow."""
    if how == "no YAML":
        (folder / "sluice.yaml").write_text("{")
    else:
        edit(folder, lambda config: config["servers"]["bank"].update(timeuot=3))


@pytest.mark.parametrize("how", ["a key", "no YAML"])
def test_a_mistake_in_the_file_keeps_nobody_from_the_sluice_that_runs(tmp_path: Path, how: str) -> None:
    at_home = {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "home")}
    more: Json = {} if how == "a key" else {"state": {}, "audit": {}}
    line = prepare(tmp_path, **more)
    with served(line, **at_home) as desktop:
        waiting = ask_to_pay(desktop, n=1)
        spoil(tmp_path, how)
        done = command(tmp_path, "approvals", "list", "--json", **at_home)
        assert [row["id"] for row in json.loads(done.stdout)["approvals"]] == [waiting], done
        told = "the Sluice that runs goes on with what the file said before, and is asked"
        assert told in done.stderr.splitlines() and "sluice.yaml:" in done.stderr
        assert command(tmp_path, "approve", waiting, "-y", **at_home).returncode == 0
        assert "error" not in desktop.ask("tools/call", name="bank__pay", arguments={"n": 1})
        asking = [["servers"], ["console", "--no-browser"], ["logs", "bank"], ["block"], ["pins", "list", "bank"]]
        for words in asking if how == "no YAML" else [*asking, ["audit", "tail"]]:
            done = command(tmp_path, *words, **at_home)
            assert done.returncode == 0 and "sluice.yaml:" in done.stderr, (words, done)
            assert words[0] != "audit" or f"bank {waiting} pending" in done.stdout, done.stdout
    for words in (["approvals", "list"], ["audit", "tail"]) if how == "no YAML" else (["approvals", "list"],):
        done = command(tmp_path, *words, **at_home)
        assert done.returncode == 3 and told not in done.stderr, done


def test_a_file_that_is_missing_or_no_yaml_leads_to_no_other_sluice(tmp_path: Path) -> None:
    """Such as the one with all defaults: its operator token would be shown at its port."""
    at_home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    (tmp_path / "state" / "sluice").mkdir(parents=True, mode=0o700)
    (tmp_path / "state" / "sluice" / "operator.token").write_text("secret")
    (tmp_path / "bad.yaml").write_text("state: {dir: mine}\nlisten: {admin: 127.0.0.1:9}\n]")
    for file in ("bad.yaml", "missing.yaml"):
        for words in (["block", "key:x"], ["servers"], ["audit", "verify"]):
            done = run(tmp_path, *words, "-c", file, env=at_home)
            assert done.returncode == 3 and "credential" not in done.stderr, (file, words, done)


def test_all_commands_find_the_sluice_of_a_desktop_client(tmp_path: Path) -> None:
    with served(prepare(tmp_path)) as desktop:
        (row,) = shown(tmp_path, "servers")["servers"]
        assert (row["key"], row["status"]) == ("bank", "up")
        table = command(tmp_path, "servers").stdout.splitlines()
        assert max(map(len, table)) <= 100 and "LAST_ERROR" not in table[0], table
        assert {tool["name"] for tool in shown(tmp_path, "tools")["tools"]} == {"bank__pay", "bank__look"}
        assert {row["name"] for row in shown(tmp_path, "pins", "list", "--all")["pins"]} >= {"pay", "look"}
        assert command(tmp_path, "pins", "accept", "bank", "pay").returncode == 0
        yes, no = ask_to_pay(desktop, n=1), ask_to_pay(desktop, n=2)
        assert {row["id"] for row in shown(tmp_path, "approvals", "list")["approvals"]} == {yes, no}
        assert shown(tmp_path, "approvals", "show", yes, "--reveal")["arguments"] == {"n": 1}
        assert command(tmp_path, "approve", yes, "-y").returncode == command(tmp_path, "deny", no).returncode == 0
        assert "error" not in desktop.ask("tools/call", name="bank__pay", arguments={"n": 1})
        assert shown(tmp_path, "approvals", "show", yes)["state"] == "consumed"
        assert command(tmp_path, "approvals", "grants").returncode == 0
        log = audit(tmp_path)
        assert list(log) == ["sluice.jsonl"], "nobody but the Sluice that runs has written"
        assert {record["epoch"] for record in log["sluice.jsonl"]} == {1}


def test_a_server_of_a_desktop_client_is_restarted_disabled_and_enabled(tmp_path: Path) -> None:
    with served(prepare(tmp_path)) as desktop:
        (first,) = shown(tmp_path, "servers")["servers"]
        done = in_a_process(tmp_path, "servers", "restart", "bank")
        assert (done.returncode, done.stdout) == (0, "bank: restarted\n"), done.stderr
        assert not set(shown(tmp_path, "servers")["servers"][0]["pids"]) & set(first["pids"])
        assert "error" not in desktop.ask("tools/call", name="bank__look", arguments={})
        assert in_a_process(tmp_path, "servers", "disable", "bank").returncode == 0
        assert desktop.tools() == set() and shown(tmp_path, "servers")["servers"][0]["status"] == "disabled"
        for action in ("restart", "reconnect"):
            refused = command(tmp_path, "servers", action, "bank")
            assert refused.returncode == 1 and "enable it first" in refused.stderr
        assert in_a_process(tmp_path, "servers", "enable", "bank").returncode == 0
        until(lambda: desktop.tools() >= {"bank__look"})
        assert command(tmp_path, "servers", "reconnect", "bank").returncode == 0
        acts = [one for one in audit(tmp_path)["sluice.jsonl"] if str(one.get("act")).startswith("server_")]
        assert [(one["act"], one["by"]) for one in acts] == [
            (f"server_{action}", "local") for action in ("restart", "disable", "enable", "reconnect")
        ]
        by_eve = command(tmp_path, "servers", "restart", "bank", SLUICE_KEY=key_of("eve"))
        assert by_eve.returncode == 5 and "admin:servers write" in by_eve.stderr
        (tmp_path / "audit" / "sluice.jsonl").unlink()
        unrecorded = command(tmp_path, "servers", "disable", "bank")
        assert unrecorded.returncode == 1 and "nothing was done" in unrecorded.stderr
        until(lambda: shown(tmp_path, "servers")["servers"][0]["status"] == "up")


@pytest.mark.parametrize(("words", "code", "why"), [
    (["restart", "none"], 1, "there is no server none"), (["restart"], 2, "takes the key of a server"),
    (["restart", "../bank"], 2, "takes the key of a server"), (["bank"], 2, "'bank' is not one of"),
    (["restart", "bank", "more"], 2, "unexpected extra argument"),
])  # fmt: skip
def test_a_mistake_in_an_action_on_a_server_is_named(tmp_path: Path, words: list[str], code: int, why: str) -> None:
    with served(prepare(tmp_path)):
        done = command(tmp_path, "servers", *words)
        assert (done.returncode, done.stdout) == (code, "") and why in done.stderr


def test_a_call_at_the_sluice_of_a_desktop_client_is_one_of_its_local_client(tmp_path: Path) -> None:
    with served(prepare(tmp_path)):
        done = command(tmp_path, "call", "bank__look", '{"a": 1, "stderr": "seen\\n"}')
        assert (done.returncode, done.stdout) == (0, "ran look\n"), done.stderr
        (record,) = [one for one in audit(tmp_path)["sluice.jsonl"] if one["type"] == "intent"]
        assert (record["principal"], record["own"]) == ("local", "look")
        assert command(tmp_path, "logs", "bank").stdout == "seen\n"
        for what in ("prompts", "resources"):
            assert json.loads(in_a_process(tmp_path, what, "--json").stdout)[what] == []
        with_key = command(tmp_path, "call", "bank__look", "--key", key_of("ann"))
        assert with_key.returncode == 2 and "leave the key out" in with_key.stderr
        ignored = command(tmp_path, "call", "bank__look", SLUICE_KEY=key_of("ann"))
        assert ignored.returncode == 0 and "$SLUICE_KEY is not used" in ignored.stderr


def test_a_call_at_the_sluice_of_a_desktop_client_waits_for_its_approval(tmp_path: Path) -> None:
    started = [*COMMAND, "call", "bank__pay", "{}", "-c", str(tmp_path / "sluice.yaml")]
    with served(prepare(tmp_path)):
        with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=clean_environment(), cwd=ROOT) as caller:  # fmt: skip
            assert caller.stderr is not None
            while "sluice approve apr_" not in (line := caller.stderr.readline()):
                assert line, "it ended"
            id = line.partition("sluice approve ")[2].split()[0]
            assert command(tmp_path, "approve", id, "-y").returncode == 0
            out, err = caller.communicate(timeout=30)
        assert (caller.returncode, out) == (0, "ran pay\n"), err


@pytest.mark.parametrize("how", ["a key", "no YAML"])
def test_a_call_says_the_mistake_and_may_have_been_executed_if_the_sluice_is_killed(tmp_path: Path, how: str) -> None:
    at_home = {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "home")}
    more: Json = {} if how == "a key" else {"state": {}, "audit": {}}
    with served(prepare(tmp_path, **more), **at_home) as desktop:
        spoil(tmp_path, how)
        done = command(tmp_path, "call", "bank__look", **at_home)
        assert (done.returncode, done.stdout) == (0, "ran look\n"), done.stderr
        told = "the Sluice that runs goes on with what the file said before, and is asked"
        assert told in done.stderr.splitlines() and "sluice.yaml:" in done.stderr
        unknown = command(tmp_path, "call", "bank__none", **at_home)
        assert unknown.returncode == 1 and unknown.stderr.count(told) == 1 == unknown.stderr.count("sluice.yaml:")
        started = [*COMMAND, "call", "bank__pay", "{}", "-c", str(tmp_path / "sluice.yaml")]
        with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=clean_environment() | at_home, cwd=ROOT) as caller:  # fmt: skip
            assert caller.stderr is not None
            before = []
            while "sluice approve apr_" not in (line := caller.stderr.readline()):
                assert line, "it ended"
                before.append(line.strip())
            desktop.process.kill()
            caller.communicate(timeout=30)
        assert told in before, "who waits for a person knows it meanwhile"
        assert caller.returncode == 4
    alone = command(tmp_path, "call", "bank__look", **at_home)
    assert alone.returncode == 3 and "sluice.yaml:" in alone.stderr and told not in alone.stderr


def test_explain_asks_the_sluice_of_a_desktop_client(tmp_path: Path) -> None:
    """Only the one that runs has the variable: without it the server is disabled."""
    started = prepare(tmp_path)
    edit(tmp_path, lambda config: config["servers"]["bank"].update(env={"X": "${env:X_OF_BANK}"}))
    with served(started, X_OF_BANK="1"):
        for name, verdict in {"look": "allow", "pay": "ask", "none": "deny"}.items():
            done = command(tmp_path, "explain", "--json", "--as", "local", "call", f"bank__{name}")
            assert json.loads(done.stdout)["verdict"] == verdict and done.stderr == ""
        done = command(tmp_path, "explain", "--offline", "--as", "local", "call", "bank/look")
        assert done.returncode == 1 and "server bank is disabled" in done.stderr


def test_the_command_in_a_pending_text_works_where_it_is_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    path = {"PATH": "/usr/bin:/bin"}
    with served(prepare(folder), **path) as desktop:
        id = ask_to_pay(desktop, n=1)
        result = desktop.ask("tools/call", name="bank__pay", arguments={"n": 1})["result"]
        pasted = result["content"][0]["text"].split("They decide with: ")[1].split(". Call again")[0]
        assert f"approve {id} -c " in pasted and "SLUICE_KEY" not in pasted
        environ = clean_environment() | path
        done = subprocess.run(pasted, shell=True, cwd="/", env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "approved" in done.stdout, done.stderr
        assert "error" not in desktop.ask("tools/call", name="bank__pay", arguments={"n": 1})


def test_the_admin_socket_is_its_owners_alone_and_no_port_is_opened(tmp_path: Path) -> None:
    with served(prepare(tmp_path)):
        (path,) = (tmp_path / "state").glob("admin-*.sock")
        assert path.stat().st_mode & 0o777 == 0o600
        host, port = json.loads((tmp_path / "sluice.yaml").read_text())["listen"]["admin"].split(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


def test_a_key_shows_its_own_rights_and_ends_when_it_is_revoked(tmp_path: Path) -> None:
    key = {"SLUICE_KEY": key_of("eve")}
    with served(prepare(tmp_path)) as desktop:
        id = ask_to_pay(desktop)
        assert shown(tmp_path, "approvals", "list", **key)["approvals"] == [], "not hers to decide"
        refused = command(tmp_path, "deny", id, **key)
        assert refused.returncode == 5
        assert "admin:approvals write on sluice" in refused.stderr
        assert "p, key:eve, sluice, admin:approvals, write, allow" in refused.stderr
        assert "credential: the key in $SLUICE_KEY; --operator" in refused.stderr
        assert key_of("eve") not in refused.stderr
        assert command(tmp_path, "deny", id, "--operator", **key).returncode == 0
        assert command(tmp_path, "servers", "--operator", "--key", "x").returncode == 2
        assert command(tmp_path, "keys", "revoke", "eve").returncode == 0
        until(lambda: command(tmp_path, "approvals", "list", **key).returncode == 5)


def test_on_a_terminal_a_command_names_its_credential(tmp_path: Path) -> None:
    with served(prepare(tmp_path)):
        terminal, theirs = os.openpty()
        words = [*COMMAND, "servers", "-c", str(tmp_path / "sluice.yaml")]
        environ, out = clean_environment(), subprocess.PIPE
        done = subprocess.run(words, cwd=ROOT, env=environ, stdout=out, stderr=theirs, timeout=60)
        said = os.read(terminal, 4096).decode()
        os.close(terminal)
        os.close(theirs)
        assert done.returncode == 0 and b"bank" in done.stdout and b"credential" not in done.stdout
        assert said.startswith("credential: the operator, by the socket in ")


def test_what_only_reads_leaves_no_trace_where_nothing_runs(tmp_path: Path) -> None:
    with served(prepare(tmp_path)) as desktop:
        first, second = ask_to_pay(desktop, n=1), ask_to_pay(desktop, n=2)
        assert desktop.leave() == 0
    before = {file: file.read_bytes() for file in (tmp_path / "audit").iterdir()}
    for words in (["approvals", "list"], ["approvals", "show", first], ["approvals", "grants"], ["pins", "list"],
                  ["pins", "diff"], ["pins", "export"], ["audit", "search"]):  # fmt: skip
        assert command(tmp_path, *words).returncode == 0, words
    assert command(tmp_path, "approvals", "show", first, "--reveal").returncode == 1, "nobody has them any more"
    assert command(tmp_path, "deny", "apr_000000000000").returncode == 1
    watched = command(tmp_path, "approvals", "watch")
    assert watched.returncode == command(tmp_path, "servers").returncode == 4 and "no Sluice runs" in watched.stderr
    assert {file: file.read_bytes() for file in (tmp_path / "audit").iterdir()} == before
    assert command(tmp_path, "approve", first, "-y").returncode == command(tmp_path, "deny", second).returncode == 0
    records = [record for log in audit(tmp_path).values() for record in log]
    decided = [record["approval"]["state"] for record in records if record["type"] == "approval"]
    assert decided == ["pending", "pending", "approved", "denied"]
    assert {record["epoch"] for record in records} == {1, 2, 3}, "once for each decision"


def test_watching_goes_on_with_the_successor_and_writes_nothing(tmp_path: Path) -> None:
    started = prepare(tmp_path)
    with served(started) as first, served(started, "two") as second:
        log = tmp_path / "watched"
        words = [*COMMAND, "approvals", "watch", "--json", "-c", str(tmp_path / "sluice.yaml")]
        with log.open("w") as out:
            watching = subprocess.Popen(words, stdout=out, cwd=ROOT, env=clean_environment())
        try:
            mine = ask_to_pay(first, n=1)
            until(lambda: mine in log.read_text())
            first.process.kill()
            assert second.tools()  # a list is asked for again, a call never
            theirs = ask_to_pay(second, n=2)
            until(lambda: theirs in log.read_text())
            second.wait_until_owner()
            assert shown(tmp_path, "servers")["servers"][0]["status"] == "up"
        finally:
            watching.kill()
            watching.wait()
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        assert [row["id"] for row in rows] == [mine, theirs], "each is told once"
        assert {record["epoch"] for record in audit(tmp_path)["sluice.jsonl"]} <= {1, 2}, "one for each Sluice"


@pytest.mark.parametrize("watch", [True, False])
def test_after_an_edit_commands_and_later_clients_find_the_sluice_that_runs(tmp_path: Path, watch: bool) -> None:
    started = prepare(tmp_path, policy={"files": ["policy.csv"], "watch": watch})
    with served(started) as first:
        edit(tmp_path, deny_look)
        assert shown(tmp_path, "servers")["servers"][0]["status"] == "up"
        with client(started, "two") as second:
            second.hello()
            assert second.tools() == {"bank__pay"}, "it is served by what the file says now"
            assert first.tools() == {"bank__pay"} and owner_of([first, second]) is first
            assert "joined the Sluice that runs" in second.said()


@pytest.mark.parametrize("text", ["servers: {bank: {comand: x}}\nstate: {dir: state}\n", "state: {dir: state}\n\tx: ["])
def test_a_client_with_a_broken_file_joins_and_says_what_is_in_force(tmp_path: Path, text: str) -> None:
    started = prepare(tmp_path)
    file = tmp_path / "sluice.yaml"
    with served(started) as first:
        good = file.read_text()
        file.write_text(text)
        with client(started, "two") as second:
            second.hello()
            assert second.tools() == {"bank__pay", "bank__look"} and owner_of([first, second]) is first
            said = second.said()
            assert "sluice.yaml:" in said and "not in force" in said and "joined the Sluice that runs" in said
            first.process.kill()
            assert second.process.wait(60) == 3, "nothing is begun with a broken file"
        file.write_text(good)
    with served(started):
        pass


def test_with_a_broken_file_and_no_sluice_nothing_starts(tmp_path: Path) -> None:
    started = prepare(tmp_path)
    (tmp_path / "sluice.yaml").write_text("state: {dir: state}\n")
    done = subprocess.run(started, input=b"", cwd=ROOT, env=clean_environment(), capture_output=True, timeout=60)
    assert done.returncode == 3 and b"sluice.yaml:" in done.stderr and done.stdout == b""


def test_who_takes_over_begins_with_the_file_as_it_is_by_then(tmp_path: Path) -> None:
    started = prepare(tmp_path, policy={"files": ["policy.csv"], "watch": False})
    with served(started) as first, served(started, "two") as second:
        edit(tmp_path, deny_look)
        first.process.send_signal(signal.SIGKILL)
        assert second.tools() == {"bank__pay"}
        second.wait_until_owner()


def test_one_file_by_two_names_is_one_sluice(tmp_path: Path) -> None:
    started = prepare(tmp_path)
    link = tmp_path / "link.yaml"
    link.symlink_to("sluice.yaml")
    with served(started) as first, served([*started[:-1], str(link)], "two") as second:
        assert owner_of([first, second]) is first
        assert run(tmp_path, "servers", "-c", "link.yaml").returncode == 0


def test_a_deep_state_directory_has_its_admin_socket_too(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with served(prepare(deep)):
        assert command(deep, "servers").returncode == 0


def test_on_windows_every_client_is_on_its_own_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seat = InstanceLock(tmp_path, tmp_path / "sluice.yaml")
    assert not seat.unshared
    monkeypatch.setattr(sys, "platform", "win32")
    assert "Windows" in seat.unshared and seat.admin() is None
