"""What was found by fuzzing holds by now, and so does what fuzzing begins with.

Each file in `seeds` and `regressions` is what one target gets; the folder that it is in says which.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_targets import TARGETS
from wire_targets import LOOP

HERE = Path(__file__).parent
CASES = [
    path for name in TARGETS for folder in ("seeds", "regressions") for path in sorted((HERE / folder / name).glob("*"))
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    LOOP.close()


@pytest.mark.parametrize("case", CASES, ids=lambda path: "/".join(path.parts[-3:]))
def test_what_was_found_once_holds(case: Path) -> None:
    TARGETS[case.parent.name].check(case.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_has_something_to_begin_with(name: str) -> None:
    assert any((HERE / "seeds" / name).iterdir())
