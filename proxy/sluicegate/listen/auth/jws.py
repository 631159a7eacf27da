"""A signed token, read strictly and proved: RFC 7515 in its compact form, as far as bearer tokens need it.

Read once, by the parser that refuses duplicate keys and depth: what is judged is what was signed. Signatures are
the work of signature.py. Knows no claim, no issuer, no clock.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from sluicegate.protocol.jsonrpc import Json, Malformed, decode
from sluicegate.store.keys import decode_base64

MAX_TOKEN: Final = 8 * 1024
_MAX_DEPTH: Final = 12
_COMPACT: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")

# RFC 7518 3.1, RFC 8037 3.1: what a key has to be for an algorithm. None of them is symmetric.
FITS: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", frozenset({""}))),
    "ES256": ("EC", frozenset({"P-256"})),
    "ES384": ("EC", frozenset({"P-384"})),
    "ES512": ("EC", frozenset({"P-521"})),
    "EdDSA": ("OKP", frozenset({"Ed25519", "Ed448"})),
}

_MAX_MODULUS: Final = 1400  # characters: 8,400 bits, as verifying takes time with the size
_MAX_EXPONENT: Final = 8


@dataclass(frozen=True, slots=True)
class Jws:
    header: Json
    claims: Json
    token: bytes

    @property
    def algorithm(self) -> str:
        return str(self.header.get("alg"))


def looks_like_one(token: bytes) -> bool:
    return _COMPACT.fullmatch(token) is not None


def read(token: bytes) -> Jws | None:
    """None for what is no token of the compact form with JSON claims, or has extensions that must be understood."""
    if len(token) > MAX_TOKEN or not looks_like_one(token):
        return None
    try:
        header, claims = (decode(decode_base64(part), _MAX_DEPTH) for part in token.decode("ascii").split(".")[:2])
    except (Malformed, ValueError):
        return None
    if not isinstance(header, dict) or not isinstance(claims, dict) or not isinstance(header.get("alg"), str):
        return None
    # RFC 7515 4.1.11: we understand no extension at all, RFC 7797's unencoded payload included.
    if "crit" in header or "b64" in header or not isinstance(header.get("kid", ""), str):
        return None
    return Jws(header, claims, token)


def is_signed_by(token: Jws, key: Json) -> bool:
    """Whether this public key (RFC 7517) made the signature, and is for that."""
    if not fits(key, token.algorithm):
        return False
    # By name, and not before there is a token to prove: PyJWT takes 2 MiB and 40 ms, and most have no issuer.
    return bool(import_module("sluicegate.listen.auth.signature").proves(token.token, key, token.algorithm))


def fits(key: Json, algorithm: str) -> bool:
    """Whether the key is one for checking signatures of that algorithm. RFC 7517 4.1 to 4.4."""
    kind, curves = FITS.get(algorithm, ("", frozenset[str]()))
    if key.get("kty") != kind or not any(key.get("crv", "") == curve for curve in curves):
        return False
    if key.get("alg", algorithm) != algorithm:
        return False
    if kind == "RSA" and (_size(key, "n") > _MAX_MODULUS or _size(key, "e") > _MAX_EXPONENT):
        return False
    uses = key.get("key_ops", ["verify"])
    return key.get("use", "sig") == "sig" and isinstance(uses, list) and "verify" in uses


def _size(key: Json, member: str) -> int:
    return len(value) if isinstance(value := key.get(member), str) else 1 << 30


def public_keys(document: Any, limit: int) -> Iterator[Json]:
    """The keys of a key set that anything can be signed with, without what is secret or unknown."""
    keys = document.get("keys") if isinstance(document, dict) else None
    for key in (keys if isinstance(keys, list) else ())[:limit]:
        if isinstance(key, dict) and key.get("kty") in ("RSA", "EC", "OKP"):
            yield {name: value for name, value in key.items() if name in _PUBLIC}


_PUBLIC: Final = frozenset({"kty", "crv", "kid", "alg", "use", "key_ops", "n", "e", "x", "y"})
