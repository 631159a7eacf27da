"""Explanations as people read them, and what a changed policy would have decided."""

import pytest

from sluicegate.policy.diff import Side, compare, compare_rows, render
from sluicegate.policy.explain import explain
from sluicegate.policy.explain import render as render_explanation
from sluicegate.policy.target import read_target
from sluicegate.protocol.model import Client, Verdict
from tests.policy.policies import ALICE, DESTROY, ROWS, RULES, policy_of


def test_a_denial_shows_the_row_all_other_rows_the_way_and_the_approval_it_would_need() -> None:
    found = explain(policy_of(ROWS), ALICE, read_target("tools/call", "k8s/delete_pod"), DESTROY)
    assert (found.verdict, found.exit_code) == (Verdict.DENY, 1)
    assert render_explanation(found).split("\n") == [
        "DENY  k8s/delete_pod [class destroy: servers.k8s.tools.classes: *]  for key:alice  policy rev test  exit 1",
        "  deny    policy.csv:3  p, *, *, tool:*delete*, *, deny     <- decides (deny overrides)",
        "  allow   policy.csv:2  p, role:sre, k8s, *, *, allow",
        "  ask     policy.csv:4  p2, *, k8s, *, destroy, two-person",
        "  roles   key:alice",
        "  roles   group:eng-sre -> role:sre -> role:dev",
        "  roles   role:authenticated",
        "  roles   role:everyone",
        "  approval, if allowed: two-person (policy.csv:4)",
    ]


def test_an_ask_and_a_default_deny_say_what_decides() -> None:
    asked = explain(policy_of(ROWS), ALICE, read_target("call", "k8s/scale"), DESTROY)
    assert asked.exit_code == 10
    assert "ask     policy.csv:4  p2, *, k8s, *, destroy, two-person  <- decides" in render_explanation(asked)
    nothing = explain(policy_of(ROWS), Client("anonymous"), read_target("call", "k8s/scale"), DESTROY)
    assert "  default  no row allows it  <- decides" in render_explanation(nothing)


def test_arguments_can_be_what_denies() -> None:
    target = read_target("call", "k8s/scale")
    found = explain(policy_of(ROWS), ALICE, target, DESTROY, RULES, {"ns": "prod"})
    assert (found.verdict, found.as_json()["arguments"]["path"]) == (Verdict.DENY, "/ns")
    shown = render_explanation(found)
    assert 'arguments  /ns: the value is not one of "dev"  <- decides (invalid_arguments)' in shown
    assert explain(policy_of(ROWS), ALICE, target, DESTROY, RULES, {"ns": "dev"}).verdict is Verdict.ASK


def test_text_for_people_drives_no_terminal() -> None:
    target = read_target("call", "k8s/\x1b[31mx\u202e")
    shown = render_explanation(explain(policy_of(ROWS), ALICE, target, DESTROY))
    assert "\\u001b[31mx\\u202e" in shown and "\x1b" not in shown


@pytest.mark.parametrize(("method", "text"), [("tools/list", "a/b"), ("tools/call", "ab"), ("tools/call", "/b")])
def test_a_target_that_is_none_is_said_to_be_none(method: str, text: str) -> None:
    with pytest.raises(ValueError, match='"'):
        read_target(method, text)


def record(own: str, act: str = "destroy", **other: object) -> dict[str, object]:
    who = {"type": "outcome", "principal": "key:alice", "roles": [], "groups": ["group:eng-sre"]}
    return {**who, "server": "k8s", "kind": "tool", "own": own, "class": act, **other}


def test_a_diff_counts_what_changes_and_names_what_it_cannot_decide() -> None:
    new = ROWS.replace("destroy, two-person", "read, confirm") + "p, *, k8s, tool:drain, *, deny"
    records = [
        record("drain"), record("drain"), record("restart"), record("delete_pod"), record("get", "read"),
        record("scale", "write"), {"type": "checkpoint"}, record("drain", type="intent"), record("x", "odd"),
        record("x", roles="role:sre"), record("x", roles=["role:a"] * 64),
        record("x[redacted:00ff]"), record("x...(12 more)"), {"type": "outcome", "method": "tools/list"},
        {"type": "outcome", "server": "k8s"},
    ]  # fmt: skip
    report = compare(Side(policy_of(ROWS), RULES), Side(policy_of(new, shadow=True)), records)
    assert dict(report.kinds) == {"ask->deny": 2, "ask->allow": 1, "allow->ask": 1}
    assert dict(report.undecidable) == {
        "the argument rule of k8s/scale changed, and recorded arguments are not whole": 1,
        "no principal, roles, groups, kind, own, class in the record": 1,
        "a principal, kind or class that no policy speaks of": 1,
        "more roles than a record holds": 1,
        "a name that was redacted or cut in the record": 2,
        "a record whose fields are of another type": 1,
    }
    lines = render(report).split("\n")
    assert lines[0] == "12 calls: 2 ask->deny, 1 ask->allow, 1 allow->ask"
    assert lines[1] == "       2 x ask->deny    key:alice k8s/drain [destroy]  policy.csv:4 two-person -> policy.csv:7"
    assert report.as_json()["changes"] == {"ask->deny": 2, "ask->allow": 1, "allow->ask": 1}


def test_the_same_policy_changes_nothing() -> None:
    side = Side(policy_of(ROWS), RULES)
    assert render(compare(side, side, [record("scale")] * 3)) == "3 calls: all decided as before"


def test_rows_are_compared_without_their_order() -> None:
    turned = "\n".join(reversed(ROWS.strip().split("\n")[1:]))
    old, new = policy_of(ROWS), policy_of(f"{turned}\np, *, a, *, read, allow")
    gone, added = compare_rows(old.rows, new.rows)
    assert [str(row) for row in gone] == ["p, role:everyone, *, *, read, allow"]
    assert [str(row) for row in added] == ["p, *, a, *, read, allow"]
