"""What `doctor` finds on the machine: programs, ports, the state directory, desktop clients. Changes nothing itself."""

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from sluicegate import config
from sluicegate.app import settings, state
from sluicegate.app.instance_lock import InstanceLock
from sluicegate.cli.admin import reachable
from sluicegate.cli.init import sluice_command
from sluicegate.cli.install import found_state, imported_names
from sluicegate.cli.output import printable, with_config
from sluicegate.cli.programs import SHORT_PATH, found_program, not_found, write_absolute
from sluicegate.config import Config
from sluicegate.desktop import changes
from sluicegate.desktop.changes import Journal
from sluicegate.desktop.clients import CLIENTS
from sluicegate.downstream.failures import Lost
from sluicegate.downstream.transport import sandbox
from sluicegate.downstream.transport.stdio_transport import environment, start_of
from sluicegate.store import StoreFailed, private

State = Literal["ok", "warning", "failed", "skipped"]
LEAST_FREE: Final = 200 * 1024 * 1024
"""Free bytes below which the disk of the audit log is nearly full: without room for a record, calls are refused."""
_REMOTE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.rclone",
     "fuse.s3fs", "fuse.gcsfuse"}
)  # fmt: skip
_PROGRAM_CODES: Final = ("command-not-found", "command-not-absolute", "folder-not-found")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What one check found about one thing. `fix` mends it, and returns what it did; None where a person has to."""

    subject: str
    state: State
    message: str
    hint: str = ""
    fix: Callable[[], str] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Examined:
    """What the checks look at. `config` is None where the file cannot be used; `rows` are the servers of the Sluice
    that runs with it, None where none does. `named` is the file as the command line names it."""

    path: Path
    findings: list[config.ConfigFinding]
    config: config.Config | None
    rows: list[dict[str, Any]] | None
    named: Path | None

    def command(self, words: str) -> str:
        return with_config(f"sluice {words}", self.named)

    @property
    def loaded(self) -> Config:
        """For the checks that are made where there is one."""
        assert self.config is not None
        return self.config


def installation(examined: Examined) -> Iterator[Diagnosis]:
    folders = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    found = [Path(one) for folder in folders if (one := shutil.which("sluice", path=str(folder)))]
    programs = list({one.resolve(): one for one in reversed(found)}.values())[::-1]
    if len(programs) > 1:
        names = ", ".join(map(str, programs))
        hint = "uninstall the one that you do not want, or take its folder out of PATH"
        yield Diagnosis("sluice", "warning", f"several programs of this name are on PATH: {names}", hint)
    else:
        command, args = sluice_command(examined.path)
        program = command if args[:2] != ["-m", "sluicegate"] else f"{command} -m sluicegate"
        yield Diagnosis("sluice", "ok", f"{program}, Python {'.'.join(map(str, sys.version_info[:3]))}")


def config_file(examined: Examined) -> Iterator[Diagnosis]:
    """Mistakes of the config, of the policy and of its tests."""
    found = [one for one in examined.findings if one.code not in _PROGRAM_CODES]
    for one in found:
        location = f"{one.file}:{one.line}" if one.code != "no-config" else str(examined.path)
        yield Diagnosis(location, "failed" if one.severity == "error" else "warning", one.message, one.hint)
    if not found:
        yield Diagnosis(str(examined.path), "ok", "the config, the policy and its tests are fine")


def commands(examined: Examined) -> Iterator[Diagnosis]:
    """Programs of servers: there, found by desktop clients, and with an interpreter that is found, too."""
    problems = list(not_found(examined.loaded))
    for problem in problems:
        key, is_there = str(problem.path[1]), problem.code == "command-not-absolute"
        fix = partial(write_absolute, examined.path, key) if is_there else None
        yield Diagnosis(key, "warning" if is_there else "failed", problem.message, problem.hint, fix)
    named = {problem.path[1] for problem in problems}
    for key, server in examined.loaded.servers.items():
        if isinstance(server, config.StdioServer) and server.enabled and key not in named:
            yield _interpreter(key, server)


def _interpreter(key: str, server: config.StdioServer) -> Diagnosis:
    env = {name: value.get_secret_value() for name, value in server.env.items()}
    program = Path(found_program(server) or server.command).absolute()
    name = _named_by_script(program)
    path = environment(env, {"PATH": SHORT_PATH}, server.command)["PATH"]
    if name and shutil.which(name, path=path) is None:
        message = f"{program} is a script for {name}, which is not on the PATH that desktop clients and services have"
        found = shutil.which(name)
        wanted = f"{Path(found).parent}{os.pathsep}{SHORT_PATH}" if found else ""
        hint = f'write env: {{PATH: "{wanted}"}} for {key}' if found else f"install {name}"
        return Diagnosis(key, "warning" if found else "failed", message, hint)
    return Diagnosis(key, "ok", str(program))


def _named_by_script(program: Path) -> str:
    """The interpreter that `#!/usr/bin/env NAME` looks for on PATH; a path when the first line names one."""
    try:
        with program.open("rb") as file:
            line = file.readline(256).decode("utf-8", "replace")
    except OSError:
        return ""
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words else ""


def sandboxes(examined: Examined) -> Iterator[Diagnosis]:
    """Which servers are in a sandbox, and whether it can be made."""
    for key, server in examined.loaded.servers.items():
        if not isinstance(server, config.StdioServer) or not server.enabled or settings.sandbox(server) is None:
            continue
        made = settings.server(key, server, examined.loaded, lambda number: number, str)
        try:
            sandbox.prepared(made, *start_of(made))
            yield Diagnosis(key, "ok", str(made.sandbox))
        except Lost as lost:
            yield Diagnosis(key, "failed", lost.text, lost.detail)


def ports(examined: Examined) -> Iterator[Diagnosis]:
    """The two addresses of `sluice serve`; a desktop client's Sluice needs none."""
    listen = examined.loaded.listen
    for name, address in (("listen.mcp", listen.mcp), ("listen.admin", listen.admin)):
        yield _port(f"{name} {address}", name, reachable(address), examined.rows is not None)


def _port(subject: str, name: str, address: config.Address, does_one_run: bool) -> Diagnosis:
    """`does_one_run`: a Sluice answers that runs with this config file."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
            return Diagnosis(subject, "ok", "free for `sluice serve`")
        except OSError as error:
            why = error.strerror or str(error)
    holders = list(_holders(address.port))
    is_sluice = any("sluice" in words for _, words in holders)
    if is_sluice and does_one_run:
        return Diagnosis(subject, "ok", f"held by Sluice (process {holders[0][0]})")
    if is_sluice:
        who = f"a Sluice (process {holders[0][0]}), and none answers here that runs with this config file"
        hint = f"wait if it is still starting; if it is another one, stop it or write another {name}"
        return Diagnosis(subject, "warning", f"`sluice serve` cannot listen there: held by {who}", hint)
    who = ", ".join(f"{printable(words) or 'a program'} (process {pid})" for pid, words in holders)
    message = f"`sluice serve` cannot listen there: {f'held by {who}' if who else why}"
    return Diagnosis(subject, "warning", message, f"end that program, or write another {name}")


def _holders(port: int) -> Iterator[tuple[int, str]]:
    """Processes of this user, or of all for root, that listen at a port: their ids and the last parts of their command
    lines. Linux alone."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = Path("/proc/net", table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        cells = (row.split() for row in rows)
        inodes |= {f"socket:[{cell[9]}]" for cell in cells if cell[3] == "0A" and int(cell[1][-4:], 16) == port}
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        try:
            if any(os.readlink(one) in inodes for one in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                yield int(process.name), " ".join(os.path.basename(word) for word in words[:3]).strip()
        except OSError:
            continue  # it is another user's, or it ended


def state_directory(examined: Examined) -> Iterator[Diagnosis]:
    """Its modes, its file system, its room, and those of the audit log."""
    directory, audit = examined.loaded.state.dir, examined.loaded.audit.path.parent
    folders = {"state.dir": directory} | ({"audit.path": audit} if examined.loaded.audit.enabled else {})
    for name, folder in folders.items():
        subject = f"{name} {folder}"
        found = list(_folder(subject, folder))
        yield from found or [Diagnosis(subject, "ok", "only you can use it, and it has room")]
    if sys.platform != "win32" and (why := InstanceLock(directory, examined.path).unshared):
        yield Diagnosis("socket", "failed", why, "write a shorter path in state: {dir: ...}")
    if examined.loaded.state.url is not None:
        yield _database(examined.loaded)


def _database(loaded: config.Config) -> Diagnosis:
    try:
        doubt = state.doubt(loaded)
    except StoreFailed as error:
        return Diagnosis("state.url", "failed", str(error), "check that it runs, the URL and the password")
    if doubt:
        return Diagnosis("state.url", "warning", doubt, "set it there, or set state.replicated")
    return Diagnosis("state.url", "ok", "PostgreSQL answers, and replicates what it confirms")


def _folder(subject: str, folder: Path) -> Iterator[Diagnosis]:
    there = next((one for one in (folder, *folder.parents) if os.path.exists(one)), folder)
    if not there.is_dir():
        yield Diagnosis(subject, "failed", f"{there} is no folder", "move it away, or write another path")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        yield Diagnosis(subject, "failed", f"you may not write in {there}", "make it yours, or write another path")
    free = shutil.disk_usage(there).free
    if free < LEAST_FREE:
        message = f"its disk has {free // (1 << 20)} MiB left; without room for the audit log, calls are refused"
        yield Diagnosis(subject, "failed", message, "make room, or move it to another disk")
    if (kind := _file_system(there)) in _REMOTE:
        message = f"it is on a network file system ({kind}), where locks and SQLite files are not safe"
        yield Diagnosis(subject, "warning", message, "write a path on a local disk")
    if there == folder and os.name == "posix":
        yield from _modes(subject, folder)


def _modes(subject: str, folder: Path) -> Iterator[Diagnosis]:
    may_look = os.access(folder, os.R_OK | os.X_OK)
    files = [one for one in folder.iterdir() if one.is_file() and not one.is_symlink()] if may_look else []
    for path, mode in ((folder, private.DIRECTORY), *((file, private.FILE) for file in files)):
        try:
            private.check(path, mode)
        except private.Exposed as error:
            is_ours = path.stat().st_uid == os.geteuid()
            hint = f"if nobody can have read it: chmod {mode:04o} {path}" if is_ours else f"chown {os.geteuid()} {path}"
            message = str(error).partition(":")[0]
            yield Diagnosis(subject, "failed", message, hint, _chmod(path, mode) if is_ours else None)
        except FileNotFoundError:
            continue


def _chmod(path: Path, mode: int) -> Callable[[], str]:
    def fix() -> str:
        path.chmod(mode)
        return f"{path} has mode {mode:04o} now"

    return fix


def _file_system(path: Path) -> str:
    """Its type as Linux calls it; empty elsewhere."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    real, best, kind = str(path.resolve()), "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        if len(point) >= len(best) and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, kind = point, right.split()[0]
    return kind


def clients(examined: Examined) -> Iterator[Diagnosis]:
    """Entries of Sluice in their files, and what makes a client pass Sluice by."""
    command, args = sluice_command(examined.path)
    present = {name: about for name, about in CLIENTS.items() if about.is_here()}
    if not present:
        yield Diagnosis("all", "ok", "none of the desktop clients that Sluice knows is here")
    for name, about in present.items():
        state = found_state(name, command, args)
        found = list(_client(examined, name, state))
        yield from (Diagnosis(name, "warning", message, hint) for message, hint in found)
        if state.startswith(("stale", "not readable")):
            hint = examined.command(f"install {name}") if state.startswith("stale") else f"mend {about.file()}"
            yield Diagnosis(name, "failed", f"{about.file()}: {state}", hint)
        elif not found:
            yield Diagnosis(name, "ok", f"{about.file()}: {state}")


def _client(examined: Examined, name: str, state: str) -> Iterable[tuple[str, str]]:
    about = CLIENTS[name]
    if state.startswith("installed with") and examined.named is None:  # else clients may well have another config
        yield f"{about.file()}: {state}", examined.command(f"install {name}")
    if not state.startswith("installed"):
        return
    for other in about.shadowed():
        yield f"it has a second file, {other}, and may read that one", f"remove {other} if the client does not need it"
    if examined.config is not None:
        at = Journal(examined.config.state.dir, name).written_at()
        old = [pid for pid in changes.running(about.processes) if at is not None and changes.began_before(pid, at)]
        if old:
            yield f"it runs since before its file was changed (process {', '.join(map(str, old))})", "restart it"
        twice = sorted(imported_names(about.file()) & examined.config.servers.keys())
        if twice:
            out = f"take {', '.join(twice)} out of {about.file()}"
            command = examined.command(f"install {name}")
            hint = f"{command} moves them to Sluice; or {out}: it has each of their tools twice"
            yield f"it starts servers itself that Sluice has, too: {', '.join(twice)}", hint
