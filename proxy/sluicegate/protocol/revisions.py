"""The five revisions as one table: what differs between them on the wire.

Everything that asks "is this revision old enough / new enough for X" asks a field of this table, so that
a revision's behaviour can be read in one row. Pages: docs/specification/<revision>/changelog of the spec.
"""

from dataclasses import dataclass
from typing import Final

from sluicegate.protocol.model import MODERN, Era


@dataclass(frozen=True, slots=True)
class Revision:
    name: str
    era: Era
    batches: bool = False  # JSON arrays: added 2025-03-26, removed 2025-06-18
    version_header: bool = False  # MCP-Protocol-Version on every HTTP request after initialize
    streamable: bool = True  # Streamable HTTP has Last-Event-ID resumption (basic/transports#resumability)
    priming: bool = False  # first SSE event carries an id and no data (SEP-1699)
    progress_message: bool = True  # notifications/progress may carry `message`
    audio: bool = True
    annotations: bool = True  # tools carry `annotations`
    completions: bool = True  # capability `completions`
    structured: bool = True  # structuredContent, outputSchema, resource_link, title, _meta on definitions
    elicitation: bool = True
    url_elicitation: bool = False  # modes; titled and multiple choices; -32042
    sampling_tools: bool = False  # sampling may use tools, and a message may have several blocks
    icons: bool = False
    any_output_schema: bool = False  # outputSchema may have a root that is no object
    tasks: bool = False  # tasks are in the core: `params.task`, `tasks/*`, `execution.taskSupport`


REVISIONS: Final[dict[str, Revision]] = {
    revision.name: revision
    for revision in (
        Revision("2024-11-05", "legacy", streamable=False, progress_message=False, audio=False, annotations=False,
                 completions=False, structured=False, elicitation=False),
        Revision("2025-03-26", "legacy", batches=True, structured=False, elicitation=False),
        Revision("2025-06-18", "legacy", version_header=True),
        Revision("2025-11-25", "legacy", version_header=True, priming=True, url_elicitation=True, sampling_tools=True,
                 icons=True, tasks=True),
        Revision(MODERN, "modern", version_header=True, streamable=False, url_elicitation=True, sampling_tools=True,
                 icons=True, any_output_schema=True),
    )
}  # fmt: skip

LEGACY: Final = tuple(name for name, revision in REVISIONS.items() if revision.era == "legacy")
NEWEST_LEGACY: Final = LEGACY[-1]
SUPPORTED: Final = tuple(reversed(REVISIONS))  # newest first, as data.supported and supportedVersions list them

META = "io.modelcontextprotocol/"
PROTOCOL_VERSION = META + "protocolVersion"
CLIENT_INFO = META + "clientInfo"
CLIENT_CAPABILITIES = META + "clientCapabilities"
SERVER_INFO = META + "serverInfo"
SUBSCRIPTION_ID = META + "subscriptionId"
RELATED_TASK = META + "related-task"
HOP_META: Final = frozenset({SERVER_INFO, SUBSCRIPTION_ID, RELATED_TASK})
"""What the `_meta` of a result, a task or a notification says of one hop alone: whoever relays it writes its own."""
LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
