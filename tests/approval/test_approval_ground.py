"""What an approval stands on, changed by a reload or while no Sluice ran: the server, keys, roles and rights.
What counts is how often any server was called."""

import hashlib
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.sluice_process import sluice
from e2e.wire import META, MODERN
from policy_bed import Bed, bearer, bed, client_keys, key_of, reason, recorder

Json = dict[str, Any]
ROWS = """\
p, role:dev, bank, *, *, allow
p2, *, bank, tool:wire, *, one-of-leads
p, role:lead, sluice, admin:approvals, *, allow
p, role:lead, sluice, admin:grants, *, allow
"""
KEYS = client_keys(ann=["role:dev"], lea=["role:lead"])
NEW_KEY = "another-key-which-is-long-enough-to-be-a-key"
Change = Callable[[Json, Path], None]


def another_server(config: Json, folder: Path) -> None:
    config["servers"]["bank"] = recorder(folder, "other", tools=["wire", "look"])


def another_environment(config: Json, folder: Path) -> None:
    config["servers"]["bank"]["env"] = {"TARGET": "production"}


def _replace_key(config: Json, name: str) -> None:
    config["clients"]["keys"][name]["hash"] = "sha256:" + hashlib.sha256(NEW_KEY.encode()).hexdigest()


def voters_key(config: Json, folder: Path) -> None:
    _replace_key(config, "lea")


def requesters_key(config: Json, folder: Path) -> None:
    _replace_key(config, "ann")


def requesters_role(config: Json, folder: Path) -> None:
    config["clients"]["keys"]["ann"]["roles"] = []


def tool_denied(config: Json, folder: Path) -> None:
    config["servers"]["bank"]["tools"] = {"deny": ["wire"]}


def server_disabled(config: Json, folder: Path) -> None:
    config["servers"]["bank"]["enabled"] = False


CHANGES = [another_server, voters_key, requesters_key, requesters_role, tool_denied, server_disabled]


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Bed]:
    with bed(tmp_path, ROWS, {"bank": recorder(tmp_path, "bank", tools=["wire", "look"])}, **SETTINGS) as running:
        yield running


SETTINGS: Json = {"clients": {"keys": KEYS}, "approvals": {"hold_for": "100ms"}}


def api(town: Bed, path: str, body: Json | None = None) -> Json:
    method = "GET" if body is None else "POST"
    url = f"{town.process.admin}/api/v1/{path}"
    key = key_of("lea")
    answer = httpx.request(method, url, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=30)
    if answer.status_code == 401:
        answer = httpx.request(method, url, json=body, headers={"Authorization": f"Bearer {NEW_KEY}"}, timeout=30)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def wire(town: Bed, n: int) -> httpx.Response:
    """By the key that ann has now."""
    params = {"name": "bank__wire", "arguments": {"n": n}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    about = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "bank__wire"}
    accept = {"Accept": "application/json, text/event-stream", **about}
    answer = httpx.post(town.process.url, json=body, headers={**accept, **bearer("ann")}, timeout=20)
    if answer.status_code == 401:
        known = {"Authorization": f"Bearer {NEW_KEY}"}
        answer = httpx.post(town.process.url, json=body, headers={**accept, **known}, timeout=20)
    return answer


def approve(town: Bed, n: int, scope: str) -> str:
    answer = wire(town, n)
    assert reason(answer) == "approval_pending", answer.text
    id = str(answer.json()["result"]["_meta"]["dev.sluice/approval"]["id"])
    seen = api(town, f"approvals/{id}")["digest"]
    decided = api(town, f"approvals/{id}/decisions", {"decision": "approve", "seen_digest": seen, "scope": scope})
    assert decided["state"] == "approved"
    return id


def is_executed(answer: httpx.Response) -> bool:
    return "error" not in answer.json() and not reason(answer)


def calls(town: Bed) -> int:
    there = [one for one in ("bank", "other") if (town.folder / one).exists()]
    return sum(len(town.seen(one)) for one in there)


def reload(town: Bed, config: Json) -> None:
    before = town.process.log().count("config reloaded")
    town.write(json.dumps(config), "sluice.yaml")
    town.until(lambda: town.process.log().count("config reloaded") > before)


def end_of(town: Bed, id: str) -> Json:
    """The approval, once it is over."""
    town.until(lambda: api(town, f"approvals/{id}")["state"] in ("superseded", "cancelled"))
    return api(town, f"approvals/{id}")


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_reload_takes_away_is_not_given_back_by_the_next(town: Bed, change: Change) -> None:
    once, remembered = approve(town, 1, "once"), approve(town, 2, "15m")
    good = json.loads((town.folder / "sluice.yaml").read_text())
    worse = deepcopy(good)
    change(worse, town.folder)
    reload(town, worse)
    reload(town, good)
    for id in (once, remembered):
        ended = end_of(town, id)
        assert ended["comment"] and ended["ended_at"], "with its reason"
    town.until(lambda: reason(wire(town, 1)) == "approval_pending")  # the server may just have been started again
    assert reason(wire(town, 3)) == "approval_pending", "the grant is over, too"
    assert calls(town) == 0 and api(town, "grants")["grants"] == []
    log = town.process.log() + json.dumps(town.audit())
    hashes = [key["hash"].removeprefix("sha256:") for config in (good, worse) for key in clients(config)]
    assert not [one for one in hashes if one in log]


def clients(config: Json) -> list[Json]:
    return list(config["clients"]["keys"].values())


@pytest.mark.parametrize("change", [another_server, another_environment, voters_key, requesters_key])
def test_what_is_replaced_for_good_takes_approvals_and_grants_with_it(town: Bed, change: Change) -> None:
    approve(town, 1, "once"), approve(town, 2, "15m")
    worse = json.loads((town.folder / "sluice.yaml").read_text())
    change(worse, town.folder)
    reload(town, worse)
    town.until(lambda: reason(wire(town, 1)) == "approval_pending")  # not before the new server has listed
    assert reason(wire(town, 3)) == "approval_pending" and calls(town) == 0


@pytest.mark.parametrize(
    "change", [another_server, another_environment, voters_key, requesters_key, requesters_role]
)
def test_what_is_replaced_while_no_sluice_runs_takes_approvals_and_grants_with_it(
    tmp_path: Path, change: Change
) -> None:
    with bed(tmp_path, ROWS, {"bank": recorder(tmp_path, "bank", tools=["wire", "look"])}, **SETTINGS) as town:
        once = approve(town, 1, "once")
        approve(town, 2, "15m")
    settings = json.loads((tmp_path / "sluice.yaml").read_text())
    change(settings, tmp_path)
    with sluice(settings, tmp_path) as process:
        town = Bed(process, tmp_path)
        assert end_of(town, once)["comment"]
        assert [is_executed(wire(town, n)) for n in (1, 3)] == [False, False]
        assert calls(town) == 0 and api(town, "grants")["grants"] == []


def test_what_is_not_replaced_while_no_sluice_runs_counts_after_it(tmp_path: Path) -> None:
    with bed(tmp_path, ROWS, {"bank": recorder(tmp_path, "bank", tools=["wire", "look"])}, **SETTINGS) as town:
        approve(town, 1, "once"), approve(town, 2, "15m")
    with sluice(json.loads((tmp_path / "sluice.yaml").read_text()), tmp_path) as process:
        town = Bed(process, tmp_path)
        assert reason(wire(town, 1)) == "" and reason(wire(town, 3)) == "" and calls(town) == 2
