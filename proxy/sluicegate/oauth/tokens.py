"""Token and revocation requests, what their answers mean, and how long a token is used (RFC 6749 4.1.3 to 6, 7009)."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from sluicegate.oauth import ERROR_WORD, Unfit, read_json, text_of
from sluicegate.oauth.challenges import scopes
from sluicegate.oauth.clients import Form

MAX_TOKEN: Final = 16 * 1024
MAX_LIFE: Final = 10.0 * 365 * 86_400
MARGIN, MARGIN_PART = 30.0, 0.1
# It becomes a header: RFC 6750 2.1 has fewer characters, real tokens have these.
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """`life` is None where it is unknown: the token is used until the server refuses it. `scopes` is None where the
    answer does not say: they are those that were asked for (RFC 6749 5.1). `asked_at` is when its request was sent: its
    life counts from then, because the machine may have slept before it read the answer."""

    access: str = field(repr=False)
    refresh: str = field(default="", repr=False)
    life: float | None = None
    scopes: tuple[str, ...] | None = None
    asked_at: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenRefusal:
    """`error` is one of RFC 6749 5.2's words, or another one of that form."""

    error: str


def by_code(code: str, verifier: str, redirect_uri: str) -> Form:
    return {
        "grant_type": "authorization_code", "code": code, "code_verifier": verifier, "redirect_uri": redirect_uri,
    }  # fmt: skip


def by_refresh(token: str) -> Form:
    return {"grant_type": "refresh_token", "refresh_token": token}


def by_client(asked: Iterable[str]) -> Form:
    scope = " ".join(asked)
    return {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})


def read(status: int, body: bytes) -> TokenAnswer | TokenRefusal:
    """Raises `Unfit` for what is neither tokens nor a refusal. Some answer a refusal with 200."""
    document = read_json(body)
    error = text_of(document, "error", 64)
    if ERROR_WORD.fullmatch(error) and "access_token" not in document:
        return TokenRefusal(error)
    if status != 200:
        raise Unfit(f"HTTP {status}")
    access, refresh = text_of(document, "access_token", MAX_TOKEN), text_of(document, "refresh_token", MAX_TOKEN)
    if not _TOKEN.fullmatch(access) or (refresh and not refresh.isprintable()):
        raise Unfit("its answer has no token that could be used")
    if text_of(document, "token_type", 64).lower() != "bearer":
        raise Unfit("its token is not of the type Bearer")
    scope = document.get("scope")
    return TokenAnswer(access, refresh, _life(document.get("expires_in")),
                       scopes(scope) if isinstance(scope, str) else None)  # fmt: skip


def _life(value: Any) -> float | None:
    """Numbers are taken as texts, too; what says nothing that can be waited for is unknown."""
    try:
        seconds = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return min(seconds, MAX_LIFE) if seconds > 0 and math.isfinite(seconds) else None


def fresh_until(expires_at: float | None, life: float | None, jitter: float) -> float:
    """Until when a token is sent without a refresh. `jitter` is from 0 to 1: many processes must not refresh at once.
    Half of a short life is left in any case."""
    if expires_at is None or life is None:
        return math.inf
    return expires_at - min(max(MARGIN, life * MARGIN_PART) * (1 + jitter / 10), life / 2)


def revocations(access: str, refresh: str) -> list[Form]:
    """RFC 7009 2.1: the refresh token first, which at most servers ends the other one, too."""
    forms = [{"token": refresh, "token_type_hint": "refresh_token"}] if refresh else []
    return [*forms, {"token": access, "token_type_hint": "access_token"}] if access else forms
