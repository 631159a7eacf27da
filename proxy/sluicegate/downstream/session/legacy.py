"""A connection of the initialize era: handshake, one log level for all, cancels as messages, questions both ways.

A server's question is for the call on whose stream it came; else for the calls of the one session that the connection
belongs to; else for the only open call; outside of any call for that session itself. A question that is nobody's is
refused at once: a server left waiting would never finish its call.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from math import inf
from typing import Any, Final
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup

from sluicegate.downstream.failures import Lost, asked_too_often, code_of, too_late
from sluicegate.downstream.resource_subscriptions import OneByOne
from sluicegate.downstream.session import url_elicitation
from sluicegate.downstream.session.connection import UPDATED, Heard, ServerConnection, Transport
from sluicegate.downstream.session.pending_request import MAX_WAITING_BYTES, PendingRequest, with_token
from sluicegate.downstream.session.suspended import MAX_QUESTIONS, InteractiveExchange, SuspendedCalls
from sluicegate.downstream.settings import ServerSettings
from sluicegate.downstream.tasks import polling, task_ids
from sluicegate.downstream.tasks.polling import LegacyTask
from sluicegate.protocol import input_forms, input_requests_server, tasks
from sluicegate.protocol import legacy_server as dialect
from sluicegate.protocol.canonical_json import is_longer
from sluicegate.protocol.input_forms import ROOTS
from sluicegate.protocol.jsonrpc import Json, Notification, Request, RequestId, Response, dump, encode, weight_of
from sluicegate.protocol.methods import ABOUT_A_TASK, ASKING, ROOTS_CHANGED
from sluicegate.protocol.model import (
    Ask,
    Call,
    Era,
    Failure,
    InputRequired,
    Outcome,
    Result,
    Target,
    TaskNotification,
    TaskStarted,
    holder,
    session_scope,
)
from sluicegate.protocol.revisions import LOG_LEVELS
from sluicegate.runtime.deadline import AnswerDeadline

log = logging.getLogger(__name__)

_LEVEL_TIME: Final = 5.0
STREAM_TIME: Final = 2.0
"""Seconds that a new connection waits until what its server says by itself can be heard."""
MAX_ASIDE: Final = 16  # questions outside of any call that may be open at once
REVISION: Final = re.compile(r"\d{4}-\d\d-\d\d")
LAST_CHANCE: Final = 0.5  # seconds that a server has to end a call by itself once its questions were refused
_PAGE_VISITED: Final = "notifications/elicitation/complete"
MAX_ROOTS: Final = 16 * 1024
"""Characters of a client's roots that are kept."""
MAX_BEGUN: Final = 1_000
"""Tasks of one connection whose progress is still told; of more, the oldest is silent."""


def send_to_session(heard: Heard, session: str | None, notification: Notification) -> None:
    """What belongs to no call is for the session that the connection belongs to, or for nobody."""
    if session is not None:
        heard(session_scope(session), notification)


class Begun:
    """Whose the tasks are that have begun on a connection, by the progress tokens of ours that they know."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._tasks: dict[int, tuple[str | None, object, Target | None, float]] = {}

    def add(self, number: int, call: Call) -> None:
        """`number` is the token that the server was given."""
        if "progressToken" not in call.meta or call.client.session is None:
            return
        if len(self._tasks) >= MAX_BEGUN:
            del self._tasks[next(iter(self._tasks))]
        self._tasks[number] = call.client.session, call.meta["progressToken"], call.target, -inf

    def progressed(self, notification: Notification) -> PendingRequest | None:
        """Gives the open request that it belongs to: none. Values increase (2025-11-25 basic/utilities/progress)."""
        number, value = notification.params.get("progressToken"), notification.params.get("progress")
        if type(number) is not int or number not in self._tasks:
            return None
        session, token, target, reached = self._tasks[number]
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= reached:
            return None
        self._tasks[number] = session, token, target, value
        params = with_token(notification, token).params
        send_to_session(self._heard, session, TaskNotification(notification.method, params, target))
        return None


class InitializeRefused(Lost):
    """The server answered `initialize`, and does not speak what Sluice speaks."""


class ServerQuestions:
    """What a server asks, and who is asked: the call on whose stream it came; else the calls of the one session that
    the connection belongs to; else the only open call; outside of any call that session itself. `calls` are those that
    may be asked, by the ids of their requests. `missed_roots`: it asked for roots while nobody could be asked."""

    def __init__(self, connection: ServerConnection, suspended: SuspendedCalls) -> None:
        self._connection, self._transport, self._suspended = connection, connection.transport, suspended
        self.calls: dict[int, InteractiveExchange] = {}
        self._askers = WeakValueDictionary[tuple[type, RequestId], InteractiveExchange]()  # by the id of a question
        self._aside: dict[tuple[type, RequestId], anyio.CancelScope] = {}
        self._aside_weight = 0
        self.roots: Json | None = None
        self.missed_roots = False

    def take(self, request: Request, exchange: PendingRequest | None) -> None:
        if exchange is None and self._open():
            self._suspended.is_aside = True
            self._ask_call(self._call_of_task(request) or self.call_of_all(), request)
        elif isinstance(exchange, InteractiveExchange):
            self._ask_call(exchange, request)
        else:
            self._ask_session(request)

    def take_over(self, unanswered: Iterable[Request]) -> None:
        """What a call was asked that is over may have been another's of its session, or nobody's: many servers ask for
        roots right after the handshake."""
        for request in unanswered:
            if self._connection.session is not None and self._open():
                self._ask_call(self.call_of_all(), request)
            else:
                self._ask_session(request)

    def _ask_call(self, asking: InteractiveExchange | None, request: Request) -> None:
        if asking is not None and asking.asked(request):
            self._askers[type(request.id), request.id] = asking
            if asking.is_parked:
                self._suspended.weigh(asking)
            return
        why = "it cannot be told which call asks" if asking is None else "too many or too large questions"
        self._refuse(request, why)

    def _call_of_task(self, request: Request) -> InteractiveExchange | None:
        """The call that waits for the task which asks (2025-11-25 basic/utilities/tasks#associating-task-related-
        messages)."""
        id = tasks.relation(request.params)
        return next((asking for asking in self._open() if id is not None and asking.task_id == id), None)

    def _open(self) -> list[InteractiveExchange]:
        """One that was answered is among the calls until its task has noticed, and is asked nothing."""
        return [call for call in self.calls.values() if not call.is_over]

    def call_of_all(self) -> InteractiveExchange | None:
        """Of several calls of one session any will do, for its client is asked in any case; best one that has not
        asked yet, whose time would run on while another's client thinks."""
        calls = self._open()
        if len(calls) > 1 and self._connection.session is None:
            return None
        return min(calls, key=lambda call: (call.is_parked, len(call.asks)), default=None)

    def _ask_session(self, request: Request) -> None:
        key, weight = (type(request.id), request.id), weight_of(request.params)
        is_too_much = len(self._aside) >= MAX_ASIDE or self._aside_weight + weight > MAX_WAITING_BYTES
        if self._connection.session is None or self._suspended.ask is None or is_too_much or key in self._aside:
            self._answer_alone(request)
            return
        scope = self._aside[key] = anyio.CancelScope()
        self._aside_weight += weight
        asking = partial(self._ask_aside, request, self._connection.session, self._suspended.ask, key, scope, weight)
        self._connection.start_chore(asking)

    async def _ask_aside(
        self, request: Request, session: str, ask: Ask, key: tuple[type, RequestId], scope: anyio.CancelScope,
        weight: int,
    ) -> None:  # fmt: skip
        try:
            with scope:
                answer = await ask(session, request.method, task_ids.marked(request.params, self._connection.mark))
                if answer is None:
                    return self._answer_alone(request)
                if request.method == ROOTS:
                    self._keep_roots(answer.result)
                self._transport.send_soon(
                    encode(task_ids.belonging(Response(request.id, answer.result, answer.error), request))
                )
        finally:
            del self._aside[key]
            self._aside_weight -= weight

    def _keep_roots(self, roots: Json | None) -> None:
        """Keeps the client's roots, for when it cannot be asked. Long ones are not kept: each session has its own."""
        self.roots = None if is_longer(roots, MAX_ROOTS) else roots

    def _answer_alone(self, request: Request) -> None:
        """There is nobody to ask: the roots may be known from earlier, the rest is refused."""
        if request.method == ROOTS and self.roots is not None:
            self._transport.send_soon(encode(Response(request.id, self.roots)))
            return
        self.missed_roots = self.missed_roots or request.method == ROOTS
        self._refuse(request, "there is no client that could be asked")

    def refusals(self, asking: InteractiveExchange, why: str) -> list[bytes]:
        """Of all that it was asked. Where that came on a channel for several calls it may be another's: then none."""
        if not self._transport.is_private and not self.calls.keys() <= {asking.id}:
            return []
        refused, asking.asks = asking.asks, {}
        return [_refusal(request, why) for request in refused.values()]

    def _refuse(self, request: Request, why: str) -> None:
        self._transport.send_soon(_refusal(request, why))

    def withdraw(self, id: RequestId | None) -> None:
        if not isinstance(id, str | int):
            return
        asking = self._askers.pop((type(id), id), None)
        if asking is None or not asking.withdraw(id):
            if (scope := self._aside.get((type(id), id))) is not None:
                scope.cancel()

    def answers(self, asking: InteractiveExchange, params: Json) -> dict[str, Response] | Failure:
        """To what was asked; other keys are ignored (2026-07-28 basic/patterns/mrtr)."""
        given = input_requests_server.read_answers(params)
        if isinstance(given, Failure):
            return given
        made: dict[str, Response] = {}
        for key, request in asking.asks.items():
            if key in given and key in asking.shown:
                answer = input_requests_server.answer(request, key, given[key], self._connection.revision)
                if isinstance(answer, Failure):
                    return answer
                made[key] = answer
                if request.method == ROOTS:
                    self._keep_roots(answer.result)
        return made


class LogLevel:
    """A connection's one log level: the lowest that anyone wanted, and each call filters for itself."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self.rank = len(LOG_LEVELS)  # none was asked for yet

    async def lower(self, rank: int, call: Call | None = None) -> None:
        """Raises `Lost`, which is `Withheld` where the right is lost meanwhile to begin that call."""
        if rank < 0 or rank >= self.rank:
            return
        if "logging" not in self._connection.capabilities:
            self.rank = 0  # no level is ever to be asked for
            return
        self.rank = rank  # before the answer, so that a hundred calls do not ask a hundred times
        settings = self._connection.settings
        try:
            await self._connection.ask("logging/setLevel", {"level": LOG_LEVELS[rank]}, _LEVEL_TIME)
        except TimeoutError:
            log.warning("server does not answer logging/setLevel", extra={"server": settings.key})
        except Lost as lost:
            lost.sent = False  # that was, and the call was not
            raise
        if call is not None and not settings.may_still(call):
            raise too_late()


class LegacyConnection(ServerConnection):
    era: Era = "legacy"
    _tasks: Json | None = None

    def __init__(
        self, settings: ServerSettings, transport: Transport, heard: Heard, client_info: Json, declared: Json,
        suspended: SuspendedCalls, session: str | None = None, after: ServerConnection | None = None,
    ) -> None:  # fmt: skip
        super().__init__(settings, transport, heard, client_info, after)
        self.session = session
        self._declared = declared
        self._suspended = suspended
        self._may_be_asked = input_requests_server.may_ask(declared)
        self._questions = ServerQuestions(self, suspended)
        self._log_level = LogLevel(self)
        self._begun = Begun(heard)
        self._watch = OneByOne(partial(self.ask, timeout=settings.list_timeout)).watch

    async def open(self, group: TaskGroup) -> None:
        await self._connect(group)
        params = dialect.initialize(self.client_info, self._declared)
        answer = await self.ask("initialize", params, None)  # who dials sets its time
        if answer.result is None:
            raise InitializeRefused(f"the server refused initialize: {code_of(answer.error)}", sent=False)
        revision = dialect.negotiated(answer.result)
        if revision is None:
            version = answer.result.get("protocolVersion")  # it may be a sentence for whoever reads this
            wanted = version if isinstance(version, str) and REVISION.fullmatch(version) else "no revision of MCP"
            raise InitializeRefused(f"the server wants to speak {wanted}", sent=False)
        self.revision = revision.name
        self.discovered = dialect.discovered(answer.result)
        self.incoming.may_batch = revision.batches
        self._tasks = tasks.offered(self.capabilities) if revision.tasks else None
        self.transport.agreed(revision)
        with anyio.move_on_after(STREAM_TIME):  # a server may ask as soon as it hears that the handshake is over
            await self.transport.live()
        await self.transport.notify(encode(Notification("notifications/initialized", {})))

    async def check(self) -> None:
        await self.ask("ping", {}, self.settings.list_timeout)

    async def live(self) -> None:
        await self.transport.live()

    def assign(self, scope: str | None, session: str | None) -> bool:
        if session is not None and self.session is None and self._questions.missed_roots:
            if not self._tells_of_roots:
                return False  # the server would never learn its roots
            self.transport.send_soon(encode(Notification(ROOTS_CHANGED, {})))
        return super().assign(scope, session)

    @property
    def is_exclusive(self) -> bool:  # type: ignore[override]  # an attribute there, which nobody sets here
        """What a server asks on a channel that all calls share says not whose it is. Where the calls are of one
        session, it does not matter."""
        is_ambiguous = not self.transport.is_private or self._suspended.is_aside
        return self._may_be_asked and self.session is None and is_ambiguous

    @property
    def is_taken(self) -> bool:  # type: ignore[override]  # as above
        return bool(self._questions.calls)

    @property
    def _tells_of_roots(self) -> bool:
        return bool((self._declared.get("roots") or {}).get("listChanged"))

    def tell_roots_changed(self) -> None:
        self._questions.roots = None
        if self._tells_of_roots:
            self.transport.send_soon(encode(Notification(ROOTS_CHANGED, {})))

    def handle(self, call: Call) -> Coroutine[Any, Any, Outcome]:
        return self._about_task(call) if call.method in ABOUT_A_TASK else self._handle(call)

    async def _about_task(self, call: Call) -> Outcome:
        return task_ids.outwards(call, await self._handle(task_ids.inwards(call)), self.mark)

    async def _handle(self, call: Call) -> Outcome:
        # Step 10 of docs/explanation/performance.md
        as_task = self._tasks is not None and polling.needs_task(call)
        if as_task or (self._may_be_asked and call.method in ASKING):
            asking = InteractiveExchange(
                next(self._ids), call, self._loop.time() + self.settings.max_time, self._forget
            )
            # Before anything is awaited: from here on the connection is taken.
            self._questions.calls[asking.id] = asking
            return await self._turn(call, asking, partial(self._begin, call, asking, as_task))
        exchange = PendingRequest(next(self._ids), call)
        if 0 <= exchange.level < self._log_level.rank:
            await self._log_level.lower(exchange.level, call)
        params = dialect.params(call, exchange.id, self.settings.is_sluice)
        response = await self.perform(exchange, call.method, params, self.patience(call.method), [])
        return self._read(call, response, exchange)

    def _read(self, call: Call, response: Response, exchange: PendingRequest) -> Outcome:
        outcome = dialect.outcome(call, response, self._tasks is not None, self.settings.own_pages)
        if exchange.unmet is not None:
            outcome = unmet(call, outcome, exchange.unmet)
        if not isinstance(outcome, TaskStarted):
            return outcome
        self._begun.add(exchange.id, call)
        self.tasks_until = max(self.tasks_until, self._loop.time() + outcome.task["ttlMs"] / 1000)
        return task_ids.outwards(call, outcome, self.mark)

    async def _turn(self, call: Call, asking: InteractiveExchange, act: Callable[[], Awaitable[None]]) -> Outcome:
        """One round: does its part, then waits for the server's answer or its questions."""
        timeout = self.settings.max_time if call.method == "tasks/result" else self.settings.timeout
        patience = AnswerDeadline(timeout, max(0.0, asking.ends - self._loop.time()))
        try:
            with patience:
                asking.patience = patience
                await act()
                response = await asking.turn()
        except (TimeoutError, asyncio.CancelledError) as end:
            self._give_up(asking, "timed out" if isinstance(end, TimeoutError) else "cancelled")
            raise
        except BaseException:
            self._leave(asking)
            raise
        if response is None and asking.asks_too_often:
            self._give_up(asking, f"more than {MAX_QUESTIONS} questions in one call")
            return asked_too_often(call, self.settings.key, MAX_QUESTIONS)
        if response is None:
            requests = {key: input_requests_server.entry(request, call.client) for key, request in asking.asks.items()}
            asking.park()
            resume, give_up = partial(self._resume, asking), partial(self._give_up, asking)
            whose = holder(call.client.principal, call.client.credential)
            state = self._suspended.park(asking, whose, resume, give_up)
            left = max(0.0, asking.ends - self._loop.time())
            return InputRequired(requests, state, is_held=True, takes_errors=True, remaining_seconds=left)
        self._leave(asking)
        wanted = None if asking.has_begun else url_elicitation.wanted(call, response)
        return wanted or self._read(call, response, asking)

    async def _begin(self, call: Call, asking: InteractiveExchange, as_task: bool) -> None:
        """`as_task`: the server does this as a task alone, and its client waits."""
        await self._log_level.lower(asking.level, call)
        if self.is_over:
            raise await self.ending()
        self.pending[asking.id] = asking
        asking.once = call.method == "tools/call"
        if as_task:
            task = LegacyTask(self, call, asking, next(self._ids), can_cancel="cancel" in (self._tasks or {}))
            asking.stop_task = partial(self.start_chore, task.cancel)
            self.start_chore(task.live)
            return
        params = dialect.params(call, asking.id, self.settings.is_sluice)
        body = dump({"jsonrpc": "2.0", "id": asking.id, "method": call.method, "params": params})
        await self.transport.send(asking, body, [])

    def _abandon(self, exchange: PendingRequest, why: str) -> None:
        self.transport.send_soon(_cancelled(exchange, why))

    async def _resume(self, asking: InteractiveExchange, call: Call) -> Outcome:
        """The client's next request for that call: its answers, and then whatever the server says to them."""
        answers = self._questions.answers(asking, call.params)
        if isinstance(answers, Failure):
            self._give_up(asking, "the client's answer is malformed")
            return answers
        asking.attach(call)
        return await self._turn(call, asking, partial(self._answer, asking, answers))

    async def _answer(self, asking: InteractiveExchange, answers: dict[str, Response]) -> None:
        asking.answered(set(answers))
        try:
            await self._log_level.lower(asking.level)
            for answer in answers.values():
                if not self.is_over:  # also where the call has ended: the question may have been another's
                    await self.transport.notify(encode(answer))
        except Lost as lost:
            self._cancel(asking, "an answer could not be delivered")
            raise Lost(lost.text, sent=True, gone=lost.gone) from None

    def _give_up(self, asking: InteractiveExchange, why: str) -> None:
        """The server's questions get a refusal each; a call that does not end of that is cancelled."""
        refusals = self._questions.refusals(asking, why)
        if not refusals or self.is_over:
            return self._cancel(asking, why)
        asking.park()
        self.transport.send_soon(*refusals)
        # A cancel that meets the answer on its way is more than some servers stand (mcp 1.30 ends the whole session).
        self._loop.call_later(LAST_CHANCE, self._cancel, asking, why)

    def _cancel(self, asking: InteractiveExchange, why: str) -> None:
        if asking.id in self.pending and not asking.is_over and not self.is_over:
            if asking.stop_task is not None:  # 2025-11-25 basic/utilities/cancellation: tasks are cancelled as such
                asking.stop_task()
            else:
                self.transport.send_soon(_cancelled(asking, why))
        self._leave(asking)

    def _leave(self, asking: InteractiveExchange) -> None:
        unanswered = asking.close()
        self._forget(asking)
        if not self.is_over:
            self._questions.take_over(unanswered)

    def _forget(self, asking: InteractiveExchange) -> None:
        """The server has ended it, or never will. If it is parked, its client still comes with answers."""
        if self._questions.calls.pop(asking.id, None) is None:
            return
        self.pending.pop(asking.id, None)
        if self._is_retired and not self.in_flight:
            self.drained.set()
        self._suspended.free()
        if asking.is_parked:
            self._suspended.weigh(asking)

    def _asked(self, request: Request, exchange: PendingRequest | None) -> None:
        if request.method == "ping":
            self.transport.send_soon(encode(Response(request.id, {})))
        elif (error := input_requests_server.objection(request, self._declared, self.settings.own_pages)) is not None:
            self.transport.send_soon(encode(Response(request.id, error=error)))
            if (owner := exchange or self._only_call()) is not None:
                owner.unmet = request
        else:
            self._questions.take(request, exchange)

    def _progressed(self, notification: Notification) -> PendingRequest | None:
        return super()._progressed(notification) or self._begun.progressed(notification)

    def _noticed(self, notification: Notification, exchange: PendingRequest | None) -> PendingRequest | None:
        if notification.method == "notifications/cancelled":
            self._questions.withdraw(notification.params.get("requestId"))
        elif notification.method == _PAGE_VISITED:
            id = notification.params.get("elicitationId")
            if not isinstance(id, str) or not input_forms.is_short(id):
                return None
            shown = id if self.settings.is_mirrored else input_forms.page_of(self.settings.key, id)
            notification = Notification(_PAGE_VISITED, {"elicitationId": shown})  # it may wait long
            owner = exchange if exchange is not None else self._questions.call_of_all()
            if owner is None or (isinstance(owner, InteractiveExchange) and owner.is_parked):
                send_to_session(self._heard, self.session, notification)
            else:
                owner.offer(notification)
            return owner
        elif notification.method == "notifications/message":
            send_to_session(self._heard, self.session, notification)
        elif notification.method == tasks.STATUS:
            if self._tasks is not None and (task := tasks.read(notification.params)) is not None:
                self._heard(None, Notification(tasks.STATUS, {**task, "taskId": f"{self.mark}:{task['taskId']}"}))
        elif notification.method == UPDATED:
            self._updated(notification.params)
        else:
            self.publish(notification)
        return None


def _refusal(request: Request, why: str) -> bytes:
    return encode(input_requests_server.refusal(request.method, request.id, why))


def _cancelled(exchange: PendingRequest, why: str) -> bytes:
    return encode(Notification("notifications/cancelled", {"requestId": exchange.id, "reason": why}))


def unmet(call: Call, outcome: Outcome, request: Request) -> Outcome:
    """A call that failed where its client could not be asked something says what that client lacks, as a server of
    its own era would (2026-07-28 basic/index#error-codes), in the server's words. A tool that can do without is left
    as it is."""
    if call.client.era == "legacy" or (words := _failed_with(outcome)) is None:
        return outcome
    needed = input_requests_server.missing(request, call.client)
    return outcome if needed is None else input_requests_server.lacking(words, needed)


def _failed_with(outcome: Outcome) -> str | None:
    """Returns the text of the failure; None where it is none."""
    if isinstance(outcome, Failure):
        return outcome.message
    if not isinstance(outcome, Result) or outcome.value.get("isError") is not True:
        return None
    content = outcome.value.get("content")
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    return next((text for text in texts if isinstance(text, str)), "Missing required client capability")
