"""What an explanation has to know besides the config and the rows: which tool a name means, whether its server lists
it, whether a person accepted it, which grants there are for it, and what is blocked. Values only, as they pass between
processes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sluicegate.policy.blocks import Block
from sluicegate.protocol.jsonrpc import Json

State = Literal["listed", "withheld", "missing", "unknown"]


@dataclass(frozen=True, slots=True)
class GrantFact:
    """A grant of this client for this tool as it is defined now. `session`: it counts in one session only."""

    id: str
    rule: str
    profile: str
    class_: str
    expires: float
    session: bool

    def covers(self, rule: str, profile: str, class_: str) -> bool:
        """Whether it lets every call pass that this rule would have approved by this profile, for a tool of this
        class."""
        return not self.session and (self.rule, self.profile, self.class_) == (rule, profile, class_)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A target that the name may mean. `state` is "unknown" where no list of the server is known. `annotations` are
    those of its definition, if a person has `accepted` it. `near` is a name that is listed and looks like it."""

    server: str
    own: str
    state: State = "unknown"
    accepted: bool = False
    annotations: Json | None = None
    near: str = ""
    grants: tuple[GrantFact, ...] = ()
    unlisted: bool = False  # relayed though the server has not listed it


@dataclass(frozen=True, slots=True)
class Facts:
    """`candidates` in the order in which they are tried: the first on which the client has the right counts. `servers`
    are those that run. `roles` are None if nobody comes in as that client; `problem` is why nothing can be decided."""

    servers: tuple[str, ...]
    candidates: tuple[Candidate, ...] = ()
    roles: tuple[str, ...] | None = None
    problem: str = ""
    blocks: tuple[Block, ...] = ()

    def as_json(self) -> Json:
        return asdict(self)

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> "Facts":
        """Raises `TypeError` or `KeyError` for what is none."""
        found = [
            Candidate(**{**one, "grants": tuple(GrantFact(**grant) for grant in one["grants"])})
            for one in value["candidates"]
        ]
        roles = value["roles"]
        blocks = tuple(Block(**one) for one in value["blocks"])
        given = None if roles is None else tuple(roles)
        return cls(tuple(value["servers"]), tuple(found), given, value["problem"], blocks)
