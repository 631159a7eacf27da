"""`sluice login --url`: logging in to a server of a gateway, with a client key and in a browser of this machine.

The browser returns to this machine, and the code is handed over with the key: a link that is sent to somebody else
leads nowhere.
"""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, urlsplit

import anyio
import httpx

from sluicegate.app.login_callback import CallbackPort
from sluicegate.cli.admin import GivenKey
from sluicegate.cli.output import Code, json_object, leaves, printable, stop
from sluicegate.config.login import LoginSection
from sluicegate.listen.server import CannotListen
from sluicegate.login.model import LoginFailed, LoginInfo
from sluicegate.oauth import Unfit, urls

_WITHIN: Final = 60.0  # a server and its authorization server may be slow
_PERSON: Final = 600.0


def log_in_elsewhere(
    url: str, server: str, key: GivenKey | None, show: Callable[[str, str], None]
) -> dict[str, Any]:
    """What the gateway says of the login. `show` takes the address to open, and the login's id. Exits if it fails."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        stop(Code.USAGE, "--url takes the MCP endpoint of a gateway: https://mcp.example.com/mcp")
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        stop(Code.USAGE, "a key is sent over https only, but on this machine")
    if key is None:
        stop(Code.USAGE, "--url needs your client key: --key-file FILE, or $SLUICE_KEY")
    path = parts.path.rstrip("/").rpartition("/")[0]
    api = f"{parts.scheme}://{parts.netloc}{path}/login/api/{quote(server, safe='')}"
    try:
        return anyio.run(_log_in, api, key.value, show)
    except BaseExceptionGroup as group:  # task groups wrap what ended them
        error = next(leaves(group))
        if isinstance(error, LoginFailed | CannotListen):
            stop(Code.NEGATIVE if isinstance(error, LoginFailed) else Code.CONFIG, str(error))
        raise error from None


async def _log_in(api: str, key: str, show: Callable[[str, str], None]) -> dict[str, Any]:
    done: list[dict[str, Any]] = []
    returned = anyio.Event()
    # trust_env: a proxy from the environment must never see the key
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(headers=headers, timeout=_WITHIN, trust_env=False) as client:

        async def finish(query: str, redirect_uri: str) -> LoginInfo:
            answered = await _ask(client, f"{api}/code", {"query": query, "redirect_uri": redirect_uri})
            done.append(answered)
            returned.set()
            return LoginInfo(
                id=str(answered.get("login")), server=str(answered.get("server")), whose="",
                issuer=str(answered.get("issuer")), client_id="",
                scopes=tuple(map(str, answered.get("scopes", ()))), expires_at=None, state="ok", generation=0,
                can_refresh=False,
            )  # fmt: skip

        async with CallbackPort(LoginSection().callback, finish).open() as port:
            begun = await _ask(client, api, {"redirect_uri": port.redirect_uri})
            try:
                show(urls.openable(str(begun.get("url")), "address"), str(begun.get("login")))
            except Unfit as error:
                raise LoginFailed(f"the gateway: {error}") from None
            with anyio.move_on_after(_PERSON):
                await returned.wait()
    if not done:
        raise LoginFailed(f"nobody logged in within {_PERSON:g} s")
    return done[0]


async def _ask(client: httpx.AsyncClient, url: str, body: dict[str, str]) -> dict[str, Any]:
    try:
        answer = await client.post(url, json=body)
    except httpx.HTTPError as error:
        stop(Code.UNREACHABLE, f"{urlsplit(url).netloc} does not answer: {type(error).__name__}")
    try:
        answered = json_object(answer.text)
    except ValueError:
        answered = {}
    if answer.status_code == 200:
        return answered
    why = printable(str(answered.get("error", f"HTTP {answer.status_code}")))
    if answer.status_code == 401:
        stop(Code.AUTH, f"the gateway refuses this key ({why})")
    if answer.status_code in (403, 404, 409):
        raise LoginFailed(why)
    stop(Code.UNREACHABLE, f"the gateway cannot begin this login: {why}")
