"""Servers whose messages have more values than are decoded: what becomes of the call, on each wire and in both eras."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from loop_steps import QuietSteps, Steps
from scripted_servers import LEGACY, MODERN, Asked, child, endpoint, event, legacy_start, modern_start, running
from test_legacy_sse_servers import Older

from sluicegate.downstream.server_output import StderrTail
from sluicegate.downstream.session import connection
from sluicegate.downstream.settings import ServerSettings
from sluicegate.downstream.transport.stdio_transport import _EACH, Lines, StdioTransport
from sluicegate.http.sse import EventParser
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Outcome, Result
from sluicegate.runtime.loop_budget import PIECE, LoopBudget

pytestmark = pytest.mark.usefixtures("no_piece_is_short")

MOST = 1_000
SHAPES: dict[str, Any] = {
    "numbers": [1] * MOST,
    "texts": [""] * MOST,
    "lists": [[]] * MOST,
    "objects": [{}] * MOST,
    "pairs": {f"k{number}": 1 for number in range(MOST)},
    "long numbers": [10**4_000] * 2,
    "astral characters": ["\U0001f600"] * MOST,
    "escapes": ['\\"\n'] * MOST,
}


def wide(shape: Any) -> Json:
    return {"content": [], "structuredContent": {"a": shape}, "resultType": "complete"}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_answer_with_too_many_values_is_not_decoded(era: str, shape: Any, decoded: list[int]) -> None:
    async def script(asked: Asked) -> None:
        if await (modern_start if era == "modern" else legacy_start)(asked):
            return
        answer = {"jsonrpc": "2.0", "id": asked.message["id"], "result": wide(shape)}
        match asked.message["params"]["name"]:
            case "stream":
                await asked.stream(event(answer))
            case "body":
                await asked.reply(answer)
            case _:
                await asked.result({"content": [{"type": "text", "text": '"done"'}], "resultType": "complete"})

    client = MODERN if era == "modern" else LEGACY
    async with endpoint(script) as (url, _), running(url=url, era=era, nodes=MOST) as rig:
        assert await rig.reason("body", client) == "result_too_large"
        assert await rig.reason("stream", client) == "result_too_large"
        assert await rig.tool("other", client=client) == "done"
        assert rig.server.status == "up"
    assert max(decoded) < len(json.dumps(shape))


@pytest.mark.parametrize("modes", [(), ("modern",)], ids=["legacy", "modern"])
@pytest.mark.parametrize("order", ["first", "last"])
async def test_a_childs_call_ends_and_the_child_stays(modes: tuple[str, ...], order: str, decoded: list[int]) -> None:
    era = "modern" if modes else "legacy"
    async with running(command=child(*modes), era=era, nodes=MOST) as rig:
        assert await rig.reason(f"wide {order}") == "result_too_large"
        assert await rig.tool("echo", {"a": 1}) == {"a": 1}
    assert max(decoded) < 2 * MOST


async def test_an_event_of_the_2024_transport_ends_its_call_alone(decoded: list[int]) -> None:
    async def act(server: Older, asked: Asked) -> Json | None:
        if asked.message["params"]["name"] == "wide":
            return wide([1] * MOST)
        return {"content": [{"type": "text", "text": '"done"'}]}

    async with endpoint(Older(act=act)) as (url, _), running(url=url, nodes=MOST) as rig:
        assert await rig.reason("wide") == "result_too_large"
        assert await rig.tool("other") == "done"
    assert max(decoded) < 2 * MOST


PARTS = {
    "check_in_pieces": connection.jsonrpc, "decode_in_pieces": connection, "from_server": connection.reserved_keys
}  # fmt: skip
LARGE = {"content": [{"type": "text", "text": json.dumps("x" * 64 * 1024)}], "resultType": "complete"}


class Pieces:
    """In which step of the event loop each part of reading a large message was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps, self._done = Steps(), dict[str, int]()
        for name, module in PARTS.items():
            monkeypatch.setattr(module, name, partial(self._note, name, getattr(module, name)))

    def _note(self, name: str, inner: Any, *args: Any) -> Any:
        if len(next(part for part in args if isinstance(part, bytes))) > 32 * 1024:
            self._done[name] = self.steps.now
        return inner(*args)

    def check(self) -> None:
        """They are done one after the other, and others have their turn between."""
        self.steps.stop()
        assert tuple(self._done) == tuple(PARTS)
        assert len(set(self._done.values())) == len(PARTS), self._done


@pytest.mark.parametrize("kind", ["body", "refusal", "stream"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_large_answer_over_http_is_read_in_pieces(
    era: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(asked: Asked) -> None:
        if not await (modern_start if era == "modern" else legacy_start)(asked):
            answer = {"jsonrpc": "2.0", "id": asked.message["id"], "result": LARGE}
            status = 400 if kind == "refusal" else 200
            await (asked.stream(event(answer)) if kind == "stream" else asked.reply(answer, status))

    pieces = Pieces(monkeypatch)
    async with endpoint(script) as (url, _), running(url=url, era=era) as rig:
        assert len(await rig.tool("large", client=MODERN if era == "modern" else LEGACY)) == 64 * 1024
    pieces.check()


@pytest.mark.parametrize("modes", [(), ("modern",)], ids=["legacy", "modern"])
async def test_a_large_answer_of_a_child_is_read_in_pieces(
    modes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = Pieces(monkeypatch)
    async with running(command=child(*modes), era="modern" if modes else "legacy") as rig:
        text = "x" * 64 * 1024
        assert await rig.tool("echo", {"text": text}) == {"text": text}
    pieces.check()


async def test_a_large_answer_on_an_event_stream_of_the_2024_transport_is_read_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def act(server: Older, asked: Asked) -> Json | None:
        return LARGE

    pieces = Pieces(monkeypatch)
    async with endpoint(Older(act=act)) as (url, _), running(url=url) as rig:
        assert len(await rig.tool("large")) == 64 * 1024
    pieces.check()


async def test_of_many_lines_at_once_a_piece_is_taken_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of a pipe may be thousands of notifications."""
    sizes: list[int] = []
    work = StdioTransport._work

    def counted(wire: StdioTransport, since: float) -> None:
        before = len(wire._unread)
        work(wire, since)
        sizes.append(before - len(wire._unread))

    monkeypatch.setattr(StdioTransport, "_work", counted)
    async with running(command=child(), era="legacy") as rig:
        assert await rig.tool("many") == "done"
    assert sum(sizes) > 5_000 and max(sizes) <= PIECE // _EACH + 1


@pytest.fixture
async def most_fed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The most bytes of event streams that were read in one step."""
    steps, fed, feed = QuietSteps(), Counter[int](), EventParser.feed

    def counted(events: EventParser, chunk: bytes) -> list[bytes]:
        fed[steps.now] += len(chunk)
        return feed(events, chunk)

    monkeypatch.setattr(EventParser, "feed", counted)
    return lambda: max(fed.values())


NOISE = {
    "events": "data: x", "comments": ":", "nothing": "", "ids": "id: 1", "answers": 'data: {"jsonrpc":"2.0","id":1}',
}  # fmt: skip


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE.keys())
async def test_of_many_events_at_once_a_piece_is_taken_in_a_step(noise: str, most_fed: Callable[[], int]) -> None:
    """Also of those that follow the end of the exchange: after so many that are no message the connection ends."""

    async def script(asked: Asked) -> None:
        if not await legacy_start(asked):
            await asked.stream(*[noise] * 50_000, event({"id": asked.message["id"], "result": {"content": []}}))

    async with endpoint(script) as (url, _), running(url=url, era="legacy") as rig:
        await rig.request("tools/call", {"name": "t", "arguments": {}})
    assert 0 < most_fed() <= PIECE


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE.keys())
async def test_so_it_is_on_the_stream_of_the_2024_transport(noise: str, most_fed: Callable[[], int]) -> None:
    async def act(server: Older, asked: Asked) -> Json | None:
        await server.streams[-1].more(*[noise] * 50_000)
        return {"content": []}

    async with endpoint(Older(act=act)) as (url, _), running(url=url) as rig:
        await rig.request("tools/call", {"name": "t", "arguments": {}})
    assert 0 < most_fed() <= PIECE


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each time that a server's budget paid: whether taking bytes apart was among the work."""
    found: list[bool] = []
    ticks, apart_at = itertools.count(), -1
    feed, split = EventParser.feed, Lines.feed

    def apart(parser: Any, data: bytes) -> Any:
        nonlocal apart_at
        apart_at = next(ticks)
        return (feed if isinstance(parser, EventParser) else split)(parser, data)

    def paid(budget: LoopBudget, since: float) -> float:
        found.append(since < apart_at)
        return 0.0

    monkeypatch.setattr(EventParser, "feed", apart)
    monkeypatch.setattr(Lines, "feed", apart)
    monkeypatch.setattr(LoopBudget, "now", lambda budget: next(ticks))
    monkeypatch.setattr(LoopBudget, "charge_since", paid)
    return found


@pytest.mark.parametrize("noise", ["", ":"], ids=["nothing", "comments"])
async def test_a_server_pays_for_lines_that_say_nothing(noise: str, spans: list[bool]) -> None:
    async def act(server: Older, asked: Asked) -> Json | None:
        await server.streams[-1].more(*[noise] * 20_000)
        return {"content": []}

    async with endpoint(Older(act=act)) as (url, _), running(url=url) as rig:
        await rig.request("tools/call", {"name": "t", "arguments": {}})
    assert len(spans) >= 20_000 // PIECE and all(spans)


async def test_a_child_pays_for_blank_lines(spans: list[bool]) -> None:
    wire = StdioTransport(ServerSettings("s", command=("s",)), StderrTail(), LoopBudget(), lambda: None)
    wire._receive = lambda data, exchange: None
    wire._heard(b"\n" * 10)
    assert spans == [True]


async def test_a_child_that_ends_its_answers_with_a_blank_line_pays_for_none(spans: list[bool]) -> None:
    class Over:
        is_over = True

    wire: Any = StdioTransport(ServerSettings("s", command=("s",)), StderrTail(), LoopBudget(), lambda: None)
    wire._receive = lambda data, exchange: Over()
    wire._heard(b'{"id":1}\r\n\r\n{"id":2}\n\n')
    assert spans == []
    wire._heard(b'{"id":1}\n\n\n')
    assert spans == [True]


@pytest.mark.parametrize("kind", ["body", "stream"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_equal_long_list_is_not_decoded_anew_whoever_asks_for_it(
    era: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But what differs in more than its id is; and so is what has another id than was asked for."""
    count, wrong = 3_000, False

    async def script(asked: Asked) -> None:
        if await (modern_start if era == "modern" else legacy_start)(asked):
            return
        result = {"resultType": "complete", "tools": [{"name": f"t{n}", "inputSchema": {}} for n in range(count)]}
        answer = {"jsonrpc": "2.0", "id": asked.message["id"] + 1_000 * wrong, "result": result}
        await (asked.reply(answer) if kind == "body" else asked.stream(event(answer)))

    decoded, decode = list[int](), connection.decode_in_pieces
    monkeypatch.setattr(connection, "decode_in_pieces", lambda *args: (decoded.append(1), decode(*args))[1])
    client = MODERN if era == "modern" else LEGACY
    async with endpoint(script) as (url, _), running(url=url, era=era, list_timeout=2.0) as rig:
        for _ in range(3):
            found = await rig.request("tools/list", client=client)
            assert isinstance(found, Result) and len(found.value["tools"]) == count
        assert len(decoded) == 1
        count = 3_001
        found = await rig.request("tools/list", client=client)
        assert isinstance(found, Result) and len(found.value["tools"]) == count and len(decoded) == 2
        count, both = 3_002, list[Outcome]()

        async def ask() -> None:
            both.append(await rig.request("tools/list", client=client))

        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(ask)
        assert len(decoded) == 3 and (era == "legacy" or both[0] is both[1]), "it is looked at once for both"
        wrong = True
        assert not isinstance(await rig.request("tools/list", client=client), Result)
