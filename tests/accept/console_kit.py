"""What the rows of the console share: a Sluice with a browser before it, a person's hand, and a figure with its bar."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from console.browser import page
from playwright.sync_api import Browser, Page, expect
from policy_bed import Bed, bed, client_keys, key_of, recorder

ROOT = Path(__file__).parent.parent.parent
Json = dict[str, Any]
ROWS = """\
p, role:everyone, bank, *, *, allow
p2, *, bank, tool:wire, *, one-of-leads
p, role:lead, sluice, admin:*, *, allow
p, local, sluice, admin:*, *, allow
"""
KEYS = {"ann": ["role:dev"], "lea": ["role:lead"]}


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
def stage(chrome: Browser, folder: Path, servers: Json | None = None, **config: Any) -> Iterator[Stage]:
    """With these servers beside the bank."""
    settings: Json = {"clients": {"keys": client_keys(**KEYS)}, "approvals": {"hold_for": "100ms"}} | config
    bank = {"bank": recorder(folder, "bank", tools=["wire", "look"])}
    rows = ROWS + "".join(f"p, role:dev, {key}, *, *, allow\n" for key in servers or ())
    with bed(folder, rows, bank | (servers or {}), **settings) as town:
        yield Stage(town, chrome)
