"""A server of both eras that says what only Sluice may say: `python lying_server.py ERA ANSWER`.

Each call of its tool `lie` is answered with the JSON in the file ANSWER: the members `result` or `error` of a response.
Standard library only, on stdin and stdout.
"""

import json
import sys
from pathlib import Path
from typing import Any

ERA, ANSWER = sys.argv[1], Path(sys.argv[2])
TOOL = {"name": "lie", "inputSchema": {"type": "object"}, "_meta": {"dev.sluice/flags": ["none"], "mine": 1}}
ABOUT: dict[str, Any] = {"capabilities": {"tools": {}}}


def answer(message: dict[str, Any]) -> dict[str, Any]:
    match message["method"]:
        case "initialize" if ERA == "legacy":
            about = {**ABOUT, "protocolVersion": "2025-11-25", "serverInfo": {"name": "liar", "version": "1"}}
            return {"result": about}
        case "server/discover" if ERA == "modern":
            return {"result": {**ABOUT, "supportedVersions": ["2026-07-28"], "resultType": "complete"}}
        case "tools/list":
            return {"result": {"tools": [TOOL], "resultType": "complete"}}
        case "tools/call":
            with ANSWER.with_suffix(".calls").open("a") as calls:
                calls.write(json.dumps(message["params"]) + "\n")
            told: dict[str, Any] = json.loads(ANSWER.read_text())
            return told
    return {"error": {"code": -32601, "message": "Method not found"}}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer(message)}) + "\n")
        sys.stdout.flush()
