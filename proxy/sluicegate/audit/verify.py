"""Whether a log can be believed: from its lines, the public key and checkpoints kept elsewhere, nothing more.

Offline; streams, so that a log of any size takes the same memory; takes every byte for hostile. What it can prove:
no record up to the newest checkpoint was changed, removed, put in or moved. What is behind the newest checkpoint is
chained, too, but whoever may write the file could have made it anew: so the length of that tail is said.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from sluicegate.audit import chain, checkpoint
from sluicegate.audit.chain import START, ChainHead, Link
from sluicegate.audit.checkpoint import Checkpoint, PublicKeys, is_introduced, is_signed, key_id, read_public
from sluicegate.audit.recover import File, list_files, load, look, open_segment, rest_from, sort_files
from sluicegate.audit.settings import AuditSettings

MAX_NOTES: Final = 100


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """Why a log cannot be believed. `seq` and `line` are where it shows, 0 where that is no record."""

    file: str
    line: int
    seq: int
    text: str

    def __str__(self) -> str:
        link = f"{self.file}:{self.line}" if self.line else self.file
        return f"{link}: record {self.seq}: {self.text}" if self.seq else f"{link}: {self.text}"


@dataclass(slots=True)
class VerifyReport:
    """What is known of one writer's chain. `signed` is the last record that a checkpoint covers."""

    writer: str
    records: int = 0
    first: int = 0
    last: int = 0
    signed: int = 0
    signed_at: str = ""
    findings: list[AuditFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def tail(self) -> int:
        """How many records are behind the newest checkpoint, its own record not counted."""
        return max(0, self.last - max(self.signed, self.first - 1) - (1 if self.signed else 0))

    def to_json(self) -> dict[str, Any]:
        fields = ("writer", "ok", "records", "first", "last", "signed", "signed_at", "tail", "notes")
        return {**{name: getattr(self, name) for name in fields}, "findings": [asdict(one) for one in self.findings]}


class _Broken(Exception):
    """The chain ends here; what follows proves nothing."""


def verify(
    paths: Iterable[Path], keys: PublicKeys, published: Iterable[Checkpoint] = (),
    progress: Callable[[int], object] = lambda size: None,
) -> list[VerifyReport]:  # fmt: skip
    """One report a writer, for all segments in `paths`: files, and directories with all that are in them. `published`
    are checkpoints from outside the log. `progress` gets the length of each record that was read."""
    files = sort_files([file for path in paths for file in (list_files(path) if path.is_dir() else [look(path)])])
    outside: dict[str, list[Checkpoint]] = {}
    for one in published:
        outside.setdefault(one.writer, []).append(one)
    reports = []
    chains = {writer: list(group) for writer, group in itertools.groupby(files, attrgetter("writer"))}
    foreign = chains.pop("", [])
    torn = [segment.opening.get("torn") for group in chains.values() for segment in group]
    for writer in sorted({*chains, *outside}):
        reports.append(_Walk(writer, chains.get(writer, []), keys, outside.get(writer, []), progress).run())
    stray = VerifyReport("")
    for file in foreign:
        _judge_foreign(file, torn, stray)
    return [*reports, stray] if foreign else reports


def _judge_foreign(file: File, torn: Sequence[Any], report: VerifyReport) -> None:
    with file.path.open("rb") as stream:
        rest = rest_from(stream, 0)
    if {"bytes": rest.bytes, "sha256": rest.hash} in torn:
        report.notes.append(f"{file.path.name}: cut while it was begun, as the log says")
    elif file.size == 0:
        report.findings.append(AuditFinding(file.path.name, 0, 0, "is empty: no record is in it"))
    else:
        report.findings.append(AuditFinding(file.path.name, 1, 0, "is no audit log: its first line is not a record"))


class _Told:
    """What is told of one writer's chain, and the place in it that is looked at."""

    def __init__(self, writer: str) -> None:
        self._report = VerifyReport(writer)
        self._file, self._line = "", 0

    def _note(self, text: str) -> None:
        if len(self._report.notes) < MAX_NOTES:
            self._report.notes.append(text)

    def _find(self, seq: int, text: str) -> None:
        self._report.findings.append(AuditFinding(self._file or "the log", self._line, seq, text))

    def _break(self, seq: int, text: str) -> NoReturn:
        self._find(seq, text)
        raise _Broken


class _Walk(_Told):
    """One writer's chain from its first segment to its last."""

    def __init__(
        self, writer: str, files: list[File], keys: PublicKeys, published: list[Checkpoint],
        progress: Callable[[int], object],
    ) -> None:  # fmt: skip
        super().__init__(writer)
        self._files, self._keys, self._progress = files, dict(keys), progress
        self._published = sorted(published, key=lambda one: one.seq)
        self._head: ChainHead = START
        self._epoch = 0
        self._key = ""  # the key in force
        self._unproved: AuditFinding | None = None  # a checkpoint by a key that nobody vouches for
        self._missing: ChainHead | None = None  # what the first segment follows, if that is gone
        self._retained = 0  # the record that says so

    def run(self) -> VerifyReport:
        try:
            for file, following in itertools.zip_longest(self._files, self._files[1:]):
                self._read_segment(file, following)
            self._conclude()
        except _Broken:
            pass
        except OSError as error:
            self._find(0, f"cannot be read: {error.strerror}")
        return self._report

    # ------------------------------------------------------------ segments

    def _read_segment(self, file: File, following: File | None) -> None:
        self._file, self._line = file.path.name, 0
        first = file.first
        assert first is not None
        try:
            stream = open_segment(file)
        except FileNotFoundError:
            if not self._report.records:  # retention deletes the oldest; a later record must say so
                return
            raise
        if not self._report.records:
            self._report.first = first.seq
        end = following.after if following is not None else None
        with stream:
            self._check_opening(file, first)
            self._read_lines(stream, end.seq if end is not None else None, following)

    def _check_opening(self, file: File, first: Link) -> None:
        """The first record of a segment joins it to the one before, over whatever was lost between them."""
        after, loss = file.after, file.opening.get("loss")
        if after is None or file.opening.get("act") != "open":
            self._line = 1
            self._break(first.seq, "a segment must begin with its opening, and this does not")
        if not self._report.records:
            self._missing = after if after.seq > 0 else None
        elif after.seq > self._head.seq:
            first_missing = self._head.seq + 1
            self._break(first_missing, f"records {first_missing} to {after.seq} are missing{_stated_loss(loss)}")
        elif after != self._head:
            self._line = 1
            if after.seq < self._head.seq or first.prev != after.hash:
                self._break(first.seq, f"does not follow record {self._head.seq}: it was put in or changed")
            self._break(self._head.seq, f"was changed: its hash is not the one that record {first.seq} names")
        if first.seq == after.seq + 1:
            self._head = after
            if isinstance(loss, dict) and loss.get("signed"):
                self._find(first.seq, f"follows what is not as it was signed{_stated_loss(loss)}")
        elif isinstance(loss, dict) and loss.get("last") == first.seq - 1 and loss.get("durable") == after.seq:
            self._head = ChainHead(first.seq - 1, after.hash)
            self._tell_loss(after.seq + 1, first.seq - 1, loss)
        else:
            self._line = 1
            self._break(first.seq, f"records {after.seq + 1} to {first.seq - 1} are missing")

    def _tell_loss(self, first: int, last: int, loss: dict[str, Any]) -> None:
        text = f"records {first} to {last} are not in the log{_stated_loss(loss)}"
        if loss.get("signed"):
            self._find(first, text)
        else:
            self._note(text)

    def _read_lines(self, stream: BinaryIO, end: int | None, following: File | None) -> None:
        lines = _lines(stream)
        ahead = next(lines, None)
        while ahead is not None:
            start, line = ahead
            self._line += 1
            if end is not None and self._head.seq >= end and self._report.records:
                self._judge_remainder(stream, start, following)
                return
            ahead = next(lines, None)
            if not line.endswith(b"\n"):
                self._judge_torn(stream, start, len(line), following)
                return
            self._read_record(line[:-1], ahead[1] if ahead is not None else b"")

    def _judge_torn(self, stream: BinaryIO, start: int, size: int, following: File | None) -> None:
        if size >= chain.MAX_LINE:
            self._break(self._head.seq + 1, "is longer than a record can be")
        if following is not None:
            self._judge_remainder(stream, start, following)
        else:
            self._note(f"{self._file}: the last line is torn ({_bytes(size)}): the writer was cut there")

    def _judge_remainder(self, stream: BinaryIO, start: int, following: File | None) -> None:
        """Bytes behind the last record that the next segment follows: that must have been said there."""
        opening = following.opening if following is not None else {}
        rest = rest_from(stream, start)
        if "loss" not in opening and opening.get("torn") != {"bytes": rest.bytes, "sha256": rest.hash}:
            more = f"{_bytes(rest.bytes)} more than the next segment knows of"
            self._break(self._head.seq + 1, f"{more}: put in or changed")
        if any(one.writer == self._report.writer and is_signed(one, self._keys) for one in _checkpoints(stream, start)):
            self._break(self._head.seq + 1, "signed records stand in what was given up: they were changed")
        self._note(f"{self._file}: what is at its end ({_bytes(rest.bytes)}) is no record, as the next segment says")

    # ------------------------------------------------------------ records

    def _read_record(self, line: bytes, ahead: bytes) -> None:
        link = chain.read(line)
        record = load(line) if link is not None else {}
        if link is None or not record:
            self._break(self._head.seq + 1, "is not a record: it was changed or put in")
        if link.writer != self._report.writer:
            self._break(link.seq, f"is of another writer ({link.writer}): put in")
        if link.seq != self._head.seq + 1 or link.prev != self._head.hash:
            self._blame(link, line, ahead)
        if link.epoch < self._epoch or (link.epoch > self._epoch and link.type != "admin"):
            self._break(link.seq, f"is of epoch {link.epoch} after epoch {self._epoch}: put in or changed")
        before = self._head
        if link.epoch > self._epoch:
            self._end_run()
        self._head, self._epoch = ChainHead(link.seq, chain.digest(line)), link.epoch
        self._report.records += 1
        self._report.last = link.seq
        self._progress(len(line) + 1)
        self._compare_kept()
        if link.type == "checkpoint":
            self._read_checkpoint(record, link, line, before)
        elif link.type == "admin":
            if isinstance(record.get("key"), dict):
                self._read_key(record["key"], record, link)
            if record.get("act") == "retain" and self._missing is not None:
                if (record.get("last"), record.get("hash")) == (self._missing.seq, self._missing.hash):
                    self._retained = self._retained or link.seq

    def _end_run(self) -> None:
        """What a run has not signed itself, the next one signs as it is found: a crash has left it, or somebody has put
        it in. A run signs a deletion before it deletes. Who lacks the run's key cannot tell."""
        if self._unproved is None and self._retained > self._report.signed:
            self._retained = 0
        if self._unproved is None and self._report.tail:
            first = self._report.last - self._report.tail + 1
            self._note(f"records {first} to {self._report.last} were not signed by the run that they are of")

    def _blame(self, link: Link, line: bytes, ahead: bytes) -> None:
        """Which record is the bad one: this one, the one before, or one that should stand between."""
        expected = self._head.seq + 1
        if link.seq > expected:
            last = link.seq - 1
            which = f"record {expected} is" if last == expected else f"records {expected} to {last} are"
            self._break(expected, f"{which} missing here: removed or moved")
        if link.seq < expected:
            self._break(link.seq, f"stands behind record {self._head.seq}: put in or moved")
        behind = chain.read(ahead[:-1])
        if behind is not None and behind.prev != chain.digest(line):
            self._break(link.seq, "was changed: neither the record before nor the one behind fits it")
        if behind is None:
            self._break(link.seq, f"does not fit record {link.seq - 1}: one of the two was changed")
        if self._line > 1:
            self._line -= 1
        self._break(link.seq - 1, f"was changed: its hash is not the one that record {link.seq} names")

    def _read_key(self, key: dict[str, Any], record: dict[str, Any], link: Link) -> None:
        """The key that signs from here on. Who follows another must be introduced by it: an old key, found
        somewhere, must not come back into force."""
        public = read_public(str(key.get("public")))
        if public is None or key.get("id") != key_id(public):
            self._break(link.seq, "names a key that is none")
        id, previous, sig = key_id(public), record.get("previous"), record.get("sig")
        if self._key not in ("", id):
            is_known = self._key in self._keys
            if previous != self._key or (
                is_known and not is_introduced(self._report.writer, public, self._key, str(sig), self._keys)
            ):
                self._break(link.seq, f"changes the signing key without a signature of key {self._key}")
            if is_known:
                self._keys[id] = public
                self._note(f"key {id} signs from record {link.seq} on, introduced by key {self._key}")
        self._key = id

    def _read_checkpoint(self, record: dict[str, Any], link: Link, line: bytes, before: ChainHead) -> None:
        signed = checkpoint.parse(record.get("checkpoint"))
        if signed is None:
            self._break(link.seq, "is no checkpoint: it was changed or put in")
        rebuilt, _ = chain.link(before, self._report.writer, link.epoch, signed.body())
        if rebuilt[:-1] != line or (signed.writer, signed.epoch) != (link.writer, link.epoch):
            self._break(link.seq, "is a checkpoint with something added to it")
        since = self._report.signed + 1 if self._report.signed else self._report.first
        if (signed.seq, signed.hash) != (before.seq, before.hash):
            self._break(link.seq, f"signs another log: records {since} to {before.seq} were rewritten")
        if self._key and signed.key != self._key:
            self._break(link.seq, f"is signed with key {signed.key}, which is not in force here")
        if signed.key not in self._keys:
            self._unproved = AuditFinding(
                self._file, self._line, link.seq, f"is signed with an unknown key, {signed.key}"
            )
            return
        if not is_signed(signed, self._keys):
            self._break(link.seq, f"is not signed by the key: records {since} to {before.seq} may be rewritten")
        self._cover(signed)

    def _cover(self, signed: Checkpoint) -> None:
        """The hash chain makes one good signature vouch for everything before it."""
        self._report.signed, self._report.signed_at = signed.seq, signed.time
        self._unproved = None

    def _compare_kept(self) -> None:
        while self._published and self._published[0].seq <= self._head.seq:
            one = self._published.pop(0)
            if one.key in self._keys and not is_signed(one, self._keys):
                self._break(one.seq, "the checkpoint kept outside for it is not signed by the key")
            if one.seq < self._head.seq:
                if one.seq >= self._report.first:
                    self._break(one.seq, f"is missing; a checkpoint of {one.time} covers it")
            elif one.hash != self._head.hash:
                self._break(one.seq, f"is not the one that the checkpoint of {one.time} covers: rewritten since then")
            elif one.key in self._keys and one.seq > self._report.signed:
                self._cover(one)

    def _conclude(self) -> None:
        for one in self._published:
            self._break(self._head.seq + 1, f"records up to {one.seq} existed at {one.time}; these are cut off")
        if self._missing is not None:
            self._judge_missing(self._missing.seq)
        if self._unproved is not None:
            self._report.findings.append(self._unproved)

    def _judge_missing(self, last: int) -> None:
        """A beginning may be gone if a signed record says that retention took it: anybody could add an unsigned one."""
        if self._retained and self._retained <= self._report.signed:
            self._note(f"records up to {last} were deleted by retention, as record {self._retained} says")
            return
        self._file, self._line = self._files[0].path.name, 0
        stated = _stated_loss(self._files[0].opening.get("loss"))
        unsigned = f" but by record {self._retained}, which no checkpoint covers" if self._retained else ""
        self._find(1, f"records 1 to {last} are missing, not covered by retention{unsigned}{stated}")


def _stated_loss(loss: Any) -> str:
    return f"; the log itself says: {str(loss.get('reason'))[:200]}" if isinstance(loss, dict) else ""


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines with the place where each begins; one that is longer than a record comes in parts without a break."""
    start = stream.tell()
    while line := stream.readline(chain.MAX_LINE):
        yield start, line
        start += len(line)


def _checkpoints(stream: BinaryIO, start: int) -> Iterator[Checkpoint]:
    """What claims to be one among the lines from `start` on."""
    stream.seek(start)
    for _, line in _lines(stream):
        signed = checkpoint.parse(load(line[:-1]).get("checkpoint")) if b'"checkpoint"' in line else None
        if signed is not None:
            yield signed


def read_kept(path: Path) -> Iterator[Checkpoint]:
    """The checkpoints in a file, one a line. Raises ValueError for a line that is none."""
    with path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(checkpoint.MAX_CHECKPOINT_BYTES), b""), 1):
            one = checkpoint.read(line) or checkpoint.parse(load(line).get("checkpoint"))
            if one is None:
                raise ValueError(f"{path.name}:{number} is no checkpoint")
            yield one


def _bytes(size: int) -> str:
    return f"{size} byte{'s' * (size != 1)}"


def read_published(settings: AuditSettings) -> Iterator[Checkpoint]:
    """The checkpoints that this Sluice has published where they can be read."""
    files = (Path(destination) for destination in settings.checkpoints.to if "://" not in destination)
    for path in (*sorted(settings.own_state.glob("*.checkpoint")), *filter(Path.is_file, files)):
        yield from thin(read_kept(path))


def thin(published: Iterable[Checkpoint], limit: int = 20_000) -> list[Checkpoint]:
    """Checkpoints evenly spread over all, the newest among them: each vouches for what is before it."""
    found: list[Checkpoint] = []
    every, newest = 1, None
    for number, newest in enumerate(published):
        if number % every == 0:
            found.append(newest)
        if len(found) > limit:
            found, every = found[::2], every * 2
    return found if newest is None or found[-1:] == [newest] else [*found, newest]
