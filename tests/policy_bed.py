"""What the process tests of the policy share: a Sluice with a policy of its own, recording servers behind it, and
clients that say every word themselves."""

import base64
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from e2e.sluice_process import Sluice, sluice
from e2e.wire import META, MODERN
from waiting import until_so

Json = dict[str, Any]
RECORDER = str(Path(__file__).parent / "recording_server.py")
# What a server does only for somebody who asked for just that.
ACTS = {"tools/call", "prompts/get", "resources/read", "completion/complete"}


def key_of(name: str) -> str:
    return f"key-of-{name}-which-is-long-enough-to-be-a-key"


def client_keys(**roles: list[str]) -> Json:
    """`clients.keys` for these names, each with its roles."""
    hashes = {name: hashlib.sha256(key_of(name).encode()).hexdigest() for name in roles}
    return {name: {"hash": f"sha256:{hashes[name]}", "roles": given} for name, given in roles.items()}


def recorder(folder: Path, key: str, **catalog: list[Any]) -> Json:
    """The section of a server with that catalog."""
    place = folder / key
    place.mkdir()
    (place / "catalog.json").write_text(json.dumps(catalog))
    (place / "seen.jsonl").touch()
    return {"command": sys.executable, "args": [RECORDER, str(place)], "sharing": "shared", "era": "legacy"}


@dataclass(frozen=True, slots=True)
class Bed:
    process: Sluice
    folder: Path

    def seen(self, server: str) -> list[Json]:
        """What reached that server, lists and handshakes left out."""
        lines = (self.folder / server / "seen.jsonl").read_text().split("\n")[:-1]  # U+2028 ends no line of JSON
        return [message for message in map(json.loads, lines) if message["method"] in ACTS]

    def ask(self, who: str, method: str, **params: Any) -> httpx.Response:
        named = params.get("name", params.get("uri"))
        headers = {"Mcp-Name": encoded(named)} if isinstance(named, str) and method != "completion/complete" else {}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}}
        return self.post(who, body, {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, **headers})

    def post(self, who: str, body: Json, headers: dict[str, str]) -> httpx.Response:
        accept = {"Accept": "application/json, text/event-stream", **headers, **bearer(who)}
        return httpx.post(self.process.url, json=body, headers=accept, timeout=20)

    def names(self, who: str, what: str = "tools") -> list[str]:
        method = "resources/templates/list" if what == "resourceTemplates" else f"{what}/list"
        result = self.ask(who, method).json()["result"]
        assert result["cacheScope"] == "private"
        key = {"resources": "uri", "resourceTemplates": "uriTemplate"}.get(what, "name")
        return [item[key] for item in result[what]]

    def call(self, who: str, name: str, **arguments: Any) -> httpx.Response:
        return self.ask(who, "tools/call", name=name, arguments=arguments)

    def write(self, text: str, name: str = "policy.csv") -> None:
        """In one step, as editors and deployments do."""
        draft = self.folder / f".{name}"
        draft.write_text(text)
        draft.replace(self.folder / name)

    def until(self, is_so: Callable[[], bool], seconds: float = 30.0) -> float:
        """Seconds until another process has come to that."""
        started = time.monotonic()
        until_so(is_so, seconds, self.process.log)
        return time.monotonic() - started

    def notes(self) -> list[str]:
        return list(json.loads(self.process.get("/readyz")[1]).get("notes", []))

    def audit(self) -> list[Json]:
        """Whole records: behind them another may just be written."""
        return [json.loads(line) for line in (self.folder / "audit" / "sluice.jsonl").read_text().split("\n")[:-1]]


@contextmanager
def bed(
    folder: Path, rows: str, servers: Json, *, ready: bool = True, arguments: Sequence[str] = (), **config: Any
) -> Iterator[Bed]:
    (folder / "policy.csv").write_text(rows)
    settings = {"servers": servers, "policy": {"files": ["policy.csv"]}, "log": {"format": "json"}, **config}
    with sluice(settings, folder, ready, arguments=arguments) as process:
        yield Bed(process, folder)


def bearer(who: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key_of(who)}"} if who else {}


def reason(answer: httpx.Response) -> str:
    """The word for why a call was refused."""
    message = answer.json()
    if "error" in message:
        return str((message["error"].get("data") or {}).get("reason", ""))
    return str(message["result"].get("_meta", {}).get("dev.sluice/reason", ""))


def encoded(text: str) -> str:
    """2026-07-28 basic/transports/streamable-http#value-encoding"""
    if text and text.isascii() and text.isprintable() and text == text.strip():
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="
