"""The Python that what is measured runs on: Debian's own, where there is one, as nginx and wrk are Debian's.

Distributors and the official images build CPython with profile-guided and link-time optimization. One that was
compiled without, as version managers do unless they are told, takes a sixth more for a call, so that the same code
would be judged by how its interpreter was made. The peer it is compared with runs on the same one. Knows environments;
measures nothing.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

from subjects import ROOT

DEBIAN = Path("/usr/bin/python3")
HOME = ROOT / ".venv-bench"
PEER_HOME = ROOT / ".venv-bench-fastmcp"
PEER_VERSION = "4.1.2"
_VERSION = "import sys; print('.'.join(map(str, sys.version_info[:3])))"


def version_of(python: Path | str) -> str:
    done = subprocess.run([str(python), "-c", _VERSION], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def provide() -> str:
    """An interpreter with Sluice's locked dependencies: Debian's, else the one that runs this, with a word about it."""
    if why := _not_debian():
        return _own(why)
    lock = ROOT / "requirements.lock"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    try:
        return _environment(DEBIAN, HOME, wanted, ["--require-hashes", "-r", str(lock)])
    except OSError as error:
        return _own(f"no environment of Debian's Python could be made: {error}")


def provide_peer() -> str | None:
    """An interpreter with FastMCP; None where it cannot be installed, with a loud word about it."""
    peer = f"fastmcp=={PEER_VERSION}"
    try:
        return _environment(Path(sys.executable) if _not_debian() else DEBIAN, PEER_HOME, peer, [peer])
    except OSError as error:
        print(f"bench: FASTMCP IS NOT MEASURED: {peer} cannot be installed: {error}", file=sys.stderr)
        return None


def _not_debian() -> str:
    """Why Debian's Python is not taken; empty where it is."""
    if not Path("/etc/debian_version").exists() or not DEBIAN.exists():
        return "there is no Debian Python here"
    version = version_of(DEBIAN)
    return f"Debian's Python is {version}, too old" if tuple(map(int, version.split("."))) < (3, 11) else ""


def _environment(base: Path, home: Path, wanted: str, packages: list[str]) -> str:
    """The interpreter of `home`, made anew unless it is what is `wanted`. Raises `OSError` where that fails."""
    python, stamp = home / "bin" / "python", home / "stamp"
    wanted = f"{version_of(base)} {wanted}"
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return str(python)
    print(f"bench: making {home.name} of Python {version_of(base)}", file=sys.stderr)
    uv = [sys.executable, "-m", "uv"]
    for step in (
        [*uv, "venv", "--quiet", "--clear", "--python", str(base), str(home)],
        [*uv, "pip", "install", "--quiet", "--python", str(python), *packages],
    ):
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr.strip()[-300:])
    stamp.write_text(wanted)
    return str(python)


def _own(why: str) -> str:
    print(f"bench: {why}; measured is the Python that runs this, {version_of(sys.executable)}", file=sys.stderr)
    return sys.executable
