"""What is refused before anybody looks at a message: Host, Origin, size, credential, form, in that order."""

import json
from typing import Any

import pytest
from listen_harness import ANYBODY, A, call, modern, open_session, patch, post, site

from sluicegate.http.hosts import ServedNames
from sluicegate.listen.settings import ListenSettings

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


def assert_error(answer: tuple[int, dict[str, str], bytes], status: int, code: int = -32600) -> None:
    got, headers, body = answer
    assert got == status, body
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["error"]["code"] == code
    assert "id" not in json.loads(body)


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("localhost:9", 200), ("127.0.0.1", 200), ("[::1]:1", 200), ("LOCALHOST", 200),
     ("mcp.acme.com", 200), ("mcp.acme.com:1", 200), ("only.port:8443", 200), ("only.port:1", 421),
     ("evil.com", 421), ("localhost.evil.com", 421), ("127.0.0.1.evil.com", 421), ("localhost.", 421),
     ("a/?x=", 400), ("a#", 400), ("a?", 400), ("[::1].evil", 400), ("", 400), ("a b", 400), ("u@localhost", 400)],
)  # fmt: skip
async def test_a_host_that_is_not_ours_reaches_nothing(host: str, status: int) -> None:
    settings = ListenSettings(names=ServedNames(allowed_hosts=("mcp.acme.com", "only.port:8443")))
    async with site(settings) as here:
        _, body = modern("tools/list")
        headers = ("MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/list")
        answer = await (await here.raw(post(body, *headers, host=host))).answer()
        assert answer[0] == status, answer
        assert len(here.handler.calls) == (1 if status == 200 else 0)


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["localhost", "evil.com"]])
async def test_there_is_exactly_one_host(hosts: list[str]) -> None:
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    async with site() as here:
        answer = await (await here.raw(f"GET /mcp HTTP/1.1\r\n{lines}\r\n".encode())).answer()
        assert_error(answer, 400)


@pytest.mark.parametrize(
    ("origins", "status"),
    [([], 200), (["http://localhost:3000"], 200), (["https://127.0.0.1"], 200), (["https://app.acme.com"], 200),
     (["null"], 403), (["http://evil.com"], 403), (["http://localhost.evil.com"], 403), (["http://[::1].evil"], 403),
     (["https://app.acme.com.evil.com"], 403), (["http://app.acme.com"], 403), ([""], 403),
     (["http://localhost", "http://localhost"], 403), (["http://localhost", "http://evil.com"], 403)],
)  # fmt: skip
async def test_an_origin_that_is_not_ours_is_refused(origins: list[str], status: int) -> None:
    settings = ListenSettings(names=ServedNames(allowed_origins=("https://app.acme.com",)))
    _, body = modern("tools/list")
    headers = ["MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/list", *(f"Origin: {o}" for o in origins)]
    async with site(settings) as here:
        answer = await (await here.raw(post(body, *headers))).answer()
        assert answer[0] == status, answer
        assert len(here.handler.calls) == (1 if status == 200 else 0)


async def test_only_an_allowed_origin_gets_cors() -> None:
    settings = ListenSettings(names=ServedNames(allowed_origins=("https://app.acme.com",)))
    async with site(settings) as here, here.client() as client:
        asked = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "mcp-param-x, authorization",
        }
        ours = await client.options("/mcp", headers={"origin": "https://app.acme.com", **asked})
        assert ours.status_code == 204
        assert ours.headers["access-control-allow-origin"] == "https://app.acme.com"
        assert ours.headers["access-control-allow-headers"] == "mcp-param-x, authorization"
        assert "DELETE" in ours.headers["access-control-allow-methods"]
        local = await client.options("/mcp", headers={"origin": "http://localhost:1", **asked})
        assert "access-control-allow-origin" not in local.headers
        refused = await client.post("/mcp", json=LIST, headers={"origin": "https://app.acme.com", "authorization": "x"})
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert "WWW-Authenticate" in refused.headers["access-control-expose-headers"]
        assert "Mcp-Session-Id" in refused.headers["access-control-expose-headers"]


@pytest.mark.parametrize("path", ["/", "//", "/mcp//", "/admin", "//evil/mcp", "/sse/x", "/messages/x", "/mcp%20x"])
async def test_there_is_nothing_at_other_paths(path: str) -> None:
    async with site() as here:
        raw = await here.raw(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        assert_error(await raw.answer(), 404)


@pytest.mark.parametrize(
    ("public", "prefix"), [(None, ""), ("/tools/mcp", "/tools"), ("/tools/mcp/", "/tools/mcp"), ("/", "")]
)
async def test_every_path_works_with_a_slash_at_its_end_as_without(public: str | None, prefix: str) -> None:
    url = public and f"https://mcp.acme.com{public}"
    async with site(patch(ListenSettings(), "names", public_url=url)) as here, here.client() as client:
        for path in dict.fromkeys(["/mcp", (public or "/mcp").rstrip("/")]):
            for form in (path, f"{path}/"):
                headers, body = modern("tools/list")
                answer = await client.post(form, headers=headers, json=body)
                assert (answer.status_code, answer.json()["result"]["tools"]) == (200, []), form
        for beside in ("", prefix):
            for path, method in ((f"{beside}/sse", "POST"), (f"{beside}/messages", "GET")):
                for form in (path, f"{path}/"):
                    answer = await client.request(method, form)
                    assert (answer.status_code, method in answer.headers["allow"]) == (405, False), form


@pytest.mark.parametrize("method", ["PUT", "PATCH", "TRACE"])
async def test_other_methods_are_refused_with_what_is_allowed(method: str) -> None:
    async with site() as here, here.client() as client:
        answer = await client.request(method, "/mcp")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST, GET, DELETE, OPTIONS")


async def test_size_is_judged_before_the_credential_where_it_is_declared() -> None:
    async with site(patch(ListenSettings(), "limits", max_request=100)) as here:
        raw = await here.raw(post(b"x" * 101, secret="nobody"))
        assert_error(await raw.answer(), 413)


async def test_a_chunked_body_is_counted() -> None:
    chunk = b"40\r\n" + b"x" * 64 + b"\r\n"
    async with site(patch(ListenSettings(), "limits", max_request=100)) as here:
        raw = await here.raw(post(chunk * 2 + b"0\r\n\r\n", "Transfer-Encoding: chunked"))
        assert_error(await raw.answer(), 413)
        assert here.handler.calls == []


@pytest.mark.parametrize("secret", [A, "nobody"])
async def test_a_body_in_crumbs_is_refused_before_it_is_whole(secret: str) -> None:
    """Four strangers with chunks of one byte, a megabyte a second of them, took the whole event loop."""
    async with site() as here:
        crumbs = b"1\r\n \r\n" * 129
        raw = await here.raw(post(crumbs, "Transfer-Encoding: chunked", secret=secret))
        answer = await raw.answer()
        assert answer[0] in (400, 401) and here.handler.calls == []
        assert await raw.closed() == b""
        few = b"".join(b"1\r\n%c\r\n" % byte for byte in json.dumps(LIST).encode())
        whole = await here.raw(post(few + b"0\r\n\r\n", "Transfer-Encoding: chunked"))
        assert "chunks" not in str(await whole.answer())


async def test_after_a_body_too_large_the_connection_lives_on() -> None:
    async with site(patch(ListenSettings(), "limits", max_request=1000)) as here:
        raw = await here.raw(post(b"x" * 1_000_000))
        assert_error(await raw.answer(), 413)
        raw.writer.write(post(LIST))
        assert_error(await raw.answer(), 400)


async def test_a_length_that_lies_harms_nobody() -> None:
    async with site() as here, here.client() as other:
        short = await here.raw(post(LIST, "Content-Length: 5"))
        assert_error(await short.answer(), 400, -32700)
        assert await short.closed() == b""
        await open_session(other)


@pytest.mark.parametrize(
    "lines",
    [["Content-Length: 2", "Transfer-Encoding: chunked"], ["Content-Length: 2", "Content-Length: 2"],
     ["Mcp_Name: x"], ["X_Y: z"], ["Transfer-Encoding: gzip"], ["Content-Length: -1"], ["X : y"],
     *(["Transfer-Encoding: " + odd] for odd in ("gzip, chunked", ", chunked", "chunked,", "chunked, chunked",
                                                 "chunked;q=1", "xchunked", "identity")),
     ["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"], ["Content-Length: 02"],
    [f"Content-Length: {'0' * 5_000}2"], ["Content-Length: 2, 2"],
     ["X: caf\u00e9"], ["Mcp-Name: \u00e9"],
     ["Upgrade: h2c", "Connection: Upgrade"]],
)  # fmt: skip
async def test_headers_that_two_parsers_read_differently_are_refused(lines: list[str]) -> None:
    async with site() as here:
        raw = await here.raw(post(b"{}", *lines))
        status, headers, body = await raw.answer()
        assert status == 400 and headers["content-type"] == "application/json" and b"error" in body
        await raw.closed()
        assert here.handler.calls == []


async def test_bare_line_feeds_are_no_http() -> None:
    async with site() as here:
        assert_error(await (await here.raw(b"GET /mcp HTTP/1.1\nHost: localhost\n\n")).answer(), 400)


async def test_an_absolute_target_brings_no_second_host() -> None:
    async with site() as here:
        raw = await here.raw(b"GET http://evil.com/mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert_error(await raw.answer(), 400)


async def test_a_trailer_is_no_header() -> None:
    async with site(identity=ANYBODY) as here:
        body = b"2\r\n{}\r\n0\r\nMcp-Session-Id: smuggled\r\nAuthorization: Bearer x\r\n\r\n"
        head = post(body, "Transfer-Encoding: chunked").replace(f"Authorization: Bearer {A}\r\n".encode(), b"", 1)
        assert_error(await (await here.raw(head)).answer(), 400)


@pytest.mark.parametrize("size", [17_000, 200_000])
async def test_headers_are_bounded_in_all(size: int) -> None:
    async with site() as here:
        one = await here.raw(post(LIST, f"X-Big: {'x' * size}"))
        assert_error(await one.answer(), 431)
        many = await here.raw(post(LIST, *(f"X-{n}: {'x' * 100}" for n in range(size // 100))))
        assert_error(await many.answer(), 431)
        unfinished = await here.raw(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"x" * size)
        assert_error(await unfinished.answer(), 431)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/jsonp", "application/json; charset=utf-16", "multipart/form-data", ""]
)
async def test_a_body_that_says_it_is_not_json_is_415(kind: str) -> None:
    async with site() as here, here.client() as client:
        answer = await client.post("/mcp", content=json.dumps(LIST), headers={"content-type": kind})
        assert answer.status_code == 415
        zipped = {"content-type": "application/json", "content-encoding": "gzip"}
        assert (await client.post("/mcp", content=b"x", headers=zipped)).status_code == 415


@pytest.mark.parametrize(
    ("accept", "status"),
    [("application/json", 406), ("text/event-stream", 406), ("text/html", 406), ("*/*", 200), ("", 406),
     ("application/json;q=0, text/event-stream", 406), ("Application/JSON, text/event-stream;q=0.5", 200)],
)  # fmt: skip
async def test_accept_has_both(accept: str, status: int) -> None:
    headers, body = modern("tools/list")
    async with site() as here, here.client() as client:
        answer = await client.post("/mcp", json=body, headers={**headers, "accept": accept})
        assert answer.status_code == status


@pytest.mark.parametrize(
    "lines",
    [["Mcp-Session-Id: a", "Mcp-Session-Id: b"], ["Content-Type: application/json"],
     ["MCP-Protocol-Version: 2025-11-25", "MCP-Protocol-Version: 2026-07-28"],
     ["Last-Event-ID: 1-1", "Last-Event-ID: 1-2"]],
)  # fmt: skip
async def test_headers_that_route_come_once(lines: list[str]) -> None:
    async with site() as here:
        status, _, _ = await (await here.raw(post(call("echo"), *lines))).answer()
        assert status == 400
        assert here.handler.calls == []


BODIES: list[tuple[bytes, int]] = [
    (b"", -32700), (b"{", -32700), (b"\xff\xfe{\x00", -32700), ('{"jsonrpc":"2.0"}'.encode("utf-16"), -32700),
    (b'{"a":NaN}', -32700), (b'{"a":1e999}', -32700), (b'{"a":"\\ud800"}', -32700), (b"\xef\xbb\xbf{}", -32700),
    (b'{"a":' + b"1" * 5000 + b"}", -32700), (b"null", -32600), (b"1", -32600), (b'"x"', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}', -32600),
    (b'{"jsonrpc":"2.0","id":null,"method":"a"}', -32600),
    (b'{"jsonrpc":"2.0","id":true,"method":"a"}', -32600), (b'{"jsonrpc":"2.0","id":1.5,"method":"a"}', -32600),
    (b"[" * 65 + b"]" * 65, -32600), (b"[" * 100_000, -32600), (b'{"a":' * 1000 + b"1" + b"}" * 1000, -32600),
    (b"[]", -32600), (b' \n [{"jsonrpc":"2.0","id":1,"method":"tools/list"}]', -32600),
]  # fmt: skip


@pytest.mark.parametrize(("body", "code"), BODIES)
async def test_what_is_no_message_is_answered_without_an_id(body: bytes, code: int) -> None:
    async with site() as here:
        raw = await here.raw(post(body))
        assert_error(await raw.answer(), 400, code)
        raw.writer.write(post(b"{"))
        assert_error(await raw.answer(), 400, -32700)


async def test_a_readable_id_is_echoed() -> None:
    async with site() as here, here.client() as client:
        answer = await client.post("/mcp", json={"jsonrpc": "1.0", "id": "x", "method": "tools/list"})
        assert (answer.status_code, answer.json()["id"], answer.json()["error"]["code"]) == (400, "x", -32600)


async def test_a_crash_says_nothing_about_itself(caplog: Any) -> None:
    headers, body = modern("tools/call", name="crash")
    async with site() as here, here.client() as client:
        answer = await client.post("/mcp", json=body, headers=headers)
        assert answer.status_code == 500
        assert answer.json() == {"jsonrpc": "2.0", "error": {"code": -32603, "message": "Internal error"}}
        headers, body = modern("tools/list")
        assert (await client.post("/mcp", json=body, headers=headers)).status_code == 200
    assert "secret detail" in caplog.text


async def test_a_result_that_json_cannot_say_is_an_error() -> None:
    headers, body = modern("tools/call", name="endless", id="i")
    async with site() as here, here.client() as client:
        answer = (await client.post("/mcp", json=body, headers=headers)).json()
        assert (answer["id"], answer["error"]["code"]) == ("i", -32603)
