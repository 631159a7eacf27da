"""Lists, streams and calls when another server takes a key: what is in memory of the one before does not count."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream
from scripted_server import CLIENT, Front, Scripted

from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json, Notification
from sluicegate.protocol.model import Call, Failure, Result, Target

TOOLS = "notifications/tools/list_changed"


@asynccontextmanager
async def listening(front: Front, **wanted: object) -> AsyncIterator[MemoryObjectReceiveStream[Notification]]:
    """What a client hears, from the acknowledgement on."""
    send, receive = anyio.create_memory_object_stream[Notification](100)
    notifications: Json = dict(wanted)
    with send, receive, anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            call = Call(CLIENT, "subscriptions/listen", {"notifications": notifications}, emit=send.send)
            group.start_soon(front.router, call)
            await receive.receive()
            yield receive
            group.cancel_scope.cancel()


def put(front: Front, *servers: Scripted) -> None:
    """These run from now on, as the application switches from one set to another."""
    before = dict(front.servers)
    front.servers.clear()
    front.servers.update({server.key: server for server in servers})
    keys = {key for key in (*before, *front.servers) if before.get(key) is not front.servers.get(key)}
    prefixes = {key: key for key in front.servers}
    front.lists.configure(replace(front.lists.settings, prefixes=prefixes), {key: before.get(key) for key in keys})
    front.resolver.configure()


async def test_a_watched_resource_is_watched_at_the_server_that_takes_the_key() -> None:
    old, new = (Scripted("a", capabilities={"resources": {"subscribe": True}}) for _ in range(2))
    async with Front(old) as front, listening(front, resourceSubscriptions=["a+x:1"]) as heard:
        put(front, new)
        told = await heard.receive()
        assert told == Notification("notifications/resources/updated", {"uri": "a+x:1"}), "it may be another by now"
        new.update("x:1")
        assert await heard.receive() == told


def with_tools(key: str, *names: str) -> Scripted:
    return Scripted(key, tools=list(names), capabilities={"tools": {}})


async def test_who_listens_is_told_once_of_a_server_that_is_added_or_replaced_and_not_if_it_lists_alike() -> None:
    a = with_tools("a", "x")
    async with Front(a) as front, listening(front, toolsListChanged=True) as heard:
        lists = []
        for other in (with_tools("b", "y"), with_tools("b", "y"), with_tools("b", "z")):
            put(front, a, other)
            lists.append([tool["name"] for tool in (await front.page("tools/list"))["tools"]])
        assert lists == [["a__x", "b__y"], ["a__x", "b__y"], ["a__x", "b__z"]]
        assert [(await heard.receive()).method for _ in range(2)] == [TOOLS] * 2  # added, and replaced by another
        put(front, a, with_tools("b", "z"), with_tools("c", "x"))
        assert (await heard.receive()).method == TOOLS  # of c alone
        await anyio.wait_all_tasks_blocked()
        assert heard.statistics().current_buffer_used == 0


async def test_a_call_that_was_decided_by_a_definition_of_another_server_is_not_sent() -> None:
    old, new = Scripted("a", tools=["x", "y"]), Scripted("a", tools=["y"])
    new.identity = "another"
    async with Front(old) as front:
        await front.page("tools/list")
        calls = {name: front.resolver.find(Call(CLIENT, "tools/call", {"name": f"a__{name}"})) for name in "xy"}
        put(front, new)
        await front.page("tools/list")
        for name, target in calls.items():
            assert isinstance(target, Target)
            outcome = await front.router(Call(CLIENT, "tools/call", {"name": name}, target=target))
            is_sent = any(call.method == "tools/call" for call in new.asked)
            assert is_sent == (name == "y")
            if name == "x":
                assert isinstance(outcome, Result) and outcome.reason == "server_unavailable"


@pytest.mark.parametrize("change", ["removed", "added"])
async def test_a_cursor_goes_on_while_servers_change_that_it_has_visited(change: str) -> None:
    servers = [Scripted(key, tools=["x"]) for key in "abc"]
    async with Front(*servers, page=1) as front:
        first = await front.page("tools/list")
        second = await front.page("tools/list", cursor=first["nextCursor"])
        put(front, *(servers[1:] if change == "removed" else [Scripted("new", tools=["x"]), *servers]))
        third = await front.page("tools/list", cursor=second["nextCursor"])
        assert [tool["name"] for tool in third["tools"]] == ["c__x"]
        put(front, *servers[:2])
        gone = await front.ask("tools/list", cursor=second["nextCursor"])
        assert isinstance(gone, Failure) and gone.code == INVALID_PARAMS
