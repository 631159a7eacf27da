"""How long a desktop client waits for `sluice stdio`, and what it takes while nobody uses it. Prints a row for each.

The best of some starts counts: everything else on the machine only adds to them. Modules are compiled beforehand, as
an installation has them.
"""

import compileall
import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).parents[2]
STARTS: Final = 15
START_SERVERS, START_BAR = 20, 300.0  # ms beside Python's own start
IDLE_SERVERS, IDLE_BAR = 10, 60.0  # MiB resident
SETTLED: Final = 0.25  # MiB that memory may still grow in a second
META = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "accept", "version": "1"}}


def main(words: list[str]) -> int:
    """The exit code: 0 if both bars are held."""
    for modules in (ROOT / "proxy", sysconfig.get_path("purelib")):
        compileall.compile_dir(modules, quiet=2)
    with tempfile.TemporaryDirectory(prefix="sluice-start-") as name:
        rows = [start(Path(name) / "start"), idle(Path(name) / "idle")]
    for what, value, bar, unit in rows:
        print(f"{'ok' if value <= bar else 'NOT HELD':10s}{what}: {value:.0f} {unit} (bar {bar:.0f})")
    return 0 if all(value <= bar for _, value, bar, _ in rows) else 1


def start(folder: Path) -> tuple[str, float, float, str]:
    config = write_config(folder, START_SERVERS)
    ours, python = [], []
    for _ in range(STARTS):
        began = time.perf_counter()
        with sluice(config) as process:
            ask(process, 1, "initialize", META)
            ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        python.append(time.perf_counter() - began)
    what = f"stdio answers initialize with {START_SERVERS} servers, beside Python's {min(python) * 1000:.0f} ms"
    return what, (min(ours) - min(python)) * 1000, START_BAR, "ms"


def idle(folder: Path) -> tuple[str, float, float, str]:
    with sluice(write_config(folder, IDLE_SERVERS)) as process:
        ask(process, 1, "initialize", META)
        write(process, {"method": "notifications/initialized"})
        assert len(ask(process, 2, "tools/list", {})["tools"]) == IDLE_SERVERS
        before, now = 0.0, resident(process.pid)
        while now - before > SETTLED:
            time.sleep(1)
            before, now = now, resident(process.pid)
    return f"stdio idle with {IDLE_SERVERS} servers", now, IDLE_BAR, "MiB"


def write_config(folder: Path, count: int) -> Path:
    servers: dict[str, Any] = {}
    for number in range(count):
        (own := folder / f"s{number}").mkdir(parents=True)
        (own / "catalog.json").write_text('{"tools": ["read"], "prompts": [], "resources": [], "templates": []}')
        command = {"command": sys.executable, "args": [str(ROOT / "tests/recording_server.py"), str(own)]}
        servers[f"s{number}"] = command
    config = {"version": 1, "policy": {"use": "open"}, "servers": servers, "state": {"dir": str(folder / "state")}}
    (file := folder / "sluice.yaml").write_text(json.dumps(config))
    return file


@contextmanager
def sluice(config: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "sluicegate", "stdio", "-c", str(config)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd=config.parent) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def write(process: "subprocess.Popen[bytes]", message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    process.stdin.flush()


def ask(process: "subprocess.Popen[bytes]", id: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    write(process, {"id": id, "method": method, "params": params})
    assert process.stdout is not None
    answers = (json.loads(line) for line in process.stdout)
    return dict(next(one for one in answers if one.get("id") == id)["result"])


def resident(pid: int) -> float:
    kib = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(kib.split()[1]) / 1024
