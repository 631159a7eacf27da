"""A server that begins messages and never ends them: `python unfinished_server.py PORT` or `--stdio`.

Its tool `leave` leaves a message of `size` bytes unfinished and its stream open: on the GET stream of the session
(`where` is `get`), or on the stream or in the body of the call's own answer (`stream`, `body`). At /sse and on a pipe
it does so on the one stream that there is, behind its answer. `say` answers as any tool does. /state tells how many GET
streams, and answers of `leave`, are open and were ever opened. Standard library only.
"""

import asyncio
import json
import os
import sys
from typing import Any

Json = dict[str, Any]
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("leave", "say")]
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
HALF = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"'
streams: dict[str, asyncio.StreamWriter] = {}
state = {"open": 0, "opened": 0}


def answered(message: Json) -> Json:
    about = {"protocolVersion": message["params"].get("protocolVersion"), "capabilities": {"tools": {}}}
    results: dict[str, Json] = {
        "initialize": about | {"serverInfo": {"name": "unfinished", "version": "1"}},
        "tools/list": {"tools": TOOLS},
        "tools/call": {"content": [{"type": "text", "text": '"said"'}]},
    }
    return {"jsonrpc": "2.0", "id": message["id"], "result": results.get(message["method"], {})}


def left(message: Any) -> Json | None:
    """What `leave` is to leave; None for any other message."""
    params = message.get("params", {}) if isinstance(message, dict) else {}
    given = params.get("arguments", {}) if message and message.get("method") == "tools/call" else {}
    return given if params.get("name") == "leave" else None


# ---------------------------------------------------------------- HTTP


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, path = head[0].split(" ")[:2]
            message = json.loads(body) if body else None
            if path == "/state":
                reply(writer, state)
            elif method == "GET":
                await keep_stream(path, headers.get("mcp-session-id", ""), reader, writer)
            elif path.startswith("/messages/"):
                writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
                await say_on(streams[path.rpartition("/")[2]], message)
            elif message is None or "id" not in message or "method" not in message:
                writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            elif (given := left(message)) is not None:
                await leave(given, headers.get("mcp-session-id", ""), message, reader, writer)
            else:
                extra = f"Mcp-Session-Id: s{os.urandom(8).hex()}\r\n" if message["method"] == "initialize" else ""
                reply(writer, answered(message), extra)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def reply(writer: asyncio.StreamWriter, value: Json, extra: str = "") -> None:
    data = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{extra}Content-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


async def keep_stream(path: str, session: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM + b": here\n\n")
    if path == "/sse":
        session = os.urandom(8).hex()
        writer.write(f"event: endpoint\ndata: /messages/{session}\n\n".encode())
    streams[session] = writer
    await wait_open(reader)


async def wait_open(reader: asyncio.StreamReader) -> None:
    """Until the other side closes it."""
    state["open"] += 1
    state["opened"] += 1
    try:
        await reader.read()
    finally:
        state["open"] -= 1


async def say_on(stream: asyncio.StreamWriter, message: Json) -> None:
    if "id" in message and "method" in message:
        stream.write(b"data: " + json.dumps(answered(message)).encode() + b"\n\n")
    if (given := left(message)) is not None:
        stream.write(HALF + b"x" * given["size"])
    await stream.drain()


async def leave(
    given: Json, session: str, message: Json, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    rest = HALF + b"x" * given["size"]
    if given["where"] == "get":
        while session not in streams:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)  # the session's stream comes a moment after its first request
        streams[session].write(rest)
        return reply(writer, answered(message))
    begin = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n\r\n"
    writer.write(begin + rest if given["where"] == "body" else STREAM + b"id: 1\ndata\n\n" + rest)
    await wait_open(reader)


# ---------------------------------------------------------------- a pipe


def serve_pipe() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            sys.stdout.write(json.dumps(answered(message)) + "\n")
        if (given := left(message)) is not None:
            sys.stdout.write("x" * given["size"])
        sys.stdout.flush()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    serve_pipe() if sys.argv[1] == "--stdio" else asyncio.run(main())
