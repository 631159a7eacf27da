"""The newest checkpoint of each replica's audit log, in the database of all: a log that is gone, or ends before its
checkpoint, is seen wherever all of them are proved together.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio

from sluicegate import telemetry
from sluicegate.audit import checkpoint
from sluicegate.audit.checkpoint import Checkpoint
from sluicegate.audit.log import AuditLog
from sluicegate.store import Store, StoreFailed, Write

HEADS: Final = "audit/head/"
LOOK_EVERY: Final = 2.0
_LAST_WITHIN: Final = 5.0


async def keep(store: Store, head: Checkpoint) -> None:
    """In place of an older one: a writer goes on in its chain, and its epochs and records only rise. A log that began
    anew replaces none: the head of the one that is gone stays beside its own. Raises `StoreFailed`."""
    key = f"{HEADS}{head.writer}"
    while True:
        before = await store.get(key)
        known = None if before is None else checkpoint.read(before)
        if known is not None and (known.epoch, known.seq) >= (head.epoch, head.seq):
            return
        writes = [Write(key, head.dump())]
        if known is not None and (head.seq < known.seq or (head.seq == known.seq and head.hash != known.hash)):
            writes.append(Write(f"{key}@{known.epoch}", known.dump()))
        if await store.swap(key, before, writes):
            return


def read(values: Iterable[bytes]) -> list[Checkpoint]:
    return [found for value in values if (found := checkpoint.read(value)) is not None]


@asynccontextmanager
async def kept(audit: AuditLog, store: Store) -> AsyncIterator[None]:
    """Within the block, and what was signed at its end: the log is closed inside of it."""
    async with anyio.create_task_group() as group:
        group.start_soon(telemetry.supervise, "audit heads", lambda: _follow(audit, store))
        try:
            yield
        finally:
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True), anyio.move_on_after(_LAST_WITHIN), suppress(StoreFailed):
                if (last := audit.head()) is not None:
                    await keep(store, last)


async def _follow(audit: AuditLog, store: Store) -> None:
    newest = None
    while True:
        if (head := audit.head()) is not None and head != newest:
            with suppress(StoreFailed):  # the next look tries again
                await keep(store, head)
                newest = head
        await anyio.sleep(LOOK_EVERY)
