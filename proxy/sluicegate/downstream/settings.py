"""What the downstream room must know of one configured server, and how that server can fail us.

The composition root fills this in from the config file.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from sluicegate.catalog.list_bounds import DEFAULT_BOUNDS, Bounds
from sluicegate.downstream.known_lists import KnownLists
from sluicegate.downstream.large_answers import LargeAnswers
from sluicegate.protocol.elicitation_urls import OwnUrls
from sluicegate.protocol.input_requests_server import NO_PAGES
from sluicegate.protocol.jsonrpc import MAX_RESULT_NODES
from sluicegate.protocol.model import Call
from sluicegate.runtime.spool import Spool
from sluicegate.runtime.unfinished import Unfinished

MAX_MESSAGE = 8 * 1024 * 1024
"""Bytes of one message: a body, a line on stdio, an event of a stream. Longer lines and events end their connection."""

UNFINISHED = 8
"""Messages of the largest size that a server may leave unfinished at once, and no fewer than its `concurrency`."""


Credentials = tuple[()] | tuple[tuple[bytes, bytes]]
"""Headers: one with `Authorization`, or none."""
NO_CREDENTIALS: Final[Credentials] = ()


class Account(Protocol):
    """What requests to a server show for credentials: the token of one login, or nothing while there is none."""

    def headers(self) -> Credentials:
        """Empty where `renewed` has to be asked."""

    async def renewed(self) -> Credentials:
        """The same after a refresh; empty where there are none. Raises `LoginRequired`, and `Lost` where the
        authorization server is away."""

    async def rejected(self, used: Credentials, status: int, challenges: Sequence[str]) -> Credentials:
        """Others, after the server has refused a request with these. Raises as `renewed`."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What a started server has of this machine: by bubblewrap, or in a container of `image`. Paths are absolute and
    without links. `system` are folders that it may read in any case."""

    has_network: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    image: str = ""
    system: tuple[str, ...] = ()

    def __str__(self) -> str:
        by = f"container of {self.image}" if self.image else "bubblewrap"
        return f"{by}: {'' if self.has_network else 'no '}network, {len(self.read)} to read, {len(self.write)} to write"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One server: a `command` that is run, or a `url` that is called. Times are seconds, sizes bytes."""

    key: str
    identity: str = ""  # what is kept of the server is kept under this; changes with its URL, or program and arguments
    command: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    sandbox: Sandbox | None = None  # None: the process may do what Sluice may
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ca: str | None = None
    account: Account | None = field(default=None, repr=False)  # None: `headers` are all its credentials
    transport: Literal["auto", "http", "sse"] = "auto"
    era: Literal["auto", "legacy", "modern"] = "auto"
    sharing: Literal["session", "client", "shared"] = "session"
    lazy: bool = False
    idle: float | None = None  # seconds; `inf` is never, None what the kind of server has
    processes: int = 512
    timeout: float = 60.0  # without an answer or progress
    max_time: float = 3600.0  # whatever the progress
    concurrency: int = 8
    list_timeout: float = 10.0
    start_timeout: float = 30.0  # how long lists wait for a start
    max_result: int = MAX_MESSAGE
    nodes: int = MAX_RESULT_NODES
    large: LargeAnswers | None = field(default=None, repr=False, compare=False)  # None: what is larger is refused
    # Of all its streams and bodies, whoever is logged in
    unfinished: Unfinished = field(
        default_factory=lambda: Unfinished(UNFINISHED * MAX_MESSAGE), repr=False, compare=False
    )
    known_lists: KnownLists = field(default_factory=KnownLists, repr=False, compare=False)  # whoever is logged in
    is_sluice: bool = False  # `sluice stdio --url`: what that Sluice writes under its own names is for the client
    expanded: tuple[str, ...] = ()  # what `${...}` stands for in the arguments
    redact: Callable[[str], str] = str  # takes out what the audit log would not hold, from what the server wrote
    bounds: Bounds = DEFAULT_BOUNDS  # of a list that is walked for one call
    own_pages: OwnUrls = NO_PAGES  # which no server may have anybody open
    is_mirrored: bool = False  # transparent mode: a client that could have declared tasks gets the server's own answer
    clock: Callable[[], float] = field(default=time.time, repr=False, compare=False)  # by which all replicas go
    # Whether a call may be sent by now that waited, or is to be sent again
    may_still: Callable[[Call], bool] = field(default=lambda call: True, repr=False, compare=False)

    def keep(self, data: bytes | bytearray) -> Spool | None:
        """A file that has the beginning of a message over the limits; None where it is refused."""
        return None if self.large is None else self.large.spool(data)

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ValueError(f"server {self.key}: exactly one of command and url")
