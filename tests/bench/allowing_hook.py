"""A hook that allows every call, with as little work as Python allows: `python tests/bench/allowing_hook.py PORT`."""

import asyncio
import sys
from typing import cast

import uvloop

SAYS = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 19\r\n\r\n{"verdict":"allow"}'
LENGTH = b"content-length:"


class Asked(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.left = cast(asyncio.Transport, transport), b""

    def data_received(self, data: bytes) -> None:
        self.left += data
        head, end, body = self.left.partition(b"\r\n\r\n")
        size = int(head.lower().partition(LENGTH)[2].split(b"\r\n")[0] or 0)
        if end and len(body) >= size:
            self.left = body[size:]
            self.transport.write(SAYS)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Asked, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
