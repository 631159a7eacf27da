"""What the newest revision has no words for: a client that answers a question with an error.

`inputResponses` hold bare results (2026-07-28 basic/patterns/mrtr). But a legacy server asked with a request, which may
be answered with an error, and it is another legacy client's own error that it should see. Pure.
"""

from typing import Any

from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json


class InputRefusal(dict[str, Any]):
    """The JSON-RPC error in the place of an answer. A type of its own: nothing that came as JSON can pose as one."""


def refusal(error: Json) -> InputRefusal:
    """The error as it may be sent on: a code, a message, and data where there is any."""
    code, message = error.get("code"), error.get("message")
    is_code = isinstance(code, int) and not isinstance(code, bool)
    made = InputRefusal(code=code if is_code else INTERNAL_ERROR, message=str(message or "Error"))
    if error.get("data") is not None:
        made["data"] = error["data"]
    return made
