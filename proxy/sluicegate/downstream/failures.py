"""How a server fails us, what proves that it did not execute a request, and what its failure means to the caller.

`PROOFS` is the one table, as docs/reference/reasons.md has it. A call whose end proves nothing ends as
`outcome_unknown`, and is never sent again. Everything that is not in the table proves nothing: no answer, half an
answer, any other HTTP status, and a redirect, whoever sent them. A server, or something before it, can fail at any
moment after it has read the call. This module decides only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from sluicegate.protocol.model import Call, Client, Failure, Outcome, Reason, refuse
from sluicegate.runtime.spool import Spool

LOCAL: Final = "local"
"""The principal of who sits at this machine: on its own stdin and stdout, it runs Sluice."""
_BUSY: Final = 503
_UNKNOWN: Final = "The call may or may not have been executed."
_BEGUN: Final = "This call began in an earlier round, and may or may not have been executed."

Lines = Callable[[], Sequence[str]]


class Lost(ConnectionError):
    """The server could not be asked, or its answer did not come.

    `sent` says that the request may have been executed; `gone` that the connection serves nothing any more, so
    that the same request may be tried on another one; `status` is the HTTP status where there was one. `text` is for
    every client that may use the server. `detail`, such as a path or an address, is for who runs Sluice, as is `str`.
    """

    was_tried = True
    """False where Sluice did not try, so soon after a failure: that says nothing new of the server."""

    def __init__(
        self, text: str, *, sent: bool, gone: bool = False, status: int | None = None, detail: str = ""
    ) -> None:
        super().__init__(f"{text} ({detail})" if detail else text)
        self.text = text
        self.detail = detail
        self.sent = sent
        self.gone = gone
        self.status = status


class LoginRequired(Lost):
    """A person has to log in first, or to agree to more. `text` says so to the caller, `scopes` what more."""

    def __init__(self, text: str, scopes: Sequence[str] = ()) -> None:
        super().__init__(text, sent=False)
        self.scopes = tuple(scopes)


def login_over(server: str) -> LoginRequired:
    """The login of what was not executed has ended meanwhile. The next call says where to log in."""
    return LoginRequired(f"The login to {server} has ended. Call again.")


class Withheld(Lost):
    """Sluice itself does not send the call, for this reason. `text` is a sentence."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text, sent=False)
        self.reason = reason


def too_late() -> Withheld:
    """The client has lost the right while its call waited."""
    return Withheld("denied", "Whoever sent this call may not make it any more.")


def as_lost(error: Exception, otherwise: str = "") -> Lost:
    """Turns an error that came before anything was sent into a `Lost`. It is another object in any case: an error that
    is kept would gather the frames, and the calls, of all who raise it."""
    if isinstance(error, LoginRequired):
        return LoginRequired(error.text, error.scopes)
    if isinstance(error, Lost):
        return Lost(error.text or otherwise, sent=False, detail=error.detail)
    return Lost(str(error) or otherwise or type(error).__name__, sent=False)


def known(error: Exception, otherwise: str) -> Lost:
    """The failure that is known, for a call for which nothing is tried."""
    lost = as_lost(error, otherwise)
    lost.was_tried = False
    return lost


def code_of(error: Mapping[str, Any] | None) -> str:
    """A server's error in our words. Its own may repeat what it was given, secrets included, and what is said here
    goes into the log and to other clients."""
    code = (error or {}).get("code")
    return f"error {code}" if isinstance(code, int) and abs(code) < 10**9 else "an error"


class NotModern(Lost):
    """The server speaks the legacy era only. `gone`: there is a legacy connection now in place of the modern one."""

    def __init__(self, gone: bool = False) -> None:
        super().__init__("the server does not speak 2026-07-28", sent=False, gone=gone)


class Full(Lost):
    """It cannot be had now, and that is no failure of the server: its connections are in use, or it still starts."""


class TaskGone(Lost):
    """The connection on which a task ran has ended."""

    def __init__(self) -> None:
        super().__init__("the connection to the server has ended on which this task ran", sent=False, gone=True)


class AnswerTooLarge(Exception):
    """The answer is larger than it may be. `spool` has it where the server's answers are kept then, and `id` is the
    request that it answers."""

    what = "is too large"

    def __init__(self, spool: Spool | None = None, id: int = 0) -> None:
        super().__init__(f"its answer {self.what}")
        self.spool, self.id = spool, id


class AnswerUnfinished(AnswerTooLarge):
    """Sluice gave up the answer as it came, for what its server leaves unfinished on all its streams."""

    what = "is too large beside all else that the server has not finished"


class AnswerOutOfRange(AnswerTooLarge):
    """A number in the answer is larger than clients can read."""

    what = "cannot be read: a number in it is out of range"


@dataclass(frozen=True, slots=True)
class Proof:
    """`status` is an HTTP status that proves it. With `challenge`, `WWW-Authenticate` has a challenge with this error,
    or any one where it is empty. `in_session`: only as the answer to a request with a session id. `code` is a JSON-RPC
    error code."""

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
    Proof("HTTP 401 with a challenge in `WWW-Authenticate`", "RFC 9110 15.5.2: the request has not been applied",
          status=401, challenge=""),
    Proof("HTTP 403 with a Bearer challenge whose error is `insufficient_scope`",
          "RFC 6750 3.1; 2025-11-25 basic/authorization#runtime-insufficient-scope-errors",
          status=403, challenge="insufficient_scope"),
    Proof("HTTP 404 to a request with `Mcp-Session-Id`", "2025-11-25 basic/transports#session-management",
          status=404, in_session=True),
    Proof("JSON-RPC -32020", "2026-07-28 basic/transports/streamable-http#server-validation", code=-32020),
    Proof("JSON-RPC -32021 that asks for the tasks extension", "2026-07-28 basic/index#error-codes", code=-32021),
    Proof("JSON-RPC -32022", "2026-07-28 basic/versioning", code=-32022),
    Proof("JSON-RPC -32042", "2025-11-25 client/elicitation", code=-32042),
)  # fmt: skip


def proves(status: int, challenge: str | None, in_session: bool) -> bool:
    """Whether an answer of this status, without a JSON-RPC result, proves that the request was not executed.
    `challenge` is the error of its challenge, empty where that has none; None without a challenge."""
    return any(
        proof.status == status
        and (not proof.in_session or in_session)
        and (proof.challenge is None or (challenge is not None and proof.challenge in ("", challenge)))
        for proof in PROOFS
    )


def may_resend(method: str, lost: Lost) -> bool:
    """Whether the same request may be sent once more: where it is proven that it was not executed (`proofs`), on
    another connection. Reading and listing twice harms nobody; a tool is never called twice on a guess."""
    if not lost.sent:
        return lost.gone
    is_over = lost.gone or lost.status is None or (lost.status >= 500 and lost.status != _BUSY)
    return is_over and method != "tools/call"


def unavailable(call: Call, server: str, why: str) -> Outcome:
    return refuse(call.method, "server_unavailable", f"The server {server} {why}")


def over(call: Call, server: str) -> Outcome:
    """For an answer that no call waits for any more. The seal of its state proves that an earlier round was sent."""
    if call.method != "tools/call" or not call.trail.has_begun:
        return Failure(INVALID_PARAMS, "requestState: no call waits for this any more")
    text = f"The call waited at the server {server} for this answer, and waits no more. {_UNKNOWN}"
    return refuse(call.method, "outcome_unknown", text)


def asked_too_often(call: Call, server: str, most: int) -> Outcome:
    text = f"The server {server} asked more than {most} questions in one call. {_UNKNOWN}"
    return refuse(call.method, "outcome_unknown", text)


def quoted(server: str, lines: Iterable[str]) -> str:
    """Marks each line as the server's: none of them can end the quotation."""
    return "".join(f"\n[stderr of {server}] {line}" for line in lines)


def why_not(client: Client, server: str, error: Lost, lines: Lines, end: str = "") -> str:
    """Why a server fails, as far as that client may know it. Who runs Sluice sees what the server wrote."""
    if client.principal != LOCAL:  # cleaning what it wrote takes milliseconds, which others must not make us spend
        return f"{error.text}. {end}Ask who runs Sluice: `sluice servers` shows more."
    if not (found := lines()):
        return f"{error}. {end}`sluice servers` shows more."
    return f"{error}. {end}The last that it wrote, in its own words and not in Sluice's:{quoted(server, found)}"


def failed(call: Call, server: str, error: Lost | TimeoutError | AnswerTooLarge, lines: Lines = list) -> Outcome:
    """What the caller gets in place of an answer. `lines` gives what the server wrote last."""
    if isinstance(error, AnswerTooLarge):
        text = f"The answer of the server {server} {error.what}."
        if not isinstance(error, AnswerOutOfRange):
            return refuse(call.method, "result_too_large", text)
        if call.method == "tools/call":
            return refuse(call.method, "outcome_unknown", f"{text} {_UNKNOWN}")
        return refuse(call.method, "server_unavailable", text)
    if isinstance(error, TimeoutError):
        end = f" {_UNKNOWN}" if call.method == "tools/call" else ""
        return refuse(call.method, "timeout", f"The server {server} did not answer in time.{end}")
    if isinstance(error, LoginRequired):
        return refuse(call.method, "login_required", f"NOT EXECUTED: {error.text}")
    if isinstance(error, Withheld):
        if call.trail.has_begun:
            return refuse(call.method, "outcome_unknown", f"{_BEGUN} {error.text}")
        return refuse(call.method, error.reason, f"NOT EXECUTED: {error.text}")
    if isinstance(error, TaskGone):
        text = f"{error.text[0].upper()}{error.text[1:]}. It may or may not have been executed."
        return Failure(INTERNAL_ERROR, text, {"reason": "outcome_unknown"}, "outcome_unknown")
    if error.sent and call.method == "tools/call":
        why = why_not(call.client, server, error, lines, f"{_UNKNOWN} ")
        what = "The connection to the server {} ended before its answer" if error.status is None else (
            "The server {} did not say what became of the call"
        )
        text = f"{what.format(server)}: {why}"
        return refuse(call.method, "outcome_unknown", text)
    why = why_not(call.client, server, error, lines)
    return refuse(call.method, "server_unavailable", f"The server {server} is not available: {why}")
