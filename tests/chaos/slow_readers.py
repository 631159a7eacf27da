"""Many clients that call a tool with a large result and read the answer slowly.

    python tests/chaos/slow_readers.py URL KEYS COUNT TOOL

They come at a line `+` on stdin, fifty a second, and the last one prints a line. They go at `-`, which prints how many
had an answer and were not through with it; and at the end of stdin. Each has a connection of its own, a small window,
and reads 640 bytes once a second. Smaller pieces more often would take time of the processor, which the healthy calls
need. So would the start of this process: it is there before they come.
"""

import asyncio
import json
import socket
import sys
from urllib.parse import urlsplit

from e2e.wire import META, MODERN
from policy_bed import bearer

READING = set[object]()
"""Those who have read more than a refusal has, and have not had all."""


async def one(url: str, key: str, tool: str) -> None:
    where = urlsplit(url)
    params = {"name": tool, "arguments": {"n": "0"}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = {
        "Host": where.netloc, "Accept": "application/json, text/event-stream", "Content-Type": "application/json",
        "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool, "Content-Length": str(len(body)),
        **bearer(key),
    }  # fmt: skip
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before it connects, so that the window is small
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(connection, (where.hostname, where.port))
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        await loop.sock_sendall(connection, f"POST {where.path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        read = 0
        while piece := await loop.sock_recv(connection, 640):
            read += len(piece)
            if read > 1280:
                READING.add(connection)
            await asyncio.sleep(1)
    except OSError:
        pass  # it was hung up on, and is not counted
    finally:
        READING.discard(connection)
        connection.close()


async def main(url: str, keys: list[str], count: int, tool: str) -> None:
    tasks = list[asyncio.Task[None]]()
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line[0] == "+":
            for number in range(count):
                tasks.append(asyncio.create_task(one(url, keys[number % len(keys)], tool)))
                await asyncio.sleep(0.02)
            print(count, flush=True)
        elif line[0] == "-":
            print(len(READING), flush=True)
        while line[0] == "-" and tasks:
            tasks.pop().cancel()


if __name__ == "__main__":
    url, keys, count, tool = sys.argv[1:]
    asyncio.run(main(url, keys.split(","), int(count), tool))
