"""What a server says during one call, while nobody takes it: so many bytes of it wait, and no more."""

from asyncio import get_running_loop
from dataclasses import replace
from functools import partial

import pytest

from sluicegate.downstream.failures import Lost
from sluicegate.downstream.session.pending_request import MAX_WAITING_BYTES, PendingRequest
from sluicegate.downstream.session.suspended import LIGHT, MAX_PARKED_BYTES, InteractiveExchange, SuspendedCalls
from sluicegate.protocol.jsonrpc import Notification, Request, Response, size_of, weight_of
from sluicegate.protocol.model import Call, Client, Outcome, Trail

LARGE = "x" * (MAX_WAITING_BYTES // 3)


def call(heard: list[Notification]) -> Call:
    async def emit(note: Notification) -> None:
        heard.append(note)

    return Call(Client("key:a"), "tools/call", {"name": "t"}, emit=emit, trail=Trail("1"))


def message(number: int, text: str) -> Notification:
    return Notification("notifications/message", {"level": "error", "data": f"{number}{text}"})


async def test_notifications_that_wait_are_weighed_and_those_behind_them_are_dropped() -> None:
    heard: list[Notification] = []
    pending = PendingRequest(1, call(heard))
    for number in range(6):
        pending.offer(message(number, LARGE))
    pending.offer(message(6, "small"))
    await pending.flush()
    assert [note.params["data"][0] for note in heard] == ["0", "1", "6"]
    pending.offer(message(7, LARGE * 4))  # alone it may come: it is within the bound of a message
    await pending.flush()
    pending.offer(message(8, LARGE))
    await pending.flush()
    assert [note.params["data"][0] for note in heard[3:]] == ["7", "8"]


async def test_progress_is_of_no_other_call_under_another_spelling() -> None:
    """A client that ignores case would read that token, which may be one of another call of its own."""
    heard: list[Notification] = []
    asked = replace(call(heard), meta={"progressToken": "mine"})
    pending = PendingRequest(1, asked)
    known = {"progress": 1, "total": 2, "message": "m", "_meta": {"a": 1}}
    pending.progress(Notification("notifications/progress", {**known, "progressToken": 1, "PROGRESSTOKEN": 7}))
    await pending.flush()
    assert [note.params for note in heard] == [{**known, "progressToken": "mine"}]


async def test_the_open_questions_of_a_call_are_weighed_together() -> None:
    exchange = InteractiveExchange(1, call([]), 60.0, lambda exchange: None)
    asked = [exchange.asked(Request(number, "elicitation/create", {"message": LARGE})) for number in range(4)]
    assert asked == [True, True, False, False]
    assert exchange.asked(Request(9, "elicitation/create", {"message": "small"}))
    assert exchange.withdraw(0) and exchange.asked(Request(10, "elicitation/create", {"message": LARGE}))
    assert not exchange.asked(Request(11, "elicitation/create", {"message": "\ud800"})), "which JSON cannot say"
    exchange.settle()


def test_many_small_values_weigh_more_than_their_text() -> None:
    assert weight_of([[]] * 1_000) > 64 * 1_000 > 20 * size_of([[]] * 1_000)
    assert weight_of("x" * 1_000) < 1_100 and weight_of("\ud800") > MAX_PARKED_BYTES
    table = {"text": "a,\"b:[{\\" * 50_000, "\\": [1, 2]}
    assert 0 < weight_of(table) - size_of(table) < 1_000, "one text, whatever it says"


async def test_the_questions_of_all_calls_that_wait_at_a_server_are_weighed_together() -> None:
    suspended, ended = SuspendedCalls(), list[str]()

    def park(holder: str, number: int) -> None:
        exchange = InteractiveExchange(number, call([]), get_running_loop().time() + 60.0, lambda exchange: None)
        assert exchange.asked(Request(1, "elicitation/create", {"message": "x" * (MAX_WAITING_BYTES - 1_000)}))
        exchange.park()
        suspended.park(exchange, holder, resume, lambda why: ended.append(f"{holder} {number}"))
        exchange.settle()

    async def resume(call: Call) -> Outcome:
        raise AssertionError

    most = MAX_PARKED_BYTES // MAX_WAITING_BYTES
    park("b", 0)
    for number in range(most + 1):
        park("a", number)
    assert ended == ["a 0", "a 1"] and len(suspended) == most
    suspended.close()
    park("b", 1)
    assert len(suspended) == 1 and len(ended) == 2 + most
    suspended.close()


async def test_calls_that_end_to_make_room_end_one_after_the_other() -> None:
    """Each within the end of the one before it, a hundred of one client would be too deep for the interpreter."""
    suspended, ends = SuspendedCalls(), list[str]()

    async def resume(call: Call) -> Outcome:
        raise AssertionError

    def give_up(exchange: InteractiveExchange, why: str) -> None:
        ends.append("begin")
        exchange.close()
        ends.append("end")

    for number in range(MAX_PARKED_BYTES // MAX_WAITING_BYTES):
        exchange = InteractiveExchange(number, call([]), get_running_loop().time() + 60.0, suspended.weigh)
        assert exchange.asked(Request(1, "elicitation/create", {"message": "x" * (MAX_WAITING_BYTES - 1_000)}))
        exchange.park()
        suspended.park(exchange, "a", resume, partial(give_up, exchange))
    exchange.settle(Response(number, {"text": "x" * LIGHT}))
    assert ends == ["begin", "end"] * 2
    suspended.close()


async def test_a_question_is_weighed_once_however_many_come_after_it() -> None:
    exchange = InteractiveExchange(1, call([]), 60.0, lambda exchange: None)
    first = {"message": LARGE}
    assert exchange.asked(Request(1, "elicitation/create", first))
    first["message"] = "\ud800"  # of what JSON cannot say, the weight is over any bound
    assert exchange.asked(Request(2, "elicitation/create", {"message": "small"}))
    exchange.answered({"ask1"})
    assert exchange.asked(Request(3, "elicitation/create", {"message": LARGE}))
    assert exchange.asked(Request(4, "elicitation/create", {"message": LARGE}))
    assert not exchange.asked(Request(5, "elicitation/create", {"message": LARGE}))
    exchange.settle()


async def test_what_a_server_says_of_its_own_hop_does_not_go_on() -> None:
    heard: list[Notification] = []
    pending = PendingRequest(1, call(heard))
    hop = {f"io.modelcontextprotocol/{name}": 1 for name in ("serverInfo", "subscriptionId", "related-task")}
    pending.offer(Notification("notifications/progress", {"progress": 1, "_meta": {**hop, "k": 1}}))
    pending.offer(Notification("notifications/message", {"data": "x", "_meta": hop}))
    await pending.flush()
    assert [note.params for note in heard] == [{"progress": 1, "_meta": {"k": 1}}, {"data": "x"}]


async def test_what_the_server_has_begun_may_have_been_executed_however_it_ends() -> None:
    for begun in (False, True):
        pending = PendingRequest(1, call([]))
        if begun:
            pending.progress(Notification("notifications/progress", {"progress": 1}))
        pending.settle(error=Lost("the server wants valid credentials", sent=False, gone=True, status=401))
        with pytest.raises(Lost) as ended:
            await pending.result()
        assert (ended.value.sent, ended.value.gone, ended.value.status) == (begun, True, 401)
