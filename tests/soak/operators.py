"""What operators, approvers and the machine itself do in the soak: decide, look, change files, end servers.

Each function is one round, as in people.py.
"""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
from e2e.sluice_process import COMMAND, clean_environment
from policy_bed import key_of
from soak.client import SoakClient, word
from soak.town import ROWS, USERS, Mortal, SoakTown

Json = dict[str, Any]
Round = Callable[[SoakTown], Awaitable[None]]
LOOKS: Final = (
    "status", "servers", "servers/rec", "servers/own/log", "tools?as=key:ann", "tools/judged?as=key:ann",
    "tools/cost?as=key:ann",
    "prompts?as=key:ann", "resources?as=key:ann", "pins?waiting=1", "logins", "blocks", "audit/head", "calls?limit=50",
    "audit/records?limit=50", "approvals?state=decided", "approvals?state=pending", "grants", "audit/verify", "me",
)  # fmt: skip

CHANGES: Final = "/api/v1/events?topics=approval,server,call,pin,policy"


# ---------------------------------------------------------------- approvals


async def waiting(admin: httpx.AsyncClient, tool: str, number: int | None = None) -> list[Json]:
    rows = (await admin.get("/api/v1/approvals", params={"state": "pending", "limit": 200})).json().get("approvals", [])
    return [row for row in rows if row["tool"] == tool and number in (None, row["arguments"].get("n"))]


async def decide(town: SoakTown, admin: httpx.AsyncClient, row: Json, decision: str, scope: str = "once") -> None:
    body = {"decision": decision, "seen_digest": row["digest"], "comment": "as the soak has it"}
    body |= {"scope": scope} if decision == "approve" else {}
    answer = await admin.post(f"/api/v1/approvals/{row['id']}/decisions", json=body)
    town.tally[f"decision {decision}: HTTP {answer.status_code}"] += 1


async def _row(town: SoakTown, admin: httpx.AsyncClient, tool: str, number: int) -> Json | None:
    for _ in range(20):
        if found := await waiting(admin, tool, number):
            return found[0]
        await asyncio.sleep(0.05)
    return None


async def held(town: SoakTown) -> None:
    """A call that waits, and is approved or denied meanwhile."""
    number = town.number()
    async with SoakClient(town, "ann", town.lots.choice(("modern", "legacy"))) as ann, town.admin() as lea:
        call = asyncio.create_task(ann.call("bank__wire", n=number))
        try:
            if row := await _row(town, lea, "wire", number):
                await decide(town, lea, row, town.lots.choice(("approve", "deny")))
        finally:
            town.tally[f"held: {word(await call)}"] += 1
        await ann.bye()


async def pending(town: SoakTown) -> None:
    """A call that is answered as pending. Then it is approved and made again, withdrawn, or forgotten."""
    number, way = town.number(), town.lots.randrange(3)
    async with SoakClient(town, "bob") as bob, town.admin() as lea, town.admin("bob") as theirs:
        answer = await bob.call("bank__wire", n=number)
        id = answer.get("result", {}).get("_meta", {}).get("dev.sluice/approval", {}).get("id")
        if id is None or way == 2:
            return
        if way == 1:
            answer = await theirs.post(f"/api/v1/approvals/{id}/cancel", json={})
            town.tally[f"cancel: HTTP {answer.status_code}"] += 1
            return
        await decide(town, lea, (await lea.get(f"/api/v1/approvals/{id}")).json(), "approve")
        town.tally[f"made again: {word(await bob.call('bank__wire', n=number))}"] += 1


async def remembered(town: SoakTown) -> None:
    """An approval for a quarter of an hour, which is revoked before."""
    number = town.number()
    async with SoakClient(town, "cat") as cat, town.admin() as lea:
        await cat.call("bank__lend", n=number)
        for row in await waiting(lea, "lend", number):
            await decide(town, lea, row, "approve", "15m")
        for _ in range(3):
            town.tally[f"by a grant: {word(await cat.call('bank__lend', n=town.number()))}"] += 1
        for grant in (await lea.get("/api/v1/grants")).json()["grants"]:
            answer = await lea.delete(f"/api/v1/grants/{grant['id']}")
            town.tally[f"revoke: HTTP {answer.status_code}"] += 1


async def by_command(town: SoakTown) -> None:
    """What the command line says of one call: a person's way."""
    number = town.number()
    async with SoakClient(town, "dan") as dan, town.admin() as lea:
        await dan.call("bank__wire", n=number)
        for row in await waiting(lea, "wire", number):
            words = [*COMMAND, town.lots.choice(("approve", "deny")), row["id"], "-m", "from the soak", "-c",
                     str(town.process.config)]  # fmt: skip
            words += ["-y"] if "approve" in words else []
            environment = clean_environment() | {"SLUICE_KEY": key_of("leo")}
            quiet = asyncio.subprocess.DEVNULL
            process = await asyncio.create_subprocess_exec(*words, env=environment, stdout=quiet, stderr=quiet)
            town.tally[f"sluice {words[len(COMMAND)]}: exit {await process.wait()}"] += 1
        await dan.call("bank__wire", n=number)


# ---------------------------------------------------------------- who looks


async def looking(town: SoakTown) -> None:
    async with town.admin() as lea:
        for what in LOOKS:
            answer = await lea.get(f"/api/v1/{what}")
            town.tally[f"looked: HTTP {answer.status_code}"] += 1
            await town.pause(0.4)
        if town.lots.random() < 0.15:
            await lea.post("/api/v1/audit/verify", json={})


async def console(town: SoakTown) -> None:
    """A page in a browser: a session, what the page asks, a stream of changes; one in three closes without a word."""
    headers = {"Origin": town.process.admin, "Sec-Fetch-Site": "same-origin"}
    async with httpx.AsyncClient(base_url=town.process.admin, headers=headers, timeout=30, trust_env=False) as page:
        begun = await page.post("/console/session", json={"key": key_of("lea")})
        town.tally[f"console sessions: HTTP {begun.status_code}"] += 1
        if begun.status_code != 200:
            return
        page.headers["X-Sluice-Page"] = begun.json()["page_key"]
        stream = asyncio.create_task(_changes(town, page))
        for path in ("/console", "/api/v1/me", "/api/v1/approvals", "/api/v1/calls", "/api/v1/servers") * 2:
            await page.get(path)
            await town.pause(1)
        await stream
        if town.lots.random() < 0.7:
            await page.delete("/console/session")


async def _changes(town: SoakTown, page: httpx.AsyncClient) -> None:
    try:
        async with asyncio.timeout(10), page.stream("GET", CHANGES) as stream:
            async for line in stream.aiter_lines():
                town.tally["changes that the console heard of"] += line.startswith("data:")
    except TimeoutError:
        return


# ---------------------------------------------------------------- what changes


async def reloads(town: SoakTown) -> None:
    """Once a minute the policy changes, and the config, which has one server, one toolset and one key more or less."""
    turn = town.tally["reloads"] = town.tally["reloads"] + 1
    rows = ROWS if turn % 2 else ROWS + f"p, role:user, rec, tool:never-{turn % 4}, *, deny\n"
    town.write("policy.csv", rows)
    await town.pause(town.minute / 3)
    settings = town.settings
    if turn % 2:
        more = {**settings["servers"], "extra": {**settings["servers"]["own"], "required": False}}
        toolsets = {**settings["toolsets"], "third": {"tools": ["fast/*"]}}
        keys = settings["clients"]["keys"]
        clients = {**settings["clients"], "keys": {**keys, "guest": {**keys["ann"], "hash": "sha256:" + "0" * 64}}}
        town.write_config(servers=more, toolsets=toolsets, clients=clients)
    else:
        town.write_config()
    if turn % 3 == 0:
        town.process.process.send_signal(signal.SIGHUP)
    if turn % 5 == 0:
        town.key = f"k{turn % 2 + 1}"
        town.issuer.rotate(town.key)


async def definitions(town: SoakTown) -> None:
    """A server says something else of its tool from its next start on: that is withheld until a person accepts it."""
    turn = town.tally["definitions changed"] = town.tally["definitions changed"] + 1
    tool = {"name": "wear", "description": f"Warm in the winter of {turn % 7}."}
    (town.folder / "coat" / "catalog.json").write_text(json.dumps({"tools": [tool]}))
    async with town.admin() as lea, SoakClient(town, "dan") as dan:
        await lea.post("/api/v1/servers/coat/restart", json={})
        await town.pause(2)
        await dan.call("coat__wear", n=town.number())
        for server in ("coat", "web"):
            rows = (await lea.get("/api/v1/pins", params={"server": server, "waiting": "1"})).json()["pins"]
            named = [{"kind": row["kind"], "name": row["name"], "fingerprint": row["waiting"] or row["current"]}
                     for row in rows]  # fmt: skip
            if named:
                answer = await lea.post("/api/v1/pins", json={"server": server, "accept": named})
                town.tally[f"definitions accepted: HTTP {answer.status_code}"] += 1
        await dan.call("coat__wear", n=town.number())


async def changing(town: SoakTown) -> None:
    """A server that adds a tool or takes it away, and says so; a resource that changes."""
    async with SoakClient(town, "ann") as ann:
        await ann.call("web__test_trigger_tool_change")
        await ann.call("web__test_trigger_prompt_change")
        await ann.call("web__change_watched", text=f"text {town.lots.randrange(9)}")


async def blocks(town: SoakTown) -> None:
    who = town.lots.choice(USERS)
    async with town.admin() as lea:
        answer = await lea.post("/api/v1/blocks", json={"what": f"key:{who}", "for": 60, "reason": "the soak"})
        town.tally[f"blocks: HTTP {answer.status_code}"] += 1
        await town.pause(1)
        for block in (await lea.get("/api/v1/blocks")).json()["blocks"]:
            await lea.delete(f"/api/v1/blocks/{block['id']}")


async def logouts(town: SoakTown) -> None:
    """A login ends, and begins anew with the next call that wants it."""
    async with town.admin() as lea:
        for row in (await lea.get("/api/v1/logins")).json()["logins"]:
            await lea.delete(f"/api/v1/logins/{row['id']}")
    town.site.forget()


async def crashes(town: SoakTown) -> None:
    """Processes of servers end, as by a crash."""
    async with town.admin() as lea:
        for key in ("mortal", town.lots.choice(("pipe", "own", "guarded"))):
            for pid in (await lea.get(f"/api/v1/servers/{key}")).json().get("pids", [])[:1]:
                try:
                    os.kill(pid, signal.SIGKILL)
                    town.tally["processes of servers that were killed"] += 1
                except ProcessLookupError:
                    continue
        await lea.post("/api/v1/servers/bank/reconnect", json={})


async def outages(town: SoakTown) -> None:
    """A server over HTTP goes away, and returns."""
    mortal: Mortal = town.mortals[town.lots.choice(("fast", "old", "sse"))]
    await asyncio.to_thread(mortal.end)
    await town.pause(5)
    await asyncio.to_thread(mortal.start)
    town.tally["servers that went away and returned"] += 1


def rounds(town: SoakTown) -> list[tuple[Round, int, float]]:
    minute = town.minute
    return [
        (held, 1, 5), (pending, 1, 6), (remembered, 1, minute / 2), (by_command, 1, minute * 1.5),
        (looking, 1, 2), (console, 1, minute / 3), (reloads, 1, minute), (definitions, 1, minute / 2),
        (changing, 1, 10), (blocks, 1, minute / 2), (logouts, 1, minute * 2), (crashes, 1, minute / 2),
        (outages, 1, minute * 1.5),
    ]  # fmt: skip
