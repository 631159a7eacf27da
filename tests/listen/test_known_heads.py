"""Requests whose head the connection has seen before: read without the parser, and with the same result."""

import json
import time
from typing import Any

import anyio
import pytest
from issuer import AUDIENCE, issuer
from listen_harness import ANYBODY, TWO_KEYS, A, Raw, call, key, modern, open_session, patch, post, site

from sluicegate.http.client.pool import HttpClient
from sluicegate.http.egress import Egress
from sluicegate.http.fetch import Fetcher
from sluicegate.http.hosts import MCP_PORT, HostOriginPolicy, ServedNames
from sluicegate.listen.auth import IdentitySettings
from sluicegate.listen.auth.issuers import KeySets, TokenIssuer
from sluicegate.listen.auth.tokens import TokenSettings
from sluicegate.listen.http1 import Http1, RequestParser
from sluicegate.listen.http_request import HttpRequest
from sluicegate.listen.owners import OwnersByMark
from sluicegate.listen.peer_forwarding import PeerForwarding
from sluicegate.listen.settings import ConnectionLimits, ListenSettings


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def echo(text: str, id: int = 1, *extra: str) -> bytes:
    headers, body = modern("tools/call", id, "echo", arguments={"text": text})
    return post(body, *(f"{name}: {value}" for name, value in headers.items()), *extra)


async def asked(raw: Raw, data: bytes) -> Any:
    """The answer to one request that is sent in one piece."""
    raw.writer.write(data)
    status, _, body = await raw.answer()
    assert status == 200, body
    return json.loads(body)


async def test_equal_heads_have_each_its_own_body_and_answer() -> None:
    async with site() as here:
        raw = await here.raw(b"")
        for at in range(5):
            answer = await asked(raw, echo(f"text {at}", at))
            assert answer["id"] == at and f"text {at}" in json.dumps(answer["result"])
        assert [seen.params["arguments"]["text"] for seen in here.handler.calls] == [f"text {at}" for at in range(5)]


async def test_a_known_head_may_have_another_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments differ in length. The known head is not parsed again, and each request has its own length."""
    parsed: list[object] = []
    complete = RequestParser.on_headers_complete

    def counted(parser: RequestParser) -> None:
        parsed.append(parser)
        complete(parser)

    lengths: list[tuple[int, int]] = []
    accept = Http1.accept

    def noted(connection: Http1, request: HttpRequest) -> None:
        if request.is_whole:  # a known head comes with its body
            lengths.append((request.declared, request.size))
        accept(connection, request)

    monkeypatch.setattr(RequestParser, "on_headers_complete", counted)
    monkeypatch.setattr(Http1, "accept", noted)
    async with site(patch(ListenSettings(), "limits", max_request=10_000)) as here:
        raw = await here.raw(b"")
        for size in (1, 100, 1, 8_000, 3):
            answer = await asked(raw, echo("x" * size, size))
            assert answer["id"] == size and "x" * size in json.dumps(answer["result"])
        assert len(parsed) == 2, "those of the first two requests of the connection"
        assert len(lengths) == 3 and all(declared == size for declared, size in lengths)
        raw.writer.write(echo("x" * 12_000))
        assert (await raw.answer())[0] == 413


@pytest.mark.parametrize("length", ["0%d", "+%d", "%d, %d", "%d ", "-%d", "0x%x", "%d\r\nContent-Length: %d"])
async def test_another_length_of_a_known_head_is_a_plain_number(length: str) -> None:
    async with site() as here:
        raw = await here.raw(b"")
        for size in (1, 100):
            await asked(raw, echo("x" * size))
        head, _, body = echo("xy").partition(b"\r\n\r\n")
        plain = b"Content-Length: %d" % len(body)
        assert head.count(plain) == 1
        written = b"Content-Length: " + (length % ((len(body),) * length.count("%"))).encode()
        raw.writer.write(head.replace(plain, written) + b"\r\n\r\n" + body)
        assert (await raw.answer())[0] == (200 if length == "%d " else 400)
        assert len(here.handler.calls) == (3 if length == "%d " else 2)


@pytest.mark.parametrize("more", [-1, 1])
async def test_another_length_of_a_known_head_ends_the_body(more: int) -> None:
    """A part of the body is no request that was let in with it, and what is missing is waited for."""
    async with site() as here:
        raw = await here.raw(b"")
        for size in (1, 100):
            await asked(raw, echo("x" * size))
        head, _, body = echo("xy").partition(b"\r\n\r\n")
        lines = head.replace(b"Content-Length: %d" % len(body), b"Content-Length: %d" % (len(body) + more))
        raw.writer.write(lines + b"\r\n\r\n" + body)
        if more > 0:
            await raw.writer.drain()
            await anyio.sleep(0.02)
            assert len(here.handler.calls) == 2
            raw.writer.write(b" ")
        assert (await raw.answer())[0] == (200 if more > 0 else 400)
        assert len(here.handler.calls) == (3 if more > 0 else 2)


async def test_a_body_that_looks_like_the_end_of_a_head_is_a_body() -> None:
    async with site() as here:
        raw = await here.raw(b"")
        for at in range(3):
            good = echo("same").replace(b'{"jsonrpc"', b'{\r\n\r\n"jsonrpc"').replace(b": 1,", b":1,")
            length = len(good.partition(b"\r\n\r\n")[2])
            head, _, body = good.partition(b"\r\n\r\n")
            lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
            data = b"\r\n".join([*lines, b"Content-Length: %d" % length]) + b"\r\n\r\n" + body
            assert "result" in await asked(raw, data), at
        assert len(here.handler.calls) == 3


async def test_a_known_head_in_pieces_or_with_another_request_behind_it() -> None:
    first, second = echo("one", 1), echo("two", 2)
    async with site() as here:
        raw = await here.raw(b"")
        for _ in range(2):
            assert (await asked(raw, first))["id"] == 1  # from here on it is known
            raw.writer.write(first[:-5])
            await raw.writer.drain()
            await anyio.sleep(0.02)  # so that it is read in two pieces
            raw.writer.write(first[-5:])
            assert json.loads((await raw.answer())[2])["id"] == 1
            raw.writer.write(first + second)
            ids = [json.loads((await raw.answer())[2])["id"] for _ in range(2)]
            assert ids == [1, 2]
        assert len(here.handler.calls) == 8


async def test_another_head_of_the_same_length_is_another_request() -> None:
    async with site() as here:
        raw = await here.raw(b"")
        for _ in range(3):
            assert (await asked(raw, echo("same")))["id"] == 1
        raw.writer.write(echo("same").replace(b"POST /mcp ", b"POST /mcq "))
        assert (await raw.answer())[0] == 404
        raw.writer.write(echo("same").replace(b"Bearer ", b"Beaver "))
        assert (await raw.answer())[0] == 401
        assert (await asked(raw, echo("same")))["id"] == 1


async def test_the_last_request_of_a_connection_is_its_last_however_often_its_head_was_seen() -> None:
    async with site() as here:
        raw = await here.raw(b"")
        for _ in range(3):
            await asked(raw, echo("same"))
        raw.writer.write(echo("same", 1, "Connection: close"))
        status, headers, _ = await raw.answer()
        assert status == 200 and headers["connection"] == "close"
        assert await raw.closed() == b""


async def test_a_connection_that_rests_after_known_heads_is_closed_in_time() -> None:
    async with site(wire=ConnectionLimits(idle=1.0)) as here:
        raw = await here.raw(b"")
        for _ in range(3):
            await asked(raw, echo("same"))
        assert await raw.closed() == b""


async def test_legacy_requests_of_equal_heads_go_to_their_session() -> None:
    async with site() as here, here.client() as client:
        lines = [f"Mcp-Session-Id: {await open_session(client)}" for _ in range(2)]
        raw = await here.raw(b"")
        for at in range(6):
            assert (await asked(raw, post(call("echo", at, text=str(at)), lines[at % 2])))["id"] == at
        sessions = [seen.client.session for seen in here.handler.calls if seen.method == "tools/call"]
        assert sessions == [line.partition(": ")[2] for line in lines] * 3


# ---------------------------------------------------------------- what may change is checked for each request


async def test_requests_of_equal_heads_are_passed_on_each_to_its_owner() -> None:
    """Its body says who that is, and an owner may have moved."""
    urls: dict[str, str] = {}
    client = HttpClient()
    peers = PeerForwarding(OwnersByMark(lambda id: (id, urls[id]) if id in urls else None), client)
    async with site() as one, site() as two, site(peers=peers) as between:
        urls |= {"one": one.url, "two": two.url}
        raw = await between.raw(b"")
        headers, _ = modern("tools/call", 1, "echo")
        for number, mark in enumerate(("one", "one", "two", "here", "two", "one")):
            if number == 4:
                urls |= {"one": two.url, "two": one.url}
            _, body = modern("tools/call", number, "echo", arguments={"at": number}, requestState=mark)
            answer = await asked(raw, post(body, *(f"{name}: {value}" for name, value in headers.items())))
            assert answer["id"] == number
        numbers = [[call.params["arguments"]["at"] for call in here.handler.calls] for here in (one, two, between)]
        assert numbers == [[0, 1, 4], [2, 5], [3]]
    await client.aclose()


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def refused(raw: Raw, data: bytes) -> int:
    raw.writer.write(data)
    return (await raw.answer())[0]


async def test_a_known_head_ends_with_its_key() -> None:
    clock = Clock()
    settings = IdentitySettings(keys=(key("a", A, expires=2_000.0),))
    async with site(identity=settings, identity_clock=clock) as here:
        raw = await here.raw(b"")
        for _ in range(3):
            await asked(raw, echo("same"))
        clock.now = 2_000.0
        assert await refused(raw, echo("same")) == 401
        clock.now = 1_000.0
        await asked(raw, echo("same"))
        here.identity.replace(IdentitySettings(keys=(key("a", "another"),)))
        assert await refused(raw, echo("same")) == 401
        assert len(here.handler.calls) == 4


async def test_a_known_head_ends_with_its_token() -> None:
    with issuer() as login:
        clock = Clock()
        clock.now = start = float(int(time.time()))
        settings = IdentitySettings(tokens=TokenSettings((TokenIssuer(login.url, AUDIENCE),)))
        async with site(identity=settings, identity_clock=clock, keysets=KeySets(Fetcher(Egress()), clock)) as here:
            token = login.token(exp=start + 100)
            raw, data = await here.raw(b""), echo("same").replace(A.encode(), token.encode())
            for _ in range(3):
                await asked(raw, data)
            clock.now = start + 100
            assert await refused(raw, data) == 401
            assert len(here.handler.calls) == 3


async def test_a_known_head_has_the_roles_that_are_in_force() -> None:
    async with site() as here:
        raw = await here.raw(b"")
        for roles in (("role:a",), ("role:b",), ()):
            here.identity.replace(IdentitySettings(keys=(key("a", A, roles=roles),)))
            await asked(raw, echo("same"))
        assert [seen.client.roles for seen in here.handler.calls] == [("role:a",), ("role:b",), ()]


async def test_a_known_head_is_anonymous_as_long_as_somebody_may_be() -> None:
    async with site(identity=ANYBODY) as here:
        raw, data = await here.raw(b""), echo("same").replace(f"Authorization: Bearer {A}\r\n".encode(), b"")
        for _ in range(3):
            await asked(raw, data)
        here.identity.replace(TWO_KEYS)
        assert await refused(raw, data) == 401


async def test_a_known_head_passes_the_policy_of_hosts_that_is_in_force() -> None:
    async with site(patch(ListenSettings(), "names", allowed_hosts=("mcp.acme.com",))) as here:
        raw, data = await here.raw(b""), echo("same").replace(b"Host: localhost", b"Host: mcp.acme.com")
        for _ in range(3):
            await asked(raw, data)
        here.listener._policy = HostOriginPolicy(ServedNames(), MCP_PORT)
        assert await refused(raw, data) == 421
        assert len(here.handler.calls) == 3


async def test_a_page_is_judged_at_each_request() -> None:
    async with site(patch(ListenSettings(), "names", allowed_origins=("https://app.acme.com",))) as here:
        raw, data = await here.raw(b""), echo("same", 1, "Origin: https://app.acme.com")
        for _ in range(3):
            await asked(raw, data)
        here.listener._policy = HostOriginPolicy(ServedNames(), MCP_PORT)
        assert await refused(raw, data) == 403
