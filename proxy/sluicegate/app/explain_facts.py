"""The facts of an explanation, from the Sluice that runs or from the stores of one that does not: found by the same
functions, without a decision and without a question to any server."""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from importlib import import_module
from typing import Final

from sluicegate.app import blocks, policy_loading, settings, state
from sluicegate.app.core import Core
from sluicegate.app.settings import client_of, without_revoked
from sluicegate.approval import eligibility
from sluicegate.approval.grants import PREFIX as GRANTS
from sluicegate.approval.grants import Grant, Grants
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.approval.record import bind_any
from sluicegate.catalog.names import SEPARATOR, prefix_of
from sluicegate.catalog.snapshot import KINDS, Entry, ServerNaming, Snapshot
from sluicegate.catalog.uris import TemplateMatcher, is_clean, own_uri
from sluicegate.catalog_cache import CatalogCache, ListSettings, pin_store
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.catalog_cache.snapshot_store import SnapshotStore, places
from sluicegate.catalog_cache.target_resolver import unlisted_target
from sluicegate.config import Config
from sluicegate.downstream.failures import LOCAL
from sluicegate.policy.blocks import Blocks
from sluicegate.policy.csv_rows import Row, read_rows
from sluicegate.policy.explain import Explanation
from sluicegate.policy.facts import Candidate, Facts, GrantFact, State
from sluicegate.policy.pins import fingerprint
from sluicegate.policy.profiles import ApprovalProfile
from sluicegate.policy.roles import principal_of
from sluicegate.policy.rules import PolicyRules
from sluicegate.policy.target import KINDS as KIND_OF
from sluicegate.policy.target import printable
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client, Era, Kind, Target
from sluicegate.runtime.reader_threads import in_reader_thread
from sluicegate.store import Store
from sluicegate.store.memory import MemoryStore

_KEY: Final = re.compile(r"[a-z][a-z0-9-]*")
_AROUND: Final = 2
_MAX_COMPARED: Final = 1_000
_MAX_NEAR: Final = 128  # characters of a name that is compared with others
_HOOKS: Final = "sluicegate.app.hooks"  # by name: most configs have none
_LISTS: Final = {kind: method for method, kind in KINDS.items()}
Wholes = Callable[[str], Awaitable[list[tuple[Era, Snapshot]]]]
"""Everything that a server is known to have listed, withheld definitions included, best known first."""


def digest(config: Config, revision: str) -> str:
    """Equal for configs by which everything is decided alike. Variables that are set only elsewhere make no difference,
    and no secret is in it."""
    policy, clients = config.policy, config.clients
    about = [
        revision, policy.mode, str(policy.until), clients.local.roles,
        None if clients.anonymous is None else clients.anonymous.roles,
        {name: key.roles for name, key in clients.keys.items()},
        {
            key: [server.prefix, server.unlisted, server.tools.model_dump(mode="json")]
            for key, server in config.servers.items()
        },
        {name: one.model_dump(mode="json") for name, one in config.toolsets.items()},
    ]  # fmt: skip
    return sha256(json.dumps(about).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known of servers. `learned` are the keys of servers that listed a resource under a plain URI."""

    settings: ListSettings
    wholes: Wholes
    pins: DefinitionPins
    grants: Iterable[Grant]
    profiles: Mapping[str, ApprovalProfile]
    learned: Callable[[str], list[str]] = lambda uri: []

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self.settings.prefixes)

    async def candidates(self, client: Client, method: str, text: str, keys: Iterable[str]) -> tuple[Candidate, ...]:
        """`text` is SERVER/NAME, in the server's own words, or a public name or URI. `keys` are all servers of the
        config. Raises `ValueError` with a sentence for a text that can be neither."""
        kind = KIND_OF[method]
        server, slash, own = text.partition("/")
        if slash and own and server in keys:
            return (await self._candidate(client, kind, server, own, is_public=False),)
        if self.settings.transparent:
            return (await self._candidate(client, kind, self.servers[0], text, is_public=True),)
        by_prefix = {prefix: key for key, prefix in self.settings.prefixes.items()}
        if kind != "res" and SEPARATOR in text:
            key = by_prefix.get(prefix_of(text) or "")
            return () if key is None else (await self._candidate(client, kind, key, text, is_public=True),)
        if kind == "res" and (found := own_uri(text, by_prefix)):
            return (await self._candidate(client, kind, by_prefix[found[0]], found[1], is_public=False),)
        if slash and own and _KEY.fullmatch(server):
            return (Candidate(server, own),)
        if kind != "res" or ":" not in text:
            what = "SERVER/URI or PREFIX+URI" if kind == "res" else "SERVER/NAME or PREFIX__NAME"
            raise ValueError(f'"{text}" is not written {what}')
        listed = [*self.learned(text), *[key for key in self.servers if await self._has_template(key, text)]]
        plain = [key for key in self.servers if key in self.settings.plain]
        state: State = "listed" if is_clean(text) else "missing"
        return tuple(Candidate(key, text, state) for key in dict.fromkeys([*listed, *plain]))

    async def _has_template(self, server: str, uri: str) -> bool:
        matcher = TemplateMatcher(uri)
        return any(
            matcher.matches(entry.target.own) and self.pins.serves(server, era, entry.target, entry.fingerprint)
            for era, whole in await self.wholes(server)
            for entry in whole.entries("resources/templates/list")
        )

    async def _candidate(self, client: Client, kind: Kind, server: str, name: str, is_public: bool) -> Candidate:
        if kind == "res":  # relayed whether listed or not
            return Candidate(server, name, "listed" if is_clean(name) else "missing")
        method = _LISTS[kind]
        wholes = [(era, whole) for era, whole in await self.wholes(server) if method in whole.listings]
        entries = [(era, entry) for era, whole in wholes for entry in whole.entries(method)]
        same = [pair for pair in entries if name == (pair[1].target.public if is_public else pair[1].target.own)]
        served = [one.target for era, one in same if self.pins.serves(server, era, one.target, one.fingerprint)]
        if served:
            return self._listed(client, served[0])
        if same:
            return Candidate(server, same[0][1].target.own, "withheld")
        if self.settings.forward_unlisted:
            relayed = unlisted_target(server, kind, name, wholes[0][1] if wholes else None)
            return Candidate(server, name, "missing") if relayed is None else self._listed(client, relayed)
        own = name.partition(SEPARATOR)[2] if is_public and not self.settings.transparent else name
        near = "" if len(own) > _MAX_NEAR else await in_reader_thread(partial(_nearest, own, entries))
        return Candidate(server, own, "missing" if wholes else "unknown", near=near)

    def _listed(self, client: Client, target: Target) -> Candidate:
        accepted = self.pins.has_accepted(target)
        hints = (target.item or {}).get("annotations") if accepted else None
        return Candidate(
            target.server, target.own, "listed", accepted, hints if isinstance(hints, dict) else None,
            grants=tuple(self._grants(client, target)), unlisted=target.is_unlisted,
        )  # fmt: skip

    def _grants(self, client: Client, target: Target) -> Iterable[GrantFact]:
        bound = None  # for all of them: a definition may have a mebibyte, and is hashed
        for grant in self.grants:
            given, terms = grant.binding, self.profiles.get(grant.binding.terms.name)
            is_theirs = (given.principal, given.server, given.own) == (client.principal, target.server, target.own)
            if terms is None or not is_theirs:
                continue
            bound = bound or bind_any(client, target, given.rule, terms)
            by = {name: getattr(given, name) for name in ("rule", "identity", "class_", "setup")}
            if grant.covers(replace(bound, terms=terms, **by), grant.policy, grant.session):
                yield GrantFact(grant.id, given.rule, terms.name, given.class_, grant.expires, grant.session != "")


def live(
    lists: CatalogCache, pins: DefinitionPins, queue: ApprovalQueue, client: Client, revision: str, store: Store
) -> ServerFacts:
    """What this process knows of its servers; of one that has not listed yet, what is stored."""

    async def wholes(server: str) -> list[tuple[Era, Snapshot]]:
        own = lists.catalogs.get(server, client)
        catalogs = [own, *(one for one in lists.catalogs.of(server) if one is not own)]
        found = [(catalog.era, catalog.whole) for catalog in catalogs if catalog.whole is not None]
        return found or await SnapshotStore(store).all(lists.namings[server], lists.servers[server].identity)

    def learned(uri: str) -> list[str]:
        return [key for key in lists.servers if uri in lists.catalogs.get(key, client).learned]

    grants = [
        one for one in queue.grants.alive()
        if one.policy == revision and queue.identity_of(one.binding.server) == one.binding.identity
    ]  # fmt: skip
    return ServerFacts(lists.settings, wholes, pins, grants, queue.settings.profiles, learned)


async def running(inner: Core, principal: str, method: str, text: str) -> Json | str:
    """The facts of the Sluice that runs, and by which config it decides; a sentence for a question that is none."""
    judges = inner.services.judging
    facts = await _facts(inner, principal_of(principal), method, text)
    if isinstance(facts, str):
        return facts
    return {"config": digest(judges.reload.config, judges.judge.revision()), "facts": facts.as_json()}


async def explain(inner: Core, principal: str, method: str, text: str, arguments: Json | None) -> Json | str:
    """What the running Sluice decides about that request, and by which rows; a sentence for a question that is none.
    The rows are searched in a thread: there may be thousands."""
    judges, name = inner.services.judging, principal_of(principal)
    rulebook, config = judges.judge.in_force.rulebook, judges.reload.config
    facts = await _facts(inner, name, method, text)
    if isinstance(facts, str):
        return facts
    client = Client(name, facts.roles or ())
    client = replace(client, toolset=judges.judge.enter(client, "") or "")
    found = await in_reader_thread(partial(rulebook.explain_by, facts, client, KIND_OF[method], arguments))
    about: Json = {"notes": notes(config, facts, client)}
    if not isinstance(found, Explanation):
        decided = {"verdict": found.verdict.value, "rule": found.rule, "reason": found.reason, "principal": name}
        return about | decided
    matches = found.found
    rows = (*matches.denies, *matches.allows, *matches.approvals)
    row = next((row for row in rows if row.where == found.ruling.rule), None)
    source = None if row is None else await in_reader_thread(partial(_source, config, row))
    if config.hooks:
        about["hooks"] = import_module(_HOOKS).concerned(config, client, found.target, rulebook.policy.roles_of(client))
    return about | found.as_json() | ({} if source is None else {"source": source})


async def of_tool(inner: Core, text: str) -> Facts | str:
    """What SERVER/NAME or the name that clients see means; a sentence for what can be neither."""
    return await _facts(inner, LOCAL, "tools/call", text)


async def _facts(inner: Core, name: str, method: str, text: str) -> Facts | str:
    judges, lists = inner.services.judging, inner.behind.lists
    if method not in KIND_OF:
        return f'"{method}" is not one of {", ".join(KIND_OF)}'
    comes_in = judges.client_of(name)
    client = comes_in or Client(name)
    await lists.recall(client)
    server_facts = live(lists, inner.behind.pins, inner.queue, client, judges.judge.revision(), inner.services.store)
    try:
        found = await server_facts.candidates(client, method, text, judges.config.servers)
    except ValueError as error:
        return str(error)
    roles, judge = None if comes_in is None else comes_in.roles, judges.judge
    return Facts(server_facts.servers, found, roles, judge.problem, judge.blocks.rows)


def notes(config: Config, facts: Facts, client: Client) -> list[str]:
    """What the verdict does not depend on, or could not know."""
    found = []
    if facts.roles is None and client.principal.startswith(("key:", "anonymous")):
        found.append(f"the config has no {client.principal} that is let in")
    elif why := policy_loading.out_of_place(config, client.principal):
        found.append(why)
    for one in facts.candidates:
        if why := config.disabled.get(one.server, "") if one.server not in facts.servers else "":
            found.append(f"server {one.server} is disabled: {why}")
        elif one.state == "unknown" and one.server in facts.servers:
            found.append(f"no list of {one.server} is known, so nothing says whether it has {printable(one.own)}")
        section = config.servers.get(one.server)
        for (_, own), shape in (policy_loading.shapes(section) if section is not None else {}).items():
            if own == one.own:
                name = f"as {printable(shape.name)}" if shape.name else "under its own name"
                given = f", always with {', '.join(map(printable, sorted(shape.fixed)))}" if shape.fixed else ""
                found.append(f"{one.server}/{printable(own)} is shown {name}{given}")
        found += [f"in one session of this client nobody is asked: {one.id}" for one in one.grants if one.session]
    return found


def _source(config: Config, row: Row) -> Json | None:
    """The row's line in its file with two lines on either side; None if the file has another row there by now."""
    sources = policy_loading.sources(config)
    path = next((path for path in sources.files if sources.show(path) == row.file), None)
    try:
        text = "" if path is None else path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    if row not in read_rows(text, row.file)[0]:
        return None
    first = max(1, row.line - _AROUND)
    around = text.removesuffix("\n").split("\n")[first - 1 : row.line + _AROUND]
    return {"first": first, "lines": [line.removesuffix("\r") for line in around]}


def _nearest(own: str, entries: Sequence[tuple[Era, Entry]]) -> str:
    """The name that a server lists and that looks most like this one, among the first of them: a server may list ten
    thousand, and comparing one takes up to a millisecond."""
    names = {entry.target.own for _, entry in entries[:_MAX_COMPARED] if len(entry.target.own) <= _MAX_NEAR}
    return "".join(get_close_matches(own, names, n=1))


async def _record_nothing(fields: Json) -> bool:
    return True


async def at_rest(config: Config, policy: PolicyRules, principal: str, method: str, text: str) -> Facts:
    """The same from the state directory, which is only read. Raises `ValueError` for a question that is none."""
    store, prefixes = MemoryStore(), [pin_store.PINS, pin_store.WAITING, GRANTS]
    prefixes += [places(key, server.identity) for key, server in config.servers.items() if server.enabled]
    for stored_key, value in state.read(config, [*prefixes, blocks.BLOCKS]).items():
        await store.put(stored_key, value)
    name = principal_of(principal)
    config = without_revoked(config, state.revoked(config))
    client = client_of(config, name)
    now = state.now(config)
    server_facts = await stored(config, policy, store, now)
    found = await server_facts.candidates(client or Client(name), method, text, config.servers)
    blocked = Blocks((await blocks.read(store)).rows).at(now).rows
    return Facts(server_facts.servers, found, None if client is None else client.roles, blocks=blocked)


async def stored(config: Config, policy: PolicyRules, store: Store, now: float) -> ServerFacts:
    """What a store says of servers. Grants in it that no longer count are deleted, so it has to be a copy."""
    enabled = {key: server for key, server in config.servers.items() if server.enabled}
    pins = DefinitionPins(settings.pins(config), store)
    await pins.books.load()
    grants = Grants(store, _record_nothing, lambda: now)

    def objection(grant: Grant) -> str:
        giver, holder = client_of(config, grant.by), client_of(config, grant.binding.principal)
        is_good = (
            grant.policy == policy.revision
            and grant.binding.identity == settings.identity_of(config, grant.binding.server)
            and not settings.is_gone(config, grant.by)
            and eligibility.supports(grant, giver, policy.roles_of(giver) if giver else (), holder)
        )
        return "" if is_good else "it does not count any more"

    await grants.refresh(objection, lambda who, roles: None)
    listing, snapshots = settings.lists(config, enabled, "http"), SnapshotStore(store)

    async def wholes(server: str) -> list[tuple[Era, Snapshot]]:
        if server not in enabled:
            return []
        naming = ServerNaming(
            server, listing.prefixes[server], listing.names_max, server in listing.plain, fingerprint,
            listing.others(server), listing.reserved, listing.shapes.get(server, {}),
        )  # fmt: skip
        return await snapshots.all(naming, enabled[server].identity)

    return ServerFacts(listing, wholes, pins, list(grants.alive()), settings.approvals(config).profiles)
