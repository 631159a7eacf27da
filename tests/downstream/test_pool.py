"""Which connection serves whom, with connections that do nothing and a clock that is told the time."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest
from anyio.abc import TaskGroup
from scripted_servers import until

from sluicegate.downstream.failures import Full, Lost, NotModern
from sluicegate.downstream.pool import (
    IDLE,
    IDLE_LANE,
    MODERN_KEY,
    SHARED,
    SPARE,
    ConnectionKey,
    ConnectionPool,
    PooledConnection,
    key_for,
)
from sluicegate.downstream.session.connection import Receive, ServerConnection
from sluicegate.downstream.session.pending_request import PendingRequest
from sluicegate.downstream.settings import ServerSettings
from sluicegate.protocol.model import Call, Client, Era
from sluicegate.protocol.modern_server import Headers
from sluicegate.protocol.revisions import Revision


class NoTransport:
    """Carries nothing, and knows whether it was closed."""

    pid: int | None = None
    is_private = False
    is_ending = False
    is_closed = False

    async def open(self, group: TaskGroup, receive: Receive, in_pieces: object, retire: object) -> None: ...
    async def send(self, exchange: PendingRequest, body: bytes, headers: Headers) -> None: ...
    async def notify(self, body: bytes) -> None: ...
    def send_soon(self, *bodies: bytes) -> None: ...
    def agreed(self, revision: Revision) -> None: ...
    async def live(self) -> None: ...
    def discard_input(self) -> None: ...
    async def close(self) -> None:
        self.is_closed = True


SETTINGS = ServerSettings("s", command=("x",))


@dataclass
class Bench:
    now: float = 0.0
    opened: list[ServerConnection] = field(default_factory=list)
    ended: list[tuple[float, str]] = field(default_factory=list)
    may_open: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None
    idle: set[str] = field(default_factory=set)
    era: Era | None = None  # what the server turns out to speak

    async def open(self, key: ConnectionKey, group: TaskGroup) -> ServerConnection:
        await self.may_open.wait()
        if self.error is not None:
            raise self.error
        connection = ServerConnection(SETTINGS, NoTransport(), lambda scope, notification: None, {})
        connection.era = self.era or key.era
        self.opened.append(connection)
        return connection


@asynccontextmanager
async def pooled(
    is_open: bool = True, settings: ServerSettings = SETTINGS
) -> AsyncIterator[tuple[ConnectionPool, Bench, TaskGroup]]:
    bench = Bench()
    pool = ConnectionPool(
        bench.open,
        lambda _, lived, why: bench.ended.append((lived, why)),
        lambda: bench.now,
        settings,
        lambda session: session in bench.idle,
    )
    if is_open:
        bench.may_open.set()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            pool.start(group)
            yield pool, bench, group
            group.cancel_scope.cancel()


A, B = ConnectionKey("legacy", ("client", "a"), "scope a"), ConnectionKey("legacy", ("session", "b", "s1"), "scope b")
ASKED = ConnectionKey("legacy", ("client", "c"), "scope c", '{"roots":{}}')


@pytest.mark.parametrize(
    ("client", "era", "sharing", "key"),
    [
        (Client("p"), "modern", "session", MODERN_KEY),
        (Client("p", session="s"), "modern", "client", MODERN_KEY),
        (Client("p"), "legacy", "shared", SHARED),
        (Client("p", session="s"), "legacy", "session", ConnectionKey("legacy", ("session", "p", "s"), "x", "d")),
        (Client("p"), "legacy", "session", ConnectionKey("legacy", ("client", "p"), "x", "d")),
        (Client("p", session="s"), "legacy", "client", ConnectionKey("legacy", ("client", "p"), "x", "d")),
        (Client("p", credential="c"), "legacy", "session", ConnectionKey("legacy", ("client", "p", "c"), "x", "d")),
    ],
)
def test_who_shares_a_connection(client: Client, era: Era, sharing: str, key: ConnectionKey) -> None:
    settings = ServerSettings("s", command=("x",), sharing=sharing)  # type: ignore[arg-type]
    assert key_for(client, era, settings, "x", "d") == key


async def test_what_the_key_of_a_client_opened_ends_with_it_once_its_calls_have_their_answers() -> None:
    async with pooled() as (pool, bench, _):
        before, new = (ConnectionKey("legacy", ("client", "a", mark), f"scope {mark}") for mark in "12")
        old, lane = await pool.get(before), await pool.get(before._replace(lane=1))
        others = [await pool.get(key) for key in (new, A, B, SPARE)]
        call = old.pending[1] = PendingRequest(1, Call(Client("a"), "tools/call", {}))
        pool.retain({"a 2"})
        assert pool.find(before) is None and lane.is_over and not any(other.is_over for other in others)
        assert not call.is_over and not old.drained.is_set()
        pool.retain({"a 2"})
        old.pending.clear()
        old.retire("again")  # as at the end of its last call
        await until(lambda: all(connection.transport.is_closed for connection in (old, lane)))  # type: ignore[attr-defined]
        assert len(pool) == 4 and not bench.ended


async def test_who_asks_at_once_for_the_same_waits_for_the_same() -> None:
    async with pooled(is_open=False) as (pool, bench, group):
        got: list[ServerConnection] = []

        async def get(key: ConnectionKey) -> None:
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


@pytest.mark.parametrize("meanwhile", ["a client comes", "its session ends"])
async def test_a_connection_that_turns_out_to_be_legacy_is_for_whom_it_was_made(meanwhile: str) -> None:
    """The handshake has named the capabilities, and the session, of who was first when it began."""
    async with pooled(is_open=False) as (pool, bench, group):
        bench.era = "legacy"
        if meanwhile == "its session ends":
            pool.first = B
        errors: list[str] = []

        async def get() -> None:
            with pytest.raises(NotModern):
                await pool.get(MODERN_KEY)
            errors.append("not modern")

        group.start_soon(get)
        await anyio.wait_all_tasks_blocked()
        if meanwhile == "its session ends":
            pool.end_session("s1")
        else:
            pool.first = B
        bench.may_open.set()
        await until(lambda: errors)
        if meanwhile == "its session ends":
            await until(lambda: bench.opened[0].transport.is_closed)  # type: ignore[attr-defined]
            assert len(pool) == 0
        else:
            assert pool.find(SPARE) is bench.opened[0] and pool.find(B) is None


async def test_a_failed_dial_is_told_to_all_who_wait_and_forgotten() -> None:
    async with pooled() as (pool, bench, _):
        bench.error = Lost("no", sent=False)
        with pytest.raises(Lost, match="no"):
            await pool.get(A)
        await until(lambda: len(pool) == 0)
        bench.error = None
        assert await pool.get(A) is pool.find(A)
        assert bench.ended == []


async def test_a_failed_dial_leaves_nothing_for_the_collector() -> None:
    async with pooled() as (pool, bench, _):
        gc.collect()
        gc.disable()
        try:
            before = slots()
            for _ in range(3):
                bench.error = Lost("no", sent=False)
                with pytest.raises(Lost, match="no"):
                    await pool.get(A)
                await until(lambda: len(pool) == 0)
            bench.error = None
            assert slots() - before <= 1, "the frames of the last one may still be there"
        finally:
            gc.enable()


def slots() -> int:
    return sum(isinstance(one, PooledConnection) for one in gc.get_objects())


async def test_a_session_that_ends_while_it_is_dialled_leaves_nothing() -> None:
    async with pooled(is_open=False, settings=ServerSettings("s", command=("x",), processes=1)) as (pool, bench, group):
        refused: list[Full] = []

        async def get() -> None:
            with pytest.raises(Full, match="the client's session ended") as error:
                await pool.get(B)
            refused.append(error.value)

        group.start_soon(get)
        await anyio.wait_all_tasks_blocked()
        pool.end_session("s1")
        await until(lambda: refused)
        assert len(pool) == 0 and bench.opened == bench.ended == []
        bench.may_open.set()
        assert await pool.get(A) is bench.opened[0], "its place is free"


async def test_the_first_client_has_the_first_connection_and_no_later_one() -> None:
    async with pooled() as (pool, bench, _):
        pool.first = B
        bench.error = Lost("no", sent=False)
        with pytest.raises(Lost):
            await pool.get(B)
        assert pool.first == B, "it has none yet"
        await until(lambda: len(pool) == 0)
        bench.error = None
        await pool.get(pool.first)
        assert pool.first == SPARE


async def test_a_connection_that_ends_by_itself_is_news_and_one_that_we_end_is_none() -> None:
    async with pooled() as (pool, bench, _):
        mine, theirs = await pool.get(B), await pool.get(A)
        bench.now = 7.0
        theirs.retire("died")
        pool.end_session("s1")
        await until(lambda: mine.transport.is_closed and theirs.transport.is_closed)  # type: ignore[attr-defined]
        assert bench.ended == [(7.0, "died")]
        assert pool.find(A) is pool.find(B) is None


async def test_what_is_held_is_heard_on_any_connection_of_its_scope_or_a_spare_or_missed() -> None:
    async with pooled() as (pool, _, _group):
        releases = [pool.needs.hold(A), pool.needs.hold(A), pool.needs.hold(B)]
        assert pool.missing() == [SPARE]
        spare = await pool.get(SPARE)
        assert pool.missing() == [] and pool.find_hearing(A) is spare
        assert await pool.get(A) is spare
        assert pool.missing() == [SPARE]  # for B
        releases.pop()()
        assert pool.missing() == [] and pool.find_hearing(B) is None
        spare.retire("died")
        assert pool.missing() == [SPARE]
        for release in (*releases, *releases):
            release()
        assert pool.missing() == []


async def test_a_modern_connection_hears_for_no_legacy_client() -> None:
    async with pooled() as (pool, _, _group):
        pool.needs.hold(A)
        pool.needs.hold(MODERN_KEY)
        await pool.get(MODERN_KEY)
        assert pool.missing() == [SPARE]


async def test_only_a_spare_of_the_same_capabilities_is_adopted_and_the_other_ends_when_nobody_needs_it() -> None:
    async with pooled() as (pool, bench, _):
        spare = await pool.get(SPARE)
        release = pool.needs.hold(A)
        asked = await pool.get(ASKED)
        assert asked is not spare and pool.find(SPARE) is spare
        release()
        release()
        await pool.get(ConnectionKey("legacy", ("client", "d"), "scope d", ASKED.declared))
        await until(lambda: spare.transport.is_closed)  # type: ignore[attr-defined]
        assert pool.find(ASKED) is asked and len(bench.opened) == 3


async def test_the_idle_are_closed_but_not_the_needed_the_sessions_and_the_last() -> None:
    async with pooled() as (pool, bench, _):
        held = ConnectionKey("legacy", ("client", "held"), "scope held")
        for key in (A, B, held, A._replace(lane=1)):
            await pool.get(key)
        release = pool.needs.hold(held)
        bench.now = IDLE_LANE
        pool.sweep()
        assert [pool.find(key) is not None for key in (A, B, held, A._replace(lane=1))] == [True, True, True, False]
        bench.now += IDLE
        pool.sweep()
        assert [pool.find(key) is not None for key in (A, B, held)] == [False, True, True]
        release()
        pool.end_session("s1")
        bench.now += IDLE
        pool.sweep()
        assert pool.find(held) is not None


async def test_an_idle_session_gives_its_connection_back_and_its_next_one_says_so() -> None:
    async with pooled(settings=ServerSettings("s", command=("x",), idle=60.0)) as (pool, bench, _):
        session = ConnectionKey("legacy", ("session", "p", "s2"), "scope b")
        for key in (B, session):
            await pool.get(key)
        bench.now = 60.0
        pool.sweep()
        assert pool.find(B) and pool.find(session), "their streams are open"
        bench.idle = {"s1"}
        bench.now = 119.0
        pool.sweep()
        assert pool.find(B) is not None, "it was in use a minute ago"
        bench.now = 179.0
        pool.sweep()
        assert pool.find(B) is None and pool.find(session) is not None
        assert bench.ended == []
        anew = await pool.get(B)
        assert "its connection was idle" in anew.anew
        assert bench.opened[1].anew == ""


async def test_a_connection_with_an_open_call_a_task_or_a_watched_resource_is_not_idle() -> None:
    settings = ServerSettings("s", command=("x",), idle=60.0)
    async with pooled(settings=settings) as (pool, bench, _):
        keys = [ConnectionKey("legacy", ("session", "p", f"s{number}"), "scope") for number in range(4)]
        calling, tasking, watching, idle = [await pool.get(key) for key in keys]
        bench.idle = {f"s{number}" for number in range(4)}
        calling.pending[1] = PendingRequest(1, Call(Client("p"), "tools/call", {}))
        tasking.tasks_until = anyio.current_time() + 1000
        pool.needs.require(keys[2], True)
        bench.now = 60.0
        pool.sweep()
        assert [connection.is_over for connection in (calling, tasking, watching, idle)] == [False, False, False, True]
        calling.pending.clear()


async def test_several_idle_sessions_of_different_clients_leave_one_spare_that_hears_for_all() -> None:
    async with pooled(settings=ServerSettings("s", command=("x",), idle=60.0)) as (pool, bench, _):
        keys = [
            ConnectionKey("legacy", ("session", f"p{number}", f"s{number}"), f"scope {number}") for number in range(3)
        ]
        for key in keys:
            await pool.get(key)
            pool.needs.hold(key)
        assert pool.missing() == []
        bench.idle, bench.now = {"s0", "s1", "s2"}, 60.0
        assert pool.missing() == [SPARE]
        await pool.get(SPARE)
        pool.sweep()
        assert [connection.is_over for connection in bench.opened] == [True, True, True, False]
        assert pool.missing() == []


async def test_under_the_bound_the_connection_goes_that_was_idle_longest() -> None:
    async with pooled(settings=ServerSettings("s", command=("x",), processes=2)) as (pool, bench, _):
        first, second, third = (
            ConnectionKey("legacy", ("session", "p", f"s{number}"), f"scope {number}") for number in (1, 2, 3)
        )
        for bench.now, key in ((1.0, first), (2.0, second)):
            await pool.get(key)
            pool.needs.hold(key)
        with pytest.raises(Full, match="all 2 processes"):
            await pool.get(third)
        bench.now = 3.0
        pool.find(first)
        bench.idle = {"s1", "s2"}
        await pool.get(third)
        assert pool.find(second) is None and pool.find(first) is not None and len(pool) == 2
        assert pool.missing() == [], "there is no room for it"
        bench.idle = {"s1", "s2", "s3"}
        bench.now = 4.0
        assert "another session needed its place" in (await pool.get(second)).anew
        assert pool.find(first) is None
        pool.end_session("s1")
        bench.idle = set()
        with pytest.raises(Full):
            await pool.get(first)


async def test_nobody_keeps_all_processes_from_others_by_open_streams() -> None:
    """A principal with more than an equal share gives one back, if nothing runs on it."""
    async with pooled(settings=ServerSettings("s", command=("x",), processes=4)) as (pool, bench, _):
        anns = [ConnectionKey("legacy", ("session", "ann", f"a{number}"), f"scope {number}") for number in range(4)]
        bob, bobs, eve = (
            ConnectionKey("legacy", ("session", name, f"s {number}"), f"scope {name}")
            for number, name in enumerate(("bob", "bob", "eve"))
        )
        for number, key in enumerate(anns):
            bench.now = float(number)
            await pool.get(key)
        busy = pool.find(anns[0])
        assert busy is not None
        busy.pending[1] = PendingRequest(1, Call(Client("ann"), "tools/call", {}))
        await pool.get(bob)
        assert [pool.is_there(key) for key in anns] == [True, False, True, True]
        await pool.get(bobs)
        assert [pool.is_there(key) for key in anns] == [True, False, False, True]
        with pytest.raises(Full):
            await pool.get(bob._replace(owner=("session", "bob", "third")))
        await pool.get(eve)
        with pytest.raises(Full):
            await pool.get(anns[1])
        busy.pending.clear()


async def test_nobody_keeps_all_processes_from_others_by_tasks() -> None:
    """A task holds its connection for as long as its client wished, also once it has ended. A call is let end."""
    async with pooled(settings=ServerSettings("s", command=("x",), processes=4)) as (pool, bench, _):
        anns = [ConnectionKey("legacy", ("session", "ann", f"a{number}"), f"scope {number}") for number in range(4)]
        bob = ConnectionKey("legacy", ("session", "bob", "b"), "scope b")
        for number, key in enumerate(anns):
            bench.now = float(number)
            (await pool.get(key)).tasks_until = anyio.current_time() + 24 * 3600
        bench.opened[0].pending[1] = PendingRequest(1, Call(Client("ann"), "tools/call", {}))
        bench.opened[3].tasks_until = 0.0
        await pool.get(bob)
        assert [pool.is_there(key) for key in anns] == [True, True, True, False], "it has no task"
        await pool.get(bob._replace(owner=("session", "bob", "second")))
        assert [pool.is_there(key) for key in anns] == [True, False, True, False]
        with pytest.raises(Full):
            await pool.get(bob._replace(owner=("session", "bob", "third")))
        bench.opened[0].pending.clear()


async def test_a_list_of_ones_own_ends_no_task_of_ones_own() -> None:
    async with pooled(settings=ServerSettings("s", command=("x",), processes=2)) as (pool, bench, _):
        for number in range(2):
            key = ConnectionKey("legacy", ("session", "ann", f"a{number}"), f"scope {number}")
            (await pool.get(key)).tasks_until = anyio.current_time() + 24 * 3600
        with pytest.raises(Full):
            await pool.get(SPARE, "ann")
        assert len(pool) == len(bench.opened) == 2
        await pool.get(SPARE, "bob")
        assert len(pool) == 2 and len(bench.opened) == 3


async def test_what_belongs_to_no_one_client_is_not_ended_with_the_tasks_of_all() -> None:
    async with pooled(settings=ServerSettings("s", command=("x",), processes=2)) as (pool, bench, group):
        (await pool.get(MODERN_KEY)).tasks_until = anyio.current_time() + 24 * 3600
        bench.may_open = anyio.Event()
        group.start_soon(pool.get, SPARE)
        await until(lambda: pool.is_there(SPARE))
        with pytest.raises(Full):
            await pool.get(ASKED)
        assert pool.find(MODERN_KEY) is not None


async def test_who_has_more_than_an_equal_share_gives_its_own_idle_process_first() -> None:
    async with pooled(settings=ServerSettings("s", command=("x",), processes=3)) as (pool, bench, _):
        bob, *anns = (
            ConnectionKey("legacy", ("session", name, f"{name}{number}"), f"scope {number}")
            for number, name in enumerate(("bob", "ann", "ann", "ann", "eve"))
        )
        eve = anns.pop()
        bench.idle = {key.owner[2] for key in (bob, eve, *anns)}
        for bench.now, key in enumerate((bob, *anns)):
            await pool.get(key)
        assert [pool.is_there(key) for key in (bob, *anns)] == [True, False, True, True], "bob's was idle longest"
        await pool.get(eve)
        assert [pool.is_there(key) for key in (bob, eve, *anns)] == [True, True, False, False, True]
        await pool.get(anns[0])
        assert [pool.is_there(key) for key in (bob, eve, *anns)] == [True, True, True, False, False]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[PooledConnection]:
    """The connections of which it was asked whether they live, each time."""
    seen, is_live = list[PooledConnection](), PooledConnection.is_live.fget  # type: ignore[attr-defined]  # a property

    def look(slot: PooledConnection) -> bool:
        seen.append(slot)
        return bool(is_live(slot))

    monkeypatch.setattr(PooledConnection, "is_live", property(look))
    return seen


async def test_to_make_room_and_to_sweep_each_connection_is_looked_at_few_times(looks: list[PooledConnection]) -> None:
    """Not as often as there are connections: 512 of them took 110 ms, in one step, for each that was wanted."""
    count = 64
    async with pooled(settings=ServerSettings("s", command=("x",), processes=count)) as (pool, bench, _):
        keys = [ConnectionKey("legacy", ("client", f"c{number}"), f"scope {number}") for number in range(count)]
        for key in keys:
            await pool.get(key)
        for key in keys[::2]:
            pool.needs.hold(key)
        looks.clear()
        await pool.get(A)
        assert len(looks) <= 4 * count and pool.find(keys[0]) is not None and pool.find(keys[1]) is None
        looks.clear()
        bench.now = IDLE
        pool.sweep()
        assert len(looks) <= 4 * count and len(pool) == count // 2


async def test_where_spares_are_dropped_each_connection_is_looked_at_a_few_times(looks: list[PooledConnection]) -> None:
    count = 64
    async with pooled(settings=ServerSettings("s", command=("x",), processes=count)) as (pool, _, _group):
        spares = [SPARE._replace(declared=f'{{"{number}":{{}}}}') for number in range(count - 2)]
        for spare in spares:
            pool.needs.require(spare, is_required=True)
            await pool.get(spare)
        looks.clear()
        await pool.get(ConnectionKey("legacy", ("client", "a"), "scope a", declared='{"a":{}}'))
        assert len(looks) <= 8 * count and len(pool) == count - 1
        for spare in spares:
            pool.needs.require(spare, is_required=False)
        pool.needs.hold(SPARE)
        looks.clear()
        await pool.get(ConnectionKey("legacy", ("client", "b"), "scope b", declared='{"b":{}}'))
        await until(lambda: len(pool) == 3)
        assert len(looks) <= 8 * count and sum(pool.is_there(spare) for spare in spares) == 1, "somebody hears on it"


async def test_the_end_of_a_session_looks_at_no_other_one_that_lost_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client may have 10,000 of those, and end all of them: each end took 1.7 ms, at each server."""
    looks, session = 0, ConnectionKey.session.fget  # type: ignore[attr-defined]  # a property

    def look(key: ConnectionKey) -> str | None:
        nonlocal looks
        looks += 1
        return str(session(key)) if session(key) else None

    async with pooled() as (pool, _, _group):
        for number in range(100):
            pool.lost.add(ConnectionKey("legacy", ("session", "p", f"s{number}"), "scope"), "it ended")
        monkeypatch.setattr(ConnectionKey, "session", property(look))
        pool.end_session("s1")
        assert looks <= 2
        again = [await pool.get(ConnectionKey("legacy", ("session", "p", one), "scope")) for one in ("s1", "s2")]
        assert [connection.anew != "" for connection in again] == [False, True]


async def test_a_connection_that_is_ending_keeps_its_place_until_it_has_ended() -> None:
    async with pooled(settings=ServerSettings("s", command=("x",), processes=1)) as (pool, bench, group):
        old = await pool.get(B)
        may_close = anyio.Event()
        old.transport.close = may_close.wait  # type: ignore[method-assign, assignment]
        bench.idle = {"s1"}
        got: list[ServerConnection] = []

        async def get() -> None:
            got.append(await pool.get(A))

        group.start_soon(get)
        await anyio.wait_all_tasks_blocked()
        assert len(bench.opened) == 1 and got == []
        may_close.set()
        await until(lambda: got)
        assert len(bench.opened) == 2


async def test_a_large_message_is_weighed_measured_decoded_and_searched_in_steps_of_their_own() -> None:
    """Each takes milliseconds for a megabyte; whoever takes the pieces lets others have their turn between them."""
    connection = ServerConnection(SETTINGS, NoTransport(), lambda scope, notification: None, {})
    pieces = connection.incoming.receive_in_pieces(b'{"jsonrpc": "2.0", "id": 1, "result": {}}', None)
    assert sum(1 for _ in pieces) == 4
