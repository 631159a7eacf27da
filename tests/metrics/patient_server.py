"""A legacy MCP server on stdin and stdout whose calls are open at the same time. Standard library only.

    python patient_server.py FOLDER [stubborn]

`count` writes its argument `n` down in FOLDER/counted and answers at once; `wait` answers when FOLDER/go is there.
It has a child of its own; a stubborn one, and its child, neither leave when their input ends nor at SIGTERM.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]
_WRITING = threading.Lock()
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("count", "wait")]


def main(folder: Path, is_stubborn: bool) -> None:
    if is_stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # children inherit that
    subprocess.Popen(["sleep", "120"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    with (folder / "counted").open("a", buffering=1) as counted:
        for line in sys.stdin:
            message = json.loads(line)
            if "id" in message:
                threading.Thread(target=serve, args=(message, folder, counted), daemon=True).start()
        if is_stubborn:
            time.sleep(120)


def serve(message: Json, folder: Path, counted: Any) -> None:
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": result_of(message, folder, counted)}
    with _WRITING:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def result_of(message: Json, folder: Path, counted: Any) -> Json:
    params = message.get("params", {})
    match message["method"]:
        case "initialize":
            info = {"name": "patient", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call" if params["name"] == "count":
            counted.write(f"{params['arguments']['n']}\n")
        case "tools/call":
            (folder / f"waiting-{params['arguments']['n']}").touch()
            while not (folder / "go").exists():
                time.sleep(0.02)
    return {"content": [{"type": "text", "text": "done"}]}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["stubborn"])
