"""Calls that a server makes a task of, for clients that wait: the task is begun, watched and answered for here.

A client without tasks must not be told of one, and some tools do nothing else. So its call stays open: progress is
made of the looks at the task, questions go to the client as those of any call, and when the call is cancelled, so is
the task. Knows the rhythm, and what a state of ours says; knows no wire.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sluicegate.protocol import tasks
from sluicegate.protocol.jsonrpc import (
    INTERNAL_ERROR,
    Json,
    Notification,
    Request,
    Response,
    decode_fast,
    dump,
)
from sluicegate.protocol.model import Call, Failure, Outcome, OwnState, Result, TaskStarted, refuse

FIRST_LOOK: Final = 0.1
MOST_BETWEEN: Final = 5.0
"""Seconds, whatever the server suggests: somebody waits."""
TELL_EVERY: Final = 2.0
MAX_MISSED: Final = 3
"""Looks in a row that fail before the call does."""
MAX_ANSWERED: Final = 256
_STATE: Final = "task "


# ---------------------------------------------------------------- which connection knows it

FREE: Final = ""
"""The mark of a stateless server's tasks: every connection knows them."""


def mark_of(id: str) -> str:
    return id.partition(":")[0]


def inwards(call: Call) -> Call:
    """The same with the server's own id."""
    return replace(call, params={**call.params, "taskId": call.params["taskId"].partition(":")[2]})


def outwards(call: Call, outcome: Outcome, mark: str) -> Outcome:
    """What a connection says of a task, with its mark. Of another task than it was asked about nothing is believed."""
    if isinstance(outcome, TaskStarted):
        return TaskStarted({**outcome.task, "taskId": f"{mark}:{outcome.task['taskId']}"})
    if not isinstance(outcome, Result) or call.method not in ("tasks/get", "tasks/cancel"):
        return outcome
    if "taskId" not in outcome.value:  # the empty answer to a cancel of the extension
        return outcome
    id = f"{mark}:{outcome.value['taskId']}"
    if id != call.params["taskId"]:
        return Failure(INTERNAL_ERROR, "The server answered about another task")
    return Result({**outcome.value, "taskId": id})


def marked(params: Json, mark: str) -> Json:
    """A question, with its task's id as the middle has it."""
    id = tasks.relation(params)
    return params if id is None else tasks.related(params, f"{mark}:{id}")


def belonging(response: Response, request: Request) -> Response:
    """The answer belongs to the task to which the question belongs."""
    id = tasks.relation(request.params)
    if id is None or response.result is None:
        return response
    return replace(response, result=tasks.related(response.result, id))


class PollSchedule:
    """Seconds until the next look: quick at first, then as the server suggests."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = FIRST_LOOK

    def pause(self, task: Json) -> float:
        wanted = task.get("pollIntervalMs", 1000) / 1000
        pause = min(self._next, wanted, MOST_BETWEEN)
        self._next *= 2
        return float(pause)


class TaskWatch:
    """What the looks at a task are worth telling as progress: a new message, and a sign of life now and then. The
    numbers are small, so that those of the server itself rise above them."""

    __slots__ = ("_clock", "_count", "_said", "_text")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._count = 0
        self._text: Any = None
        self._said = clock()

    def news(self, task: Json) -> Notification | None:
        text, now = task.get("statusMessage"), self._clock()
        if text == self._text and now - self._said < TELL_EVERY:
            return None
        self._text, self._said = text, now
        self._count += 1
        message: Json = {} if text is None else {"message": text}
        return Notification("notifications/progress", {"progress": self._count / 1000, **message})


# ---------------------------------------------------------------- a stateless server's questions


@dataclass(frozen=True, slots=True)
class PolledTask:
    """What travels with the questions that a task of a stateless server asks: which task, and the keys that were
    answered. They are not used again in its life (SEP-2663, Task Update Requests), but may be shown once more."""

    id: str
    answered: frozenset[str] = field(default_factory=frozenset)

    def pack(self) -> OwnState:
        return OwnState(_STATE + dump([self.id, *sorted(self.answered)]).decode())


def driven(call: Call) -> PolledTask | None:
    """The task that a retry goes on with; None where the state is the server's own, or there is none."""
    state = call.params.get("requestState")
    if not isinstance(state, OwnState) or not state.startswith(_STATE):
        return None
    id, *answered = decode_fast(state.removeprefix(_STATE).encode())
    return PolledTask(id, frozenset(answered))


def asked(task: Json, known: PolledTask) -> Json:
    """What the client was not asked yet."""
    requests = task.get("inputRequests")
    entries = requests.items() if isinstance(requests, dict) else ()
    return {key: ask for key, ask in entries if key not in known.answered}


def answers(call: Call) -> Json:
    given = call.params.get("inputResponses")
    return given if isinstance(given, dict) else {}


# ---------------------------------------------------------------- whether, and how it ends


def must_drive(call: Call) -> bool:
    """Whether a legacy server does this only as a task, and the client did not ask for one."""
    if call.method != "tools/call" or call.target is None or "task" in call.params:
        return False
    return tasks.support(call.target.item) == "required"


def cancelled(text: Any) -> Outcome:
    """A task that somebody else has cancelled. Its call has no other end that says so."""
    said = f": {text}" if isinstance(text, str) and text else ""
    content = [{"type": "text", "text": f"The server cancelled this call{said}."}]
    return Result({"content": content, "isError": True})


def lost(server: str) -> Outcome:
    text = f"The server {server} does not know any more what became of this call. It may have been executed."
    return refuse("tools/call", "outcome_unknown", text)
