"""A legacy MCP server on stdin and stdout: `say` answers with its argument and notes it in FOLDER/said, `whom` asks
whoever called for a name and answers with what it was told. Standard library only."""

import json
import sys
from pathlib import Path
from typing import Any

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("say", "whom")]

asked: dict[Any, Any] = {}  # id of a question -> id of the call that asks


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(id: Any, said: str) -> None:
    send(id=id, result={"content": [{"type": "text", "text": said}]})


def request(id: Any, method: str, params: dict[str, Any], said: Any) -> None:
    if method == "initialize":
        info = {"name": "echo", "version": "1"}
        send(id=id, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        send(id=id, result={"tools": TOOLS})
    elif method == "tools/call" and params["name"] == "say":
        said.write(f"{params['arguments']['text']}\n")
        text(id, params["arguments"]["text"])
    elif method == "tools/call":
        question = f"question {len(asked)}"
        asked[question] = id
        send(id=question, method="elicitation/create", params={"message": "Who?", "requestedSchema": FORM})
    else:
        send(id=id, error={"code": -32601, "message": "Method not found"})


def main(folder: Path) -> None:
    with (folder / "said").open("a", buffering=1) as said:
        for line in sys.stdin:
            message = json.loads(line)
            if "method" not in message:
                text(asked.pop(message["id"]), json.dumps(message.get("result")))
            elif "id" in message:
                request(message["id"], message["method"], message.get("params", {}), said)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
