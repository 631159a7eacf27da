"""Logins as the admin API shows, begins and ends them. What an operator does is written down before it takes effect."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

from sluicegate.admin.logins import LoginsApi, StatusAndBody
from sluicegate.app.logins import LoginIndex, NoLogin, kind_of, principal_of
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client

_UNRECORDED: Final[StatusAndBody] = (503, {"error": "the audit log cannot be written: nothing was done"})


def logins_api(
    index: LoginIndex, client_of: Callable[[str], Client | None], act: Callable[..., Awaitable[bool]]
) -> LoginsApi:
    """`client_of` knows a client by what people call it; `act` records durably, and returns whether it may be done."""

    async def every() -> list[Json]:
        return [_row(info) for info in await index.all()]

    async def begin(server: str, whom: str | None, asks: Client) -> StatusAndBody:
        client = asks if whom is None else client_of(whom)
        if client is None:
            return 404, {"error": f"no such client: {whom}"}
        if objection := index.objection(server, client):
            return 404 if server not in index.able else 409, {"error": objection}
        whose = principal_of(index.whose(server, client))
        if not await act("login_begin", server=server, whose=whose, by=asks.principal):
            return _UNRECORDED
        try:
            link = await index.open_link(server, client, asks)
        except NoLogin as error:
            return 409 if error.is_final else 503, {"error": str(error)}
        return 200, {"server": server, "principal": whose, "login": link.id, "url": link.url}

    async def end(id: str, who: str) -> StatusAndBody:
        info = next((one for one in await index.all() if one.id == id), None)
        if info is None or not id:
            return 404, {"error": "no such login"}
        whose = principal_of(info.whose)
        if not await act("login_end", server=info.server, whose=whose, login=id, by=who):
            return _UNRECORDED
        revoked = await index.logout(info.server, info.whose)
        if revoked is None:
            return 404, {"error": "no such login"}
        return 200, {"id": id, "server": info.server, "principal": whose, "revoked": revoked}

    return LoginsApi(every, begin, end)


def _row(info: Any) -> Json:
    return {
        "id": info.id, "server": info.server, "principal": principal_of(info.whose), "kind": kind_of(info),
        "issuer": info.issuer, "client_id": info.client_id, "scopes": list(info.scopes), "state": info.state,
        "expires_at": stamp(info.expires_at), "renewed_at": stamp(info.renewed_at), "can_refresh": info.can_refresh,
        "last_error": info.problem,
    }  # fmt: skip


def stamp(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
