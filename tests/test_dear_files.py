"""The order in which test files begin."""

from pathlib import Path

from dear_files import DEAREST, TESTS, order_of


def test_what_is_called_dear_exists() -> None:
    assert [path.name for path in DEAREST if not path.exists()] == []


def test_dear_files_begin_first_and_others_by_the_number_of_their_tests() -> None:
    few, many, dear, folder = (
        TESTS / name for name in ("app/a.py", "app/b.py", "e2e/test_matrix.py", "console/c.py")
    )
    tests: list[tuple[Path, int]] = [(few, 1), (many, 2), (folder, 3), (many, 4), (dear, 5), (few, 6), (many, 7)]
    order = order_of([file for file, _ in tests])
    tests.sort(key=lambda test: order(test[0]))
    assert [number for _, number in tests] == [5, 3, 2, 4, 7, 1, 6]
