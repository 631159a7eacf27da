"""The queue of approvals: calls ask here, people decide here, and what was approved is used here, once.

Every change of an approval is recorded before it takes effect, and takes effect by one compare-and-set in the store:
several processes on one store are one queue. What is in memory is a copy, for lists and for those who wait.
"""

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import anyio

from sluicegate.approval import eligibility, presentation
from sluicegate.approval.eligibility import MAX_COMMENT, VoteRefused, VoteRequest, no_yes_of, unfit
from sluicegate.approval.grants import PREFIX, Grant, Grants, Tell
from sluicegate.approval.record import Approval, CallBinding, State, Vote, groups, new_id, session_mark
from sluicegate.approval.repository import OPEN, ApprovalRecords, ApprovalRepository, StoredApproval
from sluicegate.approval.validity import ASKED_ANEW, GONE, NOT_RUNNING, OTHER_KEY, ApprovalDeps, ApprovalValidity
from sluicegate.audit.record import trace_of
from sluicegate.policy.profiles import ApprovalProfile
from sluicegate.protocol.canonical_json import canonical, is_longer
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Client, Target
from sluicegate.runtime.loop_budget import client_budgets
from sluicegate.store import TRIES, Store, StoreFailed, Write, overtaken

MAX_OPEN: Final = 10_000
MAX_WHOLE: Final = 64 * 1024
LOOK_EVERY: Final = 1.0  # seconds; another process may have decided
_LATER: Final = 5.0  # what another process asks for is left to it, unless it is gone
UNRECORDED: Final = VoteRefused(503, "the audit log cannot be written, and nothing is decided unrecorded")


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    hold_for: float = 45.0
    profiles: Mapping[str, ApprovalProfile] = field(default_factory=dict)
    per_client: int = 20


class _Waiter:
    def __init__(self) -> None:
        self.changed = anyio.Event()
        self.is_replaced = False


class WaitingCalls:
    """The calls that wait for approvals. Of one approval the newest call waits, for older ones may have been given up,
    and beside it a task."""

    def __init__(self, get: Callable[[str], Awaitable[Approval | None]], clock: Callable[[], float]) -> None:
        self._get, self._clock = get, clock
        self._waiters: dict[tuple[str, bool], _Waiter] = {}  # by approval, and whether a task waits
        self.is_closing = False

    async def wait(self, approval: Approval, seconds: float, as_task: bool = False) -> Approval:
        """Until it is decided, or that long: as it is then. A later call with the same approval ends this wait; a task,
        of which there is one, waits beside it."""
        waiter, slot = _Waiter(), (approval.id, as_task)
        if before := self._waiters.get(slot):
            before.is_replaced = True
            before.changed.set()
        self._waiters[slot] = waiter
        until = min(seconds, max(0.0, approval.expires - self._clock()))
        try:
            with anyio.move_on_after(until):
                while not (waiter.is_replaced or self.is_closing):
                    waiter.changed = anyio.Event()
                    found = await self._get(approval.id)  # decided a moment ago, or gone from the store
                    if found is None or not found.is_waiting:
                        break
                    await waiter.changed.wait()
        finally:
            if self._waiters.get(slot) is waiter:
                del self._waiters[slot]
        return await self._get(approval.id) or approval

    def notice(self, id: str) -> None:
        for as_task in (False, True):
            if waiter := self._waiters.get((id, as_task)):
                waiter.changed.set()

    def release(self) -> None:
        """Sluice is about to stop: whoever waits is answered now."""
        self.is_closing = True
        for waiter in self._waiters.values():
            waiter.changed.set()


class ApprovalLedger:
    """Reads and changes approvals, one at a time, and has a copy of those that are not finished."""

    def __init__(self, book: ApprovalRepository, tell: Tell, clock: Callable[[], float]) -> None:
        self.book, self.records, self._clock = book, ApprovalRecords(tell), clock
        self._open: dict[str, Approval] = {}
        self._open_of: Counter[str] = Counter()  # how many of them each principal has
        self.waiting = WaitingCalls(self.get, clock)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.watchers: list[Callable[[Approval], None]] = []
        # What this process alone knows of those that are not finished.
        self._targets: dict[str, Target] = {}
        self._arguments: dict[str, str] = {}  # with their secrets, of calls that wait
        self._withdrawn: dict[str, str] = {}  # and why
        self._claimed: set[str] = set()
        self._raw: dict[str, bytes] = {}
        self._touched: set[str] = set()  # since the last look at the store began
        self._locks: dict[str, anyio.Lock] = {}

    @asynccontextmanager
    async def alone(self, id: str) -> AsyncIterator[None]:
        """Nobody else in this process changes that approval meanwhile, so that what is recorded is what takes effect.
        Not to be nested for one id. What waits for people waits outside of it."""
        lock = self._locks.setdefault(id, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._locks.pop(id, None)

    @contextmanager
    def claim(self, id: str) -> Iterator[bool]:
        """Whether this call is the one, in this process, that may go on with it."""
        is_first = id not in self._claimed
        if is_first:
            self._claimed.add(id)
        try:
            yield is_first
        finally:
            if is_first:
                self._claimed.discard(id)

    async def get(self, id: str) -> Approval | None:
        """As it is now: one whose time is over is expired, whoever looks first."""
        stored = await self.book.read(id)
        if stored is not None and self._is_late(stored.approval):
            return await self.end(id, "expired")
        return None if stored is None else stored.approval

    async def get_alone(self, id: str) -> StoredApproval | None:
        """The same for who changes it: nobody else does until then."""
        stored = await self.book.read(id)
        if stored is not None and self._is_late(stored.approval):
            await self._end_alone(id, "expired")
            stored = await self.book.read(id)
        return stored

    def _is_late(self, approval: Approval) -> bool:
        return not approval.is_finished and approval.expires <= self._clock()

    async def end(self, id: str, state: State, by: str = "", comment: str = "", channel: str = "") -> Approval | None:
        """Ends it unused, if it is not finished: as it is afterwards."""
        async with self.alone(id):
            return await self._end_alone(id, state, by, comment, channel)

    async def _end_alone(
        self, id: str, state: State, by: str = "", comment: str = "", channel: str = ""
    ) -> Approval | None:
        for _ in range(TRIES):
            stored = await self.book.read(id)
            if stored is None or stored.approval.is_finished:
                return None if stored is None else stored.approval
            new = stored.approval.become(state, by=by, comment=comment[:MAX_COMMENT], ended=self._clock())
            # What is over by time, or by a rule, is over whether the log can be written or not: it is never a yes.
            await self.records.change(new, by, comment, channel=channel)
            if await self.apply(stored, new):
                return new
            await self.void(new, new.state, by)
        raise overtaken(f"the approval {id}")

    async def withdraw(self, id: str, why: str) -> None:
        """Ends it for the reason that is known, or this one. Until that is written nobody here can use it."""
        self._withdrawn.setdefault(id, why)
        async with self.alone(id):
            await self.withdraw_alone(id, why)

    async def withdraw_alone(self, id: str, why: str) -> None:
        why = self._withdrawn.setdefault(id, why)
        await self._end_alone(id, "cancelled" if why in (GONE, OTHER_KEY) else "superseded", comment=why)
        self._withdrawn.pop(id, None)

    def judge(self, against: Callable[[Approval, Target | None], str], among: Sequence[Approval] | None = None) -> None:
        """Nobody here can use any more what there is an objection to, of all that are open or of these."""
        for one in self._open.values() if among is None else among:
            if one.id not in self._withdrawn and (why := against(one, self._targets.get(one.id))):
                self._withdrawn[one.id] = why

    def reason_against(self, approval: Approval, objection: Callable[[Approval, Target | None], str]) -> str | None:
        """Why it is withdrawn, or has to be; None where neither is so."""
        return self._withdrawn.get(approval.id, objection(approval, self._targets.get(approval.id)) or None)

    async def end_withdrawn(self) -> None:
        for id, why in tuple(self._withdrawn.items()):
            await self.withdraw(id, why)

    async def apply(self, stored: StoredApproval, new: Approval, also: Sequence[Write] = ()) -> bool:
        if not await self.book.move(stored, new, self._clock(), also):
            return False
        self.changed(new)
        return True

    async def void(self, approval: Approval, state: State, by: str = "", grant: Grant | None = None) -> None:
        stored = await self.book.read(approval.id)
        now: State = "superseded" if stored is None else stored.approval.state
        await self.records.void(approval, state, now, by, grant)

    def changed(self, approval: Approval, target: Target | None = None) -> None:
        """It was changed here, or is new and about that target."""
        if target is not None:
            self._targets[approval.id] = target
        self._touched.add(approval.id)
        self.counts[approval.binding.terms.name, approval.state] += 1
        self._notice(approval)

    def _notice(self, approval: Approval) -> None:
        if approval.is_finished:
            self.book.add(approval)
            self._drop(approval.id)
            self._raw.pop(approval.id, None)
            self._arguments.pop(approval.id, None)
            self._withdrawn.pop(approval.id, None)
            self._claimed.discard(approval.id)
        else:
            self._open_of[approval.binding.principal] += approval.id not in self._open
            self._open[approval.id] = approval
        self.waiting.notice(approval.id)
        for watch in self.watchers:
            watch(approval)

    def _drop(self, id: str) -> None:
        self._targets.pop(id, None)
        if (approval := self._open.pop(id, None)) is not None:
            principal = approval.binding.principal
            self._open_of[principal] -= 1
            if not self._open_of[principal]:
                del self._open_of[principal]

    def keep_whole(self, approval: Approval, arguments: Any) -> None:
        """Secrets are nowhere but in this process, as long as somebody has to decide. They are a text there: as
        20,000 small values they would take twenty times as much."""
        if approval.is_waiting and not is_longer(arguments, MAX_WHOLE):
            text = canonical(arguments)
            if len(text) <= MAX_WHOLE:
                self._arguments[approval.id] = text

    def whole(self, id: str) -> str | None:
        """The arguments that were kept, as JSON."""
        return self._arguments.get(id)

    async def look(self) -> list[Approval]:
        """What others did. Returns what is new here: of before a restart, or of another process."""
        self._touched.clear()
        found = await self.book.opened()
        for id in (self._raw.keys() | self._open.keys()) - found.keys() - self._touched:
            stored = await self.book.read(id)
            self._raw.pop(id, None)
            if stored is not None and id in self._open:
                self._notice(stored.approval)
            self._drop(id)
            self.waiting.notice(id)  # also of what has left the store already
        new = []
        for id, raw in found.items():
            if self._raw.get(id) != raw and id not in self._touched:
                self._raw[id] = raw
                approval, earlier = self.book.decoded(raw), self._open.get(id)
                if approval is not None and (earlier is None or earlier.version != approval.version):
                    self._notice(approval)
                    new += [approval] if earlier is None else []
        return new

    def oldest_first(self) -> list[Approval]:
        return sorted(self._open.values(), key=lambda one: one.created)

    def full(self, principal: str, per_client: int) -> VoteRefused | None:
        """Why no other one may be opened for it."""
        if self._open_of[principal] >= per_client:
            return VoteRefused(429, "this client has as many open approvals as limits.pending_approvals lets it have")
        if (count := len(self._open)) >= MAX_OPEN:
            return VoteRefused(429, f"{count} approvals are open already, which is all that Sluice keeps")
        return None


class ApprovalQueue:
    def __init__(
        self, store: Store, settings: ApprovalSettings, deps: ApprovalDeps, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings, self._deps, self.clock = settings, deps, clock
        self.identity_of, self.setup_of = deps.identity_of, deps.setup_of
        self.book = ApprovalRepository(store, deps.is_mine)
        self.grants = Grants(store, deps.tell, clock, deps.is_mine)
        self._ledger = ledger = ApprovalLedger(self.book, deps.tell, clock)
        self.get, self.end = ledger.get, ledger.end
        self.open_ones, self.keep_whole = ledger.oldest_first, ledger.keep_whole
        self.counts, self.watchers, self.claim = ledger.counts, ledger.watchers, ledger.claim
        self.waiting, self.wait = ledger.waiting, ledger.waiting.wait
        self._home = secrets.token_hex(6)
        self._validity = ApprovalValidity(deps, clock, self._home)
        self.as_now = self._validity.as_now
        self._masking = asyncio.Lock()  # clients take turns: many threads would keep the event loop waiting

    async def ask(self, call: Call, binding: CallBinding, shown: Callable[[], Json]) -> Approval | VoteRefused:
        """The approval of this call: the one that it has, or a new one. `shown` masks the arguments, which takes up to
        300 ms for megabytes of them: a thread does that."""
        if (existing := await self._existing(binding)) is not None:
            return existing
        async with self._ledger.alone(f"asking {binding.principal}"):  # a client waits for its own large calls alone
            while (existing := await self._existing(binding)) is None:
                if refused := self._ledger.full(binding.principal, self.settings.per_client):
                    return refused
                payer = client_budgets()[binding.principal]
                details, row = await payer.apart(self._masking, partial(_both, shown))
                approval = self._new(call, binding)
                if not await self._ledger.records.change(approval):
                    return UNRECORDED
                if await self.book.open(approval, details, row):
                    self._ledger.changed(approval, call.target)
                    return approval
                await self._ledger.void(approval, approval.state)
        return existing

    async def _existing(self, binding: CallBinding) -> Approval | None:
        """The one that there is, if it can be the answer to a call that was decided just now."""
        if (found := await self.book.find(binding.digest)) is None:
            return None
        approval, now = found.approval, self.clock()
        if approval.state == "denied":
            return approval if approval.expires > now else None
        if approval.expires <= now:
            await self.end(approval.id, "expired")
            return None
        if approval.is_finished:
            return None
        judge = self._validity.of_approval if approval.state == "approved" else self._validity.of_request
        why = self._ledger.reason_against(approval, judge)
        if why is None and approval.binding == binding:
            return approval
        await self._ledger.withdraw(approval.id, why or ASKED_ANEW)
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

    async def decide(self, id: str, who: Client, vote_request: VoteRequest, channel: str) -> Approval | VoteRefused:
        """404 unknown or not theirs to see, 403 not theirs to decide, 409 decided already or another digest, 400 what
        the profile does not allow."""
        roles, ledger = self._deps.roles_of(who), self._ledger
        async with ledger.alone(id):
            for _ in range(TRIES):
                if (stored := await ledger.get_alone(id)) is None:
                    return VoteRefused(404, "no such approval")
                approval = self.as_now(stored.approval)
                hook = self._deps.is_told(who, approval)
                if not (eligibility.may_see(approval, who, roles) if hook is None else hook):
                    return VoteRefused(404, "no such approval")
                if why := eligibility.objection(approval, who, roles) if hook is None else no_yes_of(vote_request):
                    return VoteRefused(403, why)
                over = None if approval.is_finished else ledger.reason_against(approval, self._validity.of_request)
                if over is not None:
                    await ledger.withdraw_alone(id, over)
                    return VoteRefused(409, f"it was withdrawn: {over}")
                if refused := unfit(approval, who, vote_request, channel):
                    return refused
                new = self._voted(stored.approval, who, vote_request, channel)
                grant, writes = self._granted(new, who, vote_request, channel)
                if not await ledger.records.change(new, who.principal, vote_request.comment, grant, channel):
                    return UNRECORDED
                if await ledger.apply(stored, new, writes):
                    if grant is not None:
                        self.grants.add(grant)
                    return new
                await ledger.void(new, new.state, who.principal, grant)
            raise overtaken(f"the approval {id}")

    def _voted(self, approval: Approval, who: Client, vote_request: VoteRequest, channel: str) -> Approval:
        at, comment = self.clock(), vote_request.comment[:MAX_COMMENT]
        if vote_request.word == "deny":
            return approval.become("denied", by=who.principal, comment=comment, ended=at)
        now = self.as_now(approval)
        valid = tuple(vote for vote in approval.votes if self._validity.is_good(now, vote))
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

    async def reveal(self, id: str, who: Client, channel: str = "api") -> Json | VoteRefused:
        """The arguments as they were sent, for who may decide; written down before they are told."""
        approval = await self.get(id)
        if approval is None or not eligibility.may_see(self.as_now(approval), who, self._deps.roles_of(who)):
            return VoteRefused(404, "no such approval")
        text = self._ledger.whole(id)
        if not approval.is_waiting or text is None:
            return VoteRefused(409, "they are not in this process: it is decided, or large, or another one asks")
        is_kept = await self._ledger.records.reveal(approval, who.principal, channel)
        return {"id": id, "arguments": json.loads(text)} if is_kept else UNRECORDED

    async def consume(self, id: str) -> bool:
        """Uses it up: True exactly once, whoever tries. The call's intent, on the disk already, is the record. False
        also where somebody who agreed could not any more."""
        async with self._ledger.alone(id):
            stored = await self.book.read(id)
            if stored is None:
                return False
            approval, now = stored.approval, self.clock()
            if approval.state == "approved" and approval.expires > now:
                if (why := self._ledger.reason_against(approval, self._validity.of_approval)) is not None:
                    await self._ledger.withdraw_alone(id, why)
                elif await self._ledger.apply(stored, approval.become("consumed", by="", ended=now)):
                    await self.book.remember_last(approval)
                    return True
            await self._ledger.void(approval, "consumed")
            return False

    async def is_approved(self, binding: CallBinding) -> bool:
        found = await self.book.find(binding.digest)
        return found is not None and found.approval.state == "approved"

    def find_grant(self, binding: CallBinding, client: Client) -> Grant | None:
        # A key may have expired, of which nobody tells. Those of other calls are judged by and by.
        session, of_grant = session_mark(client.session), self._validity.of_grant
        self.grants.withdraw(lambda one: of_grant(one) if one.is_about(binding, session) else "", binding.principal)
        return self.grants.find(binding, self._deps.revision(), client)

    async def use_grant(self, grant: Grant) -> bool:
        """Whether it still is one, at the last step before the call."""
        return not self._validity.of_grant(grant) and await self.grants.use(grant)

    def configure(self, settings: ApprovalSettings) -> None:
        """The settings of a changed config are in force from now on."""
        self.settings = settings
        self.reconsider()

    def reconsider(self) -> None:
        """Keys, roles, servers or the policy have changed. What could not be asked for any more is withdrawn, and a yes
        of somebody who could not give it. Both stay so when the change is undone."""
        self._ledger.judge(self._validity.of_approval)
        self.grants.withdraw(self._validity.of_grant)

    def withdraw_servers(self, servers: Collection[str]) -> None:
        """They were replaced, or do not run any more. What people agreed to was a call of the server of then."""
        self._ledger.judge(lambda one, _: NOT_RUNNING if one.binding.server in servers else "")
        self.grants.withdraw(lambda grant: NOT_RUNNING if grant.binding.server in servers else "")

    def pending(self) -> dict[str, int]:
        """How many wait, by profile."""
        waiting = Counter(one.binding.terms.name for one in self.open_ones() if one.is_waiting)
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
            self._ledger.judge(self._validity.of_approval, await self._ledger.look())
        await self._ledger.end_withdrawn()
        now = self.clock()
        for approval in self.open_ones():
            late = now - approval.expires - (0.0 if approval.home == self._home else _LATER)
            if late >= 0:
                await self.end(approval.id, "expired")
            elif self._validity.is_over(approval):
                await self.end(approval.id, "cancelled", comment=GONE)
        await self.grants.refresh(self._validity.of_grant, self._deps.token_end, is_moved)
        await self.book.forget_surplus(now)


def _both(shown: Callable[[], Json]) -> tuple[Json, Json]:
    details = shown()
    return details, presentation.summary(details)
