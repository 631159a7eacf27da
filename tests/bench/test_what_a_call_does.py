"""The steps of a call on the performance page are those that comments in the code name, and each cost is counted by
where they stand."""

import re
from collections import Counter

import bytecodes
import pytest

PAGE = bytecodes.PAGE.read_text("utf-8")
PACKAGE = bytecodes.ROOT / "proxy" / "sluicegate"


def test_each_step_in_the_code_is_on_the_page_with_its_file_and_each_on_the_page_in_the_code() -> None:
    in_code = {(step, str(file.removeprefix(f"{PACKAGE}/"))) for (file, _), step in bytecodes.steps().items()}
    on_page = {(int(number), file) for number, where, _ in rows() for file in re.findall(r"`([^`]+)`", where)}
    assert in_code == on_page


def test_the_steps_on_the_page_are_numbered_in_order() -> None:
    assert [int(number) for number, _, _ in rows()] == [*range(1, len(rows()) + 1)] and len(rows()) > 10


def test_a_comment_outside_of_a_function_begins_no_step() -> None:
    tree = bytecodes.ast.parse("# Step 1\n@one\ndef a():\n    async def b():\n        # Step 2\n        pass\n")
    assert bytecodes._function_at(tree, 5) == 4 and bytecodes._function_at(tree, 3) == 2
    with pytest.raises(ValueError, match="empty"):
        bytecodes._function_at(tree, 1)


def test_figures_are_written_into_the_rows_of_the_page_and_nowhere_else() -> None:
    page = "| 1 | `a.py` | Bytes. | 1, 2 |\n| 2 | `b.py` | A call. | |\n| 3 |\n| 4 | 5 | 6 | 7 | 8 |\n"
    counts = Counter({1: 10, 2: 20})
    made = bytecodes.with_figures(page, counts, Counter({1: 11}))
    assert made == page.replace("1, 2 |", "10, 11 |").replace("A call. | |", "A call. | 20, 0 |")


def rows() -> list[tuple[str, str, str]]:
    return bytecodes.ROW.findall(PAGE)
