"""Approvals in the store: read, listed, and changed one at a time by compare-and-set; and their audit records. Decides
nothing.

What is open and what is finished stand apart, so that whoever looks for what waits walks over nothing else. What
people look at is kept beside an approval and leaves with it: a day after it is finished.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import anyio

from sluicegate.approval import presentation
from sluicegate.approval.eligibility import MAX_COMMENT
from sluicegate.approval.grants import Grant
from sluicegate.approval.record import Approval, CallBinding, NewerForm, State
from sluicegate.protocol.jsonrpc import Json, Malformed, decode_fast, dump
from sluicegate.store import Store, Write


class ApprovalRecords:
    """For the audit log. `tell` writes a record, and says whether it is kept; so does each method."""

    def __init__(self, tell: Callable[[Json], Awaitable[bool]]) -> None:
        self._tell = tell

    async def change(
        self, new: Approval, by: str = "", comment: str = "", grant: Grant | None = None, channel: str = ""
    ) -> bool:
        fields = _fields(new, new.state, by)
        fields |= {"channel": channel} if channel else {}
        fields |= {"comment": comment[:MAX_COMMENT]} if comment else {}
        fields |= {"grant": grant.id, "scope": grant.scope} if grant else {}
        return await self._put(fields, new.binding)

    async def void(
        self, approval: Approval, state: State, now: State, by: str = "", grant: Grant | None = None
    ) -> bool:
        """Says that the state which was recorded just now did not take effect, and which one did: another process was
        first. What is recorded before it takes effect cannot be taken back."""
        fields = _fields(approval, now, by) | {"void": state}
        fields |= {"grant": grant.id} if grant else {}
        return await self._put(fields, approval.binding)

    async def reveal(self, approval: Approval, by: str, channel: str) -> bool:
        fields: Json = {"id": approval.id, "state": "revealed", "digest": approval.binding.digest, "approver": by}
        return await self._put({**fields, "channel": channel}, approval.binding)

    async def _put(self, fields: Json, binding: CallBinding) -> bool:
        about = {"principal": binding.principal, "server": binding.server, "own": binding.own}
        return await self._tell({"approval": fields, **about})


def _fields(approval: Approval, state: State, by: str) -> Json:
    binding = approval.binding
    fields: Json = {"id": approval.id, "state": state, "digest": binding.digest, "profile": binding.terms.name}
    return fields | ({"approver": by} if by else {})


RETENTION: Final = 24 * 3600.0
"""Seconds that a finished approval, its arguments included, can still be looked at. The audit log has the rest."""
MAX_FINISHED: Final = 2_000
"""Finished approvals that are listed, the newest: what a list looks through is bounded however many end in a day."""
MAX_FINISHED_OF: Final = 500
"""What the store keeps of one client, which may end its own without end: the newest."""
_FORGOTTEN: Final = 200  # of the others, that leave it in one turn
_AT_ONCE: Final = 50  # that are decoded in one step of the event loop

ALL: Final = "approval/"
OPEN: Final = "approval/open/"
_DONE: Final = "approval/done/"
_OF: Final = "approval/of/"  # the digest of a call -> the approval that is its own now
_SHOWN: Final = "approval/shown/"
_ROW: Final = "approval/row/"  # what lists show of that
_LAST: Final = "approval/last/"
_UNREADABLE: Final = (Malformed, KeyError, TypeError, ValueError, AttributeError)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredApproval:
    """An approval and the very bytes that it was read from."""

    raw: bytes
    approval: Approval


class ApprovalRepository:
    """`is_mine` says of a principal whether what it asked is to be read here: of several workers, one has it."""

    def __init__(self, store: Store, is_mine: Callable[[str], bool] = lambda principal: True) -> None:
        self.store = store
        self.is_mine = is_mine
        self._finished: dict[str, Approval] = {}
        self._kept: dict[str, deque[tuple[str, float]]] = {}  # by principal: what ended, and until when it answers
        self._surplus: deque[tuple[str, float]] = deque()
        self._is_read = False  # what an earlier process finished
        self._reading = anyio.Lock()

    async def read(self, id: str) -> StoredApproval | None:
        for key in (OPEN, _DONE):
            raw = await self.store.get(key + id)
            if raw is not None and (approval := self.decoded(raw)) is not None:
                return StoredApproval(raw, approval)
        return None

    async def is_newer(self, id: str) -> bool:
        """Whether a newer Sluice has that approval. It counts for nothing here, and nothing is done to it."""
        for key in (OPEN, _DONE):
            if (raw := await self.store.get(key + id)) is not None:
                try:
                    Approval.decode(raw)
                except NewerForm:
                    return True
                except _UNREADABLE:
                    continue
        return False

    def decoded(self, raw: bytes) -> Approval | None:
        """None for what is none, or somebody else's."""
        approval = decoded(raw)
        return approval if approval is not None and self.is_mine(approval.binding.principal) else None

    async def find(self, digest: str) -> StoredApproval | None:
        """The one that a call with this digest belongs to."""
        id = await self.store.get(_OF + digest)
        return None if id is None else await self.read(id.decode("ascii"))

    async def open(self, approval: Approval, shown: Json, row: Json) -> bool:
        """False if the call has one already."""
        key = _OF + approval.binding.digest
        life = approval.expires - approval.created
        expected = await self.store.get(key)
        before = None if expected is None else await self.read(expected.decode("ascii"))
        if before is not None and not before.approval.is_finished:
            return False
        writes = [
            Write(key, approval.id.encode("ascii")),
            Write(OPEN + approval.id, approval.encode()),
            Write(_SHOWN + approval.id, dump(shown), life + RETENTION),
            Write(_ROW + approval.id, dump(row), life + RETENTION),
        ]
        return await self.store.swap(key, expected, writes)

    async def move(self, stored: StoredApproval, new: Approval, now: float, also: Sequence[Write] = ()) -> bool:
        """False if it is no longer what was read."""
        key, of = OPEN + new.id, _OF + new.binding.digest
        if not new.is_finished:
            return await self.store.swap(key, stored.raw, [Write(key, new.encode()), *also])
        # A no is the answer to the same call for as long as there was to decide: nobody is asked again at once.
        stays = Write(of, new.id.encode("ascii"), max(1.0, new.expires - now)) if new.state == "denied" else Write(of)
        ending = [Write(key), Write(_DONE + new.id, new.encode(), RETENTION), stays]
        if not await self.store.swap(key, stored.raw, [*ending, *also]):
            return False
        for key in (_SHOWN, _ROW):
            await self.store.expire(key + new.id, RETENTION)
        return True

    async def opened(self) -> dict[str, bytes]:
        """All that are not finished, by id, as they are written."""
        return {key.removeprefix(OPEN): raw for key, raw in (await self.store.scan(OPEN)).items()}

    async def finished(self, now: float) -> list[Approval]:
        """The newest `MAX_FINISHED` of the last day, in no order. The store is read once; others come by `add`."""
        async with self._reading:
            if not self._is_read:
                found: dict[str, Approval] = {}
                for number, raw in enumerate((await self.store.scan(_DONE)).values()):
                    if number % _AT_ONCE == 0:
                        await asyncio.sleep(0)
                    if (approval := self.decoded(raw)) is not None:
                        found[approval.id] = approval
                found |= self._finished  # which ended in this process
                self._finished, self._kept = {}, {}
                for number, approval in enumerate(sorted(found.values(), key=_end)):
                    if number % _AT_ONCE == 0:
                        await asyncio.sleep(0)
                    self.add(approval)
                self._is_read = True
        return [one for one in self._newest() if now - _end(one) < RETENTION]

    def add(self, finished: Approval) -> None:
        self._finished[finished.id] = finished
        kept = self._kept.setdefault(finished.binding.principal, deque())
        # A no is the answer to the same call for as long as there was to decide.
        kept.append((finished.id, finished.expires if finished.state == "denied" else 0.0))
        if len(kept) > MAX_FINISHED_OF:
            self._surplus.append(oldest := kept.popleft())
            self._finished.pop(oldest[0], None)
        if len(self._finished) >= 2 * MAX_FINISHED:
            self._finished = {one.id: one for one in self._newest()}

    async def forget_surplus(self, now: float) -> None:
        """What a client has finished beyond `MAX_FINISHED_OF` leaves the store, or is left there until it answers no
        call any more."""
        for _ in range(min(_FORGOTTEN, len(self._surplus))):
            id, until = self._surplus[0]
            for key in (_SHOWN, _ROW):
                await self.store.delete(key + id)
            if until > now:
                await self.store.expire(_DONE + id, until - now)
            else:
                await self.store.delete(_DONE + id)
            self._surplus.popleft()

    def _newest(self) -> list[Approval]:
        return sorted(self._finished.values(), key=_end, reverse=True)[:MAX_FINISHED]

    async def shown(self, id: str) -> Json:
        """Nothing where it was erased."""
        return _object(await self.store.get(_SHOWN + id))

    async def row(self, id: str) -> Json:
        """What lists show of it. An earlier version has kept the whole alone."""
        raw = await self.store.get(_ROW + id)
        return _object(raw) if raw is not None else presentation.summary(await self.shown(id))

    async def remember_last(self, approval: Approval) -> None:
        """The next call of this tool is shown beside this one."""
        shown = await self.shown(approval.id)
        if "arguments" in shown:
            last = {"arguments": shown["arguments"], "principal": approval.binding.principal}
            await self.store.put(_LAST + _compared(approval), dump(last), RETENTION)

    async def last(self, approval: Approval) -> Json:
        return _object(await self.store.get(_LAST + _compared(approval)))


def _end(finished: Approval) -> float:
    return finished.ended or finished.created


def decoded(raw: bytes) -> Approval | None:
    """None for what is none: it counts for nothing, and is said."""
    try:
        return Approval.decode(raw)
    except NewerForm:
        log.warning("a newer Sluice wrote an approval in the store, which is not used here")
        return None
    except _UNREADABLE:
        log.error("an approval in the store cannot be read, and is not used")
        return None


def _object(data: bytes | None) -> Json:
    value = {} if data is None else decode_fast(data)
    return value if isinstance(value, dict) else {}


def _compared(approval: Approval) -> str:
    """Calls that are compared: those of one tool that the same people approve, so that nobody is shown another one."""
    binding = approval.binding
    terms = sha256(repr((binding.terms.name, binding.terms.approvers)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{binding.server}/{binding.kind}:{binding.own}/{terms[:32]}"
