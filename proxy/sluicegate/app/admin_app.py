"""The admin API, wired: the same application at the admin port, at a worker's socket and at that of a desktop client's
Sluice."""

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint
from starlette.types import ASGIApp

from sluicegate import __version__
from sluicegate.admin import AdminApplication
from sluicegate.admin.approval_page import Page
from sluicegate.admin.approvals import ApprovalsApi
from sluicegate.admin.calls import CallsApi
from sluicegate.admin.changes import Changes
from sluicegate.admin.endpoints import AdminDeps
from sluicegate.admin.logins import LoginsApi
from sluicegate.admin.paging import StatusAndBody
from sluicegate.admin.response import UNRECORDED
from sluicegate.admin.routes import step_up_of
from sluicegate.admin.verification import Verification
from sluicegate.app import explain_facts, replicas, settings
from sluicegate.app.approvals_api import people
from sluicegate.app.blocks_api import blocks_api
from sluicegate.app.core import Core
from sluicegate.app.logins import LoginIndex, NoLogin, kind_of, principal_of
from sluicegate.approval import messages
from sluicegate.approval.presentation import stamp
from sluicegate.audit.log import AuditLog
from sluicegate.config import Config
from sluicegate.listen.auth import Identity, Principal
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Client, Failure, Outcome, Result, Trail
from sluicegate.store import Store
from sluicegate.store.keys import Sealer

MAX_PER_PRINCIPAL: Final = 8
MAX_OPEN: Final = 64
SECONDS: Final = 20.0
_INFO: Final = {"name": "sluice-preview", "version": __version__}


class Previews:
    """A resource or a prompt for whoever asks at the admin port: a call of their own, through all guards. It has no
    capabilities: nobody answers what a server asks meanwhile. Eight at a time for each principal and 64 for all, of 20
    `seconds` each at most."""

    def __init__(self, core: Core, seconds: float = SECONDS) -> None:
        self._core, self._seconds, self._open = core, seconds, Counter[str]()

    async def show(self, client: Client, method: str, params: Json) -> Json | str:
        """The id of the call with its result or its failure; or why there was no call."""
        who = client.principal
        if self._open[who] >= MAX_PER_PRINCIPAL or self._open.total() >= MAX_OPEN:
            return "too many previews are open: try again in a moment"
        call = Call(replace(client, info=_INFO, is_operator=True), method, params, trail=Trail(secrets.token_hex(16)))
        outcome: Outcome | None = None
        self._open[who] += 1
        try:
            with anyio.move_on_after(self._seconds):
                outcome = await self._core.handler(call)
        finally:
            self._open[who] -= 1
            self._open += Counter()  # those that have none are forgotten
        if outcome is None and call.trail.awaits:
            outcome = await self._waits(call)
        return {"call": call.trail.id, **self._shown(call, outcome)}

    async def _waits(self, call: Call) -> Outcome | None:
        """What names the approval that the call waited for. The approval goes on: the same preview uses it."""
        approval = await self._core.queue.get(call.trail.awaits)
        if approval is None or not approval.is_waiting:
            return None
        text = f"it waits for the approval {approval.id}: preview it again once that is given"
        return messages.answer(call.method, "approval_pending", text, approval)

    def _shown(self, call: Call, outcome: Outcome | None) -> Json:
        match outcome:
            case Result(value):
                return {"result": value}
            case Failure(_, message, data, reason):
                about = data if isinstance(data, dict) else {}
                return {"failure": {"message": message, "reason": reason or "", "data": about}}
            case None:
                why = f"it took longer than {self._seconds:g} seconds"
            case _:
                self._core.abandon(call.trail.id)
                why = "the server asks its client something first"
        return {"failure": {"message": why, "reason": "", "data": {}}}


Note = Callable[[Json], Awaitable[bool]]
"""The console's: keeps an `admin` record, or says that it could not."""
_TOOLS: Final = "tools/list"
_AT_ONCE: Final = 8  # tools that are judged in one step of the event loop


def admin_application(
    config: Config, inner: Core, identity: Identity, token: str, is_stopping: Callable[[], bool]
) -> ASGIApp:
    """`identity` knows the clients that the admin port lets in, `token` is the operator's."""
    judges, audit = inner.services.judging, inner.services.audit
    history, calls = None, None
    if audit is not None:
        history = audit.settings.path.parent
        calls = CallsApi(history, audit.settings.own_state, audit.public_keys)
    previews = Previews(inner)
    changes = Changes(partial(_state, inner), lambda: inner.queue.waiting.is_closing)
    inner.queue.watchers.append(lambda approval: changes.notice("approval"))
    page = Page(inner.queue, judges.client_of, inner.services.sealer.unseal)

    def client_at(principal: str, toolset: str = "") -> Client | None:
        client = judges.client_of(principal)
        found = None if client is None else judges.judge.enter(client, toolset)
        return None if client is None or found is None else replace(client, toolset=found)

    async def cost(principal: str, toolset: str) -> Json | None:
        client = client_at(principal, toolset)
        if client is None:
            return None
        await inner.behind.lists.look(client)
        return await inner.router.search.cost(Call(client, "tools/list", {}), await inner.behind.lists.all(client))

    async def listed(method: str, principal: str) -> list[Json] | None:
        client = client_at(principal)
        return None if client is None else await inner.listed(client, method)

    async def took_effect() -> list[str]:
        services = inner.services
        await judges.learn(services.store, services.replicas)
        return [] if services.replicas is None else await replicas.unconfirmed(services.store)

    async def judge_tools(principal: str) -> list[Json] | None:
        client = client_at(principal)
        return None if client is None else await _judged_tools(inner, client)

    async def list_resources(principal: str, cursor: str) -> Json | str:
        client = client_at(principal)
        if client is None:
            return f"no such client: {principal}"
        return await inner.resources(client, cursor) or "the cursor is not one of this list, or not any more"

    def client_of(token: str) -> Client | None:
        found = identity.identify(bearer(token), True, None)
        return None if found is None else found.client

    async def admit(token: str) -> tuple[Client | None, str]:
        found = await identity.verify(bearer(token))
        return (found.client, "") if isinstance(found, Principal) else (None, found.reason)

    return AdminApplication(
        token,
        AdminDeps(
            ready=partial(_unready, inner, is_stopping),
            metrics=inner.services.metrics.scrape if config.telemetry.metrics else None,
            describe_servers=inner.measured,
            change_server=partial(_change_server, inner),
            list_tools=partial(listed, _TOOLS),
            judge_tools=judge_tools,
            cost=cost,
            list_prompts=partial(listed, "prompts/list"),
            list_resources=list_resources,
            output=inner.output,
            pins=inner.behind.pins,
            blocks=blocks_api(
                inner.services.store, lambda: judges.config, partial(explain_facts.of_tool, inner),
                inner.services.notes.act_durably, took_effect,
            ),
            logins=_logins_api(inner.services.logins, judges.client_of, inner.services.notes.act_durably),
            approvals=ApprovalsApi(inner.queue, people(judges, history, inner.behind.pins), inner.queue.book.store),
            page=page,
            facts=partial(explain_facts.running, inner),
            explain=partial(explain_facts.explain, inner),
            preview=previews.show,
            operator=lambda: Client("local", judges.config.clients.local.roles),
            client_of=client_of,
            admit=admit,
            may=judges.judge.may_administer,
            changes=changes,
            denied=inner.services.notes.denied,
            refused=inner.services.notes.refused,
            audit=audit,
            calls=calls,
            verification=None if audit is None else Verification(audit.settings, audit.public_keys),
            notes=partial(_notes, inner),
            status=lambda: {
                "version": __version__,
                "policy": {
                    "revision": judges.judge.revision(), "mode": ("enforce", "shadow")[judges.judge.in_force.is_shadow],
                },
                **({"counted": inner.services.metrics.counted()} if config.telemetry.metrics else {}),
            },
        ),
        settings.names(config),
    )


def _state(inner: Core) -> dict[str, Any]:
    """What is compared to say which topics changed; approvals say it themselves."""
    services, control = inner.services, inner.behind.control
    written = 0 if services.audit is None else services.audit.tally().records["file", "ok"]
    states = {key: (server.status, server.describe()["circuit"]) for key, server in control.servers.items()}
    judge = services.judging.judge
    return {
        "server": (states, control.disabled), "call": written, "pin": services.notes.pin_changes,
        "policy": (judge.revision(), judge.blocks.rows),
        "login": services.logins.state(),
    }  # fmt: skip


async def _change_server(inner: Core, key: str, action: str, who: str) -> tuple[int, Json]:
    """It is on the disk before it takes effect."""
    control = inner.behind.control
    if key in control.config.servers and not control.objection(key, action):
        if not await inner.services.notes.act_durably(f"server_{action}", server=key, by=who):
            return UNRECORDED
    if objection := control.objection(key, action):
        return 409 if key in control.config.servers else 404, {"error": objection}
    return 200, {"server": key, "action": action, "open_calls": control.act(key, action)}


def with_console(
    config: Config, application: ASGIApp, note: Note, store: Store, token: str, sealer: Sealer
) -> ASGIApp:  # fmt: skip
    """The admin port as people have it: with the console in front, unless the config says otherwise. `token` is the
    operator's."""
    if not config.console.enabled:
        return application
    room = import_module("sluicegate.console")  # where it is off, nothing of it is imported
    served: ASGIApp = room.Console(
        application, settings.names(config), note, step_up_of, store=store, operator_token=token, sealer=sealer
    )
    return served


def note_in(audit: AuditLog | None) -> Note:
    """Keeps records of what people do in the console; without a log there is nothing to keep."""

    async def note(fields: Json) -> bool:
        return audit is None or await audit.note_durably("admin", fields)

    return note


def bearer(token: str) -> bytes:
    return b"Bearer " + token.encode("utf-8", "surrogatepass")


def _notes(inner: Core) -> list[str]:
    services = inner.services
    doubt = services.store.warning if not services.config.state.replicated else ""
    # All replicas lose a database at once: they serve on, and `replicas.problem` ends that.
    down = services.store.problem if services.replicas is not None else ""
    unconfirmed = services.audit.warning if services.audit is not None else ""
    notes = [one for one in (doubt, down and f"the database cannot be used: {down}", unconfirmed) if one]
    notes += services.identities.problems()
    return [*services.judging.notes(), *notes, *(services.replicas.notes() if services.replicas is not None else ())]


def _unready(inner: Core, is_stopping: Callable[[], bool]) -> list[str]:
    """Why Sluice is not ready: it is about to end, nothing can be decided, calls could not be recorded, or a server
    that is `required` is not up. Others may come when they can."""
    unwritable = inner.services.audit.problem if inner.services.audit is not None else None
    inner.services.judging.look()
    reasons = ["Sluice is stopping: open calls may end"] * is_stopping()
    reasons += [inner.services.judging.judge.problem] * (inner.services.judging.judge.problem != "")
    reasons += [f"the audit log cannot be written: {unwritable}"] * (unwritable is not None)
    if inner.services.replicas is not None and (stale := inner.services.replicas.problem):
        reasons.append(stale)
    if inner.services.replicas is None and (problem := inner.services.store.problem):
        where = "state.dir" if inner.services.config.state.url is None else "PostgreSQL"
        reasons.append(f"the store in {where} cannot be used: {problem}")
    control = inner.behind.control
    sections, off = control.config.servers, control.disabled.items()
    reasons += [f"server {key} is disabled ({why})" for key, why in off if sections[key].required]
    return reasons + [
        f"server {key} is {server.status}"
        for key, server in control.servers.items()
        if sections[key].required and server.status != "up"
    ]


async def _judged_tools(inner: Core, client: Client) -> list[Json]:
    """Every tool that servers list for a client, with class, pin and verdict. `given`: whether it stands in the list
    that the client gets. For operators: clients are told nothing of it."""
    judge, pins = inner.services.judging.judge, inner.behind.pins
    given = {item["name"] for item in await inner.listed(client, _TOOLS)}
    call, rows = Call(client, "tools/call", {}), list[Json]()
    for catalog in await inner.behind.lists.recall(client):
        for entry in catalog.whole.entries(_TOOLS) if catalog.whole is not None else ():
            target = entry.target
            decision, found = judge.decide(call, target), judge.in_force.rulebook.classify(target)
            is_withheld = catalog.withholds("tool", target.public)
            rows.append({
                "name": target.public, "server": target.server, "own": target.own, "given": target.public in given,
                "class": found.name, "class_source": found.source, "verdict": decision.verdict.value,
                "rule": decision.rule, "pin": "withheld" if is_withheld else pins.review(target),
            })  # fmt: skip
            if len(rows) % _AT_ONCE == 0:
                await checkpoint()
    return rows


def _logins_api(
    index: LoginIndex, client_of: Callable[[str], Client | None], act: Callable[..., Awaitable[bool]]
) -> LoginsApi:
    """`client_of` knows a client by what people call it; `act` records durably, and returns whether it may be done."""

    async def every() -> list[Json]:
        return [_login(info) for info in await index.all()]

    async def begin(server: str, whom: str | None, asks: Client) -> StatusAndBody:
        client = asks if whom is None else client_of(whom)
        if client is None:
            return 404, {"error": f"no such client: {whom}"}
        if objection := index.objection(server, client):
            return 404 if server not in index.able else 409, {"error": objection}
        whose = principal_of(index.whose(server, client))
        if not await act("login_begin", server=server, whose=whose, by=asks.principal):
            return UNRECORDED
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
            return UNRECORDED
        revoked = await index.logout(info.server, info.whose)
        if revoked is None:
            return 404, {"error": "no such login"}
        return 200, {"id": id, "server": info.server, "principal": whose, "revoked": revoked}

    return LoginsApi(every, begin, end)


def _login(info: Any) -> Json:
    return {
        "id": info.id, "server": info.server, "principal": principal_of(info.whose), "kind": kind_of(info),
        "issuer": info.issuer, "client_id": info.client_id, "scopes": list(info.scopes), "state": info.state,
        "expires_at": _stamp(info.expires_at), "renewed_at": _stamp(info.renewed_at), "can_refresh": info.can_refresh,
        "last_error": info.problem,
    }  # fmt: skip


def _stamp(at: float | None) -> str:
    return "" if at is None else stamp(at)
