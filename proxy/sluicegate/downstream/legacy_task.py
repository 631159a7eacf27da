"""One call that a legacy server does only as a task, from its beginning to the answer of the client that waits.

2025-11-25 basic/utilities/tasks. A life of its own, beside the task of the call: so a task that was begun for a call
which nobody waits for any more is still cancelled. What the server asks comes on the stream of `tasks/result`, and
from there on goes the way of every question.
"""

import anyio

from sluicegate.downstream.connection import ServerConnection
from sluicegate.downstream.pending_request import AnswerDeadline, PendingRequest
from sluicegate.downstream.settings import AnswerTooLarge, Lost
from sluicegate.downstream.suspended_calls import InteractiveExchange
from sluicegate.downstream.task_polling import MAX_MISSED, PollSchedule, TaskWatch, cancelled
from sluicegate.protocol import legacy_server as dialect
from sluicegate.protocol import tasks
from sluicegate.protocol.jsonrpc import Json, Response, dump
from sluicegate.protocol.model import Call, Result


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
        params = {**dialect.params(self._call, self._asking.id, self._connection.settings.is_sluice), "task": wish}
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
            await self._connection.wire.send(asking, dump(request), [])
        except (Lost, AnswerTooLarge) as error:
            asking.settle(error=error)
