"""One tool call on the Python SDK 2.x, whose user answers questions as told: `sdk_caller.py JSON`, run by the SDK's own
Python. JSON: {"url" or "command", "headers", "mode": "auto" or "legacy", "tool", "arguments", "answer": null for a
client that cannot be asked, else the content of the form}. Prints {"questions", "error", "text", "progress"}.
"""

import json
import sys
from typing import Any

import anyio
import httpx2
import mcp_types as types
from mcp.client import session
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


async def main(job: dict[str, Any]) -> None:
    if "command" in job:
        command, *arguments = job["command"]
        await call(job, StdioServerParameters(command=command, args=arguments, env=job.get("env")))
        return
    async with httpx2.AsyncClient(headers=job.get("headers"), timeout=30) as http:
        await call(job, streamable_http_client(job["url"], http_client=http))


async def call(job: dict[str, Any], server: Any) -> None:
    questions: list[str] = []
    progress: list[str] = []

    async def ask_user(context: Any, params: Any) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action="accept", content=job["answer"])

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append(message or "")

    asked: Any = {} if job.get("answer") is None else {"elicitation_callback": ask_user}
    async with Client(server, mode=job["mode"], **asked) as client:
        result = await client.call_tool(job["tool"], job["arguments"], progress_callback=on_progress)
        revision = client.protocol_version
    said = {"questions": questions, "error": bool(result.is_error), "text": result.content[0].text}
    print(json.dumps({**said, "progress": progress, "revision": revision}))


if __name__ == "__main__":
    # The SDK takes who has not answered its probe in ten seconds for a legacy server; on a busy machine that says
    # something of the machine, not of the server.
    session.DISCOVER_TIMEOUT_SECONDS = 60.0
    anyio.run(main, json.loads(sys.argv[1]))
