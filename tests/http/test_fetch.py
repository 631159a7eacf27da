"""A careful GET against real servers: what it takes, what it refuses, and whom it never connects to."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest
from authority import context_for

from sluicegate.http.egress import AddressRefused, Egress
from sluicegate.http.fetch import MAX_BYTES, Fetcher, FetchRequest, Unfetched


@dataclass
class Site:
    """A server that answers by path, and counts who connects."""

    pages: dict[str, bytes]
    port: int = 0
    hits: int = 0
    heads: list[bytes] = field(default_factory=list)

    def url(self, path: str = "/doc", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.hits += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if head.startswith(b"CONNECT "):  # as a proxy that leads to this very server
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
            writer.write(self.pages.get(head.split()[1].decode(), b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n"))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def site(pages: dict[str, bytes], context: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    here = Site(pages)
    server = await asyncio.start_server(here.serve, "127.0.0.1", 0, ssl=context)
    here.port = server.sockets[0].getsockname()[1]
    try:
        with anyio.fail_after(60):
            yield here
    finally:
        server.close()


def page(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def moved(to: str) -> bytes:
    return b"HTTP/1.1 302 Found\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % to.encode()


async def test_a_document_of_the_configured_origin_is_had_without_credentials() -> None:
    async with site({"/doc": page(b"{}"), "/old": moved("/doc")}) as here:
        assert await Fetcher(Egress()).get(here.url(), here.url("/"), "x") == b"{}"
        assert await Fetcher(Egress()).get(here.url("/old"), here.url("/"), "x") == b"{}"
        assert not any(word in head.lower() for head in here.heads for word in (b"authorization", b"cookie"))


async def test_the_name_is_resolved_once_and_what_is_connected_to_must_prove_it() -> None:
    ours, theirs = context_for("localhost")
    async with site({"/doc": page(b"{}")}, theirs) as here:
        fetcher = Fetcher(Egress(), context=ours)
        url = here.url(host="localhost", scheme="https")
        assert await fetcher.get(url, url, "x") == b"{}"
        assert f"host: localhost:{here.port}".encode() in here.heads[0].lower()
        by_address = here.url(scheme="https")
        with pytest.raises(Unfetched, match="ConnectError"):  # the certificate is not for the address
            await fetcher.get(by_address, by_address, "x")


@pytest.mark.parametrize(
    "url",
    [
        lambda here: here.url(scheme="https"),
        lambda here: here.url(scheme="https", host="localhost"),
        lambda here: here.url(scheme="https", host="2130706433"),
        lambda here: here.url(scheme="https", host="0x7f.1"),
        lambda here: here.url(scheme="https", host="0177.0.0.1"),
        lambda here: here.url(scheme="https", host="[::ffff:127.0.0.1]"),
        lambda here: here.url(scheme="https", host="[::127.0.0.1]"),
        lambda here: here.url(scheme="https", host="0.0.0.0"),
        lambda here: here.url(host="localhost"),  # another origin, and not https
        lambda here: here.url().replace("//", "//user:secret@"),
    ],
)
async def test_what_somebody_else_names_is_not_reached_here(url: Callable[[Site], str]) -> None:
    refused: list[AddressRefused] = []
    async with site({"/doc": page(b"{}")}) as here:
        with pytest.raises(Unfetched) as error:
            await Fetcher(Egress(on_refused=refused.append)).get(url(here), "https://login.example.com", "x")
        assert here.hits == 0
        assert "secret" not in str(error.value)


async def test_what_the_operator_allows_is_reached() -> None:
    async with site({"/doc": page(b"{}")}) as here:
        url = here.url(scheme="https", host="localhost")
        with pytest.raises(Unfetched, match="ConnectTimeout"):
            await Fetcher(Egress(["127.0.0.0/8", "::1"]), within=2).get(url, "https://login.example.com", "x")
        assert here.hits == 1  # reached; it speaks no TLS


async def test_a_redirect_leaves_the_origin_never() -> None:
    async with site({}) as canary, site({}) as here:
        here.pages["/doc"] = moved(canary.url())
        here.pages["/loop"] = moved(here.url("/loop"))
        here.pages["/none"] = moved("//[")
        for path, why in (("/doc", "another origin"), ("/loop", "too often"), ("/none", "ValueError")):
            with pytest.raises(Unfetched, match=why):
                await Fetcher(Egress()).get(here.url(path), here.url("/"), "x")
        assert canary.hits == 0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (page(b"x" * (MAX_BYTES + 1)), "more than"),
        (b"HTTP/1.1 500 No\r\ncontent-length: 6\r\n\r\nsecret", "^HTTP 500$"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", "RemoteProtocolError"),
        (b"SSH-2.0-x\r\n", "RemoteProtocolError"),
    ],
)
async def test_a_bad_answer_is_an_error_that_repeats_nothing(answer: bytes, why: str) -> None:
    async with site({"/doc": answer}) as here:
        with pytest.raises(Unfetched, match=why):
            await Fetcher(Egress()).get(here.url(), here.url("/"), "x")


async def test_a_silent_server_is_given_up() -> None:
    async with site({}) as here:
        here.pages["/doc"] = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"
        silent = asyncio.Event()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await silent.wait()
            writer.close()

        server = await asyncio.start_server(hold, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(Unfetched, match=r"no answer|ReadTimeout"):
            await Fetcher(Egress(), within=1.0).get(url, url, "x")
        silent.set()
        server.close()


async def test_a_proxy_is_asked_for_names_and_literals_are_still_judged() -> None:
    async with site({"/doc": page(b"through")}) as proxy:
        fetcher = Fetcher(Egress(proxy=proxy.url("")))
        assert await fetcher.get("http://name.test/doc", "http://name.test/", "x") == b"through"
        with pytest.raises(Unfetched, match="link-local"):
            await fetcher.get("https://169.254.169.254/doc", "https://name.test/", "x")
        assert [head.split()[1] for head in proxy.heads] == [b"name.test:80", b"/doc"]


async def test_a_post_is_sent_once_with_its_body_and_follows_no_redirect() -> None:
    async with site({}) as here:
        here.pages["/token"] = moved("/doc")
        request = FetchRequest(here.url("/token"), (here.url("/"),), "x", "POST", [(b"x-a", b"1")], b"grant=1")
        answer = await Fetcher(Egress()).request(request)
        assert (answer.status, answer.all(b"location"), here.hits) == (302, ["/doc"], 1)
        assert b"x-a: 1" in here.heads[0] and b"content-length: 7" in here.heads[0]
        assert "grant" not in repr(request)


async def test_any_status_and_a_body_that_nobody_waits_for_are_answers() -> None:
    endless = b"HTTP/1.1 401 No\r\nwww-authenticate: Bearer a=1\r\nwww-authenticate: Bearer b=2\r\n"
    async with site({"/mcp": endless + b"content-length: 999999\r\n\r\n"}) as here:
        answer = await Fetcher(Egress()).request(FetchRequest(here.url("/mcp"), (here.url("/"),), "x", most=0))
        assert (answer.status, answer.all(b"www-authenticate"), answer.body) == (401, ["Bearer a=1", "Bearer b=2"], b"")


async def test_an_error_says_whether_the_request_may_have_been_read() -> None:
    async with site({"/": b""}) as here:
        fetcher, there = Fetcher(Egress()), "https://login.example.com"
        for url, configured, is_sent, is_blocked in (
            (here.url("/"), here.url("/"), True, False),
            ("http://127.0.0.1:1/", "http://127.0.0.1:1/", False, False),
            (here.url("/", scheme="https"), there, False, True),
            (here.url("/"), there, False, False),
        ):
            with pytest.raises(Unfetched) as error:
                await fetcher.request(FetchRequest(url, (configured,), "x"))
            assert (error.value.is_sent, error.value.is_blocked) == (is_sent, is_blocked)
        assert here.hits == 1


async def test_plain_http_on_this_machine_needs_a_caller_and_an_operator_who_allow_it() -> None:
    async with site({"/doc": page(b"{}")}) as here:
        request = FetchRequest(here.url(), ("https://login.example.com",), "x", loopback=True)
        with pytest.raises(Unfetched, match="allow_private"):
            await Fetcher(Egress()).request(request)
        assert here.hits == 0
        assert (await Fetcher(Egress(["127.0.0.1"])).request(request)).body == b"{}"
