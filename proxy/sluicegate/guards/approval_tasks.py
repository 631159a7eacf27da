"""Calls that wait for a person as tasks: for clients that can be answered later, Sluice makes the call once it may.

Its client gets a task of Sluice's own at once (2025-11-25 basic/utilities/tasks, SEP-2663). Behind it the same call is
made anew through the guards from the decision on, and waits there as long as its approval does: what becomes of it is
what becomes of the task. Where a server makes a task of it in its turn, that one goes on under the same id. Knows
guards as one Handler, and the place where tasks are kept as functions.
"""

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio

from sluicegate.approval import messages
from sluicegate.approval.presentation import stamp
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.approval.record import Approval
from sluicegate.approval.validity import GONE
from sluicegate.protocol import tasks
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, Json, Notification
from sluicegate.protocol.model import (
    ANSWER_WITHIN,
    Call,
    Client,
    Failure,
    Handler,
    InputRequired,
    Outcome,
    Publish,
    Result,
    Target,
    TaskStarted,
    Trail,
    refuse,
)
from sluicegate.runtime.loop_budget import LoopBudget

AFTER: Final = 2 * 3600.0  # seconds beyond the time to decide: to run, and to be asked for
RETENTION: Final = 3600.0  # seconds that an answer waits for its client
MAX_ENDED: Final = 1_000
"""Tasks of one owner that are kept when they have ended; the oldest go."""
MAX_KEPT: Final = 64 * 1024 * 1024
"""Bytes of memory of their answers. The newest stays, whatever its size."""
_AT_ONCE: Final = 1_000
"""Values of an answer that are weighed in a row."""
POLL: Final = 5000  # milliseconds: a person is waited for
CANCELLED: Final = "NOT EXECUTED: its task was cancelled before it began."
NEVER: Final = f"NOT EXECUTED: {GONE}."
OVER: Final = f"NOT EXECUTED any further: {GONE}."
CANCELLED_LATE: Final = "Its task was cancelled after the server had got the call: what was executed is not known."

Job = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class ApprovalTaskDeps:
    """What is asked of others. `again` are the guards from the decision on, and what is behind them; the approval is
    waited for there. `start` has something run that nobody waits for, and run again where it fails; `hand_over` makes
    a server's task go on under the id of one of ours. `abandon` gives up what waits at a server for the rest of a call,
    by the id of its first round."""

    again: Handler
    start: Callable[[Job], object]
    unfit: Callable[[Call, Target], Awaitable[Failure | None]]
    may_hold: Callable[[Call], Awaitable[bool]]
    keep: Callable[[Call, Target, TaskStarted, Handler], Awaitable[Outcome]]
    hand_over: Callable[[str, str, str], Awaitable[None]]
    forget: Callable[[str, str], Awaitable[None]]
    about: Handler
    announce: Publish
    current: Callable[[Client], Client | None]
    abandon: Callable[[str, str], None]


class ApprovalTasks:
    """The calls that wait in this process. One that is made again while it waits is the same task."""

    def __init__(self, queue: ApprovalQueue, deps: ApprovalTaskDeps) -> None:
        self._queue, self._deps = queue, deps
        self.unfit = deps.unfit
        """Why no task can be made of a call although its client wants one: then nobody need be asked, either."""
        self._waiting: dict[str, _Held] = {}
        self._ended: dict[str, deque[_Held]] = {}

    async def hold(self, call: Call, target: Target, approval: Approval) -> Outcome | None:
        """Returns the task of a call; None where its client has to wait."""
        if call.trail.round is not None or not await self._deps.may_hold(call):
            return None
        held = self._waiting.get(approval.id)
        if held is None:
            held = self._waiting[approval.id] = _Held(self._queue, self._deps, call, approval)
        elif not held.is_known_to(call.client):
            return None
        try:
            started = await self._deps.keep(call, target, TaskStarted(held.task), held.answer)
            if isinstance(started, TaskStarted) and not held.id:
                held.id = started.task["taskId"]
                self._waiting[approval.id] = held
                self._deps.start(partial(self._run, approval.id, held))
        finally:
            if not held.id:
                self._waiting.pop(approval.id, None)
        return started

    async def _run(self, id: str, held: "_Held") -> None:
        try:
            await held.run()
        finally:
            self._waiting.pop(id, None)
        await held.weigh()
        ended = self._ended.setdefault(held.owner, deque())
        ended.append(held)
        kept = sum(one.weight for one in ended)
        while len(ended) > MAX_ENDED or (len(ended) > 1 and kept > MAX_KEPT):
            oldest = ended.popleft()
            kept -= oldest.weight
            oldest.dismiss()
        try:
            await held.stay()
        finally:
            if held in ended:
                ended.remove(held)
            if not ended:
                self._ended.pop(held.owner, None)


class _Held:
    """One call, and the task that its client knows it by."""

    def __init__(self, queue: ApprovalQueue, deps: ApprovalTaskDeps, call: Call, approval: Approval) -> None:
        self._queue, self._deps, self._approval = queue, deps, approval
        own_meta = {key: value for key, value in call.meta.items() if key != "progressToken"}  # its stream is over
        self._call = Call(call.client, call.method, call.params, own_meta, call.target)
        self._first = f"{call.trail.id}-task"
        now = queue.clock()
        self.id = ""
        self.task: Json = {
            "taskId": f"approval:{approval.id}", "status": "working", "createdAt": stamp(now),
            "lastUpdatedAt": stamp(now), "ttlMs": int((max(0.0, approval.expires - now) + AFTER) * 1000),
            "pollIntervalMs": POLL, "statusMessage": messages.awaited(approval),
        }  # fmt: skip
        self._outcome: Outcome | None = None
        self.weight = 0  # of its answer
        self._is_theirs = False  # it goes on as the server's
        self._trail, self._was_sent = Trail(), False  # of the round that runs, and of those before it
        self._asked: InputRequired | None = None
        self._answers: Json = {}
        self._scope = anyio.CancelScope()
        self._dismissed = anyio.Event()
        self._news = anyio.Event()

    @property
    def owner(self) -> str:
        return tasks.owner(self._call.client)

    def is_known_to(self, client: Client) -> bool:
        """Not at another toolset, nor to another session of clients without a name."""
        is_there = not tasks.is_nobody(client) or client.session == self._call.client.session
        return is_there and self.owner == tasks.owner(client)

    @property
    def _has_ended(self) -> bool:
        return self.task["status"] in tasks.TERMINAL

    @property
    def _has_begun(self) -> bool:
        """Also a call that needed nobody by then, whose approval was not used."""
        return self._was_sent or self._trail.is_sent

    @property
    def _is_over(self) -> bool:
        return self._is_theirs or self._has_ended

    async def run(self) -> None:
        """Once: whoever starts it again, after it has failed, finds that it has ended."""
        if self._is_over:
            return
        try:
            with self._scope:
                outcome = await self._rounds()
                if isinstance(outcome, TaskStarted):
                    await self._deps.hand_over(self.owner, self.id, outcome.task["taskId"])
                    self._is_theirs = True
                    self._stir()
                else:
                    self._end(outcome)
        finally:
            if not self._is_over:
                self._end(Failure(INTERNAL_ERROR, "Internal error: nobody knows whether it was executed"))
            self._deps.abandon(self._approval.binding.server, self._first)
            # The task is kept for an hour: arguments may be megabytes, and capabilities hundreds of KiB.
            client = replace(self._call.client, capabilities={}, capability_key="{}")
            self._call = replace(self._call, client=client, params={}, meta={})
            self._was_sent, self._trail = self._has_begun, Trail()

    async def weigh(self) -> None:
        """In steps: to weigh the JSON of megabytes would hold up everybody for hundreds of milliseconds."""
        outcome = self._outcome
        failed = [outcome.message, outcome.data] if isinstance(outcome, Failure) else None
        answer = outcome.value if isinstance(outcome, Result) else failed
        self.weight = await LoopBudget().in_pieces(_sizes(answer))

    def dismiss(self) -> None:
        """Ends `stay`: the task is not kept any longer."""
        self._dismissed.set()

    async def stay(self) -> None:
        """Waits until the client needs the task no more."""
        if not self._is_theirs:
            with anyio.move_on_after(RETENTION):
                await self._dismissed.wait()
            await self._deps.forget(self.owner, self.id)

    async def _rounds(self) -> Outcome:
        """Runs the call, and repeats it with the answers as long as its server asks."""
        call, number = self._call, 0
        while True:
            client = self._deps.current(call.client)
            if client is None:
                return refuse(call.method, "approval_denied", OVER if number else NEVER)
            trail = Trail(f"{self._first}-{number}" if number else self._first)
            self._was_sent, self._trail = self._has_begun, trail
            outcome = await self._deps.again(replace(call, client=client, trail=trail))
            if not isinstance(outcome, InputRequired):
                return outcome
            number += 1
            answers = await self._answered(outcome, number)
            if answers is None:
                return Failure(INTERNAL_ERROR, "The client did not answer the server in time.")
            state = {} if outcome.state is None else {"requestState": outcome.state}
            call = replace(self._call, params={**self._call.params, **state, "inputResponses": answers})

    async def _answered(self, asked: InputRequired, number: int) -> Json | None:
        """Keys of questions are used once in a task's life (SEP-2663, Task Update Requests)."""
        if not asked.requests:  # a state alone: the server wants to be called again
            await anyio.sleep(min(0.05 * number, 1.0))
            return {}
        mark, self._answers = f"{number}-", {}
        requests = {mark + key: ask for key, ask in asked.requests.items()}
        self._asked = replace(asked, requests=requests, state=None, is_held=True, approval_ref=None)
        self._become("input_required", "the server asks for input")
        with anyio.move_on_after(ANSWER_WITHIN):
            while not self._answers.keys() >= self._asked.requests.keys():
                await self._news.wait()
        given = {key.removeprefix(mark): value for key, value in self._answers.items()}
        self._asked = None
        if given.keys() != asked.requests.keys():
            return None
        self._become("working", "the server goes on")
        return given

    def _end(self, outcome: Outcome) -> None:
        if self._has_ended:
            return
        self._outcome = outcome
        if isinstance(outcome, Failure):
            self._become("failed", outcome.message)
        elif isinstance(outcome, Result):
            is_error = outcome.value.get("isError") is True
            # 2025-11-25 basic/utilities/tasks: an error of the tool is `failed`; SEP-2663: that is for errors of the
            # protocol, which have no result.
            is_failed = is_error and self._call.client.era == "legacy"
            self._become("failed" if is_failed else "completed", _text(outcome) if is_error else "")

    def _become(self, status: tasks.Status, message: str) -> None:
        rest = {key: value for key, value in self.task.items() if key != "statusMessage"}
        status_message: Json = {"statusMessage": message[: tasks.MAX_TEXT]} if message else {}
        self.task = {**rest, "status": status, "lastUpdatedAt": stamp(self._queue.clock()), **status_message}
        self._stir()
        self._deps.announce(self._approval.binding.server, None, Notification(tasks.STATUS, self.task))

    def _stir(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def answer(self, call: Call) -> Outcome:
        """Answers requests about this task, under the id that we gave it."""
        self._take(call.params.get("inputResponses"))
        if call.method == "tasks/get":
            return Result(self._detailed() if call.client.era == "modern" else self.task)
        if call.method == "tasks/cancel":
            return await self._cancel(call)
        return await self._result(call) if call.method == "tasks/result" else Result({})

    def _take(self, answers: Any) -> None:
        """What is not asked, or answered already, is left alone."""
        if self._asked is None or not isinstance(answers, dict):
            return
        self._answers = {key: answers[key] for key in self._asked.requests if key in answers} | self._answers
        self._stir()

    def _detailed(self) -> Json:
        """SEP-2663: with what the status promises."""
        if self._asked is not None:
            return {**self.task, "inputRequests": self._asked.requests}
        outcome = self._outcome
        if self.task["status"] == "completed" and isinstance(outcome, Result):
            return {**self.task, "result": {**outcome.value, "resultType": "complete"}}
        if self.task["status"] == "failed":
            code = outcome.code if isinstance(outcome, Failure) else INTERNAL_ERROR
            more = {"data": outcome.data} if isinstance(outcome, Failure) and outcome.data is not None else {}
            return {**self.task, "error": {"code": code, "message": self.task.get("statusMessage", "failed"), **more}}
        return self.task

    async def _result(self, call: Call) -> Outcome:
        """2025-11-25: waits for it, and asks on the way."""
        while self._outcome is None:
            if self._is_theirs:
                return await self._deps.about(replace(call, params={"taskId": self.id}))
            if self._asked is not None and not self._answers.keys() >= self._asked.requests.keys():
                return self._asked
            await self._news.wait()
        return self._outcome

    async def _cancel(self, call: Call) -> Outcome:
        if not self._has_ended:
            who, why = call.client.principal, "its task was cancelled"
            ended = await self._queue.end(self._approval.id, "cancelled", who, why)
            if not self._has_ended:  # while that was written, it may have
                is_late = self._has_begun or (ended is not None and ended.state == "consumed")
                late = refuse("tools/call", "outcome_unknown", CANCELLED_LATE)
                self._outcome = late if is_late else refuse("tools/call", "approval_denied", CANCELLED)
                self._become("cancelled", "cancelled after it had begun" if is_late else "cancelled before it began")
                self._scope.cancel()
        elif call.client.era == "legacy":  # 2025-11-25 basic/utilities/tasks#task-cancellation
            return Failure(INVALID_PARAMS, f"Cannot cancel task: it is {self.task['status']}")
        return Result({} if call.client.era == "modern" else self.task)


def _sizes(value: Any) -> Generator[None, None, int]:
    """The bytes of memory of a value, as the work of many steps."""
    total, seen, todo = 0, 0, [value]
    while todo:
        item = todo.pop()
        total += sys.getsizeof(item)
        if isinstance(item, dict):
            todo += item
            todo += item.values()
        elif isinstance(item, list):
            todo += item
        seen += 1
        if seen % _AT_ONCE == 0:
            yield
    return total


def _text(outcome: Result) -> str:
    content = outcome.value.get("content")
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    return next((text for text in texts if isinstance(text, str)), "")
