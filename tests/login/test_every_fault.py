"""Whatever a server or an authorization server does at any step, a login ends in one of three ways, and plainly."""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from login_bench import BACK, Clock
from peers.login import faults
from peers.login.misbehaving import Misbehaving, misbehaving

from sluicegate.app.login_service import opener
from sluicegate.http.egress import Egress
from sluicegate.http.fetch import Fetcher
from sluicegate.login import network
from sluicegate.login.logins import Logins
from sluicegate.login.model import Bearer, LoginFailed, LoginNeeded, LoginSettings, LoginUnavailable
from sluicegate.store.memory import MemoryStore

FETCHER = Fetcher(Egress(["127.0.0.1"]))  # making a TLS context takes longer than a login
KNOWN = (LoginFailed, LoginNeeded, LoginUnavailable)
ENDPOINTS = ("prm", "metadata", "register", "token.authorization_code", "token.refresh_token", "revoke", "mcp")
FAULTS = {
    "500": faults.failing(500), "404": faults.failing(404), "401": faults.failing(401), "429": faults.failing(429),
    "204": faults.failing(204, ""), "html": faults.html(), "moved": faults.redirecting("https://evil.example.com/"),
    "moved here": faults.redirecting("/elsewhere", 307), "closed": faults.closing(), "silent": faults.silent(),
    "too much": faults.flooding(8 << 20), "array": faults.telling("[]"), "null": faults.telling("null"),
    "nothing": faults.telling("{}"), "nested": faults.telling("[" * 50_000), "bytes": faults.telling("\x00\x01\ud7ff"),
    "refused": faults.refusing("invalid_request"), "odd error": faults.refusing("\x1b[31m\n" * 50),
}  # fmt: skip
ODD = (
    None, 5, -1, True, [], {}, "", "x" * 5000, "\x00\n\x1b[31m", ["x", None, 5], {"a": {"b": 1}}, "http://[",
    "https://\u00e9/",
)  # fmt: skip


@pytest.fixture(scope="module")
def site() -> Iterator[Misbehaving]:
    with misbehaving() as site:
        yield site


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "TOKEN_WITHIN", 0.5)
    monkeypatch.setattr(FETCHER, "within", 0.5)


def new(site: Misbehaving, folder: Path, clock: Callable[[], float] = time.time) -> Logins:
    seal = opener(folder / "keys", "file")
    logins = Logins(MemoryStore(), seal, FETCHER, lambda event: None, clock)
    logins.configure({"srv": LoginSettings("srv", site.mcp, site.mcp)})
    return logins


async def whole_life(site: Misbehaving, folder: Path) -> list[str]:
    """Logs in, uses the token, has it refused, logs out. What each step ended with."""
    ends: list[str] = []
    clock = Clock(time.time)
    logins = new(site, folder, clock)
    bearer: Bearer | None = None
    try:
        flow = await logins.begin("srv", "local", BACK)
        async with httpx.AsyncClient(trust_env=False, verify=False) as browser:
            back = (await browser.get(flow.url)).headers["location"]
        await logins.finish(urlsplit(back).query, BACK)
        bearer = await logins.bearer("srv", "local")
    except KNOWN as error:
        ends.append(str(error))
        return ends
    try:
        for clock.added in (10, 20):
            bearer = await logins.rejected("srv", "local", bearer, 401, ["Bearer"])
    except KNOWN as error:
        ends.append(str(error))
    await logins.logout("srv", "local")
    assert await logins.all() == []
    return ends


async def test_without_a_fault_all_goes_well(site: Misbehaving, tmp_path: Path) -> None:
    site.forget()
    assert await whole_life(site, tmp_path) == []
    assert [len(site.of("token", grant_type=name)) for name in ("authorization_code", "refresh_token")] == [1, 2]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_at_any_step_ends_plainly(site: Misbehaving, tmp_path: Path, endpoint: str, fault: str) -> None:
    site.forget()
    site.faults[endpoint] = FAULTS[fault]
    try:
        with anyio.fail_after(20):
            ends = await whole_life(site, tmp_path)
    finally:
        site.faults.clear()
    text = " ".join(ends)
    assert text.isprintable() and all(len(end) < 400 for end in ends)
    assert "evil" not in text and not any(secret in text for secret in site.secrets())
    assert len(site.of("token")) <= 8


MEMBERS = {
    "prm": ("resource", "authorization_servers", "scopes_supported"),
    "metadata": (
        "issuer", "authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint",
        "scopes_supported", "code_challenge_methods_supported", "token_endpoint_auth_methods_supported",
        "client_id_metadata_document_supported", "authorization_response_iss_parameter_supported",
    ),
    "registration": (
        "client_id", "client_secret", "client_secret_expires_at", "token_endpoint_auth_method", "redirect_uris",
    ),
    "token": ("access_token", "token_type", "refresh_token", "expires_in", "scope", "error"),
}  # fmt: skip


@pytest.mark.parametrize(("document", "member"), [(name, one) for name, members in MEMBERS.items() for one in members])
async def test_a_member_of_any_other_type_ends_plainly(
    site: Misbehaving, tmp_path: Path, document: str, member: str
) -> None:
    for number, value in enumerate(ODD):
        folder = tmp_path / str(number)
        setattr(site.switches, document, {member: value})
        try:
            with anyio.fail_after(20):
                ends = await whole_life(site, folder)
        except (httpx.HTTPError, KeyError):  # the authorization server itself takes no such client
            continue
        finally:
            setattr(site.switches, document, {})
        assert " ".join(ends).isprintable() and all(len(end) < 400 for end in ends), value


@pytest.mark.parametrize("eras", [("legacy",), ("modern",), ("legacy", "modern")])
@pytest.mark.parametrize("open_methods", [(), ("initialize", "server/discover"), ("initialize",)])
async def test_the_challenge_is_found_in_either_era(
    site: Misbehaving, tmp_path: Path, eras: Any, open_methods: Any
) -> None:
    site.switches.eras, site.switches.open_methods, site.switches.scope_asked = eras, open_methods, "read"
    try:
        flow = await new(site, tmp_path).begin("srv", "local", BACK)
        assert "scope=read" in flow.url
    finally:
        site.switches.eras, site.switches.open_methods, site.switches.scope_asked = ("legacy", "modern"), (), None


@pytest.mark.parametrize(("prm_at", "named", "forms"), list(itertools.product(
    ("path", "root", "/custom/prm"), (True, False), (("oauth",), ("openid",), ("openid-appended",))
)))  # fmt: skip
async def test_metadata_are_found_wherever_they_may_be(
    site: Misbehaving, tmp_path: Path, prm_at: str, named: bool, forms: tuple[str, ...]
) -> None:
    switches = site.switches
    switches.prm_at, switches.prm_named, switches.metadata_at, switches.issuer_path = prm_at, named, forms, "/tenant1"
    try:
        logins = new(site, tmp_path)
        if prm_at == "/custom/prm" and not named:
            return
        flow = await logins.begin("srv", "local", BACK)
        assert flow.url.startswith(f"{site.url}/authorize")
    finally:
        switches.prm_at, switches.prm_named, switches.issuer_path = "path", True, ""
        switches.metadata_at = ("oauth", "openid", "openid-appended")
