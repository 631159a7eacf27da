"""One Sluice with a config of its own, for measurements that need another than the benchmark's.

Knows processes and configs; measures nothing.
"""

import asyncio
import hashlib
import http.client
import json
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from load import META, MODERN, message, plain_headers
from subjects import SUBJECT_CORE, Subject, free_port, running

Json = dict[str, Any]
START = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`servers` as in the config file; `rows` of the policy as CSV, which must grant role:bench what is called. The
    last of the `keys`, `strangers` of them, have no role."""

    servers: Mapping[str, Json]
    rows: str = "p, role:bench, *, *, *, allow\n"
    page: int = 1000
    keys: int = 1
    strangers: int = 0


def config(plan: Plan, folder: Path, port: int, admin: int, keys: list[str]) -> Json:
    rows = folder / "policy.csv"
    rows.write_text(plan.rows)
    hashes = [f"sha256:{hashlib.sha256(key.encode()).hexdigest()}" for key in keys]
    roles = [["role:bench"]] * (plan.keys - plan.strangers) + [[]] * plan.strangers
    clients = {f"bench{n}": {"hash": hash, "roles": roles[n]} for n, hash in enumerate(hashes)}
    return {
        "version": 1,
        "listen": {"mcp": f"127.0.0.1:{port}", "admin": f"127.0.0.1:{admin}"},
        "servers": dict(plan.servers),
        "clients": {"keys": clients},
        "policy": {"files": [str(rows)]},
        "audit": {"path": str(folder / "audit" / "sluice.jsonl")},
        "limits": {"streams": 20_000, "page": plan.page},
        "state": {"dir": str(folder / "state")},
        "log": {"level": "warning"},
        "drain": "1s",
    }


@dataclass(frozen=True, slots=True)
class Bed:
    """A running Sluice: `ready_after` seconds it took from the start of its process to a 200 of /readyz; `keys` are
    of clients, as planned; `admin` is the URL of the admin port."""

    subject: Subject
    ready_after: float
    keys: tuple[str, ...]
    client: httpx.Client
    admin: str

    def post(self, method: str, params: Json) -> tuple[float, bytes]:
        """A modern request: (seconds it took, the body of its answer)."""
        head = {**plain_headers(self.subject), "MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        began = time.perf_counter()
        body = message(method, {**params, "_meta": META})
        answer = self.client.post(self.subject.url, headers=head, json=body)
        answer.raise_for_status()
        return time.perf_counter() - began, answer.content


@contextmanager
def sluice(
    folder: Path, plan: Plan, command: list[str], tool: str = "", core: int | Sequence[int] = SUBJECT_CORE,
    options: Sequence[str] = (),
) -> Iterator[Bed]:  # fmt: skip
    folder.mkdir(parents=True)
    port, admin, keys = free_port(), free_port(), [secrets.token_urlsafe(32) for _ in range(plan.keys)]
    file = folder / "sluice.yaml"
    file.write_text(json.dumps(config(plan, folder, port, admin, keys)))
    began = time.perf_counter()
    command = [*command, "serve", "-c", str(file), *options]
    with running(core, command, folder / "sluice.log", lambda: _is_ready(admin)) as pid:
        after = time.perf_counter() - began
        headers = (("Authorization", f"Bearer {keys[0]}"),)
        subject = Subject(pid, f"http://127.0.0.1:{port}/mcp", tool, headers)
        with httpx.Client(trust_env=False, timeout=120) as client:
            yield Bed(subject, after, tuple(keys), client, f"http://127.0.0.1:{admin}")


def is_open(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _is_ready(admin: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", admin, timeout=1)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class Stream:
    """An open stream of events; what came while nobody looked is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def hear(self, text: bytes) -> None:
        """Returns when that has come."""
        await self._reader.readuntil(text)

    def close(self) -> None:
        self._writer.close()


async def open_stream(bed: Bed, key: str) -> Stream:
    """A modern client's listen stream, once it was acknowledged."""
    url = httpx.URL(bed.subject.url)
    wanted = {"notifications": {"toolsListChanged": True}, "_meta": META}
    body = json.dumps(message("subscriptions/listen", wanted)).encode()
    head = {
        **plain_headers(bed.subject),
        "Host": url.netloc.decode(),
        "Authorization": f"Bearer {key}",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "subscriptions/listen",
        "Content-Length": str(len(body)),
    }
    reader, writer = await asyncio.open_connection(url.host, url.port)
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    writer.write(f"POST {url.path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
    stream = Stream(reader, writer)
    await stream.hear(b"subscriptions/acknowledged")
    return stream
