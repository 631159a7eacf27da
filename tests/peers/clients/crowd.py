"""Many clients of one program at once, all of them asked: `crowd.py JOB`. Who is asked whose question is counted.

The job: `url`, `headers`, `tool` (one that asks the user with the `message` it is given), `clients`, `calls` each,
`mode` (modern or legacy). Every call has a message of its own; its client must be asked that (a proxy may say before it
whose question it is), and the answer must come back from that call. The report: how many calls were `right`, and what
was `wrong`.
"""

import json
from typing import Any

import anyio
import httpx2
import mcp_types as types
import script
from mcp.client import session
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from script import Json


class One:
    """One client and what it expects."""

    def __init__(self, number: int, job: Json) -> None:
        self.messages = [f"question {call} of client {number}" for call in range(job["calls"])]
        self.asked: list[str] = []
        self.right = 0
        self.wrong: list[str] = []
        self._job = job

    async def answer(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        message = next((own for own in self.messages if params.message.endswith(own)), params.message)
        self.asked.append(message)
        return types.ElicitResult(action="accept", content={"username": message, "email": "a@example.com"})

    async def run(self) -> None:
        mode: Any = "auto" if self._job["mode"] == "modern" else "legacy"
        async with httpx2.AsyncClient(headers=self._job.get("headers"), timeout=60) as http:
            transport = streamable_http_client(self._job["url"], http_client=http)
            async with Client(transport, mode=mode, elicitation_callback=self.answer) as client:
                async with anyio.create_task_group() as calls:
                    for message in self.messages:
                        calls.start_soon(self.call, client, message)
        if sorted(self.asked) != sorted(self.messages):
            self.wrong.append(f"was asked {self.asked} instead of {self.messages}")

    async def call(self, client: Client, message: str) -> None:
        result = await client.call_tool(self._job["tool"], {"message": message})
        text = "".join(block.text for block in result.content if isinstance(block, types.TextContent))
        if json.dumps(message) in text:
            self.right += 1
        else:
            self.wrong.append(f"{message!r} was answered {text!r}")


async def main() -> None:
    job = script.job()
    everyone = [One(number, job) for number in range(job["clients"])]
    async with anyio.create_task_group() as clients:
        for one in everyone:
            clients.start_soon(one.run)
    wrong = [why for one in everyone for why in one.wrong]
    script.say({"client": "crowd", "right": sum(one.right for one in everyone), "wrong": wrong[:10]})


# The SDK takes who has not answered its probe in ten seconds for a legacy server; on a busy machine that says something
# of the machine, not of the server.
session.DISCOVER_TIMEOUT_SECONDS = 60.0
anyio.run(main)
