"""Programs that come from Debian: found, or installed where a test may install. Knows no program."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def provide(program: str, package: str) -> str:
    """The program's path. Only a developer without the right to install may do without: the test is skipped, loudly."""
    found = shutil.which(program, path=_PATH) or _install(program, package)
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
        if (found := shutil.which(program, path=_PATH)) is not None:
            return found
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "-y", "--no-install-recommends", package]):
            subprocess.run(["apt-get", "-qq", *words], env=environment, stdout=subprocess.DEVNULL, check=False)
    return shutil.which(program, path=_PATH)
