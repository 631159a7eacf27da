"""What a legacy server says when the request that it belongs to is answered: of a task that goes on, of no call.

Knows sessions by their ids; no wire. 2025-11-25 basic/utilities/tasks#task-progress-notifications: the token of the
request that began a task is good for as long as the task lives. What nobody's session is waiting for is dropped.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from sluicegate.downstream.pending_request import PendingRequest
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import Call, session_scope

MAX_BEGUN: Final = 1_000
"""Tasks of one connection whose progress is still told; of more, the oldest is silent."""

Heard = Callable[[str | None, Notification], None]


def say(heard: Heard, session: str | None, notification: Notification) -> None:
    """What belongs to no call is for the session that the connection belongs to, or for nobody."""
    if session is not None:
        heard(session_scope(session), notification)


class Begun:
    """Whose the tasks are that have begun on a connection, by the progress tokens of ours that they know."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._tasks: dict[int, tuple[str | None, object, float]] = {}

    def __repr__(self) -> str:
        return f"Begun({len(self._tasks)} tasks)"

    def add(self, number: int, call: Call) -> None:
        """`number` is the token that the server was given."""
        if "progressToken" not in call.meta or call.client.session is None:
            return
        if len(self._tasks) >= MAX_BEGUN:
            del self._tasks[next(iter(self._tasks))]
        self._tasks[number] = call.client.session, call.meta["progressToken"], -inf

    def progressed(self, notification: Notification) -> PendingRequest | None:
        """Gives the open request that it belongs to: none. Values increase (2025-11-25 basic/utilities/progress)."""
        number, value = notification.params.get("progressToken"), notification.params.get("progress")
        if type(number) is not int or number not in self._tasks:
            return None
        session, token, told = self._tasks[number]
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= told:
            return None
        self._tasks[number] = session, token, value
        params: Json = {**notification.params, "progressToken": token}
        say(self._heard, session, Notification(notification.method, params))
        return None
