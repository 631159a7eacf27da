"""Whether what was asked for, agreed to and remembered still counts: as keys, roles, servers and the policy are now.

Asks others, and changes nothing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from sluicegate.approval import eligibility
from sluicegate.approval.eligibility import ELICITED
from sluicegate.approval.grants import Grant, TokenEnd
from sluicegate.approval.record import Approval, CallBinding, Vote
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client, Target
from sluicegate.store.watch import Watch

UNIDENTIFIED: Final = "it does not say which program or address its server was: an earlier version wrote it"
REPLACED: Final = "another program or address has the key of its server by now"
NOT_RUNNING: Final = "its server was changed, removed or disabled"
GONE: Final = "whoever asked can no longer come in"
OTHER_KEY: Final = "the key of whoever asked was replaced"
FORBIDDEN: Final = "whoever asked may not make this call any more"
ASKED_ANEW: Final = "the call was made again, and other people or terms decide about it by now"
UNSUPPORTED: Final = "who agreed could not do so any more"


@dataclass(frozen=True, slots=True)
class ApprovalDeps:
    """What the queue has to ask others. `tell` writes a record of the audit log, and says whether it is kept."""

    roles_of: Callable[[Client], frozenset[str]]
    client_of: Callable[[str, tuple[str, ...], bool], Client | None]
    """Who has that name now; of whoever comes with tokens, with a good one that has these groups and was shown at the
    admin port (True) or at that for clients."""
    is_gone: Callable[[str], bool]  # whether a principal can no longer come in
    token_end: TokenEnd
    revision: Callable[[], str]
    tell: Callable[[Json], Awaitable[bool]]
    is_mine: Callable[[str], bool] = lambda principal: True  # whether this queue is that of a principal
    identity_of: Callable[[str], str] = lambda server: ""  # which program or address has a server's key
    setup_of: Callable[[str], str] = lambda server: ""  # with which environment or headers, as a mark
    may_call: Callable[[CallBinding, Target | None], bool] = lambda binding, target: True
    """Whether its requester may still make such a call."""
    is_told: Callable[[Client, Approval], bool | None] = lambda who, approval: None
    """Whether whoever asks is a hook that hears of the approval; None: they are no hook."""
    watch: Watch = field(default_factory=Watch)


class ApprovalValidity:
    """Why something does not count any more, as a sentence; empty where it does. `home` is this process."""

    def __init__(self, deps: ApprovalDeps, clock: Callable[[], float], home: str) -> None:
        self._deps, self._clock, self._home = deps, clock, home

    def of_approval(self, approval: Approval, target: Target | None) -> str:
        return self.of_request(approval, target) or self.of_votes(approval)

    def of_request(self, approval: Approval, target: Target | None) -> str:
        return GONE if self.is_orphaned(approval) else self._of_binding(approval.binding, target)

    def _of_binding(self, binding: CallBinding, target: Target | None = None) -> str:
        """Why its requester could not make such a call any more."""
        if (now := self._deps.identity_of(binding.server)) != binding.identity:
            return UNIDENTIFIED if not binding.identity else REPLACED if now else NOT_RUNNING
        if self._deps.setup_of(binding.server) != binding.setup:
            return NOT_RUNNING
        if self._deps.is_gone(binding.principal):
            return GONE
        # Of one of whom nothing is known here, tokens alone tell.
        who = self._deps.client_of(binding.principal, (), False)
        if who is not None and who.credential != binding.credential:
            return OTHER_KEY
        return "" if self._deps.may_call(binding, target) else FORBIDDEN

    def is_orphaned(self, approval: Approval) -> bool:
        """Whether the token that its requester came with is over, and no newer one has the same groups. Where it was
        shown to this process it is known, so that it is over as well if its issuer was removed or changed."""
        if approval.token_end is None:
            return False
        end = self._deps.token_end(approval.binding.principal, approval.binding.roles)
        is_unknown = end is None and approval.home == self._home
        return is_unknown or max(approval.token_end, end or 0.0) <= self._clock()

    def is_over(self, approval: Approval) -> bool:
        """Whether its requester is gone, as far as time tells."""
        return self._deps.is_gone(approval.binding.principal) or self.is_orphaned(approval)

    def of_votes(self, approval: Approval) -> str:
        """Why what people said of it does not count any more, if they said anything."""
        now = self.as_now(approval) if approval.votes else approval
        may_still = all(self.is_good(now, vote) for vote in now.votes) and eligibility.stands(now)
        return "" if may_still else UNSUPPORTED

    def is_good(self, approval: Approval, vote: Vote) -> bool:
        """Whether somebody's yes could be given now."""
        if self._deps.is_gone(vote.principal) or vote.policy != self._deps.revision():
            return False
        who = self._deps.client_of(vote.principal, vote.roles, vote.channel not in ELICITED)
        if who is None or who.credential != vote.credential:
            return False
        return not eligibility.objection(approval, who, self._deps.roles_of(who))

    def as_now(self, approval: Approval) -> Approval:
        """The approval with the names that its requester and approvers have now, beside those of then."""
        asked = approval.binding
        votes = (
            replace(vote, persons=self._names(vote.persons, vote.principal, vote.roles, vote.channel not in ELICITED))
            for vote in approval.votes
        )
        persons = self._names(approval.persons, asked.principal, asked.roles, False)
        return replace(approval, persons=persons, votes=tuple(votes))

    def _names(self, then: tuple[str, ...], principal: str, roles: tuple[str, ...], is_admin: bool) -> tuple[str, ...]:
        who = self._deps.client_of(principal, roles, is_admin)
        return then if who is None else tuple(dict.fromkeys((*then, *eligibility.persons(who))))

    def of_grant(self, grant: Grant) -> str:
        if grant.policy != self._deps.revision():  # first, as it costs nothing: a new policy ends thousands in one step
            return "the policy has changed"
        if why := self._of_binding(grant.binding):
            return why
        if self._deps.is_gone(grant.by):
            return UNSUPPORTED
        who = self._deps.client_of(grant.by, grant.roles, grant.channel not in ELICITED)
        holder = self._deps.client_of(grant.binding.principal, grant.binding.roles, False)
        roles = self._deps.roles_of(who) if who else ()
        return "" if eligibility.supports(grant, who, roles, holder) else UNSUPPORTED
