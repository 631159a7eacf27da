"""The policy from the command line: checked, tested, explained and compared before it is in force."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
from command_line import run

ROOT = Path(__file__).parents[2]
HASH, LEADS = (f"sha256:{sha256(key).hexdigest()}" for key in (b"x", b"y"))
CONFIG = f"""\
policy: {{files: [policies/policy.csv], arguments: policies/arguments, tests: policies/tests.yaml}}
clients:
  local: {{roles: ["role:owner", "role:lead"]}}
  keys: {{ci: {{hash: "{HASH}", roles: ["role:ci"]}}, lead: {{hash: "{LEADS}", roles: ["role:lead"]}}}}
servers:
  k8s: {{command: /bin/sh, idle: never, tools: {{deny: [secret_*], classes: {{"get_*": read, "delete_*": destroy}}}}}}
"""
ROWS = """\
p, role:authenticated, *, *, read, allow
p, role:sre, k8s, *, *, allow
p, role:ci, k8s, tool:scale, write, allow
p, *, *, tool:delete_namespace, *, deny
p2, *, k8s, tool:*, destroy, two-person
g, group:ops, role:sre
p, role:lead, sluice, admin:approvals, *, allow
"""
TESTS = """\
- {as: {id: ci, roles: [ci]}, call: k8s/scale, args: {replicas: 1}, expect: allow}
- {as: {id: a, groups: [ops]}, call: k8s/delete_pod, expect: ask, profile: two-person}
"""
RULE = '{"properties": {"replicas": {"type": "integer", "maximum": 9}}, "required": ["replicas"]}'

Sluice = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def sluice(tmp_path: Path) -> Sluice:
    """The command in a directory with a config and a policy."""
    (tmp_path / "policies" / "arguments" / "k8s").mkdir(parents=True)
    for name, text in (
        ("sluice.yaml", CONFIG), ("policies/policy.csv", ROWS), ("policies/tests.yaml", TESTS),
        ("policies/arguments/k8s/scale.json", RULE),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)

    return partial(run, tmp_path, env={"HOME": str(tmp_path), "NO_COLOR": "1"})


def in_a_process(folder: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "proxy"), "HOME": str(folder), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "sluicegate", *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)


# ---------------------------------------------------------------- check


def test_check_finds_what_is_wrong_in_the_policy_with_its_place(sluice: Sluice, tmp_path: Path) -> None:
    assert (sluice("check").returncode, sluice("check").stderr) == (0, "sluice.yaml: fine\n")
    (tmp_path / "policies" / "policy.csv").write_text(ROWS + "p, role:sre, k8s, *, *, Allow\n")
    done = sluice("check")
    assert done.returncode == 3 and done.stderr == "sluice.yaml: 1 error\n"
    assert done.stdout == 'policies/policy.csv:8:25 wrong-effect "Allow" is no effect (did you mean "allow"?)\n'
    elsewhere = sluice("check", "-c", f"{tmp_path}/sluice.yaml", "--json")
    (finding,) = json.loads(elsewhere.stdout)["findings"]
    assert finding["file"] == f"{tmp_path}/policies/policy.csv"
    assert (finding["line"], finding["column"], finding["severity"]) == (8, 25, "error")


def test_check_warns_of_what_can_hardly_be_meant_and_exits_0(sluice: Sluice, tmp_path: Path) -> None:
    (tmp_path / "policies" / "policy.csv").write_text(ROWS + "p, role:sra, github, *, read, allow\n")
    done = sluice("check")
    assert done.returncode == 0 and "2 warnings" in done.stderr
    assert [line.split(" ")[:2] for line in done.stdout.splitlines()] == [
        ["policies/policy.csv:8:4", "role-never-granted"], ["policies/policy.csv:8:14", "unknown-server"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("policies/tests.yaml", TESTS.replace("expect: ask", "expect: deny"), "tests.yaml:2:1 test-failed"),
        ("policies/arguments/k8s/scale.json", '{"$ref": "https://x.test/"}', "scale.json:1:1 schema-"),
        ("policies/policy.csv", None, "unreadable-file there is no such file"),
    ],
)
def test_an_error_of_the_policy_exits_3_everywhere(
    sluice: Sluice, tmp_path: Path, name: str, text: str | None, words: str
) -> None:
    path = tmp_path / name
    path.unlink() if text is None else path.write_text(text)
    assert sluice("check").returncode == 3 and words in sluice("check").stdout
    for command in (["serve"], ["stdio"], ["explain", "--as", "ci", "call", "k8s/x"], ["policy", "diff", "team"]):
        done = in_a_process(tmp_path, *command)
        assert (done.returncode, done.stdout) == (3, "") and words in done.stderr, command


def test_policies_that_come_with_sluice_have_nothing_to_warn_of(sluice: Sluice, tmp_path: Path) -> None:
    for use in ("open", "personal", "team"):
        (tmp_path / "sluice.yaml").write_text(CONFIG.replace(CONFIG.splitlines()[0], f"policy: {{use: {use}}}"))
        done = sluice("check")
        assert (done.returncode, done.stdout) == (0, "")


def test_without_a_client_it_is_the_one_of_the_desktop(sluice: Sluice) -> None:
    done = sluice("explain", "call", "k8s/scale")
    assert done.returncode == 1 and " for local " in done.stdout


def test_a_model_of_ones_own_is_accepted_if_it_is_the_same_and_said_to_be_of_no_use(
    sluice: Sluice, tmp_path: Path
) -> None:
    model = (ROOT / "policies" / "model.conf").read_text()
    (tmp_path / "model.conf").write_text(model + "# ours\n")
    (tmp_path / "sluice.yaml").write_text(CONFIG.replace("policy: {", "policy: {model: model.conf, "))
    done = sluice("check")
    assert done.returncode == 0 and done.stdout.startswith("sluice.yaml:1:10 deprecated-key warning:")
    assert sluice("explain", "--as", "ci", "call", "k8s/scale").returncode == 0
    (tmp_path / "model.conf").write_text(model.replace("glob(r.obj, p.obj)", "keyMatch(r.obj, p.obj)"))
    done = sluice("check")
    assert done.returncode == 3 and "remove policy.model from the config" in done.stdout


# ---------------------------------------------------------------- explain


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--as", "ci", "tools/call", "k8s/get_pod"], 0, "[class read: servers.k8s.tools.classes: get_*]"),
        (["--as", "ci", "call", "k8s/scale"], 0, "policies/policy.csv:3  p, role:ci, k8s, tool:scale, write, allow"),
        (["--as", "ci", "call", "k8s/delete_pod"], 1, "default  no row allows it  <- decides"),
        (["--as", "key:ci", "call", "k8s/secret_x"], 1, "servers.k8s.tools.deny: secret_*"),
        (["--as", "ci", "call", "nope/x"], 1, "no server nope is configured"),
        (["--as", "jwt:https://i#a", "--group", "ops", "call", "k8s/delete_pod"], 10, "group:ops -> role:sre"),
        (["--as", "jwt:https://i#a", "--role", "sre", "call", "k8s/delete_namespace"], 1, "deny overrides"),
        (["--as", "anonymous", "read", "k8s/file:///x"], 1, "DENY  k8s/file:///x"),
        (["--as", "local", "get", "k8s/x"], 0, "ALLOW"),
        (["--as", "ci", "call", "k8s/scale", "--args", '{"replicas": 10}'], 1, "/replicas"),
        (["--as", "ci", "call", "k8s/scale", "--args", '{"replicas": 9}'], 0, "ALLOW"),
    ],
)  # fmt: skip
def test_explain_says_what_decides_and_exits_with_it(sluice: Sluice, args: list[str], code: int, words: str) -> None:
    done = sluice("explain", *args)
    assert done.returncode == code and words in done.stdout, done.stdout + done.stderr
    as_json = json.loads(sluice("explain", *args, "--json").stdout)
    assert as_json["verdict"] == {0: "allow", 1: "deny", 10: "ask"}[code]


def test_explain_says_who_cannot_come_in(sluice: Sluice, tmp_path: Path) -> None:
    old = f"sha256:{sha256(b'old').hexdigest()}"
    known = f"""\
  jwt: {{issuers: [{{issuer: "https://idp.test", audience: a}}]}}
  keys: {{old: {{hash: "{old}", expires: 2020-01-01}}, """
    (tmp_path / "sluice.yaml").write_text(CONFIG.replace("  keys: {", known))
    done = sluice("explain", "--as", "old", "call", "k8s/get_x")
    assert done.returncode == 0 and "note: key:old is refused: it expired at 2020-01-01 00:00 UTC" in done.stderr
    done = sluice("explain", "--as", "jwt:https://idp.tset#ann", "call", "k8s/get_x")
    assert "note: no token of https://idp.tset is taken, so nobody is jwt:https://idp.tset#ann" in done.stderr
    assert "note: no token" not in sluice("explain", "--as", "jwt:https://idp.test#ann", "call", "k8s/get_x").stderr


def test_explain_says_that_it_does_not_know_a_key_and_what_is_not_a_question(sluice: Sluice) -> None:
    assert "the config has no key:bob" in sluice("explain", "--as", "bob", "call", "k8s/get_x").stderr
    for words in ("call k8s", "tools/list k8s/x", "call k8s/x --args [1]", "call k8s/x --args {"):
        assert sluice("explain", "--as", "ci", *words.split()).returncode == 2


# ---------------------------------------------------------------- policy test, policy diff


def test_policy_test_counts_what_passes_and_names_what_fails(sluice: Sluice, tmp_path: Path) -> None:
    done = sluice("policy", "test")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "2 tests passed\n")
    assert json.loads(sluice("policy", "test", "--json").stdout) == {"ok": True, "passed": 2, "failed": []}
    (tmp_path / "policies" / "tests.yaml").write_text(TESTS + "- {as: {id: x}, call: k8s/scale, expect: allow}\n")
    done = sluice("policy", "test")
    assert (done.returncode, done.stderr) == (1, "1 test failed\n")
    assert done.stdout.startswith("policies/tests.yaml:3:1 test-failed key:x call k8s/scale: expected allow, got deny")
    assert [one["line"] for one in json.loads(sluice("policy", "test", "--json").stdout)["failed"]] == [3]
    (tmp_path / "policies" / "policy.csv").write_text("nonsense\n")
    assert sluice("policy", "test").returncode == 3


def test_policy_diff_shows_rows_whatever_their_order(sluice: Sluice, tmp_path: Path) -> None:
    draft = tmp_path / "draft.csv"
    draft.write_text("# turned round\n" + "\n".join(reversed(ROWS.splitlines())) + "\n")
    assert (sluice("policy", "diff", "draft.csv").returncode, sluice("policy", "diff", "draft.csv").stdout) == (0, "")
    draft.write_text(ROWS.replace("role:ci, k8s, tool:scale, write", "role:ci, k8s, tool:scale, *"))
    done = sluice("policy", "diff", "draft.csv")
    assert done.returncode == 1
    assert done.stdout == (
        "- p, role:ci, k8s, tool:scale, write, allow    policies/policy.csv:3\n"
        "+ p, role:ci, k8s, tool:scale, *, allow    draft.csv:3\n"
    )
    assert len(json.loads(sluice("policy", "diff", "draft.csv", "--json").stdout)["added"]) == 1


def test_policy_diff_takes_a_folder_a_config_and_a_policy_by_name(sluice: Sluice, tmp_path: Path) -> None:
    assert sluice("policy", "diff", "policies").returncode == 0
    (tmp_path / "policies" / "arguments" / "k8s" / "scale.json").rename(tmp_path / "scale.json")
    (tmp_path / "other.yaml").write_text(CONFIG.replace(" arguments: policies/arguments,", ""))
    assert sluice("policy", "diff", "other.yaml").returncode == 0
    assert "role:member" in sluice("policy", "diff", "team").stdout
    assert sluice("policy", "diff", "nothing").returncode == 2
    (tmp_path / "draft.csv").write_text("p, *, *\n")
    done = sluice("policy", "diff", "draft.csv")
    assert done.returncode == 3 and "draft.csv:1:" in done.stderr


def test_policy_diff_replays_what_was_recorded(sluice: Sluice, tmp_path: Path) -> None:
    who = {"principal": "key:ci", "roles": ["role:ci"], "groups": []}
    call = {"type": "outcome", **who, "server": "k8s", "kind": "tool", "own": "scale", "class": "write"}
    (tmp_path / "audit").mkdir()
    records = [call, call | {"own": "get_pod", "class": "read"}, {"type": "checkpoint"}]
    lines = [*map(json.dumps, records), '{"cut']
    (tmp_path / "audit" / "sluice.jsonl").write_text("\n".join(lines))
    (tmp_path / "draft.csv").write_text("\n".join(line for line in ROWS.splitlines() if "role:ci" not in line))
    for audit in ("audit", "audit/sluice.jsonl"):
        done = sluice("policy", "diff", "draft.csv", "--replay", audit)
        assert done.returncode == 1 and done.stdout.startswith("2 calls: 1 allow->deny\n")
    assert sluice("policy", "diff", "policies", "--replay", "audit").returncode == 0
    assert json.loads(sluice("policy", "diff", "draft.csv", "--replay", "audit", "--json").stdout)["calls"] == 2
    assert sluice("policy", "diff", "draft.csv", "--replay", "nowhere.jsonl").returncode == 2
