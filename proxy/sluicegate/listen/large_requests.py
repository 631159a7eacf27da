"""Large requests: what is judged before their bytes are decoded, and how much of the event loop their clients may have.

A small request costs less than the call that it asks for, so its rate is judged with the call. Decoding a megabyte
takes milliseconds: a large one is refused first where its client's rate would refuse it, or where the client has too
many bytes in flight. Large ones of one client are decoded one at a time. The refusal of a small one costs as much as a
call: a client whose requests are refused, or lead to no call, has its part of the loop for them, too. Knows
principals, bytes and outcomes.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from sys import getsizeof
from time import perf_counter
from typing import Any, Final, Protocol

from anyio import CancelScope

from sluicegate.listen.settings import RequestLimits
from sluicegate.protocol import reserved_keys
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, decode_weighed, weigh
from sluicegate.protocol.model import Call, Failure, Handler, Outcome, Result
from sluicegate.runtime.loop_budget import LoopBudget, budget_of, client_budgets
from sluicegate.runtime.own_steps import OwnSteps

_LOOK_EVERY: Final = 0.02
_FEW: Final = 64


class HttpPeer(Protocol):
    """Who is answered: `unread` are the bytes that wait for it, `lost` is whether it has gone."""

    loop: asyncio.AbstractEventLoop

    @property
    def transport(self) -> asyncio.Transport: ...

    @property
    def unread(self) -> int: ...

    @property
    def lost(self) -> bool: ...

    async def drained(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Unread:
    """One principal's. `bytes` is never too small: what was read meanwhile shows at the next count."""

    connections: dict[asyncio.Transport, int] = field(default_factory=dict)
    bytes: int = 0
    counted_at: float = 0.0
    counted: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def count(self, now: float) -> None:
        sizes = ((one, one.get_write_buffer_size()) for one in self.connections)
        self.connections = {one: size for one, size in sizes if size}
        self.bytes, self.counted, self.counted_at = sum(self.connections.values()), len(self.connections), now


class UnreadAnswers:
    """Answers that were written and that nobody has read yet: how many bytes of them one principal may have. A slow
    reader leaves them in the buffers of its connections, of which it may have thousands."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held: dict[str, _Unread] = {}

    def note(self, principal: str, peer: HttpPeer) -> None:
        """Something was written to that client, and not all of it has left."""
        mine, one, size = self.held.setdefault(principal, _Unread()), peer.transport, peer.unread
        mine.bytes += size - mine.connections.get(one, 0)
        mine.connections[one] = size
        if len(mine.connections) > 2 * mine.counted + _FEW:
            mine.count(peer.loop.time())

    def is_full(self, principal: str) -> bool:
        """Whether nothing more may be encoded for it."""
        mine = self.held.get(principal)
        if mine is None or mine.bytes <= self._most:
            return False
        now = asyncio.get_running_loop().time()
        if now - mine.counted_at >= _LOOK_EVERY:  # a count of thousands takes as long as a call
            mine.count(now)
        return mine.bytes > self._most

    async def room(self, principal: str, peer: HttpPeer) -> None:
        """Returns when an answer may be encoded for that client, or it has gone. Who waits has its turn in order."""
        await peer.drained()
        while not peer.lost and self.is_full(principal):
            async with self.held[principal].turn:
                while not peer.lost and self.is_full(principal):  # noqa: ASYNC110 - no event says that others read
                    await asyncio.sleep(_LOOK_EVERY)

    def sweep(self) -> None:
        """Forgets those who have read everything."""
        for principal, mine in list(self.held.items()):
            mine.count(asyncio.get_running_loop().time())
            if not mine.connections and not mine.turn.locked():
                del self.held[principal]


LARGE: Final = 16 * 1024
"""Bytes. What has more is large."""
_RETRY: Final = 1.0

UntilFree = Callable[[str], float]
"""Seconds until this principal may send another request, 0.0 where it may now. Counts no request."""


@dataclass(frozen=True, slots=True)
class DecodedRequest:
    value: Any
    size: int  # in memory


def memory_of(value: Any) -> int:
    """What a decoded message takes, in bytes: 40 KiB of small objects become two megabytes, and of a text with one rare
    character each letter takes four."""
    size, left = 0, [value]
    while left:
        part = left.pop()
        size += getsizeof(part)
        if type(part) is dict:
            left += part
            left += part.values()
        elif type(part) is list:
            left += part
    return size


class RequestRefused(Exception):
    """A large request is refused for now; `wait` is in seconds."""

    def __init__(self, wait: float, text: str) -> None:
        super().__init__(text)
        self.wait = wait
        self.error = {"code": INTERNAL_ERROR, "message": text, "data": {"reason": "rate_limited"}}


class LargeRequests:
    def __init__(self, limits: RequestLimits, until_free: UntilFree = lambda principal: 0.0) -> None:
        self._limits, self._until_free = limits, until_free
        self.unread = UnreadAnswers(limits.in_flight)
        self._held: Counter[str] = Counter()
        self._turns = client_budgets()

    def judge(self, principal: str, size: int) -> None:
        """Raises `RequestRefused`."""
        self.judge_unread(principal)
        if wait := self._until_free(principal):
            raise RequestRefused(wait, "Too many requests, this one was not executed: it was not even read.")
        if self._held[principal] + size > self._limits.in_flight:
            raise self._over()

    def judge_unread(self, principal: str) -> None:
        """Raises `RequestRefused` for a client that does not read its answers."""
        if self.unread.is_full(principal):
            text = f"More than {self._limits.in_flight} bytes of answers are not read, this request was not executed."
            raise RequestRefused(_RETRY, text)

    async def admit(self, principal: str, size: int) -> None:
        """The same, and a refusal comes when the client has its turn: until then its bytes are not read."""
        since = perf_counter()
        try:
            self.judge(principal, size)
        except RequestRefused:
            self.refused(principal, perf_counter() - since)
            await self.enter(principal)
            raise

    @contextmanager
    def holding(self, principal: str, size: int) -> Iterator[None]:
        """A request of that size is in flight. Raises `RequestRefused`."""
        self.judge(principal, size)
        with self.counting(principal, size):
            yield

    def _over(self) -> RequestRefused:
        text = f"More than {self._limits.in_flight} bytes of requests are in flight, this one was not executed."
        return RequestRefused(_RETRY, text)

    @contextmanager
    def grown(self, principal: str, held: int, size: int) -> Iterator[None]:
        """A request that is in flight takes more memory now than it had bytes. Raises `RequestRefused` where that, with
        others of its client, is too much."""
        before = self._held[principal]
        if before > held and before - held + size > self._limits.in_flight:
            raise self._over()
        with self.counting(principal, size - held):
            yield

    @contextmanager
    def counting(self, principal: str, size: int) -> Iterator[None]:
        """The same for a request that was admitted."""
        self._held[principal] += size
        try:
            yield
        finally:
            self._held[principal] -= size
            if not self._held[principal]:
                del self._held[principal]

    async def decode(self, principal: str, take: Callable[[], bytes]) -> "DecodedRequest":
        """Reads what `take` gives, in three steps of the event loop. Its turn comes first: until then no body is made
        one piece. Raises `Malformed`, and what `take` raises."""
        turns = self.budget_of(principal)
        async with turns.turn:
            await turns.rest()
            since = turns.now()
            try:
                data = take()
                pairs = weigh(data, self._limits.max_depth, self._limits.nodes)
                await turns.charge_and_yield(since)
                since = turns.now()
                value = reserved_keys.from_client(decode_weighed(data, pairs), data)
                del data
                await turns.charge_and_yield(since)
                since = turns.now()
                return DecodedRequest(value, memory_of(value))
            finally:
                turns.charge_since(since)

    async def handle(self, handler: Handler, call: Call) -> Outcome:
        """Counts the work of a call that is refused before it reaches a server or the audit log. Its bytes are in
        flight, and its answer waits, until its records are composed: they hold its arguments. What a large answer takes
        there is its server's."""
        # Step 5 of docs/explanation/performance.md
        trail, work = call.trail, OwnSteps(handler(call))
        if call.method == "subscriptions/listen":
            trail.spend = self.budget_of(call.client.principal).charge_and_rest
        try:
            outcome = await work
            is_refused = isinstance(outcome, Failure) or (isinstance(outcome, Result) and outcome.reason is not None)
            if is_refused and not trail.wait_seconds and not trail.audit_seconds:
                self.refused(call.client.principal, work.seconds, work.longest)
            elif (turns := self._turns.get(call.client.principal)) is not None:
                turns.served()
            return outcome
        finally:
            if trail.composing is not None:
                try:
                    with CancelScope(shield=True):
                        await _done(trail.composing)
                finally:
                    self.budget_of(call.client.principal).charge_thread(trail.compose_seconds)
                    if trail.answer_seconds and trail.target is not None:  # or its caller would pay for its answers
                        budget_of(trail.target.server).charge_thread(trail.answer_seconds)

    def refused(self, principal: str, seconds: float, longest: float | None = None) -> None:
        """In one step, unless its longest one is said."""
        self.budget_of(principal).refused(seconds, seconds if longest is None else longest)

    def may_enter(self, principal: str) -> bool:
        """Whether a small request need not `enter`."""
        if self.unread.held and self.unread.is_full(principal):
            return False
        turns = self._turns.get(principal)
        return turns is None or turns.is_unused()

    async def enter(self, principal: str) -> None:
        if not self.may_enter(principal):
            await self.budget_of(principal).enter()

    def budget_of(self, principal: str) -> LoopBudget:
        return self._turns[principal]


async def _done(composing: "asyncio.Future[Any]") -> None:
    """Returns when it is done. A client that is gone cancels its call, which holds the arguments until then all the
    same: it is cancelled afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not composing.done():
        try:
            await asyncio.wait([composing])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
