"""The one file of this room that reads files: a policy from disk, checked whole, or all reasons why it cannot be used.

Every file is read once, and the revision is a digest of just those bytes: what was checked is what is in force.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from sluicegate.policy.arguments import ArgumentRules, ArgumentSchema
from sluicegate.policy.classes import Classes
from sluicegate.policy.csv_rows import Row, read_rows
from sluicegate.policy.engine import Engine, check_model
from sluicegate.policy.finding import PolicyError, PolicyFinding
from sluicegate.policy.lint_semantics import KnownNames, lint
from sluicegate.policy.lint_syntax import suggest
from sluicegate.policy.policy_tests import PolicyTest, Tools, read_cases, run
from sluicegate.policy.profiles import BUILT_IN, ApprovalProfile
from sluicegate.policy.rules import PolicyRules
from sluicegate.policy.schema_cost import KEYWORDS, NOT_CHECKED, SchemaRefused, unused_keywords
from sluicegate.policy.target import plain, read_target
from sluicegate.protocol.jsonrpc import Malformed, decode

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
    sources: PolicySources,
    profiles: Mapping[str, ApprovalProfile] = BUILT_IN,
    existing: KnownNames | None = None,
    classes: Classes | None = None,
    catalog: Tools | None = None,
    shadow: bool = False,
) -> LoadedPolicy:
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

    # -------------------------------------------------------- arguments/<server>/<tool>.json

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
            elif (data := self._bytes(path)) is not None and (schema := self._schema(path, data)):
                schemas[server, tool], digests[server, tool] = schema, sha256(data).hexdigest()
                self._check_tool(path, 1, server, tool, existing)
        return ArgumentRules(schemas, digests)

    def _schema(self, path: Path, data: bytes) -> ArgumentSchema | None:
        try:
            written = decode(data)
            schema = ArgumentSchema(written)
            self._tell_unused(path, written)
            return schema
        except Malformed as error:
            self._wrong(path, "bad-json", error.text, "", *_position(data))
        except SchemaRefused as error:
            self._wrong(path, f"schema-{error.code}", error.text)
        return None

    def _tell_unused(self, path: Path, written: Any) -> None:
        shown = self._sources.show(path)
        for word in unused_keywords(written):
            if word in NOT_CHECKED:
                message, hint = f"`{word}` is not checked", "a `pattern` is"
            else:
                message, hint = f"{plain(word)} is no keyword of JSON Schema 2020-12", suggest(word, KEYWORDS)
            self.findings.append(PolicyFinding(shown, 1, 1, "unused-keyword", "warning", message, hint))

    def _check_tool(self, path: Path, line: int, server: str, tool: str, existing: KnownNames) -> None:
        tools, shown = existing.tools.get(server), self._sources.show(path)
        if existing.servers is not None and server not in existing.servers:
            message, hint = f'no server is called "{server}"', suggest(server, existing.servers)
            self.findings.append(PolicyFinding(shown, line, 1, "unknown-server", "warning", message, hint))
        elif tools is not None and tool not in tools:
            message, hint = f"{server} has no tool {plain(tool)}", suggest(tool, tools)
            self.findings.append(PolicyFinding(shown, line, 1, "unknown-tool", "warning", message, hint))

    # -------------------------------------------------------- tests.yaml

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
        except YAMLError as error:
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
