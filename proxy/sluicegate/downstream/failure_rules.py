"""What may be asked of a server, what may be asked twice, and what its failure means to the caller.

Decides only.
"""

from collections.abc import Callable, Sequence
from typing import Final

from sluicegate.downstream.connection import ServerConnection
from sluicegate.downstream.server_output import quoted
from sluicegate.downstream.settings import AnswerTooLarge, Lost, TaskGone
from sluicegate.protocol import input_requests_server
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, Request
from sluicegate.protocol.model import Call, Client, Failure, Outcome, Result, refuse
from sluicegate.protocol.revisions import LISTS

_BUSY: Final = 503
_UNKNOWN: Final = "The call may or may not have been executed."


def may_resend(method: str, lost: Lost) -> bool:
    """Whether the same request may be sent once more: where it is proven that it was not executed (`proofs`), on
    another connection. Reading and listing twice harms nobody; a tool is never called twice on a guess."""
    if not lost.sent:
        return lost.gone
    is_over = lost.gone or lost.status is None or (lost.status >= 500 and lost.status != _BUSY)
    return is_over and method != "tools/call"


def undeclared(call: Call, connection: ServerConnection) -> Failure | None:
    """2026-07-28 basic/index#capabilities: what a server does not declare, it does not have. Lists are asked for all
    the same, by whoever keeps them: some servers have tools and do not declare that."""
    if call.method != "completion/complete" or "completions" in connection.capabilities:
        return None
    if connection.revision == "2024-11-05":  # has the method and no capability for it
        return None
    return Failure(METHOD_NOT_FOUND, "Method not found")


def unmet(call: Call, outcome: Outcome, request: Request) -> Outcome:
    """A call that failed where its client could not be asked something says what that client lacks, as a server of
    its own era would (2026-07-28 basic/index#error-codes), in the server's words. A tool that can do without is left
    as it is."""
    if call.client.era == "legacy" or (words := _failed_with(outcome)) is None:
        return outcome
    needed = input_requests_server.missing(request, call.client)
    return outcome if needed is None else input_requests_server.lacking(words, needed)


def _failed_with(outcome: Outcome) -> str | None:
    """What is said of the failure; None where it is none."""
    if isinstance(outcome, Failure):
        return outcome.message
    if not isinstance(outcome, Result) or outcome.value.get("isError") is not True:
        return None
    content = outcome.value.get("content")
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    return next((text for text in texts if isinstance(text, str)), "Missing required client capability")


LOCAL: Final = "local"
"""The principal of who sits at this machine: on its own stdin and stdout, it runs Sluice."""


Lines = Callable[[], Sequence[str]]
ANEW: Final = "dev.sluice/began_anew"


def began_anew(call: Call, outcome: Outcome, connection: ServerConnection) -> Outcome:
    """Says in the session's next result that what the server kept of the session before is gone."""
    if not isinstance(outcome, Result) or call.method in LISTS:
        return outcome
    why, connection.anew = connection.anew, ""
    meta = outcome.value.get("_meta")
    return Result({**outcome.value, "_meta": {**(meta if isinstance(meta, dict) else {}), ANEW: why}})


def unavailable(call: Call, server: str, why: str) -> Outcome:
    return refuse(call.method, "server_unavailable", f"The server {server} {why}.")


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
        return refuse(call.method, "result_too_large", f"The answer of the server {server} is too large.")
    if isinstance(error, TimeoutError):
        end = f" {_UNKNOWN}" if call.method == "tools/call" else ""
        return refuse(call.method, "timeout", f"The server {server} did not answer in time.{end}")
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
