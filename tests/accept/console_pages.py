"""What the console's pages cost people and machines: one row a figure, with its bar. Runs in Debian's Chromium.

A click, a key or one typed text is one interaction. Seconds are of this machine. Exits with 1 if a bar is missed.
Run it with: make accept ARGS=--console, and give words of rows to run those alone: ARGS="--console restart cold".
"""

import argparse
import gzip
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
from audit import audit_kit
from console.browser import browser, page
from e2e.sluice_process import COMMAND, clean_environment
from peers.fleet import running
from playwright.sync_api import Browser, Page, Response, expect
from policy_bed import Bed, bed, client_keys, key_of, recorder

from sluicegate.audit import newest

ROOT = Path(__file__).parent.parent.parent
Json = dict[str, Any]
ROWS = """\
p, role:everyone, bank, *, *, allow
p2, *, bank, tool:wire, *, one-of-leads
p, role:lead, sluice, admin:*, *, allow
p, local, sluice, admin:*, *, allow
"""
KEYS = {"ann": ["role:dev"], "lea": ["role:lead"]}
PHONE = {"width": 360, "height": 640}


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    bar: float
    unit: str

    @property
    def is_held(self) -> bool:
        return self.value <= self.bar

    def __str__(self) -> str:
        verdict = "" if self.is_held else "   MISSED"
        return f"{self.name:58} {self.value:10.1f} {self.unit:14} at most {self.bar:g}{verdict}"


class Hand:
    """A person at a page, whose interactions are counted."""

    def __init__(self, tab: Page) -> None:
        self.tab, self.count = tab, 0

    def open(self, url: str) -> None:
        """Follows a notification, or a link in a message."""
        self.count += 1
        self.tab.goto(url)

    def press(self, key: str) -> None:
        self.count += 1
        self.tab.keyboard.press(key)

    def click(self, name: str) -> None:
        self.count += 1
        self.tab.get_by_role("button", name=re.compile(name)).click()

    def type(self, name: str, text: str) -> None:
        self.count += 1
        self.tab.get_by_role("textbox", name=re.compile(name)).fill(text)


class Stage:
    """A Sluice, a browser, and what a lead's browser keeps of a session."""

    def __init__(self, town: Bed, chrome: Browser) -> None:
        self.town, self.chrome = town, chrome
        self.url = f"{town.process.admin}/console"
        context = chrome.new_context()
        tab = context.new_page()
        tab.goto(self.url)
        tab.get_by_label("Client key").fill(key_of("lea"))
        tab.get_by_role("button", name="Log in").click()
        expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
        self.session: Json = context.storage_state()  # type: ignore[assignment]
        context.close()

    def tab(self, **options: Any) -> Any:
        return page(self.chrome, storage_state=self.session, **options)

    def link(self) -> str:
        token = (self.town.folder / "state" / "operator.token").read_text()
        answer = httpx.post(f"{self.town.process.admin}/console/codes", headers={"Authorization": f"Bearer {token}"})
        return f"{self.url}#code={answer.json()['code']}"

    def asked(self, **arguments: Any) -> str:
        answer = self.town.call("ann", "bank__wire", **arguments).json()
        return str(answer["result"]["_meta"]["dev.sluice/approval"]["id"])


@contextmanager
def stage(chrome: Browser, folder: Path) -> Iterator[Stage]:
    settings: Json = {"clients": {"keys": client_keys(**KEYS)}, "approvals": {"hold_for": "100ms"}}
    with bed(folder, ROWS, {"bank": recorder(folder, "bank", tools=["wire", "look"])}, **settings) as town:
        yield Stage(town, chrome)


def is_armed(tab: Page) -> None:
    expect(tab.get_by_role("button", name=re.compile("Confirm"))).to_have_attribute("aria-disabled", "false")


def approving(stage: Stage) -> Iterator[Figure]:
    for viewport, name in (({"width": 1280, "height": 800}, "wide"), (PHONE, "360x640")):
        with stage.tab(viewport=viewport) as tab:
            hand = Hand(tab)
            hand.open(f"{stage.url}/approvals/{stage.asked(to=name)}")
            expect(tab.locator("article.card")).to_be_visible()
            sideways = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
            if name == "wide":
                hand.press("a")
                is_armed(tab)
                hand.press("Enter")
            else:
                hand.click("Approve once")
                is_armed(tab)
                hand.click("Confirm")
                yield Figure("approve, 360x640: pixels to scroll sideways", max(0, sideways), 0, "px")
            expect(tab.locator("[class~=over]")).to_contain_text("approved")
            yield Figure(f"approve from the notification, {name}", hand.count, 3, "interactions")
    with stage.tab() as tab:
        hand = Hand(tab)
        hand.open(f"{stage.url}/approvals/{stage.asked(to='nobody')}")
        hand.type("Comment", "not today")
        hand.click("Deny")
        expect(tab.locator("[class~=over]")).to_contain_text("denied")
        yield Figure("deny with a comment", hand.count, 3, "interactions")


def console_command(stage: Stage) -> Iterator[Figure]:
    """From the command to a page that can be used."""
    seconds = []
    for _ in range(5):
        with page(stage.chrome) as tab:
            began = time.monotonic()
            command = [*COMMAND, "console", "--no-browser", "-c", str(stage.town.process.config)]
            link = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=True).stdout
            tab.goto(link.strip())
            expect(tab.get_by_role("link", name="Approvals").first).to_be_visible()
            seconds.append(time.monotonic() - began)
    yield Figure("sluice console to a usable page, median of 5", statistics.median(seconds), 1.0, "s")


def cold_page(stage: Stage) -> Iterator[Figure]:
    answers: list[Response] = []
    urls: list[str] = []
    hosts: set[str] = set()
    with page(stage.chrome) as tab:
        devtools = tab.context.new_cdp_session(tab)
        sent: list[float] = []
        devtools.send("Network.enable")
        devtools.on("Network.loadingFinished", lambda event: sent.append(event["encodedDataLength"]))
        tab.on("request", lambda request: (urls.append(request.url), hosts.add(request.url.split("/")[2])))
        tab.on("response", lambda answer: "/events" in answer.url or answers.append(answer))
        tab.goto(stage.link())
        expect(tab.locator(".row").filter(has_text="bank").first).to_be_visible()
        tab.wait_for_timeout(1_000)  # so that what is asked for twice is counted twice
        yield Figure("cold page, logged in by a link: requests", len(urls), 12, "requests")
        yield Figure("cold page: bytes as sent", sum(sent) / 1024, 100, "KiB")
        packed = sum(len(gzip.compress(one.body())) for one in answers)
        yield Figure("cold page: bytes with gzip -9", packed / 1024, 100, "KiB")
        yield Figure("cold page: hosts of others", len(hosts) - 1, 0, "hosts")
    painted = []
    for _ in range(5):
        with stage.tab() as tab:
            devtools = tab.context.new_cdp_session(tab)
            devtools.send("Emulation.setCPUThrottlingRate", {"rate": 4})
            tab.goto(f"{stage.url}/approvals")
            expect(tab.get_by_role("heading", name="Approvals")).to_be_visible()
            paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
            painted.append(tab.wait_for_function(paint).json_value())  # it is noted after it is there
    yield Figure("first content at a quarter of the CPU, median of 5", statistics.median(painted), 800, "ms")
    with stage.tab() as tab:
        tab.goto(f"{stage.url}/approvals/{stage.asked(to='delay')}")
        expect(tab.locator("article.card")).to_be_visible()
        tab.evaluate(
            "new PerformanceObserver(list => { window.delays = (window.delays || []).concat(list.getEntries()"
            ".map(one => one.duration)) }).observe({type: 'event', durationThreshold: 16, buffered: true})"
        )
        for key in "abcdefghij":
            tab.get_by_role("textbox", name="Comment").press(key)
        tab.wait_for_timeout(500)
        worst = tab.evaluate("Math.max(0, ...window.delays || [])")
        yield Figure("input to the next picture, worst of 10 keys", worst, 100, "ms")


def restart(stage: Stage) -> Iterator[Figure]:
    """Killed and started again on the same ports, with a comment half typed."""
    process = stage.town.process
    id = stage.asked(to="restart")
    with stage.tab() as tab, ExitStack() as stack:
        tab.goto(f"{stage.url}/approvals/{id}")
        expect(tab.locator(".status")).to_contain_text("live")
        comment = tab.get_by_role("textbox", name="Comment")
        comment.fill("typed before")
        process.process.kill()
        process.process.wait()
        began = time.monotonic()
        expect(tab.locator(".status")).not_to_contain_text("live", timeout=30_000)
        yield Figure("killed: until the page says that it is not live", time.monotonic() - began, 5, "s")
        log = process.config.with_name("again.log")
        command = [*COMMAND, "serve", "-c", str(process.config)]
        stack.enter_context(running(command, log, 30, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE))
        while process.get("/readyz")[0] != 200:
            time.sleep(0.02)
        began = time.monotonic()
        expect(tab.locator(".status")).to_contain_text("live", timeout=30_000)
        yield Figure("started again: until the page is live", time.monotonic() - began, 5, "s")
        kept = comment.input_value() == "typed before" and comment.evaluate("one => document.activeElement === one")
        yield Figure("started again: comment or focus lost", 0 if kept else 1, 0, "losses")


def day(stage: Stage) -> Iterator[Figure]:
    """The events of a day in ten minutes, the tab hidden half of the time."""
    seconds, rounds = 600.0, 20
    with stage.tab() as tab:
        devtools = tab.context.new_cdp_session(tab)

        def heap() -> float:
            devtools.send("HeapProfiler.collectGarbage")
            return float(devtools.send("Runtime.getHeapUsage")["usedSize"]) / 2**20

        tab.goto(f"{stage.url}/approvals")
        expect(tab.locator(".status")).to_contain_text("live")
        stage.asked(n=-1)
        tab.wait_for_timeout(2_000)
        before, missed = heap(), 0
        for turn in range(rounds):
            if turn % 2:  # a tab in front hides it
                front = tab.context.new_page()
                front.bring_to_front()
            give_up = time.monotonic() + seconds / rounds
            n = 0
            while time.monotonic() < give_up:
                id = stage.asked(turn=turn, n=n)
                n += 1
                body = {"decision": "deny", "comment": ""}
                headers = {"Authorization": f"Bearer {key_of('lea')}"}
                httpx.post(f"{stage.town.process.admin}/api/v1/approvals/{id}/decisions", json=body, headers=headers)
                time.sleep(0.5)
            last = stage.asked(turn=turn, last=True)
            if turn % 2:
                front.close()
            tab.bring_to_front()
            try:
                expect(tab.locator(f"a[href*={last}]")).to_be_visible(timeout=5_000)
            except AssertionError:
                missed += 1
        yield Figure("a day's tab: heap after collection, growth", heap() - before, 5, "MiB")
        yield Figure("a day's tab: approvals missed", missed, 0, "approvals")
        metrics = stage.town.process.get("/metrics")[1]
        open_now = re.search(r"^sluice_admin_streams (\d+)", metrics, re.M)
        if open_now:
            yield Figure("a day's tab: streams", float(open_now[1]), 1, "streams")


def wheel(_: Stage) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, str(ROOT)]
        subprocess.run(command, check=True)
        (built,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(built) as archive:
            ours = [one.compress_size for one in archive.infolist() if "/console/" in one.filename]
    yield Figure("the console's part of the wheel", sum(ours) / 1024, 250, "KiB")


def log(_: Stage) -> Iterator[Figure]:
    """Fifty thousand calls, each an intent and an outcome; the reader that `/api/v1/calls` asks, without HTTP."""

    async def fill(folder: Path) -> None:
        async with audit_kit.unchecked_audit(folder, durability="write") as audit:
            await audit_kit.one_call(audit, "rare", arguments={"text": "needle"})
            for number in range(50_000):
                await audit_kit.one_call(audit, f"c{number}")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ThreadPoolExecutor(1) as thread:  # the browser runs a loop in this one
            thread.submit(anyio.run, fill, folder).result()
        records = sum(file.read_bytes().count(b"\n") for file in (folder / "audit").glob("*.jsonl"))
        yield Figure("log: records written, in thousands", records / 1_000, 110, "thousand")
        began = time.monotonic()
        assert len(newest.calls(folder / "audit", newest.CallFilter(), 100).rows) == 100
        yield Figure("log: the newest page", (time.monotonic() - began) * 1e3, 200, "ms")
        began, found, steps, at = time.monotonic(), 0, 0, None
        while True:
            page = newest.calls(folder / "audit", newest.CallFilter(text="needle"), 100, at)
            found, steps = found + len(page.rows), steps + 1
            if not page.next:
                break
            at = newest.read_position(page.next)
        assert found == 1
        yield Figure(f"log: a rare filter, to the end in {steps} requests", time.monotonic() - began, 2, "s")
        began = time.monotonic()
        assert newest.story(folder / "audit", folder / "state", {}, "c49990").own
        yield Figure("log: the story of a call near the end", time.monotonic() - began, 1, "s")


TABLE: dict[str, Callable[[Stage], Iterator[Figure]]] = {
    "approving": approving, "command": console_command, "cold": cold_page, "restart": restart, "wheel": wheel,
    "log": log, "day": day,
}  # fmt: skip
LONG = {"day"}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[[], *TABLE], help="those rows alone")
    parser.add_argument("--long", action="store_true", help="with the rows that take ten minutes")
    told = parser.parse_args(words)
    chosen = told.rows or [name for name in TABLE if told.long or name not in LONG]
    figures: list[Figure] = []
    with browser() as chrome:
        for name in chosen:
            with tempfile.TemporaryDirectory() as folder, stage(chrome, Path(folder)) as made:
                for figure in TABLE[name](made):
                    print(figure, flush=True)
                    figures.append(figure)
    print(json.dumps({one.name: one.value for one in figures}))
    return 0 if all(one.is_held for one in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
