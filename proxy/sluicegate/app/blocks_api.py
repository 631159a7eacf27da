"""Blocks as people make and end them: written down before they take effect. The same for the admin API of a Sluice that
runs and for a command where none does.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import inf
from secrets import token_hex
from typing import Final

from sluicegate.admin.blocks import BlocksApi
from sluicegate.admin.paging import StatusAndBody
from sluicegate.admin.response import UNRECORDED
from sluicegate.app.blocks import KeptBlocks, change, read
from sluicegate.app.policy_loading import out_of_place
from sluicegate.approval.presentation import stamp
from sluicegate.config import Config
from sluicegate.policy.blocks import Block
from sluicegate.policy.facts import Facts
from sluicegate.policy.globs import is_glob
from sluicegate.policy.roles import is_principal
from sluicegate.protocol.jsonrpc import Json
from sluicegate.store import Store, StoreFailed

MAX_BLOCKS: Final = 1_000
_UNKNOWN: Final = "a store that does not answer"

Resolve = Callable[[str], Awaitable[Facts | str]]
"""What the name of a tool may mean, or why it can be none."""


def rows(stored: KeptBlocks, now: float) -> list[Json]:
    """For people: those that are not over."""
    return [_row(row) for row in stored.rows if row.until is None or row.until > now]


def blocks_api(
    store: Store, config: Callable[[], Config], resolve: Resolve, act: Callable[..., Awaitable[bool]],
    took_effect: Callable[[], Awaitable[list[str]]],
) -> BlocksApi:  # fmt: skip
    """`config` is the one in force. `act` records durably, and returns whether it may be done. `took_effect`
    puts in force here what is kept by now, and names the replicas that may not know it yet."""

    async def every() -> list[Json]:
        return rows(await read(store), await store.now())

    async def add(what: str, seconds: float | None, reason: str, who: str) -> StatusAndBody:
        found = await _named(what, config(), resolve)
        if isinstance(found, str):
            return 400, {"error": found}
        block, note = found
        now = await store.now()
        block = replace(block, at=now, until=None if seconds is None else now + seconds, by=who, reason=reason)
        stored = [row for row in (await read(store)).rows if row.until is None or row.until > now]
        if longer := next((row for row in stored if row.what == block.what and _ends(row) > _ends(block)), None):
            ends = "until somebody ends that" if longer.until is None else f"until {stamp(longer.until)}"
            return 409, {"error": f"{block.what} is blocked for longer, {ends}: unblock it first"}
        if len(stored) >= MAX_BLOCKS:
            return 409, {"error": f"there are {MAX_BLOCKS} blocks: end some, or block a whole server"}
        lasts = {} if seconds is None else {"until": stamp(block.until or 0.0)}
        if not await act("block", what=block.what, by=who, reason=reason, **lasts):
            return UNRECORDED
        in_force = _of(block.what, await change(store, partial(_with, block))) or block
        return 200, {"block": _row(in_force), "note": note, "unconfirmed": await _late(took_effect)}

    async def end(id: str, who: str) -> StatusAndBody:
        block = next((row for row in (await read(store)).rows if row.id == id), None)
        if block is None:
            return 404, {"error": "no such block"}
        if not await act("unblock", what=block.what, by=who):
            return UNRECORDED
        left = await change(store, lambda others: tuple(row for row in others if row.id != id))
        late = await _late(took_effect)
        if again := _of(block.what, left):
            return 409, {"error": f"{block.what} was blocked again by {again.by}: unblock that, too"}
        return 200, {"block": _row(block), "note": "", "unconfirmed": late}

    return BlocksApi(every, add, end)


async def _late(took_effect: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """The change is made by then: that nobody knows who has it is no reason to make it again."""
    try:
        return await took_effect()
    except StoreFailed:
        return [_UNKNOWN]


async def _named(what: str, config: Config, resolve: Resolve) -> tuple[Block, str] | str:
    """What is meant by a server's key, a principal, SERVER/TOOL or a tool's public name, and what is odd about it; or
    why it is nothing of the kind."""
    id, servers = f"blk_{token_hex(6)}", ", ".join(sorted(config.servers))
    if what in config.servers:
        return Block(id=id, server=what), ""
    if is_principal(what):
        return Block(id=id, principal=what), out_of_place(config, what)
    facts = await resolve(what)
    if isinstance(facts, str):
        return f"{facts}; a client is written key:NAME, and these are the servers: {servers}"
    if not facts.candidates or facts.candidates[0].server not in config.servers:
        return f"no server has that: {servers}"
    found = facts.candidates[0]
    near = f"; did you mean {found.near}?" if found.near else ""
    notes = {"missing": f"{found.server} lists no tool {found.own}{near}",
             "unknown": f"no list of {found.server} is known, so nothing says whether it has {found.own}"}  # fmt: skip
    return Block(id=id, server=found.server, tool=found.own), "" if is_glob(found.own) else notes.get(found.state, "")


def _ends(block: Block) -> float:
    return inf if block.until is None else block.until


def _with(block: Block, others: Sequence[Block]) -> tuple[Block, ...]:
    """In place of another one of the same, unless that lasts longer: somebody made it meanwhile."""
    same = [row for row in others if row.what == block.what]
    return (*(row for row in others if row.what != block.what), max([block, *same], key=_ends))


def _of(what: str, stored: KeptBlocks) -> Block | None:
    return next((row for row in stored.rows if row.what == what), None)


def _row(block: Block) -> Json:
    until = "" if block.until is None else stamp(block.until)
    return asdict(block) | {"what": block.what, "at": stamp(block.at), "until": until}
