"""An approval as it is kept: its states, what it is for, under which terms, who has decided what. Pure.

Every approval begins as `pending`. A state with no way out is finished; nothing ever comes back from there. An approval
holds no arguments. What binds it to one call is the digest; what people look at is kept beside it, masked.
"""

import hashlib
import secrets
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal, TypeVar, get_args

from sluicegate.audit.record import fingerprint
from sluicegate.policy.profiles import ApprovalProfile
from sluicegate.protocol.canonical_json import hashed
from sluicegate.protocol.jsonrpc import Json, decode_fast, dump
from sluicegate.protocol.methods import JUDGED_BY_NAME
from sluicegate.protocol.model import Client, Kind, Target

State = Literal["pending", "partially_approved", "approved", "consumed", "denied", "expired", "cancelled", "superseded"]

_TO_BE_DECIDED: Final[tuple[State, ...]] = ("partially_approved", "approved", "denied")
_UNUSED: Final[tuple[State, ...]] = ("expired", "cancelled", "superseded")

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    "pending": frozenset((*_TO_BE_DECIDED, *_UNUSED)),
    "partially_approved": frozenset((*_TO_BE_DECIDED, *_UNUSED)),
    "approved": frozenset(("consumed", *_UNUSED)),
    "consumed": frozenset(),  # by the one call that it was for
    "denied": frozenset(),
    "expired": frozenset(),  # silence is a no
    "cancelled": frozenset(),  # by whoever asked, or with whoever asked
    "superseded": frozenset(),  # decided again at its use, the call is another matter
}
WAITING: Final[frozenset[State]] = frozenset({"pending", "partially_approved"})
FINISHED: Final = frozenset(state for state, following in TRANSITIONS.items() if not following)


def may_become(old: State, new: State) -> bool:
    return new in TRANSITIONS[old]


Scope = Literal["once", "session", "15m"]
Word = Literal["approve", "deny"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

FORM: Final = 1
"""The version of a stored approval or grant, in its member `v`. Version 1 has no `v`, so that an older Sluice reads it.
Whoever adds a member must raise the version: an older Sluice cannot obey a member that it does not know."""

# Nothing of a retry is bound: it continues a call, and its seal says which. `task` (2025-11-25) says how the client
# hears of its end: after a denial it would be another call with each `ttl`.
_NOT_BOUND: Final = frozenset({"_meta", "requestState", "inputResponses", "task"})
# Without letters and digits that are taken for one another (Crockford's base 32); 60 bits.
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


T = TypeVar("T")
_PLAIN: Final[Mapping[Any, Any]] = {str: str, float: int | float, float | None: int | float | None, int: int}


class NewerForm(ValueError):
    """A newer Sluice wrote it. What it says is not known here."""


@dataclass(frozen=True, slots=True)
class CallBinding:
    """What an approval is for: everything that must be the same when it is used. `identity` says which program or
    address had the server's key, `credential` which key the requester had (`key_mark`), `roles` the groups of the token
    that the requester came with: another token of theirs may be judged in another way. `class_` is what the tool was:
    who agreed to a writing one did not agree to a destroying one. `setup` is a mark of the server's environment or
    headers. A row that an earlier version wrote has none of these, and fits nothing."""

    digest: str
    principal: str
    server: str
    kind: Kind
    own: str
    definition: str
    rule: str
    terms: ApprovalProfile
    identity: str = ""
    credential: str = ""
    roles: tuple[str, ...] = ()
    class_: str = ""
    setup: str = ""


@dataclass(frozen=True, slots=True)
class Vote:
    """Somebody's yes, given under the policy of revision `policy`. It is good as long as that is in force, and what it
    was given with is: a key (`credential`, see `key_mark`), or a token with these groups (`roles`)."""

    principal: str
    persons: tuple[str, ...]
    channel: str
    at: float
    comment: str = ""
    policy: str = ""
    credential: str = ""
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Approval:
    """`persons` are who asked (see `persons`), `session` a digest of the requester's session. `by`, `comment` and
    `ended` say how it ended; `home` is the process that asks, `token_end` when the token ends that the
    requester came with."""

    id: str
    state: State
    binding: CallBinding
    method: str
    public: str
    policy: str
    persons: tuple[str, ...]
    owner: str
    session: str
    client: str
    trace: str
    home: str
    created: float
    expires: float
    votes: tuple[Vote, ...] = ()
    by: str = ""
    comment: str = ""
    ended: float | None = None
    scope: Scope = "once"
    token_end: float | None = None

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED

    @property
    def version(self) -> tuple[State, int]:
        return self.state, len(self.votes)

    def become(self, state: State, **changes: Any) -> "Approval":
        """Raises `ValueError` for a way that there is not."""
        if not may_become(self.state, state):
            raise ValueError(f"{self.id} cannot become {state}: it is {self.state}")
        return replace(self, state=state, **changes)

    def encode(self) -> bytes:
        return stored_form(self)

    @classmethod
    def decode(cls, data: bytes) -> "Approval":
        stored = read_form(data)
        binding, votes = read_binding(stored.pop("matter")), tuple(made(Vote, one) for one in stored["votes"])
        return made(cls, {**stored, "binding": binding, "votes": votes})


def stored_form(value: Any) -> bytes:
    """An approval or a grant as the store has it, where what it is bound to is the `matter`."""
    members = asdict(value)
    return dump({"matter": members.pop("binding"), **members})


def read_form(data: bytes) -> Json:
    """The members of that. Raises `NewerForm`."""
    stored: Json = decode_fast(data)
    if stored.pop("v", FORM) != FORM:
        raise NewerForm
    return stored


def read_binding(stored: Json) -> CallBinding:
    return made(CallBinding, {**stored, "terms": made(ApprovalProfile, stored["terms"])})


def made(kind: type[T], members: Mapping[str, Any]) -> T:
    """Raises `TypeError` for a member of another type: a time that is a text would stop whoever compares all times."""
    types = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass, which no bound of T says without typeshed
    if members.keys() - types.keys():
        raise NewerForm
    if odd := [name for name, value in members.items() if not isinstance(value, _PLAIN.get(types[name], object))]:
        raise TypeError(f"{odd} of another type")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in members.items()})


def new_id(kind: str = "apr") -> str:
    return f"{kind}_{''.join(secrets.choice(_ALPHABET) for _ in range(12))}"


def bind(
    client: Client, method: str, target: Target, params: Json, rule: str, terms: ApprovalProfile, identity: str = "",
    class_: str = "",
) -> Generator[None, None, CallBinding]:  # fmt: skip
    """The matter of a call, as the work of many steps where it is large. Two calls are the same one if their digests
    are: the order of members and the spelling of strings count nothing, any other difference does, between 1 and 1.0
    too."""
    binding = bind_any(client, target, rule, terms, identity, class_)
    bound: Json = {
        "principal": client.principal, "server": target.server, "tool": target.own, "definition": binding.definition,
        "params": {name: value for name, value in params.items() if name not in _NOT_BOUND},
    }  # fmt: skip
    if method != "tools/call":
        bound["method"] = method
    if JUDGED_BY_NAME.get(method) == "name" and "arguments" not in params:  # which means the same
        bound["params"]["arguments"] = {}
    digest = yield from hashed(bound)
    return replace(binding, digest=f"sha256:{digest}")


def bind_any(
    client: Client, target: Target, rule: str, terms: ApprovalProfile, identity: str = "", class_: str = ""
) -> CallBinding:
    """The same of a call with any arguments, without a digest: what a grant is asked about."""
    definition = "" if target.item is None else fingerprint(target.item)
    return CallBinding(
        "", client.principal, target.server, target.kind, target.own, definition, rule, terms, identity,
        client.credential, groups(client), class_,
    )  # fmt: skip


def groups(client: Client) -> tuple[str, ...]:
    """What a token says of its bearer. The roles of all others are the config's, which has them as they are now."""
    return tuple(sorted(set(client.roles))) if client.principal.startswith("jwt:") else ()


def session_mark(session: str | None) -> str:
    """A session's id is a bearer's right in old revisions: what is kept tells two sessions apart, and no more."""
    return "" if session is None else hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:32]
