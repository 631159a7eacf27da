"""A Chromium for tests: Debian's, driven by Playwright. Where there is none and we may install, it is installed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

# A page shows what a process of its own does, and a busy machine takes its time for that: 5 s by default are too few.
PATIENCE = 60_000  # milliseconds
expect.set_options(timeout=PATIENCE)
NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """The program. Skips, and says what is missing, where it cannot be had."""
    given = os.environ.get("SLUICE_CHROMIUM")
    found = given or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        print("console: installing chromium with apt-get", file=sys.stderr)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        wanted = ["chromium", "fonts-dejavu-core"]
        for command in (["apt-get", "-qq", "update"], ["apt-get", "-qq", "install", "-y", *wanted]):
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
        found = shutil.which("chromium")
    if found is None:
        pytest.skip("NO BROWSER: the console's pages were not tested; apt-get install chromium, or set SLUICE_CHROMIUM")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def page(opened: Browser, storage_state: dict[str, Any] | None = None, **options: object) -> Iterator[Page]:
    """A tab of a browser profile of its own. Fails if it broke our policy or threw anything."""
    problems: list[str] = []
    kept = storage_state or {"cookies": [], "origins": []}
    context = opened.new_context(storage_state=kept | {"origins": []}, **options)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE)
    tab = context.new_page()
    for origin in kept["origins"]:
        _keep(tab, origin["origin"], origin["localStorage"])
    tab.on("console", _complains(problems, tab))
    tab.on("pageerror", lambda error: problems.append(f"{tab.url}: {error}"))
    tab.on("dialog", lambda dialog: (problems.append(f"{tab.url}: a dialog: {dialog.message}"), dialog.dismiss()))
    try:
        yield tab
        assert problems == []
    finally:
        context.close()


def _keep(tab: Page, origin: str, entries: list[dict[str, str]]) -> None:
    """Playwright would open another tab for that, which takes two processes more: half a second of processor time."""
    tab.route("**", lambda route: route.fulfill(content_type="text/html", body=""))
    tab.goto(origin)
    tab.evaluate("all => all.forEach(({ name, value }) => localStorage.setItem(name, value))", entries)
    tab.unroute("**")


def _complains(problems: list[str], tab: Page) -> Callable[[ConsoleMessage], None]:
    """A status such as 403 is also shown as an error, and is none of the page's."""
    return lambda message: (
        problems.append(f"{tab.url}: {message.text}")
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text
        else None
    )
