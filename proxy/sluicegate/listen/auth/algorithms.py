"""Which algorithms may sign a token, and what a key has to be for each."""

from collections.abc import Mapping
from typing import Final

# RFC 7518 3.1, RFC 8037 3.1: what a key has to be for an algorithm. None of them is symmetric.
FITS: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", frozenset({""}))),
    "ES256": ("EC", frozenset({"P-256"})),
    "ES384": ("EC", frozenset({"P-384"})),
    "ES512": ("EC", frozenset({"P-521"})),
    "EdDSA": ("OKP", frozenset({"Ed25519", "Ed448"})),
}
