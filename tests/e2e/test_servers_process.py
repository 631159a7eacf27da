"""Servers that come, change and go while Sluice runs: real processes, real clients of both eras, and others who notice
nothing."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run
from e2e.wire import LEGACY, META, MODERN
from policy_bed import Bed, Json, bearer, bed, client_keys, reason, recorder

OPEN = "p, *, *, *, *, allow\np, local, sluice, admin:*, *, allow\n"
CALLERS = 16
TOOLS, RESOURCES = "notifications/tools/list_changed", "notifications/resources/list_changed"
KINDS = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Bed]:
    servers = {"fs": recorder(tmp_path, "fs", tools=["read"], prompts=["plain"])}
    with bed(tmp_path, OPEN, servers, clients={"keys": client_keys(ann=[], bob=[])}) as made:
        yield made


@dataclass
class Calls:
    """What callers who never stop have got."""

    answered: int = 0
    failed: list[str] = field(default_factory=list)


@contextmanager
def callers(made: Bed, name: str) -> Iterator[Calls]:
    calls, is_over = Calls(), threading.Event()

    def run() -> None:
        with httpx.Client(timeout=30, headers=bearer("bob")) as client:
            while not is_over.is_set():
                answer = called(client, made.process.url, name)
                if "ran " in answer.text:
                    calls.answered += 1
                else:
                    calls.failed.append(answer.text)

    with ThreadPoolExecutor(CALLERS) as pool:
        running = [pool.submit(run) for _ in range(CALLERS)]
        try:
            yield calls
        finally:
            is_over.set()
        for one in running:
            one.result()


def called(client: httpx.Client, url: str, name: str) -> httpx.Response:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": {}, "_meta": META}}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": name}
    return client.post(url, json=body, headers=headers | {"Accept": "application/json, text/event-stream"})


@contextmanager
def told(made: Bed, era: str) -> Iterator[Counter[str]]:
    """The list changes that one client is told of, counted by method."""
    heard: Counter[str] = Counter()
    begun = threading.Event()
    open_streams: list[httpx.Response] = []

    def listen() -> None:
        with httpx.Client(timeout=60, headers=bearer("ann") | {"Accept": "application/json, text/event-stream"}) as one:
            if era == "HTTP+SSE":
                stream = one.stream("GET", made.process.url.replace("/mcp", "/sse"))
            elif era == "modern":
                body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen"}
                headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
                params = {"notifications": KINDS, "_meta": META}
                stream = one.stream("POST", made.process.url, json=body | {"params": params}, headers=headers)
            else:
                stream = one.stream("GET", made.process.url, headers=greeted(made.process.url))
            with stream as response:
                open_streams.append(response)
                if era == "legacy":
                    begun.set()
                for line in response.iter_lines():
                    if line.startswith("data: /"):
                        greet(made.process.url.replace("/mcp", line[6:].strip()), "2024-11-05", {})
                    elif line.startswith("data:") and line[5:].strip():
                        method = json.loads(line[5:]).get("method", "")
                        if json.loads(line[5:]).get("id") == 2:
                            begun.set()  # the answer to its tools/list
                        elif not method:
                            pass
                        elif method == "notifications/subscriptions/acknowledged":
                            begun.set()
                        else:
                            heard[method] += 1

    with ThreadPoolExecutor(1) as pool:
        listening = pool.submit(_until_closed, listen)
        assert begun.wait(20)
        try:
            yield heard
        finally:
            for response in open_streams:
                response.extensions["network_stream"].get_extra_info("socket").shutdown(2)
        listening.result()


def _until_closed(listen: Any) -> None:
    try:
        listen()
    except httpx.HTTPError:
        pass  # closed in the middle of the stream, by us


def greet(url: str, revision: str, headers: dict[str, str]) -> dict[str, str]:
    """The handshake of an older client, and its first list: the headers of its session."""
    hello = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    with httpx.Client(timeout=60, headers=bearer("ann") | {"Accept": "application/json, text/event-stream"}) as client:
        answer = client.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
        session = headers | {"Mcp-Session-Id": answer.headers.get("mcp-session-id", "")}
        client.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
        client.post(url, json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, headers=session)
    return session


VERSION = {"MCP-Protocol-Version": LEGACY}


def greeted(url: str) -> dict[str, str]:
    return greet(url, LEGACY, VERSION) | {"Accept": "text/event-stream"}


def reconfigure(made: Bed, **servers: Json | None) -> None:
    config = json.loads(made.process.config.read_text())
    for key, section in servers.items():
        if section is None:
            del config["servers"][key]
        else:
            config["servers"][key] = section
    made.write(json.dumps(config), "sluice.yaml")


def state(made: Bed, key: str) -> Json:
    token = (made.folder / "state" / "operator.token").read_text().strip()
    url = f"{made.process.admin}/api/v1/servers"
    rows = httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=20).json()["servers"]
    return next((row for row in rows if row["key"] == key), {})


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("era", ["modern", "legacy", "HTTP+SSE"])
def test_a_server_comes_changes_and_goes_and_callers_of_others_notice_nothing(living: Bed, era: str) -> None:
    more = recorder(living.folder, "more", tools=["dig", "fill"])
    before = state(living, "fs")["pids"]
    living.until(lambda: living.names("ann") and living.ask("ann", "prompts/list").json()["result"]["prompts"])
    # A subscription is acknowledged before a slow server has listed, whose lists are news then: these are known.
    with told(living, era) as heard, callers(living, "fs__read") as calls:
        living.until(lambda: calls.answered > CALLERS)
        reconfigure(living, more=more)
        # Whoever lists while a server starts, for longer than a list waits for it, is told again: nobody lists before.
        living.until(lambda: state(living, "more").get("status") == "up")
        living.until(lambda: heard[TOOLS] == 1)
        assert living.names("ann") == ["fs__read", "more__dig", "more__fill"]
        assert "ran dig" in living.call("ann", "more__dig").text
        first = state(living, "more")["pids"]

        (living.folder / "more" / "catalog.json").write_text(json.dumps({"tools": ["dig", "heap"]}))
        reconfigure(living, more=more | {"timeout": "50s"})
        living.until(lambda: not set(first) & set(state(living, "more").get("pids", first)))
        living.until(lambda: state(living, "more").get("status") == "up")
        living.until(lambda: heard[TOOLS] == 2)
        living.until(lambda: not any(map(is_alive, first)))
        second = state(living, "more")["pids"]
        assert second and not set(first) & set(second)

        reconfigure(living, more=None)
        living.until(lambda: heard[TOOLS] == 3)
        assert living.names("ann") == ["fs__read"]
        assert "Unknown tool" in living.call("ann", "more__dig").text
        living.until(lambda: not any(map(is_alive, second)))
        answered = calls.answered
        living.until(lambda: calls.answered > answered + CALLERS)
    assert calls.failed == []
    assert heard == {TOOLS: 3, RESOURCES: 3}  # that a server has resources is all that is known of them
    assert state(living, "fs")["pids"] == before
    assert living.notes() == []


def in_flight(made: Bed, pool: ThreadPoolExecutor, server: str, name: str) -> "Future[httpx.Response]":
    """A call that has reached its server."""
    reached = len(made.seen(server))
    asked = pool.submit(made.call, "ann", f"{server}__{name}")
    made.until(lambda: len(made.seen(server)) > reached)
    return asked


@pytest.mark.parametrize("change", ["removed", "changed"])
def test_a_call_that_is_open_at_a_server_that_goes_has_an_unknown_outcome(tmp_path: Path, change: str) -> None:
    servers = {key: recorder(tmp_path, key, tools=["wait"], silent=["wait"]) for key in ("fs", "more")}
    with (
        bed(tmp_path, OPEN, servers, clients={"keys": client_keys(ann=[])}) as made,
        ThreadPoolExecutor(2) as pool,
    ):
        assert made.names("ann") == ["fs__wait", "more__wait"]
        gone, other = in_flight(made, pool, "more", "wait"), in_flight(made, pool, "fs", "wait")
        reconfigure(made, more=None if change == "removed" else servers["more"] | {"timeout": "50s"})
        answer = gone.result(20)
        assert reason(answer) == "outcome_unknown"
        assert ("it was removed" if change == "removed" else "its configuration was changed") in answer.text
        assert not other.done()
        reconfigure(made, fs=None)
        assert reason(other.result(20)) == "outcome_unknown"
        made.until(lambda: len(ends(made, "wait")) == 2)
        assert ends(made, "wait") == ["unknown", "unknown"]


def ends(made: Bed, own: str) -> list[str]:
    """How calls of a tool ended, by the audit log."""
    return [one["outcome"] for one in made.audit() if one["type"] == "outcome" and one.get("own") == own]


def test_a_file_in_which_prefixes_collide_leaves_all_servers_as_they_are(living: Bed) -> None:
    more = recorder(living.folder, "more", tools=["dig"])
    before = state(living, "fs")["pids"]
    reconfigure(living, more=more | {"prefix": "fs"})
    living.until(lambda: any("not in force" in note for note in living.notes()))
    assert living.names("ann") == ["fs__read"] and state(living, "fs")["pids"] == before and not state(living, "more")
    reconfigure(living, more=more)
    living.until(lambda: living.names("ann") == ["fs__read", "more__dig"])
    assert living.notes() == [] and state(living, "fs")["pids"] == before


def test_another_server_under_a_key_serves_what_equals_accepted_definitions_alone(tmp_path: Path) -> None:
    """The identity of a server is its program: nothing of another one is a first use."""
    servers = {key: recorder(tmp_path, key, tools=["same", key]) for key in ("old", "new")}
    clients = {"keys": client_keys(ann=[])}
    with bed(tmp_path, OPEN, {"it": servers["old"]}, clients=clients) as made:
        made.until(lambda: made.names("ann") == ["it__same", "it__old"])
        reconfigure(made, it=servers["new"])
        made.until(lambda: made.names("ann") == ["it__same"])
        assert "Unknown tool" in made.call("ann", "it__new").text and made.seen("new") == []


# ---------------------------------------------------------------- operators


def test_an_operator_restarts_disables_and_enables_a_server_and_callers_of_others_notice_nothing(
    tmp_path: Path,
) -> None:
    servers = {key: recorder(tmp_path, key, tools=[key]) for key in ("fs", "more")}
    with bed(tmp_path, OPEN, servers, clients={"keys": client_keys(ann=[], bob=[])}) as made:
        assert made.names("ann") == ["fs__fs", "more__more"]
        first = state(made, "more")["pids"]
        with told(made, "modern") as heard, callers(made, "fs__fs") as calls:
            made.until(lambda: calls.answered > CALLERS)
            done = run(tmp_path, "servers", "restart", "more")
            assert (done.returncode, done.stdout) == (0, "more: restarted\n"), done.stderr
            made.until(lambda: not any(map(is_alive, first)) and bool(state(made, "more").get("pids")))
            assert "ran more" in made.call("ann", "more__more").text
            made.until(lambda: heard[RESOURCES] == 1)
            assert heard[TOOLS] == 0  # they are the same

            assert run(tmp_path, "servers", "disable", "more").returncode == 0
            made.until(lambda: heard[TOOLS] == 1)
            assert made.names("ann") == ["fs__fs"] and state(made, "more")["status"] == "disabled"
            reconfigure(made, more=servers["more"] | {"timeout": "50s"}, other=recorder(tmp_path, "other", tools=["x"]))
            made.until(lambda: made.names("ann") == ["fs__fs", "other__x"])  # the file was read: it stays disabled
            refused = run(tmp_path, "servers", "restart", "more")
            assert refused.returncode == 1 and "the server more is disabled: enable it first" in refused.stderr
            assert run(tmp_path, "servers", "enable", "more", "--json").returncode == 0
            made.until(lambda: made.names("ann") == ["fs__fs", "more__more", "other__x"])
            assert run(tmp_path, "servers", "reconnect", "more").returncode == 0
        assert calls.failed == []
        done_so = ("restart", "disable", "enable", "reconnect")
        assert acts(made) == [(f"server_{action}", "more", "local") for action in done_so]


def test_a_restart_says_how_many_open_calls_end_and_the_call_has_an_unknown_outcome(tmp_path: Path) -> None:
    servers = {"fs": recorder(tmp_path, "fs", tools=["wait"], silent=["wait"])}
    with (
        bed(tmp_path, OPEN, servers, clients={"keys": client_keys(ann=[])}) as made,
        ThreadPoolExecutor(2) as pool,
    ):
        made.names("ann")
        gone = in_flight(made, pool, "fs", "wait")
        assert run(tmp_path, "servers", "restart", "fs").stdout == "fs: restarted; calls that were open there: 1\n"
        assert reason(gone.result(20)) == "outcome_unknown"
        made.until(lambda: ends(made, "wait") == ["unknown"])
        records = [one.get("act") or one["type"] for one in made.audit() if one["type"] == "admin" or "own" in one]
        assert records[-3:] == ["intent", "server_restart", "outcome"]  # it is on the disk before it takes effect


def noticed(made: Bed, session: dict[str, str], name: str) -> str:
    """What the next result of a session says of its server."""
    headers = session | bearer("ann") | {"Accept": "application/json, text/event-stream"}
    call = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": name, "arguments": {}}}
    answer = httpx.post(made.process.url, json=call, headers=headers, timeout=30)
    data = [line[5:] for line in answer.text.splitlines() if line.startswith("data:") and line[5:].strip()]
    result = json.loads(data[-1] if data else answer.text)["result"]
    assert result["content"][0]["text"].startswith("ran "), result
    return str(result.get("_meta", {}).get("dev.sluice/began_anew", ""))


@pytest.mark.parametrize(("how", "why"), [
    ("restart", "an operator restarts it"), ("changed", "its configuration was changed"),
    ("disabled", "an operator disabled it"), ("crashed", "its connection ended"),
])  # fmt: skip
def test_a_session_that_was_open_at_a_server_learns_once_that_it_began_anew(tmp_path: Path, how: str, why: str) -> None:
    servers = {key: recorder(tmp_path, key, tools=[key]) | {"sharing": "session"} for key in ("fs", "more")}
    with bed(tmp_path, OPEN, servers, **ANN) as made:
        used, unused = greet(made.process.url, LEGACY, VERSION), greet(made.process.url, LEGACY, VERSION)
        assert noticed(made, used, "more__more") == noticed(made, used, "fs__fs") == ""
        assert noticed(made, unused, "fs__fs") == "", "it never was at `more`"
        before = state(made, "more")["pids"]
        if how == "restart":
            assert run(tmp_path, "servers", "restart", "more").returncode == 0
        elif how == "changed":
            reconfigure(made, more=servers["more"] | {"timeout": "50s"})
        elif how == "disabled":
            assert run(tmp_path, "servers", "disable", "more").returncode == 0
            assert run(tmp_path, "servers", "enable", "more").returncode == 0
        else:
            for pid in before:
                os.kill(pid, signal.SIGKILL)
        made.until(lambda: bool(pids := state(made, "more").get("pids")) and not set(pids) & set(before))
        assert why in noticed(made, used, "more__more")
        assert noticed(made, used, "more__more") == noticed(made, used, "fs__fs") == "", "it is said once, of that one"
        assert noticed(made, unused, "more__more") == ""


ANN: Json = {"clients": {"keys": client_keys(ann=[])}}
READING = OPEN + "p, key:ann, sluice, admin:servers, read, allow\n"


def test_without_the_right_to_write_nobody_restarts_a_server_and_the_log_says_who_tried(tmp_path: Path) -> None:
    servers = {"fs": recorder(tmp_path, "fs", tools=["read"])}
    with bed(tmp_path, READING, servers, clients={"keys": client_keys(ann=[])}) as made:
        before = state(made, "fs")["pids"]
        for action in ("restart", "reconnect", "enable", "disable"):
            refused = act(made, "fs", action, **bearer("ann"))
            assert refused.status_code == 403 and "admin:servers write" in refused.json()["error"]
        assert act(made, "fs", "restart").status_code == 401
        shown = httpx.get(f"{made.process.admin}/api/v1/servers", headers=bearer("ann"), timeout=20)
        assert [row["pids"] for row in shown.json()["servers"]] == [before]

        def tried() -> list[Json]:
            return [one for one in made.audit() if one["type"] == "decision" and one.get("act") == "write"]

        made.until(lambda: len(tried()) == 4)  # a refusal is answered before its record is written
        assert [(one["principal"], one["object"]) for one in tried()] == [("key:ann", "admin:servers")] * 4
        assert acts(made) == []


def test_an_action_that_cannot_be_recorded_is_refused_and_not_done(tmp_path: Path) -> None:
    log = tmp_path / "audit" / "sluice.jsonl"
    with bed(tmp_path, OPEN, {"fs": recorder(tmp_path, "fs", tools=["read"])}, **ANN) as made:
        before = state(made, "fs")["pids"]
        for action in ("restart", "disable", "reconnect"):
            made.until(lambda: made.process.get("/readyz")[0] == 200 and log.exists())
            log.unlink()  # the writer finds that its file was removed: nothing can be recorded
            refused = run(tmp_path, "servers", action, "fs")
            assert (refused.returncode, refused.stdout) == (1, ""), action
            assert "the audit log cannot be written: nothing was done" in refused.stderr
            assert (state(made, "fs")["pids"], state(made, "fs")["status"]) == (before, "up")
        made.until(lambda: made.process.get("/readyz")[0] == 200 and log.exists())
        assert acts(made) == [] and run(tmp_path, "servers", "restart", "fs").returncode == 0


def test_the_server_of_transparent_mode_is_replaced_and_its_place_taken_by_another(tmp_path: Path) -> None:
    first = recorder(tmp_path, "fs", tools=["read"]) | {"prefix": ""}
    with bed(tmp_path, OPEN, {"fs": first}, **ANN) as made:
        assert made.names("ann") == ["read"] and "ran read" in made.call("ann", "read").text
        before = state(made, "fs")["pids"]
        reconfigure(made, fs=first | {"timeout": "50s"})
        made.until(lambda: not any(map(is_alive, before)) and "ran read" in made.call("ann", "read").text)
        more, other = (recorder(tmp_path, key, tools=[key]) for key in ("more", "other"))
        reconfigure(made, fs=None, more=more | {"prefix": ""})
        made.until(lambda: made.names("ann") == ["more"])
        assert "ran more" in made.call("ann", "more").text and "Unknown tool" in made.call("ann", "read").text
        reconfigure(made, other=other)
        made.until(lambda: any("exactly one enabled server" in note for note in made.notes()))
        assert made.names("ann") == ["more"], "a second server needs prefixes: the file is refused as a whole"
        reconfigure(made, other=other, more=more)
        made.until(lambda: made.names("ann") == ["more__more", "other__other"])


def test_what_is_no_action_or_no_server_is_refused_and_done_to_nobody(living: Bed) -> None:
    operator = {"Authorization": f"Bearer {(living.folder / 'state' / 'operator.token').read_text().strip()}"}
    assert act(living, "none", "restart", **operator).status_code == 404
    assert act(living, "fs", "explode", **operator).status_code == 405
    assert act(living, "fs", "restart", b'{"when": "now"}', **operator).status_code == 400
    assert httpx.post(f"{living.process.admin}/api/v1/servers/fs/restart", headers=operator).status_code == 415
    assert httpx.get(f"{living.process.admin}/api/v1/servers/fs/restart", headers=operator).status_code == 405
    reconfigure(living, off=recorder(living.folder, "off", tools=["x"]) | {"enabled": False})
    living.until(lambda: act(living, "off", "enable", **operator).status_code == 409)
    assert acts(living) == []


def acts(made: Bed) -> list[tuple[str, str, str]]:
    """What was done with which server by whom, by the audit log."""
    found = [one for one in made.audit() if one["type"] == "admin" and one["act"].startswith("server_")]
    return [(one["act"], one["server"], one["by"]) for one in found]


def act(made: Bed, server: str, action: str, body: bytes = b"{}", **headers: str) -> httpx.Response:
    url = f"{made.process.admin}/api/v1/servers/{server}/{action}"
    return httpx.post(url, content=body, headers={"Content-Type": "application/json", **headers}, timeout=20)


def test_what_was_approved_for_a_server_is_asked_for_anew_at_the_one_that_takes_its_key(tmp_path: Path) -> None:
    """Its definitions are equal, so that nothing else would stop the call."""
    rows = f"{OPEN}p2, *, bank, tool:wire, *, one-of-leads\np, role:lead, sluice, admin:approvals, *, allow\n"
    bank, other = (recorder(tmp_path, key, tools=["wire"]) for key in ("bank", "other"))
    keys = {"keys": client_keys(ann=[], lea=["role:lead"])}
    with bed(tmp_path, rows, {"bank": bank}, clients=keys, approvals={"hold_for": "100ms"}) as made:
        assert reason(made.call("ann", "bank__wire", n=1)) == "approval_pending"
        approvals = f"{made.process.admin}/api/v1/approvals"
        (row,) = httpx.get(approvals, headers=bearer("lea")).json()["approvals"]
        vote = {"decision": "approve", "seen_digest": row["digest"], "scope": "15m"}
        assert httpx.post(f"{approvals}/{row['id']}/decisions", headers=bearer("lea"), json=vote).status_code == 200
        assert reason(made.call("ann", "bank__wire", n=1)) == "" and len(made.seen("bank")) == 1
        settings = json.loads(made.process.config.read_text())
        made.write(json.dumps(settings | {"servers": {"bank": other}}), made.process.config.name)
        made.until(lambda: "server replaced" in made.process.log())
        made.until(lambda: "bank__wire" in made.names("ann"))
        assert reason(made.call("ann", "bank__wire", n=1)) == "approval_pending"
        assert not made.seen("other")
