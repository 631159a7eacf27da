"""A call that waits for its client while its server goes: it had begun, so nobody says that it was not executed."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run
from e2e.wire import LEGACY, META, MODERN
from policy_bed import Bed, Json, bearer, bed, client_keys

LIAR = str(Path(__file__).parents[1] / "lying_server.py")
OPEN = "p, *, *, *, *, allow\np, local, sluice, admin:*, *, allow\n"
CAPABILITIES: Json = {"elicitation": {"form": {}}}
FORM: Json = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}
ASK: Json = {"ask": {"method": "elicitation/create", "params": FORM}}
YES: Json = {"action": "accept", "content": {"a": "b"}}
TOOL = "srv__lie"


def server(folder: Path, era: str, program: str = "first") -> Json:
    (folder / program).write_text(json.dumps(ASK))
    return {"command": sys.executable, "args": [LIAR, era, str(folder / program)], "era": era}


@contextmanager
def serving(folder: Path, era: str, **config: Any) -> Iterator[Bed]:
    with bed(folder, OPEN, {"srv": server(folder, era)}, clients={"keys": client_keys(ann=[])}, **config) as made:
        made.names("ann")
        yield made


@dataclass(frozen=True, slots=True)
class Asked:
    """A call whose server has asked. `answer` sends what the client says to that, and gives how the call ended."""

    answer: Callable[[], Json]


@contextmanager
def asked(made: Bed, client: str) -> Iterator[Asked]:
    with _modern(made) if client == "modern" else _legacy(made) as waiting:
        yield waiting


@contextmanager
def _modern(made: Bed) -> Iterator[Asked]:
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": CAPABILITIES}

    def send(**more: Any) -> Json:
        params = {"name": TOOL, "arguments": {}, "_meta": meta, **more}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": TOOL}
        return dict(made.post("ann", body, headers).json())

    result = send()["result"]
    assert result["resultType"] == "input_required"
    (key,) = result["inputRequests"]
    yield Asked(lambda: send(requestState=result["requestState"], inputResponses={key: YES}))


@contextmanager
def _legacy(made: Bed) -> Iterator[Asked]:
    headers = {"Accept": "application/json, text/event-stream", **bearer("ann")}
    with httpx.Client(base_url=made.process.url, headers=headers, timeout=20) as client:

        def post(message: Json) -> httpx.Response:
            return client.post("", json={"jsonrpc": "2.0", **message})

        about = {"protocolVersion": LEGACY, "capabilities": CAPABILITIES, "clientInfo": {"name": "c", "version": "1"}}
        hello = post({"id": 0, "method": "initialize", "params": about})
        client.headers.update({"MCP-Protocol-Version": LEGACY, "Mcp-Session-Id": hello.headers["mcp-session-id"]})
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": TOOL, "arguments": {}}}
        with client.stream("POST", "", json=call) as response:
            texts = (line[5:] for line in response.iter_lines() if line.startswith("data:"))
            messages = (json.loads(text) for text in texts if text.strip())
            question = next(messages)

            def answer() -> Json:
                post({"id": question["id"], "result": YES})
                return next(dict(message) for message in messages if message.get("id") == 1)

            yield Asked(answer)


def reason(message: Json) -> str:
    return str(message.get("result", {}).get("_meta", {}).get("dev.sluice/reason", ""))


def reconfigure(made: Bed, word: str, **servers: Json) -> None:
    config = json.loads(made.process.config.read_text())
    made.write(json.dumps(config | {"servers": servers}), made.process.config.name)
    made.until(lambda: word in made.process.log())


def last(made: Bed) -> tuple[str, str]:
    record = [one for one in made.audit() if one["type"] == "outcome"][-1]
    return record["outcome"], record.get("reason", "")


def open_calls(made: Bed, word: str) -> int:
    lines = [json.loads(line) for line in made.process.log().splitlines() if word in line]
    return int(lines[-1]["open_calls"])


CLIENTS = pytest.mark.parametrize("client", ["legacy", "modern"])


@CLIENTS
def test_a_call_that_waits_at_a_server_that_is_restarted_is_counted_and_its_outcome_unknown(
    tmp_path: Path, client: str
) -> None:
    with serving(tmp_path, "legacy") as made, asked(made, client) as waiting:
        assert run(tmp_path, "servers", "restart", "srv").stdout == "srv: restarted; calls that were open there: 1\n"
        assert reason(waiting.answer()) == "outcome_unknown"
        made.until(lambda: last(made) == ("unknown", "outcome_unknown"))
        assert len((tmp_path / "first.calls").read_text().splitlines()) == 1


@CLIENTS
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_call_that_waits_at_a_server_that_is_removed_has_an_unknown_outcome(
    tmp_path: Path, era: str, client: str
) -> None:
    with serving(tmp_path, era) as made, asked(made, client) as waiting:
        reconfigure(made, "server removed")
        assert open_calls(made, "server removed") == (era == "legacy")  # a modern one has answered, and waits for none
        assert reason(waiting.answer()) == "outcome_unknown"
        made.until(lambda: last(made) == ("unknown", "outcome_unknown"))


@CLIENTS
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_rest_of_a_call_never_goes_to_another_program_under_the_same_key(
    tmp_path: Path, era: str, client: str
) -> None:
    with serving(tmp_path, era) as made, asked(made, client) as waiting:
        reconfigure(made, "server replaced", srv=server(tmp_path, era, "second"))
        made.until(lambda: TOOL in made.names("ann"))
        assert reason(waiting.answer()) == "outcome_unknown"
        assert not (tmp_path / "second.calls").exists()


@CLIENTS
def test_the_rest_of_a_call_at_a_stateless_server_that_is_down_has_an_unknown_outcome(
    tmp_path: Path, client: str
) -> None:
    with serving(tmp_path, "modern") as made, asked(made, client) as waiting:
        reconfigure(made, "server replaced", srv={**server(tmp_path, "modern"), "env": {"PYTHONHOME": "/nowhere"}})
        assert reason(waiting.answer()) == "outcome_unknown"


@CLIENTS
def test_a_call_whose_rest_the_policy_denies_has_an_unknown_outcome_and_ends_at_its_server(
    tmp_path: Path, client: str
) -> None:
    with serving(tmp_path, "legacy") as made, asked(made, client) as waiting:
        made.write(f"{OPEN}p, *, srv, tool:lie, *, deny\n")
        made.until(lambda: made.names("ann") == [])
        assert reason(waiting.answer()) == "outcome_unknown"
        assert run(tmp_path, "servers", "restart", "srv").stdout == "srv: restarted\n"


def test_a_legacy_clients_answer_is_no_request_that_its_rate_counts(tmp_path: Path) -> None:
    """Its handshake is one, its call another."""
    with serving(tmp_path, "legacy", limits={"per_client": "4/min"}) as made, asked(made, "legacy") as waiting:
        while made.ask("ann", "tools/list").json().get("result"):
            pass
        assert "result" in (told := waiting.answer()) and reason(told) == "", told


def test_an_answer_beyond_the_rate_is_not_said_to_be_a_call_that_was_not_executed(tmp_path: Path) -> None:
    with serving(tmp_path, "legacy", limits={"per_client": "2/min"}) as made, asked(made, "modern") as waiting:
        told = waiting.answer()
        assert reason(told) == "rate_limited" and "the call waits on" in json.dumps(told)
