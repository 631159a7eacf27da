"""The authenticated principal, and the reasons why a credential is refused."""

from dataclasses import dataclass, field
from hashlib import sha256

from sluicegate.protocol.model import Client


@dataclass(frozen=True, slots=True)
class Principal:
    """`expires` is the second from which the credential is no longer good, `credential` the mark of its key, `grant`
    that of which its token is one of many. `toolset` is that of the endpoint it came in at, and no part of who it is.
    """

    name: str
    roles: tuple[str, ...] = ()
    owner: str = ""
    expires: float | None = None
    credential: str = ""
    grant: str = ""
    toolset: str = field(default="", compare=False)

    @property
    def client(self) -> Client:
        """With the rights of the credential that was shown: another token of the same subject may have others."""
        return Client(self.name, self.roles, self.owner, credential=self.credential)


def key_mark(digest: str) -> str:
    """Tells a client key from another one of the same name. `digest` is the key's hash as the config has it: that is
    what gets in, so that nothing which is stored or compared holds it."""
    return sha256(f"sluice key {digest}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class CredentialRefused:
    """One word for the audit log; never a part of the credential. `is_known`: a good one, with too few rights."""

    reason: str
    is_known: bool = False
