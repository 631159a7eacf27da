"""Approvals as people use them: `sluice serve` or `sluice stdio`, clients on SDKs and bare ones, the command line and
the admin port, and a crash. What counts is how often the server was called."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import httpx
import pytest
from command_line import run
from e2e.sluice_process import clean_environment, sluice, stdio_command
from e2e.wire import META, MODERN
from peers.fleet import MCP2, free_port, peers, run_client
from policy_bed import Bed, bearer, bed, client_keys, key_of, reason, recorder

from sluicegate.admin.paging import MAX_PAGE_BYTES

Json = dict[str, Any]
ROWS = """\
p, role:everyone, bank, *, *, allow
p2, *, bank, tool:pay, *, confirm
p2, *, bank, tool:wire, *, one-of-leads
p2, *, bank, tool:close, *, two-person
p, role:lead, sluice, admin:approvals, *, allow
p, role:lead, sluice, admin:grants, *, allow
p, key:lea, sluice, admin:secrets, read, allow
p, key:eve, sluice, admin:approvals, *, allow
p, key:ann, sluice, admin:approvals, *, allow
p, local, sluice, admin:*, *, allow
"""
KEYS = client_keys(ann=["role:dev"], eve=["role:dev"], lea=["role:lead"], leo=["role:lead"], boss=["role:lead"])
SDK = [str(MCP2 / "python"), str(Path(__file__).parent / "sdk_caller.py"), "{job}"]
TOOLS = ["pay", "wire", "close", "look"]

__all__ = ["peers"]


def front(folder: Path, **config: Any) -> Any:
    settings: Json = {"clients": {"keys": KEYS}, "approvals": {"hold_for": "100ms"}}
    return bed(folder, ROWS, {"bank": recorder(folder, "bank", tools=TOOLS)}, **settings | config)


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with front(tmp_path_factory.mktemp("approvals"), approvals={"hold_for": "100ms"}) as running:
        yield running


def count(town: Bed, **arguments: Any) -> int:
    return sum(message["params"].get("arguments") == arguments for message in town.seen("bank"))


def pending(town: Bed, who: str, tool: str, **arguments: Any) -> str:
    answer = town.call(who, f"bank__{tool}", **arguments)
    assert reason(answer) == "approval_pending", answer.text
    text = answer.json()["result"]["content"][0]["text"]
    id = str(answer.json()["result"]["_meta"]["dev.sluice/approval"]["id"])
    assert text.startswith("NOT EXECUTED") and f"sluice approve {id}" in text
    return id


def api(town: Bed, who: str, path: str, method: str = "GET", **options: Any) -> httpx.Response:
    headers = {**bearer(who), **options.pop("headers", {})}
    return httpx.request(method, f"{town.process.admin}/api/v1/{path}", headers=headers, timeout=30, **options)


def decide(town: Bed, who: str, id: str, decision: str = "approve", **body: Any) -> httpx.Response:
    if decision == "approve" and "seen_digest" not in body:
        found = api(town, "lea", f"approvals/{id}")
        body["seen_digest"] = found.json().get("digest", "sha256:0")
    options: Json = {"json": {"decision": decision, **body}}
    return api(town, who, f"approvals/{id}/decisions", "POST", **options)


def command(folder: Path, *words: str, key: str = "") -> "CompletedProcess[str]":
    return run(folder, *words, "-c", "sluice.yaml", *(["--key", key_of(key)] if key else []))


# ---------------------------------------------------------------- over the admin port


@pytest.mark.parametrize("arguments", [[], ["--workers", "2"]], ids=["alone", "workers"])
def test_every_approval_is_reached_by_pages_and_no_answer_is_large(
    peers: None, tmp_path: Path, arguments: list[str]
) -> None:
    """The owners of `ann` and `eve` are different workers. What was said makes these rows so large that the command
    line needs three pages."""
    settings: Json = {"approvals": {"hold_for": "0s"}, "limits": {"pending_approvals": 50}}
    with front(tmp_path, arguments=arguments, listen={"admin": f"127.0.0.1:{free_port()}"}, **settings) as town:
        long = "x" * 9_000
        made = {pending(town, who, "wire", n=number, text=long) for who in ("ann", "eve") for number in range(30)}
        for id in made:
            assert decide(town, "lea", id, "deny", comment="\u202e" * 2_000).status_code == 200
        rows: list[Json] = []
        for limit in (200, 7):
            rows, query = [], f"approvals?state=denied&limit={limit}"
            answer = api(town, "lea", query)
            while True:
                assert len(answer.content) < MAX_PAGE_BYTES + 4096 and answer.json()["total"] == 60
                rows = [*answer.json()["approvals"], *rows]
                assert len(answer.json()["approvals"]) <= limit
                if "next" not in answer.json():
                    break
                answer = api(town, "lea", f"{query}&before={answer.json()['next']}")
            assert len(rows) == 60 and {row["id"] for row in rows} == made and all(row["cut"] for row in rows)
            assert [row["cursor"] for row in rows] == sorted(row["cursor"] for row in rows)
        shown = command(tmp_path, "approvals", "list", "--state", "denied", "--json", key="lea")
        assert [row["id"] for row in json.loads(shown.stdout)["approvals"]] == [row["id"] for row in rows]


def test_a_lead_approves_and_the_call_runs_once_when_it_is_repeated(town: Bed) -> None:
    id = pending(town, "ann", "wire", n=1)
    (row,) = [one for one in api(town, "lea", "approvals?state=pending").json()["approvals"] if one["id"] == id]
    assert (row["state"], row["principal"], row["server"], row["tool"]) == ("pending", "key:ann", "bank", "wire")
    assert row["arguments"] == {"n": 1} and row["profile"] == "one-of-leads" and row["expires_at"].endswith("Z")
    assert decide(town, "lea", id).json()["state"] == "approved" and count(town, n=1) == 0
    assert reason(town.call("ann", "bank__wire", n=1)) == "" and count(town, n=1) == 1
    assert reason(town.call("ann", "bank__wire", n=1)) == "approval_pending" and count(town, n=1) == 1
    assert api(town, "lea", f"approvals/{id}").json()["state"] == "consumed"


def test_a_call_that_waits_runs_the_moment_it_is_approved(peers: None, tmp_path: Path) -> None:
    with front(tmp_path, approvals={"hold_for": "20s"}) as town, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(town.call, "ann", "bank__wire", n=2)
        town.until(lambda: api(town, "lea", "approvals?state=pending").json()["total"] == 1)
        (row,) = api(town, "lea", "approvals").json()["approvals"]
        assert decide(town, "lea", row["id"]).status_code == 200
        assert reason(waiting.result(30)) == "" and count(town, n=2) == 1


def test_who_may_not_decide_is_refused_and_nothing_runs(town: Bed) -> None:
    id = pending(town, "ann", "wire", n=3)
    assert decide(town, "ann", id).status_code == 403, "whoever asked"
    assert decide(town, "eve", id).status_code == 404, "without the role"
    assert decide(town, "", id).status_code == 401
    assert decide(town, "lea", "apr_000000000000").status_code == 404
    assert decide(town, "lea", id, seen_digest="sha256:" + "0" * 64).status_code == 409
    assert decide(town, "lea", id, seen_digest="").status_code == 400
    for wrong in ({"decision": "maybe"}, {"decision": "deny", "x": 1}, {"decision": "approve", "scope": "ever"}, []):
        assert api(town, "lea", f"approvals/{id}/decisions", "POST", json=wrong).status_code == 400
    assert api(town, "eve", f"approvals/{id}").status_code == 404, "not theirs to see"
    assert all(one["id"] != id for one in api(town, "eve", "approvals").json()["approvals"])
    assert decide(town, "lea", id, "deny", comment="no").json()["state"] == "denied"
    assert decide(town, "lea", id).status_code == 409
    refused = town.call("ann", "bank__wire", n=3)
    assert reason(refused) == "approval_denied" and "They say: no" in refused.text and count(town, n=3) == 0


def test_a_client_elsewhere_is_told_where_to_decide_and_no_path(peers: None, tmp_path: Path) -> None:
    with front(tmp_path, listen={"public_url": "https://mcp.acme.com/mcp"}) as town:
        text = town.call("ann", "bank__wire", n=1).json()["result"]["content"][0]["text"]
        assert "on the machine where Sluice runs, or by its admin API, with their own key in $SLUICE_KEY." in text
        assert str(tmp_path) not in text


def test_two_people_have_to_agree_each_with_a_reason(town: Bed) -> None:
    id = pending(town, "ann", "close", n=4)
    assert decide(town, "lea", id).status_code == 400
    assert decide(town, "lea", id, comment="fine").json()["state"] == "partially_approved"
    assert decide(town, "lea", id, comment="fine").status_code == 409
    assert reason(town.call("ann", "bank__close", n=4)) == "approval_pending" and count(town, n=4) == 0
    assert decide(town, "leo", id, comment="fine").json()["state"] == "approved"
    assert reason(town.call("ann", "bank__close", n=4)) == "" and count(town, n=4) == 1


def test_two_approvers_at_once_are_heard_as_one(town: Bed) -> None:
    id = pending(town, "ann", "wire", n=5)
    with ThreadPoolExecutor(2) as pool:
        heard = list(pool.map(lambda who: decide(town, who, id).status_code, ["lea", "leo"]))
    assert sorted(heard) == [200, 409]
    assert reason(town.call("ann", "bank__wire", n=5)) == "" and count(town, n=5) == 1


def test_a_decision_that_is_sent_twice_under_one_key_is_made_once(town: Bed) -> None:
    id = pending(town, "ann", "wire", n=6)
    digest = api(town, "lea", f"approvals/{id}").json()["digest"]
    body, key = {"decision": "approve", "seen_digest": digest}, {"Idempotency-Key": "one"}
    path = f"approvals/{id}/decisions"
    answers = [api(town, "lea", path, "POST", json=body, headers=key) for _ in range(2)]
    assert answers[0].status_code == answers[1].status_code == 200 and answers[0].json() == answers[1].json()
    other = api(town, "lea", path, "POST", json={**body, "decision": "deny"}, headers=key)
    assert other.status_code == 422
    assert api(town, "leo", path, "POST", json=body, headers=key).status_code == 409, "a key of one's own"
    assert reason(town.call("ann", "bank__wire", n=6)) == "" and count(town, n=6) == 1


def test_sixty_calls_at_once_use_one_approval_once(town: Bed) -> None:
    assert decide(town, "lea", pending(town, "ann", "wire", n=7)).status_code == 200
    with ThreadPoolExecutor(20) as pool:
        heard = [reason(answer) for answer in pool.map(lambda _: town.call("ann", "bank__wire", n=7), range(60))]
    assert heard.count("") == 1 and count(town, n=7) == 1


def test_a_removed_role_decides_nothing_and_a_changed_policy_asks_anew(peers: None, tmp_path: Path) -> None:
    with front(tmp_path) as town:
        first = pending(town, "ann", "wire", n=8)
        town.write(ROWS.replace("p, role:lead, sluice", "p, role:boss, sluice"))
        town.until(lambda: api(town, "lea", "approvals").status_code == 403)
        body = {"decision": "approve", "seen_digest": "sha256:0"}
        assert api(town, "lea", f"approvals/{first}/decisions", "POST", json=body).status_code == 403
        town.write(ROWS)
        town.until(lambda: api(town, "lea", "approvals").status_code == 200)
        assert decide(town, "lea", first).status_code == 200
        town.write("# a line more\n" + ROWS)
        town.until(lambda: town.process.log().count("config reloaded") == 3)
        assert pending_rule(town, n=8) == "policy.csv:4"
        ended = api(town, "lea", f"approvals/{first}").json()
        assert ended["state"] == "superseded" and count(town, n=8) == 0
        assert ended["asked_by_row"]["rule"] == "policy.csv:3" and ended["asked_by_row"]["row"] == "", "it moved"
        town.write(ROWS + "p, key:ann, bank, tool:wire, *, deny\n")
        town.until(lambda: town.call("ann", "bank__wire", n=8).json().get("error") is not None)
        assert count(town, n=8) == 0


def pending_rule(town: Bed, **arguments: Any) -> str:
    id = pending(town, "ann", "wire", **arguments)
    return str(api(town, "lea", f"approvals/{id}").json()["asked_by_row"]["rule"])


def test_everything_is_in_the_log_before_it_takes_effect(town: Bed) -> None:
    id = pending(town, "ann", "wire", n=9)
    decide(town, "lea", id, comment="go")
    town.call("ann", "bank__wire", n=9)
    said = [one for one in town.audit() if one.get("approval", {}).get("id") == id]
    assert [one["approval"]["state"] for one in said] == ["pending", "approved", "consumed"]
    assert [one["type"] for one in said] == ["approval", "approval", "intent"]
    assert said[1]["approval"]["approver"] == "key:lea" and said[1]["approval"]["comment"] == "go"
    metrics = town.process.get("/metrics")[1]
    assert 'sluice_approvals_total{profile="one-of-leads",result="consumed"}' in metrics
    assert 'sluice_approvals_pending{profile="one-of-leads"}' in metrics


def test_events_come_as_they_happen_and_end_with_the_right(town: Bed) -> None:
    seen: list[Json] = []
    ready = threading.Event()

    def listen() -> None:
        url = f"{town.process.admin}/api/v1/approvals/events"
        with httpx.stream("GET", url, headers=bearer("boss"), timeout=60) as answer:
            ready.set()
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line[6:]))
                    if seen[-1]["arguments"] == {"n": 10} and seen[-1]["state"] == "consumed":
                        return

    thread = threading.Thread(target=listen)
    thread.start()
    assert ready.wait(30)
    id = pending(town, "ann", "wire", n=10)
    decide(town, "lea", id)
    town.call("ann", "bank__wire", n=10)
    thread.join(60)
    assert [one["state"] for one in seen if one["id"] == id] == ["pending", "approved", "consumed"]
    assert api(town, "", "approvals/events").status_code == 401


def test_a_client_that_shows_links_alone_sends_its_user_to_the_page(town: Bed) -> None:
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"url": {}}}}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "bank__pay"}
    params: Json = {"name": "bank__pay", "arguments": {"n": 16}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    asked = town.post("ann", body, headers).json()["result"]
    ((key, ask),) = asked["inputRequests"].items()
    link = httpx.URL(ask["params"]["url"])
    shown = httpx.get(link, timeout=30)
    assert shown.status_code == 200 and "run pay of bank" in shown.text and count(town, n=16) == 0
    assert "frame-ancestors 'none'" in shown.headers["content-security-policy"]
    token = link.params["t"]
    altered = link.copy_set_param("t", ("B" if token[0] == "A" else "A") + token[1:])
    assert httpx.get(altered, timeout=30).status_code == 404
    other = pending(town, "eve", "pay", n=16)
    another = httpx.get(link.copy_with(path=f"/approvals/{other}"), timeout=30)
    assert another.status_code == 404, "a link is for one approval"
    page = link.copy_with(query=None)
    foreign = {"Origin": "https://evil.example"}
    assert httpx.post(page, data={"t": token, "decision": "once"}, headers=foreign, timeout=30).status_code == 403
    assert httpx.post(page, data={"t": token, "decision": "always"}, timeout=30).status_code == 400
    assert "is approved" in httpx.post(page, data={"t": token, "decision": "once"}, timeout=30).text
    retry = {"inputResponses": {key: {"action": "accept"}}, "requestState": asked["requestState"]}
    body["params"] = params | retry
    done = town.post("ann", body, headers)
    assert reason(done) == "" and count(town, n=16) == 1
    assert reason(town.post("ann", body, headers)) == "outcome_unknown" and count(town, n=16) == 1
    assert "is consumed" in httpx.get(link, timeout=30).text


def test_a_secret_is_masked_and_revealed_to_who_has_the_right(town: Bed) -> None:
    secret = {"api_key": "hunter2-canary", "n": 17}
    id = pending(town, "ann", "wire", **secret)
    assert "hunter2" not in api(town, "lea", f"approvals/{id}").text
    assert api(town, "leo", f"approvals/{id}/reveal", "POST", json={}).status_code == 403, "a right of its own"
    key = {"Idempotency-Key": "a reveal"}
    told = api(town, "lea", f"approvals/{id}/reveal", "POST", json={}, headers=key).json()
    assert told["arguments"] == secret and 'api_key: "hunter2-canary"' in told["arguments_lines"]
    revealed = [one for one in town.audit() if one.get("approval", {}).get("state") == "revealed"]
    assert [one["approval"]["approver"] for one in revealed] == ["key:lea"] and "hunter2" not in str(town.audit())
    assert api(town, "lea", f"approvals/{id}/reveal").status_code == 405
    assert decide(town, "lea", id, "deny").status_code == 200
    again = api(town, "lea", f"approvals/{id}/reveal", "POST", json={}, headers=key)
    assert again.status_code == 409, "nothing that was revealed is told again, or written down"
    assert not [file for file in town.folder.rglob("*") if file.is_file() and b"hunter2" in file.read_bytes()]


# ---------------------------------------------------------------- on SDKs


def call_on_sdk(town: Bed, mode: str, **job: Any) -> Json:
    base: Json = {"url": town.process.url, "headers": bearer("ann"), "mode": mode}
    return run_client(SDK, base | job, 60)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_whoever_asked_confirms_in_their_client(town: Bed, mode: str) -> None:
    yes = {"decision": "once", "comment": ""}
    told = call_on_sdk(town, mode, tool="bank__pay", arguments={"by": mode, "yes": True}, answer=yes)
    assert not told["error"] and told["text"] == "ran pay" and count(town, by=mode, yes=True) == 1
    assert len(told["questions"]) == 1 and told["questions"][0].startswith("Sluice asks: run pay of bank")
    assert told["revision"] == {"auto": "2026-07-28", "legacy": "2025-11-25"}[mode]
    no = {"decision": "deny", "comment": "rather not"}
    told = call_on_sdk(town, mode, tool="bank__pay", arguments={"by": mode, "yes": False}, answer=no)
    assert told["error"] and "rather not" in told["text"] and count(town, by=mode, yes=False) == 0


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_that_cannot_be_asked_is_told_to_come_back(town: Bed, mode: str) -> None:
    job: Json = {"tool": "bank__pay", "arguments": {"by": mode, "n": 1}, "answer": None}
    told = call_on_sdk(town, mode, **job)
    while not told["progress"] and job["arguments"]["n"] < 5:  # a busy machine is late for the 400 ms of a hold
        job["arguments"]["n"] += 1
        told = call_on_sdk(town, mode, **job)
    assert told["error"] and told["text"].startswith("NOT EXECUTED") and told["progress"]
    id = next(word for word in told["text"].split() if word.startswith("apr_"))
    assert decide(town, "lea", id).status_code == 404, "tier self is for whoever asked"
    digest = api(town, "ann", f"approvals/{id}").json()["digest"]
    assert decide(town, "ann", id, seen_digest=digest).status_code == 200
    assert call_on_sdk(town, mode, **job)["text"] == "ran pay" and count(town, by=mode, n=job["arguments"]["n"]) == 1


# ---------------------------------------------------------------- the command line, stdio, crashes


def test_the_command_line_lists_shows_approves_and_denies(town: Bed) -> None:
    folder = town.folder
    id = pending(town, "ann", "wire", n=11, note="\x1b[31m\u202e")
    assert id in command(folder, "approvals", "list", key="lea").stdout
    shown = command(folder, "approvals", "show", id, key="lea").stdout
    assert "key:ann" in shown and "⟨U+202E⟩" in shown and "\x1b" not in shown and "policy.csv:3" in shown
    assert command(folder, "approve", id, key="eve").returncode in (1, 5)
    assert command(folder, "approve", "../pins", key="lea").returncode == 1
    done = command(folder, "approve", id, "-m", "go", "--for", "15m", key="lea")
    assert done.returncode == 0 and "approved" in done.stdout
    assert reason(town.call("ann", "bank__wire", n=11, note="\x1b[31m\u202e")) == ""
    used = command(folder, "approvals", "show", id, key="lea").stdout
    assert "s left" not in used and "ended" not in used and used.count("go\n") == 1, "its vote says go"
    assert reason(town.call("ann", "bank__wire", n=12)) == "", "remembered for 15 minutes"
    (grant,) = json.loads(command(folder, "approvals", "grants", "--json", key="lea").stdout)["grants"]
    assert command(folder, "approvals", "revoke", grant["id"], key="lea").returncode == 0
    again = pending(town, "ann", "wire", n=13)
    assert command(folder, "deny", again, "-m", "not on a Friday", key="lea").returncode == 0
    assert "not on a Friday" in town.call("ann", "bank__wire", n=13).text and count(town, n=13) == 0
    assert count(town, n=12) == 1


def test_on_stdio_the_queue_is_decided_in_the_state_directory(peers: None, tmp_path: Path) -> None:
    server = recorder(tmp_path, "bank", tools=TOOLS)
    config = {"servers": {"bank": server}, "policy": {"use": "personal"}, "approvals": {"hold_for": "300ms"},
              "clients": {"local": {"roles": ["role:owner"]}}}  # fmt: skip
    started = stdio_command(config, tmp_path)
    environment = {name: value for name, value in clean_environment().items() if name != "PWD"}
    job: Json = {"command": started, "env": environment, "mode": "legacy", "tool": "bank__pay", "arguments": {"n": 1}}
    seen = tmp_path / "bank" / "seen.jsonl"
    told = run_client(SDK, job, 60)
    assert told["error"] and told["text"].startswith("NOT EXECUTED"), told
    assert "tools/call" not in seen.read_text()
    listed = command(tmp_path, "approvals", "list", "--json")
    (row,) = json.loads(listed.stdout)["approvals"]
    assert row["principal"] == "local" and row["tool"] == "pay"
    assert command(tmp_path, "approve", row["id"], "-y").returncode == 0
    told = run_client(SDK, job, 60)
    assert told["text"] == "ran pay" and seen.read_text().count('"tools/call"') == 1
    answered = run_client(SDK, job | {"arguments": {"n": 2}, "answer": {"decision": "once", "comment": ""}}, 60)
    assert answered["text"] == "ran pay" and seen.read_text().count('"tools/call"') == 2


def test_what_was_approved_before_a_crash_runs_once_after_it(peers: None, tmp_path: Path) -> None:
    with front(tmp_path) as town:
        assert decide(town, "lea", pending(town, "ann", "wire", n=14)).status_code == 200
        waiting = pending(town, "ann", "wire", n=15)
        os.kill(town.process.process.pid, signal.SIGKILL)
        town.process.process.wait(30)
    settings = json.loads((tmp_path / "sluice.yaml").read_text())
    with sluice(settings, tmp_path) as process:
        town = Bed(process, tmp_path)
        assert reason(town.call("ann", "bank__wire", n=14)) == "" and count(town, n=14) == 1
        assert reason(town.call("ann", "bank__wire", n=14)) == "approval_pending" and count(town, n=14) == 1
        assert decide(town, "lea", waiting).status_code == 200, "what waited waits still"
        assert reason(town.call("ann", "bank__wire", n=15)) == "" and count(town, n=15) == 1
