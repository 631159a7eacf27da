"""`sluice demo` as a process: what it shows, and that it leaves nothing behind, whatever ends it."""

import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from e2e.servers import MCP2

from sluicegate.demo import PACKAGES

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def demo(folder: Path, *options: str) -> AsyncIterator[Process]:
    """With the servers that the tests have from PyPI, and nothing on PATH but git."""
    places = {name: folder / name for name in ("bin", "tmp", "cache")}
    home = places["cache"] / "sluice-demo"
    for place in (*places.values(), home / "bin"):
        place.mkdir(parents=True)
    (home / f"ready-{'-'.join(PACKAGES)}").touch()
    (home / "bin" / "python").write_text(f'#!/bin/sh\nexec {MCP2 / "python"} "$@"\n')
    (home / "bin" / "python").chmod(0o755)
    (places["bin"] / "git").symlink_to(shutil.which("git") or "")
    env = {"PATH": str(places["bin"]), "PYTHONPATH": str(ROOT / "proxy"), "HOME": str(folder)}
    env |= {"TMPDIR": str(places["tmp"]), "XDG_CACHE_HOME": str(places["cache"])}
    with anyio.fail_after(60):
        command = [sys.executable, "-m", "sluicegate", "demo", *options]
        async with await anyio.open_process(command, env=env, stdin=None) as process:
            yield process


async def said(process: Process, until: str = "") -> str:
    """What it says on stderr, to its end or until it says that."""
    assert process.stderr is not None
    text = ""
    async for part in process.stderr:
        text += part.decode()
        if until and until in text:
            break
    return text


def processes(folder: Path) -> list[str]:
    """What runs with that home: the demo, and whatever it started."""
    return [
        text_of(place / "cmdline")
        for place in Path("/proc").glob("[0-9]*")
        if f"HOME={folder}\0" in text_of(place / "environ") and ") Z " not in text_of(place / "stat")
    ]


def text_of(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""  # it has ended meanwhile, or is somebody else's


def left_of(folder: Path) -> list[str]:
    """A process that was killed still has to get its turn to end."""
    give_up = time.monotonic() + 10
    while (left := processes(folder)) and time.monotonic() < give_up:
        time.sleep(0.02)
    return left


async def test_it_completes_a_prompt_gets_it_and_shows_its_messages(tmp_path: Path) -> None:
    async with demo(tmp_path, "--once") as process:
        text = await said(process)
        assert await process.wait() == 0, text
    shown = (
        "It has ", "time__convert_time", "  (ok)", "(servers.git.tools.deny: git_reset)", "  (denied)",
        '> completion/complete travel__plan-vacation {"name": "city", "value": "Bar"}\n< Barcelona, Bari\n'
        '> prompts/get travel__plan-vacation {"city": "Barcelona"}\n< user: Plan a vacation in Barcelona: ',
        "SL 207 is booked for Ann", "sent to mia@example.com", "prompts/get         travel/plan-vacation: ok",
        "approved by local",
    )  # fmt: skip
    for line in shown:
        assert line in text, text
    assert "warning" not in text and not list((tmp_path / "tmp").iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such signals")
@pytest.mark.parametrize(
    ("name", "until"),
    [("SIGTERM", "in front of"), ("SIGTERM", "in a second terminal"), ("SIGINT", "metrics"), ("SIGHUP", "in one list")],
)
async def test_a_signal_leaves_no_directory_and_no_process(tmp_path: Path, name: str, until: str) -> None:
    async with demo(tmp_path) as process:
        text = await said(process, until)
        assert processes(tmp_path) and list((tmp_path / "tmp").iterdir()), text
        os.kill(process.pid, signal.Signals[name])
        rest = await said(process)
        assert await process.wait() == 130
        assert "Traceback" not in rest, rest
    assert not left_of(tmp_path) and not list((tmp_path / "tmp").iterdir())
