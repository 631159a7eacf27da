"""Replicas behind the nginx that is shipped: a rolling restart under load, a replica that is killed, and a database
that fails over.

Calls are counted where they are made and where they are executed. Run it with: make accept ARGS=--fleet.
"""

import asyncio
import itertools
import json
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
from e2e.wire import LEGACY, META, MODERN
from fleet_stage import Replica, staged
from peers.postgres import Cluster, pair, postgres
from policy_bed import Bed, bearer
from waiting import until

CALLS: Final = 10_000
AT_ONCE: Final = 16
SESSIONS: Final = 50
APPROVALS: Final = 1_000
APPROVERS: Final = 16
ASKING: Final = 8
"""Clients of the approvals."""
CLIENTS: Final = 12
ACCEPT: Final = {"Accept": "application/json, text/event-stream"}
Json = dict[str, Any]


def main(words: list[str]) -> int:
    """The exit code: 0 if every bar is held."""
    with tempfile.TemporaryDirectory(prefix="sluice-fleet-") as place, postgres() as cluster:
        with staged(Path(place), cluster.url, CLIENTS, drain_delay="5s") as (replicas, url):
            good = [asyncio.run(rolling(replicas, url, Path(place))), asyncio.run(killed(replicas, url, Path(place)))]
    with tempfile.TemporaryDirectory(prefix="sluice-fleet-") as place, pair() as (primary, standby):
        both = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        url = f"postgresql://postgres@{both}/postgres?target_session_attrs=read-write"
        with staged(Path(place), url, CLIENTS, limits={"pending_approvals": 100}) as (replicas, _):
            good.append(asyncio.run(failover(replicas, primary, standby, Path(place))))
    return 0 if all(good) else 1


async def rolling(replicas: list[Replica], url: str, folder: Path) -> bool:
    """Restarts one after another, while clients of both eras call."""
    load = Load(url)
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        restarts = group.create_task(asyncio.to_thread(_restart_all, replicas))
        for number in range(AT_ONCE):
            group.create_task(load.modern(number, lambda: restarts.done() and load.told["modern ok"] >= CALLS))
        for number in range(SESSIONS):
            group.create_task(load.legacy(number, restarts.done))
    executed = _executed(folder)
    twice = sum(count > 1 for count in executed.values())
    missing = sum(f"{number}" not in executed for number in load.answered)
    print(f"rolling restart of {len(replicas)}: {dict(load.told)} in {time.monotonic() - began:.0f} s; "
          f"executed twice {twice}, answered and not executed {missing} (bars 0, 0)")  # fmt: skip
    failed = load.told["modern failed"]
    print(f"failed modern calls: {failed} of {load.told['modern ok'] + failed} (bar 0)")
    for why, count in load.why.most_common(8):
        print(f"  {count} x {why}")
    return failed == 0 and twice == 0 and missing == 0 and load.told["legacy recovered"] > 0


def _restart_all(replicas: list[Replica]) -> None:
    time.sleep(3)
    for one in replicas:
        one.stop()
        one.start()
        time.sleep(3)


async def killed(replicas: list[Replica], url: str, folder: Path) -> bool:
    """One replica dies: strays are told at once, and everything else goes on."""
    load = Load(url)
    deadline = time.monotonic() + 20
    async with asyncio.TaskGroup() as group:
        for number in range(AT_ONCE):
            group.create_task(load.modern(number, lambda: time.monotonic() > deadline))
        for number in range(SESSIONS):
            group.create_task(load.legacy(number, lambda: time.monotonic() > deadline))
        await asyncio.sleep(5)
        before = load.told["modern failed"]
        home = Counter(load.homes.values()).most_common(1)[0][0]
        await asyncio.to_thread(next(one for one in replicas if one.name == home).stop, signal.SIGKILL)
    failed = load.told["modern failed"] - before
    print(f"kill -9 of one: {dict(load.told)}; modern calls that failed {failed} (bar: those open there, "
          f"at most {AT_ONCE}), slowest 404 {load.slowest_404 * 1000:.0f} ms (bar 1,000)")  # fmt: skip
    for why, count in load.why.most_common(8):
        print(f"  {count} x {why}")
    twice = sum(count > 1 for count in _executed(folder).values())
    return failed <= AT_ONCE and twice == 0 and load.told["legacy recovered"] > 0 and load.slowest_404 < 1


async def failover(replicas: list[Replica], primary: Cluster, standby: Cluster, folder: Path) -> bool:
    """The primary dies while approvals are asked for, given and used, and its standby takes over. Each approval is used
    at all replicas at once, again and again. Other clients call plainly: one whose calls are refused waits for its part
    of the loop."""
    beds = [one.bed for one in replicas if one.bed is not None]
    load = Load(beds[0].process.url)
    used: list[tuple[float, str]] = []
    over = asyncio.Event()

    async def approvals(number: int) -> None:
        async with httpx.AsyncClient(timeout=30) as client:
            while not over.is_set():
                call = f"wire-{next(Load.numbers)}"
                if await _approved(client, beds, number, call):
                    told = await asyncio.gather(*(_wire(client, at, number, call) for at in beds * 2))
                    used.extend((time.monotonic(), call) for one in told if one == "done")
                    for id in {one for one in told if one.startswith("apr_")}:  # what came too late asks anew
                        await _decide(client, beds[0], id, "deny")

    async with asyncio.TaskGroup() as group:
        for number in range(APPROVERS):
            group.create_task(approvals(number))
        for number in range(ASKING, CLIENTS):
            group.create_task(load.modern(number, over.is_set))
        await until(lambda: len({call for _, call in used}) >= APPROVALS // 2, 600)
        before = load.told["modern failed"]
        await asyncio.to_thread(primary.stop, signal.SIGKILL)
        await asyncio.to_thread(standby.ask, "ALTER SYSTEM SET synchronous_standby_names = ''; ")
        await asyncio.to_thread(standby.ask, "SELECT pg_promote()")
        promoted = time.monotonic()
        await until(lambda: len({call for _, call in used}) >= APPROVALS, 600)
        over.set()
    executed = _executed(folder)
    twice = [call for call, count in executed.items() if call.startswith("wire-") and count > 1]
    again = min(at for at, _ in used if at > promoted) - promoted
    failed = load.told["modern failed"] - before
    print(f"kill -9 of the primary, with promotion: {len({call for _, call in used})} approvals used, "
          f"{len(twice)} used twice (bar 0); plain calls that failed {failed} of {load.told['modern ok']} (bar 0); "
          f"the next one was used {again:.1f} s after the promotion (bar 5)")  # fmt: skip
    for why, count in load.why.most_common(4):
        print(f"  {count} x {why}")
    return not twice and failed == 0 and again < 5


async def _approved(client: httpx.AsyncClient, beds: list[Bed], number: int, call: str) -> bool:
    """Asks at one replica, and approves at another; whether that took place."""
    asked, told = beds[number % len(beds)], beds[(number + 1) % len(beds)]
    found = await _wire(client, asked, number, call)
    if not found.startswith("apr_"):
        return False
    return await _decide(client, told, found, "approve")


async def _decide(client: httpx.AsyncClient, at: Bed, id: str, how: str) -> bool:
    where = f"{at.process.admin}/api/v1/approvals/{id}"
    try:
        shown = await client.get(where, headers=bearer("lea"))
        if shown.status_code != 200:
            return False
        decision = {"decision": how, "seen_digest": shown.json()["digest"]}
        return (await client.post(f"{where}/decisions", json=decision, headers=bearer("lea"))).status_code == 200
    except httpx.HTTPError:
        return False


async def _wire(client: httpx.AsyncClient, at: Bed, number: int, call: str) -> str:
    """`done`, the id of the approval that it waits for, or nothing."""
    head = {**ACCEPT, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "bank__wire",
            **bearer(f"c{number % ASKING}")}  # fmt: skip
    params = {"name": "bank__wire", "arguments": {"call": call}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    try:
        answer = await client.post(at.process.url, json=body, headers=head)
    except httpx.HTTPError:
        return ""
    if answer.status_code != 200:
        return ""
    result: Json = json.loads(answer.text.rpartition("data: ")[2]).get("result", {"isError": True})
    if not result.get("isError"):
        return "done"
    return str(result.get("_meta", {}).get("dev.sluice/approval", {}).get("id", ""))


def _executed(folder: Path) -> Counter[str]:
    """How often each call reached the server."""
    found = Counter[str]()
    for line in (folder / "bank" / "seen.jsonl").read_text().splitlines():
        message = json.loads(line)
        if message["method"] == "tools/call":
            found[message["params"]["arguments"]["call"]] += 1
    return found


class Load:
    """Clients that count what they are told."""

    numbers = itertools.count()

    def __init__(self, url: str) -> None:
        self.url = url
        self.told, self.why = Counter[str](), Counter[str]()
        self.answered: list[str] = []
        self.slowest_404 = 0.0
        self.homes: dict[int, str] = {}
        """Where each client's session is."""

    async def modern(self, number: int, is_over: Callable[[], bool]) -> None:
        head = {**ACCEPT, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "bank__look",
                **bearer(f"c{number % CLIENTS}")}  # fmt: skip
        async with httpx.AsyncClient(headers=head, timeout=30) as client:
            while not is_over():
                call = str(next(self.numbers))
                params = {"name": "bank__look", "arguments": {"call": call}, "_meta": META}
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                self._count("modern", call, await self._post(client, body, {}))

    async def legacy(self, number: int, is_over: Callable[[], bool]) -> None:
        async with httpx.AsyncClient(headers={**ACCEPT, **bearer(f"c{number % CLIENTS}")}, timeout=30) as client:
            session = await self._session(client, number)
            while not is_over():
                await asyncio.sleep(0.2)
                call = str(next(self.numbers))
                params = {"name": "bank__look", "arguments": {"call": call}}
                body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
                began = time.monotonic()
                answer = await self._post(client, body, session)
                if isinstance(answer, httpx.Response) and answer.status_code == 404:
                    self.slowest_404 = max(self.slowest_404, time.monotonic() - began)
                    session = await self._session(client, number)
                    self.told["legacy recovered"] += 1
                else:
                    self._count("legacy", call, answer)

    async def _session(self, client: httpx.AsyncClient, number: int) -> dict[str, str]:
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "load", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        while True:
            answer = await self._post(client, body, {})
            if isinstance(answer, httpx.Response) and answer.status_code == 200:
                id = answer.headers["mcp-session-id"]
                self.homes[number] = id.partition(".")[0]
                return {"Mcp-Session-Id": id, "MCP-Protocol-Version": LEGACY}
            self.told["initialize failed"] += 1
            await asyncio.sleep(0.2)

    async def _post(self, client: httpx.AsyncClient, body: Json, headers: dict[str, str]) -> httpx.Response | str:
        try:
            return await client.post(self.url, json=body, headers=headers)
        except httpx.HTTPError as error:
            return repr(error)

    def _count(self, era: str, call: str, answer: httpx.Response | str) -> None:
        if isinstance(answer, httpx.Response) and answer.status_code == 200:
            message = json.loads(answer.text.rpartition("data: ")[2])
            if "result" in message and not message["result"].get("isError"):
                self.told[f"{era} ok"] += 1
                self.answered.append(call)
                return
        self.told[f"{era} failed"] += 1
        said = answer if isinstance(answer, str) else f"{answer.status_code} {' '.join(answer.text.split())[:160]}"
        self.why[f"{era}: {said}"] += 1
