"""The command line without a process of its own, where one would prove nothing more: starting it takes a second."""

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

from sluicegate.cli import main


def run(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> "CompletedProcess[str]":
    """`sluice WORDS` in that folder: what it says and its exit code."""
    out, err, before = io.StringIO(), io.StringIO(), (sys.argv, dict(os.environ))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    sys.argv = ["sluice", *words]
    _set_environment(kept | (env or {}))
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.argv = before[0]
        _set_environment(before[1])
    return CompletedProcess(["sluice", *words], code, out.getvalue(), err.getvalue())


def _set_environment(values: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)
