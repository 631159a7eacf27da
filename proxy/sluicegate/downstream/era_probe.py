"""Which eras a server speaks: what its answer to `server/discover` proves.

Decides only; who asks, and on which channel, is the dialler. A wrong *legacy* verdict would work silently for ever
and a wrong *modern* one fails loudly, so legacy is what is left when nothing proves the other.
"""

import re
from typing import Final

from sluicegate.downstream.settings import Lost
from sluicegate.protocol.jsonrpc import Json, Response
from sluicegate.protocol.model import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    MODERN,
    UNSUPPORTED_VERSION,
    Era,
)
from sluicegate.protocol.modern_server import versions
from sluicegate.protocol.revisions import LEGACY

Eras = frozenset[Era]

REVISION: Final = re.compile(r"\d{4}-\d\d-\d\d")

LEGACY_ONLY: Final[Eras] = frozenset({"legacy"})
_UNDECIDED: Final = frozenset({401, 403, 408, 429})


def judge(answer: Response) -> Eras:
    """The eras that an answer proves (2026-07-28 basic/versioning#backward-compatibility). Raises `Lost` where the
    server speaks none that Sluice speaks."""
    if answer.error is None:
        return _eras(versions((answer.result or {}).get("supportedVersions"))) or LEGACY_ONLY
    code, data = answer.error.get("code"), answer.error.get("data")
    if code == UNSUPPORTED_VERSION:
        return _named(data if isinstance(data, dict) else {})
    if code in (HEADER_MISMATCH, MISSING_CAPABILITY):
        return frozenset({"modern"})
    return LEGACY_ONLY  # any other error, whatever its code: there is no one way to say "not initialized"


def _named(data: Json) -> Eras:
    supported = versions(data.get("supported"))
    if not (eras := _eras(supported)) and supported:
        # Only what looks like a revision is repeated: it goes into the log and to every client.
        known = [version for version in supported if REVISION.fullmatch(version)]
        raise Lost(f"the server speaks only {', '.join(known[:5]) or 'other revisions'}", sent=False)
    return eras or LEGACY_ONLY


def _eras(supported: list[str]) -> Eras:
    eras: set[Era] = set()
    if MODERN in supported:
        eras.add("modern")
    if any(version in LEGACY for version in supported):
        eras.add("legacy")
    return frozenset(eras)


def proves_legacy(refusal: Lost) -> bool:
    """The same of a refusal over HTTP without a JSON-RPC answer. False: nothing is proven, try again later."""
    status = refusal.status
    return status is not None and status < 500 and status not in _UNDECIDED
