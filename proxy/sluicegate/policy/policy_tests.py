"""Unit tests of a policy: what is asked, as whom, and what must come out. Run by `sluice policy test`, in CI, and
before a changed policy is taken into use.

Pure: the YAML is read elsewhere, so that a case arrives as a mapping and a line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluicegate.policy.arguments import NO_RULES, ArgumentRules
from sluicegate.policy.classes import CLASSES, Classes
from sluicegate.policy.finding import PolicyFinding
from sluicegate.policy.lint_syntax import suggest
from sluicegate.policy.roles import principal_of
from sluicegate.policy.rules import PolicyRules, Ruling
from sluicegate.policy.target import read_target
from sluicegate.protocol.model import Client, Target, Verdict

EXPECTED: Final = ("allow", "deny", "ask", "invalid_arguments")
_VERBS: Final = ("call", "get", "read", "list", "admin")
_KEYS: Final = ("as", *_VERBS, "class", "args", "expect", "path", "profile", "because", "tools", "expect_tools")
Tools = Mapping[str, Iterable[str]]


class BadPolicyTest(ValueError):
    """A case that asks nothing; the text says why."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class PolicyTest:
    """`verb` and `text` are the question. Where `tools` is empty, a list is asked over the catalog at hand."""

    file: str
    line: int
    client: Client
    verb: str
    text: str
    act: str
    expect: str
    profile: str
    because: str
    path: str | None
    args: Any
    tools: Mapping[str, str]
    expect_tools: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.client.principal} {self.verb} {self.text}"


@dataclass(frozen=True, slots=True)
class TestResult:
    """How a case went; `wrong` is empty where it went as expected."""

    case: PolicyTest
    wrong: str

    @property
    def ok(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        return f"{self.case.file}:{self.case.line} {self.case.name}: {self.wrong or 'ok'}"

    def as_finding(self) -> PolicyFinding:
        return PolicyFinding(
            self.case.file, self.case.line, 1, "test-failed", "error", f"{self.case.name}: {self.wrong}"
        )


# ---------------------------------------------------------------- reading


def read_cases(items: Iterable[tuple[int, Any]], file: str) -> tuple[list[PolicyTest], list[PolicyFinding]]:
    """Cases of one file from (line, mapping) pairs."""
    cases: list[PolicyTest] = []
    findings: list[PolicyFinding] = []
    for line, item in items:
        try:
            cases.append(_read(item, file, line))
        except BadPolicyTest as error:
            findings.append(PolicyFinding(file, line, 1, "bad-test", "error", str(error), error.hint))
    return cases, findings


def _read(item: Any, file: str, line: int) -> PolicyTest:
    if not isinstance(item, Mapping):
        raise BadPolicyTest("a test is a mapping", "{as: {id: alice}, call: server/tool, expect: allow}")
    unknown = next((str(key) for key in item if key not in _KEYS), None)
    if unknown is not None:
        raise BadPolicyTest(f'"{unknown}" is no key of a test', suggest(unknown, _KEYS))
    verbs = [verb for verb in _VERBS if verb in item]
    if len(verbs) != 1 or not isinstance(item[verbs[0]], str):
        raise BadPolicyTest("a test asks one thing", f"one of {', '.join(_VERBS)}")
    act, expect = str(item.get("class", "")), str(item.get("expect", ""))
    if act and act not in CLASSES:
        raise BadPolicyTest(f'"{act}" is no class', suggest(act, CLASSES, "read, write or destroy"))
    if (verbs[0] == "list") != ("expect_tools" in item) or (verbs[0] != "list" and expect not in EXPECTED):
        raise BadPolicyTest(
            "a test says what it expects", f"expect: {' | '.join(EXPECTED)}; with list: expect_tools: [..]"
        )
    text = item[verbs[0]]
    if verbs[0] in ("call", "get", "read"):
        _target(verbs[0], text)
    path = item.get("path")
    return PolicyTest(
        file, line, read_client(item.get("as", {})), verbs[0], text, act, expect,
        str(item.get("profile", "")), str(item.get("because", "")), None if path is None else str(path),
        item.get("args"), _tools(item.get("tools", {})), tuple(map(str, item.get("expect_tools", ()))),
    )  # fmt: skip


def _target(verb: str, text: str) -> Target:
    try:
        return read_target(verb, text)
    except ValueError as error:
        raise BadPolicyTest(str(error)) from None


def _tools(value: Any) -> Mapping[str, str]:
    """`[name, ..]` or `{name: class}`."""
    named = {str(key): str(act) for key, act in value.items()} if isinstance(value, Mapping) else {}
    tools = named or {str(name): "" for name in value}
    if any(act and act not in CLASSES for act in tools.values()):
        raise BadPolicyTest("tools: a class is read, write or destroy")
    return tools


def read_client(value: Any) -> Client:
    """`{id: NAME, roles: [..], groups: [..]}`; a bare name is a key, prefixes of roles and groups may be left out."""
    if not isinstance(value, Mapping) or not value.keys() <= {"id", "roles", "groups"} or not value.get("id"):
        raise BadPolicyTest("as: who asks", "{id: alice, roles: [dev], groups: [eng]}")
    roles = (f"role:{str(role).removeprefix('role:')}" for role in value.get("roles", ()))
    groups = (f"group:{str(group).removeprefix('group:')}" for group in value.get("groups", ()))
    return Client(principal_of(str(value["id"])), (*roles, *groups))


# ---------------------------------------------------------------- running


def run(
    cases: Iterable[PolicyTest],
    policy: PolicyRules,
    classes: Classes,
    arguments: ArgumentRules = NO_RULES,
    catalog: Tools | None = None,
) -> list[TestResult]:
    """Every case against what a live call would be decided by, in enforce mode: shadow would let all pass."""
    enforced = policy.with_shadow(False)
    return [TestResult(case, _run(case, enforced, classes, arguments, catalog or {})) for case in cases]


def _run(case: PolicyTest, policy: PolicyRules, classes: Classes, arguments: ArgumentRules, catalog: Tools) -> str:
    if case.verb == "list":
        return _run_list(case, policy, classes, catalog)
    if case.verb == "admin":
        ruling = policy.decide_admin(case.client, case.text, case.act or "read")
        return _compare(case, policy, ruling, ruling.verdict.value)
    target = read_target(case.verb, case.text)
    ruling = policy.decide(case.client, target, _act(case.act, classes, target))
    violation = None
    if target.kind == "tool" and case.args is not None and ruling.verdict is not Verdict.DENY:
        violation = arguments.check(target.server, target.own, case.args)
    if violation and case.expect == "invalid_arguments" and case.path not in (None, violation.path):
        return f'expected invalid arguments at "{case.path}", got {violation}'
    return _compare(case, policy, ruling, "invalid_arguments" if violation else ruling.verdict.value)


def _act(written: str, classes: Classes, target: Target) -> str:
    return written if written and target.kind == "tool" else classes.of(target).name


def _compare(case: PolicyTest, policy: PolicyRules, ruling: Ruling, got: str) -> str:
    row = policy.row_at(ruling.rule)
    why = f"{ruling.rule}: {row}" if row else ruling.rule
    if got != case.expect:
        return f"expected {case.expect}, got {got} ({why})"
    if case.profile and ruling.profile != case.profile:
        return f"expected profile {case.profile}, got {ruling.profile or 'none'} ({why})"
    if case.because and case.because not in why:
        return f'expected because "{case.because}", got {why}'
    return ""


def _run_list(case: PolicyTest, policy: PolicyRules, classes: Classes, catalog: Tools) -> str:
    tools = case.tools or dict.fromkeys(catalog.get(case.text, ()), "")
    if not tools:
        return "nothing to list: the server's tools are not known here; name them with tools: [..]"
    shown = []
    for name, act in tools.items():
        target = Target(case.text, "tool", name, name)
        ruling = policy.decide(case.client, target, _act(act, classes, target))
        shown += [name] if ruling.verdict is not Verdict.DENY else []
    if sorted(shown) == sorted(case.expect_tools):
        return ""
    return f"expected {sorted(case.expect_tools)}, got {sorted(shown)}"
