"""A small client with Sluice behind it: `client.py URL`, as the conformance suite starts what it tests as a client.

Starts `sluice stdio` in transparent mode with URL as its only server and uses, in the era that the suite wants, all
that it finds there. What is judged is what reaches the suite's server, and that is Sluice's doing. Knows no code of it.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
MODERN = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
REVISION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", MODERN)
SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "tools_call")
CONTEXT: Json = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
ABOUT = {"name": "conformance-client", "version": "1.0.0"}
CAPABILITIES: Json = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
SAMPLED: Json = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "4"}}

# What their descriptions ask for; all other tools are called without arguments.
ARGUMENTS: dict[str, Json] = {
    "add_numbers": {"a": 2, "b": 3},
    "valid_tool": {"region": "us-east-1", "query": "q"},
}
# Whose mock server has nothing but a list, and the one of `initialize` not even that.
LISTED_ONLY = {"json-schema-ref-no-deref"}
# These judge every request to a server of 2026-07-28. Sluice also shakes hands with one, once, to learn whether legacy
# clients can be served in their own era, unless its operator says that the server speaks the modern one alone.
KNOWN_MODERN = {"request-metadata", "http-standard-headers"}


def answer(method: str, params: Json) -> Json:
    """What a user would say who takes every default."""
    if method == "sampling/createMessage":
        return SAMPLED
    if method == "roots/list":
        return {"roots": []}
    fields: Json = params.get("requestedSchema", {}).get("properties", {})
    chosen = {name: field["default"] for name, field in fields.items() if "default" in field}
    missing = {name: True for name, field in fields.items() if field.get("type") == "boolean" and name not in chosen}
    return {"action": "accept", "content": chosen | missing}


class Client:
    def __init__(self, folder: Path, url: str) -> None:
        era = "modern" if SCENARIO in KNOWN_MODERN else "auto"
        config = {
            "version": 1, "servers": {"mock": {"url": url, "prefix": "", "unlisted": "forward", "era": era}},
            "policy": {"use": "open"}, "audit": {"enabled": False}, "state": {"dir": str(folder / "state")},
        }  # fmt: skip
        (folder / "sluice.yaml").write_text(json.dumps(config))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sluicegate", "stdio", "-c", str(folder / "sluice.yaml")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        self._count = 0

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _write(self, message: Json) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()

    def request(self, method: str, **params: Any) -> Json:
        """The result; what is asked meanwhile is answered."""
        self._count += 1
        if REVISION == MODERN:
            params["_meta"] = {
                PREFIX + "protocolVersion": MODERN, PREFIX + "clientInfo": ABOUT,
                PREFIX + "clientCapabilities": CAPABILITIES,
            }  # fmt: skip
        self._write({"id": self._count, "method": method, "params": params})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "method" in message and "id" in message:
                self._write({"id": message["id"], "result": answer(message["method"], message.get("params", {}))})
            elif message.get("id") == self._count:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return dict(message["result"])
        raise RuntimeError(f"{method}: Sluice has ended")

    def open(self) -> None:
        if REVISION != MODERN:
            self.request("initialize", protocolVersion=REVISION, clientInfo=ABOUT, capabilities=CAPABILITIES)
            self._write({"method": "notifications/initialized"})

    def call(self, name: str, arguments: Json | None = None) -> Json:
        params: Json = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
        return self.rounds("tools/call", params)

    def rounds(self, method: str, params: Json) -> Json:
        result = self.request(method, **params)
        while result.get("resultType") == "input_required":
            asked = result.get("inputRequests", {})
            said = {key: answer(ask["method"], ask.get("params", {})) for key, ask in asked.items()}
            state = {"requestState": result["requestState"]} if "requestState" in result else {}
            result = self.request(method, **params, inputResponses=said, **state)
        return result

    def use(self) -> None:
        """All that is there."""
        if SCENARIO == "initialize":
            return
        if REVISION == MODERN and "tools" not in self.request("server/discover")["capabilities"]:
            return
        tools = self.request("tools/list")["tools"]
        if SCENARIO in LISTED_ONLY:
            return
        named = {tool["name"]: tool for tool in tools}
        if "json_schema_echo" in named:
            schema = named["json_schema_2020_12_tool"]["inputSchema"]
            self.call("json_schema_echo", {"schema": schema})
            return
        wanted = CONTEXT.get("toolCalls") or [{"name": name, "arguments": ARGUMENTS.get(name, {})} for name in named]
        for call in wanted:
            self.call(call["name"], call.get("arguments", {}))
        if SCENARIO == "http-standard-headers":
            for prompt in self.request("prompts/list")["prompts"]:
                self.rounds("prompts/get", {"name": prompt["name"]})
            for resource in self.request("resources/list")["resources"]:
                self.rounds("resources/read", {"uri": resource["uri"]})


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        client = Client(Path(folder), sys.argv[-1])
        try:
            client.open()
            client.use()
        finally:
            client.close()


if __name__ == "__main__":
    main()
