"""Which test files take longest: they begin first, so that no worker is left with one of them when the others end."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent
# By the minutes of a worker. What stands nowhere here follows, the files with the most tests first.
DEAREST = [
    *(TESTS / "e2e" / f"test_{name}.py" for name in (
        "fleet", "matrix", "pins_process", "client_login", "isolation", "logins", "clients", "servers_that_fail",
        "fleet_clocks", "fleet_rates", "subscriptions", "lists_before_a_login", "servers_process",
        "clients_at_toolsets", "login_pages", "login_strangers", "login_commands", "desktop_commands", "strays",
        "state_in_postgres", "stdio_shared", "access", "sandboxes",
    )),
    TESTS / "downstream" / "test_eras.py",
    TESTS / "downstream" / "test_stdio_servers.py",
    TESTS / "conformance",
    TESTS / "console",
    TESTS / "e2e",
]  # fmt: skip


def order_of(files: Sequence[Path]) -> Callable[[Path], tuple[int, int, int]]:
    """The key by which tests are sorted whose files are these. Those of one file stay together, as they were."""
    numbers, places = Counter(files), {file: place for place, file in enumerate(dict.fromkeys(files))}
    return lambda file: (_rank(file), -numbers[file], places[file])


def _rank(file: Path) -> int:
    ranks = (rank for rank, dear in enumerate(DEAREST) if file == dear or dear in file.parents)
    return next(ranks, len(DEAREST))
