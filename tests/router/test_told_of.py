"""What is completed, and which updates are told of, is what is listed and may be used: whatever policy and toolset say,
in both eras."""

from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import Front, Scripted, tools
from waiting import until

from sluicegate.guards import ORDER, Handler, chain
from sluicegate.guards.enforce import enforce
from sluicegate.guards.name import name
from sluicegate.policy.classes import Classes
from sluicegate.policy.judge import PolicyEngine, PolicyInForce
from sluicegate.policy.rulebook import Rulebook, ToolRules, allowlist
from sluicegate.policy.toolsets import Toolset, Toolsets
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import Call, Client, Outcome, Result, Verdict
from tests.policy.policies import build, clients, lines

NAMES = {"git": ("get_x", "delete_x", "x"), "k8s": ("get_x", "put_y")}
URIS = {"git": ("file:///a", "file:///b/c"), "k8s": ("file:///a",)}
CHANGED = "notifications/tools/list_changed"
CAPABILITIES: Json = {
    "tools": {"listChanged": True}, "prompts": {}, "resources": {"subscribe": True}, "completions": {},
}  # fmt: skip
globs = st.lists(
    st.sampled_from(["git/*", "git/get_*", "!git/delete_*", "k8s/get_x", "*/*", "!*/x", "k8s/*", "git/file:///a"]),
    max_size=3,
).map(tuple)


async def done(call: Call) -> Outcome:
    if call.method == "completion/complete":
        return Result({"completion": {"values": ["one"]}})
    return Result({"content": [], "messages": [], "contents": []})


class Place:
    def __init__(self, engine: PolicyEngine, client: Client) -> None:
        self.engine, self.client = engine, client
        self.servers = [
            Scripted(key, tools=NAMES[key], prompts=NAMES[key], resources=URIS[key], capabilities=CAPABILITIES)
            for key in NAMES
        ]
        for server in self.servers:
            server.answers |= dict.fromkeys(("prompts/get", "resources/read", "completion/complete"), done)
        self.front = Front(
            *self.servers, may_list=engine.may_list, may_see=engine.may_see, permission_key=engine.permission_key
        )
        guards: Any = {
            **dict.fromkeys(ORDER),
            "name": name(self.front.resolver.resolve, lambda key: self.front.lists.namings[key].uris),
            "enforce": enforce(engine.decide, engine.check_arguments, engine.explains),
        }
        self.handler: Handler = chain(guards, self.front.router)

    async def ask(self, method: str, **params: Any) -> bool:
        """Whether it was executed."""
        before = sum(server.count(method) for server in self.servers)
        await self.handler(Call(self.client, method, params))
        return sum(server.count(method) for server in self.servers) > before

    async def verdict(self, method: str, **params: Any) -> Verdict:
        call = Call(self.client, method, params)
        target = await self.front.resolver.resolve(call)
        assert target is not None
        return self.engine.decide(call, target).verdict

    async def told(self, uris: list[str]) -> tuple[set[str], list[str]]:
        """The resources that are watched for the client, and of which it hears when all are updated."""
        send, receive = anyio.create_memory_object_stream[Notification](100)
        heard: list[str] = []
        with send, receive, anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                wanted = {"resourceSubscriptions": uris}
                call = Call(self.client, "subscriptions/listen", {"notifications": wanted}, emit=send.send)
                group.start_soon(self.handler, call)
                watched = (await receive.receive()).params["notifications"].get("resourceSubscriptions", [])
                for server in self.servers:
                    for uri in URIS[server.key]:
                        server.update(uri)
                for _ in watched:  # on a busy machine a server waits for its turn before its updates are judged
                    heard.append((await receive.receive()).params["uri"])
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                while receive.statistics().current_buffer_used:
                    heard.append(receive.receive_nowait().params["uri"])
                group.cancel_scope.cancel()
        return set(watched), heard


@settings(deadline=None, max_examples=60)
@given(lines, clients, globs, st.booleans(), st.booleans())
def test_what_is_completed_and_told_of_is_what_may_be_used(  # type: ignore[no-untyped-def]
    rows, client, part, is_whole, is_legacy
) -> None:
    at = "" if is_whole else "dev"
    toolset = Toolset(at, {} if is_whole else {"tool": part, "prompt": part, "res": part})
    policy = build(rows, False)
    lists = allowlist({key: ToolRules() for key in NAMES})
    engine = PolicyEngine(PolicyInForce(Rulebook(policy, Classes({}), lists, toolsets=Toolsets((toolset,), policy))))
    client = replace(client, toolset=at, **({"revision": "2025-11-25", "session": "s"} if is_legacy else {}))

    async def main() -> None:
        place = Place(engine, client)
        async with place.front as front:
            prompts, resources = [set(await front.names(f"{what}/list", client)) for what in ("prompts", "resources")]
            for key, own in ((key, own) for key, names in NAMES.items() for own in names):
                public = f"{key}__{own}"
                verdict = await place.verdict("prompts/get", name=public)
                assert (public in prompts) is (verdict is not Verdict.DENY)
                ref = {"type": "ref/prompt", "name": public}
                is_completed = await place.ask("completion/complete", ref=ref, argument={"name": "a", "value": ""})
                assert is_completed is (verdict is Verdict.ALLOW), "it would tell what a person has to be asked for"
            uris = [f"{key}+{uri}" for key, own in URIS.items() for uri in own]
            verdicts = {uri: await place.verdict("resources/read", uri=uri) for uri in uris}
            assert resources == {uri for uri, verdict in verdicts.items() if verdict is not Verdict.DENY}
            watched, heard = await place.told(uris)
            assert watched <= resources
            assert {uri for uri, verdict in verdicts.items() if verdict is Verdict.ALLOW} <= watched
            assert sorted(heard) == sorted(watched), "each is told of once, and no other one"

    anyio.run(main)
    assert engine.errors == 0


@pytest.mark.parametrize("at", ["", "dev"])
async def test_a_changed_list_is_told_where_the_toolset_shows_the_change(at: str) -> None:
    policy = build([("p", "*", "*", "*", "*", "allow")], False)
    toolset = Toolset("dev", {"tool": ("git/get_*",)})
    lists = allowlist({key: ToolRules() for key in NAMES})
    engine = PolicyEngine(PolicyInForce(Rulebook(policy, Classes({}), lists, toolsets=Toolsets((toolset,), policy))))
    place = Place(engine, Client("key:ann", toolset=at))
    server = place.servers[0]
    send, receive = anyio.create_memory_object_stream[Notification](100)

    async def is_told(*names: str, awaited: bool) -> bool:
        """Whether the client is told of these new names, once the server was listed anew."""
        server.items["tools/list"], before = tools(*names), server.count("tools/list")
        place.front.lists.publish("git", None, Notification(CHANGED, {}))
        await until(lambda: server.count("tools/list") > before)
        await (until(lambda: receive.statistics().current_buffer_used) if awaited else anyio.sleep(0.1))
        told = receive.statistics().current_buffer_used > 0
        while receive.statistics().current_buffer_used:
            assert receive.receive_nowait().method == CHANGED
        return told

    async with place.front as front, send, receive:
        await front.names("tools/list", place.client)
        async with anyio.create_task_group() as group:
            wanted = {"notifications": {"toolsListChanged": True}}
            group.start_soon(place.handler, Call(place.client, "subscriptions/listen", wanted, emit=send.send))
            await receive.receive()
            is_whole = at == ""
            told = await is_told("get_x", "x", "paint_x", awaited=is_whole)
            assert told is is_whole, "outside of the toolset nothing has changed"
            assert await is_told("get_x", "x", "paint_x", "get_new", awaited=True)
            group.cancel_scope.cancel()
