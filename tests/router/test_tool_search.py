"""What is listed, found and called is one set: that which policy and toolset leave, whatever they say."""

import importlib
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from listed import listing
from scripted_server import Front, Scripted, tools

from sluicegate.catalog.snapshot import ServerNaming
from sluicegate.guards import ORDER, chain, search
from sluicegate.guards.enforce import enforce
from sluicegate.guards.name import name
from sluicegate.policy.classes import Classes
from sluicegate.policy.judge import PolicyEngine, PolicyInForce
from sluicegate.policy.rulebook import Rulebook, ToolRules, allowlist
from sluicegate.policy.toolsets import Search, Toolset, Toolsets
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.methods import Kind
from sluicegate.protocol.model import Call, Client, Failure, Outcome, Result
from sluicegate.protocol.shape import Shape
from sluicegate.router import tool_search
from sluicegate.router.tool_search import SearchDeps
from tests.policy.policies import build, clients, lines

OWN = {"git": ("get_x", "get_y", "delete_x", "x"), "k8s": ("get_x", "put_y")}
globs = st.lists(
    st.sampled_from(["git/*", "git/get_*", "!git/delete_*", "k8s/get_x", "*/*", "!*/x", "k8s/*"]), max_size=3
).map(tuple)


Shapes = Mapping[str, Mapping[tuple[Kind, str], Shape]]
NO_SHAPES: Shapes = {}
shape_of = st.builds(
    lambda has_name, fixed, hide: (has_name, fixed, frozenset({*fixed, *hide})), st.booleans(),
    st.dictionaries(st.sampled_from(["owner", "page"]), st.integers(0, 3), max_size=2),
    st.sets(st.sampled_from(["owner", "token"]), max_size=2),
)  # fmt: skip
shapings = st.dictionaries(
    st.sampled_from([(key, own) for key, names in OWN.items() for own in names]), shape_of, max_size=4
).map(
    lambda found: {
        key: {
            ("tool", own): Shape(f"shown_{own}" if has_name else "", {}, fixed, hidden)
            for (of, own), (has_name, fixed, hidden) in found.items() if of == key
        }
        for key in OWN
    }
)  # fmt: skip


class House:
    """The guards that matter here, in front of two scripted servers."""

    def __init__(self, engine: PolicyEngine, shapes: Shapes = NO_SHAPES) -> None:
        async def called(call: Call) -> Outcome:
            text = json.dumps([call.params["name"], call.params.get("arguments")])
            return Result({"content": [{"type": "text", "text": text}]})

        self.servers = [Scripted(key, tools=own) for key, own in OWN.items()]
        for server in self.servers:
            server.answers["tools/call"] = called
        self.front = Front(
            *self.servers, may_list=engine.may_list, may_see=engine.may_see, permission_key=engine.permission_key,
            searching=SearchDeps(engine.search_of, engine.is_pinned, search.TOOLS), shapes=shapes,
        )  # fmt: skip
        has_search = lambda client: engine.search_of(client).mode != "off"  # noqa: E731
        guarded = chain(
            {
                **dict.fromkeys(ORDER),
                "find": search.find(has_search, self.front.router.search.find),
                "name": name(self.front.resolver.resolve, lambda key: self.front.lists.namings[key].uris),
                "enforce": enforce(engine.decide, engine.check_arguments, engine.explains),
            },
            self.front.router,
        )
        self.handler = search.unwrapped(has_search, guarded)

    async def call(self, client: Client, tool: str, **arguments: object) -> Outcome:
        return await self.handler(Call(client, "tools/call", {"name": tool, "arguments": arguments}))

    async def listed(self, client: Client) -> set[str]:
        page = await self.front.page("tools/list", client)
        return {tool["name"] for tool in page["tools"]}

    async def found(self, client: Client, query: str = "", server: str | None = None) -> set[str]:
        arguments = {"query": query, "limit": search.MAX_LIMIT} | ({"server": server} if server else {})
        outcome = await self.call(client, search.FIND, **arguments)
        assert isinstance(outcome, Result) and outcome.reason is None, outcome
        return {tool["name"] for tool in json.loads(outcome.value["content"][0]["text"])["tools"]}


def engine_of(rows: Iterable[object], *those: Toolset) -> PolicyEngine:
    policy = build(rows, False)  # type: ignore[arg-type]
    lists = allowlist({key: ToolRules() for key in OWN})
    return PolicyEngine(PolicyInForce(Rulebook(policy, Classes({}), lists, toolsets=Toolsets(those, policy))))


def is_executed(outcome: Outcome) -> bool:
    return isinstance(outcome, Result) and outcome.reason is None


@settings(deadline=None)
@given(lines, clients, globs, globs, st.booleans(), shapings, st.booleans())
def test_what_is_found_is_what_may_be_called_and_what_would_be_listed(  # type: ignore[no-untyped-def]
    rows, client, part, pinned, is_whole, shapes, is_legacy
) -> None:
    shown = {} if is_whole else {"tool": part}
    at = "" if is_whole else "dev"
    with_search = engine_of(rows, Toolset(at, shown, search=Search("on", 1), pinned=pinned))
    without = engine_of(rows, Toolset(at, shown))
    client = replace(client, toolset=at, **({"revision": "2025-11-25", "session": "s"} if is_legacy else {}))

    async def main() -> None:
        searching, plain = House(with_search, shapes), House(without, shapes)
        async with searching.front, plain.front:
            whole = await plain.listed(client)
            assert await searching.found(client) == whole
            short = await searching.listed(client)
            own = {tool["name"] for tool in search.TOOLS}
            assert own <= short and short - own <= whole
            for key, names in OWN.items():
                for one in names:
                    shape = shapes[key].get(("tool", one), Shape())
                    public = f"{key}__{shape.name or one}"
                    if shape.name:
                        assert not is_executed(await plain.call(client, f"{key}__{one}")), "it has another name"
                    target = await searching.front.resolver.resolve(Call(client, "tools/call", {"name": public}))
                    assert target is not None
                    is_pinned = with_search.is_pinned(client, target)
                    assert (public in short) is (is_pinned and public in whole)
                    direct = await plain.call(client, public)
                    assert is_executed(direct) is (public in whole)
                    if isinstance(direct, Result) and is_executed(direct):
                        assert json.loads(direct.value["content"][0]["text"]) == [one, shape.fixed]
                    assert await searching.call(client, public) == direct
                    assert await searching.call(client, search.CALL, name=public) == direct
                    for hidden in shape.hidden:
                        given = await searching.call(client, search.CALL, name=public, arguments={hidden: 9})
                        assert not is_executed(given), "no client gives what the operator fixed or hid"
                        assert await plain.call(client, public, **{hidden: 9}) == given
            assert not is_executed(await plain.call(client, search.FIND, query=""))

    anyio.run(main)


ALICE = Client("key:alice")
OPEN = [("p", "*", "*", "*", "*", "allow")]


async def test_auto_lists_up_to_the_budget_and_both_tools_work_on_either_side() -> None:
    items = [*tools(*OWN["git"]), *tools(*OWN["k8s"])]
    size = sum(entry.size for entry in listing(ServerNaming("git", "git", 50), "tools/list", items, 0).entries)
    for budget, is_listed in ((size, True), (1, False)):
        house = House(engine_of(OPEN, Toolset("", {}, search=Search("auto", budget))))
        async with house.front:
            assert ("git__x" in await house.listed(ALICE)) is is_listed
            assert (search.FIND in await house.listed(ALICE)) is not is_listed
            assert await house.found(ALICE, "get") == {"git__get_x", "git__get_y", "k8s__get_x"}
            assert is_executed(await house.call(ALICE, search.CALL, name="git__x"))


async def test_the_index_follows_changed_lists_and_rights() -> None:
    engine = engine_of(OPEN, Toolset("", {}, search=Search("on", 1)))
    house = House(engine)
    async with house.front:
        assert await house.found(ALICE, "x") == {"git__get_x", "git__x", "git__delete_x", "k8s__get_x"}
        house.servers[0].items["tools/list"] = tools("paint_x")
        house.front.lists.changed("git", None, "tool")
        assert await house.found(ALICE, "x") == {"git__paint_x", "k8s__get_x"}
        assert await house.found(ALICE, "x", "k8s") == await house.found(ALICE, "x", "k8s__") == {"k8s__get_x"}
        policy = build([("p", "*", "k8s", "*", "*", "allow")], False)
        engine.in_force = replace(engine.in_force, rulebook=replace(engine.in_force.rulebook, policy=policy))
        assert await house.found(ALICE, "x") == {"k8s__get_x"}


async def test_clients_of_other_rights_have_an_index_of_their_own() -> None:
    engine = engine_of([*OPEN, ("p", "key:eve", "git", "*", "*", "deny")], Toolset("", {}, search=Search("on", 1)))
    house = House(engine)
    async with house.front:
        assert "git__x" in await house.found(ALICE, "x")
        assert await house.found(Client("key:eve"), "x") == {"k8s__get_x"}
        assert "git__x" in await house.found(ALICE, "x")


async def test_arguments_of_another_form_are_refused_before_anything_is_called() -> None:
    house = House(engine_of(OPEN, Toolset("", {}, search=Search("on", 1))))
    wrong: list[tuple[str, Json]] = [
        (search.CALL, {}), (search.CALL, {"name": 1}), (search.CALL, {"name": "git__x", "arguments": []}),
        (search.CALL, {"name": "git__x", "other": 1}), (search.FIND, {}), (search.FIND, {"query": "x", "limit": 0}),
        (search.FIND, {"query": "x", "limit": True}), (search.FIND, {"query": "x", "limit": 21}),
        (search.FIND, {"query": "x", "server": 1}), (search.FIND, {"query": ["x"]}),
    ]  # fmt: skip
    async with house.front:
        for tool, arguments in wrong:
            outcome = await house.call(ALICE, tool, **arguments)
            assert isinstance(outcome, Result) and outcome.reason == "invalid_arguments", (tool, arguments, outcome)
        for again in (search.CALL, search.FIND):  # neither is a tool of a server
            assert not is_executed(await house.call(ALICE, search.CALL, name=again, arguments={"name": "git__x"}))
        assert sum(server.count("tools/call") for server in house.servers) == 0


@pytest.mark.parametrize("odd", [[], {}, None, 1, ["call_tool"], {"find_tools": 1}])
async def test_a_name_of_another_type_is_an_unknown_tool(odd: object) -> None:
    for mode in ("off", "on"):
        house = House(engine_of(OPEN, Toolset("", {}, search=Search(mode, 1))))  # type: ignore[arg-type]
        async with house.front:
            outcome = await house.handler(Call(ALICE, "tools/call", {"name": odd}))
            assert isinstance(outcome, Failure) and outcome.code == -32602, outcome


async def test_headers_say_again_what_stands_in_call_tool_and_not_in_the_tool_behind_it() -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    house = House(engine_of(OPEN, Toolset("", {}, search=Search("on", 1))))
    house.servers[0].items["tools/list"] = [{"name": "x", "inputSchema": schema}]
    async with house.front:
        arguments: Json = {"region": "eu"}
        direct = Call(ALICE, "tools/call", {"name": "git__x", "arguments": arguments}, mirrored={})
        found = {"name": search.CALL, "arguments": {"name": "git__x", "arguments": arguments}}
        outcome = await house.handler(direct)
        assert isinstance(outcome, Failure) and outcome.code == -32020
        assert is_executed(await house.handler(Call(ALICE, "tools/call", found, mirrored={})))


async def test_what_finds_stems_is_loaded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[bool] = []

    def load(name: str) -> object:
        loaded.append(threading.current_thread() is threading.main_thread())
        return importlib.import_module(name)

    tool_search._stemmer.cache_clear()
    monkeypatch.setattr(tool_search, "import_module", load)
    house = House(engine_of(OPEN, Toolset("", {}, search=Search("on", 1))))
    async with house.front:
        await house.found(ALICE, "paint")
        await house.found(ALICE, "draw")
    assert loaded == [False]
