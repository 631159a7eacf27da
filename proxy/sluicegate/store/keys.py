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
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from cryptography import exceptions
from cryptography.hazmat.primitives.ciphers import aead

from sluicegate.protocol.jsonrpc import Json, Malformed, decode_fast, dump
from sluicegate.store import StoreFailed, private

KEY_BYTES = 32
_ID, _NONCE, _TAG = 4, 12, 16
MAX_TOKEN_CHARS = 256 * 1024
MAX_BODY = MAX_TOKEN_CHARS // 4 * 3 - _ID - _NONCE - _TAG  # bytes of a payload that a token can hold
KEPT_FOR = 3600.0  # seconds
KEPT_BYTES = 64 * 1024 * 1024
KEPT_EACH = 4  # large payloads of one purpose and `bound`
_REFERENCE = "kept"
OPERATOR_TOKEN = "operator.token"
OPERATOR_ADDRESS = "operator.address"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode_base64(text: str) -> bytes:
    """Raises ValueError for anything but what `_encode` writes: bytes have one spelling (RFC 4648 3.5)."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _encode(data) != text:
        raise ValueError("not the canonical spelling")
    return data


class KeyUnavailable(StoreFailed):
    """A key is in a keyring that does not give it now. The text says what to do, and is for everybody."""


class KeyRing:
    """Keys by id (the start of their hash). `newest` makes, all of them read. Where others read as well, it is the
    newest that they have, too."""

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
            keys = [decode_base64(line.rstrip("=")) for line in lines]
        except ValueError:
            raise ValueError("a key ring has one base64 key a line") from None
        return cls(keys)

    def ids(self) -> list[str]:
        return [id.hex() for id in self.keys]

    def agree(self, others: Collection[Collection[str]]) -> bool:
        """Makes with the newest key that all others have, too, as their `ids` say. False where there is none."""
        common = [id for id in self.keys if all(id.hex() in ids for ids in others)]
        if common:
            self.newest_id, self.newest = common[-1], self.keys[common[-1]]
        return bool(common)

    def has_key_of(self, token: bytes) -> bool:
        """Whether what a `Sealer` made can be opened, as far as its key goes."""
        try:
            return decode_base64(token.decode("ascii"))[:_ID] in self.keys
        except ValueError:
            return False

    @classmethod
    def load(cls, directory: Path, name: str) -> "KeyRing":
        """The ring `directory/name`, made at the first start. Raises `Exposed` where others may read it, `StoreFailed`
        where it is damaged."""
        private.make_directory(directory)
        private.check(directory, private.DIRECTORY)
        path = directory / name
        if not path.exists():
            private.write(path, _line(secrets.token_bytes(KEY_BYTES)), replace=False)
        private.check(path, private.FILE)
        try:
            return cls.parse(path.read_text("ascii"))
        except ValueError as error:
            raise StoreFailed(f"{path}: {error}") from None

    @classmethod
    def rotate(cls, directory: Path, name: str) -> "KeyRing":
        """Add a newest key to the ring `directory/name`; what older ones sealed stays readable."""
        lines = [_line(key) for key in cls.load(directory, name).keys.values()]
        private.write(directory / name, b"".join([*lines, _line(secrets.token_bytes(KEY_BYTES))]), replace=True)
        return cls.load(directory, name)


def _id(key: bytes) -> bytes:
    return hashlib.sha256(b"sluice key id" + key).digest()[:_ID]


def _line(key: bytes) -> bytes:
    return _encode(key).encode("ascii") + b"\n"


class LargePayloads:
    """Payloads that no token can hold, in memory under random names: a server may give a cursor or a state of
    megabytes. Each is kept for an hour; where they are too many the oldest go, those of the same `bound` first, then of
    whoever has most."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[float, str, bytes]] = {}  # when it ends, whose it is, what it is; oldest first
        self._size = 0

    def put(self, owner: str, body: bytes) -> str:
        self._sweep()
        same = [name for name, (_, other, _) in self._entries.items() if other == owner]
        for name in same[: max(0, len(same) - KEPT_EACH + 1)]:
            self._drop(name)
        name = secrets.token_hex(16)
        self._entries[name] = (self._clock() + KEPT_FOR, owner, body)
        self._size += len(body)
        while self._size > KEPT_BYTES and len(self._entries) > 1:
            self._drop(self._first_to_go())
        return name

    def _first_to_go(self) -> str:
        """So that one client, at a server that gives it large ones, takes those of no other."""
        sizes = Counter[str]()
        for _, owner, body in self._entries.values():
            sizes[owner] += len(body)
        most = sizes.most_common(1)[0][0]
        return next(name for name, (_, owner, _) in self._entries.items() if owner == most)

    def get(self, owner: str, name: object) -> bytes | None:
        self._sweep()
        _, whose, body = self._entries.get(name, (0.0, "", None)) if isinstance(name, str) else (0.0, "", None)
        return body if whose == owner else None

    def _sweep(self) -> None:
        now = self._clock()
        while self._entries and next(iter(self._entries.values()))[0] <= now:
            self._drop(next(iter(self._entries)))

    def _drop(self, name: str) -> None:
        self._size -= len(self._entries.pop(name)[2])


class Sealer:
    """Seals JSON objects into opaque text: AES-256-GCM under the ring's keys. Whatever it seals it opens: what is too
    large for a token is kept here, and the token names it. That one ends with this process."""

    __slots__ = ("_aeads", "_large", "_ring")

    def __init__(self, ring: KeyRing, clock: Callable[[], float] = time.monotonic) -> None:
        self._large = LargePayloads(clock)
        self._ring = ring
        self._aeads: dict[bytes, aead.AESGCM] = {}  # made when they are needed: few desktops ever seal anything

    def _aead(self, id: bytes) -> "aead.AESGCM | None":
        if id not in self._aeads and id in self._ring.keys:
            self._aeads[id] = aead.AESGCM(self._ring.keys[id])
        return self._aeads.get(id)

    def seal(self, purpose: str, payload: Json, bound: str) -> str:
        """`payload` as a token that only `unseal` with the same purpose and `bound` opens."""
        nonce, body = os.urandom(_NONCE), dump(payload)
        if len(body) > MAX_BODY:
            body = dump({_REFERENCE: self._large.put(_owner(purpose, bound), body)})
        newest = self._aead(self._ring.newest_id)
        assert newest is not None
        return _encode(self._ring.newest_id + nonce + newest.encrypt(nonce, body, _context(purpose, bound)))

    def unseal(self, purpose: str, token: str, bound: str) -> Json | None:
        """What was sealed; None for everything else: altered, foreign, of another purpose, no token at all."""
        if not isinstance(token, str) or len(token) > MAX_TOKEN_CHARS:
            return None
        try:
            data = decode_base64(token)
            opener = self._aead(data[:_ID])
            if opener is None or len(data) < _ID + _NONCE + _TAG:
                return None
            body = opener.decrypt(data[_ID : _ID + _NONCE], data[_ID + _NONCE :], _context(purpose, bound))
            payload = decode_fast(body)
            if isinstance(payload, dict) and payload.keys() == {_REFERENCE}:
                large = self._large.get(_owner(purpose, bound), payload[_REFERENCE])
                payload = None if large is None else decode_fast(large)
        except (ValueError, exceptions.InvalidTag, Malformed):
            return None
        return payload if isinstance(payload, dict) else None


def _owner(purpose: str, bound: str) -> str:
    # The length keeps ("a", "bc") and ("ab", "c") apart.
    return f"{len(purpose)}:{purpose}{bound}"


def _context(purpose: str, bound: str) -> bytes:
    return _owner(purpose, bound).encode("utf-8", "surrogatepass")


def new_operator_token() -> str:
    """One per start."""
    return secrets.token_urlsafe(32)


def publish_operator_token(directory: Path, token: str, address: str, file: Path | None = None) -> None:
    """For whoever may read the owner's files: the token in `operator.token`, and in `operator.address` where it is good
    and the config `file` of that Sluice. Who reads the token first finds the address of the same start, or none."""
    private.make_directory(directory)
    (directory / OPERATOR_ADDRESS).unlink(missing_ok=True)
    private.write(directory / OPERATOR_TOKEN, token.encode("ascii"), replace=True)
    where = address.encode("ascii") + (b"" if file is None else b"\n" + os.fsencode(os.path.realpath(file)))
    private.write(directory / OPERATOR_ADDRESS, where, replace=True)


def read_operator_token(directory: Path) -> str | None:
    """The running Sluice's token as a command finds it; None if there is none. Raises `Exposed`."""
    path = directory / OPERATOR_TOKEN
    if not path.exists():
        return None
    private.check(path, private.FILE)
    return path.read_text("ascii").strip()


def digest(secret: str) -> str:
    """What is kept of a secret that is long enough not to be guessed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def is_same(secret: str, other: str) -> bool:
    """Compares secrets in constant time."""
    return hmac.compare_digest(secret.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))
