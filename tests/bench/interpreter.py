"""The Python that what is measured runs on: Debian's own, where there is one, as nginx and wrk are Debian's.

Distributors and the official images build CPython with profile-guided and link-time optimization. One that was
compiled without, as version managers do unless they are told, takes a sixth more for a call, so that the same code
would be judged by how its interpreter was made. Knows environments; measures nothing.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

from subjects import ROOT

DEBIAN = Path("/usr/bin/python3")
HOME = ROOT / ".venv-bench"
_VERSION = "import sys; print('.'.join(map(str, sys.version_info[:3])))"


def version_of(python: Path | str) -> str:
    done = subprocess.run([str(python), "-c", _VERSION], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def provide() -> str:
    """An interpreter with Sluice's locked dependencies: Debian's, else the one that runs this, with a word about it."""
    if not Path("/etc/debian_version").exists() or not DEBIAN.exists():
        return _own("there is no Debian Python here")
    if tuple(map(int, version_of(DEBIAN).split("."))) < (3, 11):
        return _own(f"Debian's Python is {version_of(DEBIAN)}, too old")
    python, stamp = HOME / "bin" / "python", HOME / "stamp"
    lock = ROOT / "requirements.lock"
    wanted = f"{version_of(DEBIAN)} {hashlib.sha256(lock.read_bytes()).hexdigest()}"
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return str(python)
    print(f"bench: making an environment of Debian's Python {version_of(DEBIAN)}", file=sys.stderr)
    uv = [sys.executable, "-m", "uv"]
    for step in (
        [*uv, "venv", "--quiet", "--clear", "--python", str(DEBIAN), str(HOME)],
        [*uv, "pip", "install", "--quiet", "--python", str(python), "--require-hashes", "-r", str(lock)],
    ):
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            return _own(f"no environment of Debian's Python could be made: {done.stderr.strip()[-300:]}")
    stamp.write_text(wanted)
    return str(python)


def _own(why: str) -> str:
    print(f"bench: {why}; measured is the Python that runs this, {version_of(sys.executable)}", file=sys.stderr)
    return sys.executable
