"""`/api/v1/logins`: who is logged in to which server. One begins with a link, and ends with its tokens. Knows no token.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluicegate.admin import paging
from sluicegate.admin.paging import StatusAndBody
from sluicegate.protocol.jsonrpc import Json, decode
from sluicegate.protocol.model import Client

_SHAPE: Final = 'the body is {"server": KEY} or {"server": KEY, "as": ID}'


@dataclass(frozen=True, slots=True)
class LoginsApi:
    """`every` gives a row for each login. `begin` takes a server, for whom the login is, and who asks. `end` takes the
    id of a login, and who asks."""

    every: Callable[[], Awaitable[list[Json]]]
    begin: Callable[[str, str | None, Client], Awaitable[StatusAndBody]]
    end: Callable[[str, str], Awaitable[StatusAndBody]]


async def show(logins: LoginsApi, query: Mapping[str, Sequence[str]]) -> StatusAndBody:
    asked = paging.read_page_request(query)
    if asked is None or set(query) - {"server", *paging.PAGE_QUERY}:
        return 400, {"error": f"the query is server=KEY, {paging.SHAPE}, each at most once"}
    server = query.get("server", [""])[0]
    rows = [row for row in await logins.every() if server in ("", row["server"])]
    # A renewal changes neither names nor the id: a list is read in the same order all the time.
    page = await paging.page_of(
        rows, lambda row: f"{row['server']} {row['principal']} {row['id']}", asked, paging.as_it_is
    )
    return 200, {"logins": page.pop("rows"), **page}


async def begin(logins: LoginsApi, body: bytes, client: Client) -> StatusAndBody:
    match decode(body):
        case {"server": str() as server, "as": str() as whom, **rest} if not rest:
            return await logins.begin(server, whom, client)
        case {"server": str() as server, **rest} if not rest:
            return await logins.begin(server, None, client)
    return 400, {"error": _SHAPE}
