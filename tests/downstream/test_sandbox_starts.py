"""What starts a sandbox, and how long that lives: bubblewrap ends with the thread that started it."""

import os
import shutil
import sys
import threading

import anyio
import pytest
from anyio.to_thread import run_sync
from peers.debian import provide
from waiting import until

from sluicegate.config import SYSTEM
from sluicegate.downstream.settings import Sandbox
from sluicegate.downstream.transport import sandbox
from sluicegate.downstream.transport.process import Process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")
SLEEP = str(shutil.which("sleep"))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_sandbox_outlives_the_idle_threads_of_the_pool(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyio._backends._asyncio.WorkerThread.MAX_IDLE_TIME", 0)
    words = sandbox.bubblewrap(Sandbox(system=SYSTEM), provide("bwrap", "bubblewrap"), [SLEEP, "600"], sandbox.HOME)
    process = await Process.start(words, dict(os.environ), "/", lambda status: None)
    try:
        for _ in range(8):  # of four idle threads all but one end, each time another
            meeting = threading.Barrier(4)
            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(run_sync, meeting.wait, 30)
            many = threads()
            await run_sync(os.getpid)
            await until(lambda many=many: threads() <= many - 3)  # type: ignore[misc]
        with anyio.move_on_after(0.5):
            await process.ended()
            pytest.fail("it has ended")
    finally:
        await process.stop()


def test_command_lines_hold_paths_in_order_and_no_values() -> None:
    both = Sandbox(True, read=("/b", "/a"), write=("/a/w",), system=("/usr",))
    words = sandbox.bubblewrap(both, "bwrap", ["/a/x", "-y"], "/a")
    assert words[:5] == ["bwrap", "--unshare-all", "--share-net", "--die-with-parent", "--new-session"]
    mounts = ["--ro-bind", "/a", "/a", "--ro-bind", "/b", "/b", "--bind", "/a/w", "/a/w"]
    assert words[-16:] == [*mounts, "--remount-ro", "/", "--chdir", "/a", "--", "/a/x", "-y"]
    assert "/etc/shadow" not in words and "--share-net" not in sandbox.bubblewrap(Sandbox(), "bwrap", ["x"], "/")
    assert "none" in sandbox.container(Sandbox(image="i"), "docker", [], [])
