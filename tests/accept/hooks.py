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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import bytecodes
import httpx
from load import modern_call
from peers.fleet import free_port
from policy_bed import bed, client_keys, reason, recorder
from subjects import FULL, LOAD_CORE, SUBJECT_CORE, allowing_hook, fast_server, sluice

ROOT: Final = Path(__file__).parents[2]
OPA: Final = "github.com/open-policy-agent/opa@v1.22.4"
BLOCKS, CALLS, BAR = 200, 50, 150.0  # pairs of blocks of calls; us of CPU a call
ROWS: Final = "p, role:user, *, *, *, allow\n"


def main(words: list[str]) -> int:
    """The exit code: 0 if every bar is held."""
    with tempfile.TemporaryDirectory(prefix="sluice-hooks-") as name:
        place = Path(name)
        named = words[words.index("--opa") + 1] if "--opa" in words else ""
        good = [costs(place / "cost"), agrees(place / "agrees", named or built(place))]
    return 0 if all(good) else 1


# ---------------------------------------------------------------- what a hook costs


def costs(folder: Path) -> bool:
    """CPU of Sluice with a hook on a call beside that without one, over one connection each. Short blocks of both take
    turns, so that what a machine does by the clock meets both."""
    folder.mkdir()
    with allowing_hook(folder, LOAD_CORE) as hook, fast_server(folder, LOAD_CORE) as backend, httpx.Client() as client:
        setup = replace(FULL, audit="write", hook=hook)
        with sluice(folder, SUBJECT_CORE, backend, [sys.executable, "-m", "sluicegate"], setup) as subject:
            tools = "fast0__echo", "fast1__echo"  # the hook is asked about the first
            askers = [bytecodes.Asker(modern_call(replace(subject, tool=tool), client)) for tool in tools]
            for asker in askers:
                asker.ask(20 * CALLS)

            def used(asker: bytecodes.Asker) -> float:
                before = subject.cpu()
                asker.ask(CALLS)
                return (subject.cpu() - before) / CALLS * 1e6

            pairs = [(used(askers[0]), used(askers[1])) for _ in range(BLOCKS)]
    cost = middle([hooked - plain for hooked, plain in pairs])
    with_hook, without = (middle(column) for column in zip(*pairs, strict=True))
    both = f"{with_hook:.0f} with, {without:.0f} without"
    about = f"CPU of a hook over loopback: {cost:.0f} us a call ({both}; bar {BAR:.0f})"
    print(f"{'ok' if cost <= BAR else 'NOT HELD':10s}{about}")
    return cost <= BAR


def middle(values: Sequence[float]) -> float:
    """The mean of their middle half."""
    return statistics.fmean(sorted(values)[len(values) // 4 : -(len(values) // 4)])


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
