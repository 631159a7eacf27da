"""An OAuth token issuer as tests need it: a small HTTP server with metadata and public keys, and tokens of its own.

with issuer() as login:
    login.url, login.token(sub="ann", groups=["sre"]), login.rotate("k2"), login.fetches
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

Json = dict[str, Any]
AUDIENCE = "https://mcp.example.com/tools/mcp"
ADMIN_AUDIENCE = "https://mcp.example.com/admin"


@cache  # making one takes a tenth of a second
def rsa_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


@cache
def ec_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@cache
def ed_key(name: str) -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def public(key: Any, **more: Any) -> Json:
    """The public half as a JWK."""
    kinds = {rsa.RSAPrivateKey: "RS256", ec.EllipticCurvePrivateKey: "ES256", ed25519.Ed25519PrivateKey: "EdDSA"}
    name = next(name for kind, name in kinds.items() if isinstance(key, kind))
    made = jwt.get_algorithm_by_name(name).to_jwk(key.public_key(), as_dict=True)
    return {**{name: value for name, value in made.items() if name not in ("key_ops", "alg")}, **more}


@dataclass
class Issuer:
    url: str
    keys: list[Json] = field(default_factory=list)
    pages: dict[str, tuple[int, bytes, str]] = field(default_factory=dict)  # status, body and Location, by path
    fetches: list[str] = field(default_factory=list)

    def publish(self, **metadata: Any) -> None:
        document = {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **metadata}
        self.pages["/.well-known/oauth-authorization-server"] = 200, json.dumps(document).encode(), ""
        self.pages["/keys"] = 200, json.dumps({"keys": self.keys}).encode(), ""

    def rotate(self, kid: str) -> None:
        self.keys = [public(rsa_key(kid), kid=kid, alg="RS256", use="sig")]
        self.publish()

    def claims(self, **more: Any) -> Json:
        now = int(time.time())
        made = {"iss": self.url, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 600, **more}
        return {name: value for name, value in made.items() if value is not None}

    def token(self, *, key: Any = None, kid: str | None = "k1", alg: str = "RS256", head: Json | None = None,
              **claims: Any) -> str:  # fmt: skip
        headers = {**({"kid": kid} if kid is not None else {}), **(head or {})}
        return jwt.encode(self.claims(**claims), key or rsa_key("k1"), algorithm=alg, headers=headers)

    def jwks_fetches(self) -> int:
        return self.fetches.count("/keys")


class _Handler(BaseHTTPRequestHandler):
    site: Issuer

    def do_GET(self) -> None:
        self.site.fetches.append(self.path)
        status, body, location = self.site.pages.get(self.path, (404, b"{}", ""))
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if location:
            self.send_header("location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests have enough to print."""


@contextmanager
def issuer() -> Iterator[Issuer]:
    site = Issuer("")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": site}))
    site.url = f"http://127.0.0.1:{server.server_port}"
    site.rotate("k1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
