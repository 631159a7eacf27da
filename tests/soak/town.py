"""The town of the soak: a Sluice with every feature on, real servers of both eras behind it on every transport, and
what its people share: keys, numbers for calls, and the count of what became of them."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx
from e2e.sluice_process import COMMAND, ROOT, Sluice, clean_environment, settings_for, write_config
from issuer import AUDIENCE, Issuer, rsa_key
from peers.fleet import FIXTURE, free_port, running, stop, wait_for_port
from peers.install import MCP1
from peers.login.misbehaving import Misbehaving
from policy_bed import bearer, client_keys, recorder

Json = dict[str, Any]
TESTS: Final = ROOT / "tests"
FAST_CLOCK: Final = str(Path(__file__).with_name("fast_clock_sluice.py"))
CHILD: Final = str(TESTS / "downstream" / "scripted_child.py")
PYTHON: Final = os.path.realpath(sys.executable)
"""Without an environment: what it reads is all in one place."""
SECRET: Final = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
FAST: Final = str(TESTS / "bench" / "fast_server.py")
SDK1: Final = str(MCP1 / "python")
RECORDERS: Final = ("rec", "bank", "guarded", "coat", "mortal")
"""Servers that write down each call they get."""
USERS: Final = ("ann", "bob", "cat", "dan", "eve", "fay")
KEYS: Final = {**{name: ["role:user"] for name in USERS}, "lea": ["role:lead"], "leo": ["role:lead"]}
HIDDEN: Final = "plain\u202e \u200btext\x1b[31m, with a token: ghp_0123456789abcdefghijABCDEFGHIJ012345"
ROWS: Final = """\
p, role:user, *, *, *, allow
p, group:crew, *, *, *, allow
p, role:user, rec, tool:secret, *, deny
p2, *, bank, tool:wire, *, brief
p2, *, bank, tool:lend, *, brief
p2, *, jobs, tool:failing_job, *, brief
p, role:user, sluice, admin:approvals, *, allow
p, role:lead, *, *, *, allow
p, role:lead, sluice, admin:*, *, allow
p, role:lead, sluice, admin:policy, *, allow
p, role:lead, sluice, admin:logins, *, allow
p, local, sluice, admin:*, *, allow
"""
TOOLS: Final[list[Any]] = [
    "look", "save", "secret", {"name": "echo", "description": "Says what it was told.",
                               "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
]  # fmt: skip


class Mortal:
    """A server over HTTP that can be ended, and started again at the same port."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.port, self._log = free_port(), log
        self._command = [word.replace("PORT", str(self.port)) for word in command]
        self._process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._log.parent,
                start_new_session=True,
            )  # fmt: skip
        wait_for_port(self.port, self._process, self._log)

    def end(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            stop(self._process, 5)


@dataclass
class SoakTown:
    """`minute` is how often what happens once a minute does, in seconds."""

    folder: Path
    process: Sluice
    issuer: Issuer
    site: Misbehaving
    mortals: dict[str, Mortal]
    settings: Json
    minute: float
    is_over: bool = False
    tally: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    lots: random.Random = field(default_factory=lambda: random.Random(7))
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    key: str = "k1"

    def number(self) -> int:
        return next(self.numbers)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.lots.uniform(0.7, 1.3))

    def credential(self, who: str) -> dict[str, str]:
        """Of a key; of the token of a person whose name is written with a capital."""
        if who[:1].isupper():
            token = self.issuer.token(key=rsa_key(self.key), kid=self.key, sub=who.lower(), groups=["crew"])
            return {"Authorization": f"Bearer {token}"}
        return bearer(who)

    def write(self, name: str, text: str) -> None:
        """In one step, as editors and deployments do."""
        draft = self.folder / f".{name}"
        draft.write_text(text)
        draft.replace(self.folder / name)

    def write_config(self, **changes: Any) -> None:
        self.write("sluice.yaml", json.dumps({**self.settings, **changes}, indent=2))

    def admin(self, who: str = "lea") -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.process.admin, headers=bearer(who), timeout=30, trust_env=False)


def servers(folder: Path, site: Misbehaving, mortals: dict[str, Mortal], urls: dict[str, str]) -> Json:
    listed: Json = {"tools": TOOLS, "prompts": ["plain"], "resources": [f"file:///{n}" for n in range(30)]}
    hidden = {"content": [{"type": "text", "text": HIDDEN}]}
    found: Json = {
        "rec": recorder(folder, "rec", **listed, templates=["file:///{n}"]),
        "bank": recorder(folder, "bank", tools=["wire", "lend", "look"]),
        "guarded": recorder(folder, "guarded", tools=["ask", "hide"], results={"hide": hidden}),
        "coat": recorder(folder, "coat", tools=[{"name": "wear", "description": "Warm."}]) | {"pin": "review"},
        "mortal": recorder(folder, "mortal", tools=["live", "mute"], silent=["mute"]) | {"timeout": "5s"},
        "own": {"command": PYTHON, "args": ["-I", "-S", CHILD], "era": "legacy", "idle": "10s",
                "sandbox": {"read": [CHILD, *([] if PYTHON.startswith("/usr/") else [str(Path(PYTHON).parents[1])])]}},
        "pipe": {"command": FIXTURE[0], "args": FIXTURE[1:], "era": "modern"},
        "web": {"url": urls["web"], "era": "modern"},
        "fast": {"url": f"http://127.0.0.1:{mortals['fast'].port}/mcp", "concurrency": 64},
        "old": {"url": f"http://127.0.0.1:{mortals['old'].port}/mcp/", "era": "legacy", "results_over": "page"},
        "sse": {"url": f"http://127.0.0.1:{mortals['sse'].port}/sse", "transport": "sse", "results_over": "page"},
        "asks": {"url": f"http://127.0.0.1:{mortals['asks'].port}/mcp", "era": "legacy"},
        "jobs": {"url": urls["jobs"], "era": "modern"},
        "mail": {"url": site.mcp},
    }
    for key in found:
        found[key]["required"] = key in ("rec", "bank", "web")
    return found


def detector(stack: ExitStack, folder: Path) -> str:
    """The URL of a detector of secrets. One that compiles its rules for the first time takes half a minute."""
    port, log = free_port(), folder / "detector.log"
    command = [*COMMAND, "detector", "--listen", f"127.0.0.1:{port}"]
    environment = clean_environment() | {"SLUICE_DETECTOR_SECRET": SECRET}
    process = stack.enter_context(running(command, log, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL))
    wait_for_port(port, process, log, 120)
    return f"http://127.0.0.1:{port}/"


def config(folder: Path, receiver: int, login: Issuer, found: Json, hour: float, detects: str) -> Json:
    """`hour` is how many seconds stand for an hour, `detects` the detector's URL."""
    here = f"http://127.0.0.1:{receiver}"
    secret = SECRET
    keys = client_keys(**KEYS)
    for name in ("lea", "leo"):
        keys[name]["owner"] = name
    one = {"issuer": login.url, "audience": AUDIENCE, "roles_from": ["groups"]}
    hook = {"url": f"{here}/hook/gate", "on": ["call", "result"], "servers": ["guarded"], "secret": secret,
            "timeout": "1s"}  # fmt: skip
    secrets = {"url": detects, "on": ["call", "result"], "servers": ["own"], "secret": secret, "sees": "whole",
               "timeout": "5s"}  # fmt: skip
    told = {"url": f"{here}/hook/told", "on": ["approval"], "secret": secret}
    return settings_for({
        "servers": found,
        "clients": {"keys": keys, "jwt": {"issuers": [one]}},
        "policy": {"files": ["policy.csv"], "arguments": "arguments"},
        "toolsets": {
            "found": {"tools": ["*/*"], "search": "on", "pinned": ["rec/echo"]},
            "small": {"tools": ["rec/*", "!rec/save"], "budget": 2000},
        },
        "approvals": {
            "hold_for": "1s",
            "profiles": {"brief": {"tier": "other", "approvers": ["role:lead"], "expires": "15s",
                                   "remember": ["once", "15m"]}},
            "notify": [{"type": "webhook", "url": f"{here}/notify", "secret": secret}],
        },
        "hooks": {"gate": hook, "told": told, "secrets": secrets},
        "audit": {
            "results": "redacted", "rotate": {"size": "2MiB", "age": f"{hour:.0f}s"},
            "retain": f"{hour * 4 / 3:.0f}s",
            "checkpoints": {"every": "2s", "to": [f"{here}/checkpoints", str(folder / "kept.jsonl")]},
            "sinks": [{"name": "soak", "to": f"{here}/audit"}],
        },
        "limits": {
            "per_client": "20/s", "per_tool": "900/min", "page": 20, "max_result": "256KiB",
            "paged_results": "4MiB", "paged_for": "1m",
        },
        "login": {"within": "1m", "callback": f"http://127.0.0.1:{free_port()}/callback"},
        "telemetry": {"otlp": here},
        "log": {"format": "json"},
    }, folder)  # fmt: skip


def sluice(stack: ExitStack, settings: Json, folder: Path, hour: float) -> Sluice:
    (folder / "policy.csv").write_text(ROWS)
    rules = folder / "arguments" / "rec"
    rules.mkdir(parents=True)
    (rules / "echo.json").write_text(json.dumps({"properties": {"n": {"type": "integer"}}}))
    file, log = write_config(settings, folder), folder / "sluice.log"
    command = [sys.executable, FAST_CLOCK, f"{hour:g}", "serve", "-c", str(file)]
    options: Json = {"cwd": ROOT, "env": clean_environment(), "stdout": subprocess.DEVNULL}
    process = stack.enter_context(running(command, log, 30, **options))
    found = Sluice(process, file, log, settings)
    found.wait_ready()
    return found


def make_mortals(folder: Path) -> dict[str, Mortal]:
    large, asker = (str(TESTS / "e2e" / name) for name in ("sdk1_large.py", "sdk1_asker.py"))
    commands = {
        "fast": [sys.executable, FAST, "PORT"], "old": [SDK1, large, "PORT"], "sse": [SDK1, large, "PORT", "sse"],
        "asks": [SDK1, asker, str(folder / "asked"), "PORT"],
    }  # fmt: skip
    return {name: Mortal(command, folder / f"{name}.log") for name, command in commands.items()}
