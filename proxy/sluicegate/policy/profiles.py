"""Approval profiles: how strict they are, which is what a decision needs, and how the approval room asks by them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sluicegate.policy.csv_rows import Row

NONE: Final = "none"
"""The word of a `p2` row that exempts one tool; no profile may be called so."""


@dataclass(frozen=True, slots=True)
class ApprovalProfile:
    """Tier `self`: the requester confirms. Tier `other`: `quorum` of the `approvers`, never the requester. An approval
    is stored with its profile as it was when somebody was asked. `expires` is in seconds."""

    name: str
    tier: Literal["self", "other"]
    quorum: int = 1
    approvers: tuple[str, ...] = ()
    via: tuple[str, ...] = ("api",)
    expires: float = 1800.0
    remember: tuple[str, ...] = ("once",)
    require_reason: bool = False

    @property
    def strictness(self) -> tuple[int, int]:
        return (1, self.quorum) if self.tier == "other" else (0, 0)

    @property
    def deciders(self) -> frozenset[str]:
        """Who can decide; for tier `self` that is the requester, whatever else is written."""
        return frozenset(self.approvers) if self.tier == "other" else frozenset()

    def describe(self) -> str:
        """Who may approve, in words."""
        if self.tier == "self":
            return "whoever asked"
        who = " or ".join(self.approvers)
        return f"{self.quorum} of {who}, of different owners" if self.quorum > 1 else who


def clash(one: ApprovalProfile, other: ApprovalProfile) -> bool:
    """Whether neither is stricter and they name different approvers: then nobody knows whom to ask."""
    return one.strictness == other.strictness and one.deciders != other.deciders


def strictest(profiles: Collection[ApprovalProfile]) -> ApprovalProfile | None:
    """The strictest of some profiles, the first by name among equals; None where the strictest clash."""
    top = max(profile.strictness for profile in profiles)
    best = sorted((profile for profile in profiles if profile.strictness == top), key=lambda profile: profile.name)
    return None if any(clash(best[0], other) for other in best) else best[0]


@dataclass(frozen=True, slots=True)
class Need:
    """What matching `p2` rows ask for together, and the row that says so. A row without a profile exempts from every
    approval, or asks for approvers that nobody can know: then nobody may approve."""

    row: Row | None = None
    profile: ApprovalProfile | None = None
    exempt: bool = False


def find_need(rows: Sequence[Row], profiles: Mapping[str, ApprovalProfile]) -> Need:
    """`rows` in the order of the files, which decides nothing but which of two equal rows is named."""
    if not rows:
        return Need()
    exempt = next((row for row in rows if row.last == NONE), None)
    if exempt:
        return Need(exempt, exempt=True)
    wanted = {row.last: profiles[row.last] for row in rows}
    profile = strictest(wanted.values())
    if profile:
        return Need(next(row for row in rows if row.last == profile.name), profile)
    top = max(wanted.values(), key=lambda one: one.strictness).strictness
    return Need(next(row for row in rows if wanted[row.last].strictness == top))


BUILT_IN: Final[Mapping[str, ApprovalProfile]] = {
    profile.name: profile
    for profile in (
        ApprovalProfile("confirm", "self", via=("elicitation", "api"), expires=300.0, remember=("once", "session")),
        ApprovalProfile("one-of-leads", "other", 1, ("role:lead",), expires=1800.0, remember=("once", "15m")),
        ApprovalProfile("two-person", "other", 2, ("role:lead",), expires=3600.0, require_reason=True),
    )
}
