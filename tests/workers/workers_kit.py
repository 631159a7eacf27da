"""What the tests of several workers share: Sluices of them, clients of keys that belong to this or that one, and bare
connections on which every byte is said."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
from e2e.sluice_process import COMMAND, ROOT, Sluice, clean_environment, settings_for, write_config
from e2e.wire import LEGACY, META, MODERN
from peers.fleet import running
from policy_bed import bearer

Json = dict[str, Any]
ACCEPT = {"Accept": "application/json, text/event-stream"}
HELLO = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


@contextmanager
def sluice(config: Json, folder: Path, count: int) -> Iterator[Sluice]:
    """A Sluice of so many workers, ready."""
    settings = settings_for(config, folder)
    file, log = write_config(settings, folder), folder / "sluice.log"
    command = [*COMMAND, "serve", "-c", str(file), "--workers", str(count)]
    with running(command, log, 30, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE) as process:
        made = Sluice(process, file, log, settings)
        try:
            made.wait_ready(60)
            yield made
        except BaseException:
            print(f"--- Sluice's log ---\n{log.read_text()[-8000:]}")
            raise


def owner(name: str, count: int) -> int:
    """The number of the worker that a key belongs to: docs/how-to/workers.md says how it is found."""
    return crc32(f"key:{name}".encode()) % count


def names(count: int, each: int) -> list[str]:
    """Names of keys, so many for each of so many workers, one after the other."""
    found: list[list[str]] = [[] for _ in range(count)]
    number = 0
    while min(map(len, found)) < each:
        found[owner(f"k{number}", count)].append(f"k{number}")
        number += 1
    return [found[at][row] for row in range(each) for at in range(count)]


def workers(process: Sluice) -> list[int]:
    """The processes of the workers, in the order of their numbers as far as they are the first ones."""
    found = []
    for task in Path(f"/proc/{process.process.pid}/task").glob("*/children"):
        for pid in map(int, _read(task).split()):
            if b"--as-worker" in _read(Path(f"/proc/{pid}/cmdline")):
                found.append(pid)
    return sorted(found)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""  # that thread or process has ended meanwhile


def connections(pid: int, port: int) -> int:
    """How many clients' connections a process has at that port of its own."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].split(":")[1], 16) == port and fields[3] == "01":
            inodes.add(fields[9])
    return sum(target.removeprefix("socket:[").rstrip("]") in inodes for target in open_files(pid))


def open_files(pid: int) -> list[str]:
    """What a process has open, as far as it is still open when it is looked at."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(fd))
    return found


@dataclass(slots=True)
class Talker:
    """One client: a key, and an HTTP client that keeps its connection, or a new one for each request."""

    url: str
    who: str

    def modern(self, http: httpx.Client | None, method: str, **params: Any) -> Json:
        answer = self._post(http, modern_headers(self.who, method, params), modern_body(method, params))
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return dict(answer.json()["result"])

    def outcome(self, method: str, **params: Any) -> Json:
        """The result, or where it is refused, one that says so."""
        answer = self._post(None, modern_headers(self.who, method, params), modern_body(method, params)).json()
        return dict(answer["result"]) if "result" in answer else {"isError": True}

    def session(self, http: httpx.Client | None) -> "Session":
        answer = self._post(http, {**ACCEPT, **bearer(self.who)}, message("initialize", HELLO))
        assert answer.status_code == 200, answer.text
        head = {"Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": LEGACY}
        return Session(self, {**ACCEPT, **bearer(self.who), **head})

    def _post(self, http: httpx.Client | None, headers: dict[str, str], body: Json) -> httpx.Response:
        post = httpx.post if http is None else http.post
        return post(self.url, json=body, headers=headers, timeout=30)


@dataclass(slots=True)
class Session:
    talker: Talker
    headers: dict[str, str]

    def ask(self, http: httpx.Client | None, method: str, **params: Any) -> httpx.Response:
        return self.talker._post(http, self.headers, message(method, params))


def message(method: str, params: Json) -> Json:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def modern_body(method: str, params: Json) -> Json:
    capabilities = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    return message(method, {**params, "_meta": {**META, **capabilities}})


def modern_headers(who: str, method: str, params: Json) -> dict[str, str]:
    named = {"Mcp-Name": params["name"]} if "name" in params else {}
    return {**ACCEPT, "MCP-Protocol-Version": MODERN, "Mcp-Method": method, **named, **bearer(who)}


def rendered(url: str, who: str, method: str, **params: Any) -> bytes:
    """A request as bytes."""
    body = json.dumps(modern_body(method, params)).encode()
    head = {"Host": url.split("/")[2], "Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**head, **modern_headers(who, method, params)}.items())
    return f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body


class Bare:
    """One connection."""

    def __init__(self, url: str) -> None:
        host, port = url.split("/")[2].split(":")
        self._socket = socket.create_connection((host, int(port)), 30)
        self._stream = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> tuple[int, bytes]:
        """Status and body of the next one."""
        status = int(self._stream.readline().split()[1])
        length = 0
        while (line := self._stream.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return status, self._stream.read(length)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()
