"""One call goes to one server, discover and listen are made of all of them."""

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream
from loop_steps import Steps
from scripted_server import CLIENT, OTHER, Front, Scripted, tools

from sluicegate import router
from sluicegate.catalog.discover_merge import MERGED
from sluicegate.catalog_cache import list_walk
from sluicegate.guards.inspect import inspect_params, inspect_task_state
from sluicegate.hub import MAX_PENDING, Event
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Json, Notification
from sluicegate.protocol.model import (
    Call,
    Client,
    Failure,
    InputRequired,
    Outcome,
    Result,
    Target,
    TaskNotification,
    not_found,
    session_scope,
)
from sluicegate.router import subscription_stream as listening
from sluicegate.router.subscription_stream import UPDATED
from sluicegate.runtime.loop_budget import STEP

TOOLS, PROMPTS, RESOURCES = (f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources"))
LEGACY = replace(CLIENT, revision="2025-11-25", session="s")
EVERYTHING = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


# ---------------------------------------------------------------- one server


@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read", "completion/complete"])
async def test_a_call_goes_to_the_server_of_its_target_as_it_is(method: str) -> None:
    a, b = Scripted("a"), Scripted("b")
    outcome = InputRequired({"k": {}}, "state")

    async def answer(call: Call) -> Outcome:
        return outcome

    b.answers[method] = answer
    async with Front(a, b) as front:
        call = Call(CLIENT, method, {"name": "own"}, target=Target("b", "tool", "own", "b__own"))
        assert await front.router(call) is outcome
        assert b.asked == [call] and a.asked == []


@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read", "completion/complete"])
async def test_a_call_without_a_target_is_not_found(method: str) -> None:
    async with Front(Scripted("a")) as front:
        assert await front.ask(method, name="x", uri="x:y") == not_found(method, {"name": "x", "uri": "x:y"})


async def test_an_unknown_method_is_not_found() -> None:
    async with Front(Scripted("a")) as front:
        outcome = await front.ask("tasks/list")
        assert isinstance(outcome, Failure) and outcome.code == METHOD_NOT_FOUND


# ---------------------------------------------------------------- lists and discover


@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "resources/list", "resources/templates/list"])
async def test_a_list_that_was_waited_for_shows_what_its_client_may_see_by_then(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "_LONG", -1.0)
    server = Scripted("a", tools=["t"], prompts=["p"], resources=["x:r"], templates=["x:{t}"])
    server.is_ready = anyio.Event()
    seen, now = list[str](), [replace(CLIENT, roles=("role:all",))]

    def may_list(call: Call, key: str, target: Target) -> bool:
        return call.client.roles == ("role:all",)

    async with Front(server, may_list=may_list, current=lambda client: now[0], list_timeout=60) as front:

        async def walk() -> None:
            seen.extend(await front.names(method, now[0]))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(walk)
                await anyio.wait_all_tasks_blocked()
                now[0] = replace(CLIENT, roles=("role:low",))
                server.is_ready.set()
            assert seen == []
            now[0] = replace(CLIENT, roles=("role:all",))
            assert len(await front.names(method, now[0])) == 1


async def test_lists_are_in_config_order_whoever_comes_first() -> None:
    servers = [Scripted(key, tools=["y", "x"]) for key in ("z", "m", "a")]
    for server in servers[:2]:
        server.is_ready = anyio.Event()
    async with Front(*servers, list_timeout=60) as front:
        names: list[str] = []

        async def walk() -> None:
            names.extend(await front.names("tools/list"))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(walk)
                for server in (servers[1], servers[0]):
                    await anyio.wait_all_tasks_blocked()
                    server.is_ready.set()
        assert names == ["z__y", "z__x", "m__y", "m__x", "a__y", "a__x"]


async def test_a_server_that_is_down_leaves_the_lists_and_keeps_its_names() -> None:
    a, b = Scripted("a", tools=["x"], resources=["x:1"]), Scripted("b", tools=["x"])
    async with Front(a, b) as front:
        assert await front.names("tools/list") == ["a__x", "b__x"]
        a.status = "down"
        assert await front.names("tools/list") == ["b__x"]
        assert await front.names("resources/list") == []
        assert (await front.resolver.resolve(Call(CLIENT, "tools/call", {"name": "a__x"}))).server == "a"  # type: ignore
        a.status = "up"
        assert await front.names("tools/list") == ["a__x", "b__x"]


async def test_repeated_lists_share_their_items() -> None:
    async with Front(Scripted("a", tools=["x"])) as front:
        first, again = [(await front.page("tools/list"))["tools"][0] for _ in range(2)]
        assert first is again


async def test_discover_holds_only_servers_on_which_the_client_has_a_right() -> None:
    a, b, c = Scripted("a"), Scripted("b"), Scripted("c")
    a.instructions, b.instructions, c.instructions = "of a", "of b", "of c"
    c.status = "down"
    async with Front(a, b, c, hide=lambda key, own: key == "b") as front:
        value = await front.page("server/discover")
        assert value["capabilities"] == MERGED and value["cacheScope"] == "private" and value["ttlMs"] == 0
        assert "of a" in value["instructions"]
        assert not any(text in value["instructions"] for text in ("of b", "## b", "of c"))


async def test_transparent_discover_and_lists_mirror_the_server() -> None:
    server = Scripted("a", tools=["x"], capabilities={"tools": {"listChanged": True}, "experimental": {}})
    server.instructions, server.ttl_ms = "mine", 70
    async with Front(server, prefixes={"a": ""}, transparent=True) as front:
        value = await front.page("server/discover")
        assert value["capabilities"] == {"tools": {"listChanged": True}} and value["instructions"] == "mine"
        assert (await front.page("tools/list"))["tools"] == tools("x")
        for method in ("prompts/list", "resources/list", "resources/templates/list"):
            outcome = await front.ask(method)
            assert isinstance(outcome, Failure) and outcome.code == METHOD_NOT_FOUND


async def test_without_any_server_everything_is_empty() -> None:
    async with Front() as front:
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            assert await front.names(method) == []
        assert (await front.page("server/discover"))["capabilities"] == MERGED


# ---------------------------------------------------------------- listen


class Stream:
    """What a client hears."""

    def __init__(self, heard: MemoryObjectReceiveStream[Notification]) -> None:
        self._heard = heard
        self.outcome: Outcome | None = None

    async def next(self) -> Notification:
        with anyio.fail_after(20):
            return await self._heard.receive()

    async def is_quiet(self) -> bool:
        """Nothing comes, once whatever was announced has been walked and told."""
        with anyio.move_on_after(4 * list_walk.DEBOUNCE):
            await self._heard.receive()
            return False
        return True


@asynccontextmanager
async def listen(front: Front, filter: Json = EVERYTHING, client: Client = CLIENT) -> AsyncIterator[Stream]:
    send, receive = anyio.create_memory_object_stream[Notification](100)
    stream = Stream(receive)

    async def run() -> None:
        stream.outcome = await front.router(
            Call(client, "subscriptions/listen", {"notifications": filter}, emit=send.send)
        )

    with send, receive:
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            yield stream
            group.cancel_scope.cancel()


async def acknowledged(stream: Stream) -> Json:
    notification = await stream.next()
    assert notification.method == listening.ACKNOWLEDGED
    return notification.params["notifications"]


async def test_the_acknowledgement_is_first_and_names_what_is_honoured() -> None:
    async with Front(Scripted("a")) as front:
        async with listen(front, {**EVERYTHING, "resourceSubscriptions": ["x:1"], "taskIds": ["t"]}) as stream:
            assert await acknowledged(stream) == EVERYTHING
        async with listen(front, {"toolsListChanged": True, "promptsListChanged": False}) as stream:
            assert await acknowledged(stream) == {"toolsListChanged": True}
        async with listen(front, {}) as stream:
            assert await acknowledged(stream) == {}


@pytest.mark.parametrize(
    "filter", [None, [], "x", {"toolsListChanged": 1}, {"promptsListChanged": None}, {"resourceSubscriptions": "x"},
               {"resourceSubscriptions": [1]}],
)  # fmt: skip
async def test_a_filter_of_another_shape_is_refused(filter: Any) -> None:
    async with Front(Scripted("a")) as front:
        outcome = await front.ask("subscriptions/listen", notifications=filter)
        assert isinstance(outcome, Failure) and outcome.code == INVALID_PARAMS
        assert isinstance(await front.ask("subscriptions/listen"), Failure)


async def test_servers_are_held_before_the_acknowledgement_and_released_at_the_end() -> None:
    a, b = Scripted("a"), Scripted("b")
    async with Front(a, b, hide=lambda key, own: key == "b") as front:
        async with listen(front) as stream:
            await acknowledged(stream)
            assert (a.held, b.held) == (1, 0)
        assert a.held == 0
        assert len(front.lists.walks.watchers) == 0 and repr(front.hub) == "Hub(0 subscriptions)"


async def test_a_change_of_this_clients_list_is_told_and_another_kind_is_not() -> None:
    server = Scripted("a", tools=["x"], prompts=["p"])
    async with Front(server) as front, listen(front, {"toolsListChanged": True}) as stream:
        await acknowledged(stream)
        server.items["prompts/list"] = []
        front.lists.publish("a", None, Notification(PROMPTS, {}))
        assert await stream.is_quiet()
        server.items["tools/list"] = tools("x", "y")
        for _ in range(10):
            front.lists.publish("a", None, Notification(TOOLS, {}))
        assert await stream.next() == Notification(TOOLS, {})
        assert await stream.is_quiet()


async def test_a_change_that_this_client_cannot_see_is_none() -> None:
    server = Scripted("a", tools=["x"])
    async with Front(server, hide=lambda key, own: own == "secret") as front, listen(front) as stream:
        await acknowledged(stream)
        server.items["tools/list"] = tools("x", "secret")
        front.lists.publish("a", None, Notification(TOOLS, {}))
        assert await stream.is_quiet()
        server.items["tools/list"] = [{"name": "x", "description": "new"}, {"name": "secret"}]
        front.lists.publish("a", None, Notification(TOOLS, {}))
        assert (await stream.next()).method == TOOLS


async def test_a_change_of_another_scope_is_not_told() -> None:
    server = Scripted("a", tools=["x"])
    async with Front(server) as front, listen(front) as stream, listen(front, client=OTHER) as other:
        await acknowledged(stream)
        await acknowledged(other)
        server.items["tools/list"] = tools("y")
        front.lists.publish("a", OTHER.principal, Notification(TOOLS, {}))
        assert (await other.next()).method == TOOLS
        assert await stream.is_quiet()


async def test_a_change_of_policy_is_told_to_those_whose_list_it_changes() -> None:
    hidden: set[str] = set()
    server = Scripted("a", tools=["x", "y"], capabilities={"tools": {}})
    async with Front(server, hide=lambda key, own: own in hidden) as front, listen(front) as stream:
        await acknowledged(stream)
        front.lists.reconsider()
        assert await stream.is_quiet()
        hidden.add("y")
        front.lists.reconsider()
        assert (await stream.next()).method == TOOLS


async def test_a_server_that_a_changed_policy_shows_is_listened_to_from_then_on() -> None:
    hidden = {"*", "x"}
    seen, other = Scripted("a", tools=["x"]), Scripted("b", tools=["x"])
    hide = lambda key, own: key == "b" and own in hidden  # noqa: E731
    async with Front(seen, other, hide=hide) as front, listen(front, {"toolsListChanged": True}) as stream:
        await acknowledged(stream)
        assert (seen.held, other.held) == (1, 0)
        await front.names("tools/list")
        hidden.clear()
        front.lists.reconsider()
        assert (await stream.next()).method == TOOLS
        assert (seen.held, other.held) == (1, 1)
    assert (seen.held, other.held) == (0, 0)


async def test_changes_of_resources_are_told_though_nobody_holds_them() -> None:
    a, b = Scripted("a"), Scripted("b", capabilities={"tools": {}})
    async with Front(a, b) as front, listen(front) as stream:
        await acknowledged(stream)
        front.lists.publish("b", None, Notification(RESOURCES, {}))
        assert await stream.is_quiet()
        front.lists.publish("a", None, Notification(RESOURCES, {}))
        assert (await stream.next()).method == RESOURCES


async def test_in_transparent_mode_a_change_is_relayed_as_it_is_and_promised_as_it_was() -> None:
    server = Scripted("a", tools=["x"], capabilities={"tools": {"listChanged": True}, "prompts": {}})
    async with Front(server, prefixes={"a": ""}, transparent=True) as front, listen(front) as stream:
        assert await acknowledged(stream) == {"toolsListChanged": True}
        front.lists.publish("a", None, Notification(TOOLS, {}))
        assert (await stream.next()).method == TOOLS


async def test_a_server_that_comes_and_goes_changes_the_lists() -> None:
    server = Scripted("a", tools=["x"], capabilities={"tools": {}})
    async with Front(server) as front, listen(front) as stream:
        await acknowledged(stream)
        server.status = "down"
        front.lists.moved("a")
        assert (await stream.next()).method == TOOLS
        server.status = "up"
        front.lists.moved("a")
        assert (await stream.next()).method == TOOLS
        assert await stream.is_quiet()


@pytest.mark.parametrize("client", [CLIENT, LEGACY], ids=["modern", "legacy"])
async def test_a_server_that_comes_and_goes_is_told_once_for_each_list_that_the_client_sees_of_it(
    client: Client,
) -> None:
    """Not of prompts, of which it has none, nor of a server on which the client has no right."""
    server, hidden = Scripted("a", tools=["x"], resources=["file:///r"]), Scripted("b", tools=["y"])
    async with (
        Front(server, hidden, hide=lambda key, own: key == "b") as front,
        listen(front, client=client) as stream,
    ):
        await acknowledged(stream)
        for status in ("down", "up"):
            for one in (server, hidden):
                one.status = status
                front.lists.moved(one.key)
            assert {(await stream.next()).method for _ in range(2)} == {TOOLS, RESOURCES}
            assert await stream.is_quiet()


async def test_what_the_pins_say_of_a_server_is_no_change_of_its_resources() -> None:
    async with Front(Scripted("a", tools=["x"], resources=["file:///r"])) as front, listen(front) as stream:
        await acknowledged(stream)
        front.lists.reconsider(("a",))
        assert await stream.is_quiet()


async def test_who_is_not_up_in_time_is_not_waited_for_and_its_arrival_is_told(monkeypatch: Any) -> None:
    monkeypatch.setattr(listening, "ACKNOWLEDGE_WITHIN", 0.05)
    slow = Scripted("slow", tools=["x"])
    slow.is_ready = anyio.Event()
    async with Front(slow, list_timeout=60) as front, listen(front, {"toolsListChanged": True}) as stream:
        await acknowledged(stream)
        slow.is_ready.set()
        assert (await stream.next()).method == TOOLS
        assert slow.held == 1


async def test_a_hold_that_fails_is_tried_again_and_then_the_lists_are_walked_anew(monkeypatch: Any) -> None:
    monkeypatch.setattr(listening, "RETRY_FIRST", 0.01)
    server = Scripted("a", tools=["x"])
    server.status = "down"
    server.holds = [ConnectionError("no"), ConnectionError("no")]
    async with Front(server) as front, listen(front, {"toolsListChanged": True}) as stream:
        await acknowledged(stream)
        server.status = "up"
        assert (await stream.next()).method == TOOLS
        assert server.held == 1


async def test_what_is_said_of_a_task_is_for_who_may_still_use_its_tool() -> None:
    hidden = set[str]()
    old = replace(CLIENT, revision="2025-11-25", session="s1")
    async with Front(Scripted("a", tools=["x"]), hide=lambda key, own: own in hidden) as front:
        async with listen(front, {"toolsListChanged": True}, client=old) as stream:
            await acknowledged(stream)
            methods = ["notifications/progress", "notifications/tasks/status"]
            for number, may in enumerate((True, False, True)):
                (hidden.discard if may else hidden.add)("x")
                for method in methods:
                    said = TaskNotification(method, {"number": number}, Target("a", "tool", "x", "a__x"))
                    front.hub.publish(Event("a", session_scope("s1"), said))
                await anyio.wait_all_tasks_blocked()
            told = [await stream.next() for _ in range(4)]
            assert [(note.params["number"], note.method) for note in told] == [(n, m) for n in (0, 2) for m in methods]


async def test_closing_the_hub_ends_the_stream_gracefully() -> None:
    async with Front(Scripted("a")) as front:
        with anyio.fail_after(20):
            async with listen(front) as stream:
                await acknowledged(stream)
                front.hub.close()
                while stream.outcome is None:
                    await anyio.lowlevel.checkpoint()
        assert stream.outcome == Result({})


async def test_an_event_of_an_unasked_kind_never_arrives() -> None:
    async with Front(Scripted("a")) as front, listen(front) as stream:
        await acknowledged(stream)
        front.hub.publish(Event("a", None, Notification("notifications/message", {"data": "x"})))
        assert await stream.is_quiet()


# ---------------------------------------------------------------- listen: single resources

SUBSCRIBING: Json = {"resources": {"subscribe": True}}


def single(*uris: str) -> Json:
    return {"resourceSubscriptions": list(uris)}


def updated(uri: str) -> Notification:
    return Notification(UPDATED, {"uri": uri})


async def test_resources_are_subscribed_to_at_their_servers_and_updates_come_under_the_names_asked_for() -> None:
    a, b = Scripted("a", capabilities=SUBSCRIBING), Scripted("b", capabilities=SUBSCRIBING)
    uris = ["a+x:1", "b+x:1", "a+https://host/x"]
    async with Front(a, b) as front, listen(front, single(*uris)) as stream:
        assert sorted((await acknowledged(stream))["resourceSubscriptions"]) == sorted(uris)
        assert (a.held, b.held) == (0, 0), "no list was asked for"
        a.update("x:1", _meta={"k": 1})
        assert await stream.next() == updated("a+x:1"), "the URI alone: the rest is what its server wrote"
        a.update("https://host/x")
        assert await stream.next() == updated("a+https://host/x"), "a plain name, asked for with the prefix"
        b.update("x:1")
        assert await stream.next() == updated("b+x:1")
        a.told[0][1]({"uri": "x:1/part"})
        assert await stream.next() == updated("a+x:1/part")
        a.told[0][1]({"uri": "https://host/x/part"})
        assert await stream.next() == updated("https://host/x/part"), "as it is shown in lists"
    assert a.told == b.told == []


async def test_a_subscription_is_judged_like_a_read_when_it_is_made_and_at_each_update() -> None:
    hidden = {"x:secret"}
    server = Scripted("a", capabilities=SUBSCRIBING)
    wanted = ["a+x:1", "a+x:secret", "a+x:/../secret", "nobody+x:1", "x:1"]
    async with Front(server, hide=lambda key, own: own in hidden) as front, listen(front, single(*wanted)) as stream:
        promised = await stream.next()
        assert promised.params == {"notifications": single("a+x:1")}, "nothing tells what is denied from what is not"
        _, tell = server.told[0]
        tell({"uri": "x:secret"})
        tell({"uri": "x:/../1"})
        server.update("x:1")
        assert await stream.next() == updated("a+x:1")
        hidden.add("x:1")
        server.update("x:1")
        tell({"uri": "x:2"})
        assert await stream.next() == updated("a+x:2")


async def test_updates_that_take_long_to_judge_are_judged_one_in_a_step() -> None:
    server, judged, count = Scripted("a", capabilities=SUBSCRIBING), Counter[int](), 8

    def slow(key: str, own: str) -> bool:
        if own.startswith("x:late"):
            time.sleep(2 * STEP)
            judged.update([steps.now])
        return True  # hidden, so that nothing is sent, which would end the step

    async with Front(server, hide=lambda key, own: own != "*" and own != "x:1" and slow(key, own)) as front:
        async with listen(front, single("a+x:1")) as stream:
            await acknowledged(stream)
            steps = Steps()
            for number in range(count):
                server.told[0][1]({"uri": f"x:late{number}"})
            with anyio.fail_after(60):
                while judged.total() < count:
                    await anyio.lowlevel.checkpoint()
            steps.stop()
    assert max(judged.values()) == 1


async def test_what_a_server_refuses_is_said_in_the_acknowledgement_with_its_reason() -> None:
    able, unable = Scripted("a", capabilities=SUBSCRIBING), Scripted("b", capabilities={"resources": {}})
    able.refuses = {"x:gone": not_found("resources/read", {"uri": "x:gone"}), "x:no": Failure(-32000, "not this one")}
    async with Front(able, unable) as front:
        await front.lists.snapshot("b", CLIENT)
        async with listen(front, single("a+x:1", "a+x:gone", "a+x:no", "b+x:1")) as stream:
            promised = (await stream.next()).params
            assert promised["notifications"] == single("a+x:1")
            assert promised["_meta"][listening.REFUSED] == {
                "a+x:no": {"code": -32000, "message": "not this one"},
                "b+x:1": {"code": METHOD_NOT_FOUND, "message": "The server of this resource has no subscriptions"},
            }


async def test_why_nobody_subscribes_to_what_is_asked_about_is_said_in_both_eras() -> None:
    server, denied = Scripted("a", capabilities=SUBSCRIBING), "a+x:denied"
    async with Front(server, asked=["x:asked", "x:denied"], hide=lambda key, own: own == "x:denied") as front:
        async with listen(front, single("a+x:1", "a+x:asked", denied)) as stream:
            promised = (await stream.next()).params
            assert promised["notifications"] == single("a+x:1")
            said = {"code": METHOD_NOT_FOUND, "message": "Nobody subscribes to a resource whose reads are asked about"}
            assert promised["_meta"][listening.REFUSED] == {"a+x:asked": said}
        async with listen(front, single("a+x:1"), LEGACY) as stream:
            change = {"stream": (await stream.next()).params["_meta"][listening.STREAM], "wanted": True}
            outcomes = [
                await front.ask("subscriptions/listen", LEGACY, notifications=single(uri), **{listening.CHANGE: change})
                for uri in ("a+x:asked", denied)
            ]
            assert outcomes == [Failure(**said), not_found("resources/read", {"uri": denied})]


@pytest.mark.parametrize(("mode", "said"), [
    ("warn", "not this one"), ("block", "The server refused the subscription"), ("off", "not\x1b[0m this one"),
])  # fmt: skip
async def test_what_a_server_says_when_it_refuses_is_inspected(mode: Any, said: str) -> None:
    server = Scripted("a", capabilities=SUBSCRIBING)
    server.refuses = {"x:no": Failure(-32000, "not\x1b[0m this one")}
    inspected = partial(inspect_task_state, inspect_params({"a": mode}))
    async with Front(server, inspected=inspected) as front, listen(front, single("a+x:no")) as stream:
        refused = (await stream.next()).params["_meta"][listening.REFUSED]
        assert refused == {"a+x:no": {"code": -32000, "message": said}}


async def test_a_server_that_cannot_be_reached_is_subscribed_to_when_it_can_and_then_told_of(monkeypatch: Any) -> None:
    monkeypatch.setattr(listening, "RETRY_FIRST", 0.01)
    server = Scripted("a", capabilities=SUBSCRIBING)
    server.status = "down"
    server.holds = [ConnectionError("no"), ConnectionError("no")]
    async with Front(server) as front, listen(front, single("a+x:1")) as stream:
        assert await acknowledged(stream) == single("a+x:1")
        assert await stream.next() == updated("a+x:1"), "it may have changed meanwhile"
        server.update("x:1")
        assert await stream.next() == updated("a+x:1")


async def test_updates_that_nobody_takes_are_told_once_and_bounded() -> None:
    server = Scripted("a", capabilities=SUBSCRIBING)
    taken, go = [], anyio.Event()

    last, is_last = updated(f"a+x:1/{3 * MAX_PENDING - 1}"), anyio.Event()

    async def slow(notification: Notification) -> None:
        taken.append(notification)
        if notification == last:
            is_last.set()
        if notification.method == UPDATED:
            await go.wait()

    async with Front(server) as front, anyio.create_task_group() as group:
        wanted = {"notifications": single("a+x:1")}
        group.start_soon(front.router, Call(CLIENT, "subscriptions/listen", wanted, emit=slow))
        while not (server.told and taken):
            await anyio.lowlevel.checkpoint()
        for _ in range(3):
            server.update("x:1")
        await anyio.wait_all_tasks_blocked()
        for number in range(3 * MAX_PENDING):
            server.update("x:1")
            server.told[0][1]({"uri": f"x:1/{number}"})
        go.set()
        with anyio.fail_after(20):  # on a busy machine the server waits for its turn before its updates are judged
            await is_last.wait()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert len(taken) <= 2 + MAX_PENDING and taken[-1] == last


async def test_too_many_resources_in_one_subscription_are_refused() -> None:
    async with Front(Scripted("a")) as front:
        wanted = single(*(f"a+x:{number}" for number in range(listening.MAX_RESOURCES + 1)))
        outcome = await front.ask("subscriptions/listen", notifications=wanted)
        assert isinstance(outcome, Failure) and outcome.code == INVALID_PARAMS


async def test_subscriptions_are_declared_where_a_server_that_the_client_may_see_has_them() -> None:
    a, b = Scripted("a"), Scripted("b", capabilities=SUBSCRIBING)
    hidden = {"*"}
    async with Front(a, b, hide=lambda key, own: key == "b" and own in hidden) as front:
        assert "subscribe" not in (await front.page("server/discover"))["capabilities"]["resources"]
        hidden.clear()
        assert (await front.page("server/discover"))["capabilities"]["resources"]["subscribe"] is True
        b.status = "down"
        assert (await front.page("server/discover"))["capabilities"]["resources"]["subscribe"] is True
