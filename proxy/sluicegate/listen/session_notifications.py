"""What a legacy session is told without asking: one internal `subscriptions/listen` call that follows its wishes.

Modern clients say in one request what they want to hear; legacy ones get list changes unasked and add resources
one by one (<= 2025-11-25 server/resources#subscriptions): each is a call that changes the stream. A stream that cannot
be changed is replaced by another one, and one that was refused begins anew after a while. The other way, what such a
client tells without being asked becomes a call whose outcome nobody waits for. Knows calls, no transport.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import anyio

from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, Json, Notification
from sluicegate.protocol.methods import LISTS, OF_A_SESSION
from sluicegate.protocol.model import Call, Client, Emit, Failure, Handler, Outcome, Result, Trail, not_found
from sluicegate.telemetry import DEFAULT_BACKOFF

MAX_SUBSCRIPTIONS: Final = 1_000
MAX_CHARS: Final = 256 * 1024
"""Of their URIs together: with other roles all of them are judged again."""
UPDATED: Final = "notifications/resources/updated"
PROGRESS: Final = "notifications/progress"
"""Of a task: that of any other call comes on the call's own stream."""
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
REFUSED: Final = "dev.sluice/refused"
STREAM: Final = "dev.sluice/stream"
CHANGE: Final = "dev.sluice/change"


class TaskStarter(Protocol):
    """Where the call runs: a task group, or what stands in for one."""

    def start_soon(self, func: Callable[..., Coroutine[Any, Any, Any]], /, *args: Any) -> object: ...


class _Listen:
    """One listen call: `settled` once it was acknowledged or has ended, `honoured` what it promised, `refused` why it
    did not promise the rest, `stream` what it is changed by, `outcome` how it ended, `over` that it has nothing any
    more."""

    __slots__ = ("honoured", "is_acknowledged", "outcome", "over", "refused", "scope", "settled", "stream")

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.settled, self.over = anyio.Event(), anyio.Event()
        self.honoured: frozenset[str] = frozenset()
        self.refused: Json = {}
        self.is_acknowledged = False
        self.stream = ""
        self.outcome: Outcome = Failure(INTERNAL_ERROR, "Nothing can be listened to now")


class SessionNotifications:
    def __init__(
        self, handler: Handler, client: Client, trail: Callable[[], Trail], tell: Emit, group: TaskStarter
    ) -> None:
        """`tell` gets every notification but the acknowledgement; the call runs in `group`."""
        self._handler, self._client, self._trail, self._tell, self._group = handler, client, trail, tell, group
        self._current: _Listen | None = None
        self._is_over = False
        self._uris: frozenset[str] = frozenset()
        self._lock = anyio.Lock()
        self._telling: dict[str, bool] = {}  # method of what servers are being told -> and once more

    def start(self) -> None:
        """Begins to listen for list changes, once."""
        if self._current is None and not self._is_over:
            self._current = self._listen(self._uris)

    def act_as(self, client: Client) -> None:
        """The client as its newest request has it. With other roles than before it listens anew: what it may hear is
        judged when that begins."""
        before, self._client = self._client, client
        if client.roles != before.roles and self._current is not None and not self._is_over:
            self._current.scope.cancel()
            self._current = self._listen(self._uris, self._current)

    def stop(self) -> None:
        """Nothing is told any more, and no listening begins anew."""
        self._is_over, self._tell = True, _to_nobody  # it was the session's, which has us: a circle
        if self._current is not None:
            self._current.scope.cancel()

    def tell(self, method: str) -> None:
        """Tells servers that something of the client's changed. Said again meanwhile, it is told once more."""
        if method in self._telling:
            self._telling[method] = True
        else:
            self._telling[method] = False
            self._group.start_soon(self._tell_servers, method)

    async def _tell_servers(self, method: str) -> None:
        try:
            while True:
                await self._handler(Call(self._client, method, {}, trail=self._trail()))
                if not self._telling[method]:
                    return
                self._telling[method] = False
        finally:
            del self._telling[method]

    def settled(self, uri: object, wanted: bool) -> Outcome | None:
        """The answer to a subscription that changes nothing, or asks for too much; None where servers are asked."""
        if not isinstance(uri, str):
            return Failure(INVALID_PARAMS, "uri must be a string")
        if (uri in self._uris) is wanted:
            return Result({})
        if wanted and len(self._uris) >= MAX_SUBSCRIPTIONS:
            return Failure(INVALID_PARAMS, f"no more than {MAX_SUBSCRIPTIONS} subscriptions")
        if wanted and sum(map(len, self._uris)) + len(uri) > MAX_CHARS:
            return Failure(INVALID_PARAMS, f"no more than {MAX_CHARS} characters of URIs in all subscriptions")
        return None

    async def subscribe(self, uri: str, wanted: bool) -> Outcome:
        """One resource more or less."""
        async with self._lock:  # two at once would each lose the other's
            if (outcome := self.settled(uri, wanted)) is not None:
                return outcome
            union = self._uris | {uri} if wanted else self._uris - {uri}
            while (current := self._current) is not None:
                await current.settled.wait()
                if not current.stream:
                    break
                params: Json = {
                    "notifications": {"resourceSubscriptions": [uri]},
                    CHANGE: {"stream": current.stream, "wanted": wanted},
                }
                outcome = await self._handler(Call(self._client, "subscriptions/listen", params, trail=self._trail()))
                # With other roles by now there is another stream, which knows nothing of that.
                if current is self._current and current.stream:
                    if isinstance(outcome, Result):
                        self._uris = union
                    return outcome
            return await self._replace(union, uri if wanted else None)

    async def _replace(self, union: frozenset[str], added: str | None) -> Outcome:
        """The call with the new union takes the place of the old one when it is acknowledged, so that nothing is missed
        in between."""
        while True:
            roles, new = self._client.roles, self._listen(union)
            is_kept = False
            try:
                await new.settled.wait()
                is_granted = new.is_acknowledged and (added is None or added in new.honoured)
                # What it may hear was judged when it began: with other roles by now, it is judged anew.
                is_as_now = roles == self._client.roles
                is_kept = is_granted and is_as_now and not self._is_over
            finally:
                if not is_kept:
                    new.scope.cancel()
            if is_as_now or self._is_over:
                break
        if not new.is_acknowledged:
            return new.outcome
        if not is_granted:
            return _refusal(new.refused.get(added or ""), added)
        if is_kept:
            if self._current is not None:
                self._current.scope.cancel()
            self._current, self._uris = new, union
        return Result({})

    def _listen(self, uris: frozenset[str], before: _Listen | None = None) -> _Listen:
        """`before` was cancelled: what its client may subscribe to is bounded, and the same would count twice."""
        listen = _Listen()
        self._group.start_soon(self._run, listen, uris, before)
        return listen

    async def _run(self, listen: _Listen, uris: frozenset[str], before: _Listen | None) -> None:
        async def emit(note: Notification) -> None:
            if note.method == ACKNOWLEDGED:
                meta = note.params.get("_meta", {})
                listen.honoured = frozenset(note.params.get("notifications", {}).get("resourceSubscriptions", ()))
                listen.refused, listen.stream = meta.get(REFUSED, {}), meta.get(STREAM, "")
                is_again, listen.is_acknowledged = listen.settled.is_set(), True
                listen.settled.set()
                if is_again:
                    await self._tell_all(note.params.get("notifications", {}))
            elif note.method in OF_A_SESSION and listen is not self._current:
                pass  # two calls overlap for a moment; what is no state would be said twice
            elif not listen.scope.cancel_called:
                await self._tell(note)

        failures = 0
        try:
            if before is not None:  # also where this one was cancelled: the next one waits for it
                await before.over.wait()
            with listen.scope:
                while await self._ends_in_a_refusal(listen, uris, emit) and listen is self._current:
                    failures = 1 if listen.is_acknowledged else failures + 1
                    listen.is_acknowledged = False
                    await anyio.sleep(DEFAULT_BACKOFF.pause(failures))
                    uris = self._uris
        finally:
            listen.stream = ""
            listen.settled.set()
            listen.over.set()

    async def _tell_all(self, promised: Json) -> None:
        """Nobody heard what changed while the stream was refused."""
        for entry in LISTS.values():
            if promised.get(entry.filter):
                await self._tell(Notification(entry.changed, {}))
        for uri in promised.get("resourceSubscriptions", ()):
            await self._tell(Notification(UPDATED, {"uri": uri}))

    async def _ends_in_a_refusal(self, listen: _Listen, uris: frozenset[str], emit: Emit) -> bool:
        """Runs the call to its end."""
        wanted: Json = {entry.filter: True for entry in LISTS.values()}
        if uris:
            wanted["resourceSubscriptions"] = sorted(uris)
        call = Call(self._client, "subscriptions/listen", {"notifications": wanted}, emit=emit, trail=self._trail())
        listen.outcome = await self._handler(call)
        listen.stream = ""
        listen.settled.set()
        return not isinstance(listen.outcome, Result)


async def _to_nobody(notification: Notification) -> None:
    """The session is over."""


def _refusal(why: Json | None, uri: str | None) -> Failure:
    """In the words of a server that could be reached and said no; else what is said of what does not exist."""
    return Failure(why["code"], why["message"]) if why else not_found("resources/read", {"uri": uri})
