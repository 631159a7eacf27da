"""Where programs are: as the user's shell finds them, and as what has no shell will. Starts nothing."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sluicegate.cli.config_file import servers_of, write_value
from sluicegate.cli.output import Code, printable, stop
from sluicegate.config import Config, ImageServer, Problem, StdioServer
from sluicegate.desktop.variables import as_text
from sluicegate.downstream.transport.sandbox import container_runtime

SHORT_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
"""What programs with a window and services get, give or take a directory; on Windows they get the user's own PATH."""
_SHIMS: Final = "shims"
_COMES_WITH: Final = {"npx": "Node.js", "npm": "Node.js", "node": "Node.js", "uvx": "uv", "docker": "Docker"}
# Where version managers keep what their shims start, for people who do not keep it in the usual place.
_ROOTS: Final = ("ASDF_DATA_DIR", "MISE_DATA_DIR", "PYENV_ROOT", "VOLTA_HOME")


def make_absolute(server: dict[str, Any]) -> Iterator[str]:
    """Writes the path of an imported server's command in place of its name, and says so, or that there is no such
    program. A shim of a version manager (asdf, mise, pyenv) looks for other programs on PATH, so its server gets the
    PATH of the shell."""
    name, env = server.get("command", ""), server.get("env", {})
    path, is_name = env.get("PATH"), "/" not in name and "\\" not in name
    if not name or "$" in f"{name}{path}" or not (is_name or os.path.isabs(name)):
        return
    found = shutil.which(name, path=path)
    if found is None:
        where = "your PATH" if path is None else "the PATH in its env"
        why = f"the program {name} is not on {where}; {_how_to_get(name)}"
        yield why if is_name else f"there is no program {name}; install it, or correct the path"
    if found is None or path is not None or not is_name:
        return
    program = Path(found).absolute()
    if "fnm_multishells" in program.parts:  # links that end with the shell
        program = program.parent.resolve() / program.name
    server["command"] = str(program)
    yield f"{name} is written as {program}, because clients do not see your shell's PATH"
    if _SHIMS in program.parts:
        names = ("PATH", *_ROOTS)
        server["env"] = env | {name: as_text(os.environ[name]) for name in names if name in os.environ}
        yield "its command is a shim of a version manager, so your shell's PATH is written into its env"


def at_home(server: dict[str, Any]) -> Iterator[str]:
    """Desktops start their clients in the home folder, and clients start servers where they are themselves. Sluice
    starts a server in the folder of its config, and looks there for a command that is a relative path."""
    home = Path.home()
    command = server.get("command", "")
    words = [*server.get("args", ()), command if os.path.dirname(command) else ""]
    relative = (word for word in words if word and not word.startswith(("-", "~")) and not os.path.isabs(word))
    if command and "cwd" not in server and any(os.path.exists(home / word) for word in relative):
        server["cwd"] = as_text(str(home))
        if os.path.dirname(command) and not os.path.isabs(command) and os.path.exists(home / command):
            server["command"] = as_text(str(home / command))
        yield f"names a file of your home folder, so it runs in {home} (cwd)"


def not_found(config: Config) -> Iterator[Problem]:
    """Warnings about the commands and folders of the servers that are enabled."""
    for key, server in config.servers.items():
        if not isinstance(server, StdioServer) or not server.enabled:
            continue
        if isinstance(server, ImageServer):
            if container_runtime() is None:
                message, hint = "neither docker nor podman is on PATH", "install one of them"
                yield Problem(("servers", key, "image"), "command-not-found", message, hint, severity="warning")
            continue
        config_path = ("servers", key, "command")
        path = _own_path(server)
        found = found_program(server)
        if found is None:
            yield Problem(config_path, "command-not-found", *_missing(server), severity="warning")
        elif path is None and sys.platform != "win32" and shutil.which(server.command, path=SHORT_PATH) is None:
            message = "this program is on your shell's PATH, but not on the one that desktop clients and services have"
            yield Problem(config_path, "command-not-absolute", message, f"write {found}", severity="warning")
        if not server.cwd.is_dir():
            where, hint = ("servers", key, "cwd"), f"make {server.cwd}, or write another cwd"
            yield Problem(where, "folder-not-found", "there is no such folder", hint, severity="warning")


def found_program(server: StdioServer) -> str | None:
    """Where a server's program is, as Sluice finds it when it is started from this shell."""
    if isinstance(server, ImageServer):
        return container_runtime()
    return shutil.which(server.command, path=_own_path(server))


def is_found_by_all(server: StdioServer) -> bool:
    """Whether a Sluice finds it that has another PATH than this shell."""
    return os.path.isabs(server.command) and found_program(server) is not None


def _own_path(server: StdioServer) -> str | None:
    return server.env["PATH"].get_secret_value() if "PATH" in server.env else None


def write_absolute(path: Path, key: str) -> str:
    """Writes the path of a server's command in place of its name, and changes no other byte of the config file.
    Returns what was done."""
    name = servers_of(path)[key]["command"]
    found = shutil.which(name)
    if found is None:
        stop(Code.NEGATIVE, f"the program {printable(name)} is not on PATH")
    write_value(path, ("servers", key, "command"), name, str(Path(found).absolute()))
    return f"{key} is started by {found}"


def _how_to_get(name: str) -> str:
    comes_with = _COMES_WITH.get(name)
    what = f"install {comes_with}, which it comes with" if comes_with else "install it"
    return f"{what}, or write its path"


def _missing(server: StdioServer) -> tuple[str, str]:
    is_path = os.path.dirname(server.command) != ""
    name = printable(server.command)
    message = f"there is no program {name}" if is_path else f"no program {name} is on PATH"
    if " " in server.command:
        return message, "arguments go into args: command: npx, args: [-y, PACKAGE]"
    if not is_path:
        return message, _how_to_get(name)
    found = shutil.which(os.path.basename(server.command), path=_own_path(server))
    return message, f"did you mean {printable(found)}?" if found else "install it, or correct the path"
