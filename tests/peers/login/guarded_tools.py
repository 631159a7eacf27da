"""The MCP servers of misbehaving.py: the smallest ones of both eras that want a token. No I/O.

Tools: `whoami` (the token's subject, scopes and client, as JSON), `echo` (its arguments), `write` (needs the scope
"write", unless the switches say otherwise), `test-tool` (says "test").
"""

import json
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from peers.login.good_authority import Access, Answer, GoodAuthority, Json, Seen

MODERN = "2026-07-28"
LEGACY = ("2025-03-26", "2025-06-18", "2025-11-25")
ABOUT = {"name": "guarded", "version": "1.0.0"}
SCHEMA: Json = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = [{"name": name, "inputSchema": SCHEMA} for name in ("whoami", "echo", "write", "test-tool")]
LISTED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


class GuardedTools:
    def __init__(self, authority: GoodAuthority, challenge: Callable[..., list[str]]) -> None:
        self._authority = authority
        self._switches = authority.switches
        self._challenge = challenge
        self._asked = 0
        self._events: queue.Queue[str] = queue.Queue()

    def post(self, seen: Seen) -> Answer:
        message = seen.message
        refusal = self._refusal(seen, message)
        if refusal is not None:
            return refusal
        if "id" not in message or "method" not in message:
            return Answer(202)
        status, told = self._answer(message, self._authority.holder(seen.bearer), seen)
        session = self._switches.session if message["method"] == "initialize" else ""
        headers = {"mcp-session-id": session} if session else {}
        return Answer(status, {"jsonrpc": "2.0", "id": message["id"], **told}, headers)

    def message(self, seen: Seen) -> Answer:
        """The same for the legacy transport: the answer goes to the stream."""
        told = self.post(seen)
        if told.status == 200 and told.body:
            self._events.put(f"event: message\ndata: {json.dumps(told.body)}\n\n")
        return Answer(202) if told.status == 200 else told

    def events(self, ended: threading.Event) -> Iterator[str]:
        yield f"event: endpoint\ndata: {self._switches.sse_endpoint}\n\n"
        while not ended.is_set():
            try:
                yield self._events.get(timeout=0.1)
            except queue.Empty:
                pass

    def _refusal(self, seen: Seen, message: Json) -> Answer | None:
        switches = self._switches
        if message.get("method") in switches.open_methods:
            return None
        holder = None if switches.refuses_tokens else self._authority.holder(seen.bearer)
        mine = self._authority.url + (switches.servers[0] if seen.endpoint == "messages" else seen.path)
        audiences = (mine, self._authority.url, switches.prm.get("resource"))
        if holder is not None and switches.checks_audience and holder.resource not in audiences:
            holder = None
        if holder is None:
            parts = {} if seen.bearer is None else {"error": "invalid_token"}
            parts |= {} if switches.scope_asked is None else {"scope": switches.scope_asked}
            return Answer(401, {"error": "invalid_token"}, {}, self._challenge(seen.path, **parts))
        wanted = self._wanted(message)
        if wanted is not None and wanted not in holder.scope.split():
            parts = {"error": "insufficient_scope", "scope": wanted}
            return Answer(403, {"error": "insufficient_scope"}, {}, self._challenge(seen.path, **parts))
        return None

    def _wanted(self, message: Json) -> str | None:
        if message.get("method") != "tools/call":
            return None
        if self._switches.ever_new_scopes:
            self._asked += 1
            return f"more-{self._asked}"
        return self._switches.tool_scopes.get(message["params"]["name"])

    def _answer(self, message: Json, holder: Access | None, seen: Seen) -> tuple[int, Json]:
        asked, params = message["method"], message.get("params", {})
        modern = seen.headers.get("mcp-protocol-version") == MODERN
        if modern and "modern" not in self._switches.eras:
            return 400, {"error": {"code": -32600, "message": "Bad Request: Unsupported protocol version"}}
        match asked:
            case "server/discover" if modern:
                about = {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, "serverInfo": ABOUT}
                return 200, {"result": {**LISTED, **about}}
            case "initialize" if "legacy" in self._switches.eras:
                revision = params.get("protocolVersion")
                revision = revision if revision in LEGACY else LEGACY[-1]
                about = {"protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": ABOUT}
                return 200, {"result": about}
            case "ping":
                return 200, {"result": {}}
            case "tools/list":
                return 200, {"result": {"tools": TOOLS, **(LISTED if modern else {})}}
            case "tools/call":
                result: Json = {"content": [{"type": "text", "text": self._text(params, holder)}]}
                return 200, {"result": {**result, **({"resultType": "complete"} if modern else {})}}
        return 404 if modern else 200, {"error": {"code": -32601, "message": "Method not found"}}

    def _text(self, params: Json, holder: Access | None) -> str:
        arguments: Any = params.get("arguments", {})
        if params["name"] != "whoami" or holder is None:
            return "test" if params["name"] == "test-tool" else json.dumps(arguments)
        told = {"subject": holder.grant.user, "scopes": holder.scope.split(), "client": holder.grant.client}
        return json.dumps(told)
