"""How many first lists are whole: cold and warm starts of `sluice stdio` before eight servers, beside busy loops.

Five servers are quick, one takes 12 s to start, one hangs and one has a missing command. A cold start has an empty
state directory: its first list is whole if it has the tools of the first six. The warm start after it has the same
state: its first list is whole, is there at once, and a call of the slow server's tool is answered. Prints a line for
each start, then the sums; exits with 1 if a list was not whole. Run it with: make accept ARGS="--starts 100".
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
LATE = str(ROOT / "tests" / "e2e" / "late_server.py")
BUSY = "while True: pass"
NAMES = ["a", "b", "c", "d", "e", "slow"]
WHOLE = [f"{name}__{name}" for name in NAMES]
PATIENCE = 120.0  # seconds for any answer; a machine under load is slow
Json = dict[str, Any]


@dataclass(frozen=True)
class Start:
    """Seconds; `listed` is from the answer to initialize to the first list, `called` how long the call took."""

    kind: str
    is_whole: bool
    greeted: float
    listed: float
    called: float
    note: str = ""


class Client:
    """A client on stdin and stdout that reads one answer at a time. Killed if it is not answered in time."""

    def __init__(self, config: Path) -> None:
        command = [sys.executable, "-m", "sluicegate", "stdio", "-c", str(config)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
        )
        self._ids = iter(range(1, 100))

    def ask(self, method: str, **params: Any) -> Json:
        assert self.process.stdout is not None
        id = next(self._ids)
        timer = threading.Timer(PATIENCE, self.process.kill)
        timer.start()
        try:
            self.send(id=id, method=method, params=params)
            for line in self.process.stdout:
                message: Json = json.loads(line)
                if message.get("id") == id and "method" not in message:
                    return message
        finally:
            timer.cancel()
        raise ConnectionError(f"no answer to {method}")

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def write_config(folder: Path, delay: float) -> Path:
    def late(name: str, *seconds: str) -> Json:
        return {"command": sys.executable, "args": [LATE, str(folder), name, *seconds]}

    servers = {name: late(name) for name in NAMES[:-1]} | {
        "slow": late("slow", str(delay)),
        "hangs": {"command": "sleep", "args": ["600"]},
        "absent": {"command": "no-such-command-anywhere"},
    }
    settings = {
        "version": 1, "servers": servers, "policy": {"use": "open"},
        "clients": {"local": {"roles": ["role:owner"]}},
        "state": {"dir": str(folder / "state")}, "audit": {"path": str(folder / "audit.jsonl")},
    }  # fmt: skip
    file = folder / "sluice.yaml"
    file.write_text(json.dumps(settings))
    return file


def start(kind: str, config: Path, is_called: bool) -> Start:
    client = Client(config)
    try:
        began = time.monotonic()
        about = {"name": "accept", "version": "1"}
        capabilities: Json = {"roots": {"listChanged": True}, "elicitation": {}}
        client.ask("initialize", protocolVersion="2025-11-25", capabilities=capabilities, clientInfo=about)
        greeted = time.monotonic()
        client.send(method="notifications/initialized")
        tools = [tool["name"] for tool in client.ask("tools/list")["result"]["tools"]]
        listed = time.monotonic()
        missing = ", ".join(name for name in WHOLE if name not in tools)
        note = f"missing: {missing}" if missing else ""
        if is_called:
            answer = client.ask("tools/call", name="slow__slow", arguments={})
            if answer.get("result", {}).get("isError", "error" in answer):
                note += f" the call failed: {json.dumps(answer)[:200]}"
        return Start(kind, not note, greeted - began, listed - greeted, time.monotonic() - listed, note)
    except (OSError, KeyError, ValueError) as error:
        return Start(kind, False, 0.0, 0.0, 0.0, repr(error))
    finally:
        client.close()


def both(number: int, delay: float) -> list[Start]:
    folder = Path(tempfile.mkdtemp(prefix="first-list-"))
    try:
        config = write_config(folder, delay)
        found = [start("cold", config, False), start("warm", config, True)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for one in found:
        words = "whole" if one.is_whole else f"NOT WHOLE ({one.note})"
        times = f"initialize {one.greeted:5.2f} s  list {one.listed:6.2f} s  call {one.called:6.2f} s"
        print(f"{number:4} {one.kind}  {times}  {words}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5, help="cold starts, each with a warm one after it")
    parser.add_argument("--jobs", type=int, default=1, help="how many at the same time")
    parser.add_argument("--load", type=int, default=4, help="busy loops beside")
    parser.add_argument("--delay", type=float, default=12.0, help="seconds that the slow server takes to start")
    told = parser.parse_args()
    with ExitStack() as stack:
        for _ in range(told.load):
            busy = subprocess.Popen([sys.executable, "-c", BUSY])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
        with ThreadPoolExecutor(told.jobs) as pool:
            found = [one for pair in pool.map(lambda n: both(n, told.delay), range(1, told.starts + 1)) for one in pair]
    for kind in ("cold", "warm"):
        these = [one for one in found if one.kind == kind]
        times = sorted(one.listed for one in these if one.is_whole)
        line = f"{kind}: {sum(one.is_whole for one in these)} of {len(these)} first lists were whole"
        if times:
            line += f"; after initialize {times[0]:.2f} s at least, {statistics.median(times):.2f} s in the middle, "
            line += f"{times[-1]:.2f} s at most"
        print(line)
    return 0 if all(one.is_whole for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
