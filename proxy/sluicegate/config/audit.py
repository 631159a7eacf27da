"""The sections of what is kept: what `audit` records, how surely, and where it goes; and where `state` is."""

from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, PlainValidator, SecretStr, ValidationInfo, WithJsonSchema

from sluicegate.config.names import HeaderName, HeaderValue, KeyName, Ring
from sluicegate.config.section import Section, written
from sluicegate.config.units import FilePath, Flag, Idle, Size, Timeout, read_path, sound
from sluicegate.deferred import deferred_pattern

_LOG = deferred_pattern(r"[a-z0-9][a-z0-9-]{0,35}\.jsonl")


def _destination(value: Any, info: ValidationInfo) -> str:
    """A URL as it is, anything else as a path."""
    if isinstance(value, str) and value.startswith(("https://", "http://")):
        return value
    return str(read_path(value, info))


SINK_SCHEMES: Final = ("http", "https", "tcp", "udp")


def _is_sink(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in SINK_SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # its port is none, or its address
        return False


LogPath = Annotated[
    FilePath,
    sound(lambda path: _LOG.fullmatch(path.name), "bad-path",
          "the name of a log has only a-z, 0-9 and -, and ends in .jsonl"),
]  # fmt: skip
SinkUrl = Annotated[
    str,
    sound(_is_sink, "bad-sink", "not a sink; write https://host/path, or tcp://host:port, udp://host:port for syslog"),
]
Pointer = Annotated[
    str,
    sound(lambda value: not value or value.startswith("/"), "bad-pointer",
          "not a JSON pointer; it begins with /, such as /person/name or /list/*/name"),
]  # fmt: skip


class Redact(Section):
    keys: tuple[str, ...] = ()
    """Names of members whose value is a secret, beside the usual ones (password, token, api_key and so on)."""
    pointers: dict[str, tuple[Pointer, ...]] = written({})
    """For a tool, written SERVER/NAME (globs): JSON pointers to the places of its arguments that are secret."""


class Rotate(Section):
    size: Size = written("100MiB")
    """A segment of the log is closed when it is that large."""
    age: Timeout = written("1d")
    """A segment of the log is closed when it is that old."""


class Checkpoints(Section):
    every: Timeout = written("10s")
    """How often what was written is signed (or after 1,000 records)."""
    to: tuple[Annotated[str, PlainValidator(_destination), WithJsonSchema({"type": "string"})], ...] = ()
    """Where checkpoints are kept besides: files on another volume, http(s) URLs they are posted to."""


class Sink(Section):
    name: KeyName
    """What its position is remembered under."""
    to: SinkUrl
    """An http(s) URL that takes JSON lines, or tcp://host:port or udp://host:port of a syslog server."""
    headers: dict[HeaderName, HeaderValue] = written({})
    """Headers that are sent along, such as Authorization."""


class Confirm(Section):
    sink: KeyName
    """The name of the sink, one with an http(s) URL."""
    classes: tuple[Literal["read", "write", "destroy"], ...] = Field(default=("write", "destroy"), min_length=1)
    """The classes of the calls that wait. Calls of other classes do not wait."""


class Audit(Section):
    enabled: Flag = True
    """false keeps no audit log."""
    path: LogPath = written("audit/sluice.jsonl")
    """The log; its directory is for it alone, mode 0700."""
    durability: Literal["fsync", "write"] = "fsync"
    """fsync: a record is on the disk before its call reaches a server. write: the system has it; a crash of the
    machine loses some."""
    on_failure: Literal["deny", "allow_and_alarm"] = "deny"
    """While the log cannot be written, calls are refused, or let through and counted as lost."""
    arguments: Literal["none", "digest", "redacted", "full"] = "redacted"
    """What is written down of arguments. Whatever it says, credentials never are."""
    results: Literal["none", "digest", "redacted"] = "digest"
    """What is written down of results. redacted: digest and content, up to 16 KiB; withheld answers never are."""
    redact: Redact = written({})
    """What is secret in arguments."""
    rotate: Rotate = written({})
    """When the log begins a new file."""
    retain: Timeout = written("400d")
    """How long records are kept."""
    checkpoints: Checkpoints = written({})
    """Signed statements of how far the log has come."""
    sinks: tuple[Sink, ...] = ()
    """Where records go besides, from the file and at their own pace."""
    confirm: Confirm | None = None
    """A sink that must have a record, too, before its call reaches a server. While it is down, calls are refused."""


class StateKeys(Section):
    """Each is one or more base64 keys of 32 bytes, a line each, the newest last."""

    seal: Ring
    """Seals cursors and questions that clients hold."""
    digest: Ring
    """Makes the marks and digests of the audit log."""
    sign: Ring
    """Signs checkpoints of the audit log."""
    login: Ring | None = None
    """Seals logins to servers. Without it people log in again after a move to another machine."""

    def text(self, name: str) -> str:
        """Of the ring of that name."""
        ring: SecretStr = getattr(self, name)
        return ring.get_secret_value()


class State(Section):
    later = frozenset({"redis"})

    dir: FilePath = written("~/.local/state/sluice")
    """Where keys, the operator token and last known lists are kept; mode 0700."""
    url: SecretStr | None = None
    """URL of a PostgreSQL database, as libpq reads it. It keeps approvals, grants, logins and pins.
    Needs the extra `postgres`. Without `fleet` one Sluice at a time runs on a database."""
    password: SecretStr | None = None
    """The password for `url`, where the URL has none."""
    replicated: Flag = False
    """Whether the database is known to keep what it confirmed when it fails over, by means that Sluice cannot see."""
    stale: Idle = written("60s")
    """How long a replica of a fleet goes on without a word from the database: keys may be revoked meanwhile.
    `never` does not stop it."""
    keys: StateKeys | None = None
    """Keys that are in files of `dir` otherwise. `url` needs them: on another machine these files are not there."""
