"""What may be asked of a server, and what may be asked twice.

Decides only.
"""

from proxy.call import Call, Failure
from proxy.downstream.connection import Connection
from proxy.downstream.settings import Lost
from proxy.era.revisions import LISTS
from proxy.message import METHOD_NOT_FOUND


def may_resend(method: str, lost: Lost) -> bool:
    """Whether the same request may be sent once more. Not executed is proven for what was not sent, and for a
    session that is gone; reading and listing twice harms nobody; a tool is never called twice on a guess."""
    if not lost.sent:
        return lost.gone
    return method != "tools/call"


def undeclared(call: Call, connection: Connection) -> Failure | None:
    """2026-07-28 basic/index#capabilities: what a server does not declare, it does not have."""
    if (entry := LISTS.get(call.method)) is not None:
        is_there = entry.capability in connection.capabilities
    elif call.method == "completion/complete":
        # 2024-11-05 has the method and no capability for it
        is_there = "completions" in connection.capabilities or connection.revision == "2024-11-05"
    else:
        is_there = True
    return None if is_there else Failure(METHOD_NOT_FOUND, "Method not found")
