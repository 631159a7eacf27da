"""Servers that are child processes: real ones, doing everything that they should not."""

import asyncio
import os
import signal
import sys
import threading
from asyncio import unix_events
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from scripted_servers import LEGACY, MODERN, child, running, until

from sluicegate.downstream.server_output import MAX_STDERR, StderrTail
from sluicegate.downstream.transport import stray_processes
from sluicegate.downstream.transport.process import Process
from sluicegate.downstream.transport.stdio_transport import Lines, environment
from sluicegate.protocol.jsonrpc import Notification
from sluicegate.protocol.model import LOG_LEVEL, Client, Failure, Result


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


async def until_dead(pid: int) -> None:
    await until(lambda: not is_alive(pid))


def is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


# ---------------------------------------------------------------- the ordinary


async def test_a_legacy_child_is_found_out_and_answers_in_the_newest_form() -> None:
    async with running(command=child("exit-at-probe")) as rig:
        assert rig.server.status == "up"
        assert rig.server.era_for(MODERN) == rig.server.era_for(LEGACY) == "legacy"
        assert await rig.tool("echo", {"x": [1, "ü"]}) == {"x": [1, "ü"]}
        listed = await rig.request("tools/list")
        assert listed == Result(
            {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}], "ttlMs": 0, "cacheScope": "private"}
        )
        assert await rig.request("prompts/list") == Failure(-32601, "Method not found")
        described = rig.server.describe()
        assert described["revisions"] == ["2025-06-18"] and len(described["pids"]) == 1


async def test_a_modern_child_is_asked_without_a_handshake_and_told_the_clients_capabilities() -> None:
    async with running(command=child("modern")) as rig:
        assert rig.server.era_for(LEGACY) == "modern"
        asking = Client("key:a", capabilities={"elicitation": {"form": {}}}, capability_key="e")
        seen = await rig.tool("seen", client=asking)
        assert [message["method"] for message in seen] == ["server/discover", "subscriptions/listen", "tools/call"]
        meta = seen[-1]["params"]["_meta"]
        assert meta["io.modelcontextprotocol/clientCapabilities"] == {"elicitation": {"form": {}}}
        legacy_meta = (await rig.tool("seen", client=LEGACY))[-1]["params"]["_meta"]
        assert legacy_meta["io.modelcontextprotocol/clientCapabilities"] == {}


async def test_a_server_of_both_eras_is_spoken_to_in_the_clients() -> None:
    async with running(command=child("modern", "dual")) as rig:
        assert (rig.server.era_for(LEGACY), rig.server.era_for(MODERN)) == ("legacy", "modern")
        assert (await rig.tool("seen", client=LEGACY))[0]["method"] == "initialize"
        assert (await rig.tool("seen", client=MODERN))[0]["method"] == "server/discover"


async def test_one_client_has_one_child_and_two_sessions_have_two() -> None:
    async with running(command=child(), era="legacy") as rig:
        await rig.tool("echo")
        assert len(rig.server.describe()["pids"]) == 1
        other = Client("key:a", revision="2025-11-25", session="s2")
        assert len(await rig.tool("seen", client=other)) == 3
        assert len(rig.server.describe()["pids"]) == 2
        first, second = rig.server.describe()["pids"]
        rig.server.end_session("s1")
        await until_dead(first)
        assert rig.server.describe()["pids"] == [second]


async def test_the_new_holder_of_a_key_has_another_child_and_a_new_token_has_the_same() -> None:
    async with running(command=child(), era="legacy") as rig:
        old, new, token = Client("key:a", credential="1"), Client("key:a", credential="2"), Client("jwt:i#a")
        await rig.tool("echo", client=old)
        [first] = rig.server.describe()["pids"]
        assert len(await rig.tool("seen", client=new)) == 3, "a handshake and this call"
        assert rig.server.scope(old) != rig.server.scope(new)
        await rig.tool("echo", client=token)
        rig.server.retain({"key:a 2"})
        await until_dead(first)
        assert len(await rig.tool("seen", client=new)) == 4 and len(await rig.tool("seen", client=token)) == 4


async def test_a_shared_server_has_one_child_for_all() -> None:
    async with running(command=child(), era="legacy", sharing="shared") as rig:
        await rig.tool("echo", client=Client("key:b"))
        await rig.tool("echo")
        assert len(rig.server.describe()["pids"]) == 1
        assert rig.server.scope(LEGACY) == rig.server.scope(MODERN) == ""


# ---------------------------------------------------------------- what belongs to a call


async def test_progress_carries_the_clients_token_increases_and_ends_with_the_answer() -> None:
    async with running(command=child(), era="legacy") as rig:
        await rig.tool("progress", progressToken="1")
        assert [note.params for note in rig.emitted] == [
            {"progressToken": "1", "progress": 1},
            {"progressToken": "1", "progress": 2},
        ]
        assert (await rig.tool("seen"))[2]["params"]["_meta"] == {"progressToken": 2}


async def test_a_call_gets_the_log_messages_of_its_level_and_others_none() -> None:
    async with running(command=child(), era="legacy") as rig:
        await rig.tool("logs")
        assert rig.emitted == []
        await rig.request("tools/call", {"name": "logs"}, **{LOG_LEVEL: "warning"})
        assert [note.params["data"] for note in rig.emitted] == ["high"]
        levels = [message["params"] for message in await rig.tool("seen") if message["method"] == "logging/setLevel"]
        assert levels == [{"level": "warning"}]


async def test_a_cancelled_call_is_cancelled_at_the_server_by_our_id() -> None:
    async with running(command=child(), era="legacy") as rig:
        await rig.tool("echo")
        call = asyncio.ensure_future(rig.tool("silent"))
        await asyncio.sleep(0)
        assert len(await rig.tool("seen")) == 5
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        last = (await rig.tool("seen"))[-2]
        assert last["method"] == "notifications/cancelled"
        assert last["params"]["requestId"] == 3


@pytest.mark.parametrize("modes", [(), ("modern",)])
async def test_a_call_times_out_and_progress_gives_it_more_time(modes: tuple[str, ...]) -> None:
    era = "modern" if modes else "legacy"
    async with running(command=child(*modes), era=era, timeout=1.0) as rig:
        assert await rig.reason("silent") == "timeout"
        assert (await rig.tool("seen"))[-2]["method"] == "notifications/cancelled"
        assert await rig.tool("slow", progressToken=1) == "done"


async def test_no_progress_gives_more_than_the_time_in_all() -> None:
    async with running(command=child(), era="legacy", timeout=0.5, max_time=0.7) as rig:
        outcome = await rig.request("tools/call", {"name": "slow"}, progressToken=1)
        assert isinstance(outcome, Result) and outcome.value["_meta"] == {"dev.sluice/reason": "timeout"}


async def test_what_a_server_asks_is_refused_at_once_and_a_ping_is_answered() -> None:
    async with running(command=child(), era="legacy") as rig:
        assert await rig.tool("ask") == [-32601, -32601, -32601, {}]


# ---------------------------------------------------------------- what belongs to none


async def test_list_changes_are_published_for_the_scope_of_their_connection() -> None:
    async with running(command=child(), era="legacy") as rig:
        rig.published.clear()
        release = await rig.server.hold(LEGACY)
        await rig.tool("changed")
        assert [(scope, note.method) for _, scope, note in rig.published] == [
            (rig.server.scope(LEGACY), "notifications/tools/list_changed")
        ]
        release()


async def test_a_modern_server_is_listened_to_and_another_subscriptions_news_are_not_ours() -> None:
    async with running(command=child("modern")) as rig:
        (await rig.server.hold(MODERN))()
        await rig.tool("echo")
        assert rig.published == [("scripted", None, Notification("notifications/tools/list_changed", {}))]


# ---------------------------------------------------------------- lies and noise


async def test_a_server_that_lies_about_ids_harms_no_call() -> None:
    async with running(command=child(), era="legacy") as rig:
        assert await rig.tool("liar") == "truth"
        assert await rig.tool("echo", {"n": 1}) == {"n": 1}


async def test_an_answer_that_is_no_response_ends_its_call() -> None:
    async with running(command=child(), era="legacy") as rig:
        assert await rig.reason("broken") == "outcome_unknown"
        assert await rig.tool("echo") == {}


@pytest.mark.parametrize(("most", "restarts"), [(8 * 2**20, 1), (10 * 2**20, 0)])
async def test_a_line_over_the_configured_size_ends_the_connection_and_the_next_call_works(
    most: int, restarts: int
) -> None:
    """The line has nine MiB and is no message: where it may be so long, the call goes on."""
    async with running(command=child(), era="legacy", max_result=most, timeout=2.0) as rig:
        assert await rig.reason("big") == ("outcome_unknown" if restarts else "timeout")
        assert await rig.tool("echo") == {}
        described = rig.server.describe()
        assert described["restarts"] == restarts
        steps = [(step["step"], step["why"]) for step in described["timeline"]]
        assert steps[:3] == [("connecting", ""), ("connected", "legacy, stdio"), ("up", "")]
        assert [step for step, _ in steps[3:]] == ["ended"] * restarts
        assert all(why == described["last_error"] for _, why in steps[3:])


async def test_a_flood_on_stderr_is_drained_and_only_its_end_is_kept() -> None:
    async with running(command=child(), era="legacy") as rig:
        assert await rig.tool("flood") == "done"
        lines = rig.server.describe()["stderr"]
        assert lines[-1] == "the end" and max(map(len, lines)) <= 2000


@pytest.mark.usefixtures("ended_soon")
async def test_a_child_that_stops_reading_costs_its_own_calls_only() -> None:
    async with running(command=child(), era="legacy", timeout=1.5) as rig:
        other = Client("key:b")
        await rig.tool("echo", client=other)
        assert await rig.reason("deaf") == "timeout"
        outcome = await rig.request("tools/call", {"name": "echo", "arguments": {"x": "y" * 9_000_000}})
        assert isinstance(outcome, Result) and outcome.value["isError"]
        assert await rig.reason("echo") == "server_unavailable"
        assert await rig.tool("echo", client=other) == {}


# ---------------------------------------------------------------- life and death


@pytest.mark.usefixtures("dialled_soon")
async def test_a_tool_is_not_called_twice_when_its_server_dies() -> None:
    async with running(command=child(), era="legacy") as rig:
        assert await rig.reason("die") == "outcome_unknown"
        assert [message["method"] for message in await rig.tool("seen")] == [
            "initialize", "notifications/initialized", "tools/call",
        ]  # fmt: skip


async def test_a_tool_is_called_on_a_new_process_when_the_old_one_had_ended_before() -> None:
    async with running(command=child(), era="legacy") as rig:
        assert await rig.tool("last words") == "bye"
        await until(lambda: rig.server.describe()["connections"] == 0)
        assert await rig.tool("echo") == {}


async def test_last_words_are_heard() -> None:
    async with running(command=child(), era="legacy") as rig:
        assert await rig.tool("last words") == "bye"


async def test_a_server_that_exits_in_a_loop_is_restarted_ever_later() -> None:
    async with running(command=child("exit-at-start")) as rig:
        assert rig.server.status == "down"
        assert await rig.reason("echo") == "server_unavailable"
        assert "status 1" in rig.server.describe()["last_error"]
        with pytest.raises(ConnectionError):
            await rig.server.hold(LEGACY)
    async with running(command=child("exit-after-start"), era="legacy") as rig:
        await until(lambda: rig.server.describe()["restarts"] >= 2)
        assert "status 0" in rig.server.describe()["last_error"]
        assert rig.server.describe()["restarts"] <= 3


async def test_a_command_that_does_not_exist_is_said_to_be_so() -> None:
    async with running(command=("/nowhere/server",)) as rig:
        assert rig.server.status == "down"
        assert "/nowhere/server" in rig.server.describe()["last_error"]


@pytest.mark.usefixtures("ended_soon")
async def test_a_child_that_ignores_its_end_is_killed_with_its_grandchildren() -> None:
    async with running(command=child("stubborn"), era="legacy") as rig:
        pids = await rig.tool("fork")
        assert all(map(is_alive, pids))
        with anyio.fail_after(20):
            await rig.server.aclose()
        assert not is_alive(pids[0])
        await until_dead(pids[1])
        assert is_reaped(pids[0])


async def test_a_grandchild_does_not_outlive_a_child_that_ends_well() -> None:
    async with running(command=child(), era="legacy") as rig:
        pids = await rig.tool("fork")
        await rig.server.aclose()
        for pid in pids:
            await until_dead(pid)


async def test_what_is_asked_when_the_server_has_been_stopped_is_refused() -> None:
    async with running(command=child("exit-at-probe")) as rig:
        await rig.server.aclose()
        outcome = await rig.request("tools/list", client=MODERN)  # as a walk of its lists does that began before
        assert isinstance(outcome, Failure) and outcome.data == {"reason": "server_unavailable"}
        assert await rig.reason("echo") == "server_unavailable"


@pytest.mark.usefixtures("ended_soon")
async def test_a_server_that_hangs_at_start_holds_nobody_up() -> None:
    server = running(command=child("hang"), lazy=True, list_timeout=0.3)
    async with server as rig:
        outcome = await rig.request("tools/list")
        assert isinstance(outcome, Failure) and outcome.data == {"reason": "server_unavailable"}
        assert rig.server.status == "starting"


async def test_a_child_sees_what_was_configured_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_OF_SLUICE", "x")
    async with running(command=child(), era="legacy", env={"TOKEN": "t"}, cwd=str(tmp_path)) as rig:
        inside = await rig.tool("inside")
        assert inside["env"]["TOKEN"] == "t" and "SECRET_OF_SLUICE" not in inside["env"]
        assert inside["cwd"] == str(tmp_path) and inside["fds"] == ["0", "1", "2"]


# ---------------------------------------------------------------- pieces


def test_only_named_variables_are_inherited() -> None:
    ours = {"PATH": "/bin", "LC_ALL": "C", "AWS_SECRET": "x", "HOME": "/root"}
    assert environment({"HOME": "/else"}, ours) == {"PATH": "/bin", "LC_ALL": "C", "HOME": "/else"}


def test_what_a_network_needs_is_inherited_but_no_password() -> None:
    network = {"SSL_CERT_FILE": "/ca.pem", "NODE_EXTRA_CA_CERTS": "/ca.pem", "https_proxy": "http://proxy:3128"}
    assert environment({}, network | {"HTTP_PROXY": "http://me:secret@proxy:3128"}) == network


def test_lines_come_whole_however_they_were_cut() -> None:
    lines = Lines(limit=10)
    assert [line for part in (b"ab", b"c\nd\n\ne", b"f\n") for line in lines.feed(part)] == [b"abc", b"d", b"", b"ef"]
    with pytest.raises(ValueError, match="10 bytes"):
        [lines.feed(b"1234") for _ in range(3)]
    with pytest.raises(ValueError, match="10 bytes"):
        Lines(limit=10).feed(b"12345678901\n")


def test_the_tail_is_bounded_and_begins_with_a_whole_line() -> None:
    tail = StderrTail()
    for number in range(100_000):
        tail.add(b"line %06d\n" % number)
    lines = tail.text().splitlines()
    assert lines[-1] == "line 099999" and set(map(len, lines)) == {11} and len(tail.text()) <= MAX_STDERR
    tail.add(b"secret" * 40_000)
    assert tail.text() == ""


async def test_nothing_is_dialled_while_the_server_is_being_stopped() -> None:
    """anyio may never cancel what begins in a group that waits for its last tasks: it used a whole core, and stayed."""
    held = anyio.Event()

    async def hold() -> None:
        with anyio.CancelScope(shield=True):
            await held.wait()

    async with running(command=child()) as rig:
        server = rig.server
        assert server.life.pool._group is not None and server.life._scope is not None
        server.life.pool._group.start_soon(hold)  # a connection that takes its time to close
        await anyio.lowlevel.checkpoint()
        server.life._scope.cancel()
        await until(lambda: not server.life.pool._slots)
        outcome = await rig.request("tools/call", {"name": "echo", "arguments": {}}, replace(LEGACY, session="another"))
        held.set()
        assert isinstance(outcome, Result) and "the server is not running" in str(outcome.value["content"])


async def test_a_large_answer_comes_through_a_pipe_that_cannot_say_whether_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of asyncio in Python 3.11.2, which Debian 12 has."""
    pipe: Any = getattr(unix_events, "_UnixReadPipeTransport")  # noqa: B009 - mypy does not know it

    def pause_reading(self: Any) -> None:
        if not self._closing and not self._paused:
            self._paused = True
            self._loop._remove_reader(self._fileno)

    def resume_reading(self: Any) -> None:
        if not self._closing and self._paused:
            self._paused = False
            self._loop._add_reader(self._fileno, self._read_ready)

    monkeypatch.setattr(pipe, "pause_reading", pause_reading)
    monkeypatch.setattr(pipe, "resume_reading", resume_reading)
    add_reader = lambda self, fd, callback: self._loop._add_reader(fd, callback)  # noqa: E731
    monkeypatch.setattr(pipe, "_add_reader", add_reader, raising=False)
    if "is_reading" in vars(pipe):  # else it has that of its base, which says nothing
        monkeypatch.delattr(pipe, "is_reading")
    async with running(command=child(), era="legacy") as rig:
        for _ in range(3):
            text = "x" * 64 * 1024
            assert await rig.tool("echo", {"text": text}) == {"text": text}


async def test_processes_that_end_at_once_are_looked_after_one_by_one() -> None:
    """Each look reads of all processes. Many threads would keep the event loop waiting, and others without a thread."""
    before = {thread.ident for thread in threading.enumerate()}
    processes = [await Process.start(["true"], dict(os.environ), None, lambda status: None) for _ in range(20)]
    async with anyio.create_task_group() as group:
        for process in processes:
            group.start_soon(process.stop)
    names = [thread.name for thread in threading.enumerate() if thread.ident not in before]
    assert not [name for name in names if not name.startswith(("finder", "starter"))]
    assert sum(name.startswith("finder") for name in names) <= 1


@pytest.mark.skipif(sys.platform != "linux", reason="no other system finds what left its process group")
async def test_what_does_not_want_to_end_is_ended_together_and_no_thread_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    monkeypatch.setattr("sluicegate.downstream.transport.process.GRACE", 0.0)
    sent, send = list[tuple[int, int]](), stray_processes._send

    def noted(one: stray_processes.Stray, number: signal.Signals) -> None:
        sent.append((number, one.pid))
        send(one, number)

    monkeypatch.setattr(stray_processes, "_send", noted)
    script = "(trap '' TERM; exec setsid sleep 600) & read line"
    command = ["sh", "-c", script]
    processes = [await Process.start(command, dict(os.environ), None, lambda status: None) for _ in range(5)]
    await until(lambda: all(len(stray_processes.below([process.pid])) == 2 for process in processes))
    strays = [stray_processes.below([process.pid])[1] for process in processes]
    await until(lambda: all(os.getsid(stray) == stray for stray in strays))
    async with anyio.create_task_group() as group:
        for process in processes:
            group.start_soon(process.stop)
    assert [number for number, _ in sent] == [signal.SIGTERM] * 5 + [signal.SIGKILL] * 5
    assert {pid for _, pid in sent} == set(strays)
    names = [thread.name for thread in threading.enumerate() if thread.ident not in before]
    assert not [name for name in names if not name.startswith(("finder", "starter"))]


@pytest.mark.skipif(sys.platform != "linux", reason="no other system hands orphans to Sluice")
async def test_an_orphan_that_ended_is_reaped_with_a_server_that_leaves_nothing() -> None:
    orphan = os.posix_spawnp("true", ["true"], os.environ, setsid=True)  # noqa: ASYNC221 - it returns at once
    await until(lambda: "\nState:\tZ" in Path(f"/proc/{orphan}/status").read_text())
    await (await Process.start(["true"], dict(os.environ), None, lambda status: None)).stop()
    with pytest.raises(ProcessLookupError):
        os.kill(orphan, 0)
