"""Starts the peers of a login as processes.

with oidc_provider(folder, access_life=5) as authority:
    authority.issuer, authority.counts()["token.refresh_token"], authority.set(user="bob", down=True)

    with guarded_server(folder, authority.issuer, sdk=1) as server:
        server.url, server.seen()

What `oidc_provider` takes is listed in oidc_provider.cjs.
"""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
from peers.fleet import Json, node_environment, printed_url, running
from peers.install import MCP1, MCP2, NODE

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Authority:
    """An `oidc-provider` that runs."""

    issuer: str

    def metadata(self) -> Json:
        return dict(httpx.get(f"{self.issuer}/.well-known/oauth-authorization-server").raise_for_status().json())

    def counts(self) -> Counter[str]:
        """How often each endpoint was asked since the start: `discovery`, `registration`, `authorization`, `token`,
        `token.authorization_code`, `token.refresh_token`, `token.refresh_token.invalid_grant`, `revocation`,
        `introspection`, `jwks`, `device_authorization`, `interaction`, `down`."""
        return Counter(httpx.get(f"{self.issuer}/__counts").raise_for_status().json())

    def set(self, **state: Any) -> None:
        """`user`: who logs in from now on; `down`: whether all is answered with 503."""
        httpx.post(f"{self.issuer}/__set", json=state).raise_for_status()


@contextmanager
def oidc_provider(folder: Path, **options: Any) -> Iterator[Authority]:
    log = folder / "oidc_provider.log"
    command = [str(NODE), str(HERE / "oidc_provider.cjs"), json.dumps(options)]
    environment = os.environ | node_environment()
    with running(command, log, env=environment, stdout=subprocess.PIPE) as process:
        yield Authority(printed_url(process, log))


@dataclass(frozen=True, slots=True)
class Guarded:
    """An MCP server that wants tokens."""

    url: str

    def seen(self) -> list[Json]:
        """The messages that came: `method`, `tool`, `token`, `status` of each; GET and DELETE have no `method`."""
        return list(httpx.get(self.url.removesuffix("/mcp") + "/__seen").raise_for_status().json())


@contextmanager
def guarded_server(folder: Path, issuer: str, *arguments: str, sdk: Literal[1, 2] = 2) -> Iterator[Guarded]:
    """What it has and takes is said in resource_server.py."""
    log = folder / f"resource_server{sdk}.log"
    python = MCP2 if sdk == 2 else MCP1
    command = [str(python / "python"), str(HERE / "resource_server.py"), "--issuer", issuer, *arguments]
    with running(command, log, stdout=subprocess.PIPE) as process:
        yield Guarded(printed_url(process, log))
