"""Lists of approvals come in pages: none exceeds its bound, and each approval is on one, whatever else happens."""

import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import anyio
import anyio.to_thread
import pytest
from approval_kit import ANN, LEA, TOOL, Town, bind
from loop_steps import Steps

from sluicegate.admin import approval_page, approvals
from sluicegate.admin.approvals import FULL, MAX_STREAMS, ApprovalsApi, ApprovalsApiDeps
from sluicegate.admin.paging import MAX_PAGE_BYTES, MAX_ROWS, PageRequest, merge_pages
from sluicegate.approval import presentation
from sluicegate.approval.record import Approval, Vote
from sluicegate.policy.profiles import BUILT_IN
from sluicegate.protocol.model import Client
from sluicegate.runtime.reader_threads import MAX_READERS

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
LARGE = "\u202e" * 10_000
MANY = 2 * MAX_ROWS + 7


async def _no_calls(principal: str) -> list[Json]:
    return []


def api_of(town: Town) -> ApprovalsApi:
    deps = ApprovalsApiDeps(lambda who: frozenset(who.roles), lambda row, revision: row, _no_calls)
    return ApprovalsApi(town.desk, deps, town.store)


async def listed(api: ApprovalsApi, name: str = "approvals", **query: Any) -> Json:
    status, body = await api.get((name,), {key: [str(value)] for key, value in query.items()}, LEA)
    assert status == 200, body
    assert len(body[name]) <= MAX_ROWS and len(json.dumps(body)) < MAX_PAGE_BYTES + 4096
    return dict(body)


async def pages(api: ApprovalsApi, name: str = "approvals", **query: Any) -> list[list[Json]]:
    body = await listed(api, name, **query)
    found = [body[name]]
    while "next" in body:
        body = await listed(api, name, **{**query, "before": body["next"]})
        found.append(body[name])
    return found


async def test_every_large_approval_is_on_one_page_and_no_page_is_large() -> None:
    town = Town(per_client=MANY)
    made = []
    for number in range(MANY):
        town.clock.now += number % 3  # some are of the same moment
        made.append((await town.pending(amount=number, text=LARGE if number % 40 == 0 else "")).id)
    for query, least in (({}, MANY // 100), ({"state": "pending", "limit": MAX_ROWS}, 3), ({"limit": 7}, MANY // 7)):
        found = await pages(api_of(town), **query)
        assert len(found) >= least
        rows = [row for page in reversed(found) for row in page]
        assert sorted(row["id"] for row in rows) == sorted(made), "each once"
        assert [row["cursor"] for row in rows] == sorted(row["cursor"] for row in rows), "the newest last"
    cut, whole = ([row for row in rows if row["cut"] is word] for word in (True, False))
    assert len(cut) == len(range(0, MANY, 40)) and all("(cut: " in row["arguments"] for row in cut)
    assert all(row["arguments"]["text"] == "" for row in whole)


async def test_a_step_judges_few_approvals_and_makes_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,000 that are decided, 200 are shown: 25 ms of work."""
    town = Town()
    denied = (await town.pending(amount=1)).become("denied", ended=town.clock.now)
    for number in range(2_000):
        binding = replace(denied.binding, principal=f"key:client{number % 4}")
        town.desk.book.add(replace(denied, id=f"apr_{number:012}", binding=binding))
    steps, judged, made = Steps(), Counter[int](), Counter[int]()

    def counted(counter: Counter[int], inner: Any) -> Any:
        def count(*args: Any) -> Any:
            counter[steps.now] += 1
            return inner(*args)

        return count

    monkeypatch.setattr(approvals, "may_see", counted(judged, approvals.may_see))
    monkeypatch.setattr(presentation, "tell", counted(made, presentation.tell))
    body = await listed(api_of(town), state="decided", limit=MAX_ROWS)
    steps.stop()
    assert len(body["approvals"]) == MAX_ROWS and body["total"] == judged.total() == 2_000
    assert max(judged.values()) <= 50 and max(made.values()) == 1


async def test_pages_are_bounded_in_bytes_where_people_have_said_much() -> None:
    town = Town(per_client=100)
    for number in range(60):
        denied = await town.decide(await town.pending(amount=number), word="deny", comment="\u202e" * 2_000)
        assert isinstance(denied, Approval)
    found = await pages(api_of(town), limit=MAX_ROWS)
    assert len(found) > 1 and sum(map(len, found)) == 60


async def test_one_row_is_smaller_than_a_page() -> None:
    town = Town()
    approval = await town.pending(text=LARGE)
    votes = tuple(Vote(f"key:{number}", ("x",), "api", 1.0, "\u202e" * 2_000) for number in range(10))
    town.desk._ledger._open[approval.id] = replace(approval, votes=votes, comment="\u202e" * 2_000)
    body = await listed(api_of(town))
    assert len(body["approvals"]) == 1 and len(json.dumps(body)) < MAX_PAGE_BYTES


async def test_a_page_goes_on_where_its_cursors_approval_is_over_and_new_ones_came() -> None:
    town = Town()
    made = []
    for number in range(6):
        town.clock.now += 1
        made.append(await town.pending(amount=number))
    body = await listed(api_of(town), state="pending", limit=2)
    assert [row["id"] for row in body["approvals"]] == [one.id for one in made[4:]] and body["total"] == 6
    await town.desk.end(made[4].id, "cancelled", ANN.principal, channel="api")
    await town.pending(amount=7)
    body = await listed(api_of(town), state="pending", limit=2, before=body["next"])
    assert [row["id"] for row in body["approvals"]] == [one.id for one in made[2:4]]


@pytest.mark.parametrize("query", [{"limit": ["0"]}, {"limit": ["201"]}, {"limit": ["x"]}, {"limit": ["٣"]},
                                   {"limit": ["1", "2"]}, {"before": ["a", "b"]}, {"after": ["a"]}])  # fmt: skip
async def test_a_query_for_no_page_is_refused(query: dict[str, list[str]]) -> None:
    for name in ("approvals", "grants"):
        assert (await api_of(Town()).get((name,), query, LEA))[0] == 400


async def test_what_waits_for_somebody_and_what_they_asked_for_are_lists_of_their_own() -> None:
    """A list that is filtered after paging may be empty although later pages have rows."""
    town = Town(per_client=MANY)
    others, api = list[str](), api_of(town)
    for number in range(5):
        town.clock.now += 1
        others.append((await town.pending(amount=number)).id)

    async def ids(who: Client, **query: str) -> tuple[list[str], int]:
        status, body = await api.get(("approvals",), {name: [value] for name, value in query.items()}, who)
        assert status == 200
        return [row["id"] for row in body["approvals"]], body["total"]

    asked, approver = {"state": "pending", "for": "requester"}, {"state": "pending", "for": "approver"}
    assert await ids(LEA, **approver) == (others, 5) and await ids(ANN, **asked) == (others, 5)
    assert await ids(LEA, **asked) == ([], 0) and await ids(ANN, **approver) == ([], 0)
    assert await ids(LEA, **approver, limit="2") == (others[3:], 5)
    for id in others[3:]:
        body = json.dumps({"decision": "deny"}).encode()
        assert (await api.post(("approvals", id, "decisions"), body, "", LEA))[0] == 200
    assert await ids(LEA, **approver, limit="2") == (others[1:3], 3)
    assert await ids(LEA, state="decided") == (others[3:], 2)
    assert await ids(ANN, state="decided", limit="1") == (others[4:], 2)
    for wrong in ({"for": ["me"]}, {"state": ["over"]}, {"for": ["approver", "requester"]}):
        assert (await api.get(("approvals",), wrong, LEA))[0] == 400


async def test_grants_come_in_pages_too() -> None:
    town = Town(per_client=100)
    for number in range(5):
        town.target = replace(TOOL, own=f"pay{number}")
        assert isinstance(await town.decide(await town.pending(amount=1), scope="15m"), Approval)
    found = await pages(api_of(town), "grants", limit=2)
    assert [len(page) for page in found] == [2, 2, 1]
    assert {row["tool"] for page in found for row in page} == {f"pay{number}" for number in range(5)}


async def test_the_stream_begins_with_a_page_and_says_that_more_wait() -> None:
    town = Town(per_client=MANY)
    made = [(await town.pending(amount=number, text="x" * 3_000)).id for number in range(MANY)]
    events = api_of(town).events(LEA.principal, lambda: LEA)
    found = [event async for event in _until_more(events)]
    assert max(map(len, found)) < MAX_PAGE_BYTES and sum(map(len, found)) < MAX_PAGE_BYTES + 64 * 1024
    rows = [json.loads(event.partition(b"data: ")[2]) for event in found[1:]]
    more = rows.pop()
    assert 0 < len(rows) <= MAX_ROWS and more["total"] == MANY
    older = await pages(api_of(town), before=more["next"])
    assert sorted([row["id"] for page in older for row in page] + [row["id"] for row in rows]) == sorted(made)
    await events.aclose()  # type: ignore[attr-defined]  # a generator


async def test_a_stream_judges_few_approvals_in_a_step() -> None:
    """1,200 that waited took 85 ms of each reader who came."""
    town = Town(per_client=MANY)
    for number in range(MANY):
        await town.pending(amount=number)
    steps, judged = Steps(), Counter[int]()

    def now() -> Client:
        judged[steps.now] += 1
        return LEA

    events = api_of(town).events(LEA.principal, now)
    found = [event async for event in _until_more(events)]
    steps.stop()
    await events.aclose()  # type: ignore[attr-defined]  # a generator
    assert json.loads(found[-1].partition(b"data: ")[2])["total"] == MANY <= judged.total()
    assert max(judged.values()) <= 50


async def test_nobody_takes_the_streams_of_all_others() -> None:
    api = api_of(Town())
    open_ones = [api.events(LEA.principal, lambda: LEA) for _ in range(MAX_STREAMS)]
    assert {await anext(one) for one in open_ones} == {b": approvals\n\n"}
    assert [part async for part in api.events(LEA.principal, lambda: LEA)] == [FULL]
    other = api.events(ANN.principal, lambda: ANN)
    assert await anext(other) == b": approvals\n\n"
    await open_ones[0].aclose()
    again = api.events(LEA.principal, lambda: LEA)
    assert await anext(again) == b": approvals\n\n"
    for one in (*open_ones, other, again):
        await one.aclose()
    assert not api._streams


async def _until_more(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for event in events:
        yield event
        if event.startswith(b"event: more"):
            return


def _rows(worker: str, numbers: range) -> list[Json]:
    return [{"cursor": f"{number:05}-{worker}", "text": "x" * 9_000} for number in numbers]


async def test_pages_of_workers_of_unlike_length_make_pages_in_which_no_row_is_left_out() -> None:
    """One worker has many small rows, one has large ones and cuts its pages by bytes, one has nothing."""
    workers = {"a": _rows("a", range(0, 900, 3)), "b": _rows("b", range(400, 420)), "c": []}
    for row in workers["a"]:
        row["text"] = ""

    async def row_of(row: Json) -> Json:
        return row

    asked, found = PageRequest(limit=MAX_ROWS), list[str]()
    while True:
        cut = {"a": 200, "b": 3, "c": 1}
        answers = []
        for name, rows in workers.items():
            left = [row for row in rows if not asked.before or row["cursor"] < asked.before]
            page = left[-cut[name] :]
            more = {"next": page[0]["cursor"]} if len(left) > len(page) else {}
            answers.append({"rows": page, "total": len(rows), **more})
        whole = await merge_pages(answers, asked)
        assert whole["rows"] and whole["total"] == 320
        assert len(json.dumps(whole)) < MAX_PAGE_BYTES + 4096 and len(whole["rows"]) <= MAX_ROWS
        found = [row["cursor"] for row in whole["rows"]] + found
        if "next" not in whole:
            break
        asked = PageRequest(whole["next"], MAX_ROWS)
    assert found == sorted(row["cursor"] for rows in workers.values() for row in rows)


async def test_nobody_sees_what_another_client_has_asked_before_unless_they_decide() -> None:
    """The last approved arguments are shown beside new ones. Whoever asks is shown their own alone."""
    town = Town()
    bob = Client("key:bob", ("role:dev",), "bob")
    town.people[bob.principal] = bob
    first = await town.pending(amount=1, to="a secret project")
    await town.decide(first)
    await town.run(amount=1, to="a secret project")
    await town.run(town.call(bob, amount=2))
    (asked,) = town.desk.open_ones()
    api = api_of(town)
    status, seen = await api.get(("approvals", asked.id), {}, bob)
    assert status == 200 and "secret project" not in json.dumps(seen)
    status, seen = await api.get(("approvals", asked.id), {}, LEA)
    assert status == 200 and "secret project" in json.dumps(seen["compared_with_last_approved"])
    own = await town.pending(amount=3)
    status, seen = await api.get(("approvals", own.id), {}, ANN)
    assert status == 200 and "secret project" in json.dumps(seen["compared_with_last_approved"])


async def test_whoever_asked_does_not_learn_what_exists_that_they_are_not_shown() -> None:
    town = Town()
    rows: list[Json] = [
        {"own": "secret", "server": "bank", "outcome": "denied", "reason": "denied"},
        {"outcome": "unknown", "reason": "not_found"}, {"own": "pay", "server": "bank", "outcome": "ok"},
    ]  # fmt: skip

    async def history(principal: str) -> list[Json]:
        return rows

    deps = ApprovalsApiDeps(lambda who: frozenset(who.roles), lambda row, revision: row, history)
    api = ApprovalsApi(town.desk, deps, town.store)
    asked = await town.pending(amount=1)
    assert (await api.get(("approvals", asked.id), {}, LEA))[1]["last_calls"] == rows
    assert (await api.get(("approvals", asked.id), {}, ANN))[1]["last_calls"] == rows[2:]


async def test_few_threads_show_large_approvals_however_many_are_asked_for_at_once() -> None:
    """Each holds the interpreter for 100 ms, and forty at once would hold up every call."""
    town = Town()
    approval, api = await town.pending(values=list(range(15_000))), api_of(town)
    before = threading.active_count()
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(api.get, ("approvals", approval.id), {}, LEA)
            group.start_soon(api.post, ("approvals", approval.id, "reveal"), b"{}", "", LEA)
    assert threading.active_count() <= before + MAX_READERS


async def test_arguments_are_revealed_although_they_are_decided_while_that_is_recorded() -> None:
    town = Town()
    approval = await town.pending(amount=1)
    records = town.desk._ledger.records
    tell = records._tell

    async def tell_late(fields: Json) -> bool:
        if fields["approval"]["state"] == "revealed":
            await town.decide(approval, word="deny")
        return await tell(fields)

    records._tell = tell_late
    assert await town.desk.reveal(approval.id, LEA) == {"id": approval.id, "arguments": {"amount": 1}}


async def test_the_large_calls_of_one_client_make_no_other_wait_for_all_of_them() -> None:
    town = Town()
    bob = Client("key:bob", ("role:dev",), "bob")
    order: list[str] = []
    is_first, is_let = threading.Event(), threading.Event()

    def shown(name: str) -> Json:
        order.append(name)
        if not is_first.is_set():
            is_first.set()
            is_let.wait(30)
        return {}

    async def ask(who: Client, name: str) -> None:
        call = town.call(who, name=name)
        binding = bind(who, "tools/call", TOOL, call.params, "r", BUILT_IN["one-of-leads"], town.identity)
        assert isinstance(await town.desk.ask(call, binding, lambda: shown(name)), Approval)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(ask, ANN, f"ann {number}")
            await anyio.to_thread.run_sync(is_first.wait)
            group.start_soon(ask, bob, "bob")
            await anyio.wait_all_tasks_blocked()
            is_let.set()
    assert order.index("bob") == 1, order


async def test_what_is_asked_again_does_not_wait_for_what_is_asked_first() -> None:
    """A client that asks for something large hears meanwhile what became of its other calls."""
    town = Town()
    is_masking, is_let = threading.Event(), threading.Event()

    def shown() -> Json:
        is_masking.set()
        is_let.wait(30)
        return {}

    async def ask(name: str, shown: Callable[[], Json]) -> None:
        call = town.call(ANN, name=name)
        binding = bind(ANN, "tools/call", TOOL, call.params, "r", BUILT_IN["one-of-leads"], town.identity)
        approval = await town.desk.ask(call, binding, shown)
        assert isinstance(approval, Approval)
        ids.append(approval.id)

    ids = list[str]()
    await ask("small", dict)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, "large", shown)
            await anyio.to_thread.run_sync(is_masking.wait)
            try:
                with anyio.fail_after(10):
                    await ask("small", dict)
            finally:
                is_let.set()
    assert ids[0] == ids[1] != ids[2]


def test_a_form_of_many_fields_is_not_read() -> None:
    """Nobody has shown anything yet who sends one."""
    assert approval_page._only("t=1&decision=deny", "t") == "1"
    assert approval_page._only("t=1" + "&a" * 60_000, "t") == ""
