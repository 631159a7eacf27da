"""find: the two tools of Sluice's own by which a client finds and calls tools that its list does not have.

`call_tool` becomes the call that it stands for in front of all guards, so that policy, argument rules, approval, rates,
audit and metrics have the very same call as a direct one. `find_tools` is answered here: it reaches no server. Both
exist only for a client that has the search.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from sluicegate.guards import settled
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Client, Guard, Handler, Outcome, refuse

FIND: Final = "find_tools"
CALL: Final = "call_tool"
DEFAULT_LIMIT: Final = 5
MAX_LIMIT: Final = 20

OWN_TOOLS: Final = frozenset({FIND, CALL})

Find = Callable[[Call, str, int, str | None], Awaitable[Outcome]]
"""(call, query, limit, server) -> what is found, as the answer to that call."""

TOOLS: Final[tuple[Json, ...]] = (
    {
        "name": FIND,
        "title": "Find tools",
        "description": "Finds tools by what they do. Most tools of this server are not in its list: look for one here "
        "before you say that something cannot be done. The answer has whole definitions; call one by its name "
        f"with {CALL}.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What you want to do, in a few words."},
                "limit": {
                    "type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT,
                    "description": "How many tools to show.",
                },
                "server": {"type": "string", "description": "Only tools whose names begin with this and `__`."},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    },
    {
        "name": CALL,
        "title": "Call a tool",
        "description": f"Calls a tool that {FIND} found.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "The name of the tool."},
                "arguments": {"type": "object", "description": "What its inputSchema asks for."},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
    },
)  # fmt: skip

_MEMBERS: Final = {CALL: frozenset({"name", "arguments"}), FIND: frozenset({"query", "limit", "server"})}
_CALL_WRONG: Final = f"NOT EXECUTED: {CALL} takes `name`, the name of a tool, and `arguments`, an object."
_FIND_WRONG: Final = (
    f"NOT EXECUTED: {FIND} takes `query`, a text, and perhaps `limit`, 1 to {MAX_LIMIT}, and `server`, a text."
)


def unwrapped(has_search: Callable[[Client], bool], inner: Handler) -> Handler:
    """Makes `call_tool` the call of the tool that it names, in front of all guards."""

    def handle(call: Call) -> Awaitable[Outcome]:
        if call.params.get("name") != CALL or call.method != "tools/call" or not has_search(call.client):
            return inner(call)
        given = _given(call, CALL)
        name, arguments = given.get("name"), given.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return inner(call)  # it is counted, recorded, and refused by `find`
        # Headers say again what stands in the arguments of this call (2026-07-28 basic/transports/streamable-http), and
        # its client made none of the other one's.
        return inner(replace(call, params={**call.params, "name": name, "arguments": arguments}, mirrored=None))

    return handle


def find(has_search: Callable[[Client], bool], found: Find) -> Guard:
    """Answers `find_tools`, and refuses a `call_tool` that names no tool, or itself."""

    def guard(call: Call, inner: Handler) -> Awaitable[Outcome]:
        name = call.params.get("name")
        if name not in (FIND, CALL) or call.method != "tools/call" or not has_search(call.client):
            return inner(call)
        if name == CALL:
            return settled(refuse(call.method, "invalid_arguments", _CALL_WRONG))
        given = _given(call, FIND)
        query, limit, server = given.get("query"), given.get("limit", DEFAULT_LIMIT), given.get("server")
        is_number = isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit <= MAX_LIMIT
        if not isinstance(query, str) or not is_number or not isinstance(server, str | None):
            return settled(refuse(call.method, "invalid_arguments", _FIND_WRONG))
        return found(call, query, limit, server)

    return guard


def _given(call: Call, tool: str) -> dict[str, Any]:
    """The arguments; nothing where there are others than the tool has."""
    given = call.params.get("arguments")
    return given if isinstance(given, dict) and _MEMBERS[tool].issuperset(given) else {}
