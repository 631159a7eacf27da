"""Large requests: what is judged before they are decoded, in how many steps they are, and many small ones at once."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import pytest
from listen_harness import Site, call, modern, open_session, patch, post, site, until
from loop_steps import Steps
from test_listen_sse import stream
from test_listen_stdio import connected, request, tool
from test_listen_stdio import modern as modern_line

from sluicegate.listen import large_requests, stdio
from sluicegate.listen.http_request import UNASKED, HttpRequest
from sluicegate.listen.large_requests import LargeRequests
from sluicegate.listen.line_streams import TURN
from sluicegate.listen.settings import ListenSettings
from sluicegate.protocol import jsonrpc
from sluicegate.protocol.jsonrpc import dump
from sluicegate.protocol.model import MODERN, Call, Client, Failure, Outcome, Result, Target, Trail
from sluicegate.runtime import own_steps
from sluicegate.runtime.loop_budget import budget_of

pytestmark = pytest.mark.usefixtures("no_piece_is_short")

TEXT = "x" * large_requests.LARGE


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("coding", ["length", "chunked"])
async def test_what_the_clients_rate_refuses_is_not_decoded(era: str, coding: str, decoded: list[int]) -> None:
    spent = set[str]()
    async with site(until_free=lambda principal: 2.5 if principal in spent else 0.0) as here, here.client() as client:
        headers, body = modern("tools/call", name="echo", arguments={"text": TEXT})
        if era == "legacy":
            await open_session(client)
            headers, body = {}, call("echo", text=TEXT)
        data = jsonrpc.dump(body)

        async def pieces() -> Any:
            for start in range(0, len(data), 1000):
                yield data[start : start + 1000]

        async def send() -> Any:
            headers["content-type"] = "application/json"
            content = data if coding == "length" else pieces()
            return await client.post("/mcp", content=content, headers=headers)

        assert (await send()).status_code == 200
        spent.add("key:a")
        before, calls = len(decoded), len(here.handler.calls)
        refused = await send()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
        assert refused.json()["error"]["data"] == {"reason": "rate_limited"}
        assert (len(decoded), len(here.handler.calls)) == (before, calls)


async def test_nor_on_an_event_stream_of_the_2024_transport(decoded: list[int]) -> None:
    spent = set[str]()
    async with site(until_free=lambda principal: 9.0 if principal in spent else 0.0) as here, stream(here) as client:
        await client.initialize()
        spent.add("key:a")
        before = len(decoded)
        assert await client.post(call("echo", text=TEXT)) == 429
        assert len(decoded) == before


async def test_on_a_pipe_the_refusal_names_the_request(decoded: list[int]) -> None:
    async with connected(until_free=lambda principal: 9.0) as wire:
        for message in (tool("echo", 7, {"text": TEXT}), modern_line(tool("echo", 7, {"text": TEXT}))):
            answer = await wire.ask(message)
            assert (answer["id"], answer["error"]["data"]) == (7, {"reason": "rate_limited"})
        assert not decoded and not wire.peer.calls


async def test_the_bytes_that_one_client_has_in_flight_are_bounded(decoded: list[int]) -> None:
    settings = patch(ListenSettings(), "limits", in_flight=3 * large_requests.LARGE)
    async with site(settings) as here, here.client() as client:
        await open_session(client)
        first = await here.raw(post(call("slow", text=TEXT), f"Mcp-Session-Id: {client.headers['mcp-session-id']}"))
        await here.handler.waiting.wait()
        before = len(decoded)
        refused = await client.post("/mcp", json=call("echo", text=TEXT * 2))
        assert refused.status_code == 429 and refused.json()["error"]["data"] == {"reason": "rate_limited"}
        assert len(decoded) == before
        assert (await client.post("/mcp", json=call("echo", text="small"))).status_code == 200
        here.handler.go.set()
        await until(lambda: here.handler.ended.is_set())
        first.close()
        with anyio.fail_after(10):
            while (await client.post("/mcp", json=call("echo", text=TEXT * 2))).status_code != 200:
                await anyio.lowlevel.checkpoint()


async def test_over_an_event_stream_a_request_is_in_flight_until_its_call_has_ended() -> None:
    settings = patch(ListenSettings(), "limits", in_flight=3 * large_requests.LARGE)
    async with site(settings) as here, here.client() as other:
        async with stream(here) as client:
            await client.initialize()
            assert await client.post(call("slow", text=TEXT)) == 202
            await here.handler.waiting.wait()
            assert await client.post(call("echo", text=TEXT * 2)) == 429
            here.handler.go.set()
            await client.receive()
            await until(lambda: here.handler.ended.is_set())
            assert await client.ask(call("echo", text=TEXT * 2))
            here.handler.waiting = anyio.Event()
            assert await client.post(call("wait", text=TEXT)) == 202
            await here.handler.waiting.wait()
        await open_session(other)  # the end of the stream ends the call, and what it held
        with anyio.fail_after(10):
            while (await other.post("/mcp", json=call("echo", text=TEXT * 2))).status_code != 200:
                await anyio.lowlevel.checkpoint()


def large(site: Site) -> LargeRequests:
    return site.listener._context.large


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[HttpRequest]:
    """Those whose body was made one piece."""
    taken: list[HttpRequest] = []
    take = HttpRequest.take_body

    def noted(request: HttpRequest, limit: int) -> bytes:
        taken.append(request)
        return take(request, limit)

    monkeypatch.setattr(HttpRequest, "take_body", noted)
    return taken


async def test_a_large_body_is_one_piece_when_its_turn_comes_and_gone_when_it_is_decoded(
    bodies: list[HttpRequest],
) -> None:
    async with site() as here:
        headers, body = modern("tools/call", name="slow", arguments={"text": TEXT})
        lines = [f"{name}: {value}" for name, value in headers.items()]
        turn = large(here).budget_of("key:a").turn
        async with turn:
            raws = [await here.raw(post(body, *lines)) for _ in range(3)]
            await until(lambda: large(here)._held["key:a"] > 3 * len(TEXT))
            await until(lambda: len(turn._waiters or ()) == 3)
            assert bodies == []
        await until(lambda: len(here.handler.calls) == 3)
        assert [request._parts for request in bodies] == [[], [], []]
        here.handler.go.set()
        for raw in raws:
            assert (await raw.head())[0] == 200
        await until(lambda: not large(here)._held)


async def test_a_body_that_nobody_has_asked_for_is_not_read_when_its_client_has_rested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for its refusal: its client has as much in flight as it may."""
    fed: list[HttpRequest] = []
    feed = HttpRequest.feed
    monkeypatch.setattr(HttpRequest, "feed", lambda request, data: (fed.append(request), feed(request, data))[1])
    async with site() as here:
        requests = large(here)
        budget = requests.budget_of("key:a")
        requests._held["key:a"] = requests._limits.in_flight
        async with budget.turn:
            budget.charge(1.0)
            headers, body = modern("tools/call", name="slow", arguments={"text": "x" * 2**21})
            data = post(body, *(f"{name}: {value}" for name, value in headers.items()))
            raw = await here.raw(data[:4096])
            await until(lambda: bool(fed) and fed[0].budget is not None)
            raw.writer.write(data[4096:])
            await until(lambda: fed[0]._resting is not None and fed[0]._resting.done())
            for _ in range(100):
                await asyncio.sleep(0)
            assert fed[0].size <= UNASKED + 2**18
        del requests._held["key:a"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_body_of_a_client_that_has_gone_is_not_decoded(
    era: str, bodies: list[HttpRequest], decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[HttpRequest] = []
    lose = HttpRequest.lose
    monkeypatch.setattr(HttpRequest, "lose", lambda request: (lost.append(request), lose(request)))
    async with site() as here, here.client() as client:
        headers, body = modern("tools/call", name="echo", arguments={"text": TEXT})
        lines = [f"{name}: {value}" for name, value in headers.items()]
        if era == "legacy":
            body, lines = call("echo", text=TEXT), [f"Mcp-Session-Id: {await open_session(client)}"]
        turn, before = large(here).budget_of("key:a").turn, len(decoded)
        async with turn:
            raws = [await here.raw(post(body, *lines)) for _ in range(3)]
            await until(lambda: len(turn._waiters or ()) == 3)
            for raw in raws:
                raw.close()
            await until(lambda: len(lost) == 3)
            assert not any(request._parts for request in lost)
        await until(lambda: not large(here)._held)
        assert len(bodies) == 3, "each of them came to its turn"
        assert len(decoded) == before
        assert not [one for one in here.handler.calls if one.method == "tools/call"]


@pytest.mark.parametrize("value", [[{}] * 9_000, "x" * 16_384 + "\U0001f600"], ids=["objects", "wide characters"])
async def test_what_is_decoded_is_in_flight_with_the_memory_that_it_takes(value: Any) -> None:
    settings = patch(ListenSettings(), "limits", in_flight=6 * large_requests.LARGE)
    async with site(settings) as here, here.client() as client:
        first = await here.raw(post(call("slow", text=value), f"Mcp-Session-Id: {await open_session(client)}"))
        await here.handler.waiting.wait()
        assert large(here)._held["key:a"] > 4 * large_requests.LARGE
        refused = await client.post("/mcp", json=call("echo", text=value))
        assert refused.status_code == 429 and refused.json()["error"]["data"] == {"reason": "rate_limited"}
        here.handler.go.set()
        assert (await first.head())[0] == 200
        await until(lambda: not large(here)._held)
        assert (await client.post("/mcp", json=call("echo", text=value))).status_code == 200


def test_memory_is_that_of_all_parts() -> None:
    text = "é" * 100_000
    assert large_requests.memory_of({"a": [text, text]}) > 2 * sys.getsizeof(text)
    assert large_requests.memory_of([[0]] * 1_000) >= 1_000 * sys.getsizeof([0])


async def test_large_ones_of_a_client_are_decoded_in_turn_and_each_in_three_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, seen = Steps(), []  # type: tuple[Steps, list[tuple[str, int]]]

    def noted(name: str, inner: Any, *args: Any) -> Any:
        seen.append((name, steps.now))
        return inner(*args)

    for name in ("weigh", "decode_weighed", "memory_of"):
        monkeypatch.setattr(large_requests, name, partial(noted, name, getattr(large_requests, name)))
    async with site() as here, here.client() as client:
        id = f"Mcp-Session-Id: {await open_session(client)}"
        raws = [await here.raw(post(call("echo", text=TEXT), id)) for _ in range(5)]
        for raw in raws:
            assert (await raw.head())[0] == 200
    steps.stop()
    assert [name for name, _ in seen] == ["weigh", "decode_weighed", "memory_of"] * 5
    assert len({step for _, step in seen}) == len(seen)


def refusing(name: str) -> Outcome:
    return {
        "none": Failure(-32602, "Unknown tool: none"),
        "denied": Result({"content": [], "isError": True}, reason="denied"),
        "failed": Failure(-32000, "the server says so"),
    }.get(name) or Result({"content": []})


async def test_whose_requests_are_refused_comes_in_by_turns_and_nobody_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failure that a server made, after some time there, is no refusal. Each request takes a second, so that what is
    charged for it is not paid back while a busy machine does something else."""
    clock = [0.0]
    monkeypatch.setattr(own_steps, "perf_counter", lambda: clock[0])
    requests = large_requests.LargeRequests(ListenSettings().limits)

    async def handler(call: Call) -> Outcome:
        clock[0] += 1
        name = str(call.params["name"])
        call.trail.wait_seconds = 0.1 if name == "failed" else 0.0
        return refusing(name)

    for name in ("none", "denied", "failed", "fine"):
        client = Client(name)
        await requests.handle(handler, Call(client, "tools/call", {"name": name}, trail=Trail()))
    known = ("none", "denied", "failed", "fine", "new")
    assert [name for name in known if not requests.may_enter(name)] == ["none", "denied"]


async def test_a_refused_call_is_charged_for_its_own_steps_and_not_for_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor for its wait: the store answers in a thread or a task of its own."""
    clock = [0.0]
    monkeypatch.setattr(own_steps, "perf_counter", lambda: clock[0])
    requests = large_requests.LargeRequests(ListenSettings().limits)
    charged: list[tuple[str, float, float]] = []
    monkeypatch.setattr(requests, "refused", lambda *charge: charged.append(charge))

    async def handler(call: Call) -> Outcome:
        work = float(str(call.params["name"]))
        for _ in range(3):
            clock[0] += work
            await asyncio.sleep(0)
        return refusing("denied")

    async with anyio.create_task_group() as group:
        for name, work in (("a", "1"), ("b", "10"), ("c", "100")):
            call = Call(Client(name), "tools/call", {"name": work}, trail=Trail())
            group.start_soon(requests.handle, handler, call)
    assert charged == [("a", 3.0, 1.0), ("b", 30.0, 10.0), ("c", 300.0, 100.0)]


@pytest.mark.parametrize("ending", ["answered", "cancelled", "failed", "gone"])
async def test_a_request_lasts_until_its_audit_record_is_composed_and_pays_for_it(ending: str) -> None:
    """However it ends: the record holds its arguments, and the thread that composes it holds the interpreter's lock."""
    requests = large_requests.LargeRequests(ListenSettings().limits)
    composing, reached = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def handler(call: Call) -> Outcome:
        call.trail.composing, call.trail.compose_seconds = composing, 1.0
        reached.set()
        if ending == "failed":
            raise ValueError
        if ending == "cancelled":
            await asyncio.Event().wait()
        return Result({"content": []})

    over = False

    async def send() -> None:
        nonlocal over
        try:
            with suppress(ValueError):
                await requests.handle(handler, Call(Client("a"), "tools/call", {}, trail=Trail()))
        finally:
            over = True

    async with anyio.create_task_group() as group:
        sending = asyncio.create_task(send()) if ending == "gone" else None
        if sending is None:
            group.start_soon(send)
        await reached.wait()
        if ending == "cancelled":
            group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            for _ in range(5):
                await asyncio.sleep(0)
                if sending is not None:
                    sending.cancel()  # as the end of its connection does
            assert not over
            composing.set_result(None)
            if sending is not None:
                await asyncio.wait([sending])
    assert over and not requests.may_enter("a") and requests.budget_of("a").pause() > 0.0


async def test_what_a_large_answer_takes_in_the_log_is_paid_by_its_server() -> None:
    """Else a server could use up the part of whoever calls it."""
    requests = large_requests.LargeRequests(ListenSettings().limits)

    async def handler(call: Call) -> Outcome:
        call.trail.set_target(Target("big", "tool", "t", "big__t"))
        call.trail.composing = asyncio.get_running_loop().create_future()
        call.trail.composing.set_result(None)
        call.trail.answer_seconds = 1.0
        return Result({"content": []})

    await requests.handle(handler, Call(Client("a"), "tools/call", {}, trail=Trail()))
    assert requests.may_enter("a") and budget_of("big").pause() > 0.0


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
CANCELLED = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}
MISMATCH = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "other"}
# Each asks for no call, and costs as much: headers, body, status.
UNCALLED: dict[str, tuple[dict[str, str], bytes, int]] = {
    "no JSON": ({}, b"{", 400),
    "no message": ({}, b'{"jsonrpc": "1.0"}', 400),
    "a mismatch of headers": (MISMATCH, dump(modern("tools/call", 1, "echo")[1]), 400),
    "a modern notification": ({"mcp-protocol-version": MODERN}, dump(CANCELLED), 202),
    "an unknown session": ({"mcp-session-id": "none"}, dump(PING), 404),
    "no session": ({}, dump(PING), 400),
    "an array": ({}, dump([PING]), 400),
    "another form": ({"content-type": "text/plain"}, dump(PING), 415),
    "no accepted answer": ({"accept": "text/plain"}, dump(PING), 406),
    "a bad handshake": ({}, dump({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}), 200),
}
SUBSCRIBE = {**PING, "method": "resources/subscribe"}
IN_SESSION: dict[str, tuple[dict[str, object], int]] = {
    "a ping": (PING, 200), "a notification": (CANCELLED, 202),
    "an unknown method": ({**PING, "method": "none/such"}, 200),
    "an answer": ({"jsonrpc": "2.0", "id": 7, "result": {}}, 202),
    "a subscription to nothing": (SUBSCRIBE, 200),
    "the end of a subscription that is none": ({**SUBSCRIBE, "method": "resources/unsubscribe",
                                                "params": {"uri": "a://b"}}, 200),
}  # fmt: skip


@pytest.mark.parametrize("shape", UNCALLED)
async def test_a_request_that_leads_to_no_call_is_paid_as_one_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    head, body, status = UNCALLED[shape]
    async with site() as here, here.client() as client, paid(monkeypatch) as seen:
        answer = await client.post("/mcp", content=body, headers={"content-type": "application/json", **head})
        assert answer.status_code == status, answer.text
    assert seen == ["key:a"]


@pytest.mark.parametrize("shape", IN_SESSION)
async def test_in_a_session_too(monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    body, status = IN_SESSION[shape]
    async with site() as here, here.client() as client:
        await open_session(client)
        async with paid(monkeypatch) as seen:
            assert (await client.post("/mcp", json=body)).status_code == status
    assert seen == ["key:a"]


NO_POST = [
    ("PUT", "/mcp", 405), ("GET", "/mcp", 404), ("DELETE", "/mcp", 404), ("PUT", "/sse", 405), ("GET", "/messages", 405)
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "status"), NO_POST)
async def test_so_is_what_is_no_post(monkeypatch: pytest.MonkeyPatch, method: str, path: str, status: int) -> None:
    """It waits for its client's turn, too."""
    async with site() as here, here.client() as client:
        async with paid(monkeypatch) as seen:
            entered: list[str] = []
            monkeypatch.setattr(LargeRequests, "enter", lambda self, name: _note(entered, name))
            answer = await client.request(method, path, headers={"mcp-session-id": "none"})
            assert answer.status_code == status, answer.text
    assert seen == entered == ["key:a"]


NO_STREAM: list[tuple[str, dict[str, str], int]] = [
    ("PUT", {}, 405), ("GET", {"accept": "text/plain"}, 406), ("GET", {"last-event-id": "none"}, 400)
]  # fmt: skip


@pytest.mark.parametrize(("method", "head", "status"), NO_STREAM)
async def test_in_a_session_too_but_for_its_end(
    monkeypatch: pytest.MonkeyPatch, method: str, head: dict[str, str], status: int
) -> None:
    async with site() as here, here.client() as client:
        await open_session(client)
        async with paid(monkeypatch) as seen:
            assert (await client.request(method, "/mcp", headers=head)).status_code == status
            assert seen == ["key:a"]
            monkeypatch.setattr(LargeRequests, "enter", lambda self, name: anyio.sleep_forever())
            assert (await client.delete("/mcp")).status_code == 200


async def _note(seen: list[str], name: str) -> None:
    seen.append(name)


@pytest.mark.parametrize("others", [0, 1, 49])
async def test_of_an_array_each_that_is_no_call_is_paid(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    pings = [{**PING, "id": f"p{number}"} for number in range(others)]
    async with site() as here, here.client() as client:
        await open_session(client, "2025-03-26")
        async with paid(monkeypatch) as seen:
            answer = await client.post("/mcp", json=[call("echo"), *pings])
            assert answer.status_code == 200, answer.text
            assert seen == ["key:a"] * others


async def test_what_leads_to_a_call_pays_only_where_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as here, here.client() as client, paid(monkeypatch) as seen:
        await open_session(client)
        assert seen.pop() == "key:a" and not seen, "of its two messages the notification alone"
        assert (await client.post("/mcp", json=call("echo"))).status_code == 200
        head, body = modern("tools/call", 1, "echo")
        del client.headers["mcp-session-id"]
        assert (await client.post("/mcp", json=body, headers=head)).status_code == 200
    assert seen == []


async def test_on_the_2024_transport_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as here, stream(here) as client, here.client() as other, paid(monkeypatch) as seen:
        assert await client.post(PING) == 202
        await until(lambda: seen == ["key:a"])
        assert (await other.post("/messages?session_id=none", json=PING)).status_code == 404
        await until(lambda: seen == ["key:a"] * 2)
        await client.receive()  # the pong
        await client.initialize("2025-11-25")
        await until(lambda: len(seen) == 3)
        await client.ask(call("echo", id="x"))
        assert len(seen) == 3
        assert await client.post(SUBSCRIBE) == 202
        await until(lambda: len(seen) == 4)


HUGE = f'{{"jsonrpc":"2.0","id":1e999,"method":"x","params":{{"text":"{TEXT * 2}"}}}}'.encode()


async def test_a_large_message_with_a_number_that_is_out_of_range_is_refused_and_ends_nothing() -> None:
    async with site() as here, here.client() as client:
        refused = await client.post("/mcp", content=HUGE, headers={"content-type": "application/json"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, jsonrpc.PARSE_ERROR)
        await open_session(client)
        assert (await client.post("/mcp", json=call("echo"))).status_code == 200
    async with connected() as wire:
        await wire.send(HUGE)
        assert (await wire.receive())["error"]["code"] == jsonrpc.PARSE_ERROR
        await wire.send(request("ping"))
        assert (await wire.receive())["result"] == {}


async def test_a_large_message_that_is_none_is_not_in_flight_any_more() -> None:
    async with site() as here, stream(here) as client:
        assert await client.post({"jsonrpc": "2.0", "id": {}, "method": "x", "params": {"text": TEXT * 2}}) == 400
        assert not here.listener._context.large._held


@asynccontextmanager
async def paid(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """The principals that paid for a refusal."""
    seen: list[str] = []
    monkeypatch.setattr(LargeRequests, "refused", lambda self, principal, *cost: seen.append(principal))
    yield seen


async def test_of_many_small_lines_at_once_few_are_taken_in_a_step() -> None:
    steps, taken = Steps(), Counter[int]()

    async def handler(call: Call) -> Outcome:
        return Result({})

    take = stdio._take

    async def counted(*args: Any) -> None:
        taken[steps.now] += 1
        await take(*args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stdio, "_take", counted)
        async with connected(handler) as wire:
            for line in (b"", b"{", b'{"jsonrpc":"2.0","method":"notifications/x"}'):
                await wire.send(*[line] * 2_000)
            with anyio.fail_after(10):
                while (await wire.ask(request("ping", "end"))).get("id") != "end":
                    pass
    steps.stop()
    assert taken.total() > 6_000 and max(taken.values()) <= TURN


async def test_the_work_of_a_stream_counts_for_the_client_that_asks_for_it() -> None:
    requests = LargeRequests(ListenSettings().limits)
    spends: list[object] = []

    async def handler(call: Call) -> Outcome:
        spends.append(call.trail.spend)
        return Result({})

    for method in ("subscriptions/listen", "tools/call"):
        await requests.handle(handler, Call(Client("a"), method, {}, trail=Trail()))
    assert spends == [requests.budget_of("a").charge_and_rest, None]


async def test_a_small_body_of_many_values_is_in_flight_with_the_memory_that_it_takes() -> None:
    async with site(patch(ListenSettings(), "limits", in_flight=600_000)) as here, here.client() as client:
        await open_session(client)
        body = call("wait", lists=[[]] * 5_000)
        assert len(dump(body)) < large_requests.LARGE
        first = await here.raw(post(body, f"Mcp-Session-Id: {client.headers['mcp-session-id']}"))
        await here.handler.waiting.wait()
        first.close()  # its call goes on
        refused = await client.post("/mcp", json=call("echo", lists=[[]] * 5_000))
        assert (refused.status_code, refused.json()["error"]["data"]) == (429, {"reason": "rate_limited"})
        assert (await client.post("/mcp", json=call("echo"))).status_code == 200
        here.handler.go.set()
        await until(lambda: not here.listener._context.large._held)
        assert (await client.post("/mcp", json=call("echo", lists=[[]] * 5_000))).status_code == 200


async def test_a_small_body_in_chunks_is_in_flight_with_the_bytes_that_it_has() -> None:
    """Nobody says before how long it is, and it counted as the longest that may come."""

    async def chunks() -> AsyncIterator[bytes]:
        yield dump(call("echo", lists=[[]] * 1_000))

    async with site(patch(ListenSettings(), "limits", in_flight=1_000_000)) as here, here.client() as client:
        await open_session(client)
        answer = await client.post("/mcp", content=chunks(), headers={"content-type": "application/json"})
        assert answer.status_code == 200 and "isError" not in answer.json()["result"]
