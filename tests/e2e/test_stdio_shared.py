"""Several `sluice stdio` with one config, as several desktop clients start them: one runs the firewall, the others go
along, and when it ends the next one takes over without its client being any the wiser."""

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.sluice_process import ROOT, clean_environment, stdio_command

Json = dict[str, Any]
SERVER = {"command": sys.executable, "args": [str(Path(__file__).parent / "asking_server.py")]}
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "m", "version": "1"}}  # fmt: skip


class Desktop:
    """One client and the Sluice that it started. Its messages are read by a thread, so that waiting can end."""

    def __init__(self, command: list[str], name: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
            env=clean_environment(),
        )  # fmt: skip
        self._heard: queue.Queue[Json | None] = queue.Queue()
        self._ids = iter(range(1, 1000))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._heard.put(json.loads(line))
        self._heard.put(None)

    def hear(self) -> Json:
        message = self._heard.get(timeout=60)
        assert message is not None, self.process.stderr.read().decode()[-3000:] if self.process.stderr else ""
        return message

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, method: str, **params: Any) -> int:
        id = next(self._ids)
        self.send(id=id, method=method, params=params)
        return id

    def ask(self, method: str, **params: Any) -> Json:
        id = self.begin(method, **params)
        while (message := self.hear()).get("id") != id or "method" in message:
            pass
        return message

    def hello(self) -> None:
        about = {"name": self.name, "version": "1"}
        agreed = self.ask(
            "initialize", protocolVersion="2025-11-25", capabilities={"elicitation": {}}, clientInfo=about
        )
        assert agreed["result"]["protocolVersion"] == "2025-11-25"
        self.send(method="notifications/initialized")

    def question(self) -> tuple[int, Json]:
        """Calls the tool that asks, up to its question: the call's id, and what was asked."""
        id = self.begin("tools/call", name="asks__name", arguments={})
        while (message := self.hear()).get("method") != "elicitation/create":
            pass
        return id, message

    def answer(self, id: int, question: Json) -> str:
        self.send(id=question["id"], result={"action": "accept", "content": {"name": self.name}})
        while (message := self.hear()).get("id") != id:
            pass
        return str(message["result"]["content"][0]["text"])

    def leave(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(30)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def is_owner(self) -> bool:
        """Whether the servers are its children."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return any(text_of(children).strip() for children in threads)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def text_of(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""  # that thread has ended meanwhile


@contextmanager
def desktops(folder: Path, count: int) -> Iterator[list[Desktop]]:
    command = stdio_command({"servers": {"asks": SERVER}}, folder)
    with ExitStack() as stack:
        clients = []
        for number in range(count):
            clients.append(Desktop(command, f"client-{number}"))
            stack.callback(clients[-1].close)
        for client in clients:
            client.hello()
        yield clients


def owner_of(clients: list[Desktop]) -> Desktop:
    (owner,) = [client for client in clients if client.is_owner()]
    return owner


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
            assert modern.is_owner() and modern.leave() == 0
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
            assert one.is_owner() and two.is_owner()
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
