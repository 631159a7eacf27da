"""Classes: the operator's word, then accepted annotations, then write."""

import pytest

from sluicegate.policy.classes import Class, Classes
from sluicegate.protocol.model import Target

CLASSES = Classes({"git": {"delete_*": "destroy", "*": "read", "merge": "write", "delete_draft": "read"}})


def a_tool(server: str, own: str, **hints: object) -> Target:
    return Target(server, "tool", own, own, {"name": own, "annotations": hints})


@pytest.mark.parametrize(
    ("target", "accepted", "name"),
    [
        (a_tool("git", "merge"), False, "write"),
        (a_tool("git", "list"), False, "read"),
        (a_tool("git", "delete_repo"), False, "destroy"),
        (a_tool("git", "delete_draft"), False, "read"),
        (a_tool("git", "list", destructiveHint=True), True, "read"),
        (a_tool("git", "*"), False, "read"),
        (a_tool("k8s", "get", readOnlyHint=True), False, "write"),
        (a_tool("k8s", "get", readOnlyHint=True), True, "read"),
        (a_tool("k8s", "get", readOnlyHint=True, destructiveHint=True), True, "destroy"),
        (a_tool("k8s", "get", destructiveHint=True), True, "destroy"),
        (a_tool("k8s", "get", readOnlyHint="true"), True, "write"),
        (a_tool("k8s", "get", destructiveHint=False), True, "write"),
        (Target("k8s", "tool", "get", "get", {"annotations": ["x"]}), True, "write"),
        (Target("k8s", "tool", "get", "get"), True, "write"),
        (Target("git", "prompt", "delete_x", "x"), False, "read"),
        (Target("git", "res", "delete_x", "x"), False, "read"),
    ],
)
def test_whose_word_counts(target: Target, accepted: bool, name: Class) -> None:
    found = CLASSES.of(target, accepted)
    assert found.name == name and found.source
