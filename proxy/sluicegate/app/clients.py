"""Whom the config knows: a client's rights by its name, as they are now."""

import time

from sluicegate.config import Config
from sluicegate.protocol.model import Client
from sluicegate.store.revoked import Revoked


def client_of(config: Config, principal: str) -> Client | None:
    """Whoever may come in under that name, as the lists know a client; `ci-bot` means `key:ci-bot`."""
    if principal == "local":
        return Client("local", config.clients.local.roles)
    if principal == "anonymous" and config.clients.anonymous is not None:
        return Client("anonymous", config.clients.anonymous.roles)
    key = config.clients.keys.get(principal.removeprefix("key:"))
    return None if key is None else Client(f"key:{principal.removeprefix('key:')}", key.roles, key.owner)


def without_revoked(config: Config, revoked: Revoked) -> Config:
    """The config without the keys that were taken back since it was written."""
    keys = config.clients.keys
    left = {name: key for name, key in keys.items() if not revoked.has(name, key.hash.get_secret_value())}
    if len(left) == len(keys):
        return config
    return config.model_copy(update={"clients": config.clients.model_copy(update={"keys": left})})


def is_gone(config: Config, principal: str) -> bool:
    """Whether nobody comes in under that name any more. Of tokens the config cannot tell: what they gave ends with
    the token."""
    if principal == "anonymous":
        return config.clients.anonymous is None
    if not principal.startswith("key:"):
        return False
    key = config.clients.keys.get(principal.removeprefix("key:"))
    return key is None or (key.expires is not None and key.expires.timestamp() <= time.time())
