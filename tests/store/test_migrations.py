"""Tables of PostgreSQL, version by version: made once, by who may, and used by no Sluice that is too old for them."""

import re
from collections.abc import Iterator
from itertools import count

import anyio
import pytest
from peers.postgres import Cluster, postgres
from psycopg.conninfo import conninfo_to_dict

from sluicegate.store import StoreFailed
from sluicegate.store import postgres as postgres_store
from sluicegate.store import postgres_statements as migrations
from sluicegate.store.postgres import migrate, open_postgres

_numbers = count()


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        cluster.ask("CREATE ROLE plain LOGIN")
        cluster.ask("CREATE ROLE maker LOGIN")
        yield cluster


@pytest.fixture
def cluster(engine: Cluster) -> Iterator[Cluster]:
    """An empty database, which `plain` may use and `maker` make tables in."""
    name = f"m{next(_numbers)}"
    engine.ask(f"CREATE DATABASE {name}")
    there = Cluster(engine.folder)
    there.port, there.database = engine.port, name
    there.ask("REVOKE CREATE ON SCHEMA public FROM PUBLIC; GRANT CREATE ON SCHEMA public TO maker")
    yield there


def of(cluster: Cluster, role: str) -> str:
    return cluster.url.replace("postgres@", f"{role}@")


async def version(cluster: Cluster) -> list[tuple[object, ...]]:
    return cluster.ask("SELECT version, min_reader FROM sluice_schema")


async def test_a_role_that_may_make_no_tables_is_told_who_can_and_then_uses_them(cluster: Cluster) -> None:
    with pytest.raises(StoreFailed, match=r"version 0, this Sluice needs .*run `sluice state migrate --as ROLE`"):
        await open_postgres(of(cluster, "plain"))
    now = migrations.VERSION
    assert await migrate(of(cluster, "plain:not-the-makers"), "nor-this", "maker") == (0, now)
    assert await migrate(of(cluster, "plain"), None, "maker") == (now, now)
    store = await open_postgres(of(cluster, "plain"))
    assert await store.spend("by a plain role", 10)
    await store.put("a", b"1")
    await store.delete("a")
    await store.close()
    assert postgres_store.peek(of(cluster, "plain"), None, ["a"]) == {}
    with pytest.raises(StoreFailed, match="no privileges were granted"):
        await migrate(of(cluster, "plain"), None, "plain")  # it may grant nothing to itself


@pytest.mark.parametrize("theirs", ["", "Of Plain", "public"])
async def test_tables_are_made_where_the_role_that_uses_them_looks(cluster: Cluster, theirs: str) -> None:
    """Whatever the search_path of the one that makes them says."""
    cluster.ask("CREATE SCHEMA maker AUTHORIZATION maker")
    if theirs:
        cluster.ask(f'CREATE SCHEMA IF NOT EXISTS "{theirs}"; GRANT USAGE ON SCHEMA "{theirs}" TO plain')
        cluster.ask(f'GRANT CREATE, USAGE ON SCHEMA "{theirs}" TO maker')
        cluster.ask(f"ALTER ROLE plain IN DATABASE {cluster.database} SET search_path = 'Nowhere', '{theirs}'")
    for before in (0, migrations.VERSION):
        assert await migrate(of(cluster, "plain"), None, "maker") == (before, migrations.VERSION)
    assert cluster.ask("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'sluice_%'") == [
        (theirs or "public",)
    ]
    store = await open_postgres(of(cluster, "plain"))
    assert await store.spend("by a plain role", 10)
    await store.close()


async def test_a_role_that_may_use_no_schema_is_told_so(cluster: Cluster) -> None:
    cluster.ask(f"ALTER ROLE plain IN DATABASE {cluster.database} SET search_path = nowhere")
    with pytest.raises(StoreFailed, match="its role may use no schema of its search_path"):
        await migrate(of(cluster, "plain"), None, "maker")


async def test_a_url_without_a_role_names_nobody_whom_tables_could_be_made_for(cluster: Cluster) -> None:
    with pytest.raises(StoreFailed, match="names no role"):
        await migrate(cluster.url.replace("postgres@", ""), None, "maker")


async def test_one_that_is_too_old_does_not_start_reads_nothing_and_says_why(cluster: Cluster) -> None:
    store = await open_postgres(cluster.url)
    await store.put("a", b"1")
    await store.close()
    new = migrations.VERSION + 2
    cluster.ask(f"UPDATE sluice_schema SET version = {new}, min_reader = {new - 1}")
    said = f"version {new}, which needs a Sluice that knows version {new - 1}; this one knows {migrations.VERSION}"
    with pytest.raises(StoreFailed, match=said):
        await open_postgres(cluster.url)
    with pytest.raises(StoreFailed, match=said):
        await migrate(cluster.url, None, None)
    with pytest.raises(StoreFailed, match=said):
        postgres_store.peek(cluster.url, None, ["a"])
    with pytest.raises(StoreFailed, match=said):
        postgres_store.look(cluster.url, None)
    assert await version(cluster) == [(new, new - 1)]


async def test_one_that_newer_tables_still_suffice_for_uses_them_as_they_are(cluster: Cluster) -> None:
    await (await open_postgres(cluster.url)).close()
    newer = (migrations.VERSION + 1, migrations.VERSION)
    cluster.ask(f"UPDATE sluice_schema SET version = {newer[0]}, min_reader = {newer[1]}")
    store = await open_postgres(cluster.url)
    await store.put("a", b"1")
    await store.close()
    assert await version(cluster) == [newer]


async def test_what_a_new_version_adds_is_added_once_beside_what_is_there(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = await open_postgres(cluster.url)
    await older.put("a", b"1")
    added = ("CREATE TABLE sluice_added (number int)", "INSERT INTO sluice_added VALUES (7)")
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, added))
    monkeypatch.setattr(migrations, "VERSION", migrations.VERSION + 1)

    async def start() -> None:
        store = await open_postgres(cluster.url)
        assert await store.get("a") == b"1"
        await store.close()

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(start)
    assert cluster.ask("SELECT number FROM sluice_added") == [(7,)]
    assert await version(cluster) == [(migrations.VERSION, migrations.OLDEST_READER)]
    await older.put("a", b"2")
    await older.close()


async def test_a_step_that_fails_leaves_the_version_before(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await open_postgres(cluster.url)).close()
    before = await version(cluster)
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, ("CREATE TABLE sluice_half (n int)", "nonsense")))
    monkeypatch.setattr(migrations, "VERSION", migrations.VERSION + 1)
    with pytest.raises(StoreFailed, match="syntax error"):
        await open_postgres(cluster.url)
    assert await version(cluster) == before
    assert cluster.ask("SELECT to_regclass('sluice_half')") == [(None,)]


async def test_tables_of_before_there_were_versions_are_taken_as_they_are(cluster: Cluster) -> None:
    for statement in migrations.STEPS[0][:4]:
        cluster.ask(statement)
    cluster.ask("INSERT INTO sluice_item (key, value) VALUES ('a', 'kept')")
    store = await open_postgres(cluster.url)
    assert await store.get("a") == b"kept"
    await store.close()
    assert len(await version(cluster)) == 1


def test_the_role_that_makes_tables_is_not_shown_the_password_of_the_other() -> None:
    found = conninfo_to_dict(postgres_store._conninfo("postgresql://plain:one@h/d", "two", "maker"))
    assert found["user"] == "maker" and "password" not in found


def test_a_role_that_makes_no_tables_is_granted_each_of_them() -> None:
    statements = "\n".join(text for step in migrations.STEPS for text in step)
    made = set(re.findall(r"CREATE TABLE.*? (sluice_\w+)", statements))
    granted = set(re.findall(r"sluice_\w+", " ".join(migrations.GRANTS)))
    assert made == granted and "sluice_schema" in made
