"""The story of the demo: a vacation is planned over three servers, and a person agrees to what costs or is sent.

What may be read or looked up just runs. A booking waits for one approval and a mail for two: of somebody in the console
or in a second terminal, or with `--once` of the demo itself, which decides over the admin port as everybody does.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
from anyio import to_thread

from sluicegate.app.browser import open_link
from sluicegate.protocol.jsonrpc import Json

Say = Callable[[str], None]
Ask = Callable[[str, Json], Awaitable[Any]]
"""(method, params) -> the response of Sluice's endpoint."""

PATIENCE: Final = 600.0
BOOKING: Final = "travel"
BOOK: Final = {"name": "travel__book_flight", "arguments": {"flight": "SL 207", "passenger": "Ann"}}
MAIL: Final = {
    "name": "calendar__send_mail",
    "arguments": {"to": "mia@example.com", "subject": "Barcelona!", "body": "SL 207, booking B-4711."},
}
LOOKS: Final[tuple[tuple[str, Json], ...]] = (
    ("tools/call", {"name": "travel__search_flights", "arguments": {"city": "Barcelona", "month": "May"}}),
    ("tools/call", {"name": "weather__forecast", "arguments": {"city": "Barcelona"}}),
    ("tools/call", {"name": "calendar__free_days", "arguments": {"month": "May"}}),
)
PROMPT: Final = "travel__plan-vacation"
SERVERS: Final = ("travel", "weather", "calendar")
RESOURCES: Final = ("travel+travel://destinations", "weather+weather://warm", "calendar+calendar://today")


@dataclass(frozen=True, slots=True)
class Stage:
    """Where it plays. `config` is the file that commands are given, `token` the operator's; `key` is a file that holds
    the key of a second approver. `browse`: the console is opened in a browser."""

    admin: str
    config: Path
    token: str = field(repr=False)
    audit: Path
    key: Path
    state: Path
    browse: bool

    def api(self, credential: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {credential}"}
        return httpx.AsyncClient(base_url=f"{self.admin}/api/v1/", headers=headers, timeout=60, trust_env=False)


async def tell(stage: Stage, ask: Ask, once: bool, say: Say) -> bool:
    """Whether everything went as it should."""
    say("\nNow the client plans a vacation with three servers: travel, weather and calendar.")
    say("It completes the argument of a prompt, and gets the prompt with it:")
    argument = {"name": "city", "value": "Bar"}
    answer = await ask("completion/complete", {"ref": {"type": "ref/prompt", "name": PROMPT}, "argument": argument})
    offered: list[str] = answer["result"]["completion"]["values"]
    say(f"> completion/complete {PROMPT} {json.dumps(argument)}\n< {', '.join(offered)}")
    messages = await _prompt(ask, offered[0], say) if offered else []
    say("\nIt reads a resource of each server:")
    for uri in RESOURCES:
        read = (await ask("resources/read", {"uri": uri}))["result"]["contents"][0]["text"]
        say(f"> resources/read {uri}\n< {read}")
    say("\nIt calls tools that only look something up. Nobody has to approve them:")
    texts = [_text(await ask(method, params)) for method, params in LOOKS]
    for (_, params), text in zip(LOOKS, texts, strict=True):
        say(f"> tools/call {params['name']} {json.dumps(params['arguments'])}\n< {text}")
    say("\nTwo calls have to be approved. One costs money: one person agrees. The other sends a mail: two people do.")
    ran = [await _with_approval(stage, ask, params, once, say) for params in (BOOK, MAIL)]
    await _activity(stage.audit, say)
    return offered == ["Barcelona", "Bari"] and "Barcelona" in "".join(messages) and all(texts) and all(ran)


async def _prompt(ask: Ask, city: str, say: Say) -> list[str]:
    """The texts of its messages."""
    params = {"name": PROMPT, "arguments": {"city": city}}
    messages = (await ask("prompts/get", params))["result"]["messages"]
    say(f"> prompts/get {PROMPT} {json.dumps(params['arguments'])}")
    for message in messages:
        say(f"< {message['role']}: {message['content']['text']}")
    return [message["content"]["text"] for message in messages]


async def _with_approval(stage: Stage, ask: Ask, params: Json, once: bool, say: Say) -> bool:
    """The same call again and again until somebody has decided; it runs once. Whether it did."""
    say(f"> tools/call {params['name']} {json.dumps(params['arguments'])}")
    announced: set[str] = set()
    with anyio.move_on_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(_watch, stage, once, announced, say)
            while True:
                answer = await ask("tools/call", params)
                reason = answer["result"].get("_meta", {}).get("dev.sluice/reason", "")
                if reason != "approval_pending":
                    break
            group.cancel_scope.cancel()
        say(f"< {_text(answer)}")
        return not reason
    say("  nobody approved it in time")
    return False


async def _watch(stage: Stage, once: bool, announced: set[str], say: Say) -> None:
    """Says what waits, and how to approve it; with `once`, approves it."""
    async with stage.api(stage.token) as http:
        while True:
            for row in (await http.get("approvals", params={"state": "pending"})).json()["approvals"]:
                if row["id"] not in announced:
                    announced.add(row["id"])
                    say(f"  Sluice holds the call until approval {row['id']} is given.")
                    await (_decide if once else _invite)(http, stage, row, say)
            await anyio.sleep(0.2)


async def _decide(http: httpx.AsyncClient, stage: Stage, row: Json, say: Say) -> None:
    say("  The demo decides for you, at the admin port.")
    body = {"decision": "approve", "seen_digest": row["digest"], "comment": "have a nice trip"}
    decided = (await http.post(f"approvals/{row['id']}/decisions", json=body)).json()
    say(f"  The operator agrees: {row['id']} is {decided['state']}.")
    if decided["state"] == "partially_approved":
        async with stage.api(await anyio.Path(stage.key).read_text()) as second:
            decided = (await second.post(f"approvals/{row['id']}/decisions", json=body)).json()
        say(f"  The key `mia` agrees: {row['id']} is {decided['state']}.")


async def _invite(http: httpx.AsyncClient, stage: Stage, row: Json, say: Say) -> None:
    """The console opens on the first approval, and shows those that come later by itself."""
    link = await _link(http, stage, row["id"])
    is_first = row["server"] == BOOKING
    if is_first and stage.browse and await to_thread.run_sync(open_link, stage.state, link):
        say("  The console opens in your browser: approve it there.")
    else:
        say(f"  To give it, open this link within a minute; it works once:\n    {link}")
    sluice = Path(sys.executable).with_name("sluice")
    say(f"  Or run this in a second terminal:\n    {sluice} approve {row['id']} -c {stage.config}")
    if row["quorum"] > 1:
        say(f"  {row['quorum']} people have to agree, and nobody twice. Be the second one with the key `mia`:")
        say(f"    {sluice} approve {row['id']} -c {stage.config} --key-file {stage.key}")


async def _link(http: httpx.AsyncClient, stage: Stage, id: str) -> str:
    """To the approval in the console, logged in as the operator."""
    made = (await http.post(f"{stage.admin}/console/codes")).json()
    return f"{made['url']}/approvals/{id}#code={made['code']}"


def _text(answer: Any) -> str:
    return str(answer["result"]["content"][0]["text"])


async def _activity(audit: Path, say: Say) -> None:
    """What the audit log has of the story. Closing records are written behind the answers."""
    say("\nThe audit log has these records, among others:")
    records: list[Json] = []
    with anyio.move_on_after(5):
        while not any(one["type"] == "outcome" and one.get("public") == MAIL["name"] for one in records):
            records = [json.loads(line) for line in (await anyio.Path(audit).read_text()).splitlines()]
            await anyio.sleep(0.05)
    for record in records:
        if (line := _line(record)) is not None:
            say(f"  {record['time'][11:19]}  {line}")


def _line(record: Json) -> str | None:
    approval = record.get("approval", {})
    if record["type"] == "approval":
        by = f" by {approval['approver']}" if "approver" in approval else ""
        return f"{'approval':<19} {approval['id']} {approval['state']}{by}"
    if record["type"] != "outcome" or record.get("server") not in SERVERS:
        return None
    return f"{record['method']:<19} {record['server']}/{record['own']}: {record['outcome']}"
