"""A client's own signature, in place of a secret: `private_key_jwt` (RFC 7523 2.2, 3). Imported at its first use.

The audience is the issuer, as the drafts that follow RFC 7523 have it: a token endpoint is somebody's word for itself.
"""

import secrets
from typing import Final

import jwt

from sluicegate.oauth import Unfit

_ALGORITHMS: Final = ("ES256", "RS256", "EdDSA", "ES384", "ES512", "PS256")
_LIFE: Final = 60  # seconds


def sign(client_id: str, key: str, issuer: str, supported: tuple[str, ...], now: float) -> str:
    """Signed with the first algorithm that fits the key and, where it lists some, the server. Raises `Unfit`."""
    claims = {
        "iss": client_id, "sub": client_id, "aud": issuer, "jti": secrets.token_urlsafe(16),
        "iat": int(now), "exp": int(now) + _LIFE,
    }  # fmt: skip
    for name in _ALGORITHMS:
        if supported and name not in supported:
            continue
        try:
            prepared = jwt.get_algorithm_by_name(name).prepare_key(key)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        return jwt.encode(claims, prepared, algorithm=name)
    raise Unfit("client_key fits no algorithm that the authorization server takes")
