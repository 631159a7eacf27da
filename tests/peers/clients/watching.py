"""A client that does what it is told, line by line, and says what it hears. Knows no SDK.

Reads one JSON object a line: `{"do": "subscribe" | "unsubscribe", "uri"}`, `{"do": "call", "name", "arguments"}`, and
answers each with one line: `{"done": ...}` or `{"error": {"code", "message"}}`. Between these it writes
`{"updated": uri}` for each update that it is told of. Its first line is `{"ready": revision, "subscribe": bool}`.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio

Json = dict[str, Any]


class Client(Protocol):
    async def subscribe(self, uri: str) -> Any: ...
    async def unsubscribe(self, uri: str) -> Any: ...
    async def call(self, name: str, arguments: Json) -> Any: ...


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def updated(uri: Any) -> None:
    say(updated=str(uri))


async def obey(client: Client, failures: tuple[type[Exception], ...], code: Callable[[Any], int]) -> None:
    """Until there are no more lines."""
    while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        command = json.loads(line)
        do: Callable[..., Awaitable[Any]] = getattr(client, command.pop("do"))
        try:
            with anyio.fail_after(60):
                say(done=await do(**command))
        except failures as error:
            say(error={"code": code(error), "message": str(error)})
