"""How long a call may take for which a task of a stateless server is watched: `max_time` over all its rounds."""

from collections.abc import Awaitable, Callable
from time import time

import anyio.lowlevel
import pytest

from sluicegate.downstream.settings import ServerSettings
from sluicegate.downstream.tasks.polling import FIRST_LOOK, ModernTask, PolledTask, TaskWatch, resumed_task
from sluicegate.protocol.jsonrpc import Json, Response
from sluicegate.protocol.model import Call, Client, InputRequired

TASK: Json = {"taskId": "t", "status": "input_required", "createdAt": "2026-01-01T00:00:00Z",
              "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttlMs": 60_000, "resultType": "complete"}  # fmt: skip
CALL = Call(Client("key:ann"), "tools/call", {"name": "t"})
SETTINGS = ServerSettings("s", command=("x",), max_time=1000.0)


class Asking:
    """A server whose task asks under a new key at each look."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.later: list[Callable[[], Awaitable[None]]] = []

    async def request(self, method: str, params: Json) -> Response:
        await anyio.lowlevel.checkpoint()
        self.asked.append(method)
        return Response(1, {**TASK, "inputRequests": {f"q{len(self.asked)}": {"method": "roots/list"}}})

    def watch(self, task: PolledTask) -> ModernTask:
        return ModernTask(CALL, task, self.request, self.later.append, SETTINGS)


async def test_all_rounds_of_a_call_have_one_end() -> None:
    server, task, begun = Asking(), PolledTask("t"), time()
    ends = set[float | None]()
    for _ in range(3):
        outcome = await server.watch(task).run()
        assert isinstance(outcome, InputRequired) and not outcome.is_held
        assert outcome.remaining_seconds is not None and outcome.remaining_seconds <= SETTINGS.max_time
        again = resumed_task(Call(CALL.client, "tools/call", {"requestState": outcome.state}))
        assert again is not None
        task = again
        ends.add(task.ends)
    (end,) = ends
    assert end is not None and begun + SETTINGS.max_time <= end <= time() + SETTINGS.max_time


async def test_a_round_that_comes_after_the_end_cancels_the_task() -> None:
    server = Asking()
    with pytest.raises(TimeoutError):
        await server.watch(PolledTask("t", ends=time() - 1)).run()
    (cancel,) = server.later
    await cancel()
    assert server.asked[-1] == "tasks/cancel"


def test_a_task_is_looked_at_ten_times_a_second_at_most() -> None:
    watch = TaskWatch(lambda: 0.0)
    assert [watch.pause({"pollIntervalMs": 20}) for _ in range(3)] == [FIRST_LOOK] * 3
