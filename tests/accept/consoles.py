"""Open consoles without their browsers: what tabs were seen to ask, asked again by many, each with a stream of changes.

    python tests/accept/consoles.py < PLAN

PLAN is JSON: the `url` of the admin port, the `headers` of a session, how many `seconds` the `tabs` were watched, and
for each tab when it asked for which path. Console number n does what tab n does, modulo their number. Ends with stdin.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from calls import Connection

CHANGES = "/api/v1/events"


async def main(plan: dict[str, Any]) -> None:
    at, loop = urlsplit(plan["url"]), asyncio.get_running_loop()
    headers = "".join(f"{name}: {value}\r\n" for name, value in plan["headers"].items())

    def request(path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: {at.netloc}\r\n{headers}\r\n".encode()

    async def console(asks: list[tuple[float, str]], lag: float) -> None:
        _, stream = await loop.create_connection(Connection, at.hostname, at.port)
        stream.transport.write(request(CHANGES))
        _, connection = await loop.create_connection(Connection, at.hostname, at.port)
        began = time.monotonic() + lag
        while asks:
            for when, path in asks:
                await asyncio.sleep(began + when - time.monotonic())
                if (status := await connection.call(request(path))) != 200:
                    sys.exit(f"{path}: {status}")
            began += plan["seconds"]

    async def until_stdin_ends() -> None:
        await loop.run_in_executor(None, sys.stdin.read)
        os._exit(0)

    count, tabs = plan["count"], plan["tabs"]
    consoles = (console(tabs[n % len(tabs)], plan["seconds"] * n / count) for n in range(count))
    await asyncio.gather(until_stdin_ends(), *consoles)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.stdin.readline())))
