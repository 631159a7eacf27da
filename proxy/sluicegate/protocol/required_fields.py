"""What a result must have in every revision, where a server left it out. Pure."""

import json

from sluicegate.protocol import union_members
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json
from sluicegate.protocol.methods import RESULTS
from sluicegate.protocol.model import Failure, Outcome, Result


def with_required_fields(method: str, value: Json) -> Outcome:
    """The result; one without what it is about is no answer. Only of a tool less is known to be meant: servers leave
    `content` out where they say all in structure, and clients of every revision take it for granted."""
    value = union_members.result(method, value)
    needed = RESULTS.get(method)
    if needed is None or isinstance(value.get(needed[0]), needed[1]):
        return Result(value)
    if needed[0] != "content":
        return Failure(INTERNAL_ERROR, f"The server's answer to {method} has no {needed[0]}")
    # 2025-11-25 server/tools#structured-content: what is said in structure should be said as text, too
    said = value.get("structuredContent")
    text = [] if said is None else [{"type": "text", "text": json.dumps(said, ensure_ascii=False)}]
    return Result({**value, "content": text})
