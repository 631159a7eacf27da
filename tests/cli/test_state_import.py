"""What SQLite kept is brought into PostgreSQL whole or not at all, and never a second time."""

from base64 import b64encode
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from peers.postgres import Cluster, postgres

from sluicegate import config
from sluicegate.app import replicas, settings, state
from sluicegate.cli.state import bring
from sluicegate.config import Config
from sluicegate.store import StoreFailed, Write
from sluicegate.store.keys import KeyRing, Sealer
from sluicegate.store.revoked import revoke
from sluicegate.store.sqlite import SqliteStore

KEY, OTHER = b"k" * 32, b"o" * 32
_numbers = count()


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


@pytest.fixture
def loaded(engine: Cluster, tmp_path: Path) -> Config:
    name = f"i{next(_numbers)}"
    engine.ask(f"CREATE DATABASE {name}")
    return made(tmp_path, f"{engine.url.rpartition('/')[0]}/{name}")


def made(folder: Path, url: str, key: bytes = KEY) -> Config:
    rings = dict.fromkeys(("seal", "digest", "sign", "login"), b64encode(key).decode())
    section = {"dir": str(folder / "state"), "url": url, "keys": rings}
    audit = {"path": str(folder / "audit.jsonl")}
    return config.make({"policy": {"use": "team"}, "state": section, "audit": audit}, folder)


def file_of(loaded: Config) -> Path:
    return Path(loaded.state.dir) / settings.DATABASE


async def keep(loaded: Config, *writes: Write) -> None:
    store = SqliteStore(file_of(loaded))
    for write in writes:
        await store.put(write.key, write.value or b"", write.ttl)
    await store.spend("round:a:1", 600)
    await store.spend("round:a:2", None)
    await store.close()


async def test_all_of_it_is_brought_once_and_what_belongs_to_a_process_is_not(loaded: Config) -> None:
    brought = [Write("approval/open/1", b"a", 60), Write("approval/of/d", b"1", 60), Write("pins/a", b"p"),
               Write("policy/blocks", b"b"), Write("new-kind/x", b"n")]  # fmt: skip
    left = [Write("lease/sluice", b"{}"), Write("login-lease/x", b"l"), Write("console/session/x", b"c"),
            Write("part:1:1", b"x"), Write("results", b"x"), Write("replica/r0", b"{}")]  # fmt: skip
    await keep(loaded, *brought, *left, Write("approval/open/2", b"over", 0))
    revoke(Path(loaded.state.dir), "ann", "sha256:" + "0" * 64)
    found = await bring(loaded)
    counts = {"approvals": 1, "pins": 1, "lists of blocks": 1, "others": 1, "revoked keys": 1, "used up": 2}
    assert (found.counts, found.left, found.is_again) == (counts, len(left), False)
    async with state.open_store(loaded) as store:
        assert await store.get_all([one.key for one in (*brought, *left)]) == {one.key: one.value for one in brought}
        assert list(await store.scan(state.REVOKED)) == ["revoked/ann/sha256:" + "0" * 64]
        assert not await store.spend("round:a:1", 600) and not await store.spend("round:a:2", 600)
        assert await store.spend("round:a:3", 600)
        await store.delete("approval/open/1")  # it was used
    assert (await bring(loaded)).is_again
    async with state.open_store(loaded) as store:
        assert await store.get("approval/open/1") is None
    log = Path(loaded.audit.path).read_bytes()  # noqa: ASYNC240 - nothing else runs
    assert log.count(b'"state_import"') == 2


async def test_a_file_whose_contents_were_brought_is_opened_by_no_sluice(loaded: Config) -> None:
    await keep(loaded, Write("pins/a", b"p"))
    await bring(loaded)
    with pytest.raises(StoreFailed, match="was brought into PostgreSQL by `sluice state import`"):
        SqliteStore(file_of(loaded))


async def test_nothing_is_brought_where_others_stand_and_the_file_is_as_before(loaded: Config) -> None:
    await keep(loaded, Write("pins/a", b"mine"), Write("pins/b", b"same"), Write("task:1", b"t", 60))
    async with state.open_store(loaded) as store:
        await store.put("pins/a", b"others")
        await store.put("pins/b", b"same")
        with pytest.raises(StoreFailed, match=r"other rows stand in the database already: pins \(1\)"):
            await bring(loaded)
        assert await store.get("task:1") is None and await store.spend("round:a:1", 60)
        await SqliteStore(file_of(loaded)).close()
        await store.delete("pins/a")
    assert (await bring(loaded)).counts == {"pins": 1, "tasks": 1, "used up": 2}


async def test_nothing_is_brought_beside_a_sluice(loaded: Config) -> None:
    await keep(loaded, Write("pins/a", b"p"))
    holder = SqliteStore(file_of(loaded))
    with pytest.raises(StoreFailed, match=r"a Sluice has .* open: stop it first"):
        await bring(loaded)
    await holder.close()
    async with state.open_store(loaded) as store:
        row = b'{"name": "r1", "start": "x", "url": null, "host": "h", "pid": 7}'
        await store.put(replicas.REPLICA + "r1", row, 60)
        with pytest.raises(StoreFailed, match=r"a Sluice runs on this database \(process 7 on h\)"):
            await bring(loaded)
        assert await store.get("pins/a") is None


@pytest.mark.parametrize(("key", "ring"), [("login/mail/x", "login"), ("issuer-grant/1", "seal")])
async def test_what_nobody_could_open_any_more_is_not_brought(loaded: Config, key: str, ring: str) -> None:
    sealed = Sealer(KeyRing([OTHER])).seal(key.partition("/")[0], {"a": 1}, key).encode()
    await keep(loaded, Write(key, sealed), Write("pins/a", b"p"))
    with pytest.raises(StoreFailed, match=f"state.keys.{ring} lacks the key of .*keys/{ring} before its own"):
        await bring(loaded)
    assert loaded.state.url is not None
    good = made(Path(loaded.state.dir).parent, loaded.state.url.get_secret_value(), OTHER)
    assert (await bring(good)).counts["pins"] == 1


async def test_an_attempt_of_which_nobody_knows_is_made_again_and_brings_nothing_twice(
    loaded: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(loaded, Write("pins/a", b"p"))
    real = state.bring

    def cut(*words: object) -> None:
        real(*words)  # type: ignore[arg-type]
        raise StoreFailed("the connection was lost")

    monkeypatch.setattr(state, "bring", cut)
    with pytest.raises(StoreFailed, match="lost"):
        await bring(loaded)
    with pytest.raises(StoreFailed, match="state import"):
        SqliteStore(file_of(loaded))
    monkeypatch.setattr(state, "bring", real)
    assert (await bring(loaded)).is_again


async def test_where_nothing_was_kept_it_says_so(loaded: Config) -> None:
    with pytest.raises(StoreFailed, match="there is no "):
        await bring(loaded)
    assert not file_of(loaded).exists()
