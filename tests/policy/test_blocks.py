"""A block denies before any tool list or row is asked: who it is about, what it leaves alone, and when it is over."""

from typing import Any

import pytest

from policies import policy_of
from sluicegate.policy.blocks import Block, Blocks
from sluicegate.policy.classes import Classes
from sluicegate.policy.explain import Explanation
from sluicegate.policy.facts import Candidate, Facts
from sluicegate.policy.judge import UNREAD, PolicyEngine, PolicyInForce
from sluicegate.policy.rulebook import Rulebook, ToolRules, allowlist
from sluicegate.protocol.model import Call, Client, Target, Trail, Verdict

ROWS = """\
p, role:everyone, *, *, *, allow
p, key:ann, sluice, admin:policy, *, allow
p, key:bob, sluice, admin:policy, *, allow
"""
ANN, BOB = Client("key:ann"), Client("key:bob")


def rulebook() -> Rulebook:
    lists = allowlist({key: ToolRules() for key in ("bank", "mail")})
    return Rulebook(policy_of(ROWS), Classes({}), lists)


def engine(**block: Any) -> PolicyEngine:
    made = PolicyEngine(PolicyInForce(rulebook()))
    if block:
        assert made.block(Blocks([Block(id="blk_1", **block)]), now=0.0)
    return made


def target(server: str, own: str = "wire", kind: Any = "tool", **more: Any) -> Target:
    return Target(server, kind, own, f"{server}__{own}", {}, **more)


def may(judge: PolicyEngine, client: Client, about: Target, method: str = "tools/call") -> bool:
    return judge.decide(Call(client, method, {}, trail=Trail()), about).verdict is Verdict.ALLOW


@pytest.mark.parametrize(
    ("block", "denied", "allowed"),
    [
        ({"server": "bank"}, [target("bank"), target("bank", "x", "prompt"), target("bank", "a:b", "res")],
         [target("mail")]),
        ({"server": "bank", "tool": "wire"}, [target("bank"), target("bank", "WIRE", is_unlisted=True)],
         [target("bank", "look"), target("bank", "wire", "prompt"), target("mail"), target("bank", "WIRE")]),
        ({"server": "bank", "tool": "w*"}, [target("bank"), target("bank", "wipe")], [target("bank", "look")]),
        ({"server": "bank", "tool": "w[1]"}, [target("bank", "w[1]"), target("bank", "w1")], [target("bank", "w2")]),
    ],
)  # fmt: skip
def test_a_server_or_tools_of_it_are_denied_to_everybody(
    block: dict[str, str], denied: list[Target], allowed: list[Target]
) -> None:
    judge = engine(**block)
    assert [one.own for one in denied if may(judge, ANN, one)] == []
    assert [one.own for one in allowed if not may(judge, ANN, one)] == []
    assert judge.may_see(Call(ANN, "tools/list", {}), "bank") is ("tool" in block)
    assert judge.may_see(Call(ANN, "tools/list", {}), "mail")


def test_a_client_is_denied_everything_on_sluice_itself_too_and_nobody_else_is() -> None:
    judge = engine(principal="key:ann")
    for one in (target("bank"), target("mail", "x", "prompt")):
        assert not may(judge, ANN, one) and may(judge, BOB, one)
        assert not judge.may_list(Call(ANN, "tools/list", {}), one.server, one)
        assert not judge.may_still_call(ANN, one, "write") and judge.may_still_call(BOB, one, "write")
        remembered = Target(one.server, one.kind, one.own, one.public, None)
        assert not judge.may_still_call(ANN, remembered, "write")
    assert not judge.may_see(Call(ANN, "tools/list", {}), "bank") and judge.may_see(Call(BOB, "tools/list", {}), "bank")
    assert not judge.may_administer(ANN, "policy", "write") and judge.may_administer(BOB, "policy", "write")


def test_what_is_remembered_of_one_client_is_nothing_to_a_blocked_one() -> None:
    """Their rows are the same, so they share what was found."""
    judge = engine()
    ann, bob = Call(ANN, "tools/list", {}), Call(Client("key:bob"), "tools/list", {})
    same = judge.permission_key(ann), judge.permission_key(bob)
    judge.block(Blocks([Block(id="blk_1", principal="key:ann")]), now=0.0)
    assert judge.permission_key(ann) is None
    assert judge.permission_key(bob) not in (*same, None)


def test_it_counts_in_shadow_mode_and_behind_a_reload() -> None:
    judge = engine(server="bank")
    judge.in_force = PolicyInForce(rulebook())
    assert not may(judge, ANN, target("bank"))
    shadow = rulebook().policy.with_shadow(True)
    judge.in_force = PolicyInForce(Rulebook(shadow, Classes({}), allowlist({"bank": ToolRules()})))
    assert judge.in_force.is_shadow and not may(judge, ANN, target("bank"))


def test_it_is_over_in_time_and_that_is_a_change() -> None:
    judge = engine(server="bank", until=100.0)
    assert not judge.check(99.9) and not may(judge, ANN, target("bank"))
    assert judge.check(100.0) and may(judge, ANN, target("bank"))
    assert not judge.check(100.1)
    assert not judge.block(Blocks([Block(id="blk_1", server="bank", until=100.0)]), now=101.0)


def test_the_same_blocks_again_change_nothing() -> None:
    judge = engine(server="bank")
    before = judge.permission_key(Call(BOB, "tools/list", {}))
    assert not judge.block(Blocks([Block(id="blk_1", server="bank")]), now=1.0)
    assert judge.permission_key(Call(BOB, "tools/list", {})) == before
    assert judge.block(Blocks(), now=1.0) and may(judge, ANN, target("bank"))


@pytest.mark.parametrize("block", [{"server": "bank"}, {"server": "bank", "tool": "wire"}, {"principal": "key:ann"}])
def test_it_is_explained_as_it_is_decided(block: dict[str, str]) -> None:
    """Also where another process knew of it: facts are all that passes."""
    found = Facts(("bank",), (Candidate("bank", "wire", "listed"),), (), blocks=(Block(id="blk_1", **block),))
    facts = Facts.read(found.as_json())
    said = rulebook().explain_by(facts, ANN, "tool")
    decided = engine(**block).decide(Call(ANN, "tools/call", {}, trail=Trail()), target("bank"))
    assert not isinstance(said, Explanation) and said == decided
    assert decided.rule == f"block: {facts.blocks[0].what}"
    assert isinstance(rulebook().explain_by(Facts(("bank",), facts.candidates, ()), ANN, "tool"), Explanation)


def test_whoever_runs_sluice_can_end_a_block_of_themselves() -> None:
    local = Client("local")
    rows = "p, role:everyone, *, *, *, allow\np, local, sluice, admin:policy, *, allow\n"
    judge = PolicyEngine(PolicyInForce(Rulebook(policy_of(rows), Classes({}), allowlist({"bank": ToolRules()}))))
    judge.block(Blocks([Block(id="blk_1", principal="local")]), now=0.0)
    assert judge.may_administer(local, "policy", "write") and not may(judge, local, target("bank"))


def test_who_is_blocked_has_no_role_to_approve_with() -> None:
    judge, lea = engine(), Client("key:lea", ("role:lead",))
    assert "role:lead" in judge.roles_of(lea)
    judge.block(Blocks([Block(id="blk_1", principal="key:lea")]), now=0.0)
    assert judge.roles_of(lea) == frozenset()
    assert "role:lead" in judge.roles_by_policy(lea), "what judges calls of that role judges on"


def test_nothing_is_allowed_before_the_blocks_are_read() -> None:
    judge = engine()
    judge.await_blocks()
    judge.check(0.0)
    assert not may(judge, ANN, target("bank")) and judge.problem == UNREAD
    assert judge.block(Blocks(), now=0.0) and may(judge, ANN, target("bank")) and judge.problem == ""
