"""The rates of the config where all replicas of a fleet share them, by leases from the database."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final, Protocol

import anyio

from sluicegate.app.replicas import Replicas
from sluicegate.config.units import Rate
from sluicegate.policy.leases import LeasedWindows, LeaseGrant, LeaseReport
from sluicegate.policy.rates import Windows
from sluicegate.store import StoreFailed

LAST_REPORT: Final = 1.0
"""Seconds. What is not given back by then, others have a little later."""


class Ledger(Protocol):
    """What a store has that replicas share."""

    async def settle(self, holder: str, reports: Sequence[LeaseReport]) -> list[LeaseGrant]:
        """Raises `StoreFailed`."""
        ...


def shared(rates: Mapping[str, Rate], replicas: Replicas) -> dict[str, Windows]:
    """By scope, as `rates`."""
    leased = {scope: LeasedWindows(scope, rate.amount, rate.seconds) for scope, rate in rates.items()}
    replicas.on_change.append(partial(_recount, replicas, leased.values()))
    _recount(replicas, leased.values())
    return dict(leased)


def _recount(replicas: Replicas, leased: Collection[LeasedWindows], others: object = None) -> None:
    for one in leased:
        one.live(replicas.shares.partition.count, replicas.shares.partition.index)


async def settle(ledger: Ledger, holder: str, rates: Mapping[str, Windows]) -> None:
    """Reports what passed, and takes new leases, until it is cancelled. What is leased then is given back."""
    leased = [one for one in rates.values() if isinstance(one, LeasedWindows)]
    every = min(one.every for one in leased)
    try:
        for tick in count(1):
            await anyio.sleep(every)
            due = [one for one in leased if tick % round(one.every / every) == 0]
            reports = [report for one in due for report in one.report()]
            if not reports:
                continue
            try:
                grants = await ledger.settle(holder, reports)
            except StoreFailed:
                continue  # the store says so itself, and rates go on by what they know
            for one in due:
                one.granted(grants)
    finally:
        with anyio.move_on_after(LAST_REPORT, shield=True), suppress(StoreFailed):
            await ledger.settle(holder, [report for one in leased for report in one.last()])
