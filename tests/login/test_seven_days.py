"""Days of three clients whose machines sleep and whose Sluice is killed: the logins of the start are all there are.

An hour of them takes a second, and an access token lives one. A gateway serves a modern and a legacy client, each with
a login of its own. A desktop has two `sluice stdio`, one of which goes along with the other. The authorization server
rotates: each refresh ends the tokens of before at once, and a refresh token that comes twice ends the login.
SLUICE_LOGIN_DAYS says how many days (7 in a soak, a quarter of one otherwise).

Sluice is killed while it renews nothing: what is lost between the authorization server and the disk no client can
undo. It is stopped at such a moment, too: unlike a machine's sleep, a stop lets the deadlines of a request pass.
test_renewing.py has both amid a renewal.
"""

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync
from command_line import run
from e2e.desktop_clients import Desktop
from e2e.sluice_process import Sluice, sluice
from e2e.test_logins import desktop
from e2e.test_logins_api import ROWS, ask, rows
from e2e.wire import Client
from peers.fleet import free_port
from peers.login.browser import Browser
from peers.login.misbehaving import Misbehaving, misbehaving
from policy_bed import Bed, bearer, client_keys
from waiting import until, until_so

Json = dict[str, Any]
HOUR = 1.0
DAYS = float(os.environ.get("SLUICE_LOGIN_DAYS", "0.25"))
NIGHT = min(8.0, 24 * DAYS / 3) * HOUR
LEEWAY = 6.0  # seconds that the server takes a token after its life, as servers do because clocks differ
PAUSE = 0.2 * HOUR
LOGIN = {"authorize", "device", "register"}


@dataclass
class Journal:
    calls: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    nights: int = 0
    over: bool = False


def send(processes: Iterable["subprocess.Popen[Any]"], which: signal.Signals) -> None:
    for process in processes:
        process.send_signal(which)


def is_renewing(folder: Path) -> bool:
    with sqlite3.connect(folder / "state" / "sluice.db") as database:
        found = database.execute("SELECT 1 FROM item WHERE key LIKE 'login-lease/%'").fetchone()
    database.close()
    return found is not None


def stop(processes: Iterable["subprocess.Popen[Any]"], folder: Path) -> None:
    """At a moment when none of them renews a login."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        send(processes, signal.SIGSTOP)
        if not is_renewing(folder):
            return
        send(processes, signal.SIGCONT)
        time.sleep(0.02)
    raise AssertionError("a login is renewed without end")


def kill(process: "subprocess.Popen[Any]", folder: Path) -> None:
    stop([process], folder)
    process.kill()
    process.wait()


class Gateway:
    name = "gateway"

    def __init__(self, folder: Path, site: Misbehaving) -> None:
        folder.mkdir()
        (folder / "policy.csv").write_text(ROWS)
        ports = {"mcp": f"127.0.0.1:{free_port()}", "admin": f"127.0.0.1:{free_port()}"}
        self.folder, self._stack = folder, ExitStack()
        self._config: Json = {
            "servers": {"mail": {"url": site.mcp, "required": False}}, "policy": {"files": ["policy.csv"]},
            "clients": {"keys": client_keys(ann=[], bob=[])}, "listen": ports,
        }  # fmt: skip
        self.starts = 1
        self.process = self._start()

    def _start(self) -> Sluice:
        return self._stack.enter_context(sluice(self._config, self.folder))

    def log_in(self) -> None:
        there = Bed(self.process, self.folder)
        for who in ("ann", "bob"):
            begun = ask(there, "POST", "logins", body={"server": "mail", "as": who}).json()
            with Browser(who) as browser:
                assert "Logged in" in browser.login(begun["url"]).text
        for who in ("ann", "bob"):
            there.until(lambda who=who: "mail__echo" in there.names(who))  # type: ignore[misc]

    def logins(self) -> list[str]:
        return [row["state"] for row in rows(Bed(self.process, self.folder))]

    def processes(self) -> list["subprocess.Popen[Any]"]:
        return [self.process.process]

    async def die(self) -> None:
        await run_sync(kill, self.process.process, self.folder)
        await run_sync(self._stack.close)
        self.process = await run_sync(self._start)
        self.starts += 1

    async def _started_after(self, starts: int) -> None:
        await until(lambda: self.starts > starts)

    async def client(self, who: str, modern: bool, journal: Journal) -> None:
        """One call after the other. One that a kill cut off is made again, once."""
        text = is_again = ""
        while not journal.over:
            starts = self.starts
            try:
                async with Client(self.process.url, modern, 1, bearer(who)) as client:
                    while not journal.over:
                        text = is_again or f"{who} {journal.calls[who]}"
                        result = (await client.call("mail__echo", {"text": text})).result()
                        assert not result.get("isError") and text in result["content"][0]["text"], result
                        is_again = ""
                        journal.calls[who] += 1
                        await anyio.sleep(PAUSE)
            except (OSError, asyncio.IncompleteReadError):
                assert text != is_again or not text, f"{text} failed twice"
                is_again = text
                journal.again[who] += 1
                await self._started_after(starts)

    def close(self) -> None:
        send(self.processes(), signal.SIGCONT)  # where the test ends in a night
        self._stack.close()


class DesktopMachine:
    name = "desktop"

    def __init__(self, folder: Path, site: Misbehaving) -> None:
        folder.mkdir()
        self.folder, self._command = folder, desktop(folder, site)
        self.clients = [self._start(), self._start()]  # the first one runs the firewall
        self._lock = anyio.Lock()

    def _start(self) -> Desktop:
        client = Desktop(self._command, "desk")
        client.hello()
        return client

    def log_in(self) -> None:
        assert run(self.folder, "login", "mail", "--device").returncode == 0
        until_so(lambda: all("mail__echo" in client.tools() for client in self.clients))

    def logins(self) -> list[str]:
        return [row["state"] for row in json.loads(run(self.folder, "logins", "--json").stdout)["logins"]]

    def processes(self) -> list["subprocess.Popen[Any]"]:
        return [client.process for client in self.clients]

    async def die(self) -> None:
        """The one that runs the firewall. The other one takes over, and its client is none the wiser."""
        async with self._lock:  # no call is open
            await run_sync(self._replace)

    def _replace(self) -> None:
        owner, heir = self.clients
        kill(owner.process, self.folder)
        owner.close()
        assert "mail__echo" in heir.tools()
        self.clients = [heir, self._start()]

    async def client(self, journal: Journal) -> None:
        while not journal.over:
            async with self._lock:
                for desk in self.clients:
                    text = f"dora {journal.calls['dora']}"
                    answer = await run_sync(self._call, desk, text)
                    assert not answer["result"].get("isError") and text in str(answer["result"]), answer
                    journal.calls["dora"] += 1
            await anyio.sleep(PAUSE)

    def _call(self, desk: Desktop, text: str) -> Json:
        return desk.ask("tools/call", name="mail__echo", arguments={"text": text})

    def close(self) -> None:
        for client in self.clients:
            client.close()


async def days(machine: Gateway | DesktopMachine, journal: Journal, lots: random.Random) -> None:
    """Each day has a night and a death, at any hour."""
    end = time.monotonic() + DAYS * 24 * HOUR
    while time.monotonic() < end:
        evening = lots.uniform(0.1, 0.5) * (min(DAYS, 1) * 24 * HOUR - NIGHT)
        dawn = time.monotonic() + min(DAYS, 1) * 24 * HOUR
        await anyio.sleep(evening)
        asleep = machine.processes()
        await run_sync(stop, asleep, machine.folder)
        await anyio.sleep(NIGHT)
        send(asleep, signal.SIGCONT)
        journal.nights += 1
        await anyio.sleep(lots.uniform(0.1, 0.6) * max(0.0, dawn - time.monotonic()))
        await machine.die()
        journal.kills[machine.name] += 1
        await anyio.sleep(max(0.0, dawn - time.monotonic()))


async def together(*parts: Callable[[], Awaitable[None]]) -> None:
    async with anyio.create_task_group() as group:
        for part in parts:
            group.start_soon(part)


async def live(gateway: Gateway, desk: DesktopMachine, journal: Journal) -> None:
    lots = random.Random(7)

    async def time_goes_by() -> None:
        await together(lambda: days(gateway, journal, lots), lambda: days(desk, journal, lots))
        await until(lambda: min(journal.calls[who] for who in ("ann", "bob", "dora")) > DAYS * 24)  # if it is busy
        journal.over = True

    with anyio.fail_after(120 + DAYS * 24 * HOUR * 3):
        await together(
            time_goes_by, lambda: gateway.client("ann", True, journal), lambda: gateway.client("bob", False, journal),
            lambda: desk.client(journal),
        )  # fmt: skip


def test_days_with_nights_and_deaths_need_no_new_login(tmp_path: Path) -> None:
    journal = Journal()
    with misbehaving() as site, ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        site.switches.access_life, site.switches.token = HOUR + LEEWAY, {"expires_in": HOUR}
        site.switches.refresh_ends_access = True
        starting = pool.submit(DesktopMachine, tmp_path / "desktop", site)
        gateway = Gateway(tmp_path / "gateway", site)
        stack.callback(gateway.close)
        desk = starting.result()
        stack.callback(desk.close)
        gateway.log_in()
        site.switches.user = "dora"
        desk.log_in()
        before = [(seen.endpoint, seen.path) for seen in site.seen if seen.endpoint in LOGIN]
        anyio.run(live, gateway, desk, journal)
        assert gateway.logins() + desk.logins() == ["ok"] * 3
        assert [(seen.endpoint, seen.path) for seen in site.seen if seen.endpoint in LOGIN] == before
        used = [seen.form["refresh_token"] for seen in site.of("token", grant_type="refresh_token")]
        print(f"{DAYS:g} days, {journal.nights} nights, {dict(journal.kills)} kills, {dict(journal.calls)} calls,"
              f" {dict(journal.again)} made again, {len(used)} refreshes")  # fmt: skip
        logins = Counter(endpoint for endpoint, _ in before)
        assert logins == {"authorize": 2, "device": 1, "register": 2}, before
        assert len(used) == len(set(used)) and site.authority.reused == 0
        assert {seen.status for seen in site.of("token", grant_type="refresh_token")} == {200}
        renewals = Counter(grant.user for grant in site.authority.refresh.values())
        assert set(renewals) == {"ann", "bob", "dora"} and min(renewals.values()) > DAYS * 24 / 4
        assert min(journal.calls.values()) > DAYS * 24 and journal.again["dora"] == 0
        assert max(journal.again.values(), default=0) <= journal.kills["gateway"]
