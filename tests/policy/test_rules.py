"""Decisions: which row, which approval, and what no row can change."""

from typing import Any

import pytest

from sluicegate.policy.csv_rows import Row
from sluicegate.policy.engine import Engine
from sluicegate.policy.profiles import BUILT_IN
from sluicegate.policy.rules import MAX_REMEMBERED, MAX_RESOURCES, Disagreement, PolicyRules
from sluicegate.protocol.model import Client, Decision, Target, Verdict
from tests.policy.policies import MODEL, policy_of, rows_of, tool

ALICE = Client("key:alice", ("role:dev", "group:eng"))
NOBODY = Client("anonymous")
INHERITED = "g, group:eng, role:b\ng, role:b, role:a"
LEADS, OPS, TWO = (f"p2, *, *, *, *, {name}" for name in ("one-of-leads", "one-of-ops", "two-person"))


def said(decision: Decision) -> tuple[str, str]:
    return decision.verdict.value, decision.rule


@pytest.mark.parametrize(
    ("rows", "target", "act", "expected"),
    [
        ("", tool("git", "x"), "read", ("deny", "default")),
        ("p, role:dev, git, *, *, allow", tool("git", "x"), "write", ("allow", "policy.csv:1")),
        ("p, role:dev, git, *, *, allow", tool("git2", "x"), "write", ("deny", "default")),
        ("p, role:dev, g*, *, *, allow", tool("git2", "x"), "write", ("allow", "policy.csv:1")),
        ("p, role:dev, *, tool:x, *, allow", tool("git", "x", "prompt"), "read", ("deny", "default")),
        ("p, role:dev, *, tool:x, *, allow", tool("git", "X"), "read", ("deny", "default")),
        ("p, role:dev, *, tool:x, *, allow", tool("git", "xx"), "read", ("deny", "default")),
        ("p, role:dev, *, tool:x?, *, allow", tool("git", "x\n"), "read", ("allow", "policy.csv:1")),
        ("p, role:dev, *, *, read, allow", tool("git", "x"), "write", ("deny", "default")),
        ("p, role:ops, *, *, *, allow", tool("git", "x"), "read", ("deny", "default")),
        ("p, group:eng, *, *, *, allow", tool("git", "x"), "read", ("allow", "policy.csv:1")),
        ("p, key:alice, *, *, *, allow", tool("git", "x"), "read", ("allow", "policy.csv:1")),
        (f"p, role:a, *, *, *, allow\n{INHERITED}", tool("g", "x"), "read", ("allow", "policy.csv:1")),
        ("p, *, *, *, *, allow\n\n# no\np, *, *, tool:*x, *, deny", tool("git", "x"), "read", ("deny", "policy.csv:4")),
        ("p, *, *, tool:*x*, *, deny\np, *, *, *, *, allow", tool("git", "ax"), "read", ("deny", "policy.csv:1")),
        ('p, *, *, "res:a:b,c", *, allow', tool("git", "a:b,c", "res"), "read", ("allow", "policy.csv:1")),
    ],
)  # fmt: skip
def test_one_allow_is_needed_and_one_deny_is_enough(
    rows: str, target: Target, act: str, expected: tuple[str, str]
) -> None:
    policy = policy_of(rows)
    assert said(policy.decide(ALICE, target, act)) == expected
    assert said(policy.decide(ALICE, target, act)) == expected  # remembered


def test_everyone_is_everybody_and_authenticated_is_not_anonymous_whatever_it_was_given() -> None:
    policy = policy_of("p, role:authenticated, a, *, *, allow\np, role:everyone, b, *, *, allow")
    sly = Client("anonymous", ("role:authenticated", "*", "key:alice"))
    assert policy.decide(sly, tool("a", "x"), "read").verdict is Verdict.DENY
    assert policy.decide(sly, tool("b", "x"), "read").verdict is Verdict.ALLOW
    assert policy.decide(ALICE, tool("a", "x"), "read").verdict is Verdict.ALLOW


def test_a_client_cannot_be_named_into_a_right() -> None:
    policy = policy_of("p, key:alice, *, *, *, allow\np, role:dev, *, *, *, allow")
    for client in (Client("jwt:https://i#key:alice"), Client("key:x", ("key:alice", "*", "role:", "group:role:dev"))):
        assert policy.decide(client, tool("git", "x"), "read").verdict is Verdict.DENY
    for principal in ("role:dev", "group:eng", "*", "", "alice"):
        with pytest.raises(ValueError, match="no principal"):
            policy.decide(Client(principal), tool("git", "x"), "read")


@pytest.mark.parametrize(
    ("approvals", "verdict", "rule", "profile"),
    [
        ("p2, *, *, *, *, confirm", "ask", "policy.csv:2", "confirm"),
        (f"p2, *, *, *, *, confirm\n{TWO}\n{LEADS}", "ask", "policy.csv:3", "two-person"),
        ("p2, *, *, *, write, confirm", "allow", "policy.csv:1", ""),
        ("p2, role:ops, *, *, *, confirm", "allow", "policy.csv:1", ""),
        ("p2, *, *, *, *, two-person\np2, role:dev, git, tool:x, *, none", "allow", "policy.csv:1", ""),
        ("p2, *, *, *, *, two-person\np2, role:dev, git, tool:y, *, none", "ask", "policy.csv:2", "two-person"),
        (f"{LEADS}\n{OPS}", "deny", "policy.csv:2", ""),
        (f"{LEADS}\n{OPS}\n{TWO}", "ask", "policy.csv:4", "two-person"),
    ],
)  # fmt: skip
def test_the_strictest_approval_counts_and_a_tie_of_other_approvers_denies(
    approvals: str, verdict: str, rule: str, profile: str
) -> None:
    ruling = policy_of(f"p, *, *, *, *, allow\n{approvals}").decide(ALICE, tool("git", "x"), "read")
    assert (*said(ruling), ruling.profile) == (verdict, rule, profile)


def test_an_approval_allows_nothing() -> None:
    assert said(policy_of("p2, *, *, *, *, confirm").decide(ALICE, tool("git", "x"), "read")) == ("deny", "default")


def test_no_wildcard_reaches_sluice_itself_but_a_deny_does() -> None:
    everything = "p, *, *, *, *, allow\np2, *, *, *, *, confirm"
    assert policy_of(everything).decide_admin(ALICE, "pins", "write").verdict is Verdict.DENY
    granted = f"{everything}\np, role:dev, sluice, admin:pins, write, allow"
    ruling = policy_of(granted).decide_admin(ALICE, "pins", "write")
    assert (ruling.verdict, ruling.profile) == (Verdict.ALLOW, "")
    assert policy_of(granted).decide_admin(ALICE, "audit", "write").verdict is Verdict.DENY
    denied = policy_of(f"{granted}\np, key:alice, *, *, *, deny").decide_admin(ALICE, "pins", "write")
    assert said(denied) == ("deny", "policy.csv:4")


def test_shadow_lets_pass_what_rows_deny_and_marks_it() -> None:
    policy = policy_of("p, *, git, tool:no, *, deny\np2, *, git, tool:ask, *, confirm", shadow=True)
    denied = policy.decide(ALICE, tool("git", "no"), "read")
    assert (denied.verdict, denied.rule, denied.would_deny) == (Verdict.ALLOW, "policy.csv:1", True)
    default = policy.decide(ALICE, tool("git", "x"), "read")
    assert (default.verdict, default.rule, default.would_deny) == (Verdict.ALLOW, "default", True)
    asked = policy.decide(ALICE, tool("git", "ask"), "read")
    assert (asked.verdict, asked.profile, asked.would_deny) == (Verdict.ASK, "confirm", True)
    assert policy.decide_admin(ALICE, "pins", "write").verdict is Verdict.DENY
    assert policy.with_shadow(False).decide(ALICE, tool("git", "x"), "read").verdict is Verdict.DENY


def test_shadow_does_not_open_what_nobody_may_approve() -> None:
    clash = "p, *, *, *, *, allow\np2, *, *, *, *, one-of-leads\np2, *, *, *, *, one-of-ops"
    assert policy_of(clash, shadow=True).decide(ALICE, tool("git", "x"), "read").verdict is Verdict.DENY


@pytest.mark.parametrize(
    ("rows", "template", "verdict"),
    [
        ("p, *, *, res:file:///home/*, read, allow", "file:///{path}", "allow"),
        ("p, *, *, res:file:///home/*, read, allow", "file:///home/me/{path}", "allow"),
        ("p, *, *, res:file:///home/*, read, allow", "file:///etc/{path}", "deny"),
        ("p, *, *, res:file:///home/*, write, allow", "file:///home/{path}", "deny"),
        ("p, *, *, *, *, allow\np, *, *, res:file:///e*, *, deny", "file:///etc/{path}", "deny"),
        ("p, *, *, *, *, allow\np, *, *, res:file:///e*, *, deny", "file:///{path}", "allow"),
        ("p, *, *, *, *, allow\np2, *, *, res:file:///e*, *, confirm", "file:///{path}", "ask"),
        ("p, *, *, res:a[*]b, *, allow", "a*b", "allow"),
        ("p, *, *, res:a[*]b, *, allow", "axb", "deny"),
    ],
)
def test_a_template_is_shown_if_what_it_expands_to_may_be_allowed(rows: str, template: str, verdict: str) -> None:
    assert policy_of(rows).decide_template(ALICE, tool("fs", template, "res")).verdict.value == verdict


def test_a_server_without_any_right_is_not_seen() -> None:
    policy = policy_of("p, role:dev, git, *, *, allow\np, *, k8s, *, *, allow\np, role:dev, k8s, *, *, deny")
    assert [policy.may_see(ALICE, server) for server in ("git", "k8s", "other")] == [True, False, False]
    assert policy.may_see(NOBODY, "k8s")


def test_clients_with_the_same_relevant_subjects_share_what_was_decided() -> None:
    policy = policy_of("p, role:dev, git, *, *, allow")
    one = policy.decide(Client("key:a", ("role:dev", "role:unused")), tool("git", "x"), "read")
    assert policy.decide(Client("key:b", ("role:dev",)), tool("git", "x"), "read") is one


class Inverted(Engine):
    """An engine that is wrong about everything."""

    def allows(self, held: frozenset[str], server: str, obj: str, act: str, rows: object) -> bool:
        return not super().allows(held, server, obj, act, rows)  # type: ignore[arg-type]


def test_where_casbin_and_the_rows_differ_nobody_gets_through_and_the_probe_says_so() -> None:
    policy = PolicyRules(Inverted(MODEL), rows_of("p, *, *, *, *, deny"), BUILT_IN, "x")
    with pytest.raises(Disagreement):
        policy.decide(ALICE, tool("git", "x"), "read")
    with pytest.raises(Disagreement):
        policy.probe()


@pytest.mark.parametrize("rows", ["", "p, *, *, *, *, deny", "p, *, *, *, *, allow\np2, *, *, *, *, confirm"])
def test_the_probe_is_about_deciding_not_about_the_rows(rows: str) -> None:
    assert policy_of(rows).probe()


def test_a_policy_shows_its_state() -> None:
    assert repr(policy_of("p, *, *, *, *, allow")) == "PolicyRules(test enforce 1 rows, 0 decisions kept)"


def test_what_was_decided_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.policy.rules.MAX_DECISIONS", 10)
    policy = policy_of("p, *, *, *, *, allow")
    for n in range(50):
        policy.decide(ALICE, tool("git", f"t{n}"), "read")
    assert "10 decisions kept" in repr(policy)


def test_casbin_logs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        policy_of("").decide(ALICE, tool("git", "x"), "read")
    assert not caplog.records


def test_rows_are_kept_with_their_place() -> None:
    row = rows_of("\n# c\n  p , role:dev ,git, *,*,allow\r\n")[0]
    assert row == Row("policy.csv", 3, "p", ("role:dev", "git", "*", "*", "allow"), (3, 7, 17, 22, 24, 26))
    assert (str(row), row.where) == ("p, role:dev, git, *, *, allow", "policy.csv:3")


def test_a_walk_through_many_resources_pushes_no_tool_out_of_memory() -> None:
    policy = policy_of("p, role:dev, *, *, *, allow")
    first = policy.decide(ALICE, tool("git", "x"), "read")
    for number in range(MAX_RESOURCES + 10):
        policy.decide(ALICE, tool("git", f"a:{number}", "res"), "read")
    assert policy.decide(ALICE, tool("git", "x"), "read") is first
    assert f"{MAX_RESOURCES + 1} decisions kept" in repr(policy)


@pytest.mark.parametrize("kind", ["tool", "res"])
def test_of_decisions_on_long_names_the_names_are_not_remembered(kind: Any) -> None:
    """Whoever may read any URI chooses ten thousand of them, of sixteen KiB each."""
    policy = policy_of(f"p, role:dev, *, *, *, allow\np, *, *, {kind}:*no, *, deny")
    long = "a:\ud800" + "x" * MAX_REMEMBERED
    for name in (long, f"{long}no", "a:x"):
        first = policy.decide(ALICE, tool("git", name, kind), "read")
        assert first.verdict is (Verdict.DENY if name.endswith("no") else Verdict.ALLOW)
        assert policy.decide(ALICE, tool("git", name, kind), "read") is first, "judged once: a list has thousands"
    names = [key[3] for memo in (policy._decided, policy._resources) for key in memo]
    assert len(names) == 3 and max(map(len, names)) <= 32
