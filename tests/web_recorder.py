"""A legacy MCP server over HTTP that keeps every byte of every head it gets, and a place that nobody should come to.

with web_server() as server: server.url, server.heads
with canary() as place: place.url, place.hits
"""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


@dataclass
class Web:
    """`redirect` is where every request is sent, if it is set."""

    url: str = ""
    heads: list[str] = field(default_factory=list)
    calls: list[Json] = field(default_factory=list)
    redirect: str = ""


class _Handler(BaseHTTPRequestHandler):
    web: Web
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        self.web.heads.append(f"{self.requestline}\n{self.headers}")
        if self.web.redirect:
            self._answer(307, None, location=self.web.redirect)
        elif "id" not in message:
            self._answer(202, None)
        else:
            self._answer(200, {"jsonrpc": "2.0", "id": message["id"], "result": self._result(message)})

    def _result(self, message: Json) -> Json:
        if message["method"] == "initialize":
            version, info = message["params"]["protocolVersion"], {"name": "web", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        if message["method"] == "tools/list":
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("one", "two", "three")]}
        self.web.calls.append(message)
        return {"content": [{"type": "text", "text": "done"}]}

    def do_GET(self) -> None:
        self._answer(405, None)

    do_DELETE = do_GET

    def _answer(self, status: int, value: Json | None, **headers: str) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"content-type": "application/json", **headers, "content-length": str(len(body))}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests have enough to print."""


@contextmanager
def web_server() -> Iterator[Web]:
    web = Web()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"web": web}))
    server.daemon_threads = True
    web.url = f"http://127.0.0.1:{server.server_port}/mcp"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Canary:
    port: int
    hits: list[bytes] = field(default_factory=list)


@contextmanager
def canary(answer: bytes = b"") -> Iterator[Canary]:
    """Counts connections; says `answer` to each and relays nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = Canary(listener.getsockname()[1])

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    place.hits.append(peer.recv(4096))
                    peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield place
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)
