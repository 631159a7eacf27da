"""A hook: an HTTP service that keeps what it is asked, and answers what a test says.

with hook_service() as hook: hook.url, hook.asked, hook.answers = lambda asked: {"verdict": "allow"}
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


@dataclass
class HookService:
    """`answers` gives a value that is sent as JSON, or bytes that are sent as they are. `released` holds answers back
    until it is set."""

    url: str = ""
    answers: Callable[[Json], Any] = lambda asked: {"verdict": "allow"}
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[Json] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    released: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    hook: HookService
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.hook.bodies.append(body)
        self.hook.heads.append({name.lower(): value for name, value in self.headers.items()})
        self.hook.connections.add(self.client_address)
        asked = json.loads(body)
        self.hook.asked.append(asked)
        self.hook.released.wait(30)
        said = self.hook.answers(asked)
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(self.hook.status)
        for name, text in {"content-type": "application/json", **self.hook.headers}.items():
            self.send_header(name, text)
        self.send_header("content-length", str(len(data)))
        with suppress(ConnectionError):  # who asked may have gone
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests have enough to print."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # of those that connect at once, more than 5 waited a second and longer


@contextmanager
def hook_service() -> Iterator[HookService]:
    hook = HookService()
    hook.released.set()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hook": hook}))
    hook.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hook
    finally:
        hook.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
