"""A legacy stdio server of which a test says what it lists and when it speaks. Run as a child process.

`late_server.py FOLDER NAME [SECONDS]`: its tools are the words in FOLDER/NAME.tools, one of its own name without that
file; with FOLDER/NAME.resources it has those that stand there. It answers its first message after SECONDS, and not
while there is FOLDER/NAME.shut.
"""

import json
import sys
import time
from pathlib import Path

folder, name = Path(sys.argv[1]), sys.argv[2]
time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0)
while (folder / f"{name}.shut").exists():
    time.sleep(0.02)


def tools() -> list[dict[str, object]]:
    """`word=text` is a tool with that description."""
    file = folder / f"{name}.tools"
    words = file.read_text().split() if file.exists() else [name]
    pairs = [word.partition("=") for word in words]
    return [{"name": own, "description": text, "inputSchema": {"type": "object"}} for own, _, text in pairs]


def answer(message: dict) -> dict[str, object]:
    resources = folder / f"{name}.resources"
    match message["method"]:
        case "initialize":
            about = {"name": name, "version": "1"}
            has = {"tools": {}} | ({"resources": {}} if resources.exists() else {})
            return {"result": {"protocolVersion": "2025-11-25", "capabilities": has, "serverInfo": about}}
        case "resources/list" if resources.exists():
            return {"result": {"resources": [{"uri": uri, "name": uri} for uri in resources.read_text().split()]}}
        case "ping":
            return {"result": {}}
        case "tools/list":
            return {"result": {"tools": tools()}}
        case "tools/call" if message["params"]["name"] == "exit":
            sys.exit(1)
        case "tools/call":
            return {"result": {"content": [{"type": "text", "text": message["params"]["name"]}]}}
    return {"error": {"code": -32601, "message": "Method not found"}}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer(message)}), flush=True)
