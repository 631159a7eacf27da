"""Whoever is asked for decisions: closed where it fails, and one law at a time."""

from dataclasses import replace
from typing import Any

import pytest

from sluicegate.policy.classes import Classes
from sluicegate.policy.judge import MAX_BYTES, AcceptedDefinitions, PolicyEngine, PolicyInForce
from sluicegate.policy.rulebook import Rulebook, ToolRules, allowlist
from sluicegate.protocol.model import Call, Client, Decision, Target, Verdict
from tests.policy.policies import policy_of, tool

ALICE = Client("key:alice")
GIT = tool("git", "push")


def judge_of(rows: str, shadow: bool = False, **law: Any) -> PolicyEngine:
    book = Rulebook(policy_of(rows, shadow), Classes({}), allowlist({"git": ToolRules()}))
    return PolicyEngine(PolicyInForce(book, **law))


def asks(method: str = "tools/call", client: Client = ALICE) -> Call:
    return Call(client, method, {})


class Broken:
    """A policy that answers nothing."""

    shadow = False

    def __getattr__(self, name: str) -> Any:
        def fail(*args: object) -> Any:
            raise RuntimeError("broken")

        return fail


def broken() -> PolicyEngine:
    judge = judge_of("p, *, *, *, *, allow\np, *, sluice, admin:*, *, allow")
    judge.in_force = replace(judge.in_force, rulebook=replace(judge.in_force.rulebook, policy=Broken()))  # type: ignore[arg-type]
    return judge


def test_a_decision_that_raises_is_a_deny_and_is_counted() -> None:
    judge = broken()
    decision = judge.decide(asks(), GIT)
    assert (decision.verdict, decision.rule) == (Verdict.DENY, "policy_error")
    assert not judge.may_list(asks("tools/list"), "git", GIT)
    assert not judge.may_see(asks(), "git")
    assert not judge.may_administer(ALICE, "servers", "read")
    assert judge.errors == 4 and judge.problem == ""


def test_a_principal_that_is_none_is_denied_alone() -> None:
    judge = judge_of("p, *, *, *, *, allow")
    assert judge.decide(asks(client=Client("nobody")), GIT).verdict is Verdict.DENY
    assert judge.decide(asks(), GIT).verdict is Verdict.ALLOW
    assert (judge.errors, judge.problem, judge.check(0.0)) == (1, "", False)


def test_while_a_known_question_goes_wrong_everything_is_denied_remembered_or_not() -> None:
    judge = judge_of("p, *, *, *, *, allow\np, key:alice, sluice, admin:*, *, allow")
    sound = judge.in_force
    assert judge.decide(asks(), GIT).verdict is Verdict.ALLOW
    judge.in_force = broken().in_force
    assert judge.check(0.0)
    judge.in_force = sound
    assert judge.decide(asks(), GIT) == Decision(Verdict.DENY, "policy_error", "the policy cannot decide")
    assert not judge.may_see(asks(), "git") and not judge.may_administer(ALICE, "pins", "write")
    assert judge.problem == "the policy cannot decide"
    assert judge.check(0.0) and not judge.check(0.0)
    assert judge.decide(asks(), GIT).verdict is Verdict.ALLOW and judge.may_see(asks(), "git")


@pytest.mark.parametrize(
    ("method", "decided"),
    [("tools/call", Verdict.ASK), ("prompts/get", Verdict.ASK), ("completion/complete", Verdict.DENY)],
)
def test_what_needs_an_approval_is_listed_and_not_completed(method: str, decided: Verdict) -> None:
    judge = judge_of("p, *, *, *, *, allow\np2, *, *, *, *, confirm")
    target = tool("git", "push", "tool" if method == "tools/call" else "prompt")
    assert judge.decide(asks(method), target).verdict is decided
    assert judge.may_list(asks("prompts/list"), "git", target)


def test_a_template_is_listed_by_what_it_may_expand_to_and_a_resource_never_is() -> None:
    judge = judge_of("p, *, git, res:file:///home/*, read, allow")
    template = Target("git", "res", "file:///{+path}", "x", {"uriTemplate": "file:///{+path}"})
    assert judge.may_list(asks("resources/templates/list"), "git", template)
    assert judge.may_list(asks("subscriptions/listen"), "git", template)
    assert judge.decide(asks("completion/complete"), template).verdict is Verdict.ALLOW
    assert not judge.may_list(asks("resources/list"), "git", template)
    posing = replace(template, own="file:///x", item={"uriTemplate": "file:///{+path}"})
    assert not judge.may_list(asks("resources/templates/list"), "git", posing)
    assert judge.decide(asks("resources/read"), replace(template, item=None)).verdict is Verdict.DENY


def test_shadow_mode_ends_in_time() -> None:
    judge = judge_of("p, role:x, *, *, *, allow", shadow=True, until=100.0)
    assert judge.decide(asks(), GIT).verdict is Verdict.ALLOW and judge.in_force.is_shadow
    assert not judge.check(99.9)
    assert judge.check(100.0) and not judge.in_force.is_shadow
    assert judge.decide(asks(), GIT).verdict is Verdict.DENY
    assert not judge.check(101.0)


def test_rights_on_sluice_itself_are_rows_and_never_in_shadow() -> None:
    judge = judge_of("p, *, *, *, *, allow\np, key:alice, sluice, admin:servers, read, allow", shadow=True)
    assert judge.may_administer(ALICE, "servers", "read")
    assert not judge.may_administer(ALICE, "servers", "write") and not judge.may_administer(ALICE, "pins", "read")
    assert not judge.may_administer(Client("key:bob"), "servers", "read")


def test_what_a_person_accepted_is_asked_once_for_each_definition() -> None:
    asked: list[Target] = []

    def accepted(target: Target) -> bool:
        asked.append(target)
        return True

    memory, first = AcceptedDefinitions(accepted), Target("git", "tool", "push", "git__push", {"name": "push"})
    assert memory(first) and memory(first) and len(asked) == 1
    assert memory(replace(first, item={"name": "push"})) and len(asked) == 2
    memory.forget()
    assert memory(first) and len(asked) == 3
    assert not memory(GIT) and len(asked) == 3
    assert memory(replace(first, own="pull")) and len(asked) == 4  # one definition of two tools


def test_definitions_that_always_change_are_not_kept_for_what_was_accepted_of_them() -> None:
    memory, large = AcceptedDefinitions(lambda target: target.own == "t1"), "d" * 1024 * 1024
    for number in range(100):
        target = Target("git", "tool", f"t{number}", f"git__t{number}", {"name": f"t{number}", "description": large})
        assert memory(target) is (number == 1)
    assert len(memory._cached) * len(large) <= 2 * MAX_BYTES


@pytest.mark.parametrize("area", ["policy", "logins"])
def test_a_wildcard_lets_nobody_write_what_a_row_has_to_name_but_the_owner_of_the_machine(area: str) -> None:
    judge = judge_of("p, *, sluice, admin:*, *, allow")
    assert judge.may_administer(ALICE, area, "read") and not judge.may_administer(ALICE, area, "write")
    assert judge.may_administer(ALICE, "pins", "write") and judge.may_administer(Client("local"), area, "write")
    judge = judge_of(f"p, *, sluice, admin:*, *, allow\np, key:alice, sluice, admin:{area}, write, allow")
    assert judge.may_administer(ALICE, area, "write") and not judge.may_administer(Client("key:bob"), area, "write")
    judge = judge_of(f"p, *, sluice, admin:{area}, *, allow\np, *, sluice, admin:*, write, deny")
    assert not judge.may_administer(ALICE, area, "write") and not judge.may_administer(Client("local"), area, "write")
