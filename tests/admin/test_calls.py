"""Calls are read from the newest end of the log: pages, filters, the story of one call and what proves it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from audit.audit_kit import check_one, make_call, one_call, open_audit, segments, settled

from sluicegate.admin.calls import CallsApi, timing
from sluicegate.audit import newest
from sluicegate.audit.newest import Backwards, CallFilter, Position, read_position
from sluicegate.audit.settings import Rotation
from sluicegate.protocol.model import Failure, Target, Verdict, refuse


def directory(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def api(tmp_path: Path, audit: Any) -> CallsApi:
    return CallsApi(directory(tmp_path), tmp_path / "state", audit.public_keys)


def ids(page: dict[str, Any]) -> list[str]:
    return [row["id"] for row in page["calls"]]


async def test_pages_of_calls_come_newest_first_over_segments_and_each_call_once(tmp_path: Path) -> None:
    async with open_audit(tmp_path, rotate=Rotation(20_000)) as audit:
        for number in range(60):
            assert await one_call(audit, f"c{number}")
        await settled(audit)
        assert len(segments(tmp_path)) > 2
        calls, found, query = api(tmp_path, audit), list[str](), dict[str, list[str]]()
        while True:
            status, page = await calls.page({"limit": ["7"], **query})
            assert status == 200 and len(page["calls"]) <= 7
            found += ids(page)
            if "next" not in page:
                break
            query = {"before": [page["next"]]}
        assert found == [f"c{number}" for number in range(59, -1, -1)]


async def test_new_calls_do_not_move_the_pages_behind_a_cursor(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        for number in range(6):
            await one_call(audit, f"c{number}")
        await settled(audit)
        calls = api(tmp_path, audit)
        _, first = await calls.page({"limit": ["3"]})
        for number in range(6, 9):
            await one_call(audit, f"c{number}")
        await settled(audit)
        _, second = await calls.page({"limit": ["3"], "before": [first["next"]]})
        assert ids(first) + ids(second) == [f"c{number}" for number in range(5, -1, -1)]


async def test_a_call_without_its_end_is_open_and_is_shown_once_when_it_has_ended(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        call = make_call("slow")
        assert await audit.intent(call)
        await one_call(audit, "fast")
        await settled(audit)
        calls = api(tmp_path, audit)
        _, page = await calls.page({})
        assert [(row["id"], row["is_open"]) for row in page["calls"]] == [("fast", False), ("slow", True)]
        audit.outcome(call, None, 1.0)
        await settled(audit)
        _, page = await calls.page({})
        assert [(row["id"], row["outcome"]) for row in page["calls"]] == [("slow", "cancelled"), ("fast", "ok")]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"server": "k8s"}, ["c2"]),
        ({"tool": "k8s/delete*"}, ["c2"]),
        ({"verdict": "deny"}, ["c3"]),
        ({"outcome": "denied"}, ["c3"]),
        ({"q": "NEEDLE"}, ["c1"]),
        ({"q": "policy.csv:17", "server": "github"}, ["c3", "c1", "c0"]),
        ({"who": "key:nobody"}, []),
        ({"who": "key:ci-bot"}, ["c3", "c2", "c1", "c0"]),
        ({"since": "2999-01-01"}, []),
        ({"until": "2000-01-01"}, []),
        ({"since": "1h"}, ["c3", "c2", "c1", "c0"]),
    ],
)
async def test_filters(tmp_path: Path, query: dict[str, str], expected: list[str]) -> None:
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "c0")
        await one_call(audit, "c1", arguments={"text": "a needle"})
        await one_call(audit, "c2", target=Target("k8s", "tool", "delete_pod", "k8s__delete_pod"))
        denied = make_call("c3", verdict=Verdict.DENY)
        audit.outcome(denied, Failure(-32603, "no", {}, "denied"), 0.01)
        await settled(audit)
        status, page = await api(tmp_path, audit).page({name: [value] for name, value in query.items()})
        assert (status, ids(page)) == (200, expected)


@pytest.mark.parametrize(
    "query",
    [
        {"verdict": ["maybe"]}, {"outcome": ["fine"]}, {"since": ["soon"]}, {"before": ["../x"]}, {"limit": ["0"]},
        {"limit": ["101"]}, {"limit": ["0001000000"]}, {"limit": ["٣"]},
        {"colour": ["red"]}, {"who": ["a", "b"]}, {"before": [""]},
    ],
)  # fmt: skip
async def test_what_is_no_query_is_refused(tmp_path: Path, query: dict[str, list[str]]) -> None:
    async with open_audit(tmp_path) as audit:
        assert (await api(tmp_path, audit).page(query))[0] == 400


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["outcome b", "intent b", "outcome a", "intent a", "admin "]),
        ({"type": "intent"}, ["intent b", "intent a"]),
        ({"call": "a"}, ["outcome a", "intent a"]),
        ({"outcome": "timeout"}, ["outcome b"]),
        ({"tool": "k8s/*", "type": "outcome"}, ["outcome b"]),
        ({"principal": "key:ci-bot", "call": "b"}, ["outcome b", "intent b"]),
        ({"principal": "key:nobody"}, []),
        ({"since": "2999-01-01"}, []),
        ({"until": "2000-01-01"}, []),
    ],
)
async def test_records_of_every_type_come_newest_first(
    tmp_path: Path, query: dict[str, str], expected: list[str]
) -> None:
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "a")
        late = refuse("tools/call", "timeout", "x")
        await one_call(audit, "b", late, target=Target("k8s", "tool", "scale", "k8s__scale"))
        await settled(audit)
        found, before = list[str](), dict[str, list[str]]()
        while True:
            asked = {name: [value] for name, value in query.items()} | {"limit": ["2"]} | before
            status, page = await api(tmp_path, audit).records(asked)
            assert status == 200 and len(page["records"]) <= 2 and not page["partial"]
            found += [f"{row['type']} {row.get('call', '')}" for row in page["records"] if row["type"] != "checkpoint"]
            if "next" not in page:
                break
            before = {"before": [page["next"]]}
        assert found == expected


@pytest.mark.parametrize(
    "query", [{"type": ["outcomes"]}, {"who": ["key:a"]}, {"outcome": ["fine"]}, {"until": ["soon"]}, {"limit": ["0"]}]
)
async def test_what_is_no_query_for_records_is_refused(tmp_path: Path, query: dict[str, list[str]]) -> None:
    async with open_audit(tmp_path) as audit:
        assert (await api(tmp_path, audit).records(query))[0] == 400


async def test_a_page_of_long_records_is_shorter_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "MAX_PAGE_BYTES", 1_000)
    async with open_audit(tmp_path) as audit:
        for number in range(4):
            await one_call(audit, f"c{number}")
        await settled(audit)
        records, found, query = api(tmp_path, audit).records, list[str](), {"type": ["intent"]}
        while True:
            _, page = await records(query)
            found.append(" ".join(row["call"] for row in page["records"]))
            if "next" not in page:
                break
            query["before"] = [page["next"]]
        assert len(found) > 1 and " ".join(found).split() == ["c3", "c2", "c1", "c0"]


@pytest.mark.parametrize(
    ("given", "sought", "is_found"),
    [("Needle", "nEEDLE", True), ("Straße", "strasse", True), ("\u212a9", "k9", True), ("x\u00e9", "x\u00c9", True),
     (1e3, "1000", True), (1e16, "1e+16", True), (None, "null", True), ('a"b', 'a"B', True), ("a\\b", "a\\", True),
     (True, "true", True), ("needle", "needles", False), ("a b", "A B", True)],
)  # fmt: skip
async def test_a_text_is_found_in_arguments_however_json_writes_it(
    tmp_path: Path, given: Any, sought: str, is_found: bool
) -> None:
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "c1", arguments={"text": given})
        await settled(audit)
    text = json.dumps(sought)[1:-1] if not sought.isalnum() else sought
    for wanted in (CallFilter(text=text), CallFilter(text=text, outcome="ok"), CallFilter(text=text, tool="*issue")):
        rows = newest.calls(directory(tmp_path), wanted, 100).rows
        assert [row["id"] for row in rows] == ["c1"] * is_found and not any(row["is_open"] for row in rows)
    assert newest.calls(directory(tmp_path), CallFilter(text=text, outcome="denied"), 100).rows == []


async def test_a_rare_filter_is_answered_in_steps_that_meet(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "rare", arguments={"text": "needle"})
        for number in range(600):
            await one_call(audit, f"c{number}")
        await settled(audit)
    found, steps, before = list[Any](), 0, None  # type: Any
    position: Position | None = None
    while True:
        hours = partial(next, iter(range(10_000)))
        page = newest.calls(directory(tmp_path), CallFilter(text="needle"), 100, position, 0.5, hours)
        assert page.searched_to and (before is None or page.searched_to <= before)
        found, steps, before = found + page.rows, steps + 1, page.searched_to
        if not page.next:
            break
        assert page.is_partial
        position = read_position(page.next)
    assert [row["id"] for row in found] == ["rare"] and steps > 2


async def test_a_text_in_arguments_is_found_where_the_pages_part_a_call(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        long = make_call("long", arguments={"text": "needle"})
        assert await audit.intent(long)
        for number in range(3):
            await one_call(audit, f"c{number}")
        audit.outcome(long, None, 1.0)
        await settled(audit)
        calls = api(tmp_path, audit)
        _, page = await calls.page({"limit": ["2"]})
        assert ids(page) == ["long", "c2"]
        _, page = await calls.page({"q": ["needle"], "before": [page["next"]]})
        assert [(row["id"], row["is_open"]) for row in page["calls"]] == [("long", False)]
        _, page = await calls.page({"q": ["needle"]})
        assert ids(page) == ["long"]


async def test_the_story_of_a_call_has_its_records_and_its_proof(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "before")
        assert await one_call(audit, "c1", arguments={"password": "hunter2", "title": "x"})
        await one_call(audit, "behind")
        await settled(audit)
        calls = api(tmp_path, audit)
        status, told = await calls.show("c1")
        assert status == 200 and told["proof"]["state"] == "behind"
        assert [record["type"] for record in told["records"]] == ["intent", "outcome"]
        assert told["call"]["decision"] == {"verdict": "allow", "rule": "policy.csv:17"}
        assert told["call"]["principal"] == "key:ci-bot" and told["call"]["outcome"] == "ok"
        assert "hunter2" not in json.dumps(told) and told["call"]["arguments"]["title"] == "x"
        assert [one["stage"] for one in told["call"]["timing"]] == ["intent", "outcome"]
        assert await audit.note_durably("admin", {"act": "x"}, signed=True)
        _, told = await calls.show("c1")
        assert told["proof"]["state"] == "proved" and told["proof"]["records"][0]["signed"] >= 4
        assert (await calls.show("nothing"))[0] == 404 and (await calls.show("x" * 500))[0] == 404
    assert check_one(tmp_path).ok


def test_each_stage_of_a_call_says_how_long_it_took_after_the_one_before() -> None:
    ends = {"type": "outcome", "time": "2026-11-23T12:00:05.500000000Z", "seconds": 1.5}
    started = {"type": "intent", "time": "2026-11-23T12:00:04.250000000Z"}
    used = {"type": "approval", "time": "2026-11-23T11:59:00.000000000Z", "approval": {"state": "approved"}}
    rows = timing([used, {"type": "admin", "time": ""}, started, ends])
    assert [(row["stage"], row.get("after")) for row in rows] == [
        ("approval approved", None), ("intent", 0.25), ("outcome", 1.25),
    ]  # fmt: skip
    assert [(row["stage"], row.get("after")) for row in timing([ends])] == [("outcome", 1.5)]
    assert [(row["stage"], row.get("after")) for row in timing([started])] == [("intent", None)], "it has not ended"


@pytest.mark.parametrize("what", ["changed", "removed", "unsigned"])
async def test_a_story_that_was_forged_is_broken(tmp_path: Path, what: str) -> None:
    async with open_audit(tmp_path) as audit:
        for id in ("c1", "c2", "c3"):
            await one_call(audit, id)
        assert await audit.note_durably("admin", {"act": "x"}, signed=True)
        await settled(audit)
        file, keys = segments(tmp_path)[0], audit.public_keys()
        data = file.read_bytes()
    lines = data.split(b"\n")
    if what == "changed":
        lines = [line.replace(b'"principal":"key:ci-bot"', b'"principal":"key:ci-bob"') for line in lines]
    elif what == "removed":
        del lines[5]
    file.write_bytes(b"\n".join(lines))
    found = newest.story(directory(tmp_path), tmp_path / "state", {} if what == "unsigned" else keys, "c1")
    assert newest.worst(found.proofs) == ("not_verified" if what == "unsigned" else "broken")
    file.write_bytes(data)


def test_lines_are_bounded_and_torn_ones_left_out(tmp_path: Path) -> None:
    """A file is read backwards whatever the blocks cut."""
    folder = tmp_path / "audit"
    folder.mkdir()
    row = '{"v":1,"writer":"w","epoch":1,"seq":%d,"prev":"%s","type":"admin","time":"2026-01-01T00:00:%02dZ","x":"%s"}'
    sizes = [1, newest.BLOCK - 200, newest.BLOCK, 3 * newest.BLOCK + 7, 5, 9 * 1024 * 1024, 12]
    lines = [(row % (number + 1, "0" * 64, number, "x" * size)).encode() for number, size in enumerate(sizes)]
    (folder / "w.jsonl").write_bytes(b"\n".join([*lines, b'{"v":1,"writer":"w"']))
    seen = [(place.seq, len(line)) for place, line in Backwards(folder)]
    assert seen == [(number, len(lines[number - 1])) for number in (7, 5, 4, 3, 2, 1)]
    for before in range(1, 9):
        assert [place.seq for place, _ in Backwards(folder, {"w": before})] == [
            number for number in (7, 5, 4, 3, 2, 1) if number < before
        ]
