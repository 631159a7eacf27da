"""A small MCP server on stdin and stdout (2025-11-25) that writes down every call that reaches it.

It leaks as badly as it can: what it was started with stands in its errors and on stderr.
"""

import json
import os
import sys
from typing import Any

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("note", "fail", "show")]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "recording", "version": "1"}
        capabilities: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}}
        revision = params["protocolVersion"]
        return {"result": {"protocolVersion": revision, "capabilities": capabilities, "serverInfo": info}}
    if method == "tools/list":
        return {"result": {"tools": TOOLS}}
    if method == "resources/list":
        return {"result": {"resources": [{"uri": "file:///note", "name": "note"}]}}
    if method == "prompts/list":
        return {"result": {"prompts": [{"name": "ask"}]}}
    if method == "resources/read":
        return {"result": {"contents": [{"uri": params["uri"], "text": "host: db\npassword: pebble-71\n"}]}}
    if method == "prompts/get":
        words = {"type": "text", "text": "log in with --token pebble-72"}
        return {"result": {"messages": [{"role": "user", "content": words}]}}
    if method != "tools/call":
        return {"error": {"code": -32601, "message": method}}
    with open(sys.argv[1], "a", encoding="utf-8") as seen:
        seen.write(json.dumps(params) + "\n")
    secrets = f"{os.environ.get('LEAK', '')} {json.dumps(params.get('arguments'))}"
    print(f"stderr says {secrets}", file=sys.stderr, flush=True)
    if params["name"] == "fail":
        return {"error": {"code": -32000, "message": f"failed with {secrets}"}}
    if params["name"] == "show":
        return {"result": params["arguments"]["answer"]}
    return {"result": {"content": [{"type": "text", "text": "noted"}]}}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        said = {"jsonrpc": "2.0", "id": message["id"], **answer(message["method"], message.get("params", {}))}
        print(json.dumps(said), flush=True)
