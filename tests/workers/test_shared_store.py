"""Several processes on one store: each approval has one desk, and what one of them records the others find recorded."""

from dataclasses import replace

import anyio
import pytest
from approval_kit import ANN, CAREFUL, Town

from sluicegate.approval.queue import ApprovalQueue, ApprovalSettings
from sluicegate.catalog_cache.definition_pins import DefinitionPins, PinEvent
from sluicegate.catalog_cache.pin_store import Pinned
from sluicegate.policy import pins
from sluicegate.policy.pins import Found, Mode, Wanted
from sluicegate.store.memory import MemoryStore


def found(**texts: str) -> dict[str, Found]:
    return {name: Found(pins.fingerprint(text), text) for name, text in texts.items()}


class Boards:
    """Two, on one store; `events` is what each has told."""

    def __init__(self, mode: Mode = "review") -> None:
        store = MemoryStore()
        self.events: list[list[PinEvent]] = [[], []]
        self.all = [DefinitionPins({"s": Pinned(mode, "id")}, store, events.append) for events in self.events]

    async def load(self) -> "Boards":
        for board in self.all:
            await board.books.load()
        return self

    def told(self) -> list[tuple[str, str]]:
        return sorted((event.what, event.name) for events in self.events for event in events)


async def test_a_list_that_two_meet_at_once_is_recorded_once() -> None:
    boards = await Boards().load()
    async with anyio.create_task_group() as group:
        for board in boards.all:
            group.start_soon(board.meet, "s", "legacy", "", "tool", found(a="1", b="2"))
    assert boards.told() == [("first_use", "a"), ("first_use", "b")]


async def test_a_first_list_is_the_first_whoever_met_it() -> None:
    boards = await Boards().load()
    first, second = boards.all
    await first.meet("s", "legacy", "", "tool", found(a="1"))
    await second.meet("s", "legacy", "", "tool", found(a="1", b="2"))
    assert boards.told() == [("first_use", "a"), ("withheld", "b")]
    await first.books.refresh()
    assert [board.count_withheld("s") for board in boards.all] == [1, 1]


async def test_two_changes_at_once_lose_neither() -> None:
    boards = await Boards().load()
    first, second = boards.all
    await first.meet("s", "legacy", "", "tool", found(a="1", b="2"))
    await second.books.refresh()
    await first.meet("s", "legacy", "", "tool", found(a="changed"))
    await second.meet("s", "legacy", "", "tool", found(a="changed", b="changed"))
    await first.books.refresh()
    assert boards.told()[2:] == [("withheld", "a"), ("withheld", "b")], "each once"
    assert [board.count_withheld("s") for board in boards.all] == [2, 2]
    taken = await first.accept("s", [Wanted("tool", "a", pins.fingerprint("changed"))], "ann")
    assert not isinstance(taken, str)
    taken = await second.accept("s", [Wanted("tool", "b", pins.fingerprint("changed"))], "ann")
    assert not isinstance(taken, str), "over what the other has accepted meanwhile"
    await first.books.refresh()
    assert [board.count_withheld("s") for board in boards.all] == [0, 0]


@pytest.mark.parametrize("is_mine", [False, True])
async def test_an_approval_has_one_desk(is_mine: bool) -> None:
    town = Town()
    approval = await town.pending()
    world = replace(town.world(), is_mine=lambda principal: is_mine and principal == ANN.principal)
    other = ApprovalQueue(town.store, ApprovalSettings(profiles=CAREFUL), world, town.clock)
    await other.refresh()
    assert [one.id for one in other.open_ones()] == [approval.id] * is_mine
    assert (await other.get(approval.id) is not None) is is_mine
    assert other.pending()["one-of-leads"] == is_mine
    town.clock.now += 10 * 3600
    await other.refresh()
    kept = await town.desk.book.read(approval.id)
    assert kept is not None and kept.approval.state == ("expired" if is_mine else "pending")
