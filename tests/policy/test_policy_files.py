"""A policy from disk: bundled ones keep their promises, broken ones are refused with every reason."""

from pathlib import Path

import pytest

from sluicegate.policy.classes import Classes
from sluicegate.policy.engine import check_model
from sluicegate.policy.files import BUNDLED, PolicySources, bundled, bundled_model, load, read_cases, run
from sluicegate.policy.finding import PolicyError
from sluicegate.policy.lint import KnownNames, lint
from sluicegate.policy.profiles import BUILT_IN
from tests.policy.policies import MODEL, policy_of


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_policy_has_tests_and_passes_them(name: str) -> None:
    loaded = load(bundled(name))
    assert loaded.cases
    expected = ["allows-everything"] if name == "open" else []
    assert [warning.code for warning in loaded.warnings] == expected
    rights = [row for row in loaded.policy.rows if row.fields[1] == "sluice"]
    assert {row.fields[0] for row in rights} <= {"local", "role:lead"}
    assert all(row.fields[2:] == ("admin:approvals", "*", "allow") for row in rights if row.fields[0] == "role:lead")
    odd = lint(loaded.policy.rows, BUILT_IN, KnownNames(roles=frozenset()))
    assert [one for one in odd if one.code.startswith("approver-")] == [], "somebody can give each approval"


def make(folder: Path, **files: str) -> PolicySources:
    for name, text in {"policy_csv": "p, *, *, *, read, allow\n", **files}.items():
        path = folder / name.replace("__", "/").replace("_csv", ".csv").replace("_yaml", ".yaml")
        path = path.with_name(path.name.replace("_json", ".json"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    arguments, tests = folder / "arguments", folder / "tests.yaml"
    return PolicySources(
        bundled_model(), (folder / "policy.csv",), folder,
        arguments if arguments.is_dir() else None, tests if tests.exists() else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"policy_csv": "p, *, *, *, read, Allow\np9, x\n"},
            ['policy.csv:2:1 unknown-row-type "p9" is no type of row (did you mean "p"?)',
             'policy.csv:1:19 wrong-effect "Allow" is no effect (did you mean "allow"?)'],
        ),
        ({"policy_csv": "p, *, *, *, read, allow\n\udcff\n"},
         ["policy.csv:2:1 not-utf8 this is not UTF-8 (save it as UTF-8)"]),
        ({"policy_csv": "\n\udcff\n"}, ["policy.csv:2:1 not-utf8 this is not UTF-8 (save it as UTF-8)"]),
        ({"tests_yaml": "- {as: {id: a}, call: git/x, class: read, expect: deny}"},
         ["tests.yaml:1:1 test-failed key:a call git/x: expected deny, got allow"
          " (policy.csv:1: p, *, *, *, read, allow)"]),
        ({"tests_yaml": "- {as: {id: a}, cal: git/x, expect: deny}"},
         ['tests.yaml:1:1 bad-test "cal" is no key of a test (did you mean "call"?)']),
        ({"tests_yaml": "- {as: {id: a}, call: git/x, expect: perhaps}"},
         ["tests.yaml:1:1 bad-test a test says what it expects (expect: allow | deny | ask | invalid_arguments;"
          " with list: expect_tools: [..])"]),
        ({"tests_yaml": "\n- [\n"}, ["tests.yaml:3:1 bad-yaml this is not YAML"]),
        ({"tests_yaml": "[" * 3_000 + "]" * 3_000}, ["tests.yaml:1:1 bad-yaml this is not YAML"]),
        ({"tests_yaml": "a: 1"},
         ["tests.yaml:1:1 bad-test tests are a list (- {as: {id: alice}, call: server/tool, expect: allow})"]),
        ({"arguments__git__x_json": "{\n  x"}, ["arguments/git/x.json:2:3 bad-json not valid UTF-8 JSON"]),
        ({"arguments__git__x_json": '{"a": 1, "a": 2}'},
         ["arguments/git/x.json:1:1 bad-json duplicate key in a JSON object"]),
        ({"arguments__git__x_json": '{"$ref": "http://x/"}'},
         ["arguments/git/x.json:1:1 schema-outside-ref $ref to somewhere else is never fetched"]),
        ({"arguments__git__x_json": "{}", "arguments__git__%78_json": '{"type": "object"}'},  # %78 is an x
         ["arguments/git/x.json:1:1 stray-schema another file has the rule of this tool"]),
        ({"arguments__x_json": "{}"},
         ["arguments/x.json:1:1 stray-schema an argument rule stands at SERVER/TOOL.json"]),
    ],
)  # fmt: skip
def test_a_broken_policy_is_refused_with_file_line_and_reason(
    tmp_path: Path, files: dict[str, str], expected: list[str]
) -> None:
    with pytest.raises(PolicyError) as refused:
        load(make(tmp_path, **files))
    assert [str(finding) for finding in refused.value.findings] == expected


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    sources = PolicySources(tmp_path / "model.conf", (tmp_path / "policy.csv",), tmp_path)
    with pytest.raises(PolicyError, match="unreadable-file"):
        load(sources)


def test_the_revision_is_the_content(tmp_path: Path) -> None:
    first = load(make(tmp_path)).policy.revision
    assert load(make(tmp_path)).policy.revision == first
    assert load(make(tmp_path, policy_csv="p, *, *, *, read, allow \n")).policy.revision != first
    with_rule = load(make(tmp_path, arguments__git__x_json="{}")).policy.revision
    assert with_rule != load(make(tmp_path, arguments__git__x_json="true")).policy.revision


def test_the_revision_says_which_server_and_tool_a_rule_is_for_and_not_where_the_policy_stands(tmp_path: Path) -> None:
    rules = ("git__x", "git__y", "hub__x")
    found = [load(make(tmp_path / rule / "p", **{f"arguments__{rule}_json": "{}"})).policy.revision for rule in rules]
    assert len(set(found)) == len(rules)
    assert load(make(tmp_path / "other" / "p", arguments__git__x_json="{}")).policy.revision == found[0]


def test_a_tools_name_may_hold_what_a_files_name_may_not(tmp_path: Path) -> None:
    loaded = load(make(tmp_path, **{"arguments__git__a%2Fb_json": "false"}))
    assert loaded.arguments.check("git", "a/b", {})
    assert loaded.arguments.digest("git", "a/b") and not loaded.arguments.digest("git", "a")


def test_a_folder_of_argument_rules_may_be_a_link(tmp_path: Path) -> None:
    sources = make(tmp_path, arguments__git__x_json="false")
    (tmp_path / "arguments" / "git").rename(tmp_path / "shared")
    (tmp_path / "arguments" / "git").symlink_to(tmp_path / "shared")
    (tmp_path / "shared" / "..data").mkdir()  # as Kubernetes mounts files
    (tmp_path / "shared" / "README.md").write_text("Rules for git.")
    loaded = load(sources)
    assert loaded.arguments.check("git", "x", {}) and not loaded.warnings


@pytest.mark.parametrize("name", ["git/x.JSON", "git/x.yaml", "git/x", "git/x/y.json", "x.yml"])
def test_what_was_probably_meant_to_be_an_argument_rule_is_an_error(tmp_path: Path, name: str) -> None:
    sources = make(tmp_path, arguments__git__y_json="{}")
    path = tmp_path / "arguments" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("false")
    with pytest.raises(PolicyError, match=r"stray-schema an argument rule stands at SERVER/TOOL\.json"):
        load(sources)


def test_an_argument_rule_for_an_unknown_tool_is_a_warning(tmp_path: Path) -> None:
    known = KnownNames(tools={"git": frozenset({"get_issue"})})
    warnings = load(make(tmp_path, arguments__git__get_isue_json="{}"), existing=known).warnings
    assert [str(warning) for warning in warnings] == [
        'arguments/git/get_isue.json:1:1 unknown-tool warning: git has no tool get_isue (did you mean "get_issue"?)'
    ]


MISSPELT = """{"type": "object", "aditionalProperties": false, "properties": {
  "pattren": {"$ref": "#/$defs/path"}, "mail": {"type": "string", "format": "email", "x-about": "ours"}},
  "$defs": {"path": {"pattren": "^/srv/"}}, "items": {"anyOf": [{"maxLenght": 3}]}, "default": {"minimun": 1}}"""


def test_words_of_an_argument_rule_by_which_nothing_is_judged_are_warnings(tmp_path: Path) -> None:
    warnings = load(make(tmp_path, arguments__git__x_json=MISSPELT)).warnings
    place = "arguments/git/x.json:1:1 unused-keyword warning: "
    assert [str(warning).removeprefix(place) for warning in warnings] == [
        'aditionalProperties is no keyword of JSON Schema 2020-12 (did you mean "additionalProperties"?)',
        "`format` is not checked (a `pattern` is)",
        'maxLenght is no keyword of JSON Schema 2020-12 (did you mean "maxLength"?)',
        'pattren is no keyword of JSON Schema 2020-12 (did you mean "pattern"?)',
    ]


def test_an_argument_rule_for_an_unknown_server_is_a_warning(tmp_path: Path) -> None:
    known = KnownNames(servers=frozenset({"git"}), tools={"git": frozenset({"x"})})
    warnings = load(make(tmp_path, arguments__got__x_json="{}"), existing=known).warnings
    assert [str(warning) for warning in warnings] == [
        'arguments/got/x.json:1:1 unknown-server warning: no server is called "got" (did you mean "git"?)'
    ]
    assert not load(make(tmp_path / "other", arguments__git__x_json="{}"), existing=known).warnings


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("&& !some(where (p.eft == deny))", ""),
        ("glob(r.obj, p.obj)", "keyMatch(r.obj, p.obj)"),
        ("p  = sub, srv, obj, act, eft", "p  = sub, srv, obj, act"),
    ],
)
def test_a_model_that_means_something_else_is_refused_at_its_line(old: str, new: str) -> None:
    assert check_model(MODEL, "model.conf") == []
    found = check_model(MODEL.replace(old, new), "model.conf")
    line = MODEL[: MODEL.index(old)].count("\n") + 1
    ((name, own),) = [(finding.message.split('"')[1], finding.hint) for finding in found]
    assert [(finding.code, finding.line, finding.column, finding.level) for finding in found] == [
        ("bad-model", line, 1, "error")
    ]
    assert found[0].message == f'Sluice reads rows by one model, where "{name}" is another'
    assert own.startswith(f"remove policy.model from the config; Sluice's own has {name} = ") and "_" not in own


def test_no_model_at_all_is_refused() -> None:
    for text in ("", "x", "[matchers]\nm = 1"):
        found = check_model(text, "m")
        assert {(finding.file, finding.code, finding.level) for finding in found} == {("m", "bad-model", "error")}
        assert len(found) == 9 or str(found[0]).startswith("m:1:1 bad-model not a casbin model: parse")


def outcomes(policy: str, item: dict[str, object], catalog: dict[str, list[str]] | None = None) -> list[str]:
    cases, findings = read_cases([(1, item)], "tests.yaml")
    assert not findings, findings
    return [outcome.wrong for outcome in run(cases, policy_of(policy), Classes({}), catalog=catalog)]


def test_a_case_tells_what_it_got_and_why() -> None:
    rows = "p, role:dev, git, *, *, allow\np, *, *, tool:*delete*, *, deny"
    case: dict[str, object] = {"as": {"id": "a", "roles": ["dev"]}, "call": "git/delete_x"}
    assert outcomes(rows, {**case, "expect": "deny", "because": "tool:*delete*"}) == [""]
    assert outcomes(rows, {**case, "expect": "deny", "because": "default"}) == [
        'expected because "default", got policy.csv:2: p, *, *, tool:*delete*, *, deny'
    ]
    assert outcomes(rows, {**case, "expect": "allow"}) == [
        "expected allow, got deny (policy.csv:2: p, *, *, tool:*delete*, *, deny)"
    ]


def test_a_list_case_needs_tools_from_somewhere() -> None:
    rows = "p, *, git, tool:get_*, *, allow"
    case: dict[str, object] = {"as": {"id": "a"}, "list": "git", "expect_tools": ["get_x"]}
    assert outcomes(rows, case, {"git": ["get_x", "put_x"]}) == [""]
    assert outcomes(rows, {**case, "tools": ["get_x", "get_y"]}) == ["expected ['get_x'], got ['get_x', 'get_y']"]
    assert "not known here" in outcomes(rows, case)[0]
