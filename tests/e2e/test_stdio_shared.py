"""Several `sluice stdio` with one config, as several desktop clients start them: one runs the firewall, the others go
along, and when it ends the next one takes over without its client being any the wiser."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from e2e.desktop_clients import SERVER, Desktop, desktops, owner_of
from e2e.sluice_process import ROOT, clean_environment, stdio_command

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "m", "version": "1"}}  # fmt: skip


def test_clients_share_one_firewall_and_each_is_asked_what_its_own_call_asks(tmp_path: Path) -> None:
    with desktops(tmp_path, 3) as clients:
        owner_of(clients)
        (socket,) = (tmp_path / "state").glob("stdio-*.sock")
        assert socket.stat().st_mode & 0o777 == 0o600
        asked = [client.question() for client in clients]
        for client, (id, question) in reversed(list(zip(clients, asked, strict=True))):
            assert client.name in client.answer(id, question)
        leaving, terminated = [client for client in clients if not client.is_owner()]
        assert leaving.leave() == terminated.terminate() == 0
        assert len(owner_of(clients).ask("tools/list")["result"]["tools"]) == 3


@pytest.mark.parametrize("end", ["killed", "terminated", "left"])
def test_when_the_owner_ends_another_takes_over_and_no_client_begins_anew(tmp_path: Path, end: str) -> None:
    with desktops(tmp_path, 3) as clients:
        owner = owner_of(clients)
        others = [client for client in clients if client is not owner]
        open_calls = [client.question() for client in others]
        if end == "killed":
            owner.process.send_signal(signal.SIGKILL)
        elif end == "terminated":
            assert owner.terminate() == 0
        else:
            assert owner.leave() == 0
        for client, (id, question) in zip(others, open_calls, strict=True):
            farewell = [client.hear(), client.hear()]
            unknown = next(message for message in farewell if message.get("id") == id)
            assert unknown["result"]["_meta"]["dev.sluice/reason"] == "outcome_unknown"
            withdrawn = next(message for message in farewell if "method" in message)
            assert withdrawn["params"]["requestId"] == question["id"]
            client.send(id=question["id"], result={"action": "accept", "content": {"name": "too late"}})
        for client in others:
            assert len(client.ask("tools/list")["result"]["tools"]) == 3
            assert client.name in client.answer(*client.question())
        assert owner_of(others) in others
        assert [client.leave() for client in sorted(others, key=Desktop.is_owner)] == [0, 0]


def test_a_modern_client_that_goes_along_is_served_before_and_after(tmp_path: Path) -> None:
    with desktops(tmp_path, 1) as (owner,):
        modern = Desktop([*owner.process.args], "modern")  # type: ignore[misc]
        try:
            assert len(modern.ask("tools/list", _meta=META)["result"]["tools"]) == 3
            assert not modern.is_owner()
            owner.process.kill()
            assert len(modern.ask("tools/list", _meta=META)["result"]["tools"]) == 3
            modern.wait_until_owner()
            assert modern.leave() == 0
        finally:
            modern.close()


def test_another_config_in_the_same_place_is_another_firewall(tmp_path: Path) -> None:
    with desktops(tmp_path, 1) as (one,):
        file = tmp_path / "sluice.yaml"
        other = tmp_path / "other.yaml"
        settings = json.loads(file.read_text())
        settings["servers"]["asks"]["tools"] = {"deny": ["name"]}
        other.write_text(json.dumps(settings))
        command = [str(other) if part == str(file) else part for part in one.process.args]  # type: ignore[union-attr]
        two = Desktop(command, "two")
        try:
            two.hello()
            assert len(two.ask("tools/list")["result"]["tools"]) == 2
            assert len(one.ask("tools/list")["result"]["tools"]) == 3
            one.wait_until_owner()
            two.wait_until_owner()
        finally:
            two.close()


def test_a_state_directory_however_deep_is_shared(tmp_path: Path) -> None:
    """The address of a socket has room for about a hundred characters."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with desktops(deep, 2) as clients:
        assert owner_of(clients) in clients


@pytest.mark.parametrize("word", ["stdio", "serve"])
def test_a_state_directory_that_others_may_write_to_is_refused(tmp_path: Path, word: str) -> None:
    command = [word if part == "stdio" else part for part in stdio_command({"servers": {"asks": SERVER}}, tmp_path)]
    (tmp_path / "state").mkdir(mode=0o777)
    (tmp_path / "state").chmod(0o777)
    done = subprocess.run(command, input=b"", cwd=ROOT, env=clean_environment(), capture_output=True, timeout=60)
    assert done.returncode == 3 and b"chmod" in done.stderr and done.stdout == b""


def test_a_client_that_joins_with_changed_servers_makes_all_of_them_use_these(tmp_path: Path) -> None:
    """Nobody watches the file: who joins has it read. Nothing needs a restart."""
    with desktops(tmp_path, 1) as (one,):
        file = tmp_path / "sluice.yaml"
        settings = json.loads(file.read_text())
        assert {name.partition("__")[0] for name in one.tools()} == {"asks"}
        settings["servers"] = {"more": settings["servers"]["asks"]}
        settings["policy"] |= {"watch": False}
        file.write_text(json.dumps(settings))
        two = Desktop([*one.process.args], "two")  # type: ignore[misc]
        try:
            two.hello()
            assert {name.partition("__")[0] for name in two.tools()} == {"more"}
            while one.hear().get("method") != "notifications/tools/list_changed":
                pass
            assert {name.partition("__")[0] for name in one.tools()} == {"more"}
            assert "restart" not in two.said()
        finally:
            two.close()
