"""Workers as the admin port of all of them asks: each has its own on a Unix socket, where nobody else gets in.

What is asked there is what was asked here, word for word, with the addresses that it came by; `front` is the worker's
side of that. Knows HTTP and sockets; no path but its own, and nothing of what is told.
"""

from __future__ import annotations  # httpx is imported at its first use

import json
import ssl
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import httpx
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from sluicegate.admin.response import AdminResponse, read_body
from sluicegate.protocol.jsonrpc import Json, dump

LOOK: Final = "/look"
"""Only on the Unix sockets: another worker was told something that stands in the store."""

NOTE: Final = "/note"
"""Only there as well: a record of what somebody did at the port of all."""
_OWN: Final[Scope] = {"method": "POST", "headers": [], "sluice.internal": True}
"""What one of us asks. Of what is passed on, the header that says so was taken out."""
CHANNEL: Final = "sluice.channel"
"""Of the scope: by which way a person decides, where it is not the API itself."""

TAKES_BODY: Final = 204
TIMEOUT: Final = 30.0
_UNUSED: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing is encrypted on a Unix socket; without it httpx would read all authorities for each client, 30 ms."""
_CLIENT, _SERVER, _HEAD, _CHANNEL = b"sluice-client", b"sluice-server", b"sluice-head", b"sluice-channel"
_INTERNAL: Final = b"sluice-internal"
_MARKS: Final = frozenset({_CLIENT, _SERVER, _HEAD, _CHANNEL, _INTERNAL})
# Of a connection, or made anew for each.
_LEFT: Final = frozenset({
    b"connection", b"content-length", b"transfer-encoding", b"expect", b"te", b"trailer", b"upgrade", b"keep-alive",
    b"accept-encoding", *_MARKS,
})  # fmt: skip
_PASSED_ON: Final = frozenset({"allow", "www-authenticate", "content-security-policy", "referrer-policy"})


class NoAnswer(AdminResponse):
    """In place of the answer of a worker that is up and does not give one in time. It may yet do what it was asked, and
    it has what nobody else knows, so that this is not the same as if it had ended."""

    def __init__(self, number: int) -> None:
        self.why = f"worker {number + 1} does not answer"
        super().__init__(503, dump({"error": self.why}) + b"\n")


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker that is up. `mark` is its own, not that of the one before it; `address` its Unix socket. `patience`:
    seconds that it has for each step of an answer."""

    number: int
    mark: Hashable
    address: str
    patience: float = TIMEOUT

    def client(self, is_stream: bool = False) -> httpx.AsyncClient:
        # trust_env: a proxy from the environment must never see the token
        timeout = httpx.Timeout(self.patience, read=None if is_stream else self.patience)
        limits = httpx.Limits(max_keepalive_connections=0)
        transport = httpx.AsyncHTTPTransport(uds=self.address, limits=limits, verify=_UNUSED)
        return httpx.AsyncClient(transport=transport, trust_env=False, timeout=timeout)

    async def ask(self, scope: Scope, body: bytes | None, method: str = "", path: str = "") -> AdminResponse | None:
        """What it answers to the request, or `NoAnswer`; None if it ended over it. Without a body, what it answers to
        the head alone: `TAKES_BODY` where it has no more to say about that."""
        try:
            async with self.client() as client:
                answer = await client.send(request(client, scope, body, method, path))
        except httpx.TimeoutException:
            return NoAnswer(self.number)
        except httpx.TransportError:
            return None
        headers = {name: value for name, value in answer.headers.items() if name in _PASSED_ON}
        return AdminResponse(
            answer.status_code, answer.content, answer.headers.get("content-type", "text/plain"), headers
        )


async def look_at_peer(peer: Peer) -> None:
    """Has a worker look at what stands in the store."""
    await peer.ask(_OWN, b"", path=LOOK)


Up = Callable[[], Sequence[Peer]]
"""Those that are up now, in the order of their numbers."""


def request(
    client: httpx.AsyncClient, scope: Scope, body: bytes | None, method: str = "", path: str = ""
) -> httpx.Request:
    """The request of a scope, for a worker: word for word unless another method or path is said."""
    url = f"http://worker{quote(path or scope['path'])}"
    if query := scope.get("query_string", b""):
        url += f"?{query.decode('latin-1')}"
    headers = [header for header in scope["headers"] if header[0].lower() not in _LEFT]
    headers += [(name, _written(scope.get(key))) for name, key in ((_CLIENT, "client"), (_SERVER, "server"))]
    if body is None:
        headers.append((_HEAD, b"1"))
    if "sluice.internal" in scope:
        headers.append((_INTERNAL, b"1"))
    if CHANNEL in scope:
        headers.append((_CHANNEL, scope[CHANNEL].encode()))
    return client.build_request(method or scope["method"], url, headers=headers, content=body)


def _written(address: Any) -> bytes:
    return b"" if address is None else f"{address[0]} {address[1]}".encode()


def _read(written: bytes) -> tuple[str, int] | None:
    host, _, port = written.decode().partition(" ")
    return (host, int(port)) if port else None


class _BodyAsked(Exception):
    """Of a request whose head alone is to be judged."""


async def _unread() -> Scope:
    raise _BodyAsked


async def note_at_peers(up: Up, fields: Json) -> bool:
    """Whether a worker keeps an `admin` record: the port of all has no log of its own."""
    for peer in up():
        answer = await peer.ask(_OWN, json.dumps(fields).encode(), path=NOTE)
        if answer is not None and not isinstance(answer, NoAnswer):
            return answer.status_code == 200
    return False


def front(app: ASGIApp, look: Callable[[], Awaitable[object]], note: Callable[[Json], Awaitable[bool]]) -> ASGIApp:
    """The admin port of one worker, as it is on its Unix socket."""

    async def _own(scope: Scope, receive: Receive) -> bool:
        if scope["path"] == NOTE:
            body = await read_body(Request(scope, receive))
            if not body:  # or too large
                return False
            return await note(json.loads(body))
        await look()
        return True

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        given: Mapping[bytes, bytes] = dict(scope["headers"])
        if scope["path"] in (LOOK, NOTE) and _INTERNAL in given:
            is_done = await _own(scope, receive)
            await AdminResponse(200 if is_done else 503, b"")(scope, receive, send)
            return
        headers = [header for header in scope["headers"] if header[0] not in _MARKS]
        places = {"client": _read(given.get(_CLIENT, b"")), "server": _read(given.get(_SERVER, b""))}
        try:
            channel = {CHANNEL: given[_CHANNEL].decode()} if _CHANNEL in given else {}
            await app({**scope, **places, **channel, "headers": headers}, _unread if _HEAD in given else receive, send)
        except _BodyAsked:
            await AdminResponse(TAKES_BODY, b"")(scope, receive, send)

    return answer
