"""A hostile client with a good key, and a hostile page without one, at a real Sluice: what they try to reach what they
may not. The strongest thing to say of each attempt is that the server saw nothing.
"""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2e.sluice_process import COMMAND, ROOT, clean_environment
from e2e.wire import LEGACY, META, MODERN
from policy_bed import Bed, Json, bearer, bed, client_keys, key_of, recorder

ROWS = """\
p, role:user, fs, *, *, allow
p, *, fs, tool:secret, *, deny
p, key:reader, sluice, admin:*, read, allow
"""
SECRET = b'"fs__secret"'
HEAD = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "fs__echo"}
_META = json.dumps(META)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("hostile")
    servers = {"fs": recorder(folder, "fs", tools=["echo", "secret", "more"], prompts=["one", "two"])}
    keys = {"keys": client_keys(a=["role:user"], b=["role:user"], reader=["role:user"])}
    with bed(folder, ROWS, servers, clients=keys, limits={"page": 1}) as made:
        yield made
        assert made.process.get("/readyz")[0] == 200 and "ran echo" in made.call("a", "fs__echo").text
        assert "Traceback" not in made.process.log()


def raw(place: Bed) -> str:
    return (place.folder / "fs" / "seen.jsonl").read_text()


def post(place: Bed, body: bytes, head: dict[str, str] = HEAD) -> httpx.Response:
    accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    return httpx.post(place.process.url, content=body, headers={**accept, **head, **bearer("a")}, timeout=20)


def call(params: str, more: str = "") -> bytes:
    """A tools/call, word by word."""
    return f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{params},"_meta":{_META}}}{more}}}'.encode()


# ---------------------------------------------------------------- two readers of one request


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in HEAD.items() if key != name}


ECHO, FORBIDDEN = call('"name":"fs__echo","arguments":{}'), call('"name":"fs__secret","arguments":{}')
MISMATCHES = {
    "a forbidden name behind an allowed one": (FORBIDDEN, HEAD),
    "an allowed name behind a forbidden one": (ECHO, HEAD | {"Mcp-Name": "fs__secret"}),
    "no name": (ECHO, without("Mcp-Name")),
    "no method": (ECHO, without("Mcp-Method")),
    "another method": (FORBIDDEN, HEAD | {"Mcp-Method": "tools/list"}),
    "another revision": (ECHO.replace(MODERN.encode(), b"2025-11-25"), HEAD),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_headers_and_body_that_differ_are_refused(place: Bed, case: str) -> None:
    before = len(place.seen("fs"))
    body, head = MISMATCHES[case]
    answer = post(place, body, head)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020), answer.text
    assert len(place.seen("fs")) == before


@pytest.mark.parametrize("start", ["", " ", "\n\r\t "])
@pytest.mark.parametrize("head", [HEAD, {}, {"MCP-Protocol-Version": LEGACY}], ids=["modern", "none", "legacy"])
def test_a_batch_smuggles_nothing(place: Bed, start: str, head: dict[str, str]) -> None:
    before = len(place.seen("fs"))
    answer = post(place, start.encode() + b"[" + ECHO + b"," + FORBIDDEN + b"]", head)
    assert answer.status_code == 400 and "id" not in answer.json(), answer.text
    assert len(place.seen("fs")) == before


def test_in_a_batch_of_2025_03_26_each_call_is_judged_by_itself(place: Bed) -> None:
    hello = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    answer = place.post("a", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}, {})
    session = {"Mcp-Session-Id": answer.headers["mcp-session-id"]}
    place.post("a", {"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
    before = len(place.seen("fs"))
    batch = [
        {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name}}
        for id, name in enumerate(("fs__secret", "fs__echo", "fs__secret"))
    ]
    answers = post(place, json.dumps(batch).encode(), session)
    assert answers.text.count("Unknown tool") == 2 and answers.text.count("ran echo") == 1
    assert [message["params"]["name"] for message in place.seen("fs")[before:]] == ["echo"]


TWICE = {
    "name": call('"name":"fs__echo","name":"fs__secret","arguments":{}'),
    "name, the other way": call('"name":"fs__secret","name":"fs__echo","arguments":{}'),
    "name, escaped": call('"name":"fs__echo","n\\u0061me":"fs__secret","arguments":{}'),
    "params": call('"name":"fs__echo"', ',"params":{"name":"fs__secret"}'),
    "method": call('"name":"fs__echo"', ',"method":"tools/list"'),
    "arguments": call('"name":"fs__echo","arguments":{"x":1},"arguments":{"x":2}'),
    "deep inside": call('"name":"fs__echo","arguments":{"a":[{"x":1,"x":2}]}'),
}


@pytest.mark.parametrize("case", TWICE)
def test_a_key_that_stands_twice_is_refused(place: Bed, case: str) -> None:
    before = len(place.seen("fs"))
    answer = post(place, TWICE[case])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600), answer.text
    assert len(place.seen("fs")) == before


ALIKE = ["Name", "NAME", "nAme", "name\\u0000", " name", "\\uff4eame", "na\\u200bme"]


@pytest.mark.parametrize("key", ALIKE)
def test_a_key_that_only_a_careless_parser_takes_for_another_reaches_no_server(place: Bed, key: str) -> None:
    """Some read `Name` as `name` (CVE-2026-27896)."""
    post(place, call(f'"name":"fs__echo","{key}":"fs__secret","arguments":{{}}'))
    post(place, call('"name":"fs__echo","arguments":{}', f',"{key.replace("ame", "ethod")}":"fs__secret"'))
    post(place, call('"name":"fs__echo","arguments":{}', ',"Params":{"name":"fs__secret"},"METHOD":"fs__secret"'))
    assert "secret" not in raw(place)


# ---------------------------------------------------------------- a page in a browser, and names that are not ours


def exchange(url: str, lines: list[str], body: bytes = b"") -> int:
    """The status of a request whose every line is ours; no Host is added."""
    where = httpx.URL(url)
    with socket.create_connection((where.host, where.port or 80), 30) as line:
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close"])
        line.sendall(f"{head}\r\n\r\n".encode() + body)
        return int(line.makefile("rb").readline().split()[1])


def to_mcp(place: Bed, *lines: str) -> int:
    head = [f"{name}: {value}" for name, value in {**HEAD, **bearer("a")}.items()]
    accept = ["Accept: application/json, text/event-stream", "Content-Type: application/json"]
    return exchange(place.process.url, ["POST /mcp HTTP/1.1", *lines, *head, *accept], ECHO)


OURS = "Host: localhost"
STRANGE: list[tuple[list[str], tuple[int, ...]]] = [
    ([], (400,)),
    ([OURS, OURS], (400,)),
    ([OURS, "Host: evil.com"], (400,)),
    (["Host: evil.com"], (421,)),
    (["Host: localhost.evil.com"], (421,)),
    (["Host: 127.0.0.1.evil.com:80"], (421,)),
    (["Host: [::1].evil"], (400,)),
    (["Host: a/?x="], (400,)),
    (["Host: a#"], (400,)),
    (["Host: a?"], (400,)),
    (["Host: localhost@evil.com"], (400,)),
    ([OURS, "Origin: null"], (403,)),
    ([OURS, "Origin: http://evil.com"], (403,)),
    ([OURS, "Origin: http://localhost.evil.com"], (403,)),
    ([OURS, "Origin: http://localhost", "Origin: http://evil.com"], (403,)),
    ([OURS, "Origin: http://localhost", "Origin: http://localhost"], (403,)),
    (["Host: evil.com", "X-Forwarded-Host: localhost"], (421,)),
]


@pytest.mark.parametrize(("lines", "statuses"), STRANGE, ids=[", ".join(lines) or "none" for lines, _ in STRANGE])
def test_a_name_or_an_origin_that_is_not_ours_reaches_nothing(
    place: Bed, lines: list[str], statuses: tuple[int, ...]
) -> None:
    before = len(place.seen("fs"))
    assert to_mcp(place, *lines) in statuses
    assert len(place.seen("fs")) == before
    assert admin(place, "GET", "/api/v1/servers", *lines) in statuses


@pytest.mark.parametrize("lines", [[OURS], ["Host: 127.0.0.1:1"], ["Host: [::1]"], [OURS, "Origin: http://localhost:5"]])
def test_names_and_origins_of_this_machine_are_served(place: Bed, lines: list[str]) -> None:
    before = len(place.seen("fs"))
    assert to_mcp(place, *lines) == 200
    assert len(place.seen("fs")) == before + 1


def admin(place: Bed, method: str, path: str, *lines: str, who: str = "reader", body: bytes = b"") -> int:
    key = [f"Authorization: Bearer {key_of(who)}"] if who else []
    return exchange(place.process.admin, [f"{method} {path} HTTP/1.1", *lines, *key], body)


PATHS = ["/livez", "/readyz", "/metrics", "/api/v1/servers", "/api/v1/tools", "/api/v1/approvals", "/api/v1/pins",
         "/api/v1/audit/head", "/nowhere"]  # fmt: skip


@pytest.mark.parametrize("host", ["a/?x=", "a#", "a?", "a/../livez", "a b", "@localhost"])
def test_a_host_that_is_a_path_reaches_no_route(place: Bed, host: str) -> None:
    for path in PATHS:
        assert admin(place, "GET", path, f"Host: {host}") == 400, path
        assert admin(place, "POST", path, f"Host: {host}", body=b"{}") == 400, path
    for path in ("/mcp", "/sse", "/messages", "/.well-known/oauth-protected-resource"):
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            assert exchange(place.process.url, [f"{method} {path} HTTP/1.1", f"Host: {host}"]) == 400, (method, path)


def test_pages_of_the_admin_port_are_not_on_the_port_for_clients(place: Bed) -> None:
    for path in PATHS:
        lines = [f"GET {path} HTTP/1.1", OURS, f"Authorization: Bearer {key_of('reader')}"]
        assert exchange(place.process.url, lines) == 404, path


# ---------------------------------------------------------------- what only an operator may do


def children(place: Bed) -> set[int]:
    own = f"PPid:\t{place.process.process.pid}\n"
    return {int(file.parent.name) for file in Path("/proc").glob("[0-9]*/status") if own in _read(file)}


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""  # it has ended meanwhile


STDIO = json.dumps({"key": "x", "command": "sh", "args": ["-c", "touch pwned"], "transport": "stdio"}).encode()


@pytest.mark.parametrize("who", ["a", "reader"])
def test_no_request_starts_a_program(place: Bed, who: str) -> None:
    before = children(place)
    assert before
    for path in ("servers", "servers/test", "servers/x", "mcp-rest/test/connection", "tools", "config", "pins"):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            told = (OURS, "Content-Type: application/json")
            status = admin(place, method, f"/api/v1/{path}", *told, who=who, body=STDIO)
            assert status in (400, 403, 404, 405), (method, path, status)
    assert children(place) == before and not list(place.folder.rglob("pwned"))


def test_a_page_cannot_use_the_admin_port(place: Bed) -> None:
    """Neither with a form, which needs no leave from the other side, nor with a key that it has got hold of."""
    kinds = ("application/json", "text/plain", "application/x-www-form-urlencoded")
    for path in ("/api/v1/pins", "/api/v1/approvals/apr_x/decisions"):
        for kind in kinds:
            told = (OURS, "Origin: http://evil.com", f"Content-Type: {kind}")
            assert admin(place, "POST", path, *told, body=b"{}") == 403
    assert admin(place, "GET", "/api/v1/servers", OURS, "Origin: null") == 403
    assert admin(place, "GET", "/api/v1/servers", OURS) == 200
    assert admin(place, "GET", "/api/v1/servers", OURS, who="a") == 403
    assert admin(place, "GET", "/api/v1/servers", OURS, who="") == 401


# ---------------------------------------------------------------- cursors


def test_a_cursor_is_good_for_its_client_its_list_and_as_it_is(place: Bed) -> None:
    page = place.ask("a", "tools/list").json()["result"]
    cursor = page["nextCursor"]
    assert len(page["tools"]) == 1
    assert place.ask("a", "tools/list", cursor=cursor).json()["result"]["tools"][0]["name"] == "fs__more"
    assert place.ask("b", "tools/list", cursor=cursor).json()["error"]["code"] == -32602
    for method in ("prompts/list", "resources/list", "resources/templates/list"):
        assert place.ask("a", method, cursor=cursor).json()["error"]["code"] == -32602
    for at in range(0, len(cursor), 3):
        flipped = cursor[:at] + ("A" if cursor[at] != "A" else "B") + cursor[at + 1 :]
        error = place.ask("a", "tools/list", cursor=flipped).json()["error"]
        assert error["code"] == -32602 and "tools" not in json.dumps(error), flipped


# ---------------------------------------------------------------- records


BREAKERS = ["\nb", "a\r\n{}", '"}', "\x00", "\x1b[2J\x1b]0;t\x07", "\u2028\u2029", "\u202e", "%s{}${env:X}", "\x7f\x85"]


def test_whatever_a_client_says_is_one_record_of_printable_json(place: Bed) -> None:
    def lines() -> list[str]:
        return (place.folder / "audit" / "sluice.jsonl").read_bytes().decode("ascii").split("\n")[:-1]

    def calls() -> list[Json]:
        every = [json.loads(line) for line in lines()]
        return [record for record in every if record["type"] in ("intent", "outcome")]

    head = {**HEAD, "User-Agent": '"}, {"x": "'}
    meta = {**META, "io.modelcontextprotocol/clientInfo": {"name": "NAME", "version": "NAME"}}
    place.call("a", "fs__marker")
    place.until(lambda: any("fs__marker" in line for line in lines()[-3:]))  # and all before it are written
    before = len(calls())
    for text in BREAKERS:
        params: Json = {"name": "fs__echo", "arguments": {text: text, "x": [text]}}
        params["_meta"] = json.loads(json.dumps(meta).replace('"NAME"', json.dumps(text)))
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        assert post(place, body, head).status_code == 200
        assert "Unknown tool" in place.call("a", f"fs__{text}").text
    place.until(lambda: len(calls()) >= before + 3 * len(BREAKERS))
    assert len(calls()) == before + 3 * len(BREAKERS)  # an intent and an outcome, and an outcome of what is unknown
    assert all(line.isprintable() for line in lines())
    done = subprocess.run(
        [*COMMAND, "audit", "verify", "-c", str(place.process.config)], cwd=ROOT, env=clean_environment(),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(line.isprintable() for line in place.process.log().split("\n")), "a log line that drives a terminal"
