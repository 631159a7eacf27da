"""What is kept of answers over the limits: for whom, how much, how long."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import anyio
import pytest

from sluicegate.catalog import part_uris
from sluicegate.protocol.model import Call, Client, Failure, McpServer, Outcome, Result, Target, Trail, refuse
from sluicegate.router import large_results
from sluicegate.router.large_results import LargeResultBounds, LargeResults
from sluicegate.store import StoreFailed, Write
from sluicegate.store.memory import MemoryStore

Json = dict[str, Any]
TOOL = Target("files", "tool", "cat", "files__cat")


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Answer:
    """An answer in memory: its texts, cut every `each` bytes."""

    texts: Sequence[bytes]
    each: int = 10
    is_error: bool = False
    is_closed: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.texts))

    @property
    def documents(self) -> list[tuple[str, list[int]]]:
        return [("text/plain", [len(text[at : at + self.each]) for at in range(0, len(text), self.each)])
                for text in self.texts]  # fmt: skip

    async def read(self, start: int, length: int) -> bytes:
        whole = io.BytesIO(b"".join(self.texts))
        whole.seek(start)
        return whole.read(length)

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Server:
    identity: str = "one"


@dataclass
class Place:
    clock: Clock = field(default_factory=Clock)
    server: Server = field(default_factory=Server)
    size: int = 100
    tool: Target | None = TOOL

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.clock)
        self.kept = self.another()

    def another(self) -> LargeResults:
        """One of another process with the same store."""
        servers = cast(dict[str, McpServer], {"files": self.server})
        return LargeResults(servers, self.store, LargeResultBounds(self.size, 900.0), self.clock)

    async def resolved(self, call: Call) -> Target | None:
        assert (call.method, call.params) == ("tools/call", {"name": "files__cat"})
        return self.tool

    async def keep(self, client: Client, answer: Answer, method: str = "tools/call", target: Target = TOOL) -> Outcome:
        trail = Trail("c1")
        trail.oversized = answer
        call = Call(client, method, {}, target=target, trail=trail)
        outcome = await self.kept.keep(call, refuse(method, "result_too_large", "Too large."))
        assert answer.is_closed
        return outcome

    async def uri(self, client: Client, size: int) -> str:
        outcome = await self.keep(client, Answer([b"x" * size]))
        assert isinstance(outcome, Result)
        return str(outcome.value["content"][1]["uri"])

    async def text(self, client: Client, uri: str, kept: LargeResults | None = None) -> str | None:
        kept = kept or self.kept
        call = Call(client, "resources/read", {"uri": uri})
        target, outcome = await kept.resolve(call, self.resolved), await kept.read(call)
        assert (target is None) is isinstance(outcome, Failure), "what is resolved can be read, and nothing else"
        assert target is None or target == Target("files", "tool", "cat", "files__cat", is_part=True)
        return str(outcome.value["contents"][0]["text"]) if isinstance(outcome, Result) else None


ANN, BOB = Client("key:ann"), Client("key:bob")


def test_another_process_reads_them_until_their_time_is_over() -> None:
    async def work() -> None:
        place = Place()
        outcome = await place.keep(ANN, Answer([b"0123456789abc", b"second"]))
        assert isinstance(outcome, Result) and outcome.reason is None
        text = outcome.value["content"][0]["text"]
        assert "in 3 parts until 14:01 UTC" in text and "Parts: 1 to 2 text, 3 text." in text
        uri = outcome.value["content"][1]["uri"]
        place.clock.now += 899
        for number, part in enumerate(("0123456789", "abc", "second"), 1):
            assert await place.text(ANN, f"{uri[:-1]}{number}", place.another()) == part
        assert await place.text(ANN, f"{uri[:-1]}4") is None
        place.clock.now += 1
        assert await place.text(ANN, uri) is None

    anyio.run(work)


@pytest.mark.parametrize(
    ("of", "asks"),
    [
        (ANN, BOB),
        (Client("key:ann", credential="k1"), Client("key:ann", credential="k2")),
        (Client("key:ann", toolset="dev"), ANN),
        (Client("anonymous", session="s1"), Client("anonymous", session="s2")),
        (Client("anonymous", session="s1"), Client("anonymous")),
    ],
    ids=["another principal", "another key", "another toolset", "another session", "no session"],
)  # fmt: skip
def test_nobody_else_has_them(of: Client, asks: Client) -> None:
    async def work() -> None:
        place = Place()
        uri = await place.uri(of, 5)
        assert (await place.text(of, uri), await place.text(asks, uri)) == ("xxxxx", None)

    anyio.run(work)


def test_another_server_under_the_same_key_has_no_answers() -> None:
    async def work() -> None:
        place = Place()
        uri = await place.uri(ANN, 5)
        place.server.identity = "two"
        assert await place.text(ANN, uri) is None

    anyio.run(work)


def test_a_tool_that_is_withheld_or_another_by_now_has_none() -> None:
    async def work() -> None:
        place = Place()
        call = Call(ANN, "resources/read", {"uri": await place.uri(ANN, 5)})
        for place.tool in (None, replace(TOOL, own="dog"), replace(TOOL, server="other")):
            assert await place.kept.resolve(call, place.resolved) is None
        place.tool = replace(TOOL, item={"name": "cat", "annotations": {"destructiveHint": True}})
        found = await place.kept.resolve(call, place.resolved)
        assert found is not None and found.item is not None and found.is_part, "it is judged by its definition of now"

    anyio.run(work)


def test_what_had_to_leave_while_it_was_written_is_not_there() -> None:
    async def work() -> None:
        place = Place()

        class Slow(Answer):
            async def read(self, start: int, length: int) -> bytes:
                if start == 0:
                    assert await place.uri(ANN, 90)  # for which this one has to leave
                return await super().read(start, length)

        refused = await place.keep(ANN, Slow([b"y" * 50]))
        assert isinstance(refused, Result) and refused.reason == "result_too_large"
        assert len(await place.store.scan("part:")) == 9 and len(await place.store.scan("result:")) == 1

    anyio.run(work)


def test_small_answers_push_out_those_of_whoever_has_the_most_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(large_results, "_MAX_ENTRIES", 5)
        place = Place()
        large = await place.uri(BOB, 90)
        many = [await place.uri(ANN, 1) for _ in range(8)]
        assert await place.text(BOB, large) and await place.text(ANN, many[-1])
        assert await place.text(ANN, many[0]) is None

    anyio.run(work)


def test_whoever_has_the_most_makes_room() -> None:
    async def work() -> None:
        place = Place()
        mine = [await place.uri(ANN, 40) for _ in range(3)]
        assert [await place.text(ANN, uri) is not None for uri in mine] == [False, True, True]
        others = [(Client(f"key:{number}"), 100) for number in range(7)]
        theirs = [(client, await place.uri(client, size)) for client, size in others]
        assert [await place.text(ANN, uri) is not None for uri in mine] == [False, True, True], "780 of 800 bytes"
        await place.uri(BOB, 30)
        assert [await place.text(client, uri) is not None for client, uri in theirs] == [False, *[True] * 6]
        assert [await place.text(ANN, uri) is not None for uri in mine[1:]] == [True, True]
        left = await place.store.scan("part:")
        assert len(left) == 8 + 6 * 10 + 3, "what has left is not in the store any more"

    anyio.run(work)


def test_more_than_one_may_have_is_refused_and_nobody_leaves_for_it() -> None:
    async def work() -> None:
        place = Place()
        uri = await place.uri(ANN, 60)
        refused = await place.keep(ANN, Answer([b"x" * 101]))
        assert isinstance(refused, Result) and refused.reason == "result_too_large"
        empty = await place.keep(ANN, Answer([b""]))
        assert isinstance(empty, Result) and empty.reason == "result_too_large"
        assert await place.text(ANN, uri) == "x" * 10

    anyio.run(work)


class FullStore(MemoryStore):
    async def swap(self, key: str, expected: bytes | None, writes: Sequence[Write]) -> bool:
        raise StoreFailed("no space left")


def test_a_store_that_fails_is_a_refusal_that_says_so_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        place = Place()
        place.store = FullStore()
        place.kept = place.another()
        refused = await place.keep(ANN, Answer([b"x"]))
        assert isinstance(refused, Result) and refused.reason == "result_too_large"

    anyio.run(work)
    assert "no space left" in caplog.text


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'["a",null,"one","files","other","cat","files__cat",[]]'])
def test_a_damaged_record_is_none(damage: bytes) -> None:
    async def work() -> None:
        place = Place()
        uri = await place.uri(ANN, 5)
        found = part_uris.read(uri)
        assert found is not None
        await place.store.put(f"result:{found[0]}", damage)
        assert await place.text(ANN, uri) is None
        await place.store.put("results", damage)
        assert await place.text(ANN, await place.uri(ANN, 5)) == "xxxxx"

    anyio.run(work)


def test_a_tool_with_a_schema_has_an_error_and_an_error_stays_one() -> None:
    async def work() -> None:
        place = Place()
        strict = Target("files", "tool", "cat", "files__cat", {"name": "cat", "outputSchema": {}})
        for target, answer, is_error in (
            (TOOL, Answer([b"x"]), False), (TOOL, Answer([b"x"], is_error=True), True), (strict, Answer([b"x"]), True),
        ):  # fmt: skip
            outcome = await place.keep(ANN, answer, target=target)
            assert isinstance(outcome, Result) and outcome.value["isError"] is is_error

    anyio.run(work)


def test_a_resource_stays_refused_and_says_where_its_parts_are() -> None:
    async def work() -> None:
        place = Place()
        outcome = await place.keep(ANN, Answer([b"x" * 25]), "resources/read", Target("files", "res", "a:b", "a:b"))
        assert isinstance(outcome, Failure) and outcome.reason == "result_too_large"
        parts: Json = outcome.data["parts"]
        assert outcome.data["reason"] == "result_too_large" and parts["count"] == 3
        assert parts["first"].endswith("/1") and parts["last"].endswith("/3")

    anyio.run(work)
