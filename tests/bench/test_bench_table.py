"""The numbers in docs/explanation/performance.md are those of the last whole run."""

import json
from pathlib import Path

from tables import published

HERE = Path(__file__).parent


def test_the_page_says_what_was_measured() -> None:
    result = json.loads((HERE / "results" / "latest.json").read_text())
    page = HERE.parents[1] / "docs" / "explanation" / "performance.md"
    assert published(result) in page.read_text(), "run: make bench ARGS=--table"
