"""The command `sluice`: one file per group of commands, each a thin shell around the package.

This file begins the command, and is the last resort for errors: a bad config is answered with its findings, anything
unforeseen with a trace.
"""

import gc
import json
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from sluicegate.cli.output import Code, Stopped, Unreachable, error_object, info
from sluicegate.config import ConfigError

_OPTIONS: Final = {"-c": "config", "--config": "config", "--toolset": "toolset"}
"""Of `sluice stdio`, as far as the files of desktop clients have them."""


def main() -> None:
    """Runs the command line. What the package expects to fail ends it with an exit code of its own."""
    words = sys.argv[1:]
    as_json = "--json" in words
    try:
        code = _serve_desktop(words) if _is_desktop(words) else _run_command(words, as_json)
    except KeyboardInterrupt:
        code = Code.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort: the person who ran the command is shown what failed
        code = _end(error, as_json)
    raise SystemExit(code)


def _is_desktop(words: Sequence[str]) -> bool:
    """Whether this is the command that `install` writes into the files of desktop clients. It is read here, because a
    person waits for that client, and importing typer would be a twentieth of its start."""
    if words[:1] != ["stdio"] or len(words) % 2 == 0:
        return False
    return all(word in _OPTIONS for word in words[1::2]) and not any(word.startswith("-") for word in words[2::2])


def _serve_desktop(words: Sequence[str]) -> int:
    run = import_module("sluicegate.cli.run")
    gc.freeze()  # what is imported by now stays
    gc.set_threshold(2_000, 1, 659)  # as where `serve` is up: a start and a call make few cycles
    gc.enable()
    given = {_OPTIONS[word]: value for word, value in zip(words[1::2], words[2::2], strict=True)}
    file = given.get("config")
    return int(run.serve_file(Path(file) if file else None, given.get("toolset", "")))


def _run_command(words: Sequence[str], as_json: bool) -> int:
    return int(import_module("sluicegate.cli.commands").run_command(words, as_json=as_json))


def _end(error: Exception, as_json: bool) -> int:
    """Says on stderr why a command failed, and returns its exit code."""
    code, reasons = _explained(error)
    if as_json and reasons:
        findings = [one.as_json() for one in error.findings] if isinstance(error, ConfigError) else []
        info(json.dumps(error_object(code, reasons) | ({"findings": findings} if findings else {})))
    else:
        for reason in reasons:
            info(reason)
    return code


def _explained(error: Exception) -> tuple[int, Sequence[str]]:
    """The exit code, and the reasons for it in the order of their weight."""
    if isinstance(error, Stopped):
        return error.code, error.args
    if isinstance(error, ConfigError):
        return Code.CONFIG, error.args
    if isinstance(error, Unreachable):
        return Code.UNREACHABLE, error.args
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # as `Path.home` raises it
        return Code.CONFIG, ["this user has no home folder: set $HOME"]
    return Code.INTERNAL, ["internal error; please report this with what you did:", traceback.format_exc()]
