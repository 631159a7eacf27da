"""Replicas on one database: whichever of them gets a request, the one that has its session serves it, once."""

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import create_connection, socket
from typing import Any

import httpx
import psycopg
import pytest
from authority import issue
from database_bed import ROWS, Json, api, approve, command, database, machine, seen, settings
from e2e import sluice_process
from e2e.wire import META, MODERN
from fleet_stage import ACCEPT, Session, forwarded
from peers.faketime import shifted
from peers.fleet import free_port, peers, task_server
from peers.postgres import Cluster, postgres
from policy_bed import Bed, bearer, bed, reason
from waiting import until_so

__all__ = ["database", "peers"]
ASKING = str(Path(__file__).with_name("asking_server.py"))


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


@pytest.fixture
def fleet(tmp_path: Path, database: str) -> Iterator[list[Bed]]:
    """Three replicas."""
    with ExitStack() as stack:
        yield at_once(stack, (replica(tmp_path, name, database, ready=False) for name in ("r0", "r1", "r2")))


def at_once(stack: ExitStack, starting: Iterable[Any]) -> list[Bed]:
    """Replicas that start beside one another, and are ready. Each must be told not to wait for that by itself."""
    beds: list[Bed] = [stack.enter_context(one) for one in starting]
    for bed_ in beds:
        bed_.process.wait_ready()
    return beds


def replica(folder: Path, name: str, database: str, rows: str = ROWS, **config: Any) -> Any:
    place, port = machine(folder, name), free_port()
    peer = {"listen": f"127.0.0.1:{port}", "url": f"http://127.0.0.1:{port}"}
    whole = {**settings(place, database), "fleet": {"name": name, "peer": peer}, "drain_delay": "200ms", **config}
    return bed(place, rows, **whole)


def modern(at: Bed, method: str, **params: Any) -> Json:
    """The result, or the error, for a client that answers questions and knows tasks."""
    capabilities = {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": capabilities}
    named = {"Mcp-Name": params["name"]} if "name" in params else {}
    named |= {"Mcp-Name": params["taskId"]} if "taskId" in params else {}
    head = {**ACCEPT, "MCP-Protocol-Version": MODERN, "Mcp-Method": method, **named, **bearer("ann")}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    answer = httpx.post(at.process.url, json=body, headers=head, timeout=20)
    message: Json = json.loads(answer.text.rpartition("data: ")[2])
    return message.get("result", message)


def asking(folder: Path, name: str, database: str, **config: Any) -> Any:
    """A replica with a legacy server that asks questions, too."""
    server = {"command": sys.executable, "args": [ASKING], "era": "legacy"}
    servers = {**settings(folder / name / "sluice", database)["servers"], "ask": server}
    rows = ROWS + "p, role:authenticated, ask, *, *, allow\n"
    return replica(folder, name, database, rows, servers=servers, **config)


def test_a_request_at_the_wrong_replica_is_served_once_by_the_right_one(fleet: list[Bed]) -> None:
    home, *others = fleet
    session = Session(home)
    assert session.id.startswith("r0.")
    for at in (*others, home, *others):
        assert "isError" not in session.call(at, "bank__look").json()["result"]
    assert seen(home) == ["look"] * 5
    assert [forwarded(at) for at in fleet] == [{}, {"answered": 2.0}, {"answered": 2.0}]
    with session.stream(others[0]) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"] == "text/event-stream"
    body = {"method": "DELETE", "url": home.process.url, "headers": {**session.headers, **bearer("ann")}}
    assert httpx.request(**{**body, "url": others[1].process.url}, timeout=20).status_code == 200
    assert session.call(home, "bank__look").status_code == 404


def test_a_session_is_of_its_principal_at_every_replica(fleet: list[Bed]) -> None:
    home, other, _ = fleet
    session = Session(home)
    assert session.call(other, "bank__look", who="lea").status_code == 404
    assert session.call(other, "bank__look", who="nobody").status_code == 401
    for id in ("r0.00000000.x", "r9.12345678.x", "..", "r0..", session.id[:-1], session.id.replace("r0", "r1")):
        session.headers["Mcp-Session-Id"] = id
        assert session.call(other, "bank__look").status_code == 404
    assert seen(home) == []


def test_the_stream_of_the_2024_transport_is_posted_to_at_any_replica(fleet: list[Bed]) -> None:
    home, other, _ = fleet
    base = home.process.url.removesuffix("/mcp")
    with httpx.stream("GET", f"{base}/sse", headers={**ACCEPT, **bearer("ann")}, timeout=20) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: endpoint"
        path = next(lines).removeprefix("data: ")
        hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        there = other.process.url.removesuffix("/mcp") + path
        assert httpx.post(there, json=body, headers=bearer("ann"), timeout=20).status_code == 202
        assert httpx.post(there, json=body, headers=bearer("lea"), timeout=20).status_code == 404
        data = next(line for line in lines if line.startswith("data: "))
        assert json.loads(data.removeprefix("data: "))["result"]["protocolVersion"] == "2024-11-05"


def test_a_question_is_answered_at_any_replica(tmp_path: Path, database: str) -> None:
    with ExitStack() as stack:
        here, there = at_once(stack, (asking(tmp_path, name, database, ready=False) for name in ("a", "b")))
        first = modern(here, "tools/call", name="ask__name")
        (key,), state = first["inputRequests"], first["requestState"]
        retry = {"requestState": state, "inputResponses": {key: {"action": "accept", "content": {"name": "Ada"}}}}
        done = modern(there, "tools/call", name="ask__name", **retry)
        assert "Ada" in done["content"][0]["text"], done
        assert forwarded(there) == {"answered": 1.0}
        again = modern(there, "tools/call", name="ask__name", **retry)
        assert again["error"]["code"] == -32602, again
        state = modern(here, "tools/call", name="ask__name")["requestState"]
        os.kill(here.process.process.pid, signal.SIGKILL)
        here.process.process.wait()
        lost = modern(there, "tools/call", name="ask__name", **{**retry, "requestState": state})
        assert "error" in lost or lost["isError"], lost


def test_pages_of_a_list_go_on_at_any_replica(tmp_path: Path, database: str) -> None:
    with ExitStack() as stack:
        paged: Json = {"limits": {"page": 1}, "ready": False}
        here, there = at_once(stack, (asking(tmp_path, name, database, **paged) for name in ("a", "b")))
        names, cursor, at = [], {}, [here, there]
        while True:
            at.reverse()
            page = modern(at[0], "tools/list", **cursor)
            names += [tool["name"] for tool in page["tools"]]
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert sorted(names) == ["ask__model", "ask__name", "ask__told", "bank__look", "bank__wire"]


def test_a_held_call_that_is_a_task_is_asked_about_at_any_replica(peers: None, tmp_path: Path, database: str) -> None:
    with task_server(tmp_path, "--journal", str(tmp_path / "new.journal")) as url, ExitStack() as stack:
        bank = settings(tmp_path / "a" / "sluice", database)["servers"]
        servers = {**bank, "new": {"url": url, "era": "modern"}}
        rows = ROWS + "p, role:authenticated, new, *, *, allow\n"
        about: Json = {"servers": servers, "ready": False}
        here, there = at_once(stack, (replica(tmp_path, name, database, rows, **about) for name in ("a", "b")))
        task = modern(here, "tools/call", name="bank__wire", arguments={"to": "bob"})
        assert task.get("taskId", "").startswith("a."), task
        assert modern(there, "tasks/get", taskId=task["taskId"])["status"] == "working"
        assert forwarded(there) == {"answered": 1.0}
        there.until(lambda: bool(api(there, "approvals").json()["approvals"]))
        assert approve(there, api(there, "approvals").json()["approvals"][0]["id"]) == 200
        there.until(lambda: modern(there, "tasks/get", taskId=task["taskId"])["status"] == "completed")
        assert seen(here) == ["wire"]


def test_sessions_of_a_replica_that_was_killed_are_not_found_at_once(fleet: list[Bed]) -> None:
    home, other, _ = fleet
    session = Session(home)
    os.kill(home.process.process.pid, signal.SIGKILL)
    home.process.process.wait()
    assert session.call(other, "bank__look").status_code == 404
    assert forwarded(other) == {"gone": 1.0}
    assert "isError" not in other.call("ann", "bank__look").json()["result"], "modern calls go on"
    other.until(lambda: session.call(other, "bank__look").status_code == 404 and forwarded(other)["gone"] >= 1)


def test_a_call_whose_replica_dies_is_told_as_unknown(tmp_path: Path, database: str) -> None:
    with ExitStack() as stack:
        holding: Json = {"approvals": {"hold_for": "2m"}, "ready": False}
        here, there = at_once(stack, (replica(tmp_path, name, database, **holding) for name in ("a", "b")))
        session = Session(here)
        answers: list[httpx.Response] = []
        waiting = threading.Thread(target=lambda: answers.append(session.call(there, "bank__wire", to="bob")))
        waiting.start()
        there.until(lambda: bool(api(there, "approvals").json()["approvals"]))
        os.kill(here.process.process.pid, signal.SIGKILL)
        waiting.join()
        assert answers[0].json()["error"]["data"] == {"reason": "outcome_unknown"}


def test_a_name_is_had_by_one_and_commands_change_nothing_beside_a_fleet(fleet: list[Bed], tmp_path: Path) -> None:
    place = machine(tmp_path / "second", "r0")
    (place / "policy.csv").write_text(ROWS)
    config = json.loads(fleet[0].process.config.read_text())
    config["listen"], config["state"]["dir"] = {"mcp": "127.0.0.1:0", "admin": "127.0.0.1:0"}, str(place / "state")
    config["fleet"]["peer"]["listen"] = "127.0.0.1:0"
    (place / "sluice.yaml").write_text(json.dumps(config))
    done = command(fleet[0], "serve", config=place / "sluice.yaml")
    assert done.returncode == 3 and "another Sluice runs on this database" in done.stderr
    done = command(fleet[0], "serve", "--workers", "2", config=place / "sluice.yaml")
    assert done.returncode == 2 and "a replica of a fleet is one process" in done.stderr
    config["listen"] = {}
    (place / "sluice.yaml").write_text(json.dumps(config))
    id = fleet[0].call("ann", "bank__wire", to="bob").json()["result"]["_meta"]["dev.sluice/approval"]["id"]
    done = command(fleet[0], "approve", id, config=place / "sluice.yaml")
    assert done.returncode == 3 and "a Sluice runs on this database (process " in done.stderr, done.stderr


def test_a_peer_address_that_is_taken_is_said_with_its_key(tmp_path: Path, database: str) -> None:
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        place = machine(tmp_path, "a")
        (place / "policy.csv").write_text(ROWS)
        fleet = {"name": "a", "peer": {"listen": address, "url": f"http://{address}"}}
        listen = {"mcp": "127.0.0.1:0", "admin": "127.0.0.1:0"}
        policy = {"files": ["policy.csv"]}
        config = {**settings(place, database), "fleet": fleet, "listen": listen, "policy": policy}
        (place / "sluice.yaml").write_text(json.dumps(config))
        done = command(None, "serve", config=place / "sluice.yaml")
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert f"cannot listen on {address} (fleet.peer.listen): Address already in use" in done.stderr
    assert "set fleet.peer.listen to a free port" in done.stderr


def test_replicas_show_each_other_certificates(tmp_path: Path, database: str) -> None:
    files = dict(zip(("ca", "cert", "key"), issue("127.0.0.1"), strict=True))
    for name, text in files.items():
        (tmp_path / f"{name}.pem").write_bytes(text)
    tls = {name: str(tmp_path / f"{name}.pem") for name in files}
    ports = {name: free_port() for name in ("a", "b")}
    with ExitStack() as stack:
        here, there = (
            stack.enter_context(replica(tmp_path, name, database, fleet={"name": name, "peer": {
                "listen": f"127.0.0.1:{port}", "url": f"https://127.0.0.1:{port}", "tls": tls,
            }})) for name, port in ports.items()
        )  # fmt: skip
        session = Session(here)
        assert "isError" not in session.call(there, "bank__look").json()["result"]
        assert forwarded(there) == {"answered": 1.0}
        knows = ssl.create_default_context(cafile=tls["ca"])
        for scheme in ("https", "http"):  # without a certificate, and without TLS
            with pytest.raises(httpx.TransportError):
                httpx.post(f"{scheme}://127.0.0.1:{ports['a']}/mcp", headers=bearer("ann"), verify=knows)


def test_a_key_is_revoked_at_all_replicas_or_those_that_cannot_know_are_named(fleet: list[Bed]) -> None:
    here, there, third = fleet
    done = command(here, "keys", "revoke", "ann")
    assert done.returncode == 0, done.stderr
    assert [at.call("ann", "bank__look").status_code for at in fleet] == [401] * 3, "it waits for all of them"
    os.kill(third.process.process.pid, signal.SIGSTOP)
    try:
        done = command(there, "keys", "revoke", "lea")
    finally:
        os.kill(third.process.process.pid, signal.SIGCONT)
    assert done.returncode == 4 and "lea is revoked, and not confirmed by r2" in done.stderr, done.stderr
    assert here.call("lea", "bank__look").status_code == 401
    third.until(lambda: third.call("lea", "bank__look").status_code == 401)


def test_a_block_is_in_force_at_all_replicas_or_those_that_cannot_know_are_named(fleet: list[Bed]) -> None:
    here, there, third = fleet
    done = command(here, "block", "bank/look")
    assert (done.returncode, done.stdout) == (0, "bank/look is blocked\n"), done.stderr
    assert ["error" in at.call("ann", "bank__look").json() for at in fleet] == [True] * 3, "it waits for all of them"
    done = command(there, "unblock", "bank/look")
    assert done.returncode == 0, done.stderr
    assert ["isError" in at.call("ann", "bank__look").json()["result"] for at in fleet] == [False] * 3
    os.kill(third.process.process.pid, signal.SIGSTOP)
    try:
        done = command(there, "block", "key:ann", "--for", "1h")
    finally:
        os.kill(third.process.process.pid, signal.SIGCONT)
    assert done.returncode == 4 and "this is not confirmed by r2" in done.stderr, done.stderr
    assert here.names("ann") == []
    third.until(lambda: third.names("ann") == [])


def test_the_logs_of_all_replicas_are_proved_together_and_one_that_is_gone_or_cut_is_named(fleet: list[Bed]) -> None:
    here, *others = fleet
    for at in fleet:
        assert "isError" not in at.call("ann", "bank__look").json()["result"]
    for at in fleet:  # at its end each signs what it has
        at.process.interrupt()
    logs = [at.folder / "audit" for at in fleet]
    assert [[file.name for file in log.glob("*.jsonl")] for log in logs] == [[f"sluice-r{n}.jsonl"] for n in range(3)]

    def proved(*paths: Path) -> Json:
        done = command(here, "audit", "verify", "--fleet", *map(str, paths), "--json")
        found: Json = json.loads(done.stdout)
        assert done.returncode == (0 if found["ok"] else 1), done.stderr
        return {one["writer"]: [finding["text"] for finding in one["findings"]] for one in found["writers"]}

    assert proved(*logs) == {"sluice-r0": [], "sluice-r1": [], "sluice-r2": []}
    gone = proved(*logs[:2])
    assert gone["sluice-r0"] == gone["sluice-r1"] == []
    assert gone["sluice-r2"] and "are cut off" in gone["sluice-r2"][0], gone
    assert re.search(r"records up to ([0-9]+) existed", gone["sluice-r2"][0])
    file = others[0].folder / "audit" / "sluice-r1.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]))  # with its published checkpoint gone as well
    assert "are cut off" in proved(*logs)["sluice-r1"][0]
    assert command(here, "audit", "retire", "sluice-r9").returncode == 1
    line = [*sluice_process.COMMAND, "audit", "retire", "sluice-r2", "-c", str(here.process.config)]
    done = subprocess.run(line, capture_output=True, text=True, env=sluice_process.clean_environment(), check=False)
    assert (done.returncode, done.stdout) == (0, "sluice-r2 is retired\n"), done.stderr
    assert "sluice-r2" not in proved(*logs[:2])
    found = command(here, "audit", "search", "--type", "admin", "--json").stdout
    assert '"act":"log_retired"' in found.replace(" ", ""), found


def test_a_replica_without_a_word_from_the_database_stops_serving(tmp_path: Path) -> None:
    with postgres("fsync=off") as own:
        state = {**settings(tmp_path / "a" / "sluice", own.url)["state"], "stale": "1s"}
        with replica(tmp_path, "a", own.url, state=state) as at:
            session = Session(at)
            assert at.call("ann", "bank__look").status_code == 200
            own.pause()
            at.until(lambda: reason(at.call("ann", "bank__look")) == "store_unavailable")
            answer = session.call(at, "bank__look").json()["result"]
            assert answer["_meta"]["dev.sluice/reason"] == "store_unavailable"
            assert "result" in session.send(at, {"id": 9, "method": "ping"}).json()
            ready = httpx.get(f"{at.process.admin}/readyz", timeout=20)
            assert ready.status_code == 503 and "the database has not answered for 1 s" in ready.text
            own.resume()
            at.until(lambda: reason(at.call("ann", "bank__look")) == "")


def test_a_request_that_was_passed_on_ends_with_the_lease_of_a_machine_that_vanished(fleet: list[Bed]) -> None:
    """It closes no connection: SIGSTOP is as near to that as a test can come."""
    home, other, _ = fleet
    session = Session(home)
    os.kill(home.process.process.pid, signal.SIGSTOP)
    try:
        answer = session.call(other, "bank__look")
        assert answer.json()["error"]["data"] == {"reason": "outcome_unknown"}
        assert session.call(other, "bank__look").status_code == 404, "its lease is over"
    finally:
        os.kill(home.process.process.pid, signal.SIGCONT)


def test_a_short_outage_of_the_database_makes_no_replica_unready(tmp_path: Path) -> None:
    with postgres("fsync=off") as own, replica(tmp_path, "a", own.url) as at:
        assert at.call("ann", "bank__look").status_code == 200
        own.pause()
        try:
            at.until(lambda: "the database cannot be used" in httpx.get(f"{at.process.admin}/readyz", timeout=20).text)
            assert httpx.get(f"{at.process.admin}/readyz", timeout=20).status_code == 200
            assert at.call("ann", "bank__look").status_code == 200 and seen(at) == ["look"] * 2
            assert metric(at, "sluice_state_up") == 0
        finally:
            own.resume()
        at.until(lambda: metric(at, "sluice_state_up") == 1)


def test_an_approval_lasts_as_long_whatever_the_clocks_of_the_machines_say(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be over by one that is fast by more than it lasts, and last longer by one that is slow."""
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    with replica(tmp_path, "a", database) as here, ExitStack() as stack:
        monkeypatch.setattr(sluice_process, "COMMAND", [*shifted(2000), *sluice_process.COMMAND])
        fast = stack.enter_context(replica(tmp_path, "b", database))
        offset = pytest.approx(-2000, abs=1)
        # A busy machine may answer the first question late: what is known is as exact as one that was answered at once.
        fast.until(lambda: metric(fast, "sluice_clock_offset_seconds") == offset)
        told = re.search(r"the clock of this machine is \+(\S+) s off", " ".join(fast.notes()))
        assert told is not None and -float(told[1]) == offset
        for asked, decided in ((here, fast), (fast, here)):
            answer = asked.call("ann", "bank__wire", to=asked.folder.parent.name)
            id = answer.json()["result"]["_meta"]["dev.sluice/approval"]["id"]
            decided.until(lambda decided=decided, id=id: api(decided, f"approvals/{id}").status_code == 200)
            assert 1700 < api(decided, f"approvals/{id}").json()["seconds_left"] <= 1801  # both know the time to 0.5 s
            assert abs(metric(decided, "sluice_approval_oldest_pending_seconds")) < 100
            decided.until(lambda decided=decided, id=id: approve(decided, id) == 200)
            again = decided.call("ann", "bank__wire", to=asked.folder.parent.name)
            assert again.json()["result"].get("isError") is not True
        assert seen(here) == ["wire"] * 2


def metric(at: Bed, name: str) -> float:
    text = httpx.get(f"{at.process.admin}/metrics", timeout=20).text
    return next(float(line.split(" ")[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def test_a_replica_tells_of_another_policy_and_of_a_log_that_nobody_writes(tmp_path: Path, database: str) -> None:
    with replica(tmp_path, "r0", database) as here, ExitStack() as stack:
        there = stack.enter_context(replica(tmp_path, "r1", database))
        here.until(lambda: metric(here, "sluice_fleet_replicas") == 2)
        assert metric(here, "sluice_fleet_revisions") == 1
        here.until(lambda: abs(metric(here, "sluice_clock_offset_seconds")) < 1)
        (there.folder / "policy.csv").write_text(ROWS + "p, role:new, bank, *, read, allow\n")
        here.until(lambda: metric(here, "sluice_fleet_revisions") == 2)
        assert metric(here, "sluice_fleet_silent_logs") == 0
        there.process.interrupt()
        here.until(lambda: metric(here, "sluice_fleet_silent_logs") == 1)
        assert metric(here, "sluice_fleet_revisions") == 1 and metric(here, "sluice_fleet_replicas") == 1
        assert any("no replica writes the audit log sluice-r1" in note for note in here.notes())


def test_an_idle_replica_asks_the_database_one_statement_a_second(tmp_path: Path) -> None:
    """And every ten seconds some more, to find out whether it could write."""
    count = """
        SELECT coalesce(sum(calls) FILTER (WHERE query LIKE '%hash_record_extended%'), 0)::int, sum(calls)::int
        FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'
    """
    with postgres("fsync=off", "shared_preload_libraries=pg_stat_statements") as own:
        own.ask("CREATE EXTENSION pg_stat_statements")

        with replica(tmp_path, "a", own.url), psycopg.connect(own.url, autocommit=True) as asking:

            def counted() -> tuple[int, int]:
                ((made, all),) = asking.execute(count)
                return made, all

            until_so(lambda: counted()[0] >= 3)
            for _ in range(3):  # a machine that is busy for a while may cost a window
                made, before = counted()
                until_so(lambda made=made: counted()[0] >= made + 6)  # type: ignore[misc]
                grown = counted()[1] - before
                if grown < 16:
                    break
            assert grown < 16, f"{grown} statements with 6 polls"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_idle_connections_on_both_ports_leave_files_for_the_rest(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr(sluice_process, "COMMAND", ["prlimit", "--nofile=512:512", *sluice_process.COMMAND])
    files = dict(zip(("ca", "cert", "key"), issue("127.0.0.1"), strict=True))
    for name, text in files.items():
        (tmp_path / f"{name}.pem").write_bytes(text)
    tls, port = {name: str(tmp_path / f"{name}.pem") for name in files}, free_port()
    peer, listen = {"listen": f"127.0.0.1:{port}", "url": f"{scheme}://127.0.0.1:{port}"}, {}
    if scheme == "https":
        peer, listen = {**peer, "tls": tls}, {"tls": {"cert": tls["cert"], "key": tls["key"]}}
    with ExitStack() as stack:
        here = stack.enter_context(replica(tmp_path, "a", database, fleet={"name": "a", "peer": peer}, listen=listen))
        url = here.process.url.replace("http:", f"{scheme}:")
        for number in (httpx.URL(url).port, port):
            for _ in range(280):
                stack.enter_context(create_connection(("127.0.0.1", number)))
        knows = ssl.create_default_context(cafile=tls["ca"])
        for _ in range(8):
            assert httpx.post(url, json={}, headers=bearer("ann"), verify=knows, timeout=5).status_code == 400
        assert here.process.get("/readyz")[0] == 200


def test_a_request_that_is_passed_on_to_the_port_for_clients_is_not_passed_on_again(
    tmp_path: Path, database: str
) -> None:
    with ExitStack() as stack:
        mcp = f"127.0.0.1:{free_port()}"
        listen = {"mcp": mcp, "admin": f"127.0.0.1:{free_port()}"}
        wrong = {"name": "b", "peer": {"listen": f"127.0.0.1:{free_port()}", "url": f"http://{mcp}"}}
        there = stack.enter_context(asking(tmp_path, "b", database, fleet=wrong))
        here = stack.enter_context(asking(tmp_path, "a", database, listen=listen))
        first = modern(there, "tools/call", name="ask__name")
        (key,), state = first["inputRequests"], first["requestState"]
        answer = {key: {"action": "accept", "content": {"name": "Ada"}}}
        lost = modern(here, "tools/call", name="ask__name", requestState=state, inputResponses=answer)
        assert "Ada" not in str(lost) and ("error" in lost or lost["isError"]), lost
        assert forwarded(here) == {"answered": 1.0}
