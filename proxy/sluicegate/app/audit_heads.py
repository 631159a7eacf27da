"""The newest checkpoint of each replica's audit log, in the database of all: a log that is gone, or ends before its
checkpoint, is seen wherever all of them are proved together.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from sluicegate import telemetry
from sluicegate.audit import checkpoint
from sluicegate.audit.checkpoint import Checkpoint
from sluicegate.audit.log import AuditLog
from sluicegate.audit.recover import holds
from sluicegate.store import TRIES, Store, Write, overtaken

HEADS: Final = "audit/head/"
LOOK_EVERY: Final = 2.0
_LAST_WITHIN: Final = 5.0
_APART: Final = 16


async def keep(store: Store, head: Checkpoint, directory: Path, mine: Checkpoint | None = None) -> bool:
    """In place of `mine`, or of one before whose record the log in `directory` has. Where that log is gone, its head
    stays beside the new one, whatever the new log counts from. False: `head` is itself of a log that is gone, and was
    published before. Raises `StoreFailed` and `OSError`."""
    key = f"{HEADS}{head.writer}"
    for _ in range(TRIES):
        before = await store.get(key)
        earlier = None if before is None else checkpoint.read(before)
        is_held = earlier is None or earlier == mine or await anyio.to_thread.run_sync(holds, directory, earlier)
        writes = [Write(key, head.dump())]
        if earlier is not None and is_held and earlier.seq >= head.seq:
            return True
        if earlier == head:
            return False
        if earlier is not None and not is_held:
            writes.append(Write(f"{key}@{earlier.hash[:_APART]}", earlier.dump()))
        if await store.swap(key, before, writes):
            return True
    raise overtaken(key)


async def retire(store: Store, writer: str) -> None:
    """Forgets the log of a replica that is gone for good. Raises `StoreFailed`."""
    for key, value in (await store.scan(HEADS)).items():
        if (found := checkpoint.read(value)) is not None and found.writer == writer:
            await store.delete(key)


def read(values: Iterable[bytes]) -> list[Checkpoint]:
    return [found for value in values if (found := checkpoint.read(value)) is not None]


@asynccontextmanager
async def registering(audit: AuditLog, store: Store) -> AsyncIterator[None]:
    """Within the block, and what was signed at its end: the log is closed inside of it."""
    mine: Checkpoint | None = None

    async def take() -> None:
        nonlocal mine
        head = audit.head()
        with suppress(OSError):  # the store or the log cannot be read: the next look tries again
            if head is not None and head != mine:
                if await keep(store, head, audit.settings.path.parent, mine):
                    mine = head

    async def follow() -> None:
        while True:
            await take()
            await anyio.sleep(LOOK_EVERY)

    async with anyio.create_task_group() as group:
        group.start_soon(telemetry.supervise, "audit heads", follow)
        try:
            yield
        finally:
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True), anyio.move_on_after(_LAST_WITHIN):
                await take()
