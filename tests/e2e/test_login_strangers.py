"""Whoever has shown no credential makes Sluice ask others seldom, learns nothing of what is inside, and is recorded."""

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from e2e.sluice_process import free_port
from peers.login.faults import failing, silent, slow
from peers.login.misbehaving import Misbehaving, misbehaving
from policy_bed import Bed, bearer, bed, client_keys

Json = dict[str, Any]
ROWS = "p, role:everyone, mail, *, *, allow\n"
APPLICATION = "cursor://anysphere.cursor-mcp/oauth/callback"


@pytest.fixture
def provider() -> Iterator[Misbehaving]:
    with misbehaving() as found:
        yield found


@contextmanager
def gateway(folder: Path, provider: Misbehaving, **config: Any) -> Iterator[tuple[Bed, str]]:
    """Both kinds of login at one provider; and the URL beside which the pages are."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    at = {"issuer": provider.issuer, "client_id": "sluice", "client_secret": "s3cret"}
    clients = {"keys": client_keys(ann=[], bob=[]), "login": at}
    servers = {"mail": {"url": "http://127.0.0.1:9/mcp", "required": False}}
    listen = {"mcp": f"127.0.0.1:{port}", "public_url": f"{base}/mcp"}
    config = {"login": {"idp": at}} | config
    with bed(folder, ROWS, servers, ready=False, clients=clients, listen=listen, **config) as there:
        there.process.wait_answering()
        yield there, base


def register(base: str, uri: str = "http://127.0.0.1:5/callback") -> httpx.Response:
    return httpx.post(f"{base}/oauth/register", json={"client_name": "x", "redirect_uris": [uri]}, timeout=20)


def authorize(base: str, client: str, uri: str = "http://127.0.0.1:5/callback", **more: str) -> str:
    asked = {"response_type": "code", "client_id": client, "redirect_uri": uri, "code_challenge": "x" * 43,
             "code_challenge_method": "S256", **more}  # fmt: skip
    return f"{base}/oauth/authorize?{urlencode(asked)}"


def page(base: str, kind: str) -> str:
    """Where a sign-in at the provider begins, for anybody."""
    return f"{base}/login/mail" if kind == "login" else authorize(base, register(base).json()["client_id"])


def came_back(begun: httpx.Response) -> str:
    """What the provider sends the browser to after that page; the code is made up."""
    found = begun.headers.get("location") or unescape(re.findall(r'<a href="([^"]+)"', begun.text)[0])
    asked = {name: values[0] for name, values in parse_qs(urlsplit(found).query).items()}
    answer = {"state": asked["state"], "code": "made-up", "iss": f"{begun.url.scheme}://{urlsplit(found).netloc}"}
    return f"{asked['redirect_uri']}?{urlencode(answer)}"


def cookie_of(begun: httpx.Response) -> dict[str, str]:
    return {"Cookie": begun.headers["set-cookie"].partition(";")[0]}


async def all_at_once(urls: list[str], headers: list[dict[str, str]] | None = None) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=len(urls))
    async with httpx.AsyncClient(limits=limits, timeout=30, trust_env=False) as client:
        asked = zip(urls, headers or [{}] * len(urls), strict=True)
        return await asyncio.gather(*(client.get(url, headers=more) for url, more in asked))


@pytest.mark.parametrize("kind", ["login", "oauth"])
async def test_a_provider_that_hangs_is_asked_once_for_all(tmp_path: Path, provider: Misbehaving, kind: str) -> None:
    provider.faults["metadata"] = silent()
    with gateway(tmp_path, provider) as (_, base):
        url = await asyncio.to_thread(page, base, kind)
        before = len(provider.of("metadata"))
        answers = await all_at_once([url] * 40)
        assert sorted(one.status_code for one in answers) == [502] * 16 + [503] * 24
        assert all("retry-after" in one.headers for one in answers if one.status_code == 503)
        assert len(provider.of("metadata")) == before + 1


@pytest.mark.parametrize("kind", ["login", "oauth"])
def test_a_provider_that_fails_is_not_asked_again_at_once(tmp_path: Path, provider: Misbehaving, kind: str) -> None:
    provider.faults["metadata"] = failing(500)
    with gateway(tmp_path, provider) as (there, base):
        url = page(base, kind)
        before = len(provider.of("metadata"))
        said = [httpx.get(url, timeout=20) for _ in range(5)]
        assert {one.status_code for one in said} == {502} and len(provider.of("metadata")) == before + 1
        assert "HTTP 500" not in said[0].text and "HTTP 500" in there.process.log()


@pytest.mark.parametrize("kind", ["login", "oauth"])
def test_a_sign_in_is_one_request_with_our_secret(tmp_path: Path, provider: Misbehaving, kind: str) -> None:
    with gateway(tmp_path, provider) as (_, base):
        begun = httpx.get(page(base, kind), timeout=20)
        said = [httpx.get(came_back(begun), headers=cookie_of(begun), timeout=20) for _ in range(5)]
        assert {one.status_code for one in said} == {400} and "used already" in said[-1].text
        assert len(provider.of("token")) == 1


async def test_a_sign_in_that_found_no_place_is_not_spent(tmp_path: Path, provider: Misbehaving) -> None:
    with gateway(tmp_path, provider) as (_, base):
        begun = await asyncio.to_thread(lambda: [httpx.get(f"{base}/login/mail", timeout=20) for _ in range(20)])
        provider.faults["token"] = slow(4)
        answers = await all_at_once(list(map(came_back, begun)), [cookie_of(one) for one in begun])
        assert sorted(one.status_code for one in answers) == [400] * 16 + [503] * 4
        provider.faults.clear()
        refused = next(sent for sent, got in zip(begun, answers, strict=True) if got.status_code == 503)
        again = (await all_at_once([came_back(refused)], [cookie_of(refused)]))[0]
        assert again.status_code == 400 and "used already" not in again.text and len(provider.of("token")) == 17


def test_no_address_opens_pages_all_the_time(tmp_path: Path, provider: Misbehaving) -> None:
    with gateway(tmp_path, provider) as (_, base), httpx.Client(timeout=20) as client:
        codes = [client.get(f"{base}/login/done/mail").status_code for _ in range(610)]
        assert (codes[0], codes[-1]) == (404, 429)
        document = client.get(f"{base}/login/client/mail.json").json()
        assert document["client_id"] == f"{base}/login/client/mail.json" and document["client_name"] == "Sluice: mail"
        ours, terminals = document["redirect_uris"]
        assert ours == f"{base}/login/callback/mail" and terminals.startswith("http://127.0.0.1:")
        assert client.get(f"{base}/login/client/other.json").status_code == 404


async def test_documents_of_clients_are_fetched_sixteen_at_once(tmp_path: Path, provider: Misbehaving) -> None:
    """Their host takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as host:
        network = {"allow_private": ["127.0.0.1"]}
        with gateway(tmp_path, provider, network=network) as (_, base):
            ids = [f"https://127.0.0.1:{host.getsockname()[1]}/{number}" for number in range(20)]
            answers = await all_at_once([authorize(base, id) for id in ids])
            assert sorted(one.status_code for one in answers) == [400] * 16 + [503] * 4


def test_a_page_does_not_say_what_a_name_means(tmp_path: Path, provider: Misbehaving) -> None:
    with gateway(tmp_path, provider) as (there, base):
        hosts = "localhost", "127.0.0.1", "169.254.169.254", "0x7f.1", "nowhere.invalid"
        pages = {httpx.get(authorize(base, f"https://{host}/client"), timeout=20).text for host in hosts}
        assert len(pages) == 1 and "cannot be had" in pages.pop()
        lines = [json.loads(line) for line in there.process.log().splitlines() if "document of a client" in line]
        why = {line["host"]: line["why"] for line in lines}
        assert "localhost is 127.0.0.1: a private address" in why["localhost"] or "::1" in why["localhost"]
        assert why["nowhere.invalid"] == "the name of its host is not known"


def test_no_client_registers_a_tool_of_the_system(tmp_path: Path, provider: Misbehaving) -> None:
    schemes = ("search-ms", "search", "ms-msdt", "ms-officecmd", "ms-appinstaller", "feed", "view-source", "jar",
               "filesystem", "intent")  # fmt: skip
    with gateway(tmp_path, provider) as (_, base):
        answers = {scheme: register(base, f"{scheme}:x") for scheme in schemes}
        assert {one: answer.status_code for one, answer in answers.items()} == dict.fromkeys(schemes, 400)
        assert {answer.json()["error"] for answer in answers.values()} == {"invalid_redirect_uri"}


def test_an_error_opens_no_program_before_a_person_was_asked(tmp_path: Path, provider: Misbehaving) -> None:
    with gateway(tmp_path, provider) as (_, base):
        client = register(base, APPLICATION).json()["client_id"]
        for wrong in ({"response_type": "token"}, {"code_challenge": "x"}, {"resource": "https://other.example/"}):
            answer = httpx.get(authorize(base, client, APPLICATION, **wrong), timeout=20)
            assert answer.status_code == 400 and "location" not in answer.headers
        local = register(base).json()["client_id"]
        told = httpx.get(authorize(base, local, response_type="token"), timeout=20)
        assert told.headers["location"].startswith("http://127.0.0.1:5/callback?error=unsupported_response_type")


def _to_api(base: str, key: Json) -> httpx.Response:
    return httpx.post(f"{base}/login/api/mail", json={}, headers=key, timeout=20)


def _to_page(base: str, key: Json) -> httpx.Response:
    form = {"key": str(key["Authorization"]).removeprefix("Bearer ")}
    return httpx.post(f"{base}/login/mail", data=form, headers={"Origin": base}, timeout=20)


@pytest.mark.parametrize(("send", "status"), [(_to_api, 401), (_to_page, 403)], ids=["api", "page"])
def test_wrong_credentials_are_recorded_and_few(tmp_path: Path, provider: Misbehaving, send: Any, status: int) -> None:
    with gateway(tmp_path, provider) as (there, base):
        codes = [send(base, bearer(f"nobody{number}")).status_code for number in range(6)]
        assert codes == [status] * 5 + [429]
        assert send(base, bearer("ann")).status_code == 429, "else guesses could go on, and the good one would count"
        there.process.interrupt()
        (record,) = [one for one in there.audit() if one["type"] == "identity"]
        assert (record["count"], record["reasons"]) == (5, {"login_credential": 5})
        assert "nobody" not in json.dumps(there.audit())


def test_credentials_that_are_good_are_not_counted_as_wrong(tmp_path: Path, provider: Misbehaving) -> None:
    with gateway(tmp_path, provider) as (_, base):
        assert [_to_api(base, bearer("ann")).status_code for _ in range(10)] == [400] * 10
