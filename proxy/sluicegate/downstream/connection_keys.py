"""Which connection is whose: equal keys share one. Values only."""

from typing import Final, NamedTuple

from sluicegate.downstream.settings import ServerSettings
from sluicegate.protocol.model import Client, Era


class ConnectionKey(NamedTuple):
    """Equal keys share a connection. `scope` is whose lists it sees, None for everybody's; `declared` the canonical
    text of the capabilities that the server is told of; `lane` tells connections apart that do not differ. A tuple,
    because every call looks one up, and a dataclass is hashed and compared in Python."""

    era: Era
    owner: tuple[str, ...] = ()
    scope: str | None = None
    declared: str = "{}"
    lane: int = 0

    @property
    def session(self) -> str | None:
        return self.owner[2] if self.owner[:1] == ("session",) else None

    @property
    def principal(self) -> str:
        """Empty for what belongs to nobody in particular."""
        return self.owner[1] if len(self.owner) > 1 else ""

    @property
    def is_spare(self) -> bool:
        return self.owner == _SPARE


_SPARE: Final = ("spare",)
MODERN_KEY: Final = ConnectionKey("modern")
SPARE: Final = ConnectionKey("legacy", _SPARE)
SHARED: Final = ConnectionKey("legacy")


def key_for(client: Client, era: Era, settings: ServerSettings, scope: str, declared: str) -> ConnectionKey:
    """A legacy connection is a session, and belongs to who may see what another left in it. To a modern server there
    is one for all, a process too: it must not take either for a client (2026-07-28 basic/index#statelessness), what it
    keeps has a handle that is in the request, and the process of a client that is idle for long would end with it."""
    if era == "modern":
        return MODERN_KEY
    if settings.sharing == "shared":
        return SHARED
    if settings.sharing == "session" and client.session is not None:
        return ConnectionKey("legacy", ("session", client.principal, client.session), scope, declared)
    return ConnectionKey("legacy", ("client", client.principal), scope, declared)


def nobodys_key(settings: ServerSettings) -> ConnectionKey:
    """Of a legacy connection that is open so that one is."""
    return SHARED if settings.sharing == "shared" else SPARE


def spare_for(key: ConnectionKey) -> ConnectionKey:
    """Nobody's connection, that could become this one's: nothing was done on it but to look at its lists."""
    return SHARED if key == SHARED else ConnectionKey("legacy", _SPARE, None, key.declared)
