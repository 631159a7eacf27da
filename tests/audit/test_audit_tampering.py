"""What the verifier finds: every way to change the past, and everything that is no log at all."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from audit_kit import (
    SEED,
    check,
    check_one,
    copy_log,
    lines,
    make_call,
    one_call,
    open_audit,
    segments,
    settings,
    unchecked_audit,
)

from sluicegate.audit import chain, newest
from sluicegate.audit.chain import ChainHead
from sluicegate.audit.checkpoint import (
    Checkpoint,
    Signer,
    is_signed,
    key_id,
    parse,
    read,
    read_publics,
    write_publics,
)
from sluicegate.audit.settings import Checkpointing, Rotation
from sluicegate.audit.verify import AuditFinding, VerifyReport, read_kept, thin, verify

Lines = list[bytes]


@pytest.fixture(scope="module")
def kept_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty calls with a checkpoint every ten records, and the newest checkpoint kept outside."""
    directory = tmp_path_factory.mktemp("kept")

    async def fill() -> None:
        async with open_audit(directory, checkpoints=Checkpointing(records=10)) as audit:
            for number in range(20):
                await one_call(audit, f"c{number}")

    anyio.run(fill)
    return directory


@pytest.fixture
def log(kept_log: Path, tmp_path: Path) -> Path:
    copy_log(kept_log, tmp_path / "log")
    return tmp_path / "log"


def rewrite(directory: Path, change: Callable[[Lines], Lines]) -> VerifyReport:
    path = segments(directory)[0]
    path.write_bytes(b"".join(line + b"\n" for line in change(path.read_bytes().splitlines())))
    return check_one(directory)


def position(lines: Lines, seq: int) -> int:
    return next(at for at, line in enumerate(lines) if f'"seq":{seq},'.encode() in line[:80])


def test_an_honest_log_is_believed(log: Path) -> None:
    report = check_one(log)
    assert report.ok, report.findings
    assert report.records == report.last == len(lines(log))
    assert report.tail == 0


@pytest.mark.parametrize("seq", [1, 2, 7, 11, 12, 25, 40])
def test_a_changed_record_is_named(log: Path, seq: int) -> None:
    def flip(lines: Lines) -> Lines:
        at = position(lines, seq)
        return [*lines[:at], lines[at].replace(b'"time":"20', b'"time":"21', 1), *lines[at + 1 :]]

    report = rewrite(log, flip)
    assert [finding.seq for finding in report.findings] == [seq]


@pytest.mark.parametrize("seq", [2, 9, 30])
def test_a_removed_record_is_named(log: Path, seq: int) -> None:
    report = rewrite(log, lambda lines: lines[: position(lines, seq)] + lines[position(lines, seq) + 1 :])
    assert [finding.seq for finding in report.findings] == [seq]
    assert "missing" in report.findings[0].text


@pytest.mark.parametrize("seq", [3, 14])
def test_swapped_records_are_named(log: Path, seq: int) -> None:
    def swap(lines: Lines) -> Lines:
        at = position(lines, seq)
        return [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]

    assert [finding.seq for finding in rewrite(log, swap).findings] == [seq]


@pytest.mark.parametrize("seq", [3, 14])
def test_a_record_put_in_is_named(log: Path, seq: int) -> None:
    def insert(lines: Lines) -> Lines:
        at = position(lines, seq)
        forged = chain.link(ChainHead(seq - 1, chain.digest(lines[at - 1])), "sluice", 1, b'"type":"admin","time":"x"')[
            0
        ]
        return [*lines[:at], forged.rstrip(b"\n"), *lines[at:]]

    assert [finding.seq for finding in rewrite(log, insert).findings] == [seq]


def test_a_line_that_is_no_record_is_named(log: Path) -> None:
    report = rewrite(log, lambda lines: [*lines[:6], b"a line of somebody else", *lines[6:]])
    assert (report.findings[0].line, report.findings[0].seq) == (7, 7)


def test_a_log_cut_to_an_earlier_prefix_is_found_by_the_checkpoint_outside(log: Path) -> None:
    report = rewrite(log, lambda lines: lines[:15])
    assert report.findings[0].seq == 16 and "cut off" in report.findings[0].text
    assert check_one(log, kept=False).ok, "nothing inside a prefix can tell that more was there"


def relink(lines: Lines, start: int, signer: Signer | None = None) -> Lines:
    """Everything from line `start` on as its writer would have chained it; signed anew if there is a signer."""
    head = ChainHead(start, chain.digest(lines[start - 1]))
    done = lines[:start]
    for line in lines[start:]:
        body = line[line.index(b'"type"') : -1]
        if signer is not None and body.startswith(b'"type":"checkpoint"'):
            time = json.loads(line)["time"]
            body = signer.sign("sluice", 1, head.seq, head.hash, time).body()
        linked, head = chain.link(head, "sluice", 1, body)
        done.append(linked[:-1])
    return done


def forge(lines: Lines, signer: Signer | None = None) -> Lines:
    at = position(lines, 24)
    changed = [*lines[:at], lines[at].replace(b"ci-bot", b"nobody"), *lines[at + 1 :]]
    return relink(changed, at, signer)


def test_a_past_rewritten_with_new_hashes_is_found_by_the_next_signature(log: Path) -> None:
    report = rewrite(log, forge)
    assert len(report.findings) == 1
    assert "signs another log" in report.findings[0].text and "22 to" in report.findings[0].text


def test_a_rewritten_past_without_checkpoints_is_found_from_outside(log: Path) -> None:
    def without(lines: Lines) -> Lines:
        at = position(lines, 24)
        rest = [line for line in lines[at:] if b'"type":"checkpoint"' not in line]
        return relink([*lines[:at], rest[0].replace(b"ci-bot", b"nobody"), *rest[1:]], at)

    report = rewrite(log, without)
    assert len(report.findings) == 1 and "record" in str(report.findings[0])
    inside = check_one(log, kept=False)
    assert inside.ok and inside.tail > 20, "the verifier says how much is behind the newest checkpoint"


def without_signatures(lines: Lines) -> Lines:
    """Record 24 changed, and what follows as long as it was: as whoever may write the file can have it."""
    at = position(lines, 24)
    rest = [line for line in lines[at:] if b'"type":"checkpoint"' not in line]
    return relink([*lines[:at], rest[0].replace(b"ci-bot", b"nobody"), *rest[1:], *rest[-4:]], at)


def cut_and_said_to_be_lost(lines: Lines) -> Lines:
    """Behind record 23 a new segment, which says that what was signed could not be written."""
    head, last = ChainHead(23, chain.digest(lines[22])), len(lines) + 4
    said = {**json.loads(lines[0]), "why": "failure", "after": {"seq": head.seq, "hash": head.hash}}
    loss = {"reason": "disk", "durable": head.seq, "last": last, "signed": False}
    fields = {name: said[name] for name in ("type", "time", "act", "why", "version", "key", "after", "open")}
    body = json.dumps({**fields, "loss": loss}, separators=(",", ":"))[1:-1].encode()
    opening, _ = chain.link(ChainHead(last, head.hash), "sluice", 1, body)
    return [*lines[:23], opening[:-1]]


@pytest.mark.parametrize("forged", [without_signatures, cut_and_said_to_be_lost])
async def test_what_was_signed_and_changed_before_a_start_is_not_signed_anew_in_silence(
    log: Path, forged: Callable[[Lines], Lines]
) -> None:
    path = segments(log)[0]
    made = forged(path.read_bytes().splitlines())
    cut = 23 if forged is cut_and_said_to_be_lost else len(made)
    path.write_bytes(b"".join(line + b"\n" for line in made[:cut]))
    if made[cut:]:
        path.rename(path.with_name("sluice.jsonl.000000000001"))
        path.write_bytes(made[cut] + b"\n")
        path.chmod(0o600)
    assert not check_one(log).ok, "the newest checkpoint is that of before"
    for _ in range(2):
        async with unchecked_audit(log) as audit:
            await one_call(audit, "later")
        report = check_one(log)
        assert [finding.seq for finding in report.findings if "signed" in finding.text], report
        story = newest.story(log / "audit", settings(log).own_state, Signer([SEED]).publics, "c9")
        assert newest.worst(story.proofs) == "broken", story.proofs


def test_a_past_signed_anew_by_who_has_the_key_is_found_from_outside(log: Path) -> None:
    report = rewrite(log, lambda lines: forge(lines, Signer([SEED])))
    assert "rewritten" in report.findings[0].text
    assert check_one(log, kept=False).ok


Change = Callable[[dict[str, Any], ChainHead], bytes]
OTHER = Signer([b"n" * 32])


def signed_by(signer: Signer, writer: str = "sluice", epoch: int = 1) -> Change:
    return lambda old, head: signer.sign(writer, epoch, head.seq, head.hash, old["time"]).body()


def broken(old: dict[str, Any], head: ChainHead) -> bytes:
    good = Signer([SEED]).sign("sluice", 1, head.seq, head.hash, old["time"])
    return replace(good, sig=OTHER.sign("sluice", 1, head.seq, head.hash, old["time"]).sig).body()


def earlier(old: dict[str, Any], head: ChainHead) -> bytes:
    return Signer([SEED]).sign("sluice", 1, head.seq - 1, head.hash, old["time"]).body()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda old, head: signed_by(Signer([SEED]))(old, head) + b',"more":1',
         "is a checkpoint with something added to it"),
        (signed_by(Signer([SEED]), writer="other"), "is a checkpoint with something added to it"),
        (signed_by(Signer([SEED]), epoch=2), "is a checkpoint with something added to it"),
        (lambda old, head: f'"type":"checkpoint","time":"{old["time"]}","checkpoint":{{"seq":1}}'.encode(),
         "is no checkpoint: it was changed or put in"),
        (earlier, "signs another log: records {since} to {last} were rewritten"),
        (signed_by(OTHER), f"is signed with key {OTHER.id}, which is not in force here"),
        (broken, "is not signed by the key: records {since} to {last} may be rewritten"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_checkpoint_in_which_anything_is_wrong_is_named(log: Path, number: int, change: Change, text: str) -> None:
    """Chained anew as its writer would have: only the signature and what it is about can tell."""
    found = lines(log)
    places = [at for at, line in enumerate(found) if b'"type":"checkpoint"' in line]
    at, covered = places[number], json.loads(found[places[number - 1]])["checkpoint"]["seq"] if number else 0
    head = ChainHead(at, chain.digest(found[at - 1]))
    forged, _ = chain.link(head, "sluice", 1, change(json.loads(found[at]), head))
    segments(log)[0].write_bytes(b"".join(line + b"\n" for line in [*found[:at], forged[:-1]]))
    (report,) = verify(segments(log), Signer([SEED]).publics | OTHER.publics)
    assert [one.text for one in report.findings] == [text.format(since=covered + 1, last=at)]
    assert (report.findings[0].seq, report.findings[0].line, report.signed) == (at + 1, at + 1, covered)


def test_a_checkpoint_by_a_key_that_nobody_gave_is_no_proof(log: Path) -> None:
    (report,) = verify(segments(log), OTHER.publics)
    assert [one.text for one in report.findings] == [f"is signed with an unknown key, {Signer([SEED]).id}"]
    assert (report.signed, report.signed_at, report.findings[0].seq) == (0, "", report.last)


def test_every_flipped_byte_is_found(log: Path) -> None:
    path, whole = segments(log)[0], segments(log)[0].read_bytes()
    # The last record is a checkpoint whose fields are signed; what is behind the newest one outside is the tail.
    places = random.Random(7).sample(range(len(whole)), 400)
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert not all(report.ok for report in check(log)), f"byte {place} of {whole[place : place + 20]!r}"


@pytest.mark.parametrize("size", [0, 1, 100, 5_000])
def test_a_truncated_log_is_said_to_be_one(log: Path, size: int) -> None:
    path = segments(log)[0]
    path.write_bytes(path.read_bytes()[:size])
    assert any(report.findings for report in check(log))


def test_foreign_and_empty_files_are_said_to_be_so(tmp_path: Path) -> None:
    found = {}
    for name, data in {"a.jsonl": b"", "b.jsonl": b'{"level":"info"}\n', "c.jsonl": bytes(range(256)) * 10,
                       "d.jsonl": b"x" * 100_000, "e.jsonl": b'{"v":1,' + b"[" * 100_000 + b"\n"}.items():  # fmt: skip
        (tmp_path / name).write_bytes(data)
        found[name] = [str(one) for report in verify([tmp_path / name], {}) for one in report.findings]
    assert all(len(texts) == 1 for texts in found.values())
    assert found["a.jsonl"] == ["a.jsonl: is empty: no record is in it"]
    assert found["b.jsonl"] == ["b.jsonl:1: is no audit log: its first line is not a record"]
    (stray,) = verify([tmp_path / "b.jsonl"], {})
    assert stray.findings == [AuditFinding("b.jsonl", 1, 0, "is no audit log: its first line is not a record")]


def test_a_line_without_an_end_is_refused_in_bounded_memory(log: Path) -> None:
    with segments(log)[0].open("ab") as file:
        file.write(b"x" * (chain.MAX_LINE + 10))
    assert "longer" in check_one(log).findings[0].text


def test_a_log_that_is_gone_is_found_by_its_checkpoint(log: Path) -> None:
    segments(log)[0].unlink()
    assert "cut off" in check_one(log).findings[0].text


async def test_segments_prove_each_other(tmp_path: Path) -> None:
    async with open_audit(tmp_path, rotate=Rotation(size=4_000)) as audit:
        for number in range(30):
            await one_call(audit, f"c{number}")
    found = segments(tmp_path)
    assert len(found) > 4 and check_one(tmp_path).ok
    data = found[1].read_bytes()
    found[1].unlink()
    assert "missing" in check_one(tmp_path).findings[0].text
    found[1].write_bytes(data[: data.rindex(b"\n", 0, -1) + 1])
    assert "missing" in check_one(tmp_path).findings[0].text
    found[1].write_bytes(data + data.splitlines(keepends=True)[-1])
    assert "put in" in check_one(tmp_path).findings[0].text
    found[1].write_bytes(data)
    shutil.copy(found[2], found[2].with_name("copy.jsonl"))
    assert not check_one(tmp_path).ok


async def test_a_deletion_that_somebody_else_wrote_down_is_none_although_a_later_run_signs_it(tmp_path: Path) -> None:
    async with open_audit(tmp_path, rotate=Rotation(size=4_000)) as audit:
        for number in range(30):
            await one_call(audit, f"c{number}")
    *old, newest = segments(tmp_path)
    *_, last = newest.read_bytes().splitlines()
    link, after = chain.read(last), json.loads(newest.read_bytes().splitlines()[0])["after"]
    assert link is not None
    said = f'"type":"admin","time":"{link.time}","act":"retain","file":"x","first":1,"last":{after["seq"]},'
    body = f'{said}"hash":"{after["hash"]}"'.encode()
    forged, _ = chain.link(ChainHead(link.seq, chain.digest(last)), "sluice", link.epoch, body)
    newest.write_bytes(newest.read_bytes() + forged)
    for path in old:
        path.unlink()
    assert "no checkpoint covers" in check_one(tmp_path).findings[0].text
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "later")
    report = check_one(tmp_path)
    assert [finding.text for finding in report.findings if "missing" in finding.text]
    assert report.notes == [f"records {link.seq + 1} to {link.seq + 1} were not signed by the run that they are of"]


async def test_another_key_is_introduced_by_the_one_before(tmp_path: Path) -> None:
    old, new = SEED, b"n" * 32
    async with open_audit(tmp_path, (old,)) as audit:
        await one_call(audit, "c1")
    public = (tmp_path / "state" / "sign.pub").read_text()
    async with open_audit(tmp_path, (old, new)) as audit:
        await one_call(audit, "c2")
    kept = [one for one in [read(next((tmp_path / "state").glob("*/*.checkpoint")).read_bytes())] if one]
    with_old = verify(segments(tmp_path), read_publics(public), kept)[0]
    assert with_old.ok and with_old.tail == 0 and "introduced" in with_old.notes[0]
    with_new = verify(segments(tmp_path), dict(list(Signer([old, new]).publics.items())[1:]), kept)[0]
    assert with_new.ok, "one good signature vouches for everything before it"
    assert not any("not signed by the run" in note for note in with_new.notes)
    with_none = verify(segments(tmp_path), {}, kept)[0]
    assert "unknown key" in with_none.findings[0].text


async def test_a_key_from_nowhere_is_not_believed(tmp_path: Path) -> None:
    async with open_audit(tmp_path, (SEED,)) as audit:
        await one_call(audit, "c1")
    async with open_audit(tmp_path, (b"n" * 32,)) as audit:
        await one_call(audit, "c2")
    for known in ([SEED], [SEED, b"n" * 32]):
        report = verify(segments(tmp_path), Signer(known).publics)[0]
        assert "without a signature" in report.findings[0].text


async def test_the_unsigned_tail_is_told(tmp_path: Path) -> None:
    async with open_audit(tmp_path, checkpoints=Checkpointing(every=3_600)) as audit:
        for number in range(5):
            await audit.intent(make_call(f"c{number}"))
        report = verify(segments(tmp_path), Signer([SEED]).publics)[0]
    assert report.ok and report.tail == 6 and report.signed == 0


def test_public_keys_are_read_as_they_are_written() -> None:
    signer = Signer([SEED, b"x" * 32])
    text = write_publics(signer.publics).decode()
    assert read_publics(text) == signer.publics
    assert read_publics(text.split()[1]) == dict(list(signer.publics.items())[:1])
    assert all(key_id(public) == id for id, public in signer.publics.items())
    for bad in ("x", "abc def", f"0000 {text.split()[1]}", f"{text.split()[1]} a b", f"{text}\n\n"):
        with pytest.raises(ValueError, match=r"^not a file of public keys: one `id base64` a line is expected$"):
            read_publics(bad)
    with pytest.raises(ValueError, match=r"^no public key in it$"):
        read_publics("")


def test_a_checkpoint_is_what_was_signed() -> None:
    signed = Signer([SEED]).sign("sluice", 3, 17, "0" * 64, "2026-10-01T00:00:00.000000000Z")
    assert read(signed.dump()) == signed and is_signed(signed, Signer([SEED]).publics)
    for name in ("writer", "epoch", "seq", "hash", "time"):
        value = getattr(signed, name)
        changed = read(json.dumps({**signed.to_json(), name: value + ("1" if isinstance(value, str) else 1)}).encode())
        assert changed is not None and not is_signed(changed, Signer([SEED]).publics)
    for junk in (b"", b"[]", b"{}", b'{"writer":"a","epoch":true}', b"[" * 4_000, b"x" * 9_000):
        assert read(junk) is None


@pytest.fixture(scope="module")
def kept_segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("segments")

    async def fill() -> None:
        async with open_audit(directory, rotate=Rotation(size=4_000)) as audit:
            for number in range(30):
                await one_call(audit, f"c{number}")

    anyio.run(fill)
    return directory


def cut_by(count: int) -> Callable[[Path, bytes], object]:
    return lambda path, data: path.write_bytes(data[:-count])


def double(path: Path, data: bytes) -> None:
    shutil.copy(path, path.with_name("copy.jsonl"))


def without_last(path: Path, data: bytes) -> None:
    path.write_bytes(data[: data.rindex(b"\n", 0, -1) + 1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path, data: path.unlink(), "{third}: record {first}: records {first} to {last} are missing"),
        (without_last, "{third}: record {last}: records {last} to {last} are missing"),
        (lambda path, data: path.write_bytes(data + b"x"),
         "{second}:{count}: record {after}: 1 byte more than the next segment knows of: put in or changed"),
        (lambda path, data: path.write_bytes(data + b"x\n"),
         "{second}:{count}: record {after}: 2 bytes more than the next segment knows of: put in or changed"),
        (cut_by(9),
         "{second}:{lines}: record {last}: {torn} bytes more than the next segment knows of: put in or changed"),
        (double, "copy.jsonl:1: record {first}: {size} bytes more than the next segment knows of: put in or changed"),
        (lambda path, data: path.write_bytes(data.replace(b'"act":"open"', b'"act":"begin"')),
         "{second}:1: record {first}: a segment must begin with its opening, and this does not"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_segment_is_named_with_its_place(
    kept_segments: Path, tmp_path: Path, change: Callable[[Path, bytes], object], said: str
) -> None:
    copy_log(kept_segments, tmp_path / "log")
    _, second, third = segments(tmp_path / "log")[:3]
    data = second.read_bytes()
    rows = data.splitlines(keepends=True)
    first, last = (json.loads(rows[at])["seq"] for at in (0, -1))
    change(second, data)
    (report,) = verify([path for path in (tmp_path / "log" / "audit").iterdir() if ".jsonl" in path.name],
                       Signer([SEED]).publics)  # fmt: skip
    expected = said.format(first=first, last=last, after=last + 1, lines=len(rows), count=len(rows) + 1,
                           torn=len(rows[-1]) - 9, size=len(data), second=second.name, third=third.name)  # fmt: skip
    assert [str(finding) for finding in report.findings] == [expected]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one, None),
        (lambda one: replace(one, key="unknown"), None),
        (lambda one: replace(one, sig=OTHER.sign("sluice", 1, one.seq, one.hash, one.time).sig),
         "record {seq}: the checkpoint kept outside for it is not signed by the key"),
        (lambda one: Signer([SEED]).sign("sluice", 1, one.seq, "0" * 64, one.time),
         "record {seq}: is not the one that the checkpoint of {time} covers: rewritten since then"),
        (lambda one: Signer([SEED]).sign("sluice", 1, 10_000, one.hash, one.time),
         "record {after}: records up to 10000 existed at {time}; these are cut off"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [0, 2])
def test_a_checkpoint_kept_outside_is_compared_with_the_log(
    log: Path, number: int, change: Callable[[Checkpoint], Checkpoint], said: str | None
) -> None:
    found = [json.loads(line).get("checkpoint") for line in lines(log)]
    one = [signed for signed in map(parse, found) if signed is not None][number]
    (report,) = verify(segments(log), Signer([SEED]).publics, [change(one)])
    if said is None:
        assert report.ok and report.signed == report.last - 1
    else:
        text = said.format(seq=one.seq, time=one.time, after=report.last + 1)
        assert [str(finding).partition(": ")[2] for finding in report.findings] == [text]


def test_checkpoints_kept_outside_may_come_in_any_order(log: Path) -> None:
    found = [signed for line in lines(log) if (signed := parse(json.loads(line).get("checkpoint"))) is not None]
    for kept in (found, found[::-1], [*found, *found]):
        (report,) = verify(segments(log), Signer([SEED]).publics, kept)
        assert report.ok and report.signed == found[-1].seq


@pytest.mark.parametrize("key", [{"id": "x"}, {"id": "x", "public": "eA=="}, {"id": OTHER.id, "public": None}])
def test_a_key_that_is_none_is_named_where_it_is_introduced(log: Path, key: dict[str, Any]) -> None:
    found = lines(log)
    head = ChainHead(len(found), chain.digest(found[-1]))
    body = f'"type":"admin","time":"2026-10-01T00:00:00Z","act":"start","key":{json.dumps(key)}'.encode()
    with segments(log)[0].open("ab") as file:
        file.write(chain.link(head, "sluice", 2, body)[0])
    (report,) = verify(segments(log), Signer([SEED]).publics)
    assert [(one.seq, one.text) for one in report.findings] == [(len(found) + 1, "names a key that is none")]


def test_a_checkpoint_of_another_writer_tells_that_its_log_is_gone(log: Path) -> None:
    gone = Signer([SEED]).sign("other", 1, 7, "0" * 64, "2026-10-01T00:00:00.000000000Z")
    missing, report = verify(segments(log), Signer([SEED]).publics, [gone])
    assert report.ok and (missing.writer, missing.records, missing.tail) == ("other", 0, 0)
    assert [str(one) for one in missing.findings] == [
        "the log: record 1: records up to 7 existed at 2026-10-01T00:00:00.000000000Z; these are cut off"
    ]


def test_checkpoints_that_were_kept_are_read_and_what_is_none_is_named(tmp_path: Path) -> None:
    signed = [Signer([SEED]).sign("sluice", 1, seq, "0" * 64, "2026-10-01T00:00:00Z") for seq in range(1, 8)]
    kept = tmp_path / "kept"
    kept.write_bytes(b"".join(one.dump() for one in signed) + b"{" + signed[0].body() + b"}\n")
    assert list(read_kept(kept)) == [*signed, signed[0]]
    kept.write_bytes(signed[0].dump() + b"{}\n")
    with pytest.raises(ValueError, match=r"^kept:2 is no checkpoint$"):
        list(read_kept(kept))
    assert thin(signed) == thin(signed, 7) == signed and thin([]) == [] and len(thin(signed, 6)) < 7
    few = thin(iter(signed), 2)
    assert len(few) <= 4 and few[0] == signed[0] and few[-1] == signed[-1] and len(set(few)) == len(few)
    assert [one.seq for one in few] == sorted(one.seq for one in few)
