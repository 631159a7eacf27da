"""Rows of the console for what people do in few interactions, and for what breaks while they look."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
from console.browser import page
from console.test_accessibility import LOOKS, PAGES
from console.test_accessibility import opened as accessible_stage
from console_kit import ROOT, ROWS, Figure, Hand, Stage, stage
from playwright.sync_api import Browser, Page, expect
from policy_bed import bearer

DENY = "p, role:dev, bank, tool:look, *, deny\n"
PICTURES = ROOT / "build" / "pictures"
ASLEEP = 15.0  # seconds
CODE_LIVES = 60.0  # seconds


def tasks(stage: Stage) -> Iterator[Figure]:
    with stage.tab() as tab:
        stage.town.write(ROWS + DENY)
        stage.town.until(lambda: "error" in stage.town.call("ann", "bank__look").json())
        tab.goto(stage.url)
        row = tab.get_by_role("region", name="Denied in the last hour").locator("a.row").first
        hand = Hand(tab)
        hand.count += 1
        row.click()
        expect(tab.locator("article.card")).to_contain_text(f"policy.csv:{ROWS.count(chr(10)) + 1}")
        yield Figure("why was it denied, from Overview to file:line", hand.count, 2, "interactions")
    with stage.tab() as tab:
        tab.goto(f"{stage.url}/catalog")
        hand = Hand(tab)
        hand.type("View as", "key:ann")
        hand.press("Enter")
        expect(tab.locator(".sum")).to_contain_text("token")
        expect(tab.locator(".branch .row").first).to_be_visible()
        yield Figure("what a client sees and what it costs, from Catalog", hand.count, 2, "interactions")
    with stage.tab() as tab:
        catalog = stage.town.folder / "bank" / "catalog.json"
        catalog.write_text(json.dumps({"tools": [{"name": "wire", "description": "Changed."}, "look"]}))
        with httpx.Client(base_url=f"{stage.town.process.admin}/api/v1/", headers=bearer("lea")) as ask:
            assert ask.post("servers/bank/restart", json={}).status_code == 200
            stage.town.until(lambda: ask.get("tools").is_success and ask.get("pins?waiting=1").json()["pins"] != [])
        tab.goto(f"{stage.url}/catalog")
        hand = Hand(tab)
        hand.count += 1
        tab.locator(".waiting .row").first.click()
        expect(tab.get_by_label("Difference to the accepted definition")).to_contain_text("Changed.")
        hand.click("^Accept$")
        hand.click("^Accept wire$")
        expect(tab.locator("article.card")).to_contain_text("Accepted")
        yield Figure("accept a changed definition after its difference", hand.count, 3, "interactions")


def breaks(stage: Stage) -> Iterator[Figure]:
    """The network goes and comes back, and the machine sleeps, with a comment half typed."""
    id = stage.asked(to="breaks")
    with stage.tab() as tab:
        tab.goto(f"{stage.url}/approvals/{id}")
        expect(tab.locator(".status")).to_contain_text("live")
        comment = tab.get_by_role("textbox", name="Comment")
        comment.fill("typed before")
        tab.context.set_offline(True)
        yield Figure("offline: until the page says so", until(lambda: says(tab, "stale", "reconnecting")), 5, "s")
        tab.context.set_offline(False)
        yield Figure("online again: until the page is live", until(lambda: says(tab, "live")), 5, "s")
        pages = renderers(stage.chrome)
        for pid in pages:
            os.kill(pid, signal.SIGSTOP)
        missed = stage.asked(to="asleep")
        time.sleep(ASLEEP)
        for pid in pages:
            os.kill(pid, signal.SIGCONT)
        row = tab.locator(f"[data-rows] a[href*={missed}]")
        yield Figure("awake again: until what came meanwhile is shown", until(lambda: row.count() > 0), 5, "s")
        yield lost(tab, "offline and asleep")


def ends(stage: Stage) -> Iterator[Figure]:
    """A key is taken out of the config while its tab is open, and a code is used a second too late."""
    link, made = stage.link(), time.monotonic()
    config = stage.town.process.config
    before = config.read_text()
    with stage.tab() as tab:
        tab.goto(f"{stage.url}/servers")
        expect(tab.locator(".row").filter(has_text="bank").first).to_be_visible()
        settings = json.loads(before)
        del settings["clients"]["keys"]["lea"]
        replace(config, json.dumps(settings))
        name = tab.get_by_label("Client key")
        yield Figure("a key revoked: until its tab shows nothing any more", until(name.is_visible), 5, "s")
        yield Figure("a key revoked: rows left in its tab", tab.locator(".row").count(), 0, "rows")
    replace(config, before)
    time.sleep(max(0.0, made + CODE_LIVES + 1 - time.monotonic()))
    origin = {"Origin": stage.town.process.admin, "Sec-Fetch-Site": "same-origin"}
    body = {"code": link.partition("#code=")[2]}
    answer = httpx.post(f"{stage.url}/session", json=body, headers=origin)
    yield Figure("a code 61 s old: logins", int(answer.status_code != 401), 0, "logins")


def replace(file: Path, text: str) -> None:
    """In one step, as editors and deployments do."""
    draft = file.with_name(".draft")
    draft.write_text(text)
    draft.replace(file)


def before_workers(chrome: Browser, folder: Path) -> AbstractContextManager[Stage]:
    return stage(chrome, folder, arguments=["--workers", "2"])


def crash(stage: Stage) -> Iterator[Figure]:
    """One of two workers is killed, and another takes its place."""
    supervisor = stage.town.process.process.pid
    id = stage.asked(to="crash")
    with stage.tab() as tab:
        tab.goto(f"{stage.url}/approvals/{id}")
        expect(tab.locator(".status")).to_contain_text("live")
        tab.get_by_role("textbox", name="Comment").fill("typed before")
        workers = children(supervisor)
        os.kill(workers[0], signal.SIGKILL)
        back = until(lambda: len(set(children(supervisor)) - {workers[0]}) >= len(workers))
        stage.town.until(lambda: stage.town.process.get("/readyz")[0] == 200)
        yield Figure("a worker killed: until another has its place", back, 10, "s")
        yield Figure("a worker killed: until the page is live", until(lambda: says(tab, "live")), 5, "s")
        later = stage.asked(to="after the crash")
        row = tab.locator(f"[data-rows] a[href*={later}]")
        yield Figure("a worker killed: until a new approval is shown", until(lambda: row.count() > 0), 5, "s")
        yield lost(tab, "a worker killed")


def pictures(stage: Stage) -> Iterator[Figure]:
    """Of every page, wide and narrow, light and dark: in build/pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    missing = 0
    with tempfile.TemporaryDirectory() as folder, accessible_stage(stage.chrome, Path(folder)) as pages:
        for look in ("light", "dark", "light, 320 px"):
            for name in PAGES:
                with page(stage.chrome, storage_state=pages.session, **LOOKS[look]) as tab:
                    pages.open(tab, name)
                    file = PICTURES / f"{name}-{look.replace(', ', '-').replace(' ', '')}.png"
                    tab.screenshot(path=file, full_page=True)
                    missing += not file.stat().st_size
    yield Figure(f"pictures of {len(PAGES)} pages in {PICTURES.relative_to(ROOT)}: missing", missing, 0, "pictures")


def says(tab: Page, *words: str) -> bool:
    return any(word in (tab.locator(".status").text_content() or "") for word in words)


def lost(tab: Page, when: str) -> Figure:
    comment = tab.get_by_role("textbox", name="Comment")
    kept = comment.input_value() == "typed before" and comment.evaluate("one => document.activeElement === one")
    return Figure(f"{when}: comment or focus lost", 0 if kept else 1, 0, "losses")


def until(is_so: Callable[[], bool]) -> float:
    """Seconds, a minute at most."""
    began = time.monotonic()
    while not is_so() and time.monotonic() - began < 60:
        time.sleep(0.05)
    return time.monotonic() - began


def renderers(chrome: Browser) -> list[int]:
    """The processes in which the browser runs its pages."""
    found = chrome.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return [int(one["id"]) for one in found if one["type"] == "renderer"]


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
