"""The configurations in deploy/examples/: `sluice check` accepts them, and their policies pass their own tests."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "deploy" / "examples"
SERVERS = {"desktop": "files", "sre": "tickets", "team": "k8s"}  # one server of each
# What they take from outside. The programs that they name need not be installed where tests run.
SECRETS = {name: "Bearer-of-tests" for name in ("DOCS_TOKEN", "GITHUB_TOKEN", "SIEM_TOKEN")}
SECRETS["NOTIFY_SECRET"] = "whsec_" + "A" * 32


def sluice(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "proxy"), "HOME": str(folder), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "sluicegate", *words]
    env |= SECRETS
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(params=SERVERS)
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / request.param
    shutil.copytree(EXAMPLES / request.param, folder)
    (folder / "keys").mkdir()
    (folder / "keys" / "agents.hash").write_text("sha256:" + "a" * 64)
    return folder


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(SERVERS)


def test_check_accepts_it_and_warns_of_missing_programs_at_most(example: Path) -> None:
    checked = sluice(example, "check")
    codes = {line.split(" ")[1] for line in checked.stdout.splitlines()}
    assert checked.returncode == 0 and codes <= {"command-not-found"}, checked.stdout + checked.stderr


def test_its_policy_passes_its_tests_and_denies_strangers(example: Path) -> None:
    tested = sluice(example, "policy", "test")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    denied = sluice(example, "explain", "--as", "key:nobody", "call", f"{SERVERS[example.name]}/write_anything")
    assert denied.returncode == 1 and denied.stdout.startswith("DENY"), denied.stdout + denied.stderr


def test_the_tutorial_names_services_of_the_compose_file() -> None:
    tutorial = (ROOT / "docs" / "tutorials" / "monitoring.md").read_text("utf-8")
    services = YAML(typ="safe").load(ROOT / "deploy" / "compose.yaml")["services"].keys()
    named = set(re.findall(r"compose\.yaml (?:stop|start|exec) (\w+)", tutorial))
    assert named == {"everything", "sluice"} and named | {"traffic", "grafana", "prometheus"} <= services
