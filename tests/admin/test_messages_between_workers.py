"""What a worker takes for a word of another worker."""

from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Scope

from sluicegate.admin.peers import LOOK, NOTE, front, request
from sluicegate.admin.routes import MAX_FORM

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


@pytest.mark.parametrize("client", [None, ("192.0.2.1", 5)])
@pytest.mark.parametrize("path", [LOOK, NOTE])
@pytest.mark.parametrize("headers", [[], [(b"sluice-internal", b"1")], [(b"Sluice-Internal", b"1")]])
async def test_nobody_from_outside_speaks_as_a_worker(
    client: tuple[str, int] | None, path: str, headers: list[tuple[bytes, bytes]]
) -> None:
    """Also one whose connection is reset, and so has no address, by the time that it is served."""
    noted: list[Json] = []

    async def look() -> None:
        noted.append({})

    async def note(fields: Json) -> bool:
        noted.append(fields)
        return True

    worker = front(PlainTextResponse("as any other"), look, note)
    scope: Scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "client": client}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(worker), base_url="http://worker") as other:
        answer = await other.send(request(other, scope, b'{"act": "console_login"}'))
        assert (answer.text, noted) == ("as any other", [])
        own: Scope = {"method": "POST", "headers": [], "sluice.internal": True}
        answer = await other.send(request(other, own, b"{}", path=path))
        assert (answer.status_code, noted) == (200, [{}])


async def test_a_record_that_is_too_large_is_kept_by_nobody_and_not_kept_empty() -> None:
    noted: list[Json] = []

    async def look() -> None: ...

    async def note(fields: Json) -> bool:
        noted.append(fields)
        return True

    worker = front(PlainTextResponse(""), look, note)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(worker), base_url="http://worker") as other:
        own: Scope = {"method": "POST", "headers": [], "sluice.internal": True}
        answer = await other.send(request(other, own, b'{"object": "%b"}' % (b"x" * MAX_FORM), path=NOTE))
        assert (answer.status_code, noted) == (503, [])
