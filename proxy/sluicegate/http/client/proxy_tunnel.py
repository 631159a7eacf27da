"""The way through an HTTP proxy: a socket that leads to the server, whatever is spoken on it after.

RFC 9110 9.3.6. The proxy resolves the name, and decides whether it may be reached. Knows sockets; knows no pool.
"""

import asyncio
import socket
from typing import Final
from urllib.parse import urlsplit

_MAX_HEAD: Final = 16 * 1024
_END: Final = b"\r\n\r\n"


async def tunnel(proxy: str, host: str, port: int) -> socket.socket:
    """A connected socket; `proxy` is a URL. Raises `OSError` where the proxy cannot or will not."""
    loop = asyncio.get_running_loop()
    place = urlsplit(proxy)
    found = await loop.getaddrinfo(place.hostname, place.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(opened, address)
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        await loop.sock_sendall(opened, f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode("ascii"))
        _judge(await _head(loop, opened))
    except BaseException:
        opened.close()
        raise
    return opened


async def _head(loop: asyncio.AbstractEventLoop, opened: socket.socket) -> bytes:
    head = b""
    while _END not in head:
        data = await loop.sock_recv(opened, 4096)
        head += data
        if not data or len(head) > _MAX_HEAD:
            raise OSError("the proxy gave no answer to CONNECT")
    return head


def _judge(head: bytes) -> None:
    parts = head.split(b"\r\n", 1)[0].split(b" ", 2)
    status = parts[1].decode("latin-1") if len(parts) > 1 else ""
    # Whatever comes after the head was not said by the server: nothing has been asked of it yet.
    if len(status) != 3 or not status.startswith("2") or not head.endswith(_END) or head.count(_END) != 1:
        raise OSError(f"the proxy refuses the connection ({status if status.isdigit() else 'no HTTP'})")
