"""What proves that a server did not execute a request: one table, as docs/reference/reasons.md has it. Decides only.

A call whose end proves nothing ends as `outcome_unknown`, and is never sent again. Everything that is not in the table
proves nothing: no answer, half an answer, any other HTTP status, and a redirect, whoever sent them. A server, or
something before it, can fail at any moment after it has read the call.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Proof:
    """`status` is an HTTP status that proves it, if `www-authenticate` has the word `challenge`; `in_session`: only
    as the answer to a request with a session id. `code` is a JSON-RPC error code."""

    what: str
    why: str
    status: int | None = None
    challenge: str | None = None
    in_session: bool = False
    code: int | None = None


PROOFS: Final = (
    Proof("no connection: refused, no such host, TLS failed, no answer to the connect, no free connection",
          "nothing of the call was written"),
    Proof("the process's input is closed, or full of what it has not read", "nothing of the call was written"),
    Proof("the server was not ready: its start or handshake failed", "nothing of the call was written"),
    Proof("HTTP 401 with `WWW-Authenticate`", "RFC 9110 15.5.2: the request has not been applied",
          status=401, challenge=""),
    Proof("HTTP 403 with `WWW-Authenticate` that has `insufficient_scope`",
          "RFC 6750 3.1; 2025-11-25 basic/authorization#runtime-insufficient-scope-errors",
          status=403, challenge="insufficient_scope"),
    Proof("HTTP 404 to a request with `Mcp-Session-Id`", "2025-11-25 basic/transports#session-management",
          status=404, in_session=True),
    Proof("JSON-RPC -32020", "2026-07-28 basic/transports/streamable-http#server-validation", code=-32020),
    Proof("JSON-RPC -32021 that asks for the tasks extension", "2026-07-28 basic/index#error-codes", code=-32021),
    Proof("JSON-RPC -32022", "2026-07-28 basic/versioning", code=-32022),
    Proof("JSON-RPC -32042", "2025-11-25 client/elicitation", code=-32042),
)  # fmt: skip


def proves(status: int, headers: Mapping[bytes, bytes], in_session: bool) -> bool:
    """Whether an answer of this status, without a JSON-RPC message, proves that the request was not executed."""
    challenge = headers.get(b"www-authenticate")
    return any(
        proof.status == status
        and (not proof.in_session or in_session)
        and (proof.challenge is None or (challenge is not None and proof.challenge.encode() in challenge))
        for proof in PROOFS
    )
