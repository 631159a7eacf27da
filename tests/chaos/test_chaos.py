"""`make chaos` can fail: a fault that does break the healthy server, and a log that lost a record, are reported."""

import json
import os
import subprocess
import sys
from pathlib import Path

from e2e.sluice_process import ROOT

RUN = [sys.executable, str(Path(__file__).with_name("run.py")), "--seconds", "1"]


def test_a_bar_that_is_not_held_fails_the_suite(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    command = [*RUN, "--json", str(kept), "test-broken"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    (row,) = json.loads(kept.read_text())["rows"]
    for what in ("healthy calls failed", "audit verify", "without an intent"):
        assert row["failed"] and any(what in one for one in row["problems"]), (what, done.stdout)
    assert "NOT HELD" in done.stdout and "not: test-broken" in done.stdout
