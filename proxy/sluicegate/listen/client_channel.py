"""Questions to a legacy client: the rounds of a call whose server asks, and what is asked outside of any call.

The middle has no requests towards clients: a call ends with `InputRequired` and is made again with the answers
(2026-07-28 basic/patterns/mrtr). For a legacy client each ask becomes a request with an id of ours on the stream of
its own call, and its answers the next round. Answers are found by session and id, so that none can cross. Knows
calls and messages; no transport and no server.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final

import anyio

from sluicegate.protocol import input_requests_client, tasks
from sluicegate.protocol.input_forms import ELICIT, refusal
from sluicegate.protocol.input_requests_client import Question, Settled, Unanswered
from sluicegate.protocol.jsonrpc import Json, Message, Notification, Request, Response, inside, is_id
from sluicegate.protocol.legacy_client import ELICITATION_COMPLETE
from sluicegate.protocol.model import ANSWER_WITHIN, Asker, Call, Client, Handler, InputRequired, Outcome, Trail, refuse

log = logging.getLogger(__name__)

MAX_ASKS: Final = 20  # open ones of one session
_OWN_ASKS: Final = 4  # of these, for Sluice's own
MAX_ROUNDS: Final = 10
ASIDE_WITHIN: Final = 60.0  # what is asked outside of a call
_PAUSE_FIRST, _PAUSE_MOST = 0.05, 0.25
_FAREWELL: Final = 1.0

Send = Callable[[Message], Awaitable[bool]]
"""Whether the message can still reach the client: now, or when it resumes its stream."""

Take = Callable[[Response | None], None]
"""Takes the response to one question; None says that the session is over."""


def new_elicitation() -> str:
    return secrets.token_urlsafe(16)


class Asks:
    """What one session was asked and has not answered yet. An id is used once, so that an answer which comes late,
    twice or unasked is nobody's."""

    __slots__ = ("_closed", "_ids", "_open")

    def __init__(self, first: int = 1) -> None:
        self._ids = count(first)
        self._open: dict[object, tuple[Take, str]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def put(self, take: Take, server: str = "") -> int | None:
        """Returns the id of a new question; None where too many are open. Without a server it is Sluice's own."""
        if self._closed or len(self._open) >= MAX_ASKS or (server and not self._has_room(server)):
            return None
        id = next(self._ids)
        self._open[id] = take, server
        return id

    def _has_room(self, server: str) -> bool:
        """A server has at most as many open as are left for others: half of all, half of the rest, and so on."""
        askers = [asker for _, asker in self._open.values() if asker]
        return askers.count(server) < MAX_ASKS - _OWN_ASKS - len(askers)

    def withdraw(self, id: int) -> bool:
        """Removes the question; returns whether it was still open."""
        return self._open.pop(id, None) is not None

    def answer(self, response: Response) -> None:
        found = self._open.pop(response.id, None)
        if found is None:
            log.debug("an answer to a question that nobody asked")
        else:
            found[0](response)

    def spoil(self, value: object) -> bool:
        """Whether this, which is no message, was meant as a response: then its question is answered, badly."""
        if not isinstance(value, dict) or not ("result" in value or "error" in value):
            return False
        if "method" in value or not is_id(value.get("id")):
            return False
        self.answer(Response(value["id"], {}))
        return True

    def close(self) -> None:
        """Ends all waits for answers: the session is over."""
        self._closed = True
        while self._open:
            self._open.popitem()[1][0](None)


@dataclass(frozen=True, slots=True)
class ClientChannel:
    """How a call reaches its client: its session's questions, its own stream, and a trail for each round.
    `abandon` is told of a call that ended while its server waited for answers: the id of its first round. `client` is
    the session's, with the roles that it has now: each round is judged anew."""

    asks: Asks
    send: Send
    trail: Callable[[], Trail]
    abandon: Callable[[str], None]
    client: Callable[[], Client]


async def run_input_rounds(handler: Handler, call: Call, outcome: Outcome, channel: ClientChannel) -> Outcome:
    """Asks and calls again until the outcome asks for nothing more. What its server holds open ends by its own time
    and the number of its questions, what a stateless server asks, also for a task, by the number of rounds."""
    pause, rounds = 0.0, 0
    visited: list[str] = []
    while isinstance(outcome, InputRequired):
        rounds += not outcome.is_held
        if rounds > MAX_ROUNDS:
            return input_requests_client.unanswered(
                call.method, f"The server asked for input more than {MAX_ROUNDS} times."
            )
        if _may_spin(outcome):
            pause = min(max(2 * pause, _PAUSE_FIRST), _PAUSE_MOST)
        try:
            answers = await _ask_all(call, outcome, channel, visited)
            await anyio.sleep(pause)
        except asyncio.CancelledError:
            channel.abandon(call.trail.id)
            raise
        if isinstance(answers, Unanswered) and outcome.is_ours and not answers.is_put:
            answers = dict.fromkeys(outcome.requests, refusal({"message": answers.why}))  # nobody will see it
        if isinstance(answers, Unanswered):
            channel.abandon(call.trail.id)
            if answers.is_late:
                return refuse(call.method, "timeout", answers.why)
            return input_requests_client.unanswered(call.method, answers.why)
        outcome = await handler(_next_round(call, outcome, answers, channel))
    for id in visited:  # 2025-11-25 client/elicitation#completion-notifications; a newer server has no such words
        await channel.send(Notification(ELICITATION_COMPLETE, {"elicitationId": id}))
    return outcome


def _may_spin(outcome: InputRequired) -> bool:
    """Nothing here takes a person's time: a state alone, or pages whose visit was consented to, not made."""
    return all(inside(ask, "params", "mode") == "url" for ask in outcome.requests.values())


def _next_round(call: Call, outcome: InputRequired, answers: Json, channel: ClientChannel) -> Call:
    params = dict(call.params)
    if outcome.requests:
        params["inputResponses"] = answers
    if outcome.state is not None:  # the empty string is a state
        params["requestState"] = outcome.state
    return Call(channel.client(), call.method, params, call.meta, None, call.mirrored, call.emit, channel.trail())


@dataclass(slots=True)
class _Round:
    """The answers that have come, and how it ends: with all of them, or with what makes them useless."""

    answers: Json
    missing: dict[str, str]  # key -> method
    takes_errors: bool
    end: "asyncio.Future[Unanswered | None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def take(self, key: str, response: Response | None) -> None:
        method = self.missing.pop(key)
        gone = Unanswered("The session of this call is over.")
        answer = input_requests_client.read(method, response, self.takes_errors) if response else gone
        if isinstance(answer, Unanswered):
            self.stop(answer)
            return
        self.answers[key] = answer
        if not self.missing and not self.end.done():
            self.end.set_result(None)

    def stop(self, why: Unanswered) -> None:
        if not self.end.done():
            self.end.set_result(why)

    def give_up(self) -> Unanswered | None:
        """Time is up: a form that nobody fills in counts as closed, all else has no such answer."""
        if any(method != ELICIT for method in self.missing.values()):
            return Unanswered("The client did not answer the server in time.")
        self.answers.update(dict.fromkeys(self.missing, input_requests_client.CANCELLED.answer))
        return None


async def _ask_all(call: Call, asked: InputRequired, channel: ClientChannel, visited: list[str]) -> Json | Unanswered:
    """All asks of a round at once, and all their answers. What is not answered in the end is withdrawn. `visited` is
    added to: ids of ours that pages were opened by."""
    requests = asked.requests
    task = call.params["taskId"] if call.method == "tasks/result" else None
    plan = {key: input_requests_client.render(ask, call.client, new_elicitation, task) for key, ask in requests.items()}
    if (refused := next((entry for entry in plan.values() if isinstance(entry, Unanswered)), None)) is not None:
        return refused
    questions = {key: entry for key, entry in plan.items() if isinstance(entry, Question)}
    settled = {key: entry.answer for key, entry in plan.items() if isinstance(entry, Settled)}
    if not questions:
        return settled
    round = _Round(settled, {key: question.method for key, question in questions.items()}, asked.takes_errors)
    ids: list[int] = []
    try:
        problem = await _send_all(questions, round, ids, channel, "" if asked.is_ours else asked.server)
        if problem is None:
            problem = await _wait(round, asked.remaining_seconds)
    finally:
        await _withdraw(ids, channel)
    if problem is not None:
        return problem
    visited += input_requests_client.visited(questions, requests, round.answers)
    return {key: round.answers[key] for key in requests}


async def _send_all(
    questions: dict[str, Question], round: _Round, ids: list[int], channel: ClientChannel, server: str
) -> Unanswered | None:
    for key, question in questions.items():
        id = channel.asks.put(partial(round.take, key), server)
        if id is None:
            why = "The client has too many unanswered questions for the server to ask another."
            return Unanswered(why, is_put=False)
        ids.append(id)
        if not await channel.send(Request(id, question.method, question.params)):
            why = "The server's question cannot reach the client: its stream is closed."
            return Unanswered(why, is_put=False)
    return None


async def _wait(round: _Round, remaining_seconds: float | None) -> Unanswered | None:
    """What nobody answers is closed in the end, unless the call's own time is over before that."""
    is_short = remaining_seconds is not None and remaining_seconds < ANSWER_WITHIN
    with anyio.move_on_after(remaining_seconds if is_short else ANSWER_WITHIN):
        return await round.end
    if is_short:
        return Unanswered("The client did not answer in the time that the call had.", is_late=True)
    return round.give_up()


async def _withdraw(ids: list[int], channel: ClientChannel) -> None:
    """Says of every question that is still open that its answer is of no use any more (basic/utilities/
    cancellation). Also in a task that is being cancelled, but never for longer than a moment."""
    still_open = [id for id in ids if channel.asks.withdraw(id)]
    if still_open:
        with anyio.move_on_after(_FAREWELL, shield=True):
            for id in still_open:
                await channel.send(withdrawal(id))


def withdrawal(id: int) -> Notification:
    return Notification("notifications/cancelled", {"requestId": id, "reason": "the answer is not needed any more"})


async def ask_aside(
    asks: Asks, client: Callable[[], Client], method: str, params: Json, send: Send, asker: Asker
) -> Response | None:
    """One question that belongs to no call, on the session's own stream: its response as the client gave it. None
    when this client cannot be asked that, or not any more by then, or says nothing in time."""
    task = tasks.relation(params)  # ours, or none: it was put there on the way here
    ask: Json = {"method": method, "params": params}
    allowed = asker.allowed(client(), ask)
    if allowed is None:
        return None
    question = input_requests_client.render(allowed, client(), new_elicitation, task)
    if isinstance(question, Settled):
        return Response(None, question.answer)
    if isinstance(question, Unanswered):
        return None
    answer: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
    id = asks.put(lambda response: None if answer.done() else answer.set_result(response), asker.server)
    if id is None:
        return None
    try:
        with anyio.move_on_after(ASIDE_WITHIN):
            if await send(Request(id, question.method, question.params)):
                response = await answer
                return None if asker.allowed(client(), ask) is None else response
        return None
    finally:
        if asks.withdraw(id):
            with anyio.move_on_after(_FAREWELL, shield=True):
                await send(withdrawal(id))
