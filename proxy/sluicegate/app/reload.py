"""A config that changes while Sluice runs: noticed, read whole, checked and tested aside, and put in force at once.

Knows files and the config; what is to be done with a new one is said by whoever made us. Whatever is wrong with it,
a file that vanished included, leaves what is in force in place, and is told. Files are looked at every second: that
works on every file system, and through the links by which Kubernetes swaps a whole directory.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from sluicegate import config
from sluicegate.app import policy_loading
from sluicegate.app.late import Late
from sluicegate.config import Config
from sluicegate.config.rules import BY_LISTENERS
from sluicegate.policy.files import LoadedPolicy
from sluicegate.policy.finding import PolicyError

POLL: Final = 1.0
QUIET: Final = 0.3
MAX_TRIES: Final = 5  # at files that change while they are read; then at the next look
MAX_TOLD: Final = 20
_PATIENCE: Final = 10.0

Mark = tuple[int, int, int] | None
Marks = dict[Path, Mark]
"""Size, modification time and inode of each file; None for one that is not there."""

_UNREAD: Final[Mark] = (-1, -1, -1)
_LIVE: Final = frozenset({"policy", "approvals", "clients", "servers", "log", "toolsets", "search"})
"""The parts of the config that come into force without a restart."""
_BROKEN_OFF: Final = ("the last reload did not end",)

Prepared = Callable[[Config], AbstractAsyncContextManager[None]]

log = logging.getLogger(__name__)


@asynccontextmanager
async def unprepared(config: Config) -> AsyncIterator[None]:
    yield


@dataclass(frozen=True, slots=True)
class Fresh:
    """What the files say, and the files themselves as they were when they were read. `retained` are sentences about
    servers that are not as their section says."""

    config: Config
    loaded: LoadedPolicy
    marks: Marks
    retained: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InForce:
    """What one process has in force and what it says of its files, for others that are to have the same. `config` is
    what they say, also where it waits for a restart. `found` is the number of problems, of which `problems` are the
    first."""

    config: Config
    loaded: LoadedPolicy
    at: float
    problems: tuple[str, ...] = ()
    found: int = 0
    retained: tuple[str, ...] = ()


class Rejected(Exception):
    """The files cannot be used; the arguments are findings as texts."""

    def __init__(self, findings: Iterable[str], marks: Marks) -> None:
        super().__init__(*findings)
        self.marks = marks


class Reload:
    """`config` is what is in force, and `wanted` what its files said. `problems` say why the newest files are not,
    `restart` which of their changes wait for a restart, `retained` which servers stay as they were because a variable
    or file of theirs is not there. Without a `file` nothing ever changes. `on_read` is called whenever the files were
    read."""

    def __init__(
        self, running: Config, revision: str, file: Path | None, transport: str,
        apply: Callable[[Config, LoadedPolicy], None], on_rejected: Callable[[int], None] = lambda problems: None,
        prepared: Prepared = unprepared, on_read: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.config = running
        self.problems: tuple[str, ...] = ()
        self.found = 0
        self.restart: tuple[str, ...] = ()
        self.retained: tuple[str, ...] = ()
        self.at = time.time()
        self._running = self.wanted = running
        self._revision = revision
        self.transport = transport
        self.file = file
        self._apply, self._prepared = apply, prepared
        self._asked = anyio.Event()
        self._done = anyio.Event()  # of the next reload that is asked for
        self.looked = anyio.Event()  # for the first time: what changed since the start was read is known
        self._on_rejected, self._on_read = on_rejected, on_read

    def ask(self) -> None:
        """Reload now, whether anything seems to have changed or not."""
        self._asked.set()

    async def renew(self) -> None:
        """Returns when the files have been read as they are now, or after ten seconds."""
        with anyio.move_on_after(_PATIENCE):
            self.ask()
            await self.looked.wait()
            done = self._done
            self.ask()
            await done.wait()

    async def run(self) -> None:
        if self.file is None:
            return
        await self._pause()  # the client that started us waits for its first answer
        marks: Marks = {}
        is_tried_again = self.problems == _BROKEN_OFF
        if self.config.policy.watch or self._asked.is_set() or is_tried_again:
            marks = await self._reload(self.file)  # what changed since the start was read is not missed
        self.looked.set()
        while True:
            await self._pause()
            asked, self._asked = self._asked.is_set(), anyio.Event()
            done, self._done = self._done, anyio.Event()
            if asked or (self.config.policy.watch and await _quieted(marks)):
                marks = await self._reload(self.file)
            done.set()

    async def _pause(self) -> None:
        with anyio.move_on_after(POLL):
            await self._asked.wait()

    async def _reload(self, file: Path) -> Marks:
        try:
            return await self._take(file)
        except BaseException:  # a bug or the end of Sluice: nobody may read "no problems" from a reload that broke off
            self.problems, self.found = _BROKEN_OFF, 0
            raise
        finally:
            self._on_read()

    async def unusable(self) -> tuple[str, ...]:
        """Why what the files say now could not come into force; nothing of it does."""
        if self.file is None:
            return ()
        try:
            await anyio.to_thread.run_sync(self._read, self.file)
        except Rejected as error:
            return error.args[:MAX_TOLD]
        except Exception:  # one of the named boundaries: what cannot be judged is not used
            log.exception("the files could not be judged")
            return ("the files could not be judged",)
        return ()

    def _read(self, file: Path) -> Fresh:
        """What the files say, if it is safe where Sluice listens until its restart. Raises `Rejected`."""
        fresh = _read_steadily(file, self.config)
        effective = joining(self._running, fresh.config)
        found = [one for rule in BY_LISTENERS for one in rule(effective) if self.transport != "stdio"]
        if found:
            why = dict.fromkeys(f"{file}: {one.message}: `listen` is as it was until a restart" for one in found)
            raise Rejected(why, fresh.marks)
        return fresh

    async def _take(self, file: Path) -> Marks:
        before = self.problems
        try:
            fresh = await anyio.to_thread.run_sync(self._read, file)
        except Rejected as error:
            self.problems, self.found = error.args[:MAX_TOLD], len(error.args)
            if self.problems != before:
                _tell(self.problems)
                self._on_rejected(len(error.args))
            return error.marks
        if fresh.retained != self.retained:
            self.retained = fresh.retained
            for text in fresh.retained:
                log.error(text)
        if await self._put_in_force(fresh.config, fresh.loaded):
            self.at = time.time()
            for finding in fresh.loaded.warnings:
                log.warning(str(finding))
            log.info("config reloaded", extra={"policy": self._revision})
            if self.restart:
                log.warning("a part of the config needs a restart", extra={"needs_a_restart": list(self.restart)})
        elif before:
            log.info("the config is again what is in force")
        self.problems, self.found = (), 0
        return fresh.marks

    async def _put_in_force(self, wanted: Config, loaded: LoadedPolicy) -> bool:
        """Returns whether that differs from what was in force."""
        revision, effective = loaded.policy.revision, joining(self._running, wanted)
        if wanted == self.wanted and revision == self._revision:
            return False
        async with self._prepared(effective):
            self._apply(effective, loaded)
        self.config, self.wanted, self._revision = effective, wanted, revision
        self.restart = tuple(_fixed(self._running, wanted, self.transport))
        return True


class ToldReload(Reload):
    """The same in a process that reads no file: whoever reads them tells it what is in force, and nothing else ever
    comes into force. `ask_reader` has them read there."""

    def __init__(
        self, running: Config, revision: str, file: Path | None, transport: str,
        apply: Callable[[Config, LoadedPolicy], None], on_rejected: Callable[[int], None], prepared: Prepared,
    ) -> None:  # fmt: skip
        super().__init__(running, revision, file, transport, apply, on_rejected, prepared)
        self.ask_reader = Late[Callable[[], None]](lambda: None)
        self._newest: InForce | None = None
        self._taken: InForce | None = None
        self._arrived = anyio.Event()

    def tell(self, newest: InForce) -> None:
        self._newest = newest
        self._arrived.set()

    def ask(self) -> None:
        self.ask_reader()()

    async def run(self) -> None:
        while True:
            if self._newest is None or self._newest is self._taken:
                self._arrived = anyio.Event()
                await self._arrived.wait()
                continue
            await self._follow(self._newest)
            self.looked.set()
            done, self._done = self._done, anyio.Event()
            done.set()

    async def _follow(self, newest: InForce) -> None:
        try:
            await self._put_in_force(newest.config, newest.loaded)
        except BaseException:  # as where the files are read; it is tried again
            self.problems, self.found = _BROKEN_OFF, 0
            raise
        is_news = newest.found > 0 and newest.problems != self.problems
        self.problems, self.found, self.retained = newest.problems, newest.found, newest.retained
        self.at, self._taken = newest.at, newest
        if is_news:
            self._on_rejected(newest.found)


def _tell(problems: Iterable[str]) -> None:
    for text in problems:
        log.error(text)
    log.error("the changed config is not in force: what was in force stays")


async def _quieted(marks: Marks) -> bool:
    """Whether a file changed. Returns when none has for a moment, so that nobody is caught half-way through."""
    now = await anyio.to_thread.run_sync(_mark, marks)
    if now == marks:
        return False
    while True:
        await anyio.sleep(QUIET)
        later = await anyio.to_thread.run_sync(_mark, now)
        if later == now:
            return True
        now = later


def _read_steadily(file: Path, current: Config) -> Fresh:
    """The config and its policy, each file the same before and after. Raises `Rejected`."""
    before = _mark(_files(file, current))
    for _ in range(MAX_TRIES):
        fresh = _read(file, current)
        marks = fresh.marks
        if all(path in before and before[path] == mark for path, mark in marks.items()):
            if isinstance(fresh, Rejected):
                raise fresh
            return fresh
        before = marks
    raise Rejected([f"{file}: the files keep changing while they are read"], {file: _UNREAD})


def _read(file: Path, current: Config) -> Fresh | Rejected:
    checked = config.check(file)
    if checked.config is None:
        return Rejected(map(str, checked.errors), _mark(checked.files))
    wanted, retained = _as_it_was(checked.config, current)
    paths = (*checked.files, *_policy_files(wanted))
    try:
        loaded = policy_loading.load(wanted)
    except PolicyError as error:
        return Rejected((str(one) for one in error.findings if one.level == "error"), _mark(paths))
    return Fresh(wanted, loaded, _mark(paths), retained)


def _as_it_was(wanted: Config, current: Config) -> tuple[Config, tuple[str, ...]]:
    """The wanted config, in which a server that lacks a variable or a file is as it is in the current one."""
    lacking = {key: why for key, why in wanted.disabled.items() if key in current.servers}
    servers = {key: current.servers[key] for key in lacking}
    disabled = {key: current.disabled.get(key, "") for key in lacking}
    still = {key: why for key, why in {**wanted.disabled, **disabled}.items() if why}
    retained = (f"server {key} stays as it was: {why}" for key, why in lacking.items() if still.get(key) != why)
    return wanted.keeping(servers, still), tuple(retained)


def _files(file: Path, current: Config) -> tuple[Path, ...]:
    """All that a config was read from, as far as it can be known without reading it again."""
    return (*config.check(file).files, *_policy_files(current))


def _policy_files(current: Config) -> Iterator[Path]:
    sources = policy_loading.sources(current)
    yield from (sources.model, *sources.files, *filter(None, (sources.tests, sources.arguments)))
    if sources.arguments is not None:
        with suppress(OSError):  # what cannot be read is an error of the policy
            for path in sorted(sources.arguments.iterdir()):
                yield from (path, *(sorted(path.iterdir()) if path.is_dir() else ()))


def _mark(paths: Iterable[Path]) -> Marks:
    return {path: _mark_one(path) for path in paths}


def _mark_one(path: Path) -> Mark:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def joining(started: Config, now: Config) -> Config:
    """The config of a process that starts when others run, who started with one and have another in force by now: what
    only a restart changes is as in them."""
    live = {name: getattr(now, name) for name in _LIVE}
    return started.model_copy(update=live).keeping_servers_of(now)


def _fixed(running: Config, wanted: Config, transport: str) -> Iterator[str]:
    """The parts of the config that differ and that only a restart brings into force."""
    for name in Config.model_fields.keys() - _LIVE:
        if getattr(running, name) != getattr(wanted, name):
            yield name
    if transport == "stdio" and running.clients.local != wanted.clients.local:
        yield "clients.local"
