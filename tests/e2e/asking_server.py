"""A legacy server on stdio that asks its client: for roots right after the handshake and when they changed, for a
name in a tool. What it was told is the answer of its tool `told`. Raw JSON lines, so that nothing is asked unseen."""

import json
import sys
from typing import Any

Json = dict[str, Any]
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("name", "model", "told")]

calls: dict[Any, Any] = {}  # id of a question -> id of the call that asks
told: list[Json] = []


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def ask(method: str, call: Any = None, **params: Any) -> None:
    id = f"question {len(calls)}"
    calls[id] = call
    send(id=id, method=method, params=params)


def request(id: Any, method: str, params: Json) -> None:
    if method == "initialize":
        about = {"name": "asking", "version": "1"}
        capabilities = {"tools": {}, "logging": {}}
        send(id=id, result={"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": about})
        told.append(params["capabilities"])
    elif method == "tools/list":
        send(id=id, result={"tools": TOOLS})
    elif method == "tools/call" and params["name"] == "name":
        ask("elicitation/create", id, message="Who are you?", requestedSchema=FORM)
    elif method == "tools/call" and params["name"] == "model":
        ask("sampling/createMessage", id, maxTokens=5, messages=[])
    elif method == "tools/call":
        send(id=id, result={"content": [{"type": "text", "text": json.dumps(told)}]})
    elif method in ("ping", "logging/setLevel"):
        send(id=id, result={})
    else:
        send(id=id, error={"code": -32601, "message": "Method not found"})


def notice(method: str, params: Json) -> None:
    if method in ("notifications/initialized", "notifications/roots/list_changed"):
        ask("roots/list")
    elif method == "notifications/cancelled":
        told.append({"cancelled": True})


def answer(id: Any, message: Json) -> None:
    call = calls.get(id)
    heard = {key: message[key] for key in ("result", "error") if key in message}
    if call is None:
        told.append(heard)
        send(method="notifications/message", params={"level": "error", "data": "thank you"})
    elif heard != {"result": {"action": "cancel"}}:  # then it waits for the call's own end
        send(id=call, result={"content": [{"type": "text", "text": json.dumps(heard)}]})


for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        answer(message["id"], message)
    elif "id" in message:
        request(message["id"], message["method"], message.get("params", {}))
    else:
        notice(message["method"], message.get("params", {}))
