"""The device authorization grant (RFC 8628): for a person whose browser is on another device."""

import re
from dataclasses import dataclass, field
from typing import Any, Final

from sluicegate.oauth import ERROR_WORD, Unfit, read_json, text_of
from sluicegate.oauth.clients import DEVICE_CODE, Form
from sluicegate.oauth.tokens import MAX_TOKEN, TokenRefusal
from sluicegate.oauth.urls import openable

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


def request(asked: tuple[str, ...], resource: str) -> Form:
    scope = {"scope": " ".join(asked)} if asked else {}
    return scope | ({"resource": resource} if resource else {})


def by_device(code: str) -> Form:
    return {"grant_type": DEVICE_CODE, "device_code": code}


def read(status: int, body: bytes) -> DeviceAnswer | TokenRefusal:
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
