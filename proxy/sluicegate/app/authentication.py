"""Who gets in, wired: at the port for clients and at the admin port, as the config in force says."""

from sluicegate.app import room_settings
from sluicegate.app.core import Core
from sluicegate.config import Config
from sluicegate.http.fetch import Fetcher
from sluicegate.listen.auth import Identity
from sluicegate.listen.auth.issuers import KeySets
from sluicegate.protocol.model import Client


def identities(inner: Core) -> tuple[Identity, Identity]:
    """For clients, and for the admin port. The keys of an issuer are fetched once for both."""
    judges, keysets = inner.services.judging, KeySets(Fetcher(inner.services.egress))
    clients = Identity(room_settings.identity(judges.config), keysets=keysets)
    operators = Identity(room_settings.identity(judges.config, admin=True), keysets=keysets)

    def replace(config: Config) -> None:
        clients.replace(room_settings.identity(config))
        operators.replace(room_settings.identity(config, admin=True))
        keysets.keep((one.issuer, one.jwks) for one in config.clients.jwt.issuers)

    judges.on_config.append(replace)
    judges.bearer_of = lambda principal: bearer_of(clients, principal) or bearer_of(operators, principal)
    judges.token_end = lambda principal: _end_of(clients, principal)
    return clients, operators


def _end_of(identity: Identity, principal: str) -> float | None:
    """When the newest token that a client has shown here ends, if it has not."""
    found = identity.find(principal)
    return None if found is None else found.expires


def bearer_of(identity: Identity, principal: str) -> Client | None:
    """Whom a token that was shown here has proved to be there."""
    found = identity.find(principal)
    return None if found is None else Client(found.name, found.roles, found.owner)
