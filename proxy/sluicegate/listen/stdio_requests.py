"""The requests in flight of one pipe: each runs, fails or is cancelled by itself.

Knows ids and responses, no era and no session. A job is found by a cancellation from the moment it is added, which
is before it runs.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import anyio

from sluicegate.protocol.jsonrpc import RequestId, Response, is_id


@dataclass(slots=True, eq=False)
class StdioRequest:
    """One request. After `over`, and once it is cancelled, nothing more is said about it."""

    id: RequestId
    method: str
    work: Callable[["StdioRequest"], Awaitable[Response]]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    over: bool = False

    @property
    def is_silent(self) -> bool:
        return self.over or self.scope.cancel_called

    async def run(self) -> Response | None:
        """The response; None for a cancelled request, of which nothing more is heard (2025-11-25
        basic/utilities/cancellation, 2026-07-28 basic/patterns/cancellation). Raises what `work` raises."""
        response: Response | None = None
        try:
            with self.scope:
                response = await self.work(self)
        finally:
            self.over = True
        return None if self.scope.cancel_called else response


class StdioRequests:
    """What is in flight. A job stays until its answer was taken, so that a client that does not read its answers
    runs into the bound on open requests and not into our memory."""

    def __init__(self) -> None:
        self._open: set[StdioRequest] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[StdioRequest]:
        return iter(self._open)

    def __repr__(self) -> str:
        return f"StdioRequests({len(self._open)} open)"

    def add(self, job: StdioRequest) -> None:
        self._open.add(job)

    def discard(self, job: StdioRequest) -> None:
        self._open.discard(job)

    def cancel(self, id: object) -> None:
        """Every request with that id: who uses an id twice cannot mean one of them. Never `initialize`
        (basic/utilities/cancellation, every legacy revision: MUST NOT)."""
        if is_id(id):
            for job in self._open:
                if job.id == id and job.method != "initialize":
                    job.scope.cancel()

    def cancel_endless(self) -> None:
        for job in self._open:
            if job.method == "subscriptions/listen":
                job.scope.cancel()
