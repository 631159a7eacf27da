"""The margins of the audit log: what is counted, bounded, named and left behind when something goes wrong beside it."""

import asyncio
import json
import logging
import socket
import threading
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from audit_kit import SEED, check_one, one_call, open_audit, records, settings, settled

from sluicegate.audit import chain, export, posting, record_templates, sinks
from sluicegate.audit import log as audit_log
from sluicegate.audit import queue as queue_module
from sluicegate.audit.chain import START, ChainHead, Link, link, link_all
from sluicegate.audit.checkpoint import Checkpoint, Signer
from sluicegate.audit.log import AuditLog, IdentityFailures
from sluicegate.audit.names import is_secret_name, is_word_for_secret, last_word
from sluicegate.audit.publish import Publisher
from sluicegate.audit.queue import MAX_BATCH, QueuedRecord, RecordQueue
from sluicegate.audit.recover import Torn, list_files, look, recover
from sluicegate.audit.redact import Redactor
from sluicegate.audit.segment import Old, Segment, delete, find_old
from sluicegate.audit.settings import Checkpointing, ConfirmSettings, Rotation, SinkSettings
from sluicegate.audit.sinks import AuditSink, SinkConfirmation
from sluicegate.audit.verify import VerifyReport
from sluicegate.audit.writer import AuditWriter

TIME = "2026-10-01T12:30:00.123456789Z"
NOON = record_templates.seconds(TIME)


async def until(condition: Any) -> None:
    """What another thread brings about can only be looked for."""
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.005)


def body(type: str, call: str = "", time: str = TIME, **fields: Any) -> bytes:
    named = {"type": type, "time": time, **({"call": call} if call else {}), **fields}
    return json.dumps(named, separators=(",", ":")).encode()[1:-1]


def numbered(number: int) -> dict[str, Any]:
    """A note that nobody waits for, to be told from others by its address."""
    return {"address": f"192.0.2.{number}", "count": 1, "reasons": {"r": 1}, "window": 60.0}


# ---------------------------------------------------------------- the queue before the writer


async def test_whoever_waits_when_the_thread_ends_hears_no_and_nothing_stays_in_the_queue() -> None:
    queue = RecordQueue(10)
    queue.open()
    first, second = queue.ask(b"1"), queue.ask(b"2")
    queue.put(b"3")
    assert len(queue) == 3
    first.cancel()
    queue.refuse_all()
    assert not await second and first.cancelled() and len(queue) == 0


async def test_a_queue_is_full_at_its_limit_and_gives_records_in_order_and_in_bounded_batches() -> None:
    queue = RecordQueue(MAX_BATCH)
    queue.open()
    for number in range(MAX_BATCH - 1):
        queue.put(b"%d" % number)
    assert not queue.is_full
    queue.put(b"x")
    assert queue.is_full
    queue.put(b"y", closes="c1")
    batch = queue.take()
    assert [item.body for item in batch] == [b"%d" % number for number in range(MAX_BATCH - 1)] + [b"x"]
    queue.wait(float("inf"))  # there is more, so that it does not wait
    assert queue.take() == [QueuedRecord(b"y", closes="c1")] and queue.take() == []


async def test_the_thread_is_woken_once_however_often_it_is_rung_for() -> None:
    queue = RecordQueue(10)
    queue.open()
    queue.put(b"1")
    assert queue._timer is not None
    for _ in range(3):
        queue.ring()
    assert queue._timer is None, "nobody needs to be reminded of what was rung for"
    queue.wait(float("inf"))
    assert queue._bell.empty() and not queue._is_rung
    queue.wait(0.0)  # that moment is over: it returns without having been rung for
    queue.ring()
    assert queue._bell.qsize() == 1


async def test_what_nobody_waits_for_is_rung_for_after_a_moment_and_what_somebody_waits_for_in_the_next_turns() -> None:
    queue = RecordQueue(10)
    queue.open()
    queue.put(b"1")
    await anyio.to_thread.run_sync(queue.wait, float("inf"))
    assert queue._timer is None and len(queue.take()) == 1
    done = queue.ask(b"2", opens="c1", signs=True)
    await anyio.to_thread.run_sync(queue.wait, float("inf"))
    assert queue.take() == [QueuedRecord(b"2", "c1", "", done, True)] and not queue._is_gathering
    queue.settle([done], True)
    assert await done


async def test_who_asks_alone_is_rung_for_at_once_and_who_asks_beside_others_with_them() -> None:
    queue = RecordQueue(10)
    queue.open()
    alone = queue.ask(b"1")
    assert queue._is_rung and not queue._is_gathering
    beside = [queue.ask(b"2"), queue.ask(b"3")]
    assert queue._is_gathering, "one waits already"
    await anyio.to_thread.run_sync(queue.wait, float("inf"))
    queue.settle([alone], True)
    queue.settle(beside, True)
    assert await alone and await beside[0] and not queue._is_gathering
    queue.ask(b"4")
    assert queue._is_gathering, "two came together last"


async def test_a_thread_that_settles_nothing_is_let_at_the_interpreter_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go = list[int]()
    monkeypatch.setattr(queue_module, "release_gil", lambda: let_go.append(len(let_go)))
    queue = RecordQueue(10)
    queue.open()
    done = queue.ask(b"1")
    await until(lambda: len(let_go) >= 3)
    queue.settle([done], True)
    assert await done
    await until(lambda: not queue._is_watched)
    let_go.clear()
    done = queue.ask(b"2")
    queue.settle([done], True)
    assert await done
    await until(lambda: not queue._is_watched)
    assert not let_go, "what is settled in time needs no help"


async def test_the_end_of_an_opening_is_told_once_well_or_badly() -> None:
    queue = RecordQueue(1)
    queue.open()
    loop = asyncio.get_running_loop()
    well, badly, gone = (loop.create_future() for _ in range(3))
    gone.cancel()
    for future, error in ((well, None), (badly, OSError("x")), (gone, OSError("y"))):
        queue.tell(future, error)
    assert await well is None and gone.cancelled()
    with pytest.raises(OSError, match=r"^x$"):
        await badly


# ---------------------------------------------------------------- the writer when it cannot write


async def test_the_oldest_records_are_carried_over_a_failure_and_exactly_the_others_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_audit(tmp_path, on_failure="allow_and_alarm", queue=4) as audit:
        assert await audit.note_durably("identity", numbered(9))
        writer = audit._writer
        assert isinstance(writer, AuditWriter)
        (tmp_path / "audit").rename(tmp_path / "away")
        for number in range(7):
            audit.note("identity", numbered(number))
            writer.inbox.ring()
            await until(lambda: not len(writer.inbox) and writer._carried)
        await until(lambda: writer.counts.lost == 3)
        assert writer.problem is not None and writer.counts.failures == 1
        (tmp_path / "away").rename(tmp_path / "audit")
        await until(lambda: audit.problem is None)
        assert audit.tally().lost == 3 and audit.tally().records["file", "refused"] == 0
    told = [
        record.get("count") if record.get("act") == "lost" else record.get("address") for record in records(tmp_path)
    ]
    carried = [f"192.0.2.{number}" for number in range(4)]
    assert [one for one in told if one is not None] == ["192.0.2.9", 3, *carried]
    (failed,) = [one for one in caplog.records if one.getMessage() == "the audit log cannot be written"]
    assert vars(failed)["file"] == str(tmp_path / "audit" / "sluice.jsonl") and vars(failed)["error"]
    assert [one for one in caplog.records if one.getMessage() == "the audit log can be written again"]
    assert check_one(tmp_path).ok


async def test_what_did_not_fit_while_the_disk_stood_still_is_said_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving, standing = threading.Event(), threading.Event()
    moving.set()

    def stall(segment: Segment, data: bytes) -> None:
        if not moving.is_set():
            standing.set()
            moving.wait()
        write(segment, data)

    write = Segment.write
    monkeypatch.setattr(Segment, "write", stall)
    async with open_audit(tmp_path, queue=4) as audit:
        writer = audit._writer
        assert isinstance(writer, AuditWriter)
        assert await audit.note_durably("identity", numbered(8))
        moving.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(audit.note_durably, "identity", numbered(9))
            await until(standing.is_set)
            for number in range(7):
                audit.note("identity", numbered(number))
            moving.set()
        assert audit.tally().lost == 3
    said = [
        record.get("count") if record.get("act") == "lost" else record.get("address") for record in records(tmp_path)
    ]
    kept = [f"192.0.2.{number}" for number in (8, 9)]
    assert [one for one in said if one is not None] == [*kept, 3, *(f"192.0.2.{number}" for number in range(4))]
    assert check_one(tmp_path).ok


async def test_what_is_lost_at_the_end_is_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog(settings(tmp_path, on_failure="allow_and_alarm"), b"d" * 32, (SEED,))
    await audit.start()
    assert await audit.note_durably("identity", numbered(0))
    (tmp_path / "audit").rename(tmp_path / "away")
    audit.note("identity", numbered(1))
    audit.note("identity", numbered(2))
    await audit.stop()
    (lost,) = [one for one in caplog.records if one.getMessage() == "audit records are lost at the end"]
    assert vars(lost)["records"] == 2 and lost.levelno == logging.ERROR
    assert audit.tally().lost == 2


async def test_threads_say_what_they_are_for_and_leave_with_the_log(tmp_path: Path) -> None:
    before = threading.enumerate()  # those of other tests are none of ours

    def named() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread not in before}

    sink = SinkSettings("siem", "udp://127.0.0.1:9")
    async with open_audit(tmp_path, sinks=(sink,)) as audit:
        assert named() >= {"audit sluice", "checkpoints sluice", "audit sink siem"}
        await one_call(audit, "c1")
    await until(lambda: not named() & {"audit sluice", "checkpoints sluice", "audit sink siem"})


def test_a_writer_that_is_not_open_says_so(tmp_path: Path) -> None:
    writer = AuditWriter(settings(tmp_path), "sluice", Signer((SEED,)), lambda signed: None)
    assert writer.problem == "the log is not open yet"


async def test_checkpoints_are_signed_after_so_many_records_and_none_without_a_record(tmp_path: Path) -> None:
    async with open_audit(tmp_path, checkpoints=Checkpointing(every=3_600.0, records=5)) as audit:
        for number in range(4):  # an opening, then four calls of two records each
            await one_call(audit, f"c{number}")
            await settled(audit)
        covered = [one["checkpoint"]["seq"] for one in records(tmp_path, "checkpoint")]
        assert covered and all(later - earlier >= 5 for earlier, later in pairwise(covered))
        before = len(covered)
        assert audit._writer is not None
        for _ in range(3):
            audit._writer.inbox.ring()
        await settled(audit)
        assert len(records(tmp_path, "checkpoint")) == before
    found = records(tmp_path)
    assert [one["type"] for one in found[-2:]] == ["admin", "checkpoint"] and found[-2]["act"] == "stop"
    assert found[-1]["checkpoint"]["seq"] == found[-2]["seq"]


async def test_a_segment_after_the_first_names_the_same_key_and_introduces_nobody(tmp_path: Path) -> None:
    async with open_audit(tmp_path, rotate=Rotation(size=3_000)) as audit:
        for number in range(8):
            await one_call(audit, f"c{number}")
    opened = [one for one in records(tmp_path, "admin") if one["act"] == "open"]
    assert len(opened) > 2 and {one["why"] for one in opened[1:]} == {"rotate"} and opened[0]["why"] == "start"
    assert {one["key"]["id"] for one in opened} == {Signer((SEED,)).id}
    assert not any({"previous", "sig", "loss", "torn"} & one.keys() for one in opened)
    found = records(tmp_path)
    for one in opened[1:]:
        assert one["after"] == {"seq": one["seq"] - 1, "hash": one["prev"]}
        assert found[one["seq"] - 2]["type"] == "checkpoint", "a segment ends signed"


# ---------------------------------------------------------------- starting again


def write(path: Path, head: ChainHead, *bodies: bytes, epoch: int = 1) -> ChainHead:
    lines, head = link_all(head, "sluice", epoch, bodies)
    path.write_bytes(b"".join(lines))
    return head


def test_a_start_finds_the_end_of_the_chain_the_key_and_the_calls_that_are_open(tmp_path: Path) -> None:
    path = tmp_path / "sluice.jsonl"
    head = write(
        path, START, body("admin", act="open", key={"id": "k1"}, open={"old": 1, "odd": "x"}), body("intent", "a"),
        body("intent", "b"), body("outcome", "a"), body("outcome", "never"), body("pin"),
        body("admin", act="start", key={"id": "k2"}), body("admin", key="k3", open=[1]), epoch=3,
    )  # fmt: skip
    found = recover(path, "sluice")
    assert (found.head, found.epoch, found.key, found.opened) == (head, 3, "k2", TIME)
    assert found.open == {"old": 1, "b": 3} and found.torn is None
    assert found.file is not None and found.file.path == path and found.file.size == path.stat().st_size
    assert recover(path, "other").head == START and recover(path, "other").torn == Torn(
        path.stat().st_size, sha256(path.read_bytes()).hexdigest())  # fmt: skip
    assert recover(tmp_path / "none.jsonl", "none").torn is None and list_files(tmp_path / "nowhere") == []


@pytest.mark.parametrize("tail", [b"x", b"x\n", b'{"v":1', b"\n" * 3])
def test_what_is_behind_the_chain_is_torn_whole_and_to_the_byte(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "sluice.jsonl"
    head = write(path, START, body("admin", act="open"), body("intent", "a"))
    stray, _ = link(ChainHead(7, head.hash), "sluice", 1, body("intent", "stray"))
    torn = tail + (stray if tail.endswith(b"\n") else b"")
    path.write_bytes(path.read_bytes() + torn)
    found = recover(path, "sluice")
    assert found.head == head and found.open == {"a": 2}
    assert found.torn == Torn(len(torn), sha256(torn).hexdigest())


def test_a_first_line_without_an_end_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "sluice.jsonl"
    write(path, START, body("admin", act="open"))
    whole = path.read_bytes()
    assert look(path).first is not None and look(path).opening["act"] == "open"
    for torn in (whole[:-1], whole[:-1] + b"}"):
        path.write_bytes(torn)
        file = look(path)
        assert file.first is None and file.opening == {} and file.size == len(torn) and file.seq == 0
        assert recover(path, "sluice").torn == Torn(len(torn), sha256(torn).hexdigest())


def test_files_are_by_writer_and_sequence_and_those_that_are_none_come_last(tmp_path: Path) -> None:
    for name, writer, seq in (("b.jsonl", "b", 0), ("a.jsonl", "a", 9), ("a.jsonl.000000000001", "a", 0)):
        (tmp_path / name).write_bytes(link(ChainHead(seq, chain.ZERO), writer, 1, body("admin"))[0])
    (tmp_path / "0.jsonl").write_bytes(b"x\n")
    (tmp_path / "0.txt").write_bytes(b"")
    assert [file.path.name for file in list_files(tmp_path)] == [
        "a.jsonl.000000000001", "a.jsonl", "b.jsonl", "0.jsonl"]  # fmt: skip


# ---------------------------------------------------------------- retention


def test_a_segment_is_old_when_the_next_one_began_before_and_every_sink_has_it(tmp_path: Path) -> None:
    path = tmp_path / "sluice.jsonl"
    heads = [START]
    for number, name in enumerate(("sluice.jsonl.000000000001", "sluice.jsonl.000000000003", "sluice.jsonl")):
        time = TIME.replace("12:30", f"12:3{number}")
        after = {"seq": heads[-1].seq, "hash": heads[-1].hash}
        opened = body("admin", time=time, act="open", after=after)
        heads.append(write(path.with_name(name), heads[-1], opened, body("pin", time=time)))
    _, third, fifth = (file.first for file in list_files(tmp_path))
    assert third is not None and fifth is not None
    first = Old(path.with_name("sluice.jsonl.000000000001"), "sluice", 1, 2, heads[1].hash, third)
    second = Old(path.with_name("sluice.jsonl.000000000003"), "sluice", 3, 4, heads[2].hash, fifth)
    assert first.to_json() == {"file": first.path.name, "first": 1, "last": 2, "hash": heads[1].hash}
    assert find_old(path, "sluice", NOON + 60) == [] == find_old(path, "other", NOON + 999)
    assert find_old(path, "sluice", NOON + 60.1) == [first] == find_old(path, "sluice", NOON + 120)
    assert find_old(path, "sluice", NOON + 120.1) == [first, second] == find_old(path, "sluice", NOON + 999, 4)
    assert find_old(path, "sluice", NOON + 999, 3) == [first] == find_old(path, "sluice", NOON + 999, 2)
    assert find_old(path, "sluice", NOON + 999, 1) == []


def test_a_deleted_segment_leaves_its_checkpoints_behind_those_of_others(tmp_path: Path) -> None:
    path, old = tmp_path / "sluice.jsonl", tmp_path / "sluice.jsonl.000000000001"
    kept = tmp_path / "sluice.checkpoints"
    for number in range(2):
        write(old, START, body("admin", act="open"), body("checkpoint", n=number), body("pin"))
        signed = old.read_bytes().splitlines(keepends=True)[1]
        before = kept.read_bytes() if number else b""
        delete(path, Old(old, "sluice", 1, 3, "h", Link("sluice", 1, 4, "h", "admin", TIME, "")))
        assert not old.exists() and kept.read_bytes() == before + signed
        assert kept.stat().st_mode & 0o777 == 0o600


# ---------------------------------------------------------------- checkpoints outside


def signed(seq: int) -> Checkpoint:
    return Signer((SEED,)).sign("w", 1, seq, "a" * 64, TIME)


def test_of_several_checkpoints_that_wait_the_newest_is_published_though_the_end_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, place = tmp_path / "state", tmp_path / "kept"
    state.mkdir(mode=0o700)
    publisher = Publisher(state, "w", [str(place)])
    for seq in (1, 2, 3):
        publisher.put(signed(seq))
    publisher._queue.put(None)  # the end stands behind them before the thread begins
    publisher.start()
    publisher._thread.join(20)
    assert place.read_bytes() == signed(3).dump() == (state / "w.checkpoint").read_bytes()
    assert publisher.newest == signed(3) and Publisher(state, "w").newest == signed(3)
    idle = Publisher(state, "v")
    idle.start()
    idle.stop()
    idle._thread.join(20)
    assert not idle._thread.is_alive() and not (state / "v.checkpoint").exists() and idle.newest is None


def test_every_place_is_tried_and_named_without_what_an_address_may_hide(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    gone = str(tmp_path / "none" / "kept")
    places = [gone, "http://127.0.0.1:1/c", "http://u:p@127.0.0.1:1/c?a=1?b=2", "https://u:p@127.0.0.1:1/d"]
    publisher = Publisher(state, "w", [*places, str(tmp_path / "kept")])
    publisher.put(signed(4))
    publisher.start()
    publisher.stop()
    publisher._thread.join(20)  # `stop` has less patience than a slow machine needs
    told = [(vars(one)["place"], vars(one)["error"]) for one in caplog.records if "place" in vars(one)]
    assert told == [
        (gone, "FileNotFoundError"), ("http://127.0.0.1:1", "ConnectError"), ("http://127.0.0.1:1", "ConnectError"),
        ("https://127.0.0.1:1", "ConnectError")]  # fmt: skip
    assert (tmp_path / "kept").read_bytes() == signed(4).dump(), "those behind it are tried all the same"


# ---------------------------------------------------------------- sinks


class Collector:
    """A channel that is asked for by its scheme; it fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.batches, self.is_closed = failures, list[list[int]](), False

    def send(self, records: sinks.Records) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("x")
        self.batches.append([place.seq for place, _ in records])

    def close(self) -> None:
        self.is_closed = True


def sink_with(tmp_path: Path, channel: Collector) -> AuditSink:
    sink = AuditSink(SinkSettings("s", "udp://127.0.0.1:9"), tmp_path / "audit", tmp_path / "state", "sluice")
    sink._channel.close()
    sink._channel = channel
    return sink


async def test_what_an_earlier_start_sent_confirms_nothing_and_who_may_destroy_waits(tmp_path: Path) -> None:
    """The log may have lost its end: then it gives the same numbers to other records."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "sluice.s.position").write_text('{"seq": 100}')
    sink = sink_with(tmp_path, Collector())
    assert sink.seq == 100
    confirmation = SinkConfirmation(sink, ("destroy",))
    sink.is_down = True
    assert not await confirmation.has(7) and confirmation.refused == 1
    sink.arrived = 8
    assert await confirmation.has(7)
    assert [confirmation.awaits(one) for one in ("destroy", "", "write", "read")] == [True, True, False, False]


async def test_a_log_that_no_sink_can_confirm_does_not_start(tmp_path: Path) -> None:
    audit = AuditLog(settings(tmp_path, confirm=ConfirmSettings("s", ("write",))), b"d" * 32, (SEED,))
    with pytest.raises(ValueError, match="no audit sink is named s"):
        await audit.start()


async def test_a_sink_sends_bounded_batches_in_order_and_remembers_what_has_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sinks, "BATCH", 4)
    monkeypatch.setattr(sinks, "_PAUSE", (0.01, 0.02))
    async with open_audit(tmp_path) as audit:
        for number in range(5):
            await one_call(audit, f"c{number}")
    count = len(records(tmp_path))
    channel = Collector(failures=3)
    sink = sink_with(tmp_path, channel)
    assert sink.seq == 0 and sink.busy_since is None
    sink.start()
    await until(lambda: sink.seq == count and sink.busy_since is None)
    sink.stop()
    assert [seq for batch in channel.batches for seq in batch] == list(range(1, count + 1)) and channel.is_closed
    assert all(len(batch) <= 4 for batch in channel.batches) and len(channel.batches[0]) == 4
    assert (sink.sent, sink.failures, sink.seq) == (count, 3, count)
    told = [(one.getMessage(), vars(one)["sink"], vars(one)["error"]) for one in caplog.records if "sink" in vars(one)]
    assert told == [("an audit sink is down", "s", "ConnectionError")] * 3
    position = tmp_path / "state" / "sluice.s.position"
    assert json.loads(position.read_bytes()) == {"seq": count}
    assert sink_with(tmp_path, channel).seq == count
    for broken in (b"", b"[]", b'{"seq":"7"}', b"{}"):
        position.write_bytes(broken)
        assert sink_with(tmp_path, channel).seq == 0, "rather twice than never"


async def test_a_sink_that_waits_for_its_place_is_behind_since_its_first_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_PAUSE", (0.01, 0.02))
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "c1")
        await settled(audit)
        channel = Collector(failures=10**6)
        sink = sink_with(tmp_path, channel)
        audit._sinks.append(sink)
        sink.start()
        await until(lambda: sink.failures >= 2)
        since = sink.busy_since
        lag = audit.tally().lag
        assert since is not None and lag["s"] > 0
        await until(lambda: audit.tally().lag["file"] == 0)  # but for the moments in which it signs
        await until(lambda: sink.failures >= 4)
        assert sink.busy_since == since and audit.tally().lag["s"] > lag["s"], "it is behind since the first one"
        assert audit.tally().records["s", "ok"] == 0 and audit.tally().records["s", "failed"] >= 4
        channel.failures = 0
        await until(lambda: audit.tally().records["s", "ok"] > 0 and audit.tally().lag["s"] == 0)


async def test_a_collector_that_takes_a_batch_and_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "TIMEOUT", 0.05)
    monkeypatch.setattr(sinks, "_PAUSE", (0.01, 0.02))
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        sink = SinkSettings("siem", f"http://127.0.0.1:{silent.getsockname()[1]}/in")
        async with open_audit(tmp_path, sinks=(sink,)) as audit:
            await one_call(audit, "c1")
            await until(lambda: audit.tally().records["siem", "failed"] >= 2)
            assert audit.tally().records["siem", "ok"] == 0


# ---------------------------------------------------------------- sums, words, bounds


async def test_who_is_not_let_in_is_bounded_by_address_and_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MAX_ADDRESSES", 2)
    monkeypatch.setattr(audit_log, "MAX_REASONS", 2)
    notes: list[Any] = []
    failures = IdentityFailures(notes.append, window=0.01)
    for address in ("a", "b", "c", "d", "a"):
        failures.add(address, "r1")
    for reason in ("r2", "r3", "r2", "r1", "other"):
        failures.add("a", reason)
    await until(lambda: notes)  # the window ends by itself
    assert notes == [
        {"address": "a", "count": 7, "reasons": {"r1": 3, "r2": 2, "other": 2}, "window": 0.01},
        {"address": "b", "count": 1, "reasons": {"r1": 1}, "window": 0.01},
        {"address": "other", "count": 2, "reasons": {"r1": 2}, "window": 0.01},
    ]
    failures.add("e", "r1")
    await until(lambda: len(notes) == 4)
    assert notes[3] == {"address": "e", "count": 1, "reasons": {"r1": 1}, "window": 0.01}, "and the next one begins"


def test_durations_of_exports_are_exact_however_long_a_call_took() -> None:
    made = {"v": 1, "writer": "w", "epoch": 2, "seq": 3, "prev": "p", "time": TIME, "type": "outcome"}
    assert export.ocsf({**made, "seconds": 86_400.25})["duration"] == 86_400_250
    assert export.ecs({**made, "seconds": 86_400.25})["event"]["duration"] == 86_400_250_000_000


def test_a_decision_that_is_none_is_no_word_of_an_export() -> None:
    made = {"v": 1, "writer": "w", "epoch": 2, "seq": 3, "prev": "p", "time": TIME, "type": "outcome", "method": "x"}
    for odd in ("allow", None, ["deny"], 1):
        document, event = export.ecs({**made, "decision": odd}), export.ocsf({**made, "decision": odd})
        assert document["event"]["type"] == ["access"] and "rule" not in document
        assert not {"action", "action_id", "disposition", "authorizations"} & event.keys()


def test_a_tail_is_what_is_behind_the_newest_signature() -> None:
    for first, last, covered, tail in ((1, 9, 9, 0), (1, 9, 8, 0), (1, 9, 7, 1), (1, 9, 0, 9), (5, 9, 0, 5),
                                       (5, 9, 4, 4), (5, 9, 5, 3), (0, 0, 0, 0)):  # fmt: skip
        assert VerifyReport("w", first=first, last=last, signed=covered).tail == tail, (first, last, covered)


def test_a_name_of_which_only_what_qualifies_it_is_there_is_no_secrets() -> None:
    for name in ("", "_", "old", "prod_2", "value", "12", "hash", "primary-old"):
        assert not is_secret_name(name), name
    for name in ("password_old", "otp", "tokenProd", "passcode", "secret-primary-backup"):
        assert is_secret_name(name), name
    assert [is_word_for_secret(word) for word in ("PIN", "Passcode", "OTP", "Passwort", "pins", "word")] == [
        True, True, True, True, False, False]  # fmt: skip
    assert (last_word("parameter_Value"), last_word("__"), last_word("x")) == ("value", "", "x")


def test_behind_a_word_for_a_password_in_another_script_a_word_of_prose_stays_and_a_mixed_one_goes() -> None:
    redactor = Redactor(b"k" * 32)
    for text, value in (("密码是 hunter2x 好", "hunter2x"), ("你的密码是 20261122 好", "20261122")):
        masked = redactor.arguments({"text": text}, "t")["text"]
        assert masked == text.replace(value, f"[redacted:{redactor.short_digest(value)}]")
    for text in ("密码是 hello there", "密码是 required"):
        assert redactor.arguments({"text": text}, "t") == {"text": text}
