"""Programs that come from Debian: found, or installed where a test may install. Knows no program."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def _find(program: str) -> str | None:
    """Debian keeps PostgreSQL's programs, of which there may be several versions, from everybody's PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    where = [*map(str, versions), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    return shutil.which(program, path=os.pathsep.join(where))


def provide(program: str, package: str) -> str:
    """The program's path. Only a developer without the right to install may do without: the test is skipped, loudly."""
    found = _find(program) or _install(program, package)
    if found is not None:
        return found
    text = f"{program} is missing and cannot be installed from here: sudo apt-get install -y {package}"
    if os.geteuid() == 0 or "CI" in os.environ:
        pytest.fail(text)
    pytest.skip(text)


def _install(program: str, package: str) -> str | None:
    """One test process at a time, for apt-get takes no turns."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return None
    with (Path(tempfile.gettempdir()) / "sluice-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := _find(program)) is not None:
            return found
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "-y", "--no-install-recommends", package]):
            subprocess.run(["apt-get", "-qq", *words], env=environment, stdout=subprocess.DEVNULL, check=False)
    return _find(program)
