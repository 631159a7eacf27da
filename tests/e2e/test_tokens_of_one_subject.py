"""Two tokens of one subject, with other groups and another end: each is judged by what stands in itself.

Real Sluices, alone and with workers; the strongest assertion is what the server saw.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.wire import LEGACY, META, MODERN
from issuer import ADMIN_AUDIENCE, AUDIENCE, Issuer, issuer
from peers.fleet import LEGACY_TASKS
from policy_bed import Bed, bed, client_keys, key_of, recorder

Json = dict[str, Any]
ROWS = """\
p, role:user, *, *, *, allow
p, group:human, *, *, *, allow
p, group:agent, *, *, *, allow
p2, role:user, w, tool:*, *, one-of-leads
p2, group:agent, t, tool:*, *, one-of-leads
p, group:boss, sluice, admin:*, *, allow
g, group:boss, role:lead
"""
ACCEPT = {"Accept": "application/json, text/event-stream"}


@dataclass(frozen=True, slots=True)
class Place:
    bed: Bed
    login: Issuer
    journal: Path

    def api(self, token: str) -> httpx.Client:
        head = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"{self.bed.process.admin}/api/v1", headers=head, timeout=20)

    def admin_token(self, *groups: str, last: int = 600, **more: Any) -> str:
        claims = {"aud": ADMIN_AUDIENCE, "groups": groups, "exp": int(time.time()) + last, **more}
        return self.login.token(**claims)

    def token(self, *groups: str, last: float = 600, **more: Any) -> str:
        return self.login.token(**{"groups": groups, "exp": int(time.time() + last), **more})

    def post(self, token: str, method: str, head: dict[str, str], **params: Any) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        head = {**ACCEPT, **head, "Authorization": f"Bearer {token}"}
        return httpx.post(self.bed.process.url, json=body, headers=head, timeout=60)

    def modern(self, token: str, method: str, **params: Any) -> httpx.Response:
        named = {"Mcp-Name": params["name"]} if "name" in params else {}
        head = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, **named}
        return self.post(token, method, head, **params, _meta=META)

    def session(self, token: str) -> dict[str, str]:
        hello = {"protocolVersion": LEGACY, "capabilities": {"tasks": {}}, "clientInfo": {"name": "x", "version": "1"}}
        answer = self.post(token, "initialize", {}, **hello)
        return {"Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": LEGACY}

    def ran(self) -> list[str]:
        return self.journal.read_text().split()


@pytest.fixture(scope="module", params=[1, 2], ids=["alone", "workers"])
def place(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("tokens")
    journal = folder / "journal"
    journal.touch()
    with issuer() as login:
        one = {"issuer": login.url, "audience": AUDIENCE, "admin_audience": ADMIN_AUDIENCE, "roles_from": ["groups"]}
        clients = {"keys": client_keys(u=["role:user"]), "jwt": {"issuers": [one]}}
        servers = {
            "w": recorder(folder, "w", tools=["one"]),
            "t": {"command": LEGACY_TASKS[0], "args": [LEGACY_TASKS[1], str(journal)], "era": "legacy"},
        }
        arguments = ["--workers", str(request.param)] if request.param > 1 else []
        with bed(folder, ROWS, servers, arguments=arguments, clients=clients, approvals={"hold_for": "8s"}) as made:
            yield Place(made, login, journal)


def _decide(place: Place, token: str, row: Json) -> httpx.Response:
    with place.api(token) as api:
        body = {"decision": "approve", "seen_digest": row["digest"]}
        return api.post(f"/approvals/{row['id']}/decisions", json=body)


def _waiting(place: Place, token: str, principal: str) -> list[Json]:
    with place.api(token) as api:
        rows = api.get("/approvals", params={"state": "pending"}).json()["approvals"]
        return [row for row in rows if row["principal"].endswith(principal)]


def test_at_the_admin_port_a_token_has_no_right_of_another_token(place: Place) -> None:
    boss, other = place.admin_token("boss", last=3000), place.admin_token("readonly", last=300)
    with place.api(boss) as first, place.api(other) as second:
        assert second.get("/servers").status_code == 403
        assert first.get("/servers").status_code == 200
        for _ in range(3):
            assert second.get("/servers").status_code == 403
            assert second.get("/me").json()["rights"] == {}
        assert first.get("/servers").status_code == 200


def test_a_yes_is_judged_by_the_token_with_which_it_was_given(place: Place) -> None:
    """Not by another one of the same subject: at the other port, or one that lasts longer."""
    boss = place.admin_token("boss")
    place.modern(place.token("staff", last=3000), "tools/list")
    with place.api(place.admin_token("staff", last=3000)) as api:
        api.get("/me")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(place.modern, key_of("u"), "tools/call", name="w__one", arguments={"n": "yes"})
        place.bed.until(lambda: len(_waiting(place, boss, ":u")) == 1)
        assert _decide(place, boss, _waiting(place, boss, ":u")[0]).json()["state"] == "approved"
        assert call.result(30).json()["result"].get("isError") is not True
    assert [one["params"]["arguments"] for one in place.bed.seen("w")] == [{"n": "yes"}]


def test_a_task_waits_for_its_approval_by_the_groups_of_its_own_token(place: Place) -> None:
    agent = place.token("agent", last=300, sub="bea")
    place.modern(place.token("human", last=3000, sub="bea"), "tools/list")
    session, call = place.session(agent), {"name": "t__slow", "arguments": {"seconds": 0}}
    for more in ({"task": {"ttl": 60_000}}, {}):
        answer = place.post(agent, "tools/call", session, **call, **more)
        assert "approval" in answer.text
    assert place.ran() == []
    boss = place.admin_token("boss")
    (row,) = _waiting(place, boss, "#bea")
    assert _decide(place, boss, row).status_code == 200
    place.bed.until(lambda: "done" in place.ran())


def test_what_a_token_asked_for_ends_with_it(place: Place) -> None:
    """A held call and a task, and no other token of the subject keeps them: theirs would be other groups."""
    before = place.ran()
    place.modern(place.token("human", last=3000, sub="brief"), "tools/list")
    boss, agent = place.admin_token("boss"), place.token("agent", last=5, sub="brief")
    task = {"name": "t__slow", "arguments": {"seconds": 0.01}, "task": {"ttl": 60_000}}
    place.post(agent, "tools/call", place.session(agent), **task)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(place.modern, agent, "tools/call", name="t__plain", arguments={})
        place.bed.until(lambda: len(_waiting(place, boss, "#brief")) == 2)
        place.bed.until(lambda: _waiting(place, boss, "#brief") == [], 12)
        assert "NOT EXECUTED" in json.dumps(held.result(30).json())
    assert place.ran() == before
