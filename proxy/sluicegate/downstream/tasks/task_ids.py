"""A task's id as the middle has it: the server's own, with the mark of the connection that knows the task.

A legacy server knows a task on the connection that began it alone, and so does one that is started: another process of
it may give the same id to another client's task. A stateless one behind a URL knows it on each.
"""

from dataclasses import replace
from typing import Final

from sluicegate.protocol import tasks
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json, Request, Response
from sluicegate.protocol.methods import TASK_SHOWN
from sluicegate.protocol.model import Call, Failure, Outcome, Result, TaskStarted

FREE: Final = ""
"""The mark of the tasks of a stateless server behind a URL: every connection knows them."""


def mark_of(id: str) -> str:
    return id.partition(":")[0]


def inwards(call: Call) -> Call:
    """The same with the server's own id."""
    return replace(call, params={**call.params, "taskId": call.params["taskId"].partition(":")[2]})


def outwards(call: Call, outcome: Outcome, mark: str) -> Outcome:
    """What a connection says of a task, with its mark. Of another task than it was asked about nothing is believed."""
    if isinstance(outcome, TaskStarted):
        return TaskStarted({**outcome.task, "taskId": f"{mark}:{outcome.task['taskId']}"})
    if not isinstance(outcome, Result) or call.method not in TASK_SHOWN:
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
