"""The tasks that one listen call follows: what became of them is told on its stream, as `tasks/get` would say it.

A server's word that a task has changed is a reason to look at it; without such words it is looked at in the rhythm
that the server suggests, so that what is acknowledged can be relied on whatever the server does. Knows tasks and a
Handler that answers about them; no server. (SEP-2663, Task Status Notifications.)
"""

from collections.abc import Sequence
from itertools import count
from time import perf_counter
from typing import Final

import anyio

from sluicegate.protocol import tasks
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import Call, Handler, Result, Trail
from sluicegate.router.tasks import TaskRouter
from sluicegate.runtime.loop_budget import client_budgets
from sluicegate.runtime.own_steps import OwnSteps
from sluicegate.telemetry import DEFAULT_BACKOFF

MAX_FOLLOWED: Final = 1_000  # tasks of one listen call
MAX_LOOKS: Final = 8  # of one listen call at the same time
LEAST_BETWEEN: Final = 0.1
"""Seconds between two looks at a task, however often its server says that it has changed."""
_PACE: Final = "tasks\0"
"""Before a principal: the budget of its looks. It may follow thousands of tasks, and no rate counts a look. What they
take is not taken from its calls."""
_POLL: Final = 1000  # milliseconds, where the server suggests nothing

_Seen = tuple[object, ...]


class TaskSubscriptions:
    """`about_task` answers a `tasks/get` in the name of the client that follows the task, so that a notification has
    passed everything that an answer passes."""

    def __init__(self, task_router: TaskRouter, about_task: Handler | None = None) -> None:
        self._tasks = task_router
        self._about_task = about_task or task_router.about

    async def begin(self, call: Call, ids: Sequence[str]) -> "FollowedTasks":
        """Those that this client has, and may know of: of others nothing is said."""
        return FollowedTasks(self._tasks, self._about_task, call, await self._tasks.followed(call, ids))


class FollowedTasks:
    """The tasks that one call subscribed to."""

    def __init__(self, task_router: TaskRouter, handler: Handler, call: Call, ids: list[str]) -> None:
        self.ids = ids
        self._tasks = task_router
        self._handler = handler
        self._call = call
        self._numbers = count(1)
        self._limit = anyio.CapacityLimiter(MAX_LOOKS)

    async def follow(self, id: str) -> None:
        """Until it has ended, or is forgotten. What it is at first is told, too: it may have ended before anybody
        listened."""
        seen: _Seen | None = None
        failures, pace = 0, client_budgets()[_PACE + self._call.client.principal]
        while (news := await self._tasks.news(self._call, id)) is not None:
            async with self._limit:
                steps = OwnSteps(self._tell(id, seen))
                task, seen = await steps
                await pace.charge_and_rest(perf_counter() - steps.seconds)
            if task is not None and task.get("status") in tasks.TERMINAL:
                return
            failures = 0 if task is not None else failures + 1
            await anyio.sleep(LEAST_BETWEEN)
            with anyio.move_on_after(_pause(task or {}, failures)):
                await news.wait()

    async def _tell(self, id: str, seen: _Seen | None) -> tuple[Json | None, _Seen | None]:
        """Returns the task, and what its client has seen of it."""
        outcome = await self._tasks.about(self._get(id, Trail()))
        task = outcome.value if isinstance(outcome, Result) else None
        if task is not None and (state := _state(task)) != seen:
            task = await self._notify(id)
            seen = None if task is None else state
        return task, seen

    async def _notify(self, id: str) -> Json | None:
        """Returns None where the client could not be notified, so that it is tried again."""
        outcome = await self._handler(self._get(id, Trail(f"{self._call.trail.id}-{next(self._numbers)}")))
        if not isinstance(outcome, Result):
            return None
        await self._call.emit(Notification(tasks.CHANGED, outcome.value))
        return outcome.value

    def _get(self, id: str, trail: Trail) -> Call:
        return Call(self._call.client, "tasks/get", {"taskId": id}, trail=trail)


def _state(task: Json) -> _Seen:
    """The fields of a task whose change is announced, as its server wrote them: inspection may change the message."""
    requests = task.get("inputRequests")
    asked = tuple(sorted(requests)) if isinstance(requests, dict) else ()
    return task.get("status"), task.get("statusMessage"), asked


def _pause(task: Json, failures: int) -> float:
    if failures:
        return DEFAULT_BACKOFF.pause(failures)
    return float(task.get("pollIntervalMs", _POLL)) / 1000
