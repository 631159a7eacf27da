"""Every mistake is found, at its line and column, with what to do about it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.policy.finding import Finding
from sluicegate.policy.lint import lint
from sluicegate.policy.sense import Denies, Known, is_wider
from sluicegate.policy.table import read_rows, written
from tests.policy.policies import PROFILES, build, lines

KNOWN = Known(
    servers=frozenset({"git", "k8s"}),
    tools={"git": frozenset({"get_issue", "list_issues"}), "k8s": frozenset({"scale"})},
    roles=frozenset({"role:dev", "role:owner"}),
    keys=frozenset({"ci-bot"}),
)


CLASH = "p2, role:dev, git, *, *, one-of-leads\np2, role:owner, git, *, *, one-of-ops"


def find(text: str, known: Known = KNOWN) -> list[Finding]:
    rows, findings = read_rows(text, "p.csv")
    return findings + lint(rows, PROFILES, known)


@pytest.mark.parametrize(
    ("text", "line", "column", "code", "hint"),
    [
        ("p, role:dev, *, *, *, Deny", 1, 23, "wrong-effect", 'did you mean "deny"?'),
        ("p, role:dev, *, *, *, alow", 1, 23, "wrong-effect", 'did you mean "allow"?'),
        ("p, role:dev, *, *, *, allow # all", 1, 23, "wrong-effect", "a comment stands on a line of its own"),
        ("p, role:dev, *, *, allow", 1, 20, "column-count", "p, sub, srv, obj, act, eft"),
        ("p, role:dev, *, *, *, allow,", 1, 29, "column-count", "p, sub, srv, obj, act, eft"),
        ("g, role:dev", 1, 4, "column-count", "g, member, role"),
        ("\np9, role:dev, *, *, *, allow", 2, 1, "unknown-row-type", 'did you mean "p"?'),
        ("P2, *, *, *, *, confirm", 1, 1, "unknown-row-type", 'did you mean "p2"?'),
        ("P, role:dev, *, *, *, allow", 1, 1, "unknown-row-type", 'did you mean "p"?'),
        ("p, role:dev, *, , *, allow", 1, 17, "empty-field", "write * for anything"),
        ("p, role:dev, *, *, wirte, allow", 1, 20, "unknown-class", 'did you mean "write"?'),
        ("p2, *, *, *, *, confrim", 1, 17, "unknown-profile", 'did you mean "confirm"?'),
        ("p2, *, *, tool:get_*, *, none", 1, 11, "glob-exempt", "write tool:NAME, one row each"),
        ("p2, *, *, prompt:x, *, none", 1, 11, "glob-exempt", "write tool:NAME, one row each"),
        ("p, dev, *, *, *, allow", 1, 4, "unknown-subject", "write role:dev or group:dev or key:dev"),
        ("p, jwt:alice, *, *, *, allow", 1, 4, "unknown-subject", "jwt:ISSUER#SUB"),
        ("p, role:*, *, *, *, allow", 1, 4, "bad-glob", "write one row each, or *"),
        ("p, role:dev, *, tool:[ab, *, allow", 1, 17, "bad-glob", "write [[] for the character itself"),
        ("p, role:dev, g[it, *, *, allow", 1, 14, "bad-glob", "write [[] for the character itself"),
        ("p, role:dev, My Server, *, *, allow", 1, 14, "bad-server", "small letters"),
        ("p, role:dev, git, get_issue, *, allow", 1, 19, "unknown-object", "write tool:get_issue"),
        ("p, role:dev, git, tols:get_issue, *, allow", 1, 19, "unknown-object", 'did you mean "tool:"?'),
        ('p, role:dev, git, tool:"x", *, allow', 1, 19, "bad-quoting", "is written"),
        ('p, role:dev, git, "tool:x, *, allow', 1, 19, "bad-quoting", "is written"),
        ("p, role:dev, git, tool:x\u200b, *, allow", 1, 25, "invisible-character", ""),
        ("p, role:dev, git, tool:x\u202e, *, allow", 1, 25, "invisible-character", ""),
        ("p, role:dev, *, admin:pins, *, allow", 1, 14, "wildcard-on-sluice", "write sluice"),
        ("p, role:dev, sluice, *, *, allow", 1, 22, "unknown-object", "admin:servers"),
        ("p, role:dev, sluice, admin:pin, *, allow", 1, 22, "unknown-object", 'did you mean "admin:pins"?'),
        ("g, *, role:dev", 1, 4, "unknown-subject", "write role:everyone"),
        ("g, role:dev, group:eng", 1, 14, "unknown-role", "write role:eng"),
        ("g, anonymous, role:authenticated", 1, 15, "built-in-role", "remove the row"),
    ],
)
def test_a_wrong_word_is_an_error(text: str, line: int, column: int, code: str, hint: str) -> None:
    found = [finding for finding in find(text) if finding.level == "error"]
    assert [(f.line, f.column, f.code) for f in found] == [(line, column, code)], found
    assert hint in found[0].hint


@pytest.mark.parametrize(
    ("text", "line", "column", "code", "hint"),
    [
        ("p, role:devs, git, tool:get_issue, *, allow", 1, 4, "role-never-granted", 'did you mean "role:dev"?'),
        ("g, role:nobody, role:dev", 1, 4, "role-never-granted", ""),
        ("p2, role:dev, git, tool:*, *, two-person", 1, 31, "approver-never-granted", "with a g row"),
        ("p, key:ci-bod, git, *, *, allow", 1, 4, "unknown-key", 'did you mean "key:ci-bot"?'),
        ("p, role:dev, gti, *, *, allow", 1, 14, "unknown-server", 'did you mean "git"?'),
        ("p, role:dev, git, tool:get_isue, *, allow", 1, 19, "unknown-tool", 'did you mean "tool:get_issue"?'),
        ("p, role:dev, *, tool:nothing_*, *, allow", 1, 17, "unknown-tool", ""),
        ("p, role:dev, git, prompt:x, write, allow", 1, 29, "never-matches", "write read or *"),
        ("p, role:dev, sluice, admin:pins, destroy, allow", 1, 34, "never-matches", "write write"),
        ("p, *, g*, tool:*, *, deny\np, role:dev, git, tool:get_*, read, allow", 2, 19, "shadowed", "remove one"),
        ("p2, role:dev, git, *, *, confirm\np, role:dev, *, *, *, deny", 1, 20, "shadowed", ""),
        ("p, role:everyone, *, *, *, allow", 1, 25, "allows-everything", "p2"),
        ("p, *, git, tool:*, destroy, allow", 1, 20, "allows-everything", "p2"),
        ("p, role:dev, [gs]*, *, *, allow", 1, 14, "wildcard-on-sluice", "write sluice"),
        ("p, role:dev, git, *, *, allow\np,role:dev,git,*,*,allow", 2, 3, "same-row", "remove it"),
        ("g, role:dev, role:owner\ng, role:owner, role:dev", 1, 14, "role-circle", ""),
        (CLASH, 2, 28, "clashing-approvals", "stricter"),
    ],
)  # fmt: skip
def test_an_odd_row_is_a_warning(text: str, line: int, column: int, code: str, hint: str) -> None:
    found = find(text)
    assert (line, column, code) in [(f.line, f.column, f.code) for f in found], found
    assert all(f.level == "warning" for f in found), found
    assert any(f.code == code and hint in f.hint for f in found)


def test_equally_strict_approvals_of_other_people_for_one_client_are_an_error() -> None:
    found = find("p2, role:dev, git, *, *, one-of-leads\np2, *, g*, tool:x*, write, one-of-ops")
    assert [(f.code, f.level, f.line) for f in found if f.code == "clashing-approvals"] == [
        ("clashing-approvals", "error", 2)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "p, role:dev, *, *, *, allow\np2, *, *, tool:*, destroy, confirm\ng, group:eng, role:dev",
        "p, role:everyone, *, *, *, allow\np2, *, *, tool:*, destroy, confirm",
        "p, local, sluice, admin:*, *, allow\np, *, *, tool:*issue*, write, deny",
        "p2, *, git, tool:*, write, one-of-leads\np2, *, k8s, tool:*, write, one-of-ops\n"
        "g, group:leads, role:lead\ng, group:ops, role:ops",
        'p, "group:CN=Dev,OU=Eng", git, *, read, allow',
        "# p, oops\n\n",
        "p2, *, git, tool:get_issue, *, none",
    ],
)
def test_a_sound_policy_has_no_findings(text: str) -> None:
    assert find(text) == []


def test_what_is_not_known_is_not_judged() -> None:
    assert find("p, role:x, nowhere, tool:y, *, allow\np, key:z, *, *, read, allow", Known()) == []


@given(st.text(max_size=60) | st.lists(st.sampled_from([*'p2g,"*[]: #\n', "role:", "tool:", "allow"])).map("".join))
def test_any_text_is_rows_or_findings_and_no_line_is_lost(text: str) -> None:
    rows, findings = read_rows(text, "p.csv")
    lint(rows, PROFILES, KNOWN)
    lines_of_it = [line.strip() for line in text.removeprefix("\ufeff").split("\n")]
    assert len(rows) + len(findings) == len([line for line in lines_of_it if line and not line.startswith("#")])


def test_a_finding_reads_as_one_line() -> None:
    assert str(find("p, role:dev, *, *, *, Deny")[0]) == (
        'p.csv:1:23 wrong-effect "Deny" is no effect (did you mean "deny"?)'
    )


def test_a_row_that_is_shown_is_read_back_as_it_was_whatever_stands_in_its_fields() -> None:
    fields = ('jwt:https://login.example#ann "a", of b', "*", "tool:x, y", "*", "allow")
    rows, findings = read_rows(written("p", *fields), "p.csv")
    assert (findings, rows[0].fields) == ([], fields)
    assert str(rows[0]) == written("p", *fields)
    assert written("g", "key:a", "role:b") == "g, key:a, role:b"


@given(lines)
def test_what_is_denied_by_a_wider_row_is_found_as_if_each_row_was_compared_with_each(
    policy_lines: list[tuple[str, ...]],
) -> None:
    rules = [row for row in build(policy_lines).rows if row.kind != "g"]
    denies = Denies(rules)
    for row in rules:
        found = [deny for deny in denies.near(row) if is_wider(deny, row)]
        assert found == [deny for deny in rules if deny.denies and is_wider(deny, row)]


def test_twice_the_rows_are_twice_the_work() -> None:
    def compared(count: int) -> int:
        text = "\n".join(
            f"p, role:r{n % 9}, s{n % 11}, tool:do_{n}{'_*' if n % 2 else ''}, *, {'deny' if n % 3 else 'allow'}"
            for n in range(count)
        )
        rows, _ = read_rows(text, "p.csv")
        denies = Denies(rows)
        return sum(len(list(denies.near(row))) for row in rows if not row.denies)

    assert compared(8_000) <= 3 * compared(4_000) + 4_000


def test_a_row_that_denies_does_not_know_names_that_nobody_listed() -> None:
    known = replace(KNOWN, forwarding=frozenset({"git"}))
    found = find("p, role:dev, git, tool:get_issue, *, deny", known)
    assert [(f.code, f.level) for f in found] == [("denies-unlisted", "warning")]
    assert not find("p, role:dev, git, tool:get_issue, *, allow", known)
