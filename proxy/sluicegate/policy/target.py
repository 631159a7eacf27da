"""Targets as people write them, `k8s/delete_pod`, for the command line and the policy's own tests. Pure text."""

from typing import Final

from sluicegate.protocol.methods import TARGET_KINDS
from sluicegate.protocol.model import Kind, Target

KINDS: Final[dict[str, Kind]] = {
    **TARGET_KINDS,
    **{method.partition("/")[2]: kind for method, kind in TARGET_KINDS.items()},
}
METHODS: Final = tuple(TARGET_KINDS)


def read_target(method: str, text: str) -> Target:
    """`SERVER/NAME` or `SERVER/URI`, in the server's own words. Raises `ValueError` with a sentence for a person."""
    if method not in KINDS:
        raise ValueError(f'"{method}" is not one of {", ".join(METHODS)}')
    server, slash, own = text.partition("/")
    if not (server and slash and own):
        what = "URI" if KINDS[method] == "res" else "NAME"
        raise ValueError(f'"{text}" is not written SERVER/{what}')
    return Target(server, KINDS[method], own, text)


def printable(text: str) -> str:
    """Text that cannot drive a terminal or hide in it."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)
