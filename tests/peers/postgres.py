"""A real PostgreSQL, as a primary and, where a test wants one, its standby. Knows nothing of what is kept in it."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
from peers.debian import provide
from peers.fleet import free_port, running, wait_for_port
from waiting import until_so

_QUICK = ["max_connections=40", "shared_buffers=16MB", "unix_socket_directories=", "listen_addresses=127.0.0.1",
          "synchronous_commit=on", "max_wal_senders=4", "wal_level=replica", "hot_standby=on"]  # fmt: skip


class Cluster:
    """One engine: a process and its folder. `url` is that of a superuser whom nobody asks for a password."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.database = "postgres"
        self.log = folder.with_suffix(".log")
        self._stack = ExitStack()
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{self.database}"

    def start(self, *settings: str) -> None:
        words = [word for setting in (*_QUICK, f"port={self.port}", *settings) for word in ("-c", setting)]
        command = [provide("postgres", "postgresql"), "-D", str(self.folder), *words]
        self.process = self._stack.enter_context(running(command, self.log, cwd="/", **as_owner()))
        wait_for_port(self.port, self.process, self.log)
        until_so(self._answers, describe=self.log.read_text)

    def stop(self, received: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: at once, with a clean end. SIGKILL ends its processes as a power cut does."""
        if self.process is not None and self.process.poll() is None:
            if received == signal.SIGKILL:
                self.pause()  # so that none of them ends by itself
                children = self._children()
                for child in children:
                    os.kill(child, received)
                # The next start refuses to, while one of them still has the memory that they share.
                until_so(lambda: all(map(_is_dead, children)))
                self.process.send_signal(received)
            else:
                self.process.send_signal(received)
            self.process.wait(30)
        self._stack.close()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, received: signal.Signals) -> None:
        """To all its processes. The first one comes first, so that it starts no others meanwhile."""
        assert self.process is not None
        os.kill(self.process.pid, received)
        for child in self._children():
            with suppress(ProcessLookupError):
                os.kill(child, received)

    def _children(self) -> list[int]:
        assert self.process is not None
        pid = self.process.pid
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def _answers(self) -> bool:
        """A port is open before the engine is ready."""
        try:
            return self.ask("SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    def ask(self, statement: str) -> "list[tuple[object, ...]]":
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def as_owner() -> "dict[str, str]":
    """PostgreSQL does not run as root."""
    return {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", **as_owner())  # type: ignore[call-overload]


@contextmanager
def _folder() -> Iterator[Path]:
    """Where the engine's user may go, as it may not into a test's own folder."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-postgres-"))
    try:
        if os.geteuid() == 0:
            provide("postgres", "postgresql")  # its package makes the user
            owner = pwd.getpwnam("postgres")
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres(*settings: str) -> Iterator[Cluster]:
    """A primary without a standby."""
    with _folder() as folder:
        cluster = Cluster(folder / "primary")
        _run([provide("initdb", "postgresql"), "-D", str(cluster.folder), "-U", "postgres", "-A", "trust", "-N",
              "-E", "UTF8", "--locale", "C.UTF-8"])  # fmt: skip
        cluster.start(*settings)
        try:
            yield cluster
        finally:
            cluster.stop()


@contextmanager
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    """A primary, and the standby without which it confirms nothing."""
    with postgres("synchronous_standby_names=second") as primary:
        standby = Cluster(primary.folder.with_name("standby"))
        where = f"host=127.0.0.1 port={primary.port} user=postgres application_name=second"
        _run([provide("pg_basebackup", "postgresql"), "-D", str(standby.folder), "-d", where, "-R", "-c", "fast"])
        standby.start()
        try:
            yield primary, standby
        finally:
            standby.stop()
