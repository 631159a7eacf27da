"""The public keys of token issuers: fetched when they are needed first, kept, and fetched anew in bounded measure.

Anybody can send a token that names a key nobody has: so a miss leads to a fetch only so many times in a while, one at
a time, and never delays those whose key is there. What was good stays good while the issuer cannot be asked.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import anyio

from sluicegate.http.fetch import Fetcher, Unfetched
from sluicegate.listen.auth.jws import Jws, is_signed_by, public_keys
from sluicegate.policy.rates import Windows
from sluicegate.protocol.jsonrpc import Json, Malformed, decode

FRESH: Final = 300.0  # seconds until keys are fetched anew
STALE: Final = 24 * 3600.0  # seconds that they are used without the issuer having been reached
WINDOW, PER_WINDOW = 60.0, 4  # fetches beside that
WITHIN: Final = 8.0  # seconds for all that a fetch takes
MAX_KEYS: Final = 100
MAX_TRIED: Final = 8  # keys for one token
_MAX_DEPTH: Final = 12

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenIssuer:
    """Whose tokens are taken. `jwks` is the URL of the keys, or `auto`; `typ` what tokens have to say they are."""

    issuer: str
    audience: str
    jwks: str = "auto"
    roles_from: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    typ: str | None = None


class KeySets:
    """One key set for each issuer, shared by all ports."""

    def __init__(self, fetcher: Fetcher | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetcher, self._clock = fetcher, clock
        self._all: dict[tuple[str, str], KeySet] = {}

    def of(self, issuer: TokenIssuer) -> "KeySet":
        endpoint = (issuer.issuer, issuer.jwks)
        return self._all.setdefault(endpoint, KeySet(*endpoint, self._fetcher, self._clock))

    def problems(self) -> list[str]:
        """Why tokens may be refused that are good, as sentences without a full stop."""
        return [f"the keys of the token issuer {key[0]} cannot be had: {one.problem}"
                for key, one in self._all.items() if one.problem]  # fmt: skip

    def keep(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Forgets the keys of all others."""
        places = set(wanted)
        self._all = {endpoint: keys for endpoint, keys in self._all.items() if endpoint in places}


class KeySet:
    def __init__(self, issuer: str, jwks: str, fetcher: Fetcher | None, clock: Callable[[], float]) -> None:
        self._issuer, self._jwks, self._fetcher, self._clock = issuer, jwks, fetcher, clock
        self._keys: tuple[Json, ...] = ()
        self._good = float("-inf")  # when a fetch last went well
        self._count = 0
        self.problem = ""  # of the last fetch, and when it was: nobody fetches before the next token comes
        self._fetches = Windows(PER_WINDOW, WINDOW, clock)
        self._turn = asyncio.Lock()

    async def judge(self, token: Jws) -> str:
        """Empty if one of the issuer's keys made that signature, else a word for why it is not good."""
        fetches = self._count
        if self._clock() - self._good > FRESH and not (self._keys and self._turn.locked()):
            await self._fetch()
        if self._clock() - self._good > STALE:
            self._keys = ()
        found = self._candidates(token)
        if any(is_signed_by(token, key) for key in found):
            return ""
        if (found and "kid" in token.header) or self._count != fetches:
            return self._why(found)
        await self._fetch()
        found = self._candidates(token)
        return "" if any(is_signed_by(token, key) for key in found) else self._why(found)

    def _why(self, found: list[Json]) -> str:
        return "signature" if found else "unknown_key" if self._keys else "no_keys"

    def _candidates(self, token: Jws) -> list[Json]:
        kid = token.header.get("kid")
        return [key for key in self._keys if kid is None or key.get("kid") == kid][:MAX_TRIED]

    async def _fetch(self) -> None:
        """Fetches once for all callers that wait; not at all if fetches were too frequent."""
        before = self._count
        async with self._turn:
            if self._count != before or self._fetches.hit(self._jwks) > 0:
                return
            try:
                with anyio.fail_after(WITHIN):
                    self._keys = await self._get()
                self._good, self.problem = self._clock(), ""
            except (Unfetched, TimeoutError) as error:
                why = str(error) or f"no answer within {WITHIN:g} s"
                self.problem = f"{why} (last tried at {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC)"
                log.warning("the keys of a token issuer cannot be had", extra={"issuer": self._issuer, "why": why})
            self._count += 1  # last: who came while it went on has waited for this one

    async def _get(self) -> tuple[Json, ...]:
        if self._fetcher is None:
            raise Unfetched("nothing may be fetched")
        url = self._jwks if self._jwks != "auto" else await self._discover(self._fetcher)
        configured = self._issuer if self._jwks == "auto" else self._jwks
        keys = tuple(public_keys(await self._json(self._fetcher, url, configured), MAX_KEYS))
        if not keys:
            raise Unfetched("there is no public key in the key set")
        return keys

    async def _discover(self, fetcher: Fetcher) -> str:
        """RFC 8414 3.1 puts the well-known part before the issuer's path, OpenID Connect Discovery 4 after it.
        2026-07-28 basic/authorization/authorization-server-discovery: both are asked, in that order."""
        parts = urlsplit(self._issuer)
        host, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        why: list[str] = []
        for url in (
            f"{host}/.well-known/oauth-authorization-server{path}",
            f"{host}/.well-known/openid-configuration{path}" if path else "",
            f"{host}{path}/.well-known/openid-configuration",
        ):
            if not url:
                continue
            try:
                document = await self._json(fetcher, url, self._issuer)
            except Unfetched as error:
                why.append(str(error))
                continue
            # RFC 8414 3.3: another issuer's metadata must not be used
            if isinstance(document, dict) and document.get("issuer") == self._issuer:
                if isinstance(named := document.get("jwks_uri"), str):
                    return named
            why.append("its metadata is not its own")
        raise Unfetched(f"metadata: {', '.join(dict.fromkeys(why))}")

    async def _json(self, fetcher: Fetcher, url: str, configured: str) -> object:
        data = await fetcher.get(url, configured, f"issuer {self._issuer}")
        try:
            document: object = decode(data, _MAX_DEPTH)
        except Malformed:
            raise Unfetched("not JSON") from None
        return document
