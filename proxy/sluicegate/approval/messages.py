"""What is said to whoever asked: the question in their own client, and the answers while and after others decide. Pure.

A model reads the answers, so each says first whether anything was executed, and what to do next.
"""

from itertools import islice
from typing import Any, Final

from sluicegate.approval.eligibility import VoteRequest
from sluicegate.approval.presentation import stamp
from sluicegate.approval.record import SCOPES, Approval
from sluicegate.policy.display import each_line, visible
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import REASON, Failure, Outcome, Reason, Result, refuse

APPROVAL: Final = "dev.sluice/approval"
MAX_LINES: Final = 60
TITLES: Final = {
    "once": "Run it, this once",
    "session": "Run it, and this tool for the rest of the session",
    "15m": "Run it, and this tool for 15 minutes",
    "deny": "Do not run it",
}
_WITHOUT_SESSION: Final = "Run it, and this tool while it is used at least every half hour, for 8 hours at most"


def title(word: str, approval: Approval) -> str:
    """What a choice says. A client of 2026-07-28 has no session."""
    return _WITHOUT_SESSION if word == "session" and not approval.session else TITLES[word]


def answer(method: str, reason: Reason, text: str, approval: Approval) -> Outcome:
    """A refusal that names its approval."""
    outcome = refuse(method, reason, text)
    if isinstance(outcome, Result):
        return Result({**outcome.value, "_meta": {REASON: reason, APPROVAL: about(approval)}}, reason=reason)
    if isinstance(outcome, Failure):
        return Failure(outcome.code, outcome.message, {**outcome.data, "approval": about(approval)}, reason)
    return outcome


def about(approval: Approval) -> Json:
    """What programs read of it."""
    approvers = approval.binding.terms.describe()
    return {"id": approval.id, "state": approval.state, "expires_at": stamp(approval.expires), "approvers": approvers}


def awaited(approval: Approval) -> str:
    """While its client need not do anything."""
    return f"waiting for approval {approval.id} by {approval.binding.terms.describe()}, until {stamp(approval.expires)}"


def pending(approval: Approval, decide: str) -> str:
    """`decide` says how they decide."""
    terms, missing = approval.binding.terms, approval.binding.terms.quorum - len(approval.votes)
    so_far = f" {len(approval.votes)} agreed, {missing} still missing." if approval.votes else ""
    return (
        f"NOT EXECUTED. {approval.public} waits for approval {approval.id} by {terms.describe()}"
        f" ({terms.name}), until {stamp(approval.expires)}.{so_far} They decide with: {decide}."
        " Call again with exactly the same arguments: once approved it runs, exactly once; do not vary them."
    )


def denied(approval: Approval) -> str:
    written = f" They say: {visible(approval.comment)}" if approval.comment else ""
    until = stamp(approval.expires)
    return (
        f"NOT EXECUTED. {approval.public} was denied by {approval.by} ({approval.id}).{written}"
        f" The same call is not asked for again before {until}."
    )


def expired(approval: Approval) -> str:
    return (
        f"NOT EXECUTED. Nobody approved {approval.public} in time ({approval.id}, {approval.binding.terms.name})."
        " The same call again asks anew."
    )


def ended(approval: Approval) -> str:
    why = f": {visible(approval.comment)}" if approval.comment else ""
    return f"NOT EXECUTED. The approval {approval.id} of {approval.public} is {approval.state}{why}."


def form(approval: Approval, details: Json, show: str) -> Json:
    """An elicitation in form mode (2026-07-28 client/elicitation): flat, and what is preset is a no."""
    words = [*(scope for scope in SCOPES if scope in approval.binding.terms.remember), "deny"]
    choice = {
        "type": "string", "title": "Run it?", "default": "deny",
        "oneOf": [{"const": word, "title": title(word, approval)} for word in words],
    }  # fmt: skip
    comment = {"type": "string", "title": "Comment", "description": "The model reads it.", "maxLength": 500}
    schema = {"type": "object", "properties": {"decision": choice, "comment": comment}, "required": ["decision"]}
    params = {"mode": "form", "message": question(approval, details, show), "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def visit(approval: Approval, details: Json, show: str, url: str) -> Json:
    params = {"mode": "url", "message": question(approval, details, show), "url": url}
    return {"method": "elicitation/create", "params": params}


def question(approval: Approval, details: Json, show: str) -> str:
    """On one screen: what runs where, with which arguments, and who says what. `show` is a command that shows all."""
    binding = approval.binding
    shown = list(islice(each_line(details.get("arguments")), MAX_LINES + 1))
    parts = [
        f"Sluice asks: run {visible(binding.own)} of {binding.server} ({binding.class_})?",
        *(f"  {line}" for line in shown[:MAX_LINES]),
    ]
    if len(shown) > MAX_LINES or details.get("is_cut"):
        parts.append(f"  ...(cut: {details['size']} bytes, {details['digest']}; whole: {show})")
    if details.get("hidden"):
        parts.append(f"  {details['hidden']} hidden characters are shown as \u27e8U+XXXX\u27e9")
    if details.get("review") == "changed":
        parts.append("THE TOOL HAS CHANGED since its definition was looked at.")
    if details.get("reason"):
        parts.append(f"The agent says why: {visible(details['reason'])}")
    if details.get("description"):
        parts.append(f"The server says what it does: {visible(details['description'][:300])}")
    asks = f"The policy asks: {binding.rule} ({binding.terms.name})."
    parts.append(f"{asks} {approval.id}, until {stamp(approval.expires)}")
    return "\n".join(parts)


def read_vote(approval: Approval, value: Any) -> VoteRequest | None:
    """What the client's user decided; None where they closed the question, or the answer makes no sense: both are no
    yes."""
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(value, dict) or value.get("action") not in ("accept", "decline"):
        return None
    written = content.get("comment") if isinstance(content, dict) else None
    comment = written if isinstance(written, str) else ""
    if value["action"] == "decline":
        return VoteRequest("deny", approval.binding.digest, comment=comment)
    decision = content.get("decision") if isinstance(content, dict) else None
    if decision == "deny":
        return VoteRequest("deny", approval.binding.digest, comment=comment)
    scope = next((scope for scope in SCOPES if scope == decision), None)
    return None if scope is None else VoteRequest("approve", approval.binding.digest, scope, comment)
