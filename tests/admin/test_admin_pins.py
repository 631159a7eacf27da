"""Pins over the admin port: who may look, who may accept, and what of."""

from typing import Any

import httpx
import pytest
from admin_deps import admin_deps

from sluicegate.admin import AdminApplication
from sluicegate.admin.routes import MAX_BODY
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.catalog_cache.pin_store import Pinned
from sluicegate.policy.pins import Found, fingerprint
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client
from sluicegate.store.memory import MemoryStore

OPERATOR = {"Authorization": "Bearer operator-secret"}
OLD, NEW = {"name": "x"}, {"name": "x", "description": "new"}
PATH = "/api/v1/pins"


async def no_servers() -> list[Json]:
    return []


async def no_tools(client: str) -> list[Json] | None:
    return None


async def asker(peer: str = "127.0.0.1") -> tuple[httpx.AsyncClient, DefinitionPins]:
    board = DefinitionPins({"gh": Pinned("review", "id")}, MemoryStore(), clock=lambda: 0.0)
    for item in (OLD, NEW):
        await board.meet("gh", "modern", "", "tool", {"x": Found(fingerprint(item), item)})
    sources = admin_deps(
        ready=list, metrics=None, describe_servers=no_servers, list_tools=no_tools,
        client_of=lambda key: Client("key:ci") if key == "client-key" else None,
        may=lambda who, area, act: who.principal == "local",
        pins=board,
    )  # fmt: skip
    app = AdminApplication("operator-secret", sources)
    transport = httpx.ASGITransport(app=app, client=(peer, 5000))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7411", headers=OPERATOR), board


def wanted(**more: Any) -> Json:
    return {"server": "gh", "accept": [{"kind": "tool", "name": "x", "fingerprint": fingerprint(NEW), **more}]}


async def test_what_waits_is_shown_with_its_definitions_where_they_are_wanted() -> None:
    ask, _ = await asker()
    (row,) = (await ask.get(PATH)).json()["pins"]
    assert row == {
        "server": "gh", "era": "modern", "kind": "tool", "name": "x", "state": "changed", "withheld": True,
        "current": fingerprint(NEW), "fingerprint": fingerprint(OLD), "by": "", "at": "1970-01-01T00:00:00Z",
        "waiting": fingerprint(NEW), "since": "1970-01-01T00:00:00Z", "flags": [],
        "replaced_at": "", "shown_as": "",
    }  # fmt: skip
    (row,) = (await ask.get(f"{PATH}?server=gh&definitions=1")).json()["pins"]
    assert (row["accepted_text"], row["waiting_text"]) == ('{"name":"x"}', '{"description":"new","name":"x"}')
    assert (await ask.get(f"{PATH}?server=other")).json() == {"pins": []}


async def test_what_waits_or_is_withheld_is_shown_alone_where_that_is_wanted() -> None:
    ask, board = await asker()
    await board.meet("gh", "modern", "", "prompt", {"y": Found(fingerprint({"name": "y"}), {"name": "y"})})
    assert {row["name"] for row in (await ask.get(PATH)).json()["pins"]} == {"x", "y"}
    assert [row["name"] for row in (await ask.get(f"{PATH}?waiting=1")).json()["pins"]] == ["x"]
    assert (await ask.post(PATH, json=wanted())).status_code == 200
    assert (await ask.get(f"{PATH}?waiting=1")).json() == {"pins": []}
    assert len((await ask.get(f"{PATH}?waiting=0&server=gh")).json()["pins"]) == 2


@pytest.mark.parametrize("query", ["definitions=yes", "waiting=2", "server=a&server=b", "x=1", "server=" + "a" * 5000])
async def test_another_query_is_refused(query: str) -> None:
    ask, _ = await asker()
    assert (await ask.get(f"{PATH}?{query}")).status_code == 400


async def test_the_operator_accepts_as_local() -> None:
    ask, board = await asker()
    answer = await ask.post(PATH, json=wanted())
    assert answer.status_code == 200
    (row,) = answer.json()["pins"]
    assert (row["state"], row["by"], row["withheld"]) == ("accepted", "local", False)
    assert board.rows()[0]["fingerprint"] == fingerprint(NEW)


async def test_what_is_not_what_the_server_gave_last_is_a_conflict() -> None:
    ask, board = await asker()
    for body in (wanted(fingerprint=fingerprint(OLD)), wanted(name="y"), wanted() | {"server": "other"}):
        answer = await ask.post(PATH, json=body)
        assert answer.status_code == 409 and answer.json()["error"]
    assert board.rows()[0]["state"] == "changed"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"{}", b'{"server": "gh"}',
        b'{"server": "gh", "accept": [{}]}', b'{"server": 1, "accept": []}',
        b'{"server": "gh", "accept": [], "more": 1}', b'{"server": "gh", "server": "gh", "accept": []}',
        b'{"server": "gh", "accept": [{"kind": "res", "name": "x", "fingerprint": ""}]}',
    ],
)  # fmt: skip
async def test_another_body_is_refused(body: bytes) -> None:
    ask, board = await asker()
    answer = await ask.post(PATH, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and board.rows()[0]["state"] == "changed"


async def test_a_page_cannot_accept_with_a_form_nor_a_foreign_origin() -> None:
    ask, board = await asker()
    assert (await ask.post(PATH, content=b"{}", headers={"Content-Type": "text/plain"})).status_code == 415
    assert (await ask.post(PATH, content=b"{}")).status_code == 415
    assert (await ask.post(PATH, json=wanted(), headers={"Origin": "https://evil.test"})).status_code == 403
    assert (await ask.post(PATH, json=wanted(), headers={"Host": "evil.test"})).status_code == 421
    assert board.rows()[0]["state"] == "changed"


async def test_only_the_operator_from_this_machine_looks_and_accepts() -> None:
    for peer, credential, status in [
        ("127.0.0.1", "", 401), ("127.0.0.1", "Bearer guess", 401), ("127.0.0.1", "Bearer client-key", 403),
        ("10.0.0.1", "Bearer operator-secret", 401),
    ]:  # fmt: skip
        ask, board = await asker(peer=peer)
        headers = {"Authorization": credential}
        assert (await ask.get(PATH, headers=headers)).status_code == status
        assert (await ask.post(PATH, json=wanted(), headers=headers)).status_code == status
        assert board.rows()[0]["state"] == "changed"


async def test_other_methods_other_paths_and_bodies_without_end_are_refused() -> None:
    ask, _ = await asker()
    assert (await ask.delete(PATH)).status_code == 405
    assert (await ask.post("/api/v1/servers", json={})).status_code == 405
    large = await ask.post(PATH, content=b" " * (MAX_BODY + 1), headers={"Content-Type": "application/json"})
    assert large.status_code == 413
