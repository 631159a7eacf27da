"""The descriptors of a child's pipes are closed once. A second time it would be another thread's: a log, a store, a
handle on another child's end."""

import asyncio
import io
import os
import sys
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from sluicegate.downstream.transport.process import Process

CHILD = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


async def test_only_one_of_the_loop_and_the_files_closes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[io.FileIO] = []
    made = io.FileIO

    class Noted(made):
        def __init__(self, *words: Any, **more: Any) -> None:
            super().__init__(*words, **more)
            files.append(self)

    monkeypatch.setattr("sluicegate.runtime.pipe_files.io.FileIO", Noted)
    with anyio.fail_after(60):
        process = await Process.start(CHILD, dict(os.environ), None, lambda status: None)
        stdin = await process.write_to(lambda: None)
        for number in (1, 2):
            await process.read_from(number, lambda data: None, lambda: None)
        left_to_files = isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
        assert [file.closefd for file in files] == [left_to_files] * 3
        popen = process._popen
        assert all(pipe.closed for pipe in (popen.stdin, popen.stdout, popen.stderr) if pipe is not None)
        descriptors = [file.fileno() for file in files]
        stdin.close()
        await process.ended()
        await process.stop()
        await anyio.lowlevel.checkpoint()
        assert not [number for number in descriptors if is_pipe(number)]


def is_pipe(number: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{number}").startswith("pipe:")
    except FileNotFoundError:
        return False
