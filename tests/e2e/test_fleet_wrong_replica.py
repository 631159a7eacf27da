"""Every kind of request at a replica that does not have what it is about: the one that has it serves it, and writes one
intent."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from database_bed import ROWS, Json, database, seen, settings
from e2e.test_fleet import ASKING, at_once, modern, replica
from e2e.wire import LEGACY
from fleet_stage import ACCEPT, Session, forwarded
from peers.fleet import fixture_over_http, peers
from peers.postgres import Cluster, postgres
from policy_bed import Bed, bearer

__all__ = ["database", "peers"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


@pytest.fixture
def both(peers: None, tmp_path: Path, database: str) -> Iterator[tuple[Bed, Bed]]:
    """Two replicas, with servers that take their time and that ask."""
    with fixture_over_http(tmp_path) as url, ExitStack() as stack:
        bank = settings(tmp_path / "a" / "sluice", database)["servers"]
        servers = {**bank, "fix": {"url": url, "era": "legacy"},
                   "ask": {"command": sys.executable, "args": [ASKING], "era": "legacy"}}  # fmt: skip
        rows = ROWS + "".join(f"p, role:authenticated, {key}, *, *, allow\n" for key in ("fix", "ask"))
        about: Json = {"servers": servers, "ready": False}
        here, there = at_once(stack, (replica(tmp_path, name, database, rows, **about) for name in ("a", "b")))
        yield here, there


def intents(at: Bed) -> Counter[str]:
    """What was done, by the server's name for it; one call has one intent."""
    (file,) = (at.folder / "audit").glob("sluice-?.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    found = [record for record in records if record["type"] == "intent"]
    assert len({record["call"] for record in found}) == len(found)
    return Counter(record["own"] for record in found)


def events(answer: httpx.Response) -> Iterator[tuple[str, Json]]:
    """Those that have a message, with their ids."""
    id = ""
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        id = value if name == "id" else id
        if name == "data" and value:
            yield id, json.loads(value)


def test_a_stream_that_broke_is_resumed_at_any_replica(both: tuple[Bed, Bed]) -> None:
    here, there = both
    session = Session(here)
    about = {"name": "fix__slow", "arguments": {"run": "once", "steps": 4, "ms": 2000}, "_meta": {"progressToken": 7}}
    body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": about}
    head = {**ACCEPT, **session.headers, **bearer("ann")}
    with httpx.stream("POST", there.process.url, json=body, headers=head, timeout=20) as answer:
        first, told = next(events(answer))
        assert told["params"]["progress"] == 1 and first.partition("-")[2] == "1"
    for at in (there, here, there):  # where it goes on, and where it is over
        with httpx.stream("GET", at.process.url, headers={**head, "Last-Event-ID": first}, timeout=20) as answer:
            found = dict(events(answer))
        assert [one["params"]["progress"] for one in list(found.values())[:-1]] == [2, 3, 4]
        *_, last = found.values()
        assert last["id"] == 5 and last["result"]["structuredContent"] == {"run": "once", "state": "finished"}
    lost = httpx.get(there.process.url, headers={**head, **bearer("lea"), "Last-Event-ID": first}, timeout=20)
    assert lost.status_code == 404, "of its principal alone"
    assert forwarded(there)["answered"] == 3  # the client left the first one
    assert intents(here) == {"slow": 1} and not intents(there)


def test_whatever_is_asked_at_the_wrong_replica_is_done_once_and_has_one_intent(both: tuple[Bed, Bed]) -> None:
    here, there = both
    session = Session(here)
    for message in ({"method": "ping"}, {"method": "tools/list"}, {"method": "prompts/list"}):
        assert "result" in session.send(there, {"id": 2, **message}).json()
    for _ in range(3):
        assert "isError" not in session.call(there, "bank__look").json()["result"]
    assert session.send(there, {"method": "notifications/roots/list_changed"}).status_code == 202
    with session.stream(there) as stream:
        assert stream.status_code == 200

    asked = modern(here, "tools/call", name="ask__name")  # a question, answered at the other one
    (key,), state = asked["inputRequests"], asked["requestState"]
    given = {"requestState": state, "inputResponses": {key: {"action": "accept", "content": {"name": "Ada"}}}}
    assert "Ada" in modern(there, "tools/call", name="ask__name", **given)["content"][0]["text"]

    base, other = (at.process.url.removesuffix("/mcp") for at in both)  # the transport of 2024
    hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    with httpx.stream("GET", f"{base}/sse", headers={**ACCEPT, **bearer("ann")}, timeout=20) as stream:
        lines = stream.iter_lines()
        path = next(line for line in lines if line.startswith("data: ")).removeprefix("data: ")
        params = {"name": "bank__look", "arguments": {}}
        for message in (
            {"id": 1, "method": "initialize", "params": hello}, {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": params},
        ):  # fmt: skip
            sent = {"jsonrpc": "2.0", **message}
            assert httpx.post(other + path, json=sent, headers=bearer("ann"), timeout=20).status_code == 202
        answers = (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))
        assert "isError" not in next(one for one in answers if one.get("id") == 2)["result"]

    head = {**session.headers, **bearer("ann"), "MCP-Protocol-Version": LEGACY}
    assert httpx.delete(there.process.url, headers=head, timeout=20).status_code == 200
    assert [session.call(at, "bank__look").status_code for at in both] == [404, 404]

    assert seen(here) == ["look"] * 4
    assert intents(here) == {"look": 4, "name": 2} and not intents(there)  # the question's two rounds are two requests
    assert not any(count for word, count in forwarded(there).items() if word != "answered") and not forwarded(here)
