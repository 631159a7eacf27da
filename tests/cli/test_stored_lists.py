"""What `sluice check` knows of servers that have run once: names that none of their tools has are warned of."""

import json
from pathlib import Path
from subprocess import run

from e2e.sluice_process import COMMAND, clean_environment
from policy_bed import Bed, Json, bed, client_keys, recorder

ROWS = """\
p, role:a, git, tool:get_x, *, allow
p, role:a, git, tool:get_z, *, allow
p, role:a, new, tool:get_z, *, allow
"""
TESTS = """\
- {as: {id: ann, roles: [a]}, call: git/get_x, expect: allow}
- {as: {id: ann, roles: [a]}, call: git/get_y, expect: deny}
- {as: {id: ann, roles: [a]}, call: new/get_y, expect: deny}
- {as: {id: ann, roles: [a]}, call: gut/get_x, expect: deny}
"""


def findings(folder: Path) -> list[tuple[str, int, str]]:
    command = [*COMMAND, "check", "--json", "-c", str(folder / "sluice.yaml")]
    done = run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["findings"]
    assert {one["severity"] for one in found} <= {"warning"}
    wanted = ("unknown-tool", "unknown-server")
    return [(Path(one["file"]).name, one["line"], one["code"]) for one in found if one["code"] in wanted]


def write_rest(folder: Path) -> None:
    (folder / "tests.yaml").write_text(TESTS)
    for name in ("git/get_x", "git/get_w", "new/get_w", "gut/get_x"):
        rule = folder / "arguments" / f"{name}.json"
        rule.parent.mkdir(parents=True, exist_ok=True)
        rule.write_text("{}")


def test_names_of_no_tool_are_found_once_their_server_has_listed(tmp_path: Path) -> None:
    write_rest(tmp_path)
    git: Json = recorder(tmp_path, "git", tools=["get_x", "delete_x"])
    git["tools"] = {"classes": {"delete_y": "destroy", "delete_x": "destroy", "nothing_*": "read"},
                    "allow": ["get_x", "delete_*", "get_q"], "deny": ["delete_q", "none_*"]}  # fmt: skip
    new = recorder(tmp_path, "new", tools=["x"]) | {"enabled": False}
    policy = {"files": ["policy.csv"], "tests": "tests.yaml", "arguments": "arguments"}
    clients = {"keys": client_keys(ann=["role:a"])}
    with bed(tmp_path, ROWS, {"git": git, "new": new}, policy=policy, clients=clients) as made:
        before = findings(tmp_path)
        listed(made)
    text = (tmp_path / "sluice.yaml").read_text()
    lines = [text[: text.index(name)].count("\n") + 1 for name in ("delete_y", "get_q", "delete_q")]
    by_server = [("policy.csv", 3, "unknown-server"), ("get_x.json", 1, "unknown-server")]
    by_server += [("get_w.json", 1, "unknown-server"), *(("tests.yaml", at, "unknown-server") for at in (3, 4))]
    assert sorted(before) == sorted(by_server)
    known = [*(("sluice.yaml", line) for line in lines), ("policy.csv", 2), ("get_w.json", 1), ("tests.yaml", 2)]
    assert sorted(findings(tmp_path)) == sorted([*by_server, *((*place, "unknown-tool") for place in known)])


def listed(made: Bed) -> None:
    """The list is written down after the client has it."""
    assert made.names("ann") == ["git__get_x"]
    made.until(lambda: len(findings(made.folder)) > 5)
