"""The audit log as the rest of Sluice sees it: intents, outcomes and notes in; counts and problems out.

No record, no call: `intent` says whether a record of the call is kept, and who gets a no must not let it pass.
Knows calls and outcomes; the thread below it (`writer`) knows only bytes.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from sluicegate.audit import checkpoint
from sluicegate.audit.checkpoint import Checkpoint, PublicKeys, Signer
from sluicegate.audit.newest import proof
from sluicegate.audit.publish import Publisher, read_newest
from sluicegate.audit.queue import Done
from sluicegate.audit.record import Body, Composer, needs_intent
from sluicegate.audit.redact import RecallingRedactor, Redactor
from sluicegate.audit.segment import Old, delete, find_old
from sluicegate.audit.settings import AuditSettings
from sluicegate.audit.sinks import AuditSink, SinkConfirmation
from sluicegate.audit.writer import AuditWriter, WriterCounts
from sluicegate.metrics import Tally
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Outcome, Target
from sluicegate.store import private

log = logging.getLogger(__name__)

PUBLIC_KEYS: Final = "sign.pub"
MAX_WRITERS: Final = 100
_HOUSEKEEPING: Final = 3_600.0
_PROOF_SECONDS: Final = 30.0
# Who was not let in is summed up: one record a minute and address, a thousand addresses, then `other`.
WINDOW: Final = 60.0
MAX_ADDRESSES: Final = 1_000
MAX_REASONS: Final = 40
OTHER: Final = "other"


@dataclass(slots=True)
class _Sum:
    count: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


class IdentityFailures:
    """`note` takes the fields of one record. Belongs to the event loop."""

    def __init__(self, note: Callable[[Json], None], window: float = WINDOW) -> None:
        self._note, self._window = note, window
        self._sums: dict[str, _Sum] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, address: str, reason: str) -> None:
        if address not in self._sums and len(self._sums) >= MAX_ADDRESSES:
            address = OTHER
        sum = self._sums.setdefault(address, _Sum())
        sum.count += 1
        reason = reason if reason in sum.reasons or len(sum.reasons) < MAX_REASONS else OTHER
        sum.reasons[reason] = sum.reasons.get(reason, 0) + 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._window, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sums, self._sums = self._sums, {}
        for address, sum in sums.items():
            self._note({"address": address, "count": sum.count, "reasons": sum.reasons, "window": self._window})


class AuditLog:
    """`digest_key` and `sign_seeds` come from the key rings. `start` before the first call, `stop` after the last;
    `run` is a long-lived task beside them."""

    def __init__(
        self,
        settings: AuditSettings,
        digest_key: bytes,
        sign_seeds: Iterable[bytes],
        classify: Callable[[Target], str] = lambda target: "",
        revision: Callable[[], str] = str,
    ) -> None:
        self.settings = settings
        self._signer = Signer(sign_seeds)
        kind = RecallingRedactor if settings.has_hooks else Redactor
        self.redactor = kind(digest_key, settings.redact.keys, settings.redact.pointers)
        self.composer = Composer(
            self.redactor, settings.arguments, settings.results, settings.transport, classify, revision
        )  # fmt: skip
        self._open: dict[str, str] = {}  # by call: what its intent said of it
        self._failures = IdentityFailures(lambda fields: self.note("identity", fields))
        self._refused = self._lost = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audit compose")
        self._composing: set[asyncio.Task[Done | None]] = set()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by principal
        self._writer: AuditWriter | None = None
        self._publisher: Publisher | None = None
        self._sinks: list[AuditSink] = []
        self._confirmation: SinkConfirmation | None = None
        self._lock: int | None = None

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Opens the log, or begins to try. Raises `OSError` where directory or modes need a person, and `ValueError`
        where no sink has the name that is to confirm."""
        settings = self.settings
        if settings.confirm is not None and settings.confirm.sink not in {sink.name for sink in settings.sinks}:
            raise ValueError(f"no audit sink is named {settings.confirm.sink}")
        for directory in (settings.path.parent, settings.state, settings.own_state):
            private.make_directory(directory)
            private.check(directory, private.DIRECTORY)
        private.write(settings.state / PUBLIC_KEYS, checkpoint.write_publics(self._signer.publics), replace=True)
        name, self._lock = _claim(settings)
        self._publisher = Publisher(settings.own_state, name, settings.checkpoints.to)
        newest = read_newest(settings.own_state, name)
        self._writer = AuditWriter(settings, name, self._signer, self._publisher.put, newest)
        self._publisher.start()
        await self._writer.start()
        self._sinks = [AuditSink(sink, settings.path.parent, settings.own_state, name) for sink in settings.sinks]
        for sink in self._sinks:
            if settings.confirm is not None and sink.name == settings.confirm.sink:
                self._confirmation = SinkConfirmation(sink, settings.confirm.classes)
            sink.start()

    async def run(self) -> None:
        """Deletes what is older than `retain`, once an hour."""
        while True:
            await self.delete_old()
            await anyio.sleep(_HOUSEKEEPING)

    async def stop(self) -> None:
        """Everything is written, signed and published; sinks go on from where they are at the next start."""
        self._failures.flush()
        while self._composing:
            await asyncio.wait(self._composing)
        self._thread.shutdown()
        if self._writer is not None:
            await self._writer.stop()
        for helper in (self._publisher, *self._sinks):
            if helper is not None:
                await anyio.to_thread.run_sync(helper.stop, abandon_on_cancel=True)
        if self._lock is not None:
            os.close(self._lock)

    # ------------------------------------------------------------ calls

    def intent(self, call: Call, approval: Json | None = None) -> Awaitable[bool]:
        """True once the record of the call is kept, at a sink, too, where the settings say so; False: it must not take
        place. Calls that cannot do anything (lists, completions) need none and pass."""
        writer = self._writer
        if not needs_intent(call):
            return _known_answer(True)
        if writer is None or writer.problem is not None or not writer.takes_records:
            return _known_answer(self._without_record())
        id = call.trail.id
        about = self._open[id] = self.composer.about(call)
        body = self.composer.intent(call, about, approval)
        if isinstance(body, bytes):
            recorded: Awaitable[bool] = writer.inbox.ask(body, id)
        else:
            recorded = self._ask_later(self._compose(body, call, lambda composed: writer.inbox.ask(composed, id)))
        confirmation = self._confirmation
        if confirmation is None or not confirmation.awaits(self.composer.class_of(call)):
            return recorded
        return _confirmed(recorded, writer, id, confirmation)

    async def _ask_later(self, composing: asyncio.Task[Done | None]) -> bool:
        done = await asyncio.shield(composing)
        return done is not None and await done

    def _without_record(self) -> bool:
        if self.settings.on_failure == "allow_and_alarm":
            self._lost += 1
            return True
        self._refused += 1
        return False

    def outcome(self, call: Call, outcome: Outcome | None, seconds: float) -> None:
        """The closing record. Never waits; None is a cancelled call."""
        id = call.trail.id
        about = self._open.pop(id, None)
        body, closes = self.composer.outcome(call, about, outcome, seconds), id if about else ""
        composing = call.trail.composing
        if isinstance(body, bytes) and (composing is None or composing.done()):
            self._put(body, closes)
        else:  # behind the intent, which may still be composed where the call was cancelled
            self._compose(body, call, lambda composed: self._put(composed, closes), is_answer=about is not None)

    def note(self, type: str, fields: Json) -> None:
        """A decision, approval, pin, policy, identity or administrative record. Never waits."""
        self._put(self.composer.note(type, fields))

    async def note_durably(self, type: str, fields: Json, *, signed: bool = False) -> bool:
        """The same, and whether it is kept; `signed`: and covered by a checkpoint."""
        if self._writer is None or self._writer.problem is not None or not self._writer.takes_records:
            return False
        return await self._writer.inbox.ask(self.composer.note(type, fields), signs=signed)

    def _compose(
        self, body: Body, call: Call, put: Callable[[bytes], Done | None], is_answer: bool = False
    ) -> asyncio.Task[Done | None]:
        """A record whose texts take long to search is composed in a thread of its own and then `put`, though its call
        be cancelled. Each principal has one there at a time, in order: those of another wait for one of it, not for
        all. The trail says when it is done, and what it took: whoever sent those texts pays, client or server. None:
        it cannot be composed, so there is none, or nobody waits for it."""
        trail, principal = call.trail, call.client.principal

        async def compose() -> Done | None:
            async with self._turns.setdefault(principal, asyncio.Lock()):
                composed, seconds = await asyncio.get_running_loop().run_in_executor(self._thread, _timed, body)
                if is_answer:
                    trail.answer_seconds += seconds
                else:
                    trail.compose_seconds += seconds
                if composed is None:
                    self._lost += 1
                    if self._writer is not None:
                        self._writer.inbox.drop()
                    return None
                return put(composed)

        task = trail.composing = asyncio.get_running_loop().create_task(compose())
        self._composing.add(task)
        task.add_done_callback(self._composing.discard)
        return task

    def _put(self, body: bytes, closes: str = "") -> None:
        writer = self._writer
        if writer is None or not writer.takes_records:
            self._lost += 1
            if writer is not None:
                writer.inbox.drop()
        else:
            writer.inbox.put(body, closes)

    def identity_failure(self, address: str, reason: str) -> None:
        """Somebody was not let in. Summed up, so that nobody fills the disk from outside."""
        self._failures.add(address, reason)

    # ------------------------------------------------------------ how it is doing

    @property
    def problem(self) -> str | None:
        """Why the log cannot be written, None while it can."""
        return "the audit log is not started" if self._writer is None else self._writer.problem

    @property
    def warning(self) -> str:
        """What an operator should know although the log can be written; empty most of the time."""
        return "" if self._confirmation is None else self._confirmation.problem

    def tally(self) -> Tally:
        counts = self._writer.counts if self._writer is not None else WriterCounts()
        records = {
            ("file", "ok"): counts.written,
            ("file", "refused"): counts.refused + self._refused,
            ("file", "failed"): counts.failures,
        }
        busy = {"file": None if self._writer is None else self._writer.busy_since}
        for sink in self._sinks:
            records |= {(sink.name, "ok"): sink.sent, (sink.name, "failed"): sink.failures}
            busy[sink.name] = sink.busy_since
        if (confirmation := self._confirmation) is not None:
            records[confirmation.sink.name, "refused"] = confirmation.refused
        lag = {name: 0.0 if since is None else time.monotonic() - since for name, since in busy.items()}
        waiting = 0 if self._writer is None else len(self._writer.inbox)
        return Tally(records, counts.lost + self._lost, waiting, lag)

    def head(self) -> Checkpoint | None:
        """The newest checkpoint, as the admin port tells it."""
        return self._publisher.newest if self._publisher is not None else None

    def public_keys(self) -> PublicKeys:
        """Those that this log was signed with."""
        return self._signer.publics

    async def delete_old(self) -> None:
        """Segments whose last record is older than `retain` go, when what is signed says so and sinks have them."""
        writer = self._writer
        if writer is None:
            return
        delivered = min((sink.seq for sink in self._sinks), default=None)
        old = await anyio.to_thread.run_sync(
            find_old, self.settings.path, writer.name, time.time() - self.settings.retain, delivered
        )
        for segment in old:
            if not await anyio.to_thread.run_sync(self._is_signed, segment):
                return
            if not await self.note_durably("admin", {"act": "retain", **segment.to_json()}, signed=True):
                return
            with suppress(FileNotFoundError):
                await anyio.to_thread.run_sync(delete, self.settings.path, segment)

    def _is_signed(self, old: Old) -> bool:
        """Whoever may write the files can make one say that another ended long ago, but not sign that."""
        path, until = self.settings.path, time.monotonic() + _PROOF_SECONDS
        found = proof(path.parent, self.settings.own_state, self.public_keys(), old.following, until)
        if found["state"] not in ("proved", "behind"):
            log.error("%s is kept: nothing signed says that it is old (%s)", old.path, found["why"])
        return bool(found["state"] == "proved")


def _timed(body: Body) -> tuple[bytes | None, float]:
    """The record, None where it cannot be composed, and the processor's seconds."""
    since = time.thread_time()
    try:
        composed = body if isinstance(body, bytes) else body()
    except Exception:  # whatever it was: this record is lost, and that is counted
        log.exception("an audit record cannot be composed")
        return None, time.thread_time() - since
    return composed, time.thread_time() - since


async def _confirmed(recorded: Awaitable[bool], writer: AuditWriter, id: str, confirmation: SinkConfirmation) -> bool:
    if not await recorded or (seq := writer.intent_of(id)) is None:
        return False
    return await confirmation.has(seq)


async def _known_answer(answer: bool) -> bool:
    return answer


def _claim(settings: AuditSettings) -> tuple[str, int]:
    """The first free writer name: two processes on one directory each have a file and a chain of their own."""
    stem = settings.path.name.removesuffix(".jsonl")
    for number in range(1, MAX_WRITERS):
        name = stem if number == 1 else f"{stem}-{number}"
        lock = private.take_lock(settings.path.with_name(f"{name}.lock"))
        if lock is not None:
            return name, lock
    raise OSError(f"{settings.path.parent}: more than {MAX_WRITERS} writers")
