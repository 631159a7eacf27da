"""A client that logs in at Sluice by hand, step by step, so that each step can go wrong."""

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from e2e.sluice_process import free_port
from e2e.wire import META
from peers.login.authorities import Authority, oidc_provider
from peers.login.browser import Browser
from policy_bed import Bed, bed, client_keys, recorder

Json = dict[str, Any]
CALLBACK = "http://127.0.0.1:33418/callback"


@dataclass(frozen=True, slots=True)
class Gateway:
    bed: Bed
    provider: Authority
    issuer: str
    """Sluice's own, as an authorization server."""

    @property
    def resource(self) -> str:
        return f"{self.issuer}/mcp"

    def metadata(self) -> Json:
        return dict(httpx.get(well_known(self.issuer), timeout=20).raise_for_status().json())

    def list(self, token: str) -> httpx.Response:
        return self._ask(token, "tools/list")

    def call(self, token: str, name: str, **arguments: Any) -> httpx.Response:
        return self._ask(token, "tools/call", name=name, arguments=arguments)

    def _ask(self, token: str, method: str, **params: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method,
                   "Accept": "application/json, text/event-stream"}  # fmt: skip
        headers |= {"Mcp-Name": params["name"]} if "name" in params else {}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        return httpx.post(self.resource, json=body, headers=headers, timeout=20)


def well_known(issuer: str) -> str:
    parts = urlsplit(issuer)
    return f"{parts.scheme}://{parts.netloc}/.well-known/oauth-authorization-server{parts.path}"


@contextmanager
def gateway(folder: Path, prefix: str = "", rows: str = "", **provider: Any) -> Iterator[Gateway]:
    """In front of a provider that registers nobody."""
    port = free_port()
    issuer = f"http://127.0.0.1:{port}{prefix}"
    client: Json = {
        "client_id": "sluice", "client_secret": "s3cret", "application_type": "native",
        "redirect_uris": [f"{issuer}/oauth/callback"], "grant_types": ["authorization_code"],
    }  # fmt: skip
    with oidc_provider(folder, clients=[client], registration=False, **provider) as authority:
        login = {"issuer": authority.issuer, "client_id": "sluice", "client_secret": "s3cret"}
        clients = {"keys": client_keys(bob=["role:lead"]), "login": login}
        listen = {"mcp": f"127.0.0.1:{port}", "public_url": f"{issuer}/mcp"}
        rows = rows.replace("ISSUER", authority.issuer) or f"p, jwt:{authority.issuer}#ann, fs, *, *, allow\n"
        servers = {"fs": recorder(folder, "fs", tools=["read"])}
        profile = {"tier": "other", "approvers": ["role:lead"], "quorum": 1, "expires": "30m"}
        approvals = {"hold_for": "0s", "profiles": {"a-lead": profile}}
        with bed(folder, rows, servers, clients=clients, listen=listen, approvals=approvals) as made:
            yield Gateway(made, authority, issuer)


@dataclass(slots=True)
class ClientLogin:
    """Each part of the requests can be another one than it should be."""

    gateway: Gateway
    browser: Browser
    name: str = "Editor"
    redirect_uri: str = CALLBACK
    id: str = ""
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))
    state: str = field(default_factory=lambda: secrets.token_urlsafe(16))

    def register(self, **more: Any) -> httpx.Response:
        wanted = {"client_name": self.name, "redirect_uris": [self.redirect_uri], **more}
        answer = httpx.post(f"{self.gateway.issuer}/oauth/register", content=json.dumps(wanted).encode(), timeout=20)
        if answer.status_code == 201:
            self.id = answer.json()["client_id"]
        return answer

    def request(self, **more: str) -> str:
        challenge = base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code", "client_id": self.id, "redirect_uri": self.redirect_uri, "state": self.state,
            "resource": self.gateway.resource, "code_challenge": challenge, "code_challenge_method": "S256", **more,
        }  # fmt: skip
        asked = {name: value for name, value in asked.items() if value}
        return str(httpx.URL(f"{self.gateway.issuer}/oauth/authorize", params=asked))

    def consent(self, **more: str) -> httpx.Response:
        """The page that asks, after the person signed in."""
        return self.browser.login(self.request(**more))

    def answer(self, page: httpx.Response, answer: str = "allow") -> httpx.Response:
        """What the form leads to; the redirect is not followed."""
        found = re.search(r'name="ticket" value="([^"]+)"', page.text)
        assert page.status_code == 200 and found, page.text
        self.browser.headers["Origin"] = "/".join(self.gateway.issuer.split("/")[:3])
        form = {"ticket": unescape(found[1]), "answer": answer}
        return self.browser.post(f"{self.gateway.issuer}/oauth/consent", form)

    def told(self, **more: str) -> dict[str, str]:
        """What the client is told at its redirect URI."""
        return query(self.answer(self.consent(**more)))

    def token(self, **fields: str) -> httpx.Response:
        form = {"client_id": self.id, **fields}
        return httpx.post(f"{self.gateway.issuer}/oauth/token", data=form, timeout=20)

    def exchange(self, code: str, **more: str) -> httpx.Response:
        fields = {"code": code, "redirect_uri": self.redirect_uri, "code_verifier": self.verifier, **more}
        return self.token(grant_type="authorization_code", **fields)

    def refresh(self, token: str, **more: str) -> httpx.Response:
        return self.token(grant_type="refresh_token", refresh_token=token, **more)

    def log_in(self) -> Json:
        if not self.id:
            assert self.register().status_code == 201
        return dict(self.exchange(self.told()["code"]).raise_for_status().json())


def query(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 303, answer.text
    return {name: values[0] for name, values in parse_qs(urlsplit(answer.headers["location"]).query).items()}


def events(made: Bed) -> list[str]:
    return [json.dumps(one) for one in made.audit() if one["type"] == "identity"]
