"""The hub never waits, coalesces per (server, method, uri) and is bounded, whoever publishes however much."""

from collections import Counter
from contextlib import ExitStack

import anyio
from loop_steps import Steps
from waiting import until

from sluicegate.hub import MAX_SAID, Event, Hub
from sluicegate.protocol.jsonrpc import Notification
from sluicegate.protocol.model import session_scope


def event(server: str = "a", method: str = "m", uri: str | None = None, scope: str | None = None) -> Event:
    return Event(server, scope, Notification(method, {} if uri is None else {"uri": uri}))


def everything(event: Event) -> bool:
    return True


async def test_equal_events_are_one_and_others_keep_their_order() -> None:
    hub = Hub()
    with anyio.fail_after(20), hub.subscribe(everything) as events:
        for uri in ("x", "y", "x", "x"):
            hub.publish(event(uri=uri))
        hub.publish(event(method="other"))
        assert [await anext(events) for _ in range(3)] == [event(uri="x"), event(uri="y"), event(method="other")]
        hub.publish(event(uri="x"))
        assert await anext(events) == event(uri="x")


async def test_a_subscriber_hears_what_it_accepts_and_only_while_it_listens() -> None:
    hub = Hub()
    hub.publish(event("a"))
    with anyio.fail_after(20), hub.subscribe(lambda event: event.server == "b") as events:
        hub.publish(event("a"))
        hub.publish(event("b"))
        assert (await anext(events)).server == "b"
        assert repr(hub) == "Hub(1 subscriptions)"
    assert repr(hub) == "Hub(0 subscriptions)"


async def test_a_slow_subscriber_has_room_for_so_many_and_loses_the_oldest() -> None:
    hub = Hub(max_pending=3)
    with anyio.fail_after(20), hub.subscribe(everything) as events:
        for number in range(10):
            hub.publish(event(uri=str(number)))
        assert [(await anext(events)).notification.params["uri"] for _ in range(3)] == ["7", "8", "9"]


async def test_closing_ends_those_who_wait_those_to_come_and_no_event_is_lost() -> None:
    hub = Hub()
    heard: list[Event] = []

    async def listen() -> None:
        with hub.subscribe(everything) as events:
            async for one in events:
                heard.append(one)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            await anyio.lowlevel.checkpoint()
            hub.publish(event())
            hub.close()
        await listen()
    assert heard == [event()]


async def test_a_uri_of_an_odd_type_does_no_harm() -> None:
    hub = Hub()
    with anyio.fail_after(20), hub.subscribe(everything) as events:
        hub.publish(Event("a", None, Notification("m", {"uri": ["x"]})))
        assert (await anext(events)).notification.params == {"uri": ["x"]}


async def test_who_takes_a_thousand_events_lets_others_in_between() -> None:
    hub = Hub()
    steps = Steps()
    with anyio.fail_after(20), hub.subscribe(everything) as events:
        for number in range(1_000):
            hub.publish(Event("a", None, Notification("m", {"uri": f"u:{number}"})))
        before = steps.now
        for _ in range(1_000):
            await anext(events)
        assert steps.now - before >= 1_000 // 16
    steps.stop()


async def test_no_servers_flood_pushes_out_what_another_one_said() -> None:
    hub = Hub(max_pending=10)
    with anyio.fail_after(20), hub.subscribe(everything) as events:
        hub.publish(Event("good", None, Notification("m", {"uri": "u:good"})))
        for number in range(100):
            hub.publish(Event("bad", None, Notification("m", {"uri": f"u:{number}"})))
        told = [str((await anext(events)).notification.params["uri"]) for _ in range(10)]
    assert told == ["u:good", *(f"u:{number}" for number in range(91, 100))]


class Offers:
    """Counts the events that one step of the event loop offers, and accepts all."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.most = 0
        self._of_step = Counter[int]()

    def accept(self, event: Event) -> bool:
        self._of_step[self.steps.now] += 1
        self.most = max(self.most, self._of_step[self.steps.now])
        return True


async def test_where_very_many_listen_others_have_their_turn() -> None:
    hub, heard = Hub(), Counter[int]()
    offers = Offers()

    async def listen(number: int) -> None:
        with hub.subscribe(offers.accept) as events:
            async for one in events:
                heard[int(one.notification.params["uri"])] += 1

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(1_000):
                group.start_soon(listen, number)
            await until(lambda: repr(hub) == "Hub(1000 subscriptions)")
            for number in range(3):
                hub.publish(event(uri=str(number)))
            await until(lambda: heard.total() == 3_000)
            assert offers.most <= 64, "in one step"
            hub.publish(event(uri="3"))
            hub.close()  # what was published before is heard
    assert heard == dict.fromkeys(range(4), 1_000)
    offers.steps.stop()


async def test_what_changes_again_and_again_is_told_to_very_many_in_short_steps_and_at_last_once_more() -> None:
    hub, heard = Hub(), Counter[int]()
    offers = Offers()

    async def listen(number: int) -> None:
        with hub.subscribe(offers.accept) as events:
            async for _ in events:
                heard[number] += 1

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(1_000):
                group.start_soon(listen, number)
            await until(lambda: len(hub._subscriptions) == 1_000)
            for _ in range(500):
                hub.publish(event())
            assert len(hub._waiting) <= 1
            await until(lambda: not hub._waiting and hub._telling is None)
            told = dict(heard)
            hub.publish(event())
            await until(lambda: all(heard[number] > told[number] for number in range(1_000)))
            group.cancel_scope.cancel()
    assert offers.most <= 64, "in one step"
    assert max(told.values()) <= 2
    offers.steps.stop()


async def test_who_begins_to_listen_meanwhile_hears_what_is_published_from_then_on() -> None:
    hub = Hub()
    with ExitStack() as stack:
        before = [stack.enter_context(hub.subscribe(everything)) for _ in range(100)]
        hub.publish(event())
        hub.publish(event(method="other"))
        late = stack.enter_context(hub.subscribe(everything))
        hub.publish(event(method="third"))
        with anyio.fail_after(20):
            assert await anext(late) == event(method="third")
            told = [await anext(before[-1]) for _ in range(3)]
            assert told == [event(), event(method="other"), event(method="third")]
        hub.publish(event(method="other"))
        with anyio.fail_after(20):
            assert await anext(late) == event(method="other")


async def test_what_is_said_to_one_session_looks_at_nobody_else_and_keeps_its_order() -> None:
    hub, looked = Hub(max_pending=10_000), 0

    def accept(event: Event) -> bool:
        nonlocal looked
        looked += 1
        return True

    with ExitStack() as stack:
        stack.enter_context(hub.subscribe(accept))
        others = [stack.enter_context(hub.subscribe(accept, f"s{number}")) for number in range(100)]
        for number in range(300):
            hub.publish(event(uri=str(number), scope=session_scope("s7")))
        assert looked == 300
        with anyio.fail_after(20):
            got = [(await anext(others[7])).notification.params["uri"] for _ in range(300)]
        assert got == [str(number) for number in range(300)]
    hub.publish(event(scope=session_scope("s7")))
    assert looked == 300


async def test_what_was_said_to_a_session_and_waits_has_a_bound_on_its_bytes() -> None:
    hub, scope = Hub(), session_scope("s1")
    said = Event("a", scope, Notification("m", {"data": "x" * (MAX_SAID // 4)}))
    huge = Event("a", scope, Notification("huge", {"data": "x" * (2 * MAX_SAID)}))
    with anyio.fail_after(20), hub.subscribe(everything, "s1") as events:
        for _ in range(2):
            for _ in range(100):
                hub.publish(said)
            hub.publish(event())
            taken = [await anext(events) for _ in range(5)]
            assert taken == [said, said, said, said, event()], "the first is not weighed"
        hub.publish(huge)  # one alone has its place
        hub.publish(huge)
        hub.publish(said)
        assert [await anext(events), await anext(events)] == [huge, said]
        hub.publish(said)
        assert await anext(events) == said
