"""The hash chain, pure: how a record becomes a line that vouches for every line before it.

A line's hash is the SHA-256 of its bytes without the line break, and every line names the hash of the one before.
Bytes are hashed as they stand, so that no canonical form of JSON is needed and any tool can check a log. A chain
belongs to one writer; its sequence rises by one and goes on over restarts, each of which is a new epoch.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

ZERO: Final = "0" * 64
MAX_LINE: Final = 8 * 1024 * 1024

_PREFIX: Final = re.compile(
    rb'\{"v":1,"writer":"([a-z0-9][a-z0-9-]{0,39})","epoch":([0-9]{1,18}),"seq":([0-9]{1,18}),"prev":"([0-9a-f]{64})",'
    rb'"type":"([a-z]{1,20})","time":"([0-9TZ:.-]{20,40})"(?:,"call":"([ -!#-\[\]-~]{0,128})")?[,}]'
)


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The end of a chain: its last sequence number and the hash of its last line."""

    seq: int
    hash: str


START: Final = ChainHead(0, ZERO)


@dataclass(frozen=True, slots=True)
class Link:
    """What a line says about its place. `call` is empty where the record is about no call."""

    writer: str
    epoch: int
    seq: int
    prev: str
    type: str
    time: str
    call: str


def link(head: ChainHead, writer: str, epoch: int, body: bytes) -> tuple[bytes, ChainHead]:
    """The line that follows `head`, with its line break. `body` is the inside of a JSON object from `"type"` on."""
    lines, head = link_all(head, writer, epoch, (body,))
    return b"".join(lines), head


def link_all(head: ChainHead, writer: str, epoch: int, bodies: Iterable[bytes]) -> tuple[list[bytes], ChainHead]:
    """The same for one record after the other, at half the price each."""
    start, seq, hash = b'{"v":1,"writer":"%b","epoch":%d,"seq":' % (writer.encode("ascii"), epoch), head.seq, head.hash
    lines: list[bytes] = []
    for body in bodies:
        seq += 1
        line = b'%b%d,"prev":"%b",%b}' % (start, seq, hash.encode("ascii"), body)
        hash = sha256(line).hexdigest()
        lines += (line, b"\n")
    return lines, ChainHead(seq, hash)


def digest(line: bytes) -> str:
    """The hash of a line, given without its line break."""
    return sha256(line).hexdigest()


def read(line: bytes) -> Link | None:
    """The place a line claims; None if it is no record of this version."""
    match = _PREFIX.match(line)
    if match is None or not line.endswith(b"}"):
        return None
    writer, epoch, seq, prev, type, time, call = match.groups()
    return Link(
        writer.decode(), int(epoch), int(seq), prev.decode(), type.decode(), time.decode(), (call or b"").decode()
    )
