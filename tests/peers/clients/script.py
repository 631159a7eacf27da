"""What every client driver does against an MCP endpoint, and the report it prints. Knows no SDK.

A driver takes its job as one JSON argument and prints one JSON report, so that a test can run five SDKs the same way
and compare what they saw. `script.cjs` is the same in JavaScript. The job:

    url | command        where: a Streamable HTTP endpoint, or a program to talk to over stdio
    sse                  the url is one of HTTP+SSE, the transport of 2024-11-05
    headers, env         for the one, for the other
    tools                the names under which echo, slow, was_cancelled and add_tool are found here
    adds, added          the tool to add: its own name, and the name under which it must appear
    asking               tools that ask: the user in two rounds; user, model and client at once
    prompt, resource, template     what to get, read, expand (its `{id}`) and read
    calls                [[name, arguments], ...]: further tools to call

The report has one key a step; a step that failed stands in `errors` instead, with the reason.
"""

import json
import secrets
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio

Json = dict[str, Any]
Progress = Callable[[float, float | None], None]

# what every client answers when it is asked
FORM: Json = {"name": "Ada", "color": "blue"}
MODEL_SAYS = "Good morning"
ROOT = "file:///home/ada"

# what must survive any number of hops: non-ASCII, controls, the largest exact integer of JavaScript, null, nesting
ARGUMENTS: Json = {
    "text": 'grüße ☃ \u0001 "quoted" \\ / 𝄞',
    "whole": 9007199254740991,
    "real": 0.1,
    "nothing": None,
    "deep": {"list": [1, [2, {"three": 3}], []], "empty": {}, "": "no name"},
}


class Client(Protocol):
    """One SDK, connected."""

    name: str

    def facts(self) -> Json: ...
    async def pages(self, kind: str) -> list[list[str]]: ...
    async def call(self, name: str, arguments: Json, progress: Progress | None = None) -> Json: ...
    async def call_and_cancel(self, name: str, arguments: Json, when: anyio.Event, progress: Progress) -> None: ...
    async def read(self, uri: str) -> str: ...
    async def prompt(self, name: str, arguments: dict[str, str]) -> str: ...
    async def complete(self, reference: Json, argument: str, value: str) -> list[str]: ...
    def changes(self) -> Any: ...


async def run(client: Client, job: Json, expected: tuple[type[Exception], ...]) -> Json:
    report: Json = {"client": client.name, "errors": {}, **client.facts()}

    async def step(name: str, work: Callable[[], Awaitable[Any]], seconds: float = 60) -> None:
        try:
            with anyio.fail_after(seconds):
                report[name] = await work()
        except (*expected, TimeoutError, KeyError, ValueError, RuntimeError, OSError, ExceptionGroup) as error:
            report["errors"][name] = f"{type(error).__name__}: {error}"

    tools = job["tools"]
    for kind in ("tools", "prompts", "resources", "templates"):
        await step(kind, lambda kind=kind: client.pages(kind))
    await step("echo", lambda: client.call(tools["echo"], ARGUMENTS))
    await step("read", lambda: client.read(job["resource"]))
    await step("read_template", lambda: client.read(job["template"].replace("{id}", "42")))
    await step("prompt", lambda: client.prompt(job["prompt"], {"arg1": "one", "arg2": "two"}))
    await step("complete_prompt", lambda: client.complete({"prompt": job["prompt"]}, "arg1", "he"))
    await step("complete_template", lambda: client.complete({"template": job["template"]}, "id", "wo"))
    await step("progress", lambda: make_progress(client, tools))
    await step("cancel", lambda: cancel(client, tools))
    for name in job["asking"]:
        await step(f"ask_{name}", lambda name=name: client.call(job["asking"][name], {}))
    await step("list_changed", lambda: see_change(client, tools, job))
    await step("calls", lambda: call_each(client, job.get("calls", [])), 120)
    return report


async def make_progress(client: Client, tools: Json) -> Json:
    seen: list[list[float | None]] = []
    arguments = {"ms": 2000, "steps": 4, "run": secrets.token_hex(4)}
    answer = await client.call(tools["slow"], arguments, lambda done, total: seen.append([done, total]))
    return {"seen": seen, "answer": answer}


async def cancel(client: Client, tools: Json) -> Json:
    """Cancels once the call is known to run, then asks the server what became of it."""
    run = secrets.token_hex(4)
    running = anyio.Event()
    arguments = {"ms": 30_000, "steps": 300, "run": run}
    await client.call_and_cancel(tools["slow"], arguments, running, lambda done, total: running.set())
    state: Json = {}
    with anyio.move_on_after(30):
        while state.get("state") != "cancelled":
            state = (await client.call(tools["was_cancelled"], {"run": run}))["value"]
            await anyio.sleep(0.05)
    return state


async def see_change(client: Client, tools: Json, job: Json) -> Json:
    async with client.changes() as changed:
        await client.call(tools["add_tool"], {"name": job["adds"]})
        await changed()
    # Other clients add tools of theirs at the same time, so the change may have been one of those. The step has an end.
    while job["added"] not in [name for page in await client.pages("tools") for name in page]:  # noqa: ASYNC110
        await anyio.sleep(0.1)
    return {"listed": True, "answer": await client.call(job["added"], {})}


async def call_each(client: Client, calls: list[Any]) -> list[Json]:
    return [await client.call(name, arguments) for name, arguments in calls]


def value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def fill_in(schema: Json) -> Json:
    """What the user writes into a form."""
    return {name: FORM[name] for name in schema.get("properties", {})}


def job() -> Json:
    return dict(json.loads(sys.argv[1]))


def say(report: Json) -> None:
    print(json.dumps(report))
