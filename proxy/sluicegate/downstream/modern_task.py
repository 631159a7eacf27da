"""One call of which a stateless server made a task, looked at until it ends, for a client that waits.

SEP-2663 (`io.modelcontextprotocol/tasks`). Questions of the task end the round as any question does; what is needed
to go on travels in the state. When the call is cancelled or its time is over, so is the task.
"""

from collections.abc import Awaitable, Callable

import anyio

from sluicegate.downstream.settings import AnswerTooLarge, Lost, ServerSettings
from sluicegate.downstream.task_polling import (
    MAX_MISSED,
    PolledTask,
    PollSchedule,
    TaskWatch,
    answers,
    asked,
    cancelled,
    lost,
)
from sluicegate.protocol import modern_server as dialect
from sluicegate.protocol import tasks
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json, Notification, Response
from sluicegate.protocol.model import Call, InputRequired, Outcome, Result, TaskStarted

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
        outcome = dialect.result("tasks/get", answer.result or {})
        task = outcome.value if isinstance(outcome, Result) else None
        return task if task is not None and task["taskId"] == self._known.id else None

    def _end(self, task: Json) -> Outcome | None:
        """How the call, or this round of it, ends; None where it does not."""
        status = task["status"]
        if status == "completed":
            return Result(dialect.complete("tools/call", task["result"]))
        if status == "failed":
            return dialect.failure(self._call, task["error"])
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
