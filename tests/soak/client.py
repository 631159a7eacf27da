"""A client of the soak on the wire, in either era: bare HTTP/1.1, one connection, one request at a time.

What it is told is counted in the town's tally under one word. Knows no SDK.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Self
from urllib.parse import urlsplit

from e2e.wire import LEGACY, META, MODERN, Connection
from policy_bed import encoded
from soak.town import SoakTown

Json = dict[str, Any]
PATIENCE: Final = 60.0
PREFIX: Final = "io.modelcontextprotocol/"
EXTENSION: Final = f"{PREFIX}tasks"
FULL: Final[Json] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


class SoakClient:
    """At the endpoint of a toolset, if one is named. A legacy one opens its session with its first request, and another
    one where that has ended."""

    def __init__(self, town: SoakTown, who: str, era: str = "modern", toolset: str = "", **capabilities: Any) -> None:
        where = urlsplit(town.process.url)
        self._town, self.era = town, era
        self.netloc, self.path = where.netloc, where.path + (f"/{toolset}" if toolset else "")
        self._capabilities = capabilities
        self._credential = town.credential(who)
        self._connection: Connection | None = None
        self.session: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *why: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def ask(self, method: str, named: str = "", **params: Any) -> Json:
        """The response to a request; an error of HTTP is one, too."""
        if self.era == "legacy" and not self.session and method != "initialize":
            await self.hello()
        message = self.request(method, **params)
        status, headers, messages = await self._send("POST", message, self.headers(method, named))
        if status == 404 and self.session:
            self._town.tally["sessions that had ended"] += 1
            self.session = {}
            return await self.ask(method, named, **params)
        if method == "initialize" and "mcp-session-id" in headers:
            self.session = {"Mcp-Session-Id": headers["mcp-session-id"], "MCP-Protocol-Version": LEGACY}
        found = [one for one in messages if one.get("id") == 1 and "method" not in one]
        answer = found[0] if found else {"error": {"code": status, "message": f"HTTP {status}"}}
        self._town.tally[f"{method}: {word(answer)}"] += 1
        return answer

    async def hello(self) -> None:
        info = {"name": "soak", "version": "1"}
        await self.ask("initialize", protocolVersion=LEGACY, capabilities=self._capabilities, clientInfo=info)
        if self.session:
            note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await self._send("POST", note, self.session)

    async def call(self, name: str, /, **arguments: Any) -> Json:
        return await self.ask("tools/call", name, name=name, arguments=arguments)

    async def bye(self) -> None:
        """A legacy client that says so."""
        if self.session:
            await self._send("DELETE", None, self.session)
            self.session = {}

    async def post(self, message: Json) -> None:
        """A message whose answer comes elsewhere."""
        await self._send("POST", message, {})

    def request(self, method: str, **params: Any) -> Json:
        if self.era == "modern":
            given = params.pop("_meta", {})
            params["_meta"] = {**META, f"{PREFIX}clientCapabilities": self._capabilities, **given}
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

    def headers(self, method: str, named: str = "") -> dict[str, str]:
        if self.era == "legacy":
            return self.session
        routing = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        return routing | ({"Mcp-Name": encoded(named)} if named else {})

    def head(self, verb: str, headers: dict[str, str], accept: str = "application/json, text/event-stream") -> str:
        every = {"Host": self.netloc, "Accept": accept, "Content-Type": "application/json",
                 **self._credential, **headers}  # fmt: skip
        return f"{verb} {self.path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in every.items())

    async def _send(
        self, verb: str, message: Json | None, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], list[Json]]:
        body = b"" if message is None else json.dumps(message).encode()
        try:
            async with asyncio.timeout(PATIENCE):
                if self._connection is None:
                    self._connection = await Connection.open(self.netloc)
                answer = await self._connection.send(self.head(verb, headers), body)
        except BaseException:
            self.close()
            raise
        if answer.headers.get("connection") == "close":
            self.close()
        is_said = answer.body and answer.headers.get("content-type", "").split(";")[0] in (
            "application/json", "text/event-stream",
        )  # fmt: skip
        return answer.status, answer.headers, answer.messages() if is_said else []

    # ------------------------------------------------------------ what is not waited for

    @asynccontextmanager
    async def stream(
        self, verb: str, message: Json | None, headers: dict[str, str]
    ) -> AsyncIterator[asyncio.StreamReader]:
        """A request of its own connection, whose client goes without a word at the end of the block."""
        host, port = self.netloc.split(":")
        body = b"" if message is None else json.dumps(message).encode()
        accept = "text/event-stream" if verb == "GET" else "application/json, text/event-stream"
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
        try:
            length = f"Content-Length: {len(body)}\r\n" if body else ""
            writer.write(f"{self.head(verb, headers, accept)}{length}\r\n".encode() + body)
            yield reader
        finally:
            writer.transport.abort()

    async def hear(self, reader: asyncio.StreamReader, seconds: float) -> None:
        """What is said within that time; it is counted."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while data := await reader.read(1 << 16):
                    for what in (b"list_changed", b"resources/updated", b"subscriptions/acknowledged"):
                        self._town.tally[f"heard {what.decode()}"] += data.count(what)


def word(answer: Json) -> str:
    """How it ended, in one word."""
    if "error" in answer:
        error = answer["error"]
        return str((error.get("data") or {}).get("reason") or error.get("code"))
    result = answer["result"]
    reason = result.get("_meta", {}).get("dev.sluice/reason")
    if reason:
        return str(reason)
    if result.get("isError"):
        return "isError"
    return {"input_required": "input_required", "task": "task"}.get(result.get("resultType", ""), "ok")
