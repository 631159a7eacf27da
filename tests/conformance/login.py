"""A person at a desktop with Sluice: `login.py URL`, as the conformance suite starts a client that has to log in.

    PYTHONPATH=tests python tests/conformance/login.py URL

1. Writes a config with URL as its only server, and what a person would write of the scenario's client beside it.
2. Starts `sluice serve`.
3. Runs `sluice login mock --no-open --json` and is the browser: opens the URL, and follows it back to Sluice.
4. Through Sluice, in the era that the suite wants: lists, and calls `test-tool`. Where a login is asked for, 3 again,
   at most 5 times, so that what limits it is Sluice.
5. Stops Sluice. Exits with 1 if a login or a call did not succeed, which some scenarios want.

What is judged is what reaches the suite's servers, and that is Sluice's doing. Knows no code of it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from e2e.sluice_process import COMMAND, ROOT, Sluice, clean_environment, sluice
from peers.fleet import free_port
from peers.login.browser import Browser

Json = dict[str, Any]

MODERN = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
META: Json = {
    PREFIX + "protocolVersion": MODERN, PREFIX + "clientInfo": {"name": "conformance-login", "version": "1.0.0"},
    PREFIX + "clientCapabilities": {},
}  # fmt: skip
REVISION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", MODERN)
SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "auth/metadata-default")
CONTEXT: Json = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
# The suite takes its word for the document: nobody fetches it
DOCUMENT = "https://conformance-test.local/client-metadata.json"
CALLS = {"auth/authorization-server-migration": 2}
MACHINES = ("auth/client-credentials-basic", "auth/client-credentials-jwt")
MOST_LOGINS = 5
WAIT = 60


def settings(url: str, folder: Path) -> Json:
    login: Json = {"per": "gateway", **known_client(folder)}
    mock = {"url": url, "prefix": "", "unlisted": "forward", "required": False, "login": login}
    return {
        "servers": {"mock": mock}, "audit": {"enabled": False},
        "network": {"allow_private": ["localhost", "127.0.0.1", "::1"]},
        "login": {"callback": f"http://127.0.0.1:{free_port()}/callback", "client_document": DOCUMENT},
    }  # fmt: skip


def known_client(folder: Path) -> Json:
    """What the context says of a client that was registered before, as `servers.KEY.login` has it."""
    known: Json = {name: CONTEXT[name] for name in ("client_id", "client_secret", "issuer") if name in CONTEXT}
    if SCENARIO in MACHINES:
        known["grant"] = "client_credentials"
    if "private_key_pem" in CONTEXT:
        key = folder / "client.pem"
        key.write_text(CONTEXT["private_key_pem"])
        key.chmod(0o600)
        known["client_key"] = str(key)
    return known


class Client:
    """A client without elicitation: it is told in words that a login is missing."""

    def __init__(self, url: str) -> None:
        accept = {"accept": "application/json, text/event-stream"}
        self._http = httpx.Client(headers=accept, timeout=WAIT, trust_env=False)
        self._url = url
        if REVISION != MODERN:
            about = {"name": "conformance-login", "version": "1.0.0"}
            hello = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": about}
            answer = self._post({"id": 0, "method": "initialize", "params": hello})
            self._http.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
            self._http.headers["mcp-protocol-version"] = REVISION
            self._post({"method": "notifications/initialized"})

    def close(self) -> None:
        self._http.close()

    def request(self, method: str, **params: Any) -> Json:
        """The result, or the error, with its kind as the only key."""
        headers: dict[str, str] = {}
        if REVISION == MODERN:
            params["_meta"] = META
            headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
            headers |= {"mcp-name": params["name"]} if "name" in params else {}
        answer = self._post({"id": 1, "method": method, "params": params}, headers)
        lines = [line[5:] for line in answer.text.splitlines() if line.startswith("data:")]
        is_json = answer.headers["content-type"].startswith("application/json")
        messages = [answer.json()] if is_json else [json.loads(line) for line in lines if line.strip()]
        end = next(message for message in messages if message.get("id") == 1)
        return {kind: end[kind] for kind in ("result", "error") if kind in end}

    def _post(self, message: Json, headers: dict[str, str] | None = None) -> httpx.Response:
        return self._http.post(self._url, json={"jsonrpc": "2.0", **message}, headers=headers)


def log_in(process: Sluice) -> bool:
    command = [*COMMAND, "login", "mock", "--no-open", "--json", "-c", str(process.config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=clean_environment()) as asked:
        assert asked.stdout is not None
        line = asked.stdout.readline()
        if line and "url" in (told := json.loads(line)):
            with Browser() as browser:
                page = browser.login(told["url"])
                say(f"the last page: {page.status_code} {page.url}: {page.text[:300]}")
        say(f"sluice login: {line}{asked.stdout.read()}")
        return asked.wait(WAIT) == 0


def call(client: Client, process: Sluice) -> bool:
    """Whether the tool answered, after as many logins as it wants. Sluice also refuses a call with "Call again": its
    client has another login or definition than when the call came."""
    logins, until = 0, time.monotonic() + WAIT
    while logins < MOST_LOGINS and time.monotonic() < until:
        answer = client.request("tools/call", name="test-tool", arguments={})
        say(f"tools/call: {answer}")
        result, text = answer.get("result", {}), json.dumps(answer)
        if not result.get("isError", "result" not in answer):
            return True
        if "sluice login" in text and log_in(process):
            logins += 1
        elif "Call again" not in text:
            return False
    return False


def run(process: Sluice) -> bool:
    process.wait_answering(WAIT)
    if SCENARIO not in MACHINES and not log_in(process):
        return False
    client = Client(process.url)
    try:
        say(f"tools/list: {client.request('tools/list')}")
        return all(call(client, process) for _ in range(CALLS.get(SCENARIO, 1)))
    finally:
        client.close()


def say(line: str) -> None:
    print(line, file=sys.stderr)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with sluice(settings(sys.argv[-1], folder), folder, ready=False) as process:
            done = run(process)
            say(process.log()[-4000:])
    sys.exit(not done)


if __name__ == "__main__":
    main()
