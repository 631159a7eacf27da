"""Blocks that two people make and end at the same time, and a store that fails behind the change."""

import json
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from sluicegate.admin.blocks import BlocksApi
from sluicegate.app import replicas
from sluicegate.app.blocks import BLOCKS, change, read
from sluicegate.app.blocks_api import blocks_api
from sluicegate.app.services import open_policy_service
from sluicegate.config import Config
from sluicegate.policy.facts import Facts
from sluicegate.store import TRIES, StoreFailed
from sluicegate.store.memory import MemoryStore

CONFIG = Config.model_validate({"version": 1, "policy": {"use": "open"}, "servers": {"bank": {"command": "true"}}})
Meanwhile = Callable[[], Awaitable[object]]


async def nothing() -> list[str]:
    return []


def made_by(store: MemoryStore, meanwhile: Meanwhile = nothing, late: Callable[[], Awaitable[list[str]]] = nothing,
) -> BlocksApi:  # fmt: skip
    """`meanwhile` takes place between what this one has read and what it writes."""

    async def act(*about: Any, **fields: Any) -> bool:
        await meanwhile()
        return True

    async def resolve(what: str) -> Facts | str:
        return "none"

    return blocks_api(store, lambda: CONFIG, resolve, act, late)


@pytest.mark.parametrize(("first", "second"), [(None, 60.0), (60.0, None), (60.0, 30.0), (30.0, 60.0), (None, None)])
async def test_of_two_blocks_at_once_the_longer_is_kept_alone_and_said(
    first: float | None, second: float | None
) -> None:
    store = MemoryStore()
    other = made_by(store)
    api = made_by(store, lambda: other.add("bank", second, "", "key:second"))
    status, found = await api.add("bank", first, "", "key:first")
    (kept,) = (await read(store)).rows
    longest = None if None in (first, second) else max(first or 0.0, second or 0.0)
    assert (kept.until is None) is (longest is None)
    if kept.until is not None and longest is not None:
        assert longest - 10 < kept.until - time.time() <= longest
    assert status == 200 and found["block"]["id"] == kept.id and found["block"]["by"] == kept.by
    assert (await made_by(store).end(kept.id, "key:first"))[0] == 200
    assert (await read(store)).rows == ()


async def test_a_block_that_another_one_replaced_meanwhile_is_not_said_to_be_over() -> None:
    store = MemoryStore()
    await made_by(store).add("bank", 30.0, "", "key:first")
    (short,) = (await read(store)).rows
    other = made_by(store)
    status, found = await made_by(store, lambda: other.add("bank", None, "", "key:second")).end(short.id, "key:first")
    assert status == 409 and found["error"] == "bank was blocked again by key:second: unblock that, too"
    (kept,) = (await read(store)).rows
    assert kept.until is None


async def test_a_change_that_others_always_overtake_fails_and_does_not_go_on_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, tries = MemoryStore(), 0

    async def overtaken(*change: Any) -> bool:
        nonlocal tries
        tries += 1
        await anyio.lowlevel.checkpoint()
        return False

    monkeypatch.setattr(store, "swap", overtaken)
    with anyio.fail_after(20), pytest.raises(StoreFailed, match="other processes write all the time"):
        await made_by(store).add("bank", None, "", "key:first")
    assert tries == TRIES


async def test_a_store_that_fails_behind_the_change_does_not_unmake_it() -> None:
    async def late() -> list[str]:
        raise StoreFailed("gone")

    store = MemoryStore()
    status, found = await made_by(store, late=late).add("bank", None, "", "key:first")
    assert status == 200 and found["unconfirmed"] == ["a store that does not answer"]
    assert [row.what for row in (await read(store)).rows] == ["bank"]


@pytest.mark.parametrize(
    "odd",
    [{"server": 5}, {"reason": "of nothing"},
     *({"server": "bank", "until": until} for until in ("later", "", [], False, math.nan))],
)  # fmt: skip
async def test_blocks_of_another_form_are_none_that_can_be_read(odd: dict[str, object]) -> None:
    """Who is blocked then is not known: a row that is passed over would let somebody in."""
    store = MemoryStore()
    await store.put(BLOCKS, json.dumps({"version": "1", "rows": [{"id": "blk_1", **odd}]}).encode())
    with pytest.raises(StoreFailed, match="nobody knows what is blocked"):
        await read(store)


async def test_a_replica_with_other_blocks_is_not_confirmed_whatever_they_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicas, "CONFIRM_WITHIN", 0.0)
    store = MemoryStore()
    kept = await change(store, lambda rows: rows)
    for name, version in (("r0", kept.version), ("r1", "of a database that lost the last changes"), ("r2", "")):
        row = f'{{"name":"{name}","start":"x","url":"u","knows":99,"blocks":"{version}"}}'.encode()
        for prefix in (replicas.REPLICA, replicas.SEEN):
            await store.put(prefix + name, row)
    assert await replicas.unconfirmed(store) == ["r1", "r2"]


class SlowStore(MemoryStore):
    """The first read of what is blocked arrives when `go` is set; those behind it are quicker."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = anyio.Event(), anyio.Event()

    async def get(self, key: str) -> bytes | None:
        found = await super().get(key)
        if key == BLOCKS and not self.begun.is_set():
            self.begun.set()
            await self.go.wait()
        return found


async def test_what_was_read_first_does_not_take_effect_last(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"state": CONFIG.state.model_copy(update={"dir": str(tmp_path)})})
    store = SlowStore()
    async with open_policy_service(config, None, "http") as judges, anyio.create_task_group() as group:
        group.start_soon(judges.learn, store)
        await store.begun.wait()
        await made_by(store).add("bank", None, "", "key:first")
        group.start_soon(judges.learn, store)
        await anyio.wait_all_tasks_blocked()
        store.go.set()
    assert [row.what for row in judges.judge.blocks.rows] == ["bank"]
