"""The log from its newest end: records of all writers backwards, in blocks, from any position on.

A page of calls or of records, and the story of one call, take bounded time and memory however large the log is. A
search for something rare gets part of the way, and where to go on. Runs in a worker thread; proves nothing but `proof`.
"""

import heapq
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, Final

from sluicegate.audit import chain, checkpoint
from sluicegate.audit.chain import Link
from sluicegate.audit.checkpoint import PublicKeys
from sluicegate.audit.publish import read_newest
from sluicegate.audit.read import Filter, Record, names_of
from sluicegate.audit.recover import File, list_files, load, load_sound, open_segment

BLOCK: Final = 256 * 1024
PAGE_SECONDS: Final = 0.7
GLANCE_SECONDS: Final = 0.2
STORY_SECONDS: Final = 2.0
PROOF_SECONDS: Final = 0.5
MAX_STORY: Final = 200
MAX_STORY_BYTES: Final = chain.MAX_LINE
MAX_PROOF: Final = 20_000
MAX_PAGE_BYTES: Final = 1024 * 1024
_LOOK_EVERY: Final = 256
_PATIENCE: Final = 1_000
"""Records that are older than wanted, until the search ends: those composed apart stand a little too late."""
_ALL: Final = 10**18
_PLAIN: Final = re.compile(r"[a-z0-9_.@:-]*[a-df-z_][a-z0-9_.@:-]*")
"""No number, which JSON writes as 1000 or 1e3, and nothing that a string of JSON escapes."""
_CURSOR: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}:[0-9]{1,19}(?:,[a-z0-9][a-z0-9-]{0,39}:[0-9]{1,19}){0,99}")

Position = Mapping[str, int]
"""The oldest sequence number of each writer that was seen."""


def read_position(text: str) -> Position | None:
    """A position out of a cursor; None for everything else."""
    if not _CURSOR.fullmatch(text):
        return None
    return {writer: int(seq) for writer, _, seq in (part.partition(":") for part in text.split(","))}


class Backwards:
    """Records of all writers, newest first, each with its line. `position` is how far they were read."""

    def __init__(self, directory: Path, before: Position | None = None) -> None:
        self._chains: dict[str, list[File]] = {}
        for file in list_files(directory):
            if file.writer and (before is None or file.writer in before):
                self._chains.setdefault(file.writer, []).append(file)
        self.position = {writer: (before or {}).get(writer, _ALL) for writer in self._chains}

    def __iter__(self) -> Iterator[tuple[Link, bytes]]:
        chains = [self._chain(files, self.position[writer]) for writer, files in self._chains.items()]
        for link, line in heapq.merge(*chains, key=lambda entry: entry[0].time, reverse=True):
            self.position[link.writer] = link.seq
            yield link, line

    @property
    def cursor(self) -> str:
        return ",".join(f"{writer}:{seq}" for writer, seq in self.position.items())

    def _chain(self, files: list[File], before: int) -> Iterator[tuple[Link, bytes]]:
        for number in range(len(files) - 1, -1, -1):
            if files[number].seq < before:
                yield from _records(files[number], min(before, _end(files, number)))


def _end(files: list[File], number: int) -> int:
    """The first sequence number that a segment's part of the chain has not, where a failure made it end there."""
    following = files[number + 1] if number + 1 < len(files) else None
    after = following.after if following is not None and {"loss", "torn"} & following.opening.keys() else None
    return _ALL if after is None else after.seq + 1


def _records(file: File, before: int) -> Iterator[tuple[Link, bytes]]:
    try:
        with open_segment(file) as stream:
            for line in _lines(stream, _around(stream, before)[1]):
                link = chain.read(line)
                if link is not None and link.writer == file.writer and link.seq < before:
                    yield link, line
    except FileNotFoundError:  # deleted since it was listed
        return


def _lines(stream: BinaryIO, end: int) -> Iterator[bytes]:
    """Whole lines before an offset, the last first. What is longer than a record can be is left out."""
    rest, is_whole, is_long = b"", False, False
    while end > 0:
        start = max(0, end - BLOCK)
        stream.seek(start)
        head, *lines = (stream.read(end - start) + rest).split(b"\n")
        end = start
        if lines:
            *inner, last = lines
            if is_whole and not is_long:  # before the first break from the end, a line is not whole yet
                yield last
            yield from reversed(inner)
            is_whole, is_long = True, False
        is_long = is_long or len(head) > chain.MAX_LINE
        rest = b"" if is_long else head
    if is_whole and not is_long:
        yield rest


def _around(stream: BinaryIO, seq: int) -> tuple[int, int]:
    """Where two lines begin, found by halving: the first is older than `seq` (or the first of all), the second is not
    (or is the end)."""
    low, high = 0, stream.seek(0, 2)
    while seq < _ALL and high - low > BLOCK:
        stream.seek((low + high) // 2)
        stream.readline(chain.MAX_LINE)
        start = stream.tell()
        link = chain.read(stream.readline(chain.MAX_LINE).rstrip(b"\n"))
        if link is None or start >= high:
            break
        if link.seq < seq:
            low = start
        else:
            high = start
    return low, high


# ---------------------------------------------------------------- calls


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Empty fields want everything. `tool` is a glob over `server/own`, the own or the public name; `text` is found in
    names, rule, reason or arguments, in any case."""

    principal: str = ""
    server: str = ""
    tool: str = ""
    method: str = ""
    verdict: str = ""
    outcome: str = ""
    since: str = ""
    until: str = ""
    text: str = ""

    def needles(self) -> list[bytes]:
        """What a line holds that matches: most lines lack it, and are not read as JSON."""
        return [json.dumps(value).encode("ascii") for value in (self.principal, self.server, self.method) if value]

    def matches(self, record: Record) -> bool:
        """All but the text, which may be in another record of the call."""
        decision = as_record(record.get("decision"))
        if self.principal not in ("", record.get("principal")) or self.server not in ("", record.get("server")):
            return False
        if self.method not in ("", record.get("method")):
            return False
        if self.outcome not in ("", record.get("outcome"), record.get("reason")):
            return False
        if self.verdict and not (decision.get("verdict") == self.verdict or decision.get(self.verdict) is True):
            return False
        return not self.tool or any(fnmatchcase(name, self.tool) for name in names_of(record))

    def has_text(self, record: Record) -> bool:
        return not self.text or self.text.casefold() in _searched(record)


def _searched(record: Record) -> str:
    named = ("call", "principal", "owner", "toolset", "method", "server", "own", "public", "asked", "reason", "trace",
             "decision", "arguments")  # fmt: skip
    return json.dumps([record.get(name) for name in named], ensure_ascii=False).casefold()


@dataclass(slots=True)
class LogPage:
    """`next` is where to go on, empty at the end of the log; `searched_to` the time of the oldest record seen."""

    rows: list[Record] = field(default_factory=list)
    next: str = ""
    searched_to: str = ""
    is_partial: bool = False


def _search(
    reader: Backwards, since: str, limit: int, until: float, clock: Callable[[], float],
    row_of: Callable[[Link, bytes], Record | None],
) -> LogPage:  # fmt: skip
    """The rows that match, newest first; a page of long lines has fewer."""
    found, older, size = LogPage(), 0, 0
    for number, (link, line) in enumerate(reader):
        found.searched_to = link.time
        older = older + 1 if link.time < since else 0
        if older > _PATIENCE:
            break
        found.is_partial = number % _LOOK_EVERY == _LOOK_EVERY - 1 and clock() > until
        if (row := row_of(link, line)) is not None:
            found.rows.append(row)
            size += len(line)
        if found.is_partial or len(found.rows) >= limit or size > MAX_PAGE_BYTES:
            found.next = reader.cursor
            break
    found.rows.sort(key=lambda row: str(row["time"]), reverse=True)
    return found


def records(
    directory: Path, wanted: Filter, limit: int, before: Position | None = None, seconds: float = PAGE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> LogPage:  # fmt: skip
    """The records that match, whole."""
    needles = [json.dumps(value).encode("ascii") for value in (wanted.principal, wanted.outcome) if value]

    def row_of(link: Link, line: bytes) -> Record | None:
        may_match = wanted.may_match(link) and all(needle in line for needle in needles)
        record = load_sound(line) if may_match else {}
        return record if record and wanted.matches(record) else None

    return _search(Backwards(directory, before), wanted.since, limit, clock() + seconds, clock, row_of)


def calls(
    directory: Path, wanted: CallFilter, limit: int, before: Position | None = None, seconds: float = PAGE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> LogPage:  # fmt: skip
    """A row for each call, by its closing record; those that are still open are in the first page, by their intent.
    A text that only the intent has (its arguments) is found there."""
    needles, closed, may_have_text = wanted.needles(), dict[str, bytes](), _sieve(wanted.text)

    def row_of(link: Link, line: bytes) -> Record | None:
        if link.type not in ("intent", "outcome"):
            return None
        in_time = link.time >= wanted.since and (not wanted.until or link.time < wanted.until)
        may_match = in_time and all(needle in line for needle in needles)
        record = load_sound(line) if may_match and may_have_text(line) else {}
        if link.type == "intent":
            return _of_intent(link, record, wanted, closed, is_first=before is None)
        if record and wanted.matches(record) and wanted.has_text(record):
            closed[link.call] = b""
            return summary(record)
        closed[link.call] = line if may_match and wanted.text else b""
        return None

    return _search(Backwards(directory, before), wanted.since, limit, clock() + seconds, clock, row_of)


def _sieve(text: str) -> Callable[[bytes], bool]:
    """Whether a line may have the text, told without reading it as JSON. The answer is yes where JSON can write the
    text in other ways, and for lines with letters beyond ASCII."""
    sought = text.casefold()
    if not _PLAIN.fullmatch(sought) or sought in "null":
        return lambda line: True
    needle = sought.encode("ascii")
    return lambda line: needle in line.lower() or not line.isascii() or b"\\u" in line


def last_calls(directory: Path, principal: str, count: int = 10) -> list[Record]:
    """The newest calls of somebody that have ended, newest first, as far back as a glance reaches."""
    found = calls(directory, CallFilter(principal=principal), 2 * count, seconds=GLANCE_SECONDS).rows
    wanted = ("time", "method", "server", "own", "outcome", "reason")
    ended = [row for row in found if not row["is_open"]][:count]
    return [{name: row[name] for name in wanted if name in row} for row in ended]


def _of_intent(
    link: Link, record: Record, wanted: CallFilter, closed: dict[str, bytes], is_first: bool
) -> Record | None:  # fmt: skip
    """The row that an intent gives. `closed` has the calls whose closing record was seen, and the line of each whose
    intent may have the text that is sought."""
    has_ended_here, line = link.call in closed, closed.pop(link.call, b"")
    if not record or not wanted.has_text(record):
        return None
    if has_ended_here or not wanted.matches(record):
        ended = load_sound(line) if line else {}
        return summary(ended) if ended and wanted.matches(ended) else None
    if is_first:
        return summary(record)
    # Its end is in a page before, which has it already if the text is not in the arguments alone.
    is_new = bool(wanted.text) and not wanted.has_text({**record, "arguments": None})
    return summary(record) | {"is_open": False} if is_new else None


def summary(record: Record) -> Record:
    """A call in a line, without its arguments."""
    decision = as_record(record.get("decision"))
    names = ("time", "principal", "owner", "toolset", "client", "method", "server", "kind", "own", "public", "asked",
             "class", "reason", "code", "seconds", "trace", "round")  # fmt: skip
    row = {"id": record.get("call", ""), "outcome": record.get("outcome", ""), "is_open": record["type"] == "intent"}
    row |= {name: record[name] for name in names if name in record}
    return row | {name: decision[name] for name in ("verdict", "rule", "would_deny") if name in decision}


# ---------------------------------------------------------------- one call


@dataclass(slots=True)
class Story:
    """All records about one call, the oldest first, those of its approvals and of its other rounds among them."""

    call: str
    records: list[Record] = field(default_factory=list)
    proofs: list[Record] = field(default_factory=list)
    is_partial: bool = False
    searched_to: str = ""

    @property
    def own(self) -> list[Record]:
        return [record for record in self.records if record.get("call") == self.call]


def story(
    directory: Path, state: Path, keys: PublicKeys, call: str, seconds: float = STORY_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Story:  # fmt: skip
    """Without records where none is about it, as far as was searched. The search ends a little before it began."""
    until, found, wanted = clock() + seconds, Story(call), _Wanted(call)
    begun, older, size = "", 0, 0
    for number, (link, line) in enumerate(Backwards(directory)):
        found.searched_to = link.time
        if number % _LOOK_EVERY == _LOOK_EVERY - 1 and clock() > until:
            found.is_partial = True
            break
        if any(needle in line for needle in wanted.needles) and wanted.takes(record := load_sound(line)):
            size += len(line)
            if size > MAX_STORY_BYTES or len(found.records) == MAX_STORY:
                found.is_partial = True
                break
            found.records.append(record)
            if link.call == call:
                begun = _begin(record)
                limit = clock() + PROOF_SECONDS
                found.proofs.append(proof(directory, state, keys, link, limit, clock))
        older = older + 1 if begun and link.time < begun and not wanted.is_missing else 0
        if older > _PATIENCE:
            break
    found.records.reverse()
    return found


class _Wanted:
    """Which records belong to a call: its own, those of its rounds, and those of its approvals."""

    def __init__(self, call: str) -> None:
        self._calls, self._approvals = {call: False}, dict[str, bool]()
        self.needles = [json.dumps(call).encode("ascii")]

    @property
    def is_missing(self) -> bool:
        """Whether the first record of one is older still."""
        return not all((*self._calls.values(), *self._approvals.values()))

    def takes(self, record: Record) -> bool:
        call, first = record.get("call", ""), as_record(record.get("round")).get("call", "")
        approval = as_record(record.get("approval"))
        id = approval.get("id", "")
        if call in self._calls:
            self._calls[call] = True
        elif first not in self._calls and id not in self._approvals:
            return False
        if id in self._approvals and record["type"] == "approval" and approval.get("state") == "pending":
            self._approvals[id] = True
        for seen, name in ((self._calls, first), (self._approvals, id)):
            if name and name not in seen and len(self.needles) < MAX_STORY:
                seen[name] = False
                self.needles.append(json.dumps(name).encode("ascii"))
        return True


def _begin(record: Record) -> str:
    """A little before a call began, by a record of it."""
    seconds = record.get("seconds", 0.0)
    at = datetime.fromisoformat(record["time"][:26] + "+00:00") - timedelta(seconds=min(seconds, 1e6) + 5)
    return at.strftime("%Y-%m-%dT%H:%M:%S")


# ---------------------------------------------------------------- proof


def proof(
    directory: Path, state: Path, keys: PublicKeys, link: Link, until: float,
    clock: Callable[[], float] = time.monotonic,
) -> Record:  # fmt: skip
    """What vouches for a record: the chain from it to the next checkpoint is read again, and its signature judged.

    `proved`: signed, and unchanged up to there. `behind`: no checkpoint covers it yet. `broken`: what is signed, or
    what follows, is not what stands there. `not_verified`: the key is not known here, or it takes too long."""
    about = {"writer": link.writer, "seq": link.seq, "type": link.type}
    newest, hashes, last = read_newest(state, link.writer), dict[int, str](), link.seq - 1
    for number, (next_one, line) in enumerate(_onwards(directory, link)):
        if number > MAX_PROOF or clock() > until:
            return {**about, "state": "not_verified", "why": "the next checkpoint is too far away"}
        if not _follows(next_one, line, last, hashes) or (not hashes and next_one != link):
            return {**about, "state": "broken", "why": f"record {next_one.seq} does not follow record {last} as signed"}
        last = next_one.seq
        hashes[last] = chain.digest(line)
        signed = checkpoint.parse(load(line).get("checkpoint")) if next_one.type == "checkpoint" else None
        if newest is not None and newest.seq == last:
            signed = newest
        if signed is None or signed.seq < link.seq or signed.writer != link.writer:
            continue
        if not checkpoint.is_signed(signed, keys):
            return {**about, "state": "not_verified", "why": f"the key {signed.key} is not among the public keys"}
        if hashes.get(signed.seq) != signed.hash:
            return {**about, "state": "broken", "why": f"record {signed.seq} is not the one that was signed"}
        return {**about, "state": "proved", "signed": signed.seq, "signed_at": signed.time}
    if newest is not None and newest.seq > last:
        return {**about, "state": "broken", "why": f"records {last + 1} to {newest.seq} are missing"}
    return {**about, "state": "behind", "why": "no checkpoint covers it yet"}


def _follows(link: Link, line: bytes, last: int, hashes: Mapping[int, str]) -> bool:
    """The next record, or one that says which records a failure lost before it. One that says that signed records are
    gone or changed vouches for none before it."""
    loss = as_record(load(line).get("loss")) if link.type == "admin" else {}
    if hashes and (link.prev != hashes[last] or loss.get("signed")):
        return False
    return link.seq == last + 1 or (loss.get("last") == link.seq - 1 and loss.get("durable") == last)


def _onwards(directory: Path, link: Link) -> Iterator[tuple[Link, bytes]]:
    """The records of a writer from one on, over its segments."""
    files = [file for file in list_files(directory) if file.writer == link.writer]
    first = max((number for number, file in enumerate(files) if file.seq <= link.seq), default=len(files))
    for number in range(first, len(files)):
        end = _end(files, number)
        with open_segment(files[number]) as stream:
            if number == first:
                stream.seek(_around(stream, link.seq)[0])
            while (line := stream.readline(chain.MAX_LINE)).endswith(b"\n"):
                found = chain.read(line[:-1])
                if found is None:
                    yield Link(link.writer, 0, -1, "", "", "", ""), line[:-1]  # follows nothing
                    continue
                if link.seq <= found.seq < end:
                    yield found, line[:-1]
                if found.seq >= end - 1:  # what a failure left behind is no part of the chain
                    break


def worst(states: list[Record]) -> str:
    """What holds for all of them."""
    order = ("broken", "not_verified", "behind", "proved")
    return next((word for word in order if any(one["state"] == word for one in states)), "not_verified")


def as_record(value: Any) -> Record:
    return value if isinstance(value, dict) else {}
