"""Clients that listen for changes of lists: each of them is looked at when a server has announced one.

There may be ten thousand, and a server may announce all the time. So they are looked at in steps, with turns for
others, and the next look waits until the server has its part of the event loop again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final

from sluicegate.protocol.model import Client
from sluicegate.runtime.loop_budget import LoopBudget

AT_ONCE: Final = 16  # in one step
EACH: Final = 0.1e-3
"""About the seconds that a change costs for each client, whose lists are filtered again."""

Look = Callable[[Client], object]


class ListWatchers:
    def __init__(self) -> None:
        self._clients: dict[object, Client] = {}
        # Budgets of their own: looks at lists take nothing of the time that messages of servers have.
        self._paces: defaultdict[str, LoopBudget] = defaultdict(lambda: LoopBudget(everybody=LoopBudget()))

    def __len__(self) -> int:
        return len(self._clients)

    @contextmanager
    def watch(self, client: Client) -> Iterator[None]:
        """While somebody listens, this client's lists are walked again as soon as a change is announced."""
        token = object()
        self._clients[token] = client
        try:
            yield
        finally:
            del self._clients[token]

    def pause(self, server: str) -> float:
        """Seconds until a change at that server may be looked at, 0 for now."""
        return self._paces[server].pause()

    def forget(self, server: str) -> None:
        self._paces.pop(server, None)

    def each(self, server: str, look: Look) -> None:
        """Calls `look` for each client that still listens when its turn comes."""
        self._go_on(server, look, iter(tuple(self._clients)))

    def _go_on(self, server: str, look: Look, left: Iterator[object]) -> None:
        some = list(islice(left, AT_ONCE))
        self._paces[server].charge(EACH * len(some))
        for client in filter(None, map(self._clients.get, some)):
            look(client)
        if len(some) == AT_ONCE:
            asyncio.get_running_loop().call_soon(self._go_on, server, look, left)
