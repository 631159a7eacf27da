"""Bearer tokens of OAuth issuers (RFC 9068, RFC 7519): taken if everything about them is as configured, else refused.

A token is verified once; until it expires its digest is enough. Knows claims and clocks; fetches no key by itself
and decides no right: what a claim says becomes a group, never a role.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sluicegate.listen.auth import jws
from sluicegate.listen.auth.issuers import KeySets, TokenIssuer
from sluicegate.listen.auth.jws import Jws
from sluicegate.listen.auth.principal import CredentialRefused, Principal
from sluicegate.protocol.jsonrpc import Json, inside

SKEW: Final = 60.0  # seconds that an issuer's clock may be ahead of ours
MAX_KNOWN: Final = 4_096
MAX_NAMES: Final = 65_536
MAX_PER_NAME: Final = 8
"""Sets of groups of one subject of which a token is known; of more, the one that ends first is forgotten."""
MAX_GROUPS: Final = 200
MAX_TEXT: Final = 256
_TYPES: Final = frozenset({"jwt", "at+jwt"})


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """`scopes` are the scopes that every token must have."""

    issuers: tuple[TokenIssuer, ...] = ()
    scopes: tuple[str, ...] = ()


class Tokens:
    def __init__(self, keysets: KeySets, clock: Callable[[], float]) -> None:
        self._keysets, self._clock = keysets, clock
        self._settings = TokenSettings()
        self._issuers: dict[str, list[TokenIssuer]] = {}
        self._verified: dict[str, Principal] = {}
        # By name and groups: of the tokens seen, the one that lasts longest.
        self._there: dict[str, dict[frozenset[str], tuple[TokenIssuer, Principal]]] = {}

    def replace(self, settings: TokenSettings) -> None:
        """Every token is verified anew. Principals of an unchanged issuer stay current."""
        self._verified.clear()
        self._issuers = {one.issuer: [] for one in settings.issuers}
        for one in settings.issuers:
            self._issuers[one.issuer].append(one)
        same = set(settings.issuers) if settings.scopes == self._settings.scopes else set()
        for name, ones in list(self._there.items()):
            unchanged = {roles: entry for roles, entry in ones.items() if entry[0] in same}
            self._there |= {name: unchanged}
        self._there = {name: ones for name, ones in self._there.items() if ones}
        self._settings = settings

    def verified(self, digest: str) -> Principal | None:
        return self._verified.get(digest)

    def find(self, name: str, roles: Iterable[str] | None = None) -> Principal | None:
        """Of those tokens of a subject that are good, and have just these groups where some are said, the one that
        lasts longest: another one gives other rights."""
        there = self._there.get(name, {})
        ones = there.values() if roles is None else [one for one in (there.get(frozenset(roles)),) if one is not None]
        good = [principal for _, principal in ones if not self._is_over(principal)]
        return max(good, key=lambda one: one.expires or 0, default=None)

    def current(self) -> set[str]:
        """Whoever has a token that is still good, as far as it was shown. Forgets the others."""
        for name in [name for name in self._there if self.find(name) is None]:
            del self._there[name]
        return set(self._there)

    def _is_over(self, principal: Principal) -> bool:
        return principal.expires is not None and self._clock() >= principal.expires

    def _remember(self, digest: str, issuer: TokenIssuer, principal: Principal) -> None:
        if len(self._verified) >= MAX_KNOWN:
            self._verified = {key: one for key, one in self._verified.items() if not self._is_over(one)}
        if len(self._verified) >= MAX_KNOWN:
            self._verified.clear()
        self._verified[digest] = principal
        before = self.find(principal.name, principal.roles)
        if before is not None and (principal.expires or 0) < (before.expires or 0):
            return
        if len(self._there) >= MAX_NAMES:
            self._there.pop(next(iter(self._there)))
        ones = self._there.setdefault(principal.name, {})
        if len(ones) >= MAX_PER_NAME and frozenset(principal.roles) not in ones:
            del ones[min(ones, key=lambda roles: ones[roles][1].expires or 0)]
        ones[frozenset(principal.roles)] = (issuer, principal)

    async def verify(self, token: bytes, digest: str) -> Principal | CredentialRefused:
        if not self._issuers or not jws.looks_like_one(token):
            return CredentialRefused("credential")
        read = jws.read(token)
        if read is None:
            return CredentialRefused("malformed")
        issuer = self._issuer_of(read)
        if isinstance(issuer, CredentialRefused):
            return issuer
        problem = self._judge_times(read.claims)
        if problem:
            return CredentialRefused(problem)
        problem = await self._keysets.of(issuer).judge(read)
        if problem:
            return CredentialRefused(problem)
        if issuer not in self._issuers.get(issuer.issuer, ()):  # reloaded while the keys were fetched
            return CredentialRefused("issuer")
        principal = self._principal(issuer, read.claims)
        if isinstance(principal, Principal):
            self._remember(digest, issuer, principal)
        return principal

    def _issuer_of(self, token: Jws) -> TokenIssuer | CredentialRefused:
        """Exact comparison, of strings: no normalisation could be the same on both sides."""
        name, audience = token.claims.get("iss"), token.claims.get("aud")
        there = self._issuers.get(name, []) if isinstance(name, str) else []
        if not there:
            return CredentialRefused("issuer")
        audiences = audience if isinstance(audience, list) else [audience]
        issuer = next((one for one in there if one.audience in audiences), None)
        if issuer is None:
            return CredentialRefused("audience")
        if token.algorithm not in issuer.algorithms:
            return CredentialRefused("algorithm")
        return issuer if _is_typed(token.header.get("typ"), issuer.typ) else CredentialRefused("typ")

    def _judge_times(self, claims: Json) -> str:
        """`exp` is what everything that hangs on the token ends by, so it is taken as it is."""
        now, expires = self._clock(), _moment(claims.get("exp"))
        if expires is None:
            return "no_expiry"
        if now >= expires:
            return "expired"
        for name in ("nbf", "iat"):
            if name in claims and ((moment := _moment(claims[name])) is None or moment > now + SKEW):
                return "not_yet_valid"
        return ""

    def _principal(self, issuer: TokenIssuer, claims: Json) -> Principal | CredentialRefused:
        subject = claims.get("sub")
        if not _is_text(subject):
            return CredentialRefused("subject")
        if "cnf" in claims:  # RFC 7800: it is good only together with a proof that we could not check
            return CredentialRefused("sender_constrained")
        if not set(self._settings.scopes) <= set(_scopes(claims)):
            return CredentialRefused("insufficient_scope", is_known=True)
        groups = [value for claim in issuer.roles_from for value in _values(claims, claim)]
        # A group that is left out could be one that is denied something.
        if len(groups) > MAX_GROUPS or not all(map(_is_text, groups)):
            return CredentialRefused("groups")
        roles = tuple(f"group:{group}" for group in dict.fromkeys(groups))
        return Principal(f"jwt:{issuer.issuer}#{subject}", roles, expires=_moment(claims["exp"]))


def _is_typed(typ: Any, wanted: str | None) -> bool:
    """RFC 8725 3.11, RFC 7515 4.1.9: `application/` may be left out, case does not count."""
    if typ is None:
        return wanted is None
    if not isinstance(typ, str):
        return False
    short = typ.lower().removeprefix("application/")
    return short == wanted.lower().removeprefix("application/") if wanted is not None else short in _TYPES


def _moment(value: Any) -> float | None:
    """RFC 7519 2, NumericDate."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e12 < value < 1e12:
        return None
    return float(value) if math.isfinite(value) else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.isprintable() and value == value.strip()


def _scopes(claims: Json) -> list[str]:
    """RFC 8693 4.2 has `scope`, one string; some issuers have `scp`, a string or a list."""
    scope = claims.get("scope", claims.get("scp"))
    if isinstance(scope, str):
        return scope.split(" ")
    return [one for one in scope if isinstance(one, str)] if isinstance(scope, list) else []


def _values(claims: Json, claim: str) -> Iterator[Any]:
    """What stands in a claim, one or many. A claim that is too large for the token is somewhere else then
    (OpenID Connect Core 5.6.2), and cannot be left out either."""
    found: Any = claims.get(claim)
    if found is None and claim not in claims:
        elsewhere = claims.get("_claim_names")
        if isinstance(elsewhere, dict) and claim in elsewhere:
            yield None
        found = inside(claims, *claim.split("."))
    if isinstance(found, list):
        yield from found
    elif found is not None:
        yield found
