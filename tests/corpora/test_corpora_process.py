"""Collected bad input against the real command, with a server behind it that writes down what reaches it.

No answer is a crash, none takes long, nothing that is refused reaches the server, and what reaches it is what was sent.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from collected import json_texts, naughty_strings
from e2e.wire import LEGACY, META, MODERN
from policy_bed import Bed, Json, bearer, bed, client_keys, encoded, recorder

ROWS = """\
p, role:user, fs, *, *, allow
p, role:all, odd, *, *, allow
p, role:one, odd, tool:undefined, *, allow
"""
MODERN_HEAD = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "fs__echo"}
NO_HANG = 20.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("corpora")
    servers = {
        "fs": recorder(folder, "fs", tools=["echo"]),
        "odd": recorder(folder, "odd", tools=naughty_strings(), prompts=naughty_strings(), resources=naughty_strings()),
    }
    keys = {"keys": client_keys(user=["role:user"], all=["role:all"], one=["role:one"])}
    with bed(folder, ROWS, servers, clients=keys, audit={"durability": "write"}) as made:
        yield made
        assert made.process.get("/readyz")[0] == 200 and "ran echo" in made.call("user", "fs__echo").text
        assert "Traceback" not in made.process.log()


@pytest.fixture(scope="module")
def line(place: Bed) -> Iterator[httpx.Client]:
    accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    with httpx.Client(headers=accept, timeout=NO_HANG) as client:
        yield client


# ---------------------------------------------------------------- JSON, nearly JSON and none


@pytest.mark.parametrize("head", [MODERN_HEAD, {}], ids=["modern", "legacy"])
def test_no_body_of_the_suite_is_a_request(place: Bed, line: httpx.Client, head: dict[str, str]) -> None:
    before = len(place.seen("fs"))
    for name, body in json_texts().items():
        answer = line.post(place.process.url, content=body, headers={**head, **bearer("user")})
        assert answer.status_code == 400, (name, answer.status_code, answer.text[:200])
        assert answer.json()["error"]["code"] in (-32700, -32600), (name, answer.text)
        assert "Error:" not in answer.text, (name, answer.text)
    assert len(place.seen("fs")) == before


def test_arguments_of_the_suite_arrive_as_they_were_meant_or_not_at_all(place: Bed, line: httpx.Client) -> None:
    meta = json.dumps(META).encode()
    head = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fs__echo","_meta":' + meta
    refused = set()
    for name, text in json_texts().items():
        body = head + b',"arguments":{"x":' + text + b"}}}"
        before = len(place.seen("fs"))
        answer = line.post(place.process.url, content=body, headers={**MODERN_HEAD, **bearer("user")})
        reached = place.seen("fs")[before:]
        assert answer.status_code in (200, 400), (name, answer.status_code, answer.text[:200])
        assert len(reached) == (answer.status_code == 200), name
        if answer.status_code == 400:
            refused.add(name)
        else:
            assert same(reached[0]["params"]["arguments"], meant(body)), (name, reached)
    assert not [name for name in json_texts() if name.startswith("n_") and name not in refused]
    assert {name for name in refused if name.startswith("y_")} == {
        "y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json",
    }  # fmt: skip


def meant(body: bytes) -> Any:
    return json.loads(body)["params"]["arguments"]


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types; -0.0 is not 0.0."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return type(one) is type(other) and one == other


# ---------------------------------------------------------------- naughty strings


def test_naughty_arguments_arrive_as_they_are(place: Bed, line: httpx.Client) -> None:
    before = len(place.seen("fs"))
    for text in naughty_strings():
        assert "result" in ask(place, line, "user", "tools/call", name="fs__echo", arguments={"x": text}), text
    assert [message["params"]["arguments"]["x"] for message in place.seen("fs")[before:]] == naughty_strings()


@pytest.mark.parametrize(
    ("who", "method", "field"),
    [("user", "tools/call", "name"), ("user", "prompts/get", "name"), ("one", "resources/read", "uri")],
)
def test_naughty_names_are_unknown_names(place: Bed, line: httpx.Client, who: str, method: str, field: str) -> None:
    before = len(place.seen("fs")), len(place.seen("odd"))
    for text in naughty_strings():
        for name in (text, f"fs__{text}", f"{text}__echo", f"fs+{text}"):
            answer = ask(place, line, who, method, **{field: name})
            assert answer["error"]["code"] in (-32602, -32002), (name, answer)
    assert (len(place.seen("fs")), len(place.seen("odd"))) == before


def test_naughty_tools_have_names_of_their_own_and_are_called_by_them(place: Bed, line: httpx.Client) -> None:
    names = [tool["name"] for tool in ask(place, line, "all", "tools/list")["result"]["tools"]]
    assert len(set(names)) == len(names) and len(names) > 400
    assert all(name.isascii() and name.replace("_", "").replace("-", "").isalnum() for name in names)
    assert all(len(name) <= 50 and name.startswith("odd__") for name in names)
    before = len(place.seen("odd"))
    for name in names:
        assert "result" in ask(place, line, "all", "tools/call", name=name, arguments={}), name
    called = [message["params"]["name"] for message in place.seen("odd")[before:]]
    assert len(set(called)) == len(called) == len(names) and set(called) <= set(naughty_strings())


def test_of_naughty_tools_only_the_one_that_a_row_names_is_there(place: Bed, line: httpx.Client) -> None:
    every = [tool["name"] for tool in ask(place, line, "all", "tools/list")["result"]["tools"]]
    mine = [tool["name"] for tool in ask(place, line, "one", "tools/list")["result"]["tools"]]
    assert mine == ["odd__undefined"]
    before = len(place.seen("odd"))
    assert [name for name in every if "result" in ask(place, line, "one", "tools/call", name=name)] == mine
    assert [message["params"]["name"] for message in place.seen("odd")[before:]] == ["undefined"]


def test_nobody_comes_in_under_a_naughty_name(place: Bed, line: httpx.Client) -> None:
    before = len(place.seen("fs"))
    body = request("tools/call", name="fs__echo", arguments={})
    for text in naughty_strings():
        for value in (f"Bearer {text}", text):
            head = {**MODERN_HEAD, "Authorization": value.encode()}
            try:
                answer = line.post(place.process.url, json=body, headers=head)  # type: ignore[arg-type]
            except httpx.LocalProtocolError:
                continue  # no HTTP client can say that
            assert answer.status_code in (400, 401), (text, answer.status_code)
    assert len(place.seen("fs")) == before


def test_a_naughty_client_is_who_its_key_says(place: Bed, line: httpx.Client) -> None:
    """What a client says of itself decides nothing and breaks nothing, of either era."""
    for text in naughty_strings():
        info = {"name": text, "version": text}
        body = request("tools/call", name="fs__echo", arguments={})
        body["params"]["_meta"] = {**META, "io.modelcontextprotocol/clientInfo": info, text: text}
        answer = line.post(place.process.url, json=body, headers={**MODERN_HEAD, **bearer("one")})
        assert answer.json()["error"]["code"] == -32602, (text, answer.text)
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info}
        answer = line.post(place.process.url, json=request("initialize", **hello), headers=bearer("user"))
        assert answer.status_code == 200, (text, answer.text)
        session = {**bearer("user"), "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        assert line.delete(place.process.url, headers=session).status_code in (200, 204)


def test_naughty_cursors_and_sessions_are_none(place: Bed, line: httpx.Client) -> None:
    for text in naughty_strings():
        assert ask(place, line, "user", "tools/list", cursor=text)["error"]["code"] == -32602, text
        head = {"Mcp-Session-Id": text.encode(), "MCP-Protocol-Version": LEGACY, **bearer("user")}
        try:
            answer = line.post(place.process.url, json=request("ping"), headers=head)  # type: ignore[arg-type]
        except httpx.LocalProtocolError:
            continue
        assert answer.status_code in (400, 404), (text, answer.status_code)


def ask(place: Bed, line: httpx.Client, who: str, method: str, **params: Any) -> Json:
    named = params.get("name", params.get("uri"))
    head = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, **bearer(who)}
    if isinstance(named, str):
        head["Mcp-Name"] = encoded(named)
    body = request(method, **params, _meta=META)
    answer = line.post(place.process.url, json=body, headers=head)
    assert answer.status_code in (200, 400, 404), (params, answer.status_code, answer.text[:200])
    return dict(answer.json())


def request(method: str, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
