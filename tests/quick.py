"""Which tests `--quick` runs: those that start no process and need no real peer, on one event loop.

A file starts processes if it, or a helper under `tests/` that it imports, imports `subprocess`. The folders below
start theirs through Sluice or through an SDK.
"""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
REAL_PEERS = set("accept bench compat conformance deploy docs e2e observe peers tasks workers".split())
STARTERS = {"subprocess", "multiprocessing"}


def is_quick(path: Path) -> bool:
    return path.relative_to(TESTS).parts[0] not in REAL_PEERS and not _starts_processes(path, set())


def _starts_processes(path: Path, seen: set[Path]) -> bool:
    seen.add(path)
    names = _imported(path)
    helpers = (helper for name in names for helper in _helpers()[name] if helper not in seen)
    return bool(names & STARTERS) or any(_starts_processes(helper, seen) for helper in helpers)


@cache
def _imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@cache
def _helpers() -> defaultdict[str, list[Path]]:
    """The name that a test imports a helper by -> its files."""
    found = defaultdict[str, list[Path]](list)
    for path in TESTS.rglob("*.py"):
        found[path.stem].append(path)
    return found
