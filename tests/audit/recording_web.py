"""An MCP server over HTTP (2026-07-28) that writes down every call before it answers. Standard library only.

    python recording_web.py FILE

Prints its port. FILE gets `arguments.n` of each call, one a line: what is not in there did not reach the server.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INFO = {"resultType": "complete", "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "web", "version": "1"}}}
KEPT = {**INFO, "ttlMs": 60_000, "cacheScope": "private"}
ANSWERS: dict[str, dict[str, Any]] = {
    "server/discover": {**KEPT, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
    "tools/list": {**KEPT, "tools": [{"name": "note", "inputSchema": {"type": "object"}}]},
    "tools/call": {**INFO, "content": []},
}


class Recorder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method = message["method"]
        if method == "tools/call":
            os.write(seen, f"{message['params']['arguments']['n']}\n".encode())
        known = {"result": ANSWERS[method]} if method in ANSWERS else {"error": {"code": -32601, "message": method}}
        body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **known}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


seen = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
    server.daemon_threads = True
    server.handle_error = lambda request, address: None  # type: ignore[method-assign,assignment]
    print(server.server_port, flush=True)
    server.serve_forever()
