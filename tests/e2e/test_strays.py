"""Processes that servers start and that leave them: they end with their server, and no other server's do."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.sluice_process import ROOT, sluice
from waiting import until_so as until

from sluicegate.downstream.transport import stray_processes

SCRIPT = Path(__file__).with_name("straying_server.py")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no other system hands orphans to Sluice")


def straying(folder: Path, name: str, kind: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(SCRIPT), str(folder / name), kind], "era": "legacy"}


def starts(folder: Path, name: str) -> list[tuple[int, int]]:
    """For each start of a server its process, and that which strayed from it."""
    text = (folder / name).read_text() if (folder / name).exists() else ""
    pairs = [line.split() for line in text.splitlines()]
    return [(int(server), int(stray)) for server, stray in pairs]


def state(pid: int) -> str:
    """As proc(5) has it; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def runs(pid: int) -> bool:
    return state(pid) not in ("", "Z", "X")


def is_pending(pid: int, number: int) -> bool:
    """Whether a process was sent a signal that it blocks."""
    text = Path(f"/proc/{pid}/status").read_text()
    pending = int(text.split("\nShdPnd:\t")[1].split()[0], 16)
    return bool(pending >> (number - 1) & 1)


@pytest.mark.parametrize("kind", ["plain", "stubborn", "bare", "linked"])
def test_a_process_that_left_its_server_ends_with_sluice(tmp_path: Path, kind: str) -> None:
    with sluice({"servers": {"a": straying(tmp_path, "a", kind)}}, tmp_path) as process:
        ((server, stray),) = starts(tmp_path, "a")
        assert runs(server) and runs(stray)
        assert process.interrupt() == 0
        assert not runs(server) and not runs(stray), process.log()


def test_what_strayed_from_one_server_ends_with_that_one_alone(tmp_path: Path) -> None:
    servers = {name: straying(tmp_path, name, "plain") for name in ("a", "b")}
    with sluice({"servers": servers}, tmp_path) as process:
        ((server, stray),), ((other, others),) = starts(tmp_path, "a"), starts(tmp_path, "b")
        os.kill(server, signal.SIGKILL)
        until(lambda: not runs(stray))
        until(lambda: len(starts(tmp_path, "a")) == 2)
        process.wait_ready()
        assert runs(starts(tmp_path, "a")[1][1]) and runs(other) and runs(others)
        assert process.interrupt() == 0
    assert not any(runs(pid) for name in ("a", "b") for pair in starts(tmp_path, name) for pid in pair)


def test_a_stray_that_ends_by_itself_leaves_no_zombie_and_servers_keep_their_status(tmp_path: Path) -> None:
    with sluice({"servers": {"a": straying(tmp_path, "a", "short")}}, tmp_path) as process:
        ((server, stray),) = starts(tmp_path, "a")
        until(lambda: state(stray) == "")
        os.kill(server, signal.SIGTERM)
        until(lambda: len(starts(tmp_path, "a")) == 2)
        assert "signal 15" in process.log()
        assert process.interrupt() == 0


def test_what_strayed_ends_with_several_workers_too_also_if_one_is_killed(tmp_path: Path) -> None:
    config = {"servers": {"a": straying(tmp_path, "a", "plain")}}
    with sluice(config, tmp_path, arguments=("--workers", "2")) as process:
        until(lambda: len(starts(tmp_path, "a")) == 2)
        (server, stray), (other, others) = starts(tmp_path, "a")
        os.kill(parent(server), signal.SIGKILL)
        until(lambda: not runs(server) and not runs(stray))
        assert runs(other) and runs(others)
        assert process.interrupt() == 0
    assert not any(runs(pid) for pair in starts(tmp_path, "a") for pid in pair)


def test_a_stop_while_the_servers_of_a_killed_worker_are_ended_is_a_clean_one(tmp_path: Path) -> None:
    config = {"servers": {"a": straying(tmp_path, "a", "stubborn")}}
    with sluice(config, tmp_path, arguments=("--workers", "2")) as process:
        until(lambda: len(starts(tmp_path, "a")) == 2)
        (server, stray), _ = starts(tmp_path, "a")
        worker = parent(server)
        os.kill(worker, signal.SIGKILL)
        until(lambda: is_pending(stray, signal.SIGTERM))
        assert runs(stray) and not runs(worker)
        assert process.interrupt() == 0
    assert not any(runs(pid) for pair in starts(tmp_path, "a") for pid in pair)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("kind", ["plain", "stubborn"])
def test_what_a_sluice_that_was_killed_had_started_ends_at_the_next_start(tmp_path: Path, kind: str) -> None:
    """And nothing of a Sluice that runs."""
    deaf = {"command": "sleep", "args": ["600"], "required": False}
    folders = [tmp_path / name for name in ("killed", "other", "next")]
    for folder in folders:
        folder.mkdir()
    killed, other, following = folders
    with sluice({"servers": {"a": straying(other, "a", "plain")}}, other):
        servers = {"a": straying(killed, "a", kind), "deaf": deaf}
        with sluice({"servers": servers}, killed) as process:
            children = {int(one) for one in Path(f"/proc/{process.process.pid}/task/{process.process.pid}/children")
                        .read_text().split()}  # fmt: skip
            process.process.kill()
            process.process.wait()
        ((_, stray),) = starts(killed, "a")
        with sluice({"servers": {"a": straying(following, "a", "plain")}}, following) as process:
            until(lambda: not runs(stray) and not any(map(runs, children)))
            ((server, own),) = starts(following, "a")
            assert runs(server) and runs(own)
        ((server, others),) = starts(other, "a")
        assert runs(server) and runs(others)


def test_a_sluice_that_is_started_in_the_shell_of_such_a_server_ends_neither_itself_nor_what_runs_it() -> None:
    """The variable is in its environment, too."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    marked = {**os.environ, stray_processes.MARK: f"{namespace}.{dead.pid}.1.0", "PYTHONPATH": str(ROOT / "proxy")}
    script = (
        "import os; from sluicegate.downstream.transport.stray_processes import forsaken; "
        "print(os.getpid(), os.getppid(), *(one.pid for one in forsaken()))"
    )
    line = f"{sys.executable} -c '{script}'; true"  # a shell that stays its parent
    for _ in range(5):  # a Sluice that another test starts at this moment ends what is marked so
        with subprocess.Popen(["sleep", "600"], env=marked) as beside:
            done = subprocess.run(["sh", "-c", line], env=marked, capture_output=True, text=True)
            is_left_alone = done.returncode == 0 and beside.poll() is None
            beside.kill()
        if is_left_alone:
            break
    own, parent, *found = map(int, done.stdout.split())
    assert beside.pid in found and own not in found and parent not in found, done
