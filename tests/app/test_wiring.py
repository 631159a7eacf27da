"""Parts are wired in constructors: nothing is assigned from outside, and a `Late` is filled once."""

import ast
from pathlib import Path

import pytest

import sluicegate.app
from sluicegate.app.late import Late

FILES = sorted(Path(sluicegate.app.__file__).parent.rglob("*.py"))
# What is no wiring: state that changes while Sluice runs, each with its owner's own rules.
RUNNING = {
    "self.judge.in_force": "a property: the policy in force",
    "worker.writer": "a worker's process comes and goes",
    "worker.mark": "a worker's process comes and goes",
    "worker.was_up": "a worker's process comes and goes",
    "handles._run": "the debugging aid",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_is_assigned_to_a_part_from_outside(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    written = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) != "self"
    }
    assert written <= RUNNING.keys()


def test_a_late_part_is_wired_once_and_not_used_before() -> None:
    part = Late[str]()
    with pytest.raises(RuntimeError, match="before it is wired"):
        part()
    part.set("a")
    assert part() == "a"
    with pytest.raises(RuntimeError, match="already"):
        part.set("b")
    assert part() == "a"


def test_a_late_part_may_have_something_that_stands_in_until_it_is_wired() -> None:
    part = Late[str | None](None)
    assert part() is None
    part.set("a")
    assert part() == "a"
