"""What a client is told of its tasks on a stream of its own (SEP-2663, Task Status Notifications)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream
from scripted_server import Front
from tasks.test_task_router import ANN, BOB, LEGACY, OLD, TARGET, Later, begin, modern, task
from waiting import until

from sluicegate.downstream.tasks import polling
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json, Notification
from sluicegate.protocol.model import Call, Client, Failure, Outcome, Result, TaskStarted, not_found
from sluicegate.router import task_subscriptions
from sluicegate.router.task_registry import TaskRegistry
from sluicegate.runtime.loop_budget import client_budgets
from sluicegate.store.memory import MemoryStore

DONE: Json = {"result": {"content": [], "resultType": "complete"}}


class Stream:
    def __init__(self, heard: MemoryObjectReceiveStream[Notification]) -> None:
        self._heard = heard

    async def next(self) -> Json:
        with anyio.fail_after(20):
            notification = await self._heard.receive()
        assert notification.method == "notifications/tasks"
        return notification.params

    async def is_silent(self) -> bool:
        with anyio.move_on_after(3 * task_subscriptions.LEAST_BETWEEN):
            await self._heard.receive()
            return False
        return True

    async def acknowledged(self) -> Json:
        with anyio.fail_after(20):
            notification = await self._heard.receive()
        assert notification.method == "notifications/subscriptions/acknowledged"
        return dict(notification.params["notifications"])


@asynccontextmanager
async def listen(front: Front, *ids: str, client: Client = ANN) -> AsyncIterator[Stream]:
    send, receive = anyio.create_memory_object_stream[Notification](100)
    call = Call(client, "subscriptions/listen", {"notifications": {"taskIds": list(ids)}}, emit=send.send)
    with send, receive:
        async with anyio.create_task_group() as group:
            group.start_soon(front.router, call)
            yield Stream(receive)
            group.cancel_scope.cancel()


def says(server: Later, id: str, status: str, **more: Any) -> None:
    server.says[f":{id}"] = Result(task(f":{id}", status, pollIntervalMs=20, **more))


async def test_looks_at_tasks_have_a_budget_of_their_own() -> None:
    async with Front(server := modern()) as front:
        says(server, "1", "working")
        async with listen(front, await begin(front)) as stream:
            await stream.acknowledged()
            await stream.next()
            before = len(server.asked)
            await until(lambda: len(server.asked) >= before + 3)
            assert client_budgets()["tasks\0" + ANN.principal]._start > 0.0
            assert ANN.principal not in client_budgets()


async def test_the_acknowledgement_names_the_tasks_of_that_client_alone() -> None:
    async with Front(modern()) as front:
        mine, other = await begin(front), await begin(front)
        theirs = await begin(front, BOB)
        async with listen(front, mine, theirs, "nobody's", ":1", "", mine, other) as stream:
            assert await stream.acknowledged() == {"taskIds": [mine, other]}
        async with listen(front, mine, client=BOB) as stream:
            assert await stream.acknowledged() == {}


@pytest.mark.parametrize("ids", ["x", [1], {"x": True}, None, ["x"] * 1001])
async def test_ids_of_another_shape_are_refused(ids: Any) -> None:
    async with Front(modern()) as front:
        outcome = await front.ask("subscriptions/listen", ANN, notifications={"taskIds": ids})
        assert isinstance(outcome, Failure) and outcome.code == INVALID_PARAMS


class CountingStore(MemoryStore):
    reads = 0

    async def get(self, key: str) -> bytes | None:
        self.reads += 1
        return await super().get(key)

    async def get_all(self, keys: Sequence[str]) -> dict[str, bytes]:
        before = self.reads
        found = await super().get_all(keys)
        self.reads = before + 1
        return found


async def test_a_thousand_ids_are_one_read_of_the_store_also_of_tasks_from_before_a_restart() -> None:
    server, store = modern(), CountingStore()
    before = TaskRegistry({"a": server}, store)
    records = [await before.add(Call(ANN, "tools/call", {"name": "t"}), TARGET, task(f":{n}")) for n in range(3)]
    theirs = await before.add(Call(BOB, "tools/call", {"name": "t"}), TARGET, task(":b"))
    ids = [record.id for record in records if record is not None]
    assert theirs is not None
    async with Front(server) as front:
        front.router.tasks.book._store = store
        asked = [f"{number:032}" for number in range(990)] + [f"one.17.{theirs.id}", theirs.id, "x" * 5_000, *ids]
        async with listen(front, *asked) as stream:
            assert await stream.acknowledged() == {"taskIds": ids}
        assert store.reads == 1
        async with listen(front, *ids) as stream:
            assert await stream.acknowledged() == {"taskIds": ids}
        assert store.reads == 1 and front.router.tasks.book.count == len(ids)


def looks(server: Later, id: str) -> int:
    return sum(call.method == "tasks/get" and call.params["taskId"] == f":{id}" for call in server.asked)


async def test_each_state_is_told_once_whole_and_under_our_id_until_the_task_has_ended() -> None:
    server = modern()
    async with Front(server) as front:
        id = await begin(front)
        says(server, "1", "working")
        async with listen(front, id) as stream:
            assert await stream.acknowledged() == {"taskIds": [id]}
            first = await stream.next()
            assert (first["taskId"], first["status"]) == (id, "working")
            says(server, "1", "input_required", inputRequests={"q": {"method": "elicitation/create", "params": {}}})
            assert (await stream.next())["inputRequests"].keys() == {"q"}
            says(server, "1", "completed", **DONE)
            last = await stream.next()
            assert (last["taskId"], last["status"], last["result"]) == (id, "completed", DONE["result"])


async def test_what_has_ended_is_not_looked_at_any_more() -> None:
    server = modern()
    async with Front(server) as front:
        ids = [await begin(front), await begin(front)]
        says(server, "1", "completed", **DONE)
        says(server, "2", "working")
        async with listen(front, *ids) as stream:
            await stream.acknowledged()
            assert {(await stream.next())["status"] for _ in ids} == {"completed", "working"}
            count = looks(server, "1")
            while looks(server, "2") < 5:
                says(server, "2", "working", statusMessage=str(looks(server, "2")))
                assert (await stream.next())["taskId"] == ids[1]
            assert looks(server, "1") == count


async def test_a_message_that_its_client_sees_otherwise_is_told_once() -> None:
    """What the server writes is compared with what it wrote, not with what became of it on the way to the client."""
    server, told = modern(), list[str]()
    async with Front(server) as front:
        id = await begin(front)
        says(server, "1", "working", statusMessage="a\u202eb")

        async def cleaned(call: Call) -> Outcome:
            told.append(call.params["taskId"])
            outcome = await front.router.tasks.about(call)
            assert isinstance(outcome, Result)
            return Result({**outcome.value, "statusMessage": outcome.value["statusMessage"].replace("\u202e", "")})

        front.router.task_subscriptions._about_task = cleaned
        async with listen(front, id) as stream:
            await stream.acknowledged()
            assert (await stream.next())["statusMessage"] == "ab"
            with anyio.fail_after(20):
                while looks(server, "1") < 8:  # noqa: ASYNC110 - the server is asked, and no event says so
                    await anyio.sleep(0.01)
            assert told == [id]
            says(server, "1", "working", statusMessage="c")
            assert (await stream.next())["statusMessage"] == "c"


async def test_who_comes_when_the_task_has_ended_is_told_that_it_has() -> None:
    server = modern()
    async with Front(server) as front:
        id = await begin(front)
        says(server, "1", "completed", **DONE)
        async with listen(front, id) as stream:
            await stream.acknowledged()
            assert (await stream.next())["status"] == "completed"


async def test_a_servers_word_that_a_task_has_changed_does_not_wait_for_the_next_look() -> None:
    server = modern()
    async with Front(server) as front:
        id = await begin(front)
        server.says[":1"] = Result(task(":1", pollIntervalMs=60_000))
        async with listen(front, id) as stream:
            await stream.acknowledged()
            assert (await stream.next())["status"] == "working"
            says(server, "1", "completed", **DONE)
            word = Notification("notifications/tasks/status", task(":1", "completed"))
            assert front.router.tasks.heard("a", word) is None  # of no session
            assert (await stream.next())["status"] == "completed"


async def test_what_the_client_may_not_know_of_any_more_is_not_told() -> None:
    server = modern()
    async with Front(server) as front:
        id = await begin(front)
        says(server, "1", "working")
        asked = anyio.Event()

        async def denied(call: Call) -> Outcome:
            asked.set()
            return not_found(call.method, call.params)

        front.router.task_subscriptions._about_task = denied
        async with listen(front, id) as stream:
            await stream.acknowledged()
            with anyio.fail_after(20):
                await asked.wait()
            assert await stream.is_silent()
        front.hide = lambda key, own: own == "t"
        async with listen(front, id) as stream:
            assert await stream.acknowledged() == {}


async def test_a_task_of_a_legacy_session_is_told_there_and_nowhere_else() -> None:
    async with Front(Later(LEGACY, "m")) as front:
        id = await begin(front, OLD, task={})
        async with listen(front, id) as stream:
            assert await stream.acknowledged() == {}


async def test_a_task_that_sluice_makes_itself_is_told_when_it_changes() -> None:
    said = [task("apr_1", pollIntervalMs=60_000)]

    async def holder(call: Call) -> Outcome:
        return Result(said[-1])

    async with Front(modern()) as front:
        tasks = front.router.tasks
        call = Call(ANN, "tools/call", {"name": "t"}, target=TARGET)
        started = await tasks.keep(call, TARGET, TaskStarted(said[0]), holder)
        assert isinstance(started, TaskStarted)
        async with listen(front, started.task["taskId"]) as stream:
            await stream.acknowledged()
            assert (await stream.next())["status"] == "working"
            said.append(task("apr_1", "completed", **DONE))
            tasks.heard("a", Notification("notifications/tasks/status", task("apr_1", "completed")))
            assert (await stream.next())["status"] == "completed"


def test_what_a_server_writes_of_a_task_that_it_cancelled_is_in_no_sentence_of_ours() -> None:
    result = polling._cancelled(task("m:1", "cancelled", statusMessage="ok. NOT EXECUTED: try again"))
    assert [block["text"] for block in result.value["content"]] == [
        "The server cancelled this call.", "The server's message: ok. NOT EXECUTED: try again"]  # fmt: skip
    (block,) = polling._cancelled(task("m:1", "cancelled")).value["content"]
    assert block["text"] == "The server cancelled this call." and result.value["isError"]
