"""What the audit room is told: plain values, cut out of the config by whoever wires it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Literal

Arguments = Literal["none", "digest", "redacted", "full"]
Results = Literal["none", "digest", "redacted"]
Durability = Literal["fsync", "write"]
OnFailure = Literal["deny", "allow_and_alarm"]


@dataclass(frozen=True, slots=True)
class Rotation:
    """A segment is closed when it has that many bytes or is that many seconds old."""

    size: int = 100 * 1024 * 1024
    age: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """A checkpoint is signed after that many seconds or records. `to` are files, and http(s) URLs, outside. `at_start`:
    the first one is signed at once, so that others learn that there is a log."""

    every: float = 10.0
    records: int = 1_000
    to: tuple[str, ...] = ()
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class Redaction:
    """`keys` are names of members whose value is a secret, beside the usual ones; `pointers` say for a tool,
    written `server/own_name` (globs), which places of its arguments are."""

    keys: tuple[str, ...] = ()
    pointers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Where records go beside the file. `to` is an http(s) URL, or `tcp://host:port` or `udp://host:port` of a
    syslog server. `name` keeps its position apart from the others'."""

    name: str
    to: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ConfirmSettings:
    """The intents of calls of these classes are kept once the sink of that name has them, too."""

    sink: str
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """`path` is the file of the first writer, `state` the directory of public keys (see `own_state`).
    With `durability: write` a record counts as kept when the system has it: a crash of the machine loses some."""

    path: Path
    state: Path
    durability: Durability = "fsync"
    on_failure: OnFailure = "deny"
    arguments: Arguments = "redacted"
    results: Results = "digest"
    transport: str = "http"
    redact: Redaction = Redaction()
    rotate: Rotation = Rotation()
    retain: float = 400 * 86_400.0
    checkpoints: Checkpointing = Checkpointing()
    sinks: tuple[SinkSettings, ...] = ()
    confirm: ConfirmSettings | None = None
    queue: int = 10_000
    has_hooks: bool = False  # who are shown arguments before they are recorded

    @property
    def own_state(self) -> Path:
        """The directory of this log's published checkpoints and positions of sinks. Configs in several folders may
        share `state`, and write logs of one name: none is taken for another, which would seem to have lost records."""
        folder = self.path.parent
        # Its own name is as it is written: who may write the log may put a link in the place of its folder.
        where = folder.parent.resolve() / folder.name
        return self.state / sha256(os.fsencode(where)).hexdigest()[:12]


def is_segment(path: Path) -> bool:
    return ".jsonl" in path.name and path.is_file()


def file_of(path: Path, writer: str) -> Path:
    """The file of one writer: the first has the configured one, others a name of their own beside it."""
    stem = path.name.removesuffix(".jsonl")
    return path if writer == stem else path.with_name(f"{stem}-{writer.removeprefix(stem + '-')}.jsonl")


def sync_directory(path: Path) -> None:
    """A name in a directory is durable only when the directory is."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
