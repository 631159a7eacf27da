"""What pages for people beside the public endpoint have in common: how they look, whose browser they are in, how large
and how frequent requests may be, and how much is asked of others for people who have not said who they are.

No page has a script, is framed, is stored, or tells another site its address (2025-11-25
basic/authorization#authorization-code-protection). Text of others is escaped.
"""

import re
import secrets
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from html import escape
from typing import Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluicegate.http import cookies
from sluicegate.http.addresses import counted_as
from sluicegate.http.forwarded_headers import ForwardedHeaders
from sluicegate.policy.rates import Windows
from sluicegate.runtime.loop_budget import client_budgets
from sluicegate.runtime.own_steps import OwnSteps

_STYLE: Final = (
    ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui;max-width:36rem;margin:4rem auto;padding:0 1rem}"
    "input,button{font:inherit;padding:.4rem .6rem}input{width:100%;box-sizing:border-box}"
)
_HASH: Final = b64encode(sha256(_STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; "
                               "frame-ancestors 'none'; base-uri 'none'",
    "cache-control": "no-store", "referrer-policy": "no-referrer", "x-content-type-options": "nosniff",
}  # fmt: skip
_HEAD: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Sluice</title>'
    f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style>'
)
CLOSE: Final = "<p>You can close this page.</p>"


def page(status: int, title: str, *blocks: str) -> HTMLResponse:
    """`blocks` are HTML: `text` makes one of what others wrote."""
    return HTMLResponse(f"{_HEAD}<h1>{escape(title)}</h1>{''.join(blocks)}</html>", status, HEADERS)


def form_page(title: str, *blocks: str) -> HTMLResponse:
    """A page with a form. Without a referrer a browser would send `Origin: null` with it (Fetch 3.2), as it does for a
    form of anybody else's."""
    made = page(200, title, *blocks)
    made.headers["referrer-policy"] = "same-origin"
    return made


def text(words: str) -> str:
    return f"<p>{escape(words)}</p>"


def link(address: str, words: str) -> str:
    return f'<p><a href="{escape(address)}" rel="noreferrer">{escape(words)}</a></p>'


def key_form(action: str, ticket: str) -> str:
    hidden = f'<input type="hidden" name="t" value="{escape(ticket)}">' if ticket else ""
    field = '<input name="key" type="password" autocomplete="off" required autofocus>'
    return (
        f'<form method="post" action="{escape(action)}">{hidden}<p><label>Your Sluice key {field}</label></p>'
        "<p><button>Go on</button></p></form>"
    )


def may(scopes: tuple[str, ...]) -> str:
    return f" It may: {' '.join(scopes)}." if scopes else ""


_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}")


class BrowserCookie:
    """A secret that one browser has: what began in another one does not go on in it. `within` gives seconds."""

    def __init__(self, name: str, within: Callable[[], float]) -> None:
        self._name, self._within = name, within

    def read(self, request: Request) -> str:
        return request.cookies.get(self._name, "") if cookies.bounded(request.headers.getlist("cookie")) else ""

    def read_or_make(self, request: Request) -> str:
        """Of a browser that has one already, the same: two logins may go on in it at once."""
        found = self.read(request)
        return found if _SECRET.fullmatch(found) else secrets.token_urlsafe(32)

    def give(self, response: Response, secret: str) -> Response:
        """SameSite is Lax, because a browser comes back from another site by a link."""
        response.set_cookie(self._name, secret, max_age=int(self._within()) + 60, path="/", secure=True, httponly=True,
                            samesite="lax")  # fmt: skip
        return response


MAX_BODY: Final = 64 * 1024
A_MINUTE: Final = 600  # requests of one address, which a whole office may share
OWN_A_MINUTE: Final = 20
"""Requests beyond `A_MINUTE` with one token, link or answer that Sluice made. So another client at the same address
cannot stop a login."""
_WAITING: Final = 256
"""Requests of one address beyond its rate that wait for their turn."""
_MAX_FIELDS: Final = 16

Refused = Callable[[str, str], None]
"""Takes an address and a word: whoever sends what is not good fills no log."""


def bounded(
    app: ASGIApp, roots: Sequence[str], forwarded: ForwardedHeaders, free: str,
    refuse: Callable[[int, str], Response], shown: Callable[[Request], Awaitable[str]],
) -> ASGIApp:  # fmt: skip
    """`app` with its paths below `roots`, for requests that are small, and not too many of one address. `free`
    begins the paths of documents that cost nothing, and stands for all other paths, too. `refuse` takes a status and
    words. `shown` names the grant, sign-in or principal of a request that has something that Sluice made or accepted
    before; else "". Where an address is over its rate, the look is paid from its part of the event loop, as if it were
    a client. Few of its requests wait for that."""
    rate, own, waiting = Windows(A_MINUTE, 60), Windows(OWN_A_MINUTE, 60), Counter[str]()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        scope = {**scope, "path": path_below(scope["path"], roots) or free}
        if status := body_refusal(scope):
            return await refuse(status, "too large")(scope, receive, send)
        address = counted(scope, forwarded)
        if scope["path"].startswith(free) or rate.hit(address) == 0:
            return await app(scope, receive, send)
        budget = client_budgets()[f"address {address}"]
        if waiting[address] >= _WAITING:  # of somebody who goes away nothing is heard here: the task would stay
            return await refuse(429, "too many requests")(scope, receive, send)
        waiting[address] += 1
        try:
            await budget.enter()
        finally:
            waiting[address] -= 1
            if not waiting[address]:
                del waiting[address]
        read = deque[Message]()

        async def first() -> Message:
            read.append(await receive())
            return read[-1]

        async def again() -> Message:
            return read.popleft() if read else await receive()

        look, is_ours = OwnSteps(shown(Request(scope, first))), False
        try:
            name = await look
            is_ours = name != "" and own.hit(name) == 0
        finally:  # whoever goes away pays, too
            budget.served() if is_ours else budget.refused(look.seconds, look.longest)
        await (app if is_ours else refuse(429, "too many requests"))(scope, again, send)

    return serve


def counted(scope: Scope, forwarded: ForwardedHeaders) -> str:
    """Whose requests these are where they are limited."""
    return counted_as(address_of(scope, forwarded))


def address_of(scope: Scope, forwarded: ForwardedHeaders) -> str:
    """Who asks, as far as proxies that are trusted say it; empty on a Unix socket."""
    return forwarded.client(scope["client"][0] if scope["client"] else "", scope["headers"])


def only_field(request: Request, name: str) -> str:
    """A field of the query; empty where there are more fields than in a link of ours: they are not taken apart."""
    if request.scope["query_string"].count(b"&") >= _MAX_FIELDS:
        return ""
    return request.query_params.get(name, "")


def body_refusal(scope: Scope) -> int:
    """The status of a request whose body is too large, or does not say how large it is; 0 for all others. One of
    these headers says that there is a body, whatever the method (RFC 9112 6.3)."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"" if b"transfer-encoding" in headers else b"0")
    if not length.isdigit():
        return 411
    return 413 if int(length) > MAX_BODY else 0


def path_below(path: str, roots: Sequence[str]) -> str | None:
    """The rest of a path behind the first of these roots, which end with a slash. A proxy may have taken the public
    prefix away, or left it; so a longer root comes first."""
    root = next((one for one in map(unquote, roots) if f"{path}/".startswith(one)), None)
    return None if root is None else f"/{path[len(root) :]}"


AT_ONCE: Final = 16


class TooManyAtOnce(Exception):
    """Sluice asks others for so many strangers already that this one has to come again."""


class Places:
    """For requests that Sluice sends because a stranger asked: whoever finds no place is refused, and waits nowhere."""

    def __init__(self) -> None:
        self._free = AT_ONCE

    @contextmanager
    def take(self) -> Iterator[None]:
        """Raises `TooManyAtOnce`."""
        if not self._free:
            raise TooManyAtOnce
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


def come_again(request: Request, error: Exception) -> Response:
    """The answer to `TooManyAtOnce`."""
    answer = page(503, "Not now", text("Too many people log in at once. Try again in a few seconds."))
    answer.headers["retry-after"] = "5"
    return answer
