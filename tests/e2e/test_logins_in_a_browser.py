"""Whole logins in a real browser: its policy for forms, redirects and cookies is stricter than any client of a test."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest
from console.browser import browser, page
from e2e.client_login import ClientLogin, gateway
from e2e.test_login_pages import base
from e2e.test_login_pages import gateway as login_gateway
from peers.fleet import peers
from peers.login.browser import Browser as Hand
from peers.login.misbehaving import misbehaving
from playwright.sync_api import Browser, expect
from policy_bed import key_of

__all__ = ["peers"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


class Callback(BaseHTTPRequestHandler):
    """A client that waits for its code."""

    came: list[str]

    def do_GET(self) -> None:
        self.came.append(self.path)
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.end_headers()
        self.wfile.write(b"the client has its code")

    def log_message(self, *arguments: object) -> None:
        pass


def test_a_person_of_a_team_types_a_key_and_agrees(chromium: Browser, tmp_path: Path) -> None:
    with misbehaving() as site, login_gateway(tmp_path, site, "/tools") as there, page(chromium) as tab:
        tab.goto(f"{base(there)}login/mail")
        tab.get_by_label("Your Sluice key").fill(key_of("ann"))
        tab.get_by_role("button", name="Go on").click()
        expect(tab.get_by_role("heading")).to_have_text("Log in to mail")
        tab.get_by_role("link").click()
        expect(tab.get_by_role("heading")).to_have_text("Logged in")
        assert "code=" not in tab.url and tab.url.startswith(f"{base(there)}login/done/mail")
        there.until(lambda: "mail__whoami" in there.names("ann"))
        said = there.call("ann", "mail__whoami").json()["result"]["content"][0]["text"]
        assert json.loads(said)["subject"]


def test_a_person_signs_in_and_allows_a_client(peers: None, chromium: Browser, tmp_path: Path) -> None:
    came: list[str] = []
    listening = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Callback,), {"came": came}))
    Thread(target=listening.serve_forever, daemon=True).start()
    try:
        with gateway(tmp_path) as there, Hand("ann") as hand, page(chromium) as tab:
            client = ClientLogin(there, hand, redirect_uri=f"http://127.0.0.1:{listening.server_port}/callback")
            client.register().raise_for_status()
            tab.goto(client.request())
            expect(tab.get_by_role("heading")).to_have_text("Allow this client?")
            tab.get_by_role("button", name="Allow").click()
            expect(tab.get_by_text("the client has its code")).to_be_visible()
            asked = parse_qs(urlsplit(came[0]).query)
            assert asked["state"] == [client.state]
            assert client.exchange(asked["code"][0]).status_code == 200
    finally:
        listening.shutdown()
        listening.server_close()
