"""What ran the benchmark, without saying whose it is. Knows versions and the disk; knows nothing of calls."""

import os
import platform
import subprocess
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
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


def disk(folder: Path) -> tuple[float, float]:
    """Microseconds of an append that ends when it is on the disk, p50 and p99: what no program can take away."""
    fd = os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC)
    marks = [time.perf_counter()]
    for _ in range(1_000):
        os.write(fd, b"x" * 800)
        marks.append(time.perf_counter())
    os.close(fd)
    cuts = quantiles((end - start for start, end in pairwise(marks)), n=100)
    return cuts[49] * 1e6, cuts[98] * 1e6
