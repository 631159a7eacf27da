"""The two oldest revisions, of which the suite has no scenarios: what their clients do, on the wire.

Batches, requests without a version header, content and fields that came later. Every frame is judged by the schema of
its revision on the way.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2e.sluice_process import Sluice, sluice
from peers.fleet import fixture_over_http

Json = dict[str, Any]
OLD = ("2024-11-05", "2025-03-26")
ERAS = ("legacy", "modern")
ACCEPT = {"accept": "application/json, text/event-stream"}
WATCHED = "test://watched-resource"


@pytest.fixture(scope="module")
def process(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    """Servers of either era, by its name."""
    folder = tmp_path_factory.mktemp("old")
    with fixture_over_http(folder) as url:
        servers = {era: {"url": url, "era": era} for era in ERAS}
        with sluice({"servers": servers}, folder, watched=True) as process:
            yield process


class Client:
    """A session of an old revision; its requests never say which."""

    def __init__(self, url: str, revision: str) -> None:
        self._http = httpx.Client(trust_env=False, timeout=20, headers=ACCEPT)
        self._url, self.revision = url, revision
        hello = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
        answer = self.post({"id": 1, "method": "initialize", "params": hello})
        assert answer.json()["result"]["protocolVersion"] == revision
        self._http.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        assert self.post({"method": "notifications/initialized"}).status_code == 202

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self._http.delete(self._url)
        self._http.close()

    def post(self, message: Json | list[Json]) -> httpx.Response:
        parts = [{"jsonrpc": "2.0", **part} for part in (message if isinstance(message, list) else [message])]
        return self._http.post(self._url, json=parts if isinstance(message, list) else parts[0])

    def ask(self, method: str, **params: Any) -> Json:
        return dict(self.post({"id": 2, "method": method, "params": params}).json())

    def stream(self) -> Any:
        return self._http.stream("GET", self._url)


def text_of(result: Json) -> str:
    return " ".join(block.get("text", f"<{block['type']}>") for block in result["content"])


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("revision", OLD)
def test_tools_are_listed_and_answer_in_what_the_revision_has(process: Sluice, era: str, revision: str) -> None:
    with Client(process.url, revision) as client:
        tools = {tool["name"]: tool for tool in client.ask("tools/list")["result"]["tools"]}
        assert not [name for name, tool in tools.items() if "outputSchema" in tool or "title" in tool]
        echo = client.ask("tools/call", name=f"{era}__echo", arguments={"a": 1})["result"]
        assert "structuredContent" not in echo and json.loads(text_of(echo))["arguments"] == {"a": 1}
        audio = client.ask("tools/call", name=f"{era}__test_audio_content", arguments={})["result"]
        assert audio["content"][0]["type"] == ("audio" if revision == "2025-03-26" else "text")


@pytest.mark.parametrize("era", ERAS)
def test_a_batch_reaches_the_servers_and_is_answered_in_one_array(process: Sluice, era: str) -> None:
    call = {"name": f"{era}__test_simple_text", "arguments": {}}
    batch = [
        {"id": "ping", "method": "ping"},
        {"id": 2, "method": "tools/call", "params": call},
        {"method": "notifications/roots/list_changed"},
        {"id": 3, "method": "tools/call", "params": {"name": "nobody__knows", "arguments": {}}},
        {"id": 4, "method": "prompts/list", "params": {}},
    ]
    with Client(process.url, "2025-03-26") as client:
        answers = {answer["id"]: answer for answer in client.post(batch).json()}
        assert answers.keys() == {"ping", 2, 3, 4} and answers["ping"]["result"] == {}
        assert text_of(answers[2]["result"]) == "This is a simple text response for testing."
        assert answers[3]["error"]["code"] == -32602 and answers[4]["result"]["prompts"]
    with Client(process.url, "2024-11-05") as client:
        assert client.post(batch).status_code == 400


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("revision", OLD)
def test_a_resource_that_was_subscribed_to_is_told_of_on_the_get_stream(
    process: Sluice, era: str, revision: str
) -> None:
    uri = f"{era}+{WATCHED}"
    with Client(process.url, revision) as client, client.stream() as stream:
        assert client.ask("resources/subscribe", uri=uri)["result"] == {}
        client.ask("tools/call", name=f"{era}__change_watched", arguments={"text": revision})
        data = (json.loads(line[5:]) for line in stream.iter_lines() if line.startswith("data:") and line[5:].strip())
        assert next(data) == {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}
        assert client.ask("resources/unsubscribe", uri=uri)["result"] == {}
        missing = client.ask("resources/subscribe", uri=f"nobody+{WATCHED}")["error"]
        assert missing["code"] == -32002
