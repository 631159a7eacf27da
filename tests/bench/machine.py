"""What ran the benchmark, without saying whose it is. Knows versions and the disk; knows nothing of calls."""

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

LIBRARIES = ("httptools", "httpx", "pydantic-core", "uvicorn", "uvloop")


def machine(python: str) -> dict[str, Any]:
    """`python` is the version that ran Sluice; before the run, `load` is what others do."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    programs = {"nginx": ["nginx", "-v"], "wrk": ["wrk", "-v"]}
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release().partition("-")[0],
        "date": time.strftime("%Y-%m-%d"),
        "load": round(os.getloadavg()[0], 1),
        "python": python,
        **{library: version(library) for library in LIBRARIES},
        **{name: _first_line(command) for name, command in programs.items()},
    }


def _first_line(command: list[str]) -> str:
    environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return (done.stdout + done.stderr).splitlines()[0].partition(" Copyright")[0]


def disk(folder: Path) -> float:
    """Microseconds of one append and fdatasync: what no program can take away."""
    fd = os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    started, rounds = time.perf_counter(), 200
    for _ in range(rounds):
        os.write(fd, b"x" * 800)
        os.fdatasync(fd)
    os.close(fd)
    return (time.perf_counter() - started) / rounds * 1e6
