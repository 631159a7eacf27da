"""The sandbox of a started server: its section, and what is wrong with paths in it. Looks at the disk."""

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator

from sluicegate.config.finding import Path as TreePath
from sluicegate.config.finding import Problem
from sluicegate.config.section import Section
from sluicegate.config.units import FilePath

SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Folders that a sandbox by bubblewrap has, to read."""
_CERTIFICATES: Final = ("/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust")
_MOST_LINKS: Final = 40  # as path_resolution(7) has it
_KERNEL: Final = ("/proc", "/dev", "/sys")
_RUNNERS: Final = frozenset({"npx", "uvx", "pipx", "bunx"})
_OURS: Final = (str(Path(__file__).parents[1]), sys.prefix)


SandboxPath = Annotated[FilePath, AfterValidator(lambda path: Path(os.path.normpath(path)))]


class SandboxSection(Section):
    network: Literal["none", "all"] = "none"
    """none: no network, this machine's own ports included. all: the network that Sluice has."""
    read: tuple[SandboxPath, ...] = ()
    """Files and folders that the server may read, beside folders of the system. Without symbolic links."""
    write: tuple[SandboxPath, ...] = ()
    """Files and folders that it may read and write."""

    def covers(self, path: Path) -> bool:
        return any(path.is_relative_to(one) for one in (*self.read, *self.write))


Barred = Mapping[str, Collection[Path]]
"""Files and folders of which no sandbox may have anything, by what they are."""


def problems(where: TreePath, section: SandboxSection, barred: Barred, writable: Collection[Path]) -> Iterator[Problem]:
    """`writable` is what any server may write. What a server may write it may replace by a link: no path of a sandbox
    lies below."""
    for name, paths in (("read", section.read), ("write", section.write)):
        for at, path in enumerate(paths):
            here = (*where, name, at)
            real = _real(path)
            if not path.exists():
                yield Problem(here, "unreadable-file", "there is no such file or folder", "make it, or remove this")
            elif real != path:
                yield Problem(here, "sandbox-link", "this path leads over a symbolic link", f"write {real}")
            elif what := _held(path, barred, is_written=name == "write"):
                message = f"no sandbox may have this path, because of {what}"
                yield Problem(here, "sandbox-path", message, "name folders that hold less")
            elif any(path != other and path.is_relative_to(other) for other in writable):
                message = "a server may write above this path, and could put a link in its place"
                yield Problem(here, "sandbox-nested", message, "name the upper folder alone, or folders side by side")


def _held(path: Path, barred: Barred, is_written: bool) -> str:
    """Because of what no sandbox may have the path; empty where one may."""
    own = {"Sluice's program": map(Path, _OURS)} if is_written else {}
    closed = {"what it tells of other processes": map(Path, _KERNEL), **barred, **own}
    for what, ones in closed.items():
        if any(path.is_relative_to(route) or route.is_relative_to(path) for one in ones for route in _routes(one)):
            return what
    return "your home folder" if _real(Path(os.path.expanduser("~"))).is_relative_to(path) else ""


def in_each(barred: Collection[Path]) -> list[Path]:
    """What of that lies in the folders of the system, which each sandbox by bubblewrap has."""
    folders = [_real(Path(one)) for one in (*SYSTEM, *_CERTIFICATES)]
    return [one for one in barred if any(_real(one).is_relative_to(folder) for folder in folders)]


def _routes(path: Path) -> Iterator[Path]:
    """Every place that leads to a file: who may write one of them may put another file there."""
    for _ in range(_MOST_LINKS):
        path = Path(os.path.normpath(path))
        yield path
        yield _real(path.parent) / path.name
        link = next((one for one in (*reversed(path.parents), path) if one.is_symlink()), None)
        if link is None:
            return
        path = link.parent / os.readlink(link) / path.relative_to(link)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def runner(command: str) -> str:
    """The name of a program that installs a package when it starts; empty for others."""
    name = PurePath(command).name
    return name if name in _RUNNERS else ""
