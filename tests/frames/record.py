"""What was tapped, as frames: who wrote each, in which revision, and what it answers.

A revision is settled by what the two said themselves: a request's own `_meta`, the handshake of its session or of its
pipe. Knows HTTP exchanges and lines; what a frame may look like stands in rules.py.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frames.rules import MODERN, NEWEST_LEGACY, REVISIONS, problems
from frames.tap import Connection, Half

Json = dict[str, Any]

VERSION = "io.modelcontextprotocol/protocolVersion"
ASSUMED = "2025-03-26"  # 2025-11-25 basic/transports#protocol-version-header


@dataclass(frozen=True, slots=True)
class Frame:
    """`by_server` says that the side which serves wrote it; `answers` are the methods it may be an answer to."""

    message: Any
    by_server: bool
    revision: str
    answers: tuple[str, ...] = ()

    def problems(self) -> list[str]:
        found = problems(self.message, self.revision, self.answers)
        return [f"{self.revision} {problem}  in {json.dumps(self.message)[:600]}" for problem in found]


def own_revision(message: Any) -> str | None:
    """What a request says of itself; a revision that nobody speaks is answered in the newest."""
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    if isinstance(meta, dict) and VERSION in meta:
        return MODERN
    return None


def negotiated(message: Any) -> str | None:
    result = message.get("result") if isinstance(message, dict) else None
    version = result.get("protocolVersion") if isinstance(result, dict) else None
    return version if version in REVISIONS else None


def is_request(message: Any) -> bool:
    return isinstance(message, dict) and "method" in message and "id" in message


def _id(message: Json) -> tuple[str, object]:
    return type(message.get("id")).__name__, message.get("id")


# ---------------------------------------------------------------- HTTP


@dataclass(slots=True)
class Web:
    """All connections to one endpoint: a session's messages come over several of them."""

    sessions: dict[str, str] = field(default_factory=dict)
    asked: dict[tuple[Any, ...], set[str]] = field(default_factory=dict)

    def frames(self, connections: Iterable[Connection]) -> Iterator[Frame]:
        exchanges = [pair for connection in connections for pair in connection.exchanges()]
        for request, response in exchanges:
            self._learn(request, response)
        for request, response in exchanges:
            yield from self._exchange(request, response)

    def _learn(self, request: Half, response: Half) -> None:
        session = _session(request, response)
        is_hello = any(is_initialize(m) for m in request.messages()) or _opened(response) != ""
        for message in response.messages():
            if session and is_hello and negotiated(message):
                self.sessions[session] = str(negotiated(message))
        for by_server, half in ((False, request), (True, response)):
            for message in half.messages():
                if is_request(message):
                    self.asked.setdefault((session, by_server, *_id(message)), set()).add(message["method"])

    def _exchange(self, request: Half, response: Half) -> Iterator[Frame]:
        asked, said = request.messages(), response.messages()
        revision = self._revision(request, response, asked, said)
        session = _session(request, response)
        own = {_id(message): message["method"] for message in asked if is_request(message)}
        for by_server, messages in ((False, asked), (True, said)):
            for message in messages:
                if not isinstance(message, dict) or "method" in message:
                    yield Frame(message, by_server, revision)
                    continue
                others = self.asked.get((session, not by_server, *_id(message)), set()) if session else set()
                mine = own.get(_id(message)) if by_server else None
                yield Frame(message, by_server, revision, (mine,) if mine else tuple(others))

    def _revision(self, request: Half, response: Half, asked: list[Any], said: list[Any]) -> str:
        header = request.headers.get("mcp-protocol-version")
        if header == MODERN or any(own_revision(message) for message in asked):
            return MODERN
        known = self.sessions.get(_session(request, response))
        if any(is_initialize(message) for message in asked):
            return next((str(negotiated(message)) for message in said if negotiated(message)), known or NEWEST_LEGACY)
        return known or (header if header in REVISIONS else ASSUMED)


def is_initialize(message: Any) -> bool:
    return isinstance(message, dict) and message.get("method") == "initialize"


def _session(request: Half, response: Half) -> str:
    """Of HTTP+SSE it is what the endpoint's address ends in (2024-11-05 basic/transports#http-with-sse)."""
    name = "mcp-session-id"
    own = request.headers.get(name) or response.headers.get(name)
    return own or _named(request.target) or _opened(response)


def _opened(response: Half) -> str:
    """The session that a stream of HTTP+SSE opens with its first event."""
    if not response.body.startswith(b"event: endpoint"):
        return ""
    return _named(response.body[:500].decode("latin-1").splitlines()[1])


def _named(address: str) -> str:
    return next(iter(re.findall(r"[?&]session_?id=([^&\s]+)", address, re.IGNORECASE)), "")


# ---------------------------------------------------------------- stdio


def pipe_frames(file: Path) -> Iterator[Frame]:
    """One process' lines, in order. Notifications have no revision of their own: the handshake's, if there was one."""
    agreed: str | None = None
    asked: dict[tuple[Any, ...], tuple[str, str]] = {}
    for line in file.read_text().splitlines():
        way, text = json.loads(line)
        by_server = way == "out"
        try:
            value = json.loads(text)
        except ValueError:
            continue  # what a test wrote so
        for message in value if isinstance(value, list) else [value]:
            revision = own_revision(message) or agreed or MODERN
            if not isinstance(message, dict) or "method" in message:
                if is_initialize(message):
                    version = message.get("params", {}).get("protocolVersion")
                    revision = version if version in REVISIONS[:-1] else NEWEST_LEGACY
                if is_request(message):
                    asked[(by_server, *_id(message))] = (message["method"], revision)
                yield Frame(message, by_server, revision)
                continue
            method, revision = asked.get((not by_server, *_id(message)), ("", revision))
            if method == "initialize":
                revision = agreed = negotiated(message) or revision
            yield Frame(message, by_server, revision, (method,) if method else ())
