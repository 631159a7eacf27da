"""What an approver sees: one screen, in which nothing hides and nobody's words pass for somebody else's.

Secrets are masked before anything is kept; what remains is kept whole, or is marked as cut, with its size and a keyed
digest. Words of the agent, of the server and of the client say whose they are. Pure.
"""

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from sluicegate.approval.record import Approval
from sluicegate.audit.redact import Redactor
from sluicegate.policy.display import diff, hidden, lines, visible
from sluicegate.policy.hooked import hook_of
from sluicegate.protocol.canonical_json import canonical, canonical_parts
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import REASON, Call

MAX_TEXT: Final = 64 * 1024
MAX_NODES: Final = 20_000
MAX_CHARS: Final = 256 * 1024
MAX_WORDS: Final = 1_000  # of what a server or an agent says about the call
MAX_PREVIEW: Final = 2 * 1024
_AIMS: Final = frozenset(
    "account amount branch bucket channel cluster collection currency database dataset date days destination dir"
    " directory domain email environment file folder force from group host id key name namespace number organization"
    " owner path paths pod pr price project pull_number quantity recipient recursive ref region replicas repo"
    " repository resource role schema scope server service subject table target team tenant title to topic total url"
    " user username version zone".split()
)
MAX_AIMS: Final = 12


def arguments_of(call: Call) -> Any:
    return call.params.get("arguments", {name: value for name, value in call.params.items() if name == "uri"})


def take(call: Call, redactor: Redactor, review: str) -> Json:
    """What is kept of a call, for eyes alone. `review` is what people have said of the tool's definition."""
    target, arguments = call.target, arguments_of(call)
    tool = f"{target.server}/{target.own}" if target else ""
    whole = b"".join(part.encode("ascii") for part in canonical_parts(arguments))
    masked, is_cut = redactor.masked(arguments, tool, MAX_TEXT, MAX_NODES, MAX_CHARS)
    described = target.item.get("description") if target and target.item else None
    reason = call.meta.get(REASON)
    return {
        "arguments": masked,
        "size": len(whole),
        "digest": redactor.digest(whole),
        "is_cut": is_cut,
        "hidden": hidden(arguments),
        "description": redactor.written(described, MAX_WORDS) if isinstance(described, str) else "",
        "review": review,
        "asked_by": _asked_by(call),
        "reason": redactor.written(reason, MAX_WORDS) if isinstance(reason, str) else "",
    }


def _asked_by(call: Call) -> str:
    """What a hook says that wants a person asked; no row of the policy does then."""
    last = call.trail.decisions[-1] if call.trail.decisions else None
    return f'{last.rule}: "{last.reason}"' if last is not None and hook_of(last.rule) else ""


def summary(details: Json) -> Json:
    """What rows of lists show of the arguments: all of few, of others the beginning as a text."""
    if "arguments" not in details:
        return {}
    row = {name: details.get(name) for name in ("arguments", "size", "digest", "is_cut", "hidden")}
    text = preview(details)
    return row if text == _text(details) else {**row, "arguments": text, "is_summary": True}


def tell(approval: Approval, details: Json) -> Json:
    """One row of a list, if `details` is the summary of what is kept."""
    binding = approval.binding
    terms = binding.terms
    return {
        "id": approval.id, "state": approval.state, "digest": binding.digest,
        "principal": binding.principal, "owner": approval.owner, "client_claims_to_be": visible(approval.client),
        "method": approval.method, "server": binding.server, "tool": visible(binding.own),
        "public": visible(approval.public), "class": binding.class_,
        "arguments": _visible(details.get("arguments")), "arguments_size": details.get("size"),
        "arguments_digest": details.get("digest"), "arguments_cut": details.get("is_cut"),
        "cut": details.get("is_summary", False),
        "arguments_erased": "arguments" not in details, "hidden_characters": details.get("hidden"),
        "profile": terms.name, "tier": terms.tier, "quorum": terms.quorum, "approvers": list(terms.approvers),
        "remember": list(terms.remember), "require_reason": terms.require_reason,
        "created_at": stamp(approval.created), "expires_at": stamp(approval.expires),
        "votes": [
            {"principal": one.principal, "channel": one.channel, "at": stamp(one.at), "comment": visible(one.comment)}
            for one in approval.votes
        ],
        "decided_by": approval.by, "comment": visible(approval.comment), "scope": approval.scope,
        "ended_at": None if approval.ended is None else stamp(approval.ended),
    }  # fmt: skip


def tell_all(approval: Approval, details: Json, last: Json, calls: list[Json], row: str, now: float) -> Json:
    """Everything, for whoever is about to decide. `row` is the text of the policy's row, `calls` the requester's last
    ones, `last` what the last approved call of this tool was like."""
    arguments = details.get("arguments")
    compared = diff(canonical(last["arguments"]), canonical(arguments)) if "arguments" in last and details else None
    return {
        **tell(approval, details),
        "asked_by_row": {
            "rule": approval.binding.rule, "row": visible(row or details.get("asked_by", "")),
            "policy": approval.policy,
        },
        "definition": {"fingerprint": approval.binding.definition, "review": details.get("review")},
        "description": {"written_by": "the server", "text": visible(details.get("description", ""))},
        "reason": {"written_by": "the agent", "text": visible(details.get("reason", ""))},
        "aims_at": aims(arguments),
        "arguments_lines": lines(arguments) if arguments is not None else [],
        "compared_with_last_approved": compared,
        "last_calls": calls,
        "seconds_left": max(0, round(approval.expires - now)),
        "trace": approval.trace,
    }


def aims(arguments: Any) -> Json:
    """What says where it strikes: plain values under names that usually do."""
    if not isinstance(arguments, Mapping):
        return {}
    found = {
        visible(name): _visible(value)
        for name, value in arguments.items()
        if name.lower() in _AIMS and isinstance(value, str | int | float) and len(str(value)) <= 200
    }
    return dict(list(found.items())[:MAX_AIMS])


def preview(details: Json) -> str:
    """The masked arguments as one text of bounded size; a cut says so."""
    text = _text(details)
    size = len(text.encode("utf-8", "replace"))
    if size <= MAX_PREVIEW:
        return text
    cut = text.encode("utf-8", "replace")[:MAX_PREVIEW].decode("utf-8", "ignore")
    return f"{cut} ...(cut: {size} bytes, {details.get('digest')})"


def _text(details: Json) -> str:
    return visible(json.dumps(details.get("arguments"), ensure_ascii=False))


def _visible(value: Any) -> Any:
    """The same JSON without anything that hides. Line ends and tabs stay, for JSON shows them."""
    if isinstance(value, str):
        return visible(value, "\n\r\t")
    if isinstance(value, dict):
        return {visible(name): _visible(item) for name, item in value.items()}
    return [_visible(item) for item in value] if isinstance(value, list) else value


def stamp(seconds: float) -> str:
    """RFC 3339, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
