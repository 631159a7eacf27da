"""Every mistake is found, at its line and column, with what to do about it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.policy.csv_rows import read_rows, written
from sluicegate.policy.finding import PolicyFinding
from sluicegate.policy.lint import Denies, KnownNames, is_wider, lint
from sluicegate.policy.profiles import ApprovalProfile
from sluicegate.protocol.model import Client
from tests.policy.policies import PROFILES, build, lines

KNOWN = KnownNames(
    servers=frozenset({"git", "k8s"}),
    tools={"git": frozenset({"get_issue", "list_issues"}), "k8s": frozenset({"scale"})},
    roles=frozenset({"role:dev", "role:owner"}),
    keys=frozenset({"ci-bot"}),
    issuers=frozenset({"https://idp.test"}),
    prefixes={"git": "git"},
)


CLASH = "p2, role:dev, git, *, *, one-of-leads\np2, role:owner, git, *, *, one-of-ops"


def find(text: str, known: KnownNames = KNOWN) -> list[PolicyFinding]:
    rows, findings = read_rows(text, "p.csv")
    return findings + lint(rows, PROFILES, known)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p, role:dev, *, *, *, Deny",
         ['1:23 wrong-effect "Deny" is no effect (did you mean "deny"?)']),
        ("p, role:dev, *, *, *, alow",
         ['1:23 wrong-effect "alow" is no effect (did you mean "allow"?)']),
        ("p, role:dev, *, *, *, allow # all",
         ['1:23 wrong-effect "allow # all" is no effect (a comment stands on a line of its own)']),
        ("p, role:dev, *, *, allow",
         ["1:20 column-count a p row has 5 fields after its type, this one has 4 (p, sub, srv, obj, act, eft)"]),
        ("p, role:dev, *, *, *, allow,",
         ["1:29 column-count a p row has 5 fields after its type, this one has 6 (p, sub, srv, obj, act, eft)"]),
        ("g, role:dev",
         ["1:4 column-count a g row has 2 fields after its type, this one has 1 (g, member, role)"]),
        ("\np9, role:dev, *, *, *, allow",
         ['2:1 unknown-row-type "p9" is no type of row (did you mean "p"?)']),
        ("P2, *, *, *, *, confirm",
         ['1:1 unknown-row-type "P2" is no type of row (did you mean "p2"?)']),
        ("P, role:dev, *, *, *, allow",
         ['1:1 unknown-row-type "P" is no type of row (did you mean "p"?)']),
        ("p, role:dev, *, , *, allow",
         ["1:17 empty-field an empty field (write * for anything)"]),
        ("p, role:dev, *, *, wirte, allow",
         ['1:20 unknown-class "wirte" is no class (did you mean "write"?)']),
        ("p2, *, *, *, *, confrim",
         ['1:17 unknown-profile "confrim" is no approval profile (did you mean "confirm"?)']),
        ("p2, *, *, tool:get_*, *, none",
         ["1:11 glob-exempt none exempts one tool from approvals, so it needs that tool's whole"
          " name (write tool:NAME, one row each)"]),
        ("p2, *, *, prompt:x, *, none",
         ["1:11 glob-exempt none exempts one tool from approvals, so it needs that tool's whole"
          " name (write tool:NAME, one row each)"]),
        ("p, dev, *, *, *, allow",
         ['1:4 unknown-subject "dev" is no subject (write role:dev or group:dev or key:dev)']),
        ("p, jwt:alice, *, *, *, allow",
         ['1:4 unknown-subject "jwt:alice" is no subject (a principal (key:NAME,'
          " jwt:ISSUER#SUB, local, anonymous), role:NAME, group:NAME or *)"]),
        ("p, role:*, *, *, *, allow",
         ["1:4 bad-glob a subject is a name, not a glob (write one row each, or *)"]),
        ("p, role:dev, *, tool:[ab, *, allow",
         ['1:17 bad-glob a "[" without its "]" (write [[] for the character itself)']),
        ("p, role:dev, g[it, *, *, allow",
         ['1:14 bad-glob a "[" without its "]" (write [[] for the character itself)']),
        ("p, role:dev, My Server, *, *, allow",
         ['1:14 bad-server "My Server" can be no server (servers are named in small letters,'
          " digits and hyphens; globs are * ? [..])"]),
        ("p, role:dev, git, get_issue, *, allow",
         ['1:19 unknown-object "get_issue" is no object (write tool:get_issue)']),
        ("p, role:dev, git, tols:get_issue, *, allow",
         ['1:19 unknown-object "tols:get_issue" is no object (did you mean "tool:"?)']),
        ('p, role:dev, git, tool:"x", *, allow',
         ["1:19 bad-quoting a quote that does not enclose a whole field (a field with a comma"
          ' or a quote in it is written "like ""this""")']),
        ('p, role:dev, git, "tool:x, *, allow',
         ["1:19 bad-quoting a quote that does not enclose a whole field (a field with a comma"
          ' or a quote in it is written "like ""this""")']),
        ("p, role:dev, git, tool:x\u200b, *, allow",
         ["1:25 invisible-character a character that nobody can see: U+200B"]),
        ("p, role:dev, git, tool:x\u202e, *, allow",
         ["1:25 invisible-character a character that nobody can see: U+202E"]),
        ("p, role:dev, *, admin:pins, *, allow",
         ['1:14 wildcard-on-sluice rights on Sluice itself need the server "sluice", written'
          " out; no wildcard reaches it (write sluice)"]),
        ("p, role:dev, sluice, *, *, allow",
         ['1:22 unknown-object "*" is no right on Sluice (admin:servers, admin:tools,'
          " admin:approvals, admin:grants, admin:pins, admin:audit, admin:secrets, admin:policy,"
          " admin:logins or admin:*)"]),
        ("p, role:dev, sluice, admin:pin, *, allow",
         ['1:22 unknown-object "admin:pin" is no right on Sluice (did you mean "admin:pins"?)']),
        ("g, *, role:dev",
         ["1:4 unknown-subject * is no member (write role:everyone)"]),
        ("g, role:dev, group:eng",
         ['1:14 unknown-role "group:eng" is no role (write role:eng)']),
        ("g, anonymous, role:authenticated",
         ["1:15 built-in-role role:authenticated is given by Sluice, never by a row (remove the row)"]),
    ],
)  # fmt: skip
def test_a_wrong_word_is_an_error(text: str, said: list[str]) -> None:
    assert [str(finding) for finding in find(text) if finding.level == "error"] == [f"p.csv:{one}" for one in said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p, role:devs, git, tool:get_issue, *, allow",
         ['1:4 role-never-granted warning: nobody has role:devs (did you mean "role:dev"?)']),
        ("g, role:nobody, role:dev",
         ['1:4 role-never-granted warning: nobody has role:nobody (did you mean "role:dev"?)']),
        ("p2, role:dev, git, tool:*, *, two-person",
         ["1:31 approver-never-granted warning: nobody has role:lead, so nobody can approve"
          " (give it in the config's clients, or with a g row)"]),
        *[(f"g, key:ci-bot, role:lead\n{right}p2, role:dev, git, tool:*, *, one-of-leads",
           [f"{line}:31 approver-without-right warning: no row lets role:lead decide, so nobody can approve"
            " (p, role:lead, sluice, admin:approvals, *, allow)"])
          for line, right in ((2, ""), (3, "p, role:lead, sluice, admin:approvals, read, allow\n"),
                              (3, "p, role:lead, sluice, admin:audit, *, allow\n"),
                              (3, "p, role:lead, sluice, admin:approvals, *, deny\n"),
                              (3, "p, local, sluice, admin:*, *, allow\n"))],
        *[(f"g, {who}, role:lead\np, {who}, sluice, {right}, allow\np2, role:dev, git, tool:*, *, one-of-leads", [])
          for who in ("key:ci-bot", "group:leads", "role:owner", "local")
          for right in ("admin:approvals, write", "admin:*, *")],
        ("p, key:ci-bod, git, *, *, allow",
         ['1:4 unknown-key warning: there is no key:ci-bod (did you mean "key:ci-bot"?)']),
        ("p, jwt:https://idp.test/#ann, git, *, *, deny",
         ["1:4 unknown-issuer warning: no token of https://idp.test/ is taken, so nobody is jwt:https://idp.test/#ann"
          ' (did you mean "https://idp.test"?)']),
        ("g, jwt:https://idp.other#ann, role:dev\ng, jwt:https://idp.test#ann, role:dev",
         ["1:4 unknown-issuer warning: no token of https://idp.other is taken, so nobody is jwt:https://idp.other#ann"
          ' (did you mean "https://idp.test"?)']),
        ("p, key:ci-bot, gti, *, *, allow",
         ['1:16 unknown-server warning: no server is called "gti" (did you mean "git"?)']),
        ("g, role:owner, role:x\ng, role:owner, role:dev\ng, role:x, role:owner",
         ["1:16 role-circle warning: role:owner and role:x give each other: they are one role",
          "3:12 role-circle warning: role:x and role:owner give each other: they are one role"]),
        ("p, role:dev, gti, *, *, allow",
         ['1:14 unknown-server warning: no server is called "gti" (did you mean "git"?)']),
        ("p, role:dev, git, tool:get_isue, *, allow",
         ['1:19 unknown-tool warning: no tool there is called get_isue (did you mean "tool:get_issue"?)']),
        ("p, role:dev, *, tool:nothing_*, *, allow",
         ["1:17 unknown-tool warning: no tool there is called nothing_*"]),
        ("p, role:dev, git, prompt:x, write, allow",
         ["1:29 never-matches warning: prompts and resources are always read, never write (write read or *)"]),
        ("p, role:dev, git, res:git+file:///secret/*, *, deny",
         ["1:19 public-uri warning: clients see git+ before a URI; a row has the URI of the server"
          " (write res:file:///secret/*)"]),
        ("p, role:dev, *, res:ui://git+form, *, deny",
         ["1:17 public-uri warning: clients see git+ before a URI; a row has the URI of the server"
          " (write res:ui://form)"]),
        ("p, role:dev, git, res:https://API.x/a, *, deny",
         ["1:19 never-matches warning: a URI in this spelling is never found, so no request has it (write its scheme"
          " and host in small letters, no dot segments, and nothing encoded that need not be)"]),
        ("p, role:dev, git, res:file:///a b*, *, deny\np, role:dev, git, res:urn:git+x, *, deny", []),
        ("p, role:dev, sluice, admin:pins, destroy, allow",
         ["1:34 never-matches warning: rights on Sluice are read or write (write write)"]),
        ("p, *, g*, tool:*, *, deny\np, role:dev, git, tool:get_*, read, allow",
         ["2:19 shadowed warning: everything here is denied by p.csv:1 (remove one of them)"]),
        ("p2, role:dev, git, *, *, confirm\np, role:dev, *, *, *, deny",
         ["1:20 shadowed warning: everything here is denied by p.csv:2 (remove one of them)"]),
        ("p, role:everyone, *, *, *, allow",
         ["1:25 allows-everything warning: everybody may use every tool here, those that"
          " destroy included (name roles, or ask with: p2, *, *, tool:*, destroy, confirm)"]),
        ("p, role:authenticated, *, *, *, allow",
         ["1:30 allows-everything warning: whoever has a credential may use every tool here, those that"
          " destroy included (name roles, or ask with: p2, *, *, tool:*, destroy, confirm)"]),
        ("p, role:authenticated, git, *, *, allow\np2, role:authenticated, git, *, destroy, confirm", []),
        ("p, *, git, tool:*, destroy, allow",
         ["1:20 allows-everything warning: everybody may use every tool here, those that"
          " destroy included (name roles, or ask with: p2, *, *, tool:*, destroy, confirm)"]),
        *[(f"p, *, git, *, *, allow\n{ask}",
           ["1:15 allows-everything warning: everybody may use every tool here, those that"
            " destroy included (name roles, or ask with: p2, *, *, tool:*, destroy, confirm)"])
          for ask in ("p2, *, git, tool:get_*, destroy, confirm", "p2, *, k8s, *, destroy, confirm",
                      "p2, *, git, *, write, confirm", "p2, role:dev, git, *, *, confirm")],
        *[(f"p, *, git, *, *, allow\n{ask}", [])
          for ask in ("p2, *, git, *, destroy, confirm", "p2, role:everyone, g*, tool:*, *, confirm")],
        ("p, *, *, *, read, deny\np, *, g*, *, read, deny\np, role:dev, git, *, read, allow",
         ["3:19 shadowed warning: everything here is denied by p.csv:1 (remove one of them)"]),
        ("p, role:dev, k8s, *, read, deny\np, role:dev, git, *, read, allow", []),
        ("p, role:dev, git, *, read, deny\np, role:dev, git, tool:get_*, read, allow",
         ["2:19 shadowed warning: everything here is denied by p.csv:1 (remove one of them)"]),
        ("p, role:dev, [gs]*, *, *, allow",
         ["1:14 wildcard-on-sluice warning: [gs]* does not reach Sluice itself: no wildcard"
          " does (write sluice in a row of its own, if that was meant)"]),
        ("p, role:dev, git, *, *, allow\np,role:dev,git,*,*,allow",
         ["2:3 same-row warning: the same as p.csv:1 (remove it)"]),
        ("g, role:dev, role:owner\ng, role:owner, role:dev",
         ["1:14 role-circle warning: role:dev and role:owner give each other: they are one role",
          "2:16 role-circle warning: role:owner and role:dev give each other: they are one role"]),
        (CLASH,
         ["1:26 approver-never-granted warning: nobody has role:lead, so nobody can approve"
          " (give it in the config's clients, or with a g row)",
          "2:28 approver-never-granted warning: nobody has role:ops, so nobody can approve"
          " (give it in the config's clients, or with a g row)",
          "2:28 clashing-approvals warning: one-of-ops is as strict as one-of-leads (p.csv:1)"
          " but names other approvers (a call that both match is denied: make one of them stricter,"
          " or keep them apart)"]),
    ],
)  # fmt: skip
def test_an_odd_row_is_a_warning(text: str, said: list[str]) -> None:
    found = find(text)
    assert all(finding.level == "warning" for finding in found), found
    assert [str(finding) for finding in found] == [f"p.csv:{one}" for one in said]


def test_the_operator_decides_where_the_config_makes_one_a_lead() -> None:
    rows = "g, key:ci-bot, role:lead\np, local, sluice, admin:*, *, allow\np2, role:dev, git, tool:*, *, one-of-leads"
    assert [one.code for one in find(rows)] == ["approver-without-right"]
    assert find(rows, replace(KNOWN, local=frozenset({"role:lead"}))) == []


def test_a_quorum_that_the_keys_cannot_make_is_a_warning() -> None:
    """Such a call waited until it expired, each time."""
    profile = ApprovalProfile("pairs", "other", 2, ("role:lead",), expires=60.0)
    rows, _ = read_rows(
        "g, key:ann, role:lead\np, role:lead, sluice, admin:approvals, write, allow\n"
        "p2, role:dev, git, tool:*, *, pairs", "p.csv",
    )  # fmt: skip
    ann, bea = Client("key:ann"), Client("key:bea", ("role:lead",), "Bea")
    bot = Client("key:bot", ("role:lead",), "bea")

    def told(*clients: Client, issuers: frozenset[str] = frozenset(), code: str = "quorum-too-high") -> list[str]:
        keys = frozenset(client.principal.removeprefix("key:") for client in clients)
        known = replace(KNOWN, keys=keys, issuers=issuers, clients=clients)
        return [str(one) for one in lint(rows, {"pairs": profile}, known) if one.code == code]

    assert told(ann, Client("key:dev", ("role:dev",))) == told(replace(ann, owner="bea"), bea, bot) == [
        "p.csv:3:31 quorum-too-high warning: 2 people have to approve, and 1 may, so nobody can"
        " (give role:lead to keys of other owners, or lower its quorum)"
    ]
    assert told(ann, bea) == []
    assert told(code="approver-never-granted") == [
        "p.csv:3:31 approver-never-granted warning: nobody has role:lead, so nobody can approve"
        " (give it in the config's clients, or with a g row)"
    ]
    assert told(ann, issuers=frozenset({"https://idp.test"})) == [], "who comes with a token is not known here"


def test_the_row_that_an_approver_lacks_is_one_that_a_file_can_have() -> None:
    name = "group:CN=Dev,OU=Eng"
    profile = ApprovalProfile("devs", "other", 1, (name,), expires=60.0)
    rows, _ = read_rows("g, key:ci-bot, role:lead\np2, role:dev, git, tool:*, *, devs", "p.csv")
    [found] = [one for one in lint(rows, {"devs": profile}, KNOWN) if one.code == "approver-without-right"]
    [row], wrong = read_rows(found.hint, "p.csv")
    assert not wrong and row.fields == (name, "sluice", "admin:approvals", "*", "allow")


def test_one_issuer_is_compared_with_the_others_once_for_all_its_rows() -> None:
    """Each of thousands of rows took as long as the comparison of its issuer with all others."""

    class Issuers(frozenset[str]):
        walks = 0

        def __iter__(self) -> Iterator[str]:
            self.walks += 1
            return super().__iter__()

    issuers = Issuers({"https://idp.test"})
    rows = "".join(f"p, jwt:https://idp.old#u{number}, git, *, *, allow\n" for number in range(50))
    found = find(rows, replace(KNOWN, issuers=issuers))
    assert [one.hint for one in found] == ['did you mean "https://idp.test"?'] * 50
    assert issuers.walks == 1


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ("p, key:ci-bod, git, *, *, allow", 'did you mean "key:ci-bot"?'),
        ("p, role:dev, gti, *, *, allow", 'did you mean "git"?'),
        ("p, role:dev, git, tool:get_isue, *, allow", 'did you mean "tool:get_issue"?'),
    ],
)
def test_so_is_a_name_with_those_that_there_are(row: str, hint: str) -> None:
    """A config lost a server: each row about it took as long as the comparison of its name with all others."""
    compared = list[str]()

    class Name(str):
        def lower(self) -> str:
            compared.append(self)
            return super().lower()

        def __format__(self, spec: str) -> str:
            compared.append(self)
            return super().__format__(spec)

    names = frozenset({Name("git")})
    tools = {"git": frozenset({Name("get_issue")})}
    known = replace(KNOWN, servers=names, tools=tools, keys=frozenset({Name("ci-bot")}))
    found = [one.hint for one in find("\n".join([row] * 50), known) if one.code.startswith("unknown-")]
    assert found == [hint] * 50
    assert len(compared) <= 2  # one name, and a hint may write it once more


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
        "g, group:leads, role:lead\ng, group:ops, role:ops\np, role:lead, sluice, admin:approvals, *, allow",
        'p, "group:CN=Dev,OU=Eng", git, *, read, allow',
        "# p, oops\n\n",
        "p2, *, git, tool:get_issue, *, none",
    ],
)
def test_a_sound_policy_has_no_findings(text: str) -> None:
    assert find(text) == []


def test_what_is_not_known_is_not_judged() -> None:
    assert find("p, role:x, nowhere, tool:y, *, allow\np, key:z, *, *, read, allow", KnownNames()) == []


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
    assert [str(finding) for finding in found] == [
        "p.csv:1:19 denies-unlisted warning: a row that denies does not know the names that the server does not list,"
        " and those are relayed (allow by name what may be used, or remove unlisted: forward)"
    ]
    assert not find("p, role:dev, git, tool:get_issue, *, allow", known)
