"""What strangers may try at the admin port, all at once, until stdin ends: test 20 of the console's security.

    python tests/accept/attack.py URL KEY

100 connections whose heads never end, a byte a second each. 40 streams of changes that nobody reads. 100 requests a
second with 64 KiB of headers, and 100 logins a second with a wrong key. KEY is that of the streams.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from calls import Connection

SLOW, STREAMS, RATE = 100, 40, 100
LARGE = 64 * 1024


async def main(url: str, key: str) -> None:
    at, loop = urlsplit(url), asyncio.get_running_loop()
    body = b'{"key": "a key that is none, and long enough to be one"}'
    login = (
        f"POST /console/session HTTP/1.1\r\nHost: {at.netloc}\r\nOrigin: {url}\r\nSec-Fetch-Site: same-origin\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    stream = f"GET /api/v1/events HTTP/1.1\r\nHost: {at.netloc}\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    large = f"GET /console HTTP/1.1\r\nHost: {at.netloc}\r\nX-Large: {'a' * LARGE}\r\n\r\n".encode()

    async def connect() -> Connection:
        return (await loop.create_connection(Connection, at.hostname, at.port))[1]

    async def slow() -> None:
        while True:
            connection = await connect()
            connection.transport.write(b"GET /console HTTP/1.1\r\nHost: ")
            while not connection.transport.is_closing():
                connection.transport.write(b"a")
                await asyncio.sleep(1)

    async def unread() -> None:
        connection = await connect()
        connection.transport.write(stream)
        connection.transport.pause_reading()

    async def storm(one: Callable[[Connection], Awaitable[int]]) -> None:
        due, connection = time.monotonic(), await connect()
        while True:
            if connection.transport.is_closing():
                connection = await connect()
            await one(connection)
            due += 1 / RATE
            await asyncio.sleep(due - time.monotonic())

    async def until_stdin_ends() -> None:
        await loop.run_in_executor(None, sys.stdin.read)
        os._exit(0)

    slows, streams = (slow() for _ in range(SLOW)), (unread() for _ in range(STREAMS))
    storms = (storm(lambda connection: connection.call(login)), storm(lambda connection: connection.call(large)))
    await asyncio.gather(until_stdin_ends(), *slows, *streams, *storms)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
