"""Token and revocation requests, what their answers mean, and how long a token is used (RFC 6749 4.1.3 to 6, 7009);
and the device authorization grant (RFC 8628), for a person whose browser is on another device."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from sluicegate.oauth import ERROR_WORD, Unfit, read_json, text_of
from sluicegate.oauth.challenges import scopes
from sluicegate.oauth.clients import DEVICE_CODE, Form
from sluicegate.oauth.urls import openable

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
    return {"grant_type": "authorization_code", "code": code, "code_verifier": verifier, "redirect_uri": redirect_uri}


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


DEFAULT_INTERVAL: Final = 5.0  # RFC 8628 3.2
SLOWER: Final = 5.0  # 3.5: what `slow_down` adds
MAX_INTERVAL: Final = 60.0
_DEFAULT_LIFE: Final = 600.0
_USER_CODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .-]{0,31}")  # it is shown in a terminal
_WHAT: Final = "verification URI"


@dataclass(frozen=True, slots=True)
class DeviceAnswer:
    """`complete` is the URI with the code in it; empty where there is none."""

    code: str = field(repr=False)
    user_code: str
    uri: str
    complete: str
    life: float
    interval: float


def device_request(asked: tuple[str, ...], resource: str) -> Form:
    scope = {"scope": " ".join(asked)} if asked else {}
    return scope | ({"resource": resource} if resource else {})


def by_device(code: str) -> Form:
    return {"grant_type": DEVICE_CODE, "device_code": code}


def read_device(status: int, body: bytes) -> DeviceAnswer | TokenRefusal:
    """Raises `Unfit` for what is neither. Where a person is sent is judged as an authorization endpoint is."""
    document = read_json(body)
    error = text_of(document, "error", 64)
    if ERROR_WORD.fullmatch(error) and "device_code" not in document:
        return TokenRefusal(error)
    code, user_code = text_of(document, "device_code", MAX_TOKEN), text_of(document, "user_code", 64)
    if status != 200 or not code.isprintable() or not code or not _USER_CODE.fullmatch(user_code):
        raise Unfit("its answer has no code that a person could type")
    complete = text_of(document, "verification_uri_complete")
    return DeviceAnswer(
        code, user_code, openable(text_of(document, "verification_uri"), _WHAT),
        openable(complete, _WHAT) if complete else "",
        _seconds(document.get("expires_in"), _DEFAULT_LIFE), _seconds(document.get("interval"), DEFAULT_INTERVAL),
    )  # fmt: skip


def _seconds(value: Any, otherwise: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < 1e9 else otherwise
