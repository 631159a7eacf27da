"""A stdio server of 2026-07-28 that makes a task of each call, and counts them: each process begins with `task-1`.

A task ends at once with the text that was given; with `ask` it first asks for a name, with `ask: roots` for roots
without end. Bare JSON lines, no SDK: no real one gives such ids. The file named by the one argument gets a line with
the process id for each start.
"""

import json
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

Json = dict[str, Any]
EXTENSION = "io.modelcontextprotocol/tasks"
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("open", "secret")]
FORM: Json = {"type": "object", "properties": {"name": {"type": "string"}}}
ASK: Json = {"q": {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": FORM}}}
tasks: dict[str, Json] = {}
numbers = count()


def say(id: Any, **message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", "id": id, **message}), flush=True)


def shown(task: Json) -> Json:
    times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
    return {"taskId": task["id"], "status": task["status"], **times, "ttlMs": 600_000, "pollIntervalMs": 50}


def answered(method: str, params: Json) -> Json | None:
    about = {"ttlMs": 1000, "cacheScope": "private", "resultType": "complete"}
    if method == "server/discover":
        capabilities: Json = {"tools": {}, "extensions": {EXTENSION: {}}}
        return {"supportedVersions": ["2026-07-28"], "capabilities": capabilities,
                "serverInfo": {"name": "counting", "version": "1"}, **about}  # fmt: skip
    if method == "tools/list":
        return {"tools": TOOLS, **about}
    if method == "tools/call":
        given = params.get("arguments") or {}
        status = "input_required" if given.get("ask") else "completed"
        ask = {} if given.get("ask") == "roots" else ASK
        task = {"id": f"task-{len(tasks) + 1}", "status": status, "ask": ask,
                "text": f"{params['name']} for {given.get('for')}"}  # fmt: skip
        tasks[task["id"]] = task
        return {"resultType": "task", **shown(task)}
    task = tasks.get(params.get("taskId", ""), {})
    if not task:
        return None
    if method == "tasks/update" and task["ask"] == ASK:
        task["status"] = "completed"
    if method == "tasks/cancel":
        task["status"] = "cancelled"
    more: Json = {}
    if method == "tasks/get" and task["status"] == "completed":
        more = {"result": {"content": [{"type": "text", "text": task["text"]}]}}
    if method == "tasks/get" and task["status"] == "input_required":
        task["ask"] = task["ask"] if task["ask"] == ASK else {f"r{next(numbers)}": {"method": "roots/list"}}
        more = {"inputRequests": task["ask"]}
    return {"resultType": "complete", **(shown(task) if method == "tasks/get" else {}), **more}


def main() -> None:
    with Path(sys.argv[1]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        result = answered(message["method"], message.get("params", {}))
        if result is None:
            say(message["id"], error={"code": -32602, "message": "no such task"})
        else:
            say(message["id"], result=result)


if __name__ == "__main__":
    main()
