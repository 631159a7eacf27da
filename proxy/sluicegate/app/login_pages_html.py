"""What pages of a login look like: plain text of ours around escaped text of others.

No page has a script, is framed, is stored, or tells another site its address (2025-11-25
basic/authorization#authorization-code-protection).
"""

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Final

from starlette.responses import HTMLResponse

_STYLE: Final = (
    ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui;max-width:36rem;margin:4rem auto;padding:0 1rem}"
    "input,button{font:inherit;padding:.4rem .6rem}input{width:100%;box-sizing:border-box}"
)
_HASH: Final = b64encode(sha256(_STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; "
                               "frame-ancestors 'none'; base-uri 'none'",
    # Not no-referrer: a browser sends `Origin: null` with the forms of such a page, so that no answer of ours is taken.
    "cache-control": "no-store", "referrer-policy": "same-origin", "x-content-type-options": "nosniff",
}  # fmt: skip
_HEAD: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Sluice</title>'
    f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style>'
)
CLOSE: Final = "<p>You can close this page.</p>"


def page(status: int, title: str, *blocks: str) -> HTMLResponse:
    """`blocks` are HTML: `text` makes one of what others wrote."""
    return HTMLResponse(f"{_HEAD}<h1>{escape(title)}</h1>{''.join(blocks)}</html>", status, HEADERS)


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
