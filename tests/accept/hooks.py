"""Hooks with the real Open Policy Agent, whose policy is the one in the documents, and what a hook costs a call.

OPA comes from Go's registry, which takes minutes; --opa PATH names one that is there. Prints a row for each bar.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from e2e.wire import META, MODERN
from peers.fleet import free_port
from policy_bed import Bed, bearer, bed, client_keys, reason, recorder

ROOT: Final = Path(__file__).parents[2]
OPA: Final = "github.com/open-policy-agent/opa@v1.22.4"
PAIRS, CALLS, BAR = 9, 300, 150.0  # us of CPU a call
TEXT: Final = "The quick brown fox jumps over the lazy dog. " * 2
ROWS: Final = "p, role:user, *, *, *, allow\n"
ALLOWING: Final = """
import asyncio, sys, uvloop
SAYS = b'HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: 19\\r\\n\\r\\n{"verdict":"allow"}'
class Allow(asyncio.Protocol):
    def connection_made(self, transport): self.transport, self.left = transport, b""
    def data_received(self, data):
        self.left += data
        head, end, body = self.left.partition(b"\\r\\n\\r\\n")
        size = int(head.lower().partition(b"content-length:")[2].split(b"\\r\\n")[0]) if end else 1
        if end and len(body) >= size:
            self.left = body[size:]
            self.transport.write(SAYS)
async def main():
    server = await asyncio.get_running_loop().create_server(Allow, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()
uvloop.run(main())
"""


def main(words: list[str]) -> int:
    """The exit code: 0 if every bar is held."""
    with tempfile.TemporaryDirectory(prefix="sluice-hooks-") as name:
        place = Path(name)
        named = words[words.index("--opa") + 1] if "--opa" in words else ""
        good = [costs(place / "cost"), agrees(place / "agrees", named or built(place))]
    return 0 if all(good) else 1


# ---------------------------------------------------------------- what a hook costs


def costs(folder: Path) -> bool:
    """CPU of Sluice with a hook on a call beside that without one, alternating, over one connection each."""
    folder.mkdir()
    port = free_port()
    with serving([sys.executable, "-c", ALLOWING, str(port)], port):
        hooks = {"allow": {"url": f"http://127.0.0.1:{port}/", "on": ["call"], "tools": ["hooked"], "timeout": "5s"}}
        clients = {"keys": client_keys(user=["role:user"])}
        servers = {"fs": recorder(folder, "fs", tools=["hooked", "plain"])}
        with bed(folder, ROWS, servers, clients=clients, hooks=hooks) as made, httpx.Client(timeout=20) as client:
            for tool in ("hooked", "plain"):
                _cpu(made, client, tool)
            pairs = [(_cpu(made, client, "hooked"), _cpu(made, client, "plain")) for _ in range(PAIRS)]
    cost = statistics.median(hooked - plain for hooked, plain in pairs)
    with_hook, without = (statistics.median(column) for column in zip(*pairs, strict=True))
    both = f"{with_hook:.0f} with, {without:.0f} without"
    about = f"CPU of a hook over loopback: {cost:.0f} us a call ({both}; bar {BAR:.0f})"
    print(f"{'ok' if cost <= BAR else 'NOT HELD':10s}{about}")
    return cost <= BAR


def _cpu(made: Bed, client: httpx.Client, tool: str) -> float:
    """Microseconds of CPU that Sluice takes for one call."""
    params = {"name": f"fs__{tool}", "arguments": {"text": TEXT}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call",
        "Mcp-Name": f"fs__{tool}", **bearer("user"),
    }  # fmt: skip
    before = _spent(made)
    for _ in range(CALLS):
        answer = client.post(made.process.url, json=body, headers=headers)
        assert reason(answer) == "", answer.text
    return (_spent(made) - before) / CALLS * 1e6


def _spent(made: Bed) -> float:
    """Seconds of CPU, in nanoseconds; /proc's stat counts in ticks of 10 ms, as long as 30 us of each call."""
    return time.clock_gettime(~made.process.process.pid << 3 | 2)


# ---------------------------------------------------------------- Open Policy Agent


def built(place: Path) -> str:
    print(f"installing {OPA}; this takes minutes")
    environment = {**os.environ, "GOBIN": str(place), "GOFLAGS": "-mod=mod"}
    subprocess.run(["go", "install", OPA], check=True, env=environment)
    return str(place / "opa")


def agrees(folder: Path, opa: str) -> bool:
    """The policy of the documents, with another day; and a rule that is undefined."""
    folder.mkdir()
    (policy,) = re.findall(r"```text\n(package sluice\n.*?)```", (ROOT / "docs/how-to/hooks.md").read_text(), re.DOTALL)
    today = time.strftime("%A", time.gmtime())
    (folder / "sluice.rego").write_text(policy.replace("Friday", today))
    port = free_port()
    with serving([opa, "run", "--server", "--addr", f"127.0.0.1:{port}", str(folder / "sluice.rego")], port):
        about = {"on": ["call"], "form": "opa", "timeout": "5s"}
        url = f"http://127.0.0.1:{port}/v1/data/sluice"
        hooks = {
            "rule": {**about, "url": f"{url}/verdict", "servers": ["fs"]},
            "undefined": {**about, "url": f"{url}/nothing", "servers": ["other"]},
        }
        servers = {
            "fs": recorder(folder, "fs", tools=["read", "drop"]) | {"tools": {"classes": {"drop": "destroy"}}},
            "other": recorder(folder, "other", tools=["read"]),
        }
        clients = {"keys": client_keys(user=["role:user"])}
        with bed(folder, ROWS, servers, clients=clients, hooks=hooks, approvals={"hold_for": "100ms"}) as made:
            found = {name: reason(made.call("user", name)) for name in ("fs__read", "fs__drop", "other__read")}
    expected = {"fs__read": "", "fs__drop": "approval_pending", "other__read": "denied"}
    version = subprocess.run([opa, "version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    print(f"{'ok' if found == expected else 'NOT HELD':10s}OPA ({version}): {json.dumps(found)}")
    return found == expected


@contextmanager
def serving(command: list[str], port: int) -> Iterator["subprocess.Popen[Any]"]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/", timeout=1)
                    break
                except httpx.ConnectError:
                    assert process.poll() is None, command
                    time.sleep(0.05)
                except httpx.HTTPError:
                    break
            yield process
        finally:
            process.kill()
