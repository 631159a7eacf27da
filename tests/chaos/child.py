"""A legacy MCP server on stdin and stdout that misbehaves as a file tells it to, in each of its phases.

    python tests/chaos/child.py FOLDER

FOLDER/mode has the word; FOLDER/pid gets the process, FOLDER/seen `arguments.n` of each call, before it is answered.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

BIG = "x" * 256 * 1024
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("note", "big")]
LINE = "what a server says when it says too much " * 25 + "\n"


def mode() -> str:
    return (folder / "mode").read_text()


def hang(word: str) -> None:
    while mode() == word:
        time.sleep(0.05)


def flood() -> None:
    while mode() == "floods stderr":
        sys.stderr.write(LINE)


def leave_grandchild() -> None:
    """A daemon that keeps our pipes open, out of our process group, which the end of this process leaves behind."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            (folder / "grandchild").write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    os.wait()
    os._exit(0)


def eat() -> None:
    """In a group whose memory is bounded; should nobody end it, it takes no more than that."""
    (Path((folder / "group").read_text()) / "cgroup.procs").write_text(str(os.getpid()))
    eaten = [os.urandom(1 << 20) for _ in range(256)]
    eaten.clear()


def called(params: dict[str, Any]) -> dict[str, Any]:
    os.write(seen, f"{params['arguments']['n']}\n".encode())
    match mode():
        case "exits with 0":
            os._exit(0)
        case "exits with 1":
            os._exit(1)
        case "leaves a grandchild":
            leave_grandchild()
        case "eats":
            eat()
        case "floods stderr" if threading.active_count() == 1:
            threading.Thread(target=flood, daemon=True).start()
    hang("stops writing")
    return {"content": [{"type": "text", "text": BIG if params["name"] == "big" else "noted"}]}


def answer(message: dict[str, Any]) -> dict[str, Any]:
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        hang("hangs at start")
        revision, info = params["protocolVersion"], {"name": "child", "version": "1"}
        return {"result": {"protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": info}}
    if method == "tools/list":
        hang("hangs in a list")
        return {"result": {"tools": TOOLS}}
    if method == "tools/call":
        return {"result": called(params)}
    return {"result": {}} if method == "ping" else {"error": {"code": -32601, "message": method}}


folder = Path(sys.argv[1])
seen = os.open(folder / "seen", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
(folder / "pid").write_text(str(os.getpid()))
if mode() == "ignores its end":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while line := sys.stdin.readline():
    hang("stops reading")
    asked = json.loads(line)
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer(asked)}), flush=True)
while mode() == "ignores its end":
    time.sleep(0.05)
