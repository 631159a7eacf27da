"""A login by plain HTTP, step by step: how the tests of the peers drive an authorization server without any client.

hand = ByHand(metadata, resource)      the authorization server's metadata; registers itself, unless `client` says who
tokens = hand.login(user="bob")        the token endpoint's answer
hand.refresh(tokens["refresh_token"])  the same, as httpx.Response
"""

import base64
import hashlib
import secrets
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import httpx
from peers.fleet import Json
from peers.login.browser import Browser

CALLBACK = "http://127.0.0.1:7412/callback"


@dataclass(slots=True)
class ByHand:
    metadata: Json
    resource: str
    client: str = ""
    secret: str | None = None  # sent by client_secret_basic
    scope: str = "mcp:read"
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))

    def register(self, **more: object) -> httpx.Response:
        wanted = {
            "redirect_uris": [CALLBACK], "application_type": "native", "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code", "refresh_token"], **more,
        }  # fmt: skip
        answer = httpx.post(self.metadata["registration_endpoint"], json=wanted)
        if answer.status_code == 201:
            self.client, self.secret = answer.json()["client_id"], answer.json().get("client_secret")
        return answer

    def authorization_url(self, **more: str) -> str:
        challenge = base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code", "client_id": self.client, "redirect_uri": CALLBACK, "state": "st",
            "resource": self.resource, "code_challenge": challenge, "code_challenge_method": "S256",
            "scope": self.scope, **more,
        }  # fmt: skip
        return str(httpx.URL(self.metadata["authorization_endpoint"], params=asked))

    def answered(self, user: str | None = None, **more: str) -> dict[str, str]:
        """What the callback would be told."""
        with Browser(user) as browser:
            url = browser.stop_at(self.authorization_url(**more), CALLBACK)
        return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}

    def token(self, **fields: str) -> httpx.Response:
        auth = None if self.secret is None else (self.client, self.secret)
        named = {} if auth else {"client_id": self.client}
        return httpx.post(self.metadata["token_endpoint"], data={**named, **fields}, auth=auth)

    def exchange(self, code: str, **more: str) -> httpx.Response:
        fields = {"redirect_uri": CALLBACK, "code_verifier": self.verifier, "resource": self.resource, **more}
        return self.token(grant_type="authorization_code", code=code, **fields)

    def refresh(self, old: str) -> httpx.Response:
        return self.token(grant_type="refresh_token", refresh_token=old, resource=self.resource)

    def login(self, user: str | None = None) -> Json:
        if not self.client:
            self.register().raise_for_status()
        return dict(self.exchange(self.answered(user)["code"]).raise_for_status().json())
