"""The numbers in the README are those of the last whole run."""

import json
from pathlib import Path

from tables import readme

HERE = Path(__file__).parent


def test_the_readme_says_what_was_measured() -> None:
    result = json.loads((HERE / "results" / "latest.json").read_text())
    assert readme(result) in (HERE.parents[1] / "README.md").read_text(), "run: make bench ARGS=--table"
