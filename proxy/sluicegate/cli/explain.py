"""`explain`: why a client may or may not do something, by the config and the policy as they stand on disk.

The verdict is found here, without casbin. What servers list, what a person accepted and which grants there are is asked
of the Sluice that runs, if it decides by the same config; else it is read from `state.dir`.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import anyio
import httpx
import typer

from sluicegate.app import explain_facts, policy_loading
from sluicegate.app import hooks as app_hooks
from sluicegate.cli.admin import Admin, Unreachable, asks_running
from sluicegate.cli.options import AsJson
from sluicegate.cli.output import Code, give, info, json_object, printable, stop, with_first_word
from sluicegate.cli.policy import load_policy
from sluicegate.config import Config
from sluicegate.downstream.failures import LOCAL
from sluicegate.policy.explain import EXIT, Explanation, render
from sluicegate.policy.facts import Facts
from sluicegate.policy.hooked import HookVerdict, combine
from sluicegate.policy.roles import principal_of
from sluicegate.policy.rulebook import Rulebook
from sluicegate.policy.target import KINDS, METHODS
from sluicegate.protocol.model import Call, Client, Decision, Trail, Verdict
from sluicegate.store import StoreFailed

_METHOD_OF = {KINDS[method]: method for method in METHODS}
_WORDS = {code: verdict.value for verdict, code in EXIT.items()}


@asks_running
def explain(
    admin: Admin,
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help=f"{', '.join(METHODS)}; or call, get, read for short.")
    ],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="SERVER/NAME or SERVER/URI; or the name that clients see.")
    ],
    who: Annotated[
        str,
        typer.Option("--as", metavar="ID", help="The client: key:NAME or NAME, jwt:ISSUER#SUB, local, anonymous."),
    ] = LOCAL,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="ROLE", help="A role besides those in the config; may be repeated."),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="GROUP", help="A group in the client's token; may be repeated."),
    ] = None,
    toolset: Annotated[
        str, typer.Option("--toolset", metavar="NAME", help="At this toolset; else the one of the client's roles.")
    ] = "",
    args: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="The arguments of the call, as a JSON object.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not ask a running Sluice; read the files in state.dir.")
    ] = False,
    hooks: Annotated[
        bool, typer.Option("--hooks", help="Ask the hooks about this call, too, with the arguments of --args.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the decision for a request and the row that makes it. Exits 0 for allow, 1 for deny, 10 for ask."""
    loaded, policy = admin.config, load_policy(admin.path, admin.config)
    if method not in KINDS:
        stop(Code.USAGE, f'"{method}" is not one of {", ".join(METHODS)}')
    question = {"as": principal_of(who), "method": method, "target": target}
    facts = None if offline else _ask(admin, question, explain_facts.digest(loaded, policy.policy.revision))
    if facts is None:
        look = partial(explain_facts.at_rest, loaded, policy.policy, *question.values())
        try:
            facts = anyio.run(look)
        except ValueError as error:
            stop(Code.USAGE, str(error))
        except StoreFailed as error:
            stop(Code.UNREACHABLE, f"what is stored cannot be read: {error}")
    client = _client(facts, question["as"], role or [], group or [])
    book = policy_loading.make(loaded.running(facts.servers), policy, facts.servers).rulebook
    if toolset and toolset not in loaded.toolsets:
        stop(Code.USAGE, f"--toolset: no toolset is called so; there is {', '.join(loaded.toolsets) or 'none'}")
    client = replace(client, toolset=toolset or (book.toolsets.enter(client, "") if book.toolsets else "") or "")
    found = book.explain_by(facts, client, KINDS[method], _arguments(args))
    for note in explain_facts.notes(loaded, facts, client):
        info(f"note: {note}")
    if isinstance(found, Explanation):
        concerned = app_hooks.concerned(loaded, client, found.target, book.policy.roles_of(client))
        answers, code = _ask_hooks(loaded, book, found, method, args) if hooks else ((), found.exit_code)
        data = found.as_json() | {"hooks": concerned}
        lines = [f"  hooks   on {on}: {', '.join(names)}" for on, names in concerned.items() if names]
        if hooks:
            data |= {"verdicts": [_verdict(one) for one in answers]}
            for one in answers:
                word = f"{one.word} {printable(one.profile)}".rstrip()
                lines.append(f'  {one.rule}  {word}  "{printable(one.reason)}"')
            lines.append(f"  together with what hooks say: {_WORDS[code]}, exit {code}")
        give(as_json, data, [with_first_word(render(found)), *lines])
        raise typer.Exit(code)
    _tell_listed(found, client, target, as_json)


def _verdict(one: HookVerdict) -> dict[str, str]:
    said = {"hook": one.hook, "verdict": one.word, "reason": one.reason}
    return said | ({"profile": one.profile} if one.profile else {})


def _ask_hooks(
    config: Config, book: Rulebook, found: Explanation, method: str, args: str | None
) -> tuple[tuple[HookVerdict, ...], int]:  # fmt: skip
    """What each hook says, and the exit code of that and the decision together. Of a denied call none is told."""
    if found.verdict is Verdict.DENY:
        return (), found.exit_code
    params = {"arguments": _arguments(args) or {}}
    call = Call(found.client, _METHOD_OF[KINDS[method]], params, target=found.target, trail=Trail("explain"))
    held = book.policy.roles_of(found.client)
    verdicts = anyio.run(app_hooks.ask_about, config, call, found.target, found.classified.name, held)
    ruling = found.ruling if found.granted is None else replace(found.ruling, verdict=Verdict.ALLOW, profile="")
    return verdicts, EXIT[combine(ruling, verdicts, lambda: policy_loading.profiles(config)).verdict]


def _ask(admin: Admin, question: dict[str, str], digest: str) -> Facts | None:
    """The facts of the Sluice that runs; None if there is none that decides by this config and tells this asker."""
    try:
        with admin.client() as client:
            response = client.get("policy/facts", params=question)
        body = response.json()
        if response.status_code == 200 and body["config"] == digest:
            return Facts.read(body["facts"])
        why = "it decides by another config" if response.status_code == 200 else printable(str(body["error"]))
        if response.status_code == 400:
            stop(Code.USAGE, why)
    except Unreachable:
        return None
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        why = f"it does not answer ({type(error).__name__})"
    info(f"note: this answer is from state.dir, not from the running Sluice: {why}")
    return None


def _tell_listed(found: Decision, client: Client, target: str, as_json: bool) -> None:
    """What the server's own tool lists decide, no row can change."""
    data = {"verdict": found.verdict.value, "rule": found.rule, "reason": found.reason, "principal": client.principal}
    head = f"{found.verdict.value.upper():5} {printable(target)}  for {printable(client.principal)}"
    why = f"  {printable(found.reason)} ({printable(found.rule)})  <- decides"
    give(as_json, data, [with_first_word(f"{head}  exit {EXIT[found.verdict]}"), why])
    raise typer.Exit(EXIT[found.verdict])


def _client(facts: Facts, principal: str, roles: list[str], groups: list[str]) -> Client:
    """With the roles that it comes in with, and those of the command line beside them."""
    given = [*(facts.roles or ())]
    given += [f"role:{role.removeprefix('role:')}" for role in roles]
    given += [f"group:{group.removeprefix('group:')}" for group in groups]
    return Client(principal, tuple(dict.fromkeys(given)))


def _arguments(text: str | None) -> dict[str, Any] | None:
    try:
        return None if text is None else json_object(text)
    except ValueError as error:
        stop(Code.USAGE, f"--args is no JSON object: {error}")
