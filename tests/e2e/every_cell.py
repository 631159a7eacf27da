"""The situations of the matrix, as one client goes through all of them with all servers. Knows no SDK.

`every1_client.py` and `every2_client.py` bring an SDK each. The job, one JSON argument:

    target, other   where to: {url, headers}, {url, headers, sse} or {command}. `other` is another client's way in
    servers         the servers' prefixes
    journal         the file in which the servers say what becomes of calls
    max_time        seconds after which Sluice ends a call

Prints `ready` when only one situation is left and waits for a line on stdin, so that all clients come to it together;
prints `parked` when questions of all servers are open and waits again (meanwhile the servers die); then prints the
report: {server: {situation: what came of it, in words}}.
"""

import json
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio

Json = dict[str, Any]
Hook = Callable[[Any], Awaitable[None]]

NAMES = {"Name?": "Ada", "First?": "Ada", "Last?": "Lovelace", "One?": "1", "Two?": "2", "Three?": "3"}
ROOT = "file:///home/ada"
MODEL_SAYS = "4"
IN_TIME = 200.0  # whatever happens ends within that


class Person:
    """Whom a client asks. `asked` is what, `action` the answer to forms and pages; `busy` says that no answer comes
    before that event, and `first` is done, with the question's id, before it is answered."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.logs: list[str] = []
        self.told: list[str] = []  # changes: a URI, or "tools"
        self.action = "accept"
        self.busy: anyio.Event | None = None
        self.first: Hook | None = None

    async def hears(self, question: str, id: Any) -> None:
        self.asked.append(question)
        if self.first is not None:
            await self.first(id)
        if self.busy is not None:
            await self.busy.wait()

    async def fills_in(self, message: str, id: Any) -> tuple[str, Json | None]:
        await self.hears(f"form {message}", id)
        name = NAMES[message.rpartition(" ")[2]]
        return self.action, {"name": name} if self.action == "accept" else None


class Client(Protocol):
    """One SDK, connected. Outcomes of calls are in words: the text, `failed ...` or `error CODE`."""

    modern: bool
    person: Person

    async def call(self, tool: str, arguments: Json, progress: list[str] | None = None) -> str: ...
    async def call_and_cancel(self, tool: str, arguments: Json, when: anyio.Event) -> None: ...
    async def tools(self) -> list[str]: ...
    async def wants_logs(self) -> None: ...
    def watching(self, uri: str) -> AbstractAsyncContextManager[None]: ...

    # a modern client has rounds in its hands, a legacy one the responses to questions
    async def ask(self, tool: str, arguments: Json) -> tuple[list[str], str | None]: ...
    async def retry(self, tool: str, arguments: Json, keys: list[str], state: str | None) -> str: ...
    async def respond(self, id: Any, name: str) -> None: ...


class Connect(Protocol):
    def __call__(
        self, target: Json, person: Person, *, declares: bool = True, leaves: bool = True
    ) -> AbstractAsyncContextManager[Client]: ...


class Journal:
    def __init__(self, file: Path) -> None:
        self._file = file

    def of(self, run: str) -> list[str]:
        """What its server wrote of a call. Where the process is gone, the call is over."""
        said = [json.loads(line) for line in self._file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        notes = [note for note in said if note["run"] == run]
        over = ["over"] if notes and not Path(f"/proc/{notes[-1]['pid']}").exists() else []
        return [*(note["what"] for note in notes), *over]

    def end_of(self, run: str) -> str:
        notes = self.of(run)
        return f"called {notes.count('called')} time, {'over' if 'over' in notes else 'open'}"

    async def until(self, run: str, what: str) -> None:
        await until(lambda: what in self.of(run), 0.1)


class Cells:
    """One client before one server."""

    def __init__(self, client: Client, other: Client, server: str, journal: Journal) -> None:
        self.client, self.other, self.server, self.journal = client, other, server, journal
        self.person = client.person
        self.run = new_run()

    async def call(self, tool: str, **arguments: Any) -> str:
        """What was asked, and what came of it."""
        self.person.asked.clear()
        said = await self.client.call(f"{self.server}__{tool}", {"run": self.run, **arguments})
        return " & ".join([*sorted(self.person.asked), said])

    # ------------------------------------------------------------ asks

    async def form_ask(self) -> str:
        return await self.call("form")

    async def url_ask(self) -> str:
        return await self.call("page")

    async def sampling(self) -> str:
        return await self.call("model")

    async def roots(self) -> str:
        said = await self.call("roots")
        # The SDK 1.30 asks for roots aside of the call. While other calls share the connection, the first such question
        # is nobody's; from then on a call that may be asked has a connection of its own.
        return await self.call("roots") if "cannot be told which call asks" in said else said

    async def three_asks_at_once(self) -> str:
        return await self.call("three")

    async def two_rounds(self) -> str:
        return await self.call("twice")

    async def declined(self) -> str:
        self.person.action = "decline"
        try:
            return await self.call("form")
        finally:
            self.person.action = "accept"

    # ------------------------------------------------------------ what is no answer

    async def replayed(self) -> str:
        if self.client.modern:
            keys, state = await self.client.ask(*self.form)
            said = [await self.client.retry(*self.form, keys, state) for _ in range(3)]
        else:
            said = [await self._answering(lambda id: self.client.respond(id, "Ada"))]
        return await self._and_then(said)

    async def altered(self) -> str:
        if self.client.modern:
            keys, state = await self.client.ask(*self.form)
            said = [await self.client.retry(*self.form, keys, bad) for bad in alterations(state)]
            said.append(await self.client.retry(*self.form, keys, state))
        else:

            async def bad_answers(id: Any) -> None:
                for wrong in (f"{id}", id + 1000, -1, f"{id}x"):
                    await self.client.respond(wrong, "Mallory")

            said = [await self._answering(bad_answers)]
        return await self._and_then(said)

    async def another_clients(self) -> str:
        if self.client.modern:
            keys, state = await self.client.ask(*self.form)
            said = [await self.other.retry(*self.form, keys, state), await self.client.retry(*self.form, keys, state)]
        else:
            said = [await self._answering(lambda id: self.other.respond(id, "Mallory"))]
        return await self._and_then(said)

    @property
    def form(self) -> tuple[str, Json]:
        return f"{self.server}__form", {"run": self.run}

    async def _answering(self, first: Hook) -> str:
        self.person.first = first
        try:
            return await self.client.call(*self.form)
        finally:
            self.person.first = None

    async def _and_then(self, said: list[str]) -> str:
        """A call that comes after it is like any other: nothing is left over."""
        return ", ".join([*said, await self.client.call(*self.form)])

    # ------------------------------------------------------------ what is told

    async def progress(self) -> str:
        seen: list[str] = []
        said = await self.client.call(f"{self.server}__count", {"run": self.run, "to": 3}, seen)
        return " & ".join([*seen, said])

    async def log(self) -> str:
        self.person.logs.clear()
        while True:
            said = await self.client.call(f"{self.server}__log", {"run": self.run})
            with anyio.move_on_after(1):
                await until(lambda: bool(self.person.logs))
                return " & ".join([*self.person.logs, said])
            # Over stdio a line says not whose it is: while a server works for several calls, it is nobody's.

    async def cancel(self) -> str:
        await self.client.call_and_cancel(f"{self.server}__count", {"run": self.run, "to": 3000}, anyio.Event())
        await self.journal.until(self.run, "over")
        return self.journal.end_of(self.run)

    async def list_changed(self) -> str:
        wanted = f"{self.server}__added_{self.run}"
        async with self.client.watching(f"{self.server}+memo://{self.run}"):
            self.person.told.clear()
            await self.client.call(f"{self.server}__add", {"run": self.run})
            await self._told("tools")
            while wanted not in await self.client.tools():  # there may have been another's change before
                self.person.told.remove("tools")
                await self._told("tools")
        return "told, and listed"

    async def resource_updated(self) -> str:
        own = f"memo://{self.run}"
        async with self.client.watching(f"{self.server}+{own}"):
            while f"{self.server}+{own}" not in self.person.told:
                # A server over stdio is several processes while calls of it are parked: it may be another that did it.
                await self.client.call(f"{self.server}__touch", {"run": self.run, "uri": own})
                with anyio.move_on_after(1):
                    await self._told(f"{self.server}+{own}")
        return "told"

    async def _told(self, what: str) -> None:
        await until(lambda: what in self.person.told)


QUICK = (
    Cells.form_ask, Cells.url_ask, Cells.sampling, Cells.roots, Cells.three_asks_at_once, Cells.two_rounds,
    Cells.declined, Cells.replayed, Cells.altered, Cells.another_clients, Cells.progress, Cells.log, Cells.cancel,
    Cells.list_changed, Cells.resource_updated,
)  # fmt: skip


def new_run() -> str:
    return secrets.token_hex(6)


async def until(is_so: Callable[[], bool], pause: float = 0.02) -> None:
    """What happens elsewhere (in a file, in a callback) is looked for. Whoever waits bounds it."""
    while not is_so():  # noqa: ASYNC110
        await anyio.sleep(pause)


def alterations(state: str | None) -> list[str]:
    assert state is not None
    swapped = "A" if state[len(state) // 2] != "A" else "B"
    return [state[: len(state) // 2] + swapped + state[len(state) // 2 + 1 :], "", f"{state}x", state[:-1]]


async def signal(word: str) -> None:
    """Says how far it is, and waits until all are."""
    print(json.dumps(word), flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)


async def bounded(work: Awaitable[str]) -> str:
    try:
        with anyio.fail_after(IN_TIME):
            return await work
    except TimeoutError:
        return "hangs"


# ---------------------------------------------------------------- situations with a client of their own


class Column:
    """One client program before all servers."""

    def __init__(self, job: Json, connect: Connect) -> None:
        self.job, self.connect = job, connect
        self.servers: list[str] = job["servers"]
        self._door = anyio.Lock()
        self.journal = Journal(Path(job["journal"]))
        self.report: dict[str, Json] = {server: {} for server in self.servers}

    async def go(self) -> Json:
        async with self.reach("target", Person()) as client:
            await signal("begun")
            async with anyio.create_task_group() as group:
                for work in (self.unable, self.gone, self.too_late):
                    group.start_soon(work)
                await self.quick(client)
            await signal("ready")
            await self.parked(client)
        return self.report

    @asynccontextmanager
    async def reach(self, way: str, person: Person, **how: bool) -> AsyncIterator[Client]:
        """A client that has seen the tools of all servers, as clients do before they call one. One after the other:
        each starts processes, and an SDK takes a server that is slow to begin for one of the other era."""
        async with AsyncExitStack() as stack:
            async with self._door:
                client = await stack.enter_async_context(self.connect(self.job[way], person, **how))
                listed: set[str] = set()
                with anyio.move_on_after(IN_TIME):
                    while not listed >= set(self.servers):
                        listed = {name.partition("__")[0] for name in await client.tools()}
            yield client

    async def quick(self, client: Client) -> None:
        async with self.reach("other", Person()) as other:
            await client.wants_logs()
            for server in self.servers:
                for situation in QUICK:
                    said = await bounded(situation(Cells(client, other, server, self.journal)))
                    self.put(situation.__name__, {server: said})

    def put(self, situation: str, came: dict[str, str]) -> None:
        for server, words in came.items():
            self.report[server][situation] = words
            print(f"{server} {situation}: {words}", file=sys.stderr, flush=True)  # for who looks at a failure

    async def unable(self) -> None:
        """A client that cannot be asked."""
        person = Person()
        async with self.reach("target", person, declares=False) as client:
            for server in self.servers:
                said = await bounded(client.call(f"{server}__form", {"run": new_run()}))
                self.put("without_the_capability", {server: " & ".join([*person.asked, said])})

    async def gone(self) -> None:
        """A client that goes while it is asked, without a word. What its calls came to is seen when all their time is
        over."""
        runs = {server: new_run() for server in self.servers}
        person = Person()
        person.busy = anyio.Event()
        try:
            async with self.reach("target", person, leaves=False) as client:
                with anyio.move_on_after(IN_TIME):
                    async with anyio.create_task_group() as calls:
                        for server, run in runs.items():
                            calls.start_soon(client.call, f"{server}__form", {"run": run})
                        for run in runs.values():
                            await self.journal.until(run, "asked")
                        calls.cancel_scope.cancel()
        except* anyio.BrokenResourceError:
            pass  # the SDK 1.x trips over what still arrives while it leaves
        await anyio.sleep(self.job["max_time"] + 10)
        self.put("client_gone", {server: self.journal.end_of(run) for server, run in runs.items()})

    async def too_late(self) -> None:
        """A client that answers when the call's time is over."""
        async with self.reach("target", Person()) as client:
            self.put("expired", await self._while_busy(client, lambda: anyio.sleep(self.job["max_time"] + 3)))

    async def parked(self, client: Client) -> None:
        """A client whose servers die before it answers."""

        self.put("server_gone", await self._while_busy(client, lambda: signal("parked")))

    async def _while_busy(self, client: Client, happens: Callable[[], Awaitable[None]]) -> dict[str, str]:
        """What its calls come to when it answers only after that."""
        runs = {server: new_run() for server in self.servers}
        client.person.busy = anyio.Event()
        said: dict[str, str] = {}

        async def one(server: str, run: str) -> None:
            said[server] = await bounded(client.call(f"{server}__form", {"run": run}))

        async with anyio.create_task_group() as calls:
            for server, run in runs.items():
                calls.start_soon(one, server, run)
            for server, run in runs.items():
                await until(lambda server=server, run=run: server in said or "asked" in self.journal.of(run), 0.1)
            await happens()
            client.person.busy.set()
        return said


async def main(connect: Connect) -> None:
    report = await Column(json.loads(sys.argv[1]), connect).go()
    print(json.dumps(report), flush=True)
