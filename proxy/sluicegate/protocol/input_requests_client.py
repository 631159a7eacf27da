"""What servers ask, in the words of one legacy client: may it be asked that, how, and what its answer says.

An ask arrives as the middle has it (2026-07-28 basic/patterns/mrtr): a method and its params. A legacy client gets
a JSON-RPC request instead, and only of a kind that its revision has and it has declared itself
(<= 2025-11-25 client/elicitation, client/sampling, client/roots). Pure: ids and sending are the listener's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from sluicegate.protocol import input_forms, tasks
from sluicegate.protocol.input_forms import ELICIT, ROOTS, SAMPLE, refusal
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json, Response, error_text
from sluicegate.protocol.model import Client, Failure, Outcome, Result
from sluicegate.protocol.revisions import REVISIONS, Revision

_HOP: Final = ("progressToken", tasks.RELATED)


@dataclass(frozen=True, slots=True)
class Question:
    """A request that this client can be sent."""

    method: str
    params: Json


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to an ask that need not, or cannot, be put to the client."""

    answer: Json


@dataclass(frozen=True, slots=True)
class Unanswered:
    """There is no answer and there will be none: `why` as a sentence for whoever called. `is_late`: for want of
    time. Without `is_put` the client has not seen the question."""

    why: str
    is_late: bool = False
    is_put: bool = True


# An ask that no user will see ends like one that its user closed.
CANCELLED: Final = Settled({"action": "cancel"})

NewId = Callable[[], str]


def render(ask: Any, client: Client, new_id: NewId, task: str | None = None) -> Question | Settled | Unanswered:
    """The request that `ask` becomes for this client. `new_id` makes an elicitation's id; `task` is our id of the task
    that asks (2025-11-25 basic/utilities/tasks#associating-task-related-messages)."""
    question = _render(ask, client, new_id)
    if task is None or not isinstance(question, Question):
        return question
    return Question(question.method, tasks.related(question.params, task))


def _render(ask: Any, client: Client, new_id: NewId) -> Question | Settled | Unanswered:
    method, params = (ask.get("method"), ask.get("params", {})) if isinstance(ask, dict) else (None, {})
    if problem := input_forms.problem(method, params):
        return Unanswered(f"The server asked {problem}.")
    # The tasks that clients make of questions are not relayed, and nobody here would hear the progress of an answer.
    meta = params.get("_meta")
    remaining = {key: value for key, value in meta.items() if key not in _HOP} if isinstance(meta, dict) else {}
    params = {key: value for key, value in params.items() if key not in ("_meta", "task")}
    params = {**params, "_meta": remaining} if remaining else params
    revision = REVISIONS[client.revision]
    if method == ELICIT:
        return _elicitation(params, client.capabilities.get("elicitation"), revision, new_id)
    if method == SAMPLE:
        return _sampling(params, client.capabilities.get("sampling"), revision)
    is_declared = isinstance(client.capabilities.get("roots"), dict)
    return Question(ROOTS, params) if is_declared else _undeclared("roots")


def elicits(client: Client) -> Literal["form", "url", ""]:
    """How this client can show its user a question: forms where it has both."""
    declared, revision = client.capabilities.get("elicitation"), REVISIONS[client.revision]
    if not isinstance(declared, dict) or not (client.era == "modern" or revision.elicitation):
        return ""
    if not revision.url_elicitation or not declared or "form" in declared:
        return "form"
    return "url" if "url" in declared else ""


def opens_pages(client: Client) -> bool:
    """Whether this client can ask its user to open a page."""
    declared, revision = client.capabilities.get("elicitation"), REVISIONS[client.revision]
    can_ask = client.era == "modern" or revision.elicitation
    return isinstance(declared, dict) and can_ask and revision.url_elicitation and "url" in declared


def _undeclared(what: str) -> Unanswered:
    return Unanswered(f"The server asks for {what}, which this client does not support.")


def _elicitation(params: Json, declared: Any, revision: Revision, new_id: NewId) -> Question | Settled | Unanswered:
    if not isinstance(declared, dict) or not revision.elicitation:
        return _undeclared("input from its user (elicitation)")
    if params.get("mode") == "url":
        return _visit(params, declared, revision, new_id)
    # 2025-11-25 client/elicitation#capabilities: an empty object means form mode alone
    if revision.url_elicitation and declared and "form" not in declared:
        return _undeclared("input from its user in the mode 'form'")
    return _form(params, revision)


def _visit(params: Json, declared: Json, revision: Revision, new_id: NewId) -> Question | Unanswered:
    if not revision.url_elicitation or "url" not in declared:
        return _undeclared("a visit to a web page (elicitation in the mode 'url')")
    id = params.get("elicitationId")  # required until 2025-11-25, gone after: a server's own is kept
    return Question(ELICIT, {**params, "elicitationId": id if isinstance(id, str) else new_id()})


def _form(params: Json, revision: Revision) -> Question | Settled | Unanswered:
    schema = params["requestedSchema"]
    if not isinstance(fields := schema.get("properties"), dict):
        return Unanswered("The server asked its user for a form without fields.")
    if revision.url_elicitation:
        return Question(ELICIT, params)
    shown = {name: _old_field(field) for name, field in fields.items()}
    if None in shown.values():
        return CANCELLED
    old: Json = {"type": "object", "properties": shown}
    if "required" in schema:
        old["required"] = schema["required"]
    remaining = {key: value for key, value in params.items() if key != "mode"}
    return Question(ELICIT, {**remaining, "requestedSchema": old})


def _old_field(field: Any) -> Any:
    """A field as 2025-06-18 has it; None for a choice of several, which it cannot say."""
    if not isinstance(field, dict):
        return field
    if field.get("type") == "array":
        return None
    options = field.get("oneOf", field.get("anyOf"))
    if not isinstance(options, list) or not all(isinstance(option, dict) and "const" in option for option in options):
        return field
    remaining = {key: value for key, value in field.items() if key not in ("oneOf", "anyOf")}
    values = [option["const"] for option in options]
    titles = [option.get("title", option["const"]) for option in options]
    titles = ["" if isinstance(title, dict | list) else str(title) for title in titles]  # which take long to write
    return {**remaining, "type": "string", "enum": values, "enumNames": titles}


def _sampling(params: Json, declared: Any, revision: Revision) -> Question | Unanswered:
    if not isinstance(declared, dict):
        return _undeclared("a model's answer (sampling)")
    if input_forms.wants_tools(params) and not (revision.sampling_tools and "tools" in declared):
        return _undeclared("a model's answer with tools (sampling)")
    if not revision.audio and any(block["type"] == "audio" for block in input_forms.sampled_blocks(params)):
        return _undeclared("a model's answer to a recording (sampling)")
    if revision.sampling_tools:
        if "context" not in declared:  # 2025-11-25 client/sampling#capabilities: SHOULD NOT without it
            params = {key: value for key, value in params.items() if key != "includeContext"}
        return Question(SAMPLE, params)
    each = [part for message in params["messages"] for part in _one_each(message)]
    return Question(SAMPLE, {**params, "messages": each})


def _one_each(message: Json) -> list[Json]:
    """Before 2025-11-25 a message has one block: several are said one after the other. Each says the role again and
    nothing else of the message: a server may write 10,000 members beside 10,000 blocks."""
    blocks, role = input_forms.blocks(message), message.get("role")
    shared = message if len(blocks) == 1 else {"role": role} if role in ("user", "assistant") else {}
    return [{**shared, "content": block} for block in blocks]


def read(method: str, response: Response, takes_errors: bool = False) -> Json | Unanswered:
    """The bare result for `inputResponses`. An error has no form there; of an elicitation it closes the question.
    A server that asked with a request is told of the error."""
    if response.error is not None:
        if takes_errors:
            return refusal(response.error)
        if method == ELICIT:
            return CANCELLED.answer
        return Unanswered(f"The client did not answer the server: {error_text(response.error)[:200]}")
    result = response.result or {}
    if not input_forms.is_answer(method, result):
        return Unanswered(f"The client's answer to {method} is malformed.")
    # Bare in the newest revision (2026-07-28 schema): what described the response stays behind.
    return {key: value for key, value in result.items() if (takes_errors or key != "_meta") and value is not None}


def visited(plan: dict[str, Question], requests: Json, answers: Json) -> list[str]:
    """The elicitations of a round that were given an id here and whose page the user agreed to open."""
    return [
        question.params["elicitationId"]
        for key, question in plan.items()
        if question.params.get("mode") == "url"
        and "elicitationId" not in requests[key]["params"]
        and answers[key].get("action") == "accept"
    ]


def unanswered(method: str, why: str) -> Outcome:
    """How a call ends whose server waits for an answer in vain."""
    if method == "tools/call":
        return Result({"content": [{"type": "text", "text": why}], "isError": True})
    return Failure(INTERNAL_ERROR, why)
