"""Replicas on machines whose clocks are hours apart: what they give to clients, and have of servers, ends by one clock,
that of the database."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from database_bed import ROWS, Json, api, database, settings
from e2e import sluice_process
from e2e.client_login import ClientLogin, Gateway
from e2e.test_fleet import at_once, metric, replica
from e2e.test_logins import log_in, said
from e2e.wire import LEGACY, META
from fleet_stage import ACCEPT
from peers.faketime import shifted
from peers.fleet import free_port, task_server
from peers.login.authorities import oidc_provider
from peers.login.browser import Browser
from peers.login.misbehaving import Misbehaving, misbehaving
from peers.postgres import Cluster, postgres
from policy_bed import Bed, client_keys

__all__ = ["database"]
ASKED: Json = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
"""Of a client that answers questions, and knows no tasks."""
HOUR = 4000
"""Seconds: more than any token here lasts."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def off() -> Iterator[Any]:
    """Starts a replica, whose clock is ahead by so many seconds."""
    before = sluice_process.COMMAND
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")

        def start(by: int, *about: Any, **config: Any) -> AbstractContextManager[Bed]:
            patch.setattr(sluice_process, "COMMAND", [*shifted(by), *before])
            made: AbstractContextManager[Bed] = replica(*about, **config)
            return made

        yield start


@pytest.fixture(scope="module")
def pair(engine: Cluster, off: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bed, Bed, Misbehaving]]:
    """A slow and a fast replica, and a server that they log in to. A replica takes five seconds to start, so two tests
    share them: Ann logs in for one, and the other blocks what the first does not use."""
    folder = tmp_path_factory.mktemp("pair")
    engine.ask("CREATE DATABASE pair")
    database = f"{engine.url.rpartition('/')[0]}/pair"
    rows = ROWS + "p, role:everyone, mail, *, *, allow\n"
    with misbehaving() as site, ExitStack() as stack:
        mail = {"url": site.mcp, "required": False}
        base = settings(folder / "slow" / "sluice", database)
        clients = {**base["clients"], "keys": client_keys(ann=[], bob=[], lea=["role:lead"])}
        about = {"servers": {**base["servers"], "mail": mail}, "clients": clients}
        slow, fast = at_once(stack, (
            off(by, folder, name, database, rows, **about, ready=False)
            for name, by in (("slow", -HOUR), ("fast", HOUR))
        ))  # fmt: skip
        yield slow, fast, site


def session(at: Gateway, token: str) -> None:
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    head = {**ACCEPT, "Authorization": f"Bearer {token}"}
    httpx.post(f"{at.issuer}/mcp", json=body, headers=head, timeout=20).raise_for_status()


def test_a_client_that_logged_in_at_one_is_in_at_all(tmp_path: Path, database: str, off: Any, peers: None) -> None:
    ports = [free_port(), free_port()]
    issuer = f"http://127.0.0.1:{ports[0]}"
    client: Json = {
        "client_id": "sluice", "client_secret": "s3cret", "application_type": "native",
        "redirect_uris": [f"{issuer}/oauth/callback"], "grant_types": ["authorization_code"],
    }  # fmt: skip
    with ExitStack() as stack:
        authority = stack.enter_context(oidc_provider(tmp_path, clients=[client], registration=False))
        login = {"issuer": authority.issuer, "client_id": "sluice", "client_secret": "s3cret"}
        about = {"clients": {"keys": client_keys(ann=[]), "login": login}}
        rows = f"p, jwt:{authority.issuer}#ann, bank, *, *, allow\n"
        beds = at_once(stack, (
            off(by, tmp_path, name, database, rows, **about, ready=False, listen={
                "mcp": f"127.0.0.1:{port}", "public_url": f"{issuer}/mcp",
            })
            for name, by, port in zip(("slow", "fast"), (-HOUR, HOUR), ports, strict=True)
        ))  # fmt: skip
        slow, fast = (
            Gateway(bed, authority, f"http://127.0.0.1:{port}") for bed, port in zip(beds, ports, strict=True)
        )
        ann = ClientLogin(slow, stack.enter_context(Browser("ann")))
        ann.register().raise_for_status()
        code = ann.told()["code"]
        ann.gateway = fast
        tokens = ann.exchange(code).raise_for_status().json()
        for _ in range(2):
            assert [at.list(tokens["access_token"]).status_code for at in (slow, fast)] == [200, 200]
            assert 0 < tokens["expires_in"] <= 600
            ann.gateway = slow
            tokens = ann.refresh(tokens["refresh_token"]).raise_for_status().json()
        for other in (tokens["access_token"], (ended := ann.log_in())["access_token"]):
            session(fast, other)
        form = {"token": ended["refresh_token"], "client_id": ann.id}
        httpx.post(f"{issuer}/oauth/revoke", data=form, timeout=20).raise_for_status()
        fast.bed.until(lambda: metric(fast.bed, "sluice_sessions") == 1)


def test_a_token_of_a_server_is_renewed_when_it_ends(pair: tuple[Bed, Bed, Misbehaving]) -> None:
    slow, fast, site = pair
    log_in(slow.folder, "--as", "ann")
    for at in (slow, fast):
        at.until(lambda at=at: "mail__whoami" in at.names("ann"))  # type: ignore[misc]
        assert '"ann"' in said(at.call("ann", "mail__whoami"))
    assert not site.of("token", grant_type="refresh_token")


def test_a_call_that_is_a_task_of_its_server_goes_on_at_the_other(
    tmp_path: Path, database: str, off: Any, peers: None
) -> None:
    """Its replica has ended meanwhile: else that one would go on with it."""
    with task_server(tmp_path) as url, ExitStack() as stack, ExitStack() as first:
        bank = settings(tmp_path / "slow" / "sluice", database)["servers"]
        servers = {**bank, "new": {"url": url, "era": "modern"}}
        rows = "p, role:everyone, new, *, *, allow\n"
        slow, fast = (
            place.enter_context(off(by, tmp_path, name, database, rows, servers=servers, ready=False))
            for place, name, by in ((first, "slow", -HOUR), (stack, "fast", HOUR))
        )
        for at in (slow, fast):
            at.process.wait_ready()
        call = {"name": "new__confirm_delete", "arguments": {"filename": "a.txt"}}
        asked = slow.ask("ann", "tools/call", **call, _meta=ASKED).json()["result"]
        (key,) = asked["inputRequests"]
        first.close()
        answers = {key: {"action": "accept", "content": {"confirm": True}}}
        again = {"requestState": asked["requestState"], "inputResponses": answers}
        fast.until(lambda: "new__confirm_delete" in fast.names("ann"))
        done = fast.ask("ann", "tools/call", **call, **again, _meta=ASKED).json()
        assert "a.txt" in str(done["result"]["content"]), done


def test_what_is_blocked_at_one_is_blocked_at_all_for_as_long(pair: tuple[Bed, Bed, Misbehaving]) -> None:
    slow, fast, _ = pair
    for at, what in ((slow, "key:bob"), (fast, "bank/wire")):
        made = api(at, "blocks", method="POST", json={"what": what, "for": 60})
        assert made.json().get("unconfirmed") == [], made.text
    for at in (slow, fast):
        assert {row["what"] for row in api(at, "blocks").json()["blocks"]} == {"key:bob", "bank/wire"}
        calls = at.call("bob", "bank__look"), at.call("lea", "bank__wire")
        assert ["Unknown tool" in one.text for one in calls] == [True, True], [one.text for one in calls]


def test_what_is_blocked_is_known_for_as_long_where_no_replica_runs(tmp_path: Path, database: str, off: Any) -> None:
    with off(HOUR, tmp_path, "fast", database) as fast:
        api(fast, "blocks", method="POST", json={"what": "bank/look", "for": 600}).raise_for_status()

    def at_rest(*words: str) -> Json:
        line = [*sluice_process.COMMAND, *words, "--json", "-c", str(fast.process.config)]
        env = sluice_process.clean_environment()
        return dict(json.loads(subprocess.run(line, capture_output=True, text=True, env=env, check=False).stdout))

    assert [row["what"] for row in at_rest("block")["blocks"]] == ["bank/look"]
    assert at_rest("explain", "call", "bank/look", "--as", "lea")["rule"] == "block: bank/look"
