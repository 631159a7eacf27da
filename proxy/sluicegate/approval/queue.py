"""The desk: calls ask here, people decide here, and what was approved is used here, once.

Every change of an approval is recorded before it takes effect, and takes effect by one compare-and-set in the store:
several processes on one store are one desk. What is in memory is a copy, for lists and for those who wait.
"""

import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio.to_thread

from sluicegate.approval import eligibility, presentation
from sluicegate.approval.grants import PREFIX, Grant, Grants, TokenEnd
from sluicegate.approval.record import Approval, CallBinding, Vote, groups, new_id, session_mark
from sluicegate.approval.repository import OPEN, ApprovalRecords, ApprovalRepository, StoredApproval
from sluicegate.approval.states import State
from sluicegate.approval.vote_request import ELICITED, MAX_COMMENT, VoteRefused, VoteRequest, no_yes_of, unfit
from sluicegate.audit.record import trace_of
from sluicegate.policy.profiles import ApprovalProfile
from sluicegate.protocol.canonical_json import canonical_parts
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Client, Target
from sluicegate.store import TRIES, Store, StoreFailed, Write, overtaken
from sluicegate.store.watch import Watch

MAX_OPEN: Final = 10_000
MAX_WHOLE: Final = 64 * 1024
LOOK_EVERY: Final = 1.0  # seconds; another process may have decided
_LATER: Final = 5.0  # what another process asks for is left to it, unless it is gone


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    hold_for: float = 45.0
    profiles: Mapping[str, ApprovalProfile] = field(default_factory=dict)
    per_client: int = 20


@dataclass(frozen=True, slots=True)
class ApprovalDeps:
    """What the desk has to ask others. `tell` writes a record of the audit log, and says whether it is kept."""

    roles_of: Callable[[Client], frozenset[str]]
    client_of: Callable[[str, tuple[str, ...], bool], Client | None]
    """Who has that name now; of whoever comes with tokens, with a good one that has these groups and was shown at the
    admin port (True) or at that for clients."""
    is_gone: Callable[[str], bool]  # whether a principal can no longer come in
    token_end: TokenEnd
    revision: Callable[[], str]
    tell: Callable[[Json], Awaitable[bool]]
    is_mine: Callable[[str], bool] = lambda principal: True  # whether this desk is that of a principal
    identity_of: Callable[[str], str] = lambda server: ""  # which program or address has a server's key
    setup_of: Callable[[str], str] = lambda server: ""  # with which environment or headers, as a mark
    may_call: Callable[[CallBinding, Target | None], bool] = lambda binding, target: True
    """Whether its requester may still make such a call."""
    is_told: Callable[[Client, Approval], bool | None] = lambda who, approval: None
    """Whether whoever asks is a hook that hears of the approval; None: they are no hook."""
    watch: Watch = field(default_factory=Watch)


UNIDENTIFIED: Final = "it does not say which program or address its server was: an earlier version wrote it"
REPLACED: Final = "another program or address has the key of its server by now"
NOT_RUNNING: Final = "its server was changed, removed or disabled"
GONE: Final = "whoever asked can no longer come in"
OTHER_KEY: Final = "the key of whoever asked was replaced"
FORBIDDEN: Final = "whoever asked may not make this call any more"
UNSUPPORTED: Final = "who agreed could not do so any more"

UNRECORDED: Final = VoteRefused(503, "the audit log cannot be written, and nothing is decided unrecorded")


def _both(shown: Callable[[], Json]) -> tuple[Json, Json]:
    details = shown()
    return details, presentation.summary(details)


class _Waiter:
    """The one call that waits for an approval: the newest, for older ones may have been given up."""

    def __init__(self) -> None:
        self.changed = anyio.Event()
        self.is_replaced = False


class ApprovalQueue:
    def __init__(
        self, store: Store, settings: ApprovalSettings, deps: ApprovalDeps, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings = settings
        self.book = ApprovalRepository(store, deps.is_mine)
        self.grants = Grants(store, deps.tell, clock, deps.is_mine)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.watchers: list[Callable[[Approval], None]] = []
        self._deps, self.clock = deps, clock
        self.identity_of, self.setup_of = deps.identity_of, deps.setup_of
        self._records = ApprovalRecords(deps.tell)
        self._home = secrets.token_hex(6)
        self._raw: dict[str, bytes] = {}
        self._touched: set[str] = set()  # since the last look at the store began
        self._open: dict[str, Approval] = {}
        self._mine: Counter[str] = Counter()  # how many of them each principal has
        self._whole: dict[str, Any] = {}  # arguments with their secrets, of calls that wait
        self._waiters: dict[tuple[str, bool], _Waiter] = {}  # by approval, and whether a task waits
        self._targets: dict[str, Target] = {}  # of what is open and was asked for here
        self._claimed: set[str] = set()
        self._withdrawn: dict[str, str] = {}  # and why
        self._locks: dict[str, anyio.Lock] = {}
        self._masking = anyio.Lock()  # clients take turns: many threads would keep the event loop waiting
        self.is_closing = False

    def __repr__(self) -> str:
        return f"ApprovalQueue({len(self._open)} open, {len(self._waiters)} waited for)"

    async def ask(self, call: Call, binding: CallBinding, shown: Callable[[], Json]) -> Approval | VoteRefused:
        """The approval of this call: the one that it has, or a new one. `shown` masks the arguments, which takes up to
        300 ms for megabytes of them: a thread does that."""
        if (known := await self._still(binding)) is not None:
            return known
        async with self._alone(f"asking {binding.principal}"):  # a client waits for its own large calls alone
            while (known := await self._still(binding)) is None:
                if refused := self._full(binding.principal):
                    return refused
                async with self._masking:
                    details, row = await anyio.to_thread.run_sync(_both, shown)
                approval = self._new(call, binding)
                if not await self._records.change(approval):
                    return UNRECORDED
                if await self.book.open(approval, details, row):
                    if call.target is not None:
                        self._targets[approval.id] = call.target
                    self._changed(approval)
                    return approval
                await self._void(approval, approval.state)
        return known

    async def _still(self, binding: CallBinding) -> Approval | None:
        """The one that there is, if it can be the answer to a call that was decided just now."""
        if (found := await self.book.find(binding.digest)) is None:
            return None
        approval, now = found.approval, self.clock()
        if approval.state == "denied":
            return approval if approval.expires > now else None
        if approval.expires <= now:
            await self.end(approval.id, "expired")
        elif approval.binding != binding or approval.id in self._withdrawn:
            await self._withdraw(approval.id, self._ground_of(approval))
        elif approval.state == "approved" and (why := self._unsupported(approval)):
            await self._withdraw(approval.id, why)
        else:
            return None if approval.is_finished else approval
        return None

    def is_same_server(self, binding: CallBinding) -> bool:
        return self._deps.identity_of(binding.server) == binding.identity

    def _lost_ground(self, binding: CallBinding, target: Target | None = None) -> str:
        """Why its requester could not make such a call any more; empty where they could."""
        if (now := self._deps.identity_of(binding.server)) != binding.identity:
            return UNIDENTIFIED if not binding.identity else REPLACED if now else NOT_RUNNING
        if self._deps.setup_of(binding.server) != binding.setup:
            return NOT_RUNNING
        if self._deps.is_gone(binding.principal):
            return GONE
        if not self._holds(binding.principal, binding.credential):
            return OTHER_KEY
        return "" if self._deps.may_call(binding, target) else FORBIDDEN

    def _ground_of(self, approval: Approval) -> str:
        if self._is_orphaned(approval):
            return GONE
        return self._lost_ground(approval.binding, self._targets.get(approval.id))

    def _is_orphaned(self, approval: Approval) -> bool:
        """Whether the token that its requester came with is over, and no newer one has the same groups. Where it was
        shown to this process it is known, so that it is over as well if its issuer was removed or changed."""
        if approval.token_end is None:
            return False
        end = self._deps.token_end(approval.binding.principal, approval.binding.roles)
        is_unknown = end is None and approval.home == self._home
        return is_unknown or max(approval.token_end, end or 0.0) <= self.clock()

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

    def _unsupported(self, approval: Approval) -> str:
        """Why what people said of it does not count any more, if they said anything."""
        now = self.as_now(approval) if approval.votes else approval
        may_still = all(self._may_still(now, vote) for vote in now.votes) and eligibility.stands(now)
        return "" if may_still else UNSUPPORTED

    def _holds(self, principal: str, credential: str) -> bool:
        """Whether that key is the principal's own now. Of one of whom nothing is known here, tokens alone tell."""
        who = self._deps.client_of(principal, (), False)
        return (credential if who is None else who.credential) == credential

    def _may_still(self, approval: Approval, vote: Vote) -> bool:
        if self._deps.is_gone(vote.principal) or vote.policy != self._deps.revision():
            return False
        who = self._deps.client_of(vote.principal, vote.roles, vote.channel not in ELICITED)
        if who is None or who.credential != vote.credential:
            return False
        return not eligibility.objection(approval, who, self._deps.roles_of(who))

    async def _withdraw(self, id: str, why: str) -> None:
        """Ends it for the reason that is known, or this one. Until that is written nobody here can use it."""
        self._withdrawn.setdefault(id, why)
        async with self._alone(id):
            await self._withdraw_alone(id, why)

    async def _withdraw_alone(self, id: str, why: str) -> None:
        why = self._withdrawn.setdefault(id, why)
        await self._end_alone(id, "cancelled" if why in (GONE, OTHER_KEY) else "superseded", comment=why)
        self._withdrawn.pop(id, None)

    def _full(self, principal: str) -> VoteRefused | None:
        mine = self._mine[principal]
        if mine >= self.settings.per_client:
            return VoteRefused(429, "this client has as many open approvals as limits.pending_approvals lets it have")
        if len(self._open) >= MAX_OPEN:
            return VoteRefused(429, f"{len(self._open)} approvals are open already, which is all that Sluice keeps")
        return None

    def _new(self, call: Call, binding: CallBinding) -> Approval:
        client, now = call.client, self.clock()
        name, version = client.info.get("name"), client.info.get("version")
        claims = " ".join(part[:64] for part in (name, version) if isinstance(part, str))
        parent = call.meta["traceparent"] if trace_of(call) else ""  # the client's own text, where it is one
        return Approval(
            new_id(), "pending", binding, call.method, call.target.public if call.target else "",
            self._deps.revision(), eligibility.persons(client), client.owner, session_mark(client.session), claims,
            parent, self._home, now, now + binding.terms.expires,
            token_end=self._deps.token_end(client.principal, binding.roles),
        )  # fmt: skip

    async def wait(self, approval: Approval, seconds: float, as_task: bool = False) -> Approval:
        """Until it is decided, or that long: as it is then. A later call with the same approval ends this wait; a task,
        of which there is one, waits beside it."""
        waiter, slot = _Waiter(), (approval.id, as_task)
        if before := self._waiters.get(slot):
            before.is_replaced = True
            before.changed.set()
        self._waiters[slot] = waiter
        until = min(seconds, max(0.0, approval.expires - self.clock()))
        try:
            with anyio.move_on_after(until):
                while not (waiter.is_replaced or self.is_closing):
                    waiter.changed = anyio.Event()
                    approval = await self.get(approval.id) or approval  # it may have been decided a moment ago
                    if not approval.is_waiting:
                        break
                    await waiter.changed.wait()
        finally:
            if self._waiters.get(slot) is waiter:
                del self._waiters[slot]
        return await self.get(approval.id) or approval

    async def get(self, id: str) -> Approval | None:
        """As it is now: one whose time is over is expired, whoever looks first."""
        stored = await self.book.read(id)
        if stored is not None and self._is_late(stored.approval):
            return await self.end(id, "expired")
        return None if stored is None else stored.approval

    async def _get_alone(self, id: str) -> StoredApproval | None:
        """The same for who changes it: nobody else does until then."""
        stored = await self.book.read(id)
        if stored is not None and self._is_late(stored.approval):
            await self._end_alone(id, "expired")
            stored = await self.book.read(id)
        return stored

    def _is_late(self, approval: Approval) -> bool:
        return not approval.is_finished and approval.expires <= self.clock()

    def release(self) -> None:
        """Sluice is about to stop: whoever waits is answered now."""
        self.is_closing = True
        for waiter in self._waiters.values():
            waiter.changed.set()

    async def decide(self, id: str, who: Client, vote_request: VoteRequest, channel: str) -> Approval | VoteRefused:
        """404 unknown or not theirs to see, 403 not theirs to decide, 409 decided already or another digest, 400 what
        the profile does not allow."""
        roles = self._deps.roles_of(who)
        async with self._alone(id):
            for _ in range(TRIES):
                if (stored := await self._get_alone(id)) is None:
                    return VoteRefused(404, "no such approval")
                approval = self.as_now(stored.approval)
                hook = self._deps.is_told(who, approval)
                if not (eligibility.may_see(approval, who, roles) if hook is None else hook):
                    return VoteRefused(404, "no such approval")
                if why := eligibility.objection(approval, who, roles) if hook is None else no_yes_of(vote_request):
                    return VoteRefused(403, why)
                if not approval.is_finished and (why := self._withdrawn.get(id) or self._ground_of(approval)):
                    await self._withdraw_alone(id, why)
                    return VoteRefused(409, f"it was withdrawn: {why}")
                if refused := unfit(approval, who, vote_request, channel):
                    return refused
                new = self._voted(stored.approval, who, vote_request, channel)
                grant, writes = self._granted(new, who, vote_request, channel)
                if not await self._records.change(new, who.principal, vote_request.comment, grant, channel):
                    return UNRECORDED
                if await self._apply(stored, new, writes):
                    if grant is not None:
                        self.grants.add(grant)
                    return new
                await self._void(new, new.state, who.principal, grant)
            raise overtaken(f"the approval {id}")

    def _voted(self, approval: Approval, who: Client, vote_request: VoteRequest, channel: str) -> Approval:
        at, comment = self.clock(), vote_request.comment[:MAX_COMMENT]
        if vote_request.word == "deny":
            return approval.become("denied", by=who.principal, comment=comment, ended=at)
        now = self.as_now(approval)
        valid = tuple(vote for vote in approval.votes if self._may_still(now, vote))
        vote = Vote(
            who.principal, eligibility.persons(who), channel, at, comment, self._deps.revision(), who.credential,
            groups(who),
        )  # fmt: skip
        votes = (*valid, vote)
        is_enough = len(votes) >= approval.binding.terms.quorum
        return approval.become(
            "approved" if is_enough else "partially_approved", votes=votes, comment=comment, scope=vote_request.scope
        )

    def _granted(
        self, new: Approval, who: Client, vote_request: VoteRequest, channel: str
    ) -> tuple[Grant | None, list[Write]]:
        if new.state != "approved" or vote_request.scope == "once":
            return None, []
        end = self._deps.token_end(new.binding.principal, new.binding.roles) or new.token_end
        grant, write = self.grants.make(new, vote_request.scope, who, self._deps.revision(), end, channel)
        return grant, [write]

    def keep_whole(self, approval: Approval, arguments: Any) -> None:
        """Secrets are nowhere but in this process, and only as long as somebody has to decide."""
        left = MAX_WHOLE
        for part in canonical_parts(arguments) if approval.is_waiting else ():
            if (left := left - len(part)) < 0:
                return
        if approval.is_waiting:
            self._whole[approval.id] = arguments

    async def reveal(self, id: str, who: Client, channel: str = "api") -> Json | VoteRefused:
        """The arguments as they were sent, for who may decide; written down before they are told."""
        approval = await self.get(id)
        if approval is None or not eligibility.may_see(self.as_now(approval), who, self._deps.roles_of(who)):
            return VoteRefused(404, "no such approval")
        arguments = self._whole.get(id)
        if not approval.is_waiting or arguments is None:
            return VoteRefused(409, "they are not in this process: it is decided, or large, or another one asks")
        is_kept = await self._records.reveal(approval, who.principal, channel)
        return {"id": id, "arguments": arguments} if is_kept else UNRECORDED

    def claim(self, id: str) -> bool:
        """Whether this call is the one, in this process, that may go on with it. `release_claim` undoes it."""
        if id in self._claimed:
            return False
        self._claimed.add(id)
        return True

    def release_claim(self, id: str) -> None:
        self._claimed.discard(id)

    async def consume(self, id: str) -> bool:
        """Uses it up: True exactly once, whoever tries. The call's intent, on the disk already, is the record. False
        also where somebody who agreed could not any more."""
        async with self._alone(id):
            stored = await self.book.read(id)
            if stored is None:
                return False
            if await self._consume_alone(stored):
                await self.book.remember_last(stored.approval)
                return True
            await self._void(stored.approval, "consumed")
            return False

    async def _consume_alone(self, stored: StoredApproval) -> bool:
        approval, now = stored.approval, self.clock()
        if approval.state != "approved" or approval.expires <= now:
            return False
        why = self._ground_of(approval) or self._unsupported(approval)
        if why or approval.id in self._withdrawn:
            await self._withdraw_alone(approval.id, why)
            return False
        return await self._apply(stored, approval.become("consumed", by="", ended=now))

    async def is_approved(self, binding: CallBinding) -> bool:
        found = await self.book.find(binding.digest)
        return found is not None and found.approval.state == "approved"

    def find_grant(self, binding: CallBinding, client: Client) -> Grant | None:
        # A key may have expired, of which nobody tells.
        self.grants.withdraw(lambda one: self._objection(one) if one.binding.principal == binding.principal else "")
        return self.grants.find(binding, self._deps.revision(), client)

    async def use_grant(self, grant: Grant) -> bool:
        """Whether it still is one, at the last step before the call."""
        return not self._objection(grant) and await self.grants.use(grant)

    async def end(self, id: str, state: State, by: str = "", comment: str = "", channel: str = "") -> Approval | None:
        """Ends it unused, if it is not finished: as it is afterwards."""
        async with self._alone(id):
            return await self._end_alone(id, state, by, comment, channel)

    async def _end_alone(
        self, id: str, state: State, by: str = "", comment: str = "", channel: str = ""
    ) -> Approval | None:
        for _ in range(TRIES):
            stored = await self.book.read(id)
            if stored is None or stored.approval.is_finished:
                return None if stored is None else stored.approval
            new = stored.approval.become(state, by=by, comment=comment[:MAX_COMMENT], ended=self.clock())
            # What is over by time, or by a rule, is over whether the log can be written or not: it is never a yes.
            await self._records.change(new, by, comment, channel=channel)
            if await self._apply(stored, new):
                return new
            await self._void(new, new.state, by)
        raise overtaken(f"the approval {id}")

    def configure(self, settings: ApprovalSettings) -> None:
        """The settings of a changed config are in force from now on."""
        self.settings = settings
        self.reconsider()

    def reconsider(self) -> None:
        """Keys, roles, servers or the policy have changed. What could not be asked for any more is withdrawn, and a yes
        of somebody who could not give it. Both stay so when the change is undone."""
        for approval in self._open.values():
            self._judge(approval)
        self.grants.withdraw(self._objection)

    def _judge(self, approval: Approval) -> None:
        if approval.id not in self._withdrawn and (why := self._ground_of(approval) or self._unsupported(approval)):
            self._withdrawn[approval.id] = why

    def withdraw_servers(self, servers: Collection[str]) -> None:
        """They were replaced, or do not run any more. What people agreed to was a call of the server of then."""
        for approval in self._open.values():
            if approval.binding.server in servers:
                self._withdrawn.setdefault(approval.id, NOT_RUNNING)
        self.grants.withdraw(lambda grant: NOT_RUNNING if grant.binding.server in servers else "")

    def _objection(self, grant: Grant) -> str:
        """Why it is none any more; empty where it is one."""
        if why := self._lost_ground(grant.binding):
            return why
        if grant.policy != self._deps.revision():
            return "the policy has changed"
        if self._deps.is_gone(grant.by):
            return UNSUPPORTED
        who = self._deps.client_of(grant.by, grant.roles, grant.channel not in ELICITED)
        holder = self._deps.client_of(grant.binding.principal, grant.binding.roles, False)
        roles = self._deps.roles_of(who) if who else ()
        return "" if eligibility.supports(grant, who, roles, holder) else UNSUPPORTED

    async def _void(self, approval: Approval, state: State, by: str = "", grant: Grant | None = None) -> None:
        stored = await self.book.read(approval.id)
        now: State = "superseded" if stored is None else stored.approval.state
        await self._records.void(approval, state, now, by, grant)

    async def _apply(self, stored: StoredApproval, new: Approval, also: list[Write] | None = None) -> bool:
        if not await self.book.move(stored, new, self.clock(), also or ()):
            return False
        self._changed(new)
        return True

    def _changed(self, approval: Approval) -> None:
        self._touched.add(approval.id)
        self.counts[approval.binding.terms.name, approval.state] += 1
        self._notice(approval)

    def _notice(self, approval: Approval) -> None:
        if approval.is_finished:
            self.book.add(approval)
            self._drop(approval.id)
            self._raw.pop(approval.id, None)
            self._whole.pop(approval.id, None)
            self._withdrawn.pop(approval.id, None)
            self._claimed.discard(approval.id)
        else:
            self._mine[approval.binding.principal] += approval.id not in self._open
            self._open[approval.id] = approval
        for as_task in (False, True):
            if waiter := self._waiters.get((approval.id, as_task)):
                waiter.changed.set()
        for watch in self.watchers:
            watch(approval)

    def _drop(self, id: str) -> None:
        self._targets.pop(id, None)
        if (approval := self._open.pop(id, None)) is not None:
            principal = approval.binding.principal
            self._mine[principal] -= 1
            if not self._mine[principal]:
                del self._mine[principal]

    @asynccontextmanager
    async def _alone(self, id: str) -> AsyncIterator[None]:
        """Nobody else in this process changes that approval meanwhile, so that what is recorded is what takes effect.
        Not to be nested for one id. What waits for people waits outside of it."""
        lock = self._locks.setdefault(id, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._locks.pop(id, None)

    def open_ones(self) -> list[Approval]:
        return sorted(self._open.values(), key=lambda one: one.created)

    def pending(self) -> dict[str, int]:
        """How many wait, by profile."""
        waiting = Counter(one.binding.terms.name for one in self._open.values() if one.is_waiting)
        return {**dict.fromkeys(self.settings.profiles, 0), **waiting}

    async def run(self) -> None:
        seen = None
        while True:
            await self._deps.watch.turn(LOOK_EVERY)
            mark = self._deps.watch.mark(OPEN, PREFIX)
            with suppress(StoreFailed):  # which the store says by itself
                await self.refresh(mark is None or mark != seen)
                seen = mark

    async def refresh(self, is_moved: bool = True) -> None:
        """What others did, if the store has moved, and what time did."""
        if is_moved:
            await self._look()
        for id, why in tuple(self._withdrawn.items()):
            await self._withdraw(id, why)
        await self._tidy()
        await self.grants.refresh(self._objection, self._deps.token_end, is_moved)

    async def _look(self) -> None:
        self._touched.clear()
        found = await self.book.opened()
        for id in (self._raw.keys() | self._open.keys()) - found.keys() - self._touched:
            stored = await self.book.read(id)
            self._raw.pop(id, None)
            if stored is not None and id in self._open:
                self._notice(stored.approval)
            self._drop(id)
        for id, raw in found.items():
            if self._raw.get(id) != raw and id not in self._touched:
                self._raw[id] = raw
                approval = self.book.decoded(raw)
                earlier = self._open.get(id)
                if approval is not None and (earlier is None or earlier.version != approval.version):
                    self._notice(approval)
                    if earlier is None:  # of before a restart, or another process: the config may have been another
                        self._judge(approval)

    async def _tidy(self) -> None:
        now = self.clock()
        for approval in self.open_ones():
            late = now - approval.expires - (0.0 if approval.home == self._home else _LATER)
            if late >= 0:
                await self.end(approval.id, "expired")
            elif self._deps.is_gone(approval.binding.principal) or self._is_orphaned(approval):
                await self.end(approval.id, "cancelled", comment=GONE)
