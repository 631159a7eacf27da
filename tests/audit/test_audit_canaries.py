"""Secrets planted wherever a secret can be: none comes out in the log, the audit log, metrics or an error answer.

The log is as talkative as it can be. What servers answer is relayed as it is and no matter here; what Sluice itself
says is.
"""

import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from audit_sluice import HERE, KEY, Sluice, records, start
from peers.fleet import free_port

NAMES = (
    "env", "argument", "password", "nested", "userinfo", "query", "fragment", "header", "guess", "stderr", "refusal",
    "operator", "tool", "uri", "method", "client", "session", "sink", "witness",
)  # fmt: skip
CANARIES = {name: f"canary{name}{secrets.token_hex(8)}" for name in NAMES}
GITHUB = f"ghp_{secrets.token_hex(18)}"
DYING = f"import sys; print('{CANARIES['stderr']}', file=sys.stderr); sys.exit('{CANARIES['stderr']}')"
REFUSING = (
    "import json, sys\n"
    "for line in sys.stdin:\n"
    "    error = {'code': -32000, 'message': 'no: CANARY', 'data': 'CANARY'}\n"
    "    print(json.dumps({'jsonrpc': '2.0', 'id': json.loads(line).get('id'), 'error': error}), flush=True)\n"
).replace("CANARY", CANARIES["refusal"])


class Refusing(BaseHTTPRequestHandler):
    """Every answer is an error, and quotes what it was asked with."""

    def do_POST(self) -> None:
        said = f"{self.path} {self.headers} {self.rfile.read(int(self.headers['content-length']))!r}".encode()
        self.send_response(500, CANARIES["refusal"])
        self.send_header("content-length", str(len(said)))
        self.send_header("www-authenticate", f'Bearer error="{CANARIES["refusal"]}"')
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def refusing() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        server.daemon_threads = True
        server.handle_error = lambda request, address: None  # type: ignore[method-assign,assignment]
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield server.server_port
        server.shutdown()


def servers(web: int) -> dict[str, Any]:
    env, where = {"LEAK": CANARIES["env"], "API_KEY": CANARIES["env"]}, f"127.0.0.1:{web}"
    python, seen = {"command": sys.executable, "env": env, "pin": "off"}, "seen"
    headers = {"Authorization": f"Bearer {CANARIES['header']}", "X-Api-Key": CANARIES["header"]}
    query = f"?token={CANARIES['query']}"
    return {
        "rec": python | {"args": [str(HERE / "recording_server.py"), seen], "required": True},
        "dying": python | {"args": ["-c", DYING]},
        "refusing": python | {"args": ["-c", REFUSING]},
        "web": {"url": f"http://{where}/mcp{query}", "headers": headers},
        "nobody": {"url": f"http://127.0.0.1:{free_port()}/mcp{query}", "headers": headers},
    }


def provoke(sluice: Sluice) -> list[str]:
    """Everything that Sluice itself answers with an error to whoever plants secrets."""
    arguments = {
        "note": f"the token is {GITHUB} and http://u:{CANARIES['userinfo']}@h/?token={CANARIES['query']}#x",
        "password": CANARIES["password"], "headers": {"Authorization": f"Bearer {CANARIES['argument']}"},
        "list": [{"api_key": {"deep": CANARIES["nested"]}}],
    }  # fmt: skip
    for tool in ("rec__note", "rec__fail"):
        sluice.call(tool, arguments)
    ours = [sluice.call(f"{server}__x", arguments) for server in ("dying", "refusing", "web", "nobody", "made_up")]
    ours.append(sluice.call("rec__note", arguments, key=CANARIES["guess"]))
    ours.append(sluice.call("rec__note", [CANARIES["argument"]]))
    for path in ("/api/v1/servers", "/readyz", f"/api/v1/tools?token={CANARIES['query']}"):
        ours.append(sluice.get(path, key=CANARIES["operator"]))
    sluice.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"' + CANARIES["argument"].encode())
    return [answer.text for answer in ours]


def test_no_planted_secret_comes_out(tmp_path: Path) -> None:
    with refusing() as web:
        places = [f"http://127.0.0.1:{web}/in?key={CANARIES['witness']}"]
        sinks = [{"name": "siem", "to": f"http://127.0.0.1:{web}/", "headers": {"X-Key": CANARIES["sink"]}}]
        sluice = start(
            tmp_path, servers=servers(web), log={"level": "debug"},
            audit={"checkpoints": {"every": "0.1s", "to": places}, "sinks": sinks},
        )  # fmt: skip
        try:
            answers = provoke(sluice)
            metrics = sluice.get("/metrics").text
            sluice.stop()
        finally:
            sluice.process.kill()
            sluice.process.wait(30)
    said = {"audit": sluice.log.read_text(), "log": (tmp_path / "stderr").read_text(), "metrics": metrics,
            "answers": "\n".join(answers)}  # fmt: skip
    hits = [(where, name) for where, text in said.items()
            for name, secret in {**CANARIES, "key": KEY, "github": GITHUB}.items() if secret in text]  # fmt: skip
    # Why a server is down stands in the log in its own words; what was given to it does not.
    assert hits == [("log", "stderr")], [line[:400] for line in said["log"].splitlines() if "canary" in line][:5]
    assert said["audit"].count("[redacted:") >= 8 and "server is down" in said["log"]
    (identity,) = [record for record in records(tmp_path, "identity") if record["address"] == "127.0.0.1"]
    assert identity["reasons"]["credential"] == 1 and identity["reasons"]["admin_credential"] == 3
