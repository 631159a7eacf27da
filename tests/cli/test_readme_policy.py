"""The tutorial about policies, run as it is written: its files, its commands, its answers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "tutorials" / "policy.md").read_text("utf-8")
PARTS = SECTION.split("```")
# The paragraph before a block, its language and its text.
BLOCKS = [
    (before.strip().split("\n\n")[-1], *block.split("\n", 1))
    for before, block in zip(PARTS[::2], PARTS[1::2], strict=False)
]
FILES = {
    re.findall(r"`([\w/]+\.(?:yaml|csv|json))`", before)[-1]: text
    for before, language, text in BLOCKS
    if language in ("yaml", "csv", "yml") or (language == "text" and text.startswith("{"))
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def sluice(folder: Path, line: str) -> "subprocess.CompletedProcess[str]":
    words = line.partition("#")[0].split()
    assert words[0] == "sluice"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "proxy"), "HOME": str(folder), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "sluicegate", *words[1:]]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)


def is_fine(checked: "subprocess.CompletedProcess[str]") -> bool:
    """The example's program is not installed where tests run, and its clients could share it by session; nothing else
    is to be said."""
    codes = [line.split(" ")[1] for line in checked.stdout.splitlines()]
    return codes == ["idle-sessions", "command-not-found"] and checked.stderr == "sluice.yaml: fine, 2 warnings\n"


def commands() -> list[str]:
    return [line for _, language, text in BLOCKS if language == "sh" for line in text.splitlines()]


def test_the_files_are_those_that_the_config_names(folder: Path) -> None:
    assert set(FILES) == {
        "sluice.yaml", "policies/policy.csv", "policies/tests.yaml", "policies/arguments/k8s/scale.json"
    }  # fmt: skip


def test_every_command_does_what_is_said_of_it(folder: Path) -> None:
    (folder / "drafts").mkdir()
    rows = FILES["policies/policy.csv"]
    (folder / "drafts" / "policy.csv").write_text(rows + "p, role:ci, k8s, *, destroy, allow\n")
    (folder / "audit").mkdir()
    (folder / "audit" / "sluice.jsonl").touch()
    done = {line.partition("#")[0].strip(): sluice(folder, line) for line in commands()}
    assert [one.returncode for one in done.values()] == [0, 0, 1, 1, 0], done
    assert is_fine(done["sluice check"])
    assert done["sluice policy test"].stderr == "4 tests passed\n"
    assert "+ p, role:ci, k8s, *, destroy, allow" in done["sluice policy diff drafts/policy.csv"].stdout


def test_the_explanation_is_the_one_that_is_shown(folder: Path) -> None:
    (shown,) = [text for _, language, text in BLOCKS if language == "text" and text.startswith("DENY")]
    (line,) = [line for line in commands() if "explain" in line]
    told = sluice(folder, line).stdout
    assert told.startswith(shown), told


def test_shadow_mode_is_added_as_it_is_written(folder: Path) -> None:
    added = [line for line in ("mode: shadow", "until: 2030-01-31") if f"`{line}`" in SECTION]
    text = FILES["sluice.yaml"].replace("policy:\n", "policy:\n" + "".join(f"  {line}\n" for line in added))
    (folder / "sluice.yaml").write_text(text)
    assert len(added) == 2 and is_fine(sluice(folder, "sluice check"))
    told = sluice(folder, "sluice explain --as ann call k8s/delete_namespace").stdout
    assert "(shadow mode: would be denied)" in told
