"""When lists are walked, who waits for it, and which server a name or URI leads to."""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import anyio
import pytest
from listed import listing
from loop_steps import Steps
from scripted_server import ALL, CLIENT, OTHER, Front, Scripted, resources, tools
from waiting import until

from sluicegate.catalog.list_bounds import ITEM, PIECE, Bounds, Intake
from sluicegate.catalog.snapshot import Indexed, ServerNaming, assemble, without
from sluicegate.catalog_cache import list_walk, server_catalog, snapshot_store
from sluicegate.catalog_cache.target_resolver import unlisted_target
from sluicegate.hub import Event
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import Call, Client, Failure, Outcome, Result, Target
from sluicegate.protocol.pieces import in_one_step
from sluicegate.runtime.loop_budget import budget_of
from sluicegate.store.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("no_piece_is_short")

TOOLS_CHANGED = Notification("notifications/tools/list_changed", {})


def always(outcome: Outcome) -> Callable[[Call], Awaitable[Outcome]]:
    async def answer(call: Call) -> Outcome:
        return outcome

    return answer


def anything(event: Event) -> bool:
    return True


async def hang(call: Call) -> Outcome:
    await anyio.sleep_forever()
    raise AssertionError


def pages_of(*pages: Json) -> Callable[[Call], Awaitable[Outcome]]:
    """The first page, then page after page whatever the cursor says, the last one for ever."""
    rest = list(pages)

    async def answer(call: Call) -> Outcome:
        return Result(rest.pop(0) if len(rest) > 1 else rest[0])

    return answer


def page(*names: str, **more: Any) -> Json:
    return {"tools": [{"name": name} for name in names], **more}


async def target(front: Front, method: str, client: Any = CLIENT, **params: Any) -> Target | None:
    return await front.resolver.resolve(Call(client, method, params))


# ---------------------------------------------------------------- walking


async def test_a_change_that_is_announced_again_and_again_is_noted_once_in_each_scope() -> None:
    """A server may announce one seventy times in what is read of it in one step, and have a thousand scopes."""
    noted = list[str]()

    class Noted(set[str]):
        def __ior__(self, methods: Any) -> Any:
            noted.extend(methods)
            return super().__ior__(methods)

    server = Scripted("a", tools=["x"])
    clients = [Client(f"key:{number}") for number in range(10)]
    async with Front(server) as front:
        for client in clients:
            await front.lists.snapshot("a", client)
        for number in range(1, 4):
            for catalog in front.lists.catalogs.of("a"):
                catalog.stale = Noted(catalog.stale)
            noted.clear()
            before = front.lists.announced("a", clients[0], "tools/list")
            for _ in range(70):
                front.lists.publish("a", None, TOOLS_CHANGED)
            assert noted == ["tools/list"] * len(clients)
            assert front.lists.announced("a", clients[0], "tools/list") == before + 70, "a cursor of before is too old"
            server.items["tools/list"] = tools("x", *map(str, range(number)))
            snapshot = await front.lists.snapshot("a", clients[0])  # from its walk on, a change is news again
            assert snapshot is not None and len(snapshot.entries("tools/list")) == 1 + number
        front.lists.changed("a", None, "tool")
        assert front.lists.catalogs.get("a", CLIENT).changed == set()
        front.lists.changed("a", None, "tool")
        assert front.lists.catalogs.get("a", CLIENT).changed == {"tools/list"}, "a new scope is told, too"


async def test_many_who_ask_at_once_cause_one_walk() -> None:
    server = Scripted("a", tools=["x"])
    async with Front(server) as front:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(front.lists.snapshot, "a", CLIENT)
        assert server.count("tools/list") == server.count("server/discover") == 1


async def test_the_walk_survives_the_client_that_started_it() -> None:
    server = Scripted("a", tools=["x"])
    server.is_ready = anyio.Event()
    async with Front(server) as front:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(front.lists.snapshot, "a", CLIENT)
                await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            server.is_ready.set()
            assert (await front.lists.snapshot("a", OTHER)) is not None
            assert await target(front, "tools/call", name="a__x")
        assert server.count("tools/list") == 2  # one for each scope


async def test_scopes_are_walked_apart_and_equal_content_is_one_object() -> None:
    server = Scripted("a", tools=["x"])
    async with Front(server) as front:
        assert await front.lists.snapshot("a", CLIENT) is await front.lists.snapshot("a", OTHER)
        assert server.count("tools/list") == 2


async def test_a_long_list_is_made_in_steps_and_once_for_all_that_list_the_same() -> None:
    """Threads that made one for each client and each walk held up every read and write of the loop meanwhile."""
    server = Scripted("a", per_page=3_000, tools=[f"t{number}" for number in range(3_000)])
    made = list[int]()  # the steps in which definitions were made

    def mark(item: Json) -> str:
        made.append(steps.now)
        return ""

    async with Front(server, list_timeout=30) as front:  # on a busy machine its server has used up its part
        front.lists.namings["a"] = replace(front.lists.namings["a"], fingerprint=mark)
        steps = Steps()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(front.lists.snapshot, "a", CLIENT)
                group.start_soon(front.lists.snapshot, "a", OTHER)
            front.lists.changed("a", None, "tool")
            snapshot = await front.lists.snapshot("a", CLIENT)
            assert snapshot is not None and len(snapshot.entries("tools/list")) == 3_000
            assert (len(made), server.count("tools/list")) == (3_000, 3), "made once, of three walks"
            assert max(Counter(made).values()) <= PIECE // ITEM
        steps.stop()


async def test_a_list_that_is_other_by_a_type_alone_is_made_anew() -> None:
    """Python takes 1 for true."""
    server = Scripted("a", tools=["x"])
    async with Front(server) as front:
        for hint in (1, True, 1.0):
            server.items["tools/list"] = [{"name": "x", "annotations": {"readOnlyHint": hint}}]
            front.lists.changed("a", None, "tool")
            snapshot = await front.lists.snapshot("a", CLIENT)
            assert snapshot is not None
            assert type(snapshot.find["tool", "a__x"].shown["annotations"]["readOnlyHint"]) is type(hint)


async def test_undeclared_lists_are_asked_for_once_and_a_missing_method_is_an_empty_list() -> None:
    server = Scripted("a", tools=["x"], capabilities={"tools": {}, "prompts": {}})
    server.answers["prompts/list"] = always(Failure(-32601, "Method not found"))
    async with Front(server) as front:
        snapshot = await front.lists.snapshot("a", CLIENT)
        assert snapshot is not None and len(snapshot.find) == 1
        front.lists.changed("a", None, "tool")
        front.lists.changed("a", None, "res")
        assert await front.lists.snapshot("a", CLIENT) is snapshot
        assert server.count("resources/templates/list") == server.count("resources/list") == 1
        assert not front.lists.catalogs.get("a", CLIENT).stale


async def test_a_server_that_lists_what_it_does_not_declare_is_listed_with_one_warning(
    caplog: Any, monkeypatch: Any
) -> None:
    """Whatever it declares instead; a server that hangs at what it does not know costs its other lists nothing."""
    monkeypatch.setattr(list_walk, "UNDECLARED_TIME", 0.2)
    server = Scripted("a", capabilities={"prompts": {}})
    server.answers["tools/list"] = pages_of(page("x"))
    server.answers["resources/list"] = always(Result({"resources": resources("file:///r")}))
    server.answers["resources/templates/list"] = hang
    async with Front(server, list_timeout=0.5) as front:
        with anyio.fail_after(10):
            for client in (CLIENT, OTHER):
                assert await front.names("tools/list", client) == ["a__x"]
                assert await front.names("resources/list", client) == ["a+file:///r"]
        assert [record.message for record in caplog.records if "without declaring" in record.message] == [
            "server a lists resources without declaring them", "server a lists tools without declaring them",
        ]  # fmt: skip


async def test_a_question_about_an_undeclared_list_that_was_not_answered_is_asked_again_but_not_for_ever(
    caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(list_walk, "UNDECLARED_TIME", 0.05)
    server = Scripted("a", capabilities={})
    for method in ("tools/list", "resources/list", "resources/templates/list"):
        server.answers[method] = hang
    async with Front(server) as front:
        with anyio.fail_after(20):
            assert await front.names("tools/list") == []
            server.answers["tools/list"] = pages_of(page("x"))
            server.answers["resources/list"] = always(Failure(-32603, "busy"))
            for _ in range(list_walk.TRIES + 2):
                front.lists.walks.outdate("a")
                assert await front.names("tools/list") == ["a__x"]
        assert [server.count(method) for method in ("prompts/list", "resources/templates/list")] == [
            1,
            list_walk.TRIES,
        ]
        assert server.count("resources/list") == list_walk.TRIES
        assert [record.message for record in caplog.records if "without declaring" in record.message] == [
            "server a lists tools without declaring them",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "expected", "asked"),
    [
        (pages_of(page("a", nextCursor=""), page("b")), ["a", "b"], 2),
        (pages_of(page("a", nextCursor="c"), page("b", nextCursor="c")), ["a", "b"], 2),
        (pages_of(page("a", nextCursor=""), page("b", nextCursor="")), ["a", "b"], 2),
        (pages_of(page("a", nextCursor=None)), ["a"], 1),
        (pages_of(page(nextCursor="1"), page(nextCursor="2"), page("b")), ["b"], 3),
    ],
)
async def test_cursors_are_followed_until_they_end_or_repeat(answer: Any, expected: list[str], asked: int) -> None:
    server = Scripted("a", capabilities={"tools": {}})
    server.answers["tools/list"] = answer
    async with Front(server) as front:
        snapshot = await front.lists.snapshot("a", CLIENT)
        assert snapshot and [entry.target.own for entry in snapshot.entries("tools/list")] == expected
        assert server.count("tools/list") == asked


async def test_the_empty_cursor_is_sent_back() -> None:
    server = Scripted("a", capabilities={"tools": {}})
    server.answers["tools/list"] = pages_of(page("a", nextCursor=""), page("b"))
    async with Front(server) as front:
        await front.lists.snapshot("a", CLIENT)
        assert [call.params for call in server.asked if call.method == "tools/list"] == [{}, {"cursor": ""}]


@pytest.mark.parametrize("names", [["x"], []])
async def test_endless_pages_end(names: list[str]) -> None:
    server = Scripted("a", capabilities={"tools": {}})

    async def endless(call: Call) -> Outcome:
        return Result(page(*names, nextCursor=str(server.count("tools/list"))))

    server.answers["tools/list"] = endless
    async with Front(server) as front:
        snapshot = await front.lists.snapshot("a", CLIENT)
        assert snapshot is not None and server.count("tools/list") in (64, 65)
        assert "64 pages in a row" in snapshot.listings["tools/list"].left_out[0]


async def test_a_thousand_tools_in_pages_of_ten_are_a_thousand() -> None:
    names = [f"t{number}" for number in range(1000)]
    async with Front(Scripted("a", tools=names, per_page=10), list_timeout=30) as front:
        assert await front.names("tools/list") == [f"a__{name}" for name in names]


async def test_of_many_definitions_that_cannot_be_served_the_log_names_the_first(caplog: Any) -> None:
    """Each line takes 20 us of the event loop: 10,000 of them held up all calls."""
    server = Scripted("a")
    server.answers["tools/list"] = always(Result(page(*[""] * 1_000, "sound")))
    async with Front(server) as front:
        await front.lists.snapshot("a", CLIENT)
        assert await target(front, "tools/call", name="a__sound")
    lines = [record.getMessage() for record in caplog.records if "not served" in record.getMessage()]
    assert len(lines) == list_walk.TOLD + 1
    assert lines[-1] == f"server a: not served: tools/list: {1_000 - list_walk.TOLD} more"


async def test_a_list_of_too_many_bytes_is_cut_and_says_so(caplog: Any) -> None:
    """Once, though it is looked at again."""
    large = [{"name": f"t{number}", "description": "x" * 1000} for number in range(10)]
    async with Front(Scripted("a", tools=large, per_page=2), bounds=Bounds(bytes=5000)) as front:
        for _ in range(2):
            assert await front.names("tools/list") == [f"a__t{number}" for number in range(4)]
            front.lists.changed("a", None, "tool")
        assert sum("5000 bytes" in record.message for record in caplog.records) == 1


async def test_a_list_of_too_many_items_is_cut() -> None:
    server = Scripted("a", capabilities={"tools": {}}, tools=[f"t{n}" for n in range(10_050)], per_page=5000)
    async with Front(server, list_timeout=5) as front:
        snapshot = await front.lists.snapshot("a", CLIENT)
        assert snapshot is not None and len(snapshot.entries("tools/list")) == 10_000
        assert "10000 items" in snapshot.listings["tools/list"].left_out[0]


async def test_a_page_that_fails_midway_keeps_the_earlier_list() -> None:
    server = Scripted("a", tools=["x", "y"], per_page=1)
    async with Front(server) as front:
        first = await front.lists.snapshot("a", CLIENT)
        server.answers["tools/list"] = pages_of(page("z", nextCursor="1"), {"no": "page"})
        front.lists.changed("a", None, "tool")
        assert await front.lists.snapshot("a", CLIENT) is first


async def test_a_list_that_hangs_does_not_hold_back_the_others() -> None:
    server = Scripted("a", tools=["x"])
    server.answers["prompts/list"] = hang
    async with Front(server, list_timeout=30) as front:
        with anyio.move_on_after(0.05):
            await front.lists.snapshot("a", CLIENT)
        with anyio.fail_after(20):
            assert await target(front, "tools/call", name="a__x")


@pytest.mark.parametrize("answer", [always(Failure(-32603, "no")), always(Result({})), hang])
async def test_a_server_that_cannot_say_what_it_is_has_no_lists(answer: Any) -> None:
    server = Scripted("a", tools=["x"])
    server.answers["server/discover"] = answer
    async with Front(server, list_timeout=0.2) as front:
        assert await front.lists.snapshot("a", CLIENT) is None
        assert await target(front, "tools/call", name="a__x") is None


async def test_a_dead_server_is_no_exception() -> None:
    async def dead(call: Call) -> Outcome:
        raise ConnectionError("gone")

    server = Scripted("a", tools=["x"])
    server.answers["tools/list"] = dead
    async with Front(server) as front:
        snapshot = await front.lists.snapshot("a", CLIENT)
        assert snapshot is not None and not snapshot.entries("tools/list")


async def test_scopes_are_bounded_and_those_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_catalog, "MAX_SCOPES", 3)
    server = Scripted("a", tools=["x"])
    async with Front(server) as front:
        clients = [type(CLIENT)(f"key:{n}") for n in range(6)]
        for client in clients:
            await front.lists.snapshot("a", client)
            front.lists.find("a", clients[0], "tool", "a__x")
        known = [front.lists.current("a", client) is not None for client in clients]
        assert sum(known) == 3 and known[0] and known[-1]


async def test_a_server_that_lists_something_else_to_each_client_fills_no_memory() -> None:
    server = Scripted("a")
    server.ttl_ms = 60_000

    async def listed(call: Call) -> Outcome:
        own = [{"name": f"{call.client.principal[4:]}_{number}", "description": "x" * 1_000} for number in range(20)]
        return Result({"tools": own})

    server.answers["tools/list"] = listed
    async with Front(server, bounds=Bounds(bytes=50_000)) as front:
        clients = [Client(f"key:{number}") for number in range(60)]
        for client in clients:
            assert await front.lists.snapshot("a", client) is not None
        known = [client for client in clients if front.lists.current("a", client) is not None]
        assert 8 <= len(known) <= 8 * 50_000 // 20_000 and clients[-1] in known
        assert len(await front.names("tools/list", clients[0])) == 20, "it lists once more"
        server.answers["tools/list"] = always(Result(page(*(f"t{number}" for number in range(20)), x="y" * 1_000)))
        front.lists.changed("a", None, "tool")
        for client in clients:
            assert await front.lists.snapshot("a", client) is not None
        assert all(front.lists.current("a", client) is not None for client in clients), "what is the same is there once"


async def test_what_is_kept_of_a_servers_lists_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_store, "MAX_KEPT", 10_000)
    server, store = Scripted("a", tools=[{"name": "x", "description": "x" * 3_000}]), MemoryStore()
    async with Front(server, store=store) as front:
        for number in (*range(9), 0):
            await front.lists.snapshot("a", Client(f"key:{number}"))
            await until(lambda: not front.lists.walks._tasks)
        left = await store.scan(snapshot_store.places("a", "a"))
        assert sum(map(len, left.values())) <= 10_000 and len(left) == 3
        assert snapshot_store.store_key(server, "key:8") in left
    monkeypatch.setattr(snapshot_store, "MAX_PLACES", 2)
    store = MemoryStore()
    async with Front(Scripted("a", tools=["x"]), store=store) as front:
        for number in range(4):
            await front.lists.snapshot("a", Client(f"key:{number}"))
            await until(lambda: not front.lists.walks._tasks)
    left = await store.scan(snapshot_store.places("a", "a"))
    assert left.keys() == {snapshot_store.store_key(server, f"key:{number}") for number in (2, 3)}


async def test_what_was_just_found_in_the_store_is_there_though_all_others_are_in_use() -> None:
    server, store = Scripted("a"), MemoryStore()

    async def listed(call: Call) -> Outcome:
        return Result({"tools": [{"name": f"of_{call.client.principal[4:]}", "description": "y" * 20_000}]})

    server.answers["tools/list"] = listed
    clients, bounds = [Client(f"key:{number}") for number in range(10)], Bounds(bytes=15_000)
    async with Front(server, store=store, bounds=Bounds(bytes=10**6)) as front:
        for client in clients:
            await front.lists.snapshot("a", client)
        await until(lambda: not front.lists.walks._tasks)
    server.answers["tools/list"] = always(Failure(-32603, "not now"))
    async with Front(server, store=store, bounds=bounds) as front:
        for client in clients:
            assert await front.lists.snapshot("a", client) is not None
            assert front.lists.current("a", client) is not None
            await front.lists.snapshot("a", client)  # who comes again uses it


async def test_a_scope_that_changes_once_the_server_is_up_takes_its_lists_along() -> None:
    server = Scripted("a", tools=["x"])
    server.is_ready = anyio.Event()
    server.scopes = lambda client: f"{server.is_ready.is_set()} {client.principal}"
    async with Front(server) as front:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(front.lists.snapshot, "a", CLIENT)
                await anyio.wait_all_tasks_blocked()
                server.is_ready.set()
        assert await target(front, "tools/call", name="a__x")
        assert server.count("tools/list") == 1


# ---------------------------------------------------------------- down, late, kept


async def test_last_good_snapshots_survive_a_restart_and_name_what_is_down() -> None:
    store = MemoryStore()
    async with Front(Scripted("a", tools=["x"]), store=store) as front:
        await front.lists.snapshot("a", CLIENT)
        with anyio.fail_after(20):
            while await store.get(snapshot_store.alias(front.servers["a"], CLIENT)) is None:
                await anyio.lowlevel.checkpoint()
    server = Scripted("a")
    server.status = "down"
    server.scopes = lambda client: f"unknown era, {client.principal}"
    server.answers["server/discover"] = always(Failure(-32603, "down"))
    async with Front(server, store=store) as front:
        found = await target(front, "tools/call", name="a__x")
        assert found is not None and found.own == "x" and found.item is not None
        assert await front.names("tools/list") == []
        assert await target(front, "tools/call", OTHER, name="a__x") is None  # never walked for that principal


async def test_large_definitions_are_made_one_in_a_step() -> None:
    made = list[int]()  # the steps in which definitions were made

    def mark(item: Json) -> str:
        made.append(steps.now)
        return ""

    tools = [{"name": f"t{number}", "description": "d" * PIECE} for number in range(10)]
    async with Front(Scripted("a", tools=tools)) as front:
        front.lists.namings["a"] = replace(front.lists.namings["a"], fingerprint=mark)
        steps = Steps()
        snapshot = await front.lists.snapshot("a", CLIENT)
        steps.stop()
        assert snapshot is not None and len(snapshot.entries("tools/list")) == 10
    assert len(made) == len(set(made)) == 10


@pytest.mark.parametrize(("count", "size", "is_waiting"), [(3, 30_000, True), (300, 10, True), (3, 10, False)])
async def test_a_list_that_is_long_or_large_is_made_in_its_servers_turn(
    count: int, size: int, is_waiting: bool
) -> None:  # fmt: skip
    made = list[Any]()

    def note(item: Any) -> str:
        made.append(item)
        return ""

    tools = [{"name": f"t{number}", "description": "d" * size} for number in range(count)]
    async with Front(Scripted("a", tools=tools)) as front:
        front.lists.namings["a"] = replace(front.lists.namings["a"], fingerprint=note)
        turn = budget_of("a").turn
        await turn.acquire()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(front.lists.snapshot, "a", CLIENT)
                await anyio.wait_all_tasks_blocked()
                assert (not made) is is_waiting
                turn.release()
    assert len(made) == count


async def test_a_large_stored_list_is_read_and_written_in_pieces_item_by_item(monkeypatch: pytest.MonkeyPatch) -> None:
    store, many = MemoryStore(), [{"name": f"t{number}", "description": "d" * 100} for number in range(1_000)]
    at, dump = Counter[int](), snapshot_store.dump

    def note(item: Any) -> str:
        at[steps.now] += 1
        return ""

    def counted(item: Any) -> bytes:
        note(item)
        return dump(item)

    async with Front(Scripted("a", tools=many, per_page=1_000), store=store) as front:
        scope, server = front.lists.catalogs.get("a", CLIENT).scope, front.servers["a"]
        whole = await front.lists.snapshot("a", CLIENT)
        assert whole is not None
        kept, naming = snapshot_store.SnapshotStore(store), replace(front.lists.namings["a"], fingerprint=note)
        steps = Steps()
        with monkeypatch.context() as patched:
            patched.setattr(snapshot_store, "dump", counted)
            await kept.remember(server, scope, CLIENT, whole, "legacy")
            assert at.total() > len(many) and max(at.values()) <= 2 + PIECE // ITEM
            at.clear()
            other = snapshot_store.SnapshotStore(MemoryStore())
            async with anyio.create_task_group() as group:
                for name in ("one", "two"):
                    group.start_soon(other.remember, server, name, CLIENT, whole, "legacy")
            assert len(many) < at.total() < 2 * len(many), "scopes that keep the same at once"
        at.clear()
        found = await kept.recall(naming, server, scope, CLIENT)
        assert found is not None and found[0].find.keys() == whole.find.keys() and found[1] == "legacy"
        assert at.total() == len(many) and max(at.values()) <= 2 + PIECE // ITEM
        assert len(await kept.all(naming, server.identity)) == 1
        steps.stop()
        (data,) = (await store.scan(snapshot_store.places("a", server.identity))).values()
        assert set(snapshot_store.definitions([data]) or ()) == {tool["name"] for tool in many}
        assert max(map(len, data.split(b"\n"))) < 1_000


@pytest.mark.parametrize("tools", [["x", "y"], ["x", "y", "cut off"]])
async def test_a_stored_list_is_made_once_for_all_that_have_the_same_and_for_the_walk_that_lists_it_again(
    tools: list[str],
) -> None:
    store, made, bounds = MemoryStore(), list[Any](), Bounds(items=2)

    def note(item: Any) -> str:
        made.append(item)
        return ""

    async with Front(Scripted("a", tools=tools), store=store, bounds=bounds) as front:
        assert await front.lists.snapshot("a", CLIENT) is await front.lists.snapshot("a", OTHER)
        await anyio.wait_all_tasks_blocked()
    async with Front(Scripted("a", tools=tools), store=store, bounds=bounds) as front:
        front.lists.namings["a"] = replace(front.lists.namings["a"], fingerprint=note)
        async with anyio.create_task_group() as group:
            for client in (CLIENT, OTHER):
                group.start_soon(front.lists.snapshot, "a", client)
        assert not front.lists.catalogs.get("a", OTHER).recalled and front.lists.catalogs.get("a", CLIENT).is_whole
        whole = front.lists.current("a", CLIENT)
        assert whole is not None and len(whole.listings["tools/list"].cut) == len(tools) - 2
    assert len(made) == 2


async def test_a_long_answer_that_was_walked_before_is_not_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a server's connection gives the very same answer."""
    server, taken, take = Scripted("a"), list[int](), Intake.take
    page = Result({"tools": [{"name": f"t{number}", "description": "d" * 100} for number in range(1_000)]})
    server.answers["tools/list"] = always(page)

    def counted(intake: Intake, entries: Any, cursor: Any) -> Any:
        taken.append(len(entries))
        return take(intake, entries, cursor)

    monkeypatch.setattr(Intake, "take", counted)
    async with Front(server) as front:
        whole = await front.lists.snapshot("a", CLIENT)
        assert whole is not None and whole is await front.lists.snapshot("a", OTHER)
        assert taken.count(1_000) == 1
        server.answers["tools/list"] = always(replace(page))
        front.lists.walks.outdate("a")
        async with anyio.create_task_group() as group:
            for client in (CLIENT, OTHER):
                group.start_soon(front.lists.snapshot, "a", client)
        assert front.lists.current("a", CLIENT) is front.lists.current("a", OTHER) is whole
        assert taken.count(1_000) == 2, "who walks at the same time waits for it"


async def test_a_kept_snapshot_that_is_no_snapshot_is_none() -> None:
    store = MemoryStore()
    server = Scripted("a")
    server.answers["server/discover"] = always(Failure(-32603, "down"))
    await store.put(snapshot_store.store_key(server, server.scope(CLIENT)), b"{")
    async with Front(server, store=store) as front:
        assert await front.lists.snapshot("a", CLIENT) is None


async def test_a_server_that_hangs_is_waited_for_once_and_the_others_are_listed(monkeypatch: Any) -> None:
    monkeypatch.setattr(list_walk, "PATIENCE", 0.3)
    slow = Scripted("slow", tools=["s"])
    slow.status = "starting"
    slow.is_ready = anyio.Event()
    async with Front(Scripted("fast", tools=["f"]), slow, list_timeout=30) as front:
        with anyio.fail_after(20):
            assert await front.names("tools/list") == ["fast__f"]
            assert front.lists.catalogs.get("slow", CLIENT).late
            assert (await front.page("tools/list"))["ttlMs"] == 0
            with front.hub.subscribe(lambda event: event.server == "slow") as events:
                slow.status = "up"
                slow.is_ready.set()
                assert (await anext(events)).notification == TOOLS_CHANGED
            assert await front.names("tools/list") == ["fast__f", "slow__s"]


@pytest.mark.parametrize(
    "early",
    [("server/discover", {}), ("resources/read", {"uri": "x:1"}), ("completion/complete", {})],
    ids=["greeting", "plain URI", "reference"],
)
@pytest.mark.parametrize("transparent", [True, False], ids=["transparent", "prefixed"])
async def test_on_stdio_nothing_that_is_asked_before_takes_a_server_out_of_the_first_list(
    transparent: bool, early: tuple[str, Json]
) -> None:
    slow = Scripted("slow", tools=["s"])
    slow.status, slow.is_ready = "starting", anyio.Event()
    prefixes = {"slow": "" if transparent else "slow"}
    settings = {"prefixes": prefixes, "transparent": transparent, "for_starts": True, "list_timeout": 0.05}
    async with Front(slow, **settings) as front:
        found: list[list[str]] = []

        async def walk() -> None:
            found.append(await front.names("tools/list"))

        with anyio.fail_after(10):
            method, params = early
            await front.resolver.resolve(Call(CLIENT, method, params))
            await front.ask(method, **params)
            async with anyio.create_task_group() as group:
                group.start_soon(walk)
                await anyio.sleep(0.2)  # more than a list of a server that is up may take
                assert not found
                slow.status = "up"
                slow.is_ready.set()
        assert found == [["s" if transparent else "slow__s"]]


async def test_the_greeting_of_one_server_on_stdio_waits_for_it_once_though_tasks_are_asked_for_too() -> None:
    slow, order = Scripted("slow", tools=["s"]), list[str]()
    slow.status, slow.is_ready = "starting", anyio.Event()

    async def note(what: str, seconds: float = 0) -> None:
        await (anyio.sleep(seconds) if seconds else front.ask("server/discover"))
        order.append(what)

    async with Front(slow, prefixes={"slow": ""}, transparent=True, for_starts=True, list_timeout=1.0) as front:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(note, "greeting")
                group.start_soon(note, "one timeout and a half", 1.5)
    assert order == ["greeting", "one timeout and a half"]


async def test_a_name_waits_no_longer_than_one_list_may_take_though_it_is_listed_twice() -> None:
    """The second walk is due because the list changed during the first."""
    server, order = Scripted("a", tools=["x"]), list[str]()

    async def answer(call: Call) -> Outcome:
        if server.count("tools/list") > 1:
            await anyio.sleep_forever()
        await anyio.sleep(0.6)
        front.lists.publish("a", None, TOOLS_CHANGED)
        return Result(page("x"))

    async def note(what: str, seconds: float = 0) -> None:
        await (anyio.sleep(seconds) if seconds else front.lists.snapshot("a", CLIENT))
        order.append(what)

    server.answers["tools/list"] = answer
    async with Front(server, list_timeout=1.0) as front:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(note, "snapshot")
                group.start_soon(note, "one timeout and a half", 1.5)
    assert order == ["snapshot", "one timeout and a half"]


async def test_a_call_waits_for_the_list_of_its_own_server_only() -> None:
    late, hung = Scripted("late", tools=["x"]), Scripted("hung")
    late.is_ready, hung.is_ready = anyio.Event(), anyio.Event()
    async with Front(late, hung, list_timeout=60) as front:
        found: list[Target | None] = []

        async def call() -> None:
            found.append(await target(front, "tools/call", name="late__x"))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(call)
                await anyio.wait_all_tasks_blocked()
                late.is_ready.set()
        assert found[0] is not None


async def test_a_name_of_a_server_that_has_not_listed_any_is_unavailable_and_not_unknown() -> None:
    late = Scripted("late", tools=["x"], prompts=["p"])
    late.answers["tools/list"] = hang
    async with Front(late, hide=lambda key, own: own == "hidden", list_timeout=0.5) as front:
        call = Call(CLIENT, "tools/call", {"name": "late__x"})
        assert await front.resolver.resolve(call) is None
        refused = front.resolver.unlisted(call)
        assert isinstance(refused, Result) and refused.value["_meta"]["dev.sluice/reason"] == "server_unavailable"
        for name in ("late__hidden", "other__x", "x", 7):
            assert front.resolver.unlisted(Call(CLIENT, "tools/call", {"name": name})) is None
        assert front.resolver.unlisted(Call(CLIENT, "resources/read", {"uri": "late+x:1"})) is None
        assert front.resolver.unlisted(Call(CLIENT, "prompts/get", {"name": "late__q"})) is None  # those it has listed
        late.answers["prompts/list"] = hang
        refused = front.resolver.unlisted(Call(OTHER, "prompts/get", {"name": "late__p"}))
        assert isinstance(refused, Failure) and refused.data == {"reason": "server_unavailable"}


async def test_a_call_waits_for_the_list_of_tools_where_others_have_come_before(monkeypatch: Any) -> None:
    monkeypatch.setattr(list_walk, "PATIENCE", 0.3)
    slow, held = Scripted("slow", tools=["x"]), anyio.Event()

    async def wait(call: Call) -> Result:
        await held.wait()
        return Result({"tools": [{"name": "x"}]})

    slow.answers["tools/list"] = wait
    async with Front(Scripted("fast", tools=["f"]), slow, list_timeout=60) as front:
        with anyio.fail_after(20):
            assert await front.names("tools/list") == ["fast__f"]
            assert front.lists.catalogs.get("slow", CLIENT).late and front.lists.current("slow", CLIENT) is not None
            found: list[Target | None] = []

            async def call() -> None:
                found.append(await target(front, "tools/call", name="slow__x"))

            async with anyio.create_task_group() as group:
                group.start_soon(call)
                await anyio.wait_all_tasks_blocked()
                held.set()
        assert found[0] is not None


async def test_after_a_failure_the_next_who_asks_tries_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(list_walk, "RETRY", 0.0)
    server = Scripted("a", tools=["x"])
    server.answers["server/discover"] = always(Failure(-32603, "not yet"))
    async with Front(server) as front:
        assert await front.names("tools/list") == []
        del server.answers["server/discover"]
        assert await front.names("tools/list") == ["a__x"]


async def test_an_old_snapshot_is_served_and_looked_at_again_behind_it(monkeypatch: Any) -> None:
    server = Scripted("a", tools=["x"])
    async with Front(server) as front:
        assert await front.names("tools/list") == ["a__x"]
        monkeypatch.setattr(list_walk, "REVALIDATE", -1.0)
        server.items["tools/list"] = [{"name": "y"}]
        with anyio.fail_after(20), front.hub.subscribe(lambda event: True) as events:
            assert await front.names("tools/list") == ["a__x"]
            await anext(events)
            assert await front.names("tools/list") == ["a__y"]


# ---------------------------------------------------------------- changes


async def test_a_change_is_walked_once_for_a_burst_and_then_told() -> None:
    server = Scripted("a", tools=["x"])
    async with Front(server, list_timeout=5) as front:
        await front.lists.snapshot("a", CLIENT)
        server.items["tools/list"] = [{"name": "y"}]
        with anyio.fail_after(20), front.lists.walks.watchers.watch(CLIENT), front.hub.subscribe(anything) as events:
            for _ in range(50):
                front.lists.publish("a", None, TOOLS_CHANGED)
            assert await anext(events) == Event("a", CLIENT.principal, TOOLS_CHANGED)
            assert front.lists.find("a", CLIENT, "tool", "a__y")
        assert (server.count("tools/list"), server.count("prompts/list")) == (2, 1)


async def test_where_very_many_listen_a_change_is_looked_at_in_short_steps_and_others_have_most_of_the_loop() -> None:
    server, steps, looked = Scripted("a", tools=["x"]), Steps(), Counter[int]()

    def scope(client: Client) -> str:
        looked[steps.now] += 1
        return ""

    server.scopes = scope
    async with Front(server, list_timeout=5) as front:
        await front.lists.snapshot("a", CLIENT)
        with anyio.fail_after(60), ExitStack() as stack:
            for number in range(5_000):
                stack.enter_context(front.lists.walks.watchers.watch(Client(f"key:{number}")))
            looked.clear()
            front.lists.publish("a", None, TOOLS_CHANGED)
            await until(lambda: looked.total() >= 5_000)
            assert max(looked.values()) <= 64, "in one step"
            assert front.lists.walks.watchers.pause("a") > 1.0
    steps.stop()


async def test_a_change_that_cannot_be_looked_at_is_told_when_it_could(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_walk, "RETRY", 0.01)
    server = Scripted("a", tools=["x"])
    async with Front(server, list_timeout=5) as front:
        await front.lists.snapshot("a", CLIENT)
        answers = [Failure(-32603, "not now"), Result(page("y"))]

        async def answer(call: Call) -> Outcome:
            return answers.pop(0)

        server.answers["tools/list"] = answer
        with anyio.fail_after(20), front.lists.walks.watchers.watch(CLIENT), front.hub.subscribe(anything) as events:
            front.lists.publish("a", None, TOOLS_CHANGED)
            assert await anext(events) == Event("a", CLIENT.principal, TOOLS_CHANGED)
            assert front.lists.find("a", CLIENT, "tool", "a__y")
        assert server.count("tools/list") == 3 and not answers


async def test_a_change_during_the_walk_calls_for_another() -> None:
    server = Scripted("a", tools=["x"])
    async with Front(server, list_timeout=5) as front:
        await front.lists.snapshot("a", CLIENT)
        entered, go = anyio.Event(), anyio.Event()

        async def slow(call: Call) -> Outcome:
            answer = Result(page("old"))
            if not entered.is_set():
                entered.set()
                await go.wait()
                return answer
            return Result(page("new"))

        server.answers["tools/list"] = slow
        with anyio.fail_after(20), front.lists.walks.watchers.watch(CLIENT), front.hub.subscribe(anything) as events:
            front.lists.changed("a", CLIENT.principal, "tool")
            await entered.wait()
            front.lists.changed("a", CLIENT.principal, "tool")
            go.set()
            await anext(events)
            await anext(events)
            assert front.lists.find("a", CLIENT, "tool", "a__new")


async def test_a_changed_definition_is_never_resolved_from_before_the_change() -> None:
    server = Scripted("a", tools=[{"name": "x", "description": "kind"}])
    async with Front(server) as front:
        assert (await target(front, "tools/call", name="a__x")).item["description"] == "kind"  # type: ignore
        server.items["tools/list"] = [{"name": "x", "description": "evil"}]
        front.lists.publish("a", None, TOOLS_CHANGED)
        assert (await target(front, "tools/call", name="a__x")).item["description"] == "evil"  # type: ignore


async def test_a_change_of_one_scope_is_no_news_for_another() -> None:
    server = Scripted("a", tools=["x"])
    async with Front(server) as front:
        await front.lists.snapshot("a", CLIENT)
        await front.lists.snapshot("a", OTHER)
        front.lists.publish("a", CLIENT.principal, TOOLS_CHANGED)
        assert front.lists.find("a", CLIENT, "tool", "a__x") is None
        assert front.lists.find("a", OTHER, "tool", "a__x")


async def test_other_notifications_go_straight_to_the_hub() -> None:
    updated = Notification("notifications/resources/updated", {"uri": "file:///a"})
    async with Front(Scripted("a")) as front:
        with anyio.fail_after(20), front.hub.subscribe(lambda event: True) as events:
            front.lists.publish("a", "s", updated)
            assert await anext(events) == Event("a", "s", updated)


# ---------------------------------------------------------------- names


async def test_names_lead_to_their_server_and_unknown_ones_nowhere() -> None:
    async with Front(Scripted("a", tools=["x"], prompts=["p"]), Scripted("b", tools=["x"])) as front:
        assert (await target(front, "tools/call", name="b__x")) == Target("b", "tool", "x", "b__x", {
            "name": "x", "inputSchema": {"type": "object"}})  # fmt: skip
        assert (await target(front, "prompts/get", name="a__p")).kind == "prompt"  # type: ignore
        for name in ("x", "a__y", "c__x", "A__x", "a__", "__x", "", "a__p", " a__x", "a__x "):
            assert await target(front, "tools/call", name=name) is None
        assert await target(front, "tools/call", name=7) is None
        assert await target(front, "tools/call") is None


async def test_a_known_name_is_resolved_without_waiting_for_anything() -> None:
    async with Front(Scripted("a", tools=["x"])) as front:
        await front.lists.snapshot("a", CLIENT)
        coroutine = front.resolver.resolve(Call(CLIENT, "tools/call", {"name": "a__x"}))
        with pytest.raises(StopIteration) as done:
            coroutine.send(None)
        assert done.value.value.own == "x"


async def test_an_app_may_call_its_own_servers_tool_by_own_name_unless_that_is_ambiguous() -> None:
    ui = {"name": "panel", "_meta": {"ui": {"resourceUri": "ui://panel"}}}
    app, plain = Scripted("app", tools=[ui, "refresh", "both"]), Scripted("plain", tools=["both", "other"])
    hidden: set[tuple[str, str]] = set()
    async with Front(app, plain, hide=lambda *one: one in hidden) as front:
        assert (await target(front, "tools/call", name="refresh")).server == "app"  # type: ignore
        assert await target(front, "tools/call", name="both") is None
        assert await target(front, "tools/call", name="other") is None
        hidden.add(("plain", "both"))
        assert (await target(front, "tools/call", name="both")).server == "app"  # type: ignore
        hidden.add(("app", "refresh"))
        assert await target(front, "tools/call", name="refresh") is None


async def test_a_stored_definition_is_called_by_no_name_before_the_server_has_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What changed since it was stored may have to be withheld."""
    ui, store = {"name": "panel", "_meta": {"ui": {"resourceUri": "ui://panel"}}}, MemoryStore()
    async with Front(Scripted("app", tools=[ui, "refresh"], templates=["x:{y}"]), store=store) as front:
        await target(front, "tools/call", name="refresh")
        with anyio.fail_after(5):
            while await store.get(snapshot_store.alias(front.servers["app"], CLIENT)) is None:
                await anyio.lowlevel.checkpoint()
    late = Scripted("app", tools=[ui, "refresh"], templates=["x:{y}"])
    late.status, late.is_ready = "starting", anyio.Event()
    late.start_left = late.start_timeout = 0.05
    async with Front(late, store=store, list_timeout=0.05) as front:
        await front.lists.all(CLIENT, "list")
        ref = {"type": "ref/resource", "uri": "app+x:{y}"}
        for method, params in (("tools/call", {"name": "refresh"}), ("completion/complete", {"ref": ref})):
            found = await front.resolver.resolve(Call(CLIENT, method, params))
            assert found is not None and found.is_stored, method


async def test_what_was_stored_takes_the_place_of_nothing_that_the_server_has_listed() -> None:
    """The store is asked once more when a server comes up of which nothing is known, while its lists are due."""
    server, store = Scripted("a", templates=["x:{y}"]), MemoryStore()
    server.status, server.is_ready = "starting", anyio.Event()
    async with Front(server, store=store) as front:
        async with anyio.create_task_group() as group:
            group.start_soon(front.lists.snapshot, "a", CLIENT)
            await anyio.wait_all_tasks_blocked()
            server.status = "up"
            front.lists.moved("a")
            server.is_ready.set()
        with anyio.fail_after(5):
            while await store.get(snapshot_store.alias(server, CLIENT)) is None:
                await anyio.lowlevel.checkpoint()
        found = await target(front, "completion/complete", ref={"type": "ref/resource", "uri": "a+x:{y}"})
        assert found is not None and not found.is_stored


async def test_transparent_mode_renames_nothing_and_forwards_unlisted_names_only_if_told() -> None:
    settings = {"prefixes": {"a": ""}, "transparent": True}
    async with Front(Scripted("a", tools=["x__y"]), **settings) as front:
        assert (await target(front, "tools/call", name="x__y")).own == "x__y"  # type: ignore
        assert await target(front, "tools/call", name="z") is None
        assert (await target(front, "resources/read", uri="file:///a")) == Target("a", "res", "file:///a", "file:///a")
    async with Front(Scripted("a", tools=["x"]), forward_unlisted=True, **settings) as front:
        assert await target(front, "tools/call", name="z") == Target("a", "tool", "z", "z", is_unlisted=True)
        assert (await target(front, "tools/call", name="x")).item is not None  # type: ignore


async def test_a_name_that_is_not_listed_is_looked_up_and_walks_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each such call walked all names, and there may be ten thousand."""
    walked = list[int]()

    class Walked(dict[Any, Any]):
        def items(self) -> Any:
            walked.append(1)
            return super().items()

    def walk(entries: Indexed) -> Any:
        walked.append(1)
        return tuple.__iter__(entries)

    items = [{"name": name} for name in ("Read", "Copy", "copy", *map(str, range(500)))]
    section = listing(ServerNaming("a", "", 50), "tools/list", items, 0)
    listed = assemble("a", {"capabilities": {}}, {"tools/list": section})
    listed = replace(listed, find=Walked(listed.find))
    monkeypatch.setattr(Indexed, "__iter__", walk, raising=False)
    for _ in range(50):
        alike = unlisted_target("a", "tool", "rEAD", listed)
        assert alike is not None and (alike.own, alike.is_unlisted) == ("Read", False)
        assert unlisted_target("a", "tool", "COPY", listed) is None, "the server may mean either"
        other = unlisted_target("a", "prompt", "read", listed), unlisted_target("a", "tool", "write", listed)
        assert all(one is not None and one.is_unlisted for one in other)
    assert len(walked) == 1
    withheld = without(listed, {("tool", "Read")})
    assert (found := unlisted_target("a", "tool", "read", withheld)) is not None and found.is_unlisted
    assert (found := unlisted_target("a", "tool", "X", None)) is not None and found.is_unlisted


# ---------------------------------------------------------------- URIs


@pytest.mark.parametrize(
    ("uri", "own"),
    [
        ("a+file:///x", "file:///x"), ("a+urn:x:y", "urn:x:y"), ("a+https://x.test/y", "https://x.test/y"),
        ("ui://a+panel", "ui://panel"), ("b+file:///x", None), ("a+file:///x/../y", None), ("a+FILE:///x", None),
        ("a+file:///%2e%2e/y", None), ("file:///x", None), ("", None), (7, None),
    ],
)  # fmt: skip
async def test_a_resource_under_a_prefix_is_forwarded_listed_or_not(uri: Any, own: str | None) -> None:
    async with Front(Scripted("a")) as front:
        found = await target(front, "resources/read", uri=uri)
        assert found == (None if own is None else Target("a", "res", own, uri))


async def test_a_plain_web_uri_leads_to_whoever_lists_it_first_in_config_order() -> None:
    a, b = Scripted("a", resources=["https://x.test/1"]), Scripted("b", resources=["https://x.test/1"])
    hidden: set[str] = set()
    async with Front(a, b, hide=lambda server, own: server in hidden) as front:
        await front.names("resources/list")
        assert (await target(front, "resources/read", uri="https://x.test/1")).server == "a"  # type: ignore
        hidden.add("a")
        await front.names("resources/list")
        assert (await target(front, "resources/read", uri="https://x.test/1")).server == "b"  # type: ignore
        assert await target(front, "resources/read", uri="https://x.test/2") is None


async def test_a_web_uri_from_before_a_restart_is_looked_for_once() -> None:
    server = Scripted("a", resources=["https://x.test/1"])
    async with Front(Scripted("none"), server) as front:
        assert (await target(front, "resources/read", uri="https://x.test/1")).server == "a"  # type: ignore
        for number in range(5):
            assert await target(front, "resources/read", uri=f"https://x.test/no{number}") is None
        assert server.count("resources/list") == 1


async def test_a_plain_uri_may_match_a_template_or_belong_to_a_server_that_stays_plain() -> None:
    a, b = Scripted("a", templates=["memo://{id}"]), Scripted("b", resources=["file:///b"])
    async with Front(a, b, plain=frozenset({"b"})) as front:
        assert (await target(front, "resources/read", uri="memo://7")).server == "a"  # type: ignore
        assert (await target(front, "resources/read", uri="anything:else")).server == "b"  # type: ignore
        assert await front.names("resources/list") == ["file:///b"]
        assert await target(front, "resources/read", uri="memo://../7") is None


async def test_a_plain_uri_leads_to_a_server_that_is_down_too() -> None:
    server = Scripted("a", templates=["memo://{id}"])
    async with Front(server) as front:
        await front.lists.snapshot("a", CLIENT)
        server.status = "down"
        assert await target(front, "resources/read", uri="memo://7")


async def test_completions_are_for_prompts_and_templates() -> None:
    server = Scripted("a", prompts=["p"], templates=["file:///{Path}", "https://x.test/{id}"])
    async with Front(server) as front:

        async def ref(**value: Any) -> Target | None:
            return await target(front, "completion/complete", ref=value)

        assert (await ref(type="ref/prompt", name="a__p")).own == "p"  # type: ignore
        found = await ref(type="ref/resource", uri="a+file:///{Path}")
        assert found is not None and (found.own, found.item is not None) == ("file:///{Path}", True)
        assert (await ref(type="ref/resource", uri="https://x.test/{id}")).server == "a"  # type: ignore
        assert (await ref(type="ref/resource", uri="a+file:///unlisted")).own == "file:///unlisted"  # type: ignore
        assert await ref(type="ref/prompt", name="p") is None
        assert await ref(type="ref/tool", name="a__p") is None
        assert await ref() is None
        assert await target(front, "completion/complete", ref="x") is None


async def test_what_is_learned_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(server_catalog, "MAX_LEARNED", 3)
    server = Scripted("a", capabilities=ALL)
    server.items["resources/list"] = resources(*(f"https://x.test/{n}" for n in range(10)))
    async with Front(server) as front:
        await front.names("resources/list")
        assert list(front.lists.catalogs.get("a", CLIENT).learned) == [f"https://x.test/{n}" for n in (7, 8, 9)]


def test_a_list_in_one_page_over_the_bound_of_bytes_is_cut_there() -> None:
    page = [{"name": f"t{number}", "description": "x" * 100} for number in range(30)]
    taken, cut = in_one_step(Intake(Bounds(bytes=2_000)).take(page, None))
    assert 0 < len(taken) < 30 and "limits.list_bytes" in cut


def test_cursors_count_as_bytes_of_the_list_they_lead_through() -> None:
    """Each is kept, to find one that comes twice, and may be as long as a message."""
    intake = Intake(Bounds(bytes=2_000))
    walked = [in_one_step(intake.take([{"name": f"t{n}"}], f"{n}".rjust(900, "x"))) for n in range(3)]
    assert [len(taken) for taken, _ in walked] == [1, 1, 1]
    assert [("limits.list_bytes" in cut) for _, cut in walked] == [False, False, True]
