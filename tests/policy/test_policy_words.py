"""What a policy says to people and programs, word for word: explanations, cases, refusals, and text made visible."""

import json
import logging
from dataclasses import replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sluicegate.policy import display, hidden_text, pins
from sluicegate.policy.classes import Classes
from sluicegate.policy.diff import Side, compare, render
from sluicegate.policy.display import MAX_PATH, WIDTH, diff, each_line, hidden, lines, summary, visible
from sluicegate.policy.explain import Explanation, explain
from sluicegate.policy.explain import render as render_explanation
from sluicegate.policy.facts import Candidate, Facts, GrantFact
from sluicegate.policy.files import PolicyError, PolicySources, bundled_model, load, read_cases, run
from sluicegate.policy.globs import matches_folded
from sluicegate.policy.hidden_text import bare_text, flags, is_plain
from sluicegate.policy.judge import PolicyEngine, PolicyInForce
from sluicegate.policy.profiles import ApprovalProfile, strictest
from sluicegate.policy.rulebook import Rulebook
from sluicegate.policy.rules import Ruling
from sluicegate.policy.schema_cost import SchemaRefused
from sluicegate.policy.schemas import ArgumentRules, Outputs, Schema
from sluicegate.policy.target import read_target
from sluicegate.policy.toolsets import Toolset, Toolsets
from sluicegate.protocol.model import Call, Client, Decision, Target, Verdict
from sluicegate.protocol.pieces import in_one_step
from tests.policy.policies import ALICE, DESTROY, ROWS, RULES, policy_of

SCALE = read_target("call", "k8s/scale")


def test_an_explanation_has_these_members() -> None:
    found = explain(policy_of(ROWS), ALICE, SCALE, DESTROY, RULES, {"ns": "prod"})
    wanted = {
        "verdict": "deny", "rule": "policy.csv:4", "would_deny": False, "principal": "key:alice", "server": "k8s",
        "reason": "a row allows it (policy.csv:2), after approval (two-person)", "object": "tool:scale",
        "class": "destroy", "class_from": "servers.k8s.tools.classes: *",
        "rows": [{"at": "policy.csv:4", "says": "ask", "row": "p2, *, k8s, *, destroy, two-person"},
                 {"at": "policy.csv:2", "says": "allow", "row": "p, role:sre, k8s, *, *, allow"}],
        "roles": [["key:alice"], ["group:eng-sre", "role:sre", "role:dev"], ["role:authenticated"], ["role:everyone"]],
        "approval": "two-person", "arguments": {"path": "/ns", "message": 'the value is not one of "dev"'},
        "absent": None, "grant": None, "revision": "test",
    }  # fmt: skip
    assert found.as_json() == wanted
    fact = GrantFact("grt_1", "policy.csv:4", "two-person", "destroy", 1.0, False)
    granted = replace(found, violation=None, granted=fact, absent="")
    assert granted.as_json() == {**wanted, "verdict": "allow", "arguments": None, "grant": "grt_1"}
    assert replace(granted, absent="gone").as_json()["absent"] == "gone"
    nothing = explain(policy_of(ROWS), Client("anonymous"), read_target("call", "git/x"), DESTROY)
    assert nothing.as_json()["approval"] is None and nothing.as_json()["rule"] == "default"
    exempt = explain(policy_of(ROWS + "p2, *, k8s, tool:scale, *, none"), ALICE, SCALE, DESTROY)
    assert exempt.as_json()["approval"] == "none"
    assert exempt.as_json()["rows"][-1] == {"at": "policy.csv:7", "says": "exempt",
                                            "row": "p2, *, k8s, tool:scale, *, none"}  # fmt: skip


def test_an_explanation_for_people_says_what_decides_and_only_that() -> None:
    head = "k8s/scale [class destroy: servers.k8s.tools.classes: *]  for key:alice  policy rev test  exit"
    asks = "  ask     policy.csv:4  p2, *, k8s, *, destroy, two-person"
    allows = "  allow   policy.csv:2  p, role:sre, k8s, *, *, allow"
    roles = ["  roles   key:alice", "  roles   group:eng-sre -> role:sre -> role:dev", "  roles   role:authenticated",
             "  roles   role:everyone"]  # fmt: skip
    asked = explain(policy_of(ROWS), ALICE, SCALE, DESTROY)
    absent = replace(asked, absent="no such tool\x1b")
    granted = replace(asked, granted=GrantFact("grt_1", "r", "p", "destroy", 1.0, False))
    wrong = explain(policy_of(ROWS), ALICE, SCALE, DESTROY, RULES, {"ns": "prod"})
    for found, said in (
        (asked, [f"ASK   {head} 10", f"{asks}  <- decides", allows, *roles]),
        (absent, [f"DENY  {head} 1", "  catalog  no such tool\\u001b  <- decides", asks, allows, *roles]),
        (granted, [f"ALLOW {head} 0", asks, allows, *roles,
                   "  grant   grt_1: nobody is asked while it lasts  <- decides"]),
        (wrong, [f"DENY  {head} 1", asks, allows, *roles,
                 '  arguments  /ns: the value is not one of "dev"  <- decides (invalid_arguments)']),
    ):  # fmt: skip
        assert render_explanation(found).split("\n") == said
    several = explain(policy_of(ROWS + "p2, *, *, *, *, confirm"), ALICE, SCALE, DESTROY)
    assert f"{asks}  <- decides (the strictest)" in render_explanation(several)
    equals = ROWS.replace("two-person", "one-of-leads") + "p2, *, *, *, *, one-of-ops"
    tie = explain(policy_of(equals), ALICE, SCALE, DESTROY)
    assert "  <- decides (as strict as another, with other approvers)" in render_explanation(tie)
    shadow = explain(policy_of(ROWS, shadow=True), Client("anonymous"), SCALE, DESTROY)
    assert "  for anonymous  (shadow mode: would be denied)  policy rev test" in render_explanation(shadow)
    nobody = explain(policy_of("p, key:x, *, *, *, allow"), Client("anonymous"), SCALE, DESTROY)
    assert render_explanation(nobody).split("\n")[1] == "  default  no row allows it  <- decides"
    assert "  default  no row allows it" in render_explanation(replace(nobody, absent="x")).split("\n")


def test_a_name_that_means_nothing_is_said_to() -> None:
    policy = policy_of(ROWS)
    book = Rulebook(policy, Classes({}), lambda client, target: Decision(Verdict.ALLOW, "l", ""))

    def absent(**found: Any) -> str:
        candidate = Candidate(**{"server": "k8s", "own": "scale", **found})
        kind = found.get("kind", "tool")
        explained = book.explain_by(Facts((), (candidate,)), ALICE, kind)
        return str(getattr(explained, "absent", None))

    assert absent(state="missing") == "k8s lists no tool scale"
    assert absent(state="missing", near="scales") == "k8s lists no tool scale; did you mean scales?"
    assert absent(state="withheld") == "the definition of scale waits for a person: see `sluice pins diff k8s`"
    assert book.explain_by(Facts(()), ALICE, "tool") == Decision(
        Verdict.DENY, "catalog", "no server is known to have anything of this name"
    )
    assert book.explain_by(Facts((), problem="broken"), ALICE, "tool") == Decision(
        Verdict.DENY, "policy_error", "broken"
    )


@pytest.mark.parametrize("toolset", ["", "few"])
def test_an_explanation_in_a_thread_has_an_engine_of_its_own(toolset: str) -> None:
    """The rows of two questions in one engine would make a verdict of neither."""

    def made() -> Rulebook:
        policy = policy_of(ROWS)
        toolsets = Toolsets([Toolset("few", {"tool": ("k8s/get",)})], policy)
        allow = Decision(Verdict.ALLOW, "l", "")
        return Rulebook(policy, Classes({}), lambda client, target: allow, toolsets=toolsets)

    facts, client, book = Facts((), (Candidate("k8s", "scale"),)), replace(ALICE, toolset=toolset), made()
    expected = made().explain_by(facts, client, "tool")
    book.policy._engine._enforcer = None  # that of requests
    assert isinstance(expected, Explanation) is (not toolset) and book.explain_by(facts, client, "tool") == expected
    with pytest.raises(AttributeError):
        book.decide(client, SCALE)


def test_annotations_count_in_an_explanation_once_a_person_accepted_them() -> None:
    book = Rulebook(policy_of(ROWS), Classes({}), lambda client, target: Decision(Verdict.ALLOW, "l", ""))
    for accepted, name in ((True, "read"), (False, "write")):
        candidate = Candidate("k8s", "get", "listed", accepted, {"readOnlyHint": True})
        explained = book.explain_by(Facts((), (candidate,)), ALICE, "tool")
        assert isinstance(explained, Explanation) and explained.classified.name == name


def test_each_template_is_decided_by_itself() -> None:
    policy = policy_of("p, *, s, res:file:///*, read, allow\np, *, t, res:http:*, read, allow")
    for server, uri, verdict in (("s", "file:///{x}", Verdict.ALLOW), ("s", "http://x/{y}", Verdict.DENY),
                                 ("t", "http://x/{y}", Verdict.ALLOW), ("t", "file:///{x}", Verdict.DENY)):  # fmt: skip
        assert policy.decide_template(Client("anonymous"), Target(server, "res", uri, uri)).verdict is verdict


ONE = "a test asks one thing (one of call, get, read, list, admin)"
EXPECTS = (
    "a test says what it expects (expect: allow | deny | ask | invalid_arguments; with list: expect_tools: [..])"
)
OTHER_TYPE = "a value of this test is of another type than it can have"
WHO = "as: who asks ({id: alice, roles: [dev], groups: [eng]})"


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (1, "a test is a mapping ({as: {id: alice}, call: server/tool, expect: allow})"),
        ({"xx": 1}, '"xx" is no key of a test'), ({"expct": 1}, '"expct" is no key of a test (did you mean "expect"?)'),
        ({"as": {"id": "a"}}, ONE), ({"call": "a/b", "get": "a/b"}, ONE), ({"call": 1}, ONE),
        ({"call": "a/b", "class": "reed"}, '"reed" is no class (did you mean "read"?)'),
        ({"call": "a/b", "class": "zzz"}, '"zzz" is no class (read, write or destroy)'),
        ({"call": "a/b"}, EXPECTS), ({"call": "a/b", "expect": "ok"}, EXPECTS),
        ({"list": "a", "expect": "allow"}, EXPECTS),
        ({"call": "a/b", "expect": "allow", "expect_tools": []}, EXPECTS),
        ({"call": "ab", "expect": "allow"}, '"ab" is not written SERVER/NAME'),
        ({"call": "a/b", "expect": "allow", "as": 1}, WHO), ({"call": "a/b", "expect": "allow", "as": {"id": ""}}, WHO),
        ({"call": "a/b", "expect": "allow", "as": {"id": "a", "x": 1}}, WHO),
        ({"list": "a", "expect_tools": [], "as": {"id": "a"}, "tools": {"x": "odd"}},
         "tools: a class is read, write or destroy"),
        ({"call": "a/b", "expect": "allow", "as": {"id": "a", "roles": None}}, OTHER_TYPE),
        ({"list": "a", "expect_tools": 3, "as": {"id": "a"}}, OTHER_TYPE),
        ({"list": "a", "expect_tools": [], "as": {"id": "a"}, "tools": 5}, OTHER_TYPE),
        ({"call": "a/b", "expect": "allow", "as": {"id": "a"}, "args": {"day": date(2026, 1, 1)}}, OTHER_TYPE),
    ],
)  # fmt: skip
def test_a_case_that_asks_nothing_is_refused_with_why(item: Any, said: str) -> None:
    cases, findings = read_cases([(3, item)], "t.yaml")
    assert cases == [] and [str(finding) for finding in findings] == [f"t.yaml:3:1 bad-test {said}"]


ME = {"as": {"id": "a", "roles": ["dev"]}}
READ = {**ME, "call": "git/scale", "class": "read"}
SETS = {**READ, "args": {"ns": "x"}}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({**READ, "class": "destroy", "expect": "ask", "profile": "two-person"}, "call git/scale: ok"),
        ({**READ, "class": "destroy", "expect": "ask", "profile": "confirm"},
         "call git/scale: expected profile confirm, got two-person (policy.csv:3: p2, *, git, *, destroy, two-person)"),
        ({**READ, "expect": "allow", "profile": "confirm"},
         "call git/scale: expected profile confirm, got none (policy.csv:1: p, role:dev, git, *, *, allow)"),
        ({**ME, "admin": "pins", "expect": "allow"}, "admin pins: ok"),
        ({**ME, "admin": "pins", "class": "write", "expect": "allow"},
         "admin pins: expected allow, got deny (default)"),
        ({**ME, "get": "git/p", "class": "destroy", "expect": "allow"}, "get git/p: ok"),
        ({**ME, "read": "git/a:b", "expect": "deny"},
         "read git/a:b: expected deny, got allow (policy.csv:1: p, role:dev, git, *, *, allow)"),
        ({**ME, "list": "git", "expect_tools": ["b", "a"], "tools": {"a": "read", "b": "", "delete_x": ""}},
         "list git: ok"),
        ({**ME, "list": "git", "expect_tools": ["z"], "tools": ["a"]}, "list git: expected ['z'], got ['a']"),
        ({**ME, "list": "git", "expect_tools": ["z"]},
         "list git: nothing to list: the server's tools are not known here; name them with tools: [..]"),
        ({**SETS, "expect": "invalid_arguments", "path": "/ns"}, "call git/scale: ok"),
        ({**SETS, "expect": "invalid_arguments"}, "call git/scale: ok"),
        ({**SETS, "expect": "invalid_arguments", "path": "/q"},
         'call git/scale: expected invalid arguments at "/q", got /ns: the value is not one of "dev"'),
        ({**SETS, "expect": "allow"}, "call git/scale: expected allow, got invalid_arguments"
         " (policy.csv:1: p, role:dev, git, *, *, allow)"),
        ({**SETS, "call": "git/delete_x", "expect": "deny", "because": "tool:*delete*"}, "call git/delete_x: ok"),
    ],
)  # fmt: skip
def test_a_case_says_how_it_went(item: Any, said: str) -> None:
    rows = "p, role:dev, git, *, *, allow\np, *, *, tool:*delete*, *, deny\np2, *, git, *, destroy, two-person\n"
    rules = ArgumentRules({("git", "scale"): RULES.schemas["k8s", "scale"]}, {})
    cases, _ = read_cases([(3, item)], "t.yaml")
    (outcome,) = run(cases, policy_of(rows + "p, key:a, sluice, admin:pins, read, allow", True), Classes({}), rules)
    assert str(outcome) == f"t.yaml:3 key:a {said}" and outcome.ok is said.endswith(": ok")
    if not outcome.ok:
        assert str(outcome.as_finding()) == f"t.yaml:3:1 test-failed key:a {said}"


def test_a_difference_of_policies_has_examples() -> None:
    call = {"type": "outcome", "principal": "key:alice", "roles": [], "groups": ["group:eng-sre"], "server": "k8s",
            "kind": "tool", "own": "drain", "class": "destroy"}  # fmt: skip
    report = compare(Side(policy_of(ROWS)), Side(policy_of(ROWS + "p, *, *, tool:drain, *, deny")), [call] * 1_200)
    assert report.as_json() == {
        "calls": 1_200, "changes": {"ask->deny": 1_200}, "undecidable": {},
        "examples": [{"kind": "ask->deny", "principal": "key:alice", "what": "k8s/drain [destroy]", "calls": 1_200,
                      "before": "policy.csv:4 two-person", "after": "policy.csv:7"}],
    }  # fmt: skip
    assert render(report).split("\n") == [
        "1,200 calls: 1,200 ask->deny",
        "   1,200 x ask->deny    key:alice k8s/drain [destroy]  policy.csv:4 two-person -> policy.csv:7",
    ]
    many = [{**call, "own": f"delete_{n}", "class": "read"} for n in range(25)]
    more = render(compare(Side(policy_of(ROWS)), Side(policy_of(ROWS.replace("deny", "allow"))), many)).split("\n")
    assert len(more) == 22 and more[0] == "25 calls: 25 deny->allow" and more[-1] == "  and 5 more"
    odd = [{"type": "outcome", "server": "x", f"k{n}": n, "kind": "tool"} for n in range(2)]
    assert render(compare(Side(policy_of(ROWS)), Side(policy_of(ROWS)), odd)).split("\n") == [
        "2 calls: all decided as before",
        "       2 x undecidable: no principal, roles, groups, own, class in the record",
    ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([], "a schema is an object, true or false"), ({"enum": ["x" * 65_536]}, "65549 bytes, more than 65536"),
        ({"$schema": 5}, "$schema is not https://json-schema.org/draft/2020-12/schema"),
        ({"anyOf": [{}] * 1_001}, "more than 1000 subschemas"),
        ({"enum": [float("inf")]}, "a number that JSON cannot say"),
    ],
)  # fmt: skip
def test_a_schema_that_is_refused_is_told_why(schema: Any, said: str) -> None:
    with pytest.raises(SchemaRefused) as refused:
        Schema(schema)
    assert refused.value.text == str(refused.value) == said


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as refused:
        load(PolicySources(bundled_model(), (tmp_path / "policy.csv",), tmp_path))
    (finding,) = refused.value.findings
    assert str(finding).startswith("policy.csv:1:1 unreadable-file ") and finding.level == "error"


def test_of_approvals_the_strictest_counts_and_equals_go_by_name() -> None:
    own, one = ApprovalProfile("a", "self", 5, ("x",)), ApprovalProfile("b", "other", 1, ("x",))
    two, twin = ApprovalProfile("c", "other", 2, ("x",)), ApprovalProfile("d", "other", 2, ("x",))
    assert strictest([own, one]) is one and strictest([twin, one, two]) is two
    assert strictest([two, replace(twin, approvers=("y",))]) is None
    assert own.deciders == frozenset() and own.strictness == (0, 0) and two.strictness == (1, 2)


@pytest.mark.parametrize(
    ("row", "spellings"),
    [
        ("file:///d/caf%C3%A9/*", ["file:///d/caf%c3%a9/x", "file:///d/café/x", "file:///d/cafe\u0301/x"]),
        ("file:///d/geheimé/*", ["file:///d/geheim%C3%A9/x", "file:///d/geheim%c3%a9/x", "file:///d/geheim%E9/x"]),
        ("file:///d/my%20docs/*", ["file:///d/my docs/x", "file:///d/my%2520docs/x"]),
        ("file:///d/old docs/*", ["file:///d/old%20docs/x"]), ("file:///d/a(1)/*", ["file:///d/a%281%29/x"]),
        ("file:///d/x@y/*", ["file:///d/x%40y/x"]), ("https://h/a+b/*", ["https://h/a%2Bb/x"]),
        ("db://h/pay,roll/*", ["db://h/pay%2Croll/x"]), ("memo:café*", ["memo:caf%C3%A9"]),
        ("file:///é/*", [f"file:///%C3%A9/s.txt{end}" for end in ("?%FF", "#%FF", "?%EF%BF%BD", "/%FF", "%FF")]),
        ("file:///%C3%A9/*", ["file:///e%CC%81/s.txt?%FF", "file:///e%CC%81/%FF"]),
        ("notes://h/é/*", ["notes://h/%C3%A9/s?%FF"]), ("file:///a%EF%BF%BDb", ["file:///a\ufffdb"]),
        ("file:///d/s.txt", ["file:///d/s.txt%23x", "file:///d/s.txt%3Fx"]), ("file:///d/%E9t/*", ["file:///d/ét/x"]),
        ("https://h/d/*", ["https://h//d/x", "https://h///d/%41"]), ("db://h/t", ["db://h//t", "db://h/t//"]),
        ("https://h/?q=my docs*", ["https://h/?q=my+docs"]), ("file:///d/%2A/*", ["file:///d/*/x"]),
        ("file:///d/s/*", ["file:/d//s/x"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("effect", ["deny", "approve"])
def test_a_uri_of_a_row_is_denied_in_other_encodings_too(row: str, spellings: list[str], effect: str) -> None:
    rows = f'p, *, k8s, "res:{row}", *, deny\n' if effect == "deny" else f'p2, *, k8s, "res:{row}", *, confirm\n'
    policy = policy_of(f"p, *, *, *, *, allow\n{rows}")
    for own in spellings:
        ruling = policy.decide_alike(ALICE, Target("k8s", "res", own, own), "read")
        assert ruling is not None and ruling.verdict is Verdict.DENY, own
    for other in ("file:///d/other/x", "file:///d/%21/x", "file:///d/%E8t/x", row.removesuffix("*")):
        assert policy.decide_alike(ALICE, Target("k8s", "res", other, other), "read") is None


def test_a_uri_that_takes_long_to_judge_in_its_other_spellings_is_denied_where_they_would_be() -> None:
    """`normalize` takes the square of a run of marks: 300 ms for one URI. Odd bytes and what is encoded twice make many
    texts of one: 15 ms."""
    row, few = "p, *, *, *, *, allow\n", "e" + "\u0301\u0323" * 15
    policy, without = policy_of(row + "p, *, k8s, res:memo:secret, *, deny"), policy_of(row)
    marks = (f"{few}\u0323", "e" + "%CC%81%CC%A3" * 16, "e" + "%25CC%2581" * 31, "e" + "\u0f73" * 31)
    for own in (*marks, "%E9" * 65, "%2520" * 65, "%25E9" * 65, "%25%32%35" * 65):
        target = Target("k8s", "res", f"memo:%FF{own}", f"memo:%FF{own}")
        ruling = policy.decide_alike(ALICE, target, "read")
        assert ruling is not None and (ruling.verdict, ruling.rule) == (Verdict.DENY, "default"), own
        assert without.decide_alike(ALICE, target, "read") is None
    fine = (few, quote(few), "e\u0301" * 2000, "e%CC%81" * 100, "100%", "%E9" * 60, "%2520" * 60, "%E4%B8%AD" * 450)
    for own in fine:
        assert policy.decide_alike(ALICE, Target("k8s", "res", f"memo:{own}", f"memo:{own}"), "read") is None, own


def test_a_uri_with_more_text_in_its_spellings_than_its_rows_can_look_at_is_denied() -> None:
    """Each row looks at each spelling. For a request of 3 KB 20 rows looked at 370 KB each: 190 ms in one step."""
    rows = "".join(f"p, *, k8s, res:*secret{n}*, *, deny\n" for n in range(20))
    others = "".join(f"p, *, k8s, tool:x{n}*, *, deny\n" for n in range(500))
    policy, alone = (policy_of(f"p, *, *, *, *, allow\n{given}") for given in (rows + others, rows.split("\n")[0]))
    own = f"https://u@xn--bcher-kva.example.:443/{'a//' * 1000}{'%e9%25e9' * 8}?q=+%e9+#f"
    target = Target("k8s", "res", own, own)
    ruling = policy.decide_alike(ALICE, target, "read")
    assert ruling is not None and (ruling.verdict, ruling.rule) == (Verdict.DENY, "default")
    assert alone.decide_alike(ALICE, target, "read") is None
    long = ("https://u:p@api.example.com:8443/v1/" + "x/" * 1500 + "?q=a+b#f", "https://h/v?a=b+c&d=" + "A" * 3500,
            "https://xn--bcher-kva.example/v/" + "%C3%A9" * 200 + "?q=a+b%20c#f", "file:///home/" + "dir/" * 900)
    for own in long:
        assert policy.decide_alike(ALICE, Target("k8s", "res", own, own), "read") is None, own


def test_only_rows_that_could_deny_another_spelling_count_against_its_length() -> None:
    own = f"https://user@example.com/{'caf%C3%A9/' * 200}?q=a+b#f"
    target = Target("k8s", "res", own, own)
    exact = "".join(f"p, *, k8s, res:https://h/{n}, *, deny\n" for n in range(200))
    twice = "".join(f"p, *, k{letter}s, res:*secret*, *, deny\n" for letter in "8*?" for _ in range(20))
    others = "".join(f"p, *, k8s, res:*secret{n}*, write, deny\n" for n in range(50))
    asked = "".join(f"p2, *, k8s, res:ht{'*' * stars}, *, confirm\n" for stars in range(1, 20))
    allow = "p, *, *, *, *, allow\n"
    for rows in (exact, twice, others, asked, exact + twice + others + asked):
        assert policy_of(allow + rows).decide_alike(ALICE, target, "read") is None
    ruling = policy_of(allow + others.replace("write", "read")).decide_alike(ALICE, target, "read")
    assert ruling is not None and (ruling.verdict, ruling.rule) == (Verdict.DENY, "default")
    assert ruling.reason == (
        "its 18 other spellings have 25,540 characters: with 50 globs and 0 whole names of rows, more than 400,000")
    many = "".join(f"p, *, k8s, res:https://h/{n}, *, deny\n" for n in range(400_000 // 18 + 1))
    ruling = policy_of(allow + many).decide_alike(ALICE, target, "read")
    assert ruling is not None and "0 globs and 22,223 whole names of rows" in ruling.reason
    encoded = own + "%C3%A9"
    found = policy_of(allow + others + exact + "p, *, k8s, res:*user@*é, *, deny\n")
    assert found.decide_alike(ALICE, Target("k8s", "res", encoded, encoded), "read") is not None


def test_a_name_that_nobody_listed_is_denied_in_other_letters_too() -> None:
    policy = policy_of(ROWS + "p, *, k8s, tool:Drain_*, write, deny")
    for own, said in (("DELETE_x", "policy.csv:3"), ("drain_X", "policy.csv:7"), ("DRAIN_", "policy.csv:7")):
        target = Target("k8s", "tool", own, own, is_unlisted=True)
        ruling = policy.decide_alike(ALICE, target, "write")
        assert ruling is not None and (ruling.verdict, ruling.rule, ruling.reason, ruling.act) == (
            Verdict.DENY, said, "it is not listed, and a row is about other letters", "write")  # fmt: skip
    assert policy.decide_alike(ALICE, Target("k8s", "tool", "get", "get", is_unlisted=True), "write") is None
    assert matches_folded("ABC", "a*C") and matches_folded("abc", "A[B]C") and not matches_folded("abd", "a*c")


def test_a_policy_shows_how_it_decides_and_rulings_say_why() -> None:
    assert repr(policy_of(ROWS)).startswith("PolicyRules(test enforce 6 rows")
    assert repr(policy_of(ROWS, True)).startswith("PolicyRules(test shadow 6 rows")
    nobody, drain = Client("anonymous"), Target("git", "tool", "drain", "git__drain")
    for shadow, client, target, act, said in (
        (False, nobody, drain, "write", (Verdict.DENY, "default", "no row allows it", "write", "", False)),
        (True, nobody, drain, "write", (Verdict.ALLOW, "default", "shadow mode: no row allows it", "write", "", True)),
        (False, nobody, drain, "read", (Verdict.ALLOW, "policy.csv:1", "a row allows it", "read", "", False)),
        (False, ALICE, SCALE, "destroy", (
            Verdict.ASK, "policy.csv:4", "a row allows it (policy.csv:2), after approval (two-person)", "destroy",
            "two-person", False)),
        (False, ALICE, replace(SCALE, own="delete"), "read", (
            Verdict.DENY, "policy.csv:3", "a row denies it", "read", "", False)),
    ):  # fmt: skip
        found = policy_of(ROWS, shadow).decide(client, target, act)
        assert (found.verdict, found.rule, found.reason, found.act, found.profile, found.would_deny) == said
    template = policy_of(ROWS).decide_template(ALICE, Target("k8s", "res", "file:///{x}", "t"))
    assert isinstance(template, Ruling) and (template.verdict, template.act) == (Verdict.ALLOW, "read")


def test_results_that_break_a_promise_are_told_why() -> None:
    outputs, schema = Outputs(), {"type": "object", "required": ["n"]}
    for result, wanted, said in (
        ({}, schema, ("output_schema", "structuredContent is missing")),
        ({"structuredContent": {}}, schema, ("output_schema", '(all): "n" is a required property')),
        ({"structuredContent": {}}, 7, ("output_schema_unused", "not-a-schema: a schema is an object, true or false")),
        ({"structuredContent": list(range(100_000))}, {"items": {"allOf": [{"minimum": -n} for n in range(900)]}},
         ("output_schema_unused", "the result is too large to be checked against it")),
    ):  # fmt: skip
        assert outputs.check("s", "t", wanted, result) == said


def test_pins_are_spoken_of_in_numbers() -> None:
    assert pins.notice(0, True) == "" and pins.notice(1, False) == "1 definition waits"
    assert pins.notice(2, True) == "another server under this key: 2 definitions wait"
    kept = in_one_step(pins.from_json({"pins": [["tool", "x", "f", "t", "by", "at"]], "closed": []}, {"waiting": []}))
    assert kept.replaced_at == "" and pins.keys(kept) == [("tool", "x")]
    row = {"server": "git", "era": "legacy", "kind": "tool", "name": "x", "current": "1"}
    locked = pins.lock([row])
    assert locked == {"version": 1, "servers": {"git": {"legacy": {"tool": {"x": "sha256:1"}}}}}
    assert pins.breaches(locked, [row]) == [] and pins.unseen(locked, [row]) == 0 and pins.unseen(locked, []) == 1
    assert pins.breaches(locked, [{**row, "current": "2"}, {**row, "name": "y"}]) == [
        "git (legacy): tool x: sha256:2 is not the locked sha256:1",
        "git (legacy): tool y: sha256:1 is not in the lock file",
    ]
    with pytest.raises(ValueError, match=r"^no book of pins: KeyError\('pins'\)$"):
        in_one_step(pins.from_json({}, {}))


def test_a_judge_says_what_it_cannot_decide(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    book = Rulebook(policy_of(ROWS, True), Classes({}), lambda client, target: Decision(Verdict.ALLOW, "l", ""))
    judge = PolicyEngine(PolicyInForce(book, True, until=10.0))
    assert judge.explains() and judge.revision() == "test" and judge.classify(SCALE) == "write"
    assert judge.row_text("policy.csv:3", "test") == "p, *, *, tool:*delete*, *, deny"
    assert judge.row_text("none", "test") == ""
    assert judge.row_text("policy.csv:3", "older") == "", "there may be another row by now"
    assert "role:dev" in judge.roles_of(ALICE) and judge.roles_of(Client("odd")) == frozenset()
    call, denied = Call(ALICE, "tools/call", {}), Target("git", "tool", "delete_x", "git__delete_x")
    before = judge.permission_key(call)
    assert before is not None and before == judge.permission_key(call)
    assert judge.permission_key(replace(call, client=Client("odd"))) is None
    assert not judge.check(9.0) and judge.in_force.is_shadow
    assert judge.decide(call, denied).verdict is Verdict.ALLOW
    assert judge.check(10.0) and not judge.in_force.is_shadow and judge.permission_key(call) != before
    assert judge.decide(call, denied).verdict is Verdict.DENY
    assert [record.message for record in caplog.records] == ["shadow mode is over: the policy is enforced"]
    assert judge.decide(replace(call, client=Client("odd")), denied) == Decision(
        Verdict.DENY, "policy_error", "the decision failed"
    )
    assert judge.errors == 1 and caplog.records[-1].message == "denied: the decision failed"
    assert vars(caplog.records[-1])["decision"] == "tools/call of tool delete_x on git for odd"
    assert not judge.may_administer(Client("odd"), "admin:pins", "read")
    assert vars(caplog.records[-1])["decision"] == "read admin:pins for odd" and judge.errors == 2
    judge.problem = "the policy cannot decide"
    assert judge.decide(call, SCALE) == Decision(Verdict.DENY, "policy_error", "the policy cannot decide")
    assert judge.permission_key(call) is None
    assert not judge.may_see(call, "git") and judge.check(11.0)
    assert caplog.records[-1].message == "the policy can decide again" and judge.may_see(call, "git")


def test_definitions_are_shown_line_by_line() -> None:
    value = {"b": [1, {"c": None}], "a": "x\ny\u202e", "a b": True, "é": {}, "z": [], "long": "w" * 120}
    assert lines(value) == [
        "a:", "    | x", "    | y⟨U+202E⟩", '"a b": true', "b[0]: 1", "b[1].c: null",
        'long: "' + "w" * 103, "    … " + "w" * 17 + '"', "z: []", '"é": {}',
    ]  # fmt: skip
    assert lines(5) == ["5"] and lines("x") == ['"x"'] and lines({}) == ["{}"]
    assert diff(None, '{"a":1}') == ["+ a: 1"] and diff('{"a":1}', None) == ["- a: 1"] and diff(None, None) == []
    old = '{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9}'
    new = old.replace('"a":1', '"a":0').replace('"i":9', '"i":0')
    assert diff(old, new) == ["- a: 1", "+ a: 0", "  b: 2", "  c: 3", "  ...", "  g: 7", "  h: 8", "- i: 9", "+ i: 0"]
    row = {"state": "changed", "flags": ["bidi at /"], "server": "git", "era": "legacy", "kind": "tool",
           "name": "x\u202e"}  # fmt: skip
    assert summary(row) == "git (legacy): tool x⟨U+202E⟩: changed, bidi at /"
    assert visible("a⟨b\u2800\ufe0f\n") == "a⟨U+27E8⟩b⟨U+2800⟩⟨U+FE0F⟩⟨U+000A⟩"
    assert hidden({"k\u200b": ["\n\t\r\u200d\ufe0f", "\u202e\x1b", 1, None]}) == 3 and hidden("plain") == 0


def test_what_is_wrong_in_a_text_is_named_by_place() -> None:
    assert flags({"a": ["x", {"b\u202e": "\x1b[1m"}]}) == ["bidi at /a/1/b\\u202e", "terminal at /a/1/b\\u202e"]
    assert flags("\x1b") == ["terminal at /"] and flags(["\x1b"] * 30) == [f"terminal at /{n}" for n in range(20)]
    assert bare_text("a\x1b[31mb\u200bc\ufeff") == "abc" and bare_text("plain") == "plain"
    assert is_plain("a" * 63) and is_plain("\t\r\n" * 30) and not is_plain("a" * 100 + "\x7f") and not is_plain("\x00")


def test_each_character_of_a_long_text_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    is_hidden = display.is_hidden

    def count(char: str) -> bool:
        judged.append(char)
        return is_hidden(char)

    monkeypatch.setattr(display, "is_hidden", count)
    assert hidden("\u4e00\u202e" * 100_000) == 100_000
    assert visible("\u4e00\u202e" * 100_000) == "\u4e00\u27e8U+202E\u27e9" * 100_000
    assert len(judged) == 4


def test_a_long_path_is_written_once_and_no_part_of_it_is_left_out() -> None:
    deep: Any = list(range(1_000))
    for number in range(58):
        deep = {f"{number}{'n' * 253}": deep}
    wide = {"w" * 1_000_000: list(range(300))}
    for value, size in ((deep, 58 * 300), (wide, 1_200_000), ({"a": deep, "b": wide}, 1_230_000)):
        shown = lines(value)
        assert max(map(len, shown)) <= WIDTH + 6 and sum(map(len, shown)) < size + 1_400 * (MAX_PATH + 20)
    whole = "".join(line.removeprefix("    \u2026 ") for line in lines(deep))
    assert all(f"{number}{'n' * 253}" in whole for number in range(58))
    assert len(list(islice(each_line(deep), 61))) == 61
    assert "\u27e8" not in str(lines({"a" * (MAX_PATH - 10): [1]})) and "path 1" in str(lines({"a" * 300: [1]}))


def test_what_stands_in_the_middle_of_a_long_name_is_shown_and_compared() -> None:
    def named(middle: str) -> Any:
        return {"a" * 130 + middle + "b" * 130: {"x": [1]}}

    assert "staging" in "".join(lines(named("staging"))) and lines(named("staging")) != lines(named("production"))
    assert diff(json.dumps(named("staging")), json.dumps(named("production")))
    inside = [json.dumps({"k" * 250: {"a": 1, "b": 2, "c": 3, "d": 4, "path": path}}) for path in ("/tmp/x", "/etc")]
    compared = diff(*inside)
    assert compared[0].startswith("  \u27e8path 1\u27e9 is kkk") and '+ \u27e8path 1\u27e9.path: "/etc"' in compared
    assert compared[-2] == '- \u27e8path 1\u27e9.path: "/tmp/x"'
    forged = lines({"\u27e8path 1\u27e9": 1})
    assert forged == ['"\u27e8U+27E8\u27e9path 1\u27e8U+27E9\u27e9": 1']


def test_the_place_of_a_text_is_written_where_something_is_wrong_alone() -> None:
    deep: Any = ["x"] * 10_000
    for _ in range(60):
        deep = {"y" * 80: deep}
    longest: list[int] = []
    for place, _ in hidden_text._texts(deep):
        longest.append(len(place) if place is not None else 0)
    assert max(longest) == 2, "a place is its holder and a name"
    assert flags(deep) == []
