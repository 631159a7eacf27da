"""Sessions that nobody uses give their processes back: counted as children, which are real."""

import os
import signal
from math import inf
from pathlib import Path
from typing import Any

import anyio
import pytest
from scripted_servers import Child, Rig, child, endpoint, legacy_start, running, until

from sluicegate.downstream.server import ANEW, began_anew
from sluicegate.downstream.transport.process import memory
from sluicegate.protocol.model import Call, Client, Failure, Result, refuse


def session(number: int, principal: str = "key:a") -> Client:
    return Client(principal, revision="2025-11-25", session=f"s{number}")


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def children(rig: Rig) -> list[int]:
    return [pid for pid in rig.server.describe()["pids"] if is_alive(pid)]


async def echo(rig: Rig, client: Client) -> dict[str, Any]:
    outcome = await rig.request("tools/call", {"name": "echo", "arguments": {}}, client)
    assert isinstance(outcome, Result), outcome
    return outcome.value


@pytest.mark.parametrize("principals", [1, 8])
async def test_idle_sessions_come_down_to_one_child(principals: int) -> None:
    idle: set[str] = set()
    async with running(command=child(), era="legacy", idle=0.2, is_idle=idle.__contains__) as rig:
        clients = [session(number, f"key:{number % principals}") for number in range(8)]
        for client in clients:
            await echo(rig, client)
            await rig.server.hold(client)
        assert len(children(rig)) == 8
        idle.update(f"s{number}" for number in range(8))
        await until(lambda: len(children(rig)) == 1)
        assert rig.server.describe()["processes"] == 1 and memory(children(rig)) > 1 << 20
        assert rig.server.describe()["restarts"] == 0 and rig.server.status == "up"


async def test_the_next_answer_of_a_session_says_that_its_server_began_anew(caplog: pytest.LogCaptureFixture) -> None:
    idle = {"s1"}
    async with running(command=child(), era="legacy", idle=0.2, is_idle=idle.__contains__) as rig:
        await echo(rig, session(2))
        assert "_meta" not in await echo(rig, session(1))
        await until(lambda: len(children(rig)) == 1)
        listed = await rig.request("tools/list", {}, session(1))
        assert isinstance(listed, Result) and "_meta" not in listed.value
        idle.clear()
        assert "its connection was idle" in (await echo(rig, session(1)))["_meta"][ANEW]
        assert "_meta" not in await echo(rig, session(1)), "it is said once"
        assert "_meta" not in await echo(rig, session(2))
    assert [record.__dict__["whose"] for record in caplog.records if record.message == "server began anew"] == ["key:a"]


async def test_a_refusal_that_says_that_its_server_began_anew_is_a_refusal() -> None:
    async with running(command=child()) as rig:
        await echo(rig, session(1))
        connection = rig.server.life.pool.live()[0]
        connection.anew = "another process"
        call = Call(session(1), "tools/call", {})
        outcome = began_anew(call, refuse(call.method, "outcome_unknown", "It is not known."), connection)
        assert isinstance(outcome, Result) and outcome.reason == "outcome_unknown"
        assert outcome.value["_meta"][ANEW] == "another process"


async def test_a_session_with_a_stream_or_a_call_keeps_its_child() -> None:
    idle: set[str] = set()
    async with running(command=child(), era="legacy", idle=0.2, is_idle=idle.__contains__) as rig:
        for number in (1, 2, 3):
            await echo(rig, session(number))
        before = children(rig)
        idle.add("s2")
        await until(lambda: len(children(rig)) == 2)
        assert children(rig) == [before[0], before[2]]


async def test_started_servers_keep_their_children_unless_told_and_those_behind_a_url_do_not() -> None:
    async with running(command=child(), era="legacy", is_idle=lambda session: True) as rig:
        await echo(rig, session(1))
        await echo(rig, session(2))
        rig.clock.ahead = 86_400.0
        rig.server.end_session("nobody's")  # has it look around
        await echo(rig, session(3))
        assert len(children(rig)) == 3

    async def serve(asked: Any) -> None:
        if not await legacy_start(asked):
            await asked.result({"content": []})

    async with endpoint(serve) as (url, _):
        for idle, left in ((None, 1), (inf, 2)):
            async with running(url=url, era="legacy", idle=idle, is_idle=lambda session: True) as rig:
                await echo(rig, session(1))
                await echo(rig, session(2))
                rig.clock.ahead = 601.0
                rig.server.end_session("nobody's")
                await until(lambda left=left: rig.server.describe()["connections"] == left)


async def test_a_session_that_ends_while_its_child_starts_leaves_no_child(process: Child) -> None:
    async with process.run(era="legacy", processes=2) as rig:
        process.becomes("hang")
        async with anyio.create_task_group() as group:
            refused: list[Any] = []

            async def call() -> None:
                refused.append(await rig.request("tools/call", {"name": "echo"}, session(1)))

            await rig.tool("echo", client=session(2))  # which takes the spare
            process.starts()
            group.start_soon(call)
            await until(process.starts)
            rig.server.end_session("s1")
        assert "the client's session ended" in refused[0].value["content"][0]["text"]
        process.becomes()
        assert await rig.tool("echo", {"x": 1}, session(3)) == {"x": 1}, "there is room for two"
        assert process.starts() == 1 and rig.server.describe()["circuit"] == "closed"


async def test_a_lazy_server_is_started_for_who_needs_it_and_not_for_who_came_first(process: Child) -> None:
    async with process.run(era="legacy", lazy=True) as rig:
        rig.server.expect(session(1))
        await rig.tool("echo", client=session(2))
        assert process.starts() == 1 and rig.server.describe()["connections"] == 1


async def test_a_server_that_is_started_again_is_so_for_whoever_comes_next(process: Child) -> None:
    async with process.run(era="legacy", lazy=True) as rig:
        rig.server.expect(session(1))
        await rig.tool("echo", client=session(1))
        process.starts()
        (pid,) = children(rig)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: [now for now in rig.server.describe()["pids"] if now != pid])
        assert await rig.tool("echo", {"x": 1}, session(2)) == {"x": 1}
        assert process.starts() == 1 and rig.server.describe()["connections"] == 1


async def test_under_the_bound_the_right_child_goes_and_without_an_idle_one_the_new_session_is_refused() -> None:
    idle: set[str] = set()
    async with running(command=child(), era="legacy", processes=2, is_idle=idle.__contains__) as rig:
        first, second, third = session(1), session(2, "key:b"), session(3, "key:c")
        await echo(rig, first)
        await echo(rig, second)
        old = children(rig)
        for _ in range(10):  # no failure of the server: it goes on for the others
            refused = await echo(rig, third)
            assert refused["_meta"]["dev.sluice/reason"] == "server_unavailable"
            assert "all 2 processes that it may have are in use" in refused["content"][0]["text"]
        assert rig.server.describe()["circuit"] == "closed" and rig.server.describe()["last_error"] == ""
        refused_list = await rig.request("tools/list", {}, third)
        assert isinstance(refused_list, Failure)
        await echo(rig, first)
        idle.update(("s1", "s2"))
        assert "_meta" not in await echo(rig, third)
        now = children(rig)
        assert old[0] in now and old[1] not in now and len(now) == 2 and not is_alive(old[1])
        assert "another session needed its place" in (await echo(rig, second))["_meta"][ANEW]
        assert old[0] not in children(rig) and len(children(rig)) == 2
