"""Allow and deny lists: globs over own names, deny first, no spelling slips through."""

import pytest

from sluicegate.policy.rulebook import ToolRules, allowlist
from sluicegate.protocol.model import Client, Target, Verdict

ME = Client("local")


@pytest.mark.parametrize(
    ("allow", "deny", "own", "verdict", "rule"),
    [
        (("*",), (), "push", Verdict.ALLOW, "servers.git.tools.allow: *"),
        (("*",), ("push*",), "push_all", Verdict.DENY, "servers.git.tools.deny: push*"),
        (("get_*",), (), "push", Verdict.DENY, "servers.git.tools.allow"),
        (("get_*",), ("get_key",), "get_key", Verdict.DENY, "servers.git.tools.deny: get_key"),
        ((), (), "push", Verdict.DENY, "servers.git.tools.allow"),
        (("push",), (), "PUSH", Verdict.DENY, "servers.git.tools.allow"),
        (("push",), (), "push\u200b", Verdict.DENY, "servers.git.tools.allow"),
        (("push",), (), "ｐush", Verdict.DENY, "servers.git.tools.allow"),
        (("[pq]ush",), (), "push", Verdict.ALLOW, "servers.git.tools.allow: [pq]ush"),
    ],
)
def test_deny_comes_before_allow_and_names_are_taken_as_they_are(
    allow: tuple[str, ...], deny: tuple[str, ...], own: str, verdict: Verdict, rule: str
) -> None:
    decide = allowlist({"git": ToolRules(allow, deny)})
    for _ in range(2):  # the memo answers the second time
        decision = decide(ME, Target("git", "tool", own, f"git__{own}"))
        assert (decision.verdict, decision.rule) == (verdict, rule)


def test_a_server_nobody_configured_is_denied() -> None:
    assert allowlist({})(ME, Target("git", "res", "a:b", "git+a:b")).verdict is Verdict.DENY


def test_lists_of_tools_do_not_speak_of_prompts_and_resources() -> None:
    decide = allowlist({"git": ToolRules((), ("*",))})
    assert decide(ME, Target("git", "prompt", "p", "git__p")).verdict is Verdict.ALLOW
