"""Reading: following over rotations, searching, exporting, who approved what, sinks and retention."""

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from audit_kit import (
    CLIENT,
    DIGEST_KEY,
    SEED,
    TARGET,
    check,
    check_one,
    copy_log,
    fits_ocsf,
    make_call,
    one_call,
    open_audit,
    records,
    segments,
    settled,
)

from sluicegate.audit import chain, export, newest, recover
from sluicegate.audit.chain import ChainHead, link_all
from sluicegate.audit.checkpoint import Signer, read_publics
from sluicegate.audit.follow import Follower
from sluicegate.audit.log import AuditLog
from sluicegate.audit.read import Filter, LogTail, approvals, search
from sluicegate.audit.settings import AuditSettings, Checkpointing, Rotation, SinkSettings
from sluicegate.audit.sinks import open_channel
from sluicegate.audit.verify import read_published, verify
from sluicegate.protocol.model import Failure, refuse

SMALL = Rotation(size=6_000)


async def until(condition: Callable[[], bool]) -> None:
    """What another thread brings about can only be looked for."""
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def fill(directory: Path) -> None:
    async with open_audit(directory, rotate=SMALL) as audit:
        for number in range(10):
            await one_call(audit, f"c{number}")
        other = replace(CLIENT, principal="key:other")
        await one_call(audit, "o1", Failure(-32603, "x"), client=other)
        await one_call(
            audit, "o2", refuse("tools/call", "timeout", "x"), target=replace(TARGET, own="delete", server="db")
        )
        audit.note(
            "approval", {"approval": {"id": "a1", "state": "pending", "principal": "key:ci-bot", "profile": "two"}}
        )
        for who in ("key:lead", "key:boss"):
            audit.note("approval", {"approval": {"id": "a1", "state": "approved", "approver": who, "comment": "fine"}})
        call = make_call("approved")
        await audit.intent(call, {"id": "a1", "approver": "key:boss"})
        audit.outcome(call, Failure(-32603, "x"), 0.1)


async def test_search_finds_by_everything(tmp_path: Path) -> None:
    await fill(tmp_path)
    assert len(segments(tmp_path)) > 2

    def calls(**wanted: str) -> list[str]:
        return [record["call"] for record in search(tmp_path / "audit", Filter(type="outcome", **wanted))]

    assert calls(principal="key:other") == ["o1"]
    assert calls(outcome="timeout") == ["o2"]
    assert calls(tool="db/*") == calls(tool="delete") == ["o2"]
    assert len(calls(tool=TARGET.public)) == 13
    assert calls(call="c3") == ["c3"]
    middle = next(search(tmp_path / "audit", Filter(call="c5")))["time"]
    assert calls(since=middle)[0] == "c5" and calls(until=middle)[-1] == "c4"
    everything = list(search(tmp_path / "audit", Filter()))
    assert [record["seq"] for record in everything] == list(range(1, len(everything) + 1))


async def test_who_approved_what_is_told_in_one_row(tmp_path: Path) -> None:
    await fill(tmp_path)
    (row,) = approvals(search(tmp_path / "audit", Filter()))
    assert (row["id"], row["profile"], row["principal"], row["tool"]) == ("a1", "two", "key:ci-bot", "create_issue")
    assert [decision["approver"] for decision in row["decisions"]] == ["key:lead", "key:boss"]
    assert row["outcome"] == "protocol_error"


async def test_a_tail_follows_over_rotations_and_restarts(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "audit", Filter(type="outcome"))
    seen: list[str] = []
    for round in range(3):
        async with open_audit(tmp_path, rotate=SMALL) as audit:
            for number in range(12):
                await one_call(audit, f"{round}-{number}")
                seen += [record["call"] for record in tail.read()]
    seen += [record["call"] for record in tail.read()]
    tail.close()
    assert seen == [f"{round}-{number}" for round in range(3) for number in range(12)]


async def test_what_a_failure_left_behind_is_not_read(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "c1")
        path = tmp_path / "audit" / "sluice.jsonl"
        await until(lambda: b'"type":"outcome"' in path.read_bytes())
        forged = path.read_bytes().splitlines()[-1].replace(b'"seq":3', b'"seq":4').replace(b"c1", b"forged")
        with path.open("ab") as file:
            file.write(forged + b"\n")
        assert not await one_call(audit, "refused")
        await until(lambda: audit.problem is None)
        await one_call(audit, "c2")
    assert {record.get("call") for record in search(tmp_path / "audit", Filter(type="intent"))} == {"c1", "c2"}
    assert "forged" not in {record.get("call") for record in search(tmp_path / "audit", Filter())}
    assert check_one(tmp_path).ok


async def test_exported_events_fit_the_published_ocsf_schema(tmp_path: Path) -> None:
    await fill(tmp_path)
    async with open_audit(tmp_path, transport="stdio") as audit:
        for method in ("tools/list", "resources/read", "server/discover"):
            await one_call(audit, method, method=method, target=None)
        audit.identity_failure("192.0.2.1", "bad key")
    found = records(tmp_path)
    for record in found:
        event = export.ocsf(record)
        fits_ocsf(event)
        json.dumps(event)
    denied = export.ocsf(next(r for r in found if r.get("reason") == "timeout"))
    assert (denied["status"], denied["status_detail"], denied["class_uid"]) == ("Failure", "timeout", 6003)
    assert denied["dst_endpoint"] == {"svc_name": "db"} and denied["resources"][0]["name"] == "delete"


async def test_exported_documents_have_ecs_fields(tmp_path: Path) -> None:
    await fill(tmp_path)
    for record in records(tmp_path):
        document = export.ecs(record)
        assert document["@timestamp"] == record["time"] and document["event"]["sequence"] == record["seq"]
        assert document["event"]["outcome"] in ("success", "failure", "unknown")
    call = export.ecs(next(r for r in records(tmp_path, "outcome") if r["call"] == "c1"))
    assert call["user"]["name"] == "key:ci-bot" and call["rule"]["id"] == "policy.csv:17"
    assert call["event"]["type"] == ["access", "allowed"] and call["event"]["duration"] == 250_000_000


# ---------------------------------------------------------------- sinks


class Collector(BaseHTTPRequestHandler):
    got: list[str]
    status = 200

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"])).decode()
        assert self.headers["authorization"] == "Bearer sink-secret"
        assert self.headers["content-type"] == "application/x-ndjson"
        if self.server.status == 200:  # type: ignore[attr-defined]
            self.server.got += [json.loads(line)["seq"] for line in data.splitlines()]  # type: ignore[attr-defined]
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def collector() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.got, server.status, server.daemon_threads = [], 200, True  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield server
        server.shutdown()


async def test_a_sink_that_is_down_loses_nothing_and_slows_nobody(tmp_path: Path) -> None:
    with collector() as server:
        sink = SinkSettings(
            "siem", f"http://127.0.0.1:{server.server_port}/in", {"authorization": "Bearer sink-secret"}
        )
        server.status = 503
        async with open_audit(tmp_path, sinks=(sink,), rotate=SMALL) as audit:
            for number in range(20):
                assert await one_call(audit, f"c{number}")
            await until(lambda: audit.tally().records["siem", "failed"] > 0)
            await until(lambda: audit.tally().lag["file"] == 0)  # the last outcome is written behind its call
            assert audit.tally().lag["siem"] > 0
        server.status = 200
        async with open_audit(tmp_path, sinks=(sink,), rotate=SMALL) as audit:
            await one_call(audit, "last")
            await settled(audit)
            intent = max(record["seq"] for record in records(tmp_path, "intent"))
            await until(lambda: intent in server.got)
        assert server.got[:intent] == list(range(1, intent + 1))
        async with open_audit(tmp_path, sinks=(sink,), rotate=SMALL) as audit:
            await one_call(audit, "again")
            await settled(audit)
            last = max(record["seq"] for record in records(tmp_path, "intent"))
            await until(lambda: last in server.got)
        assert server.got[:last] == list(range(1, last + 1)), "what has arrived is not sent again"
        text = "".join(path.read_text() for path in (tmp_path / "state").rglob("*") if path.is_file())
        assert "sink-secret" not in text and "sink-secret" not in repr(sink)


async def test_a_syslog_server_gets_every_record_framed(tmp_path: Path) -> None:
    received = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with server.accept()[0] as connection:
                while data := connection.recv(65_536):
                    received.extend(data)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        sink = SinkSettings("syslog", f"tcp://127.0.0.1:{server.getsockname()[1]}")
        async with open_audit(tmp_path, sinks=(sink,)) as audit:
            for number in range(3):
                await one_call(audit, f"c{number}")
            await until(lambda: b'"call":"c2"' in received)
        thread.join(60)
    messages, rest = [], bytes(received)
    while rest:
        size, _, rest = rest.partition(b" ")
        messages.append(rest[: int(size)])
        rest = rest[int(size) :]
    assert messages[0].startswith(b"<109>1 2") and b" sluice sluice admin - {" in messages[0]
    assert messages[1].startswith(b"<110>1 ") and json.loads(messages[1].partition(b" - ")[2])["call"] == "c0"


def test_a_syslog_server_that_talks_is_alive_and_one_that_has_closed_is_noticed_at_once() -> None:
    place = chain.Link("w", 1, 2, "p", "pin", "2026-10-01T12:30:00Z", "")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        channel = open_channel(SinkSettings("s", f"tcp://127.0.0.1:{server.getsockname()[1]}"))
        channel.send([(place, b"{}")])
        first, _ = server.accept()
        with first:
            first.sendall(b"welcome")
            for _ in range(3):
                channel.send([(place, b"{}")])
            first.settimeout(30)
            while first.recv(65_536)[-2:] != b"{}":
                pass
        with pytest.raises(OSError, match=r"closed|reset|pipe|peer"):
            channel.send([(place, b"{}")])
        channel.send([(place, b"{1}")])
        second, _ = server.accept()
        with second:
            second.settimeout(30)
            assert second.recv(65_536).endswith(b" - {1}")
        channel.close()


async def test_a_tail_that_skips_nothing_begins_at_the_beginning(tmp_path: Path) -> None:
    await fill(tmp_path)
    tail = LogTail(tmp_path / "audit", Filter())
    found = tail.read()
    assert tail.read() == []
    tail.close()
    assert sorted(record["seq"] for record in found) == list(range(1, len(records(tmp_path)) + 1))
    assert [record["time"] for record in found] == sorted(record["time"] for record in found)


async def test_a_datagram_sink_sends_one_record_each(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(60)
        async with open_audit(
            tmp_path, sinks=(SinkSettings("s", f"udp://127.0.0.1:{server.getsockname()[1]}"),)
        ) as audit:
            await one_call(audit, "c1")
            first = await anyio.to_thread.run_sync(server.recv, 65_536)
    assert b'"act":"open"' in first


@pytest.mark.parametrize("to", ["", "ftp://x", "tcp://", "file:///etc/passwd", "localhost:514"])
def test_a_place_that_no_sink_speaks_is_refused(to: str) -> None:
    with pytest.raises(ValueError, match="sink"):
        open_channel(SinkSettings("x", to))


async def test_checkpoints_are_posted_outside(tmp_path: Path) -> None:
    got: list[Any] = []

    class Witness(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Witness) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        place = f"http://127.0.0.1:{server.server_port}/"
        async with open_audit(tmp_path, checkpoints=Checkpointing(to=(place, "/nowhere/at/all"))) as audit:
            await one_call(audit, "c1")
        server.shutdown()
    assert got[-1]["seq"] == records(tmp_path)[-1]["seq"] - 1


# ---------------------------------------------------------------- retention


async def test_old_segments_go_when_the_log_says_so(tmp_path: Path) -> None:
    async with open_audit(tmp_path, rotate=SMALL, retain=0.0) as audit:
        for number in range(20):
            await one_call(audit, f"c{number}")
        await settled(audit)
        before = segments(tmp_path)
        await audit.delete_old()
        assert not set(before[:-1]) & set(segments(tmp_path)) and len(before) > 3
        await one_call(audit, "after")
    report = check_one(tmp_path)
    assert report.ok, report.findings
    assert report.first > 1 and "retention" in report.notes[0]
    kept = (tmp_path / "audit" / "sluice.checkpoints").read_bytes().splitlines()
    assert len(kept) >= len(before) - 1 and all(json.loads(line)["type"] == "checkpoint" for line in kept)
    said = [record for record in records(tmp_path, "admin") if record["act"] == "retain"]
    assert [record["file"] for record in said][: len(before) - 1] == [path.name for path in before[:-1]]


async def test_a_beginning_that_nobody_deleted_is_missed(tmp_path: Path) -> None:
    async with open_audit(tmp_path, rotate=SMALL) as audit:
        for number in range(20):
            await one_call(audit, f"c{number}")
    segments(tmp_path)[0].unlink()
    report = check_one(tmp_path)
    assert "missing" in report.findings[0].text and "retention" in report.findings[0].text


async def test_a_retention_that_nobody_signed_is_not_believed(tmp_path: Path) -> None:
    """Whoever may write the files can delete some and add a line that says it was retention."""
    async with open_audit(tmp_path, rotate=SMALL) as audit:
        for number in range(20):
            await one_call(audit, f"c{number}")
    first, second, *_, newest = segments(tmp_path)
    after = json.loads(second.read_bytes().splitlines()[0])["after"]
    said = {"act": "retain", "file": first.name, "first": 1, "last": after["seq"], "hash": after["hash"]}
    body = f'"type":"admin","time":"2026-10-01T00:00:00.000000000Z",{json.dumps(said)[1:-1]}'.encode()
    last = newest.read_bytes().splitlines()[-1]
    line, _ = chain.link(ChainHead(json.loads(last)["seq"], chain.digest(last)), "sluice", 1, body)
    first.unlink()
    with newest.open("ab") as file:
        file.write(line)
    (finding,) = check_one(tmp_path).findings
    assert "which no checkpoint covers" in finding.text and finding.seq == 1


async def test_what_is_deleted_is_signed_before(tmp_path: Path) -> None:
    async with open_audit(tmp_path, rotate=SMALL, retain=0.0, checkpoints=Checkpointing(3_600, 100_000)) as audit:
        for number in range(20):
            await one_call(audit, f"c{number}")
        await audit.delete_old()
        await settled(audit)
        report = check_one(tmp_path)
    assert report.ok and "retention" in report.notes[0], "also while it runs"


async def test_what_a_sink_has_not_got_is_kept(tmp_path: Path) -> None:
    sink = SinkSettings("down", "http://127.0.0.1:9/")
    async with open_audit(tmp_path, rotate=SMALL, retain=0.0, sinks=(sink,)) as audit:
        for number in range(20):
            await one_call(audit, f"c{number}")
        await settled(audit)
        before = segments(tmp_path)
        await audit.delete_old()
        assert segments(tmp_path) == before


async def test_what_is_young_is_kept(tmp_path: Path) -> None:
    async with open_audit(tmp_path, rotate=SMALL) as audit:
        for number in range(20):
            await one_call(audit, f"c{number}")
        await settled(audit)
        before = segments(tmp_path)
        await audit.delete_old()
        assert segments(tmp_path) == before


@pytest.mark.parametrize("tail", [b"\xff\xfe\n\n", b"{}\n", b'{"v":1,"wri'])
async def test_retention_goes_on_after_a_crash_before_a_segments_first_checkpoint(tmp_path: Path, tail: bytes) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    async with open_audit(before) as audit:
        await one_call(audit, "c1")
    with segments(before)[0].open("ab") as file:
        file.write(tail)
    async with open_audit(before, checkpoints=Checkpointing(3_600, 100_000)) as audit:
        await one_call(audit, "c2")
        copy_log(before, after)  # as a crash leaves it
    first, second = segments(after)
    assert b'"checkpoint"' in first.read_bytes() and b'"type":"checkpoint"' not in second.read_bytes()
    with second.open("ab") as file:
        file.write(tail)
    async with open_audit(after, retain=0.0, checkpoints=Checkpointing(3_600, 2)) as audit:
        await one_call(audit, "c3")
        await settled(audit)
        await audit.delete_old()
        assert [path.name for path in segments(after)] == ["sluice.jsonl"]
    assert check_one(after).ok


@pytest.mark.parametrize("is_put_in", [True, False])
async def test_nobody_who_writes_into_the_folder_makes_young_segments_old(tmp_path: Path, is_put_in: bool) -> None:
    """The next segment says when one ended: somebody puts in one that says so earlier, or changes it for an hour."""
    async with open_audit(tmp_path, rotate=SMALL) as audit:
        for number in range(20):
            await one_call(audit, f"c{number}")
        await settled(audit)
        first, second, *_ = before = segments(tmp_path)
        opening, rest = second.read_bytes().split(b"\n", 1)
        forged = re.sub(rb'"time":"2[0-9]{3}', b'"time":"2001', opening, count=1)
        if is_put_in:
            forged = re.sub(rb'"seq":[0-9]+', b'"seq":2', forged, count=1)
            second.with_name("sluice.jsonl.x").write_bytes(forged + b"\n")
        else:
            second.write_bytes(forged + b"\n" + rest)
        await audit.delete_old()
        second.with_name("sluice.jsonl.x").unlink(missing_ok=True)
        second.write_bytes(opening + b"\n" + rest)
        assert first in segments(tmp_path) and segments(tmp_path) == before
    assert check_one(tmp_path).ok


# ---------------------------------------------------------------- torn ends


@pytest.mark.parametrize("tail", [b'{"v":1,"writer":"sluice","epo', b"\0" * 4_096, b"\xff\xfe\n\n", b"{}\n"])
async def test_a_torn_end_is_repaired_and_not_hidden(tmp_path: Path, tail: bytes) -> None:
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "c1")
    path = tmp_path / "audit" / "sluice.jsonl"
    with path.open("ab") as file:
        file.write(tail)
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "c2")
    first, second = segments(tmp_path)
    assert first.read_bytes().endswith(tail)
    assert json.loads(second.read_bytes().splitlines()[0])["torn"]["bytes"] == len(tail)
    report = check_one(tmp_path)
    assert report.ok and any(f"{len(tail)} bytes" in note for note in report.notes)


async def test_a_start_that_was_cut_is_told(tmp_path: Path) -> None:
    async with open_audit(tmp_path, rotate=SMALL) as audit:
        for number in range(10):
            await one_call(audit, f"c{number}")
    path = tmp_path / "audit" / "sluice.jsonl"
    os.rename(path, path.with_name("sluice.jsonl.999999999999"))
    path.write_bytes(b'{"v":1,"wri')
    path.chmod(0o600)
    async with open_audit(tmp_path, rotate=SMALL) as audit:
        assert await one_call(audit, "after")
    keys = Signer([SEED]).publics
    reports = verify([p for p in (tmp_path / "audit").iterdir() if ".jsonl" in p.name], keys)
    assert all(report.ok for report in reports), reports
    assert "cut while it was begun" in reports[-1].notes[0]


async def test_a_log_whose_very_first_record_was_cut_is_begun_anew_and_says_what_was_there(tmp_path: Path) -> None:
    path, cut = tmp_path / "audit" / "sluice.jsonl", b'{"v":1,"wri'
    path.parent.mkdir(mode=0o700)
    path.write_bytes(cut)
    path.chmod(0o600)
    async with open_audit(tmp_path) as audit:
        assert await one_call(audit, "c1")
    opening = records(tmp_path)[0]
    assert (opening["act"], opening["why"], opening["seq"]) == ("open", "torn", 1)
    assert opening["torn"] == {"bytes": len(cut), "sha256": sha256(cut).hexdigest()}
    reports = check(tmp_path)
    assert [report.writer for report in reports] == ["sluice", ""] and all(report.ok for report in reports), reports


async def test_each_of_two_writers_goes_on_with_its_own_chain(tmp_path: Path) -> None:
    for round in (1, 2):
        async with open_audit(tmp_path) as one, open_audit(tmp_path) as two:
            assert await one_call(one, f"one-{round}")
            assert await one_call(two, f"two-{round}")
    reports = check(tmp_path)
    assert [report.writer for report in reports] == ["sluice", "sluice-2"]
    assert all(report.ok and not report.notes for report in reports), reports
    for writer, call in (("sluice", "one"), ("sluice-2", "two")):
        own = [record for record in records(tmp_path) if record["writer"] == writer]
        assert [record["seq"] for record in own] == list(range(1, len(own) + 1))
        assert [record["call"] for record in own if record["type"] == "intent"] == [f"{call}-1", f"{call}-2"]
        assert not [record for record in own if "torn" in record or "loss" in record]


async def crashed(directory: Path, to: Path) -> None:
    """A log as a crash leaves it: of three calls, the second alone has ended."""
    async with open_audit(directory) as audit:
        await audit.intent(make_call("first"))
        await one_call(audit, "ended")
        await settled(audit)
        assert await audit.intent(make_call("last"))
        copy_log(directory, to)


async def test_calls_that_a_crash_interrupted_are_named_once_with_their_intents(tmp_path: Path) -> None:
    await crashed(tmp_path / "run", tmp_path / "left")
    for _ in range(2):
        async with open_audit(tmp_path / "left"):
            pass
    asked = {record["call"]: record["seq"] for record in records(tmp_path / "left", "intent")}
    told = [
        (record["call"], record["intent"], record["reason"])
        for record in records(tmp_path / "left", "outcome")
        if record["outcome"] == "unknown"
    ]
    assert told == [("first", asked["first"], "interrupted"), ("last", asked["last"], "interrupted")]
    assert check_one(tmp_path / "left").ok


async def test_each_segment_begins_with_the_calls_that_are_open_and_where_their_intents_are(tmp_path: Path) -> None:
    async with open_audit(tmp_path, rotate=SMALL) as audit:
        for number in range(12):
            await one_call(audit, f"c{number}")
            if number in (1, 4):
                assert await audit.intent(make_call(f"open{number}"))
    asked = {record["call"]: record["seq"] for record in records(tmp_path, "intent")}
    openings = [record for record in records(tmp_path, "admin") if record["act"] == "open"]
    assert len(openings) > 2 and openings[0]["open"] == {}
    for opening in openings[1:]:
        before = {id: seq for id, seq in asked.items() if id.startswith("open") and seq < opening["seq"]}
        assert {id: seq for id, seq in opening["open"].items() if id.startswith("open")} == before
    assert set(openings[-1]["open"]) >= {"open1", "open4"}


async def test_a_log_that_was_put_aside_and_not_begun_anew_goes_on(tmp_path: Path) -> None:
    """A crash between the two steps of a rotation: the full segment has its name, the next one is not there."""
    await crashed(tmp_path / "run", tmp_path / "left")
    path = tmp_path / "left" / "audit" / "sluice.jsonl"
    path.rename(path.with_name("sluice.jsonl.000000000001"))
    async with open_audit(tmp_path / "left") as audit:
        assert await one_call(audit, "after")
    opening = json.loads(path.read_bytes().splitlines()[0])
    assert opening["why"] == "start" and not {"torn", "loss"} & opening.keys()
    interrupted = [record["call"] for record in records(tmp_path / "left", "outcome") if record["outcome"] == "unknown"]
    assert interrupted == ["first", "last"] == list(opening["open"])
    found = records(tmp_path / "left")
    assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
    report = check_one(tmp_path / "left")
    assert report.ok and report.notes == ["records 1 to 5 were not signed by the run that they are of"], report


async def test_a_log_that_was_cut_before_a_start_is_told(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        for number in range(5):
            await one_call(audit, f"c{number}")
    path = tmp_path / "audit" / "sluice.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "after")
    for kept in (True, False):
        report = check_one(tmp_path, kept=kept)
        assert report.findings and report.findings[0].seq == 5, report
    seqs = [record["seq"] for record in records(tmp_path)]
    assert seqs == sorted(set(seqs)) and seqs[4] > 11
    (loss,) = [record["loss"] for record in records(tmp_path, "admin") if "loss" in record]
    assert loss == {"reason": "records that were signed are gone", "durable": 4, "last": seqs[4] - 1, "signed": True}


async def test_logs_in_two_folders_share_a_state_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As configs in two folders do that name none: the writers have the same name."""
    logs = [AuditSettings(tmp_path / folder / "audit" / "sluice.jsonl", tmp_path / "state") for folder in "ab"]
    for settings, calls in (*zip(logs, (9, 1), strict=True), *zip(logs, (1, 1), strict=True)):
        settings.path.parent.parent.mkdir(exist_ok=True)
        audit = AuditLog(settings, DIGEST_KEY, (SEED,))
        await audit.start()
        for number in range(calls):
            await one_call(audit, f"c{number}")
        await audit.stop()
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
    keys = read_publics((tmp_path / "state" / "sign.pub").read_text())
    for settings in logs:
        folder, published = settings.path.parent.parent, list(read_published(settings))
        assert not [record for record in records(folder, "admin") if "loss" in record]
        (report,) = verify(segments(folder), keys, published)
        assert report.ok and len(published) == 1


def test_a_log_is_known_by_its_folder_whichever_way_leads_there_but_for_a_link_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "real" / "audit").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "current").symlink_to(tmp_path / "real")

    def own(folder: Path) -> Path:
        return AuditSettings(folder / "audit" / "sluice.jsonl", tmp_path / "state").own_state

    known = own(tmp_path / "real")
    assert known == own(tmp_path / "current") == own(tmp_path / "other" / ".." / "real")
    (tmp_path / "real" / "audit").rmdir()
    (tmp_path / "real" / "audit").symlink_to(tmp_path / "other")
    assert own(tmp_path / "real") == known
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to(tmp_path / "other")
    assert own(tmp_path / "current") != known, "another log"


async def test_tampering_before_a_start_is_not_taken_for_a_torn_end(tmp_path: Path) -> None:
    async with open_audit(tmp_path, checkpoints=Checkpointing(records=4)) as audit:
        for number in range(10):
            await one_call(audit, f"c{number}")
    path = tmp_path / "audit" / "sluice.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"call":"c2"', b'"call":"cX"', 1))
    next((tmp_path / "state").glob("*/sluice.checkpoint")).unlink()
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "after")
    assert "they were changed" in check_one(tmp_path).findings[0].text


async def test_a_follower_starts_where_it_is_told(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        for number in range(50):
            await one_call(audit, f"c{number}")
    follower = Follower(tmp_path / "audit", "sluice", seq=40)
    assert [place.seq for place, _ in follower.read(3)] == [41, 42, 43]
    follower.close()


@pytest.mark.parametrize("is_first", [True, False], ids=["after the second look", "between the looks"])
async def test_a_follower_has_what_is_written_while_the_log_begins_a_new_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Records between its last look at a file and the file's end were sent to no sink."""
    async with open_audit(tmp_path, rotate=SMALL) as audit:
        for number in range(20):
            await one_call(audit, f"c{number}")
    whole = {path.name: path.read_bytes() for path in segments(tmp_path)}
    assert len(whole) > 2
    folder, (name, first) = tmp_path / "later", next(iter(whole.items()))
    folder.mkdir()
    live, cut = folder / "sluice.jsonl", first.index(b"\n", len(first) // 2) + 1
    live.write_bytes(first[:cut])
    follower = Follower(folder, "sluice")
    found = follower.read()
    is_current, next_line = follower._is_current, follower._next

    def at_the_end(look: Callable[[], Any]) -> Any:
        seen = look()
        if (seen is None or seen is True) and not (folder / name).exists():
            live.write_bytes(first)
            live.rename(folder / name)
            for other, data in list(whole.items())[1:]:
                (folder / other).write_bytes(data)
        return seen

    monkeypatch.setattr(follower, "_is_current", lambda: at_the_end(is_current) if is_first else is_current())
    monkeypatch.setattr(follower, "_next", lambda: next_line() if is_first else at_the_end(next_line))
    found += follower.read()
    found += follower.read()
    follower.close()
    assert [place.seq for place, _ in found] == list(range(1, len(found) + 1))
    assert len(found) == sum(data.count(b"\n") for data in whole.values())


@pytest.mark.parametrize("wrong", [
    {"seconds": "x"}, {"seconds": 1e300}, {"seconds": -1}, {"seconds": None},
    {"time": "9999-99-99T99:99:99.000000000Z"},
])  # fmt: skip
def test_a_line_of_a_wrong_shape_stops_no_reader(wrong: dict[str, Any], tmp_path: Path) -> None:
    """Whoever may write the files can add one, which `verify` calls bad."""
    good = {"type": "outcome", "time": "2026-01-02T03:04:05.000000000Z", "call": "c1", "seconds": 0.5}
    bodies = [json.dumps(good | more, separators=(",", ":")).encode()[1:-1] for more in ({}, wrong, {"call": "c3"})]
    lines, _ = link_all(ChainHead(0, "0" * 64), "sluice", 1, bodies)
    (tmp_path / "sluice.jsonl").write_bytes(b"".join(lines))
    assert [record["call"] for record in search(tmp_path, Filter())] == ["c1", "c3"]
    with closing(LogTail(tmp_path, Filter())) as tail:
        assert [record["call"] for record in tail.read()] == ["c1", "c3"]
    for change in (export.ocsf, export.ecs):
        assert len([change(record) for record in search(tmp_path, Filter())]) == 2


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_listing_while_segments_are_rotated_misses_none(
    has_begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the live segment stands for another one by the time that it is opened, or for none."""
    live, look = tmp_path / "sluice.jsonl", recover.look

    def begin(seq: int) -> None:
        body = b'"type":"admin","time":"2026-01-02T03:04:05.000000000Z"'
        made, _ = link_all(ChainHead(seq - 1, "0" * 64), "sluice", 1, [body])
        live.write_bytes(b"".join(made))

    def look_after_rotation(path: Path) -> recover.File:
        monkeypatch.setattr(recover, "look", look)
        live.rename(tmp_path / f"sluice.jsonl.{1:012d}")
        if has_begun:
            begin(2)
        return look(path)

    begin(1)
    monkeypatch.setattr(recover, "look", look_after_rotation)
    assert [file.seq for file in recover.list_files(tmp_path)] == ([1, 2] if has_begun else [1])


async def test_what_is_rotated_or_deleted_after_the_listing_is_read_under_its_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proof or a search of a large log takes minutes, and the log goes on meanwhile."""
    async with open_audit(tmp_path, rotate=SMALL) as audit:
        for number in range(20):
            await one_call(audit, f"c{number}")
        await settled(audit)
        listed = recover.list_files(tmp_path / "audit")
        backwards = newest.Backwards(tmp_path / "audit")
        records_before = listed[-1].seq
        for number in range(20, 40):
            await one_call(audit, f"c{number}")
        await settled(audit)
        assert recover.look(listed[-1].path).first != listed[-1].first, "the name is of another segment now"
        keys = read_publics((tmp_path / "state" / "sign.pub").read_text())
        monkeypatch.setattr("sluicegate.audit.verify.list_files", lambda directory: listed)
        (report,) = verify([tmp_path / "audit"], keys)
        assert report.ok, report.findings
        assert report.records >= records_before
        found = [link.seq for link, _ in backwards]
        assert found == list(range(found[0], 0, -1))
        assert found[0] >= records_before
        listed[0].path.unlink()  # as retention does, which says so in the log; nothing says so here
        (report,) = verify([tmp_path / "audit"], keys)
        assert [one.text for one in report.findings if "missing" in one.text or "deleted" in one.text], report.findings
        assert "cannot be read" not in str(report.findings)
