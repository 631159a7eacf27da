"""Calls that a server makes a task of, for clients that wait: the task is begun, watched and answered for here.

A client without tasks must not be told of one, and some tools do nothing else. So its call stays open: progress is
made of the looks at the task, questions go to the client as those of any call, and when the call is cancelled, so is
the task. <= 2025-11-25 basic/utilities/tasks, SEP-2663 (`io.modelcontextprotocol/tasks`).
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, Final

import anyio

from sluicegate.downstream.failures import AnswerTooLarge, Lost
from sluicegate.downstream.session.connection import ServerConnection
from sluicegate.downstream.session.pending_request import PendingRequest
from sluicegate.downstream.session.suspended import InteractiveExchange
from sluicegate.downstream.settings import ServerSettings
from sluicegate.downstream.tasks import task_ids
from sluicegate.protocol import legacy_server, modern_server, tasks
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json, Notification, Response, decode_fast, dump
from sluicegate.protocol.model import Call, InputRequired, Outcome, OwnState, Result, refuse
from sluicegate.runtime.deadline import AnswerDeadline

FIRST_LOOK: Final = 0.1
MOST_BETWEEN: Final = 5.0
"""Seconds, whatever the server suggests: somebody waits."""
REPORT_EVERY: Final = 2.0
MAX_MISSED: Final = 3
"""Looks in a row that fail before the call does."""
_STATE: Final = "task "

Send = Callable[[str, Json], Awaitable[Response]]
"""(method, params) -> the server's answer, in its usual time."""


class TaskWatch:
    """The looks at one task: when the next is due, what is worth telling as progress, and when the task is lost."""

    __slots__ = ("_clock", "_count", "_missed", "_next", "_reported_at", "_text")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._count = self._missed = 0
        self._next = FIRST_LOOK
        self._text: Any = None
        self._reported_at = clock()

    def pause(self, task: Json) -> float:
        """Seconds until the next look: quick at first, then as the server suggests, within bounds."""
        wanted = task.get("pollIntervalMs", 1000) / 1000
        pause = min(self._next, max(wanted, FIRST_LOOK), MOST_BETWEEN)
        self._next *= 2
        return float(pause)

    def is_lost(self, is_found: bool) -> bool:
        """Whether this look is one failure too many in a row."""
        self._missed = 0 if is_found else self._missed + 1
        return self._missed >= MAX_MISSED

    def news(self, task: Json) -> Notification | None:
        """A new message, and a sign of life now and then. The numbers are small, so that those of the server itself
        rise above them."""
        text, now = task.get("statusMessage"), self._clock()
        if text == self._text and now - self._reported_at < REPORT_EVERY:
            return None
        self._text, self._reported_at = text, now
        self._count += 1
        message: Json = {} if text is None else {"message": text}
        return Notification("notifications/progress", {"progress": self._count / 1000, **message})


async def _cancel(request: Send, id: str) -> None:
    with suppress(Lost, TimeoutError):  # its time to live ends it
        await request("tasks/cancel", {"taskId": id})


def _cancelled(task: Json) -> Result:
    """A task that somebody else has cancelled. Its call has no other end that says so. What the server writes of it is
    a block of its own, so that no sentence of it passes for ours."""
    texts = ["The server cancelled this call."]
    if task.get("statusMessage"):
        texts.append(f"The server's message: {task['statusMessage']}")
    return Result({"content": [{"type": "text", "text": text} for text in texts], "isError": True})


def needs_task(call: Call) -> bool:
    """Whether a legacy server does this only as a task, and the client did not ask for one."""
    if call.method != "tools/call" or call.target is None or "task" in call.params:
        return False
    return tasks.support(call.target.item) == "required"


class LegacyTask:
    """One call that a legacy server does only as a task. Its life is beside the call's own, so that a task is also
    cancelled that was begun for a call which nobody waits for any more. `asking` is the exchange of `tasks/result`,
    which is asked for once there is something to ask for: what the server asks comes on its stream. `number` is the id
    of the request that begins the task. Progress of all of it comes under the id of `asking`."""

    def __init__(
        self, connection: ServerConnection, call: Call, asking: InteractiveExchange, number: int, can_cancel: bool
    ) -> None:
        self._connection = connection
        self._settings = connection.settings
        self._request = partial(connection.ask, timeout=connection.settings.timeout)
        self._call = call
        self._asking = asking
        self._number = number
        self._can_cancel = can_cancel
        self._is_unwanted = self._is_fetched = False

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
        if self._asking.task_id is not None and self._can_cancel and not self._connection.is_over:
            await _cancel(self._request, self._asking.task_id)

    async def _begin(self) -> Json | None:
        """Returns the task; None where the server has answered at once."""
        wish = {"ttl": int(min(self._settings.max_time * 1000, tasks.MAX_TTL))}
        params = {**legacy_server.params(self._call, self._asking.id, self._settings.is_sluice), "task": wish}
        patience = AnswerDeadline(self._settings.timeout, self._settings.timeout)
        beginning = PendingRequest(self._number)
        beginning.call = self._call
        begun = await self._connection.perform(beginning, "tools/call", params, patience, [])
        task = None if begun.result is None else tasks.created(begun.result)
        if task is None:
            self._asking.settle(Response(self._asking.id, begun.result, begun.error))
        else:
            self._asking.has_begun = self._asking.only_reads = True
            self._asking.once = False
        return task

    async def _watch(self, task: Json, group: anyio.abc.TaskGroup) -> None:
        watch = TaskWatch(anyio.current_time)
        while not self._asking.is_over:
            # 2025-11-25 basic/utilities/tasks#input-required-status: who asks, asks on `tasks/result`.
            if task["status"] == "cancelled":
                self._asking.settle(Response(self._asking.id, _cancelled(task).value))
            elif task["status"] != "working" and not self._is_fetched:
                self._is_fetched = True
                group.start_soon(self._fetch, task["taskId"])
            if task["status"] in tasks.TERMINAL:
                return
            await anyio.sleep(min(watch.pause(task), self._settings.timeout / 3))
            found = None if self._asking.is_over else await self._look(task["taskId"])
            if watch.is_lost(found is not None):
                text = "it does not know any more what became of the task"
                return self._asking.settle(error=Lost(text, sent=True))
            if found is not None:
                task = found
                if self._asking.patience is not None:
                    self._asking.patience.renew()  # the server lives, and works on it
                if (note := watch.news(task)) is not None:
                    self._asking.progress(note)

    async def _look(self, id: str) -> Json | None:
        try:
            answer = await self._request("tasks/get", {"taskId": id})
        except (Lost, TimeoutError):
            return None
        task = None if answer.result is None else tasks.read(answer.result)
        return task if task is not None and task["taskId"] == id else None

    async def _fetch(self, id: str) -> None:
        asking = self._asking
        request = {"jsonrpc": "2.0", "id": asking.id, "method": "tasks/result", "params": {"taskId": id}}
        try:
            await self._connection.transport.send(asking, dump(request), [])
        except (Lost, AnswerTooLarge) as error:
            asking.settle(error=error)


@dataclass(frozen=True, slots=True)
class PolledTask:
    """What travels with the questions that a task of a stateless server asks: which task, and the keys that were
    answered. They are not used again in its life (SEP-2663, Task Update Requests), but may be shown once more. `mark`
    is that of the connection which knows the task. `ends` is when the whole call does, all its rounds together, by the
    clock of the settings: another process may go on with it."""

    id: str
    answered: frozenset[str] = field(default_factory=frozenset)
    mark: str = task_ids.FREE
    ends: float | None = None

    def pack(self) -> OwnState:
        return OwnState(_STATE + dump([self.mark, self.id, self.ends, *sorted(self.answered)]).decode())


def resumed_task(call: Call) -> PolledTask | None:
    """The task that a retry goes on with; None where the state is the server's own, or there is none."""
    state = call.params.get("requestState")
    if not isinstance(state, OwnState) or not state.startswith(_STATE):
        return None
    mark, id, *rest = decode_fast(state.removeprefix(_STATE).encode())
    ends = next((one for one in rest if isinstance(one, int | float)), None)  # a state of an older version has none
    return PolledTask(id, frozenset(one for one in rest if isinstance(one, str)), mark, ends)


def may_retry(call: Call, response: Response, settings: ServerSettings) -> bool:
    """Whether a refusal is to be met by taking the task here. Nothing was executed. A client that could have declared
    the extension to one server alone is told the truth by that server."""
    is_its_own = settings.is_mirrored and call.client.era == "modern"
    return call.method == "tools/call" and not is_its_own and tasks.wants_extension(response.error)


class ModernTask:
    """One call of which a stateless server made a task, looked at until it ends. Questions of the task end the round as
    any question does; what is needed to go on travels in the state. `request` asks on behalf of that client; `later`
    has something done that nobody waits for."""

    def __init__(
        self, call: Call, task: PolledTask, request: Send, later: Callable[[Callable[[], Awaitable[None]]], object],
        settings: ServerSettings,
    ) -> None:  # fmt: skip
        self._call = call
        self._ends = min(settings.clock() + settings.max_time, inf if task.ends is None else task.ends)
        self._task = replace(task, ends=self._ends)
        self._request = request
        self._later = later
        self._settings = settings

    async def run(self) -> Outcome:
        try:
            with anyio.fail_after(self._ends - self._settings.clock()):
                await self._answer()
                return await self._watch()
        except (TimeoutError, anyio.get_cancelled_exc_class()):
            self._later(self.cancel)
            raise

    async def cancel(self) -> None:
        await _cancel(self._request, self._task.id)

    async def _answer(self) -> None:
        """What the client answered to the questions of the round before."""
        responses = self._call.params.get("inputResponses")
        entries = responses.items() if isinstance(responses, dict) else ()
        if given := {key: value for key, value in entries if key in self._task.answered}:
            await self._request("tasks/update", {"taskId": self._task.id, "inputResponses": given})

    async def _watch(self) -> Outcome:
        watch = TaskWatch(anyio.current_time)
        while True:
            task = await self._look()
            is_unknown = isinstance(task, int)
            if watch.is_lost(isinstance(task, dict)) or is_unknown:
                text = "does not know any more what became of this call. It may have been executed."
                return refuse("tools/call", "outcome_unknown", f"The server {self._settings.key} {text}")
            if isinstance(task, dict):
                await self._report(watch.news(task))
                if (outcome := self._end(task)) is not None:
                    return outcome
            await anyio.sleep(watch.pause(task if isinstance(task, dict) else {}))

    async def _look(self) -> Json | int | None:
        """The task; the code of the error where the server knows none such; None where nothing can be said."""
        try:
            answer = await self._request("tasks/get", {"taskId": self._task.id})
        except (Lost, TimeoutError):
            return None
        if answer.error is not None:
            return INVALID_PARAMS if answer.error.get("code") == INVALID_PARAMS else None
        outcome = modern_server.result("tasks/get", answer.result or {})
        task = outcome.value if isinstance(outcome, Result) else None
        return task if task is not None and task["taskId"] == self._task.id else None

    def _end(self, task: Json) -> Outcome | None:
        """Returns how the call, or this round of it, ends; None where it goes on."""
        status = task["status"]
        if status == "completed":
            return Result(modern_server.complete("tools/call", task["result"]))
        if status == "failed":
            return modern_server.failure(self._call, task["error"])
        if status == "cancelled":
            return _cancelled(task)
        requests = task.get("inputRequests")
        entries = requests.items() if isinstance(requests, dict) else ()
        if not (unasked := {key: ask for key, ask in entries if key not in self._task.answered}):
            return None
        shown = replace(self._task, answered=self._task.answered | unasked.keys())
        return InputRequired(unasked, shown.pack(), remaining_seconds=max(0.0, self._ends - self._settings.clock()))

    async def _report(self, note: Notification | None) -> None:
        if note is not None and "progressToken" in self._call.meta:
            params = {**note.params, "progressToken": self._call.meta["progressToken"]}
            await self._call.emit(Notification(note.method, params))
