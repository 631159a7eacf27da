"""For random policies, clients and targets: casbin over all rows, the decision and the explanation say the same."""

from fnmatch import fnmatchcase
from random import Random

import casbin
from casbin.core_enforcer import EnforceContext
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.policy import roles
from sluicegate.policy.classes import Classified
from sluicegate.policy.explain import explain
from sluicegate.policy.globs import covers, matches, meets
from sluicegate.policy.rules import RuleIndex, read_rules
from sluicegate.protocol.model import Client, Target, Verdict
from tests.policy.policies import ACTS, MODEL, PROFILES, acts, build, clients, lines, targets

EXAMPLES = settings.default.max_examples  # fewer in a quick run
SETTINGS = settings(deadline=None, max_examples=3 * EXAMPLES)


def plain_casbin(policy_lines: list[tuple[str, ...]]) -> casbin.Enforcer:
    """The same model and all rows, without shards, memo, or any function of ours."""
    enforcer = casbin.Enforcer(casbin.Enforcer.new_model(text=MODEL))
    enforcer.add_function("inRole", lambda held, sub: sub in held)
    enforcer.add_function("glob", fnmatchcase)
    enforcer.add_function(
        "reaches",
        lambda srv, pattern, eft: pattern == srv if srv == "sluice" and eft != "deny" else fnmatchcase(srv, pattern),
    )
    for kind, *fields in policy_lines:
        enforcer.model.add_policy("g" if kind == "g" else "p", kind, fields)
    enforcer.build_role_links()
    return enforcer


def held_by_casbin(enforcer: casbin.Enforcer, client: Client) -> frozenset[str]:
    starts = roles.origins(client)
    return frozenset(("*", *starts, *(role for s in starts for role in enforcer.get_implicit_roles_for_user(s))))


@SETTINGS
@given(lines, clients, targets, acts)
def test_a_decision_is_what_casbin_says_over_all_rows(
    rows: list[tuple[str, ...]], client: Client, target: Target, act: str
) -> None:
    policy, enforcer = build(rows), plain_casbin(rows)
    held = held_by_casbin(enforcer, client)
    assert held == policy.roles_of(client)
    request = (held, target.server, f"{target.kind}:{target.own}", act)
    allowed = enforcer.enforce(*request)
    asked = enforcer.enforce(EnforceContext("r2", "p2", "e2", "m2"), *request)
    ruling = policy.decide(client, target, act)
    if not allowed:
        assert ruling.verdict is Verdict.DENY
    elif not asked:
        assert ruling.verdict is Verdict.ALLOW


@SETTINGS
@given(lines, clients, targets, acts, st.booleans())
def test_an_explanation_comes_to_the_decision(
    rows: list[tuple[str, ...]], client: Client, target: Target, act: str, shadow: bool
) -> None:
    policy = build(rows, shadow)
    explanation = explain(policy, client, target, Classified(act, "test"))  # type: ignore[arg-type]
    assert explanation.ruling == policy.decide(client, target, act)


@SETTINGS
@given(lines, clients, st.lists(targets, max_size=4))
def test_what_is_remembered_is_what_is_decided(
    rows: list[tuple[str, ...]], client: Client, own: list[Target]
) -> None:
    wanted, policy = [(target, act) for target in own for act in ACTS], build(rows)
    listed = [policy.decide(client, target, act) for target, act in wanted]
    assert listed == [build(rows).decide(client, target, act) for target, act in wanted]


@SETTINGS
@given(lines, targets)
def test_no_row_about_an_object_is_left_out_of_its_shard(rows: list[tuple[str, ...]], target: Target) -> None:
    rules = read_rules(build(rows).rows, "p")
    obj = f"{target.kind}:{target.own}"
    assert RuleIndex(rules).about(obj) == [rule for rule in rules if fnmatchcase(obj, rule.obj)]


@SETTINGS
@given(lines, clients, targets, acts, st.randoms(use_true_random=False))
def test_the_order_of_rows_means_nothing(
    rows: list[tuple[str, ...]], client: Client, target: Target, act: str, random: Random
) -> None:
    one = build(rows).decide(client, target, act)
    random.shuffle(rows)
    other = build(rows).decide(client, target, act)
    assert (one.verdict, one.profile) == (other.verdict, other.profile)


@SETTINGS
@given(lines, clients, targets, acts)
def test_of_all_matching_approvals_the_strictest_counts(
    rows: list[tuple[str, ...]], client: Client, target: Target, act: str
) -> None:
    policy = build(rows)
    ruling = policy.decide(client, target, act)
    found = policy.matches(client, target.server, f"{target.kind}:{target.own}", act)
    names = {row.last for row in found.approvals}
    if ruling.verdict is Verdict.ASK:
        assert "none" not in names
        assert PROFILES[ruling.profile].strictness == max(PROFILES[name].strictness for name in names)
    elif ruling.verdict is Verdict.ALLOW:
        assert not names or "none" in names


@SETTINGS
@given(lines, clients, targets, acts)
def test_one_more_deny_never_opens_and_shadow_only_opens_what_rows_deny(
    rows: list[tuple[str, ...]], client: Client, target: Target, act: str
) -> None:
    before = build(rows).decide(client, target, act)
    after = build([*rows, ("p", "*", "*", "*", "*", "deny")]).decide(client, target, act)
    assert after.verdict is Verdict.DENY
    shadowed = build(rows, shadow=True).decide(client, target, act)
    if before.verdict is not Verdict.DENY:
        assert shadowed == before
    else:
        assert shadowed.would_deny or shadowed.verdict is Verdict.DENY


_PATTERNS = st.text(alphabet="ab*?[]!", max_size=6)


@settings(deadline=None, max_examples=5 * EXAMPLES)
@given(_PATTERNS, _PATTERNS, st.text(alphabet="ab[]!", max_size=6))
def test_globs_that_are_said_not_to_meet_do_not_and_covering_is_never_claimed_wrongly(
    one: str, other: str, text: str
) -> None:
    assert matches(text, one) == fnmatchcase(text, one)
    if matches(text, one) and matches(text, other):
        assert meets(one, other) and meets(other, one)
    if covers(one, other) and matches(text, other):
        assert matches(text, one)
