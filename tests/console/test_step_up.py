"""What only somebody does who has shown a moment ago who they are: besides a reveal, what is hard to undo."""

from collections.abc import Iterator

import httpx
import pytest
from console.browser import browser, page
from console.test_console_process import Json, Tab, new_code
from console.test_operator_pages import logged_in
from peers.fleet import peers
from playwright.sync_api import expect
from policy_bed import Bed, bearer, bed, client_keys, key_of, recorder

ROWS = """\
p, role:everyone, *, *, *, allow
p, role:lead, sluice, admin:*, *, allow
p, local, sluice, admin:*, *, allow
p, role:restarter, sluice, admin:servers, write, allow
"""
API = "/api/v1"
__all__ = ["peers"]


@pytest.fixture(scope="module", params=[[], ["--workers", "2"]], ids=["alone", "workers"])
def town(request: pytest.FixtureRequest, peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("step-up")
    keys = client_keys(lea=["role:lead"], roy=["role:restarter"])
    servers = {
        "bank": recorder(folder, "bank", tools=["wire", "look"]) | {"required": True, "pin": "block"},
        "memo": recorder(folder, "memo", tools=["read"]) | {"required": False},
    }
    with bed(folder, ROWS, servers, clients={"keys": keys}, arguments=request.param) as made:
        yield made


@pytest.fixture
def lea(town: Bed) -> Iterator[Tab]:
    with Tab(town) as tab:
        assert tab.begins(tab.ask("POST", "/console/session", json={"code": new_code(town)})).status_code == 200
        yield tab


def steps_up(tab: Tab, name: str) -> None:
    assert tab.begins(tab.ask("POST", "/console/session/step-up", json={"name": name})).status_code == 200


@pytest.mark.parametrize("action", ["restart", "disable"])
def test_a_server_that_is_required_ends_after_a_step_up_alone(town: Bed, lea: Tab, action: str) -> None:
    refused = lea.ask("POST", f"{API}/servers/bank/{action}", json={})
    assert (refused.status_code, refused.json()["step_up"]) == (403, "link")
    assert lea.ask("GET", f"{API}/servers/bank").json()["status"] in ("up", "starting")
    assert lea.ask("POST", f"{API}/servers/memo/{action}", json={}).status_code == 200, "nobody is asked for others"
    assert lea.ask("POST", f"{API}/servers/none/{action}", json={}).status_code == 404
    steps_up(lea, "bank")
    assert lea.ask("POST", f"{API}/servers/bank/{action}", json={}).status_code == 200
    for key in ("bank", "memo"):
        lea.ask("POST", f"{API}/servers/{key}/enable", json={})
        town.until(lambda key=key: lea.ask("GET", f"{API}/servers/{key}").json()["status"] == "up")  # type: ignore[misc]


@pytest.mark.parametrize(
    "path",
    ["servers/bank/restart/", "servers/bank/restart///", "servers/bank/restart%2F", "servers/bank/restart/%2f/",
     "./servers/bank/restart", "x/../servers/bank/restart", "x/%2e%2e/servers/bank/restart", "nothing"],
)  # fmt: skip
def test_no_spelling_of_a_path_spares_anybody_the_step_up(town: Bed, lea: Tab, path: str) -> None:
    """Behind the port of all workers such a path was another one, which the console had not judged."""
    target = {"target": f"{API}/{path}".encode()}  # httpx sends it as it is
    refused = lea.ask("POST", f"{API}/servers/bank/restart", json={}, extensions=target)
    if "%" in path or "." in path:
        assert refused.status_code == 400
    else:
        assert (refused.status_code, refused.json().get("step_up")) == (403, "link")


def test_who_may_not_see_whether_it_is_required_is_asked(town: Bed) -> None:
    with Tab(town) as roy:
        assert roy.log_in("roy").status_code == 200
        refused = roy.ask("POST", f"{API}/servers/memo/restart", json={})
        assert (refused.status_code, refused.json().get("step_up")) == (403, "key")
        assert roy.begins(roy.ask("POST", "/console/session/step-up", json={"key": key_of("roy")})).status_code == 200
        assert roy.ask("POST", f"{API}/servers/memo/restart", json={}).status_code == 200


def test_many_definitions_are_accepted_after_a_step_up_alone(town: Bed, lea: Tab) -> None:
    def waiting() -> list[Json]:
        lea.ask("GET", f"{API}/tools")
        rows: list[Json] = lea.ask("GET", f"{API}/pins?server=bank&waiting=1").json()["pins"]
        return rows

    town.until(lambda: len(waiting()) == 2)
    accept = [{"kind": row["kind"], "name": row["name"], "fingerprint": row["current"]} for row in waiting()]
    both: Json = {"server": "bank", "accept": accept}
    refused = lea.ask("POST", f"{API}/pins", json=both)
    assert refused.status_code == 403 and refused.json()["step_up"] == "link" and len(waiting()) == 2
    large = lea.ask("POST", f"{API}/pins", json={**both, "accept": accept[:1], "more": "x" * 200_000})
    assert large.status_code == 403 and "step_up" in large.json(), "what is not read may have many"
    twice = b'{"server": "bank", "accept": [], "accept": [{}, {}]}'
    malformed = lea.ask("POST", f"{API}/pins", content=twice, headers={"Content-Type": "application/json"})
    assert malformed.status_code == 400
    assert lea.ask("POST", f"{API}/pins", json={**both, "accept": accept[:1]}).status_code == 200
    steps_up(lea, "bank")
    assert lea.ask("POST", f"{API}/pins", json=both).status_code == 200 and waiting() == []


def test_a_bearer_is_asked_for_nothing_more(town: Bed) -> None:
    answer = httpx.post(f"{town.process.admin}{API}/servers/bank/reconnect", headers=bearer("lea"), json={})
    assert answer.status_code == 200


def test_the_page_asks_for_the_key_and_then_restarts(town: Bed) -> None:
    with browser() as chrome, page(chrome, storage_state=logged_in(town, chrome, "lea")) as tab:
        tab.goto(f"{town.process.admin}/console/servers/bank")
        tab.get_by_role("button", name="Restart").click()
        tab.get_by_role("button", name="Restart bank").click()
        asked = tab.get_by_role("dialog", name="Is it still you?")
        expect(asked).to_contain_text("Sluice is not ready without this server")
        asked.get_by_label("Client key").fill(key_of("lea"))
        asked.get_by_role("button", name="Continue").click()
        expect(tab.get_by_text("Restart: done.")).to_be_visible()
