"""Clients of a Sluice, in a process of their own: a constant rate at the healthy server, and a few at the faulted one.

    python tests/chaos/chaos_load.py URL FILE RATE KEYS FAULTY CONNECTIONS

KEYS call `a__note` in both eras, RATE times a second in all; a call that waits is counted from when it was due. FAULTY
are keys that call what a line on stdin names, `+TOOL`, one call after the other, until `-TOOL`. FILE gets a line for
each call, when it has ended: `Spent`.
"""

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.wire import Answer, Client
from policy_bed import bearer

PATIENCE = 45.0  # more than the longest fault takes that calls wait for
PAUSE = 0.15


@dataclass(frozen=True, slots=True)
class Spent:
    """`due` is monotonic; `word` is ok, or what the client was told instead."""

    due: float
    took: float
    tool: str
    who: str
    number: int
    word: str

    @classmethod
    def read(cls, line: str) -> "Spent":
        due, took, tool, who, number, word = line.split(" ", 5)
        return cls(float(due), float(took), tool, who, int(number), word)

    def __str__(self) -> str:
        return f"{self.due:.6f} {self.took:.6f} {self.tool} {self.who} {self.number} {self.word}"


def word_of(answer: Answer) -> str:
    messages = [message for message in answer.messages() if "id" in message] if answer.body else []
    if answer.status != 200 or len(messages) != 1:
        return f"status {answer.status}"
    if "error" in messages[0]:
        return f"error {messages[0]['error'].get('code')} {(messages[0]['error'].get('data') or {}).get('reason', '')}"
    result: dict[str, Any] = messages[0]["result"]
    return str(result.get("_meta", {}).get("dev.sluice/reason", "tool_error")) if result.get("isError") else "ok"


class Load:
    def __init__(self, url: str, file: Path) -> None:
        self.url = url
        self.aims: dict[str, list[asyncio.Task[None]]] = {}
        self._file = file.open("w", buffering=1)
        self._numbers = itertools.count(1)
        self._beginning: set[Client] = set()

    async def call(self, client: Client, who: str, tool: str, due: float) -> None:
        number = next(self._numbers)
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await client.call(tool, {"n": str(number)})
            word = word_of(answer)
            if answer.status == 404 and not client.modern:
                await self._begin(client, who)
        except TimeoutError:
            word = f"no answer within {PATIENCE:.0f} s"
        except (OSError, EOFError, ValueError) as error:
            word = f"connection {type(error).__name__}"
        print(Spent(due, time.monotonic() - due, tool, who, number, word), file=self._file)

    async def _begin(self, client: Client, who: str) -> None:
        """Another session, as a client does whose old one is not found."""
        if client in self._beginning:
            return
        self._beginning.add(client)
        try:
            async with asyncio.timeout(PATIENCE), Client(self.url, False, 1, bearer(who)) as other:
                client.adopt(other)
        except (OSError, EOFError, ValueError, AssertionError):
            pass  # the next call finds out
        finally:
            self._beginning.discard(client)

    async def at_rate(self, clients: list[tuple[Client, str]], rate: float) -> None:
        began, turns = time.monotonic(), itertools.cycle(clients)
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                due = began + number / rate
                await asyncio.sleep(due - time.monotonic())
                client, who = next(turns)
                group.create_task(self.call(client, who, "a__note", due))

    async def one_by_one(self, client: Client, who: str, tool: str) -> None:
        while True:
            await self.call(client, who, tool, time.monotonic())
            await asyncio.sleep(PAUSE)

    async def listen(self, clients: list[tuple[Client, str]]) -> None:
        """Returns at the end of stdin."""
        while line := await asyncio.to_thread(sys.stdin.readline):
            tool = line[1:].strip()
            for task in self.aims.pop(tool, []):
                task.cancel()
            if line[0] == "+":
                self.aims[tool] = [asyncio.create_task(self.one_by_one(*one, tool)) for one in clients]


@asynccontextmanager
async def clients_of(url: str, keys: list[str], size: int) -> AsyncIterator[list[tuple[Client, str]]]:
    """Each has so many connections at most."""
    made = [(Client(url, modern, size, bearer(key)), key) for key in keys for modern in (True, False)]
    for client, _ in made:
        await client.__aenter__()
    yield made


async def main(url: str, file: Path, rate: float, keys: list[str], faulty: list[str], size: int) -> None:
    load = Load(url, file)
    async with clients_of(url, keys, size) as healthy, clients_of(url, faulty, size) as others:
        rate_task = asyncio.create_task(load.at_rate(healthy, rate))
        print("ready", flush=True)
        await load.listen(others)
        rate_task.cancel()


if __name__ == "__main__":
    url, file, rate, keys, faulty, size = sys.argv[1:]
    asyncio.run(main(url, Path(file), float(rate), keys.split(","), faulty.split(","), int(size)))
