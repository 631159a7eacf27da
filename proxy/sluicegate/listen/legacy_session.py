"""One legacy client, whatever carries it: what `initialize` settled, and what each of its messages starts.

A request becomes a call or an outcome, the questions of a call become requests to its client, and what the client
notifies takes effect. Knows calls and messages; no stream, no transport, no server. <= 2025-11-25 basic/lifecycle.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sluicegate.listen.client_channel import Asks, ClientChannel, Send, run_input_rounds
from sluicegate.listen.session_notifications import SessionNotifications, TaskStarter
from sluicegate.protocol import legacy_client
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json, Malformed, Message, Notification, Request, Response
from sluicegate.protocol.methods import ROOTS_CHANGED, SUBSCRIPTIONS
from sluicegate.protocol.model import Call, Client, Emit, Failure, Handler, InputRequired, Outcome, Result, Trail
from sluicegate.protocol.modern_client import Parsed
from sluicegate.protocol.revisions import LOG_LEVELS, REVISIONS

Begun = Call | Outcome | Callable[[], Awaitable[Outcome]]
"""What a request asks for: a call, an outcome that is known at once, or one to wait for."""


@dataclass(frozen=True, slots=True)
class SessionDeps:
    """What a client's messages lead to. `on_abandoned` gets the id of the first round of a call that waited for
    answers in vain."""

    handler: Handler
    server_info: Json
    trail: Callable[[], Trail]
    on_abandoned: Callable[[str], None]


async def initialize(deps: SessionDeps, handshake: legacy_client.Handshake, client: Client) -> Outcome:
    """The outcome of `initialize`; anything but a `Result` opens no session."""
    discovered = await deps.handler(Call(client, "server/discover", {}, trail=deps.trail()))
    return legacy_client.initialize_result(handshake, discovered, deps.server_info)


class LegacySession:
    __slots__ = ("_deps", "asks", "client", "level", "listening", "revision")

    def __init__(
        self, deps: SessionDeps, client: Client, tell: Emit, group: TaskStarter, first_question: int = 1
    ) -> None:
        """`tell` gets what belongs to no request; what the session listens to runs in `group`."""
        self._deps = deps
        self.client = client
        self.revision = REVISIONS[client.revision]
        self.level: str | None = None
        self.asks = Asks(first_question)
        self.listening = SessionNotifications(deps.handler, client, deps.trail, tell, group)

    def shown(self, note: Notification) -> Notification | None:
        """Returns the notification as this client may see it, or None, by its revision and log level."""
        return legacy_client.notification(note, self.revision.name, self.level)

    def to_call(self, request: Request, client: Client, emit: Emit) -> Begun:
        """`client` has the roles of this request; `emit` gets the notifications of its call."""
        if request.method == "logging/setLevel":
            if (level := request.params.get("level")) not in LOG_LEVELS:
                return Failure(INVALID_PARAMS, f"level must be one of {', '.join(LOG_LEVELS)}")
            self.level = str(level)
            return Result({})
        if request.method in SUBSCRIPTIONS:
            uri, wanted = request.params.get("uri"), request.method == "resources/subscribe"
            outcome = self.listening.settled(uri, wanted)
            return partial(self.listening.subscribe, str(uri), wanted) if outcome is None else outcome
        parsed = legacy_client.parse(request, self.revision.name, self.level)
        if not isinstance(parsed, Parsed):
            return parsed
        return Call(client, parsed.method, parsed.params, parsed.meta, None, None, emit, self._deps.trail())

    async def run_input_rounds(self, call: Call, outcome: InputRequired, send: Send) -> Outcome:
        """The outcome once the client has answered what the server asks, which goes through `send`."""
        channel = ClientChannel(self.asks, send, self._deps.trail, self._deps.on_abandoned, lambda: self.client)
        return await run_input_rounds(self._deps.handler, call, outcome, channel)

    def respond(self, request: Request, outcome: Outcome) -> Response:
        # A subscription that is refused is a resource that is not found: <= 2025-11-25 server/resources#error-handling
        method = "resources/read" if request.method in SUBSCRIPTIONS else request.method
        return legacy_client.respond(request.id, method, outcome, self.revision.name)

    def take(self, message: Notification | Response) -> None:
        """A response to a question, or a notification of the client's. Cancellations are its transport's."""
        if isinstance(message, Response):
            self.asks.answer(message)
        elif message.method == ROOTS_CHANGED and "roots" in self.client.capabilities:
            self.listening.tell(message.method)

    def read_batch(self, values: list[Any], most: int) -> list[Message]:
        """The messages of an array. Raises `Malformed`, and then nobody waits for an answer that was among them."""
        try:
            return legacy_client.read_batch(values, most)
        except Malformed:
            for value in values:  # none of them is taken for an answer
                self.asks.spoil(value)
            raise

    def end(self) -> None:
        """Ends the session: it sends no more notifications, questions or answers."""
        self.asks.close()
        self.listening.stop()
