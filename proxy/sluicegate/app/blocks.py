"""Blocks in the store: one value, for every process that uses it. Who makes them is a matter of `app.blocks_api`."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from math import isnan
from secrets import token_hex
from typing import Final

from sluicegate.policy.blocks import Block
from sluicegate.protocol.jsonrpc import dump
from sluicegate.store import TRIES, Store, StoreFailed, Write, overtaken

BLOCKS: Final = "policy/blocks"
_MEMBERS: Final = frozenset(field.name for field in fields(Block))
"""A newer Sluice on the same store may write more of them."""


@dataclass(frozen=True, slots=True)
class KeptBlocks:
    """`version` is another one after each change. It counts nothing: a database that was restored would count anew."""

    version: str = ""
    rows: tuple[Block, ...] = ()


def parse(value: bytes | None) -> KeptBlocks:
    """Raises `StoreFailed` for what is not known to be whole."""
    if value is None:
        return KeptBlocks()
    try:
        found = json.loads(value)
        rows = [{name: row[name] for name in row.keys() & _MEMBERS} for row in found["rows"]]
        kept = KeptBlocks(str(found["version"]), tuple(Block(**row) for row in rows))
        if not all(map(_is_sound, kept.rows)):
            raise TypeError
        return kept
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreFailed(f"what stands under {BLOCKS} cannot be read: nobody knows what is blocked") from None


def _is_sound(row: Block) -> bool:
    texts = row.id, row.principal, row.server, row.tool, row.by, row.reason
    times = (row.at,) if row.until is None else (row.at, row.until)
    is_typed = all(isinstance(one, str) for one in texts) and all(type(one) in (int, float) for one in times)
    return is_typed and not any(map(isnan, times)) and bool(row.principal or row.server)


async def read(store: Store) -> KeptBlocks:
    """Raises `StoreFailed`."""
    return parse(await store.get(BLOCKS))


async def change(store: Store, to: Callable[[tuple[Block, ...]], tuple[Block, ...]]) -> KeptBlocks:
    """Keeps what `to` makes of the blocks that are not over. Raises `StoreFailed`."""
    for _ in range(TRIES):
        value = await store.get(BLOCKS)
        before, now = parse(value), await store.now()
        left = tuple(row for row in before.rows if row.until is None or row.until > now)
        after = KeptBlocks(token_hex(8), to(left))
        if await store.swap(BLOCKS, value, [Write(BLOCKS, dump(asdict(after)))]):
            return after
    raise overtaken(BLOCKS)
