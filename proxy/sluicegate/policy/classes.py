"""How dangerous a thing is: read, write or destroy. What a decision is about besides who, where and what.

The operator's word comes first, then the server's own annotations if a person accepted that definition, then
`write`. Annotations are claims of the server (2026-07-28 server/tools#tool: untrusted unless the server is), and a
hint that is not there is no claim.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from sluicegate.policy.globs import is_glob, matches, matches_folded
from sluicegate.policy.memo import Memo
from sluicegate.protocol.jsonrpc import inside
from sluicegate.protocol.model import Target

Class = Literal["read", "write", "destroy"]
CLASSES: Final[tuple[Class, ...]] = ("read", "write", "destroy")  # mild to strict
DEFAULT: Final[Class] = "write"
MAX_MEMO: Final = 50_000


@dataclass(frozen=True, slots=True)
class Classified:
    """A class, and who assigned it."""

    name: Class
    source: str


@dataclass(frozen=True, slots=True)
class Classes:
    """Server key -> pattern over own tool names -> class, as the operator wrote it."""

    servers: Mapping[str, Mapping[str, Class]]
    _found: "Memo[tuple[str, str], Classified | None]" = field(
        default_factory=lambda: Memo(MAX_MEMO), init=False, repr=False, compare=False
    )

    def of(self, target: Target, accepted: bool = False) -> Classified:
        """`accepted`: a person has accepted this very definition, so that its annotations count."""
        if target.kind != "tool":
            return Classified("read", f"a {'prompt' if target.kind == 'prompt' else 'resource'} is read")
        return self._by_operator(target) or (_by_annotations(target) if accepted else None) or _DEFAULT

    def written(self, target: Target) -> Class | None:
        """Returns the class that an operator assigned, or None."""
        found = self._by_operator(target)
        return None if found is None else found.name

    def _by_operator(self, target: Target) -> Classified | None:
        if not self.servers.get(target.server):
            return None
        if target.is_unlisted:
            return self._search(target)
        key = (target.server, target.own)
        return self._found[key] if key in self._found else self._found.keep(key, self._search(target))

    def _search(self, target: Target) -> Classified | None:
        written = self.servers[target.server]
        where = f"servers.{target.server}.tools.classes"
        if target.own in written and not is_glob(target.own):
            return Classified(written[target.own], f"{where}: {target.own}")
        is_meant = matches_folded if target.is_unlisted else matches
        found = [(CLASSES.index(name), pattern) for pattern, name in written.items() if is_meant(target.own, pattern)]
        if not found:
            return None
        rank, pattern = max(found)
        return Classified(CLASSES[rank], f"{where}: {pattern}")


_DEFAULT: Final = Classified(DEFAULT, "no class was given")


def _by_annotations(target: Target) -> Classified | None:
    if inside(target.item, "annotations", "destructiveHint") is True:
        return Classified("destroy", "annotations.destructiveHint, accepted")
    if inside(target.item, "annotations", "readOnlyHint") is True:
        return Classified("read", "annotations.readOnlyHint, accepted")
    return None
