"""Checkpoints: signed statements that a chain had this head at this time (Ed25519).

A checkpoint kept elsewhere makes it impossible to cut or rewrite the log unseen, even for whoever holds the key
now. Keys are named by their public half; a new one is introduced by a signature of the one before.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

MAX_CHECKPOINT_BYTES: Final = 4_096
_STATEMENT: Final = "sluice audit checkpoint 1"
_SUCCESSION: Final = "sluice audit key 1"

PublicKeys = Mapping[str, bytes]
"""Raw Ed25519 public keys by id."""


def key_id(public: bytes) -> str:
    return sha256(public).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`seq` and `hash` are the head of the writer's chain that it covers."""

    writer: str
    epoch: int
    seq: int
    hash: str
    time: str
    key: str
    sig: str

    def statement(self) -> bytes:
        fields = (_STATEMENT, self.writer, self.epoch, self.seq, self.hash, self.time, self.key)
        return "".join(f"{field}\n" for field in fields).encode("ascii")

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("writer", "epoch", "seq", "hash", "time", "key", "sig")}

    def dump(self) -> bytes:
        return json.dumps(self.to_json(), separators=(",", ":")).encode("ascii") + b"\n"

    def body(self) -> bytes:
        """The record of it, as it goes into the chain that it speaks of."""
        inner = self.dump().rstrip().decode("ascii")
        return f'"type":"checkpoint","time":"{self.time}","checkpoint":{inner}'.encode("ascii")


def parse(value: Any) -> Checkpoint | None:
    """A checkpoint out of JSON; None for everything else."""
    if not isinstance(value, dict):
        return None
    numbers = [value.get(name) for name in ("epoch", "seq")]
    texts = [value.get(name) for name in ("writer", "hash", "time", "key", "sig")]
    if not all(type(number) is int and 0 <= number < 10**18 for number in numbers):
        return None
    if not all(isinstance(text, str) and text.isascii() and text.isprintable() and len(text) <= 200 for text in texts):
        return None
    return Checkpoint(**{name: value[name] for name in ("writer", "epoch", "seq", "hash", "time", "key", "sig")})


def read(data: bytes) -> Checkpoint | None:
    """A published checkpoint: one JSON object."""
    try:
        return parse(json.loads(data)) if len(data) <= MAX_CHECKPOINT_BYTES else None
    except (ValueError, RecursionError):
        return None


# ---------------------------------------------------------------- keys


class Signer:
    """The secret half, from the newest 32-byte seed of a key ring; older ones only introduce their successors."""

    def __init__(self, seeds: Iterable[bytes]) -> None:
        keys = [SigningKey(seed) for seed in seeds]
        self._keys = {key_id(bytes(key.verify_key)): key for key in keys}
        self._newest = keys[-1]
        self.public = bytes(self._newest.verify_key)
        self.id = key_id(self.public)

    @property
    def publics(self) -> dict[str, bytes]:
        return {id: bytes(key.verify_key) for id, key in self._keys.items()}

    def sign(self, writer: str, epoch: int, seq: int, hash: str, time: str) -> Checkpoint:
        bare = Checkpoint(writer, epoch, seq, hash, time, self.id, "")
        return Checkpoint(writer, epoch, seq, hash, time, self.id, _text(self._newest.sign(bare.statement()).signature))

    def introduce(self, writer: str, previous: str) -> str:
        """The signature of an older key under the newest; empty if that key is gone."""
        old = self._keys.get(previous)
        return _text(old.sign(_succession(writer, self.public)).signature) if old else ""


def is_signed(checkpoint: Checkpoint, keys: PublicKeys) -> bool:
    public = keys.get(checkpoint.key)
    return public is not None and _verify(public, checkpoint.sig, checkpoint.statement())


def is_introduced(writer: str, public: bytes, previous: str, sig: str, keys: PublicKeys) -> bool:
    """Whether `previous`, a known key, says that the key `public` follows it."""
    old = keys.get(previous)
    return old is not None and _verify(old, sig, _succession(writer, public))


def _succession(writer: str, public: bytes) -> bytes:
    return f"{_SUCCESSION}\n{writer}\n{key_id(public)}\n{_text(public)}\n".encode("ascii")


def _verify(public: bytes, sig: str, statement: bytes) -> bool:
    try:
        VerifyKey(public).verify(statement, base64.b64decode(sig, validate=True))
    except (BadSignatureError, ValueError):
        return False
    return True


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def write_publics(keys: PublicKeys) -> bytes:
    """The file of public keys: `id base64` a line, the oldest first."""
    return "".join(f"{id} {_text(public)}\n" for id, public in keys.items()).encode("ascii")


def read_public(text: str) -> bytes | None:
    try:
        public = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return public if len(public) == 32 else None


def read_publics(text: str) -> dict[str, bytes]:
    """Public keys out of such a file, or out of bare base64. Raises ValueError for anything else."""
    keys = {}
    for line in text.splitlines():
        words = line.split()
        public = read_public(words[-1]) if words else None
        if public is None or len(words) > 2 or (len(words) == 2 and words[0] != key_id(public)):
            raise ValueError("not a file of public keys: one `id base64` a line is expected")
        keys[key_id(public)] = public
    if not keys:
        raise ValueError("no public key in it")
    return keys
