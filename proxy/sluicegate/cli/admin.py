"""`servers` and `tools`: what a running Sluice says at its admin port."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer

from sluicegate import config
from sluicegate.cli.talk import AsJson, Code, ConfigFile, load, printable, stop, table, tell, tell_json

TIMEOUT: Final = 10.0
WIDTH: Final = 60  # of a column on a terminal
TOKEN_FILE: Final = "operator.token"

AdminKey = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", envvar="SLUICE_KEY", show_default=False,
                 help="A client key; else the operator token in state.dir."),
]  # fmt: skip


def servers(config_file: ConfigFile = None, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show the servers behind a running Sluice and their health."""
    body = _get(config_file, key, "servers", {})
    _show(body, "servers", as_json)
    for row in () if as_json else body.get("servers", []):
        if row.get("status") != "up" and row.get("stderr"):
            tell(f"\n{row['key']} is {row['status']}. The last that it wrote on stderr:")
            for line in row["stderr"]:
                tell(f"  | {printable(line)}")


def tools(
    config_file: ConfigFile = None,
    as_: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="As this client sees them; NAME means key:NAME.")
    ] = None,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show the merged tools of a running Sluice."""
    _show(_get(config_file, key, "tools", {"as": _principal(as_)} if as_ else {}), "tools", as_json)


def _principal(id: str) -> str:
    return id if ":" in id or id in ("local", "anonymous") else f"key:{id}"


def _show(body: Any, what: str, as_json: bool) -> None:
    """A table of what is plain text or a number; everything is in the JSON."""
    if as_json:
        tell_json(body)
        return
    rows: list[dict[str, Any]] = body.get(what, [])
    columns = list(dict.fromkeys(name for row in rows for name, cell in row.items() if _is_short(cell)))
    if rows:
        tell(table([[name.upper() for name in columns], *([_cell(row.get(name)) for name in columns] for row in rows)]))


def _is_short(cell: Any) -> bool:
    return isinstance(cell, str | int | float)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = " ".join(str(value).split()) if _is_short(value) else "-"
    is_whole = len(text) <= WIDTH or not sys.stdout.isatty()
    return text if is_whole else f"{text[: WIDTH - 1]}…"


class Unreachable(Exception):
    """No Sluice answers: why, and what to do."""


def exchange(
    loaded: config.Config, key: str | None, what: str, params: Mapping[str, str] | None = None, body: Any = None,
    method: str = "",
) -> httpx.Response:  # fmt: skip
    """One request at the admin port, a POST where there is a body. Raises `Unreachable`; exits if it is refused."""
    address = reachable(loaded.listen.admin)
    url, method = f"http://{address}/api/v1/{what}", method or ("GET" if body is None else "POST")
    try:
        # trust_env: a proxy from the environment must never see the token
        with httpx.Client(trust_env=False, timeout=TIMEOUT) as client:
            headers = credential(loaded, key, address)
            response = client.request(method, url, params=params, json=body, headers=headers)
    except httpx.HTTPError as error:
        raise unanswered(address, error) from None
    if response.status_code in (401, 403):
        reason = f"the admin port at {address} refuses this credential ({response.status_code})"
        hint = ["rights on Sluice itself are rows: p, local, sluice, admin:*, *, allow"] if key is None else []
        stop(Code.AUTH, reason, *_said(response), *(hint if response.status_code == 403 else []))
    return response


def credential(loaded: config.Config, key: str | None, address: config.Address) -> dict[str, str]:
    return {"Authorization": f"Bearer {key or _operator_token(loaded, address)}"}


def unanswered(address: config.Address, error: httpx.HTTPError) -> Unreachable:
    reason = f"no Sluice answers at {address} (listen.admin): {type(error).__name__}"
    return Unreachable(reason, "start it with `sluice serve`")


def _said(response: httpx.Response) -> list[str]:
    try:
        return [printable(str(response.json()["error"]))]
    except (ValueError, KeyError, TypeError):
        return []


def answer(response: httpx.Response) -> Any:
    """What stands in it, or the exit code that says why there is nothing."""
    if response.status_code == 404:
        stop(Code.NEGATIVE, "not found")
    try:
        if response.status_code == 200:
            return response.json()
    except ValueError:
        pass
    stop(Code.UNREACHABLE, f"what answers at {response.url} is no Sluice ({response.status_code})")


def _get(config_file: Path | None, key: str | None, what: str, params: Mapping[str, str]) -> Any:
    """One GET at the admin port, or the exit code that says why not."""
    _, loaded = load(config_file, quietly=True)
    try:
        return answer(exchange(loaded, key, what, params))
    except Unreachable as problem:
        stop(Code.UNREACHABLE, *problem.args)


def reachable(address: config.Address) -> config.Address:
    """Where a listener on every address is reached from this machine."""
    if address.host in ("0.0.0.0", "::"):
        return config.Address("::1" if ":" in address.host else "127.0.0.1", address.port)
    return address


def _operator_token(loaded: config.Config, address: config.Address) -> str:
    """The token of the running Sluice: made at its start, readable for its own user, good from loopback."""
    if not address.is_loopback:
        stop(Code.AUTH, "the operator token is for loopback only; give a key with --key or $SLUICE_KEY")
    path = loaded.state.dir / TOKEN_FILE
    try:
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        reason = f"no Sluice runs on this state directory: there is no {path}"
        raise Unreachable(reason, "start it: sluice serve") from None
    except (OSError, UnicodeDecodeError):
        stop(Code.AUTH, f"cannot read the operator token {path}; give a key with --key or $SLUICE_KEY")
