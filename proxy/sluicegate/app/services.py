"""What exists before any server does: the policy in force, the store, keys, the audit log, metrics, traces, identities.

They are opened in this order, and closed in the opposite order when everything that uses them has ended.
"""

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import anyio

from sluicegate import __version__, telemetry
from sluicegate.app import audit_heads, blocks, metric_sources, policy_loading, replicas, settings, state
from sluicegate.app.late import Late
from sluicegate.app.logins import DEFAULT, GATEWAY, SERVICE, LoginIndex, whose
from sluicegate.app.partition import WHOLE, Partition
from sluicegate.app.reload import Prepared, Reload, ToldReload, unprepared
from sluicegate.app.replicas import Replicas
from sluicegate.app.settings import client_of, without_revoked
from sluicegate.audit.log import AuditLog
from sluicegate.catalog_cache.definition_pins import PinEvent
from sluicegate.config import Config, HttpServer, StdioServer
from sluicegate.downstream.failures import LOCAL
from sluicegate.http.egress import AddressRefused, Egress
from sluicegate.http.fetch import Fetcher
from sluicegate.listen.auth import Identity
from sluicegate.listen.auth.issuers import KeySets
from sluicegate.metrics import Metrics, Sample
from sluicegate.policy.blocks import Blocks
from sluicegate.policy.files import LoadedPolicy
from sluicegate.policy.judge import AcceptedDefinitions, PolicyEngine
from sluicegate.policy.rulebook import nobody_accepted
from sluicegate.protocol.elicitation_urls import OwnUrls
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Client, Guard, Target
from sluicegate.store import Store, StoreFailed
from sluicegate.store.keys import KeyRing, KeyUnavailable, Sealer
from sluicegate.store.revoked import Revoked
from sluicegate.store.watch import Watch

PROBE_EVERY: Final = 0.5
LEARN_EVERY: Final = 1.0
"""Seconds until the store is asked again which keys are revoked, and what is blocked."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyListeners:
    """Parts that are made after the policy service, and that it needs."""

    identities: Late["Identities | None"] = field(default_factory=lambda: Late(None))
    has_accepted: Late[Callable[[Target], bool]] = field(default_factory=lambda: Late(nobody_accepted))
    on_change: Late[Callable[[Iterable[str] | None], None]] = field(default_factory=lambda: Late(lambda servers: None))
    """Rights may have changed: those on these servers, or all."""
    prepared: Late[Prepared] = field(default_factory=lambda: Late(unprepared))
    """What is read for a config before it comes into force."""
    on_rejected: Late[Callable[[int], None]] = field(default_factory=lambda: Late(lambda problems: None))
    """A changed config cannot be used, and has so many problems."""


class PolicyService:
    """The policy in force and the clients of the config. `later` are parts that are made of this one. `is_told`:
    another process reads the files, and tells what is in force.

    `on_config` is called when a reload brings a new config into force, and `later.on_change` after it.
    """

    def __init__(
        self, config: Config, loaded: LoadedPolicy, file: Path | None, transport: str, is_told: bool = False
    ) -> None:
        self._revoked = Revoked(Path(config.state.dir))
        self._learns = anyio.Lock()
        self._started = config
        self.config = without_revoked(config, self._revoked)
        """What is in force, as far as it can be without a restart; keys that were revoked are not."""
        self.later = PolicyListeners()
        self._accepted = AcceptedDefinitions(lambda target: self.later.has_accepted()(target))
        self.judge = PolicyEngine(policy_loading.make(config, loaded, None, self._accepted))
        self.reload = (ToldReload if is_told else Reload)(
            config, loaded.policy.revision, file, transport, self._apply,
            lambda problems: self.later.on_rejected()(problems), lambda config: self.later.prepared()(config),
        )  # fmt: skip
        self.on_config: list[Callable[[Config], None]] = []
        self._clock: Callable[[], float] = time.time  # of the replicas, once it learns among them

    def client_of(
        self, principal: str, roles: Iterable[str] | None = None, is_operator: bool | None = None
    ) -> Client | None:
        """Whoever may come in under that name: a client of the config, or the bearer of a token that was shown. What
        one token gives no other one does: `roles` are its groups, and `is_operator` says at which port it was shown.
        Where nothing decides by the answer, any token will do."""
        # On stdio a session has the roles of the start, as the note "needs a restart" says.
        is_fixed = principal == LOCAL and self.reload.transport == "stdio"
        if (found := client_of(self._started if is_fixed else self.config, principal)) is not None:
            return found
        identities = self.later.identities()
        return None if identities is None else identities.bearer_of(principal, roles, is_operator)

    def token_end(self, principal: str, roles: Iterable[str]) -> float | None:
        """When the newest token with these groups that a client has shown here ends, if it has not."""
        identities = self.later.identities()
        return None if identities is None else identities.token_end(principal, roles)

    def forget_accepted(self, server: str) -> Generator[None, None, None]:
        """What a person accepted counts for a tool's class, and so for who may use it. Nothing is remembered from now
        on; the rest, which tells others, is returned."""
        self._accepted.forget()
        return self._tell_accepted(server)

    def _tell_accepted(self, server: str) -> Generator[None, None, None]:
        yield
        self.judge.renew()
        self.later.on_change()((server,))

    async def run(self) -> None:
        """Notices that nothing can be decided any more, and that shadow mode is over."""
        while True:
            await anyio.sleep(PROBE_EVERY)
            self.look()
            if self._revoked.look():
                self._take(self.reload.config)
                self.later.on_change()(None)

    async def learn(self, store: Store, among: Replicas | None = None) -> None:
        """Takes what the store has of revoked keys and of blocks. Raises `StoreFailed`."""
        async with self._learns:  # what was read first must not take effect last
            since, found = time.monotonic(), await store.scan(state.REVOKED)
            if self._revoked.take(map(state.named, found)):
                self._take(self.reload.config)
                self.later.on_change()(None)
            stored = await blocks.read(store)
            if among is not None:
                self._clock = among.now
            if self.judge.block(Blocks(stored.rows), self._clock()):
                self.later.on_change()(None)
            if among is not None:
                among.learned(len(found), stored.version, self.judge.revision(), since)

    async def follow(self, store: Store, among: Replicas | None) -> None:
        watch, learned = Watch() if among is None else among.watch, None
        while True:
            await watch.turn(LEARN_EVERY)
            mark, since = watch.mark(state.REVOKED, blocks.BLOCKS), watch.since
            if among is not None and mark is not None and mark == learned:
                among.heard(self.judge.revision(), since)
                continue
            with suppress(StoreFailed):  # it has said why; what was known stays
                await self.learn(store, among)
                learned = mark

    def look(self) -> None:
        if self.judge.check(self._clock()):
            self.later.on_change()(None)

    def samples(self) -> Iterator[Sample]:
        yield "sluice_policy_info", (self.judge.revision(),), 1
        yield "sluice_policy_shadow", (), self.judge.in_force.is_shadow
        yield "sluice_policy_blocks", (), len(self.judge.blocks.rows)
        yield "sluice_policy_reload_success", (), not self.reload.problems
        yield "sluice_policy_last_reload_timestamp_seconds", (), self.reload.at
        yield "sluice_decision_errors", (), self.judge.errors

    def notes(self) -> list[str]:
        """What an operator should know although everything is ready."""
        notes = [f"not in force: {problem}" for problem in self.reload.problems]
        notes += [f"not in force: {text}" for text in self.reload.retained]
        notes += [f"needs a restart: {part}" for part in self.reload.restart]
        until = self.config.policy.until
        notes += [f"blocked: {row.what}" for row in self.judge.blocks.rows]
        notes += [self._revoked.problem] if self._revoked.problem else []
        return notes + ([f"the policy is in shadow mode until {until}"] if self.judge.in_force.is_shadow else [])

    def _apply(self, config: Config, loaded: LoadedPolicy) -> None:
        affected = self._affected(config, loaded)
        self.judge.in_force = policy_loading.make(config, loaded, None, self._accepted)
        if config.log != self.config.log:
            telemetry.configure(config.log.level, config.log.format)
        self._take(config)
        self._accepted.forget()  # another server may have a key by now
        self.judge.check(self._clock())  # shadow mode may be over since the policy was read, elsewhere
        self.later.on_change()(affected)

    def _affected(self, config: Config, loaded: LoadedPolicy) -> Iterable[str] | None:
        """The servers on which the new config may give other rights than the one in force; None for all of them."""
        before = self.reload.config
        if loaded.policy.revision != self.judge.revision() or before.keeping_servers_of(config) != config:
            return None
        now = config.servers
        return [key for key, server in before.servers.items() if key in now and server.tools != now[key].tools]

    def _take(self, config: Config) -> None:
        before = self.config.clients.keys.keys()
        self.config = without_revoked(config, self._revoked)
        for name in before & config.clients.keys.keys() - self.config.clients.keys.keys():
            log.info("key revoked", extra={"key": name})
        for listener in self.on_config:
            listener(self.config)


@asynccontextmanager
async def open_policy_service(
    config: Config, file: Path | None, transport: str, given_policy: LoadedPolicy | None = None
) -> AsyncIterator[PolicyService]:
    """Raises `PolicyError` where the policy cannot be used. Its tasks run as long as the block. Where another process
    reads the files, `given_policy` is what it has in force."""
    if given_policy is None:
        loaded = await anyio.to_thread.run_sync(policy_loading.load, config)
        for finding in loaded.warnings:
            log.warning(str(finding))
    else:
        loaded = given_policy
    made = PolicyService(config, loaded, file, transport, given_policy is not None)
    made.look()  # shadow mode may be over since the policy was read elsewhere
    async with anyio.create_task_group() as group:
        group.start_soon(telemetry.supervise, "decisions", made.run)
        group.start_soon(telemetry.supervise, "reload", made.reload.run)
        yield made
        group.cancel_scope.cancel()


@asynccontextmanager
async def open_audit(
    config: Config, transport: str, judge: PolicyEngine | None = None, registry: Store | None = None
) -> AsyncIterator[AuditLog | None]:
    """The log, open until everything else has ended; None where the config wants none. The store of a fleet has its
    newest checkpoint. Without a judge it is for the
    notes of a command, which is over before a sink is reached: whoever serves next sends them."""
    if not config.audit.enabled:
        yield None
        return
    digest, sign = state.ring(config, "digest"), state.ring(config, "sign")
    about, seeds = settings.audit(config, transport), sign.keys.values()
    if judge is None:
        audit = AuditLog(replace(about, sinks=(), confirm=None), digest.newest, seeds)
    else:
        audit = AuditLog(about, digest.newest, seeds, judge.classify, judge.revision)
    async with nullcontext() if registry is None else audit_heads.registering(audit, registry):
        try:
            await audit.start()
            yield audit
        finally:
            await audit.stop()


class Notes:
    """What is written down beside calls; nowhere, where there is no log."""

    def __init__(self, audit: AuditLog | None, judge: PolicyEngine, config: Config) -> None:
        self._audit, self._judge, self._config = audit, judge, config
        self._last: Json = {}
        self._refused = Counter({"none": 0, "credential": 0, "expired": 0})
        self.pin_changes = 0

    def policy(self) -> None:
        """Which policy decides from now on, and how, if that is another one than before."""
        judge = self._judge
        mode = "shadow" if judge.in_force.is_shadow else "enforce"
        now: Json = {"what": "in_force", "revision": judge.revision(), "mode": mode}
        if judge.problem:
            now |= {"what": "cannot_decide"}
        if now != self._last:
            self._last = now
            self._note("policy", now)

    def reloaded(self, now: Config) -> None:
        """A changed config is in force, as far as it can be without a restart, or a key was taken back."""
        before, self._config = self._config, now
        changed = [name for name in Config.model_fields if getattr(before, name) != getattr(now, name)]
        if changed:
            self._note("policy", {"what": "reloaded", "revision": self._judge.revision(), "changed": changed})
        for act, name in _keys(before, now):
            self.act(act, name=name)

    def rejected(self, problems: int) -> None:
        """A changed config cannot be used; what is wrong with it stands in the log for operators."""
        self._note("policy", {"what": "rejected", "revision": self._judge.revision(), "problems": problems})

    def act(self, act: str, **fields: str) -> None:
        """Records what an operator did to Sluice itself."""
        self._note("admin", {"act": act, **fields})

    async def act_durably(self, act: str, **fields: str) -> bool:
        """Records the same durably before it takes effect; returns whether it may."""
        return await act_durably(self._audit, act, **fields)

    def pin(self, event: PinEvent) -> None:
        """Records a decision about a definition."""
        self.pin_changes += 1
        note_pin(self._audit, event)

    def refused(self, address: str, reason: str) -> None:
        """Somebody who shows no good credential was not let in."""
        self._refused[reason] += 1
        if self._audit is not None:
            self._audit.identity_failure(address, reason)

    def samples(self) -> Iterator[Sample]:
        for reason, count in self._refused.items():
            yield "sluice_credentials_refused", (reason,), count

    def denied(self, principal: str, area: str, act: str) -> None:
        """Records that somebody lacks a right on Sluice itself."""
        decision = {"verdict": "deny", "rule": "no row allows it", "policy": self._judge.revision()}
        about = {"principal": principal, "server": "sluice", "object": f"admin:{area}", "act": act}
        self._note("decision", {**about, "decision": decision})

    def _note(self, type: str, fields: Json) -> None:
        if self._audit is not None:
            self._audit.note(type, fields)


async def act_durably(audit: AuditLog | None, act: str, **fields: str) -> bool:
    """Records what an operator is about to do; returns whether it may be done."""
    if audit is None:
        return True
    is_kept = await audit.note_durably("admin", {"act": act, **fields})
    return is_kept or audit.settings.on_failure == "allow_and_alarm"


def note_pin(audit: AuditLog | None, event: PinEvent) -> None:
    if audit is not None:
        audit.note("pin", asdict(event))


def _keys(before: Config, now: Config) -> Iterator[tuple[str, str]]:
    """Client keys that came and went: one with another hash is another key."""
    old, new = before.clients.keys, now.clients.keys
    for name in sorted({*old, *new}):
        is_same = name in old and name in new and old[name].hash == new[name].hash
        if name in old and not is_same:
            yield "key_revoked", name
        if name in new and not is_same:
            yield "key_added", name


class Identities:
    """Who gets in, as the config in force says: at the port for clients, and at the admin port.

    The keys of an issuer are fetched once for both ports.
    """

    def __init__(self, config: Config, egress: Egress) -> None:
        self._keysets = KeySets(Fetcher(egress))
        self.problems = self._keysets.problems
        self.clients = Identity(settings.identity(config), keysets=self._keysets)
        self.operators = Identity(settings.identity(config, admin=True), keysets=self._keysets)

    def replace(self, config: Config) -> None:
        self.clients.replace(settings.identity(config))
        self.operators.replace(settings.identity(config, admin=True))
        self._keysets.keep((one.issuer, one.jwks) for one in config.clients.jwt.issuers)

    def bearer_of(
        self, principal: str, roles: Iterable[str] | None = None, is_operator: bool | None = None
    ) -> Client | None:
        """The client whose token was shown at that port, or at one of them."""
        ports = [self.clients] * (is_operator is not True) + [self.operators] * (is_operator is not False)
        found = next((one for port in ports if (one := port.find(principal, roles)) is not None), None)
        return None if found is None else Client(found.name, found.roles, found.owner)

    def token_end(self, principal: str, roles: Iterable[str]) -> float | None:
        found = self.clients.find(principal, roles)
        return None if found is None else found.expires


def open_egress(config: Config, audit: AuditLog | None) -> Egress:
    def note(refused: AddressRefused) -> None:
        if audit is not None:
            address = {"for": refused.whose, "host": refused.host, "address": refused.address}
            audit.note("decision", {"what": "ssrf_blocked", **address, "why": refused.why})

    return Egress(config.network.allow_private, config.network.proxy, note)


LAST_SPANS: Final = 3.0
"""Seconds that a collector has for the last spans: one that is away must not keep Sluice from ending."""


@asynccontextmanager
async def open_tracer(config: Config) -> AsyncIterator[tuple[Guard, Guard] | None]:
    """Yields the guards that make spans towards clients and towards servers, None without a trace collector. Then a
    call costs nothing more, and a client's trace context is relayed unchanged."""
    endpoint = config.telemetry.otlp
    if not endpoint:
        yield None
        return
    # By name: the SDK is an extra, that the config's rules have looked for, and it takes 0.2 s to import.
    tracing = import_module("sluicegate.tracing")
    provider = tracing.provider(endpoint, __version__)
    try:
        yield tracing.guards(provider, __version__)
    finally:
        with anyio.move_on_after(LAST_SPANS, shield=True):
            await anyio.to_thread.run_sync(provider.shutdown, abandon_on_cancel=True)


@dataclass(frozen=True, slots=True)
class Services:
    config: Config
    """As it was at the start; what is in force now, `open_policy_service` has."""
    judging: PolicyService
    sealer: Sealer
    store: Store
    audit: AuditLog | None
    metrics: Metrics
    notes: Notes
    egress: Egress
    identities: Identities
    spans: tuple[Guard, Guard] | None
    partition: Partition
    own_pages: OwnUrls
    logins: LoginIndex
    replicas: Replicas | None
    watch: Watch
    clock: Callable[[], float]
    """Unix time. Everything in the store expires by it. Audit records and other issuers' tokens use the machine's
    clock."""


def _open_logins(
    judges: PolicyService, store: Store, egress: Egress, audit: AuditLog | None, metrics: Metrics,
    ring: KeyRing | None, clock: Callable[[], float],
) -> Any:  # fmt: skip
    service = import_module(SERVICE)  # by name: most desktops have no server that wants a login
    tally = service.LoginTally()
    metrics.watch(tally.samples)
    return service.open_logins(judges.config, store, egress, audit, tally, partial(_may_log_in, judges), ring, clock)


def _may_log_in(judges: PolicyService, server: str, for_whom: str, by: Client) -> bool:
    """Whether whoever began a login could begin it now. Of a token's bearer the groups of then are known."""
    if by.principal == LOCAL:
        return True
    config, found = judges.config, judges.client_of(by.principal, by.roles, None)
    section = config.servers.get(server)
    if settings.is_gone(config, by.principal) or not isinstance(section, HttpServer):
        return False
    now = found or by
    if now.credential != by.credential:
        return False
    if judges.judge.may_administer(now, "logins", "write"):
        return True
    per = (section.login or DEFAULT).per
    is_theirs = for_whom != GATEWAY and whose(per, now) == for_whom
    return is_theirs and judges.judge.may_see(Call(now, "tools/list", {}), server)


@asynccontextmanager
async def open_services(
    config: Config, file: Path | None, transport: str, partition: Partition = WHOLE,
    given_policy: LoadedPolicy | None = None,
) -> AsyncIterator[Services]:  # fmt: skip
    """Raises `PolicyError` where the policy cannot be used. `given_policy` as for `open_policy_service`."""
    async with AsyncExitStack() as stack:
        joined: Replicas | None = None
        judges = await stack.enter_async_context(open_policy_service(config, file, transport, given_policy))
        judge = judges.judge
        rings = {name: state.ring(config, name) for name in ("seal", "login") if state.is_given(config, name)}
        sealer = Sealer(rings["seal"] if rings else state.ring(config, "seal"))
        store = await stack.enter_async_context(state.open_store(config))
        if partition.count == 1:  # the supervisor has it for all workers
            joined = await stack.enter_async_context(replicas.join(config, store, rings))
        try:
            await judges.learn(store, joined)
        except StoreFailed:
            if config.state.url is not None:
                raise
            judge.await_blocks()  # it serves once the store can be read
        registry = store if config.fleet is not None else None
        audit = await stack.enter_async_context(open_audit(config, transport, judge, registry))
        spans = await stack.enter_async_context(open_tracer(config))
        metrics = Metrics(
            version=__version__, classify=judge.classify, transport="pipe" if transport == "stdio" else "tcp",
            piped=lambda key: isinstance(judges.config.servers.get(key), StdioServer),
        )  # fmt: skip
        metrics.watch(judges.samples)
        if audit is not None:
            metrics.watch(lambda: audit.tally().samples())
        if joined is not None:
            metrics.watch(joined.samples)
            metrics.watch(lambda: [("sluice_state_up", (), not store.problem)])
        metric_sources.expect(metrics, config)
        judges.on_config.append(partial(metric_sources.expect, metrics))
        notes = Notes(audit, judge, judges.config)
        metrics.watch(notes.samples)
        judges.on_config.append(notes.reloaded)
        judges.later.on_rejected.set(notes.rejected)
        notes.policy()
        egress = open_egress(config, audit)
        identities = Identities(judges.config, egress)
        judges.on_config.append(identities.replace)
        judges.later.identities.set(identities)
        own_pages = OwnUrls(config.listen.allowed_hosts)
        watch, clock = (Watch(), time.time) if joined is None else (joined.watch, joined.now)
        opened = partial(_open_logins, judges, store, egress, audit, metrics, rings.get("login"), clock)
        index = LoginIndex(opened, judges.config)
        stack.push_async_callback(index.aclose)
        metrics.watch(index.samples)
        with suppress(KeyUnavailable):  # a keyring may be unlocked later; calls say why until then
            await index.look()
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        group.start_soon(telemetry.supervise, "logins", index.run)
        group.start_soon(telemetry.supervise, "blocks and revoked keys", partial(judges.follow, store, joined))
        yield Services(
            config, judges, sealer, store, audit, metrics, notes, egress, identities, spans, partition, own_pages,
            index, joined, watch, clock,
        )
