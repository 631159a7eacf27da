"""Sandboxes of started servers: the command line by which bubblewrap, docker or podman starts one. Linux.

Values of variables are in no command line: every user of the machine can read that. bubblewrap and docker hand on what
they find in their own environment.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sluicegate.downstream.failures import Lost
from sluicegate.downstream.settings import Sandbox, ServerSettings
from sluicegate.downstream.transport.process import not_started

Start = tuple[Sequence[str], dict[str, str], str | None]
"""A command with its arguments, its environment and its working directory."""
HOME: Final = "/box"
"""The home folder in a sandbox by bubblewrap: empty, in memory, gone with the process."""
# What programs look up of the system. Not the whole of /etc: it holds keys and passwords, which root may read.
_ETC: Final = (
    "alternatives", "ca-certificates", "fonts", "gai.conf", "group", "host.conf", "hosts", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "passwd", "pki/ca-trust", "pki/tls/certs",
    "protocols", "resolv.conf", "services", "ssl/certs", "ssl/openssl.cnf",
)  # fmt: skip
_RUNTIMES: Final = ("docker", "podman")
# How docker and podman find their service; the container gets none of them.
_OF_RUNTIMES: Final = frozenset(
    {"CONTAINER_HOST", "DOCKER_CERT_PATH", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_HOST", "DOCKER_TLS_VERIFY",
     "XDG_RUNTIME_DIR"}
)  # fmt: skip
_WITHIN: Final = 10.0
_MOST_SAID: Final = 300
_MOST_LINKS: Final = 40  # as path_resolution(7) has it


def bubblewrap(sandbox: Sandbox, program: str, command: Sequence[str], folder: str) -> list[str]:
    """The command line of bwrap(1). What comes later covers what came before; `folder` is the working directory."""
    words = [program, "--unshare-all", *(["--share-net"] if sandbox.has_network else [])]
    # Its own session: nothing can be typed into the terminal of Sluice. Root's rights are taken, too.
    words += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    for path in (*sandbox.system, *(f"/etc/{name}" for name in _ETC)):
        words += ["--ro-bind-try", path, path]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", HOME]
    for option, paths in (("--ro-bind", sandbox.read), ("--bind", sandbox.write)):
        for path in sorted(paths):  # the upper ones first
            words += [option, path, path]
    return [*words, "--remount-ro", "/", "--chdir", folder, "--", *command]


def container(sandbox: Sandbox, program: str, command: Sequence[str], names: Sequence[str]) -> list[str]:
    """The command line of docker or podman. `names` are the variables that the container gets."""
    words = [program, "run", "--rm", "-i", "--init", "--network", "bridge" if sandbox.has_network else "none"]
    words += ["--read-only", "--tmpfs", "/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    if sandbox.write:  # what the image's root writes would be root's here, programs with its rights among it
        is_podman = os.path.basename(program) == "podman"
        words += ["--userns=keep-id"] if is_podman else ["--user", f"{os.getuid()}:{os.getgid()}"]
    for mode, paths in (("ro", sandbox.read), ("rw", sandbox.write)):
        for path in sorted(paths):
            words += ["-v", f"{path}:{path}:{mode}"]
    for name in names:
        words += ["-e", name]
    return [*words, sandbox.image, *command]


def prepared(settings: ServerSettings, command: Sequence[str], env: Mapping[str, str], cwd: str | None) -> Start:
    """How a server is started in its sandbox. Blocks: not for an event loop. Raises `Lost` where it cannot be."""
    sandbox = settings.sandbox
    assert sandbox is not None
    for path in (*sandbox.read, *sandbox.write):
        if not os.path.exists(path) or os.path.realpath(path) != path:
            raise _impossible("a path of it is gone, or leads over a link", path)
    if sandbox.image:
        if (runtime := container_runtime()) is None:
            raise _impossible("neither docker nor podman is installed")
        theirs = {name: value for name, value in os.environ.items() if name in _OF_RUNTIMES}
        return container(sandbox, runtime, command, list(settings.env)), {**theirs, **env}, None
    if (bwrap := shutil.which("bwrap")) is None:
        raise _impossible("bubblewrap is not installed", "apt-get install bubblewrap, on Linux")
    if (program := shutil.which(command[0], path=env.get("PATH"))) is None:
        raise not_started(command, env, cwd, FileNotFoundError())
    program = _in_real_folder(program)
    missing = {_installation(path) for path in _needed(program, env) if not _has(sandbox, path)}
    if uppermost := [path for path in sorted(missing) if not any(_is_below(path, other) for other in missing - {path})]:
        raise _impossible("its program is not in it", f"add to sandbox.read: {', '.join(uppermost)}")
    folder = cwd if cwd is not None and _has(sandbox, cwd) else HOME
    _try_out(bubblewrap(sandbox, bwrap, ["/bin/true"], folder))
    inner = {"HOME": HOME, "TMPDIR": "/tmp"}
    own = {name: value for name, value in env.items() if name in settings.env or name not in inner}
    return bubblewrap(sandbox, bwrap, [program, *command[1:]], folder), {**inner, **own}, "/"


def container_runtime() -> str | None:
    """The path of the program that starts containers."""
    return next((found for name in _RUNTIMES if (found := shutil.which(name))), None)


def _impossible(why: str, detail: str = "") -> Lost:
    return Lost(f"its sandbox cannot be made: {why}", sent=False, detail=detail)


def _try_out(words: Sequence[str]) -> None:
    """Makes the same sandbox for a program that says nothing: what is written then, bubblewrap wrote."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, cwd="/", env={}, timeout=_WITHIN)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _impossible("bubblewrap does not end", type(error).__name__) from None
    if done.returncode:
        stderr = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise _impossible("bubblewrap was refused what it needs", stderr[:_MOST_SAID])


def _has(sandbox: Sandbox, path: str) -> bool:
    return any(_is_below(path, one) for one in (*sandbox.system, *sandbox.read, *sandbox.write))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _needed(program: str, env: Mapping[str, str]) -> Iterator[str]:
    """The files that are opened to start a program: itself over its links, and the interpreter that a script names."""
    for path in _links(program):
        yield path
    words = _first_line(path).split()
    if words and os.path.basename(words[0]) == "env":
        named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
        words = [found] if (found := shutil.which(named, path=env.get("PATH"))) else []
    if words and os.path.isabs(words[0]):
        yield from _links(_in_real_folder(words[0]))


def _links(path: str) -> Iterator[str]:
    for _ in range(_MOST_LINKS):
        yield path
        if not os.path.islink(path):
            return
        path = _in_real_folder(os.path.join(os.path.dirname(path), os.readlink(path)))


def _in_real_folder(path: str) -> str:
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _first_line(path: str) -> str:
    """What follows `#!`; empty for what is no script."""
    try:
        with open(path, "rb") as file:
            line = file.readline(256).decode("utf-8", "replace")
    except OSError:
        return ""
    return line.removeprefix("#!") if line.startswith("#!") else ""


def _installation(path: str) -> str:
    """The folder that a program of bin/ came with, such as a virtual environment; else the file itself."""
    folder = os.path.dirname(os.path.dirname(path))
    is_whole = os.path.basename(os.path.dirname(path)) == "bin" and os.path.basename(folder) != ".local"
    return folder if is_whole and os.path.isdir(os.path.join(folder, "lib")) else path
