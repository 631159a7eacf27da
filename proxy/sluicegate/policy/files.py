"""The one file of this room that reads files: a policy from disk, checked whole, or all reasons why it cannot be used.

Every file is read once, and the revision is a digest of just those bytes: what was checked is what is in force.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from sluicegate.policy.classes import CLASSES, Classes
from sluicegate.policy.csv_rows import Row, read_rows
from sluicegate.policy.engine import Engine, check_model
from sluicegate.policy.finding import PolicyError, PolicyFinding
from sluicegate.policy.lint import KnownNames, lint, suggest
from sluicegate.policy.profiles import BUILT_IN, ApprovalProfile
from sluicegate.policy.roles import principal_of
from sluicegate.policy.rules import PolicyRules, Ruling
from sluicegate.policy.schema_cost import KEYWORDS, NOT_CHECKED, SchemaRefused, unused_keywords
from sluicegate.policy.schemas import NO_RULES, ArgumentRules, ArgumentSchema
from sluicegate.policy.target import printable, read_target
from sluicegate.protocol.jsonrpc import Malformed, decode
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


def read_cases(items: Iterable[tuple[int, Any]], file: str) -> tuple[list[PolicyTest], list[PolicyFinding]]:
    """Cases of one file from (line, mapping) pairs."""
    cases: list[PolicyTest] = []
    findings: list[PolicyFinding] = []
    for line, item in items:
        try:
            cases.append(_read(item, file, line))
        except BadPolicyTest as error:
            findings.append(PolicyFinding(file, line, 1, "bad-test", "error", str(error), error.hint))
        except (TypeError, ValueError):  # a number for a list, or a date of YAML among arguments
            text = "a value of this test is of another type than it can have"
            findings.append(PolicyFinding(file, line, 1, "bad-test", "error", text))
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
    path, args = item.get("path"), item.get("args")
    json.dumps(args, allow_nan=False)  # raises where it is no JSON
    return PolicyTest(
        file, line, read_client(item.get("as", {})), verbs[0], text, act, expect,
        str(item.get("profile", "")), str(item.get("because", "")), None if path is None else str(path),
        args, _tools(item.get("tools", {})), tuple(map(str, item.get("expect_tools", ()))),
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


def run(
    cases: Iterable[PolicyTest], policy: PolicyRules, classes: Classes, arguments: ArgumentRules = NO_RULES,
    catalog: Tools | None = None,
) -> list[TestResult]:  # fmt: skip
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


BUNDLED: Final = ("open", "personal", "team")


@dataclass(frozen=True, slots=True)
class PolicySources:
    """Where a policy is. `base` is what shown paths are relative to."""

    model: Path
    files: tuple[Path, ...]
    base: Path
    arguments: Path | None = None
    tests: Path | None = None

    def show(self, path: Path) -> str:
        return str(path.relative_to(self.base)) if path.is_relative_to(self.base) else str(path)


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy that may be used. `warnings` do not keep it out."""

    policy: PolicyRules
    arguments: ArgumentRules
    cases: tuple[PolicyTest, ...]
    warnings: tuple[PolicyFinding, ...]


def bundled_root() -> Path:
    """`policies/` as it stands in a checkout, or inside the package where it was installed."""
    package = Path(__file__).resolve().parent.parent
    return next((root for root in (package / "policies", package.parent.parent / "policies") if root.is_dir()), package)


def bundled(name: str) -> PolicySources:
    root = bundled_root()
    if name not in BUNDLED:
        raise ValueError(f"no bundled policy {name!r}, only {', '.join(BUNDLED)}")
    here, arguments = root / name, root / name / "arguments"
    rules = arguments if arguments.is_dir() else None
    return PolicySources(root / "model.conf", (here / "policy.csv",), root.parent, rules, here / "tests.yaml")


def bundled_model() -> Path:
    return bundled_root() / "model.conf"


def load(
    sources: PolicySources, profiles: Mapping[str, ApprovalProfile] = BUILT_IN, existing: KnownNames | None = None,
    classes: Classes | None = None, catalog: Tools | None = None, shadow: bool = False,
) -> LoadedPolicy:  # fmt: skip
    """Reads, lints, compiles and tests. Raises `PolicyError` with every finding if one of them is an error."""
    reader = _Reader(sources)
    model = reader.text(sources.model)
    rows = list(reader.rows())
    arguments = reader.arguments(existing or KnownNames())
    cases = reader.cases(existing or KnownNames())
    findings = [*check_model(model, sources.show(sources.model)), *reader.findings, *lint(rows, profiles, existing)]
    _raise_errors(findings)
    policy = PolicyRules(Engine(model), rows, profiles, reader.revision(profiles), shadow)
    outcomes = run(cases, policy, classes or Classes({}), arguments, catalog)
    findings += [outcome.as_finding() for outcome in outcomes if not outcome.ok]
    _raise_errors(findings)
    return LoadedPolicy(policy, arguments, tuple(cases), tuple(findings))


def _raise_errors(findings: Sequence[PolicyFinding]) -> None:
    if any(finding.level == "error" for finding in findings):
        raise PolicyError(list(findings))


def _position(data: bytes) -> tuple[int, int]:
    """Returns line and column where JSON breaks off."""
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return error.lineno, error.colno
    except (ValueError, RecursionError):
        pass
    return 1, 1


_NO_RULE: Final = re.compile(r"(~|\.(bak|md|orig|rst|txt))\Z", re.IGNORECASE)


def argument_files(folder: Path) -> Iterator[Path]:
    """What a folder of argument rules and the folders in it hold, links to folders included, but for hidden files, text
    and copies that editors make: whatever else is no rule was probably meant to be one. Raises `OSError`."""
    for path in sorted(folder.iterdir()):
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        yield from (one for one in inside if not one.name.startswith(".") and _NO_RULE.search(one.name) is None)


class _Reader:
    """Reads each file once, remembers what it read and what was wrong with it."""

    def __init__(self, sources: PolicySources) -> None:
        self.findings: list[PolicyFinding] = []
        self._sources = sources
        self._digest = sha256()

    def revision(self, profiles: Mapping[str, ApprovalProfile]) -> str:
        """The digest of everything that a decision depends on, in the order it was read."""
        digest = self._digest.copy()
        for name, profile in sorted(profiles.items()):
            digest.update(repr((name, profile.tier, profile.quorum, sorted(profile.approvers))).encode())
        return digest.hexdigest()[:12]

    def _wrong(self, path: Path, code: str, message: str, hint: str = "", line: int = 1, column: int = 1) -> None:
        self.findings.append(PolicyFinding(self._sources.show(path), line, column, code, "error", message, hint))

    def _bytes(self, path: Path) -> bytes | None:
        try:
            data = path.read_bytes()
        except OSError as error:
            self._wrong(path, "unreadable-file", f"cannot be read: {error.strerror}")
            return None
        # Where it stands on this machine means nothing; SERVER/TOOL.json does.
        for part in ("/".join(path.parts[-2:]).encode(), data):
            self._digest.update(len(part).to_bytes(8, "big") + part)
        return data

    def text(self, path: Path) -> str:
        data = self._bytes(path)
        try:
            return (data or b"").decode()
        except UnicodeDecodeError as error:
            line = (data or b"").count(b"\n", 0, error.start) + 1
            self._wrong(path, "not-utf8", "this is not UTF-8", "save it as UTF-8", line)
            return ""

    def rows(self) -> Iterator[Row]:
        for path in self._sources.files:
            rows, findings = read_rows(self.text(path), self._sources.show(path))
            self.findings += findings
            yield from rows

    def arguments(self, existing: KnownNames) -> ArgumentRules:
        folder = self._sources.arguments
        if folder is None or not folder.is_dir():
            if folder is not None:
                self._wrong(folder, "unreadable-file", "there is no such folder")
            return ArgumentRules({}, {})
        try:
            paths = list(argument_files(folder))
        except OSError as error:
            self._wrong(Path(error.filename), "unreadable-file", f"cannot be read: {error.strerror}")
            paths = []
        schemas: dict[tuple[str, str], ArgumentSchema] = {}
        digests: dict[tuple[str, str], str] = {}
        for path in paths:
            # A tool's name may hold what a file's name may not: there it is percent-encoded.
            server, tool = path.parent.name, unquote(path.stem)
            if path.parent.parent != folder or path.suffix != ".json" or path.is_dir():
                self._wrong(path, "stray-schema", "an argument rule stands at SERVER/TOOL.json")
            elif (server, tool) in schemas:
                self._wrong(path, "stray-schema", "another file has the rule of this tool")
            elif (data := self._bytes(path)) is not None and (schema := self._schema(path, data)):
                schemas[server, tool], digests[server, tool] = schema, sha256(data).hexdigest()
                self._check_tool(path, 1, server, tool, existing)
        return ArgumentRules(schemas, digests)

    def _schema(self, path: Path, data: bytes) -> ArgumentSchema | None:
        try:
            written = decode(data)
            schema = ArgumentSchema(written)
            shown = self._sources.show(path)
            for word in unused_keywords(written):
                if word in NOT_CHECKED:
                    message, hint = f"`{word}` is not checked", "a `pattern` is"
                else:
                    message, hint = f"{printable(word)} is no keyword of JSON Schema 2020-12", suggest(word, KEYWORDS)
                self.findings.append(PolicyFinding(shown, 1, 1, "unused-keyword", "warning", message, hint))
            return schema
        except Malformed as error:
            self._wrong(path, "bad-json", error.text, "", *_position(data))
        except SchemaRefused as error:
            self._wrong(path, f"schema-{error.code}", error.text)
        return None

    def _check_tool(self, path: Path, line: int, server: str, tool: str, existing: KnownNames) -> None:
        tools, shown = existing.tools.get(server), self._sources.show(path)
        if existing.servers is not None and server not in existing.servers:
            message, hint = f'no server is called "{server}"', suggest(server, existing.servers)
            self.findings.append(PolicyFinding(shown, line, 1, "unknown-server", "warning", message, hint))
        elif tools is not None and tool not in tools:
            message, hint = f"{server} has no tool {printable(tool)}", suggest(tool, tools)
            self.findings.append(PolicyFinding(shown, line, 1, "unknown-tool", "warning", message, hint))

    def cases(self, existing: KnownNames) -> list[PolicyTest]:
        path = self._sources.tests
        if path is None:
            return []
        cases, findings = read_cases(self._items(path), self._sources.show(path))
        self.findings += findings
        for case in cases:
            if case.verb == "call":
                target = read_target(case.verb, case.text)
                self._check_tool(path, case.line, target.server, target.own, existing)
        return cases

    def _items(self, path: Path) -> list[tuple[int, Any]]:
        text = self.text(path)
        try:
            yaml = YAML(typ="safe", pure=True)
            node = yaml.compose(text)
            tree = None if node is None else yaml.constructor.construct_document(node)
        except (YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            self._wrong(path, "bad-yaml", "this is not YAML", "", line, column)
            return []
        if tree is None:
            return []
        if not isinstance(tree, list):
            self._wrong(path, "bad-test", "tests are a list", "- {as: {id: alice}, call: server/tool, expect: allow}")
            return []
        return [(part.start_mark.line + 1, item) for part, item in zip(node.value, tree, strict=True)]
