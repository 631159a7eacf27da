"""login: a call to a server that nobody has logged in to for this client is not sent; its client is asked to log in.

It stands inside `approve` and before `commit`: nobody logs in for what is refused, and what was not sent has no intent.
A client that can open pages gets the link, and its next request waits for the login. All others get a sentence.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sluicegate.guards.name import GONE
from sluicegate.protocol.input_forms import InputRefusal
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.legacy_server import URL_ELICITATION_REQUIRED
from sluicegate.protocol.methods import ASKING
from sluicegate.protocol.model import (
    LOGIN_PROFILE,
    ApprovalRef,
    Call,
    Client,
    Decision,
    Failure,
    Guard,
    Handler,
    InputRequired,
    Outcome,
    Target,
    Verdict,
    not_found,
    refuse,
)

DECLINED: Final = "The login was declined."


class LoginLink(NamedTuple):
    """The login that was begun, and the page where a person goes on with it."""

    id: str
    url: str


@dataclass(frozen=True, slots=True)
class LoginDeps:
    """`account` is what the audit log says of the account that a client's calls to a server use, None for none; a
    sentence where somebody has to log in first. `begin` starts a login, None where that cannot be done by a link.
    `wait` takes seconds, and returns whether there is a login. `renew` finds what a call is about in the lists of
    today: before, those of an earlier login may have been known. `current` and `decide` are asked after a wait: for
    the client with the rights of now, None for one that cannot come in, and for what the policy says of the call.
    `tells_legacy`: a legacy client gets the page in an error, and is not asked inside the call."""

    account: Callable[[str, Client], Json | str | None]
    begin: Callable[[str, Client], Awaitable[LoginLink | None]]
    wait: Callable[[str, Client, float], Awaitable[bool]]
    renew: Callable[[Call, Target], Awaitable[Target | None]]
    current: Callable[[Client], Client | None]
    decide: Callable[[Call, Target], Decision]
    opens_pages: Callable[[Client], bool]
    tells_legacy: Callable[[], bool]
    hold_for: float


def login(deps: LoginDeps) -> Guard:
    account_of = deps.account

    def guard(call: Call, inner: Handler) -> Awaitable[Outcome]:
        trail, target = call.trail, call.target
        if target is None or trail.has_begun:
            return inner(call)
        asked = trail.approval_ref
        if asked is not None and asked.is_login:
            return _ask(deps, call, target, asked, inner)
        account = account_of(target.server, call.client)
        if isinstance(account, str):
            return _ask(deps, call, target, None, inner)
        trail.login = account
        return inner(call)

    return guard


async def _ask(deps: LoginDeps, call: Call, target: Target, asked: ApprovalRef | None, inner: Handler) -> Outcome:
    server = target.server
    if asked is not None:
        answer = (call.params.get("inputResponses") or {}).get(asked.key)
        if not isinstance(answer, dict) or answer.get("action") != "accept":
            why = deps.account(server, call.client)
            if isinstance(answer, InputRefusal) and isinstance(why, str):  # it could not be put
                return _refused(call, why)
            return _refused(call, f"{DECLINED} {why}" if isinstance(why, str) else DECLINED)
        call = replace(call, params={name: one for name, one in call.params.items() if name != "inputResponses"})
    # What another process has done is known when it is looked for.
    await deps.wait(server, call.client, deps.hold_for if asked is not None else 0.0)
    why = deps.account(server, call.client)
    if not isinstance(why, str):
        return await _go_on(deps, call, target, inner)
    if call.method in ASKING and deps.opens_pages(call.client):
        link = await deps.begin(server, call.client)
        if link is not None:
            is_told = call.client.era == "legacy" and deps.tells_legacy()
            return _page_required(server, link) if is_told else _question(server, link)
    return _refused(call, why)


async def _go_on(deps: LoginDeps, call: Call, target: Target, inner: Handler) -> Outcome:
    # A person was waited for: roles and policy may be others than when it was decided.
    client, before = deps.current(call.client), call.trail.decisions[-1]
    if client is None:
        return refuse(call.method, "denied", GONE)
    call = replace(call, client=client)
    found = await deps.renew(call, target)
    if found is None:
        return not_found(call.method, call.params)
    if replace(found, is_stored=target.is_stored) != target:
        return _refused(call, f"{target.public} has another definition for this login. Call again.")
    decision = deps.decide(call, found)
    if decision != before:
        call.trail.add(decision)
    if decision.verdict is Verdict.DENY:
        return not_found(call.method, call.params)
    if decision.verdict is Verdict.ASK and decision != before:  # nobody was asked for that
        return _refused(call, f"what the policy says of {target.public} has changed. Call again.")
    account = deps.account(target.server, call.client)
    call.trail.login = account if isinstance(account, dict) else None
    return await inner(replace(call, target=found))


def _question(server: str, link: LoginLink) -> InputRequired:
    """2026-07-28 client/elicitation, mode url: the client shows the address, and opens it only if its user agrees."""
    message = f"Sluice asks: log in to {server}? Then the call goes on."
    params = {"mode": "url", "message": message, "url": link.url}
    key = f"login-{secrets.token_hex(8)}"
    requests = {key: {"method": "elicitation/create", "params": params}}
    return InputRequired(requests, approval_ref=ApprovalRef(link.id, "", "", LOGIN_PROFILE, key))


def _page_required(server: str, link: LoginLink) -> Failure:
    """2025-11-25 client/elicitation#url-mode-with-elicitation-required-error: the client opens it, and calls again."""
    page = {"mode": "url", "elicitationId": link.id, "url": link.url, "message": f"Sluice asks: log in to {server}."}
    message = f"NOT EXECUTED: {server} needs your login."
    data = {"elicitations": [page], "reason": "login_required"}
    return Failure(URL_ELICITATION_REQUIRED, message, data, "login_required")


def _refused(call: Call, why: str) -> Outcome:
    return refuse(call.method, "login_required", f"NOT EXECUTED: {why}")
