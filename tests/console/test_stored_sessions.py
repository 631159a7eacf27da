"""Console sessions outlive a restart: with both halves, while their key is good, and for no longer than before."""

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from console.test_console_process import Tab, acts, front, new_code
from peers.fleet import free_port, peers
from policy_bed import key_of

from sluicegate.console.sessions import (
    LIFETIMES,
    MAX_LOOKS,
    MAX_PER_PRINCIPAL,
    PREFIX,
    WRITE_EVERY,
    ConsoleSessions,
    Halves,
    Session,
    SessionKind,
    StoredSessions,
)
from sluicegate.store.keys import KEY_BYTES, KeyRing, Sealer
from sluicegate.store.memory import MemoryStore

pytestmark = pytest.mark.anyio
__all__ = ["peers"]
SEALER = Sealer(KeyRing([b"k" * KEY_BYTES]))


class Process:
    """What one process has of the sessions. `now` is the time of its own clock and of the wall's."""

    def __init__(self, store: MemoryStore | None, now: float, wall: float, token: str = "token") -> None:
        self.now, self.wall = now, wall
        self.sessions = ConsoleSessions(lambda: self.now)
        self.stored = StoredSessions(self.sessions, store, SEALER, token, lambda: self.now, lambda: self.wall)

    async def begin(self, way: SessionKind = "key", principal: str = "key:ann", credential: str = "s3cret") -> "Began":
        session, halves = self.sessions.open(principal, way, credential)
        await self.stored.save(session, halves)
        return Began(session, halves)

    async def uses(self, halves: Halves) -> Session | None:
        """As a request does."""
        session = self.sessions.find(halves.cookie, halves.page_key, True)
        session = session or await self.stored.restore(halves.cookie, halves.page_key)
        if session is None or not await self.stored.is_there(session):
            return None
        await self.stored.touch(session)
        return session

    def passes(self, seconds: float) -> None:
        self.now, self.wall = self.now + seconds, self.wall + seconds


class Began:
    def __init__(self, session: Session, halves: Halves) -> None:
        self.session, self.halves = session, halves


async def test_a_session_goes_on_in_the_next_process_with_both_halves_alone() -> None:
    store = MemoryStore(lambda: 0.0)
    began = await Process(store, 50, 1e9).begin()
    halves = began.halves
    for cookie, page_key in ((halves.cookie, "x"), ("x", halves.page_key), (halves.page_key, halves.cookie), ("", "")):
        assert await Process(store, 5, 1e9 + 10).stored.restore(cookie, page_key) is None
    later = Process(store, 5, 1e9 + 10)
    session = await later.stored.restore(halves.cookie, halves.page_key)
    assert session is not None and (session.principal, session.credential) == ("key:ann", "s3cret")
    assert later.sessions.find(halves.cookie, halves.page_key, True) is session
    assert session.mark == began.session.mark and later.sessions.seconds_of_step_up(session) == 0
    assert await later.stored.restore(halves.cookie, halves.page_key) is session, "it is one session"


async def test_strangers_have_the_store_looked_at_a_hundred_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    halves, one = (await Process(store, 5, 1e9).begin()).halves, Process(store, 5, 1e9)
    looks, scan = list[str](), store.scan

    async def counted(prefix: str) -> dict[str, bytes]:
        looks.append(prefix)
        return await scan(prefix)

    monkeypatch.setattr(store, "scan", counted)
    for number in range(1000):
        assert await one.uses(Halves(f"a{number}", "b")) is None
    assert len(looks) == MAX_LOOKS
    one.passes(1)
    assert await one.uses(halves) is not None and await one.begin()


async def test_the_store_has_neither_half_nor_the_credential() -> None:
    store = MemoryStore()
    one, two = Process(store, 0, 0), await Process(store, 0, 0).begin("link", "local", "operator-token")
    began = await one.begin()
    rows = await store.scan("")
    assert len(rows) == 2 and all(key.startswith(PREFIX) for key in rows)
    shown = json.dumps({key: value.decode() for key, value in rows.items()}) + repr((one.stored, began.session))
    for made in (began, two):
        for secret in (made.halves.cookie, made.halves.page_key, made.session.credential):
            assert secret not in shown


async def test_nobody_who_writes_into_the_store_is_the_operator() -> None:
    store = MemoryStore(lambda: 0.0)
    halves = (await Process(store, 0, 0).begin()).halves
    ((key, value),) = (await store.scan(PREFIX)).items()
    for row in ({"way": "link"}, {"way": "link", "principal": "local"}, {"way": "link", "sealed": ""}):
        await store.put(key, json.dumps({**json.loads(value), **row}).encode())
        assert await Process(store, 0, 0).stored.restore(halves.cookie, halves.page_key) is None, row


async def test_the_session_of_a_link_stands_for_the_operator_of_the_next_process() -> None:
    store = MemoryStore(lambda: 0.0)
    halves = (await Process(store, 0, 0, "old").begin("link", "local", "old")).halves
    session = await Process(store, 0, 0, "new").stored.restore(halves.cookie, halves.page_key)
    assert session is not None and (session.kind, session.credential) == ("link", "new")


@pytest.mark.parametrize("way", ["link", "key"])
async def test_a_restart_makes_no_session_live_longer(way: SessionKind) -> None:
    store = MemoryStore(lambda: 0.0)  # its own clock stands: the times of the session are what counts
    life = LIFETIMES[way]
    process = Process(store, 1_000, 1e9)
    halves = (await process.begin(way, "local")).halves
    began = process.wall
    while process.wall < began + life.absolute - life.idle / 2:
        process.passes(life.idle / 2)
        if (session := process.sessions.find(halves.cookie, halves.page_key, True)) is None:
            session = await process.stored.restore(halves.cookie, halves.page_key)
            assert session is not None and process.sessions.find(halves.cookie, halves.page_key, True)
        await process.stored.touch(session)
        process = Process(store, process.now % 77, process.wall)
    unused = Process(store, 3, process.wall + life.idle)
    assert await unused.stored.restore(halves.cookie, halves.page_key) is None
    process = Process(store, 3, began + life.absolute)
    assert await process.stored.restore(halves.cookie, halves.page_key) is None
    back = Process(store, 3, began - 1e6)
    session = await back.stored.restore(halves.cookie, halves.page_key)
    assert session is not None and back.sessions.seconds_left(session) < life.idle, "a clock that was set back"


async def test_what_ends_a_session_ends_it_for_the_next_process_too() -> None:
    store = MemoryStore()
    one = Process(store, 0, 0)
    first, second, third, other = [await one.begin() for _ in range(3)] + [await one.begin(principal="key:bob")]
    one.sessions.end(first.session)
    await one.stored.forget()
    old = second.halves
    await one.stored.save(second.session, one.sessions.renew(second.session))
    next_process = Process(store, 0, 0)
    for halves in (first.halves, old):
        assert await next_process.stored.restore(halves.cookie, halves.page_key) is None
    assert await next_process.stored.restore(third.halves.cookie, third.halves.page_key)
    await next_process.stored.end_all_of("key:ann")
    assert list(await store.scan("")) == [PREFIX + other.session.cookie]


@pytest.mark.parametrize("is_used_before", [True, False])
@pytest.mark.parametrize("ends", ["one", "all", "renewed"])
async def test_what_ends_a_session_at_one_replica_ends_it_at_the_others_of_the_store(
    is_used_before: bool, ends: str
) -> None:
    store = MemoryStore(lambda: 0.0)
    first = Process(store, 50, 1e9)
    await first.stored.end_all_of("key:lea")  # it has read what is there before the session of the other begins
    second = Process(store, 5, 1e9)
    began = await (first if ends != "all" else second).begin()
    halves, other = began.halves, await second.begin(principal="key:bob")
    if is_used_before and ends != "all":
        assert await second.uses(halves) is not None
    if ends == "one":
        first.sessions.end(began.session)
        await first.stored.forget()
    elif ends == "all":
        await first.stored.end_all_of("key:ann")
    else:
        halves_now = first.sessions.renew(began.session)
        await first.stored.save(began.session, halves_now)
        assert await first.uses(halves_now) is began.session
    left = set(await store.scan(""))
    second.passes(WRITE_EVERY)
    assert await second.uses(halves) is None and await second.uses(halves) is None
    assert set(await store.scan("")) == left and await second.uses(other.halves) is other.session


@pytest.mark.parametrize("is_begun_before", [True, False])
@pytest.mark.parametrize("is_used_before", [True, False])
async def test_what_nobody_used_at_one_replica_goes_on_at_all(is_used_before: bool, is_begun_before: bool) -> None:
    store = MemoryStore(lambda: 0.0)
    first, second = Process(store, 50, 1e9), Process(store, 5, 1e9)
    if not is_begun_before:
        await first.begin(principal="key:bob")  # it has read the store
    halves = (await second.begin()).halves
    if is_begun_before:
        await first.begin(principal="key:bob")
    if is_used_before:
        assert await first.uses(halves) is not None
    for _ in range(4):
        assert await second.uses(halves) is not None
        first.passes(LIFETIMES["key"].idle / 2)
        second.passes(LIFETIMES["key"].idle / 2)
        await first.begin(principal="key:bob")  # sweeps what is over
    assert await first.uses(halves) is not None and await second.uses(halves) is not None
    await first.begin(principal="key:bob")
    assert await second.uses(halves) is not None


async def test_what_is_over_by_its_time_at_one_replica_is_not_ended_in_the_store() -> None:
    store = MemoryStore(lambda: 0.0)
    first, second = Process(store, 50, 1e9), Process(store, 5, 1e9)
    began = await second.begin()
    first.passes(LIFETIMES["key"].idle)  # its clock is ahead
    assert await first.uses(began.halves) is None
    await first.begin(principal="key:bob")
    assert await second.uses(began.halves) is began.session


async def test_a_session_in_use_goes_on_where_it_could_not_be_written_for_long() -> None:
    store = FullDisk(lambda: one.now)
    store.is_full = False
    one = Process(store, 0, 0)
    began = await one.begin()
    store.are_reads_sound = store.is_full = True
    for _ in range(8):
        one.passes(LIFETIMES["key"].idle / 4)
        assert await one.uses(began.halves) is began.session
    assert await store.scan("") == {}


async def test_an_end_that_cannot_be_written_yet_holds_where_the_session_ended() -> None:
    store = FullDisk()
    store.is_full = False
    one = Process(store, 0, 0)
    began = await one.begin()
    store.are_reads_sound = store.is_full = True
    one.sessions.end(began.session)
    await one.stored.forget()
    assert await store.scan("") and await one.uses(began.halves) is None
    store.is_full = False
    await one.begin(principal="key:bob")
    assert PREFIX + began.session.cookie not in await store.scan("") and not one.sessions.ended


async def test_the_store_has_a_bounded_number_of_each_principals_sessions_over_many_processes() -> None:
    store = MemoryStore(lambda: 0.0)
    process = Process(store, 0, 1e9)
    leas = await process.begin(principal="key:lea")
    anns = []
    for _ in range(3):
        process = Process(store, process.now, process.wall)
        for _ in range(MAX_PER_PRINCIPAL - 3):
            process.passes(1)
            anns.append(await process.begin())
    left = [PREFIX + one.session.cookie for one in anns[-MAX_PER_PRINCIPAL:]]
    assert sorted(await store.scan("")) == sorted([*left, PREFIX + leas.session.cookie]), "the last used of each"
    after = Process(store, process.now, process.wall)
    for one in (*anns[-MAX_PER_PRINCIPAL:], leas):
        assert await after.stored.restore(one.halves.cookie, one.halves.page_key)


async def test_a_store_that_an_earlier_version_filled_is_cut_to_the_last_used_at_the_next_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore(lambda: 0.0)
    began: list[Began] = []
    with monkeypatch.context() as before:
        before.setattr("sluicegate.console.sessions.MAX_PER_PRINCIPAL", 10_000)
        process = Process(store, 0, 1e9)
        leas = await process.begin(principal="key:lea")
        for _ in range(MAX_PER_PRINCIPAL + 5):
            process.passes(1)
            began.append(await process.begin())
    after = Process(store, 0, process.wall)
    await after.begin()
    assert await after.stored.restore(leas.halves.cookie, leas.halves.page_key)
    assert await after.stored.restore(began[5].halves.cookie, began[5].halves.page_key) is None
    assert await after.stored.restore(began[6].halves.cookie, began[6].halves.page_key)
    assert len(await store.scan("")) == MAX_PER_PRINCIPAL + 1


async def test_use_is_written_once_a_minute() -> None:
    store = MemoryStore()
    one = Process(store, 0, 0)
    began = await one.begin()
    written = []
    for _ in range(10):
        one.passes(WRITE_EVERY / 4)
        one.sessions.find(began.halves.cookie, began.halves.page_key, True)
        await one.stored.touch(began.session)
        written.append(json.loads((await store.scan(""))[PREFIX + began.session.cookie])["used"])
    assert len(set(written)) == 3


class SlowStore(MemoryStore):
    async def scan(self, prefix: str) -> dict[str, bytes]:
        await anyio.lowlevel.checkpoint()
        return await super().scan(prefix)


async def test_a_page_that_asks_for_several_things_at_once_after_a_restart_is_logged_in_for_each() -> None:
    store = SlowStore()
    began = await Process(store, 0, 0).begin()
    two, found = Process(store, 0, 0), list[Any]()

    async def ask() -> None:
        found.append(await two.stored.restore(began.halves.cookie, began.halves.page_key))

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(ask)
    assert len(found) == 8 and all(one is found[0] is not None for one in found)


class FullDisk(MemoryStore):
    is_full = True
    are_reads_sound = False

    async def put(self, key: str, value: bytes, ttl: float | None = None) -> None:
        self._check()
        await super().put(key, value, ttl)

    async def delete(self, key: str) -> None:
        self._check()
        await super().delete(key)

    async def scan(self, prefix: str) -> dict[str, bytes]:
        if not self.are_reads_sound:
            self._check()
        return await super().scan(prefix)

    def _check(self) -> None:
        if self.is_full:
            raise OSError("disk full")


async def test_a_store_that_fails_keeps_nobody_out_and_an_end_is_written_when_it_works_again() -> None:
    store = FullDisk()
    one = Process(store, 0, 0)
    began = await one.begin()
    assert one.sessions.find(began.halves.cookie, began.halves.page_key, True) is began.session
    assert await Process(store, 0, 0).stored.restore(began.halves.cookie, began.halves.page_key) is None
    store.is_full = False
    await one.stored.save(began.session, began.halves)
    store.is_full = True
    one.sessions.end(began.session)
    await one.stored.forget()
    store.is_full = False
    assert await store.scan("")
    await one.begin(principal="key:bob")
    assert PREFIX + began.session.cookie not in await store.scan("")


@pytest.mark.parametrize("arguments", [[], ["--workers", "2"]], ids=["alone", "workers"])
def test_a_restart_of_sluice_ends_no_session_but_that_of_a_key_that_ended(
    peers: None, tmp_path: Path, arguments: list[str]
) -> None:
    listen = {"admin": f"127.0.0.1:{free_port()}"}
    more: dict[str, Any] = {"listen": listen, "arguments": arguments}
    with front(tmp_path, **more) as town, Tab(town) as link, Tab(town) as lea, Tab(town) as leo, Tab(town) as left:
        assert link.begins(link.ask("POST", "/console/session", json={"code": new_code(town)})).status_code == 200
        for tab, who in ((lea, "lea"), (leo, "leo"), (left, "lea")):
            assert tab.log_in(who).status_code == 200
        assert left.ask("DELETE", "/console/session").status_code == 200
        town.process.interrupt()
        database = b"".join(path.read_bytes() for path in (tmp_path / "state").glob("sluice.db*"))
        for secret in (key_of("lea"), lea.page_key, *lea.client.cookies.values(), link.page_key):
            assert secret.encode() not in database
        (tmp_path / "bank" / "catalog.json").unlink()
        (tmp_path / "bank" / "seen.jsonl").unlink()
        (tmp_path / "bank").rmdir()
        clients = {"keys": {name: one for name, one in _keys(tmp_path).items() if name != "leo"}}
        with front(tmp_path, **more, clients=clients) as again:
            assert link.ask("GET", "/console/session").json()["principal"] == "local"
            assert [row["key"] for row in link.ask("GET", "/api/v1/servers").json()["servers"]] == ["bank"]
            assert lea.ask("GET", "/api/v1/me").json()["principal"] == "key:lea"
            assert lea.ask("GET", "/api/v1/me", headers={"X-Sluice-Page": link.page_key}).status_code == 401
            assert leo.ask("GET", "/api/v1/me").status_code == 401, "the key is not in the file any more"
            assert left.ask("GET", "/api/v1/me").status_code == 401, "it was logged out"
            if not arguments:
                assert acts(again, "console_login")


def _keys(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "sluice.yaml").read_text())["clients"]["keys"]
    return found


async def test_what_ends_while_it_is_stored_does_not_stay() -> None:
    """In PostgreSQL a deletion may overtake what another connection writes."""

    class Slow(MemoryStore):
        is_slow = False

        async def put(self, key: str, value: bytes, ttl: float | None = None) -> None:
            if self.is_slow:
                self.is_slow = False
                await one.stored.end_all_of("key:ann")
            await super().put(key, value, ttl)

    store = Slow()
    one = Process(store, 0, 0)
    began = await one.begin()
    one.passes(WRITE_EVERY)
    began.session.used, store.is_slow = one.now, True
    await one.stored.touch(began.session)
    assert await store.scan(PREFIX) == {}


async def test_what_ended_meanwhile_is_not_stored_again() -> None:
    store = MemoryStore()
    one = Process(store, 0, 0)
    began, other = await one.begin(), await one.begin()
    renewed = one.sessions.renew(other.session)
    await one.stored.end_all_of("key:ann")
    one.passes(WRITE_EVERY)
    began.session.used = one.now
    await one.stored.touch(began.session)
    await one.stored.save(other.session, renewed)
    assert await store.scan(PREFIX) == {}
