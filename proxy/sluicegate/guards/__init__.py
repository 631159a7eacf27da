"""The guard chain: which guards there are, in which order, and how they become one Handler.

Order is code, not configuration. Each use of the guards has a chain that is declared whole: no chain is made of another
one by leaving something out. Every guard feels what the guards after it do to a call, and must not care what those
before it do. Rules: guards only subtract; an exception is a refusal, never a pass; a guard that has nothing to do under
this configuration is None and costs nothing.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Final

from sluicegate.protocol.jsonrpc import INTERNAL_ERROR
from sluicegate.protocol.model import Call, Failure, Guard, Handler, Outcome, refuse
from sluicegate.store import StoreFailed

ORDER: Final = (
    "measure",  # clock and outcome of everything
    "record",  # one closing line for everything, refusals and cancellation included
    "cut_off",  # a replica that has no word from the others
    "throttle",  # per-client rate
    "find",  # what `find_tools` finds
    "name",  # public names and URIs to own ones, and back
    "seal",  # the envelope of a retry
    "enforce",  # the decision
    "quota",  # per-tool rate
    "call_hooks",  # services of the operator
    "approve",  # a human
    "login",  # somebody's account at the server
    "commit",  # the last step before a server is reached: what must happen once, happens here
    "inspect",  # bounds and checks what a server answered
    "result_hooks",  # services of the operator
)
"""What each request of a client passes."""

RESUMED: Final = (
    "record", "cut_off", "seal", "enforce", "call_hooks", "approve", "login", "commit", "inspect", "result_hooks",
)  # fmt: skip
"""What a call passes that waited as a task: it was measured, counted and named when it came."""

TASK_NOTIFICATIONS: Final = (
    "record", "cut_off", "name", "seal", "enforce", "approve", "login", "commit", "inspect", "result_hooks",
)  # fmt: skip
"""What is passed by news of a task: no request of its client's, but judged, recorded and named as one."""

# A failure becomes a refusal outermost, and before each guard that tells of outcomes. The guards further in pass a
# failure and the refusal that it becomes in the same way, so they need no boundary each: every coroutine in the stack
# of a call is made, resumed at each wait and ended.
_TELLING: Final = frozenset({"measure", "record"})

_NO_STORE: Final = "NOT EXECUTED: Sluice cannot read or write its state. Try again later."
_MAY_BE: Final = "Sluice cannot read or write its state: this call may or may not have been executed."
_BROKEN: Final = "Internal error"
_BROKEN_AFTER: Final = "Sluice failed after it sent this call: it may or may not have been executed."

log = logging.getLogger(__name__)


class Observer(ABC):
    """A guard that only looks: what it is told of a call changes nothing. Several that stand one behind the other
    share one coroutine and one boundary; alone it is a guard as any other."""

    @abstractmethod
    def begin(self, call: Call) -> None: ...

    @abstractmethod
    def end(self, call: Call, outcome: Outcome | None, seconds: float) -> None:
        """`outcome` is None where the call was cancelled."""

    async def __call__(self, call: Call, inner: Handler) -> Outcome:
        began = perf_counter()
        self.begin(call)
        outcome: Outcome | None = None
        try:
            outcome = await inner(call)
            return outcome
        finally:
            self.end(call, outcome, perf_counter() - began)


def chain(guards: Mapping[str, Guard | None], innermost: Handler, order: Sequence[str] = ORDER) -> Handler:
    """One Handler out of the guards of that use. Raises `ValueError` where a guard is missing or unknown:
    leaving one out is a decision that has to be written down as None."""
    if set(guards) != set(ORDER):
        raise ValueError(f"guards must be exactly {ORDER}, not {tuple(guards)}")
    handler, observers = innermost, list[Observer]()
    for name in reversed(order):
        guard = guards[name]
        if isinstance(guard, Observer):
            observers.append(guard)
        elif guard is not None:
            if observers or name in _TELLING:
                handler, observers = _boundary(observers, handler), []
            handler = partial(guard, inner=handler)
    return handler if handler is innermost and not observers else _boundary(observers, handler)


async def settled(outcome: Outcome) -> Outcome:
    """What a guard answers that decides without waiting. Such a guard is no coroutine: where it lets a call pass, it
    adds none to the stack."""
    return outcome


def _without_store(call: Call) -> Outcome:
    if call.trail.is_sent or call.trail.has_begun:
        return refuse(call.method, "outcome_unknown", _MAY_BE)
    return refuse(call.method, "store_unavailable", _NO_STORE)


def _broken(call: Call) -> Outcome:
    if call.trail.is_sent or call.trail.has_begun:
        return refuse(call.method, "outcome_unknown", _BROKEN_AFTER)
    return Failure(INTERNAL_ERROR, _BROKEN)


def _store_failure(error: Exception) -> Exception | None:
    """The failure of the store, which a task group wraps; None where anything else failed, too."""
    while isinstance(error, ExceptionGroup) and error.split(StoreFailed)[1] is None:
        error = error.exceptions[0]
    return error if isinstance(error, StoreFailed) else None


def _boundary(observers: Sequence[Observer], inner: Handler) -> Handler:
    """Makes a broken guard a refusal, and tells the witnesses: as guards, outwards in the end."""
    observers = tuple(reversed(observers))

    async def handle(call: Call) -> Outcome:
        # Step 5 of docs/explanation/performance.md
        began, begun = perf_counter(), 0
        outcome: Outcome | None = None
        try:
            for observer in observers:
                observer.begin(call)
                begun += 1
            outcome = await inner(call)
        except Exception as error:
            outcome = _without_store(call) if (failure := _store_failure(error)) else _broken(call)
            if failure:
                log.error("refused: the store failed (call %s): %s", call.trail.id, failure)
            else:
                log.exception("refused: failure in a guard or inside it (call %s)", call.trail.id)
        finally:
            for observer in reversed(observers[:begun]):
                try:
                    observer.end(call, outcome, perf_counter() - began)
                except Exception:  # that one cannot tell of a call is no reason for the others not to hear of it
                    log.exception("refused: failure of a witness (call %s)", call.trail.id)
                    outcome = outcome and _broken(call)  # a cancelled call has none, and stays cancelled
        return outcome

    return handle
