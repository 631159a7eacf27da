"""Who may decide and what may be decided: the tiers, whose votes a quorum counts, what makes two principals the same
person, and whether a vote can be taken. Pure.

One person may hold several keys, and a key may belong to a team: an owner stands for all that are theirs. Names are
compared without case, for it is safer to take two people for one than one for two. So are the names of then and of now:
whoever reads an approval here adds the latter.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sluicegate.approval.grants import Grant
from sluicegate.approval.record import Approval, Scope, Word
from sluicegate.policy.display import is_hidden
from sluicegate.protocol.model import Client

_TOKEN: Final = "jwt:"


def persons(client: Client) -> tuple[str, ...]:
    """The names by which a client is known: two that share one are the same."""
    names = [client.principal, client.owner]
    if client.principal.startswith(_TOKEN):  # whoever has a token under that name, from whichever issuer
        names.append(client.principal.partition("#")[2])
    return tuple(dict.fromkeys(name.casefold() for name in names if name))


def objection(approval: Approval, who: Client, roles: Collection[str]) -> str:
    """Why `who` may not decide, as a sentence; empty if they may. `roles` are all that they hold."""
    terms = approval.binding.terms
    if terms.tier == "self":
        is_requester = who.principal == approval.binding.principal
        return "" if is_requester else f"{terms.name} is confirmed by whoever asked ({approval.binding.principal})"
    if not set(persons(who)).isdisjoint(approval.persons):
        return "nobody decides on what they asked for themselves, nor does anybody of the same owner"
    if set(terms.approvers).isdisjoint(roles):
        return f"{terms.name} is decided by {' or '.join(terms.approvers)}"
    return ""


def stands(approval: Approval) -> bool:
    """Whether the approvers are other people than the requester, and different from one another."""
    if approval.binding.terms.tier == "self":
        return True
    groups = [set(approval.persons), *(set(vote.persons) for vote in approval.votes)]
    return len(set().union(*groups)) == sum(map(len, groups))


def supports(grant: Grant, giver: Client | None, roles: Collection[str], holder: Client | None) -> bool:
    """Whether its giver could give it now. None stands for a bearer whose token is not known."""
    if giver is not None and giver.credential != grant.credential:
        return False
    terms = grant.binding.terms
    if terms.tier != "other":
        return True
    names = persons(holder or Client(grant.binding.principal))
    is_another = set(persons(giver or Client(grant.by))).isdisjoint(names)
    return is_another and not set(terms.approvers).isdisjoint(roles)


def may_see(approval: Approval, who: Client, roles: Collection[str]) -> bool:
    """Those who may decide, and whoever asked."""
    return who.principal == approval.binding.principal or not objection(approval, who, roles)


def has_voted(approval: Approval, who: Client) -> bool:
    return any(vote.principal == who.principal for vote in approval.votes)


def counts_already(approval: Approval, who: Client) -> bool:
    """Whether somebody of the same owner has agreed: a quorum counts distinct owners."""
    names = set(persons(who))
    return any(not names.isdisjoint(vote.persons) for vote in approval.votes)


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
    if has_voted(approval, who):
        return VoteRefused(409, "you have agreed already")
    if counts_already(approval, who):
        return VoteRefused(403, "somebody of the same owner has agreed already: a quorum counts different owners")
    if vote_request.scope not in terms.remember:
        return VoteRefused(400, f"{terms.name} can be remembered as: {', '.join(terms.remember)}")
    if terms.require_reason and not any(char.isalnum() and not is_hidden(char) for char in vote_request.comment):
        return VoteRefused(400, f"{terms.name} wants a reason: give a comment")
    return None
