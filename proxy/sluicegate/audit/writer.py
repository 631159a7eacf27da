"""The one thread that writes the log: it links records into the chain, and many share one sync.

The event loop hands records over and never waits for the disk; whoever must know gets a future. A segment whose
write or sync failed is closed for ever: what waited for it is refused, and the log goes on in a new one whose first
record says what was lost. This thread alone knows the chain's head, so that nothing here needs a lock.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluicegate.audit import chain, record_templates
from sluicegate.audit.chain import ChainHead
from sluicegate.audit.checkpoint import Checkpoint, Signer
from sluicegate.audit.queue import Done, QueuedRecord, RecordQueue
from sluicegate.audit.record import Stamp
from sluicegate.audit.recover import Recovered, recover
from sluicegate.audit.segment import Segment, retire
from sluicegate.audit.settings import AuditSettings, file_of
from sluicegate.store import private

log = logging.getLogger(__name__)

_PATIENCE: Final = 30.0  # seconds that the end may wait for a disk
_RETRY: Final = (0.1, 5.0)  # first and longest pause before a new segment is tried


@dataclass(slots=True)
class WriterCounts:
    """Since the start. `lost` are records that no file has; `refused` calls that were not let through."""

    written: int = 0
    refused: int = 0
    lost: int = 0
    failures: int = 0
    batches: int = 0


class SegmentChain:
    """The records of one writer on the disk: segment after segment, with checkpoints among them. Every failure is an
    `OSError`, after which the segment has to be closed. `published` gets every checkpoint; `newest` is the last one
    known from before."""

    def __init__(
        self, settings: AuditSettings, name: str, signer: Signer, published: Callable[[Checkpoint], None],
        newest: Checkpoint | None, counts: WriterCounts,
    ) -> None:  # fmt: skip
        self.name, self.path = name, file_of(settings.path, name)
        self._settings, self._signer, self._published, self._newest = settings, signer, published, newest
        self._is_durable, self._counts = settings.durability == "fsync", counts
        self.stamp = Stamp()
        self.segment: Segment | None = None
        self.open_calls: dict[str, int] = {}  # id -> sequence number of the intent
        self.checkpoint_at = float("inf")
        self._epoch = 0
        self._head = chain.START
        self._issued = 0  # highest sequence number that was ever given out
        self._key = ""  # the key that the newest segment's opening names
        self._first = 0  # sequence number of the newest segment's first record
        self._since = 0  # records since the last checkpoint

    def append(self, items: list[QueuedRecord]) -> None:
        """All or nothing, as far as anybody is told."""
        segment = self._live()
        segment.check()
        first = self._head.seq + 1
        lines, head = chain.link_all(self._head, self.name, self._epoch, [item.body for item in items])
        self._issued = head.seq
        segment.write(b"".join(lines))
        self._advance(head)
        for seq, item in enumerate(items, first):
            if item.opens:
                self.open_calls[item.opens] = seq
            elif item.closes:
                self.open_calls.pop(item.closes, None)
        self._counts.written += len(items)

    def _advance(self, head: ChainHead) -> None:
        if self._since == 0:
            self.checkpoint_at = time.monotonic() + self._settings.checkpoints.every
        self._since += head.seq - self._head.seq
        self._head = head

    def _live(self) -> Segment:
        assert self.segment is not None
        return self.segment

    # ------------------------------------------------------------ checkpoints and rotation

    def is_checkpoint_due(self) -> bool:
        return self._since >= self._settings.checkpoints.records or time.monotonic() >= self.checkpoint_at

    def full_at(self) -> float:
        """When the segment is too old, by our own clock; one that holds nothing but its opening never is."""
        segment = self._live()
        if self._head.seq == segment.first:
            return float("inf")
        return time.monotonic() + self._settings.rotate.age - (time.time() - segment.opened)

    def checkpoint(self) -> None:
        """Signs what is on the disk, never more."""
        segment = self._live()
        self.checkpoint_at = float("inf")
        if self._since == 0:
            return
        segment.check()
        if not self._is_durable:
            segment.sync()
        head, self._since = self._head, 0
        signed = self._signer.sign(self.name, self._epoch, head.seq, head.hash, self.stamp())
        line, head = chain.link(head, self.name, self._epoch, signed.body())
        self._issued = head.seq
        segment.write(line)
        if not self._is_durable:  # whoever waits for it may delete what it speaks of
            segment.sync()
        self._head = head
        self._newest = signed
        self._published(signed)

    def rotate_if_full(self) -> None:
        segment = self._live()
        if segment.size < self._settings.rotate.size and time.monotonic() < self.full_at():
            return
        self.checkpoint()
        segment.sync()
        self.close()
        retire(self.path, segment.first)
        self._create("rotate")

    def close(self) -> None:
        segment, self.segment = self.segment, None
        if segment is not None:
            segment.close()

    def end(self) -> None:
        self._add(record_templates.stop(self.stamp()))
        self.checkpoint()
        self._live().sync()

    # ------------------------------------------------------------ opening

    def open(self, problem: str) -> None:
        """At first the chain goes on where it was left, and what was interrupted is said to be so. After a failure, the
        first record of a new segment says what the problem was."""
        if self._epoch > 0:
            self._create("failure", loss=record_templates.Loss(problem, self._head.seq, self._issued))
            return
        newest = self._newest
        found = recover(self.path, self.name, newest)
        self._epoch = max(found.epoch, newest.epoch if newest else 0) + 1
        try:
            self._resume(found, newest)
            self._record_interrupted(found)
        except BaseException:  # cancelled as well: half an opening must not stay, whatever ended it
            self._epoch = 0  # the next try reads the disk again
            self.close()
            raise
        if self._settings.checkpoints.at_start:
            self.checkpoint()

    def _resume(self, found: Recovered, newest: Checkpoint | None) -> None:
        self._head = found.head
        self._issued = max(found.head.seq, newest.seq if newest else 0)
        self.open_calls = dict(found.open)  # a new segment names them until they are closed
        is_cut = newest is not None and not found.has_signed
        if found.file is not None and found.file.path == self.path and found.torn is None and not is_cut:
            opened = record_templates.seconds(found.opened)
            self.segment = Segment.resume(self.path, found.file.seq, opened, is_durable=self._is_durable)
            self._first = found.file.seq
            self._add(record_templates.start(self.stamp(), self._introduction(found.key)))
            return
        self._key = found.key
        loss = None
        if is_cut:  # whoever may write the files changed them while nobody ran: what follows must not vouch for that
            log.error("records of the audit log that were signed are gone or changed", extra={"file": str(self.path)})
            gone = "are gone" if self._issued > found.head.seq else "were changed"
            loss = record_templates.Loss(f"records that were signed {gone}", found.head.seq, self._issued, True)
        first = found.file.seq if found.file is not None and found.file.path == self.path else 0
        self._create("start" if found.torn is None else "torn", loss=loss, torn=found.torn, old=first)

    def _introduction(self, previous: str) -> record_templates.Introduction:
        """Our key, and what the one before it in this log says to it."""
        if previous in ("", self._signer.id):
            return record_templates.Introduction(self._signer.id, self._signer.public)
        sig = self._signer.introduce(self.name, previous)
        return record_templates.Introduction(self._signer.id, self._signer.public, previous, sig)

    def _record_interrupted(self, found: Recovered) -> None:
        for id, seq in found.open.items():
            self._add(record_templates.interrupted(id, seq, self.stamp()))
        self.open_calls = {}
        segment = self._live()
        segment.sync()
        segment.sync_name()

    def _add(self, body: bytes) -> None:
        line, head = chain.link(ChainHead(self._issued, self._head.hash), self.name, self._epoch, body)
        self._issued = head.seq
        self._live().write(line)
        self._advance(head)
        self._counts.written += 1

    def _create(
        self,
        why: str,
        *,
        loss: record_templates.Loss | None = None,
        torn: record_templates.Torn | None = None,
        old: int = 0,
    ) -> None:
        """A new segment, in force when its first record and its name are durable."""
        if self.path.exists():
            if self.path.stat().st_size:
                retire(self.path, old or self._first)
            else:
                self.path.unlink()
        body = record_templates.opening(
            self.stamp(), why, self._introduction(self._key), self._head, self.open_calls, loss=loss, torn=torn
        )
        line, head = chain.link(ChainHead(self._issued, self._head.hash), self.name, self._epoch, body)
        segment = Segment.create(self.path, head.seq, time.time(), is_durable=self._is_durable)
        try:
            segment.write(line)
            segment.sync()
            segment.sync_name()
        except BaseException:  # cancelled as well: a segment without a synced first line must not be found later
            segment.close()
            self.path.unlink(missing_ok=True)
            raise
        self.segment, self._issued, self._first = segment, head.seq, head.seq
        self._key = self._signer.id
        self._advance(head)
        self._counts.written += 1


class AuditWriter:
    """The thread, what it has yet to write, and who waits for that. `published` gets every checkpoint, in the thread;
    `newest` is the last one known from before."""

    def __init__(
        self,
        settings: AuditSettings,
        name: str,
        signer: Signer,
        published: Callable[[Checkpoint], None],
        newest: Checkpoint | None = None,
    ) -> None:
        self.name, self.counts = name, WriterCounts()
        self.problem: str | None = "the log is not open yet"
        self._settings = settings
        self.inbox = RecordQueue(settings.queue)
        self.busy_since: float | None = None  # monotonic; None while nothing waits to be written
        self._is_stopping = False
        self._opened: asyncio.Future[None] | None = None
        # the thread's own
        self._thread = threading.Thread(target=self._run, name=f"audit {name}", daemon=True)
        self._chain = SegmentChain(settings, name, signer, published, newest, self.counts)
        self._batch: list[QueuedRecord] = []
        self._carried: list[QueuedRecord] = []  # to be written when the log can be written again
        self._dropped = 0
        self._signing: list[Done] = []  # kept, and waiting for a signature
        self._retry_at, self._pause = 0.0, _RETRY[0]

    # ------------------------------------------------------------ the event loop's side

    async def start(self) -> None:
        """Returns when the log could be opened, or could not yet. Raises what needs a person (see `Exposed`)."""
        self.inbox.open()
        self._opened = opened = asyncio.get_running_loop().create_future()
        self._thread.start()
        await opened

    async def stop(self) -> None:
        """Everything handed over is written, a checkpoint closes it."""
        self._is_stopping = True
        self.inbox.ring()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, _PATIENCE)

    @property
    def takes_records(self) -> bool:
        return not self.inbox.is_full and not self._is_stopping

    def intent_of(self, call: str) -> int | None:
        """The number of its record, once that is kept and until the call has ended."""
        return self._chain.open_calls.get(call)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._turn()
            self._tell_opened(None)
            while not self._is_stopping or len(self.inbox):
                self.inbox.wait(self._next_duty())
                self._turn()
            self._end()
        except BaseException as error:  # a bug, or modes that a person must look at: from here on all is refused
            self.problem = f"the writer has ended: {error}"
            self._is_stopping = True
            self.inbox.settle([item.done for item in self._batch if item.done is not None] + self._signing, False)
            self.inbox.refuse_all()
            if self._opened is not None:
                self._tell_opened(error)
                return
            raise

    def _tell_opened(self, error: BaseException | None) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            self.inbox.tell(opened, error)

    def _next_duty(self) -> float:
        if self._chain.segment is None:
            return self._retry_at
        return min(self._chain.checkpoint_at, self._chain.full_at())

    def _turn(self) -> None:
        self.busy_since = self.busy_since or time.monotonic()
        self._batch = self.inbox.take()
        self._dropped += self.inbox.take_dropped()
        try:
            if self._chain.segment is None:
                self._open()
            self._append()
            if self._chain.is_checkpoint_due() or self._signing:
                self._chain.checkpoint()
                signed, self._signing = self._signing, []
                self.inbox.settle(signed, True)
            self._chain.rotate_if_full()
            self.busy_since = None
        except private.Exposed:
            raise
        except OSError as error:
            self._fail(error)

    def _open(self) -> None:
        if time.monotonic() < self._retry_at:
            raise OSError(self.problem)
        self._chain.open(self.problem or "")
        if self.problem is not None and self.counts.failures:
            log.warning("the audit log can be written again", extra={"file": str(self._chain.path)})
        self.problem, self._pause = None, _RETRY[0]

    def _append(self) -> None:
        items = self._carried + self._batch if self._carried else self._batch
        if self._dropped:
            items = [QueuedRecord(record_templates.lost(self._chain.stamp(), self._dropped)), *items]
        if not items:
            return
        self._chain.append(items)
        self._carried, self._dropped = [], 0
        self.counts.batches += 1
        waiting = [item.done for item in items if item.done is not None]
        self._signing += [item.done for item in items if item.done is not None and item.signs]
        self.inbox.settle([done for done in waiting if done not in self._signing] if self._signing else waiting, True)
        self._batch = []

    # ------------------------------------------------------------ failing and ending

    def _fail(self, error: OSError) -> None:
        """The segment is given up. Nobody may believe that what was in flight is kept."""
        may_pass = self._settings.on_failure == "allow_and_alarm"
        if self._chain.segment is not None:
            self.counts.failures += 1
            log.error("the audit log cannot be written", extra={"file": str(self._chain.path), "error": str(error)})
        self._chain.close()
        batch = self._batch
        waiting = [item.done for item in batch if item.done is not None and not item.signs]
        unsigned = self._signing + [item.done for item in batch if item.done is not None and item.signs]
        passed = [item for item in batch if item.done is None or (may_pass and not item.signs)]
        self._carry(self._carried + passed)
        self.problem = str(error) or type(error).__name__
        now = time.monotonic()
        if now >= self._retry_at:
            self._retry_at, self._pause = now + self._pause, min(self._pause * 2, _RETRY[1])
        self.counts.refused += 0 if may_pass else len(waiting)
        self.inbox.settle(waiting, may_pass)
        self.inbox.settle(unsigned, False)
        self._batch, self._signing = [], []

    def _carry(self, items: list[QueuedRecord]) -> None:
        room = self._settings.queue
        self._carried = [item._replace(done=None) if item.done else item for item in items[:room]]
        self._dropped += len(items[room:])
        self.counts.lost += len(items[room:])

    def _end(self) -> None:
        if self._chain.segment is None:
            self._retry_at = 0.0
            self._turn()
        if self._chain.segment is None:
            self.counts.lost += len(self._carried)
            log.error("audit records are lost at the end", extra={"records": len(self._carried) + self._dropped})
            return
        try:
            self._chain.end()
        except OSError as error:
            log.error("the audit log could not be closed in good order", extra={"error": str(error)})
        self._chain.close()
