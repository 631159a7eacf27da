"""Whether a key made a signature: PyJWT's only home, imported with the first token that is to be proved.

Whether the key may be used for that is asked before. Knows no claim and no issuer.
"""

import warnings
from typing import Final

import jwt
from jwt.api_jws import PyJWS

from sluicegate.listen.auth.jws import FITS
from sluicegate.protocol.jsonrpc import Json

_VERIFIER: Final = PyJWS(algorithms=list(FITS), options={"verify_signature": True, "enforce_minimum_key_length": True})


def proves(token: bytes, key: Json, algorithm: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            public = jwt.PyJWK({**key, "alg": algorithm}, algorithm)
            _VERIFIER.decode_complete(token, public, [algorithm])
    except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError):
        return False
    return True
