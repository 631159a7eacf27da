"""A database that does not answer, or whose standby does not, behind replicas: plain calls go on, what must happen once
is refused, nothing happens twice, and all goes on by itself.

SLUICE_OUTAGE_SECONDS says for how long (30 in a soak, which has bars for times, too).
"""

import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from database_bed import Json, api, approve
from e2e.test_fleet import asking, at_once, modern
from e2e.wire import META, MODERN
from fleet_stage import ACCEPT, Session, forwarded
from peers.postgres import Cluster, pair, postgres
from policy_bed import Bed, bearer, reason

OUTAGE = float(os.environ.get("SLUICE_OUTAGE_SECONDS", "6"))
IS_SOAK = "SLUICE_OUTAGE_SECONDS" in os.environ
AT_ONCE = 2
"""Clients of each replica."""
REFUSED: Json = {"new": "store_unavailable", "spare": "store_unavailable", "round": "outcome_unknown"}
"""What is asked for, what was approved, and what goes on with a call that its server has begun. Approvals of one client
are asked for one after another: each waits for the one before."""


class Load:
    """Plain calls, each with a number: of modern clients at each replica, and of a session at the wrong one."""

    def __init__(self, beds: list[Bed], session: Session) -> None:
        self.took: list[float] = []
        self.failed: list[str] = []
        self._is_over = threading.Event()
        ask = [lambda client, number, at=at: plain(client, at, number) for at in beds * AT_ONCE]
        strays = [lambda client, number: session.call(beds[-1], "bank__look", number=number)]
        self._threads = [
            threading.Thread(target=self._run, args=(kind, one)) for kind, one in enumerate([*ask, *strays])
        ]  # fmt: skip
        self.sent = Counter[str]()

    def _run(self, kind: int, ask: Callable[[httpx.Client, str], httpx.Response]) -> None:
        count = 0
        with httpx.Client(timeout=20) as client:
            while not self._is_over.is_set():
                count += 1
                self.sent[f"{kind}-{count}"] += 1
                began = time.monotonic()
                answer = ask(client, f"{kind}-{count}")
                self.took.append(time.monotonic() - began)
                if answer.status_code != 200 or reason(answer) or "error" in answer.json():
                    self.failed.append(answer.text[:200])

    @contextmanager
    def running(self) -> Iterator[None]:
        for one in self._threads:
            one.start()
        try:
            yield
        finally:
            self._is_over.set()
            for one in self._threads:
                one.join()

    def p99(self, since: int = 0) -> float:
        took = sorted(self.took[since:])
        return took[math.ceil(len(took) * 0.99) - 1]


def plain(client: httpx.Client, at: Bed, number: str, tool: str = "bank__look") -> httpx.Response:
    head = {**ACCEPT, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool,
            **bearer("ann")}  # fmt: skip
    params = {"name": tool, "arguments": {"number": number}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return client.post(at.process.url, json=body, headers=head)


def executed(at: Bed, tool: str) -> Counter[str]:
    """How often each call of that tool reached the server."""
    lines = (at.folder.parents[1] / "bank" / "seen.jsonl").read_text().splitlines()
    calls = [one["params"] for one in map(json.loads, lines) if one["method"] == "tools/call"]
    mine = [one["arguments"] for one in calls if one["name"] == tool]
    return Counter(str(one.get("number", one.get("to"))) for one in mine)


def pending(at: Bed, to: str, who: str = "ann") -> str:
    """The approval that a call waits for."""
    return str(at.call(who, "bank__wire", to=to).json()["result"]["_meta"]["dev.sluice/approval"]["id"])


def approved(asked: Bed, decided: Bed, to: str) -> None:
    assert approve(decided, pending(asked, to)) == 200


def stray(at: Bed, session: Session, to: str) -> Json:
    """The answer to a call that is held for as long as it takes."""
    params = {"name": "bank__wire", "arguments": {"to": to}}
    body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}
    head = {**ACCEPT, **session.headers, **bearer(session.who)}
    answer = httpx.post(at.process.url, json=body, headers=head, timeout=OUTAGE + 120)
    found: Json = json.loads(answer.text.rpartition("data: ")[2])
    return found


def timed(ask: Callable[[], Any]) -> tuple[Any, float]:
    began = time.monotonic()
    return ask(), time.monotonic() - began


@contextmanager
def two(folder: Path, url: str) -> Iterator[list[Bed]]:
    """The first holds calls open, the second does not."""
    with ExitStack() as stack:
        holds = {"a": "5m", "b": "100ms"}
        yield at_once(stack, (asking(folder, name, url, approvals={"hold_for": held}, ready=False)
                              for name, held in holds.items()))  # fmt: skip


def round_of(at: Bed) -> Json:
    """What goes on with a call that has asked."""
    asked = modern(at, "tools/call", name="ask__name")
    (key,) = asked["inputRequests"]
    answer = {key: {"action": "accept", "content": {"name": "Ada"}}}
    return {"requestState": asked["requestState"], "inputResponses": answer}


def told(answer: Json) -> str:
    return str(answer.get("_meta", {}).get("dev.sluice/reason", answer.get("error", "")))


def test_a_database_that_stops_for_a_while_is_missed_by_nobody_but_who_needs_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool, postgres("fsync=off") as own, two(tmp_path, own.url) as (here, there):
        session = Session(here)
        approved(there, here, "spare")
        again = round_of(here)
        held = pool.submit(stray, there, session, "held")
        waiting: list[Json] = []  # what is approved and unused may be listed, too

        def is_held() -> bool:
            rows = api(there, "approvals").json()["approvals"]
            waiting[:] = [row for row in rows if row["arguments"] == {"to": "held"}]
            return waiting != []

        there.until(is_held)
        load = Load([here, there], Session(here))
        with load.running(), ExitStack() as stack:
            here.until(lambda: len(load.took) >= (1000 if IS_SOAK else 50))
            before, quiet = len(load.took), load.p99()
            own.pause()
            stack.callback(own.resume)
            began = time.monotonic()
            asks: dict[str, Callable[[], str]] = {
                "new": lambda: reason(there.call("lea", "bank__wire", to="new")),
                "spare": lambda: reason(there.call("ann", "bank__wire", to="spare")),
                "round": lambda: told(modern(here, "tools/call", name="ask__name", **again)),
            }
            refused = {name: pool.submit(timed, ask) for name, ask in asks.items()}
            answers = {name: one.result() for name, one in refused.items()}
            assert {name: why for name, (why, _) in answers.items()} == REFUSED
            time.sleep(max(0.0, OUTAGE - (time.monotonic() - began)))
            during = load.p99(before)
            stack.close()
            back = there.until(lambda: reason(there.call("lea", "bank__wire", to="new")) == "approval_pending")
            assert not held.done(), held.result()
            there.until(lambda: approve(there, waiting[0]["id"]) == 200)
            assert "isError" not in held.result(30)["result"]
        slowest = max(took for _, took in answers.values())
        refusals = ", ".join(f"{name} {took:.1f} s" for name, (_, took) in answers.items())
        print(f"stopped for {OUTAGE:.0f} s: {len(load.took)} plain calls, {len(load.failed)} failed; p99 "
              f"{quiet * 1000:.0f} ms before, {during * 1000:.0f} ms meanwhile; refused: {refusals}; "
              f"back after {back:.1f} s")  # fmt: skip
        assert not load.failed, load.failed[:3]
        assert executed(here, "look") == load.sent
        assert executed(here, "wire")["held"] == 1 and "gone" not in forwarded(there)
        there.call("ann", "bank__wire", to="spare")  # its use may have taken place in the database, and is no yes then
        assert executed(here, "wire") <= Counter(["held", "spare"])
        if IS_SOAK:
            assert during <= 1.5 * quiet and slowest <= 5.5 and back < 10


@pytest.fixture
def replicated() -> Iterator[tuple[Cluster, Cluster]]:
    with pair() as both:
        yield both


def test_a_standby_that_hangs_keeps_from_happening_what_must_happen_once_and_nothing_else(
    tmp_path: Path, replicated: tuple[Cluster, Cluster]
) -> None:
    primary, standby = replicated
    with ThreadPoolExecutor() as pool, two(tmp_path, primary.url) as (here, there):
        approved(there, here, "spare")
        asked, again = pending(there, "asked"), round_of(here)
        load = Load([here, there], Session(here))
        with load.running(), ExitStack() as stack:
            standby.pause()
            stack.callback(standby.resume)
            began = time.monotonic()
            asks: dict[str, Callable[[], object]] = {
                "new": lambda: reason(there.call("lea", "bank__wire", to="new")),
                "spare": lambda: reason(there.call("ann", "bank__wire", to="spare")),
                "round": lambda: told(modern(here, "tools/call", name="ask__name", **again)),
                "approve": lambda: approve(here, asked),
            }
            refused = {name: pool.submit(timed, ask) for name, ask in asks.items()}
            answers = {name: one.result() for name, one in refused.items()}
            assert {name: why for name, (why, _) in answers.items()} == {**REFUSED, "approve": 503}
            time.sleep(max(0.0, OUTAGE - (time.monotonic() - began)))
            assert executed(here, "wire").total() == 0
            stack.close()
            back = there.until(lambda: reason(there.call("lea", "bank__wire", to="new")) == "approval_pending")
        slowest = max(took for _, took in answers.values())
        refusals = ", ".join(f"{name} {took:.1f} s" for name, (_, took) in answers.items())
        print(f"standby stopped for {OUTAGE:.0f} s: {len(load.took)} plain calls, {len(load.failed)} failed; refused: "
              f"{refusals}; back after {back:.1f} s")  # fmt: skip
        assert not load.failed, load.failed[:3]
        assert executed(here, "look") == load.sent
        assert reason(there.call("ann", "bank__wire", to="spare")) == "approval_pending", "what was unclear is spent"
        there.until(lambda: approve(there, asked) in (200, 409))  # the first yes may count by now
        together = [pool.submit(at.call, "ann", "bank__wire", to="asked") for at in (there, there, there)]
        assert [one.result().status_code for one in together] == [200] * 3
        assert executed(here, "wire") == Counter(["asked"])
        if IS_SOAK:
            assert slowest <= 5.5 and back < 10
