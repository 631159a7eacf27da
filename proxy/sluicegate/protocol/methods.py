"""Every method and notification of MCP, one row each; all other tables of methods are derived from them at import.

A method without a row does not exist. A request whose row does not say what judges it is refused, and each call needs
a durable intent in the audit log unless its row waives that by name. A new method is one row here, the translation of
its URIs (`catalog/uri_fields.py`) and its tests. The rows follow `schema.ts` of each revision; the methods of tasks on
2026-07-28 are those of the extension (SEP-2663). This module imports nothing of Sluice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

REVISION_NAMES: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
MODERN: Final = REVISION_NAMES[-1]

Kind = Literal["tool", "prompt", "res"]
JudgedBy = Literal["target", "items", "none"]
"""`target`: the guards decide about the one thing that the request names. `items`: the router decides about each item
or server of the answer. `none`: the request reaches nothing that a rule could be about."""
Intent = Literal["always", "for_named_items", "waived"]
"""`for_named_items`: only where the filter of a stream names resources or tasks."""
Scope = Literal["call", "session", "all"]
"""Whom a notification of a server is for: one call, one legacy session, or each client that may see its subject."""

_ALL: Final = frozenset(REVISION_NAMES)
_LEGACY: Final = _ALL - {MODERN}
_MODERN: Final = frozenset({MODERN})
_URL: Final = frozenset({"2025-11-25"})
_TASKS: Final = frozenset({"2025-11-25", MODERN})


@dataclass(frozen=True, slots=True)
class ListRow:
    """What only the four lists have: the key of their items, how a change is announced, and the key in the filter of
    `subscriptions/listen`."""

    key: str
    changed: str
    filter: str


@dataclass(frozen=True, slots=True)
class Method:
    """`target_field` is the parameter that names what the request is about, `kind` what that is, or what the items of
    a list are. `params` are all parameters that the request may have besides `_meta`; None where nothing is taken out.
    `result` is the member that each result must have. A request that is not `is_routed` is answered by the session, or
    asked by a server, and is never a `Call`."""

    name: str
    revisions: frozenset[str] = _ALL
    sender: Literal["client", "server", "both"] = "client"
    judged_by: JudgedBy | None = None
    intent: Intent = "always"
    target_field: str = ""
    kind: Kind | None = None
    params: frozenset[str] | None = None
    result: tuple[str, type] | None = None
    capability: str = ""
    listing: ListRow | None = None
    scope: Scope = "all"
    is_mirrored: bool = False  # HTTP repeats `target_field` in Mcp-Name (2026-07-28 streamable-http, SEP-2663)
    may_ask: bool = False  # a server may ask its client while it answers (2026-07-28 basic/patterns/mrtr)
    is_cacheable: bool = False  # complete results have ttlMs and cacheScope (2026-07-28 server/utilities/caching)
    is_reading: bool = False  # changes nothing at its server, as the events of the audit log's export say
    shows_task: bool = False  # the result is the task itself
    is_routed: bool = True

    @property
    def is_request(self) -> bool:
        return not self.name.startswith("notifications/")


_List = partial(Method, judged_by="items", intent="waived", is_cacheable=True, is_reading=True)
_Question = partial(Method, sender="server", is_routed=False)
_Note = partial(Method, is_routed=False)
_ROUND: Final = frozenset({"inputResponses", "requestState"})

_ROWS: Final = (
    # ---------------------------------------------------------------- requests of clients
    Method("server/discover", _MODERN, judged_by="items", intent="waived", is_cacheable=True, is_reading=True),
    Method("tools/call", judged_by="target", target_field="name", kind="tool", capability="tools",
           params=_ROUND | {"name", "arguments", "task"}, result=("content", list), is_mirrored=True, may_ask=True),
    Method("prompts/get", judged_by="target", target_field="name", kind="prompt", capability="prompts",
           params=_ROUND | {"name", "arguments"}, result=("messages", list), is_mirrored=True, may_ask=True,
           is_reading=True),
    Method("resources/read", judged_by="target", target_field="uri", kind="res", capability="resources",
           params=_ROUND | {"uri"}, result=("contents", list), is_mirrored=True, may_ask=True, is_cacheable=True,
           is_reading=True),
    Method("completion/complete", judged_by="target", intent="waived", target_field="ref", capability="completions",
           params=frozenset({"ref", "argument", "context"}), result=("completion", dict), is_reading=True),
    _List("tools/list", kind="tool", capability="tools",
          listing=ListRow("tools", "notifications/tools/list_changed", "toolsListChanged")),
    _List("prompts/list", kind="prompt", capability="prompts",
          listing=ListRow("prompts", "notifications/prompts/list_changed", "promptsListChanged")),
    _List("resources/list", kind="res", capability="resources",
          listing=ListRow("resources", "notifications/resources/list_changed", "resourcesListChanged")),
    _List("resources/templates/list", kind="res", capability="resources",
          listing=ListRow("resourceTemplates", "notifications/resources/list_changed", "resourcesListChanged")),
    Method("subscriptions/listen", _MODERN, judged_by="items", intent="for_named_items", is_reading=True),
    Method("tasks/get", _TASKS, judged_by="target", target_field="taskId", capability="tasks", is_mirrored=True,
           sender="both", shows_task=True),
    Method("tasks/result", _URL, judged_by="target", target_field="taskId", capability="tasks",
           result=("content", list), sender="both", may_ask=True),
    Method("tasks/update", _MODERN, judged_by="target", target_field="taskId", capability="tasks", is_mirrored=True),
    Method("tasks/cancel", _TASKS, judged_by="target", target_field="taskId", capability="tasks", is_mirrored=True,
           sender="both", shows_task=True),
    Method("tasks/list", _URL, judged_by="items", intent="waived", capability="tasks", sender="both",
           is_reading=True),
    # What the session answers by itself
    Method("initialize", _LEGACY, is_routed=False),
    Method("ping", _LEGACY, sender="both", is_routed=False),
    Method("logging/setLevel", _LEGACY, capability="logging", is_routed=False),
    Method("resources/subscribe", _LEGACY, target_field="uri", capability="resources", is_routed=False),
    Method("resources/unsubscribe", _LEGACY, target_field="uri", capability="resources", is_routed=False),
    # ---------------------------------------------------------------- requests of servers
    _Question("sampling/createMessage", capability="sampling"),
    _Question("roots/list", capability="roots"),
    _Question("elicitation/create", frozenset({"2025-06-18", "2025-11-25", MODERN}), capability="elicitation"),
    # ---------------------------------------------------------------- notifications
    Method("notifications/roots/list_changed", _LEGACY, judged_by="items", intent="waived", capability="roots"),
    _Note("notifications/initialized", _LEGACY),
    _Note("notifications/cancelled", sender="both"),
    _Note("notifications/progress", sender="both", scope="call"),
    _Note("notifications/message", sender="server", scope="call", capability="logging"),
    _Note("notifications/tools/list_changed", sender="server", capability="tools"),
    _Note("notifications/prompts/list_changed", sender="server", capability="prompts"),
    _Note("notifications/resources/list_changed", sender="server", capability="resources"),
    _Note("notifications/resources/updated", sender="server", target_field="uri", capability="resources"),
    _Note("notifications/subscriptions/acknowledged", _MODERN, sender="server"),
    _Note("notifications/elicitation/complete", _URL, sender="server", scope="session", capability="elicitation"),
    _Note("notifications/tasks/status", _URL, sender="both", scope="session", capability="tasks"),
    _Note("notifications/tasks", _MODERN, sender="server", capability="tasks"),
)  # fmt: skip

ROOTS_CHANGED: Final = "notifications/roots/list_changed"
"""The one notification of a client that becomes a `Call`: each server that it is a legacy client to hears of it."""
METHODS: Final[Mapping[str, Method]] = {row.name: row for row in _ROWS}


@dataclass(frozen=True, slots=True)
class List:
    """One of the four lists: its method, the key of its items, and how a change of it is announced."""

    method: str
    key: str
    changed: str
    filter: str  # key in the filter of subscriptions/listen
    capability: str
    kind: Kind


def _names(chosen: Callable[[Method], object]) -> frozenset[str]:
    return frozenset(row.name for row in _ROWS if chosen(row))


LISTS: Final[Mapping[str, List]] = {
    row.name: List(row.name, row.listing.key, row.listing.changed, row.listing.filter, row.capability, row.kind)
    for row in _ROWS
    if row.listing is not None and row.kind is not None
}
SEEN_BY_ALL: Final = frozenset({"server/discover", *LISTS})
"""What a server answers in the same way to all of one scope."""
# Requests of clients that become a `Call`, by the revision that has them; all others are answered with -32601.
ROUTED: Final[Mapping[str, frozenset[str]]] = {
    revision: frozenset(row.name for row in _ROWS if row.is_routed and row.is_request and revision in row.revisions)
    for revision in REVISION_NAMES
}
JUDGED_BY_NAME: Final[Mapping[str, str]] = {
    row.name: row.target_field for row in _ROWS if row.is_routed and row.judged_by == "target"
}
"""Where each method names its target."""
WITHOUT_TARGET: Final = _names(lambda row: row.is_routed and row.judged_by in ("items", "none"))
TARGET_KINDS: Final[Mapping[str, Kind]] = {
    row.name: row.kind for row in _ROWS if row.name in JUDGED_BY_NAME and row.kind is not None
}
SUBSCRIPTIONS: Final = _names(lambda row: row.is_request and not row.is_routed and row.target_field)
"""Requests of legacy sessions about one resource, which the session turns into one stream."""
INTENTS: Final[Mapping[str, Intent]] = {row.name: row.intent for row in _ROWS}
MIRRORED: Final[Mapping[str, str]] = {row.name: row.target_field for row in _ROWS if row.is_mirrored}
PARAMS: Final[Mapping[str, frozenset[str]]] = {row.name: row.params for row in _ROWS if row.params is not None}
RESULTS: Final[Mapping[str, tuple[str, type]]] = {row.name: row.result for row in _ROWS if row.result is not None}
CALL_RESULTS: Final = _names(lambda row: row.result == METHODS["tools/call"].result)
CACHEABLE: Final = _names(lambda row: row.is_cacheable)
READING: Final = _names(lambda row: row.is_reading)
# <= 2025-11-25: what a server may ask on; of a task it asks on the stream of `tasks/result` (basic/utilities/tasks)
ASKING: Final = _names(lambda row: row.may_ask)
MULTI_ROUND: Final = ASKING & ROUTED[MODERN]
"""The only methods whose result may be input_required (2026-07-28 basic/patterns/mrtr)."""
ABOUT_A_TASK: Final = _names(lambda row: row.is_routed and row.target_field == "taskId")
"""About one task, by its id; `tasks/list` is about all of a client's. 2025-11-25 basic/utilities/tasks, SEP-2663"""
TASK_METHODS: Final = ABOUT_A_TASK | {"tasks/list"}
TASK_SHOWN: Final = _names(lambda row: row.shows_task)
OF_A_CALL: Final = _names(lambda row: not row.is_request and row.scope == "call")
OF_A_SESSION: Final = _names(lambda row: not row.is_request and row.scope in ("call", "session"))
"""What a server may tell one legacy session, in its calls or outside of them."""
