"""`login`, `logout` and `logins`: logging in to servers with OAuth. A login is kept in the state directory, where every
Sluice that runs on it finds it within a second.

With `--url` a gateway keeps the login. The browser returns to this machine, which hands over the code with the client's
key. So a link that is sent to somebody else logs nobody in.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, NoReturn, TypeVar
from urllib.parse import quote, urlsplit

import anyio
import httpx
import typer

from sluicegate import config
from sluicegate.app import login_service, replicas, state
from sluicegate.app import logins as app_logins
from sluicegate.app.browser import open_link
from sluicegate.app.login_callback import CallbackPort
from sluicegate.app.services import open_audit, open_egress
from sluicegate.app.settings import client_of
from sluicegate.cli.admin import Admin, GivenKey, KeyFile, answer, key_of, reasons
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import (
    Code,
    give,
    info,
    json_object,
    leaves,
    load,
    print_out,
    printable,
    stop,
    table,
    with_config,
)
from sluicegate.config import Config
from sluicegate.config.login import LoginSection
from sluicegate.listen.server import CannotListen
from sluicegate.login.logins import Logins
from sluicegate.login.model import Flow, LoginFailed, LoginInfo, LoginUnavailable
from sluicegate.oauth import Unfit, urls
from sluicegate.protocol.model import Client
from sluicegate.store import StoreFailed

_TOKEN: Final = "jwt:"
_ENDS: Final = (LoginFailed, LoginUnavailable, StoreFailed, CannotListen)
_CODES: Final = (Code.NEGATIVE, Code.UNREACHABLE, Code.CONFIG, Code.CONFIG)
_BEGIN_WITHIN: Final = 60.0  # a server and its authorization server may be slow
_PERSON: Final = 600.0

ServerName = Annotated[str, typer.Argument(metavar="SERVER", help="Its key in the config file.", show_default=False)]
AsWho = Annotated[
    str | None,
    typer.Option("--as", metavar="ID", show_default=False,
                 help="Whose login it is: a client; NAME means key:NAME. Unless set: local, the desktop's client."),
]  # fmt: skip
T = TypeVar("T")


def login(
    server: ServerName,
    as_: AsWho = None,
    paste: Annotated[
        bool, typer.Option("--paste", help="Where no browser of this machine is at hand: paste the address to which "
                                           "yours was sent.")
    ] = False,
    device: Annotated[
        bool, typer.Option("--device", help="Agree on another device: type the code that is printed at the address "
                                            "that is printed. Where the authorization server can do that.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Print the address and end, with exit code 10: the Sluice that runs "
                                             "finishes the login.")
    ] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address, and open no browser.")] = False,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", show_default=False,
                                 help="Log in to a server of the gateway with that MCP endpoint, with your client key.")
    ] = None,
    key_file: KeyFile = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Log in to a server. Opens its authorization server in a browser, and waits until you have agreed there. With
    --json, the address is one line of JSON, and the result another one."""
    if paste + device + no_wait > 1:
        stop(Code.USAGE, "--paste, --device and --no-wait exclude one another")
    if url is not None:
        if paste or device or no_wait or as_ is not None:
            stop(Code.USAGE, "--url excludes --as, --paste, --device and --no-wait: the login is of your key")
        _log_in_elsewhere(url, server, key_of(key_file, None), no_open, as_json)
        return
    loaded, whose = _whose(config_file, server, as_)
    if no_wait:
        _hand_over(config_file, server, as_, as_json)
    show = partial(_show, state=Path(loaded.state.dir), as_json=as_json, opens=not (no_open or paste))
    log_in = partial(_by_device, server, whose, as_json) if device else partial(
        _log_in, loaded, server, whose, show, paste
    )
    info_ = _run(loaded, log_in)
    more = f" It may: {printable(' '.join(info_.scopes))}." if info_.scopes else ""
    if as_json:
        print_out(json.dumps(login_service.shown(info_)))
    else:
        print_out(f"{app_logins.principal_of(whose)} is logged in to {server} by {printable(info_.issuer)}.{more}")


def logout(
    server: ServerName, as_: AsWho = None,
    all_: Annotated[bool, typer.Option("--all", help="The logins of all clients to that server.")] = False,
    config_file: ConfigFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Log out of a server. Its tokens are revoked there where it can be done, and deleted here in any case."""
    if all_ and as_ is not None:
        stop(Code.USAGE, "--all and --as exclude one another")
    loaded, whose = _whose(config_file, server, as_)
    done = _run(loaded, partial(_log_out, server, None if all_ else whose))
    if not done:
        who = "nobody is" if all_ else f"{app_logins.principal_of(whose)} is not"
        stop(Code.NEGATIVE, f"{who} logged in to {server}")
    rows = [{"server": server, "whose": app_logins.principal_of(whose), "revoked": revoked} for whose, revoked in done]
    here = "; its tokens are deleted here, and were not revoked there"
    lines = [f"{row['whose']} is logged out of {server}{'' if row['revoked'] else here}" for row in rows]
    give(as_json, {"logins": rows}, lines)


def logins(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show who is logged in to which server. No token is shown."""
    _, loaded = load(config_file, quietly=True)
    found = _run(loaded, Logins.all)
    rows = [dict(login_service.shown(one)) for one in found]
    if as_json or rows:
        cells = [[one["server"], one["whose"], one["state"], printable(one["issuer"]), _end(one["expires_at"]),
                  printable(" ".join(one["scopes"]))] for one in rows]  # fmt: skip
        head = ["SERVER", "WHOSE", "STATE", "ISSUER", "TOKEN ENDS", "SCOPES"]
        give(as_json, {"logins": rows}, [table([head, *cells], state="STATE")])
    else:
        info(f"nobody is logged in to a server; `{with_config('sluice login SERVER', config_file)}` logs in")


def _whose(config_file: Path | None, server: str, as_: str | None) -> tuple[Config, str]:
    """The config, and whose login is meant. Exits 2 where there can be none."""
    _, loaded = load(config_file, quietly=True)
    section = loaded.servers.get(server)
    if section is None:
        able = ", ".join(key for key, one in loaded.servers.items() if app_logins.may_log_in(one))
        stop(Code.USAGE, f"there is no server {printable(server)}; one can log in to: {able or 'none'}")
    if not isinstance(section, config.HttpServer):
        stop(Code.USAGE, f"{server} is started by Sluice: what it needs to log in stands in its `env`")
    if not app_logins.may_log_in(section):
        stop(Code.USAGE, f"{server} is disabled, or headers.Authorization is its credential")
    per = section.login.per if section.login else "client"
    who = as_ or "local"
    client = Client(who) if who.startswith(_TOKEN) else client_of(loaded, who)
    if client is None:
        stop(Code.USAGE, f"{printable(who)} is no client of this config: see clients.keys")
    whose = app_logins.whose(per, client)
    if not whose:
        how = f"write servers.{server}.login.per: gateway for one of all"
        stop(Code.USAGE, f"{printable(who)} can have no login: {how}")
    return loaded, whose


def _run(loaded: Config, use: Callable[[Logins], Awaitable[T]]) -> T:
    try:
        return anyio.run(_with_logins, loaded, use)
    except (ExceptionGroup, *_ENDS) as error:  # `except*` would wrap what ends the command, with Python 3.11.2
        found = list(leaves(error))
        if all(isinstance(one, _ENDS) for one in found):
            kind, code = next((kind, code) for kind, code in zip(_ENDS, _CODES, strict=True)
                              if any(isinstance(one, kind) for one in found))  # fmt: skip
            stop(code, *(str(one) for one in found if isinstance(one, kind)))
        raise


async def _with_logins(loaded: Config, use: Callable[[Logins], Awaitable[T]]) -> T:
    async with open_audit(loaded, "http") as audit, state.open_store(loaded) as store:
        own = state.ring(loaded, "login") if state.is_given(loaded, "login") else None
        ring = await replicas.agree(store, "login", own) if own else None
        clock = await replicas.clock(loaded, store)
        opened = login_service.open_logins(loaded, store, open_egress(loaded, audit), audit, ring=ring, clock=clock)
        try:
            return await use(opened)
        finally:
            await opened.aclose()


async def _log_in(
    loaded: Config, server: str, whose: str, show: Callable[[Flow], None], paste: bool, logins: Logins
) -> LoginInfo:
    if login_service.login_settings(loaded)[server].is_machine:
        await logins.bearer(server, whose)
        return next(one for one in await logins.all() if (one.server, one.whose) == (server, whose))
    if paste:
        return await _by_paste(loaded.login.callback, server, whose, show, logins)
    mine = token_urlsafe(32)  # no login that others began, with a link to this port, ends here
    async with CallbackPort(loaded.login.callback, partial(logins.finish, browser=mine)).open() as port:
        flow = await logins.begin(server, whose, port.redirect_uri, browser=mine)
        await anyio.to_thread.run_sync(show, flow)  # meanwhile the port answers
        done = await logins.wait(flow)
    if done is None:
        raise LoginFailed(f"nobody logged in within {loaded.login.within:g} s")
    return done


async def _by_paste(callback: str, server: str, whose: str, show: Callable[[Flow], None], logins: Logins) -> LoginInfo:
    mine = token_urlsafe(32)
    flow = await logins.begin(server, whose, callback, browser=mine)
    show(flow)
    info("Agree there. Your browser then fails to open an address of this machine: paste that address here.")
    address = (await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)).strip()
    return await logins.finish(urlsplit(address).query, callback, browser=mine)


async def _by_device(server: str, whose: str, as_json: bool, logins: Logins) -> LoginInfo:
    flow = await logins.begin_device(server, whose)
    if as_json:
        print_out(json.dumps({"url": flow.url, "user_code": flow.user_code, "url_complete": flow.complete}))
    else:
        info(f"Open this address in any browser, and type {flow.user_code}:\n{flow.url}")
    return await logins.finish_device(flow)


def _hand_over(config_file: Path | None, server: str, as_: str | None, as_json: bool) -> NoReturn:
    """The Sluice that runs begins the login, and waits for its end."""
    admin = Admin(config_file, key_of(None, None))
    body = {"server": server} | ({} if as_ is None else {"as": as_})
    response = admin.exchange("logins", body=body, within=_BEGIN_WITHIN)
    if response.status_code in (409, 503):
        stop(Code.NEGATIVE if response.status_code == 409 else Code.UNREACHABLE, *reasons(response))
    begun = answer(response)
    info("Open this address in a browser of this machine. The Sluice that runs finishes the login.")
    print_out(json.dumps({"url": begun["url"], "login": begun["login"]}) if as_json else printable(begun["url"]))
    raise typer.Exit(Code.ASK)


def _log_in_elsewhere(url: str, server: str, key: GivenKey | None, no_open: bool, as_json: bool) -> None:
    def show(address: str, login: str) -> None:
        flow = Flow(login, server, "", address, 0.0, "", ())
        _show(flow, state=Path(folder), as_json=as_json, opens=not no_open)

    with TemporaryDirectory(prefix="sluice-") as folder:  # there may be no state directory on this machine
        done = _by_gateway(url, server, key, show)
    if as_json:
        print_out(json.dumps(done))
    else:
        print_out(f"You are logged in to {printable(str(done.get('server')))} by {printable(str(done.get('issuer')))}.")


def _show(flow: Flow, state: Path, as_json: bool, opens: bool) -> None:
    if as_json:
        print_out(json.dumps({"url": flow.url, "login": flow.id}))
    elif opens and open_link(state, flow.url):
        info(f"Your browser opens {flow.url}")
    else:
        info(f"Open this address in a browser of this machine:\n{flow.url}")


async def _log_out(server: str, whose: str | None, logins: Logins) -> list[tuple[str, bool]]:
    every = [one.whose for one in await logins.all() if one.server == server]
    ended = [(one, await logins.logout(server, one)) for one in (every if whose is None else [whose])]
    return [(one, revoked) for one, revoked in ended if revoked is not None]


def _end(at: float | None) -> str:
    return "-" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")


def _by_gateway(url: str, server: str, key: GivenKey | None, show: Callable[[str, str], None]) -> dict[str, Any]:
    """Logs in at a gateway, and returns its answer. `show` takes the address to open, and the login's id. Exits if it
    fails."""
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
        return anyio.run(_log_in_there, api, key.value, show)
    except BaseExceptionGroup as group:  # task groups wrap what ended them
        error = next(leaves(group))
        if isinstance(error, LoginFailed | CannotListen):
            stop(Code.NEGATIVE if isinstance(error, LoginFailed) else Code.CONFIG, str(error))
        raise error from None


async def _log_in_there(api: str, key: str, show: Callable[[str, str], None]) -> dict[str, Any]:
    done: list[dict[str, Any]] = []
    returned = anyio.Event()
    # trust_env: a proxy from the environment must never see the key
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(headers=headers, timeout=_BEGIN_WITHIN, trust_env=False) as client:

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
        response = await client.post(url, json=body)
    except httpx.HTTPError as error:
        stop(Code.UNREACHABLE, f"{urlsplit(url).netloc} does not answer: {type(error).__name__}")
    try:
        answered = json_object(response.text)
    except ValueError:
        answered = {}
    if response.status_code == 200:
        return answered
    why = printable(str(answered.get("error", f"HTTP {response.status_code}")))
    if response.status_code == 401:
        stop(Code.AUTH, f"the gateway refuses this key ({why})")
    if response.status_code in (403, 404, 409):
        raise LoginFailed(why)
    stop(Code.UNREACHABLE, f"the gateway cannot begin this login: {why}")
