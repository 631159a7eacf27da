"""What somebody decides, and whether it can be taken from them. Pure."""

from dataclasses import dataclass
from typing import Final

from sluicegate.approval import eligibility
from sluicegate.approval.record import Approval, Scope, Word
from sluicegate.policy.display import is_hidden
from sluicegate.protocol.model import Client

MAX_COMMENT: Final = 2_000
ELICITED: Final = ("elicitation", "page")  # a form in the client, or the page that its user is sent to


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """What somebody decides. `seen` is the digest of what they looked at."""

    word: Word
    seen: str = ""
    scope: Scope = "once"
    comment: str = ""


@dataclass(frozen=True, slots=True)
class VoteRefused:
    """Why not, as an HTTP status and a sentence."""

    status: int
    text: str


def no_yes_of(vote_request: VoteRequest) -> str:
    """Why a hook may not say so; empty where it may. Approving is for people."""
    return "" if vote_request.word == "deny" else "a hook denies, and approves nothing"


def unfit(approval: Approval, who: Client, vote_request: VoteRequest, channel: str) -> VoteRefused | None:
    """Why this ballot is not taken from somebody who may decide. A no is taken from every channel."""
    terms = approval.binding.terms
    if approval.state not in ("pending", "partially_approved"):
        return VoteRefused(409, f"it is {approval.state} already")
    if vote_request.seen and vote_request.seen != approval.binding.digest:
        return VoteRefused(409, "it changed while you looked at it: read it again")
    if vote_request.word == "deny":
        return None
    if "api" not in terms.via and channel not in ELICITED:
        return VoteRefused(403, f"{terms.name} is approved by a question to the client of whoever asked alone")
    if not vote_request.seen:
        return VoteRefused(400, "seen_digest is needed: the digest of what you looked at")
    if eligibility.has_voted(approval, who):
        return VoteRefused(409, "you have agreed already")
    if eligibility.counts_already(approval, who):
        return VoteRefused(403, "somebody of the same owner has agreed already: a quorum counts different owners")
    if vote_request.scope not in terms.remember:
        return VoteRefused(400, f"{terms.name} can be remembered as: {', '.join(terms.remember)}")
    if terms.require_reason and not any(char.isalnum() and not is_hidden(char) for char in vote_request.comment):
        return VoteRefused(400, f"{terms.name} wants a reason: give a comment")
    return None
