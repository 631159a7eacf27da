"""`sluice console` beside `sluice stdio`: the page, a session and a decision, at a port that the command opens."""

import stat
from pathlib import Path
from typing import Any

import httpx
from console.browser import browser, page
from e2e.test_desktop_commands import ask_to_pay, audit, command, prepare, served
from playwright.sync_api import expect

Json = dict[str, Any]


class DesktopTab:
    """A page of the console at the address of a link."""

    def __init__(self, link: str) -> None:
        self.url, _, self.code = link.strip().partition("#code=")
        self.origin = self.url.removesuffix("/console")
        self.client = httpx.Client(base_url=self.origin, timeout=20)
        self.own = {"Origin": self.origin, "Sec-Fetch-Site": "same-origin"}

    def __enter__(self) -> "DesktopTab":
        return self

    def __exit__(self, *why: object) -> None:
        self.client.close()

    def log_in(self) -> httpx.Response:
        answer = self.ask("POST", "/console/session", json={"code": self.code})
        if answer.status_code == 200:
            self.own["X-Sluice-Page"] = answer.json()["page_key"]
        return answer

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.client.request(method, path, headers=self.own, **options)


def test_the_console_of_a_desktop_client_shows_and_decides(tmp_path: Path) -> None:
    with served(prepare(tmp_path)) as desktop:
        shown = command(tmp_path, "console", "--no-browser")
        assert shown.returncode == 0 and shown.stdout.startswith("http://127.0.0.1:"), shown.stderr
        with DesktopTab(shown.stdout) as tab:
            assert "<script" in tab.client.get("/console").text
            for path in ("/api/v1/servers", "/api/v1/approvals", "/console/session"):
                assert httpx.get(f"{tab.origin}{path}").status_code in (401, 403), "another program of this machine"
            for path in ("/metrics", "/readyz", "/livez", "/approvals/apr_1", "/join"):
                assert httpx.get(f"{tab.origin}{path}").status_code == 404
            guessed = httpx.get(f"{tab.origin}/readyz", headers={**tab.own, "X-Sluice-Page": "guessed"})
            assert guessed.status_code == 401 and "reasons" not in guessed.text, "readiness is for a session alone"
            assert httpx.post(f"{tab.origin}/console/codes").status_code == 401
            assert tab.log_in().json()["principal"] == "local" and tab.log_in().status_code == 401, "once"
            assert [row["key"] for row in tab.ask("GET", "/api/v1/servers").json()["servers"]] == ["bank"]
            id = ask_to_pay(desktop, n=1)
            card = tab.ask("GET", f"/api/v1/approvals/{id}").json()
            vote = {"decision": "approve", "seen_digest": card["digest"]}
            assert tab.ask("POST", f"/api/v1/approvals/{id}/decisions", json=vote).status_code == 200
            assert "error" not in desktop.ask("tools/call", name="bank__pay", arguments={"n": 1})
            assert command(tmp_path, "console", "--no-browser").stdout.startswith(tab.url), "the same port again"
            acts = [one["act"] for one in audit(tmp_path)["sluice.jsonl"] if one["type"] == "admin"]
            assert acts[:4] == ["open", "console_code", "console_login", "console_refused"]
            assert acts[4:] == ["console_action", "console_code"]
            assert tab.code not in desktop.said() + str(audit(tmp_path))
        opener = tmp_path / "opener"
        opener.write_text('#!/bin/sh\necho "$1" > opened\n')
        opener.chmod(0o700)
        assert command(tmp_path, "console", BROWSER=f"{opener} %s").returncode == 0
        file = tmp_path / "state" / "console.html"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and "/console#code=" in file.read_text()


def test_a_desktop_console_that_is_off_says_so(tmp_path: Path) -> None:
    with served(prepare(tmp_path, console={"enabled": False})):
        off = command(tmp_path, "console", "--no-browser")
        assert (off.returncode, off.stdout) == (2, "") and "console.enabled" in off.stderr


def test_the_pages_of_a_desktop_console_work_in_a_browser(tmp_path: Path) -> None:
    with served(prepare(tmp_path)) as desktop, browser() as chrome, page(chrome) as tab:
        tab.goto(command(tmp_path, "console", "--no-browser").stdout.strip())
        expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
        ask_to_pay(desktop, n=1)
        tab.get_by_role("link", name="Servers", exact=True).click()
        expect(tab.locator(".row").filter(has_text="bank").first).to_be_visible()
        tab.get_by_role("link", name="Approvals").first.click()
        expect(tab.get_by_text("pay").first).to_be_visible()
        tab.get_by_role("link", name="Health", exact=True).first.click()
        expect(tab.get_by_role("region", name="Readiness").locator(".verdict")).to_contain_text("ready")
