"""Heads that no client sends: what is too long is refused as it is, and not taken apart first."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from listen_harness import call, site
from starlette.requests import Request

from sluicegate.app.public_pages import BrowserCookie, only_field
from sluicegate.console import sessions
from sluicegate.console.sessions import Site
from sluicegate.listen import http_sse
from sluicegate.listen.http_exchange import HttpExchange
from sluicegate.listen.http_request import RequestHead
from sluicegate.listen.streamable_http import MAX_FORM, accepts, check_form

JSON, BOTH = b"application/json", b"application/json, text/event-stream"
NO_JSON = (415, "Content-Type must be application/json")
NO_ANSWER = (406, "Accept must have application/json and text/event-stream")
CODED = (415, "Content-Encoding is not supported")


class Whole(bytes):
    """A header that nobody may take apart."""

    def decode(self, *args: Any, **kwargs: Any) -> str:
        raise AssertionError("it is read")

    def split(self, *args: Any, **kwargs: Any) -> list[bytes]:
        raise AssertionError("it is taken apart")

    def lower(self) -> bytes:
        raise AssertionError("it is copied")


def judged(**headers: bytes) -> tuple[int, str] | None:
    given = {"content_type": JSON, "accept": BOTH} | headers
    head = RequestHead("POST", "/mcp", b"", [(name.replace("_", "-").encode(), given[name]) for name in given])
    return check_form(cast(HttpExchange, SimpleNamespace(head=head)))


@pytest.mark.parametrize("text", [BOTH + b"," * 15_800, BOTH + b"," * 64, BOTH + b";" * 64, BOTH + b" " * MAX_FORM])
def test_a_long_accept_is_refused_and_not_taken_apart(text: bytes) -> None:
    assert accepts(Whole(text)) == (False, False)
    assert judged(accept=Whole(text)) == NO_ANSWER


@pytest.mark.parametrize("text", [JSON + b";" * 15_800, JSON + b";" * 64, JSON + b" " * MAX_FORM])
def test_a_long_content_type_is_refused_and_not_taken_apart(text: bytes) -> None:
    assert judged(content_type=Whole(text)) == NO_JSON


def test_a_long_content_encoding_is_refused_as_it_is() -> None:
    assert judged(content_encoding=Whole(b"identity" + b" " * MAX_FORM)) == CODED


def test_what_clients_send_is_read_up_to_the_bound() -> None:
    assert judged() is None
    assert judged(accept=BOTH + b",x/y" * 62, content_type=JSON + b";a=b" * 63) is None
    assert judged(accept=BOTH.ljust(MAX_FORM), content_type=JSON.ljust(MAX_FORM)) is None
    assert accepts(BOTH) == (True, True)


async def test_the_statuses_are_those_of_short_ones() -> None:
    async with site() as here, here.client() as client:
        for name, text, status in (("accept", "," * 9_000, 406), ("content-type", ";" * 9_000, 415)):
            assert (await client.post("/mcp", json=call("echo"), headers={name: text})).status_code == status
        for path in ("/mcp", "/sse"):
            assert (await client.get(path, headers={"accept": "text/event-stream" + "," * 9_000})).status_code == 406


@pytest.mark.parametrize("more", ["&a" * 7_000, "&a" * 16, "&" * 16, "&x=" + "a" * 1024])
def test_a_long_query_holds_no_session_id(more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert http_sse.session_id(b"session_id=a&x=1") == "a"

    def parse(*args: object) -> None:
        raise AssertionError("it is taken apart")

    monkeypatch.setattr(http_sse, "parse_qs", parse)
    assert http_sse.session_id(f"session_id=a{more}".encode()) == ""


def browser(cookies: list[str], query: str = "") -> Request:
    headers = [(b"cookie", one.encode()) for one in cookies]
    return Request({"type": "http", "headers": headers, "query_string": query.encode()})


def test_more_cookies_than_a_browser_has_are_not_taken_apart() -> None:
    cookie, site = BrowserCookie("mine", lambda: 1.0), Site("http://localhost:1", True, 1)
    few, many = ["; ".join(["a=b"] * 200), "mine=x"], ["mine=x; " + ";" * 15_000]
    assert cookie.read(browser(few)) == "x" and not cookie.read(browser(many))
    assert site.cookie_of(browser([";" * 200, "sluice-1=x"]).headers) == "x"
    assert site.cookie_of(browser(["sluice-1=x; " + ";" * 15_000]).headers) == ""


def test_a_field_is_found_only_among_a_few() -> None:
    assert only_field(browser([], "a=1&t=x"), "t") == "x" and only_field(browser([], "a=1"), "t") == ""
    many = browser([], "t=x" + "&a" * 7_000)
    assert only_field(many, "t") == "" and not hasattr(many, "_query_params")


def test_an_origin_that_is_too_long_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sessions._whole("http://localhost:1") == ("http", "localhost", 1)
    monkeypatch.setattr(sessions, "urlsplit", None)
    assert sessions._whole("http://localhost:1" + "/" * 300) is None
