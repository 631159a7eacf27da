"""Calls that wait for their client: a legacy server asked something, and the client answers with a request of its own.

An exchange on which a server
asks outlives the task that began it: it is parked under a random key, and who brings the key takes it up again.
A key is good once, for whom it was made for, in this process: anything else is no fresh start. What became of a call
that is parked no more, nobody knows: its server had begun.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from typing import Any, Final

import anyio

from sluicegate.downstream.failures import Lost
from sluicegate.downstream.session.pending_request import MAX_WAITING_BYTES, PendingRequest, severity
from sluicegate.downstream.settings import MAX_MESSAGE
from sluicegate.protocol.canonical_json import is_longer
from sluicegate.protocol.jsonrpc import Request, RequestId, Response, weight_of
from sluicegate.protocol.model import LOG_LEVEL, ROUND_SECONDS, Ask, Call, Outcome, OwnState, no_emit

DEBOUNCE: Final = 0.03
"""Seconds: what a server asks in one breath goes to the client in one round."""
MAX_ASKS: Final = 32  # open on one call
MAX_QUESTIONS: Final = 10 * MAX_ASKS
"""Questions of one call in total: ten rounds of `MAX_ASKS`, as a stateless server has."""
MAX_PARKED: Final = 100  # calls of one principal at one server
MAX_PARKED_BYTES: Final = 64 * 1024 * 1024
"""Bytes of memory for the open questions of all calls that wait at one server, and for answers to them."""
LIGHT: Final = 16 * 1024
"""Characters of an answer that waits for its client. To weigh a longer one takes too long: it counts as the largest."""

_STATE: Final = "parked "

Left = Callable[["InteractiveExchange"], None]


class InteractiveExchange(PendingRequest):
    """An exchange on which the server may ask before it answers. `asks` are its open questions under keys of ours,
    `shown` the keys that the client was asked; `left` is called when the server ends it while it is parked."""

    def __init__(self, id: int, call: Call, ends: float, left: Left) -> None:
        super().__init__(id, call)
        self.call_id = call.trail.round[0] if call.trail.round else call.trail.id
        self.ends = ends
        self.asks: dict[str, Request] = {}
        self.shown: frozenset[str] = frozenset()
        self.stop_task: Callable[[], object] | None = None  # where the server makes a task of the call
        self.task_id: str | None = call.params.get("taskId")
        self._reader: anyio.CancelScope | None = None
        self._left = left
        self._count = 0
        self._sizes: dict[str, int] = {}
        self._is_ripe = False
        self._timer: asyncio.TimerHandle | None = None

    def asked(self, request: Request) -> bool:
        """Takes a question; False where there are too many already, or they are too large together."""
        self.has_begun = True
        if self.is_over or len(self.asks) >= MAX_ASKS:
            return False
        # Each is weighed once: a server may ask something small again and again beside megabytes.
        size = weight_of(request.params)
        if self.weight + size > MAX_WAITING_BYTES:
            return False
        self._count += 1
        key = f"ask{self._count}"
        self._sizes = {open_key: self._sizes[open_key] for open_key in self.asks} | {key: size}
        self.asks[key] = request
        self._ripen_soon()
        return True

    @property
    def weight(self) -> int:
        """About the bytes of memory of the open questions, and of an answer that waits for its client."""
        questions = sum(self._sizes[key] for key in self.asks)
        if self.answer is None:
            return questions
        answer = [self.answer.result, self.answer.error]
        return questions + (MAX_MESSAGE if is_longer(answer, LIGHT) else weight_of(answer))

    @property
    def asks_too_often(self) -> bool:
        return self._count > MAX_QUESTIONS

    def withdraw(self, id: RequestId) -> bool:
        """The server does not want to know any more. Whether it had asked."""
        keys = [key for key, request in self.asks.items() if request.id == id and type(request.id) is type(id)]
        for key in keys:
            del self.asks[key]
        return bool(keys)

    def settle(self, answer: Response | None = None, error: Exception | None = None) -> None:
        super().settle(answer, error)
        if self.is_parked:
            self._left(self)

    def reading(self) -> anyio.CancelScope:
        """The life of whoever reads its own stream: not that of the task which began it."""
        self._reader = anyio.CancelScope()
        if self.is_over:
            self._reader.cancel()
        return self._reader

    def _ripen_soon(self) -> None:
        if self._timer is None and not self.is_parked:
            self._timer = asyncio.get_running_loop().call_later(DEBOUNCE, self._ripen)

    def _ripen(self) -> None:
        self._timer = None
        self._is_ripe = True
        self._wake()

    async def turn(self) -> Response | None:
        """The answer; None where the server waits for the client first."""
        while not (self.is_over or (self._is_ripe and self.asks)):
            self._is_ripe = False  # all that was asked has been withdrawn
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
            await self.flush()
        return await self.result() if self.is_over else None

    def park(self) -> None:
        """Until it is taken up again, nobody listens."""
        self.shown = frozenset(self.asks)
        self.is_parked = True
        self.call, self.emit, self._token, self.level = None, no_emit, None, -1
        self._stop()

    def attach(self, call: Call) -> None:
        """From now on it belongs to that request of the client."""
        self.is_parked = False
        self.emit = call.emit
        self._token, self.level = call.meta.get("progressToken"), severity(call.meta.get(LOG_LEVEL))

    def answered(self, keys: set[str]) -> None:
        """Drops the questions that have answers; what is still open is asked again."""
        for key in keys:
            self.asks.pop(key, None)
        if self.asks:
            self._ripen_soon()

    def close(self) -> list[Request]:
        """Ends the exchange and its stream; returns the questions that were never answered."""
        self._stop()
        if self.answer is None and self._reader is not None:
            self._reader.cancel()
        self.settle(error=Lost("the call is over", sent=True))
        unanswered = list(self.asks.values())
        self.asks.clear()
        return unanswered

    def _stop(self) -> None:
        self._is_ripe = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def is_state(state: Any) -> bool:
    return isinstance(state, OwnState) and state.startswith(_STATE)


@dataclass(slots=True)
class SuspendedCall:
    holder: str
    asking: InteractiveExchange
    weight: int
    resume: Callable[[Call], Awaitable[Outcome]]
    give_up: Callable[[str], None]
    timer: asyncio.TimerHandle


class SuspendedCalls:
    """All parked calls of one server, and what its connections must know of asking. `ask` reaches the client of a
    session outside of any call. `is_aside`: the server has asked beside the streams of its calls, so that one call
    at a time is all that can be told apart."""

    def __init__(self, ask: Ask | None = None, life: float = ROUND_SECONDS) -> None:
        self.ask = ask
        self.life = life
        self.is_aside = False
        self._freed = anyio.Event()
        self._here = secrets.token_hex(8)
        self._parked: dict[str, SuspendedCall] = {}
        self._weight = 0

    def park(
        self, asking: InteractiveExchange, holder: str, resume: Callable[[Call], Awaitable[Outcome]],
        give_up: Callable[[str], None],
    ) -> OwnState:  # fmt: skip
        """The state with which the call is taken up again."""
        mine = [key for key, parked in self._parked.items() if parked.holder == holder]
        if len(mine) >= MAX_PARKED:
            self._end(mine[0], "too many calls wait for this client")
        weight = asking.weight
        self._make_room(weight)
        loop = asyncio.get_running_loop()
        key = secrets.token_hex(16)
        wait = min(self.life, max(0.0, asking.ends - loop.time()))
        timer = loop.call_later(wait, self._end, key, "the client did not answer in time")
        self._parked[key] = SuspendedCall(holder, asking, weight, resume, give_up, timer)
        self._weight += weight
        return OwnState(f"{_STATE}{self._here} {key}")

    def take(self, state: str, holder: str) -> SuspendedCall | None:
        """The call that waits under `state`, once; None where none does."""
        here, _, key = state.removeprefix(_STATE).partition(" ")
        parked = self._parked.get(key) if here == self._here else None
        if parked is None or parked.holder != holder:
            return None
        return self._remove(key)

    def _remove(self, key: str) -> SuspendedCall:
        parked = self._parked.pop(key)
        self._weight -= parked.weight
        parked.timer.cancel()
        return parked

    def weigh(self, asking: InteractiveExchange) -> None:
        """Its server has asked more while it waits, or has answered."""
        parked = next((one for one in self._parked.values() if one.asking is asking), None)
        if parked is None:
            return  # it is being ended, perhaps to make room: who ends it goes on with that
        weight = asking.weight
        self._weight += weight - parked.weight
        parked.weight = weight
        self._make_room(0)

    def _make_room(self, weight: int) -> None:
        while self._parked and self._weight + weight > MAX_PARKED_BYTES:
            self._end(self._heaviest(), "too much is asked in calls that wait")

    def _heaviest(self) -> str:
        """The key of the oldest call of the holder whose questions weigh most."""
        weights = Counter[str]()
        for parked in self._parked.values():
            weights[parked.holder] += parked.weight
        most = max(weights, key=weights.__getitem__)
        return next(key for key, parked in self._parked.items() if parked.holder == most)

    def abandon(self, call_id: str) -> None:
        """Gives up the suspended calls of that id: no client will resume them."""
        for key in [key for key, parked in self._parked.items() if parked.asking.call_id == call_id]:
            self._end(key, "the call was cancelled")

    def retain(self, holders: Container[str]) -> None:
        """All others cannot come in any more."""
        for key in [key for key, parked in self._parked.items() if parked.holder not in holders]:
            self._end(key, "the client's credential is over")

    def free(self) -> None:
        """A call has ended on which its server could ask: all who wait for that look again."""
        self._freed.set()
        self._freed = anyio.Event()

    async def until_free(self) -> None:
        await self._freed.wait()

    def close(self) -> None:
        for key in tuple(self._parked):
            self._end(key, "the server is being stopped")

    def _end(self, key: str, why: str) -> None:
        self._remove(key).give_up(why)

    def __len__(self) -> int:
        return len(self._parked)
