"""What the policy tests share: a policy out of a few lines of CSV, and strategies for random ones."""

from collections.abc import Mapping
from pathlib import Path

from hypothesis import strategies as st

from sluicegate.policy.classes import Classified
from sluicegate.policy.csv_rows import Row, read_rows
from sluicegate.policy.engine import Engine
from sluicegate.policy.files import bundled_model
from sluicegate.policy.lint import lint
from sluicegate.policy.profiles import BUILT_IN, ApprovalProfile
from sluicegate.policy.rules import PolicyRules
from sluicegate.policy.schemas import ArgumentRules, Schema
from sluicegate.protocol.model import Client, Kind, Target

MODEL = bundled_model().read_text()
HERE = Path(__file__).parent

PROFILES: Mapping[str, ApprovalProfile] = {
    **BUILT_IN,
    "one-of-ops": ApprovalProfile("one-of-ops", "other", 1, ("role:ops",)),
    "ask-twice": ApprovalProfile("ask-twice", "self", 2),
}

# One policy to explain and to compare.
ROWS = """\
p, role:everyone, *, *, read, allow
p, role:sre, k8s, *, *, allow
p, *, *, tool:*delete*, *, deny
p2, *, k8s, *, destroy, two-person
g, role:sre, role:dev
g, group:eng-sre, role:sre
"""
ALICE = Client("key:alice", ("group:eng-sre",))
DESTROY = Classified("destroy", "servers.k8s.tools.classes: *")
RULES = ArgumentRules({("k8s", "scale"): Schema({"properties": {"ns": {"enum": ["dev"]}}})}, {("k8s", "scale"): "1"})


def rows_of(text: str, file: str = "policy.csv") -> list[Row]:
    rows, findings = read_rows(text, file)
    assert not findings, findings
    return rows


def policy_of(text: str, shadow: bool = False) -> PolicyRules:
    rows = rows_of(text)
    wrong = [finding for finding in lint(rows, PROFILES) if finding.level == "error"]
    assert not [finding for finding in wrong if finding.code != "clashing-approvals"], wrong
    return PolicyRules(Engine(MODEL), rows, PROFILES, "test", shadow)


def tool(server: str, own: str, kind: Kind = "tool") -> Target:
    return Target(server, kind, own, f"{server}__{own}")


# ---------------------------------------------------------------- random ones: few words, so that they meet

SUBJECTS = ["*", "role:everyone", "role:authenticated", "role:a", "role:b", "role:c", "group:g", "key:k", "anonymous"]
SERVERS = ["*", "git", "g*", "k8s", "k?s", "sluice", "[gk]*"]
OBJECTS = ["*", "tool:*", "tool:get_*", "tool:*delete*", "tool:get_x", "prompt:*", "res:file:///*", "tool:[gd]*"]
OWN = ["get_x", "get_y", "delete_x", "x", "GET_X", "get_x\u200b", "*", "file:///a", "file:///etc/[x]", ""]
ACTS = ["read", "write", "destroy"]

clients = st.builds(
    Client,
    st.sampled_from(["key:k", "key:other", "local", "anonymous", "jwt:https://i#s"]),
    st.lists(st.sampled_from(["role:a", "role:b", "group:g", "role:everyone", "*", "key:k"]), max_size=3).map(tuple),
)
targets = st.builds(
    tool,
    st.sampled_from(["git", "k8s", "git", "k8s", "sluice", "other"]),
    st.sampled_from(OWN) | st.text(max_size=6),
    st.sampled_from(["tool", "tool", "prompt", "res"]),
)
acts = st.sampled_from(ACTS)
_fields = (st.sampled_from(SUBJECTS), st.sampled_from(SERVERS), st.sampled_from(OBJECTS), st.sampled_from(["*", *ACTS]))
_rules = st.tuples(st.just("p"), *_fields, st.sampled_from(["allow", "allow", "allow", "deny"]))
# Rows of random fields seldom meet anything: without wide ones, nearly every random policy would deny everything.
_wide = st.tuples(
    st.just("p"), st.sampled_from(["*", "role:everyone", "role:a"]), st.just("*"), st.sampled_from(["*", "tool:*"]),
    st.just("*"), st.just("allow"),
)  # fmt: skip
_wide_asks = st.tuples(
    st.just("p2"), st.sampled_from(["*", "role:everyone", "group:g"]), st.sampled_from(["*", "g*"]), st.just("*"),
    st.sampled_from(["*", *ACTS]), st.sampled_from(sorted(PROFILES)),
)  # fmt: skip
_asks = st.tuples(st.just("p2"), *_fields, st.sampled_from(sorted(PROFILES)))
_exempt = st.tuples(
    st.just("p2"), _fields[0], _fields[1], st.sampled_from(["tool:get_x", "tool:x"]), _fields[3], st.just("none")
)
_grants = st.tuples(
    st.just("g"),
    st.sampled_from(["role:a", "role:b", "role:c", "group:g", "role:everyone", "key:k"]),
    st.sampled_from(["role:a", "role:b", "role:c"]),
)
lines = st.builds(
    lambda wide, asks, others: [*wide, *others, *asks],
    st.lists(_wide, max_size=2),
    st.lists(_wide_asks, max_size=2),
    st.lists(_rules | _asks | _exempt | _grants, max_size=8),
)


def build(random_lines: list[tuple[str, ...]], shadow: bool = False) -> PolicyRules:
    """Straight from fields: random rows may be unwise, and that must not matter."""
    rows = [
        Row("p.csv", number, kind, tuple(fields), tuple(range(1, len(fields) + 2)))
        for number, (kind, *fields) in enumerate(random_lines, 1)
    ]
    return PolicyRules(Engine(MODEL), rows, PROFILES, "random", shadow)
