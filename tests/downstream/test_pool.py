"""Which connection serves whom, with connections that do nothing and a clock that is told the time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest
from anyio.abc import TaskGroup
from scripted_servers import until

from proxy.call import Client, Era
from proxy.downstream.connection import Connection, Receive
from proxy.downstream.exchange import Exchange
from proxy.downstream.pool import IDLE, MODERN_KEY, SHARED, SPARE, Key, Pool, key_for
from proxy.downstream.settings import Lost, ServerSettings
from proxy.era.modern_server import Headers
from proxy.era.revisions import Revision


class NoWire:
    """Carries nothing, and knows whether it was closed."""

    pid: int | None = None
    is_private = False
    is_ending = False
    is_closed = False

    def bind(self, receive: Receive, retire: object) -> None: ...
    async def open(self, group: TaskGroup) -> None: ...
    async def send(self, exchange: Exchange, body: bytes, headers: Headers) -> None: ...
    async def notify(self, body: bytes) -> None: ...
    def tell(self, body: bytes) -> None: ...
    def agreed(self, revision: Revision) -> None: ...
    async def live(self) -> None: ...
    async def close(self) -> None:
        self.is_closed = True


SETTINGS = ServerSettings("s", command=("x",))


@dataclass
class Bench:
    now: float = 0.0
    opened: list[Connection] = field(default_factory=list)
    ended: list[tuple[float, str]] = field(default_factory=list)
    may_open: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None

    async def open(self, era: Era, group: TaskGroup) -> Connection:
        await self.may_open.wait()
        if self.error is not None:
            raise self.error
        connection = Connection(SETTINGS, NoWire(), lambda scope, notification: None, {})
        self.opened.append(connection)
        return connection


@asynccontextmanager
async def pooled(is_open: bool = True) -> AsyncIterator[tuple[Pool, Bench, TaskGroup]]:
    bench = Bench()
    pool = Pool(bench.open, lambda lived, why: bench.ended.append((lived, why)), lambda: bench.now)
    if is_open:
        bench.may_open.set()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            pool.start(group)
            yield pool, bench, group
            group.cancel_scope.cancel()


A, B = Key("legacy", ("client", "a", "{}"), "scope a"), Key("legacy", ("session", "b", "s1"), "scope b")


@pytest.mark.parametrize(
    ("client", "era", "sharing", "key"),
    [
        (Client("p"), "modern", "session", MODERN_KEY),
        (Client("p", session="s"), "modern", "client", MODERN_KEY),
        (Client("p"), "legacy", "shared", SHARED),
        (Client("p", session="s"), "legacy", "session", Key("legacy", ("session", "p", "s"), "x")),
        (Client("p", capability_key="c"), "legacy", "session", Key("legacy", ("client", "p", "c"), "x")),
        (Client("p", session="s", capability_key="c"), "legacy", "client", Key("legacy", ("client", "p", "c"), "x")),
    ],
)
def test_who_shares_a_connection(client: Client, era: Era, sharing: str, key: Key) -> None:
    settings = ServerSettings("s", command=("x",), sharing=sharing)  # type: ignore[arg-type]
    assert key_for(client, era, settings, "x") == key


async def test_who_asks_at_once_for_the_same_waits_for_the_same() -> None:
    async with pooled(is_open=False) as (pool, bench, group):
        got: list[Connection] = []

        async def get(key: Key) -> None:
            got.append(await pool.get(key))

        for key in (A, A, B):
            group.start_soon(get, key)
        await anyio.wait_all_tasks_blocked()
        bench.may_open.set()
        await until(lambda: len(got) == 3)
        assert len(bench.opened) == 2 and len(set(map(id, got))) == 2


async def test_the_first_client_adopts_the_spare_even_one_that_is_on_its_way() -> None:
    async with pooled(is_open=False) as (pool, bench, group):
        group.start_soon(pool.get, SPARE)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(pool.get, A)
        await anyio.wait_all_tasks_blocked()
        bench.may_open.set()
        assert (await pool.get(A)).scope == "scope a"
        assert len(bench.opened) == 1 and pool.find(SPARE) is None
        await pool.get(B)
        assert len(bench.opened) == 2


async def test_a_failed_dial_is_told_to_all_who_wait_and_forgotten() -> None:
    async with pooled() as (pool, bench, _):
        bench.error = Lost("no", sent=False)
        with pytest.raises(Lost, match="no"):
            await pool.get(A)
        await until(lambda: len(pool) == 0)
        bench.error = None
        assert await pool.get(A) is pool.find(A)
        assert bench.ended == []


async def test_a_session_that_ends_while_it_is_dialled_leaves_nothing() -> None:
    async with pooled(is_open=False) as (pool, bench, group):
        group.start_soon(pool.get, B)
        await anyio.wait_all_tasks_blocked()
        pool.end_session("s1")
        bench.may_open.set()
        await until(lambda: bench.opened and bench.opened[0].wire.is_closed)  # type: ignore[attr-defined]
        assert len(pool) == 0 and bench.ended == []


async def test_a_connection_that_ends_by_itself_is_news_and_one_that_we_end_is_none() -> None:
    async with pooled() as (pool, bench, _):
        mine, theirs = await pool.get(B), await pool.get(A)
        bench.now = 7.0
        theirs.retire("died")
        pool.end_session("s1")
        await until(lambda: mine.wire.is_closed and theirs.wire.is_closed)  # type: ignore[attr-defined]
        assert bench.ended == [(7.0, "died")]
        assert pool.find(A) is pool.find(B) is None


async def test_what_is_held_and_gone_is_missed() -> None:
    async with pooled() as (pool, _, _group):
        pool.hold(A)
        pool.hold(A)
        assert pool.missing() == [A]
        (await pool.get(A)).retire("died")
        assert pool.missing() == [A]
        pool.release(A)
        pool.release(A)
        assert pool.missing() == []


async def test_the_idle_are_closed_but_not_the_held_the_sessions_and_the_last() -> None:
    async with pooled() as (pool, bench, _):
        held = Key("legacy", ("client", "held", "{}"))
        for key in (A, B, held):
            await pool.get(key)
        pool.hold(held)
        bench.now = IDLE
        pool.sweep()
        assert [pool.find(key) is not None for key in (A, B, held)] == [False, True, True]
        pool.release(held)
        pool.end_session("s1")
        bench.now = 3 * IDLE
        pool.sweep()
        assert pool.find(held) is not None
