"""All sessions of a listener, bounded in number, age and what they keep for resuming.

A session belongs to the principal that opened it; to anybody else it does not exist. Does no I/O of its own.
"""

import asyncio
import logging
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from heapq import nlargest
from typing import Any, Final

from sluicegate.listen.auth import Principal
from sluicegate.listen.http_session import HttpSession
from sluicegate.listen.legacy_session import SessionDeps
from sluicegate.listen.resumable_response import ResumableResponse
from sluicegate.listen.settings import SessionLimits
from sluicegate.protocol import legacy_client
from sluicegate.protocol.jsonrpc import Json, Response
from sluicegate.protocol.model import SLUICE, Asker

_LOOKED_AT: Final = 64  # sessions that `sweep` looks at in one piece
_TRIED: Final = 10  # principals, of whom one may have no session that is idle

log = logging.getLogger(__name__)


class Sessions:
    def __init__(
        self, limits: SessionLimits, deps: SessionDeps, on_end: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._limits, self._deps, self._on_end, self._clock = limits, deps, on_end, clock
        self._tasks = BackgroundTasks()  # what sessions listen to
        self._all: OrderedDict[str, HttpSession] = OrderedDict()  # least recently used first
        self._owned: dict[str, OrderedDict[str, HttpSession]] = {}  # of each principal, in the same order
        self._retained: OrderedDict[ResumableResponse, tuple[float, int, HttpSession]] = OrderedDict()  # oldest first
        self._kept: dict[str, dict[ResumableResponse, None]] = {}  # the same of each principal
        self._kept_of = Counter[str]()  # bytes
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._all)

    def open(self, principal: Principal, handshake: legacy_client.Handshake) -> HttpSession | None:
        """A new session; None where there is no room. A principal at its bound loses its own oldest idle one. Where all
        are too many, whoever has most of them does, so that nobody is kept out by others."""
        owned = len(self._owned.get(principal.name, ()))
        if owned >= self._limits.per_principal and not self._drop_idle(principal.name):
            return None
        if len(self._all) >= self._limits.total:
            most = nlargest(_TRIED, self._owned, key=lambda name: len(self._owned[name]))
            if not any(map(self._drop_idle, [*most, principal.name])):
                return None
        id = self._limits.mark + secrets.token_urlsafe(24)
        session = HttpSession(self._deps, id, principal, handshake, self._clock(), self._tasks)
        self._all[session.id] = session
        self._owned.setdefault(principal.name, OrderedDict())[id] = session
        return session

    def _drop_idle(self, principal: str) -> bool:
        idle = next((session for session in self._owned.get(principal, {}).values() if session.is_idle), None)
        if idle is not None:
            self.end(idle)
        return idle is not None

    def get(self, id: str, principal: Principal) -> HttpSession | None:
        session = self._all.get(id)
        if session is None or session.principal.name != principal.name:
            return None
        if session.principal.toolset != principal.toolset:  # at another toolset it is unknown
            return None
        if session.principal.credential != principal.credential:  # its key was replaced, and so revoked
            self.end(session)
            return None
        session.touched = self._clock()
        self._all.move_to_end(id)
        self._owned[principal.name].move_to_end(id)
        return session

    async def ask(self, id: str, method: str, params: Json, asker: Asker = SLUICE) -> Response | None:
        """Asks the client of that session something that belongs to no call; None where it cannot be asked."""
        session = self._all.get(id)
        return None if session is None else await session.ask(method, params, asker)

    def is_idle(self, id: str) -> bool:
        session = self._all.get(id)
        return session is None or session.is_idle

    def end(self, session: HttpSession) -> None:
        if self._all.pop(session.id, None) is None:
            return
        name = session.principal.name
        del self._owned[name][session.id]
        if not self._owned[name]:
            del self._owned[name]
        session.end()
        for answer in list(session.answers.values()):
            self._forget(answer)
        self._on_end(session.id)

    def keep(self, session: HttpSession, answer: ResumableResponse) -> None:
        """A finished stream can be resumed for a while, as long as all of them together fit. Else the oldest of whoever
        has most bytes go: one client takes those of no other."""
        if answer.log is None or session.ended:
            return
        self._retained[answer] = (self._clock(), answer.log.bytes, session)
        self._kept.setdefault(session.principal.name, {})[answer] = None
        self._kept_of[session.principal.name] += answer.log.bytes
        self._kept_bytes += answer.log.bytes
        while self._kept_bytes > self._limits.kept_bytes:
            name = max(self._kept_of, key=self._kept_of.__getitem__)
            fair = self._kept_bytes // len(self._kept_of)
            while self._kept_bytes > self._limits.kept_bytes and self._kept_of[name] >= fair > 0:
                self._forget(next(iter(self._kept[name])))

    def _forget(self, answer: ResumableResponse) -> None:
        _, size, session = self._retained.pop(answer, (0.0, 0, None))
        if session is None:
            return
        if answer.log is not None:
            session.answers.pop(answer.log.stream, None)
        name = session.principal.name
        del self._kept[name][answer]
        self._kept_of[name] -= size
        self._kept_bytes -= size
        if not self._kept[name]:
            del self._kept[name], self._kept_of[name]

    def sweep(self, is_known: Callable[[Principal], bool]) -> Iterator[None]:
        """Ends what is idle too long or belongs to nobody any more; forgets what is too old to be resumed. In pieces:
        one client may have ten thousand sessions, which end at once."""
        now = self._clock()
        for number, session in enumerate(list(self._all.values()), 1):
            if not session.is_idle:
                session.touched = now
            is_over = now - session.touched > self._limits.idle or not is_known(session.principal)
            if is_over:
                self.end(session)
            if is_over or number % _LOOKED_AT == 0:
                yield
        while self._retained:
            answer, (since, _, _) = next(iter(self._retained.items()))
            if now - since <= self._limits.kept_for:
                return
            self._forget(answer)

    def close(self) -> None:
        """Nobody is told of changes any more; what runs may end, and can still be resumed."""
        for session in self._all.values():
            session.listening.stop()


class BackgroundTasks:
    """Stands in for a task group: tasks outlive the request that started them, and one that fails is logged, alone."""

    def __init__(self) -> None:
        self._all: set[asyncio.Task[Any]] = set()

    def start_soon(self, func: Callable[..., Coroutine[Any, Any, Any]], /, *args: Any) -> None:
        task = asyncio.get_running_loop().create_task(func(*args))
        self._all.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._all.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task failed", exc_info=task.exception())
