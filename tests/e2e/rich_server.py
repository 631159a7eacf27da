"""`rich_server.py REVISION`: a server on stdio that speaks one revision and has all that this revision has.

Bare JSON lines, no SDK: what an SDK would put right must go through Sluice as it is.
"""

import json
import sys
from typing import Any

Json = dict[str, Any]

REVISION = sys.argv[1]
MODERN = REVISION == "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
UI = PREFIX + "ui"
MIME = "text/html;profile=mcp-app"
ICONS = [{"src": "data:image/png;base64,AA=="}]
FORM: Json = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
PAGE: Json = {"mode": "url", "message": "Log in", "url": "https://login.test/"}


def since(revision: str, **parts: Any) -> Json:
    return parts if revision <= REVISION else {}


TITLED = {**since("2025-06-18", title="T", _meta={"vendor/x": 1}), **since("2025-11-25", icons=ICONS)}
ARRAY: Json = {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}
OBJECT: Json = {"type": "object", "properties": {"result": {"type": "array"}}}
NAMES = ["everything", "meta", "ask", "sample", "roots", "page", "page_first", "needs", "app", "strict"]
BLOCKS: list[Json] = [
    {"type": "text", "text": "t", "annotations": {"priority": 1}, **since("2025-06-18", _meta={"vendor/x": 1})},
    {"type": "image", "data": "AA==", "mimeType": "image/png"},
    {"type": "resource", "resource": {"uri": "res:a", "text": "a"}},
    *([{"type": "audio", "data": "AA==", "mimeType": "audio/wav"}] if REVISION >= "2025-03-26" else []),
    *([{"type": "resource_link", "uri": "res:a", "name": "a", **TITLED}] if REVISION >= "2025-06-18" else []),
]
LISTS: dict[str, Json] = {
    "tools/list": {
        "tools": [
            {"name": name, "description": "d", "inputSchema": {"type": "object"}, **TITLED,
             **since("2025-03-26", annotations={"readOnlyHint": True}),
             **(since("2025-06-18", outputSchema=ARRAY if MODERN else OBJECT) if name == "everything" else {}),
             **(since("2025-06-18", _meta={"ui": {"resourceUri": "ui://app/page"}}) if name == "app" else {})}
            for name in NAMES
        ]
    },
    "prompts/list": {
        "prompts": [{"name": "p", **TITLED, "arguments": [{"name": "a", **since("2025-06-18", title="A")}]}]
    },
    "resources/list": {"resources": [{"uri": "res:a", "name": "a", **TITLED},
                                     {"uri": "ui://app/page", "name": "app", "mimeType": MIME}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "res:{a}", "name": "a", **TITLED}]},
}  # fmt: skip


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def done(id: Any, result: Json, method: str = "") -> None:
    cached = {"ttlMs": 1, "cacheScope": "public"} if method in (*LISTS, "resources/read", "server/discover") else {}
    send(id=id, result={**({"resultType": "complete", **cached} if MODERN else {}), **result})


def fail(id: Any, code: int, **data: Any) -> None:
    send(id=id, error={"code": code, "message": "refused", **({"data": data} if data else {})})


def said(id: Any, value: Any) -> None:
    done(id, {"content": [{"type": "text", "text": json.dumps(value)}]})


# ---------------------------------------------------------------- asking

ASKS: dict[str, Json] = {
    "ask": {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": FORM}},
    "sample": {"method": "sampling/createMessage", "params": {
        "maxTokens": 9, "messages": [{"role": "user", "content": {"type": "text", "text": "2+2"}}]}},
    "strict": {"method": "sampling/createMessage", "params": {"maxTokens": 9, "messages": [], "tools": []}},
    "roots": {"method": "roots/list"},
    "page": {"method": "elicitation/create",
             "params": {**PAGE, **({} if MODERN else {"elicitationId": "e1"})}},
}  # fmt: skip
waiting: dict[str, Any] = {}
visited: list[str] = []


def ask(id: Any, name: str, params: Json) -> None:
    """The answer is what the client answered."""
    question = ASKS[name]
    if not MODERN:
        waiting[f"{name}-{id}"] = id
        trace = {"traceparent": f"asked by {name}"}
        send(id=f"{name}-{id}", method=question["method"], params={**question.get("params", {}), "_meta": trace})
    elif "inputResponses" in params:
        said(id, {"result": params["inputResponses"]["q"]})
    else:
        send(id=id, result={"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "s"})


def call(id: Any, params: Json) -> None:
    name = params["name"]
    if name in ASKS:
        ask(id, name, params)
    elif name == "meta":
        said(id, params.get("_meta", {}))
    elif name == "page_first" and not visited:
        visited.append(name)
        fail(id, -32042, elicitations=[{**PAGE, "elicitationId": "e2"}])
    elif name == "needs":
        fail(id, -32021, requiredCapabilities={"sampling": {"tools": {}}})
    elif name == "app":
        text = [{"type": "text", "text": "t"}]
        done(id, {"content": text, "_meta": {"ui": {"resourceUri": "ui://app/page"}, "traceparent": "back"}})
    else:
        structured = [1, 2] if MODERN else {"result": [1, 2]}
        done(id, {"content": BLOCKS, **since("2025-06-18", structuredContent=structured)})


# ---------------------------------------------------------------- everything else


def about(params: Json) -> Json:
    capabilities: Json = {
        "tools": {}, "prompts": {}, "resources": {}, "logging": {}, **since("2025-03-26", completions={}),
        "experimental": {"x": {}}, "extensions": {UI: {}, "x.test/unknown": {}},
    }  # fmt: skip
    told = params.get("capabilities", params.get("_meta", {}).get(PREFIX + "clientCapabilities"))
    return {"capabilities": capabilities, "instructions": json.dumps(told)}


def read(id: Any, uri: str) -> None:
    if uri not in ("res:a", "ui://app/page"):
        return fail(id, -32602 if MODERN else -32002, uri=uri)
    extra = since("2025-06-18", _meta={"ui": {"prefersBorder": True}})
    return done(id, {"contents": [{"uri": uri, "text": "a", "mimeType": MIME, **extra}]}, "resources/read")


def request(id: Any, method: str, params: Json) -> None:
    server = {"name": "rich", "version": "1"}
    if method == "server/discover" and MODERN:
        meta = {PREFIX + "serverInfo": server}
        done(id, {**about(params), "supportedVersions": [REVISION], "_meta": meta}, method)
    elif method == "initialize" and not MODERN:
        done(id, {**about(params), "protocolVersion": REVISION, "serverInfo": server})
    elif method in LISTS:
        done(id, LISTS[method], method)
    elif method == "tools/call":
        call(id, params)
    elif method == "prompts/get":
        done(id, {"messages": [{"role": "user", "content": block} for block in BLOCKS]})
    elif method == "resources/read":
        read(id, params["uri"])
    elif method == "completion/complete":
        done(id, {"completion": {"values": ["v"]}})
    elif method in ("ping", "logging/setLevel") and not MODERN:
        done(id, {})
    else:
        fail(id, -32601)


for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message and "error" in message and message["id"].startswith("strict"):
        fail(waiting.pop(message["id"]), -32000)
    elif "method" not in message:
        said(waiting.pop(message["id"]), {key: message[key] for key in ("result", "error") if key in message})
    elif "id" in message:
        request(message["id"], message["method"], message.get("params", {}))
