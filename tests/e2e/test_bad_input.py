"""What a careless or hostile client sends, against the real process: each is refused as it should be, none hurts.

After each of them the same Sluice still answers a proper request.
"""

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2e.sluice_process import Sluice, sluice
from peers.fleet import fixture_over_http

Json = dict[str, Any]

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
HEADERS = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/list",
}
GOOD = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
BODY = json.dumps(GOOD).encode()


@pytest.fixture(scope="module")
def process(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    folder = tmp_path_factory.mktemp("bad")
    with fixture_over_http(folder) as url, sluice({"servers": {"web": {"url": url}}}, folder, watched=True) as running:
        yield running


def post(process: Sluice, body: bytes, headers: dict[str, str] | None = None, method: str = "POST") -> httpx.Response:
    return httpx.request(method, process.url, content=body, headers=HEADERS | (headers or {}), timeout=20)


def assert_still_well(process: Sluice) -> None:
    answer = post(process, BODY)
    assert answer.status_code == 200 and answer.json()["result"]["tools"], answer.text


UNREADABLE = {
    "not JSON": b"{",
    "nothing": b"",
    "not UTF-8": b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
    "UTF-16": BODY.decode().encode("utf-16"),
    "NaN": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":NaN}}',
    "two values": BODY + BODY,
}
INVALID = {
    "a duplicate key": b'{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/list","params":{}}',
    "too deep": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}",
    "id null": b'{"jsonrpc":"2.0","id":null,"method":"tools/list","params":{}}',
    "a batch": b"[" + BODY + b"]",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_a_parse_error(process: Sluice, name: str) -> None:
    answer = post(process, UNREADABLE[name])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32700), answer.text
    assert_still_well(process)


@pytest.mark.parametrize("name", INVALID)
def test_what_is_no_request_is_an_invalid_request(process: Sluice, name: str) -> None:
    answer = post(process, INVALID[name])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600), answer.text
    assert_still_well(process)


REFUSED = [
    ("a Host of somewhere else", {"Host": "evil.example.com"}, (403, 421)),
    ("an Origin of somewhere else", {"Origin": "http://evil.example.com"}, (403,)),
    ("a content type that is not JSON", {"Content-Type": "text/plain"}, (415,)),
    ("a client that takes no answer", {"Accept": "text/html"}, (406,)),
    ("a wrong key", {"Authorization": "Bearer guess"}, (401,)),
    ("an anonymous request through a proxy", {"X-Forwarded-For": "10.0.0.1"}, (401,)),
    ("a header that differs from the body", {"Mcp-Method": "tools/call"}, (400,)),
]


@pytest.mark.parametrize(("name", "headers", "statuses"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_refused_with_the_right_status(
    process: Sluice, name: str, headers: dict[str, str], statuses: tuple[int, ...]
) -> None:
    answer = post(process, BODY, headers)
    assert answer.status_code in statuses, (answer.status_code, answer.text)
    assert_still_well(process)


def test_a_body_over_the_limit_is_refused_unread(process: Sluice) -> None:
    answer = post(process, b'{"jsonrpc":"2.0","id":1,"x":"' + b"x" * (5 << 20) + b'"}')
    assert answer.status_code == 413, answer.text[:200]
    assert_still_well(process)


def test_other_methods_and_paths_do_not_exist(process: Sluice) -> None:
    assert post(process, b"", method="PUT").status_code == 405
    elsewhere = process.url.replace("/mcp", "/metrics")
    assert httpx.get(elsewhere, timeout=20).status_code == 404  # the admin port's pages are not on this one
    assert_still_well(process)


def test_an_unknown_tool_is_an_invalid_parameter(process: Sluice) -> None:
    params = {"name": "web__no_such_tool", "arguments": {}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}).encode()
    answer = post(process, body, {"Mcp-Method": "tools/call", "Mcp-Name": "web__no_such_tool"})
    assert answer.json()["error"]["code"] == -32602 and answer.json()["id"] == 9, answer.text


def test_a_cursor_that_sluice_did_not_make_is_an_invalid_parameter(process: Sluice) -> None:
    for cursor in ("", "x", "eyJhIjoxfQ", "A" * 10_000):
        body = json.dumps(GOOD | {"params": {"_meta": META, "cursor": cursor}}).encode()
        assert post(process, body).json()["error"]["code"] == -32602, cursor
    assert_still_well(process)


BYTES = {
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,
    "a header without end": b"GET /mcp HTTP/1.1\r\nX: " + b"x" * 100_000,
    "two lengths": b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "length and chunks": b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "half a request": b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{",
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_are_no_request_do_no_harm(process: Sluice, name: str) -> None:
    host, port = process.url.removeprefix("http://").removesuffix("/mcp").split(":")
    with socket.create_connection((host, int(port)), 20) as line:
        line.settimeout(20)
        try:
            line.sendall(BYTES[name])
            line.shutdown(socket.SHUT_WR)
            answer = line.recv(200)
        except OSError:  # closed on us: a refusal too
            answer = b""
    assert not answer.startswith(b"HTTP/1.1 200"), answer
    assert_still_well(process)


def test_none_of_it_reached_the_log_as_a_crash(process: Sluice) -> None:
    assert "Traceback" not in process.log()
