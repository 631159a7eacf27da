"""A new key that seals, brought to one replica after another: whatever one of them gave out, all others can open."""

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from database_bed import Json, command, database, settings
from e2e.test_fleet import asking, modern
from fleet_stage import Session
from peers.postgres import Cluster, postgres
from policy_bed import Bed

from sluicegate.store.keys import KeyRing

__all__ = ["database"]
OLD, NEW, ODD = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2, 3))


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


def holding(folder: Path, name: str, database: str, *keys: str) -> Any:
    state = settings(folder / name / "sluice", database)["state"]
    state["keys"]["seal"] = "\n".join(keys)
    return asking(folder, name, database, state=state, limits={"page": 1})


def page(at: Bed, cursor: str = "") -> tuple[str, str]:
    """The one tool of a page, and the cursor behind it."""
    found = modern(at, "tools/list", **({"cursor": cursor} if cursor else {}))
    return found["tools"][0]["name"], found["nextCursor"]


def key_of(cursor: str) -> str:
    """The key with which that was sealed."""
    sealed = base64.urlsafe_b64decode(cursor.rpartition(".")[2] + "==")[:4]
    return next(key for key in (OLD, NEW, ODD) if KeyRing.parse(key).newest_id == sealed)


def sealed_with(at: Bed) -> str:
    return key_of(page(at)[1])


def test_a_new_key_seals_once_all_replicas_have_it(tmp_path: Path, database: str) -> None:
    """Each cursor is opened by a replica that has its key from the config alone: the one that sealed it has ended."""
    with ExitStack() as stack, ExitStack() as first:
        there = stack.enter_context(holding(tmp_path, "b", database, OLD))
        here = first.enter_context(holding(tmp_path, "a", database, OLD, NEW))
        tool, cursor = page(here)
        assert key_of(cursor) == OLD, "the other one has no other"
        first.close()
        following, _ = page(there, cursor)
        assert following != tool
        with holding(tmp_path, "c", database, OLD, NEW) as here:
            _, cursor = page(there)
            stack.close()
            assert page(here, cursor)[0] == following
            here.until(lambda: sealed_with(here) == NEW)
            with holding(tmp_path, "d", database, OLD, NEW) as there:
                assert sealed_with(there) == sealed_with(here) == NEW
                assert page(there, page(here)[1])[0] == following


def test_a_replica_of_the_version_before_says_nothing_of_its_keys_and_is_served_beside(
    tmp_path: Path, database: str
) -> None:
    with holding(tmp_path, "a", database, OLD, NEW) as here:
        row = b'{"name":"n1","start":"00000000","url":"http://127.0.0.1:1","knows":0,"log":"sluice-n1"}'
        with psycopg.connect(database, autocommit=True) as engine:
            engine.execute("INSERT INTO sluice_item (key, value) VALUES ('replica/n1', %s)", (row,))
        here.until(lambda: "sluice_fleet_replicas 2.0" in here.process.get("/metrics")[1])
        assert sealed_with(here) == NEW
        session = Session(here)
        assert "isError" not in session.call(here, "bank__look").json()["result"]


def test_a_replica_that_could_open_nothing_of_the_others_does_not_start(tmp_path: Path, database: str) -> None:
    with holding(tmp_path, "a", database, OLD, NEW) as here:
        (tmp_path / "odd").mkdir()
        text: Json = json.loads(here.process.config.read_text())
        text["fleet"] = {"name": "odd", "peer": {"listen": "127.0.0.1:0", "url": "http://127.0.0.1:1"}}
        text["listen"] = {"mcp": "127.0.0.1:0", "admin": "127.0.0.1:0"}
        text["state"] |= {"dir": str(tmp_path / "odd"), "keys": {**text["state"]["keys"], "seal": ODD}}
        file = here.folder / "odd.yaml"
        file.write_text(json.dumps(text))
        done = command(here, "serve", config=file)
        assert done.returncode == 3 and "none of the keys of state.keys.seal" in done.stderr, done.stderr
        with psycopg.connect(database) as engine:
            rows = engine.execute("SELECT key FROM sluice_item WHERE key LIKE 'replica/%%'").fetchall()
        assert rows == [(b"replica/a",)]
        assert sealed_with(here) == NEW
