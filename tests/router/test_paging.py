"""Pages of many servers' lists: each item once, in order, in bounded time, whatever a server's cursors do."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import CLIENT, OTHER, Front, Scripted, resources

from sluicegate.catalog_cache import snapshot_store
from sluicegate.protocol import downgrade
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json, Notification
from sluicegate.protocol.model import Call, Failure, Outcome, Result, Target
from sluicegate.router import combined_lists, visible_lists
from sluicegate.router.combined_lists import MAX_EMPTY, MAX_PAGES, PAGE_BYTES, Trace
from sluicegate.store.memory import MemoryStore

METHODS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")


def paged(answer: Callable[[str | None], Json]) -> Callable[[Call], Awaitable[Outcome]]:
    async def page(call: Call) -> Outcome:
        return Result(answer(call.params.get("cursor")))

    return page


def page(uris: list[str], **more: Any) -> Json:
    return {"resources": resources(*uris), **more}


def liar(answer: Callable[[str | None], Json]) -> Scripted:
    server = Scripted("liar")
    server.answers["resources/list"] = paged(answer)
    return server


def endless(cursor: str | None) -> Json:
    return page([f"x:{cursor}"], nextCursor=str(int(cursor or "0") + 1))


def endless_empty(cursor: str | None) -> Json:
    return page([], nextCursor=str(int(cursor or "0") + 1))


def same(cursor: str | None) -> Json:
    return page([f"x:{cursor}"], nextCursor="again")


def same_empty_text(cursor: str | None) -> Json:
    return page([f"x:{cursor}"], nextCursor="")


def circle(cursor: str | None) -> Json:
    return page([f"x:{cursor}"], nextCursor={None: "a", "a": "b", "b": "c"}.get(cursor, "a"))


def odd(cursor: str | None) -> Json:
    return {"resources": [None, 7, {"uri": 7}, {}, {"uri": "x:1"}, {"uri": "x:1"}], "nextCursor": 7}


# ---------------------------------------------------------------- beside a liar


@pytest.mark.parametrize("answer", [endless, endless_empty, same, same_empty_text, circle, odd])
async def test_an_honest_list_beside_a_liar_is_walked_to_the_end_each_item_once(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combined_lists, "MAX_WALK", 500)
    uris = [f"file:///{n}" for n in range(12_000)]
    honest, bad = Scripted("honest", resources=uris), liar(answer)
    for servers in ((honest, bad), (bad, honest)):
        bad.asked.clear()
        async with Front(*servers, list_timeout=10) as front:
            with anyio.fail_after(60):
                names = await front.names("resources/list")
        assert [name for name in names if name.startswith("honest+")] == [f"honest+{uri}" for uri in uris]
        assert len(bad.asked) < 600
        assert answer is not odd or names.count("liar+x:1") == 1


@pytest.mark.parametrize("answer", [endless, endless_empty, same, circle])
async def test_one_request_walks_so_many_pages_of_a_liar_and_no_more(answer: Any) -> None:
    bad = liar(answer)
    async with Front(bad) as front:
        await front.page("resources/list")
        assert bad.count("resources/list") <= max(MAX_PAGES, MAX_EMPTY)


async def test_cursors_of_a_megabyte_are_taken_back_as_they_were_given() -> None:
    """Two servers, each with three pages: one cursor of ours holds theirs, however long they are."""

    def long(cursor: str | None) -> Json:
        at = 0 if cursor is None else int(cursor[0])
        more = {"nextCursor": f"{at + 1}" + "x" * 1_000_000} if at < 2 else {}
        return page([f"x:{at}"], **more)

    servers = [liar(long), liar(long)]
    servers[1].key = "other"
    async with Front(*servers, list_timeout=10) as front:
        with anyio.fail_after(60):
            names = await front.names("resources/list")
    assert sorted(names) == sorted(f"{key}+x:{at}" for key in ("liar", "other") for at in range(3))


async def test_empty_pages_and_empty_cursors_on_the_way_are_no_end() -> None:
    script: dict[str | None, Json] = {
        None: page([], nextCursor=""),
        "": page(["x:1"], nextCursor="b"),
        "b": page([], nextCursor="c"),
        "c": page(["x:2"]),
    }
    server = liar(lambda cursor: script[cursor])
    async with Front(server) as front:
        assert await front.names("resources/list") == ["liar+x:1", "liar+x:2"]
        assert [call.params for call in server.asked if call.method == "resources/list"][:4] == [
            {}, {"cursor": ""}, {"cursor": "b"}, {"cursor": "c"},
        ]  # fmt: skip


async def test_what_may_not_be_seen_leaves_no_empty_page_while_more_follows_however_much_it_is() -> None:
    server = Scripted("a", resources=[f"x:{n}" for n in range(20_000)])
    async with Front(server, hide=lambda key, own: own.startswith("x:") and own != "x:15000", list_timeout=10) as front:
        assert await front.names("resources/list") == ["a+x:15000"]


# ---------------------------------------------------------------- positions


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 1000])
async def test_every_page_size_gives_every_item_once_in_order(size: int) -> None:
    lists = {"tools": list("abcde"), "prompts": list("xyz"), "resources": [f"f:{n}" for n in range(7)]}
    servers = [Scripted(key, per_page=per_page, **lists) for key, per_page in (("b", 2), ("a", 3), ("c", 100))]
    async with Front(*servers, page=size) as front:
        assert await front.names("tools/list") == [f"{key}__{name}" for key in "bac" for name in "abcde"]
        assert await front.names("prompts/list") == [f"{key}__{name}" for key in "bac" for name in "xyz"]
        assert await front.names("resources/list") == [f"{key}+f:{n}" for key in "bac" for n in range(7)]
        for method in METHODS[:3]:
            assert all(len(page) == size for page in (await front.pages(method))[:-1])


async def test_a_page_has_a_mebibyte_and_one_item_at_least() -> None:
    """All of it is encoded in one step."""
    many = [{"name": f"t{n:02}", "description": "d" * 100_000} for n in range(25)]
    front = Front(Scripted("a", tools=many[:15], per_page=5), Scripted("b", tools=many[15:], per_page=5))
    async with front:
        found = await front.pages("tools/list")
        assert [tool["name"] for page in found for tool in page] == [
            f"{'a' if n < 15 else 'b'}__t{n:02}" for n in range(25)
        ]
        assert [len(page) for page in found] == [10, 10, 5]
    large = [{"uri": f"x:{n}", "name": "d" * size} for n, size in enumerate([10, PAGE_BYTES, 10, 600_000, 600_000, 10])]
    server = Scripted("a", per_page=4)
    server.items["resources/list"] = large
    async with Front(server) as front:
        found = await front.pages("resources/list")
        assert [[item["uri"] for item in page] for page in found] == [
            ["a+x:0", "a+x:1"], ["a+x:2", "a+x:3", "a+x:4"], ["a+x:5"]
        ]  # fmt: skip


async def test_what_takes_long_of_older_forms_is_made_before_the_answer() -> None:
    schemas = [{"anyOf": [{"$ref": "#"}], "n": n} for n in range(5)]
    server = Scripted("a", tools=[{"name": f"t{n}", "outputSchema": schema} for n, schema in enumerate(schemas)])
    async with Front(server) as front:
        await front.page("tools/list", replace(CLIENT, revision="2025-06-18"))
        assert all(downgrade._wrapped._new[id(schema)][0] is schema for schema in schemas)
        await front.page("tools/list")  # a modern client has them as they are


async def test_pages_are_cut_from_what_the_client_sees() -> None:
    server = Scripted("a", tools=[f"t{n}" for n in range(10)])
    async with Front(server, page=2, hide=lambda key, own: own in {"t0", "t2", "t3", "t8", "t9"}) as front:
        seen = [[item["name"] for item in page] for page in await front.pages("tools/list")]
        assert seen == [["a__t1", "a__t4"], ["a__t5", "a__t6"], ["a__t7"]]


async def test_a_page_of_the_server_larger_than_ours_is_asked_for_again_not_kept() -> None:
    server = Scripted("a", resources=[f"x:{n}" for n in range(10)], per_page=10)
    async with Front(server, page=4) as front:
        assert [len(page) for page in await front.pages("resources/list")] == [4, 4, 2]
        assert server.count("resources/list") == 3


@pytest.fixture
async def front() -> Any:
    lists = {"tools": list("abc"), "prompts": list("abc"), "resources": ["x:1", "x:2", "x:3"]}
    async with Front(Scripted("a", **lists, templates=["x:{a}", "y:{a}", "z:{a}"]), page=1) as front:
        yield front


@pytest.mark.parametrize("method", METHODS)
async def test_a_cursor_is_good_for_its_client_its_list_and_its_config_only(front: Front, method: str) -> None:
    cursor = (await front.page(method))["nextCursor"]
    flipped = cursor[:-1] + ("0" if cursor[-1] != "0" else "1")
    assert await front.page(method, cursor=cursor)
    for bad in (flipped, "", "x", 7, ["x"], {}, cursor + "00"):
        outcome = await front.ask(method, cursor=bad)
        assert isinstance(outcome, Failure) and outcome.code == INVALID_PARAMS
    others = [front.ask(other, cursor=cursor) for other in METHODS if other != method]
    strangers = (OTHER, replace(CLIENT, credential="another key"))
    for asking in (*others, *(front.ask(method, stranger, cursor=cursor) for stranger in strangers)):
        outcome = await asking
        assert isinstance(outcome, Failure) and outcome.code == INVALID_PARAMS
    async with Front(*front.servers.values(), generation="2") as changed:
        outcome = await changed.ask(method, cursor=cursor)
        assert isinstance(outcome, Failure) and outcome.code == INVALID_PARAMS
    async with Front(*front.servers.values(), page=1) as restarted:
        assert await restarted.page(method, cursor=cursor) == await front.page(method, cursor=cursor)


async def test_a_server_that_refuses_its_own_cursor_makes_ours_invalid() -> None:
    server, other = Scripted("a", resources=["x:1", "x:2"], per_page=1), Scripted("b", resources=["x:3"])
    async with Front(server, other, page=1) as front:
        cursor = (await front.page("resources/list"))["nextCursor"]

        async def refuse(call: Call) -> Outcome:
            return Failure(INVALID_PARAMS, "what cursor?")

        server.answers["resources/list"] = refuse
        outcome = await front.ask("resources/list", cursor=cursor)
        assert isinstance(outcome, Failure) and outcome.code == INVALID_PARAMS
        assert await front.names("resources/list") == ["b+x:3"]  # a refusal without a cursor is any other failure


@pytest.mark.parametrize("failure", [Failure(-32603, "broken"), Result({"resources": None}), Result({})])
async def test_any_other_failure_ends_that_servers_part_and_the_walk_goes_on(failure: Outcome) -> None:
    server, other = Scripted("a", resources=["x:1", "x:2"], per_page=1), Scripted("b", resources=["x:3"])

    async def fail(call: Call) -> Outcome:
        return failure if call.params else Result(page(["x:1"], nextCursor="1"))

    server.answers["resources/list"] = fail
    async with Front(server, other) as front:
        assert await front.names("resources/list") == ["a+x:1", "b+x:3"]


async def test_a_server_that_hangs_costs_its_list_timeout_once() -> None:
    server, other = Scripted("a"), Scripted("b", resources=["x:1"])

    async def hang(call: Call) -> Outcome:
        await anyio.sleep_forever()
        raise AssertionError

    server.answers["resources/list"] = hang
    async with Front(server, other, list_timeout=0.5) as front:
        for _ in range(3):
            assert await front.names("resources/list") == ["b+x:1"]
        assert server.count("resources/list") == 1


async def store_of(server: Scripted) -> MemoryStore:
    """What a run leaves behind in which that server has listed."""
    store = MemoryStore()
    async with Front(server, store=store) as front:
        with anyio.fail_after(10):
            await front.names("tools/list")
            while await store.get(snapshot_store.alias(server, CLIENT)) is None:
                await anyio.lowlevel.checkpoint()
    return store


def starting(server: Scripted) -> Scripted:
    server.status, server.is_ready = "starting", anyio.Event()
    return server


def start(front: Front, server: Scripted) -> None:
    server.status = "up"
    server.is_ready.set()
    front.lists.moved(server.key)


async def test_on_stdio_resources_wait_for_a_start_though_the_other_lists_are_stored() -> None:
    server, quick = Scripted("a", tools=["x"], resources=["x:1"]), Scripted("b", resources=["x:2"])
    store = await store_of(server)
    slow = starting(Scripted("a", tools=["x"], resources=["x:1"]))
    async with Front(slow, quick, store=store, for_starts=True, list_timeout=0.05) as front:
        found: list[str] = []

        async def walk() -> None:
            found.extend(await front.names("resources/list"))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(walk)
                await anyio.sleep(0.2)  # more than a list of a server that is up may take
                assert not found and await front.names("tools/list") == ["a__x"]
                start(front, slow)
        assert found == ["a+x:1", "b+x:2"]


@pytest.mark.parametrize("for_starts", [True, False], ids=["stdio", "http"])
async def test_resources_of_a_server_that_starts_too_slowly_are_announced_when_it_has_started(
    for_starts: bool,
) -> None:
    store = await store_of(Scripted("a", tools=["x"], resources=["x:1"]))
    slow = starting(Scripted("a", tools=["x"], resources=["x:1"]))
    slow.start_left = 0.1
    heard: list[str] = []

    async def hear(notification: Notification) -> None:
        heard.append(notification.method)

    listening = {"toolsListChanged": True, "resourcesListChanged": True}
    async with Front(slow, store=store, for_starts=for_starts, list_timeout=0.05) as front:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(
                    front.router, Call(CLIENT, "subscriptions/listen", {"notifications": listening}, emit=hear)
                )
                while not heard:
                    await anyio.lowlevel.checkpoint()
                for _ in range(2):
                    assert await front.names("resources/list") == []
                assert slow.count("resources/list") == 0
                start(front, slow)
                while heard[1:] != ["notifications/resources/list_changed"]:
                    await anyio.lowlevel.checkpoint()
                assert await front.names("resources/list") == ["a+x:1"]
                front.lists.moved("a")
                await front.lists.snapshot("a", CLIENT)
                group.cancel_scope.cancel()
        assert heard[1:] == ["notifications/resources/list_changed"]


async def test_first_pages_of_the_next_servers_are_asked_for_together() -> None:
    servers = [Scripted(f"s{n}", resources=["x:1"]) for n in range(6)]
    arrived: list[str] = []
    go = anyio.Event()

    def gated(server: Scripted) -> Callable[[Call], Awaitable[Outcome]]:
        async def answer(call: Call) -> Outcome:
            arrived.append(server.key)
            await go.wait()
            return Result(page(["x:1"]))

        return answer

    for server in servers:
        server.answers["resources/list"] = gated(server)
    async with Front(*servers, list_timeout=60) as front:
        names: list[str] = []

        async def walk() -> None:
            names.extend(await front.names("resources/list"))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(walk)
                while len(arrived) < combined_lists.AHEAD:
                    await anyio.lowlevel.checkpoint()
                assert arrived == [f"s{n}" for n in range(combined_lists.AHEAD)]
                go.set()
        assert names == [f"s{n}+x:1" for n in range(6)] and sorted(arrived) == sorted({*arrived})


async def test_a_long_list_does_not_ask_its_neighbours_on_every_page() -> None:
    long, next_one = Scripted("long", resources=[f"x:{n}" for n in range(100)]), Scripted("next", resources=["x:1"])
    async with Front(long, next_one, page=10) as front:
        assert len(await front.names("resources/list")) == 101
        assert next_one.count("resources/list") <= 3


# ---------------------------------------------------------------- what is shown


async def test_resources_are_public_and_web_uris_stay() -> None:
    server = Scripted("a", resources=["file:///x", "https://x.test/y", "ui://panel"])
    async with Front(server) as front:
        assert await front.names("resources/list") == ["a+file:///x", "https://x.test/y", "ui://a+panel"]
        assert server.items["resources/list"][0]["uri"] == "file:///x"


async def test_the_ttl_is_the_least_on_the_page_and_nothing_is_public() -> None:
    a, b = (Scripted(key, tools=["x"], resources=["x:1"]) for key in "ab")
    c = Scripted("c", capabilities={})
    a.ttl_ms, b.ttl_ms = 500, 300
    async with Front(a, b, c) as front:
        for method in METHODS:
            value = await front.page(method)
            assert (value["ttlMs"], value["cacheScope"]) == (300, "private")
        b.status = "down"
        for method in METHODS:
            assert (await front.page(method))["ttlMs"] == 0


# ---------------------------------------------------------------- traces


@given(st.integers(0, 30), st.integers(1, 60))
def test_a_circle_of_any_length_is_noticed_within_a_few_rounds(tail: int, length: int) -> None:
    trace: Trace | None = Trace()
    step = 0
    while trace is not None:
        step += 1
        assert step <= 4 * (tail + length) + 4
        at = step if step <= tail else tail + (step - tail) % length
        trace = trace.after(f"c{at}")


@given(st.integers(1, 500))
def test_cursors_that_all_differ_are_never_taken_for_a_circle(length: int) -> None:
    trace: Trace | None = Trace()
    for step in range(length):
        assert trace is not None
        trace = trace.after(f"c{step}")
        assert trace is not None and Trace.unpack(trace.pack()) == trace


def test_a_walk_ends_after_so_many_pages() -> None:
    trace: Trace | None = Trace("c", pages=combined_lists.MAX_WALK - 2)
    trace = trace.after("d")
    assert trace is not None and trace.after("e") is None


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '["c"]', '["c", "1", ""]', "null"])
def test_what_is_no_trace_is_none(text: str) -> None:
    assert Trace.unpack(text) is None


@pytest.mark.parametrize("method", ["resources/list", "resources/templates/list", "resources/read"])
async def test_others_have_a_turn_after_each_long_uri(method: str) -> None:
    """Policy takes up to 10 ms to judge one. A server lists many, and a plain one is judged for each server."""
    turns, judged = 0, list[int]()

    def may_list(call: Call, server: str, target: Target) -> bool:
        since = perf_counter()
        while perf_counter() - since < 2 * combined_lists.SLICE:
            pass
        judged.append(turns)
        return True

    async def have_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    long = [f"x:{'a' * visible_lists.LONG}{n}" for n in range(6)]
    keys = "abcdef" if method == "resources/read" else "a"
    servers = [Scripted(key, resources=long, templates=long) for key in keys]
    async with Front(*servers, may_list=may_list) as front:
        await front.page("tools/list", CLIENT)
        judged.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(have_turns)
            if method == "resources/read":
                await front.resolver.resolve(Call(CLIENT, method, {"uri": f"{long[0]}x"}))
            else:
                await front.page(method, CLIENT)
            group.cancel_scope.cancel()
    assert len(set(judged)) == len(judged) == len(long)
