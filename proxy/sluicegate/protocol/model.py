"""The vocabulary of the middle: who calls, what for, and how it can end.

The middle speaks the newest, stateless revision only (2026-07-28). Edges translate their peer's dialect
into these types and back; guards, router and servers see nothing else. No I/O, no wire, no library.

`Call.method` is one of the routed methods of `methods.py`; notifications/roots/list_changed of a legacy client among
them, with an outcome that nobody waits for. `Call.params` is the
request's params without `_meta`; `task` among them is a legacy client's wish to be answered later. `Call.meta` is
`_meta` without what describes the sender (revision, clientInfo, clientCapabilities: those are the `Client`).
`meta["progressToken"]` is the client's own token.
`Result.value` is the result without `resultType` and without the reserved serverInfo key of `_meta`.
"""

from asyncio import Future
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, Protocol

from sluicegate.protocol import methods
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, Json, Notification, Response, dump, light
from sluicegate.protocol.shape import Shape

MODERN = methods.MODERN

Era = Literal["legacy", "modern"]
Kind = methods.Kind

# 2026-07-28 basic/index#error-codes
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
# <= 2025-11-25 server/resources#error-handling; never emitted to a modern client
RESOURCE_NOT_FOUND = -32002

LOG_LEVEL = "io.modelcontextprotocol/logLevel"
REASON = "dev.sluice/reason"

ROUND_SECONDS: Final = 600.0
"""How long a call waits between two rounds: its sealed state is good for so long, so long is it remembered that the
state was used, and so long does its server's exchange stay open."""
ANSWER_WITHIN: Final = ROUND_SECONDS - 60.0
"""How long a client is asked for: an answer that comes later could not be used any more."""

Reason = Literal[
    "denied", "invalid_arguments", "approval_denied", "approval_pending", "approval_expired", "rate_limited",
    "server_unavailable", "timeout", "result_too_large", "result_withheld", "outcome_unknown",
    "audit_unavailable", "store_unavailable", "login_required",
]  # fmt: skip


@light
@dataclass(frozen=True, slots=True)
class Client:
    """The peer that calls. `session` is the id of a legacy session, None for stateless clients.
    `capability_key` is the canonical text of what it declared: equal keys of one revision, equal `capabilities`.
    `credential` tells the keys apart that one principal has had (see `key_mark`); it is empty for whoever came in
    without a key. `is_operator` of one that came in at the admin port. `toolset` is the name of the one that it has,
    empty for none."""

    principal: str
    roles: tuple[str, ...] = ()
    owner: str = ""
    revision: str = MODERN
    info: Json = field(default_factory=dict)
    capabilities: Json = field(default_factory=dict)
    session: str | None = None
    capability_key: str = "{}"
    credential: str = ""
    is_operator: bool = False
    toolset: str = ""

    @property
    def holder(self) -> str:
        """Whose something is that outlives a call and is of one toolset: at another one it is unknown."""
        return within(holder(self.principal, self.credential), self.toolset)

    @property
    def era(self) -> Era:
        return "modern" if self.revision >= MODERN else "legacy"


def holder(principal: str, credential: str = "") -> str:
    """Whose something is that outlives a call: a key that was replaced is another one, as its holder may be. All
    tokens of one subject are one holder's."""
    return f"{principal} {credential}" if credential else principal


def within(whose: str, toolset: str) -> str:
    """The same, of one toolset. No principal holds a NUL."""
    return f"{whose}\0{toolset}" if toolset else whose


@dataclass(frozen=True, slots=True)
class Target:
    """What a call is about: one tool, prompt or resource of one server. `item` is the definition as that
    server gave it, None where there is none (an unlisted resource)."""

    server: str
    kind: Kind
    own: str
    public: str
    item: Json | None = None
    is_unlisted: bool = False  # relayed though the server has not listed it: other spellings of a rule's names count
    is_stored: bool = False  # the definition is from an earlier run, and the server has not listed it since
    shape: Shape | None = None  # how the operator shows it
    is_part: bool = False  # what is read is a part of an answer of it, which Sluice keeps


class Verdict(StrEnum):
    """A text itself, so that keys and labels with it need no code of `enum`: every call makes some."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    rule: str
    reason: str


LOGIN_PROFILE: Final = "=login"
"""In the place of a profile, and no name of one."""


@dataclass(frozen=True, slots=True)
class ApprovalRef:
    """What a round that is sealed says of an approval: which one, what it is for (`digest`), and by which rule and
    profile it was needed. `key` is that of our own question; without one the call was let through, and its later
    rounds are covered."""

    id: str
    digest: str
    rule: str
    profile: str
    key: str = ""

    @property
    def is_login(self) -> bool:
        """Whether what was asked is a login, and no approval."""
        return self.profile == LOGIN_PROFILE

    @property
    def is_question(self) -> bool:
        """Whether it is one of ours, for an approval, that the round answers."""
        return self.key != "" and not self.is_login


class LargeAnswer(Protocol):
    """An answer of `size` bytes that is over the limits, cut into parts that stand one behind the other. `documents`
    has, for each text of the answer, its MIME type and the bytes of its parts."""

    @property
    def size(self) -> int: ...

    @property
    def documents(self) -> Sequence[tuple[str, Sequence[int]]]: ...

    @property
    def is_error(self) -> bool: ...

    async def read(self, start: int, length: int) -> bytes: ...

    def close(self) -> None: ...


class ApprovalUse(Protocol):
    """What lets a call pass that needed a human: said in its intent, and good when it is redeemed, once."""

    @property
    def note(self) -> Json: ...

    async def redeem(self) -> bool: ...


class Trail:
    """What happened to one call, in order: the one object that grows, so that guards further out can read it.
    Nobody removes or changes an entry. `round` is what a retry claims to be: (id of the first call, round), and
    `approval_ref` the approval that its state names. `approval_use` lets a call pass that needs an approval, and
    `awaits` is the id of the one that it was last held for. The call is meant for the server of this `identity`,
    and for no other under the same key; None: for whichever has it. `is_sent` says that it may have reached it.
    `login` is whose account is used there. `refused_argument` is one that its client gave and may not give. Of the
    call's seconds, `wait_seconds` went by at its server or before a person, `audit_seconds` until its intent was on the
    disk. `composing` is the newest of its audit records that is composed in a thread: that took `compose_seconds` for
    what the client wrote, `answer_seconds` for what the server did. Work of many steps has `spend` count each, by when
    it began. An answer over the limits that was kept is `oversized`; `parts` says what of such an answer the client got
    from Sluice itself.
    `target`, `round` and `decisions` are changed by the methods here alone.
    """

    # Defaults stand in the class: most calls keep them, and setting them in each would cost more.
    target: Target | None = None
    round: tuple[str, int] | None = None
    decisions: tuple[Decision, ...] = ()
    approval_ref: ApprovalRef | None = None
    approval_use: ApprovalUse | None = None
    awaits = refused_argument = ""
    identity: str | None = None
    login: Json | None = None
    is_sent = False
    wait_seconds = audit_seconds = compose_seconds = answer_seconds = 0.0
    composing: Future[Any] | None = None
    spend: Callable[[float], Awaitable[None]] | None = None
    oversized: LargeAnswer | None = None
    parts: Json | None = None

    def __init__(self, id: str = "") -> None:
        self.id = id

    def set_target(self, target: Target) -> None:
        self.target = self.target or target

    @property
    def has_begun(self) -> bool:
        """Whether an earlier round of this call has reached its server: what we ask ourselves comes before that."""
        return self.round is not None and (self.approval_ref is None or not self.approval_ref.key)

    def resume(self, id: str, round: int, approval_ref: ApprovalRef | None = None) -> None:
        self.round = self.round or (id, round)
        self.approval_ref = approval_ref

    def add(self, decision: Decision) -> None:
        self.decisions += (decision,)


@dataclass(frozen=True, slots=True)
class TaskNotification(Notification):
    """What a server says of a task outside of any call: for who may use the tool that the task runs, as long as they
    may. Without a target it is for nobody."""

    target: Target | None


Emit = Callable[[Notification], Awaitable[None]]
"""Takes a notification that belongs to this call (progress, log message, a listen stream's events)."""


async def no_emit(notification: Notification) -> None:
    """Drops the notifications of a call to which no client listens."""


@light
@dataclass(frozen=True, slots=True)
class Call:
    """One request being handled. `mirrored` is the client's `Mcp-Param-*` headers (modern HTTP only)."""

    client: Client
    method: str
    params: Json
    meta: Json = field(default_factory=dict)
    target: Target | None = None
    mirrored: Mapping[str, str] | None = None
    emit: Emit = no_emit
    trail: Trail = field(default_factory=Trail)


@light
@dataclass(frozen=True, slots=True)
class Result:
    """`value` is final: whoever wants another one copies it. `reason` is set where Sluice itself refused the call: only
    this field says so, never what stands in `value`, which a server may have written."""

    value: Json
    _text: bytes | None = field(default=None, compare=False, repr=False)
    reason: Reason | None = None

    @property
    def text(self) -> bytes:
        """The value as JSON, encoded once: the audit log's digest is of what the answer then has. A megabyte takes
        milliseconds each time. Raises `Malformed`."""
        text = self._text
        if text is None:
            text = dump(self.value)
            object.__setattr__(self, "_text", text)
        return text


class OwnState(str):
    """A state that Sluice itself made for a server's part in a round. It is told from a server's own by its type, which
    the sealed envelope keeps: a server may write any text."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class InputRequired:
    """The server asks the client: key -> {method, params}, and the server's opaque state
    (2026-07-28 basic/patterns/mrtr). None is "no state", the empty string is a state. `is_held`: the call is still
    open at its server, so that its own time bounds the rounds, not their number; `remaining_seconds` are left of it.
    `takes_errors`: that server asked with requests of its own, which may be answered with an error. With an
    `approval_ref` that has a key it is Sluice that asks. `server` is the key of the one that does."""

    requests: Json
    state: str | None = None
    is_held: bool = False
    takes_errors: bool = False
    approval_ref: ApprovalRef | None = None
    remaining_seconds: float | None = None
    server: str = ""

    @property
    def is_ours(self) -> bool:
        return self.approval_ref is not None and self.approval_ref.key != ""


@dataclass(frozen=True, slots=True)
class Failure:
    """A JSON-RPC error. `reason` is set where Sluice itself refused the call, as in `Result`."""

    code: int
    message: str
    data: Any = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """The server answers this `tools/call` later: the task that it made of it, flat, in the words of the extension
    (SEP-2663). Its `taskId` is the server's own inside the router, and ours outside of it."""

    task: Json


Outcome = Result | InputRequired | Failure | TaskStarted
Handler = Callable[[Call], Awaitable[Outcome]]


class Guard(Protocol):
    """Decides about a call before it gives it to `inner`, and about its outcome after."""

    def __call__(self, call: Call, inner: Handler) -> Awaitable[Outcome]: ...


Publish = Callable[[str, str | None, Notification], None]
"""(server key, scope, notification) of a notification that belongs to no call. A scope of None means every
scope of that server; `session_scope` is that of one legacy session alone. Never blocks."""


Updated = Callable[[Json], None]
"""(params of `notifications/resources/updated`, in the server's own URIs). Never blocks."""


class Release(Protocol):
    """Ends subscriptions that were made together: all of them, or that to one resource."""

    def __call__(self, uri: str | None = None) -> None: ...


Subscribed = tuple[Release, Mapping[str, Failure]]
"""What ends it, and the resources that the server refused."""


def session_scope(session: str) -> str:
    """For what a server says to one legacy client and to no call of it: a log message, a page that was visited. It is
    no state: told as often as it is said, and only to that client."""
    return f"session:{session}"


Ask = Callable[[str, str, Json], Awaitable[Response | None]]
"""(session id, method, params): asks the client of one legacy session something that belongs to no call. None when
it cannot be asked or does not answer in time; else its response, whose id says nothing."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks outside of any call: a server by its key, or Sluice, which has none. `allowed` gives the question as
    that client may be asked it by now; None where it may not."""

    server: str = ""
    allowed: Callable[[Client, Json], Json | None] = lambda client, ask: ask


SLUICE: Final = Asker()


class AskSession(Protocol):
    """Asks as `Ask` does, on behalf of `asker`."""

    def __call__(
        self, session: str, method: str, params: Json, asker: Asker = SLUICE, /
    ) -> Awaitable[Response | None]: ...


class McpServer(Protocol):
    """One configured server as the middle sees it: a Handler that also says how it is doing."""

    @property
    def key(self) -> str: ...

    @property
    def identity(self) -> str:
        """What is kept of this server is kept under it: another URL or command under the same key is another server."""

    @property
    def status(self) -> Literal["starting", "up", "down", "disabled"]: ...

    def unavailable(self, call: Call) -> Outcome:
        """The answer to a call of which nobody knows now whether the server has its target."""

    def shows(self, client: Client) -> bool:
        """Whether what it listed to that client is shown: a server that is down has nothing."""

    def era_for(self, client: Client) -> Era | None:
        """The era this server is spoken to in for that client; None while it is not known yet."""

    def scope(self, client: Client) -> str:
        """Clients with equal scope see equal lists of this server. Cheap: it is on the hot path."""

    def capability_set(self, client: Client, era: Era) -> str:
        """Which of that client's capabilities this server is told of in that era, as one of few words: a server may
        list other definitions to each set."""

    async def ready(self, is_needed: bool = False) -> None:
        """Returns once the first attempt to reach the server has ended, well or badly. Of a lazy server only
        `is_needed` waits for that, and has it started."""

    @property
    def start_timeout(self) -> float:
        """Seconds that a list may wait for its start."""

    @property
    def start_left(self) -> float:
        """Seconds of those that are left, 0 once it has failed to start."""

    async def hold(self, client: Client) -> Callable[[], None]:
        """Returns when this server's list_changed notifications for that client reach the hub, and the
        function that ends the need for it. Raises `ConnectionError` while the server cannot be reached."""

    async def subscribe(self, client: Client, uris: Collection[str], tell: Updated) -> Subscribed:
        """Returns when `tell` is told of the updates of these resources and of their sub-resources, also after the
        server was away. Raises `ConnectionError` while the server cannot be reached."""

    async def __call__(self, call: Call) -> Outcome:
        """Every method of the middle; list methods relay `params["cursor"]` and the server's own page."""


def refuse(method: str, reason: Reason, text: str) -> Outcome:
    """A refusal as the contract words it: for `tools/call` a result that a model can act on, else an error."""
    if method == "tools/call":
        value: Json = {"content": [{"type": "text", "text": text}], "isError": True, "_meta": {REASON: reason}}
        return Result(value, reason=reason)
    return Failure(INTERNAL_ERROR, text, {"reason": reason}, reason)


def not_found(method: str, params: Json) -> Failure:
    """The answer for what does not exist, and so for what is hidden. Legacy edges turn a resource's code
    into -32002 (2026-07-28 server/resources#error-handling: -32602 with data.uri)."""
    match methods.JUDGED_BY_NAME.get(method):
        case "uri":
            return Failure(INVALID_PARAMS, "Resource not found", {"uri": params.get("uri")})
        case "ref":
            return Failure(INVALID_PARAMS, "Unknown reference")
        case "taskId":  # unknown, expired, hidden or somebody else's: no difference may show
            return Failure(INVALID_PARAMS, "Task not found")
    return Failure(INVALID_PARAMS, f"Unknown {methods.TARGET_KINDS.get(method, 'tool')}: {params.get('name')}")
