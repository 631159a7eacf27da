"""The records that a writer makes itself: openings, starts, keys, losses. Pure; see `record` for those of calls."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sluicegate import __version__
from sluicegate.audit.chain import ChainHead
from sluicegate.audit.recover import Torn as Torn

MAX_OPEN: Final = 10_000


@dataclass(frozen=True, slots=True)
class Loss:
    """Records after `durable`, up to `last`, may be gone; `signed` if a checkpoint says that they were there."""

    reason: str
    durable: int
    last: int
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Introduction:
    """The key that signs from here on; if another one did before, what that says to it."""

    id: str
    public: bytes
    previous: str = ""
    sig: str = ""

    def to_json(self) -> dict[str, Any]:
        key = {"key": {"id": self.id, "public": base64.b64encode(self.public).decode("ascii")}}
        return {**key, "previous": self.previous, "sig": self.sig} if self.previous else key


def opening(
    stamp: str, why: str, key: Introduction, after: ChainHead, calls: Mapping[str, int], *,
    loss: Loss | None = None, torn: Torn | None = None,
) -> bytes:  # fmt: skip
    """The first record of every segment: it says where the chain stood, so that segments prove each other."""
    fields: dict[str, Any] = {
        "why": why,
        "version": __version__,
        **key.to_json(),
        "after": {"seq": after.seq, "hash": after.hash},
        "open": dict(list(calls.items())[:MAX_OPEN]),
    }
    if loss is not None:
        fields["loss"] = {"reason": loss.reason, "durable": loss.durable, "last": loss.last, "signed": loss.signed}
    if torn is not None:
        fields["torn"] = {"bytes": torn.bytes, "sha256": torn.hash}
    return _admin(stamp, "open", fields)


def start(stamp: str, key: Introduction) -> bytes:
    """The process has started and goes on in the same segment."""
    return _admin(stamp, "start", {"version": __version__, **key.to_json()})


def stop(stamp: str) -> bytes:
    return _admin(stamp, "stop", {})


def lost(stamp: str, count: int) -> bytes:
    return _admin(stamp, "lost", {"count": count})


def interrupted(call: str, seq: int, stamp: str) -> bytes:
    """How a call ended that a crash interrupted: whether it took place, nobody knows."""
    fields = {"call": call, "outcome": "unknown", "reason": "interrupted", "intent": seq}
    return f'"type":"outcome","time":"{stamp}",{_dump(fields)[1:-1]}'.encode("ascii")


def _admin(stamp: str, act: str, fields: dict[str, Any]) -> bytes:
    return f'"type":"admin","time":"{stamp}",{_dump({"act": act, **fields})[1:-1]}'.encode("ascii")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def seconds(time: str) -> float:
    """A record's time as seconds; 0 for what is none. Nanoseconds are more than `datetime` takes."""
    try:
        return datetime.fromisoformat(f"{time[:26].rstrip('Z')}+00:00").timestamp()
    except ValueError:
        return 0.0
