"""Approvals, wired: the queue, what it asks of the rest, and what the guard and the admin port need of both."""

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from sluicegate.app import settings, state
from sluicegate.app.late import Late
from sluicegate.app.partition import WHOLE, Partition
from sluicegate.app.services import PolicyService
from sluicegate.app.settings import is_gone
from sluicegate.approval.eligibility import objection
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.approval.record import TRANSITIONS, Approval, CallBinding
from sluicegate.approval.validity import ApprovalDeps
from sluicegate.audit.log import AuditLog
from sluicegate.audit.redact import Redactor
from sluicegate.catalog_cache import Resolver
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.config import Config
from sluicegate.guards.approve import ApproveDeps
from sluicegate.guards.enforce import Decide
from sluicegate.metrics.scraped import Sample
from sluicegate.protocol.input_requests_client import elicits
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.methods import JUDGED_BY_NAME
from sluicegate.protocol.model import Call, Client, Target, Verdict
from sluicegate.store import Store
from sluicegate.store.watch import Watch

PageLink = Callable[[Approval], str]
"""Makes the link to the page of an approval; empty where there is no page."""


def open_queue(
    config: Config, judges: PolicyService, store: Store, audit: AuditLog | None, partition: Partition = WHOLE,
    clock: Callable[[], float] = time.time, watch: Watch | None = None,
) -> ApprovalQueue:  # fmt: skip
    """The queue over this store. It goes by the config in force from now on."""

    async def tell(fields: Json) -> bool:
        if audit is None:
            return True
        return await audit.note_durably("approval", fields) or audit.settings.on_failure == "allow_and_alarm"

    key = state.ring(config, "digest").newest
    setups = settings.setups(judges.config, key)
    deps = ApprovalDeps(
        roles_of=judges.judge.roles_of, client_of=judges.client_of,
        is_gone=lambda principal: is_gone(judges.config, principal), token_end=judges.token_end,
        revision=judges.judge.revision, tell=tell, is_mine=partition.has,
        identity_of=lambda server: settings.identity_of(judges.config, server),
        setup_of=lambda server: setups.get(server, ""), may_call=partial(_may_call, judges),
        is_told=partial(_is_told, judges), watch=watch or Watch(),
    )  # fmt: skip
    queue = ApprovalQueue(store, settings.approvals(config), deps, clock)

    def take(config: Config) -> None:
        nonlocal setups
        setups = settings.setups(config, key)
        queue.configure(settings.approvals(config))

    judges.on_config.append(take)
    return queue


def _may_call(judges: PolicyService, binding: CallBinding, target: Target | None) -> bool:
    """Whether the config in force lets its requester make such a call; its tool has the class of then, if its
    definition is not known here. Of a bearer who has shown no token since the start nothing is known: when they come
    again it is decided anew."""
    section = judges.config.servers.get(binding.server)
    client = judges.client_of(binding.principal, binding.roles, False)
    if section is None or not section.enabled:
        return False
    target = target or Target(binding.server, binding.kind, binding.own, binding.own)
    return client is None or judges.judge.may_still_call(client, target, binding.class_)


def _is_told(judges: PolicyService, who: Client, approval: Approval) -> bool | None:
    named = judges.config.hooks.items()
    keys = {name for name, hook in named if hook.key is not None and who.principal == f"key:{hook.key}"}
    if not keys:
        return None
    theirs = (one for one in settings.hooks(judges.config) if one.name in keys)
    return any(settings.told_of(one, judges.client_of, judges.judge.roles_by_policy, approval) for one in theirs)


def redactor(config: Config) -> Redactor:
    """Masks what people look at with the same marks as in the audit log."""
    key = state.ring(config, "digest").newest
    return Redactor(key, config.audit.redact.keys, config.audit.redact.pointers)


def approve_deps(
    config: Config, judges: PolicyService, resolver: Resolver, pins: DefinitionPins, page_link: Late[PageLink],
    decide: Decide,
) -> ApproveDeps:  # fmt: skip
    return ApproveDeps(
        decide=decide, check_arguments=judges.judge.check_arguments, renew=partial(_renew, resolver),
        current=partial(current, judges), classify=judges.judge.classify, review=pins.review, elicits=elicits,
        page_url=lambda approval: page_link()(approval), command=commands(config, judges), redactor=redactor(config),
    )  # fmt: skip


async def _renew(resolver: Resolver, call: Call, target: Target) -> Target | None:
    """What the call's public name stands for by now."""
    public = {**call.params, JUDGED_BY_NAME[call.method]: target.public}
    found = await resolver.resolve(replace(call, params=public))
    return found if found is not None and (found.server, found.own) == (target.server, target.own) else None


def current(judges: PolicyService, client: Client) -> Client | None:
    """A token keeps the groups that it came with: those of another one would be the rights of another call."""
    found = judges.client_of(client.principal, client.roles, client.is_operator)
    if found is None or is_gone(judges.config, client.principal) or found.credential != client.credential:
        return None  # a newer key of that name is another person's, maybe
    if (found.roles, found.owner) == (client.roles, client.owner):
        return client
    return replace(client, roles=found.roles, owner=found.owner)


def may_still(judges: PolicyService, decide: Decide, call: Call) -> bool:
    """Whether the rights and argument rules of now let a call be sent that has waited. What no person was asked about,
    and would be by now, may not be sent. `decide` counts what hooks have said of it."""
    if call.target is None or not call.trail.decisions:
        return True
    client = current(judges, call.client)
    if client is None:
        return False
    decision = decide(replace(call, client=client), call.target)
    if call.method == "tools/call" and judges.judge.check_arguments(call.target, call.params.get("arguments")):
        return False
    return decision.verdict is Verdict.ALLOW or decision == call.trail.decisions[-1]


def commands(config: Config, judges: PolicyService) -> Callable[[str, Approval], str]:
    """Commands as they work where they are pasted. Who is elsewhere learns no path of this machine."""
    file, is_stdio = judges.reload.file, judges.reload.transport == "stdio"
    is_here = file is not None and (is_stdio or settings.is_local_only(config))
    options = ["-c", str(file.absolute())] if is_here and file is not None else []
    elsewhere = "" if is_here else " on the machine where Sluice runs, or by its admin API"
    join = subprocess.list2cmdline if sys.platform == "win32" else shlex.join

    def command(words: str, approval: Approval) -> str:
        local = judges.client_of("local")
        is_theirs = local is None or objection(approval, local, judges.judge.roles_of(local))
        with_key = ", with their own key in $SLUICE_KEY" if is_theirs else ""
        program = _program() if is_here else ["sluice"]
        return join([*program, *words.split(), approval.id, *options]) + elsewhere + with_key

    return command


def _program() -> list[str]:
    """The command that runs this program, with its path unless a shell finds it by its name."""
    script = Path(sys.executable).with_name("sluice.exe" if sys.platform == "win32" else "sluice")
    if not script.exists():
        return [sys.executable, "-m", "sluicegate"]
    found = shutil.which("sluice")
    return ["sluice"] if found is not None and Path(found).resolve() == script.resolve() else [str(script)]


def samples(queue: ApprovalQueue) -> Iterator[Sample]:
    for profile, count in queue.pending().items():
        yield "sluice_approvals_pending", (profile,), count
    for profile, result in dict.fromkeys((*product(queue.settings.profiles, TRANSITIONS), *queue.counts)):
        yield "sluice_approvals", (profile, result), queue.counts[profile, result]
    oldest = min((one.created for one in queue.open_ones() if one.is_waiting), default=None)
    yield "sluice_approval_oldest_pending_seconds", (), 0.0 if oldest is None else queue.clock() - oldest


def time_waits(observe: Callable[[str, float], None], clock: Callable[[], float], approval: Approval) -> None:
    """For whoever wants to know how long people take: told of every change of an approval."""
    if approval.state in ("approved", "denied", "expired"):
        observe(approval.binding.terms.name, clock() - approval.created)
