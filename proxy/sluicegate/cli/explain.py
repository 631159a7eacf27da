"""`explain`: why a client may or may not do something, by the config and the policy as they stand on disk."""

import json
from typing import Annotated, Any

import typer

from sluicegate import config
from sluicegate.app import law
from sluicegate.call import Client, Decision
from sluicegate.cli.talk import AsJson, Code, ConfigFile, give, load, load_policy, say, stop
from sluicegate.policy.explain import EXIT, Explanation, render
from sluicegate.policy.roles import principal_of
from sluicegate.policy.target import METHODS, plain, read_target


def explain(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help=f"{', '.join(METHODS)}; or call, get, read for short.")
    ],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="SERVER/NAME or SERVER/URI, in the server's own words.")
    ],
    who: Annotated[
        str, typer.Option("--as", metavar="ID", help="Who asks: key:NAME or NAME, jwt:ISSUER#SUB, local, anonymous.")
    ],
    role: Annotated[
        list[str] | None, typer.Option("--role", metavar="ROLE", help="One more role than the config gives.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="GROUP", help="A group of the client's token.")
    ] = None,
    args: Annotated[str | None, typer.Option("--args", metavar="JSON", help="The call's arguments.")] = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Say what is decided and which row decides it. Exits 0 for allow, 1 for deny, 10 for ask."""
    path, loaded = load(config_file, quietly=True)
    policy = load_policy(path, loaded)
    try:
        asked = read_target(method, target)
    except ValueError as error:
        stop(Code.USAGE, str(error))
    client = _client(loaded, who, role or [], group or [])
    found = law.make(loaded, policy).rulebook.explain(client, asked, _arguments(args))
    if isinstance(found, Explanation):
        give(as_json, found.as_json(), [render(found)])
        raise typer.Exit(found.exit_code)
    _tell_listed(found, client, target, as_json)


def _tell_listed(found: Decision, client: Client, target: str, as_json: bool) -> None:
    """What the server's own tool lists decide, no row can change."""
    data = {"verdict": found.verdict.value, "rule": found.rule, "reason": found.reason, "principal": client.principal}
    head = f"{found.verdict.value.upper():5} {plain(target)}  for {plain(client.principal)}"
    why = f"  {plain(found.reason)} ({plain(found.rule)})  <- decides"
    give(as_json, data, [f"{head}  exit {EXIT[found.verdict]}", why])
    raise typer.Exit(EXIT[found.verdict])


def _client(loaded: config.Config, name: str, roles: list[str], groups: list[str]) -> Client:
    """With the roles that the config gives, and those of the command line beside them."""
    principal = principal_of(name)
    given = [*_roles_of(loaded.clients, principal)]
    given += [f"role:{role.removeprefix('role:')}" for role in roles]
    given += [f"group:{group.removeprefix('group:')}" for group in groups]
    return Client(principal, tuple(dict.fromkeys(given)))


def _roles_of(clients: config.Clients, principal: str) -> tuple[str, ...]:
    if principal == "local":
        return clients.local.roles
    if principal == "anonymous":
        return clients.anonymous.roles if clients.anonymous else ()
    key = clients.keys.get(principal.removeprefix("key:")) if principal.startswith("key:") else None
    if principal.startswith("key:") and key is None:
        say(f"note: the config has no {principal}")
    return key.roles if key else ()


def _arguments(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        stop(Code.USAGE, f"--args is no JSON: {error}")
    if not isinstance(value, dict):
        stop(Code.USAGE, "--args is no JSON object")
    return value
