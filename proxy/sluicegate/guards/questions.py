"""Whether what a server asks may be asked of this client: one gate for servers and clients of both eras.

Questions come as `InputRequired`, with a task, and as the pages that an error of 2025-11-25 names. What may not be
asked ends the call: its server waits for an answer that nobody will give. Sluice's own questions are not judged.
"""

import logging
from dataclasses import replace
from typing import Final

from sluicegate.protocol import input_requests_server
from sluicegate.protocol.elicitation_urls import OwnUrls
from sluicegate.protocol.input_requests_client import unanswered
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.legacy_server import URL_ELICITATION_REQUIRED
from sluicegate.protocol.model import MISSING_CAPABILITY, Call, Failure, InputRequired, Outcome, Result
from sluicegate.protocol.union_members import without_pages

_PAGE: Final = frozenset({"elicitationId", "message", "mode", "url"})

log = logging.getLogger(__name__)


def judged(call: Call, outcome: Outcome, own: OwnUrls) -> Outcome:
    """The outcome with what its client may be asked, or what the client gets instead."""
    if isinstance(outcome, Result):
        requests = outcome.value.get("inputRequests") if call.method == "tasks/get" else None
        if not isinstance(requests, dict):
            return outcome
        allowed = _allowed(call, requests, own)
        if isinstance(allowed, Failure):
            return allowed
        return Result({**outcome.value, "inputRequests": allowed}, reason=outcome.reason)
    if isinstance(outcome, InputRequired) and not outcome.is_ours:
        allowed = _allowed(call, outcome.requests, own)
        return _instead(call, allowed) if isinstance(allowed, Failure) else replace(outcome, requests=allowed)
    if isinstance(outcome, Failure) and outcome.code == URL_ELICITATION_REQUIRED and outcome.reason is None:
        return _pages(call, outcome, own)
    return outcome


def _pages(call: Call, failure: Failure, own: OwnUrls) -> Outcome:
    requests = input_requests_server.pages({"data": failure.data})
    allowed = Failure(0, failure.message) if requests is None else _allowed(call, requests, own)
    if isinstance(allowed, Failure):
        return _instead(call, allowed)
    # As they were judged: what else stands there, a client could read in their place. An error carries no trace.
    bare = [
        {key: value for key, value in elicitation.items() if key in _PAGE}
        for elicitation in failure.data["elicitations"] if isinstance(elicitation, dict)
    ]  # fmt: skip
    return replace(failure, data={**without_pages(failure.data), "elicitations": bare})


def _allowed(call: Call, requests: Json, own: OwnUrls) -> Json | Failure:
    allowed = input_requests_server.judged(requests, call.client, own)
    if isinstance(allowed, Failure):
        server = call.target.server if call.target is not None else ""
        log.warning("a server's question is not passed on", extra={"server": server, "why": allowed.message})
    return allowed


def _instead(call: Call, why: Failure) -> Outcome:
    """An error that says what to declare is for a program, all else for whoever reads what a tool answers."""
    return why if why.code == MISSING_CAPABILITY else unanswered(call.method, why.message)
