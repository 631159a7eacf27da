"""SIGTERM under load: who is waiting gets an answer, nobody else gets in, nothing stays behind."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from e2e.sluice_process import COMMAND, ROOT, Sluice, clean_environment, sluice, stdio_command
from e2e.wire import LEGACY, META, MODERN, Client

Json = dict[str, Any]
SERVER = [str(Path(__file__).with_name("patient_server.py"))]
ACCEPT = {"Accept": "application/json, text/event-stream"}
PENDING = 'sluice_approvals_pending{profile="one-of-leads"} 1.0'
BROKEN = (OSError, EOFError)


def config(folder: Path, drain: str) -> Json:
    folder.joinpath("policy.csv").write_text("p, *, *, *, *, allow\np2, *, asked, *, *, one-of-leads\n")
    common: Json = {"command": sys.executable, "sharing": "shared", "concurrency": 200}
    return {
        "servers": {"main": common | {"args": [*SERVER, str(folder)]}},
        "clients": {"anonymous": {"roles": []}, "local": {"roles": []}},
        "policy": {"files": ["policy.csv"]},
        "drain": drain,
    }


# ---------------------------------------------------------------- what is looked at


def sessions() -> dict[int, int]:
    """Every living process -> its session: a server that Sluice starts leads one of its own."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields = text_of(stat).rpartition(")")[2].split()
        if fields and fields[0] != "Z":
            found[int(stat.parent.name)] = int(fields[3])
    return found


def children(process: "subprocess.Popen[Any]") -> set[int]:
    """The sessions of the servers that this Sluice started."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/children")
    return {int(pid) for thread in threads for pid in text_of(thread).split()}


def text_of(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""  # that thread or process has ended meanwhile


def left_of(started: set[int]) -> set[int]:
    return {pid for pid, session in sessions().items() if session in started}


def all_end(started: set[int]) -> bool:
    """Whether nothing of it is left. A process that was killed still has to get its turn to end."""
    give_up = time.monotonic() + 10
    while left_of(started) and time.monotonic() < give_up:
        time.sleep(0.02)
    return not left_of(started)


async def until(condition: Callable[[], object]) -> None:
    while not await anyio.to_thread.run_sync(condition):  # noqa: ASYNC110 (of another process: there is no event)
        await anyio.sleep(0.02)


def is_refused(url: str) -> bool:
    host, port = url.split("/")[2].split(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
    except ConnectionRefusedError:
        return True
    return False


def unanswered(folder: Path) -> set[str]:
    """Calls whose intent is in the audit log and whose outcome is not."""
    lines = [json.loads(line) for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines()]
    intents, outcomes = ({line["call"] for line in lines if line["type"] == kind} for kind in ("intent", "outcome"))
    assert intents
    return intents - outcomes


# ---------------------------------------------------------------- who is there


class Load:
    """Clients that call again and again until nobody answers. Every call has a number of its own."""

    def __init__(self) -> None:
        self.answered: set[str] = set()
        self.wrong: list[Any] = []

    async def run(self, url: str, name: str, modern: bool) -> None:
        async with Client(url, modern, connections=1) as client:
            for number in range(1_000_000):
                try:
                    answer = await client.call("main__count", {"n": f"{name}-{number}"})
                except BROKEN:
                    return
                if answer.result().get("isError"):
                    self.wrong.append(answer.body)
                self.answered.add(f"{name}-{number}")


async def wait_call(url: str, name: str, modern: bool, ends: dict[str, Any]) -> None:
    async with Client(url, modern, connections=1) as client:
        ends[name] = (await client.call("main__wait", {"n": name})).result()


async def held_call(url: str, ends: dict[str, Any]) -> None:
    async with Client(url, modern=True) as client:
        ends["held"] = (await client.call("asked__count", {"n": "held"})).result()


@asynccontextmanager
async def stream(
    url: str, ends: dict[str, Any], name: str, opened: Callable[[str], object], **request: Any
) -> AsyncIterator[list[str]]:
    """An event stream that is open inside the block and read to its end after it; a reset would raise."""
    lines: list[str] = []
    begun = anyio.Event()

    async def read() -> None:
        async with httpx.AsyncClient(timeout=60) as client, client.stream(url=url, **request) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)
                if opened(line):
                    begun.set()
        ends[name] = lines

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await begun.wait()
        yield lines


def listen(url: str, ends: dict[str, Any]) -> Any:
    message = {"jsonrpc": "2.0", "id": "l", "method": "subscriptions/listen",
               "params": {"notifications": {"toolsListChanged": True}, "_meta": META}}  # fmt: skip
    headers = ACCEPT | {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
    is_open = lambda line: "acknowledged" in line  # noqa: E731
    return stream(url, ends, "listen", is_open, method="POST", headers=headers, json=message)


@asynccontextmanager
async def get_stream(url: str, ends: dict[str, Any]) -> AsyncIterator[None]:
    async with httpx.AsyncClient(timeout=60) as client:
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "wire", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        answer = await client.post(url, headers=ACCEPT, json=message)
    headers = {"Accept": "text/event-stream", "Mcp-Session-Id": answer.headers["mcp-session-id"]}
    async with stream(url, ends, "get", lambda line: True, method="GET", headers=headers):
        yield


@asynccontextmanager
async def older_stream(url: str, ends: dict[str, Any]) -> AsyncIterator[None]:
    """HTTP+SSE with a call that is open: its answer has to come on the stream before that ends."""
    root = url.removesuffix("/mcp")

    async def say(client: httpx.AsyncClient, path: str, message: Json) -> None:
        assert (await client.post(root + path, json={"jsonrpc": "2.0", **message})).status_code == 202

    is_open = lambda line: "session_id=" in line  # noqa: E731
    headers = {"Accept": "text/event-stream"}
    async with (
        stream(f"{root}/sse", ends, "older", is_open, method="GET", headers=headers) as lines,
        httpx.AsyncClient(timeout=60) as client,
    ):
        path = next(line for line in lines if "session_id=" in line).removeprefix("data:").strip()
        hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "wire", "version": "1"}}
        await say(client, path, {"id": 1, "method": "initialize", "params": hello})
        await until(lambda: any('"id":1' in line for line in lines))
        await say(client, path, {"method": "notifications/initialized"})
        call = {"name": "main__wait", "arguments": {"n": "older"}}
        await say(client, path, {"id": 2, "method": "tools/call", "params": call})
        yield


# ---------------------------------------------------------------- tests


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Sluice]:
    settings = config(tmp_path, "20s")
    stubborn = settings["servers"]["main"] | {"args": [*SERVER, str(tmp_path), "stubborn"]}
    settings["servers"]["asked"] = stubborn
    with sluice(settings, tmp_path) as process:
        yield process


def test_at_sigterm_under_load_no_accepted_call_is_lost_and_nothing_stays_behind(busy: Sluice, tmp_path: Path) -> None:
    load, ends = Load(), dict[str, Any]()

    async def everybody() -> set[int]:
        with anyio.fail_after(120):
            async with anyio.create_task_group() as group:
                for number in range(6):
                    group.start_soon(load.run, busy.url, f"load{number}", number % 2 == 0)
                for name, modern in (("modern", True), ("legacy", False)):
                    group.start_soon(wait_call, busy.url, name, modern, ends)
                group.start_soon(held_call, busy.url, ends)
                async with listen(busy.url, ends), get_stream(busy.url, ends), older_stream(busy.url, ends):
                    waiting = [tmp_path / f"waiting-{name}" for name in ("modern", "legacy", "older")]
                    await until(lambda: all(file.exists() for file in waiting))
                    await until(lambda: PENDING in busy.get("/metrics")[1])
                    await until(lambda: len(load.answered) > 200)
                    started = children(busy.process)
                    assert len(started) == 2 and len(left_of(started)) == 4, "two servers, each with a child"
                    busy.process.send_signal(signal.SIGTERM)
                    await until(lambda: busy.get("/readyz")[0] == 503)
                    assert "Sluice is stopping" in busy.get("/readyz")[1] 
                    await until(lambda: is_refused(busy.url))
                    assert busy.get("/livez")[0] == 200
                    await until(lambda: {"held", "listen", "get"} <= ends.keys())
                    assert not {"modern", "legacy", "older"} & ends.keys()
                    (tmp_path / "go").touch()
        return started

    started = anyio.run(everybody)
    assert busy.process.wait(30) == 0 and all_end(started)
    assert load.wrong == []
    assert set((tmp_path / "counted").read_text().split()) == load.answered, "what a server did, its client heard of"
    assert ends["modern"]["content"] == ends["legacy"]["content"] == [{"type": "text", "text": "done"}]
    assert ends["held"]["_meta"]["dev.sluice/reason"] == "approval_pending"
    assert '"resultType":"complete"' in next(line for line in reversed(ends["listen"]) if line.startswith("data:"))
    assert any('"id":2' in line and "done" in line for line in ends["older"])
    assert unanswered(tmp_path) == set()
    verify = [*COMMAND, "audit", "verify", "-c", str(busy.config)]
    done = subprocess.run(verify, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in busy.log()


@pytest.mark.parametrize(("drain", "signals"), [("300ms", 1), ("60s", 2)], ids=["the drain time", "a second signal"])
def test_a_call_that_does_not_end_is_cut_by(drain: str, signals: int, tmp_path: Path) -> None:
    async def cut(process: Sluice) -> None:
        async def call() -> None:
            with pytest.raises(BROKEN):
                await wait_call(process.url, "cut", True, {})

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(call)
                await until((tmp_path / "waiting-cut").exists)
                process.process.send_signal(signal.SIGTERM)
                if signals == 2:
                    await until(lambda: process.get("/readyz")[0] == 503)
                    process.process.send_signal(signal.SIGTERM)

    with sluice(config(tmp_path, drain), tmp_path) as process:
        started = children(process.process)
        anyio.run(cut, process)
        assert process.process.wait(30) == 0 and all_end(started)
        assert unanswered(tmp_path) == set()
        assert "Traceback" not in process.log()


# ---------------------------------------------------------------- on stdin and stdout


def say(process: "subprocess.Popen[bytes]", **message: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    process.stdin.flush()


@pytest.mark.parametrize("ends", [True, False], ids=["a call that ends", "a call that does not"])
def test_sigterm_ends_stdio_as_the_end_of_its_input_does(ends: bool, tmp_path: Path) -> None:
    settings = config(tmp_path, "20s")
    settings["servers"]["main"]["args"].append("stubborn")
    command = stdio_command(settings, tmp_path)
    params = {"name": "main__wait", "arguments": {"n": "one"}, "_meta": META}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
        env=clean_environment(),
    ) as process:  # fmt: skip
        say(process, id=1, method="tools/call", params=params)

        async def end() -> set[int]:
            with anyio.fail_after(60):
                await until((tmp_path / "waiting-one").exists)
                started = children(process)
                process.send_signal(signal.SIGTERM)
                if ends:
                    (tmp_path / "go").touch()
                await until(lambda: process.poll() is not None)
            return started

        started = anyio.run(end)
        assert process.stdout is not None and process.stderr is not None
        answers = [json.loads(line) for line in process.stdout]
        log = process.stderr.read().decode()
    assert process.returncode == 0 and len(started) == 1 and all_end(started), log
    assert [answer["id"] for answer in answers] == [1] * ends
    assert unanswered(tmp_path) == set() and "Traceback" not in log
    verify = [*COMMAND, "audit", "verify", "-c", str(tmp_path / "sluice.yaml")]
    done = subprocess.run(verify, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
