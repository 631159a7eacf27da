"""`/api/v1/approvals` and `/api/v1/grants`: what waits for a person, and the person's word.

Whoever comes here has a credential and the right; what of the queue is theirs to see and to decide says the desk. A
decision that is sent twice under one idempotency key is made once, and answered twice with the same words.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio

from sluicegate.admin import paging
from sluicegate.admin.paging import MAX_ROWS, PageRequest, StatusAndBody, page_of
from sluicegate.approval import presentation
from sluicegate.approval.eligibility import MAX_COMMENT, VoteRefused, VoteRequest, has_voted, may_see, objection
from sluicegate.approval.grants import Grant
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.approval.record import SCOPES, TRANSITIONS, WAITING, Approval, CallBinding
from sluicegate.policy.display import lines, visible
from sluicegate.protocol.jsonrpc import Json, Malformed, decode, decode_fast, dump
from sluicegate.protocol.model import Client
from sluicegate.runtime.reader_threads import in_reader_thread
from sluicegate.store import Store

MAX_BEHIND: Final = 1_000
MAX_ALL_STREAMS: Final = 100  # of all principals
FULL: Final = b"event: full\ndata: {}\n\n"
LOOK_EVERY: Final = 1.0
ALIVE_EVERY: Final = 15
_AT_ONCE: Final = 50  # that are judged in one step of the event loop: 2,000 took 20 ms of a list, 140 ms of a stream


async def stream(
    queue: ApprovalQueue, sees: Callable[[Approval], bool], is_allowed: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """Server-sent events: first a page of what waits, then whatever becomes of any of it. Where more waits, `more` says
    how much, and has the cursor for the list. A reader that is too slow loses its stream, and finds everything again in
    the next one's beginning. `is_allowed` is asked again and again: a stream does not outlive the right to read."""
    if len(queue.watchers) >= MAX_ALL_STREAMS:
        yield FULL
        return
    into, out = anyio.create_memory_object_stream[Approval](MAX_BEHIND)
    is_behind = False

    def watch(approval: Approval) -> None:
        nonlocal is_behind
        try:
            into.send_nowait(approval)
        except anyio.WouldBlock:
            is_behind = True

    queue.watchers.append(watch)
    try:
        yield b": approvals\n\n"
        waiting = list[Approval]()
        for number, approval in enumerate(queue.open_ones()):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if sees(approval):
                waiting.append(approval)
        page = await page_of(waiting, cursor_of, PageRequest(limit=MAX_ROWS), lambda one: _row(queue, one))
        for row in page["rows"]:
            yield _event(row)
        if "next" in page:
            more = {"total": page["total"], "next": page["next"]}
            yield b"event: more\ndata: %b\n\n" % json.dumps(more).encode("ascii")
        yield b": live\n\n"  # what follows are changes
        quiet = 0
        while is_allowed() and not (is_behind or queue.waiting.is_closing):
            changed: Approval | None = None
            with anyio.move_on_after(LOOK_EVERY):
                changed = await out.receive()
            if changed is not None and sees(changed):
                yield _event(await _row(queue, changed))
            quiet = 0 if changed is not None else quiet + 1
            if quiet >= ALIVE_EVERY:
                quiet = 0
                yield b": \n\n"
    finally:
        queue.watchers.remove(watch)
        into.close()
        out.close()


def cursor_of(approval: Approval) -> str:
    """By their age; one of two of the same age comes first for everybody."""
    return f"{approval.created:017.6f}-{approval.id}"


async def _row(queue: ApprovalQueue, approval: Approval) -> Json:
    return presentation.tell(approval, await queue.book.row(approval.id))


def _event(row: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (row["state"].encode("ascii"), json.dumps(row).encode("ascii"))


MAX_KEY: Final = 200
MAX_STREAMS: Final = 20  # of one principal
REMEMBERED: Final = 24 * 3600.0
_SHAPE: Final = (
    'the body is {"decision": "approve" or "deny", "seen_digest": DIGEST (needed to approve), '
    f'"scope": "once", "session" or "15m", "comment": TEXT of at most {MAX_COMMENT} characters}}'
)
_DECIDED: Final = "decided"  # every state in which nobody is waited for
_FOR: Final = ("approver", "requester")
_QUERY: Final = f"the query is state=STATE, server=KEY, for=approver or requester, {paging.SHAPE}, each at most once"
_UNKNOWN: Final[StatusAndBody] = (404, {"error": "no such approval"})
_NEWER: Final[StatusAndBody] = (
    409, {"error": "a newer Sluice wrote it, in a form that this one does not know: use a replica of that version"}
)
_NO_GRANT: Final[StatusAndBody] = (404, {"error": "no such grant"})


@dataclass(frozen=True, slots=True)
class ApprovalsApiDeps:
    """What is asked of others: all roles of a client, the row that a decision by a revision names, the newest calls of
    somebody, who accepted the definition that an approval is for."""

    roles_of: Callable[[Client], frozenset[str]]
    row_text: Callable[[str, str], str]
    history: Callable[[str], Awaitable[list[Json]]]
    accepted: Callable[[CallBinding], Json] = lambda binding: {}


class ApprovalsApi:
    def __init__(self, queue: ApprovalQueue, people: ApprovalsApiDeps, store: Store) -> None:
        self._queue, self._people, self._store = queue, people, store
        self._posting = anyio.Lock()
        self._streams = Counter[str]()

    async def get(self, path: tuple[str, ...], query: Mapping[str, Sequence[str]], client: Client) -> StatusAndBody:
        """`path` is what follows /api/v1/."""
        match path:
            case ("approvals",):
                return await self._list(query, client)
            case ("approvals", id) if not query:
                return await self._or_newer(id, await self._show(id, client))
            case ("grants",):
                return await self._grants(query)
            case ("grants", id) if not query and (grant := self._queue.grants.get(id)) is not None:
                return 200, _grant(grant)
            case ("grants", _):
                return _NO_GRANT
        return 404, {"error": "no such path"}

    async def _list(self, query: Mapping[str, Sequence[str]], who: Client) -> StatusAndBody:
        asked = paging.read_page_request(query)
        if asked is None or set(query) - {"state", "server", "for", *paging.PAGE_QUERY}:
            return 400, {"error": _QUERY}
        state, server = query.get("state", [""])[0], query.get("server", [""])[0]
        whose = query.get("for", [""])[0]
        if (state and state not in (*TRANSITIONS, _DECIDED)) or (whose and whose not in _FOR):
            return 400, {"error": f"{_QUERY}; states are {', '.join(TRANSITIONS)}, and {_DECIDED}"}
        # Whoever asks for what is pending asks what waits for somebody's word.
        every = set(TRANSITIONS)
        groups: Mapping[str, Set[str]] = {"": every, "pending": WAITING, _DECIDED: every - WAITING}
        wanted = groups.get(state, {state})
        found = self._queue.open_ones()
        if not wanted <= WAITING:
            found += await self._queue.book.finished(self._queue.clock())
        roles = self._people.roles_of(who)

        async def row(one: Approval) -> Json:
            return presentation.tell(one, await self._queue.book.row(one.id)) | self._to_viewer(one, who, roles)

        def is_for(one: Approval) -> bool:
            if whose == "approver":
                return not self._objection(one, who, roles) and not has_voted(one, who)
            return not whose or one.binding.principal == who.principal

        mine: list[Approval] = []
        for number, one in enumerate(found):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            is_wanted = one.state in wanted and server in ("", one.binding.server)
            if is_wanted and self._may_see(one, who, roles) and is_for(one):
                mine.append(one)
        page = await paging.page_of(mine, cursor_of, asked, row)
        return 200, {"approvals": page.pop("rows"), **page}

    async def _grants(self, query: Mapping[str, Sequence[str]]) -> StatusAndBody:
        asked = paging.read_page_request(query)
        if asked is None or set(query) - set(paging.PAGE_QUERY):
            return 400, {"error": f"the query is {paging.SHAPE}, each at most once"}

        async def row(grant: Grant) -> Json:
            return _grant(grant)

        page = await paging.page_of(self._queue.grants.all(), lambda grant: grant.id, asked, row)
        return 200, {"grants": page.pop("rows"), **page}

    async def _show(self, id: str, who: Client) -> StatusAndBody:
        approval = await self._queue.get(id)
        roles = self._people.roles_of(who)
        if approval is None or not self._may_see(approval, who, roles):
            return _UNKNOWN
        book, binding = self._queue.book, approval.binding
        details, last = await book.shown(id), await book.last(approval)
        is_requester = who.principal == binding.principal
        if is_requester and binding.principal != last.get("principal"):
            last = {}  # somebody else's arguments: whoever asks is no approver of theirs
        calls = await self._people.history(binding.principal)
        if is_requester:  # which of the two it was says what exists that they are not shown
            calls = [call for call in calls if call.get("reason") not in ("denied", "not_found")]
        row = self._people.row_text(binding.rule, approval.policy)
        tell = partial(presentation.tell_all, approval, details, last, calls, row, self._queue.clock())
        shown = await in_reader_thread(tell)  # arguments of 20,000 values take 100 ms
        shown["definition"] |= self._people.accepted(binding)
        return 200, shown | self._to_viewer(approval, who, roles)

    def events(self, who: str, now: Callable[[], Client | None]) -> AsyncGenerator[bytes, None]:
        """What becomes of approvals that `who` may see, as server-sent events. `now` is that client with the rights of
        this moment, None where there are none any more."""

        def sees(approval: Approval) -> bool:
            client = now()
            return client is not None and self._may_see(approval, client, self._people.roles_of(client))

        return self._counted(who, stream(self._queue, sees, lambda: now() is not None))

    async def _counted(self, who: str, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Nobody takes the streams of all others."""
        if self._streams[who] >= MAX_STREAMS:
            yield FULL
            return
        self._streams[who] += 1
        try:
            async with aclosing(stream):
                async for part in stream:
                    yield part
        finally:
            self._streams[who] -= 1
            self._streams += Counter()  # those that have none are forgotten

    async def post(
        self, path: tuple[str, ...], body: bytes, key: str, client: Client, channel: str = "api"
    ) -> StatusAndBody:
        """What was done under an idempotency key is told again, and not done again. Nothing secret is: to reveal
        arguments changes nothing, and is recorded each time."""
        if not key or path[-1:] == ("reveal",):
            return await self._post(path, body, client, channel)
        if len(key) > MAX_KEY or not key.isprintable():
            return 400, {"error": f"an idempotency key has at most {MAX_KEY} characters"}
        store_key = f"admin/once/{_digest(client.principal, key)}"
        of = _digest("/".join(path), body.decode("utf-8", "replace"))
        async with self._posting:
            earlier = await self._store.get(store_key)
            if earlier is not None:
                before: Json = decode_fast(earlier)
                same = before["of"] == of
                return (before["status"], before["body"]) if same else (422, {"error": "the key was used for another"})
            status, answer = await self._post(path, body, client, channel)
            if status == 200:  # else nothing was done
                await self._store.put(store_key, dump({"of": of, "status": status, "body": answer}), REMEMBERED)
            return status, answer

    async def _post(self, path: tuple[str, ...], body: bytes, client: Client, channel: str) -> StatusAndBody:
        match path:
            case ("approvals", id, "decisions"):
                vote_request = _read_vote(body)
                if isinstance(vote_request, str):
                    return 400, {"error": vote_request}
                decided = await self._queue.decide(id, client, vote_request, channel)
                return await self._or_newer(id, await self._answer(decided))
            case ("approvals", id, "reveal"):
                answer = await self._queue.reveal(id, client, channel)
                if isinstance(answer, VoteRefused):
                    return await self._or_newer(id, (answer.status, {"error": answer.text}))
                return 200, await in_reader_thread(partial(_shown_whole, answer))
            case ("approvals", id, "cancel"):
                return await self._or_newer(id, await self._cancel(id, client, channel))
        return 404, {"error": "no such path"}

    async def _or_newer(self, id: str, found: StatusAndBody) -> StatusAndBody:
        """Answers 409, not 404, for a newer version's approval. Who may see it cannot be read from it, so anybody who
        has its id gets this answer."""
        return _NEWER if found[0] == 404 and await self._queue.book.is_newer(id) else found

    def _may_see(self, approval: Approval, who: Client, roles: frozenset[str]) -> bool:
        return may_see(self._queue.as_now(approval), who, roles)

    def _objection(self, approval: Approval, who: Client, roles: frozenset[str]) -> str:
        return objection(self._queue.as_now(approval), who, roles)

    def _to_viewer(self, approval: Approval, who: Client, roles: frozenset[str]) -> Json:
        """What an approval is to whoever looks: why they may not decide on it, and whether they have."""
        return {"objection": self._objection(approval, who, roles), "has_voted": has_voted(approval, who)}

    async def _cancel(self, id: str, who: Client, channel: str) -> StatusAndBody:
        approval = await self._queue.get(id)
        roles = self._people.roles_of(who)
        if approval is None or not self._may_see(approval, who, roles):
            return _UNKNOWN
        if who.principal != approval.binding.principal and (why := self._objection(approval, who, roles)):
            return 403, {"error": why}
        if approval.is_finished:
            return 409, {"error": f"it is {approval.state} already"}
        ended = await self._queue.end(id, "cancelled", who.principal, channel=channel)
        return await self._answer(ended or VoteRefused(404, "no such approval"))

    async def _answer(self, decided: Approval | VoteRefused) -> StatusAndBody:
        if isinstance(decided, VoteRefused):
            return decided.status, {"error": decided.text}
        return 200, presentation.tell(decided, await self._queue.book.row(decided.id))

    async def delete(self, path: tuple[str, ...], who: str) -> StatusAndBody:
        """A grant is taken back. Whoever has the right may: it only takes away."""
        grant = self._queue.grants.get(path[1]) if len(path) == 2 and path[0] == "grants" else None
        if grant is None:
            return _NO_GRANT
        if not await self._queue.grants.revoke(grant, who):
            return 503, {"error": "the audit log cannot be written, and nothing is changed unrecorded"}
        return 200, _grant(grant)


def _shown_whole(answer: Json) -> Json:
    """Unmasked, but nothing hides in it."""
    return {**answer, "arguments_lines": lines(answer["arguments"])}


def _read_vote(body: bytes) -> VoteRequest | str:
    try:
        value: Any = decode(body)
    except Malformed as problem:
        return problem.text
    match value:
        case {"decision": "approve" | "deny" as word, **rest} if not rest.keys() - {"scope", "comment", "seen_digest"}:
            scope, comment, seen = rest.get("scope", "once"), rest.get("comment", ""), rest.get("seen_digest", "")
            if scope in SCOPES and isinstance(comment, str) and isinstance(seen, str) and len(comment) <= MAX_COMMENT:
                return VoteRequest(word, seen, scope, comment)
    return _SHAPE


def _grant(grant: Grant) -> Json:
    answer = grant.show()
    times = {name: presentation.stamp(answer[name]) for name in ("made_at", "expires_at")}
    return {**answer, **times, "tool": visible(grant.binding.own)}


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
