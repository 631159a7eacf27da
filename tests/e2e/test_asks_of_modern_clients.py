"""A modern client in front, a legacy server on the official SDK behind, Sluice as a process between them: the call is
parked while its client is asked, and each round is a request of its own."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.sluice_process import Sluice, sluice
from peers.fleet import free_port, running
from peers.install import MCP1
from waiting import until_so

Json = dict[str, Any]
REVISION = "2026-07-28"
CAPABILITIES: Json = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
PREFIX = "io.modelcontextprotocol/"
ASKER = [str(MCP1 / "python"), str(Path(__file__).parent / "sdk1_asker.py")]

BOTH = pytest.mark.parametrize("server", ["pipe", "web"])


def pipe(folder: Path) -> Json:
    return {"command": ASKER[0], "args": [*ASKER[1:], str(folder / "pipe")]}


def journal(process: Sluice, server: str) -> list[str]:
    file = process.config.with_name(server)
    return file.read_text().split() if file.exists() else []


@pytest.fixture(scope="module")
def process(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    folder, port = tmp_path_factory.mktemp("asks"), free_port()
    with running([*ASKER, str(folder / "web"), str(port)], folder / "asker.log", stdout=subprocess.DEVNULL):
        servers: Json = {"web": {"url": f"http://127.0.0.1:{port}/mcp"}, "pipe": pipe(folder)}
        with sluice({"servers": servers}, folder, watched=True) as process:
            yield process


class Modern:
    """One modern client: every request stands alone."""

    def __init__(self, process: Sluice, capabilities: Json = CAPABILITIES) -> None:
        self.url, self.capabilities = process.url, capabilities
        self.seen: list[Json] = []

    def request(self, tool: str, arguments: Json | None = None, **retry: Any) -> httpx.Response:
        meta = {
            PREFIX + "protocolVersion": REVISION, PREFIX + "clientInfo": {"name": "raw", "version": "1"},
            PREFIX + "clientCapabilities": self.capabilities, "progressToken": "p",
        }  # fmt: skip
        params = {"name": tool, "arguments": arguments or {}, "_meta": meta, **retry}
        headers = {
            "accept": "application/json, text/event-stream", "mcp-protocol-version": REVISION,
            "mcp-method": "tools/call", "mcp-name": tool,
        }  # fmt: skip
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return httpx.post(self.url, json=body, headers=headers, timeout=30, trust_env=False)

    def call(self, tool: str, arguments: Json | None = None, **retry: Any) -> Json:
        """The response; what came before it is in `seen`."""
        response = self.request(tool, arguments, **retry)
        if response.headers["content-type"] == "application/json":
            return dict(response.json())
        *before, last = [json.loads(line[5:]) for line in response.text.splitlines() if line.startswith("data:")]
        self.seen += before
        return dict(last)

    def asked(self, tool: str, arguments: Json | None = None, **retry: Any) -> tuple[Json, str]:
        result = self.call(tool, arguments, **retry)["result"]
        assert result["resultType"] == "input_required", result
        return result["inputRequests"], result["requestState"]

    def said(self, tool: str, arguments: Json | None = None, **retry: Any) -> str:
        result = self.call(tool, arguments, **retry)["result"]
        assert result["resultType"] == "complete", result
        return str(result["content"][0]["text"])


def accept(name: str) -> Json:
    return {"action": "accept", "content": {"name": name}}


@BOTH
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (accept("Ada"), "me: accept Ada"),
        ({"action": "decline"}, "me: decline -"),
        ({"action": "cancel"}, "me: cancel -"),
    ],
)
def test_a_form_is_asked_and_answered(process: Sluice, server: str, answer: Json, text: str) -> None:
    client = Modern(process)
    requests, state = client.asked(f"{server}__greet", {"who": "me"})
    ((key, ask),) = requests.items()
    assert ask["method"] == "elicitation/create"
    assert ask["params"]["message"] == f"[{server}] Who is me?" and ask["params"]["mode"] == "form"
    assert ask["params"]["requestedSchema"]["properties"]["name"]["type"] == "string"
    said = client.said(f"{server}__greet", {"who": "me"}, inputResponses={key: answer}, requestState=state)
    assert said == text


@BOTH
def test_two_rounds_and_three_questions_at_once(process: Sluice, server: str) -> None:
    client = Modern(process)
    requests, state = client.asked(f"{server}__two_rounds")
    retry = {"inputResponses": dict.fromkeys(requests, accept("Ada")), "requestState": state}
    again, second = client.asked(f"{server}__two_rounds", **retry)
    assert again.keys().isdisjoint(requests) and second != state
    retry = {"inputResponses": dict.fromkeys(again, accept("Lovelace")), "requestState": second}
    assert client.said(f"{server}__two_rounds", **retry) == "Ada Lovelace"
    assert [note["params"]["progressToken"] for note in client.seen] == ["p"]

    requests, state = client.asked(f"{server}__three")
    assert len(requests) == 3
    named = {key: accept(ask["params"]["message"][-2]) for key, ask in requests.items()}
    (last, *_) = named
    partly = {"inputResponses": {key: named[key] for key in named if key != last}, "requestState": state}
    missing, state = client.asked(f"{server}__three", **partly)
    assert list(missing) == [last]
    said = client.said(f"{server}__three", inputResponses={last: named[last], "extra": {}}, requestState=state)
    assert said == "0 1 2"


@BOTH
def test_pages_models_and_roots(process: Sluice, server: str) -> None:
    client = Modern(process)
    requests, state = client.asked(f"{server}__page")
    ((key, ask),) = requests.items()
    assert ask["params"] == {"mode": "url", "message": f"[{server}] Pay", "url": "https://pay.test/"}
    assert client.said(f"{server}__page", inputResponses={key: {"action": "accept"}}, requestState=state) == "accept"

    requests, state = client.asked(f"{server}__sample")
    ((key, ask),) = requests.items()
    assert ask["method"] == "sampling/createMessage" and ask["params"]["tools"][0]["name"] == "add"
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
    model = {"role": "assistant", "model": "m", "content": use, "stopReason": "toolUse"}
    said = client.said(f"{server}__sample", inputResponses={key: model}, requestState=state)
    assert said == "m toolUse ToolUseContent"

    requests, state = client.asked(f"{server}__roots")
    ((key, ask),) = requests.items()
    assert ask == {"method": "roots/list"}
    given = {"roots": [{"uri": "file:///a"}, {"uri": "file:///b", "name": "b"}]}
    said = client.said(f"{server}__roots", inputResponses={key: given}, requestState=state)
    assert said == "file:///a file:///b"


@BOTH
def test_a_call_that_needs_a_page_first_is_made_again_after_consent(process: Sluice, server: str) -> None:
    client = Modern(process)
    requests, state = client.asked(f"{server}__page_first")
    ((key, ask),) = requests.items()
    assert ask["params"]["url"] == "https://login.test/"
    said = client.said(f"{server}__page_first", inputResponses={key: {"action": "accept"}}, requestState=state)
    assert said == "logged in"


@BOTH
def test_a_state_that_is_used_up_altered_or_anothers_reaches_no_server(process: Sluice, server: str) -> None:
    client = Modern(process)
    tool, who = f"{server}__greet", {"who": "you"}
    requests, state = client.asked(tool, who)
    answer = {"inputResponses": dict.fromkeys(requests, accept("Ada"))}
    for bad in (state[:-2] + ("A" if state[-2] != "A" else "B") + state[-1], "", "x", f"{state}x"):
        assert client.call(tool, who, **answer, requestState=bad)["error"]["code"] == -32602
    assert client.call(tool, {"who": "else"}, **answer, requestState=state)["error"]["code"] == -32602
    assert client.call(f"{server}__two_rounds", {}, **answer, requestState=state)["error"]["code"] == -32602
    before = journal(process, server)
    assert client.said(tool, who, **answer, requestState=state) == "you: accept Ada"
    assert client.call(tool, who, **answer, requestState=state)["error"]["code"] == -32602
    assert journal(process, server) == before


@BOTH
def test_a_malformed_answer_is_an_error_and_ends_the_call(process: Sluice, server: str) -> None:
    client = Modern(process)
    for bad in ({"action": "perhaps"}, None, [], {"action": "accept", "content": {"name": {}}}):
        requests, state = client.asked(f"{server}__greet", {"who": "me"})
        retry = {"inputResponses": dict.fromkeys(requests, bad), "requestState": state}
        assert client.call(f"{server}__greet", {"who": "me"}, **retry)["error"]["code"] == -32602


@BOTH
def test_a_client_without_the_capability_is_told_so_by_what_the_server_was_told(process: Sluice, server: str) -> None:
    """The server asks all the same, is refused, and its tool fails of it: what limits its call is not waited for."""
    response = Modern(process, {}).request(f"{server}__greet", {"who": "me"})
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}
    assert "elicitation/create is not supported" in error["message"]


def wait_for_end(pid: int) -> None:
    """Of a process that is no child of ours."""
    until_so(lambda: not Path(f"/proc/{pid}").exists())  # Sluice takes note of it: nothing of it stays there


def test_a_server_that_dies_while_its_call_waits_is_not_called_again(process: Sluice) -> None:
    client = Modern(process)
    requests, state = client.asked("pipe__dies")
    words = journal(process, "pipe")
    wait_for_end(int(words[words.index("dies") + 1]))
    retry = {"inputResponses": dict.fromkeys(requests, accept("Ada")), "requestState": state}
    result = client.call("pipe__dies", **retry)["result"]
    assert result["isError"] and result["_meta"]["dev.sluice/reason"] == "outcome_unknown"
    assert journal(process, "pipe").count("dies") == 1


def test_after_a_restart_of_sluice_nobody_knows_what_became_of_a_call_that_waited(peers: None, tmp_path: Path) -> None:
    servers: Json = {"pipe": pipe(tmp_path)}
    with sluice({"servers": servers}, tmp_path) as process:
        requests, state = Modern(process).asked("pipe__greet", {"who": "me"})
    with sluice({"servers": servers}, tmp_path) as process:
        client = Modern(process)
        retry = {"inputResponses": dict.fromkeys(requests, accept("Ada")), "requestState": state}
        result = client.call("pipe__greet", {"who": "me"}, **retry)["result"]
        assert result["isError"] and result["_meta"]["dev.sluice/reason"] == "outcome_unknown"
        assert journal(process, "pipe") == ["greet"]
