"""A person's browser as tests of logins need it: GET, cookies, and one Location after the other. No script runs in it.

with Browser() as browser:
    page = browser.login(url)                    the last page, with `page.url`, `page.status_code`, `page.text`
    code = browser.stop_at(url, callback)        the URL that would be opened at the callback, which is not opened
    page = browser.open(url)                     one GET and no more
    page = browser.press(page)                   sends the one form of a page
    page = browser.confirm_device(url)           all pages of `verification_uri_complete`
    browser.visited                              every URL that was opened, in order

Browser(user="bob") chooses bob where an authorization server asks who it is (`login_hint`). Cookies are kept as
browsers keep them: for a host, whatever the port; and those with `Secure` are sent to loopback without TLS, too.
"""

from html.parser import HTMLParser
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Self

import httpx

MOST_HOPS = 20


class Browser:
    def __init__(self, user: str | None = None) -> None:
        self.visited: list[str] = []
        self._user = user
        jar = CookieJar(DefaultCookiePolicy(secure_protocols=("http", "https")))
        kept = httpx.Cookies(jar)

        def add_cookies(request: httpx.Request) -> None:
            """The client sends those of a jar that it makes for each request, with another policy."""
            request.headers.pop("cookie", None)
            kept.set_cookie_header(request)

        self._client = httpx.Client(cookies=jar, timeout=30, trust_env=False, event_hooks={"request": [add_cookies]})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    @property
    def headers(self) -> httpx.Headers:
        """Sent with every request."""
        return self._client.headers

    @property
    def cookies(self) -> httpx.Cookies:
        return self._client.cookies

    def open(self, url: str | httpx.URL) -> httpx.Response:
        url = self._as_user(httpx.URL(url))
        self.visited.append(str(url))
        return self._client.get(url)

    def login(self, url: str) -> httpx.Response:
        return self._follow(self.open(url))

    def stop_at(self, url: str, callback: str) -> str:
        """`callback` is what the awaited URL begins with."""
        answer = self.open(url)
        for _ in range(MOST_HOPS):
            target = answer.next_request
            assert target is not None, f"{answer.url} ended with {answer.status_code}: {answer.text[:500]}"
            if str(target.url).startswith(callback):
                return str(target.url)
            answer = self.open(target.url)
        raise AssertionError(f"too many redirects: {self.visited}")

    def press(self, page: httpx.Response, **fields: str) -> httpx.Response:
        form = _Form(page.text)
        target = page.url.join(form.action)
        self.visited.append(str(target))
        return self._follow(self._client.post(target, data=form.fields | fields))

    def post(self, url: str, form: dict[str, str]) -> httpx.Response:
        """One POST and no more."""
        self.visited.append(url)
        return self._client.post(url, data=form)

    def confirm_device(self, url: str) -> httpx.Response:
        """The code of the URL is sent by the page's own script; then the person says yes."""
        return self.press(self.press(self.open(url)))

    def _follow(self, answer: httpx.Response) -> httpx.Response:
        for _ in range(MOST_HOPS):
            if answer.next_request is None:
                return answer
            answer = self.open(answer.next_request.url)
        raise AssertionError(f"too many redirects: {self.visited}")

    def _as_user(self, url: httpx.URL) -> httpx.URL:
        chooses = self._user and "response_type" in url.params and "login_hint" not in url.params
        return url.copy_add_param("login_hint", self._user) if chooses else url


class _Form(HTMLParser):
    """The action and the hidden fields of the first form of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.action, self.fields = "", dict[str, str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        if tag == "form" and not self.action:
            self.action = of.get("action") or ""
        elif tag == "input" and (name := of.get("name")):
            self.fields[name] = of.get("value") or ""
