"""Tasks as the router has them: ids of ours, whose they are, how many there may be, and what is believed of a server.

The servers here do what no real one does: they say the same id twice, speak of other tasks, and take back an end.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from scripted_server import Front, Scripted

from sluicegate.guards.inspect import inspect_params, inspect_task_state
from sluicegate.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Json,
    Notification,
)
from sluicegate.protocol.model import (
    Call,
    Client,
    Failure,
    Outcome,
    Result,
    Target,
    TaskNotification,
    TaskStarted,
    not_found,
    refuse,
)
from sluicegate.protocol.tasks import owner
from sluicegate.router import task_registry
from sluicegate.router.task_registry import TaskRegistry
from sluicegate.store import StoreFailed, Write
from sluicegate.store.memory import MemoryStore

EXTENSION: Json = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
LEGACY: Json = {"tools": {}, "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
ANN = Client("key:ann", capabilities=EXTENSION)
BOB = replace(ANN, principal="key:bob")
NEXT = replace(ANN, credential="another key")
"""Who has the key of that name by now."""
OLD = Client("key:ann", revision="2025-11-25", session="s1")
TOOL: Json = {"name": "t", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}}
TARGET = Target("a", "tool", "t", "a__t", TOOL)


def task(id: str, status: str = "working", **more: Any) -> Json:
    times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
    return {"taskId": id, "status": status, **times, "ttlMs": 60_000, **more}


class Later(Scripted):
    """Makes a task of every call; `says` is what it says of each."""

    def __init__(self, capabilities: Json, mark: str = "") -> None:
        super().__init__("a", tools=[TOOL], capabilities=capabilities)
        self.mark, self.says, self.ids = mark, dict[str, Outcome](), 0
        self.next: str | None = None
        self.answers |= {"tools/call": self.begin} | dict.fromkeys(
            ("tasks/get", "tasks/cancel", "tasks/update", "tasks/result"), self.about
        )

    async def begin(self, call: Call) -> Outcome:
        self.ids += 1
        id = f"{self.mark}:{self.next or self.ids}"
        self.says.setdefault(id, Result(task(id)))
        return TaskStarted(task(id))

    async def about(self, call: Call) -> Outcome:
        return self.says[call.params["taskId"]]


def modern() -> Later:
    return Later({"tools": {}, **EXTENSION})


async def begin(front: Front, client: Client = ANN, **params: Any) -> str:
    call = Call(client, "tools/call", {"name": "t", **params}, target=TARGET)
    outcome = await front.router(call)
    assert isinstance(outcome, TaskStarted), outcome
    return str(outcome.task["taskId"])


async def about(front: Front, what: str, id: object, client: Client = ANN, **params: Any) -> Outcome:
    """As the name guard does it: nothing is asked of what does not resolve."""
    call = Call(client, f"tasks/{what}", {"taskId": id, **params})
    target = await front.router.tasks.resolve(call)
    if target is None or isinstance(target, Failure):
        return target or not_found(call.method, call.params)
    return await front.router(replace(call, target=target))


@pytest.mark.parametrize("what", ["get", "cancel", "update"])
async def test_a_task_is_found_by_its_own_id_and_its_own_client_alone(what: str) -> None:
    async with Front(modern()) as front:
        id = await begin(front)
        assert isinstance(await about(front, what, id), Result)
        nobody = await about(front, what, "nobody's")
        assert nobody == Failure(INVALID_PARAMS, "Task not found")
        for foreign in (id, id + "=", id[:-1], ":1", "1", "", None, 7, {"id": id}, "\ud800", "x" * 100_000):
            assert await about(front, what, foreign, BOB) == nobody
            assert await about(front, what, foreign, NEXT) == nobody
        for altered in (id + "=", id[:-1], ":1", "1", "", None, 7, [id], "\ud800"):
            assert await about(front, what, altered) == nobody


async def test_who_did_not_declare_the_extension_is_told_so_before_anything_else() -> None:
    async with Front(modern()) as front:
        id = await begin(front)
        outcome = await about(front, "get", id, replace(ANN, capabilities={}))
        assert isinstance(outcome, Failure) and outcome.code == -32021
        assert outcome.data == {"requiredCapabilities": EXTENSION}
        heard = await front.ask("subscriptions/listen", replace(ANN, capabilities={}), notifications={"taskIds": [id]})
        assert heard == outcome


async def test_where_no_server_has_tasks_there_are_no_such_methods() -> None:
    async with Front(Scripted("a", tools=[TOOL])) as front:
        for client in (ANN, OLD):
            outcome = await about(front, "get", "x", client)
            assert isinstance(outcome, Failure) and outcome.code == METHOD_NOT_FOUND
            assert "tasks" not in (await front.page("server/discover", client))["capabilities"]
        outcome = await front.ask("tasks/list", OLD)
        assert isinstance(outcome, Failure) and outcome.code == METHOD_NOT_FOUND


async def test_a_server_of_the_other_era_makes_nobody_believe_in_tasks() -> None:
    server = Later(LEGACY, "m")
    server.era_for = lambda client: "legacy"  # type: ignore[method-assign]
    async with Front(server) as front:
        capabilities = (await front.page("server/discover", ANN))["capabilities"]
        assert "tasks" not in capabilities and "extensions" not in capabilities
        assert (await front.page("server/discover", OLD))["capabilities"]["tasks"] == LEGACY["tasks"]


async def test_a_server_that_hands_out_an_id_twice_crosses_nobodys_tasks() -> None:
    server = modern()
    async with Front(server) as front:
        server.next = "same"
        id = await begin(front)
        outcome = await front.router(Call(BOB, "tools/call", {"name": "t"}, target=TARGET))
        assert isinstance(outcome, Result) and outcome.reason == "outcome_unknown"
        text = {"content": [{"type": "text", "text": "whose"}]}
        server.says[":same"] = Result(task(":same", "completed", result=text))
        lost = await about(front, "get", id)
        assert isinstance(lost, Result) and lost.value["status"] == "failed" and "whose" not in str(lost.value)
        assert await front.router._book.find(owner(BOB), id) is None
        again = await begin(front, BOB)  # a server that began anew is of use again
        assert isinstance(await about(front, "get", again, BOB), Result)


async def test_an_id_that_comes_again_after_its_end_is_another_task_of_the_same_client() -> None:
    server = modern()
    async with Front(server) as front:
        server.next = "same"
        first = await begin(front)
        server.says[":same"] = Result(task(":same", "completed", result={"content": []}))
        assert isinstance(await about(front, "get", first), Result)
        server.says[":same"] = Result(task(":same"))
        second = await begin(front)
        assert second != first
        states = [await about(front, "get", id) for id in (first, second)]
        assert [one.value["status"] for one in states if isinstance(one, Result)] == ["failed", "working"]


async def test_a_task_is_asked_about_at_the_server_that_made_it_alone() -> None:
    server = modern()
    async with Front(server) as front:
        id, other = await begin(front), await begin(front)
        server.identity = "another"
        lost = await about(front, "get", id)
        assert isinstance(lost, Result) and lost.value["status"] == "failed"
        cancelled = await about(front, "cancel", other)
        assert isinstance(cancelled, Failure)
        server.ids = 0
        again = await begin(front)  # the other server gives the same id
        working = await about(front, "get", again)
        assert isinstance(working, Result) and working.value["status"] == "working"


async def test_what_has_ended_does_not_go_on() -> None:
    server = modern()
    async with Front(server) as front:
        id = await begin(front)
        server.says[":1"] = Result(task(":1", "completed", result={"content": []}))
        assert isinstance(await about(front, "get", id), Result)
        for status in ("working", "input_required", "failed", "cancelled"):
            server.says[":1"] = Result(task(":1", status))
            outcome = await about(front, "get", id)
            assert outcome == Failure(INTERNAL_ERROR, "The server took back that the task is completed")
        server.says[":1"] = Result(task(":1", "completed", result={"content": []}))
        assert isinstance(await about(front, "get", id), Result)


async def test_an_answer_of_another_form_than_its_question_reaches_no_server() -> None:
    server, ask = modern(), {"method": "elicitation/create"}
    async with Front(server) as front:
        id = await begin(front)
        server.says[":1"] = Result(task(":1", "input_required", inputRequests={"who": ask}))
        await about(front, "get", id)
        said = await about(front, "update", id, inputResponses={"who": {"roots": []}})
        assert said == Failure(INVALID_PARAMS, "inputResponses['who'] is no answer to elicitation/create")
        assert server.count("tasks/update") == 0
        for fits in ({"who": {"action": "accept"}}, {"of another worker": {"roots": []}}):
            server.says[":1"] = Result({})
            assert isinstance(await about(front, "update", id, inputResponses=fits), Result)
        assert server.count("tasks/update") == 2


ASK: Json = {"method": "elicitation/create"}
FIT, UNFIT, OTHER = {"action": "accept"}, {"roots": []}, {"role": "user"}
LONG = "k" * 2 * task_registry.MAX_KEY


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_only_what_is_asked_reaches_the_server_whoever_looked_before(is_restarted: bool) -> None:
    server, store = modern(), MemoryStore()
    async with Front(server) as front:
        book = front.router.tasks.book
        book._store = store
        id = await begin(front)
        server.says[":1"] = Result(task(":1", "input_required", inputRequests={"who": ASK, LONG: ASK}))
        if is_restarted:
            front.router.tasks.book = TaskRegistry({"a": server}, store)
        refused = await about(front, "update", id, inputResponses={"who": UNFIT})
        assert refused == Failure(INVALID_PARAMS, "inputResponses['who'] is no answer to elicitation/create")
        assert server.count("tasks/update") == 0 and server.count("tasks/get") == 1
        for given, passed in (
            ({"who": FIT, "other": OTHER}, {"who": FIT}), ({"other": OTHER}, {}), ({LONG: FIT}, {LONG: FIT}), ({}, {}),
        ):  # fmt: skip
            assert isinstance(await about(front, "update", id, inputResponses=given), Result)
            assert server.asked[-1].params == {"taskId": ":1", "inputResponses": passed}
        server.says[":1"] = Result(task(":1", "input_required", inputRequests={"next": ASK}))
        await about(front, "update", id, inputResponses={"next": FIT, "who": FIT})
        assert server.asked[-1].params["inputResponses"] == {"next": FIT}


@pytest.mark.parametrize("what", ["get", "cancel"])
async def test_answers_go_with_an_update_alone(what: str) -> None:
    server = modern()
    async with Front(server) as front:
        id = await begin(front)
        server.says[":1"] = Result(task(":1", "input_required", inputRequests={"who": ASK}))
        await about(front, what, id, inputResponses={"who": UNFIT})
        assert server.asked[-1].method == f"tasks/{what}" and "inputResponses" not in server.asked[-1].params


async def test_an_answer_whose_question_cannot_be_looked_up_reaches_no_server() -> None:
    server = modern()
    async with Front(server) as front:
        id = await begin(front)
        server.says[":1"] = gone = Failure(INTERNAL_ERROR, "gone", reason="server_unavailable")
        assert await about(front, "update", id, inputResponses={"who": FIT}) == gone
        assert server.count("tasks/update") == 0


async def test_a_task_that_its_server_has_forgotten_is_unknown() -> None:
    server = modern()
    async with Front(server) as front:
        id = await begin(front)
        server.says[":1"] = Failure(INVALID_PARAMS, "Task has expired")
        assert await about(front, "get", id) == Failure(INVALID_PARAMS, "Task not found")
        server.says[":1"] = Result(task(":1"))
        assert await about(front, "get", id) == Failure(INVALID_PARAMS, "Task not found")


async def test_a_legacy_task_whose_connection_ended_has_failed_for_good() -> None:
    server = Later(LEGACY, "m")
    async with Front(server) as front:
        id = await begin(front, OLD, task={})
        server.says["m:1"] = Failure(INTERNAL_ERROR, "gone", reason="outcome_unknown")
        outcome = await about(front, "get", id, OLD)
        assert isinstance(outcome, Result) and outcome.value["status"] == "failed" and outcome.value["taskId"] == id
        server.says["m:1"] = Result(task("m:1"))
        outcome = await about(front, "result", id, OLD)
        assert isinstance(outcome, Result) and outcome.value["isError"] is True and outcome.reason == "outcome_unknown"
        assert outcome.value["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": id}
        assert (await front.page("tasks/list", OLD))["tasks"][0]["status"] == "failed"


async def test_the_result_of_a_task_that_sluice_refused_says_so_to_the_log_too() -> None:
    server = Later(LEGACY, "m")
    async with Front(server) as front:
        id = await begin(front, OLD, task={})
        server.says["m:1"] = refuse("tools/call", "approval_denied", "NOT EXECUTED: it was denied.")
        outcome = await about(front, "result", id, OLD)
        assert isinstance(outcome, Result) and outcome.reason == "approval_denied"


# ---------------------------------------------------------------- lists, and what is told unasked


async def test_the_list_has_all_tasks_of_the_client_once_and_nobody_elses() -> None:
    async with Front(Later(LEGACY, "m")) as front:
        mine = [await begin(front, OLD, task={"ttl": 5}) for _ in range(120)]
        await begin(front, replace(OLD, principal="key:bob"), task={})
        await begin(front, replace(OLD, credential="another key"), task={})
        found: list[str] = []
        params: Json = {}
        while True:
            page = await front.page("tasks/list", OLD, **params)
            found += [entry["taskId"] for entry in page["tasks"]]
            if "nextCursor" not in page:
                break
            params = {"cursor": page["nextCursor"]}
        assert found == mine
        for cursor in ("x", "", 7, params["cursor"][:-2]):
            outcome = await front.ask("tasks/list", OLD, cursor=cursor)
            assert isinstance(outcome, Failure) and outcome.code == INVALID_PARAMS
        other = await front.ask("tasks/list", replace(OLD, principal="key:bob"), **params)
        assert isinstance(other, Failure) and other.code == INVALID_PARAMS


async def test_who_is_nobody_in_particular_has_the_tasks_of_its_own_session_alone() -> None:
    """2025-11-25 basic/utilities/tasks#task-isolation-and-access-control"""
    one = Client("anonymous", revision="2025-11-25", session="s1")
    two, modern_one = replace(one, session="s2"), replace(ANN, principal="anonymous")
    server = Later(LEGACY, "m")
    async with Front(server) as front:
        id = await begin(front, one, task={})
        assert (await front.page("tasks/list", two))["tasks"] == []
        for what in ("get", "result", "cancel"):
            assert await about(front, what, id, two) == Failure(INVALID_PARAMS, "Task not found")
        assert server.count("tasks/get") == server.count("tasks/cancel") == 0
        assert isinstance(await about(front, "get", id, one), Result)
        assert [entry["taskId"] for entry in (await front.page("tasks/list", one))["tasks"]] == [id]
    async with Front(modern()) as front:
        id = await begin(front, modern_one)
        assert isinstance(await about(front, "get", id, modern_one), Result)


async def test_a_list_looks_at_a_task_no_more_often_than_its_server_suggests() -> None:
    server = Later(LEGACY, "m")
    async with Front(server) as front:
        for number in range(1, 4):
            server.says[f"m:{number}"] = Result(task(f"m:{number}", pollIntervalMs=60_000))
            await begin(front, OLD, task={})
        server.says["m:3"] = Failure(INTERNAL_ERROR, "busy")
        for _ in range(20):
            assert len((await front.page("tasks/list", OLD))["tasks"]) == 3
        assert server.count("tasks/get") == 3
        word = Notification("notifications/tasks/status", task("m:2", statusMessage="half", pollIntervalMs=60_000))
        front.router.tasks.heard("a", word)
        assert [entry.get("statusMessage") for entry in (await front.page("tasks/list", OLD))["tasks"]][1] == "half"
        (first, *_) = front.router.tasks.book.of(owner(OLD))
        first.looked = float("-inf")
        await front.page("tasks/list", OLD)
        assert server.count("tasks/get") == 4


async def test_a_word_on_a_task_is_for_the_session_that_has_it() -> None:
    async with Front(Later(LEGACY, "m")) as front:
        id = await begin(front, OLD, task={})
        tasks = front.router.tasks
        told = tasks.heard("a", Notification("notifications/tasks/status", task("m:1", "input_required")))
        assert told is not None and told[0] == "s1" and told[1].params["taskId"] == id
        assert isinstance(told[1], TaskNotification) and told[1].target == TARGET
        assert tasks.heard("a", Notification("notifications/tasks/status", task("m:2"))) is None
        assert tasks.heard("b", Notification("notifications/tasks/status", task("m:1"))) is None
        assert tasks.heard("a", Notification("notifications/tasks/status", task("m:1", "failed"))) is not None
        assert tasks.heard("a", Notification("notifications/tasks/status", task("m:1", "working"))) is None
        assert tasks.public_id("a", "m:1", "s1") == id and tasks.public_id("a", "m:1", "s2") is None


async def test_what_a_server_writes_of_its_tasks_is_inspected_in_lists_and_notifications() -> None:
    inspected = partial(inspect_task_state, inspect_params({"a": "block"}))
    async with Front(Later(LEGACY, "m"), inspected=inspected) as front:
        await begin(front, OLD, task={})
        said = task("m:1", statusMessage="a\u202eb")
        heard = front.router.tasks.heard("a", Notification("notifications/tasks/status", said))
        assert heard is not None and heard[1].params.keys() == said.keys() - {"statusMessage"}
        front.servers["a"].says["m:1"] = Result(said)  # type: ignore[attr-defined]
        (listed,) = (await front.page("tasks/list", OLD))["tasks"]
        assert listed["status"] == "working" and "statusMessage" not in listed


async def test_a_wish_for_a_task_is_refused_where_the_tool_has_none_and_ignored_where_nothing_was_declared() -> None:
    server = Later(LEGACY, "m")
    async with Front(server) as front:
        bare = replace(TARGET, item={"name": "t"})
        outcome = await front.router(Call(OLD, "tools/call", {"name": "t", "task": {}}, target=bare))
        assert isinstance(outcome, Failure) and outcome.code == METHOD_NOT_FOUND
    plain = Scripted("a", tools=[TOOL])

    async def answer(call: Call) -> Outcome:
        assert "task" not in call.params
        return Result({"content": []})

    plain.answers["tools/call"] = answer
    async with Front(plain) as front:
        wish = Call(OLD, "tools/call", {"name": "t", "task": {}}, target=TARGET)
        assert await front.router(wish) == Result({"content": []})


async def test_whoever_else_makes_a_task_answers_for_it() -> None:
    server, asked = modern(), list[str]()

    async def holder(call: Call) -> Outcome:
        asked.append(f"{call.method} {call.params['taskId']}")
        return Result(task("apr_1", "working", statusMessage="waiting for approval by role:lead"))

    async with Front(server) as front:
        tasks = front.router.tasks
        call = Call(ANN, "tools/call", {"name": "t"}, target=TARGET)
        assert await tasks.may_hold(call)
        assert not await tasks.may_hold(replace(call, client=replace(ANN, capabilities={})))
        started = await tasks.keep(call, TARGET, TaskStarted(task("apr_1")), holder)
        assert isinstance(started, TaskStarted)
        told = await about(front, "get", started.task["taskId"])
        assert isinstance(told, Result) and told.value["statusMessage"] == "waiting for approval by role:lead"
        assert asked == ["tasks/get apr_1"] and server.count("tasks/get") == 0


# ---------------------------------------------------------------- how many, and how long


@pytest.mark.parametrize("client", [ANN, OLD], ids=["modern", "legacy"])
async def test_whatever_a_server_writes_into_a_task_a_few_bytes_of_it_are_kept(client: Client) -> None:
    """Its client is told all of it once."""
    more: Json = {"extra": "x" * 100_000, "wide": [[]] * 10_000, "_meta": {"y": "y" * 100_000}}
    server = modern() if client is ANN else Later(LEGACY, "m")
    async with Front(server) as front:
        tasks = front.router.tasks
        call = Call(client, "tools/call", {"name": "t"}, target=TARGET)
        started = await tasks.keep(call, TARGET, TaskStarted(task(f"{server.mark}:1", **more)))
        assert isinstance(started, TaskStarted) and more.items() <= started.task.items()
        (record,) = tasks.book.of(owner(client))
        assert len(task_registry._pack(record)) < 1_000
        server.says[record.own] = Result(task(record.own, **more))
        assert isinstance(await about(front, "get", record.id, client), Result)
        assert len(task_registry._pack(record)) < 1_000


async def test_ten_thousand_running_tasks_are_bounded_and_those_that_run_are_kept() -> None:
    server = modern()
    async with Front(server) as front:
        first = await begin(front)
        refused = 0
        for _ in range(10_000):
            outcome = await front.router(Call(ANN, "tools/call", {"name": "t"}, target=TARGET))
            if isinstance(outcome, Result):
                assert outcome.value["_meta"]["dev.sluice/reason"] == "rate_limited"
                refused += 1
        assert refused == 10_001 - task_registry.MAX_TASKS and server.ids == task_registry.MAX_TASKS
        assert isinstance(await about(front, "get", first), Result)
        await begin(front, BOB)  # another client has room


async def test_what_has_ended_makes_room() -> None:
    server = modern()
    async with Front(server) as front:
        ids = [await begin(front) for _ in range(task_registry.MAX_TASKS)]
        server.says[":1"] = Result(task(":1", "completed", result={}))
        await about(front, "get", ids[0])
        call = Call(replace(ANN, capabilities={}), "tools/call", {"name": "t"}, target=TARGET)
        assert await front.router.tasks.refuses(call) is None  # it cannot become a task, and needs no room
        assert isinstance(await about(front, "get", ids[0]), Result)
        await begin(front)
        assert await about(front, "get", ids[0]) == Failure(INVALID_PARAMS, "Task not found")
        assert isinstance(await about(front, "get", ids[1]), Result)


async def test_what_made_room_is_in_the_store_no_more() -> None:
    store = MemoryStore()
    registry = TaskRegistry({"a": modern()}, store)
    for number in range(2 * task_registry.MAX_TASKS):
        assert not await registry.is_full("key:ann")
        record = await registry.add(Call(ANN, "tools/call", {"name": "t"}), TARGET, task(f":{number}"))
        assert record is not None
        record.task = task(record.own, "completed")
    assert len(await store.scan("")) == registry.count <= task_registry.MAX_TASKS


async def test_few_rows_leave_the_store_at_a_time_and_none_for_what_is_over_or_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time of a row is that of its task. An engine has a lock for each row of a change, and not without end."""
    now, lots, fails = 0.0, list[int](), False

    class Counting(MemoryStore):
        async def swap(self, key: str, expected: bytes | None, writes: Sequence[Write]) -> bool:
            lots.append(len(writes))
            if fails:
                raise StoreFailed("out of shared memory")
            return await super().swap(key, expected, writes)

    async def fill(prefix: str) -> None:
        for number in range(registry.count, 10):
            own = f"{prefix}{now}.{number}"
            record = await registry.add(Call(ANN, "tools/call", {"name": "t"}), TARGET, task(own))
            assert record is not None
            record.task = task(own, "completed")

    monkeypatch.setattr(task_registry, "MAX_TASKS", 10)
    monkeypatch.setattr(task_registry, "AT_ONCE", 1)
    registry = TaskRegistry({"a": modern()}, Counting(lambda: now), lambda: now)
    await fill(":")
    assert not await registry.is_full("key:ann") and lots == [1, 1]
    await fill(":")
    now = 1_000.0
    assert not await registry.is_full("key:ann") and registry.count == 0
    await fill("of a connection")
    assert not await registry.is_full("key:ann") and lots == [1, 1]
    await fill(":")
    now, fails = 2_000.0, True
    assert not await registry.is_full("key:ann") and registry.count == 0
    await fill(":")
    assert not await registry.is_full("key:ann") and lots == [1, 1, 1]


async def test_where_there_are_too_many_of_all_those_leave_first_whose_client_has_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_registry, "MAX_ALL", 12)
    registry = TaskRegistry({"a": modern()})
    for number, client in enumerate([ANN, ANN, *([BOB] * 10)]):
        record = await registry.add(Call(client, "tools/call", {"name": "t"}), TARGET, task(f":{number}"))
        assert record is not None
        record.task = task(record.own, "completed")
    assert not await registry.is_full("key:eve")
    assert [len([*registry.of(owner)]) for owner in ("key:ann", "key:bob")] == [2, 8]


async def test_a_record_lives_as_long_as_its_task_and_outlives_the_process_where_the_task_does() -> None:
    now, store = 0.0, MemoryStore(lambda: now)
    server = modern()

    def book() -> TaskRegistry:
        return TaskRegistry({"a": server}, store, lambda: now)

    call = Call(ANN, "tools/call", {"name": "t"})
    record = await book().add(call, TARGET, task(":1"))
    bound = await book().add(call, TARGET, task("m:1"))
    assert record is not None and bound is not None
    again = await book().find("key:ann", record.id)
    assert again is not None and (again.own, again.target.own, again.task) == (":1", "t", record.task)
    assert await book().find("key:bob", record.id) is None
    assert await book().find("key:ann", bound.id) is None
    now = 60.0 + task_registry.GRACE
    assert await book().find("key:ann", record.id) is None
