"""The page of one approval, for whoever asked: what a client opens that can show its user a link, and no form.

The link is the right: it is sealed for one approval and its requester, reaches them alone, and ends with the approval.
Looking decides nothing; the form does, and carries the seal itself. For tier `self` alone.
"""

from collections.abc import Callable
from dataclasses import replace
from html import escape
from typing import Final
from urllib.parse import parse_qs, quote

from sluicegate.approval import messages
from sluicegate.approval.eligibility import MAX_COMMENT, VoteRefused, VoteRequest
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.approval.record import SCOPES, Approval
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client

PATH: Final = "/approvals/"
PURPOSE: Final = "approval page"
MAX_FIELDS: Final = 10
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "referrer-policy": "no-referrer",
}
StatusAndPage = tuple[int, str]
"""A status and a page."""

_GONE: Final[StatusAndPage] = (404, "<p>There is no such approval, or its link is over.</p>")


Seal = Callable[[str, Json, str], str]
Unseal = Callable[[str, str, str], Json | None]
"""(purpose, payload or token, what it is bound to)."""


def link(seal: Seal, base: str, approval: Approval) -> str:
    """`base` is where the admin port is reached."""
    token = seal(PURPOSE, {"principal": approval.binding.principal}, approval.id)
    return f"{base}{PATH}{approval.id}?t={quote(token)}"


class Page:
    def __init__(self, queue: ApprovalQueue, client_of: Callable[[str], Client | None], unseal: Unseal) -> None:
        self._queue, self._client_of, self._unseal = queue, client_of, unseal

    async def get(self, id: str, query: str) -> StatusAndPage:
        token = _only(query, "t")
        approval = await self._allowed(id, token)
        if approval is None:
            return _GONE
        if not approval.is_waiting:
            return 200, f"<p>{escape(approval.id)} is {escape(approval.state)}.</p>"
        text = escape(messages.question(approval, await self._queue.book.shown(id), f"sluice approvals show {id}"))
        buttons = "".join(
            f'<p><button name="decision" value="{word}">{escape(messages.title(word, approval))}</button></p>'
            for word in (*(scope for scope in SCOPES if scope in approval.binding.terms.remember), "deny")
        )
        comment = f'<p><label>Comment <input name="comment" maxlength="{MAX_COMMENT}"></label></p>'
        form = f'<form method="post" action="{PATH}{escape(id)}"><input type="hidden" name="t" value="{escape(token)}">'
        return 200, f"<pre>{text}</pre>{form}{comment}{buttons}</form>"

    async def post(self, id: str, body: str) -> StatusAndPage:
        approval = await self._allowed(id, _only(body, "t"))
        if approval is None:
            return _GONE
        word, binding = _only(body, "decision"), approval.binding
        scope = next((scope for scope in SCOPES if scope == word), None)
        if scope is None and word != "deny":
            return 400, "<p>Neither a yes nor a no.</p>"
        comment = _only(body, "comment")[:MAX_COMMENT]
        vote_request = (
            VoteRequest("deny", comment=comment)
            if scope is None
            else VoteRequest("approve", binding.digest, scope, comment)
        )
        who = self._client_of(binding.principal) or Client(binding.principal)
        who = replace(who, roles=binding.roles or who.roles)  # of several tokens, that with which the call came
        decided = await self._queue.decide(id, who, vote_request, "page")
        if isinstance(decided, VoteRefused):
            return decided.status, f"<p>{escape(decided.text)}</p>"
        return 200, f"<p>{escape(decided.id)} is {escape(decided.state)}. You can close this page.</p>"

    async def _allowed(self, id: str, token: str) -> Approval | None:
        sealed = self._unseal(PURPOSE, token, id)
        approval = await self._queue.get(id) if sealed is not None else None
        if approval is None or sealed is None or approval.binding.terms.tier != "self":
            return None
        return approval if sealed.get("principal") == approval.binding.principal else None


def html(body: str) -> bytes:
    title = "Sluice asks"
    return f'<!doctype html><meta charset="utf-8"><title>{title}</title><h1>{title}</h1>{body}\n'.encode()


def _only(query: str, name: str) -> str:
    """A field that comes once, else nothing. Who sends a form has shown no credential yet."""
    if query.count("&") > MAX_FIELDS:
        return ""
    found = parse_qs(query, keep_blank_values=True).get(name, [])
    return found[0] if len(found) == 1 else ""
