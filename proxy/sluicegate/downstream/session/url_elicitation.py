"""Calls that a legacy server refuses until its user has visited some pages (2025-11-25 client/elicitation).

A refusal proves that nothing was executed, so nothing stays open: what was asked is the whole state, sealed on its
way as every state is, and the call is made anew once the client has consented.
"""

from dataclasses import replace
from typing import Any, Final

from sluicegate.protocol import input_requests_server
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json, Response, decode_fast, dump
from sluicegate.protocol.legacy_server import URL_ELICITATION_REQUIRED
from sluicegate.protocol.model import Call, Failure, InputRequired, Outcome, OwnState, Result

_STATE: Final = "pages "
_RETRY: Final = ("inputResponses", "requestState")


def wanted(call: Call, response: Response) -> InputRequired | None:
    """The question that such a refusal is for a modern client that can open pages; None for every other answer."""
    error = response.error
    if error is None or error.get("code") != URL_ELICITATION_REQUIRED:
        return None
    if call.client.era == "legacy" or not input_requests_server.opens_pages(call.client):
        return None
    requests = input_requests_server.pages(error)
    return None if requests is None else _ask(requests)


def _ask(requests: Json) -> InputRequired:
    return InputRequired(requests, OwnState(_STATE + dump(requests).decode()))


def is_state(state: Any) -> bool:
    return isinstance(state, OwnState) and state.startswith(_STATE)


def consented(call: Call) -> Call | Outcome:
    """The call again where the client said yes to every page; else what it gets instead."""
    requests: Json = decode_fast(call.params["requestState"].removeprefix(_STATE).encode())
    given = input_requests_server.read_answers(call.params)
    if isinstance(given, Failure):
        return given
    actions = {key: answer.get("action") if isinstance(answer, dict) else "" for key, answer in given.items()}
    missing = {key: ask for key, ask in requests.items() if key not in actions}
    for key in requests.keys() - missing.keys():
        if actions[key] != "accept":
            text = "NOT EXECUTED: the server wants a page to be visited first, and that was declined."
            if call.method == "tools/call":
                return Result({"content": [{"type": "text", "text": text}], "isError": True})
            return Failure(INTERNAL_ERROR, text)
    if missing:
        return _ask(missing)
    return replace(call, params={key: value for key, value in call.params.items() if key not in _RETRY})
