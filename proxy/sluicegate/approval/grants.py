"""Grants: an approval that is remembered for a while, for every call of the same tool by the same client.

A grant knows no arguments, so only profiles give one in which one person decides and that say so (`remember`). It is
bound to the tool's definition and class, the rule and profile that asked, and the policy in force: when one changes it
is dead. One for a session is bound to that session, where there are sessions, and ends when it is idle. Whoever came in
with a token has it for as long as they have a token.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from sluicegate.approval.record import (
    Approval,
    CallBinding,
    Scope,
    groups,
    made,
    new_id,
    read_binding,
    read_form,
    session_mark,
    stored_form,
)
from sluicegate.protocol.jsonrpc import Json, Malformed
from sluicegate.protocol.model import Client
from sluicegate.store import TRIES, Store, Write

SECONDS: Final = 15 * 60.0
IDLE: Final = 30 * 60.0
LONGEST: Final = 8 * 3600.0
"""Seconds that a grant for a session lasts at most. A client of 2026-07-28 has no session that could end before."""
PREFIX: Final = "approval/grant/"
MAX_OF: Final = 500
"""Grants of one client, which may give them to itself in each of its sessions. Those not used for longest end."""
_SURPLUS: Final = f"its client has {MAX_OF} that were used later"
A_TURN: Final = 200
"""Grants that are judged again in each turn. Those of a call are judged at the call, so the others may wait."""
_AT_ONCE: Final = 20  # that are decoded or judged in one step of the event loop

log = logging.getLogger(__name__)

Tell = Callable[[Json], Awaitable[bool]]
TokenEnd = Callable[[str, tuple[str, ...]], float | None]
"""When the token of a principal ends that has these groups; None: it has none, or none is known here."""


@dataclass(frozen=True, slots=True)
class Grant:
    """`digest` of the matter is that of the call which was approved, and says nothing here. `token_end` is that of its
    holder's token, as far as it was known then. Whoever gave it came by `channel`, with a key (`credential`, see
    `key_mark`) or with a token of these groups (`roles`)."""

    id: str
    approval: str
    binding: CallBinding
    policy: str
    scope: Scope
    session: str
    by: str
    made: float
    expires: float
    token_end: float | None = None
    credential: str = ""
    roles: tuple[str, ...] = ()
    channel: str = ""

    def is_orphaned(self, now: float, end: float | None) -> bool:
        """Whether its holder's token is over, and `end` is not that of a newer one."""
        ends = [one for one in (self.token_end, end) if one is not None]
        return bool(ends) and max(ends) <= now

    def is_about(self, binding: CallBinding, session: str) -> bool:
        """Whether it was given for calls of that tool by that client, in that session where it is of one."""
        given, is_here = self.binding, self.scope != "session" or self.session == session
        is_theirs = is_here and given.principal == binding.principal
        return is_theirs and (given.server, given.own) == (binding.server, binding.own)

    def covers(self, binding: CallBinding, policy: str, session: str) -> bool:
        is_good = self.policy == policy and self.is_about(binding, session)
        return is_good and replace(self.binding, digest=binding.digest) == binding

    def last_used(self) -> float:
        """Only a use of one for a session begins its time anew."""
        return self.expires - (IDLE if self.scope == "session" else SECONDS)

    def show(self) -> Json:
        binding = self.binding
        return {
            "id": self.id, "approval": self.approval, "principal": binding.principal, "server": binding.server,
            "tool": binding.own, "kind": binding.kind, "profile": binding.terms.name, "scope": self.scope,
            "by": self.by, "made_at": self.made, "expires_at": self.expires,
        }  # fmt: skip


class Grants:
    """`is_mine` says whose grants are kept here: all, or those of one worker's principals."""

    def __init__(
        self, store: Store, tell: Tell, clock: Callable[[], float],
        is_mine: Callable[[str], bool] = lambda principal: True,
    ) -> None:  # fmt: skip
        self._store, self._tell, self._clock, self._is_mine = store, tell, clock, is_mine
        self._all: dict[str, Grant] = {}
        self._of: dict[str, dict[str, Grant]] = {}  # the same by principal, so that a call looks at those of its own
        self._rows: dict[str, tuple[bytes, Grant | None]] = {}  # as they stood in the store
        self._over: dict[str, str] = {}  # and why, where somebody should know
        self._unjudged: list[str] = []  # until each of them had its turn

    def __len__(self) -> int:
        return len(self._all)

    def make(
        self, approval: Approval, scope: Scope, by: Client, policy: str, token_end: float | None, channel: str
    ) -> tuple[Grant, Write]:
        """A new grant, and what has to be written for it."""
        now = self._clock()
        life = IDLE if scope == "session" else SECONDS
        grant = Grant(
            new_id("grt"), approval.id, approval.binding, policy, scope, approval.session, by.principal, now,
            now + life, token_end, by.credential, groups(by), channel,
        )  # fmt: skip
        return grant, Write(PREFIX + grant.id, stored_form(grant), life)

    def add(self, grant: Grant) -> None:
        self._keep(grant)
        self._trim(grant.binding.principal)

    def _keep(self, grant: Grant) -> None:
        self._all[grant.id] = self._of.setdefault(grant.binding.principal, {})[grant.id] = grant

    def _drop(self, id: str) -> None:
        if (grant := self._all.pop(id, None)) is not None:
            theirs = self._of[grant.binding.principal]
            del theirs[id]
            if not theirs:
                del self._of[grant.binding.principal]

    def _trim(self, principal: str) -> None:
        for one in sorted(self.alive(principal), key=Grant.last_used)[:-MAX_OF]:
            self._over[one.id] = _SURPLUS

    def find(self, binding: CallBinding, policy: str, client: Client) -> Grant | None:
        session = session_mark(client.session)
        return next((one for one in self.alive(binding.principal) if one.covers(binding, policy, session)), None)

    def alive(self, principal: str | None = None) -> Iterator[Grant]:
        """Those that can be used, of everybody or of one."""
        now, among = self._clock(), self._all if principal is None else self._of.get(principal, {})
        return (one for one in among.values() if one.expires > now and one.id not in self._over)

    async def use(self, grant: Grant) -> bool:
        """Whether it still is one: another process may have ended it. An idle time begins anew."""
        key = PREFIX + grant.id
        raw = await self._store.get(key)
        if raw is None or grant.id in self._over:
            return False
        if grant.scope == "session":
            left = min(IDLE, grant.made + LONGEST - self._clock())
            if left <= 0:
                return False
            renewed = replace(grant, expires=self._clock() + left)
            if not await self._store.swap(key, raw, [Write(key, stored_form(renewed), left)]):
                return await self._store.get(key) is not None
            self._keep(renewed)
        return True

    def get(self, id: str) -> Grant | None:
        return self._all.get(id)

    def all(self) -> list[Grant]:
        now = self._clock()
        return [grant for grant in self._all.values() if grant.expires > now]

    async def revoke(self, grant: Grant, by: str) -> bool:
        """False if it could not be recorded; then it stays."""
        if not await self._record(grant, approver=by):
            return False
        await self._forget(grant.id)
        return True

    async def _record(self, grant: Grant, **more: str) -> bool:
        fields = {"id": grant.approval, "state": "revoked", "grant": grant.id, "scope": grant.scope, **more}
        about = {"principal": grant.binding.principal, "server": grant.binding.server, "own": grant.binding.own}
        return await self._tell({"approval": fields, **about})

    def end_session(self, session: str) -> None:
        mark = session_mark(session)
        ended = (one.id for one in self._all.values() if one.scope == "session" and one.session == mark)
        self._over |= dict.fromkeys(ended, "")

    def withdraw(self, objection: Callable[[Grant], str], principal: str | None = None) -> None:
        """Those are not used again, whatever becomes of what they were withdrawn for."""
        for grant in list(self.alive(principal)):
            if (why := objection(grant)):
                self._over[grant.id] = why

    async def refresh(self, objection: Callable[[Grant], str], token_end: TokenEnd, is_moved: bool = True) -> None:
        """Others may have made or ended some, if the store has moved; what is withdrawn, or whose holder has no token
        any more, ends now."""
        now, new = self._clock(), await self._look() if is_moved else []
        self._unjudged = self._unjudged or list(self._all)
        turn, self._unjudged = self._unjudged[:A_TURN], self._unjudged[A_TURN:]
        orphaned = [
            id for id, one in self._all.items()
            if one.is_orphaned(now, None) and one.is_orphaned(now, token_end(one.binding.principal, one.binding.roles))
        ]  # fmt: skip
        for number, id in enumerate(dict.fromkeys([*self._over, *new, *orphaned, *turn])):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if (grant := self._all.get(id)) is None:
                continue
            if grant.id not in self._over and (why := objection(grant)):
                self._over[grant.id] = why
            if grant.id in self._over:
                why = self._over[grant.id]
                # It is over whether that can be recorded or not.
                is_ended_here = await self._forget(grant.id)
                if why and is_ended_here:
                    await self._record(grant, comment=why)
            elif grant.is_orphaned(now, token_end(grant.binding.principal, grant.binding.roles)):
                await self._forget(grant.id)
        self._over = {id: why for id, why in self._over.items() if id in self._all}

    async def _look(self) -> list[str]:
        """What the store has by now; returns what is new here. What was changed here meanwhile stays as it is."""
        before, rows = dict(self._all), dict[str, tuple[bytes, Grant | None]]()
        for number, (key, raw) in enumerate((await self._store.scan(PREFIX)).items()):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            id = key.removeprefix(PREFIX)
            row = self._rows.get(id)
            rows[id] = row if row is not None and row[0] == raw else (raw, _decode(raw))
        self._rows = rows
        stored = {id: one for id, (_, one) in rows.items() if one is not None and self._is_mine(one.binding.principal)}
        changed = {id: one for id, one in self._all.items() if before.get(id) is not one}
        kept = {id: one for id, one in stored.items() if id in self._all or id not in before}
        self._all, self._of = {}, {}
        for one in (kept | changed).values():
            self._keep(one)
        for principal, theirs in self._of.items():
            if len(theirs) > MAX_OF:  # other processes gave some, too
                self._trim(principal)
        return [id for id in kept if id not in before]

    async def _forget(self, id: str) -> bool:
        """Whether this process ended it: another may have, and records it then."""
        key = PREFIX + id
        for _ in range(TRIES):
            raw = await self._store.get(key)
            if raw is None or await self._store.swap(key, raw, [Write(key)]):
                self._drop(id)
                return raw is not None
        await self._store.delete(key)  # a use renews it again and again
        self._drop(id)
        return True


def _decode(raw: bytes) -> Grant | None:
    """None for what is none: it counts for nothing, and is said."""
    try:
        fields = read_form(raw)
        binding = read_binding(fields.pop("matter"))
        return made(Grant, {**fields, "binding": binding})
    except (Malformed, KeyError, TypeError, ValueError, AttributeError):
        log.error("a grant in the store cannot be read, and is not used")
        return None
