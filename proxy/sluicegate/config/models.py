"""The sections of the config file as types, with their defaults. What the types cannot say is in `rules.py`.

A key of the contract that this version does not implement yet is listed in `later`, so that it is answered with a
clear sentence and not with a guess.
"""

import json
from collections.abc import Collection, Mapping
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    PrivateAttr,
    Strict,
    Tag,
    WithJsonSchema,
    field_validator,
)

from sluicegate.config import names as naming
from sluicegate.config.audit import Audit, State
from sluicegate.config.clients import Clients
from sluicegate.config.fleet import Fleet, ListenTls
from sluicegate.config.login import LoginSection, ServerLogin
from sluicegate.config.policy import Approvals, Class, HookSection, Policy, Searching, ToolsetSection
from sluicegate.config.sandbox import SandboxSection
from sluicegate.config.section import Section, written
from sluicegate.config.units import (
    WHOLE,
    Address,
    Command,
    Count,
    Duration,
    FilePath,
    Flag,
    Idle,
    Limit,
    Listener,
    Size,
    Timeout,
    base_of,
    problem,
    sound,
)
from sluicegate.deferred import deferred_pattern

_NAME = deferred_pattern(r"(?=.{1,253}$)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_NUMBERS = deferred_pattern(r"[0-9.]+(?:/.*)?|.*[:/].*")
_PROXY = deferred_pattern(r"http://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}/?")


def _is_network(value: str) -> bool:
    """Whether it is an address or a network."""
    try:
        ip_network(value, strict=True)
    except ValueError:
        return False
    return True


def _is_network_or_host(value: str) -> bool:
    return _is_network(value) or (_NAME.fullmatch(value) is not None and not _NUMBERS.fullmatch(value))


def _proxy(value: Any) -> Any:
    """YAML 1.1 reads `off` as a truth value, 1.2 as a word."""
    if value is None or value is False or value == "off":
        return None
    if not isinstance(value, str) or not _PROXY.fullmatch(value):
        raise problem("bad-proxy", "not a proxy; write off, or http://host:port")
    return value.rstrip("/")


Place = Annotated[
    str,
    sound(_is_network_or_host, "bad-network",
          "not a network, an address or a host; write 10.1.0.0/16, 10.1.2.3 or keys.example.internal"),
]  # fmt: skip
NetworkText = Annotated[
    str, sound(_is_network, "bad-network", "not a network or an address; write 10.1.0.0/16 or 10.1.2.3")
]


class Network(Section):
    allow_private: tuple[Place, ...] = ()
    """Private networks, addresses and hosts that may be connected to although a server or a token issuer named them."""
    proxy: Annotated[
        str | None, BeforeValidator(_proxy), WithJsonSchema({"type": "string", "examples": ["http://proxy:3128"]})
    ] = None
    """An HTTP proxy through which servers and token issuers are reached. It resolves names then, and so it has to judge
    where they lead."""


PinMode = Literal["off", "warn", "review", "block"]


def unlimited() -> Any:
    """The default of a rate, which nobody can write."""
    return Field(default=None, validate_default=False, json_schema_extra=_no_default)


def _no_default(schema: dict[str, Any]) -> None:
    """Where a default is not a value that a schema can say: a prefix is the server's key, no rate is no limit."""
    schema.pop("default", None)


class Listen(Section):
    mcp: Listener = written("127.0.0.1:7410")
    """Where clients reach Sluice over HTTP: at /mcp, and at /sse those that speak HTTP+SSE (2024-11-05) only."""
    admin: Listener = written("127.0.0.1:7411")
    """Where /livez, /readyz, /metrics and /api/v1/ are."""
    public_url: naming.PublicUrl | None = None
    """The MCP endpoint as clients reach it through a reverse proxy; also the resource that OAuth clients ask tokens
    for. Its host is served."""
    trusted_proxies: tuple[NetworkText, ...] = ()
    """Addresses and networks of reverse proxies: what they say in X-Forwarded-For, -Proto, -Host and -Prefix counts."""
    allowed_hosts: tuple[naming.Host, ...] = ()
    """Host headers that are served besides the listener's own; loopback names always are on a loopback address."""
    allowed_origins: tuple[naming.Origin, ...] = ()
    """Web origins that may call; they get CORS headers."""
    tls: ListenTls | None = None
    """Certificates of `mcp`. Without it `mcp` speaks plain HTTP, for loopback or a proxy."""

    @property
    def scheme(self) -> str:
        """Of `mcp`."""
        return "http" if self.tls is None else "https"

    @property
    def login_pages(self) -> str:
        """Where people log in to servers, beside `public_url`; empty where they cannot. What a person types there is
        read by nobody on the way: it is https, or this machine."""
        parts = urlsplit(self.public_url or "")
        is_private = parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")
        path = parts.path.rpartition("/")[0]
        return f"{parts.scheme}://{parts.netloc}{path}/login/" if is_private and parts.netloc else ""


class ShapeSection(Section):
    name: naming.OwnName = ""
    """Another name, before the prefix."""
    title: str | None = Field(default=None, json_schema_extra=_no_default)
    """Another title."""
    description: str | None = Field(default=None, json_schema_extra=_no_default)
    """Another description."""
    defaults: dict[str, JsonValue] = written({})
    """Arguments that the server always gets, with these values: no client sees or gives them."""
    hide: tuple[str, ...] = ()
    """Arguments that no client sees or gives, and the server does not get."""

    @property
    def hidden(self) -> frozenset[str]:
        return frozenset((*self.defaults, *self.hide))


class Prompts(Section):
    shape: dict[str, ShapeSection] = written({})
    """How a prompt is shown, by its own name."""


class Tools(Section):
    allow: tuple[naming.Glob, ...] = ("*",)
    """Globs over the server's own tool names: only these exist for clients."""
    deny: tuple[naming.Glob, ...] = ()
    """Globs over the server's own tool names: these do not exist for clients, whatever `allow` says."""
    classes: dict[naming.Glob, Class] = written({})
    """Own tool name, or glob, to `read`, `write` or `destroy`: what the policy's rows go by. A whole name counts before
    globs, of these the strictest; a tool without a class is a write, unless a person accepted what it says itself."""
    shape: dict[str, ShapeSection] = written({})
    """How a tool is shown, by its own name: another name or description, and arguments that are fixed or hidden."""


class Server(Section):
    """What started servers and remote servers have in common."""

    enabled: Flag = True
    """false keeps the section and leaves the server out."""
    prefix: naming.Prefix = Field(default="", json_schema_extra=_no_default)
    """First part of the names that clients see (gh in gh__create_issue); the server's key unless set. An empty
    prefix is transparent mode: for the only enabled server, nothing is renamed."""
    uris: Literal["prefix", "plain"] = "prefix"
    """How resource URIs are shown: with the prefix, or as the server gives them."""
    sharing: Literal["session", "client", "shared"] = "session"
    """Who shares a connection to the server: one for each client session, for each client, or one for all, and then
    the server can ask nobody. To a server of 2026-07-28 there is one in any case."""
    era: Literal["auto", "legacy", "modern"] = "auto"
    """Which generation of MCP the server is spoken to in; auto finds out."""
    lazy: Flag = False
    """true reaches the server at its first use instead of at the start."""
    required: Flag = False
    """true makes /readyz fail while the server is down."""
    start_timeout: Duration = written("30s")
    """How long the first list of a client on stdio waits for the server to start, if no list of it is stored."""
    timeout: Timeout = written("60s")
    """How long a call may stay silent; progress starts it anew."""
    max_time: Timeout = written("1h")
    """How long a call may take, progress or not."""
    concurrency: Count = 8
    """How many calls may be open at the server at once. Workers and replicas of a fleet share it."""
    idle: Idle = unlimited()
    """How long a connection may go unused before it is closed, while the client session that it belongs to has no open
    stream and no open call; the session's next call makes a new one. 10m for a `url` and `never` for a `command`,
    whose process may hold state, unless set."""
    pin: PinMode = "review"
    """What becomes of definitions that changed since they were accepted: off looks away; warn serves and reports them;
    review takes the first list as it is and withholds later changes until `sluice pins accept`; block withholds
    all that no person accepted. off where `unlisted: forward` unless set."""
    results: Literal["off", "warn", "block"] = "warn"
    """What becomes of answers that hold terminal orders, hidden text or broken promises: warn takes the characters out
    and marks the answer; block withholds it, or takes out resources that the client may not read; off looks away."""
    results_over: Literal["refuse", "page"] = "refuse"
    """What becomes of an answer over `limits.max_result` or `limits.result_nodes`: refuse ends the call with
    `result_too_large`; page keeps it for the client, who reads it in parts with `resources/read`. Not with
    `results: block`."""
    unlisted: Literal["refuse", "forward"] = "refuse"
    """forward (transparent mode only) also relays names that the server did not list."""
    tools: Tools = written({})
    """Which of the server's tools exist for clients, and how they are shown."""
    prompts: Prompts = written({})
    """How the server's prompts are shown."""

    @property
    def pinning(self) -> PinMode:
        """`pin` as it works: a name that was never listed has no definition that could be compared."""
        is_unsaid = self.unlisted == "forward" and "pin" not in self.model_fields_set
        return "off" if is_unsaid else self.pin

    @property
    def identity(self) -> str:
        """Hex SHA-256 of what makes it this server and no other, however it is called in the file. What is kept of a
        server (pins, lists, verdicts, logins) is kept under it. A digest, because URLs and arguments hold secrets."""
        raise NotImplementedError


def _begun(value: Any) -> Any:
    """None is the default, never a value: a sandbox that was begun and not written must not mean that there is none."""
    if value is None:
        raise problem("wrong-type", "expected a mapping, found nothing; {} is no network, and the system's files alone")
    return value


class StdioServer(Server):
    """A server that Sluice starts, spoken to over its stdin and stdout."""

    command: Command
    """The program: a name on PATH, or a path."""
    args: tuple[naming.Argument, ...] = Field(default=(), repr=False)
    """Its arguments, one by one; no shell reads them."""
    env: dict[naming.VariableName, naming.VariableValue] = written({})
    """Its environment, beside a few harmless variables: PATH, HOME, files of certificate authorities, a proxy without
    a password."""
    processes: Annotated[int, Strict(), Field(ge=1, le=512), WHOLE] = 512
    """Most processes of it at once. Under this bound the one that was idle longest is ended for a new session, and the
    answer to its own session's next call says so; where none is idle, the new session gets `server_unavailable`."""
    cwd: FilePath = written(".")
    """Its working directory; the config file's own directory unless set. In a sandbox that does not have this
    directory, an empty home folder."""
    sandbox: Annotated[SandboxSection | None, BeforeValidator(_begun)] = unlimited()
    """What the server may read, write and reach: by bubblewrap, on Linux. Without it the server may do what Sluice
    may."""

    @property
    def identity(self) -> str:
        """Of the program's name, wherever it is installed, and its arguments."""
        return _digest(["command", PurePath(self.command).name, *self.args])


class ImageServer(StdioServer):
    """A server that Sluice starts in a container. `sandbox` says what that has of this machine: nothing unless set."""

    image: naming.Image
    """An image of a container, which docker or podman starts in place of a program. `command` and `args` follow it."""
    command: naming.Argument = ""
    """The image's own unless set."""

    @property
    def identity(self) -> str:
        return _digest(["image", self.image, self.command, *self.args])


class HttpServer(Server):
    """A server that runs elsewhere, spoken to over HTTP."""

    url: naming.Url = Field(repr=False)
    """Its MCP endpoint."""
    transport: Literal["auto", "http", "sse"] = "auto"
    """http is Streamable HTTP, sse is HTTP+SSE as of 2024-11-05; auto finds out."""
    headers: dict[naming.HeaderName, naming.HeaderValue] = written({})
    """Headers that are sent with every request, such as Authorization."""
    ca: FilePath | None = None
    """A PEM file of certificate authorities to trust instead of the system's."""
    login: ServerLogin | None = None
    """How Sluice logs in to it with OAuth, where something has to be said of that: `sluice login KEY` needs nothing."""

    _is_sluice: bool = PrivateAttr(False)

    @property
    def is_sluice(self) -> bool:
        """Whether `sluice stdio --url` stands for it."""
        return self._is_sluice

    def as_sluice(self) -> None:
        self._is_sluice = True

    @property
    def may_log_in(self) -> bool:
        """Whether its 401 means that somebody has to log in: credentials of the config are all that it gets else."""
        return not self._is_sluice and "authorization" not in {header.lower() for header in self.headers}

    @property
    def identity(self) -> str:
        """Of its URL. Another Sluice has other lists for another key."""
        key = next((value for name, value in self.headers.items() if name.lower() == "authorization"), None)
        by = [key.get_secret_value()] if self._is_sluice and key is not None else []
        return _digest(["url", self.url, *by])


def _digest(parts: list[str]) -> str:
    return sha256(json.dumps(parts).encode()).hexdigest()


def _kind(value: Any) -> str:
    if isinstance(value, HttpServer) or (isinstance(value, dict) and "url" in value):
        return "http"
    return "image" if isinstance(value, ImageServer) or (isinstance(value, dict) and "image" in value) else "stdio"


AnyServer = Annotated[
    Annotated[StdioServer, Tag("stdio")] | Annotated[ImageServer, Tag("image")] | Annotated[HttpServer, Tag("http")],
    Discriminator(_kind),
]


class Limits(Section):
    per_client: Limit = unlimited()
    """Most requests of one client, of whatever kind: `10/s`, `600/min`, `1000/h` or `5000/d`. No limit unless set.
    Replicas of a fleet share it."""
    per_tool: Limit = unlimited()
    """Most calls of one tool by one client. No limit unless set. Replicas of a fleet share it."""
    max_request: Size = written("4MiB")
    """Largest request body or stdin line."""
    max_result: Size = written("8MiB")
    """Largest message that is taken from a server."""
    paged_results: Size = written("64MiB")
    """Largest message that is taken from a server with `results_over: page`, and most bytes of large answers that are
    kept for one client."""
    paged_for: Duration = written("15m")
    """How long the parts of a large answer can be read."""
    max_depth: Annotated[int, Strict(), Field(ge=1, le=200), WHOLE] = 64
    """Deepest nesting of JSON."""
    nodes: Annotated[int, Strict(), Field(ge=1000, le=1_000_000), WHOLE] = 20_000
    """Most values in a client's message, names of members included. Of a long number each four digits count."""
    result_nodes: Annotated[int, Strict(), Field(ge=1000, le=10_000_000), WHOLE] = 100_000
    """The same of a message that is taken from a server."""
    max_batch: Annotated[int, Strict(), Field(ge=1, le=1000), WHOLE] = 50
    """Most messages in a JSON array (revision 2025-03-26 only)."""
    headers: Size = written("16KiB")
    """Largest head of an HTTP request."""
    streams: Count = 100
    """Most open streams of one client."""
    pending_approvals: Annotated[int, Strict(), Field(ge=1, le=10_000), WHOLE] = 20
    """Most approvals of one client that wait, or wait to be used."""
    page: Annotated[int, Strict(), Field(ge=1, le=100_000), WHOLE] = 1000
    """Most items in one page of a list."""
    list_items: Annotated[int, Strict(), Field(ge=1, le=1_000_000), WHOLE] = 10_000
    """Most tools, prompts or templates that are taken from one server; `sluice servers` says where one has more."""
    list_bytes: Size = written("16MiB")
    """Most bytes of one such list."""


class Names(Section):
    max: Annotated[int, Strict(), Field(ge=32, le=128), WHOLE] = 50
    """Longest public name; 50 leaves room for what clients put before it."""


class Telemetry(Section):
    metrics: Flag = True
    """Prometheus metrics at /metrics of the admin port."""
    otlp: str = ""
    """Base URL of an OpenTelemetry collector that takes spans over HTTP; nothing: there are no spans."""


class ConsoleSection(Section):
    enabled: Flag = True
    """Whether the admin port also serves the console, a page for a browser: on loopback, or behind https."""
    public_url: naming.ConsoleUrl | None = None
    """Where people reach it through a reverse proxy, https://host/console. Links in chat messages begin with it."""


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged, to stderr."""
    format: Literal["auto", "json", "text"] = "auto"
    """auto is text on a terminal, JSON lines elsewhere."""


class Config(Section):
    """One YAML file says all: which servers, which clients, which policy."""

    version: Literal[1] = 1
    """Of this format."""
    listen: Listen = written({})
    """Where Sluice listens."""
    servers: dict[naming.ServerKey, AnyServer] = written({})
    """The servers behind Sluice, in the order of their lists."""
    clients: Clients = written({})
    """Who gets in, and with which roles."""
    policy: Policy
    """Who may do what. Required."""
    toolsets: dict[naming.ToolsetName, ToolsetSection] = written({})
    """Endpoints that show a part of what policy allows: `/mcp/NAME`, and `sluice stdio --toolset NAME`."""
    search: Searching = "off"
    """on: who has no toolset finds tools by `find_tools` and calls them by `call_tool`; auto: whose list has more than
    about 20000 tokens."""
    approvals: Approvals = written({})
    """Who agrees to calls that the policy asks a human for."""
    hooks: dict[naming.HookName, HookSection] = written({})
    """Services of yours that are asked about calls and results, by their names."""
    audit: Audit = written({})
    """What is recorded of every call, and where."""
    login: LoginSection = written({})
    """How people log in to servers."""
    limits: Limits = written({})
    """Bounds of size, depth and number."""
    names: Names = written({})
    """How public names are made."""
    network: Network = written({})
    """What may be connected to."""
    state: State = written({})
    """What outlives a run."""
    fleet: Fleet | None = None
    """Several Sluices on one database, as one for clients. Needs `state.url`."""
    telemetry: Telemetry = written({})
    """What is measured."""
    log: Log = written({})
    """What is logged."""
    console: ConsoleSection = written({})
    """The page for a browser."""
    drain: Duration = written("30s")
    """How long open calls may still take at the end."""
    drain_delay: Duration = written("0s")
    """How long all is served at the end, while `/readyz` says 503: until a balancer sends nothing more."""

    _base: Path = PrivateAttr(default_factory=Path)
    _disabled: dict[str, str] = PrivateAttr(default_factory=dict)
    _files: tuple[Path, ...] = PrivateAttr(())

    @property
    def files(self) -> tuple[Path, ...]:
        """The file itself, and those that `${file:...}` names in it: they may hold secrets."""
        return self._files

    @property
    def base(self) -> Path:
        """What the file's paths are relative to."""
        return self._base

    @property
    def disabled(self) -> Mapping[str, str]:
        """Servers that the file enables and a `${...}` without a value disables: key to reason. Their `enabled` is
        false."""
        return self._disabled

    @property
    def addresses(self) -> dict[tuple[str, ...], Address]:
        """Every address that it listens at, by the key that names it."""
        listen = self.listen
        found: dict[tuple[str, ...], Address] = {("listen", "mcp"): listen.mcp, ("listen", "admin"): listen.admin}
        if self.fleet is not None and self.fleet.peer is not None:
            found["fleet", "peer", "listen"] = self.fleet.peer.listen
        return found

    def model_post_init(self, context: Any) -> None:
        self._base = base_of(context)
        self._disabled = dict((context or {}).get("disabled", {}))
        self._files = tuple((context or {}).get("files", ()))

    def keeping(self, servers: Mapping[str, AnyServer], disabled: Mapping[str, str]) -> "Config":
        """The same with these servers in place of its own."""
        made = self.model_copy(update={"servers": {**self.servers, **servers}})
        made._disabled = dict(disabled)
        return made

    def keeping_servers_of(self, newer: "Config") -> "Config":
        """The same with the servers of another config."""
        made = self.model_copy(update={"servers": newer.servers})
        made._disabled = dict(newer.disabled)
        return made

    def running(self, keys: Collection[str]) -> "Config":
        """The same with just these servers enabled, as they are in a process that has other variables."""
        servers = {key: one.model_copy(update={"enabled": key in keys}) for key, one in self.servers.items()}
        return self.model_copy(update={"servers": servers})

    @field_validator("servers", mode="before")
    @classmethod
    def _prefix_is_the_key(cls, servers: Any) -> Any:
        if not isinstance(servers, dict):
            return servers
        return {key: _with_prefix(key, server) for key, server in servers.items()}


def _with_prefix(key: Any, server: Any) -> Any:
    if isinstance(server, dict) and "prefix" not in server and isinstance(key, str) and naming.is_server_key(key):
        return {**server, "prefix": key}
    return server
