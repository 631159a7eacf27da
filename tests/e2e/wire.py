"""Clients on the wire: bare HTTP/1.1 and JSON, so that no SDK and no connection pool hides or orders anything.

Every request has `id: 1` and the same progress token. A `Client` has a few connections of its own; calls wait for one
of them, so that thousands of calls need hundreds of sockets, not thousands.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]

TOKEN = "progress"
LEGACY, MODERN = "2025-11-25", "2026-07-28"
META: Json = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def messages(self) -> list[Json]:
        """All JSON-RPC messages of it: one of a JSON body, or the events of a stream."""
        if self.headers.get("content-type", "").startswith("application/json"):
            return [json.loads(self.body)]
        data = [line[5:] for line in self.body.decode().splitlines() if line.startswith("data:")]
        return [json.loads(text) for text in data if text.strip()]

    def result(self) -> Json:
        """The result of the one response, which has our id."""
        assert self.status == 200, (self.status, self.body)
        responses = [message for message in self.messages() if "id" in message]
        assert len(responses) == 1 and responses[0]["id"] == 1 and "result" in responses[0], self.body
        return dict(responses[0]["result"])

    def progress(self) -> list[Json]:
        return [m["params"] for m in self.messages() if m.get("method") == "notifications/progress"]


class Connection:
    """One keep-alive connection: one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, netloc: str) -> "Connection":
        host, port = netloc.split(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1 << 20))

    async def send(self, head: str, body: bytes) -> Answer:
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        status = int(lines[0].split()[1])
        pairs = [line.split(":", 1) for line in lines[1:] if line]
        headers = {name.lower(): value.strip() for name, value in pairs}
        return Answer(status, headers, await self._body(headers))

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await self._reader.readexactly(int(headers.get("content-length", 0)))
        body = b""
        while size := int(await self._reader.readline(), 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()
        return body

    def close(self) -> None:
        self._writer.close()


class Client:
    def __init__(self, url: str, modern: bool, connections: int = 8, credential: dict[str, str] | None = None) -> None:
        where = urlsplit(url)
        self._netloc, self._path, self.modern = where.netloc, where.path, modern
        self._size = connections
        self._credential = credential or {}
        self._free: asyncio.Queue[Connection | None] = asyncio.Queue()  # None: not open yet
        self._headers = {"MCP-Protocol-Version": MODERN} if modern else {}

    async def __aenter__(self) -> "Client":
        for _ in range(self._size):
            self._free.put_nowait(None)
        if not self.modern:
            await self._shake_hands()
        return self

    async def __aexit__(self, *error: object) -> None:
        while not self._free.empty():
            if connection := self._free.get_nowait():
                connection.close()

    async def _shake_hands(self) -> None:
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "wire", "version": "1"}}
        answer = await self.request("initialize", hello)
        assert answer.result()["protocolVersion"] == LEGACY
        self._headers = {"MCP-Protocol-Version": LEGACY, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        await self.notify("notifications/initialized", {})

    def adopt(self, other: "Client") -> None:
        """Goes on in the session of that one."""
        self._headers = other._headers

    async def call(self, name: str, arguments: Json) -> Answer:
        headers = {"Mcp-Name": name} if self.modern else {}
        meta = {"progressToken": TOKEN} | (META if self.modern else {})
        return await self.request("tools/call", {"name": name, "arguments": arguments, "_meta": meta}, headers)

    async def request(self, method: str, params: Json, headers: dict[str, str] | None = None) -> Answer:
        if self.modern:
            headers = {"Mcp-Method": method, **(headers or {})}
        return await self._post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, headers or {})

    async def notify(self, method: str, params: Json) -> None:
        await self._post({"jsonrpc": "2.0", "method": method, "params": params}, {})

    async def _post(self, message: Json, headers: dict[str, str]) -> Answer:
        every = {
            "Host": self._netloc,
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            **self._credential,
            **self._headers,
            **headers,
        }
        head = f"POST {self._path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in every.items())
        connection = await self._free.get()  # unused ones are not kept open
        try:
            connection = connection or await Connection.open(self._netloc)
            answer = await connection.send(head, json.dumps(message).encode())
        except BaseException:
            if connection is not None:
                connection.close()
            self._free.put_nowait(None)
            raise
        self._free.put_nowait(connection)
        return answer
