"""Who may decide: the tiers, whose votes a quorum counts, and what makes two principals the same person. Pure.

One person may hold several keys, and a key may belong to a team: an owner stands for all that are theirs. Names are
compared without case, for it is safer to take two people for one than one for two. So are the names of then and of now:
whoever reads an approval here adds the latter.
"""

from collections.abc import Collection
from typing import Final

from sluicegate.approval.grants import Grant
from sluicegate.approval.record import Approval
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
