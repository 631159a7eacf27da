"""`/api/v1/blocks`: clients, servers and tools that are blocked."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from sluicegate.admin.paging import StatusAndBody
from sluicegate.protocol.jsonrpc import Json, decode

MAX_WHAT: Final = 1_024
MAX_REASON: Final = 500
MAX_SECONDS: Final = 366 * 24 * 3600
_SHAPE: Final = (
    'the body is {"what": TEXT, "for": SECONDS, "reason": TEXT}: a server, a tool or a client; for how long and why, '
    f"where that is to be said, at most {MAX_SECONDS} seconds and {MAX_REASON} characters"
)


@dataclass(frozen=True, slots=True)
class BlocksApi:
    """`every` gives a row for each block. `add` takes what to block, for how many seconds, the reason, and who asks.
    `end` takes the id of a block, and who asks."""

    every: Callable[[], Awaitable[list[Json]]]
    add: Callable[[str, float | None, str, str], Awaitable[StatusAndBody]]
    end: Callable[[str, str], Awaitable[StatusAndBody]]


async def add(blocks: BlocksApi, body: bytes, who: str) -> StatusAndBody:
    match decode(body):
        case {"what": str() as what, **rest} if rest.keys() <= {"for", "reason"} and 0 < len(what) <= MAX_WHAT:
            seconds, reason = rest.get("for"), rest.get("reason", "")
            lasts = _time(seconds)
            if isinstance(reason, str) and len(reason) <= MAX_REASON and (seconds is None or lasts is not None):
                return await blocks.add(what, lasts, reason, who)
    return 400, {"error": _SHAPE}


def _time(value: Any) -> float | None:
    """None for what is no number of seconds that may be asked for."""
    return float(value) if type(value) in (int, float) and 0 < value <= MAX_SECONDS else None
