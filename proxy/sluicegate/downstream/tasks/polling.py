"""Calls that a server makes a task of, for clients that wait: the task is begun, watched and answered for here.

A client without tasks must not be told of one, and some tools do nothing else. So its call stays open: progress is
made of the looks at the task, questions go to the client as those of any call, and when the call is cancelled, so is
the task. <= 2025-11-25 basic/utilities/tasks, SEP-2663 (`io.modelcontextprotocol/tasks`).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from sluicegate.downstream.failures import AnswerTooLarge, Lost
from sluicegate.downstream.session.connection import ServerConnection
from sluicegate.downstream.session.pending_request import AnswerDeadline, PendingRequest
from sluicegate.downstream.session.suspended import InteractiveExchange
from sluicegate.downstream.settings import ServerSettings
from sluicegate.protocol import legacy_server, modern_server, tasks
from sluicegate.protocol.jsonrpc import (
    INVALID_PARAMS,
    Json,
    Notification,
    Response,
    decode_fast,
    dump,
)
from sluicegate.protocol.model import Call, InputRequired, Outcome, OwnState, Result, TaskStarted, refuse

FIRST_LOOK: Final = 0.1
MOST_BETWEEN: Final = 5.0
"""Seconds, whatever the server suggests: somebody waits."""
TELL_EVERY: Final = 2.0
MAX_MISSED: Final = 3
"""Looks in a row that fail before the call does."""
MAX_ANSWERED: Final = 256
_STATE: Final = "task "


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


class LegacyTask:
    """`asking` is the exchange of `tasks/result`, which is asked for once there is something to ask for; `number` the
    id of the request that begins the task. Progress of all of it comes under the id of `asking`."""

    def __init__(
        self, connection: ServerConnection, call: Call, asking: InteractiveExchange, number: int, can_cancel: bool
    ) -> None:
        self._connection = connection
        self._settings = connection.settings
        self._call = call
        self._asking = asking
        self._number = number
        self._can_cancel = can_cancel
        self._is_unwanted = False
        self._is_fetched = False

    async def live(self) -> None:
        try:
            task = await self._begin()
        except (Lost, TimeoutError, AnswerTooLarge) as error:
            return self._asking.settle(error=error)
        if task is None:
            return
        self._asking.task_id = task["taskId"]
        if self._is_unwanted:
            return await self.cancel()
        async with anyio.create_task_group() as group:
            await self._watch(task, group)

    async def cancel(self) -> None:
        """Nobody waits any more. Where the server has not yet said which task it is, when it has."""
        self._is_unwanted = True
        if self._asking.task_id is None or not self._can_cancel or self._connection.is_over:
            return
        try:
            await self._connection.ask("tasks/cancel", {"taskId": self._asking.task_id}, self._settings.timeout)
        except (Lost, TimeoutError, AnswerTooLarge):
            return  # its time to live ends it

    async def _begin(self) -> Json | None:
        """The task; None where the server has answered at once."""
        wish = {"ttl": int(min(self._settings.max_time * 1000, tasks.MAX_TTL))}
        params = {**legacy_server.params(self._call, self._asking.id, self._settings.is_sluice), "task": wish}
        patience = AnswerDeadline(self._settings.timeout, self._settings.timeout)
        begun = await self._connection.perform(PendingRequest(self._number), "tools/call", params, patience, [])
        task = None if begun.result is None else tasks.created(begun.result)
        if task is None:
            self._asking.settle(Response(self._asking.id, begun.result, begun.error))
        return task

    async def _watch(self, task: Json, group: anyio.abc.TaskGroup) -> None:
        rhythm, watch, missed = PollSchedule(), TaskWatch(anyio.current_time), 0
        while not self._asking.is_over:
            self._act(task, group)
            if task["status"] in tasks.TERMINAL:
                return
            await anyio.sleep(min(rhythm.pause(task), self._settings.timeout / 3))
            known = None if self._asking.is_over else await self._look(task["taskId"])
            missed = 0 if known is not None else missed + 1
            if known is not None:
                task = known
                self._tell(watch, task)
            elif missed >= MAX_MISSED:
                text = "it does not know any more what became of the task"
                return self._asking.settle(error=Lost(text, sent=True))

    async def _look(self, id: str) -> Json | None:
        try:
            answer = await self._connection.ask("tasks/get", {"taskId": id}, self._settings.timeout)
        except (Lost, TimeoutError, AnswerTooLarge):
            return None
        task = None if answer.result is None else tasks.read(answer.result)
        return task if task is not None and task["taskId"] == id else None

    def _tell(self, watch: TaskWatch, task: Json) -> None:
        if self._asking.patience is not None:
            self._asking.patience.renew()  # the server lives, and works on it
        if (note := watch.news(task)) is not None:
            self._asking.progress(note)

    def _act(self, task: Json, group: anyio.abc.TaskGroup) -> None:
        """2025-11-25 basic/utilities/tasks#input-required-status: who asks, asks on `tasks/result`."""
        if task["status"] == "cancelled":
            ended = cancelled(task.get("statusMessage"))
            assert isinstance(ended, Result)
            self._asking.settle(Response(self._asking.id, ended.value))
        elif task["status"] != "working" and not self._is_fetched:
            self._is_fetched = True
            group.start_soon(self._fetch, task["taskId"])

    async def _fetch(self, id: str) -> None:
        asking = self._asking
        request = {"jsonrpc": "2.0", "id": asking.id, "method": "tasks/result", "params": {"taskId": id}}
        try:
            await self._connection.transport.send(asking, dump(request), [])
        except (Lost, AnswerTooLarge) as error:
            asking.settle(error=error)


Ask = Callable[[str, Json], Awaitable[Response]]
"""(method, params) -> the server's answer, in its usual time."""


class ModernTask:
    """`ask` asks on behalf of that client; `later` has something done that nobody waits for."""

    def __init__(
        self, call: Call, known: PolledTask, ask: Ask, later: Callable[[Callable[[], Awaitable[None]]], object],
        settings: ServerSettings,
    ) -> None:  # fmt: skip
        self._call = call
        self._known = known
        self._ask = ask
        self._later = later
        self._settings = settings

    async def run(self) -> Outcome:
        try:
            with anyio.fail_after(self._settings.max_time):
                await self._answer()
                return await self._watch()
        except (TimeoutError, anyio.get_cancelled_exc_class()):
            self._later(self.cancel)
            raise

    async def _answer(self) -> None:
        """What the client said to the questions of the round before."""
        given = {key: value for key, value in answers(self._call).items() if key in self._known.answered}
        if given:
            await self._ask("tasks/update", {"taskId": self._known.id, "inputResponses": given})

    async def _watch(self) -> Outcome:
        rhythm, watch, missed = PollSchedule(), TaskWatch(anyio.current_time), 0
        while True:
            task = await self._look()
            if isinstance(task, dict):
                missed = 0
                await self._tell(watch.news(task))
                if (outcome := self._end(task)) is not None:
                    return outcome
            elif task is not None or (missed := missed + 1) >= MAX_MISSED:
                return lost(self._settings.key)
            await anyio.sleep(rhythm.pause(task or {}))

    async def _look(self) -> Json | int | None:
        """The task; the code of the error where the server knows none such; None where nothing can be said."""
        try:
            answer = await self._ask("tasks/get", {"taskId": self._known.id})
        except (Lost, AnswerTooLarge, TimeoutError):
            return None
        if answer.error is not None:
            return INVALID_PARAMS if answer.error.get("code") == INVALID_PARAMS else None
        outcome = modern_server.result("tasks/get", answer.result or {})
        task = outcome.value if isinstance(outcome, Result) else None
        return task if task is not None and task["taskId"] == self._known.id else None

    def _end(self, task: Json) -> Outcome | None:
        """How the call, or this round of it, ends; None where it does not."""
        status = task["status"]
        if status == "completed":
            return Result(modern_server.complete("tools/call", task["result"]))
        if status == "failed":
            return modern_server.failure(self._call, task["error"])
        if status == "cancelled":
            return cancelled(task.get("statusMessage"))
        requests = asked(task, self._known)
        if not requests:
            return None
        shown = PolledTask(self._known.id, self._known.answered | requests.keys())
        return InputRequired(requests, shown.pack(), is_held=True)

    async def _tell(self, note: Notification | None) -> None:
        if note is not None and "progressToken" in self._call.meta:
            params = {**note.params, "progressToken": self._call.meta["progressToken"]}
            await self._call.emit(Notification(note.method, params))

    async def cancel(self) -> None:
        try:
            await self._ask("tasks/cancel", {"taskId": self._known.id})
        except (Lost, TimeoutError, AnswerTooLarge):
            return  # its time to live ends it


def begun(outcome: TaskStarted) -> PolledTask:
    return PolledTask(outcome.task["taskId"])


def may_retry(call: Call, response: Response, settings: ServerSettings) -> bool:
    """Whether a refusal is to be met by taking the task here. Nothing was executed. A client that could have declared
    the extension to one server alone is told the truth by that server."""
    is_its_own = settings.is_mirrored and call.client.era == "modern"
    return call.method == "tools/call" and not is_its_own and tasks.wants_extension(response.error)
