"""A legacy MCP server on stdin and stdout that writes down every request it gets. Standard library only.

    python recording_server.py FOLDER

FOLDER/catalog.json says what it lists: {"tools": [..], "prompts": [..], "resources": [..], "templates": [..]}, names
and URIs, or whole definitions of tools and prompts; "broken" names tools that answer with an error, "silent" those that
never do. "results" has results of tools by name. With "subscribes" one can subscribe to resources.
FOLDER/seen.jsonl gets one line for each request: what is not in there did not reach the server. A tool call writes its
argument "stderr" to stderr.
"""

import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def main(folder: Path) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        with (folder / "seen.jsonl").open("a") as seen:
            seen.write(line)
        if message["method"] == "tools/call":
            sys.stderr.write(str(message["params"].get("arguments", {}).get("stderr", "")))
            sys.stderr.flush()
            if message["params"]["name"] in silent(folder):
                continue
        answer = {"jsonrpc": "2.0", "id": message["id"], **respond(message, folder)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def silent(folder: Path) -> list[str]:
    found: list[str] = json.loads((folder / "catalog.json").read_text()).get("silent", [])
    return found


def respond(message: Json, folder: Path) -> Json:
    catalog: Json = json.loads((folder / "catalog.json").read_text())
    params = message.get("params", {})
    match message["method"]:
        case "initialize":
            every: Json = {"listChanged": True}
            resources = every | ({"subscribe": True} if "subscribes" in catalog else {})
            capabilities = {"tools": every, "prompts": every, "resources": resources, "completions": {}}
            info = {"name": "recorder", "version": "1"}
            version = params["protocolVersion"]
            result: Json = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
        case "tools/list":
            schema = {"type": "object"}
            tools = catalog.get("tools", [])
            whole = [tool if isinstance(tool, dict) else {"name": tool} for tool in tools]
            result = {"tools": [{"inputSchema": schema} | tool for tool in whole]}
        case "prompts/list":
            prompts = catalog.get("prompts", [])
            result = {"prompts": [one if isinstance(one, dict) else {"name": one} for one in prompts]}
        case "resources/list":
            result = {"resources": [{"uri": uri, "name": uri} for uri in catalog.get("resources", [])]}
        case "resources/templates/list":
            templates = catalog.get("templates", [])
            result = {"resourceTemplates": [{"uriTemplate": uri, "name": uri} for uri in templates]}
        case "tools/call" if params["name"] in catalog.get("broken", []):
            return {"error": {"code": -32000, "message": "broken"}}
        case "tools/call":
            ran = {"content": [{"type": "text", "text": f"ran {params['name']}"}]}
            result = catalog.get("results", {}).get(params["name"], ran)
        case "prompts/get":
            result = {"messages": []}
        case "resources/read":
            result = {"contents": [{"uri": params["uri"], "text": "secret"}]}
        case "completion/complete":
            result = {"completion": {"values": ["secret"]}}
        case "ping" | "resources/subscribe":
            result = {}
        case _:
            return {"error": {"code": -32601, "message": "Method not found"}}
    return {"result": result}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
