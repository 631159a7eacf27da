"""What an operator does with one server: `POST /api/v1/servers/{key}/{action}`.

Knows paths and answers. What the actions do, and that they are written down first, comes as a function.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from sluicegate.protocol.jsonrpc import Json

ACTIONS: Final = ("restart", "reconnect", "enable", "disable")

ChangeServer = Callable[[str, str, str], Awaitable[tuple[int, Json]]]
"""(server key, action, who asks) -> status and answer."""


def is_action(parts: tuple[str, ...]) -> bool:
    """Whether this is the path of an action, whatever the server."""
    return len(parts) == 3 and parts[0] == "servers" and parts[2] in ACTIONS


async def change(change_server: ChangeServer, parts: tuple[str, ...], body: bytes, who: str) -> tuple[int, Json]:
    """An action has no parameters, so that its body is an empty object."""
    if body.strip() not in (b"", b"{}"):
        return 400, {"error": "the body is {}"}
    return await change_server(parts[1], parts[2], who)
