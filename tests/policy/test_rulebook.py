"""All that decides about a target, in its order."""

from sluicegate.policy.classes import Classes
from sluicegate.policy.explain import Explanation
from sluicegate.policy.rulebook import Rulebook, ToolRules, allowlist
from sluicegate.policy.schemas import ArgumentRules, Schema
from sluicegate.protocol.model import Client, Decision, Target, Verdict
from tests.policy.policies import policy_of, tool

ALICE = Client("key:alice")
ROWS = "p, *, *, *, *, allow\np2, *, *, tool:*, destroy, confirm\np2, *, *, tool:*, write, confirm"


def book(shadow: bool = False) -> Rulebook:
    return Rulebook(
        policy_of(ROWS, shadow),
        Classes({"git": {"get_*": "read", "*delete*": "destroy"}}),
        allowlist({"git": ToolRules(deny=("fork_*",))}),
        ArgumentRules({("git", "get_x"): Schema({"required": ["a"]})}, {}),
        lambda target: target.own == "accepted",
    )


def test_the_servers_own_lists_deny_first_even_in_shadow() -> None:
    for shadow in (False, True):
        decision = book(shadow).decide(ALICE, tool("git", "fork_x"))
        assert (decision.verdict, decision.rule) == (Verdict.DENY, "servers.git.tools.deny: fork_*")
        assert book(shadow).decide(ALICE, tool("other", "x")).verdict is Verdict.DENY
    assert isinstance(book().explain(ALICE, tool("git", "fork_x")), Decision)


def test_the_class_is_part_of_the_decision() -> None:
    assert book().decide(ALICE, tool("git", "get_x")).verdict is Verdict.ALLOW
    assert book().decide(ALICE, tool("git", "put_x")).verdict is Verdict.ASK
    hinted = Target("git", "tool", "accepted", "git__accepted", {"annotations": {"readOnlyHint": True}})
    assert book().decide(ALICE, hinted).verdict is Verdict.ALLOW
    unhinted = Target("git", "tool", "other", "git__other", {"annotations": {"readOnlyHint": True}})
    assert book().decide(ALICE, unhinted).verdict is Verdict.ASK


def test_arguments_are_checked_for_tools_alone_and_templates_by_the_rows() -> None:
    assert book().check_arguments(tool("git", "get_x"), {})
    assert book().check_arguments(tool("git", "get_x", "prompt"), {}) is None
    assert book().decide_template(ALICE, tool("git", "a:{b}", "res")).verdict is Verdict.ALLOW
    explanation = book().explain(ALICE, tool("git", "get_x"), {})
    assert isinstance(explanation, Explanation) and explanation.exit_code == 1


def test_a_rule_for_arguments_holds_for_other_spellings_of_an_unlisted_tool() -> None:
    """A server may take `GET_X` for `get_x`; what it lists under that name is another tool."""
    for own in ("GET_X", "get_x", "Get_X"):
        assert book().check_arguments(Target("git", "tool", own, own, is_unlisted=True), {})
        assert book().check_arguments(Target("git", "tool", own, own, is_unlisted=True), {"a": 1}) is None
    assert book().check_arguments(tool("git", "GET_X"), {}) is None
    assert book().check_arguments(Target("hub", "tool", "get_x", "get_x", is_unlisted=True), {}) is None


def test_a_uri_is_denied_too_where_a_row_denies_what_servers_take_it_for() -> None:
    rows = "p, *, *, *, *, allow\np, *, git, res:file:///etc/*, *, deny\np2, *, git, res:secret:*, read, confirm"
    rules = Rulebook(policy_of(rows), Classes({}), allowlist({"git": ToolRules()}))
    for uri, verdict in {
        "file:///pub/a": Verdict.ALLOW, "file:///pub/a?x": Verdict.ALLOW, "file:///etc/x": Verdict.DENY,
        "file:etc/x": Verdict.DENY, "file://h/etc/x#y": Verdict.DENY, "secret:a": Verdict.ASK, "SECRET:a": Verdict.DENY,
    }.items():  # fmt: skip
        target = tool("git", uri, "res")
        assert rules.decide(ALICE, target).verdict is verdict, uri
        explained = rules.explain(ALICE, target)
        ruling = explained.ruling if isinstance(explained, Explanation) else explained
        assert ruling.verdict is verdict, uri
    shadow = Rulebook(policy_of(rows, True), Classes({}), allowlist({"git": ToolRules()}))
    assert shadow.decide(ALICE, tool("git", "file:etc/x", "res")).verdict is Verdict.ALLOW
