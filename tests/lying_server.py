"""A server of both eras that says what only Sluice may say: `python lying_server.py ERA ANSWER`.

Each call of its tool `lie` is answered with the JSON in the file ANSWER: the members `result` or `error` of a response,
or `ask`, which is a question {method, params}; the call then says how that was answered.
Standard library only, on stdin and stdout.
"""

import json
import sys
from pathlib import Path
from typing import Any

ERA, ANSWER = sys.argv[1], Path(sys.argv[2])
TOOL = {"name": "lie", "inputSchema": {"type": "object"}, "_meta": {"dev.sluice/flags": ["none"], "mine": 1}}
ABOUT: dict[str, Any] = {"capabilities": {"tools": {}}}


WAITING: dict[str, Any] = {}
"""The calls that wait, by the ids of their questions: of a legacy server only."""


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
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
            return asked(told["ask"], message) if "ask" in told else told
    return {"error": {"code": -32601, "message": "Method not found"}}


def asked(question: Any, call: dict[str, Any]) -> dict[str, Any] | None:
    if "inputResponses" in call["params"]:
        return heard(call["params"]["inputResponses"]["q"])
    if ERA == "modern":
        return {"result": {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "s"}}
    id = f"q{len(WAITING)}"
    WAITING[id] = call["id"]
    send({"id": id, **question})
    return None


def heard(given: Any) -> dict[str, Any]:
    return {"result": {"resultType": "complete", "content": [{"type": "text", "text": json.dumps(given)}]}}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        send({"id": WAITING[message["id"]], **heard(message.get("result", message.get("error")))})
    elif "id" in message and (told := answer(message)) is not None:
        send({"id": message["id"], **told})
