"""Why a command could not be started, in a sentence.

The operating system has one error, "no such file", for a missing command, a missing interpreter and a missing working
directory. Looks at files; starts nothing.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluicegate.downstream.settings import Lost


def not_started(command: Sequence[str], env: Mapping[str, str], cwd: str | None, error: Exception) -> Lost:
    """The text names the program; where it was looked for is the detail."""
    program = command[0] if command else ""
    name, path = Path(program).name, env.get("PATH", os.defpath)
    if not isinstance(error, OSError):
        return _lost(f"the command {name} cannot be started: {error}")
    if cwd is not None and not os.path.isdir(cwd):
        return _lost("its working directory does not exist", cwd)
    has_folder = os.path.dirname(program) != ""
    place = os.path.join(cwd or "", program) if has_folder else shutil.which(program, os.F_OK, path)
    if place is None:
        return _lost(f"the command {name} was not found on PATH", path)
    if not os.path.exists(place):
        return _lost(f"the command {name} does not exist", place)
    if not os.path.isfile(place) or not os.access(place, os.X_OK):
        return _lost(f"the command {name} is not executable", place)
    if isinstance(error, FileNotFoundError):
        text = f"the interpreter of the command {name} does not exist"
        return _lost(text, f"{place} begins with {_first_line(place)}")
    return _lost(f"the command {name} cannot be started: {error.strerror}", place)


def _lost(text: str, detail: str = "") -> Lost:
    return Lost(text, sent=False, detail=detail)


def _first_line(place: str) -> str:
    try:
        with open(place, "rb") as file:
            return file.readline(200).decode("utf-8", "replace").strip()
    except OSError:
        return "what cannot be read"
