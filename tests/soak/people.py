"""What the clients of the soak do: each function is one round of one of them, from its connection to its end.

`ROUNDS` says how many there are of each, and how long a pause is between two rounds.
"""

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
from peers.login.browser import Browser
from soak.client import EXTENSION, FULL, SoakClient, word
from soak.operators import decide, waiting
from soak.town import SoakTown

Json = dict[str, Any]
Round = Callable[[SoakTown], Awaitable[None]]
ERAS: Final = ("modern", "legacy")
ECHOES: Final = (
    "web__echo", "pipe__echo", "fast__echo", "old__text", "sse__text", "fast__echo_sse", "fast__echo_28k",
    "mortal__live",
)  # fmt: skip
QUESTIONS: Final[list[tuple[str, Json, Json]]] = [
    ("web__test_elicitation", {}, {"username": "ada", "email": "ada@example.com"}),
    ("asks__greet", {"who": "me"}, {"name": "Ada"}),
]  # fmt: skip


async def steady(town: SoakTown) -> None:
    """Calls of one tool, and now and then a list; half of the clients are legacy ones, and end their session."""
    client = SoakClient(town, town.lots.choice(("ann", "bob", "cat", "dan")), town.lots.choice(ERAS))
    async with client:
        await client.ask("tools/list")
        for _ in range(40):
            await client.call("rec__echo", n=town.number())
            await town.pause(0.5)
        await client.bye()


async def tokens(town: SoakTown) -> None:
    """People of an issuer, each of whose rounds has a new token."""
    async with SoakClient(town, town.lots.choice(("Rita", "Sven", "Tess"))) as client:
        for _ in range(10):
            await client.call("rec__look", n=town.number())
            await town.pause(1)


async def everywhere(town: SoakTown) -> None:
    """Every transport and both eras of servers, in both eras of clients."""
    async with SoakClient(town, town.lots.choice(("ann", "bob", "cat")), town.lots.choice(ERAS)) as client:
        for name in ECHOES:
            size = {"size": 300} if name.endswith("__text") else {"n": town.number()}
            meta = {"progressToken": f"p{town.number()}"}
            await client.ask("tools/call", name, name=name, arguments={"text": "x", **size}, _meta=meta)
            await town.pause(0.4)
        await client.ask("tools/call", "web__slow", name="web__slow", arguments={"ms": 300, "steps": 3}, _meta=meta)
        await client.bye()


async def readers(town: SoakTown) -> None:
    """All lists to the last page, a resource, a prompt, a completion, a name that nobody has."""
    async with SoakClient(town, "dan", town.lots.choice(ERAS)) as client:
        for what in ("tools", "prompts", "resources", "resources/templates"):
            params: Json = {}
            while True:
                result = (await client.ask(f"{what}/list", **params)).get("result", {})
                await town.pause(0.3)
                if "nextCursor" not in result:
                    break
                params = {"cursor": result["nextCursor"]}
        uri = f"rec+file:///{town.lots.randrange(30)}"
        await client.ask("resources/read", uri, uri=uri)
        await client.ask("prompts/get", "rec__plain", name="rec__plain")
        await client.call("rec__secret", n=town.number())
        await client.call("rec__echo", n="no number")
        await client.call(f"nobody__{town.lots.randrange(1000)}")
        ref = {"type": "ref/prompt", "name": "rec__plain"}
        await client.ask("completion/complete", ref=ref, argument={"name": "x", "value": "y"})
        await client.bye()


async def searchers(town: SoakTown) -> None:
    """Toolsets: tools that are found and called, and tools that are not in it."""
    async with SoakClient(town, "cat", town.lots.choice(ERAS), "found") as client:
        await client.ask("tools/list")
        for _ in range(5):
            await client.call("find_tools", query=town.lots.choice(("echo", "wire money", "save", "list files")))
            await client.call("call_tool", name="rec__look", arguments={"n": town.number()})
            await town.pause(1)
        await client.bye()
    async with SoakClient(town, "cat", toolset="small") as client:
        await client.ask("tools/list")
        await client.call("rec__save", n=town.number())


async def rushing(town: SoakTown) -> None:
    """More in a second than a client may."""
    clients = [SoakClient(town, "eve") for _ in range(4)]

    async def some(client: SoakClient) -> None:
        async with client:
            for _ in range(10):
                await client.call("rec__look", n=town.number())

    await asyncio.gather(*map(some, clients))


async def guarded(town: SoakTown) -> None:
    """Calls and results that a hook is asked about, with secrets among the arguments and hidden text in the answer."""
    async with SoakClient(town, "bob", town.lots.choice(ERAS)) as client:
        for _ in range(10):
            await client.call("guarded__ask", n=town.number(), password="hunter2-hunter2", text="x" * 200)
            await client.call("guarded__hide", n=town.number())
            await town.pause(1.5)
        await client.bye()


async def sessions(town: SoakTown) -> None:
    """Legacy clients with a process of their own, most of whom never say goodbye."""
    async with SoakClient(town, town.lots.choice(("ann", "bob", "fay")), "legacy", **FULL) as client:
        for _ in range(2):
            answer = await client.call("own__echo", n=town.number())
            town.tally["through a sandbox and the detector"] += "result" in answer
            await town.pause(0.5)
        if town.lots.random() < 0.3:
            await client.bye()


async def vanishing(town: SoakTown) -> None:
    """Clients that go in the middle: of a call, of a request, of an answer."""
    way = town.lots.randrange(4)
    client = SoakClient(town, "fay", "legacy" if way == 1 else "modern")
    if way == 1:
        await client.hello()
    name = "mortal__mute" if way == 3 else "web__slow"
    message = client.request("tools/call", name=name, arguments={"ms": 3000, "n": town.number()})
    headers = client.headers("tools/call", name)
    if way == 2:
        headers |= {"Content-Length": "100000"}
        message = None
    async with client, client.stream("POST", message, headers) as reader:
        await client.hear(reader, 0.4)
    town.tally["clients that vanished"] += 1


async def listening(town: SoakTown) -> None:
    """Streams of both eras that hear of changes for a while, and are dropped."""
    seconds = town.lots.uniform(10, 40)
    uri = "web+test://watched-resource"
    client = SoakClient(town, town.lots.choice(("ann", "cat", "fay")), town.lots.choice(ERAS))
    async with client:
        if client.era == "legacy":
            await client.hello()
            await client.ask("resources/subscribe", uri=uri)
            async with client.stream("GET", None, client.session) as reader:
                await client.hear(reader, seconds)
            return
        wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True,
                  "resourceSubscriptions": [uri]}  # fmt: skip
        message = client.request("subscriptions/listen", notifications=wanted)
        async with client.stream("POST", message, client.headers("subscriptions/listen")) as reader:
            await client.hear(reader, seconds)


async def older(town: SoakTown) -> None:
    """A client of 2024-11-05: a stream that names where to post."""
    client = SoakClient(town, "dan", "legacy")
    client.path = "/sse"
    async with client, client.stream("GET", None, {}) as reader:
        async with asyncio.timeout(10):
            await reader.readuntil(b"event: endpoint")
            post = SoakClient(town, "dan", "legacy")
            post.path = (await reader.readuntil(b"\n\r\n")).decode().split("data: ")[1].split()[0]
        version, info = "2024-11-05", {"name": "soak", "version": "1"}
        hello = post.request("initialize", protocolVersion=version, capabilities={}, clientInfo=info)
        call = post.request("tools/call", name="rec__look", arguments={"n": town.number()})
        async with post:
            for message in (hello, {"jsonrpc": "2.0", "method": "notifications/initialized"}, call):
                await post.post(message)
            async with asyncio.timeout(10):
                await reader.readuntil(b"ran look")
        town.tally["answers over HTTP+SSE"] += 1


async def large(town: SoakTown) -> None:
    """An answer over the limits, and two of its parts."""
    async with SoakClient(town, "ann", town.lots.choice(ERAS)) as client:
        answer = await client.call(town.lots.choice(("old__text", "sse__text")), size=600_000)
        content = answer.get("result", {}).get("content", [])
        uri = content[1].get("uri") if len(content) > 1 else None
        for _ in range(2):
            if uri:
                part = (await client.ask("resources/read", uri, uri=uri)).get("result", {}).get("contents", [{}])
                uri = part[0].get("_meta", {}).get("dev.sluice/part", {}).get("next")
                town.tally["parts that were read"] += 1
        await client.bye()


async def asked(town: SoakTown) -> None:
    """Servers that ask their client, of both eras; one in four clients never answers."""
    name, arguments, form = town.lots.choice(QUESTIONS)
    async with SoakClient(town, "bob", **FULL) as client:
        result = (await client.call(name, **arguments)).get("result", {})
        if result.get("resultType") != "input_required" or town.lots.random() < 0.25:
            return
        answers = {key: {"action": "accept", "content": form} for key in result["inputRequests"]}
        ended = await client.ask("tools/call", name, name=name, arguments=arguments, inputResponses=answers,
                                 requestState=result["requestState"])  # fmt: skip
        town.tally[f"questions answered: {word(ended)}"] += 1


async def tasks(town: SoakTown) -> None:
    """Calls that are answered later: to the end, cancelled, or waiting for a person."""
    way = town.lots.randrange(3)
    name = ("jobs__slow_compute", "jobs__patient_job", "jobs__failing_job")[way]
    async with SoakClient(town, "cat", extensions={EXTENSION: {}}, elicitation={}) as client:
        arguments = {"seconds": 1, "label": f"l{town.number()}"} if way < 2 else {"label": f"l{town.number()}"}
        task = (await client.call(name, **arguments)).get("result", {}).get("taskId")
        if task is None:
            return
        if way == 1:
            await client.ask("tasks/cancel", task, taskId=task)
            return
        if way == 2:
            async with town.admin() as lea:
                for row in await waiting(lea, "failing_job"):
                    await decide(town, lea, row, town.lots.choice(("approve", "deny")))
        for _ in range(20):
            await town.pause(0.5)
            found = (await client.ask("tasks/get", task, taskId=task)).get("result", {})
            if found.get("status") not in ("working", "input_required"):
                town.tally[f"tasks: {found.get('status')}"] += 1
                return


async def logged_in(town: SoakTown) -> None:
    """A client with an account of its own at a server, whose tokens are short-lived."""
    async with SoakClient(town, "fay") as client:
        for _ in range(10):
            answer = await client.call("mail__echo", text="hello", n=town.number())
            if word(answer) == "login_required":
                await log_in(town, "fay")
            await town.pause(2)


async def log_in(town: SoakTown, who: str) -> None:
    async with town.admin() as lea:
        begun = (await lea.post("/api/v1/logins", json={"server": "mail", "as": who})).json()
    if "url" not in begun:
        town.tally["logins that were not begun"] += 1
        return

    def agree() -> None:
        with Browser(who) as browser:
            browser.login(begun["url"])

    await asyncio.to_thread(agree)
    town.tally["logins"] += 1


ROUNDS: Final[list[tuple[Round, int, float]]] = [
    (steady, 5, 1), (tokens, 1, 1), (everywhere, 2, 1), (readers, 1, 3), (searchers, 1, 3), (rushing, 1, 15),
    (guarded, 1, 1), (sessions, 2, 3), (vanishing, 2, 3), (listening, 6, 1), (older, 1, 8), (large, 1, 10),
    (asked, 1, 8), (tasks, 1, 5), (logged_in, 1, 1),
]  # fmt: skip
LOST: Final = (OSError, asyncio.IncompleteReadError, TimeoutError, httpx.HTTPError)


async def keep(town: SoakTown, one: Round, pause: float) -> None:
    """Rounds until the soak is over. A connection that Sluice or a dead server ends is counted; anything else is a bug
    of the soak's, or of Sluice's."""
    await town.pause(pause)
    while not town.is_over:
        try:
            await one(town)
            town.tally[f"rounds of {one.__name__}"] += 1
        except LOST as error:
            town.tally[f"lost in {one.__name__}: {type(error).__name__}"] += 1
        except Exception:  # noqa: BLE001 - a bug, whatever it is: the soak goes on and tells it at the end
            town.broken.append(f"{one.__name__}: {traceback.format_exc()}")
            print(town.broken[-1], file=sys.stderr, flush=True)
        await town.pause(pause)
