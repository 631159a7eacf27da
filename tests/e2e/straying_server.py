"""An MCP server that starts a process which leaves it: forked twice, in a session of its own.

Arguments: a file that gets a line for each start, `SERVER STRAY`, and what the stray is like: `plain`, `stubborn`
(blocks SIGTERM, so that it stays pending), `bare` (with an empty environment), `short` (ends at once), `linked` (its
parent lives on).
"""

import json
import os
import signal
import sys
from typing import Any

FILE, KIND = sys.argv[1:3]


def stray(number: int) -> None:
    os.setsid()
    if KIND != "linked" and os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for one in (0, 1, 2):
        os.dup2(nothing, one)
    os.write(number, str(os.getpid()).encode())
    os.close(number)
    if KIND == "stubborn":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    environment = {} if KIND in ("bare", "linked") else dict(os.environ)
    os.execve("/bin/sleep", ["sleep", "0" if KIND == "short" else "600"], environment)


def start_stray() -> int:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        stray(writer)
    os.close(writer)
    if KIND != "linked":
        os.waitpid(child, 0)
    with open(reader, "rb") as told:
        return int(told.read())


with open(FILE, "a") as starts:
    starts.write(f"{os.getpid()} {start_stray()}\n")


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "straying", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    return {"tools": []}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
