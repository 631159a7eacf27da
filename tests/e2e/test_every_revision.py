"""A client of every revision in front of a server of every revision, Sluice between them: each gets what its own
revision has, and every frame that Sluice writes to either is valid in the revision that it is written in."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.sluice_process import Sluice, sluice

Json = dict[str, Any]

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
MODERN = REVISIONS[-1]
PREFIX = "io.modelcontextprotocol/"
UI = PREFIX + "ui"
TRACE = {"traceparent": "00-1-2-01", "tracestate": "a=b", "baggage": "c=d"}
CAPABILITIES: Json = {
    "elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}, "experimental": {"y": {}},
    "extensions": {UI: {"mimeTypes": ["text/html;profile=mcp-app"]}, "x.test/other": {}},
}  # fmt: skip
LISTS = {
    "tools/list": "tools", "prompts/list": "prompts", "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}  # fmt: skip
ANSWERS: Json = {
    "elicitation/create": {"action": "accept", "content": {"name": "Ada"}},
    "sampling/createMessage": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "4"}},
    "roots/list": {"roots": [{"uri": "file:///a"}]},
}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    rich = str(Path(__file__).with_name("rich_server.py"))
    servers = {
        f"s{revision.replace('-', '')}": {"command": sys.executable, "args": [rich, revision]} for revision in REVISIONS
    }
    with sluice({"servers": servers}, tmp_path_factory.mktemp("revisions"), watched=True) as process:
        yield process


class Client:
    """One client of one revision. It answers what it is asked, or with an error; `asked` and `told` is what came."""

    def __init__(self, url: str, revision: str, capabilities: Json = CAPABILITIES) -> None:
        accept = {"accept": "application/json, text/event-stream"}
        self.revision, self.capabilities, self.url = revision, capabilities, url
        self.http = httpx.Client(headers=accept, timeout=30, trust_env=False)
        self.asked: list[Json] = []
        self.told: list[Json] = []
        self.refuses = False
        self.about: Json = {}
        if revision == MODERN:
            self.about = self.ok("server/discover")
        else:
            about = {"name": "c", "version": "1"}
            hello = {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": about}
            answer = self.post({"id": 0, "method": "initialize", "params": hello})
            self.http.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
            self.about = answer.json()["result"]
            self.post({"method": "notifications/initialized"})

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()

    def post(self, message: Json, headers: Json | None = None) -> httpx.Response:
        return self.http.post(self.url, json={"jsonrpc": "2.0", **message}, headers=headers)

    def request(self, method: str, **params: Any) -> Json:
        """The response; questions on its stream are answered, and those of rounds."""
        own, headers = params.pop("_meta", {}), {}
        meta: Json = own
        if self.revision == MODERN:
            name = params.get("name", params.get("uri"))
            headers = {"mcp-protocol-version": MODERN, "mcp-method": method} | ({"mcp-name": name} if name else {})
            meta = {**own, PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": self.capabilities}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, **({"_meta": meta} if meta else {})}}
        with self.http.stream("POST", self.url, json=body, headers=headers) as response:
            message = self._end(response)
        result = message.get("result", {})
        if result.get("resultType") != "input_required":
            return message
        said = {key: self._said(ask) for key, ask in result["inputRequests"].items()}
        retry = {"inputResponses": said, "requestState": result["requestState"]}
        return self.request(method, **{**params, **retry, "_meta": own})

    def _end(self, response: httpx.Response) -> Json:
        if response.headers["content-type"] == "application/json":
            return dict(json.loads(response.read()))
        for line in response.iter_lines():
            message = json.loads(line[5:]) if line.startswith("data: {") else {}
            if "id" in message and "method" not in message:
                return dict(message)
            if "id" in message:
                refused = {"error": {"code": -1, "message": "I will not"}}
                self.post({"id": message["id"], **(refused if self.refuses else {"result": self._said(message)})})
            elif message:
                self.told.append(message)
        raise AssertionError("the stream ended without a response")

    def _said(self, ask: Json) -> Json:
        self.asked.append(ask)
        if ask.get("params", {}).get("mode") == "url":
            return {"action": "accept"}
        return dict(ANSWERS[ask["method"]])

    def ok(self, method: str, **params: Any) -> Json:
        message = self.request(method, **params)
        assert "result" in message, message
        return dict(message["result"])

    def text(self, tool: str, **params: Any) -> Any:
        return json.loads(self.ok("tools/call", name=tool, **params)["content"][0]["text"])


EVERY = pytest.mark.parametrize("server", REVISIONS)


@pytest.fixture(scope="module", params=REVISIONS)
def client(process: Sluice, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(process.url, request.param) as one:
        wait_for_lists(one)
        yield one


def wait_for_lists(client: Client) -> None:
    """A legacy client has connections of its own: on a busy machine a list is asked before all of them are up."""
    give_up = time.monotonic() + 60
    for method, key in LISTS.items():
        while not all(listed(client, method, key, server) for server in REVISIONS):
            assert time.monotonic() < give_up, f"{method} is not whole"
            time.sleep(0.1)


def prefix(server: str) -> str:
    return f"s{server.replace('-', '')}"


def listed(client: Client, method: str, key: str, server: str) -> list[Json]:
    names = ("name", "uri", "uriTemplate")
    items = client.ok(method)[key]
    return [item for item in items if any(prefix(server) in str(item.get(name, "")) for name in names)]


@EVERY
def test_lists_have_what_both_revisions_have(client: Client, server: str) -> None:
    tools = {tool["name"].partition("__")[2]: tool for tool in listed(client, "tools/list", "tools", server)}
    older = min(client.revision, server)
    for item in (
        tools["meta"],
        *listed(client, "prompts/list", "prompts", server),
        *listed(client, "resources/templates/list", "resourceTemplates", server),
        listed(client, "resources/list", "resources", server)[0],
    ):
        assert ("title" in item, "icons" in item, "_meta" in item) == (
            older >= "2025-06-18", older >= "2025-11-25", older >= "2025-06-18",
        )  # fmt: skip
    assert ("annotations" in tools["meta"]) is (older >= "2025-03-26")
    schema = tools["everything"].get("outputSchema")
    assert (schema is not None) is (older >= "2025-06-18")
    if schema is not None:
        assert schema["type"] == ("array" if client.revision == server == MODERN else "object")


@EVERY
def test_a_call_says_what_the_clients_revision_can_say(client: Client, server: str) -> None:
    result = client.ok("tools/call", name=f"{prefix(server)}__everything")
    kinds = [block["type"] for block in result["content"]]
    audio = [] if server == "2024-11-05" else ["text" if client.revision == "2024-11-05" else "audio"]
    link = [] if server < "2025-06-18" else ["text" if client.revision < "2025-06-18" else "resource_link"]
    assert kinds == ["text", "image", "resource", *audio, *link]
    if min(client.revision, server) >= "2025-06-18":
        is_bare = client.revision == server == MODERN
        assert result["structuredContent"] == ([1, 2] if is_bare else {"result": [1, 2]})
    else:
        assert "structuredContent" not in result
    messages = client.ok("prompts/get", name=f"{prefix(server)}__p")["messages"]
    assert [message["content"]["type"] for message in messages] == kinds
    reference = {"type": "ref/prompt", "name": f"{prefix(server)}__p"}
    argument = {"name": "a", "value": ""}
    assert client.ok("completion/complete", ref=reference, argument=argument)["completion"]["values"] == ["v"]


@EVERY
def test_an_app_and_its_page_are_found_under_public_addresses(client: Client, server: str) -> None:
    page = f"ui://{prefix(server)}+app/page"
    app = next(t for t in listed(client, "tools/list", "tools", server) if t["name"].endswith("__app"))
    has_apps = min(client.revision, server) >= "2025-06-18"
    assert (app.get("_meta", {}).get("ui") == {"resourceUri": page}) is has_apps
    (contents,) = client.ok("resources/read", uri=page)["contents"]
    assert contents["uri"] == page and ("_meta" in contents) is has_apps
    assert client.ok("tools/call", name=app["name"])["_meta"]["ui"] == {"resourceUri": page}
    assert list(client.about["capabilities"]["extensions"]) == [UI]
    assert "experimental" not in client.about["capabilities"]


@EVERY
def test_traces_pass_from_end_to_end(client: Client, server: str) -> None:
    seen = client.text(f"{prefix(server)}__meta", _meta=TRACE)
    assert TRACE.items() <= seen.items()
    assert client.ok("tools/call", name=f"{prefix(server)}__app")["_meta"]["traceparent"] == "back"
    if MODERN > client.revision and MODERN > server:
        client.text(f"{prefix(server)}__roots")
        assert client.asked[-1]["params"]["_meta"] == {"traceparent": "asked by roots"}


@EVERY
def test_what_is_not_there_has_the_code_of_the_revision(client: Client, server: str) -> None:
    uri = f"{prefix(server)}+res:none"
    error = client.request("resources/read", uri=uri)["error"]
    assert error["code"] == (-32602 if client.revision == MODERN else -32002) and error["data"]["uri"] == uri


@EVERY
@pytest.mark.parametrize("tool", ["ask", "sample", "roots", "page"])
def test_questions_reach_clients_that_have_them(client: Client, server: str, tool: str) -> None:
    needs = {"ask": "2025-06-18", "page": "2025-11-25"}.get(tool, "2024-11-05")
    if server < needs:
        pytest.skip("no server of that revision asks so")
    before, told = len(client.asked), len(client.told)
    message = client.request("tools/call", name=f"{prefix(server)}__{tool}")
    if client.revision >= needs:
        (ask,) = client.asked[before:]
        said = {"action": "accept"} if tool == "page" else ANSWERS[ask["method"]]
        assert json.loads(message["result"]["content"][0]["text"]) == {"result": said}
        is_told = tool == "page" and client.revision == "2025-11-25" and server == MODERN
        methods = [note["method"] for note in client.told[told:] if "elicitation" in note["method"]]
        assert methods == (["notifications/elicitation/complete"] if is_told else [])
    else:
        assert len(client.asked) == before
        assert "result" in message, "the server is told at once that nobody can be asked"


@EVERY
@pytest.mark.parametrize("tool", ["ask", "sample", "roots"])
def test_an_error_of_the_client_reaches_a_legacy_server_as_that_error(client: Client, server: str, tool: str) -> None:
    if client.revision == MODERN or (tool == "ask" and min(client.revision, server) < "2025-06-18"):
        pytest.skip("nobody can answer so")
    client.refuses = True
    try:
        result = client.ok("tools/call", name=f"{prefix(server)}__{tool}")
    finally:
        client.refuses = False
    text = result["content"][0]["text"]
    if server != MODERN:
        assert json.loads(text) == {"error": {"code": -1, "message": "I will not"}}
    elif tool == "ask":
        assert json.loads(text) == {"result": {"action": "cancel"}}
    else:
        assert result["isError"] and "I will not" in text


@EVERY
def test_pages_to_visit_first_are_said_in_every_revision(client: Client, server: str) -> None:
    if server == MODERN:
        pytest.skip("such a server asks for the page")
    before = len(client.asked)
    message = client.request("tools/call", name=f"{prefix(server)}__page_first")
    if client.revision == "2025-11-25":
        assert message["error"]["code"] == -32042 and message["error"]["data"]["elicitations"][0]["url"]
    elif client.revision == MODERN:
        assert client.asked[before]["params"]["url"] == "https://login.test/" and not message["result"].get("isError")
    else:
        assert message["result"]["isError"] and "https://login.test/" in message["result"]["content"][0]["text"]


def test_a_capability_that_a_server_needs_is_named_in_every_revision(client: Client) -> None:
    error = client.request("tools/call", name=f"{prefix(MODERN)}__needs")["error"]
    if client.revision == MODERN:
        assert error["code"] == -32021 and error["data"] == {"requiredCapabilities": {"sampling": {"tools": {}}}}
    else:
        assert error["code"] == -32603 and "sampling (tools)" in error["message"]


@EVERY
def test_a_call_that_fails_of_a_question_names_what_the_client_lacks(client: Client, server: str) -> None:
    if server == MODERN:
        pytest.skip("such a server asks nobody who did not say that he can be asked")
    error = client.request("tools/call", name=f"{prefix(server)}__strict")["error"]
    if client.revision == MODERN:
        assert error["code"] == -32021 and error["data"] == {"requiredCapabilities": {"sampling": {"tools": {}}}}
    else:
        assert (error["code"], error["message"]) == (-32000, "refused")


def test_servers_are_told_of_the_clients_known_extensions_alone(client: Client) -> None:
    for section in client.about["instructions"].split("## ")[1:]:
        told = json.loads(section.partition("\n\n> ")[2]) or {}
        assert "experimental" not in told and set(told.get("extensions", {})) <= {UI}


def test_a_ping_is_answered_in_the_revisions_that_have_it(client: Client) -> None:
    message = client.request("ping")
    if client.revision == MODERN:
        assert message["error"]["code"] == -32601
    else:
        assert message["result"] == {}
