"""A server on stdio with one tool, the same for all: `lists_for_all.py modern|legacy WALKS`. Each list that it is asked
for is one byte more in the file WALKS."""

import json
import sys
from pathlib import Path

MODERN = sys.argv[1] == "modern"
TOOLS = [{"name": "one", "inputSchema": {"type": "object"}}]
MORE = {"resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "private"} if MODERN else {}
HELLO = {"supportedVersions": ["2026-07-28"]} if MODERN else {"protocolVersion": "2025-11-25"}
ABOUT = {"capabilities": {"tools": {}}, "serverInfo": {"name": "one", "version": "1"}}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or message["method"] == "subscriptions/listen":
        continue
    answer: dict[str, object] = {"error": {"code": -32601, "message": "Method not found"}}
    if message["method"] == ("server/discover" if MODERN else "initialize"):
        answer = {"result": {**HELLO, **ABOUT, **MORE}}
    if message["method"] == "tools/list":
        with Path(sys.argv[2]).open("a") as walks:
            walks.write("x")
        answer = {"result": {"tools": TOOLS, **MORE}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
    sys.stdout.flush()
