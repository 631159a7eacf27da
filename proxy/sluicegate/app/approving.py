"""Approvals, wired: the desk, what it asks of the rest, and what the guard and the admin port need of both."""

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

import anyio

from sluicegate.admin.approvals import Approvals, People
from sluicegate.app import slices
from sluicegate.app.auditing import KEYS, open_audit
from sluicegate.app.clients import is_gone
from sluicegate.app.judging import Judging, judging
from sluicegate.app.share import WHOLE, Share
from sluicegate.approval.book import ALL
from sluicegate.approval.desk import Desk, World
from sluicegate.approval.persons import objection
from sluicegate.approval.record import Approval
from sluicegate.approval.states import TRANSITIONS
from sluicegate.audit.log import Audit
from sluicegate.audit.read import last_calls
from sluicegate.audit.redact import Redactor
from sluicegate.call import Call, Client, Target
from sluicegate.config import Config
from sluicegate.era.client_asks import elicits
from sluicegate.guards.approve import Means
from sluicegate.lists import Resolver
from sluicegate.lists.pinboard import Pinboard
from sluicegate.message import Json
from sluicegate.metrics.scraped import Sample
from sluicegate.store import Store
from sluicegate.store.keys import KeyRing
from sluicegate.store.memory import MemoryStore
from sluicegate.store.sqlite import SqliteStore

DATABASE: Final = "sluice.db"
# What names a call's target, and so is public where it comes from a client.
_NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class Pages:
    """Links to the page of an approval, where there is an admin port; it comes last."""

    link: Callable[[Approval], str] | None = None

    def __call__(self, approval: Approval) -> str:
        return "" if self.link is None else self.link(approval)


def open_desk(config: Config, judges: Judging, store: Store, audit: Audit | None, share: Share = WHOLE) -> Desk:
    """The desk over this store. It goes by the config in force from now on."""

    async def tell(fields: Json) -> bool:
        if audit is None:
            return True
        return await audit.note_durably("approval", fields) or audit.settings.on_failure == "allow_and_alarm"

    world = World(
        roles_of=judges.judge.roles_of,
        client_of=judges.client_of,
        is_gone=lambda principal: is_gone(judges.config, principal),
        token_end=lambda principal: judges.token_end(principal),
        revision=judges.judge.revision,
        tell=tell,
        is_mine=share.has,
    )
    desk = Desk(store, slices.approvals(config), world)

    def take(config: Config) -> None:
        desk.settings = slices.approvals(config)
        desk.reconsider()

    judges.on_config.append(take)
    return desk


def redactor(config: Config) -> Redactor:
    """Masks what people look at with the same marks as in the audit log."""
    key = KeyRing.load(Path(config.state.dir) / KEYS, "digest").newest
    return Redactor(key, config.audit.redact.keys, config.audit.redact.pointers)


def means(config: Config, judges: Judging, resolver: Resolver, pins: Pinboard, pages: Pages) -> Means:
    return Means(
        decide=judges.judge.decide,
        renew=partial(_renew, resolver),
        current=partial(_current, judges),
        classify=judges.judge.classify,
        review=pins.review,
        elicits=elicits,
        page=pages,
        command=commands(config, judges),
        redactor=redactor(config),
    )


async def _renew(resolver: Resolver, call: Call, target: Target) -> Target | None:
    """What the call's public name stands for by now."""
    public = {**call.params, _NAMED_BY[call.method]: target.public}
    found = await resolver.resolve(replace(call, params=public))
    return found if found is not None and (found.server, found.own) == (target.server, target.own) else None


def _current(judges: Judging, client: Client) -> Client:
    found = judges.client_of(client.principal)
    return client if found is None else replace(client, roles=found.roles, owner=found.owner)


def commands(config: Config, judges: Judging) -> Callable[[str, Approval], str]:
    """Commands as they work where they are pasted. Who is elsewhere learns no path of this machine."""
    file, is_stdio = judges.reload.file, judges.reload.transport == "stdio"
    is_here = file is not None and (is_stdio or slices.is_on_this_machine(config))
    program = _program() if is_here else ["sluice"]
    options = ["-c", str(file.absolute())] if is_here and file is not None else []
    place = "" if is_here else " on the machine where Sluice runs, or by its admin API"
    join = subprocess.list2cmdline if sys.platform == "win32" else shlex.join

    def command(words: str, approval: Approval) -> str:
        local = judges.client_of("local")
        is_theirs = local is None or objection(approval, local, judges.judge.roles_of(local))
        with_key = ", with their own key in $SLUICE_KEY" if is_theirs else ""
        return join([*program, *words.split(), approval.id, *options]) + place + with_key

    return command


def _program() -> list[str]:
    """The command that runs this program, with its path unless a shell finds it by its name."""
    script = Path(sys.executable).with_name("sluice.exe" if sys.platform == "win32" else "sluice")
    if not script.exists():
        return [sys.executable, "-m", "sluicegate"]
    found = shutil.which("sluice")
    return ["sluice"] if found is not None and Path(found).resolve() == script.resolve() else [str(script)]


def samples(desk: Desk) -> Iterator[Sample]:
    for profile, count in desk.pending().items():
        yield "sluice_approvals_pending", (profile,), count
    for profile, result in dict.fromkeys((*product(desk.settings.profiles, TRANSITIONS), *desk.counts)):
        yield "sluice_approvals", (profile, result), desk.counts[profile, result]
    oldest = min((one.created for one in desk.open_ones() if one.is_waiting), default=None)
    yield "sluice_approval_oldest_pending_seconds", (), 0.0 if oldest is None else time.time() - oldest


def time_waits(observe: Callable[[str, float], None], approval: Approval) -> None:
    """For whoever wants to know how long people take: told of every change of an approval."""
    if approval.state in ("approved", "denied", "expired"):
        observe(approval.matter.terms.name, time.time() - approval.created)


def people(judges: Judging, log: Path | None, client_of: Callable[[str], Client | None]) -> People:
    """What the admin port has to know to show and decide approvals; `log` is the directory of the audit log."""

    async def history(principal: str) -> list[Json]:
        if log is None:
            return []
        try:
            return await anyio.to_thread.run_sync(last_calls, log, principal)
        except OSError:  # between two segments, or gone: what is shown is the less
            return []

    judge = judges.judge
    return People(client_of, judge.roles_of, judge.row_text, history)


@asynccontextmanager
async def at_rest(config: Config, read_only: bool = False) -> AsyncIterator[Approvals]:
    """The queue where no Sluice runs: what is decided here, whoever runs on this state directory finds. `read_only` is
    for a copy of it: nothing that happens to it is kept, and nothing is recorded. Raises `PolicyError` where the policy
    cannot be used, `OSError` where the store cannot."""
    async with AsyncExitStack() as stack:
        judges = await stack.enter_async_context(judging(config, None, "cli"))
        kept = SqliteStore(Path(config.state.dir) / DATABASE)
        stack.push_async_callback(kept.close)
        store: Store = kept
        audit = None
        if read_only:
            store = MemoryStore()
            for key, value in (await kept.scan(ALL)).items():
                await store.put(key, value)
        else:
            audit = await stack.enter_async_context(open_audit(config, "cli", judges.judge))
        desk = open_desk(config, judges, store, audit)
        await desk.refresh()
        log = slices.audit(config).path.parent if config.audit.enabled else None
        yield Approvals(desk, people(judges, log, judges.client_of), store)
