"""What a listener is told at start: limits, deadlines, names it answers to. Values only, cut from the config
by whoever composes the program; times are seconds, sizes bytes."""

from dataclasses import dataclass, field

from sluicegate.http.hosts import ServedNames
from sluicegate.protocol.jsonrpc import MAX_NODES


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one HTTP/1.1 connection, whatever is asked over it."""

    headers: int = 16 * 1024
    head_deadline: float = 10.0  # from the first byte (or the connect) to the end of the headers
    request_deadline: float = 30.0  # the same, to the end of the body
    idle: float = 75.0  # between two requests
    stall: float = 30.0  # how long a peer may leave a full write buffer unread
    write_buffer: int = 1024 * 1024
    linger: float = 2.0  # how long a refused peer may go on talking, so that it can read why
    connections: int = 10_000  # open at once; over it the one that waits longest for a request is closed
    is_shared: bool = False  # what came is kept until somebody claims it: another worker may have to go on with it
    is_for_peers: bool = False  # other replicas pass requests on here


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    max_request: int = 4 * 1024 * 1024
    max_depth: int = 64
    nodes: int = MAX_NODES
    in_flight: int = 64 * 1024 * 1024  # bytes of large requests of one principal, and of answers it does not read
    max_batch: int = 50
    streams: int = 100  # open GET and listen streams of one principal


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """When an answer becomes a stream, and how a stream shows that it is alive."""

    open_after: float = 10.0
    keep_alive: float = 15.0
    retry: int = 1000  # milliseconds that a client waits before it resumes
    handshake: float = 60.0  # how long an event stream of the 2024 transport may wait for `initialize`


@dataclass(frozen=True, slots=True)
class SessionLimits:
    idle: float = 24 * 3600.0
    total: int = 20_000
    per_principal: int = 10_000
    kept_for: float = 300.0  # how long a finished stream can be resumed
    kept_bytes: int = 64 * 1024 * 1024  # of all finished streams together
    stream_bytes: int = 1024 * 1024  # of one stream, its response not counted
    mark: str = ""  # what ids begin with, where several replicas have sessions


@dataclass(frozen=True, slots=True)
class ListenSettings:
    path: str = "/mcp"
    names: ServedNames = field(default_factory=ServedNames)
    limits: RequestLimits = RequestLimits()
    pace: StreamTiming = StreamTiming()
    sessions: SessionLimits = SessionLimits()
