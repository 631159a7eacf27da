"""The port to which a browser returns, as other programs and pages of this machine meet it."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx
import pytest
from login_bench import Bench
from small_authorization_server import PRM, ProtectedServer, listening
from waiting import until

from sluicegate.app import login_callback
from sluicegate.app.login_callback import CallbackPort, LoginLinks
from sluicegate.login.model import Flow, LoginFailed, LoginInfo
from sluicegate.protocol.model import Client

INFO = LoginInfo("lgn_a", "srv", "local", "https://as.example.test", "sluice", ("a",), None, "ok", 1, True)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Finished:
    def __init__(self) -> None:
        self.queries: list[str] = []

    async def __call__(self, query: str, redirect_uri: str) -> LoginInfo:
        self.queries.append(query)
        if "state=good" not in query:
            raise LoginFailed('it says "<b>no</b>"')
        return INFO


@asynccontextmanager
async def opened(finish: Finished, port: int = 0) -> AsyncIterator[tuple[CallbackPort, httpx.AsyncClient]]:
    callback = CallbackPort(f"http://127.0.0.1:{port or free_port()}/callback", finish)
    async with callback.open() as there, httpx.AsyncClient(trust_env=False) as client:
        yield there, client


async def test_where_another_program_has_the_port_it_gets_no_code() -> None:
    with socket.socket() as theirs:
        theirs.bind(("127.0.0.1", 0))
        theirs.listen()
        port = int(theirs.getsockname()[1])
        async with opened(Finished(), port) as (there, _):
            assert there.redirect_uri.startswith("http://127.0.0.1:") and f":{port}/" not in there.redirect_uri


@pytest.mark.parametrize("more", ["next=https://evil.test", "redirect=//evil.test", "redirect_uri=https://evil.test",
                                  "url=%2f%2fevil.test", "state=good&next=//evil.test"])  # fmt: skip
async def test_no_query_leads_elsewhere(more: str) -> None:
    async with opened(Finished()) as (there, client):
        for state in ("good", "bad"):
            answer = await client.get(f"{there.redirect_uri}?state={state}&code=c-secret&{more}")
            assert "evil" not in answer.headers.get("location", "") + answer.text
            assert answer.status_code == 400 or answer.headers["location"] == "/done"
            assert "c-secret" not in answer.headers.get("location", "") + answer.text
        done = await client.get(there.redirect_uri.replace("/callback", "/done") + f"?{more}")
        assert done.status_code in (200, 404) and "evil" not in done.text + str(done.headers)


async def test_a_name_that_was_made_to_mean_this_machine_is_not_served() -> None:
    finish = Finished()
    async with opened(finish) as (there, client):
        for host in ("evil.test", "localhost", f"evil.test:{httpx.URL(there.redirect_uri).port}", ""):
            answer = await client.get(f"{there.redirect_uri}?state=good&code=c", headers={"host": host})
            assert answer.status_code == 400, host
        assert finish.queries == []
        assert (await client.post(f"{there.redirect_uri}?state=good&code=c")).status_code == 405
        assert (await client.get(f"{there.redirect_uri}?state=good&code=c")).status_code == 303


async def test_pages_run_nothing_stay_nowhere_and_show_what_peers_wrote_plainly() -> None:
    async with opened(Finished()) as (there, client):
        page = await client.get(f"{there.redirect_uri}?state=bad")
        assert "<b>" not in page.text and "&lt;b&gt;no" in page.text
        for answer in (page, await client.get(f"{there.redirect_uri}?state=good&code=c")):
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == ("no-store", "no-referrer")


async def test_metadata_elsewhere_are_read_without_a_token(bench: Bench) -> None:
    other = ProtectedServer(at=bench.at)
    async with listening(other):
        await bench.log_in()
        bearer = await bench.logins.bearer("srv", "local")
        bench.clock.added += 6  # the token is not young any more
        await bench.refused(bearer, challenge=f'Bearer resource_metadata="{other.url}{PRM}/mcp"')
        assert other.seen and not [seen for seen in other.seen if "authorization" in seen.headers or seen.body]


async def test_no_login_that_somebody_else_began_ends_at_our_port(bench: Bench) -> None:
    """PKCE and `state` do not stop Eve from sending her link to whoever runs Sluice, with our port in it."""
    async with anyio.create_task_group() as group, httpx.AsyncClient(trust_env=False) as client:
        link = await LoginLinks(bench.logins, group).begin(
            "srv", "local", f"http://127.0.0.1:{free_port()}/callback", Client("local")
        )
        back = dict(parse_qsl(urlsplit(link.url).query))["redirect_uri"]
        theirs = await bench.logins.begin("srv", "key:eve", back, by=Client("key:eve"))
        answer = await client.get(f"{back}?{bench.at.authorize(theirs.url)}")
        assert answer.status_code == 400 and await bench.logins.all() == []
        assert (await client.get(f"{back}?{bench.at.authorize(link.url)}")).status_code == 303
        assert [one.whose for one in await bench.logins.all()] == ["local"]
        group.cancel_scope.cancel()


async def test_a_login_that_begins_right_after_another_returns_to_the_same_port(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client is registered with that address. The port is still open then, for the page that says who is in."""
    monkeypatch.setattr(login_callback, "LINGER", 0.3)
    callback = f"http://127.0.0.1:{free_port()}/callback"
    async with anyio.create_task_group() as group, httpx.AsyncClient(trust_env=False) as client:
        links, ports = LoginLinks(bench.logins, group), list[int | None]()
        for whose in ("key:ann", "key:bob"):
            link = await links.begin("srv", whose, callback, Client(whose))
            back = dict(parse_qsl(urlsplit(link.url).query))["redirect_uri"]
            ports.append(urlsplit(back).port)
            assert (await client.get(f"{back}?{bench.at.authorize(link.url)}")).status_code == 303
            await until(lambda: not links._flows)
        group.cancel_scope.cancel()
    assert ports == [urlsplit(callback).port] * 2


async def test_a_login_that_ends_while_another_begins_leaves_the_port_open_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_callback, "LINGER", 0.0)
    begin = bench.logins.begin
    async with anyio.create_task_group() as group, httpx.AsyncClient(trust_env=False) as client:
        links = LoginLinks(bench.logins, group)
        first = await links.begin("srv", "key:ann", f"http://127.0.0.1:{free_port()}/callback", Client("key:ann"))
        back = dict(parse_qsl(urlsplit(first.url).query))["redirect_uri"]

        async def begin_late(*asked: Any, **more: Any) -> Flow:
            assert (await client.get(f"{back}?{bench.at.authorize(first.url)}")).status_code == 303
            await until(lambda: not links._flows)
            return await begin(*asked, **more)

        monkeypatch.setattr(bench.logins, "begin", begin_late)
        second = await links.begin("srv", "key:bob", back, Client("key:bob"))
        await anyio.sleep(0.1)
        assert (await client.get(f"{back}?{bench.at.authorize(second.url)}")).status_code == 303
        group.cancel_scope.cancel()
