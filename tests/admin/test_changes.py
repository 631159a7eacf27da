"""The stream of changes: what is told of each topic, to whom, and what a reader hears who comes back with an id."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from sluicegate.admin import changes as module
from sluicegate.admin.changes import AREAS, MAX_PER_PRINCIPAL, Changes, read_topics

pytestmark = pytest.mark.anyio
ALL = list(AREAS)


class Source:
    """What is compared, and who may follow which topic."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"server": "up", "policy": 1}
        self.allowed = set(ALL)
        self.is_closing = False
        self.looks = 0
        self.changes = Changes(self.look, lambda: self.is_closing)

    def look(self) -> dict[str, Any]:
        self.looks += 1
        return self.state

    @asynccontextmanager
    async def follow(self, *topics: str, last: str = "", who: str = "key:lea") -> AsyncIterator["Reader"]:
        stream = self.changes.follow(who, topics or ALL, lambda topic: topic in self.allowed, last)
        reader = Reader(stream)
        try:
            yield reader
        finally:
            await stream.aclose()


class Reader:
    def __init__(self, stream: AsyncGenerator[bytes, None]) -> None:
        self.stream, self.last = stream, ""

    async def next(self) -> str:
        """The name of the next event."""
        with anyio.fail_after(10):
            while True:
                lines = (await anext(self.stream)).decode().split("\n")
                if lines[0].startswith("event: "):
                    fields = dict(line.split(": ", 1) for line in lines if line)
                    self.last = fields.get("id", self.last)
                    assert fields["data"] == "{}" and lines[-2:] == ["", ""]
                    return fields["event"]


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(module, "LOOK_EVERY", 0.01)
    return Source()


async def test_a_reader_hears_which_topic_changed_and_no_other(source: Source) -> None:
    async with source.follow("server", "approval") as reader:
        assert await reader.next() == "open"
        source.state = {"server": "down", "policy": 2}
        assert await reader.next() == "server"
        source.changes.notice("call")
        source.changes.notice("approval")
        assert await reader.next() == "approval"


async def test_whoever_comes_back_hears_what_changed_meanwhile_once_and_after_a_gap_that_it_missed_something(
    source: Source,
) -> None:
    async with source.follow() as reader:
        assert await reader.next() == "open"
    for _ in range(3):
        source.changes.notice("approval")
    source.state = {**source.state, "policy": 3}
    async with source.follow(last=reader.last) as again:
        assert [await again.next() for _ in range(3)] == ["open", "approval", "policy"]
    for _ in range(module.RING + 1):
        source.changes.notice("call")
    for last in (reader.last, "0badc0de.1", "x", again.last + "00000", "+", f"{'9' * 400}.{'9' * 400}"):
        async with source.follow(last=last) as late:
            assert await late.next() == "reset", last
            source.changes.notice("pin")
            assert await late.next() == "pin"


async def test_an_id_of_several_workers_has_the_own_one_in_it(source: Source) -> None:
    async with source.follow() as reader:
        await reader.next()
    source.changes.notice("pin")
    async with source.follow(last=f"0badc0de.7+{reader.last}") as again:
        assert [await again.next(), await again.next()] == ["open", "pin"]


async def test_a_slow_reader_hears_each_topic_once_and_after_too_much_a_reset(source: Source) -> None:
    async with source.follow() as reader:
        assert await reader.next() == "open"
        for _ in range(200):
            source.changes.notice("call")
            source.changes.notice("pin")
        assert [await reader.next(), await reader.next()] == ["call", "pin"]
        for _ in range(module.RING + 1):
            source.changes.notice("call")
        assert await reader.next() == "reset"
        assert len(source.changes._ring) == module.RING


async def test_a_stream_outlives_neither_its_last_right_nor_sluice(source: Source) -> None:
    for end in (lambda: source.allowed.clear(), lambda: setattr(source, "is_closing", True)):
        source.allowed |= set(ALL)
        async with source.follow("server", "pin") as reader:
            assert await reader.next() == "open"
            source.allowed.discard("pin")
            source.changes.notice("pin")
            source.changes.notice("server")
            assert await reader.next() == "server", "the right to the other topic is gone"
            end()
            with pytest.raises(StopAsyncIteration):
                await reader.next()


async def test_a_principal_has_a_bounded_number_of_streams_and_others_theirs(source: Source) -> None:
    async with anyio.create_task_group():
        open_ones = [source.changes.follow("key:lea", ALL, lambda topic: True) for _ in range(MAX_PER_PRINCIPAL)]
        for stream in open_ones:
            assert (await anext(stream)).startswith(b"event: open\n")
        async with source.follow() as refused, source.follow(who="key:ann") as other:
            assert [await refused.next(), await other.next()] == ["full", "open"]
        await open_ones[0].aclose()
        async with source.follow() as again:
            assert await again.next() == "open"
        for stream in open_ones:
            await stream.aclose()
    assert not source.changes._streams


async def test_many_streams_look_together(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY", 60.0)
    streams = [source.changes.follow(f"key:{number}", ALL, lambda topic: True) for number in range(40)]
    for stream in streams:
        assert (await anext(stream)).startswith(b"event: open\n")
    assert source.looks <= 3
    for stream in streams:
        await stream.aclose()


def test_topics_are_named_in_one_list() -> None:
    assert read_topics({}) == ALL and read_topics({"topics": ["pin,call"]}) == ["pin", "call"]
    for query in ({"topics": ["pin,"]}, {"topics": [""]}, {"topics": ["pin", "call"]}, {"topic": ["pin"]},
                  {"topics": ["pin," * 9 + "pin"]}, {"topics": ["job"]}):  # fmt: skip
        assert read_topics(query) is None, query
