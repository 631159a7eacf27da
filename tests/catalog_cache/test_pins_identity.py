"""Pins belong to who a server is, not to its key alone; and to capability sets, not to whoever lists first."""

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_steps import Steps
from scripted_server import CLIENT, Front, Scripted

from sluicegate.catalog import list_bounds
from sluicegate.catalog_cache import definition_pins, pin_store
from sluicegate.catalog_cache.definition_pins import DefinitionPins, PinEvent
from sluicegate.catalog_cache.pin_store import Pinned
from sluicegate.downstream.server import DownstreamServer
from sluicegate.downstream.settings import ServerSettings
from sluicegate.hub import Event
from sluicegate.policy import pins
from sluicegate.policy.hidden_text import PIECE
from sluicegate.policy.pins import Found, Mode, Wanted
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Client, Result
from sluicegate.store import TRIES, StoreFailed, Write
from sluicegate.store.memory import MemoryStore
from sluicegate.store.sqlite import SqliteStore, peek


def found(**texts: Any) -> dict[str, Found]:
    return {name: Found(pins.fingerprint(text), text) for name, text in texts.items()}


async def board_of(store: Any, identity: str, mode: Mode = "review") -> DefinitionPins:
    board = DefinitionPins({"s": Pinned(mode, identity)}, store)
    await board.books.load()
    return board


async def lists(board: DefinitionPins, capabilities: str = "", **texts: Any) -> None:
    await board.meet("s", "legacy", capabilities, "tool", found(**texts))
    await board.settle("s", "legacy", capabilities)


def states(board: DefinitionPins) -> dict[str, str]:
    return {row["name"]: row["state"] for row in board.rows() if row["era"] == "legacy"}


def waits(board: DefinitionPins) -> set[str]:
    return {row["name"] for row in board.rows() if row["withheld"]}


async def accept(board: DefinitionPins, name: str) -> None:
    mark = next(row["current"] for row in board.rows() if row["name"] == name)
    assert not isinstance(await board.accept("s", [Wanted("tool", name, mark)], "local"), str)


# ---------------------------------------------------------------- another server under the same key


async def test_another_server_keeps_what_is_equal_and_everything_else_waits() -> None:
    store = MemoryStore()
    first = await board_of(store, "one")
    await lists(first, a=1, b=2, c=3)
    await accept(first, "a")
    other = await board_of(store, "two")
    told = "another server under this key, here or in a file with this state.dir: what differs will wait"
    assert other.notice("s") == told
    await lists(other, a=1, b=2, c=4, d=5)
    assert states(other) == {"a": "accepted", "b": "first_use", "c": "changed", "d": "new"}
    assert waits(other) == {"c", "d"} and other.notice("s") == "another server under this key: 2 definitions wait"
    await lists(other, "roots", e=6)
    assert states(other)["e"] == "new", "a new capability set is no first look either"
    for name in "cde":
        await accept(other, name)
    assert other.notice("s") == "" and waits(other) == set()


async def test_two_configs_take_turns_and_each_keeps_its_own_book() -> None:
    store = MemoryStore()
    await lists(await board_of(store, "one"), a=1, b=1)
    two = await board_of(store, "two")
    await lists(two, a=2, b=1)
    await accept(two, "a")
    one = await board_of(store, "one")
    await lists(one, a=1, b=1)
    assert (states(one), waits(one)) == ({"a": "first_use", "b": "first_use"}, set())
    await lists(one, a=2, b=1)
    assert states(one)["a"] == "changed", "what was accepted for the other server is not accepted for this one"
    two = await board_of(store, "two")
    await lists(two, a=2, b=1)
    assert (states(two), waits(two)) == ({"a": "accepted", "b": "first_use"}, set())
    assert one.notice("s") == "1 definition waits", "nobody took this server's place"


async def test_a_book_that_is_begun_is_kept_although_nothing_differs() -> None:
    store = MemoryStore()
    one = await board_of(store, "one")
    await lists(one, a=1)
    await lists(await board_of(store, "two"), a=1)
    await lists(one, a=2)
    await accept(one, "a")
    again = await board_of(store, "two")
    await lists(again, a=1)
    assert waits(again) == set(), "its own book, not what became of the other one since"


@pytest.mark.parametrize(("mode", "count"), [("review", 1), ("block", 1), ("warn", 0)])
async def test_another_server_has_no_first_use_in_whichever_mode(mode: Mode, count: int) -> None:
    store = MemoryStore()
    await lists(await board_of(store, "one", mode), a=1)
    other = await board_of(store, "two", mode)
    await lists(other, b=1)
    assert (states(other)["b"], other.count_withheld("s")) == ("new", count)
    assert "b" in waits(await board_of(store, "two", "review")), "a stricter mode finds what waited"


async def test_a_server_that_speaks_another_era_now_has_no_first_use_there() -> None:
    store = MemoryStore()
    one = await board_of(store, "one")
    await lists(one, a=1, b=1)
    await accept(one, "a")
    other = await board_of(store, "two")
    await other.meet("s", "modern", "", "tool", found(a=1, b=1, c=1))
    modern = {row["name"]: row["state"] for row in other.rows() if row["era"] == "modern"}
    assert modern == {"a": "accepted", "b": "new", "c": "new"}, "a person accepted the very same in the other era"


async def test_a_server_whose_pins_are_looked_at_first_by_the_command_line_begins_alike() -> None:
    store = MemoryStore()
    await lists(await board_of(store, "one"), a=1)
    running = await board_of(store, "two")
    beside = await board_of(store, "two")
    await accept(beside, "a")
    await lists(running, a=1, b=1)
    assert states(running) == {"a": "accepted", "b": "new"}


async def test_two_servers_that_start_at_once_on_an_empty_store_do_not_both_have_a_first_use() -> None:
    store = MemoryStore()
    boards = [await board_of(store, identity) for identity in ("one", "two")]
    async with anyio.create_task_group() as group:
        for board in boards:
            group.start_soon(board.meet, "s", "legacy", "", "tool", found(a=1, b=board is boards[0]))
    assert sorted(map(len, map(waits, boards))) == [0, 1]


async def test_books_of_former_servers_are_not_kept_for_ever() -> None:
    store = MemoryStore()
    clock = iter(range(10_000))
    for number in range(3 * pin_store.MAX_FORMER):
        board = DefinitionPins({"s": Pinned("review", f"v{number}")}, store, clock=lambda: next(clock) * 60.0)
        await board.books.load()
        await lists(board, a=number)
        await accept(board, "a")
    kept = {key.split("/")[2] for key in await store.scan("pins/s/")}
    assert len(kept) <= pin_store.MAX_FORMER + 1 and f"v{number}" in kept and "v0" not in kept
    back = await board_of(store, "v0")
    await lists(back, a=0)
    assert waits(back) == {"a"}, "who was forgotten is another server"


# ---------------------------------------------------------------- stores of earlier builds


OLD: Json = {"pins": [["tool", "a", pins.fingerprint(1), "1", "", "2026-11-01T00:00:00Z"]], "closed": ["tool"]}
OLD_WAITING: Json = {"waiting": [["tool", "b", pins.fingerprint(2), "2", "2026-11-02T00:00:00Z", False]]}


async def old_store() -> MemoryStore:
    store = MemoryStore()
    await store.put("pins/s/legacy", json.dumps(OLD).encode())
    await store.put("pins-waiting/s/legacy", json.dumps(OLD_WAITING).encode())
    await store.put("pins-revision", b"old")
    return store


async def test_a_book_without_an_identity_belongs_to_the_first_server_that_finds_it() -> None:
    store = await old_store()
    board = await board_of(store, "one")
    assert (board.notice("s"), waits(board)) == ("1 definition waits", {"b"})
    await lists(board, "form roots", a=1, b=2, c=3)
    assert (states(board), waits(board)) == ({"a": "first_use", "b": "new", "c": "new"}, {"b", "c"})
    other = await board_of(store, "two")
    assert other.notice("s").startswith("another server under this key")
    await lists(other, a=1, b=2)
    assert states(other) == {"a": "first_use", "b": "new"}
    again = await board_of(store, "one")
    assert states(again) == {"a": "first_use", "b": "new", "c": "new"}


async def test_a_look_writes_nothing_and_both_eras_are_taken_over_at_once() -> None:
    store = await old_store()
    before = dict(store._values)
    board = await board_of(store, "one")
    assert board.rows() and store._values == before
    await lists(board, a=1)
    assert set(await store.scan("pins/s/one/")) == {"pins/s/one/legacy", "pins/s/one/modern"}


async def test_only_one_of_two_servers_takes_over_a_book_without_an_identity() -> None:
    store = await old_store()
    boards = [await board_of(store, identity) for identity in ("one", "two")]
    for board in boards:
        await lists(board, a=1)
    assert [board.is_replaced("s") for board in boards] == [False, True]


async def test_a_book_that_cannot_be_read_is_taken_over_as_one_in_which_nothing_was_accepted() -> None:
    store = await old_store()
    await store.put("pins/s/legacy", b"\0")
    board = await board_of(store, "one")
    await lists(board, a=1)
    assert waits(board) == {"a"}


# ---------------------------------------------------------------- looked at from outside


async def test_the_store_is_looked_at_without_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "state" / "sluice.db"
    assert peek(file, ("pins/",)) == {} and not file.parent.exists()
    store = SqliteStore(file)
    await store.put("pins/s/one/legacy", b"1")
    await store.put("other", b"2")
    assert peek(file, ("pins/",)) == {"pins/s/one/legacy": b"1"}, "also while somebody has it open"
    await store.close()
    before = {path.name: path.stat().st_mtime_ns for path in file.parent.iterdir()}
    assert peek(file, ("pins/", "other")) == {"pins/s/one/legacy": b"1", "other": b"2"}
    assert {path.name: path.stat().st_mtime_ns for path in file.parent.iterdir()} == before
    file.write_bytes(b"no database at all" * 1000)
    assert peek(file, ("pins/",)) == {}
    file.write_bytes(b"")
    assert peek(file, ("pins/",)) == {}


# ---------------------------------------------------------------- capability sets, from the lists on


FORM = Client("key:form", capabilities={"elicitation": {"form": {}}}, capability_key="form")
ROOTS = Client("key:roots", capabilities={"roots": {}}, capability_key="roots")
OF: dict[str, list[str]] = {"": ["echo"], "form": ["echo", "ask"], "roots": ["echo", "roots"]}


class Chooser(Scripted):
    """Lists by capability set what `by_set` says."""

    by_set: dict[str, list[Any]]

    def _page(self, call: Call) -> Any:
        if call.method != "tools/list":
            return super()._page(call)
        chosen = self.by_set[self.capability_set(call.client, "modern")]
        items = [{"name": one, "inputSchema": {}} if isinstance(one, str) else one for one in chosen]
        return Result({"tools": items, "ttlMs": 0, "cacheScope": "private"})


def chooser(**more: Any) -> Chooser:
    server = Chooser("a", **more)
    server.by_set = {key: list(names) for key, names in OF.items()}
    return server


@pytest.mark.parametrize(("sharing", "expected"), [("session", "form"), ("client", "form"), ("shared", "")])
def test_a_server_that_is_shared_is_told_of_no_capabilities_and_has_one_set(sharing: Any, expected: str) -> None:
    told = ServerSettings("a", "id", command=("x",), sharing=sharing)
    server = DownstreamServer(told, publish=lambda *event: None, client_info={})
    assert {server.capability_set(FORM, era) for era in pin_store.ERAS} == {expected}


@pytest.mark.parametrize("order", [(CLIENT, FORM, ROOTS), (ROOTS, FORM, CLIENT), (FORM, CLIENT, ROOTS)])
async def test_whoever_lists_first_does_not_decide_what_others_may_use(order: Any) -> None:
    server = chooser()
    board = DefinitionPins({"a": Pinned("review", "a")}, MemoryStore())
    await board.books.load()
    with anyio.fail_after(20):
        async with Front(server, pins=board, list_timeout=30) as front:
            async with anyio.create_task_group() as group:  # all at once, then each again
                for client in order:
                    group.start_soon(front.names, "tools/list", client)
            for client in order:
                own = OF[server.capability_set(client, "modern")]
                assert await front.names("tools/list", client) == [f"a__{name}" for name in own]
    assert not [row for row in board.rows() if row["withheld"]]


async def test_what_a_later_set_brings_under_a_known_name_is_gone_from_every_list_at_once() -> None:
    server = chooser()
    board = DefinitionPins({"a": Pinned("review", "a")}, MemoryStore())
    await board.books.load()
    with anyio.fail_after(20):
        async with Front(server, pins=board, list_timeout=30) as front:
            assert await front.names("tools/list", CLIENT) == ["a__echo"]
            server.by_set["roots"][0] = {"name": "echo", "description": "evil", "inputSchema": {}}
            told: list[Event] = []
            with front.hub.subscribe(lambda event: told.append(event) or False):  # type: ignore[func-returns-value]
                assert await front.names("tools/list", ROOTS) == ["a__roots"]
            assert any(event.notification.method == "notifications/tools/list_changed" for event in told)
            for client in (CLIENT, FORM, ROOTS):
                assert "a__echo" not in await front.names("tools/list", client)
                assert front.lists.find("a", client, "tool", "a__echo") is None


async def test_a_set_keeps_its_part_through_a_restart_while_the_server_is_down() -> None:
    store = MemoryStore()
    for status in ("up", "down"):
        server = chooser()
        server.status = status  # type: ignore[assignment]
        if status == "down":
            server.answers["server/discover"] = gone
        board = DefinitionPins({"a": Pinned("review", "a")}, store)
        await board.books.load()
        with anyio.fail_after(20):
            async with Front(server, pins=board, store=store, list_timeout=30) as front:
                for client in (CLIENT, FORM):
                    await front.lists.snapshot("a", client)
                    while not any(key.startswith("snapshot-of/") for key in store._values):
                        await anyio.lowlevel.checkpoint()
                    assert front.lists.find("a", client, "tool", "a__echo") or status == "down"
                found = front.lists.current("a", FORM)
                assert found is not None and [entry.target.own for entry in found.entries("tools/list")] == OF["form"]


async def gone(call: Call) -> Any:
    raise ConnectionError("gone")


# ---------------------------------------------------------------- any order, any process, any identity


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["one", "two"]), st.integers(0, 1), st.sampled_from(["", "roots"]),
        st.dictionaries(st.sampled_from("ab"), st.integers(0, 2), min_size=1), st.sampled_from(["", "", "a", "b"]),
    ),
    max_size=10,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_whatever_processes_and_servers_share_a_store_only_first_lists_and_accepted_contents_are_served(
    steps: Any,
) -> None:
    """Two identities, each in two processes. The server that listed first of all has first lists; the other one never
    serves what neither a person accepted for it nor a pin of the first one had when it began."""

    async def play() -> None:
        store = MemoryStore()
        boards = {(who, number): await board_of(store, who) for who in ("one", "two") for number in (0, 1)}
        may: dict[str, set[tuple[str, int]]] = {"one": set(), "two": set()}
        first: set[str] = set()
        founder = ""
        for who, number, capabilities, texts, accepts in steps:
            board = boards[who, number]
            founder = founder or who
            if who not in may or (who != founder and not first & {who}):
                may[who] |= may[founder]
                first.add(who)
            if who == founder and capabilities not in first:
                may[who] |= set(texts.items())
                first.add(capabilities)
            await lists(board, capabilities, **texts)
            if accepts in texts:
                wanted = Wanted("tool", accepts, pins.fingerprint(texts[accepts]))
                if not isinstance(await board.accept("s", [wanted], "local"), str):
                    may[who].add((accepts, texts[accepts]))
            for name, value in ((name, value) for name in "ab" for value in range(3)):
                key, mark = ("tool", name), pins.fingerprint(value)
                for one in ("", "roots"):
                    book, twin = board.books.both("s")
                    if not pins.is_withheld("review", book, twin, key, mark, one):  # type: ignore[arg-type]
                        assert (name, value) in may[who]

    anyio.run(play)


# ---------------------------------------------------------------- what is told of servers that change all the time


async def test_what_waits_already_is_told_of_once_however_often_it_changes() -> None:
    """Each change would be a record: a server with ten thousand tools that never stay the same would fill a disk."""
    told: list[PinEvent] = []
    board = DefinitionPins({"s": Pinned("review", "one")}, MemoryStore(), told.append)
    await board.books.load()
    await lists(board, a=1, b=1)
    for number in range(2, 9):
        await lists(board, a=number, b=1)
    assert [(event.name, event.what) for event in told] == [
        ("a", "first_use"), ("b", "first_use"), ("a", "withheld"),
    ]  # fmt: skip
    await accept(board, "a")
    await lists(board, a=9, b=1)
    assert [(event.name, event.what) for event in told[3:]] == [("a", "accepted"), ("a", "withheld")]


@pytest.mark.parametrize("mode", ["review", "warn"])
async def test_no_server_has_more_changes_recorded_than_its_part(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition_pins, "MAX_EVENTS", 30)
    told, now = list[PinEvent](), [0.0]
    servers = {"s": Pinned(mode, "one"), "other": Pinned(mode, "two")}
    board = DefinitionPins(servers, MemoryStore(), told.append, clock=lambda: now[0])
    await board.books.load()
    for number in range(10):  # other names in each list
        await lists(board, **{f"t{number}x{one}": number for one in range(10)})
    assert len(told) == 30
    now[0] = 5.0
    await lists(board, **{f"u{one}": 1 for one in range(10)})
    await board.meet("other", "legacy", "", "tool", found(a=1))
    assert [event.server for event in told[30:]] == ["s"] * 5 + ["other"]


async def test_a_long_list_is_told_of_in_steps() -> None:
    def busy(event: PinEvent) -> None:
        until = time.perf_counter() + 0.0003
        while time.perf_counter() < until:
            pass

    board = DefinitionPins({"s": Pinned("review", "one")}, MemoryStore(), busy)
    await board.books.load()
    steps = Steps()
    await lists(board, **{f"t{number}": number for number in range(200)})
    steps.stop()
    assert steps.now >= 200 // 4, "a step has a millisecond, whatever is told"


async def test_hidden_text_is_looked_for_in_steps_and_once() -> None:
    """A definition of a megabyte with one in each place took half a second in one step, at each list and each look."""
    board = DefinitionPins({"s": Pinned("review", "one")}, MemoryStore())
    await board.books.load()
    steps = Steps()
    await lists(board, **{f"t{number}": f"{number}" + "a\u200b" * 250_000 for number in range(3)})
    first = steps.now
    rows = [row async for row in board.each_row("s")]
    steps.stop()
    assert first >= 3 * 500_000 // PIECE
    assert [row["flags"] for row in rows] == [["invisible at /"]] * 3 and steps.now - first <= 10
    assert [row["flags"] for row in board.rows("s")] == [["invisible at /"]] * 3


async def test_what_another_process_wrote_is_read_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one step, 16 MiB took a tenth of a second from everybody."""
    store = MemoryStore()
    board, other = await board_of(store, "one"), await board_of(store, "one")
    odd = '"]],["tool","t1","a",false],["tool","t2"'  # looks like the end of a row
    await lists(other, **{f"t{number}": [odd, "x" * 500, number] for number in range(2_000)})
    await lists(other, **{f"t{number}": [odd, "y" * 500, number] for number in range(1_000)})
    await other.books.flush()
    steps, decoded, lines, decode = Steps(), Counter[int](), Counter[int](), pin_store.decode_fast

    def counted(data: bytes) -> Any:
        decoded[steps.now] += len(data)
        return decode(data)

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        lines[steps.now] += event == "line"
        return trace if frame.f_code.co_filename in (pins.__file__, pin_store.__file__) else None

    monkeypatch.setattr(pin_store, "decode_fast", counted)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        await board.books.refresh()
    finally:
        sys.settrace(before)
        steps.stop()
    assert board.rows() == other.rows() and set(states(board).values()) == {"first_use", "changed"}
    assert decoded.total() > 2_000_000 and max(decoded.values()) < 2 * list_bounds.PIECE + 5_000
    assert lines.total() > 5 * 3_000 and max(lines.values()) < 20 * pins.ROWS


async def test_books_that_nobody_changed_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica read 16 MiB of one server, whichever server another replica wrote of."""
    store, read, known = MemoryStore(), list[str](), pin_store.read
    servers = {name: Pinned("review", "one") for name in ("s", "t")}
    ours, theirs = DefinitionPins(servers, store), DefinitionPins(servers, store)
    await ours.books.load()
    await lists(ours, a=1)
    await theirs.books.load()

    def counted(kept: Any, server: str, *more: str) -> Any:
        read.append(server)
        return known(kept, server, *more)

    monkeypatch.setattr(pin_store, "read", counted)
    await theirs.meet("t", "legacy", "", "tool", found(b=1))
    await ours.books.refresh()
    assert read == ["t"]
    await lists(ours, a=2)
    await lists(ours, a=3)  # it waits already, and what it became is written later
    await theirs.meet("t", "legacy", "", "tool", found(b=1, c=1))
    assert read == ["t", "s"], "their own book is as they wrote it"
    await ours.books.refresh()
    assert read == ["t", "s", "t"]
    await ours.books.flush()
    await theirs.books.refresh()
    assert read == ["t", "s", "t", "s"]
    fresh = DefinitionPins(servers, store)
    await fresh.books.load()
    assert fresh.rows() == ours.rows() and ours.rows("s")[0]["current"] == pins.fingerprint(3)


async def test_that_a_further_set_has_no_room_for_new_names_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    monkeypatch.setattr(pins, "MAX_PINNED", 1000)
    board = await board_of(MemoryStore(), "one")
    await board.meet("s", "legacy", "", "tool", found(a=1))
    for names in (found(a=1), found(a=1, b=2, c=3), found(a=1, b=2, c=3, d=4)):
        await board.meet("s", "legacy", "roots" if len(names) > 1 else "form", "tool", names)
    full = [record for record in caplog.records if "no room" in record.message]
    assert [(record.levelname, vars(record)["server"], vars(record)["definitions"]) for record in full] == [
        ("WARNING", "s", 2)]  # fmt: skip


class Overtaken(MemoryStore):
    """Another process writes before each change, as long as `is_overtaken`."""

    is_overtaken, changes = False, 0

    async def swap(self, key: str, expected: bytes | None, writes: Sequence[Write]) -> bool:
        self.changes += 1
        await anyio.lowlevel.checkpoint()
        if self.is_overtaken:
            await self.put(key, b"%d" % self.changes)
        return await super().swap(key, expected, writes)


async def test_a_process_that_is_always_overtaken_gives_up_and_nothing_is_served() -> None:
    """It tried without end, and nobody else had the pins meanwhile."""
    store = Overtaken()
    board = await board_of(store, "one")
    await lists(board, a=1)
    await lists(board, a=2, b=1)
    await board.meet("s", "legacy", "roots", "tool", found(b=1))
    await lists(board, a=3, b=1)
    store.is_overtaken, before = True, board.rows()
    wanted = [Wanted("tool", "a", pins.fingerprint(3))]
    later = board.meet("s", "legacy", "form", "tool", found(c=1)), board.settle("s", "legacy", "roots")
    for write in (*later, board.accept("s", wanted, "local"), board.books.flush()):
        store.changes = 0
        with anyio.fail_after(20), pytest.raises(StoreFailed, match="other processes write"):
            await write
        assert store.changes == TRIES and board.rows() == before
    store.is_overtaken = False
    await board.books.flush()
    await accept(board, "a")
    assert states(board) == {"a": "accepted", "b": "new"}


async def test_whoever_waits_has_its_turn_between_two_tries_of_who_is_overtaken() -> None:
    store = Overtaken()
    board = await board_of(store, "one")
    store.is_overtaken = True
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(lists, board, a=1))
            while not store.changes:
                await anyio.lowlevel.checkpoint()
            async with board.configure({"s": Pinned("block", "one")}) as put:
                put()
                store.is_overtaken = False
    assert store.changes < TRIES and states(board) == {"a": "first_use"}


async def test_what_cannot_be_written_down_is_in_no_list() -> None:
    store = Overtaken()
    store.is_overtaken = True
    board = DefinitionPins({"a": Pinned("review", "a")}, store)
    await board.books.load()
    with anyio.fail_after(20):
        async with Front(chooser(), pins=board, list_timeout=30) as front:
            assert await front.names("tools/list", CLIENT) == []
            store.is_overtaken = False
            while await front.names("tools/list", CLIENT) != ["a__echo"]:
                await anyio.lowlevel.checkpoint()


async def test_a_process_that_has_read_half_of_what_another_one_wrote_does_not_write_over_it() -> None:
    store = MemoryStore()
    board = await board_of(store, "one")
    await lists(board, a=1)
    other = await board_of(store, "one")
    await lists(other, a=2)
    await accept(other, "a")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await board.books.refresh()
    await lists(board, b=1)
    assert states(board) == {"a": "accepted", "b": "new"}
