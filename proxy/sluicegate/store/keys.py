"""Sluice's own secrets: key rings, sealed tokens and the operator's token.

A ring is a file of 32-byte keys, newest last: the newest seals, all of them unseal, so that a rotation
invalidates nothing. A sealed token is readable and alterable by nobody but the holder of a key, and good
for one purpose and one bearer (`bound`) alone. Knows nothing of what is sealed.
"""

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sluicegate.message import Json, Malformed, decode_fast, dump
from sluicegate.store import private

KEY_BYTES = 32
_ID, _NONCE, _TAG = 4, 12, 16
MAX_TOKEN_CHARS = 256 * 1024
OPERATOR_TOKEN = "operator.token"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    """Raises ValueError for anything but what `_encode` writes: bytes have one spelling."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _encode(data) != text:
        raise ValueError("not the canonical spelling")
    return data


class KeyRing:
    """Keys by id (the start of their hash). `newest` makes, all of them read."""

    __slots__ = ("keys", "newest", "newest_id")

    def __init__(self, keys: Iterable[bytes]) -> None:
        ordered = list(keys)
        if not ordered or any(len(key) != KEY_BYTES for key in ordered):
            raise ValueError(f"a key ring holds one or more keys of {KEY_BYTES} bytes")
        self.keys = {_id(key): key for key in ordered}
        self.newest = ordered[-1]
        self.newest_id = _id(self.newest)

    @classmethod
    def parse(cls, text: str) -> "KeyRing":
        """A ring from text: one base64 key a line (either alphabet), the newest last. Raises ValueError."""
        lines = text.replace("+", "-").replace("/", "_").split()
        try:
            keys = [_decode(line.rstrip("=")) for line in lines]
        except ValueError:
            raise ValueError("a key ring has one base64 key a line") from None
        return cls(keys)

    @classmethod
    def load(cls, directory: Path, name: str) -> "KeyRing":
        """The ring `directory/name`, made at the first start. Raises `Exposed` where others may read it."""
        private.make_directory(directory)
        private.check(directory, private.DIRECTORY)
        path = directory / name
        if not path.exists():
            private.write(path, _line(secrets.token_bytes(KEY_BYTES)), replace=False)
        private.check(path, private.FILE)
        try:
            return cls.parse(path.read_text("ascii"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def rotate(cls, directory: Path, name: str) -> "KeyRing":
        """Add a newest key to the ring `directory/name`; what older ones sealed stays readable."""
        lines = [_line(key) for key in cls.load(directory, name).keys.values()]
        private.write(directory / name, b"".join([*lines, _line(secrets.token_bytes(KEY_BYTES))]), replace=True)
        return cls.load(directory, name)

    def __repr__(self) -> str:
        return f"KeyRing({len(self.keys)} keys, newest {self.newest_id.hex()})"


def _id(key: bytes) -> bytes:
    return hashlib.sha256(b"sluice key id" + key).digest()[:_ID]


def _line(key: bytes) -> bytes:
    return _encode(key).encode("ascii") + b"\n"


class Sealer:
    """Seals small JSON objects into opaque text: AES-256-GCM under the ring's keys."""

    __slots__ = ("_aeads", "_newest", "_newest_id")

    def __init__(self, ring: KeyRing) -> None:
        self._aeads = {id: AESGCM(key) for id, key in ring.keys.items()}
        self._newest_id = ring.newest_id
        self._newest = self._aeads[ring.newest_id]

    def seal(self, purpose: str, payload: Json, bound: str) -> str:
        """`payload` as a token that only `unseal` with the same purpose and `bound` opens."""
        nonce = os.urandom(_NONCE)
        return _encode(self._newest_id + nonce + self._newest.encrypt(nonce, dump(payload), _context(purpose, bound)))

    def unseal(self, purpose: str, token: str, bound: str) -> Json | None:
        """What was sealed; None for everything else: altered, foreign, of another purpose, no token at all."""
        if not isinstance(token, str) or len(token) > MAX_TOKEN_CHARS:
            return None
        try:
            data = _decode(token)
            aead = self._aeads.get(data[:_ID])
            if aead is None or len(data) < _ID + _NONCE + _TAG:
                return None
            body = aead.decrypt(data[_ID : _ID + _NONCE], data[_ID + _NONCE :], _context(purpose, bound))
            payload = decode_fast(body)
        except (ValueError, InvalidTag, Malformed):
            return None
        return payload if isinstance(payload, dict) else None


def _context(purpose: str, bound: str) -> bytes:
    # The length keeps ("a", "bc") and ("ab", "c") apart.
    return f"{len(purpose)}:{purpose}{bound}".encode("utf-8", "surrogatepass")


# ---------------------------------------------------------------- the operator's token


def new_operator_token(directory: Path) -> str:
    """A fresh token in `directory/operator.token`, for whoever may read the owner's files. One per start."""
    private.make_directory(directory)
    token = secrets.token_urlsafe(32)
    private.write(directory / OPERATOR_TOKEN, token.encode("ascii"), replace=True)
    return token


def read_operator_token(directory: Path) -> str | None:
    """The running Sluice's token as a command finds it; None if there is none. Raises `Exposed`."""
    path = directory / OPERATOR_TOKEN
    if not path.exists():
        return None
    private.check(path, private.FILE)
    return path.read_text("ascii").strip()


def is_same(secret: str, other: str) -> bool:
    """Equality of secrets in a time that tells nothing."""
    return hmac.compare_digest(secret.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))
