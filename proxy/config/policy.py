"""The sections about rights: which policy there is, and who agrees to what it asks a human for."""

from typing import Annotated, Literal

from pydantic import Field, Strict

from proxy.config.names import ProfileName, Roles
from proxy.config.section import Section, written
from proxy.config.units import WHOLE, FilePath, Flag, Moment

Class = Literal["read", "write", "destroy"]


class Policy(Section):
    use: Literal["open", "personal", "team"] | None = None
    """A policy that comes with Sluice: personal lets everybody read and the owner change things, team knows roles and
    groups, open lets every client that gets in use everything and works on loopback only. Or name `files` of yours."""
    files: tuple[FilePath, ...] = ()
    """Rows of a policy of your own, as CSV; all files together are one policy."""
    model: FilePath | None = None
    """The casbin model that the rows are read by; the one that comes with Sluice unless set."""
    arguments: FilePath | None = None
    """A folder of JSON Schemas, SERVER/TOOL.json, that the arguments of calls have to meet."""
    tests: FilePath | None = None
    """What the policy promises. A policy that breaks it is not taken into use."""
    mode: Literal["enforce", "shadow"] = "enforce"
    """shadow lets pass what the rows deny, and logs that they would have denied it; needs `until`."""
    until: Moment | None = None
    """When shadow mode ends and the rows are enforced."""
    on_deny: Literal["hide", "explain"] = "hide"
    """hide answers for a refused name as for an unknown one; explain says which rule refused it."""
    watch: Flag = True
    """Whether this file and the policy's files are taken into use when they change. SIGHUP does it in any case."""


class Profile(Section):
    later = frozenset({"via", "expires", "remember", "require_reason"})

    tier: Literal["self", "other"]
    """self: whoever asked confirms. other: somebody else approves, never whoever asked."""
    approvers: Roles = ()
    """Who may approve, for tier other."""
    quorum: Annotated[int, Strict(), Field(ge=1, le=10), WHOLE] = 1
    """How many of them must, for tier other."""


class Approvals(Section):
    later = frozenset({"hold_for", "notify"})

    profiles: dict[ProfileName, Profile] = written({})
    """What `p2` rows of the policy may ask for, besides confirm, one-of-leads and two-person."""
