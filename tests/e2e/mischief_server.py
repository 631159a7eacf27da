"""A server on stdio that asks, and misbehaves where it is told to: `mischief_server.py legacy|modern SEEN`.

Tools: `form` asks for a name, or what it is told to; `plain` answers at once; `aside` asks after its call has ended;
`flood` sends thousands of notifications; `same_id` asks with the same id each time; `stutter` answers thrice. What all
processes of it were sent stands in the file SEEN, a line each. Raw JSON lines.
"""

import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]
ERA, SEEN = sys.argv[1], Path(sys.argv[2])
FORM: Json = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ASK: Json = {"method": "elicitation/create", "params": {"mode": "form", "message": "Name?", "requestedSchema": FORM}}
NAMES = ("form", "plain", "aside", "flood", "same_id", "stutter")
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
FLOOD = 3000

waiting: dict[Any, Json] = {}  # the id of a question -> the call that asks


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def note(words: str) -> None:
    with SEEN.open("a") as file:
        file.write(f"{words}\n")


def done(id: Any, text: str) -> None:
    more = {"resultType": "complete"} if ERA == "modern" else {}
    send(id=id, result={"content": [{"type": "text", "text": text}], **more})


def about(id: Any) -> None:
    info, capabilities = {"name": "mischief", "version": "1"}, {"tools": {}, "logging": {}}
    if ERA == "legacy":
        send(id=id, result={"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info})
    else:
        found = {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, "ttlMs": 0, "cacheScope": "private"}
        send(id=id, result={"resultType": "complete", **found})


def listed(id: Any) -> None:
    more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if ERA == "modern" else {}
    send(id=id, result={"tools": TOOLS, **more})


# ---------------------------------------------------------------- calls


def form(id: Any, params: Json) -> None:
    if ERA == "legacy":
        waiting[f"question {id}"] = {"id": id}
        send(id=f"question {id}", **question(params))
        return
    answer = (params.get("inputResponses") or {}).get("who")
    if answer is None:
        asked = {"inputRequests": {"who": question(params)}, "requestState": ""}
        send(id=id, result={"resultType": "input_required", **asked})
    else:
        done(id, said(answer))


def question(params: Json) -> Json:
    message = params["arguments"].get("message", "Name?")
    return {**ASK, "params": {**ASK["params"], "message": message}}


def said(answer: Json) -> str:
    """The name; of more that was filled in, all."""
    content = answer.get("content") or {}
    return str(content["name"]) if "name" in content else json.dumps(content or answer.get("action", "nobody"))


def same_id(id: Any, params: Json) -> None:
    waiting[7] = {"id": id, "who": params["arguments"]["who"]}
    send(id=7, **ASK)


def flood(id: Any, params: Json) -> None:
    for count in range(FLOOD):
        send(method="notifications/message", params={"level": "error", "data": count})
        send(method="notifications/tools/list_changed")
        send(method="notifications/nonsense", params={"count": count})
    done(id, "flooded")


def aside(id: Any, params: Json) -> None:
    done(id, "begun")
    waiting["aside"] = {}
    send(id="aside", **ASK)


def stutter(id: Any, params: Json) -> None:
    send(id=99999, result={"content": [{"type": "text", "text": "unasked"}]})
    for text in ("first", "second", "third"):
        done(id, text)


def plain(id: Any, params: Json) -> None:
    done(id, "plain")


def call(id: Any, params: Json) -> None:
    note(f"{'retry' if 'inputResponses' in params else 'call'} {params['name']}")
    tools = {"form": form, "plain": plain, "same_id": same_id, "flood": flood, "aside": aside, "stutter": stutter}
    tools[params["name"]](id, params)


def answered(message: Json) -> None:
    asked = waiting.pop(message["id"], None)
    name = said(message.get("result", {}))
    note(f"answer {'aside' if asked == {} else ''} {name}")
    if asked:
        done(asked["id"], f"{asked['who']} is {name}" if "who" in asked else name)


def request(message: Json) -> None:
    id, method, params = message["id"], message["method"], message.get("params", {})
    if method == ("initialize" if ERA == "legacy" else "server/discover"):
        about(id)
    elif method == "tools/list":
        listed(id)
    elif method == "tools/call":
        call(id, params)
    elif method in ("ping", "logging/setLevel"):
        send(id=id, result={})
    elif method != "subscriptions/listen":
        send(id=id, error={"code": -32601, "message": "Method not found"})


for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        answered(message)
    elif "id" in message:
        request(message)
