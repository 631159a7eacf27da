"""The authorization request and the answer that a browser brings back (RFC 6749 4.1, RFC 7636, RFC 8707, RFC 9207)."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlencode

from sluicegate.oauth import ERROR_WORD, Unfit, shown
from sluicegate.oauth.scopes import OFFLINE
from sluicegate.oauth.urls import openable

MAX_QUERY: Final = 16 * 1024
MAX_CODE: Final = 8 * 1024
_ONCE: Final = ("state", "code", "iss", "error", "error_description")


def challenge_of(verifier: str) -> str:
    """S256 (RFC 7636 4.2)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode("ascii")).digest()).rstrip(b"=").decode("ascii")


def url(
    endpoint: str, client_id: str, redirect_uri: str, state: str, verifier: str, scopes: tuple[str, ...],
    resource: str, params: Mapping[str, str],
) -> str:  # fmt: skip
    """Where the browser is sent. `params` add and never replace. Raises `Unfit`."""
    openable(endpoint)
    ours = {
        "response_type": "code", "client_id": client_id, "redirect_uri": redirect_uri, "state": state,
        "code_challenge": challenge_of(verifier), "code_challenge_method": "S256",
    }  # fmt: skip
    if scopes:
        ours["scope"] = " ".join(scopes)
    if resource:
        ours["resource"] = resource
    if OFFLINE in scopes:  # OpenID Connect Core 11: without consent it is ignored
        ours["prompt"] = params.get("prompt", "consent")
    own = {name for name, _ in parse_qsl(endpoint.partition("?")[2], keep_blank_values=True)}
    if not own.isdisjoint(ours):  # which of two counts, only that server knows (RFC 6749 3.1: neither)
        raise Unfit("its authorization endpoint has parameters that are the client's")
    added = {name: value for name, value in params.items() if name not in ours}
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(ours | added)}"


@dataclass(frozen=True, slots=True)
class AuthorizationAnswer:
    state: str
    code: str = field(default="", repr=False)
    iss: str | None = None
    error: str = ""
    description: str = ""


def read(query: str) -> AuthorizationAnswer:
    """Raises `Unfit` for what has no state, or says one thing twice."""
    if len(query) > MAX_QUERY:
        raise Unfit("the answer is too long")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise Unfit("the answer has too many parameters") from None
    found = dict(reversed(pairs))
    if any(sum(name == one for name, _ in pairs) > 1 for one in _ONCE) or not found.get("state"):
        raise Unfit("the answer has no state of ours")
    return AuthorizationAnswer(
        found["state"], found.get("code", ""), found.get("iss"), found.get("error", ""),
        found.get("error_description", ""),
    )  # fmt: skip


def why_not(answer: AuthorizationAnswer, issuer: str, names_itself: bool) -> str:
    """Empty where there is a code that may go to that issuer. Of an answer that may be another issuer's, nothing is
    repeated (RFC 9207 2.4; 2026-07-28 basic/authorization)."""
    if answer.iss is not None and answer.iss != issuer:
        return "the answer came from another authorization server than was asked"
    if answer.iss is None and names_itself:
        return "the answer does not say which authorization server it came from, though that one always does"
    if answer.error:
        code = answer.error if ERROR_WORD.fullmatch(answer.error) else shown(answer.error)
        more = f" ({shown(answer.description)})" if answer.description else ""
        return f"the authorization server says: {code}{more}"
    if not answer.code or len(answer.code) > MAX_CODE:
        return "the answer has no code"
    return ""
