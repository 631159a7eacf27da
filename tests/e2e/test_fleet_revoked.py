"""A key that is revoked, or blocked, at one replica loses everything that it has at another."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from database_bed import Json, api, approve, command, database, seen, settings
from e2e.test_fleet import asking, modern, replica
from e2e.wire import META, MODERN
from fleet_stage import ACCEPT, Session
from peers.postgres import Cluster, postgres
from peers.tcp_proxy import tcp_proxy
from policy_bed import Bed, bearer, reason

__all__ = ["database"]
IS_SOAK = "SLUICE_OUTAGE_SECONDS" in os.environ
WITHIN = 5.0 if IS_SOAK else 30.0
"""Seconds from the command until nothing is left. It needs two, and as many as a busy machine takes."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


class Held:
    """Somebody else's open request: ends when the replica ends it."""

    def __init__(self, send: Callable[[], Any]) -> None:
        self.answer: Any = None
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(send,), daemon=True)
        self._thread.start()

    def _run(self, send: Callable[[], Any]) -> None:
        with suppress(httpx.TransportError):  # a stream may be cut
            self.answer = send()
        self.ended.set()


def listened(url: str, opened: threading.Event, **options: Any) -> None:
    method = options.pop("method", "GET")
    with httpx.stream(method, url, timeout=60, **options) as stream:
        assert stream.status_code == 200
        opened.set()
        for _ in stream.iter_raw():
            pass


def streams(at: Bed, other: Bed, session: Session) -> dict[str, Held]:
    """One of each kind at the first replica, that of the session twice: also from the other one."""
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {}}
    listen: Json = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen",
                    "params": {"notifications": {"toolsListChanged": True}, "_meta": meta}}  # fmt: skip
    head = {**ACCEPT, **bearer("ann")}
    second = Session(at)
    wanted: dict[str, tuple[str, Json]] = {
        "session": (at.process.url, {"headers": {**head, **second.headers}}),
        "session, passed on": (other.process.url, {"headers": {**head, **session.headers}}),
        "2024": (at.process.url.removesuffix("/mcp") + "/sse", {"headers": head}),
        "listen": (at.process.url, {"method": "POST", "json": listen, "headers": {
            **head, "MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}}),
    }  # fmt: skip
    found = {}
    for name, (url, options) in wanted.items():
        opened = threading.Event()
        found[name] = Held(partial(listened, url, opened, **options))
        assert opened.wait(20), name
    return found


@pytest.mark.parametrize("how", ["revoked", "blocked"])
def test_nothing_is_left_at_another_replica(tmp_path: Path, database: str, how: str) -> None:
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        here = stack.enter_context(asking(tmp_path, "a", database, approvals={"hold_for": "100ms"}))
        there = stack.enter_context(asking(tmp_path, "b", database, approvals={"hold_for": "5m"}))
        session = Session(there)
        asked = modern(there, "tools/call", name="ask__name")
        (key,) = asked["inputRequests"]
        answer = {key: {"action": "accept", "content": {"name": "Ada"}}}
        again = {"name": "ask__name", "requestState": asked["requestState"], "inputResponses": answer}
        open_ones = streams(there, here, session)
        waits = {"held": Held(lambda: hold(there, None)), "held, passed on": Held(lambda: hold(here, session))}
        here.until(lambda: len(api(here, "approvals").json()["approvals"]) == 2)
        waiting = [one["id"] for one in api(here, "approvals").json()["approvals"]]
        given = here.call("ann", "bank__wire", to="granted").json()["result"]["_meta"]["dev.sluice/approval"]["id"]
        digest = api(here, f"approvals/{given}").json()["digest"]
        yes = {"decision": "approve", "seen_digest": digest, "scope": "15m"}
        assert api(here, f"approvals/{given}/decisions", method="POST", json=yes).status_code == 200
        there.until(lambda: len(api(there, "grants").json()["grants"]) == 1)

        began = time.monotonic()
        words = ("keys", "revoke", "ann") if how == "revoked" else ("block", "key:ann")
        done = command(here, *words)
        assert done.returncode == 0, done.stderr
        for name, one in open_ones.items() if how == "revoked" else ():
            assert one.ended.wait(max(0.0, began + WITHIN - time.monotonic())), f"{name} is open"
        took = time.monotonic() - began
        refused = [modern(at, "tools/call", **again) for at in (here, there)]
        assert all("Ada" not in str(one) and ("error" in one or one.get("isError")) for one in refused), refused
        if how == "revoked":
            there.until(lambda: not api(there, "grants").json()["grants"], WITHIN)
        for id in waiting:
            approve(there, id)  # of a block it is too late for a yes: the call is judged anew
        for name, one in waits.items():
            assert one.ended.wait(30), f"{name} waits"
        tries = [pool.submit(at.call, "ann", "bank__wire", to="granted") for at in (here, there)]
        if how == "revoked":
            assert [one.result().status_code for one in tries] == [401, 401]
        else:
            assert not [name for name, one in open_ones.items() if one.ended.is_set()], "a block ends no stream"
            answers = [one.result() for one in tries]
            assert all(reason(one) or "error" in one.json() for one in answers), [one.text for one in answers]
        assert seen(there) == []
        print(f"{how}: nothing was left after {took:.1f} s")


@pytest.mark.skipif(not IS_SOAK, reason="it waits for half a minute: `make soak` has it")
def test_a_replica_that_is_cut_off_serves_until_it_is_stale_and_is_named(tmp_path: Path) -> None:
    with postgres("fsync=off") as own, tcp_proxy(own.port) as between, ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        here = stack.enter_context(replica(tmp_path, "a", own.url))
        state = settings(tmp_path / "b" / "sluice", own.url.replace(f":{own.port}/", f":{between.port}/"))["state"]
        there = stack.enter_context(replica(tmp_path, "b", own.url, state={**state, "stale": "12s"}))
        between.cut()
        revoking = pool.submit(command, here, "keys", "revoke", "ann")
        assert there.call("ann", "bank__look").status_code == 200
        here.until(lambda: here.call("ann", "bank__look").status_code == 401)
        there.until(lambda: reason(there.call("ann", "bank__look")) == "store_unavailable")
        assert there.process.get("/readyz")[0] == 503 and reason(there.call("lea", "bank__look")) == "store_unavailable"
        assert here.process.get("/readyz")[0] == 200 and reason(here.call("lea", "bank__look")) == ""
        done = revoking.result()
        assert done.returncode == 4 and "ann is revoked, and not confirmed by b" in done.stderr, done.stderr
        between.mend()
        there.until(lambda: there.call("ann", "bank__look").status_code == 401)
        there.until(lambda: reason(there.call("lea", "bank__look")) == "")


def hold(at: Bed, session: Session | None) -> str:
    """A call that waits for a person, of a modern client or of a session."""
    if session is None:
        head = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "bank__wire"}
    else:
        head = session.headers
    meta = {"_meta": META} if session is None else {}
    params = {"name": "bank__wire", "arguments": {"to": "held" if session is None else "passed on"}, **meta}
    body = {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": params}
    return httpx.post(at.process.url, json=body, headers={**ACCEPT, **head, **bearer("ann")}, timeout=120).text
