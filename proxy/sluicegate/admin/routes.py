"""The admin API as data: each request that the admin port serves, with its right, record, query and bodies.

The dispatcher, `openapi.json`, the reference and the security tests are made of this table. A request that no row has
is not served. Pure: who answers an operation is a matter of endpoints.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

from sluicegate import __version__
from sluicegate.admin.blocks import MAX_REASON, MAX_SECONDS, MAX_WHAT
from sluicegate.approval.eligibility import MAX_COMMENT
from sluicegate.approval.record import TRANSITIONS
from sluicegate.protocol.jsonrpc import Json

API: Final = "/api/v1/"
PAGE: Final = "/approvals/{id:path}"
ACTIONS: Final = ("restart", "reconnect", "enable", "disable")
JSON: Final = "application/json"
MAX_BODY: Final = 4 * 1024 * 1024
MAX_FORM: Final = 16 * 1024
MAX_QUERY: Final = 4_096

_STRING: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_ROW: Final = {"type": "object"}
_FLAG: Final = {"type": "boolean"}


def _object(optional: Mapping[str, Json] | None = None, /, **required: Json) -> Json:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def _exactly(optional: Mapping[str, Json] | None = None, /, **required: Json) -> Json:
    """Of a body that we read: nothing is taken and then ignored."""
    return {**_object(optional, **required), "additionalProperties": False}


def _list(of: Json) -> Json:
    return {"type": "array", "items": of}


MAX_LISTED: Final = 1_000
_LISTED_QUERY: Final = {
    "as": "the client", "cursor": "`next` of the page before", "limit": f"rows, all unless given, at most {MAX_LISTED}"
}  # fmt: skip
_PAGE_QUERY: Final = {"before": "`next` of the page before", "limit": "rows, 100 unless given, at most 200"}
_APPROVAL_ROW: Final = _object(
    id=_STRING, state={"enum": sorted(TRANSITIONS)}, digest=_STRING, principal=_STRING, server=_STRING, tool=_STRING,
    profile=_STRING, tier=_STRING, expires_at=_STRING,
)  # fmt: skip
_APPROVAL: Final = _object(**_APPROVAL_ROW["properties"], objection=_STRING, has_voted=_FLAG)
_GRANT: Final = _object(
    id=_STRING, principal=_STRING, server=_STRING, tool=_STRING, made_at=_STRING, expires_at=_STRING
)
_PIN: Final = _object({"deny_row": _STRING}, server=_STRING, kind=_STRING, name=_STRING, state=_STRING, withheld=_FLAG)
_LOGIN: Final = _object(
    **dict.fromkeys(("id", "server", "principal", "issuer", "client_id"), _STRING),
    expires_at=_STRING, renewed_at=_STRING, last_error=_STRING, scopes=_list(_STRING),
    kind={"enum": ["client", "owner", "gateway", "machine"]}, can_refresh=_FLAG,
    state={"enum": ["ok", "expired", "needed", "refused", "leaving"]},
)  # fmt: skip
_BLOCK: Final = _object(
    **dict.fromkeys(("id", "what", "principal", "server", "tool", "at", "until", "by", "reason"), _STRING)
)
_BLOCKED: Final = _object(block=_BLOCK, note=_STRING, unconfirmed=_list(_STRING))
_JUDGED: Final = _object(
    **dict.fromkeys(("name", "server", "own", "class", "class_source", "pin", "rule"), _STRING),
    given=_FLAG, verdict={"enum": ["allow", "ask", "deny"]},
)  # fmt: skip
_COST: Final = _object(name=_STRING, server=_STRING, tokens=_COUNT)
_OUTPUT: Final = _object(server=_STRING, transport=_STRING, status=_STRING, last_error=_STRING, exit=_STRING,
                         lines=_list(_STRING), position=_STRING)  # fmt: skip
_CALL: Final = _object(
    dict.fromkeys(("principal", "method", "server", "own", "public", "verdict", "rule", "reason", "trace"), _STRING),
    id=_STRING, time=_STRING, outcome=_STRING, is_open=_FLAG,
)  # fmt: skip
_RECORD: Final = _object({"call": _STRING}, writer=_STRING, seq=_COUNT, type=_STRING, time=_STRING)
_FINDING: Final = _object(file=_STRING, line=_COUNT, seq=_COUNT, text=_STRING)
_VERIFICATION: Final = _object(
    {"started_at": _STRING, "ended_at": _STRING, "error": _STRING, "ok": _FLAG,
     "writers": _list(_object(writer=_STRING, ok=_FLAG, records=_COUNT, first=_COUNT, last=_COUNT, signed=_COUNT,
                              signed_at=_STRING, tail=_COUNT, notes=_list(_STRING), findings=_list(_FINDING)))},
    state={"enum": ["none", "running", "done", "failed"]}, records=_COUNT, bytes=_COUNT, of_bytes=_COUNT,
)  # fmt: skip
_PROOF: Final = {"enum": ["proved", "behind", "not_verified", "broken"]}
_READINESS: Final = _object({"notes": _list(_STRING)}, status={"enum": ["ready", "not ready"]}, reasons=_list(_STRING))
_VOTE: Final = _exactly(
    {"seen_digest": _STRING, "scope": {"enum": ["once", "session", "15m"]},
     "comment": {"type": "string", "maxLength": MAX_COMMENT}},
    decision={"enum": ["approve", "deny"]},
)  # fmt: skip
_EXPLAIN: Final = _exactly({"arguments": _ROW}, **{"as": _STRING, "method": _STRING, "target": _STRING})
_PREVIEW: Final[Json] = {"oneOf": [
    _exactly(method={"const": "resources/read"}, target=_STRING),
    _exactly(method={"const": "prompts/get"}, target=_STRING,
             arguments={"type": "object", "additionalProperties": _STRING}),
]}  # fmt: skip
_PREVIEWED: Final = _object(
    {"result": _ROW, "failure": _object(message=_STRING, reason=_STRING, data=_ROW)}, call=_STRING
)
_EXPLANATION: Final = _object(
    {"rows": _list(_object(at=_STRING, says=_STRING, row=_STRING)), "notes": _list(_STRING),
     "source": _object(first=_COUNT, lines=_list(_STRING)),
     "hooks": _object(call=_list(_STRING), result=_list(_STRING))},
    verdict={"enum": ["allow", "ask", "deny"]}, rule=_STRING, reason=_STRING, principal=_STRING,
)  # fmt: skip
_ACCEPTED: Final = _exactly(kind={"enum": ["tool", "prompt", "template", "instructions"]}, name=_STRING,
                            fingerprint=_STRING)  # fmt: skip


StepUp = Literal["", "always", "required", "many"]
"""Never; always; where the server that the path names is `required`; where more than one definition is accepted."""

Workers = Literal["first", "holder", "named", "caller", "stream", "every", "joined"]
"""Which of several workers answers, where each has a part: the first one, as all would say the same; the one that
holds what the path names; that of the client that the request names as `as`; that of whoever asks. Or all: as one
stream, each doing it, or their answers joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRoute:
    """`area` and `act` are the right that it needs, "" none; `is_open`: no credential either. `audit` is the type of
    the record that it leaves. `step_up`: when a console's session has to show again who it is. `query` has what each
    parameter means, `request` and `response` are JSON schemas; None: no body, or one of another `media` type."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    operation: str
    summary: str
    area: str = ""
    act: Literal["read", "write"] = "read"
    is_open: bool = False
    step_up: StepUp = ""
    audit: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    request: Json | None = None
    response: Json | None = None
    media: str = JSON
    workers: Workers = "first"

    @property
    def methods(self) -> tuple[str, ...]:
        """HEAD is served with GET, but for the page of an approval, whose link is used by whoever opens it."""
        return ("GET", "HEAD") if self.method == "GET" and self.path != PAGE else (self.method,)


ROUTES: Final = (
    ApiRoute(method="GET", path="/livez", operation="live", is_open=True, summary="whether the process answers",
             response=_object(status={"const": "ok"})),
    ApiRoute(method="GET", path="/readyz", operation="ready", workers="joined", is_open=True, response=_READINESS,
             summary="whether Sluice is ready; the reasons are for credentials and for this machine"),
    ApiRoute(method="GET", path="/metrics", operation="metrics", workers="joined", is_open=True, media="text/plain",
             summary="metrics for Prometheus"),
    ApiRoute(method="GET", path=PAGE, operation="show_page", is_open=True, media="text/html", query={"t": "the seal"},
             workers="holder", summary="the page of one approval, for its requester"),
    ApiRoute(method="POST", path=PAGE, operation="decide_on_page", is_open=True, media="text/html", audit="approval",
             workers="holder", summary="the requester's decision on that page"),
    ApiRoute(method="GET", path=API + "me", operation="me", summary="whose credential this is, and its rights",
             response=_object(principal=_STRING, rights={"type": "object", "additionalProperties": _list(_STRING)})),
    ApiRoute(method="GET", path=API + "openapi.json", operation="openapi", summary="this table, as OpenAPI 3.1",
             response=_object(openapi=_STRING, paths=_ROW)),
    ApiRoute(method="GET", path=API + "servers", operation="list_servers", workers="joined", area="servers",
             summary="the servers and their health",
             response=_object(servers=_list(_object({"sandbox": _STRING}, key=_STRING, status=_STRING)))),
    ApiRoute(method="GET", path=API + "servers/{key}", operation="show_server", workers="joined", area="servers",
             summary="one server and its health", response=_object(key=_STRING, status=_STRING)),
    ApiRoute(method="GET", path=API + "status", operation="show_status", workers="joined", area="servers",
             summary="whether Sluice is ready, its version, the policy, the newest checkpoint, and how many calls",
             response=_object({"audit": _ROW, "counted": _object(requests=_COUNT, calls=_COUNT, denied=_COUNT)},
                              status={"enum": ["ready", "not ready"]}, reasons=_list(_STRING),
                              notes=_list(_STRING), version=_STRING, policy=_object(revision=_STRING, mode=_STRING))),
    *(ApiRoute(method="POST", path=f"{API}servers/{{key}}/{action}", operation=f"{action}_server", area="servers",
               workers="every", act="write", audit="admin", summary=f"{action} one server", request=_exactly(),
               step_up="required" if action in ("restart", "disable") else "",
               response=_object(server=_STRING, action={"const": action}, open_calls=_COUNT)) for action in ACTIONS),
    ApiRoute(method="GET", path=API + "servers/{key}/log", operation="show_output", area="servers", response=_OUTPUT,
             workers="joined", query={"after": "`position` of an earlier answer"},
             summary="the last lines of a server's stderr, redacted"),
    ApiRoute(method="GET", path=API + "tools", operation="list_tools", area="tools", query=_LISTED_QUERY,
             workers="named", summary="the tools, as one client sees them",
             response=_object({"as": _STRING, "next": _STRING}, tools=_list(_ROW))),
    ApiRoute(method="GET", path=API + "tools/judged", operation="judge_tools", area="tools", workers="named",
             query=_LISTED_QUERY,
             summary="the tools that servers list for a client, given or not: class, pin, verdict and its row",
             response=_object({"as": _STRING, "next": _STRING}, tools=_list(_JUDGED))),
    ApiRoute(method="GET", path=API + "tools/cost", operation="cost", area="tools", workers="named",
             query={"as": "the client", "toolset": "at that toolset; else the one of its roles, or none"},
             summary="about how many tokens a client's list of tools has, and each definition: bytes / 4",
             response=_object({"as": _STRING, "toolset": _STRING}, list=_COUNT, all=_COUNT, budget=_COUNT,
                              search={"enum": ["off", "on", "auto"]}, is_searched=_FLAG, tools=_list(_COST))),
    ApiRoute(method="GET", path=API + "prompts", operation="list_prompts", area="tools", query=_LISTED_QUERY,
             workers="named", summary="the prompts, as one client sees them",
             response=_object({"as": _STRING, "next": _STRING}, prompts=_list(_ROW))),
    ApiRoute(method="GET", path=API + "resources", operation="list_resources", workers="named", area="tools",
             query={"as": "the client", "cursor": "`next` of the page before"},
             summary="a page of the resources, as one client sees them; the first with all templates",
             response=_object({"as": _STRING, "next": _STRING}, resources=_list(_ROW), templates=_list(_ROW))),
    ApiRoute(method="POST", path=API + "preview", operation="preview", workers="caller", area="tools", audit="outcome",
             summary="a resource or a prompt, by a call of whoever asks", request=_PREVIEW, response=_PREVIEWED),
    ApiRoute(method="GET", path=API + "pins", operation="list_pins", area="pins", response=_object(pins=_list(_PIN)),
             query={"server": "its key", "definitions": "1: with the definitions",
                    "waiting": "1: those alone that wait for a person or are withheld"},
             summary="definitions and their pins"),
    ApiRoute(method="POST", path=API + "pins", operation="accept_pins", area="pins", act="write", audit="pin",
             workers="every", step_up="many", summary="accept definitions",
             request=_exactly(server=_STRING, accept=_list(_ACCEPTED)),
             response=_object(pins=_list(_PIN))),
    ApiRoute(method="GET", path=API + "logins", operation="list_logins", area="logins",
             query={"server": "its key", **_PAGE_QUERY}, summary="who is logged in to which server; never a token",
             response=_object({"next": _STRING}, logins=_list(_LOGIN), total=_COUNT)),
    ApiRoute(method="POST", path=API + "logins", operation="begin_login", area="logins", act="write",
             audit="admin", step_up="always", request=_exactly({"as": _STRING}, server=_STRING),
             summary="begin a login, for whoever asks or for `as`: the link is for a browser where Sluice runs",
             response=_object(server=_STRING, principal=_STRING, login=_STRING, url=_STRING)),
    ApiRoute(method="DELETE", path=API + "logins/{id}", operation="end_login", area="logins", act="write",
             audit="admin", step_up="always",
             summary="log out: the tokens are revoked where it can be done, and deleted in any case",
             response=_object(id=_STRING, server=_STRING, principal=_STRING, revoked=_FLAG)),
    ApiRoute(method="GET", path=API + "policy/facts", operation="find_facts", area="policy", response=_ROW,
             workers="named", query={"as": "the client", "method": "of MCP", "target": "its name or URI"},
             summary="what `sluice explain` has to know"),
    ApiRoute(method="POST", path=API + "policy/explain", operation="explain", area="policy", request=_EXPLAIN,
             workers="named",
             response=_EXPLANATION, summary="the decision for a request, the row that makes it, and all other rows"),
    ApiRoute(method="GET", path=API + "blocks", operation="list_blocks", area="policy",
             summary="clients, servers and tools that are blocked", response=_object(blocks=_list(_BLOCK))),
    ApiRoute(method="POST", path=API + "blocks", operation="add_block", area="policy", act="write", audit="admin",
             summary="block a client, a server or tools of it; `unconfirmed` names replicas that may not know it yet",
             request=_exactly({"for": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_SECONDS},
                               "reason": {"type": "string", "maxLength": MAX_REASON}},
                              what={"type": "string", "minLength": 1, "maxLength": MAX_WHAT}),
             response=_BLOCKED),
    ApiRoute(method="DELETE", path=API + "blocks/{id}", operation="end_block", area="policy", act="write",
             audit="admin", step_up="always", summary="end a block", response=_BLOCKED),
    ApiRoute(method="GET", path=API + "audit/head", operation="show_audit_head", area="audit", response=_ROW,
             workers="joined", summary="the newest checkpoint"),
    ApiRoute(method="GET", path=API + "audit/records", operation="list_records", area="audit",
             summary="records of the log, the newest first; 100 at most, or how far a search came in a second",
             query={"since": "a time, as of `audit search`", "until": "a time", "type": "of record",
                    "principal": "who called, approved or acted", "tool": "a glob", "outcome": "an outcome or a reason",
                    "call": "the id of one call", "before": "`next` of the answer before", "limit": "1 to 100"},
             response=_object({"next": _STRING}, records=_list(_RECORD), searched_to=_STRING, partial=_FLAG)),
    ApiRoute(method="GET", path=API + "audit/verify", operation="show_verification", area="audit",
             summary="what the last proof of the log found, or how far it is", response=_VERIFICATION),
    ApiRoute(method="POST", path=API + "audit/verify", operation="verify_log", area="audit",
             summary="prove the log from its first record on; one that runs goes on", request=_exactly(),
             response=_VERIFICATION),
    ApiRoute(method="GET", path=API + "calls", operation="list_calls", area="audit",
             summary="calls, the newest first; 100 at most, or how far a search came in a second",
             query={"who": "the principal", "server": "its key", "tool": "a glob", "method": "of MCP",
                    "verdict": "allow, deny, ask or would_deny", "outcome": "an outcome or a reason",
                    "since": "a time, as of `audit search`", "until": "a time", "q": "a text in it",
                    "before": "`next` of the answer before", "limit": "1 to 100"},
             response=_object({"next": _STRING}, calls=_list(_CALL), searched_to=_STRING, partial=_FLAG)),
    ApiRoute(method="GET", path=API + "calls/{id}", operation="show_call", area="audit",
             summary="all records of one call, and what proves them",
             response=_object(call=_CALL, records=_list(_ROW), partial=_FLAG,
                              proof=_object(state=_PROOF, records=_list(_object(state=_PROOF))))),
    ApiRoute(method="GET", path=API + "events", operation="follow_changes", workers="stream", media="text/event-stream",
             query={"topics": "of approval, server, call, pin, login, policy; all where there is none"},
             summary="which topics changed, as server-sent events; each topic needs the right to its list"),
    ApiRoute(method="GET", path=API + "approvals", operation="list_approvals", workers="joined", area="approvals",
             query={"state": "one state, or `decided`", "server": "its key",
                    "for": "`approver`: that wait for whoever asks; `requester`: that they asked for", **_PAGE_QUERY},
             summary="approvals, the newest last; of long arguments the beginning",
             response=_object({"next": _STRING}, approvals=_list(_APPROVAL), total=_COUNT)),
    ApiRoute(method="GET", path=API + "approvals/events", operation="follow_approvals", area="approvals",
             workers="stream", media="text/event-stream", summary="changes, as server-sent events"),
    ApiRoute(method="GET", path=API + "approvals/{id}", operation="show_approval", area="approvals", response=_APPROVAL,
             workers="holder", summary="one approval"),
    ApiRoute(method="POST", path=API + "approvals/{id}/decisions", operation="decide", area="approvals", act="write",
             workers="holder", audit="approval", summary="approve or deny", request=_VOTE, response=_APPROVAL_ROW),
    ApiRoute(method="POST", path=API + "approvals/{id}/cancel", operation="cancel", area="approvals", act="write",
             workers="holder", audit="approval", summary="withdraw the request", request=_ROW, response=_APPROVAL_ROW),
    ApiRoute(method="POST", path=API + "approvals/{id}/reveal", operation="reveal", area="secrets", step_up="always",
             workers="holder", audit="approval", summary="masked secrets of one approval", request=_ROW,
             response=_object(id=_STRING, arguments={}, arguments_lines=_list({}))),
    ApiRoute(method="GET", path=API + "grants", operation="list_grants", area="grants", query=_PAGE_QUERY,
             workers="joined",
             summary="remembered approvals", response=_object({"next": _STRING}, grants=_list(_GRANT), total=_COUNT)),
    ApiRoute(method="GET", path=API + "grants/{id}", operation="show_grant", area="grants", response=_GRANT,
             workers="holder", summary="one remembered approval"),
    ApiRoute(method="DELETE", path=API + "grants/{id}", operation="revoke_grant", area="grants", act="write",
             workers="holder", audit="approval", summary="revoke one", response=_GRANT),
)  # fmt: skip
AREAS: Final = tuple(dict.fromkeys(one.area for one in ROUTES if one.area))


def step_up_of(method: str, path: str) -> StepUp:
    """When a session has to show again who it is: what shows a secret or is hard to undo is asked for by somebody who
    was asked who they are a moment ago. A path that is none is asked for, too: whoever gets it may take it for one."""
    if (route := route_of(method, path)) is not None:
        return route.step_up
    return "" if method in ("GET", "HEAD") else "always"


def route_of(method: str, path: str) -> ApiRoute | None:
    return next((one for one in ROUTES if method in one.methods and pattern(one.path).fullmatch(path)), None)


@cache
def pattern(path: str) -> re.Pattern[str]:
    """Which paths a row's stands for."""
    return re.compile(re.sub(r"\{\w+\}", "[^/]+", path.replace("{id:path}", ".*")))


_ERRORS: Final = {
    "400": "the query or the body is not as described", "401": "a credential is needed", "403": "the right is missing",
    "404": "there is no such thing", "409": "things are not as the request assumes", "413": "the body is too large",
    "415": "the body is not JSON", "421": "this Host is not served", "503": "it cannot be done or recorded now",
}  # fmt: skip
_OF_WRITES: Final = frozenset({"409", "413", "415"})


def openapi() -> Json:
    """The table as an OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    for one in ROUTES:
        paths.setdefault(one.path.replace(":path}", "}"), {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice admin API", "version": __version__},
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _object(error=_STRING)},
        },
    }


def _operation(route: ApiRoute) -> Json:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _STRING} for name in re.findall(r"\{(\w+)", route.path)
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "description": text, "schema": _STRING}
        for name, text in route.query.items()
    ]
    error = {"content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}
    errors = {} if route.is_open else _ERRORS
    answer = {route.media: {} if route.response is None else {"schema": route.response}}
    body = {} if route.request is None else {"requestBody": {"content": {JSON: {"schema": route.request}}}}
    return {
        "operationId": route.operation,
        "summary": route.summary,
        "parameters": parameters,
        **body,
        "responses": {
            "200": {"description": "done" if route.method != "GET" else route.summary, "content": answer},
            **{
                code: {"description": text, **error}
                for code, text in errors.items()
                if route.method == "POST" or code not in _OF_WRITES
            },
        },
        "security": [] if route.is_open else [{"bearer": []}],
        "x-right": f"admin:{route.area} {route.act}" if route.area else "",
        "x-step-up": route.step_up,
        "x-audit": route.audit,
    }
