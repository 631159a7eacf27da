"""Sluice as an OAuth client of MCP servers: who is logged in where, and the token for the next request.

`Logins` is the way in. Knows the store and the network that it is given; no config, no connection, no page.
"""

from sluicegate.login.logins import Logins
from sluicegate.login.model import (
    Bearer,
    CachedBearer,
    DeviceFlow,
    Flow,
    LoginEvent,
    LoginFailed,
    LoginInfo,
    LoginNeeded,
    LoginSettings,
    LoginUnavailable,
)
from sluicegate.login.scene import MayLogIn, anybody

__all__ = [
    "Bearer", "CachedBearer", "DeviceFlow", "Flow", "LoginEvent", "LoginFailed", "LoginInfo", "LoginNeeded",
    "LoginSettings", "LoginUnavailable", "Logins", "MayLogIn", "anybody",
]  # fmt: skip
