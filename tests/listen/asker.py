"""A tool that asks: round after round as a script says, like a stateless server does, and what it is asked with."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import Call, InputRequired, Outcome, Result

SCHEMA: Json = {"type": "object", "properties": {"name": {"type": "string"}}}
FORM: Json = {"method": "elicitation/create", "params": {"mode": "form", "message": "m", "requestedSchema": SCHEMA}}
URL: Json = {"method": "elicitation/create", "params": {"mode": "url", "message": "m", "url": "https://a.example/x"}}
ROOTS: Json = {"method": "roots/list"}
SAMPLE: Json = {
    "method": "sampling/createMessage",
    "params": {"maxTokens": 9, "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]},
}
ALL: Json = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}}

ACCEPTED: Json = {"action": "accept", "content": {"name": "x"}}
SAMPLED: Json = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "hello"}}
ROOTED: Json = {"roots": [{"uri": "file:///home"}]}


class Asker:
    """Its state counts the rounds; its last result says which answers came in each."""

    def __init__(self, *rounds: Json, is_held: bool = False) -> None:
        self.rounds: Sequence[Json] = rounds
        self.is_held = is_held
        self.calls: list[Call] = []

    async def __call__(self, call: Call) -> Outcome:
        self.calls.append(call)
        number = int(call.params.get("requestState", 0))
        if "progressToken" in call.meta:
            for value in (1, 2, 3 + number):
                params = {"progressToken": call.meta["progressToken"], "progress": value}
                await call.emit(Notification("notifications/progress", params))
        if number < len(self.rounds):
            return InputRequired(self.rounds[number], str(number + 1), self.is_held)
        return self.done()

    def done(self) -> Outcome:
        text = json.dumps([call.params.get("inputResponses") for call in self.calls])
        return Result({"content": [{"type": "text", "text": text}]})


async def ask_its_name(call: Call) -> Outcome:
    """Asks for the very name that the caller gave: what comes back must be that one."""
    given = call.params["arguments"]["who"]
    if "inputResponses" not in call.params:
        await asyncio.sleep(0)
        message = {**FORM["params"], "message": given}
        return InputRequired({"name": {"method": "elicitation/create", "params": message}}, f"state of {given}")
    answer = call.params["inputResponses"]["name"]["content"]["name"]
    return Result({"content": [{"type": "text", "text": f"{given} {answer} {call.params['requestState']}"}]})


def answer(id: Any, result: Json | None = None, **more: Any) -> Json:
    """The client's response to a question."""
    return {"jsonrpc": "2.0", "id": id, **({} if result is None else {"result": result}), **more}


def result_for(method: str) -> Json:
    return {"elicitation/create": ACCEPTED, "sampling/createMessage": SAMPLED, "roots/list": ROOTED}[method]


def said(message: Json) -> Any:
    """What the asker's last result says of the answers it got, round by round."""
    return json.loads(message["result"]["content"][0]["text"])
