"""Calls that servers answer later, for clients that know of such: ids of ours, and what is asked about them.

Knows records of tasks and servers as Handlers. Every request about a task comes with the tool as its target, so that
it is judged as the call was; what a server says of one is believed as far as it can be true: of that task, and not
that something which has ended goes on. 2025-11-25 basic/utilities/tasks, SEP-2663.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Final

import anyio

from sluicegate.catalog.cursor import Position
from sluicegate.catalog_cache import CatalogCache, MayList, ServerSnapshots
from sluicegate.protocol import input_requests_server, tasks
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, Json, Notification
from sluicegate.protocol.model import (
    Call,
    Client,
    Failure,
    Handler,
    McpServer,
    Outcome,
    Result,
    Target,
    TaskNotification,
    TaskStarted,
    not_found,
    refuse,
)
from sluicegate.router.combined_lists import Cursors
from sluicegate.router.task_registry import MAX_TASKS, TaskRecord, TaskRegistry

PAGE: Final = 50  # of tasks/list: each one that runs is looked at
MAX_LOOKS: Final = 8  # at the same time
_PLACE: Final = "tasks"
_NO_SUCH_METHOD: Final = Failure(METHOD_NOT_FOUND, "Method not found")

MaySee = Callable[[Call, str], bool]
InspectState = Callable[[str, Json], Json]
"""(server, task) -> the task as its client may see it."""


def uninspected(server: str, task: Json) -> Json:
    return task


ShownTask = Callable[[Client, Target, Json], Json]
"""(client, tool, task) -> what hooks leave of it."""


def shown_whole(client: Client, target: Target, task: Json) -> Json:
    return task


class TaskOffers:
    """What clients are offered as tasks: what the servers that they may see can do in their own era."""

    def __init__(self, servers: Mapping[str, McpServer], lists: CatalogCache, may_see: MaySee) -> None:
        self._servers, self._lists, self._may_see = servers, lists, may_see

    async def offered(self, call: Call, snapshots: ServerSnapshots | None = None) -> Json | None:
        """What the servers that this client may see do as tasks in its own era; None where none does. Where no form
        of it can be relayed as it is, nothing is declared, and calls are waited for. `snapshots` is what
        `CatalogCache.all` gave, where that was waited for."""
        if not tasks.knows(call.client):
            return None
        found: list[Json] = []
        for key, snapshot in await self._lists.all(call.client, "greeting") if snapshots is None else snapshots:
            era = self._servers[key].era_for(call.client) or self._lists.stored_era(key, call.client)
            is_alike = era == call.client.era
            if is_alike and snapshot is not None and self._may_see(call, key):
                offer = tasks.offered(snapshot.about["capabilities"])
                found += [] if offer is None else [offer]
        return {part: {} for offer in found for part in offer} if found else None

    async def declared(self, call: Call, snapshots: ServerSnapshots) -> Json:
        """The capabilities that offer tasks to this client, in the form of its era."""
        offer = await self.offered(call, snapshots)
        if offer is None:
            return {}
        if call.client.era == "modern":
            return {"extensions": {tasks.EXTENSION: {}}}
        return {"tasks": {**offer, "requests": {"tools": {"call": {}}}}}

    async def unfit(self, call: Call, target: Target) -> Failure | None:
        """Returns why a call cannot run as the task that its client asked for."""
        return None if await self.offered(call) is None else self.misfit(call, target)

    def misfit(self, call: Call, target: Target) -> Failure | None:
        if tasks.support(target.item) != "forbidden" and self._has_tasks(call, target.server):
            return None
        return Failure(METHOD_NOT_FOUND, f"Tool {target.public} does not support task-augmented execution")

    def _has_tasks(self, call: Call, server: str) -> bool:
        snapshot = self._lists.current(server, call.client)
        return snapshot is not None and tasks.offered(snapshot.about["capabilities"]) is not None


class TaskRouter:
    def __init__(
        self, servers: Mapping[str, McpServer], lists: CatalogCache, book: TaskRegistry, may_list: MayList,
        may_see: MaySee, cursors: Cursors, inspected: InspectState, shown_task: ShownTask = shown_whole,
    ) -> None:  # fmt: skip
        self.book = book
        self.offers = TaskOffers(servers, lists, may_see)
        self._lists = lists
        self._may_list = may_list
        self._cursors = cursors
        self._inspected = inspected
        self._shown_task = shown_task

    # ------------------------------------------------------------ a call of a tool

    async def begin(self, call: Call, target: Target, server: Handler) -> Outcome:
        """A legacy client wants its call to be a task (`params.task`)."""
        bare = {key: value for key, value in call.params.items() if key != "task"}
        if await self.offers.offered(call) is None:
            return await server(replace(call, params=bare))  # nothing was declared: the wish is ignored
        if (unfit := self.offers.misfit(call, target)) is not None:
            return unfit
        if await self.book.is_full(tasks.owner(call.client)):
            return _too_many(call)
        outcome = await server(replace(call, params={**bare, "task": tasks.asked_ttl(call.params["task"])}))
        if isinstance(outcome, TaskStarted):
            return await self.keep(call, target, outcome)
        return tasks.or_error(outcome)

    async def refuses(self, call: Call) -> Outcome | None:
        """The answer to a call that could become a task, where this client has too many that run."""
        is_full = tasks.takes(call.client) and await self.book.is_full(tasks.owner(call.client))
        return _too_many(call) if is_full else None

    async def may_hold(self, call: Call) -> bool:
        """Whether the client takes a task for this call, also one that Sluice makes itself."""
        takes = tasks.takes(call.client) or "task" in call.params
        is_full = takes and await self.book.is_full(tasks.owner(call.client))
        return takes and not is_full and await self.offers.offered(call) is not None

    async def keep(self, call: Call, target: Target, started: TaskStarted, holder: Handler | None = None) -> Outcome:
        """The task under an id of ours. Whoever else makes tasks gives itself as the `holder`, and is asked instead of
        the server: `tasks/get`, `tasks/result`, `tasks/update` and `tasks/cancel`, with its own id."""
        record = await self.book.add(call, target, started.task, holder)
        if record is None:
            text = "The server gave this call the id of another task: what was executed is not known."
            return refuse(call.method, "outcome_unknown", text)
        return TaskStarted({**started.task, **record.shown()})

    async def hand_over(self, owner: str, id: str, other: str) -> None:
        """What `other` is goes on under the id of the first, which its client knows."""
        record, begun = await self.book.find(owner, id), await self.book.find(owner, other)
        if record is not None and begun is not None:
            await self.book.become(record, begun)

    async def forget(self, owner: str, id: str) -> None:
        if (record := await self.book.find(owner, id)) is not None:
            await self.book.forget(record)

    # ------------------------------------------------------------ about one task

    async def resolve(self, call: Call) -> Target | Failure | None:
        """What a request about a task is about: the tool that it runs. Who has not declared the extension is told so
        before it is known whether there is such a task (SEP-2663, Protocol Errors)."""
        offer = await self.offers.offered(call)
        if offer is None or (call.client.era == "legacy" and call.method == "tasks/cancel" and "cancel" not in offer):
            return _NO_SUCH_METHOD
        if call.client.era == "modern" and not tasks.takes(call.client):
            return tasks.undeclared()
        record = await self._record(call)
        return None if record is None else self._target(call, record)

    async def objection(self, call: Call) -> Failure | None:
        """Who listens to tasks has declared the extension (SEP-2663, Task Status Notifications)."""
        filter = call.params.get("notifications")
        if not isinstance(filter, dict) or "taskIds" not in filter or tasks.takes(call.client):
            return None
        return None if await self.offers.offered(call) is None else tasks.undeclared()

    async def _record(self, call: Call) -> TaskRecord | None:
        id = call.params.get("taskId")
        record = await self.book.find(tasks.owner(call.client), id) if isinstance(id, str) else None
        return record if record is not None and record.is_for(call.client) else None

    def _target(self, call: Call, record: TaskRecord) -> Target:
        """With the definition as it was when the call was made, where that is still known."""
        if record.target.item is None:
            entry = self._lists.find(record.target.server, call.client, "tool", record.target.public)
            if entry is not None and entry.target.own == record.target.own:
                record.target = entry.target
        return record.target

    async def about(self, call: Call) -> Outcome:
        record = await self._record(call)
        if record is None:
            return not_found(call.method, call.params)
        if record.is_lost:
            return _lost(call, record)
        params = {**call.params, "taskId": record.own}
        if call.method == "tasks/update":
            asked = await self._asked(call, record, answers := params.get("inputResponses") or {})
            if not isinstance(asked, dict):
                return asked
            if (unfit := input_requests_server.unfit(asked, answers)) is not None:
                return unfit
            params["inputResponses"] = {key: value for key, value in answers.items() if key in asked}
        elif call.method != "tasks/result":  # there Sluice itself asked, in rounds
            params.pop("inputResponses", None)
        if (handler := self.book.handler(record)) is None:
            record.is_lost = True
            return _lost(call, record)
        outcome = await handler(replace(call, params=params))
        if isinstance(outcome, Failure):
            return await self._failed(call, record, outcome)
        if not isinstance(outcome, Result):
            return outcome
        if call.method == "tasks/result":
            return Result(tasks.related(outcome.value, record.id), reason=outcome.reason)
        if "taskId" not in outcome.value:  # SEP-2663: nothing is said of the task
            return Result(tasks.related(outcome.value, None))
        return self._answered(record, tasks.related(outcome.value, None))

    async def _asked(self, call: Call, record: TaskRecord, answers: Json) -> dict[str, str] | Outcome:
        """The methods of the open questions, by their keys. The server is asked where an answer is to none known
        here: another process may have been told of it, or its key is too long to be kept."""
        if answers.keys() <= record.asked.keys():
            return record.asked
        if (handler := self.book.handler(record)) is None:
            return _lost(call, record)
        looked = await handler(replace(call, method="tasks/get", params={"taskId": record.own}))
        if isinstance(looked, Failure):
            return await self._failed(call, record, looked)
        requests = looked.value.get("inputRequests") if isinstance(looked, Result) else None
        record.ask(requests)
        if not isinstance(requests, dict) or len(requests) > input_requests_server.MAX_REQUESTS:
            return {}
        return input_requests_server.methods(requests)

    def _answered(self, record: TaskRecord, task: Json) -> Outcome:
        if not self._note(record, task):
            return Failure(INTERNAL_ERROR, f"The server took back that the task is {record.status}")
        record.ask(task.get("inputRequests"))
        return Result({**task, "taskId": record.id})

    def _note(self, record: TaskRecord, task: Json) -> bool:
        """Records the state that a server sent of its task; False where that state is impossible: what has ended stays
        as it ended (2025-11-25 basic/utilities/tasks#task-status-lifecycle)."""
        if record.status in tasks.TERMINAL and task["status"] != record.status:
            return False
        record.task, record.looked = tasks.state(task), monotonic()
        return True

    async def _failed(self, call: Call, record: TaskRecord, failure: Failure) -> Outcome:
        if failure.reason == "outcome_unknown" and call.method != "tools/call":
            record.is_lost = True
            return _lost(call, record)
        if failure.code == INVALID_PARAMS and call.method == "tasks/get":  # the server has forgotten it
            await self.book.forget(record)
            return not_found(call.method, call.params)
        return failure

    # ------------------------------------------------------------ who follows one

    async def followed(self, call: Call, ids: Sequence[str]) -> list[str]:
        """The tasks of which that client is told on a stream of its own. One that began in a legacy session has another
        form, and is told of there."""
        found = await self.book.find_all(tasks.owner(call.client), ids)
        return [record.id for record in found if record.session is None and self._is_listed(call, record)]

    async def news(self, call: Call, id: str) -> anyio.Event | None:
        """Is set when its server says that it has changed; None where there is no such task any more."""
        record = await self.book.find(tasks.owner(call.client), id)
        return None if record is None else record.news

    # ------------------------------------------------------------ about all of them

    async def listed(self, call: Call) -> Outcome:
        """2025-11-25 basic/utilities/tasks#task-listing: whatever `tasks/get` would find. What still runs is looked
        at in the rhythm that its server suggests; until then, and where that fails, the last that was known is told."""
        if "list" not in (await self.offers.offered(call) or {}):
            return _NO_SUCH_METHOD
        start = self._start(call)
        if start is None:
            return Failure(INVALID_PARAMS, "Invalid cursor")
        own = (record for record in self.book.of(tasks.owner(call.client), start) if record.is_for(call.client))
        seen = (record for record in own if self._is_listed(call, record))
        found = [record for record, _ in zip(seen, range(PAGE + 1), strict=False)]
        more = len(found) > PAGE
        found = found[:PAGE]
        limit = anyio.CapacityLimiter(MAX_LOOKS)
        async with anyio.create_task_group() as group:
            for record in found:
                if record.is_due(now := monotonic()):
                    record.looked = now
                    group.start_soon(self._look, call, record, limit)
        next_: Json = {"nextCursor": self._cursors.close(call, Position(_PLACE, None, found[-1].order))} if more else {}
        shown = [self._shown_task(call.client, record.target, self._shown(record)) for record in found]
        return Result({"tasks": shown, **next_})

    def _shown(self, record: TaskRecord) -> Json:
        return self._inspected(record.target.server, _lost_task(record) if record.is_lost else record.shown())

    def _start(self, call: Call) -> int | None:
        if call.params.get("cursor") is None:
            return 0
        position = self._cursors.open(call)
        return position.offset if position is not None and position.server == _PLACE else None

    def _is_listed(self, call: Call, record: TaskRecord) -> bool:
        return self._may_list(call, record.target.server, self._target(call, record))

    async def _look(self, call: Call, record: TaskRecord, limit: anyio.CapacityLimiter) -> None:
        async with limit:
            with anyio.move_on_after(self._lists.settings.list_timeout):
                await self.about(replace(call, method="tasks/get", params={"taskId": record.id}))

    # ------------------------------------------------------------ what servers say by themselves

    def heard(self, server: str, notification: Notification) -> tuple[str, Notification] | None:
        """A server's word on a task: the session of the client that has it, and what that client is told. Who follows
        it looks; nobody else is told anything; None where there is nobody."""
        task = notification.params
        record = self.book.find_own(server, str(task.get("taskId")))
        if record is None or not self._note(record, task):
            return None
        record.stir()
        if record.session is None:
            return None
        return record.session, TaskNotification(notification.method, self._shown(record), record.target)

    def public_id(self, server: str, own: str, session: str) -> str | None:
        """Returns our id of a task that asks its client outside of any call."""
        record = self.book.find_own(server, own)
        return record.id if record is not None and record.session == session else None


def _too_many(call: Call) -> Outcome:
    return refuse(call.method, "rate_limited", f"NOT EXECUTED: more than {MAX_TASKS} tasks of this client are running.")


_GONE: Final = "The connection to the server ended on which this task ran. It may or may not have been executed."


def _lost_task(record: TaskRecord) -> Json:
    task = {key: value for key, value in record.shown().items() if key != "pollIntervalMs"}
    return {**task, "status": "failed", "statusMessage": _GONE}


def _lost(call: Call, record: TaskRecord) -> Outcome:
    """A task whose connection ended before its outcome arrived."""
    if call.method == "tasks/result":
        answer = refuse("tools/call", "outcome_unknown", _GONE)
        assert isinstance(answer, Result)
        return Result(tasks.related(answer.value, record.id), reason=answer.reason)
    if call.method == "tasks/get":
        return Result(_lost_task(record))
    return Failure(INVALID_PARAMS, "The task has ended")
