"""Elicitation, sampling and roots: the one validator of what servers ask and of what clients answer.

Both sides use it: a question is validated where it comes from a server and where it is put to a legacy client, an
answer where it comes from a client and where it goes to a legacy server. A client may answer with an error, too.
2025-11-25 client/elicitation, client/sampling, client/roots; 2026-07-28 basic/patterns/mrtr. Pure.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from sluicegate.protocol.elicitation_urls import address
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json, error_text
from sluicegate.protocol.parameter_names import may_pose

ELICIT: Final = "elicitation/create"
SAMPLE: Final = "sampling/createMessage"
ROOTS: Final = "roots/list"
MAX_ELICITATION_ID: Final = 1024
MAX_BLOCKS: Final = 5_000
"""Of all messages of a question, of which an empty one counts as one: each is looked at several times, in one step of
the event loop."""

CONTEXT: Final = frozenset({"includeContext"})
"""Asks for what the servers of a client have said (2025-11-25 client/sampling; clients may ignore it)."""
_TOOL_BLOCKS: Final = frozenset({"tool_use", "tool_result"})
_UNKNOWN: Final = "for input in a form that is not known"
# Members that are judged. A client that ignores case would read another spelling of one, which nobody judged.
_JUDGED: Final = frozenset(
    {"_meta", "elicitationId", "includeContext", "message", "messages", "mode", "requestedSchema", "task", "toolChoice",
     "tools", "url"}
)


def problem(method: Any, params: Any) -> str:
    """What is wrong with a question, as the end of "The server asked ..."; empty for one that is well-formed. It never
    repeats the server's own words."""
    check = _QUESTIONS.get(method) if isinstance(method, str) and isinstance(params, dict) else None
    if check is None:
        return _UNKNOWN
    return "with another spelling of a member" if may_pose(params, _JUDGED) else check(params)


def _elicitation(params: Json) -> str:
    mode = params.get("mode", "form")
    if not isinstance(params.get("message"), str):
        return "its user something without saying what"
    if mode == "url":
        if not is_short(params.get("elicitationId")):
            return "its user to open a page under a name that is too long"
        return "" if address(params.get("url")) is not None else "its user to open something that is no web page"
    if mode != "form":
        return "for input from its user in a mode that is not known"
    return "" if isinstance(params.get("requestedSchema"), dict) else "its user for a form without fields"


def page_of(server: str, id: str) -> str:
    """How a client knows a page that one of several servers asks for: no other one says that the visit is over."""
    return f"{server}:{id}"


def is_short(id: Any) -> bool:
    """Whether an elicitation may be called so: by its id it is remembered what its client has to be told."""
    return not isinstance(id, str) or len(id) <= MAX_ELICITATION_ID


def _sampling(params: Json) -> str:
    messages = params.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return "a model for an answer to no messages"
    if sum(len(blocks(message)) or 1 for message in messages) > MAX_BLOCKS:
        return "a model for an answer to too many messages"
    is_typed = all(isinstance(block.get("type"), str) for block in sampled_blocks(params))
    return "" if is_typed else "a model for an answer to something that is no message"


_QUESTIONS: Final[dict[str, Callable[[Json], str]]] = {
    ELICIT: _elicitation, SAMPLE: _sampling, ROOTS: lambda params: "",
}  # fmt: skip


def blocks(message: Json) -> list[Any]:
    """The content of one message, which is a block or a list of them."""
    content = message.get("content")
    return content if isinstance(content, list) else [content]


def sampled_blocks(params: Json) -> Iterator[Json]:
    return (block for message in params["messages"] for block in blocks(message) if isinstance(block, dict))


def wants_tools(params: Json) -> bool:
    """Whether a model is asked to use tools, or was (2025-11-25 client/sampling#capabilities)."""
    return "tools" in params or "toolChoice" in params or any(b["type"] in _TOOL_BLOCKS for b in sampled_blocks(params))


def is_answer(method: str, value: Any) -> bool:
    """Whether that is a bare result of such a question; False for a method that asks nothing."""
    check = _ANSWERS.get(method)
    return check is not None and isinstance(value, dict) and check(value)


def _is_elicited(value: Json) -> bool:
    content = value.get("content")
    is_filled = content is None or (isinstance(content, dict) and all(_is_field(field) for field in content.values()))
    return value.get("action") in ("accept", "decline", "cancel") and is_filled


def _is_field(value: Any) -> bool:
    return isinstance(value, str | int | float) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )


def _is_sampled(value: Json) -> bool:
    found = blocks(value)
    is_attributed = isinstance(value.get("role"), str) and isinstance(value.get("model"), str)
    return is_attributed and bool(found) and all(isinstance(block, dict) and "type" in block for block in found)


def _is_rooted(value: Json) -> bool:
    roots = value.get("roots")
    return isinstance(roots, list) and all(isinstance(r, dict) and isinstance(r.get("uri"), str) for r in roots)


_ANSWERS: Final[dict[str, Callable[[Json], bool]]] = {ELICIT: _is_elicited, SAMPLE: _is_sampled, ROOTS: _is_rooted}


class InputRefusal(dict[str, Any]):
    """The JSON-RPC error in the place of an answer. A type of its own: nothing that came as JSON can pose as one.

    `inputResponses` hold bare results (2026-07-28 basic/patterns/mrtr). But a legacy server asked with a request, which
    may be answered with an error, and it is another legacy client's own error that it should see."""


def refusal(error: Json) -> InputRefusal:
    """The error as it may be sent on: a code, a message, and data where there is any."""
    code = error.get("code")
    is_code = isinstance(code, int) and not isinstance(code, bool)
    made = InputRefusal(code=code if is_code else INTERNAL_ERROR, message=error_text(error))
    if error.get("data") is not None:
        made["data"] = error["data"]
    return made
