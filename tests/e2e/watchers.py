"""Clients that subscribe to resources, as processes that are told what to do line by line. Knows no SDK."""

import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peers.fleet import CLIENTS, stop
from peers.install import MCP1, MCP2

Json = dict[str, Any]
WATCHERS: dict[str, list[str]] = {
    "py1": [str(MCP1 / "python"), str(CLIENTS / "watch1.py"), "{url}"],
    "py2-legacy": [str(MCP2 / "python"), str(CLIENTS / "watch2.py"), "{url}", "legacy"],
    "py2-modern": [str(MCP2 / "python"), str(CLIENTS / "watch2.py"), "{url}", "modern"],
}


class Watcher:
    """`updates` are what it was told, in order; nothing is ever waited for in vain longer than `seconds`."""

    def __init__(self, process: "subprocess.Popen[str]", seconds: float = 60) -> None:
        self._process, self._seconds = process, seconds
        self._answers: queue.Queue[Json] = queue.Queue()
        self.updates: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.hello = self._answers.get(timeout=seconds)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "updated" in said:
                self.updates.put(said["updated"])
            else:
                self._answers.put(said)

    def _do(self, **command: Any) -> Json:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answers.get(timeout=self._seconds)

    def subscribe(self, uri: str) -> Json:
        return self._do(do="subscribe", uri=uri)

    def unsubscribe(self, uri: str) -> Json:
        return self._do(do="unsubscribe", uri=uri)

    def call(self, name: str, **arguments: Any) -> Json:
        return self._do(do="call", name=name, arguments=arguments)

    def told(self) -> str:
        return self.updates.get(timeout=self._seconds)


@contextmanager
def watcher(name: str, url: str, folder: Path) -> Iterator[Watcher]:
    command = [url if part == "{url}" else part for part in WATCHERS[name]]
    with (folder / f"{name}.log").open("a") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
    try:
        yield Watcher(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()  # it says goodbye
        try:
            process.wait(30)
        finally:
            stop(process)
