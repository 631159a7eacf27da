"""A legacy stdio server whose tools ask their client. Run as a child process by the tests.

A tool is a generator: it yields what it asks in one breath and is sent the answers; what it returns is the result.
"""

import json
import os
import sys
from collections.abc import Generator
from typing import Any

MODES = set(sys.argv[1:])
Asks = list[tuple[str, dict]]
Tool = Generator[Asks, list[Any], Any]
seen: list[dict] = []
waiting: dict[object, "Running"] = {}
declared: dict = {}
silent: list[int] = []
tokens: list[object] = []
count = 0

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
FORM_ASK = ("elicitation/create", {"message": "Who are you?", "requestedSchema": FORM})
URL_ASK = (
    "elicitation/create", {"mode": "url", "message": "Go there", "url": "https://x.test/", "elicitationId": "e1"}
)  # fmt: skip
TOOLS_ASK = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5, "tools": []}


def send(**message: object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


class Running:
    def __init__(self, id: int, tool: Tool) -> None:
        self.id, self.tool = id, tool
        self.asked: list[object] = []
        self.answers: dict[object, Any] = {}

    def go_on(self, answers: list[Any] | None = None) -> None:
        global count
        try:
            asks = self.tool.send(answers) if answers is not None else next(self.tool)
        except StopIteration as end:
            value = {"content": [{"type": "text", "text": json.dumps(end.value)}]}
            whole = end.value if isinstance(end.value, dict) else {}
            if "task" in whole:
                whole = {"result": whole}
            send(id=self.id, **(whole if whole.keys() & {"error", "result"} else {"result": value}))
            return
        self.asked, self.answers = [], {}
        for method, params in asks:
            count += 1
            ask_id: object = "same" if "same-ids" in MODES else f"s{count}"
            self.asked.append(ask_id)
            waiting[ask_id] = self
            send(id=ask_id, method=method, params=params)

    def take(self, id: object, answer: Any) -> None:
        del waiting[id]
        self.answers[id] = answer
        if len(self.answers) == len(self.asked):
            self.go_on([self.answers[id] for id in self.asked])


def name(arguments: dict, meta: dict) -> Tool:
    (answer,) = yield [FORM_ASK]
    return answer


def greet(arguments: dict, meta: dict) -> Tool:
    message = f"Who is {arguments['who']}?"
    (answer,) = yield [("elicitation/create", {"message": message, "requestedSchema": FORM})]
    return [arguments["who"], answer]


def url(arguments: dict, meta: dict) -> Tool:
    (answer,) = yield [URL_ASK]
    return answer


def sample(arguments: dict, meta: dict) -> Tool:
    (answer,) = yield [("sampling/createMessage", {**TOOLS_ASK, "task": {"ttl": 1}, "_meta": {"progressToken": 4}})]
    return answer


def roots(arguments: dict, meta: dict) -> Tool:
    (answer,) = yield [("roots/list", {})]
    return answer


def three(arguments: dict, meta: dict) -> Tool:
    return (yield [FORM_ASK, ("roots/list", {}), FORM_ASK])


def rounds(arguments: dict, meta: dict) -> Tool:
    answers = []
    for number in range(arguments["count"]):
        send(method="notifications/progress", params={"progressToken": meta.get("progressToken"), "progress": number})
        answers += yield [FORM_ASK]
    return answers


def stubborn(arguments: dict, meta: dict) -> Tool:
    yield [FORM_ASK, ("roots/list", {})]
    yield []  # and then nothing, whatever was answered


def dies(arguments: dict, meta: dict) -> Tool:
    yield [FORM_ASK, ("ping", {})]  # our answer to the ping is its end
    return None


def floods(arguments: dict, meta: dict) -> Tool:
    return (yield [FORM_ASK] * 100)


def pesters(arguments: dict, meta: dict) -> Tool:
    answers: list[Any] = []
    while {"action": "cancel"} not in answers:
        answers = yield [FORM_ASK] * 32
    return answers


def unknown(arguments: dict, meta: dict) -> Tool:
    return (yield [("tasks/list", {}), ("elicitation/create", {"message": 5}), URL_ASK])


def takes_back(arguments: dict, meta: dict) -> Tool:
    send(id="back", method="elicitation/create", params=FORM_ASK[1])
    send(method="notifications/cancelled", params={"requestId": "back"})
    return "done"
    yield []


def hurries(arguments: dict, meta: dict) -> Tool:
    """Asks, and does not wait for the answer once somebody else calls `late`."""
    yield [FORM_ASK]
    return "answered"


def late(arguments: dict, meta: dict) -> Tool:
    for running in set(waiting.values()):
        send(id=running.id, result={"content": [{"type": "text", "text": '"without you"'}]})
    return "done"
    yield []


def quiet(arguments: dict, meta: dict) -> Tool:
    """Is answered when somebody calls `cuts_in`."""
    silent.append(seen[-1]["id"])
    yield []


def cuts_in(arguments: dict, meta: dict) -> Tool:
    """Answers the quiet call and asks, both in one breath."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": silent.pop(), "result": {"content": []}}) + "\n")
    (answer,) = yield [FORM_ASK]
    return answer


def later(arguments: dict, meta: dict) -> Tool:
    """Is a task, which goes on when somebody calls `works`."""
    tokens.append(meta["progressToken"])
    times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
    return {"task": {"taskId": "t1", "status": "working", "ttl": 60000, **times}}
    yield []


def works(arguments: dict, meta: dict) -> Tool:
    for number in (1, 1, 2):
        send(method="notifications/progress", params={"progressToken": tokens[-1], "progress": number})
    return "done"
    yield []


def pages(arguments: dict, meta: dict) -> Tool:
    if not any(m.get("method") == "tools/call" and m["params"]["name"] == "pages" for m in seen[:-1]):
        return {"error": {"code": -32042, "message": "log in first", "data": {"elicitations": [URL_ASK[1]]}}}
    return "paid"
    yield []


def report(arguments: dict, meta: dict) -> Tool:
    return {"seen": seen, "declared": declared, "pid": os.getpid()}
    yield []


def serve(message: dict) -> None:
    global declared
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method is None:
        if id in waiting:
            waiting[id].take(id, message.get("result", message.get("error")))
            if message.get("result") == {}:
                sys.exit(3)
    elif method == "initialize":
        declared = params["capabilities"]
        capabilities: dict = {"tools": {"listChanged": True}}
        if "tasks" in MODES:
            capabilities["tasks"] = {"requests": {"tools": {"call": {}}}}
        send(id=id, result={"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {"name": "a"}})
    elif method in ("notifications/initialized", "notifications/roots/list_changed"):
        if "asks-roots" in MODES and "roots" in declared:
            send(id=f"r{len(seen)}", method="roots/list")
    elif method == "tools/call":
        tool: Any = globals()[params["name"]]
        Running(id, tool(params.get("arguments", {}), params.get("_meta", {}))).go_on()
    elif method == "tools/list":
        tools: list[dict] = [{"name": "name", "inputSchema": {"type": "object"}}]
        if "tasks" in MODES:
            tools = [{**tools[0], "name": "later", "execution": {"taskSupport": "optional"}},
                     {**tools[0], "name": "works"}]  # fmt: skip
        send(id=id, result={"tools": tools})
    elif id is not None:
        send(id=id, error={"code": -32601, "message": "Method not found"})


for line in sys.stdin:
    seen.append(json.loads(line))
    serve(seen[-1])
