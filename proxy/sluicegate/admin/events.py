"""Server-sent events of approvals: first a page of what waits, then whatever becomes of any of them.

Where more waits, the event `more` says how much, and has the cursor for the list.

A reader that is too slow loses its stream, and finds everything again in the next one's beginning. The right to read
is asked for again and again: a stream does not outlive it.
"""

import json
from collections.abc import AsyncGenerator, Callable
from typing import Final

import anyio

from sluicegate.admin.paging import MAX_ROWS, PageRequest, page_of
from sluicegate.approval import presentation
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.approval.record import Approval
from sluicegate.protocol.jsonrpc import Json

MAX_BEHIND: Final = 1_000
MAX_STREAMS: Final = 100
FULL: Final = b"event: full\ndata: {}\n\n"
LOOK_EVERY: Final = 1.0
ALIVE_EVERY: Final = 15


async def stream(
    queue: ApprovalQueue, sees: Callable[[Approval], bool], is_allowed: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    if len(queue.watchers) >= MAX_STREAMS:
        yield FULL
        return
    into, out = anyio.create_memory_object_stream[Approval](MAX_BEHIND)
    is_behind = False

    def watch(approval: Approval) -> None:
        nonlocal is_behind
        try:
            into.send_nowait(approval)
        except anyio.WouldBlock:
            is_behind = True

    queue.watchers.append(watch)
    try:
        yield b": approvals\n\n"
        waiting = [approval for approval in queue.open_ones() if sees(approval)]
        page = await page_of(waiting, cursor_of, PageRequest(limit=MAX_ROWS), lambda one: _row(queue, one))
        for row in page["rows"]:
            yield _event(row)
        if "next" in page:
            more = {"total": page["total"], "next": page["next"]}
            yield b"event: more\ndata: %b\n\n" % json.dumps(more).encode("ascii")
        yield b": live\n\n"  # what follows are changes
        quiet = 0
        while is_allowed() and not (is_behind or queue.is_closing):
            changed: Approval | None = None
            with anyio.move_on_after(LOOK_EVERY):
                changed = await out.receive()
            if changed is not None and sees(changed):
                yield _event(await _row(queue, changed))
            quiet = 0 if changed is not None else quiet + 1
            if quiet >= ALIVE_EVERY:
                quiet = 0
                yield b": \n\n"
    finally:
        queue.watchers.remove(watch)
        into.close()
        out.close()


def cursor_of(approval: Approval) -> str:
    """By their age; one of two of the same age comes first for everybody."""
    return f"{approval.created:017.6f}-{approval.id}"


async def _row(queue: ApprovalQueue, approval: Approval) -> Json:
    return presentation.tell(approval, await queue.book.row(approval.id))


def _event(row: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (row["state"].encode("ascii"), json.dumps(row).encode("ascii"))
