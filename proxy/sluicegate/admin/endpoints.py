"""Who answers an operation of the admin API, once the credential and the right are judged.

Reaches no server, store or file itself: functions that it is given do. None stands for what is not configured.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from starlette.requests import Request

from sluicegate.admin.approval_page import Page
from sluicegate.admin.approvals import ApprovalsApi
from sluicegate.admin.blocks import BlocksApi
from sluicegate.admin.blocks import add as add_block
from sluicegate.admin.calls import CallsApi
from sluicegate.admin.changes import AREAS as TOPICS
from sluicegate.admin.changes import Changes, read_topics
from sluicegate.admin.credentials import header
from sluicegate.admin.logins import LoginsApi
from sluicegate.admin.logins import begin as begin_login
from sluicegate.admin.logins import show as list_logins
from sluicegate.admin.peers import CHANNEL
from sluicegate.admin.response import (
    AdminResponse,
    EventStreamResponse,
    error_response,
    json_response,
    rows_response,
)
from sluicegate.admin.routes import ACTIONS, AREAS, MAX_LISTED, openapi
from sluicegate.admin.verification import Verification
from sluicegate.audit.log import AuditLog
from sluicegate.policy.pins import WORDS, PinKind, Wanted
from sluicegate.protocol.jsonrpc import Json, decode
from sluicegate.protocol.model import Client

Answer = AdminResponse | EventStreamResponse
ChangeServer = Callable[[str, str, str], Awaitable[tuple[int, Json]]]
"""(server key, action, who asks) -> status and answer. What an operator does is written down first."""


class PinsApi(Protocol):
    def each_row(
        self, server: str | None = None, definitions: bool = False, waiting: bool = False
    ) -> AsyncIterator[Json]: ...

    async def accept(self, server: str, wanted: Iterable[Wanted], by: str) -> list[Json] | str: ...


async def nobody(credential: str) -> tuple[None, str]:
    """Only who is known at once gets in."""
    return None, "credential"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminDeps:
    """What the admin port can tell, as functions."""

    ready: Callable[[], list[str]]  # why Sluice is not ready; nothing: it is
    metrics: Callable[[], Callable[[], tuple[bytes, str]]] | None
    """How things stand, to be rendered in a worker thread as text and content type; None: not shown."""
    describe_servers: Callable[[], Awaitable[list[Json]]]
    list_tools: Callable[[str], Awaitable[list[Json] | None]]  # as that client sees them; None: no such client
    cost: Callable[[str, str], Awaitable[Json | None]]  # of a client's list at a toolset
    judge_tools: Callable[[str], Awaitable[list[Json] | None]]  # those too that the client is not given
    client_of: Callable[[str], Client | None]  # whose credential this is, as far as it is known without waiting
    may: Callable[[Client, str, str], bool]  # whether a client may read or write: servers, tools, approvals, ...
    change_server: ChangeServer
    list_prompts: Callable[[str], Awaitable[list[Json] | None]]
    list_resources: Callable[[str, str], Awaitable[Json | str]]
    """A page of them as a client sees them, after a cursor; or why there is none."""
    output: Callable[[str, str], Json | None]
    """What a server wrote to stderr after a position."""
    pins: PinsApi
    blocks: BlocksApi
    approvals: ApprovalsApi
    audit: AuditLog | None = None
    calls: CallsApi | None = None  # None: no audit log is kept
    verification: Verification | None = None  # None: the same
    denied: Callable[[str, str, str], None] = lambda who, area, act: None  # who had no right
    operator: Callable[[], Client] = lambda: Client("local")  # whom the operator's token stands for
    admit: Callable[[str], Awaitable[tuple[Client | None, str]]] = nobody  # the same after a look, or why it is not one
    refused: Callable[[str, str], None] | None = None  # whose credential was none: an address and a word
    page: Page
    facts: Callable[[str, str, str], Awaitable[Json | str]]
    """What an explanation has to know: client, method and target to the facts, or to why there are none."""
    explain: Callable[[str, str, str, Json | None], Awaitable[Json | str]]
    """The decision for client, method, target and arguments, with its rows; or why there is none."""
    preview: Callable[[Client, str, Json], Awaitable[Json | str]]
    """A call of whoever asks, by its method and parameters: what came of it, or why it was not made."""
    logins: LoginsApi
    changes: Changes = field(default_factory=lambda: Changes(dict))
    status: Callable[[], Json] = dict  # the version of Sluice, and which policy is in force
    notes: Callable[[], list[str]] = list  # what an operator should know although Sluice is ready


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request to `/api/v1/` that `client` may make. `parts` is its path there; `now` is the same client with the
    rights of this moment, or None where the credential has lost them."""

    request: Request
    client: Client
    parts: tuple[str, ...]
    query: Mapping[str, Sequence[str]]
    body: bytes
    now: Callable[[], Client | None]

    @property
    def who(self) -> str:
        return self.client.principal


async def me(sources: AdminDeps, asked: ApiRequest) -> Answer:
    rights = {area: [act for act in ("read", "write") if sources.may(asked.client, area, act)] for area in AREAS}
    return json_response(200, {"principal": asked.who, "rights": {area: acts for area, acts in rights.items() if acts}})


async def show_status(sources: AdminDeps, asked: ApiRequest) -> Answer:
    """Whether Sluice is well, in one answer; the newest checkpoint is for who may read the log."""
    reasons, status = sources.ready(), dict(sources.status())
    if sources.audit is not None and sources.may(asked.client, "audit", "read"):
        head = sources.audit.head()
        status["audit"] = {"problem": sources.audit.problem or "", "signed": None if head is None else head.to_json()}
    ready: Json = {"status": "not ready" if reasons else "ready", "reasons": reasons, "notes": sources.notes()}
    return json_response(200, ready | status)


async def show_openapi(sources: AdminDeps, asked: ApiRequest) -> Answer:
    return json_response(200, openapi())


async def list_servers(sources: AdminDeps, asked: ApiRequest) -> Answer:
    return json_response(200, {"servers": await sources.describe_servers()})


async def show_server(sources: AdminDeps, asked: ApiRequest) -> Answer:
    key = asked.parts[1]
    row = next((row for row in await sources.describe_servers() if row["key"] == key), None)
    return error_response(404, f"there is no server {key}") if row is None else json_response(200, row)


async def change_server(sources: AdminDeps, asked: ApiRequest) -> Answer:
    """An action has no parameters, so that its body is an empty object."""
    if asked.body.strip() not in (b"", b"{}"):
        return error_response(400, "the body is {}")
    _, key, action = asked.parts
    return json_response(*await sources.change_server(key, action, asked.who))


async def cost(sources: AdminDeps, asked: ApiRequest) -> Answer:
    client, toolset = _single(asked, "as", "local"), _single(asked, "toolset", "")
    if client is None or toolset is None or set(asked.query) - {"as", "toolset"}:
        return error_response(400, "the query is ?as=ID&toolset=NAME, each at most once")
    found = await sources.cost(client, toolset)
    if found is None:
        return error_response(404, f"no such client, or no such toolset for it: {client}")
    return json_response(200, {"as": client, "toolset": toolset, **found})


async def _listed(asked: ApiRequest, name: str, rows_of: Callable[[str], Awaitable[list[Json] | None]]) -> Answer:
    """All rows, or those of a page: `next` is the name of its last row, behind which the page after it begins."""
    client, cursor, limit = _single(asked, "as", "local"), _single(asked, "cursor", ""), _single(asked, "limit", "")
    if client is None or cursor is None or limit is None or set(asked.query) - {"as", "cursor", "limit"}:
        return error_response(400, "the query is ?as=ID&cursor=CURSOR&limit=ROWS, each at most once")
    if limit and not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_LISTED):
        return error_response(400, f"limit is a number from 1 to {MAX_LISTED}")
    rows = await rows_of(client)
    if rows is None:
        return error_response(404, f"no such client: {client}")
    if cursor:
        after = max((number for number, row in enumerate(rows, 1) if row["name"] == cursor), default=0)
        if not after:
            return error_response(400, "the cursor is not one of this list, or not any more")
        rows = rows[after:]
    page = rows[: int(limit[:9])] if limit else rows
    more = {"next": page[-1]["name"]} if len(page) < len(rows) else {}
    return rows_response({"as": client, **more}, name, page)


async def list_resources(sources: AdminDeps, asked: ApiRequest) -> Answer:
    client, cursor = _single(asked, "as", "local"), _single(asked, "cursor", "")
    if client is None or cursor is None or set(asked.query) - {"as", "cursor"}:
        return error_response(400, "the query is ?as=ID&cursor=CURSOR, each at most once")
    page = await sources.list_resources(client, cursor)
    if isinstance(page, str):
        return error_response(400 if cursor else 404, page)
    templates = page.pop("templates")
    return rows_response({"as": client, **page}, "templates", templates)


def _single(asked: ApiRequest, name: str, otherwise: str) -> str | None:
    """A member of the query that comes at most once; None if it comes more often."""
    values = asked.query.get(name, [otherwise])
    return values[0] if len(values) == 1 else None


async def show_output(sources: AdminDeps, asked: ApiRequest) -> Answer:
    after = _single(asked, "after", "")
    if after is None or set(asked.query) - {"after"}:
        return error_response(400, "the query is ?after=POSITION, once, or nothing")
    found = sources.output(asked.parts[1], after)
    return error_response(404, f"there is no server {asked.parts[1]}") if found is None else json_response(200, found)


_PIN_KINDS: Final[Mapping[Any, PinKind]] = {word: kind for kind, word in WORDS.items()}
_ACCEPTING: Final = (
    'the body is {"server": KEY, "accept": [{"kind": "tool|prompt|template|instructions", "name": NAME, '
    '"fingerprint": HEX}, ...]}'
)


async def list_pins(sources: AdminDeps, asked: ApiRequest) -> Answer:
    server, flags = _single(asked, "server", ""), [_single(asked, name, "0") for name in ("definitions", "waiting")]
    if server is None or set(asked.query) - {"server", "definitions", "waiting"} or not {"0", "1"}.issuperset(flags):
        return error_response(400, "the query is ?server=KEY, ?definitions=1 and ?waiting=1, each once, or nothing")
    rows = sources.pins.each_row(server or None, *(flag == "1" for flag in flags))
    return rows_response({}, "pins", [row async for row in rows])


async def accept_pins(sources: AdminDeps, asked: ApiRequest) -> Answer:
    """All that is named or nothing; 409 if something is not what the server gave last. A definition is accepted by its
    fingerprint, so that nobody accepts what came after the look."""
    match decode(asked.body):
        case {"server": str() as server, "accept": list() as items, **rest} if not rest:
            wanted = [one for item in items if (one := _wanted(item)) is not None]
            if len(wanted) == len(items):
                accepted = await sources.pins.accept(server, wanted, asked.who)
                if isinstance(accepted, str):
                    return error_response(409, accepted)
                return json_response(200, {"pins": accepted})
    return error_response(400, _ACCEPTING)


def _wanted(item: Any) -> Wanted | None:
    match item:
        case {"kind": str() as word, "name": str() as name, "fingerprint": str() as mark, **rest} if not rest:
            if (kind := _PIN_KINDS.get(word)) is not None:
                return Wanted(kind, "" if kind == "instructions" else name, mark)
    return None


async def list_blocks(sources: AdminDeps, asked: ApiRequest) -> Answer:
    return json_response(200, {"blocks": await sources.blocks.every()})


async def find_facts(sources: AdminDeps, asked: ApiRequest) -> Answer:
    given = [asked.query.get(name, ()) for name in ("as", "method", "target")]
    if len(asked.query) != 3 or any(len(values) != 1 for values in given):
        return error_response(400, "the query is ?as=ID&method=METHOD&target=TARGET, each once")
    found = await sources.facts(*(values[0] for values in given))
    return error_response(400, found) if isinstance(found, str) else json_response(200, found)


async def explain(sources: AdminDeps, asked: ApiRequest) -> Answer:
    match decode(asked.body):
        case {"as": str() as client, "method": str() as method, "target": str() as target, **rest}:
            arguments = rest.pop("arguments", None)
            if not rest and (arguments is None or isinstance(arguments, dict)):
                found = await sources.explain(client, method, target, arguments)
                return error_response(400, found) if isinstance(found, str) else json_response(200, found)
    return error_response(400, 'the body is {"as": ID, "method": METHOD, "target": TARGET, "arguments": {...}}')


async def preview(sources: AdminDeps, asked: ApiRequest) -> Answer:
    value = decode(asked.body)
    match value:
        case {"method": "resources/read", "target": str() as uri, **rest} if not rest:
            params: Json = {"uri": uri}
        case {"method": "prompts/get", "target": str() as name, "arguments": dict() as arguments, **rest} if (
            not rest and all(isinstance(text, str) for text in arguments.values())
        ):
            params = {"name": name, "arguments": arguments}
        case _:
            shapes = ('"resources/read", "target": URI', '"prompts/get", "target": NAME, "arguments": {NAME: TEXT}')
            return error_response(400, "the body is " + " or ".join(f'{{"method": {shape}}}' for shape in shapes))
    found = await sources.preview(asked.client, value["method"], params)
    return error_response(503, found) if isinstance(found, str) else json_response(200, found)


async def show_audit_head(sources: AdminDeps, asked: ApiRequest) -> Answer:
    """The newest signed checkpoint, as `audit verify --checkpoint` takes it, for whoever keeps it where this machine's
    owner cannot reach."""
    if sources.audit is None:
        return _no_log()
    if (head := sources.audit.head()) is None:
        why = sources.audit.problem or "the first records are not ten seconds old"
        return error_response(404, f"nothing is signed yet: {why}")
    return json_response(200, head.to_json())


async def verify_log(sources: AdminDeps, asked: ApiRequest) -> Answer:
    """A start has no parameters, so that its body is an empty object."""
    if sources.verification is None:
        return _no_log()
    if asked.request.method != "POST":
        return json_response(200, sources.verification.status())
    is_empty = asked.body.strip() in (b"", b"{}")
    return json_response(200, sources.verification.start()) if is_empty else error_response(400, "the body is {}")


def _no_log() -> Answer:
    return error_response(404, "no audit log is kept: see audit.enabled")


async def follow_approvals(sources: AdminDeps, asked: ApiRequest) -> Answer:
    return EventStreamResponse(sources.approvals.events(asked.who, asked.now))


async def follow_changes(sources: AdminDeps, asked: ApiRequest) -> Answer:
    """The rights are asked for again with each event."""
    topics, last = read_topics(asked.query), header(asked.request.scope, "last-event-id")
    if topics is None:
        return error_response(400, f"the query is topics=TOPIC,...: {', '.join(TOPICS)}")

    def may_follow(topic: str) -> bool:
        client = asked.now()
        return client is not None and sources.may(client, TOPICS[topic], "read")

    if not any(map(may_follow, topics)):
        needed = " or ".join(f"admin:{TOPICS[topic]}" for topic in topics)
        return error_response(403, f"{asked.who} lacks the right {needed} read on sluice")
    return EventStreamResponse(sources.changes.follow(asked.who, topics, may_follow, "".join(last[:1])))


async def act_on_approval(sources: AdminDeps, asked: ApiRequest) -> Answer:
    scope = asked.request.scope
    if len(keys := header(scope, "idempotency-key")) > 1:
        return error_response(400, "one Idempotency-Key at most")
    channel, key = scope.get(CHANNEL, "api"), keys[0] if keys else ""
    return json_response(*await sources.approvals.post(asked.parts, asked.body, key, asked.client, channel))


Endpoint = Callable[[AdminDeps, ApiRequest], Awaitable[Answer]]
"""Raises `Malformed` where the body is no JSON."""


def _answered(ask: Callable[[AdminDeps, ApiRequest], Awaitable[tuple[int, Json]]]) -> Endpoint:
    """For what another module answers with a status and a body."""

    async def endpoint(sources: AdminDeps, asked: ApiRequest) -> Answer:
        return json_response(*await ask(sources, asked))

    return endpoint


def _from_log(ask: Callable[[CallsApi, ApiRequest], Awaitable[tuple[int, Json]]]) -> Endpoint:
    """The same of what stands in the audit log."""

    async def endpoint(sources: AdminDeps, asked: ApiRequest) -> Answer:
        return _no_log() if sources.calls is None else json_response(*await ask(sources.calls, asked))

    return endpoint


_look_at_approvals: Final = _answered(
    lambda sources, asked: sources.approvals.get(asked.parts, asked.query, asked.client)
)

ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    "me": me,
    "openapi": show_openapi,
    "list_servers": list_servers,
    "show_server": show_server,
    "show_status": show_status,
    **{f"{action}_server": change_server for action in ACTIONS},
    "show_output": show_output,
    "list_tools": lambda sources, asked: _listed(asked, "tools", sources.list_tools),
    "judge_tools": lambda sources, asked: _listed(asked, "tools", sources.judge_tools),
    "cost": cost,
    "list_prompts": lambda sources, asked: _listed(asked, "prompts", sources.list_prompts),
    "list_resources": list_resources,
    "list_pins": list_pins,
    "accept_pins": accept_pins,
    "list_blocks": list_blocks,
    "add_block": _answered(lambda sources, asked: add_block(sources.blocks, asked.body, asked.who)),
    "end_block": _answered(lambda sources, asked: sources.blocks.end(asked.parts[1], asked.who)),
    "list_logins": _answered(lambda sources, asked: list_logins(sources.logins, asked.query)),
    "begin_login": _answered(lambda sources, asked: begin_login(sources.logins, asked.body, asked.client)),
    "end_login": _answered(lambda sources, asked: sources.logins.end(asked.parts[1], asked.who)),
    "find_facts": find_facts,
    "explain": explain,
    "preview": preview,
    "show_audit_head": show_audit_head,
    "list_records": _from_log(lambda calls, asked: calls.records(asked.query)),
    "verify_log": verify_log,
    "show_verification": verify_log,
    "list_calls": _from_log(lambda calls, asked: calls.page(asked.query)),
    "show_call": _from_log(lambda calls, asked: calls.show(asked.parts[1])),
    "list_approvals": _look_at_approvals,
    "follow_approvals": follow_approvals,
    "follow_changes": follow_changes,
    "show_approval": _look_at_approvals,
    "decide": act_on_approval,
    "cancel": act_on_approval,
    "reveal": act_on_approval,
    "list_grants": _look_at_approvals,
    "show_grant": _look_at_approvals,
    "revoke_grant": _answered(lambda sources, asked: sources.approvals.delete(asked.parts, asked.who)),
}
