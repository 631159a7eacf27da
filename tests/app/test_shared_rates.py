"""The task that settles the rates of a replica: it goes on where the database fails, and gives back what it has."""

from collections.abc import Sequence

import anyio
import pytest
from rate_ledger import Clock, Ledger
from waiting import until

from sluicegate.app import shared_rates
from sluicegate.policy.leases import LeasedWindows, LeaseGrant, LeaseReport
from sluicegate.policy.rates import Windows
from sluicegate.store import StoreFailed


class Database:
    def __init__(self) -> None:
        self.ledger, self.asked = Ledger(Clock()), 0
        self.is_down = False
        self.told: list[LeaseReport] = []

    async def settle(self, holder: str, reports: Sequence[LeaseReport]) -> list[LeaseGrant]:
        self.asked += 1
        if self.is_down:
            raise StoreFailed("no answer")
        self.told.extend(reports)
        return self.ledger.settle(holder, reports)


async def test_it_goes_on_after_a_failure() -> None:
    database = Database()
    client, tool = LeasedWindows("client", 100, 1.0), LeasedWindows("tool", 50, 60.0)
    windows: dict[str, Windows] = {"client": client, "tool": tool}
    async with anyio.create_task_group() as group:
        group.start_soon(shared_rates.settle, database, "r0.", windows)
        database.is_down = True
        assert client.hit("ann") == tool.hit("ann") == 0.0
        await until(lambda: database.asked > 1)
        database.is_down = False
        await until(lambda: len({report.key for report in database.told}) == 2)
        assert sum(report.want for report in database.told) > 1
        group.cancel_scope.cancel()


async def test_at_its_end_everything_is_reported_and_given_back() -> None:
    database, rate = Database(), LeasedWindows("tool", 600, 60.0)
    async with anyio.create_task_group() as group:
        group.start_soon(shared_rates.settle, database, "r0.", {"tool": rate})
        assert rate.hit("ann") == 0.0
        await until(lambda: bool(database.told))
        assert database.told[0].want == 30
        assert rate.hit("ann") == 0.0
        group.cancel_scope.cancel()
    last = database.told[-1]
    assert (last.total, last.held, last.is_over) == (2, 0, True)


async def test_an_end_without_the_database_takes_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_rates, "LAST_REPORT", 0.1)

    class Silent(Database):
        async def settle(self, holder: str, reports: Sequence[LeaseReport]) -> list[LeaseGrant]:
            self.asked += 1
            await anyio.sleep_forever()
            raise AssertionError

    database, rate = Silent(), LeasedWindows("client", 10, 1.0)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(shared_rates.settle, database, "r0.", {"client": rate})
            rate.hit("ann")
            await until(lambda: database.asked > 0)
            group.cancel_scope.cancel()
    assert database.asked == 2
