"""An authorization server and the MCP servers that it protects, in one process, which misbehave on demand.

with misbehaving() as site:
    site.mcp, site.issuer                       the URL of the MCP server, and its authorization server
    site.switches.iss = None                    how it differs from a good one: see Switches
    site.switches.metadata["authorization_endpoint"] = "javascript:alert(1)"
    site.faults["token"] = failing(500)         what an endpoint does instead: see the functions of faults.py
    site.seen, site.of("token")                 every request: method, path, headers, body, status
    site.secrets()                              everything that nobody else may ever see

Without a switch it is a good server: S256, exact redirect URIs, codes that are spent once, rotation with reuse
detection, `resource` as the audience. Whoever opens its authorization endpoint has logged in as `login_hint`, else
`switches.user`.

The endpoints' names: prm, metadata, authorize, token, register, revoke, device, mcp, sse, messages, unknown. It runs in
threads of the test, so that tests read and set everything directly.
"""

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from peers.login.faults import Fault
from peers.login.good_authority import Answer, GoodAuthority, Seen, Switches, replaced
from peers.login.guarded_tools import GuardedTools

OAUTH = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
PRM = "/.well-known/oauth-protected-resource"
AUTHORITY = ("authorize", "token", "register", "revoke", "device")
PARTS = (*AUTHORITY, "sse", "messages")


class Misbehaving:
    def __init__(self, url: str) -> None:
        self.url = url
        self.switches = Switches()
        self.faults: dict[str, Fault] = {}
        self.seen: list[Seen] = []
        self.authority = GoodAuthority(url, self.switches)
        self.tools = GuardedTools(self.authority, self.challenge)
        self.ended = threading.Event()
        self._lock = threading.RLock()

    @property
    def mcp(self) -> str:
        return f"{self.url}{self.switches.servers[0]}"

    @property
    def issuer(self) -> str:
        return self.authority.issuer

    # ---------------------------------------------------------------- what tests ask and say

    def of(self, endpoint: str, **form: str) -> list[Seen]:
        """The requests to an endpoint; of those, the ones whose form has these fields: `of("token",
        grant_type="refresh_token")`."""
        found = [seen for seen in tuple(self.seen) if seen.endpoint == endpoint]
        return [seen for seen in found if form.items() <= seen.form.items()]

    def calls(self, tool: str | None = None) -> list[Seen]:
        """The requests `tools/call`."""
        asked = [seen for seen in self.of("mcp") if seen.message.get("method") == "tools/call"]
        return [seen for seen in asked if tool in (None, seen.message["params"]["name"])]

    def secrets(self) -> set[str]:
        """All tokens, codes, secrets, verifiers and states that it gave or was given."""
        given = {seen.form.get("code_verifier", "") for seen in self.of("token")}
        states = {seen.query.get("state", "") for seen in self.of("authorize")}
        return (self.authority.issued | given | states) - {""}

    def expire_tokens(self) -> None:
        """Access tokens of before are refused, whatever their life was said to be."""
        with self._lock:
            self.authority.expire_tokens()

    def forget(self) -> None:
        """Begins the record anew."""
        self.seen.clear()

    # ---------------------------------------------------------------- answers

    def route(self, path: str) -> str:
        inserted = [OAUTH + self.switches.issuer_path, OPENID + self.switches.issuer_path]
        if path in (*inserted, self.switches.issuer_path + OPENID):
            return "metadata"
        if path.startswith(PRM) or path == self.switches.prm_at:
            return "prm"
        if path in self.switches.servers:
            return "mcp"
        return path[1:] if path[1:] in PARTS else "unknown"

    def answer(self, seen: Seen) -> Answer:
        with self._lock:
            match seen.endpoint:
                case "prm":
                    return self._answer_prm(seen.path)
                case "metadata":
                    return self._answer_metadata(seen.path)
                case "mcp":
                    return self.tools.post(seen) if seen.method == "POST" else Answer(405)
                case "sse":
                    return self._answer_stream(seen)
                case "messages":
                    return self.tools.message(seen)
                case "unknown":
                    return Answer(404, {"error": "not_found"})
            return self.authority.answer(seen)

    def fault(self, seen: Seen) -> Fault | None:
        detail = seen.message.get("method") if seen.endpoint == "mcp" else seen.form.get("grant_type")
        whole = "authority" if seen.endpoint in (*AUTHORITY, "metadata") else "resource"
        with self._lock:
            for name in (f"{seen.endpoint}.{detail}", seen.endpoint, whole):
                fault = self.faults.get(name)
                if fault is not None and fault.times != 0:
                    fault.times = None if fault.times is None else fault.times - 1
                    return fault
        return None

    def _answer_prm(self, path: str) -> Answer:
        server = path.removeprefix(PRM) if path.startswith(PRM + "/") else self.switches.servers[0]
        found = {"path": path.startswith(PRM + "/"), "root": path == PRM}.get(
            self.switches.prm_at, path == self.switches.prm_at
        )
        if not found or server not in self.switches.servers:
            return Answer(404)
        told = {"resource": self.url + server, "authorization_servers": [self.issuer]}
        return Answer(200, replaced(told, self.switches.prm))

    def _answer_metadata(self, path: str) -> Answer:
        at = self.switches.issuer_path
        forms = {"oauth": OAUTH + at, "openid": OPENID + at, "openid-appended": at + OPENID}
        if path not in [forms[name] for name in self.switches.metadata_at]:
            return Answer(404)
        return Answer(200, self.authority.metadata())

    def _answer_stream(self, seen: Seen) -> Answer:
        if self.authority.holder(seen.bearer) is None:
            return Answer(401, {"error": "invalid_token"}, {}, self.challenge(self.switches.servers[0]))
        return Answer(200)

    def challenge(self, server: str, **parts: str) -> list[str]:
        """The values of WWW-Authenticate."""
        if self.switches.challenge is not None:
            return self.switches.challenge
        at = {"path": PRM + server, "root": PRM, "nowhere": ""}.get(self.switches.prm_at, self.switches.prm_at)
        if self.switches.prm_named and at:
            parts = {"resource_metadata": self.url + at, **parts}
        return ["Bearer " + ", ".join(f'{name}="{value}"' for name, value in parts.items())]


class _Handler(BaseHTTPRequestHandler):
    site: Misbehaving
    open_connections: set[socket.socket]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.open_connections.add(self.connection)
        if self.site.ended.is_set():  # it came too late for whoever closes them
            self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        self.open_connections.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def _deal(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.site.route(parts.path), self.command, parts.path, parts.query, headers, body)
        self.site.seen.append(seen)
        fault = self.site.fault(seen)
        if fault is not None and fault.seconds:
            self.site.ended.wait(fault.seconds)
        if fault is None or fault.ending == "answer":
            self._send(seen, self.site.answer(seen))
            return
        if fault.acts:
            self.site.answer(seen)
        self._misbehave(seen, fault)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = _deal

    def _misbehave(self, seen: Seen, fault: Fault) -> None:
        match fault.ending:
            case "silence":
                self.site.ended.wait()
            case "says":
                self._send(seen, Answer(fault.status, fault.body, fault.headers))
                return
            case "floods":
                self._write(Answer(200, "", {"content-type": "application/json", "content-length": str(fault.size)}))
                block = b"a" * 65536
                for _ in range(fault.size // len(block)):
                    self.wfile.write(block)
        self.close_connection = True

    def _send(self, seen: Seen, answer: Answer) -> None:
        seen.status = answer.status
        if seen.endpoint == "sse" and answer.status == 200:
            self._write(Answer(200, "", {"content-type": "text/event-stream", "connection": "close"}))
            for event in self.site.tools.events(self.site.ended):
                self.wfile.write(event.encode())
            self.close_connection = True
            return
        body = self._write(answer, whole=True)
        self.wfile.write(body)

    def _write(self, answer: Answer, whole: bool = False) -> bytes:
        """The head; the body, if it is to be `whole`, is returned with its length announced."""
        text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        body = re.sub(r'"verbatim:([^"]*)"', r"\1", text).encode()
        self.send_response(answer.status)
        if whole:
            self.send_header("content-length", str(len(body)))
            kind = "text/html" if isinstance(answer.body, str) else "application/json"
            self.send_header("content-type", answer.headers.get("content-type", kind))
        for name, value in answer.headers.items():
            if not whole or name != "content-type":
                self.send_header(name, value)
        for value in answer.challenges:
            self.send_header("www-authenticate", value)
        self.end_headers()
        return body

    def log_message(self, format: str, *args: Any) -> None:
        """Tests have enough to print."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = False  # closing waits for them


@contextmanager
def misbehaving(host: str = "127.0.0.1", port: int = 0, name: str | None = None) -> Iterator[Misbehaving]:
    """`name` stands for the host in its URLs."""
    of_this: dict[str, Any] = {"open_connections": set()}
    handler = type("Handler", (_Handler,), of_this)
    with _Server((host, port), handler) as server:
        site = of_this["site"] = handler.site = Misbehaving(f"http://{name or host}:{server.server_port}")  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield site
        finally:
            site.ended.set()
            server.shutdown()
            thread.join()
            for connection in tuple(of_this["open_connections"]):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
