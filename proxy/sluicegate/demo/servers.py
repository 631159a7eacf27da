"""Three small MCP servers for the demo: travel, weather, and a calendar with mail. `python servers.py travel` is one of
them on stdin and stdout, in the newest legacy revision, with nothing but the standard library. They know no Sluice.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]

CITIES: Final = {"Barcelona": 24, "Bari": 23, "Lisbon": 22, "Oslo": 11, "Split": 25, "Vienna": 17}


def text(schema: str) -> Json:
    """The schema of an object with these text members, all required."""
    names = schema.split()
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}


@dataclass(frozen=True, slots=True)
class Example:
    """Tools are (description, schema, function of the arguments); resources and prompts are texts."""

    tools: dict[str, tuple[str, Json, Callable[..., str]]]
    resources: dict[str, str]
    prompts: dict[str, tuple[str, list[str]]] = field(default_factory=dict)

    def answer(self, method: str, params: Json) -> Json | None:
        """None for a method that it does not have."""
        match method:
            case "initialize":
                capabilities: Json = {"tools": {}, "resources": {}, "prompts": {}, "completions": {}}
                info = {"name": "example", "version": "1"}
                return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
            case "ping":
                return {}
            case "tools/list":
                entries = self.tools.items()
                return {"tools": [{"name": n, "description": d, "inputSchema": s} for n, (d, s, _) in entries]}
            case "tools/call":
                return _text(self.tools[params["name"]][2](**params.get("arguments", {})))
            case "resources/list":
                return {"resources": [{"uri": uri, "name": uri.partition("://")[2]} for uri in self.resources]}
            case "resources/templates/list":
                return {"resourceTemplates": []}
            case "resources/read":
                return {"contents": [{"uri": params["uri"], "text": self.resources[params["uri"]]}]}
            case "prompts/list":
                return {"prompts": [_prompt(name, arguments) for name, (_, arguments) in self.prompts.items()]}
            case "prompts/get":
                rendered = self.prompts[params["name"]][0].format(**params.get("arguments", {}))
                return {"messages": [{"role": "user", "content": {"type": "text", "text": rendered}}]}
            case "completion/complete":
                begun = params["argument"]["value"].lower()
                return {"completion": {"values": [city for city in CITIES if city.lower().startswith(begun)]}}
        return None


def _text(rendered: str) -> Json:
    return {"content": [{"type": "text", "text": rendered}]}


def _prompt(name: str, arguments: list[str]) -> Json:
    return {"name": name, "arguments": [{"name": argument, "required": True} for argument in arguments]}


EXAMPLES: Final = {
    "travel": Example(
        tools={
            "search_flights": (
                "Flights to a city.", text("city month"),
                lambda city, month: f"{city} in {month}: SL 101 at 07:10 for 129 EUR, SL 207 at 15:40 for 99 EUR",
            ),
            "book_flight": (
                "Books a flight. This costs money.", text("flight passenger"),
                lambda flight, passenger: f"{flight} is booked for {passenger}: booking B-4711",
            ),
        },
        resources={"travel://destinations": ", ".join(CITIES)},
        prompts={"plan-vacation": ("Plan a vacation in {city}: weather, free days, a flight, and mail it.", ["city"])},
    ),
    "weather": Example(
        tools={
            "forecast": (
                "The usual weather of a city.", text("city"),
                lambda city: f"{city}: {CITIES.get(city, 15)} degrees",
            ),
        },
        resources={"weather://warm": ", ".join(city for city, degrees in CITIES.items() if degrees > 20)},
    ),
    "calendar": Example(
        tools={
            "free_days": ("Days without an appointment.", text("month"), lambda month: f"{month} 12 to 19"),
            "send_mail": (
                "Sends a mail.", text("to subject body"), lambda to, subject, body: f"sent to {to}: {subject}"
            ),
        },
        resources={"calendar://today": "09:00 stand-up; 12:30 lunch with Mia"},
    ),
}  # fmt: skip


def main(example: Example) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        answer: Json = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            result = example.answer(request["method"], request.get("params", {}))
            missing = {"error": {"code": -32601, "message": "Method not found"}}
            answer |= missing if result is None else {"result": result}
        except (KeyError, TypeError) as error:
            answer["error"] = {"code": -32602, "message": f"Invalid params: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(EXAMPLES[sys.argv[1]])
