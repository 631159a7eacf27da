"""The main job on embedded defaults: real servers, one endpoint, a call that runs and one that is refused.

It is a user of Sluice like any other: it writes a config file, starts what `sluice serve` starts, and speaks to
the endpoint over HTTP. The servers come from PyPI into an environment of their own, and one from npm where `npx` is;
three small ones of its own (`servers.py`) play in the story of an approval (`story.py`).
"""

import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from socket import socket
from subprocess import CalledProcessError
from typing import Any, Final, TypeVar

import anyio
import httpx
from anyio.abc import TaskStatus

from sluicegate import __version__, config
from sluicegate.app.serve import RunningServer, running
from sluicegate.demo.story import Stage, tell
from sluicegate.listen.server import CannotListen
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import MODERN
from sluicegate.store import private
from sluicegate.store.keys import read_operator_token

T = TypeVar("T")
Say = Callable[[str], None]
Until = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Awaits that, and gives what it gives; None if a signal comes first."""

PACKAGES: Final = ("mcp-server-time", "mcp-server-git", "mcp-server-fetch")
NPX_SERVER: Final = "@modelcontextprotocol/server-memory"
PORTS: Final = (7410, 7411)
READY_TIMEOUT: Final = 60.0
SHOWN_TOOLS: Final = 40

CONFIG: Final = """\
# What `sluice demo` runs. A config of your own: sluice init
version: 1
listen: {{mcp: "127.0.0.1:{mcp}", admin: "127.0.0.1:{admin}"}}
clients:
  anonymous: {{roles: []}}              # only because this listens on loopback
  keys: {{mia: {{hash: "{hash}", roles: [role:lead]}}}}
policy: {{files: [policy.csv], on_deny: explain}}
approvals:
  hold_for: 20s
  profiles:                            # the operator is role:owner
    travel-desk: {{tier: other, approvers: ["role:owner"], expires: 10m}}
    two-people: {{tier: other, approvers: ["role:owner", "role:lead"], quorum: 2, expires: 10m}}
state: {{dir: {state}}}
servers:
  time: {{command: {python}, args: [-m, mcp_server_time]}}
  git:
    command: {python}
    args: [-m, mcp_server_git, --repository, {repository}]
    tools: {{deny: ["git_reset", "git_checkout"]}}
  fetch: {{command: {python}, args: [-m, mcp_server_fetch]}}
  travel: {{command: {own}, args: [{servers}, travel]}}
  weather: {{command: {own}, args: [{servers}, weather]}}
  calendar: {{command: {own}, args: [{servers}, calendar]}}
"""
POLICY: Final = """\
# Everybody may read and write. A person has to approve what costs money, and what is sent.
p, role:everyone, *, *, read, allow
p, role:everyone, *, *, write, allow
p2, *, travel, tool:book_*, *, travel-desk
p2, *, calendar, tool:send_*, *, two-people
p, local, sluice, admin:*, *, allow
p, role:lead, sluice, admin:approvals, *, allow
"""
NPX_CONFIG: Final = """\
  memory: {{command: npx, args: [-y, "{package}"], env: {{MEMORY_FILE_PATH: {memory}}}}}
"""


class DemoFailed(Exception):
    """What it needs is not there."""


async def run(once: bool, browse: bool, say: Say) -> int:
    """Returns the exit code: 0 if everything that should work did. `browse`: the console opens on the first call that
    waits. A signal ends it in order: its servers and its directory go first; `KeyboardInterrupt` is raised then. Raises
    `DemoFailed`."""
    is_signalled = anyio.Event()
    async with anyio.create_task_group() as group:
        if sys.platform != "win32":
            await group.start(_hear, is_signalled)
        code = await _play(partial(_until, is_signalled), once, browse, say)
        group.cancel_scope.cancel()
    if code is None:
        raise KeyboardInterrupt
    return code


async def _hear(is_signalled: anyio.Event, *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            is_signalled.set()


async def _until(is_signalled: anyio.Event, work: Callable[[], Awaitable[T]]) -> T | None:
    """What it returns; None if a signal comes first, which cancels it."""
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_at, is_signalled, group.cancel_scope)
            done = await work()
            group.cancel_scope.cancel()
            return done
    except BaseExceptionGroup:  # what was under way when the signal came may fail of it
        if not is_signalled.is_set():
            raise
    return None


async def _cancel_at(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def _play(until: Until, once: bool, browse: bool, say: Say) -> int | None:
    python = await until(partial(_environment, _home(), say))
    if python is None:
        return None
    with tempfile.TemporaryDirectory(prefix="sluice-demo-") as work:
        serve = partial(_serve, until, Path(work), python, once, browse, say)
        try:
            return await serve(*map(_free_port, PORTS))
        except* CannotListen:
            say("Another program has just taken the port. Sluice takes another one.")
        return await serve(_free_port(0), _free_port(0))


async def _serve(until: Until, work: Path, python: str, once: bool, browse: bool, say: Say, *ports: int) -> int | None:
    """Sluice itself is not cancelled: it ends in order, as `sluice serve` does."""
    path = await until(partial(_write_config, work, python, *ports))
    if path is None:
        return None
    loaded = config.load(path)
    async with running(loaded) as sluice:
        code: int | None = await until(partial(_tour, sluice, loaded, path, once, browse, say))
        if code is None:
            sluice.stop()
    return code


async def _tour(sluice: RunningServer, loaded: config.Config, path: Path, once: bool, browse: bool, say: Say) -> int:
    say(f"\nSluice {__version__} is running: one MCP endpoint in front of {len(loaded.servers)} servers.")
    say("MCP clients on this machine can use it now, without a key.")
    say(f"  endpoint   {sluice.endpoint}")
    say(f"  metrics    {sluice.admin}/metrics")
    say(f"  audit      {loaded.audit.path}")
    say(f"  config     {path}")
    good = await _show(sluice.endpoint, sluice, say)
    token, key = read_operator_token(loaded.state.dir) or "", path.with_name("mia.key")
    stage = Stage(sluice.admin, path, token, loaded.audit.path, key, loaded.state.dir, browse)
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        good = await tell(stage, partial(_ask, http, sluice.endpoint), once, say) and good
    if not once:
        say("\nSluice serves until you press Ctrl-C. Then the servers end, and the files of the demo are deleted.")
        await anyio.sleep_forever()
    return 0 if good else 1


def _home() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "sluice-demo"


async def _environment(home: Path, say: Say) -> str:
    """The Python of an environment that has the demo's servers; made at the first run."""
    python = home / "bin" / "python" if sys.platform != "win32" else home / "Scripts" / "python.exe"
    ready = anyio.Path(home / f"ready-{'-'.join(PACKAGES)}")
    if not await ready.exists():
        say(f"Installing {', '.join(PACKAGES)} into {home}. Only the first run does this.")
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        await _call_program(sys.executable, "-m", "venv", "--clear", *(["--without-pip"] if uv else []), home)
        pip = [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
        await _call_program(*pip, "--quiet", *PACKAGES)
        await ready.touch()
    return str(python)


async def _call_program(*command: str | Path) -> None:
    """To its end, or to ours: who is cancelled ends it. Raises `DemoFailed`."""
    words = [str(word) for word in command]
    try:
        await anyio.run_process(words, stdout=sys.stderr, stderr=None)
    except FileNotFoundError:
        raise DemoFailed(f"the demo needs {words[0]}, which is not on PATH: install it, and try again") from None
    except CalledProcessError as error:
        raise DemoFailed(f"{' '.join(words)} failed with exit code {error.returncode}") from None


async def _write_config(work: Path, python: str, mcp: int, admin: int) -> Path:
    repository = work / "repository"
    await _call_program("git", "init", "-q", repository)
    key = secrets.token_urlsafe(32)
    private.write(work / "mia.key", key.encode("ascii"), replace=True)
    text = CONFIG.format(
        mcp=mcp, admin=admin, state=work / "state", python=python, repository=repository, own=sys.executable,
        servers=Path(__file__).with_name("servers.py"), hash=f"sha256:{sha256(key.encode('ascii')).hexdigest()}",
    )  # fmt: skip
    if shutil.which("npx"):
        text += NPX_CONFIG.format(package=NPX_SERVER, memory=work / "memory.jsonl")
    path = work / "sluice.yaml"
    await anyio.Path(work / "policy.csv").write_text(POLICY)
    await anyio.Path(path).write_text(text)
    return path


def _free_port(preferred: int) -> int:
    for port in (preferred, 0):
        with socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")


async def _show(endpoint: str, sluice: RunningServer, say: Say) -> bool:
    with anyio.move_on_after(READY_TIMEOUT):
        await sluice.core.ready()
    for server in sluice.core.describe():
        trouble = f"  ({server['last_error']})" if server.get("last_error") else ""
        say(f"  server     {server['key']:<8} {server['status']}{trouble}")
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        tools = (await _ask(http, endpoint, "tools/list", {}))["result"]["tools"]
        say(f"\nA client sees the tools of all servers in one list. It has {len(tools)}:")
        for tool in tools[:SHOWN_TOOLS]:
            say(f"  {tool['name']:<34} {_first_line(tool.get('description', ''))}")
        say("\nThe client calls a tool. Sluice passes the call to the server `time`:")
        ran = await _call(http, endpoint, CONVERT, say)
        say("\nThe client calls a tool that the config denies. The server `git` never gets this call:")
        refused = await _call(http, endpoint, RESET, say)
    return len({tool["name"].split("__")[0] for tool in tools}) >= 3 and ran == "ok" and refused == "denied"


CONVERT: Final = {
    "name": "time__convert_time",
    "arguments": {"source_timezone": "Europe/Paris", "time": "12:00", "target_timezone": "Asia/Tokyo"},
}
RESET: Final = {"name": "git__git_reset", "arguments": {"repo_path": "."}}


async def _call(http: httpx.AsyncClient, endpoint: str, params: Json, say: Say) -> str:
    """The word for how a call ended: ok, a reason, or error."""
    say(f"> tools/call {params['name']} {json.dumps(params['arguments'])}")
    answer = await _ask(http, endpoint, "tools/call", params)
    if "error" in answer:
        say(f"< error {answer['error']['code']}: {answer['error']['message']}")
        return "error"
    result = answer["result"]
    for item in result["content"]:
        say(f"< {item.get('text', item['type'])}")
    reason = result.get("_meta", {}).get("dev.sluice/reason", "error" if result.get("isError") else "ok")
    say(f"  ({reason})")
    return str(reason)


async def _ask(http: httpx.AsyncClient, endpoint: str, method: str, params: Json) -> Any:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "sluice-demo", "version": __version__},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    if (named := params.get("name", params.get("uri"))) is not None:
        headers["Mcp-Name"] = named
    response = await http.post(endpoint, json=body, headers=headers)
    if response.headers["content-type"] == "application/json":
        return response.json()
    # An answer that takes its time comes as the last event of a stream.
    return json.loads([line[5:] for line in response.text.splitlines() if line.startswith("data: ")][-1])


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= 70 else line[:67] + "..."
