"""The admin port of several workers, the command line at it, and what has to reach all of them."""

import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import command_line
import httpx
import jsonschema
import pytest
from api_schema import as_described
from e2e.sluice_process import ROOT, Sluice
from policy_bed import bearer, client_keys, key_of, reason, recorder
from waiting import until_so as until
from workers_kit import ACCEPT, HELLO, Talker, message, modern_body, modern_headers, names, sluice, workers

from sluicegate.admin.routes import ROUTES, ApiRoute

Json = dict[str, Any]
ONE, OTHER = names(2, 1)
TURNCOAT = str(ROOT / "tests" / "turncoat_server.py")
ROWS = """\
p, role:authenticated, bank, *, *, allow
p, role:authenticated, math, *, *, allow
p2, *, bank, tool:wire, *, one-of-leads
p, role:lead, sluice, admin:approvals, *, allow
p, role:lead, sluice, admin:grants, *, allow
p, role:lead, sluice, admin:servers, read, allow
p, role:lead, sluice, admin:audit, read, allow
p, role:authenticated, sluice, admin:tools, read, allow
p, local, sluice, admin:*, *, allow
"""


def config(folder: Path, **more: Any) -> Json:
    (folder / "policy.csv").write_text(ROWS)
    (folder / "tools.json").write_text(json.dumps([{"name": "add", "inputSchema": {"type": "object"}}]))
    (folder / "calls").touch()
    return {
        "servers": {
            "bank": recorder(folder, "bank", tools=["wire"], resources=["memo:///a"]) | {"required": True},
            "math": {"command": sys.executable, "args": [TURNCOAT, str(folder)], "pin": "block", "required": False},
        },
        "clients": {"keys": client_keys(lea=["role:lead"], **{ONE: [], OTHER: []})},
        "policy": {"files": ["policy.csv"], "watch": False},
        "approvals": {"hold_for": "300ms"}, "log": {"format": "json"}, **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    folder = tmp_path_factory.mktemp("town")
    with sluice(config(folder), folder, 2) as process:
        yield process


def run(process: Sluice, *words: str) -> "CompletedProcess[str]":
    return command_line.run(ROOT, *words, "-c", str(process.config))


def api(process: Sluice, who: str, path: str, method: str = "GET", **options: Any) -> httpx.Response:
    url = f"{process.admin}/api/v1/{path}"
    return as_described(httpx.request(method, url, headers=bearer(who), timeout=20, **options))


def wire(process: Sluice, who: str, **arguments: Any) -> httpx.Response:
    params: Json = {"name": "bank__wire", "arguments": arguments}
    headers, body = modern_headers(who, "tools/call", params), modern_body("tools/call", params)
    return httpx.post(process.url, json=body, headers=headers, timeout=30)


def pending(process: Sluice, who: str, **arguments: Any) -> str:
    answer = wire(process, who, **arguments)
    assert reason(answer) == "approval_pending", answer.text
    return str(answer.json()["result"]["_meta"]["dev.sluice/approval"]["id"])


def decide(process: Sluice, who: str, id: str, decision: str = "approve", **body: Any) -> httpx.Response:
    seen = api(process, who, f"approvals/{id}").json().get("digest", "")
    return api(process, who, f"approvals/{id}/decisions", "POST",
               json={"decision": decision, "seen_digest": seen, **body})  # fmt: skip


def explained(process: Sluice, who: str) -> Json:
    """What `sluice explain` says of a call, by the facts of the worker that serves this client."""
    done = run(process, "explain", "--json", "--as", who, "call", "bank__wire")
    assert done.stderr == "", done.stderr
    answer: Json = json.loads(done.stdout)
    return answer


def tools(process: Sluice, who: str) -> set[str]:
    return {tool["name"] for tool in Talker(process.url, who).modern(None, "tools/list")["tools"]}


# ---------------------------------------------------------------- approvals


def test_what_waits_at_any_of_them_is_listed_decided_and_used_once(town: Sluice) -> None:
    ids = {who: pending(town, who, n=1) for who in (ONE, OTHER)}
    listed = api(town, "lea", "approvals?state=pending").json()
    assert [row["id"] for row in listed["approvals"]] == list(ids.values()) and listed["total"] == 2
    assert 'sluice_approvals_pending{profile="one-of-leads"} 2.0' in town.get("/metrics")[1]
    for who, id in ids.items():
        assert decide(town, who, id).status_code == 403, "no right on Sluice itself"
        assert decide(town, "lea", id).json()["state"] == "approved"
        assert decide(town, "lea", id).status_code == 409
        assert reason(wire(town, who, n=1)) == ""
        assert api(town, "lea", f"approvals/{id}").json()["state"] == "consumed"
    assert api(town, "lea", "approvals/apr_000000000000").status_code == 404
    assert api(town, "nobody", "approvals").status_code == 401
    assert api(town, "lea", "nothing").status_code in (403, 404)


@pytest.mark.parametrize(
    ("who", "path", "kind", "status"),
    [("nobody", "approvals/apr_000000000000/cancel", "application/json", 401),
     (ONE, "pins", "application/json", 403),
     ("lea", "approvals/apr_000000000000/cancel", "text/plain", 415),
     ("lea", "approvals", "application/json", 405)],
)  # fmt: skip
def test_what_the_head_refuses_is_answered_before_the_body_has_come(
    town: Sluice, who: str, path: str, kind: str, status: int
) -> None:
    """No byte of the body is ever sent."""
    with socket.create_connection((str(httpx.URL(town.admin).host), httpx.URL(town.admin).port or 0), 20) as peer:
        head = f"POST /api/v1/{path} HTTP/1.1\r\nHost: {httpx.URL(town.admin).netloc.decode()}\r\n"
        head += f"Authorization: {bearer(who)['Authorization']}\r\nContent-Type: {kind}\r\nContent-Length: 4000000\r\n"
        peer.sendall(f"{head}\r\n".encode())
        assert peer.recv(100).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_decision_that_is_sent_twice_under_one_key_is_made_once(town: Sluice) -> None:
    for who in (ONE, OTHER):
        id = pending(town, who, n=7)
        body = {"decision": "deny", "comment": who}
        sent = [
            httpx.post(f"{town.admin}/api/v1/approvals/{id}/decisions", json=body, timeout=20,
                       headers={**bearer("lea"), "Idempotency-Key": f"key of {who}"})
            for _ in range(3)
        ]  # fmt: skip
        assert [answer.json()["state"] for answer in sent] == ["denied"] * 3


def test_a_grant_is_found_and_taken_back_wherever_it_is(town: Sluice) -> None:
    for who in (ONE, OTHER):
        assert decide(town, "lea", pending(town, who, n=2), scope="15m").status_code == 200
        assert reason(wire(town, who, n=3)) == "", "the grant covers it"
        assert explained(town, who)["grant"].startswith("grt_")
    grants = api(town, "lea", "grants").json()["grants"]
    assert {grant["principal"] for grant in grants} == {f"key:{ONE}", f"key:{OTHER}"}
    for grant in grants:
        assert api(town, "lea", f"grants/{grant['id']}", "DELETE").status_code == 200
    assert api(town, "lea", "grants").json()["grants"] == []
    for who in (ONE, OTHER):
        assert reason(wire(town, who, n=4)) == "approval_pending"
        assert explained(town, who)["verdict"] == "ask"


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.workers == "joined"], ids=lambda route: route.operation
)
def test_what_is_joined_has_the_form_of_one_answer(town: Sluice, route: ApiRoute) -> None:
    answer = httpx.get(f"{town.admin}{route.path.replace('{key}', 'bank')}", headers=bearer("lea"), timeout=30)
    if route.operation == "show_audit_head":  # a line for each worker, once something is signed
        assert answer.status_code in (200, 404)
        return
    assert answer.status_code == 200, answer.text
    if route.response is not None:
        jsonschema.validate(answer.json(), route.response)


def test_events_of_all_come_as_one_stream(town: Sluice) -> None:
    seen: list[tuple[str, str]] = []
    is_open = threading.Event()

    def listen() -> None:
        url = f"{town.admin}/api/v1/approvals/events"
        with httpx.stream("GET", url, headers=bearer("lea"), timeout=30) as response:
            assert response.status_code == 200
            event = ""
            for line in response.iter_lines():
                is_open.set()
                event = line.removeprefix("event: ") if line.startswith("event: ") else event
                if line.startswith("data: "):
                    seen.append((event, json.loads(line.removeprefix("data: "))["id"]))
                if len(wanted & set(seen)) == 4:
                    return

    wanted = {("none", "yet")}
    reader = threading.Thread(target=listen, daemon=True)
    reader.start()
    assert is_open.wait(20)
    ids = [pending(town, who, n=5) for who in (ONE, OTHER)]
    wanted = {(state, id) for state in ("pending", "denied") for id in ids}
    for id in ids:
        assert decide(town, "lea", id, "deny").status_code == 200
    until(lambda: wanted <= set(seen))
    assert sorted(one for one in seen if one in wanted) == sorted(wanted), "each once"


def test_changes_of_all_come_as_one_stream_that_goes_on_where_it_ended(town: Sluice) -> None:
    url, headers, last = f"{town.admin}/api/v1/events", bearer("lea"), ""
    for who in (ONE, OTHER):
        found = set[str]()
        with httpx.stream("GET", url, headers=headers, params={"topics": "approval,pin"}, timeout=30) as response:
            for line in response.iter_lines():
                found |= {line.removeprefix("event: ")} if line.startswith("event: ") else set()
                last = line.removeprefix("id: ") if line.startswith("id: ") else last
                if line.startswith("data: ") and last.count("+") == 1:
                    break
        assert "reset" not in found, "each worker knows its own part of the id"
        decide(town, "lea", pending(town, who, n=70), "deny")
        headers = bearer("lea") | {"Last-Event-ID": last}
        with httpx.stream("GET", url, headers=headers, params={"topics": "approval,pin"}, timeout=30) as response:
            for line in response.iter_lines():
                if line == "event: approval":
                    break
                assert line != "event: reset"
    gone = bearer("lea") | {"Last-Event-ID": "0badc0de.1+0badc0de.2"}
    with httpx.stream("GET", url, headers=gone, timeout=30) as response:
        assert next(line for line in response.iter_lines() if line) == "event: reset"


def test_the_command_line_sees_one_sluice(town: Sluice) -> None:
    listed = json.loads(run(town, "servers", "--json").stdout)["servers"]
    assert [row["key"] for row in listed] == ["bank", "math"] and {row["status"] for row in listed} == {"up"}
    for who in (ONE, OTHER):
        found = json.loads(run(town, "tools", "--as", who, "--json").stdout)
        assert found["as"] == f"key:{who}" and "bank__wire" in {tool["name"] for tool in found["tools"]}
        assert run(town, "resources", "--as", who).returncode == run(town, "prompts", "--as", who).returncode == 0
    logged = json.loads(run(town, "logs", "bank", "--json").stdout)
    assert logged["server"] == "bank" and logged["position"].count(",") == 1, "where each worker's process stands"
    assert run(town, "logs", "nope").returncode == 1
    id = pending(town, OTHER, n=6)
    shown = run(town, "approvals", "show", id, "--key", key_of("lea"))
    assert shown.returncode == 0 and f"key:{OTHER}" in shown.stdout, shown.stderr
    assert town.get("/livez") == (200, '{"status":"ok"}\n') and town.get("/nothing")[0] == 404


# ---------------------------------------------------------------- what is for all of them


def test_what_is_accepted_is_served_by_all_at_once_and_told_once(town: Sluice) -> None:
    assert not {"math__add"} & (tools(town, ONE) | tools(town, OTHER))
    withheld = [line for line in town.log().splitlines() if "definition withheld" in line and '"add"' in line]
    assert len(withheld) == 1, withheld
    accepted = run(town, "pins", "accept", "math", "--all")
    assert accepted.returncode == 0 and "accepted tool add" in accepted.stdout, accepted.stderr
    assert "math__add" in tools(town, ONE) and "math__add" in tools(town, OTHER)


def test_an_older_client_s_messages_find_its_stream(town: Sluice) -> None:
    root = town.url.removesuffix("/mcp")
    for who in (ONE, OTHER):
        headers = {"Accept": "text/event-stream", **bearer(who)}
        with httpx.stream("GET", f"{root}/sse", headers=headers, timeout=20) as stream:
            lines = stream.iter_lines()
            path = next(line for line in lines if "session_id=" in line).removeprefix("data:").strip()
            hello = message("initialize", HELLO | {"protocolVersion": "2024-11-05"})
            told = httpx.post(root + path, json=hello, headers={**ACCEPT, **bearer(who)}, timeout=20)
            assert told.status_code == 202
            assert '"protocolVersion"' in next(line for line in lines if '"id":1' in line)


def test_a_changed_policy_and_a_revoked_key_are_known_to_all(tmp_path: Path) -> None:
    with sluice(config(tmp_path), tmp_path, 2) as process:
        assert tools(process, ONE) == tools(process, OTHER) == {"bank__wire"}
        streams = [Talker(process.url, who).session(None) for who in (ONE, OTHER)]
        (tmp_path / "policy.csv").write_text(ROWS.replace("bank, *, *, allow", "bank, *, *, deny"))
        process.process.send_signal(signal.SIGHUP)
        until(lambda: tools(process, ONE) == tools(process, OTHER) == set())
        for who in (ONE, OTHER):
            assert run(process, "keys", "revoke", who).returncode == 0
        until(lambda: {one.ask(None, "tools/list").status_code for one in streams} == {401})


def test_a_worker_does_not_come_back_with_a_policy_that_is_not_in_force(tmp_path: Path) -> None:
    with sluice(config(tmp_path), tmp_path, 2) as process:
        good = (tmp_path / "policy.csv").read_text()
        (tmp_path / "policy.csv").write_text(good.replace("allow", "Allow"))
        os.kill(workers(process)[0], signal.SIGKILL)
        until(lambda: "is not up" in process.get("/readyz")[1])
        until(lambda: '"failures": 2' in process.log())
        assert "is not up" in process.get("/readyz")[1]
        waiting = api(process, "lea", "approvals").json()
        assert waiting["approvals"] == [] and re.fullmatch(r"worker \d is not up.*", waiting["incomplete"][0])
        (tmp_path / "policy.csv").write_text(good.replace("bank, *, *, allow", "bank, *, *, deny"))
        process.process.send_signal(signal.SIGHUP)
        until(lambda: process.get("/readyz")[0] == 200)
        assert "incomplete" not in api(process, "lea", "approvals").json()
        assert tools(process, ONE) == tools(process, OTHER) == set(), "both have the newer one"


def test_every_worker_takes_a_server_into_use_restarts_it_and_disables_it_also_one_that_comes_later(
    tmp_path: Path,
) -> None:
    settings = config(tmp_path)
    more = recorder(tmp_path, "more", tools=["dig"])
    with sluice(settings, tmp_path, 2) as process:
        written = json.loads(process.config.read_text())
        written["servers"] |= {"more": more}
        (tmp_path / "policy.csv").write_text(ROWS + "p, role:authenticated, more, *, *, allow\n")
        process.config.write_text(json.dumps(written))
        process.process.send_signal(signal.SIGHUP)
        until(lambda: tools(process, ONE) == tools(process, OTHER) == {"bank__wire", "more__dig"})
        before = set(row(process, "more")["pids"])
        assert len(before) == 2
        done = run(process, "servers", "restart", "more")
        assert (done.returncode, done.stdout) == (0, "more: restarted\n"), done.stderr
        until(lambda: len(set(row(process, "more").get("pids", [])) - before) == 2)
        assert run(process, "servers", "disable", "more").returncode == 0
        assert tools(process, ONE) == tools(process, OTHER) == {"bank__wire"}
        first = workers(process)[0]
        os.kill(first, signal.SIGKILL)
        until(lambda: first not in workers(process) and process.get("/readyz")[0] == 200)
        assert tools(process, ONE) == tools(process, OTHER) == {"bank__wire"}
        assert run(process, "servers", "enable", "more").returncode == 0
        until(lambda: tools(process, ONE) == tools(process, OTHER) == {"bank__wire", "more__dig"})


def test_what_is_disabled_or_enabled_while_a_worker_starts_is_so_in_it_too(tmp_path: Path) -> None:
    settings = config(tmp_path)
    for key in ("more", "less"):
        settings["servers"][key] = recorder(tmp_path, key, tools=["dig"]) | {"required": False}
    rows = "p, role:authenticated, more, *, *, allow\np, role:authenticated, less, *, *, allow\n"
    (tmp_path / "policy.csv").write_text(ROWS + rows + "p, role:lead, sluice, admin:servers, write, allow\n")
    with sluice(settings, tmp_path, 2) as process:
        until(lambda: tools(process, ONE) == tools(process, OTHER) == {"bank__wire", "more__dig", "less__dig"})
        assert run(process, "servers", "disable", "less").returncode == 0
        before = workers(process)
        os.kill(before[1], signal.SIGKILL)
        until(lambda: set(workers(process)) - set(before))
        (starting,) = set(workers(process)) - set(before)
        os.kill(starting, signal.SIGSTOP)
        try:
            assert api(process, "lea", "servers/more/disable", "POST", json={}).status_code == 200
            assert api(process, "lea", "servers/less/enable", "POST", json={}).status_code == 200
            assert "worker 2 is not up" in process.get("/readyz")[1], "it was up before it could be stopped"
        finally:
            os.kill(starting, signal.SIGCONT)
        until(lambda: process.get("/readyz")[0] == 200)
        until(lambda: tools(process, ONE) == tools(process, OTHER) == {"bank__wire", "less__dig"})


def test_a_preview_is_made_by_the_worker_of_whoever_asks_and_gives_what_the_server_says(town: Sluice) -> None:
    for who in (ONE, OTHER):
        body = {"method": "resources/read", "target": "bank+memo:///a"}
        told = api(town, who, "preview", "POST", json=body)
        assert told.status_code == 200, told.text
        (content,) = told.json()["result"]["contents"]
        assert content["text"] == "secret"
        call = told.json()["call"]
        until(lambda call=call: api(town, "lea", f"calls/{call}").status_code == 200)
        story = api(town, "lea", f"calls/{call}").json()["call"]
        assert (story["principal"], story["client"]["name"]) == (f"key:{who}", "sluice-preview")


def row(process: Sluice, key: str) -> Json:
    done = run(process, "servers", "--json")
    return next(row for row in json.loads(done.stdout)["servers"] if row["key"] == key)


def test_status_one_server_and_the_calls_are_those_of_all_workers(town: Sluice) -> None:
    token = (town.config.parent / "state" / "operator.token").read_text()
    with httpx.Client(base_url=town.admin, headers={"Authorization": f"Bearer {token}"}, timeout=20) as http:
        status = http.get("/api/v1/status")
        as_described(status)
        assert status.json()["status"] == "ready" and status.json()["policy"]["mode"] == "enforce"
        assert set(status.json()["counted"]) == {"requests", "calls", "denied"}
        (row,) = [one for one in http.get("/api/v1/servers").json()["servers"] if one["key"] == "bank"]
        one = http.get("/api/v1/servers/bank")
        as_described(one)
        assert set(one.json()) == set(row) and http.get("/api/v1/servers/none").status_code == 404
        for who in (ONE, OTHER):
            params: Json = {"name": "math__add", "arguments": {}}
            headers = modern_headers(who, "tools/call", params)
            httpx.post(town.url, json=modern_body("tools/call", params), headers=headers, timeout=20)

        def callers() -> set[str]:
            found = http.get("/api/v1/calls?tool=math__add").json()["calls"]
            return {call["principal"] for call in found if not call["is_open"]}

        until(lambda: callers() == {f"key:{ONE}", f"key:{OTHER}"})
        call = http.get("/api/v1/calls?tool=math__add").json()["calls"][0]["id"]
        story = http.get(f"/api/v1/calls/{call}")
        as_described(story)
        assert story.json()["call"]["id"] == call
        page = http.get(f"/api/v1/audit/records?call={call}&type=outcome")
        as_described(page)
        assert [one["call"] for one in page.json()["records"]] == [call]
        started = http.post("/api/v1/audit/verify", json={})
        as_described(started)
        assert started.status_code == 200
        until(lambda: http.get("/api/v1/audit/verify").json()["state"] == "done")
        proof = http.get("/api/v1/audit/verify")
        as_described(proof)
        assert proof.json()["ok"] and len(proof.json()["writers"]) == len(workers(town))
        question = {"as": f"key:{ONE}", "method": "tools/call", "target": "math/add"}
        explained = [http.post("/api/v1/policy/explain", json=question | {"as": f"key:{who}"}) for who in (ONE, OTHER)]
        assert [one.json()["principal"] for one in explained] == [f"key:{ONE}", f"key:{OTHER}"]
        as_described(explained[0])
        looked = http.post("/api/v1/preview", json={"method": "resources/read", "target": "math+memo:///none"})
        as_described(looked)
        assert looked.json()["failure"]["message"]
        assert http.post("/api/v1/policy/explain", json={"as": "key:nobody", "method": "tools/call"}).status_code == 400
