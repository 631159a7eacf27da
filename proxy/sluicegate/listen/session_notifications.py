"""What a legacy session is told without asking: one internal `subscriptions/listen` call that follows its wishes.

Modern clients say in one request what they want to hear; legacy ones get list changes unasked and add resources
one by one (<= 2025-11-25 server/resources#subscriptions). The other way, what such a client tells without being
asked becomes a call whose outcome nobody waits for. Knows calls, no transport.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import anyio

from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json, Notification
from sluicegate.protocol.methods import LISTS, OF_A_SESSION
from sluicegate.protocol.model import Call, Client, Emit, Failure, Handler, Outcome, Result, Trail, not_found

MAX_SUBSCRIPTIONS: Final = 1_000
PROGRESS: Final = "notifications/progress"
"""Of a task: that of any other call comes on the call's own stream."""
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
REFUSED: Final = "dev.sluice/refused"


class TaskStarter(Protocol):
    """Where the call runs: a task group, or what stands in for one."""

    def start_soon(self, func: Callable[..., Coroutine[Any, Any, Any]], /, *args: Any) -> object: ...


class _Listen:
    """One listen call: `settled` once it was acknowledged or has ended, `honoured` what it promised, `refused` why it
    did not promise the rest."""

    __slots__ = ("honoured", "refused", "scope", "settled")

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.settled = anyio.Event()
        self.honoured: frozenset[str] = frozenset()
        self.refused: Json = {}


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
            self._current = self._listen(self._uris)

    def stop(self) -> None:
        """Nothing is told any more, and no listening begins anew."""
        self._is_over = True
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

    async def subscribe(self, uri: object, wanted: bool) -> Outcome:
        """One resource more or less. The call with the new union takes the place of the old one when it is
        acknowledged, so that nothing is missed in between."""
        if not isinstance(uri, str):
            return Failure(INVALID_PARAMS, "uri must be a string")
        async with self._lock:  # two at once would each lose the other's
            union = self._uris | {uri} if wanted else self._uris - {uri}
            if union == self._uris:
                return Result({})
            if len(union) > MAX_SUBSCRIPTIONS:
                return Failure(INVALID_PARAMS, f"no more than {MAX_SUBSCRIPTIONS} subscriptions")
            return await self._change(union, uri if wanted else None)

    async def _change(self, union: frozenset[str], added: str | None) -> Outcome:
        while True:
            roles, new = self._client.roles, self._listen(union)
            is_kept = False
            try:
                await new.settled.wait()
                is_granted = added is None or added in new.honoured
                # What it may hear was judged when it began: with other roles by now, it is judged anew.
                is_as_now = roles == self._client.roles
                is_kept = is_granted and is_as_now and not self._is_over
            finally:
                if not is_kept:
                    new.scope.cancel()
            if is_as_now or self._is_over:
                break
        if not is_granted:
            return _refusal(new.refused.get(added or ""), added)
        if is_kept:
            if self._current is not None:
                self._current.scope.cancel()
            self._current, self._uris = new, union
        return Result({})

    def _listen(self, uris: frozenset[str]) -> _Listen:
        listen = _Listen()
        self._group.start_soon(self._run, listen, uris)
        return listen

    async def _run(self, listen: _Listen, uris: frozenset[str]) -> None:
        async def emit(note: Notification) -> None:
            if note.method == ACKNOWLEDGED:
                listen.honoured = frozenset(note.params.get("notifications", {}).get("resourceSubscriptions", ()))
                listen.refused = note.params.get("_meta", {}).get(REFUSED, {})
                listen.settled.set()
            elif note.method in OF_A_SESSION and listen is not self._current:
                pass  # two calls overlap for a moment; what is no state would be said twice
            elif not listen.scope.cancel_called:
                await self._tell(note)

        wanted: Json = {entry.filter: True for entry in LISTS.values()}
        if uris:
            wanted["resourceSubscriptions"] = sorted(uris)
        params: Json = {"notifications": wanted}
        try:
            with listen.scope:
                await self._handler(Call(self._client, "subscriptions/listen", params, emit=emit, trail=self._trail()))
        finally:
            listen.settled.set()


def _refusal(why: Json | None, uri: str | None) -> Failure:
    """In the words of a server that could be reached and said no; else what is said of what does not exist."""
    return Failure(why["code"], why["message"]) if why else not_found("resources/read", {"uri": uri})
