"""What the console's pages cost people and machines: one row a figure, with its bar. Runs in Debian's Chromium.

A click, a key or one typed text is one interaction. Seconds are of this machine. Exits with 1 if a bar is missed.
Run it with: make accept ARGS=--console, and give words of rows to run those alone: ARGS="--console restart cold".
"""

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import console_load
import console_tasks
from console.browser import browser, page
from console.test_accessibility import LOOKS, PAGES, problems
from console.test_accessibility import opened as accessible_stage
from console_kit import ROOT, Figure, Hand, Stage, stage
from e2e.sluice_process import COMMAND, clean_environment
from peers.fleet import running
from playwright.sync_api import Browser, Page, Response, expect

PHONE = {"width": 360, "height": 640}


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


def wheel(_: Stage) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, str(ROOT)]
        subprocess.run(command, check=True)
        (built,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(built) as archive:
            ours = [one.compress_size for one in archive.infolist() if "/console/" in one.filename]
    yield Figure("the console's part of the wheel", sum(ours) / 1024, 250, "KiB")


def access(stage: Stage) -> Iterator[Figure]:
    """axe-core on each page: rules of WCAG 2.2 AA that are broken, and what does not fit the width."""
    with tempfile.TemporaryDirectory() as folder, accessible_stage(stage.chrome, Path(folder)) as pages:
        for look, options in LOOKS.items():
            broken, wide = 0, 0
            for name in PAGES:
                with page(stage.chrome, storage_state=pages.session, **options) as tab:
                    pages.open(tab, name)
                    found = problems(tab)
                    broken += len(found)
                    wide += tab.evaluate("document.documentElement.scrollWidth > innerWidth")
                    print("".join(f"{name}: {one}\n" for one in found), end="")
            yield Figure(f"WCAG 2.2 AA, {len(PAGES)} pages, {look}: rules broken", broken, 0, "elements")
            yield Figure(f"{len(PAGES)} pages, {look}: wider than the screen", wide, 0, "pages")


Opens = Callable[[Browser, Path], AbstractContextManager[Stage]]
TABLE: dict[str, tuple[Callable[[Stage], Iterator[Figure]], Opens]] = {
    "approving": (approving, stage), "command": (console_command, stage), "cold": (cold_page, stage),
    "tasks": (console_tasks.tasks, stage), "breaks": (console_tasks.breaks, stage),
    "ends": (console_tasks.ends, stage), "pictures": (console_tasks.pictures, stage),
    "crash": (console_tasks.crash, console_tasks.before_workers),
    "restart": (restart, stage), "wheel": (wheel, stage), "access": (access, stage),
    "activity": (console_load.activity, console_load.before_a_fast_server),
    "tools": (console_load.tools, console_load.before_many_tools),
    "consoles": (console_load.consoles, console_load.before_a_fast_server),
    "attack": (console_load.attack, console_load.before_a_fast_server),
    "log": (console_load.log, console_load.before_a_long_log), "day": (console_load.day, stage),
}  # fmt: skip
LONG = {"day"}
# Sluice syncs its log before each call. A disk that stands still for a second would be what these rows measure.
TIMED, MEMORY = {"consoles", "attack"}, "/dev/shm"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[[], *TABLE], help="those rows alone")
    parser.add_argument("--long", action="store_true", help="with the rows that take ten minutes")
    told = parser.parse_args(words)
    chosen = told.rows or [name for name in TABLE if told.long or name not in LONG]
    figures: list[Figure] = []
    with browser() as chrome:
        for name in chosen:
            measure, opens = TABLE[name]
            where = MEMORY if name in TIMED and os.path.isdir(MEMORY) else None
            with tempfile.TemporaryDirectory(dir=where) as folder, opens(chrome, Path(folder)) as made:
                for figure in measure(made):
                    print(figure, flush=True)
                    figures.append(figure)
    print(json.dumps({one.name: one.value for one in figures}))
    return 0 if all(one.is_held for one in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
