"""Desktop clients, each with the `sluice stdio` that it started, as the tests of what they share need them."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from e2e.sluice_process import ROOT, clean_environment, stdio_command

Json = dict[str, Any]
SERVER = {"command": sys.executable, "args": [str(Path(__file__).parent / "asking_server.py")]}


class Desktop:
    """One client and the Sluice that it started. Its messages are read by a thread, so that waiting can end."""

    def __init__(self, command: list[str], name: str, **environment: str) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, cwd=ROOT,
            env=clean_environment() | environment,
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
        assert message is not None, self.said()[-3000:]
        return message

    def said(self) -> str:
        """All of its stderr so far."""
        return os.pread(self._said.fileno(), 1 << 20, 0).decode()

    def tools(self) -> set[str]:
        return {tool["name"] for tool in self.ask("tools/list")["result"]["tools"]}

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

    def wait_until_owner(self) -> None:
        assert owner_of([self]) is self

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._said):
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
    """The one, once it has started its servers."""
    end = time.monotonic() + 60
    while not (owners := [client for client in clients if client.is_owner()]) and time.monotonic() < end:
        time.sleep(0.02)
    (owner,) = owners
    return owner
