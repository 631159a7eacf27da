"""MCP on a pair of byte streams, as on stdin and stdout: one client, both eras, one message a line.

Knows lines and their limits; what they mean is in `jsonrpc_session`. Pages: 2026-07-28 basic/transports/stdio,
2025-11-25 basic/transports#stdio.
"""

import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio

from sluicegate.listen.jsonrpc_session import DuplexChannel, JsonRpcSession, error
from sluicegate.listen.large_requests import LARGE, LargeRequests, RequestRefused, UntilFree
from sluicegate.listen.legacy_session import SessionDeps
from sluicegate.listen.line_streams import LineReader, LineWriter, Output, line_writer, lines
from sluicegate.listen.settings import RequestLimits
from sluicegate.protocol import reserved_keys
from sluicegate.protocol.jsonrpc import INVALID_REQUEST, MAX_NODES, Json, Malformed, Response, decode, id_unread
from sluicegate.protocol.model import AskSession, Client, Handler, Trail

MAX_LINE: Final = 4 * 1024 * 1024
GRACE: Final = 2.0  # seconds that open calls have after EOF


def new_trail() -> Trail:
    return Trail(secrets.token_hex(16))


async def serve(
    handler: Handler,
    *,
    reader: LineReader,
    writer: LineWriter,
    client: Client,
    server_info: Json,
    on_session_end: Callable[[str], None],
    trail: Callable[[], Trail] = new_trail,
    max_line: int = MAX_LINE,
    max_depth: int = 64,
    max_nodes: int = MAX_NODES,
    max_batch: int = 50,
    grace: float = GRACE,
    on_abandoned: Callable[[str], None] = lambda id: None,
    offer_ask: Callable[[AskSession], None] = lambda ask: None,
    until_free: UntilFree = lambda principal: 0.0,
) -> None:
    """Serve one client until its stream ends or it no longer takes what is written. Of `client` principal, roles
    and owner count; `on_session_end` gets the id of the legacy session, if there was one, `on_abandoned` that of the
    first round of a call that waited for answers in vain, and `offer_ask` the way to ask outside of calls."""
    session: JsonRpcSession | None = None
    try:
        async with anyio.create_task_group() as group:
            output = Output(line_writer(writer), group.cancel_scope.cancel)
            deps = SessionDeps(handler, server_info, trail, on_abandoned)
            session = JsonRpcSession(deps, DuplexChannel("stdio", on_session_end, max_batch), client, output, group)
            offer_ask(session.ask)
            limits = RequestLimits(max_request=max_line, max_depth=max_depth, nodes=max_nodes)
            large = LargeRequests(limits, until_free)
            async for line in lines(reader, max_line):
                await _take(session, output, line, partial(_decode, large, client.principal, limits))
            session.wind_up()
            group.cancel_scope.deadline = anyio.current_time() + grace
    finally:
        if session is not None:
            session.end_session()


async def _decode(large: LargeRequests, principal: str, limits: RequestLimits, line: bytes) -> Any:
    """Raises `Malformed`, `RequestRefused`."""
    if len(line) <= LARGE:
        return reserved_keys.from_client(decode(line, limits.max_depth, limits.nodes), line)
    large.judge(principal, len(line))
    return (await large.decode(principal, lambda: line)).value


async def _take(
    session: JsonRpcSession, output: Output, line: bytes | None, decode: Callable[[bytes], Awaitable[Any]]
) -> None:
    """One line. Whatever is wrong with it is answered; the next one is read as if nothing had been."""
    if line is None:
        await output.send(error(INVALID_REQUEST, "message too long"))
    elif line.strip():
        try:
            message = session.read(await decode(line))
        except RequestRefused as refused:
            await output.send(Response(id_unread(line), error=refused.error))
            return
        except Malformed as bad:  # the id is left out where it could not be read (basic/index#responses)
            await output.send(error(bad.code, bad.text, bad.id))
            return
        await session.take(message)
