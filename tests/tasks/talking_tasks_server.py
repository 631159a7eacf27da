"""A stdio server of 2025-11-25 that writes `SECRET` into the message of its task, and tells of it after each look.

Bare JSON lines, no SDK: its tests choose what it says.
"""

import json
import sys
from typing import Any

Json = dict[str, Any]
TIMES: Json = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
TASK: Json = {"taskId": "k1", "status": "working", **TIMES, "ttl": 600_000, "pollInterval": 20} | {
    "statusMessage": "SECRET"
}
TASKS: Json = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
TOOL: Json = {"name": "t", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}}
ANSWERS: dict[str, Json] = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "tasks": TASKS},
                   "serverInfo": {"name": "talking", "version": "1"}},
    "tools/list": {"tools": [TOOL]},
    "tools/call": {"task": TASK},
    "tasks/get": TASK,
}  # fmt: skip


def say(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked and "method" in asked:
            say(id=asked["id"], result=ANSWERS.get(asked["method"], {}))
        if asked.get("method") == "tasks/get":
            say(method="notifications/tasks/status", params=TASK)
