"""Rows of the console under load: many calls, many tools, many consoles, many records, a day's tab."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
from audit import audit_kit
from console_kit import ROOT, Figure, Json, Stage, stage
from e2e.sluice_process import COMMAND, clean_environment
from peers.fleet import free_port, running
from playwright.sync_api import Browser, Page, expect
from policy_bed import bearer, key_of
from waiting import until_so

from sluicegate.audit.log import AuditLog
from sluicegate.store.keys import KeyRing

HERE = Path(__file__).parent
BENCH = HERE.parent / "bench"
SUBJECT_CORE, LOAD_CORE = 0, 1
CONSOLES, PAIRS, PAIR_SECONDS, WATCHED = 20, 9, 5, 20.0
PAGES = ["", "/approvals", "/activity", "/servers"]
TOOLS, SERVERS = 500, 10
RECORDS = 100_000
WATCH = """
window.seen = {tasks: [], delays: [], updates: 0, began: performance.now()};
new MutationObserver(() => { window.seen.updates += 1; })
  .observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true});
new PerformanceObserver((list) => { window.seen.tasks.push(...list.getEntries().map((one) => one.duration)); })
  .observe({type: "longtask"});
new PerformanceObserver((list) => { window.seen.delays.push(...list.getEntries().map((one) => one.duration)); })
  .observe({type: "event", durationThreshold: 16});
"""
OPENED = """() => new Promise((done) => {
  const began = performance.now(), link = document.createElement("a");
  new MutationObserver((_, own) => {
    if (!document.querySelector(".branch")) return;
    own.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
  }).observe(document.body, {subtree: true, childList: true});
  link.href = "/console/catalog?as=key:ann";
  document.body.append(link);
  link.click();
  link.remove();
})"""
SEEN = "({...window.seen, seconds: (performance.now() - window.seen.began) / 1000})"


@contextmanager
def _server(folder: Path, script: str, *words: object) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, str(BENCH / script), str(port), *map(str, words)]
    with running(command, folder / f"{script}.log"):
        until_so(lambda: _listens(port), 30, (folder / f"{script}.log").read_text)
        yield f"http://127.0.0.1:{port}"


def _listens(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/", timeout=1)
    except httpx.ConnectError:
        return False
    except httpx.HTTPError:
        return True
    return True


@contextmanager
def before_a_fast_server(chrome: Browser, folder: Path) -> Iterator[Stage]:
    with _server(folder, "fast_server.py") as url:
        with stage(chrome, folder, {"fast": {"url": f"{url}/mcp", "concurrency": 64}}) as made:
            yield made


@contextmanager
def before_many_tools(chrome: Browser, folder: Path) -> Iterator[Stage]:
    """Steps of Sluice's loop that take more than 5 ms are written to a file."""
    with _server(folder, "many_server.py", TOOLS, 0) as url:
        servers = {f"s{number}": {"url": f"{url}/s{number}/mcp"} for number in range(SERVERS)}
        os.environ["SLUICE_SLOW_TURNS"] = str(folder / "slow")
        try:
            with stage(chrome, folder, servers) as made:
                yield made
        finally:
            del os.environ["SLUICE_SLOW_TURNS"]


@contextmanager
def before_a_long_log(chrome: Browser, folder: Path) -> Iterator[Stage]:
    """Its log has calls of before this Sluice began, each an intent and an outcome."""
    keys = folder / "state" / "keys"
    keys.parent.mkdir(mode=0o700)
    settings = audit_kit.settings(folder, durability="write")

    async def fill() -> None:
        log = AuditLog(settings, KeyRing.load(keys, "digest").newest, KeyRing.load(keys, "sign").keys.values())
        await log.start()
        await audit_kit.one_call(log, "rare", arguments={"text": "needle"})
        for number in range(RECORDS // 2):
            await audit_kit.one_call(log, f"c{number}")
        await log.stop()

    with ThreadPoolExecutor(1) as thread:  # the browser runs a loop in this one
        thread.submit(anyio.run, fill).result()
    with stage(chrome, folder) as made:
        yield made


def _calls(stage: Stage, tool: str, seconds: float, rate: float = 0, connections: int = 16) -> "subprocess.Popen[str]":
    words = [stage.town.process.url, key_of("ann"), tool, "--connections", connections, "--seconds", seconds]
    command = [sys.executable, HERE / "calls.py", *words, "--rate", rate]
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)


def _latency(load: "subprocess.Popen[str]") -> Json:
    told: Json = json.loads(load.communicate()[0])
    assert told["calls"] and not told["bad"], told
    return told


@contextmanager
def traced(chrome: Browser, tab: Page) -> Iterator[list[float]]:
    """Milliseconds of CPU of each task of the page's main thread: other processes make it no longer."""
    tasks: list[float] = []
    chrome.start_tracing(page=tab, categories=["toplevel"])
    yield tasks
    events = json.loads(chrome.stop_tracing())["traceEvents"]
    mains = {(one["pid"], one["tid"]) for one in events
             if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"}  # fmt: skip
    tasks += [one["tdur"] / 1e3 for one in events if (one["pid"], one["tid"]) in mains and "tdur" in one]


def heap(tab: Page) -> float:
    """MiB after a collection."""
    devtools = tab.context.new_cdp_session(tab)
    devtools.send("HeapProfiler.collectGarbage")
    used = float(devtools.send("Runtime.getHeapUsage")["usedSize"]) / 2**20
    devtools.detach()
    return used


# ---------------------------------------------------------------- 200 calls a second


def activity(stage: Stage) -> Iterator[Figure]:
    """200 calls a second for a minute, with Activity open."""
    with stage.tab(viewport={"width": 1280, "height": 800}) as tab:
        load = _calls(stage, "fast__echo", 85, rate=200)
        tab.goto(f"{stage.url}/activity")
        expect(tab.locator(".row.call").first).to_be_visible()
        tab.wait_for_timeout(10_000)
        before = heap(tab)
        tab.evaluate(WATCH)
        search, most = tab.get_by_label("Text", exact=True), 0
        for turn in range(30):
            search.press(chr(ord("a") + turn % 26))
            most = max(most, tab.locator(".row.call").count())
            tab.wait_for_timeout(2_000)
        search.fill("")  # what is typed would become a filter
        seen = tab.evaluate(SEEN)
        grown = heap(tab) - before
        is_said = tab.get_by_text("Calls come faster than they are shown").count() > 0
        tab.get_by_role("button", name="Pause").click()
        missing = _missing(stage, tab)
        told = _latency(load)
    yield Figure("200 calls/s: calls made a second, below 200 by", 200 - told["calls"] / told["seconds"], 2, "calls/s")
    yield Figure("200 calls/s: updates of the page", seen["updates"] / seen["seconds"], 10, "a second")
    yield Figure("200 calls/s: rows at most", most, 500, "rows")
    yield Figure("200 calls/s: the longest task", max([0, *seen["tasks"]]), 200, "ms")
    yield Figure("200 calls/s: input to the next picture, worst of 30 keys", max([0, *seen["delays"]]), 100, "ms")
    yield Figure("200 calls/s: heap after collection, growth", grown, 5, "MiB")
    yield Figure("200 calls/s: calls left out between the rows", missing, 0, "calls")
    yield Figure("200 calls/s: calls that are left out, and not said", 0 if is_said else 1, 0, "silences")


def _missing(stage: Stage, tab: Page) -> int:
    """Calls of the log that lie between rows of the page and are not among them."""
    rows = tab.locator(".row.call").evaluate_all("rows => rows.map(row => [row.pathname.split('/').at(-1), "
                                                 "row.querySelector('time').dateTime])")  # fmt: skip
    shown, oldest = {id for id, _ in rows}, rows[-1][1]
    query: dict[str, Any] = {"since": oldest, "until": rows[0][1], "limit": 100}
    found: set[str] = set()
    with httpx.Client(base_url=stage.town.process.admin, headers=bearer("lea"), timeout=30) as ask:
        while True:
            page = ask.get("/api/v1/calls", params=query).raise_for_status().json()
            found |= {one["id"] for one in page["calls"] if one["time"] > oldest}
            if not page.get("next"):
                break
            query["before"] = page["next"]
    assert len(found) > 50, "calls were found to compare"
    return len(found - shown)


# ---------------------------------------------------------------- a day's tab


def day(stage: Stage) -> Iterator[Figure]:
    """The events of a day in ten minutes, the tab hidden half of the time; SLUICE_DAY_SECONDS makes it shorter."""
    seconds, rounds = float(os.environ.get("SLUICE_DAY_SECONDS", "600")), 20
    with stage.tab() as tab, httpx.Client(headers=bearer("lea")) as lea:
        streams, most = set[Any](), 0
        tab.on("request", lambda one: streams.add(one) if one.url.endswith("/api/v1/events") else None)
        for over in ("requestfinished", "requestfailed"):
            tab.on(over, lambda one: streams.discard(one))
        tab.goto(f"{stage.url}/approvals")
        expect(tab.locator(".status")).to_contain_text("live")
        stage.asked(n=-1)
        tab.wait_for_timeout(2_000)
        before, missed, asked = heap(tab), 0, 0
        for turn in range(rounds):
            if turn % 2:
                tab.evaluate(HIDE, True)
            give_up = time.monotonic() + seconds / rounds
            while time.monotonic() < give_up:
                id = stage.asked(n=(asked := asked + 1))
                lea.post(f"{stage.town.process.admin}/api/v1/approvals/{id}/decisions", json={"decision": "deny"})
                tab.wait_for_timeout(200)
                most = max(most, len(streams))
            last = stage.asked(last=turn)
            if turn % 2:
                tab.evaluate(HIDE, False)
            try:
                expect(tab.locator(f"a[href*={last}]")).to_be_visible(timeout=5_000)
            except AssertionError:
                missed += 1
            lea.post(f"{stage.town.process.admin}/api/v1/approvals/{last}/decisions", json={"decision": "deny"})
        name = f"a day's tab, {asked} approvals in {seconds:.0f} s"
        yield Figure(f"{name}: heap after collection, growth", heap(tab) - before, 5, "MiB")
        yield Figure(f"{name}: approvals missed", missed, 0, "approvals")
        yield Figure(f"{name}: streams at once", most, 1, "streams")


HIDE = """(isHidden) => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => isHidden});
  document.dispatchEvent(new Event("visibilitychange"));
}"""

# ---------------------------------------------------------------- 5,000 tools


def tools(stage: Stage) -> Iterator[Figure]:
    """The Catalog with 5,000 tools: the list, the page, a search, and what it costs all others meanwhile."""
    slow = stage.town.folder / "slow"
    name = f"{TOOLS * SERVERS:,} tools"
    with httpx.Client(base_url=stage.town.process.admin, headers=bearer("lea"), timeout=60) as ask:
        taken = []
        for turn in range(6):
            if turn == 1:  # by then all servers were asked
                slow.write_text("")
            for path in ("tools/judged?as=key:ann", "pins?waiting=1", "prompts?as=key:ann", "resources?as=key:ann"):
                ask.get(f"/api/v1/{path}").raise_for_status()
            began = time.monotonic()
            listed = ask.get("/api/v1/tools?as=key:ann").raise_for_status().json()["tools"]
            taken.append((time.monotonic() - began) * 1e3)
        assert len(listed) > TOOLS * SERVERS
    yield Figure(f"{name}: the list as JSON, median of 5", statistics.median(taken[1:]), 300, "ms")
    yield Figure(f"{name}: Sluice's loop held up by what the page asks", _longest(slow), 20, "ms")
    shown = []
    with stage.tab(viewport={"width": 1280, "height": 800}) as tab:
        tab.goto(f"{stage.url}/servers")
        expect(tab.locator(".status")).to_contain_text("live")
        slow.write_text("")
        for _ in range(5):
            shown.append(tab.evaluate(OPENED))
            tab.get_by_role("link", name="Servers").click()
        tab.evaluate(OPENED)
        tab.evaluate(WATCH)
        search = tab.get_by_role("searchbox")
        for key in "do_499":
            search.press(key)
            tab.wait_for_timeout(400)
        expect(tab.get_by_text(f"{SERVERS} definitions")).to_be_visible()
        keys = tab.evaluate(SEEN)["delays"]
        search.fill("")
        with traced(stage.chrome, tab) as tasks:
            tab.get_by_role("link", name="Servers").click()
            tab.evaluate(OPENED)
            expect(tab.locator(".list[aria-busy=true]")).to_have_count(0)
            tab.get_by_role("searchbox").press("d")
            expect(tab.locator(".leaf").first).to_be_visible()
    yield Figure(f"{name}: Catalog opened to its rows, median of 5", statistics.median(shown), 300, "ms")
    yield Figure(f"{name}: search, a key to the next picture, worst of 6", max([0, *keys]), 150, "ms")
    yield Figure(f"{name}: the longest task of the page, in CPU", max(tasks), 20, "ms")
    print(f"  with a browser beside it on this machine: {_longest(slow):.1f} ms")


def _longest(slow: Path) -> float:
    """Of the steps that are in the file, or 5 ms, below which none is written."""
    return max((float(line.split()[0]) for line in slow.read_text().splitlines()), default=5.0)


# ---------------------------------------------------------------- 20 consoles


def consoles(stage: Stage) -> Iterator[Figure]:
    """What 20 open consoles cost clients. What a console asks is seen in real tabs; others then ask the same."""
    _pin(stage.town.process.process.pid, SUBJECT_CORE)
    plan = _watched(stage)
    off, on = _pairs(stage, lambda: _asking("consoles.py", plan=plan), "p50")
    asked = sum(len(tab) for tab in plan["tabs"]) / len(plan["tabs"]) / plan["seconds"]
    yield Figure(f"{CONSOLES} consoles: what one asks", asked, 5, "requests/s")
    ratios = [100 * (b / a - 1) for a, b in zip(off, on, strict=True)]
    name = f"{CONSOLES} consoles: p50 of 16 calls, {statistics.median(off):.1f} ms, median of {PAIRS} pairs"
    yield Figure(name, statistics.median(ratios), 5, "% more")


def attack(stage: Stage) -> Iterator[Figure]:
    """Slow streams, large headers and a storm of logins, beside 100 calls a second."""
    _pin(stage.town.process.process.pid, SUBJECT_CORE)
    words = [stage.town.process.admin, key_of("lea")]
    off, on = _pairs(stage, lambda: _asking("attack.py", *words), "p99", rate=100)
    ratios = [b / a for a, b in zip(off, on, strict=True)]
    name = f"attacked: p99 of calls, {statistics.median(off):.1f} ms, median of {PAIRS} pairs"
    yield Figure(name, statistics.median(ratios), 1.5, "times as long")


def _pairs(
    stage: Stage, begin: "Callable[[], subprocess.Popen[str]]", figure: str, rate: float = 0
) -> tuple[list[float], list[float]]:
    """Latency of calls without and with what `begin` starts, in turns."""
    off, on = list[float](), list[float]()
    for turn in range(PAIRS):
        for is_on in (False, True) if turn % 2 else (True, False):
            other = begin() if is_on else None
            load = _calls(stage, "fast__echo", PAIR_SECONDS, rate)
            _pin(load.pid, LOAD_CORE)
            (on if is_on else off).append(_latency(load)[figure])
            if other is not None:
                assert other.poll() is None, "it went on until the end"
                other.communicate()
    return off, on


def _watched(stage: Stage) -> Json:
    """What a tab on each of some pages asks, once it is open, beside calls."""
    began, asks, headers = 0.0, [list[tuple[float, str]]() for _ in PAGES], dict[str, str]()
    load = _calls(stage, "fast__echo", WATCHED + 20, rate=200)
    context = stage.chrome.new_context(storage_state=stage.session)  # type: ignore[arg-type]
    for at, where in enumerate(PAGES):
        tab = context.new_page()
        tab.goto(stage.url + where)
        expect(tab.locator(".status")).to_contain_text("live")
        kept = asks[at]

        def note(request: Any, kept: list[tuple[float, str]] = kept) -> None:
            path = request.url.removeprefix(stage.town.process.admin)
            if began and time.monotonic() - began < WATCHED:
                kept.append((time.monotonic() - began, path))
                headers.update({k: v for k, v in request.headers.items() if k.startswith(("x-", "accept", "user-"))})

        tab.on("request", note)
    began = time.monotonic()
    tab.wait_for_timeout(WATCHED * 1e3)
    (cookie,) = context.cookies()
    context.close()
    load.terminate()
    load.wait()
    headers |= {"cookie": f"{cookie['name']}={cookie['value']}", "sec-fetch-site": "same-origin"}
    assert all(asks), "each tab asked something"
    return {"url": stage.town.process.admin, "headers": headers, "seconds": WATCHED, "tabs": asks, "count": CONSOLES}


def _asking(script: str, *words: str, plan: Json | None = None) -> "subprocess.Popen[str]":
    """It goes on until its stdin ends."""
    process = subprocess.Popen([sys.executable, str(HERE / script), *words], stdin=subprocess.PIPE, text=True)
    _pin(process.pid, LOAD_CORE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(plan) + "\n")
    process.stdin.flush()
    return process


def _pin(pid: int, core: int) -> None:
    """All threads of a process, where there are cores to choose from."""
    if (os.cpu_count() or 1) > 1:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})


# ---------------------------------------------------------------- 100,000 records


def log(stage: Stage) -> Iterator[Figure]:
    """Activity, Audit and the proof, over HTTP as the pages ask for them, and in the page."""
    with httpx.Client(base_url=stage.town.process.admin, headers=bearer("lea"), timeout=120) as ask:
        for what, name in (("calls", "Activity"), ("audit/records", "Audit")):
            taken = []
            for _ in range(5):
                began = time.monotonic()
                page = ask.get(f"/api/v1/{what}", params={"limit": 100}).raise_for_status().json()
                taken.append((time.monotonic() - began) * 1e3)
                assert len(page.get("calls", page.get("records"))) == 100
            yield Figure(
                f"{RECORDS:,} records: newest page of {name}, median of 5", statistics.median(taken), 200, "ms"
            )
        for what, wanted in (("calls", {"q": "needle"}), ("audit/records", {"call": "rare"})):
            seconds, found, requests = _to_the_end(ask, what, wanted)
            assert found == (1 if what == "calls" else 2), found
            yield Figure(f"{RECORDS:,} records: rare in {what}, {requests} requests to the end", seconds, 2, "s")
        began = time.monotonic()
        assert ask.get(f"/api/v1/calls/c{RECORDS // 2 - 10}").status_code == 200
        yield Figure(f"{RECORDS:,} records: the story of a call near the end", time.monotonic() - began, 1, "s")
    with stage.tab() as tab:
        tab.goto(f"{stage.url}/audit")
        expect(tab.locator(".row").first).to_be_visible()
        shown = tab.evaluate("performance.now()")
        yield Figure(f"{RECORDS:,} records: Audit opened to its rows", shown, 1_000, "ms")
        command = [*COMMAND, "audit", "verify", "-c", str(stage.town.process.config)]
        jobs, lines = [], []
        for _ in range(3):
            began = time.monotonic()
            subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, check=True)
            lines.append(time.monotonic() - began)
            began = time.monotonic()
            tab.get_by_role("button", name="Verify").click()
            expect(tab.locator("[aria-labelledby=u-proof] progress")).to_be_visible()
            expect(tab.locator("[aria-labelledby=u-proof] progress")).to_have_count(0, timeout=120_000)
            jobs.append(time.monotonic() - began)
            expect(tab.locator("[aria-labelledby=u-proof]")).to_contain_text("proved: signed up to record")
    job, line = statistics.median(jobs), statistics.median(lines)
    yield Figure(
        f"{RECORDS:,} records: verify in the page, beside {line:.1f} s of the CLI", job / line, 1.1, "times as long"
    )


def _to_the_end(ask: httpx.Client, what: str, wanted: dict[str, str]) -> tuple[float, int, int]:
    """Seconds, rows and requests of a search down to the first record."""
    began, found, requests, query = time.monotonic(), 0, 0, dict(wanted)
    while True:
        page = ask.get(f"/api/v1/{what}", params=query).raise_for_status().json()
        found, requests = found + len(page.get("calls", page.get("records"))), requests + 1
        if not page.get("next"):
            return time.monotonic() - began, found, requests
        query["before"] = page["next"]
