"""The table of methods: true to the schema of each revision, and the only one in the product."""

import ast
import json
from pathlib import Path

import pytest

from sluicegate.audit.record import needs_intent
from sluicegate.protocol import methods
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.model import Call, Client
from sluicegate.protocol.revisions import REVISIONS

PACKAGE = Path(methods.__file__).parent.parent
# Names of schema.json, per revision and by who sends them.
SPECIFIED = json.loads((Path(__file__).parent / "method_names.json").read_text())
# SEP-2663, the extension for tasks, is not in the schema of the core.
EXTENSION = {"2026-07-28": {"tasks/get", "tasks/update", "tasks/cancel", "notifications/tasks"}}
# Where several methods stand in one literal, and why that is no table of facts about them.
EXCEPTIONS = {
    "protocol/methods.py": "the table itself",
    "catalog/uri_fields.py": "the translation of each method: a function, as `How to add a method` says",
    "router/__init__.py": "which function answers what",
    "demo": "programs that imitate servers of others",
}


@pytest.mark.parametrize("revision", SPECIFIED)
def test_the_rows_of_a_revision_are_the_names_of_its_schema(revision: str) -> None:
    rows = {name for name, row in METHODS.items() if revision in row.revisions}
    assert rows == {*SPECIFIED[revision]["client"], *SPECIFIED[revision]["server"], *EXTENSION.get(revision, ())}


def test_a_row_says_who_may_send_its_method() -> None:
    for name, row in METHODS.items():
        senders = {sender for spec in SPECIFIED.values() for sender, names in spec.items() if name in names}
        if senders:  # those of the extension have none
            assert row.sender == ("both" if len(senders) > 1 else senders.pop()), name


def test_the_revisions_of_the_rows_are_those_that_are_spoken() -> None:
    assert methods.REVISION_NAMES == tuple(REVISIONS)


def test_every_request_that_reaches_the_guards_says_what_judges_it() -> None:
    for name, row in METHODS.items():
        if row.is_routed:
            assert row.judged_by is not None, name
            assert (row.judged_by == "target") == bool(row.target_field), name


def test_an_intent_is_the_default_and_is_waived_by_name_only() -> None:
    assert methods.Method("made/up").intent == "always"
    waived = {name for name, row in METHODS.items() if row.is_routed and row.intent == "waived"}
    assert waived == {
        "server/discover", "completion/complete", "tasks/list", "notifications/roots/list_changed", *methods.LISTS
    }  # fmt: skip
    assert needs_intent(Call(Client("alice"), "made/up", {}))


def test_no_other_module_has_a_table_of_method_names() -> None:
    found = []
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE)
        if where.as_posix() in EXCEPTIONS or where.parts[0] in EXCEPTIONS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
            names = [part.value for part in parts if isinstance(part, ast.Constant) and part.value in METHODS]
            if len(names) > 1:
                found.append(f"{where}:{node.lineno} {names}")
    assert found == []


@pytest.mark.parametrize("path", EXCEPTIONS)
def test_each_exception_is_still_there(path: str) -> None:
    assert (PACKAGE / path).exists()
