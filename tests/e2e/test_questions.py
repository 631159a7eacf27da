"""What servers ask: one gate for servers and clients of both eras, by the same rules in each of the four cells."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.wire import LEGACY, META, MODERN
from policy_bed import Bed, Json, bearer, bed, client_keys

LIAR = str(Path(__file__).parents[1] / "lying_server.py")
ERAS = ("legacy", "modern")
CELLS = pytest.mark.parametrize(("server", "client"), list(product(ERAS, ERAS)))
EVERYTHING: Json = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
ME: Json = {"name": "c", "version": "1"}
FORM: Json = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}
SAID: Json = {"role": "user", "content": {"type": "text", "text": "x"}}


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("questions")
    servers = {era: {"command": sys.executable, "args": [LIAR, era, str(folder / era)]} for era in ERAS}
    rows = "p, *, *, *, *, allow\n"
    with bed(folder, rows, servers, clients={"keys": client_keys(ann=[])}) as made:
        yield made


class Client:
    """A client of one era that calls the tool of one server."""

    def __init__(self, made: Bed, server: str, era: str, capabilities: Json = EVERYTHING) -> None:
        self._bed, self._era, self._capabilities = made, era, capabilities
        self._script = made.folder / server
        self._name = f"{server}__lie"
        self._headers = {"Accept": "application/json, text/event-stream", **bearer("ann")}
        if era == "modern":
            self._headers |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": self._name}
        else:
            about = {"protocolVersion": LEGACY, "capabilities": capabilities, "clientInfo": ME}
            hello = self._post("initialize", about)
            self._headers |= {"MCP-Protocol-Version": LEGACY, "Mcp-Session-Id": hello.headers["mcp-session-id"]}

    def _post(self, method: str, params: Json) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return httpx.post(self._bed.process.url, json=body, headers=self._headers, timeout=20)

    def ask(self, told: Json) -> Json:
        """The response where its server says that, or the question: {method, params}."""
        self._script.write_text(json.dumps(told))
        params = {"name": self._name, "arguments": {}}
        if self._era == "legacy":
            with self._streamed(params) as lines:
                return dict(next(lines))
        meta = {**META, "io.modelcontextprotocol/clientCapabilities": self._capabilities}
        message = self._post("tools/call", {**params, "_meta": meta}).json()
        result = message.get("result", {})
        is_asked = result.get("resultType") == "input_required"
        return dict(*result["inputRequests"].values()) if is_asked else dict(message)

    @contextmanager
    def _streamed(self, params: Json) -> Iterator[Iterator[Json]]:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        url, headers = self._bed.process.url, self._headers
        with httpx.stream("POST", url, json=body, headers=headers, timeout=20) as response:
            if response.headers["content-type"] == "application/json":
                yield iter([json.loads(response.read())])
            else:
                texts = (line[5:] for line in response.iter_lines() if line.startswith("data:"))
                yield (json.loads(text) for text in texts if text.strip())


def own(made: Bed, port: str) -> int:
    found = httpx.URL(made.process.url if port == "mcp" else made.process.admin).port
    assert found is not None
    return found


def is_refused(message: Json) -> bool:
    """Nobody is asked anything, and the caller is told."""
    if "method" in message:
        return False
    if "error" in message:
        return True
    text = json.dumps(message["result"])
    return message["result"].get("isError") is True or '\\"code\\": -326' in text  # the server heard so, and says it


def page(url: str) -> Json:
    return {"method": "elicitation/create", "params": {"mode": "url", "message": "m", "url": url, "elicitationId": "e"}}


@CELLS
def test_what_may_be_asked_is_asked_with_the_servers_name(asker: Bed, server: str, client: str) -> None:
    peer = Client(asker, server, client)
    ask = peer.ask({"ask": {"method": "elicitation/create", "params": FORM}})
    assert ask["method"] == "elicitation/create" and ask["params"]["message"] == f"[{server}] Who?"
    ask = peer.ask({"ask": page("https://pay.test/x?y=1#z")})
    assert ask["params"]["message"] == f"[{server}] m" and ask["params"]["url"] == "https://pay.test/x?y=1#z"
    assert peer.ask({"ask": {"method": "roots/list"}})["method"] == "roots/list"
    sampling = {"method": "sampling/createMessage", "params": {"messages": [SAID], "maxTokens": 1}}
    assert peer.ask({"ask": sampling})["params"]["messages"] == [SAID]


@CELLS
def test_nothing_else_is_asked(asker: Bed, server: str, client: str) -> None:
    peer = Client(asker, server, client)
    for method in ("tools/call", "resources/read", "tasks/get", "pong", "initialize", ""):
        assert is_refused(peer.ask({"ask": {"method": method, "params": {"uri": "a:b"}}})), method


def sampling(**params: Any) -> Json:
    return {"method": "sampling/createMessage", "params": {"messages": [SAID], **params}}


UNDECLARED: list[tuple[Json, Json]] = [
    ({"method": "elicitation/create", "params": FORM}, {"elicitation": {"url": {}}, "roots": {}}),
    ({"method": "elicitation/create", "params": FORM}, {"roots": {}}),
    (page("https://pay.test/"), {"elicitation": {}}),
    (page("https://pay.test/"), {"sampling": {}}),
    (sampling(), {"elicitation": {}}),
    (sampling(tools=[]), {"sampling": {}}),
    (sampling(messages=[{"role": "user", "content": [{"type": "tool_result", "toolUseId": "t"}]}]), {"sampling": {}}),
    ({"method": "roots/list"}, {"sampling": {}}),
    ({"method": "roots/list"}, {}),
]


@CELLS
@pytest.mark.parametrize("number", range(len(UNDECLARED)))
def test_nor_what_the_client_has_not_declared(asker: Bed, server: str, client: str, number: int) -> None:
    ask, capabilities = UNDECLARED[number]
    answer = Client(asker, server, client, capabilities).ask({"ask": ask})
    assert is_refused(answer)
    if (server, client) == ("modern", "modern"):
        assert answer["error"]["code"] == -32021 and answer["error"]["data"]["requiredCapabilities"]


@CELLS
@pytest.mark.parametrize("declared", [{}, {"context": {}}])
def test_nor_what_other_servers_have_said(asker: Bed, server: str, client: str, declared: Json) -> None:
    """To the client all of them are one server."""
    peer = Client(asker, server, client, {"sampling": declared})
    for context in ("thisServer", "allServers"):
        ask = peer.ask({"ask": sampling(includeContext=context, maxTokens=1)})
        assert ask["params"]["messages"] == [SAID] and "includeContext" not in ask["params"]


@CELLS
def test_only_web_pages_are_opened(asker: Bed, server: str, client: str) -> None:
    peer = Client(asker, server, client)
    for url in ("javascript:alert(1)", "file:///etc/passwd", "data:text/html,x", "vscode://x/y", "HTTPS:/x.test",
                "//x.test/", "https://user@x.test/", "https://good.test\\@x.test/", "https://x.test\t/",
                " https://x.test/", "https://", ""):  # fmt: skip
        assert is_refused(peer.ask({"ask": page(url)})), url


@CELLS
def test_nor_the_pages_of_sluice_itself(asker: Bed, server: str, client: str) -> None:
    peer, (mcp, admin) = Client(asker, server, client), (own(asker, port) for port in ("mcp", "admin"))
    for host in ("127.0.0.1", "localhost", "LOCALHOST.", "a.localhost", "127.1", "2130706433", "0x7f.1", "[::1]",
                 "0.0.0.0", "[::ffff:127.0.0.1]", "\uff11\uff12\uff17.0.0.1", "127\u30020.0.1"):  # fmt: skip
        assert is_refused(peer.ask({"ask": page(f"http://{host}:{admin}/approve/1")})), host
    assert is_refused(peer.ask({"ask": page(f"https://localhost:{mcp}/mcp")}))


@CELLS
def test_a_question_has_the_members_of_one_kind(asker: Bed, server: str, client: str) -> None:
    peer, both = Client(asker, server, client), {**FORM, "url": "https://x.test/", "elicitationId": "e", "mode": "form"}
    params = peer.ask({"ask": {"method": "elicitation/create", "params": both}})["params"]
    assert "url" not in params and "elicitationId" not in params and "requestedSchema" in params
    params = peer.ask({"ask": {"method": "elicitation/create", "params": {**both, "mode": "url"}}})["params"]
    assert "requestedSchema" not in params and params["url"] == "https://x.test/"


def needs(*pages: Json) -> Json:
    return {"error": {"code": -32042, "message": "first", "data": {"elicitations": list(pages)}}}


@pytest.mark.parametrize("client", ERAS)
def test_the_pages_of_an_error_are_judged_as_well(asker: Bed, client: str) -> None:
    good, peer = page("https://pay.test/")["params"], Client(asker, "legacy", client)
    for url in ("javascript:alert(1)", f"http://localhost:{own(asker, 'admin')}/"):
        answer = peer.ask(needs(good, {**good, "url": url}))
        assert is_refused(answer) and "elicitations" not in json.dumps(answer)


def test_the_pages_of_an_error_say_which_server_wants_them(asker: Bed) -> None:
    good, peer = page("https://pay.test/")["params"], Client(asker, "legacy", "legacy")
    error = peer.ask(needs({**good, "requestedSchema": {}}))["error"]
    (shown,) = error["data"]["elicitations"]
    assert error["code"] == -32042 and shown == {**good, "message": "[legacy] m", "elicitationId": "legacy:e"}
    answer = Client(asker, "legacy", "legacy", {"elicitation": {}}).ask(needs(good))
    assert is_refused(answer) and "https://pay.test/" in json.dumps(answer)
    assert Client(asker, "legacy", "modern").ask(needs(good))["params"]["url"] == "https://pay.test/"
