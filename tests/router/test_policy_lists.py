"""What is listed is what works, for random policies, clients and catalogs: through the router and the guards, as the
application wires them. And the explanation says what the decision is."""

from dataclasses import replace

import anyio
from approval_kit import Town
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import Front, Scripted

from sluicegate.guards import ORDER, chain
from sluicegate.guards.approve import approve
from sluicegate.guards.enforce import enforce
from sluicegate.guards.name import name
from sluicegate.policy.classes import Classes
from sluicegate.policy.explain import Explanation
from sluicegate.policy.judge import PolicyEngine, PolicyInForce
from sluicegate.policy.rulebook import Rulebook, ToolRules, allowlist
from sluicegate.protocol.model import REASON, Call, Client, Guard, Outcome, Result, Trail, Verdict
from tests.policy.policies import build, clients, lines, tool

SERVERS = ("git", "k8s")
TOOLS = ["get_x", "get_y", "delete_x", "x", "GET_X", "*", "put[x]"]
PROMPTS = ["get_x", "ask"]
URIS = ["file:///a", "file:///etc/x", "x:y"]

catalogs = st.fixed_dictionaries(
    {
        "tools": st.lists(st.sampled_from(TOOLS), unique=True),
        "prompts": st.lists(st.sampled_from(PROMPTS), unique=True),
        "resources": st.lists(st.sampled_from(URIS), unique=True),
    }
)
rules = st.builds(
    ToolRules,
    st.sampled_from([("*",), ("*",), ("get_*", "x")]),
    st.sampled_from([(), (), ("*delete*",)]),
)
classes = st.dictionaries(
    st.sampled_from(["get_*", "*", "delete_x", "x"]), st.sampled_from(["read", "write", "destroy"])
)
WAYS = {
    "tools/list": ("tools/call", "name"),
    "prompts/list": ("prompts/get", "name"),
    "resources/list": ("resources/read", "uri"),
}


async def reached(call: Call) -> Outcome:
    return Result({"content": [], "messages": [], "contents": []})


def front_of(judge: PolicyEngine, *servers: Scripted) -> Front:
    for server in servers:
        server.answers |= dict.fromkeys(("tools/call", "prompts/get", "resources/read"), reached)
    return Front(*servers, may_list=judge.may_list, may_see=judge.may_see, permission_key=judge.permission_key)


def guarded(front: Front, judge: PolicyEngine) -> dict[str, Guard | None]:
    guards: dict[str, Guard | None] = dict.fromkeys(ORDER)
    guards["name"] = name(front.resolver.resolve, lambda key: front.lists.namings[key].uris)
    guards["enforce"] = enforce(judge.decide, judge.check_arguments, judge.explains)
    town = Town()
    town.desk.settings = replace(town.desk.settings, profiles=judge.in_force.rulebook.policy.profiles)
    guards["approve"] = approve(town.desk, town.means())
    return guards


async def permitted(front: Front, judge: PolicyEngine, client: Client, method: str, public: str) -> bool:
    """Whether that call gets through, or would after an approval."""
    called, field = WAYS[method]
    before = sum(server.count(called) for server in front.servers.values())
    handler = chain(guarded(front, judge), front.router)
    call = Call(client, called, {field: public}, trail=Trail("c"))
    outcome = await handler(call)
    got_through = sum(server.count(called) for server in front.servers.values()) > before
    refused = isinstance(outcome, Result) and outcome.value.get("_meta", {}).get(REASON) == "approval_pending"
    waits = refused or (getattr(outcome, "data", None) or {}).get("reason") == "approval_pending"
    asked = any(decision.verdict is Verdict.ASK for decision in call.trail.decisions)
    assert waits == (asked and not got_through) and not (got_through and asked)
    return got_through or waits


@settings(max_examples=settings.default.max_examples * 3 // 2, deadline=None)
@given(lines, clients, st.tuples(catalogs, catalogs), st.tuples(rules, rules), classes, st.booleans())
def test_what_is_listed_is_what_may_be_called(rows, client, lists, tools, written, shadow) -> None:  # type: ignore[no-untyped-def]
    book = Rulebook(
        build(rows, shadow), Classes({"git": written}), allowlist(dict(zip(SERVERS, tools, strict=True)))
    )
    judge = PolicyEngine(PolicyInForce(book))

    async def main() -> None:
        servers = [Scripted(key, **given) for key, given in zip(SERVERS, lists, strict=True)]
        async with front_of(judge, *servers) as front:
            for method in WAYS:
                shown = await front.names(method, client)
                every = every_name(front, method, client)
                assert set(shown) <= every
                works = {public for public in every if await permitted(front, judge, client, method, public)}
                assert set(shown) == works, (method, rows, client)

    anyio.run(main)
    assert judge.errors == 0


def every_name(front: Front, method: str, client: Client) -> set[str]:
    """All there is, whether this client may know of it or not."""
    names: set[str] = set()
    for key, server in front.servers.items():
        snapshot = front.lists.current(key, client)
        assert snapshot is not None
        if method == "resources/list":
            names |= {front.lists.namings[key].uris.public(item["uri"]) for item in server.items[method]}
        else:
            names |= {entry.target.public for entry in snapshot.entries(method)}
    return names


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(lines, clients, st.sampled_from(SERVERS), st.sampled_from(TOOLS), rules, classes, st.booleans())
def test_the_explanation_says_what_the_decision_is(rows, client, server, own, tools, written, shadow) -> None:  # type: ignore[no-untyped-def]
    book = Rulebook(build(rows, shadow), Classes({"git": written}), allowlist(dict.fromkeys(SERVERS, tools)))
    target = tool(server, own)
    decision = PolicyEngine(PolicyInForce(book)).decide(Call(client, "tools/call", {}), target)
    explained = book.explain(client, target)
    if isinstance(explained, Explanation):
        assert (explained.verdict, explained.ruling) == (decision.verdict, decision)
    else:
        assert explained == decision
