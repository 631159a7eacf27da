"""`sluice demo` as a process: what it shows, and that it leaves nothing behind, whatever ends it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest
from anyio.abc import Process
from command_line import run
from e2e.servers import MCP2

from sluicegate.demo import PACKAGES

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def demo(folder: Path, *options: str, stderr: int = subprocess.PIPE, **more: str) -> AsyncIterator[Process]:
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
    env |= more
    with anyio.fail_after(60):
        command = [sys.executable, "-m", "sluicegate", "demo", *options]
        async with await anyio.open_process(command, env=env, stdin=None, stderr=stderr) as process:
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


def read_terminal(master: int) -> str:
    """"" at its end, which Linux calls an error."""
    try:
        return os.read(master, 4096).decode(errors="replace")
    except OSError:
        return ""


async def heard(process: Process, pattern: str) -> str:
    """What it says on stderr until that can be found in it."""
    assert process.stderr is not None
    text = ""
    while not re.search(pattern, text):
        text += (await process.stderr.receive()).decode()
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


async def test_what_it_needs_and_does_not_find_is_said(tmp_path: Path) -> None:
    async with demo(tmp_path, PATH=str(tmp_path)) as process:
        text = await said(process)
        assert await process.wait() == 1
    assert text == "the demo needs git, which is not on PATH: install it, and try again\n"
    assert not list((tmp_path / "tmp").iterdir())


async def test_it_completes_a_prompt_gets_it_and_shows_its_messages(tmp_path: Path) -> None:
    async with demo(tmp_path, "--once") as process:
        text = await said(process)
        assert await process.wait() == 0, text
    shown = (
        "It has ", "time__convert_time", "  (ok)", "(servers.git.tools.deny: git_reset)", "  (denied)",
        '> completion/complete travel__plan-vacation {"name": "city", "value": "Bar"}\n< Barcelona, Bari\n'
        '> prompts/get travel__plan-vacation {"city": "Barcelona"}\n< user: Plan a vacation in Barcelona: ',
        "SL 207 is booked for Ann", "sent to mia@example.com", "prompts/get         travel/plan-vacation: ok",
        "approved by local", "partially_approved by local", "approved by key:mia",
    )  # fmt: skip
    for line in shown:
        assert line in text, text
    assert "warning" not in text and not list((tmp_path / "tmp").iterdir())


async def test_who_has_no_terminal_gets_a_link_and_the_mail_needs_a_second_person(tmp_path: Path) -> None:
    opener = tmp_path / "opener"
    opener.write_text('#!/bin/sh\necho "$1" > opened\n')
    opener.chmod(0o700)
    async with demo(tmp_path, BROWSER=f"{opener} %s") as process:
        text = await heard(process, r"approve \S+ -c \S+\n")
        (link,) = re.findall(r"^    (http://127\.0\.0\.1:\d+/console/approvals/apr_\w+#code=\S+)$", text, re.MULTILINE)
        origin, _, code = link.partition("#code=")
        origin, id = origin.partition("/console")[0], origin.rpartition("/")[2]
        own = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
        async with httpx.AsyncClient(base_url=origin, headers=own, trust_env=False) as tab:
            session = (await tab.post("/console/session", json={"code": code})).json()
            tab.headers["X-Sluice-Page"] = session["page_key"]
            card = (await tab.get(f"/api/v1/approvals/{id}")).json()
            vote = {"decision": "approve", "seen_digest": card["digest"]}
            assert (await tab.post(f"/api/v1/approvals/{id}/decisions", json=vote)).json()["state"] == "approved"
            text = await heard(process, r"mia\.key\n")
            (mail,) = (await tab.get("/api/v1/approvals", params={"state": "pending"})).json()["approvals"]
            vote = {"decision": "approve", "seen_digest": mail["digest"]}
            path = f"/api/v1/approvals/{mail['id']}/decisions"
            assert (await tab.post(path, json=vote)).json()["state"] == "partially_approved"
            assert (await tab.post(path, json=vote)).status_code in (403, 409), "nobody twice"
        (words,) = re.findall(r"(approve \S+ -c \S+ --key-file \S+)\n$", text)
        assert await anyio.to_thread.run_sync(lambda: run(tmp_path, *words.split(), "-y").returncode) == 0
        assert "sent to mia@example.com" in await said(process, "Ctrl-C")
        os.kill(process.pid, signal.SIGTERM)
        await said(process)
    assert not (tmp_path / "opened").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="it has no pseudo-terminals")
@pytest.mark.parametrize(
    ("options", "browser", "is_opened"), [([], True, True), (["--no-browser"], True, False), ([], False, False)],
    ids=["a browser", "--no-browser", "no browser"],
)  # fmt: skip
async def test_at_a_terminal_the_console_opens_on_the_waiting_approval(
    tmp_path: Path, options: list[str], browser: bool, is_opened: bool
) -> None:
    opener = tmp_path / "opener"
    opener.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    opener.chmod(0o700)
    master, slave = os.openpty()
    more = {"BROWSER": f"{opener} %s"} if browser else {}
    async with demo(tmp_path, *options, stderr=slave, **more) as process:
        os.close(slave)
        text = ""
        while "second terminal:" not in text:
            text += (part := await anyio.to_thread.run_sync(read_terminal, master))
            assert part, text
        assert ("The console opens in your browser" in text) is is_opened, text
        assert ("#code=" in text) is not is_opened
        if is_opened:
            page = anyio.Path((tmp_path / "opened").read_text().strip().removeprefix("file://"))
            assert re.search(r"url=http://127\.0\.0\.1:\d+/console/approvals/apr_\w+#code=", await page.read_text())
            assert (await page.stat()).st_mode & 0o777 == 0o600
        os.kill(process.pid, signal.SIGTERM)
        while await anyio.to_thread.run_sync(read_terminal, master):
            pass
        await process.wait()
    os.close(master)


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such signals")
@pytest.mark.parametrize(
    ("name", "until"),
    [("SIGTERM", "in front of"), ("SIGTERM", "in a second terminal"), ("SIGINT", "metrics"), ("SIGHUP", "in one list")],
)
async def test_a_signal_leaves_no_directory_and_no_process(tmp_path: Path, name: str, until: str) -> None:
    async with demo(tmp_path) as process:
        text = await said(process, until)
        assert processes(tmp_path), (text, process.returncode, await process.wait())
        assert processes(tmp_path) and list((tmp_path / "tmp").iterdir()), text
        os.kill(process.pid, signal.Signals[name])
        rest = await said(process)
        assert await process.wait() == 130
        assert "Traceback" not in rest, rest
    assert not left_of(tmp_path)
    assert not (rest_of := [str(p) for p in (tmp_path / "tmp").rglob("*")]), rest_of
