"""Whoever came in, and why somebody did not."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """`expires` is the second from which the credential is no longer good."""

    name: str
    roles: tuple[str, ...] = ()
    owner: str = ""
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class CredentialRefused:
    """One word for the audit log; never a part of the credential. `is_known`: a good one, with too few rights."""

    reason: str
    is_known: bool = False
