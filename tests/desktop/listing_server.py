"""A server on stdio that lists tools with names and annotations, and does nothing else.

With an argument it does something else: `endless FILE` lists page after page and writes how many into the file, `stay
FILE` writes its process id there and never ends by itself, and JSON is its answer to `tools/list`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

TOOLS = {"get_issue": {}, "create_issue": {}, "whoami": {"readOnlyHint": True}, "delete_repo": {"readOnlyHint": True}}


def tool(name: str, about: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": about}


def listed(page: int) -> Any:
    if sys.argv[1:2] == ["endless"]:
        Path(sys.argv[2]).write_text(str(page))
        return {"tools": [tool(f"get_{page}_{number}", {}) for number in range(1000)], "nextCursor": str(page)}
    return json.loads(sys.argv[1]) if sys.argv[1:] else {"tools": [tool(*one) for one in TOOLS.items()]}


def main() -> None:
    if sys.argv[1:2] == ["stay"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(sys.argv[2]).write_text(str(os.getpid()))
        while True:
            time.sleep(60)
    page = 0
    info = {"name": "n", "version": "1"}
    for line in sys.stdin:
        message = json.loads(line)
        answer: dict[str, object] = {"error": {"code": -32601, "message": "no"}}
        if message["method"] == "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            answer = {"result": result}
        elif message["method"] == "tools/list":
            page += 1
            answer = {"result": listed(page)}
        if "id" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)


if __name__ == "__main__":
    main()
