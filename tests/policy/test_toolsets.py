"""A toolset takes away from what policy allows, and gives nothing."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.config.policy import ToolsetSection
from sluicegate.policy.classes import Classes
from sluicegate.policy.judge import PolicyEngine, PolicyInForce
from sluicegate.policy.rulebook import Rulebook, ToolRules, allowlist
from sluicegate.policy.toolsets import Toolset, Toolsets
from sluicegate.protocol import tasks
from sluicegate.protocol.model import Call, Client, Target, Verdict
from tests.policy.policies import SERVERS, build, clients, lines, policy_of, targets, tool

OPEN = "p, role:everyone, *, *, *, allow"
ALICE = Client("key:alice", ("role:dev",))
GIT = tool("git", "get_x")

parts = st.sampled_from([
    "git/*", "git/get_*", "!git/delete_*", "k8s/get_x", "*/*", "!*/x", "git/file:///*", "!git/file:///etc/*", "g*/x",
])  # fmt: skip
globs = st.lists(parts, max_size=3).map(tuple)
toolsets = st.fixed_dictionaries({"tool": globs, "prompt": globs, "res": globs}).map(lambda one: Toolset("dev", one))


def engine_of(rows: str, *those: Toolset) -> PolicyEngine:
    policy = policy_of(rows)
    lists = allowlist({"git": ToolRules(), "k8s": ToolRules()})
    book = Rulebook(policy, Classes({}), lists, toolsets=Toolsets(those, policy))
    return PolicyEngine(PolicyInForce(book, explains=True))


def dev(*globs: str, **more: frozenset[str]) -> Toolset:
    return Toolset("dev", {"tool": globs, "prompt": (), "res": ()}, **more)


def allows(engine: PolicyEngine, client: Client, target: Target, method: str = "tools/call") -> bool:
    decided = engine.decide(Call(client, method, {}), target).verdict is not Verdict.DENY
    assert decided == engine.may_list(Call(client, method, {}), target.server, target)
    return decided


def at(client: Client, toolset: str = "dev") -> Client:
    return replace(client, toolset=toolset)


@given(lines, clients, targets, toolsets, st.booleans())
def test_what_a_toolset_shows_policy_shows_too(rows, client, target, toolset, shadow) -> None:  # type: ignore[no-untyped-def]
    policy = build(rows, shadow)
    lists = allowlist({key: ToolRules() for key in ("git", "k8s")})
    engine = PolicyEngine(PolicyInForce(Rulebook(policy, Classes({}), lists, toolsets=Toolsets([toolset], policy))))
    for method in ("tools/call", "resources/read", "completion/complete"):
        whole, part = (engine.decide(Call(one, method, {}), target) for one in (client, at(client)))
        assert part == whole or (part.verdict is Verdict.DENY and part.rule.startswith("toolset dev"))
    for server in SERVERS:
        sees, sees_there = (engine.may_see(Call(one, "ping", {}), server) for one in (client, at(client)))
        assert sees or not sees_there


@pytest.mark.parametrize(
    ("globs", "own", "is_in"),
    [
        (("git/*",), "get_x", True),
        (("git/get_*",), "delete_x", False),
        (("git/*", "!git/delete_*"), "delete_x", False),
        (("!git/delete_*",), "get_x", True),  # all but these
        (("!git/delete_*",), "delete_x", False),
        (("k8s/*",), "get_x", False),
        (("*/get_x",), "get_x", True),
        ((), "get_x", False),
    ],
)
def test_globs_say_what_is_in_it(globs: tuple[str, ...], own: str, is_in: bool) -> None:
    assert allows(engine_of(OPEN, dev(*globs)), at(ALICE), tool("git", own)) is is_in


@pytest.mark.parametrize("uri", ["file:///etc/x", "file:///%65tc/x", "file:///etc/%2578"])
def test_another_spelling_of_what_is_left_out_is_left_out(uri: str) -> None:
    engine = engine_of(OPEN, Toolset("dev", {"tool": (), "prompt": (), "res": ("git/*", "!git/file:///etc/*")}))
    assert not allows(engine, at(ALICE), tool("git", uri, "res"), "resources/read")
    assert allows(engine, at(ALICE), tool("git", "file:///b", "res"), "resources/read")


def test_what_policy_denies_is_denied_by_policy() -> None:
    engine = engine_of("p, role:ops, *, *, *, allow", dev("git/*"))
    assert engine.decide(Call(at(ALICE), "tools/call", {}), GIT).rule == "default"


def test_who_may_enter_is_said_by_roles_and_the_first_default_counts() -> None:
    those = [
        dev("git/*", audience=frozenset({"role:dev"})),
        Toolset("ops", {"tool": ("*/*",)}, default_for=frozenset({"role:ops", "role:both"})),
        Toolset("last", {"tool": ("*/*",)}, frozenset({"role:nobody"}), frozenset({"role:both"})),
    ]
    engine = engine_of(f"{OPEN}\ng, group:sre, role:ops", *those)
    bob, sre = Client("key:bob"), Client("jwt:https://i#s", ("group:sre",))
    assert [engine.enter(one, "dev") for one in (ALICE, bob)] == ["dev", None]
    assert [engine.enter(one, "") for one in (ALICE, sre, Client("key:c", ("role:both",)))] == ["", "ops", "ops"]
    assert [engine.enter(one, "last") for one in (bob, Client("key:c", ("role:both",)))] == [None, "last"]
    assert engine.enter(ALICE, "nothing") is None
    assert not allows(engine, at(bob), GIT), "who may not enter sees nothing there"
    assert not allows(engine, at(ALICE, "nothing"), GIT)
    assert not engine.may_see(Call(at(bob), "ping", {}), "git")


def test_rights_at_a_toolset_are_rights_of_their_own() -> None:
    engine = engine_of(OPEN, dev("git/*"))
    keys = {engine.permission_key(Call(one, "tools/list", {})) for one in (ALICE, at(ALICE), at(ALICE, "other"))}
    assert len(keys) == 3 and None not in keys


def test_without_toolsets_a_client_that_has_one_is_denied() -> None:
    engine = engine_of(OPEN)
    engine.in_force = replace(engine.in_force, rulebook=replace(engine.in_force.rulebook, toolsets=None))
    assert engine.enter(ALICE, "") == "" and engine.enter(ALICE, "dev") is None
    assert allows(engine, ALICE, GIT) and not allows(engine, at(ALICE), GIT)


def test_they_decide_the_same_in_another_process() -> None:
    policy = policy_of(OPEN)
    there = pickle.loads(pickle.dumps(Toolsets([dev("git/get_*")], policy)))
    assert there.deny(at(ALICE), GIT) is None and there.deny(at(ALICE), tool("git", "put_x")) is not None


def test_what_lies_outside_is_that_alone_though_a_row_denies_it() -> None:
    """Or a policy that explains its denials would tell of it."""
    engine = engine_of(f"{OPEN}\np, *, k8s, tool:x, *, deny", dev("git/*"))
    for own in ("x", "y"):
        decided = engine.decide(Call(at(ALICE), "tools/call", {}), tool("k8s", own))
        assert decided.rule.startswith("toolset dev") and decided.verdict is Verdict.DENY


def test_what_is_left_out_as_a_whole_server_is_left_out_of_prompts_and_resources() -> None:
    for tools in (("*/*", "!git/*"), ("!git/*",)):
        section = ToolsetSection(tools=tools)
        assert section.of_servers(None)[-1] == "!git/*" and section.of_servers(("k8s/a",)) == ("k8s/a",)


def test_a_subject_cannot_be_named_as_somebody_at_a_toolset() -> None:
    assert at(Client("jwt:https://i#alice")).holder != Client("jwt:https://i#alice /dev").holder
    assert len({at(ALICE).holder, ALICE.holder, at(ALICE, "x").holder}) == 3
    assert tasks.owner(at(ALICE)) != tasks.owner(ALICE), "a task of one toolset is unknown at another"
