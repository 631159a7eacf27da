"""All findings about a policy's rows: what each field may say, and what rows mean together. Pure.

A word outside the contract is an error, because it either vanishes without a trace or breaks every decision. Rows
without effect, unknown names and too wide rights are warnings, because a policy is written before its servers and
people are there. One error is among those: a pair of approvals of which nobody can say whom to ask.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, product
from operator import itemgetter
from typing import Final

from sluicegate.catalog.uris import is_clean, own_uri
from sluicegate.policy.classes import CLASSES
from sluicegate.policy.csv_rows import Row, granted, written
from sluicegate.policy.engine import RESERVED
from sluicegate.policy.finding import Level, PolicyFinding
from sluicegate.policy.globs import covers, has_open_set, is_glob, literal_start, matches, meets
from sluicegate.policy.profiles import NONE, ApprovalProfile, clash
from sluicegate.policy.roles import ANYBODY, AUTHENTICATED, BUILT_IN, EVERYONE, Grants, chains, held, is_principal
from sluicegate.protocol.model import Client

EFFECTS: Final = ("allow", "deny")
ADMIN: Final = "admin:"
_AREAS: Final = ("servers", "tools", "approvals", "grants", "pins", "audit", "secrets", "policy", "logins")
AREAS: Final = tuple(ADMIN + area for area in _AREAS)
_DECIDE: Final = ADMIN + "approvals"
_KINDS: Final = ("tool:", "prompt:", "res:")
_SERVER = re.compile(r"[a-z0-9*?\[\]!-]{1,64}")
_SUBJECTS: Final = "a principal (key:NAME, jwt:ISSUER#SUB, local, anonymous), role:NAME, group:NAME or *"


def check_words(rows: Iterable[Row], profiles: Collection[str]) -> Iterator[PolicyFinding]:
    for row in rows:
        yield from _grant(row) if row.kind == "g" else _rule(row, profiles)


def finding(row: Row, field: str, code: str, message: str, hint: str = "") -> PolicyFinding:
    return PolicyFinding(row.file, row.line, row.column(field), code, "error", message, hint)


def suggest(word: str, words: Iterable[str], otherwise: str = "") -> str:
    """Did you mean? Case counts nothing in the question, everything in the answer."""
    by_lower = {valid.lower(): valid for valid in words}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f'did you mean "{by_lower[near[0]]}"?' if near else otherwise


def _rule(row: Row, profiles: Collection[str]) -> Iterator[PolicyFinding]:
    sub, srv, obj, act, last = row.fields
    yield from _subject(row, "sub", sub)
    yield from _server(row, srv)
    yield from _object(row, srv, obj)
    if act not in (*CLASSES, "*"):
        valid = "read, write, destroy or *"
        yield finding(row, "act", "unknown-class", f'"{act}" is no class', suggest(act, CLASSES, valid))
    if row.kind == "p" and last not in EFFECTS:
        hint = "a comment stands on a line of its own" if "#" in last else suggest(last, EFFECTS, "allow or deny")
        yield finding(row, "eft", "wrong-effect", f'"{last}" is no effect', hint)
    if row.kind == "p2":
        yield from _profile(row, obj, last, profiles)


def _subject(row: Row, field: str, subject: str) -> Iterator[PolicyFinding]:
    valid = subject == ANYBODY or is_principal(subject) or subject.startswith(("role:", "group:"))
    if not valid or subject.endswith(":") or (subject.startswith("jwt:") and "#" not in subject):
        near = [kind + subject for kind in ("role:", "group:", "key:")]
        hint = f"write {' or '.join(near)}" if ":" not in subject and not is_glob(subject) else _SUBJECTS
        yield finding(row, field, "unknown-subject", f'"{subject}" is no subject', hint)
    elif subject != ANYBODY and subject.startswith(("role:", "key:")) and is_glob(subject):
        yield finding(row, field, "bad-glob", "a subject is a name, not a glob", "write one row each, or *")


def _server(row: Row, srv: str) -> Iterator[PolicyFinding]:
    if not _SERVER.fullmatch(srv):
        hint = "servers are named in small letters, digits and hyphens; globs are * ? [..]"
        yield finding(row, "srv", "bad-server", f'"{srv}" can be no server', hint)
    elif has_open_set(srv):
        yield finding(row, "srv", "bad-glob", 'a "[" without its "]"', "write [[] for the character itself")


def _object(row: Row, srv: str, obj: str) -> Iterator[PolicyFinding]:
    if has_open_set(obj):
        yield finding(row, "obj", "bad-glob", 'a "[" without its "]"', "write [[] for the character itself")
    elif srv == RESERVED and not row.denies:
        if obj not in (*AREAS, ADMIN + "*"):
            hint = suggest(obj, AREAS, f"{', '.join(AREAS)} or {ADMIN}*")
            yield finding(row, "obj", "unknown-object", f'"{obj}" is no right on Sluice', hint)
    elif obj.startswith(ADMIN):
        if srv != RESERVED:
            message = f'rights on Sluice itself need the server "{RESERVED}", written out; no wildcard reaches it'
            yield finding(row, "srv", "wildcard-on-sluice", message, f"write {RESERVED}")
    elif obj != "*" and not (obj.startswith(_KINDS) and obj not in _KINDS):
        otherwise = "tool:NAME, prompt:NAME, res:URI or *"
        kind, colon, _ = obj.partition(":")
        hint = suggest(kind + ":", _KINDS, otherwise) if colon else f"write tool:{obj}"
        yield finding(row, "obj", "unknown-object", f'"{obj}" is no object', hint)


def _profile(row: Row, obj: str, profile: str, profiles: Collection[str]) -> Iterator[PolicyFinding]:
    if profile == NONE:
        if is_glob(obj) or not obj.startswith("tool:"):
            message = "none exempts one tool from approvals, so it needs that tool's whole name"
            yield finding(row, "obj", "glob-exempt", message, "write tool:NAME, one row each")
    elif profile not in profiles:
        hint = suggest(profile, (*profiles, NONE), f"profiles are {', '.join((*sorted(profiles), NONE))}")
        yield finding(row, "profile", "unknown-profile", f'"{profile}" is no approval profile', hint)


def _grant(row: Row) -> Iterator[PolicyFinding]:
    member, role = row.fields
    yield from _subject(row, "member", member)
    if member == ANYBODY:
        yield finding(row, "member", "unknown-subject", "* is no member", "write role:everyone")
    if not role.startswith("role:") or role == "role:" or is_glob(role):
        yield finding(row, "role", "unknown-role", f'"{role}" is no role', f"write role:{role.rpartition(':')[2]}")
    elif role in BUILT_IN:
        yield finding(row, "role", "built-in-role", f"{role} is given by Sluice, never by a row", "remove the row")


_ALL: Final = frozenset({ANYBODY, EVERYONE})


@dataclass(frozen=True, slots=True)
class KnownNames:
    """What exists besides the policy; None where that is not known, so that nothing is said about it.
    `tools` are the own names of each server's tools; `roles` are those that clients get from the config."""

    servers: frozenset[str] | None = None
    tools: Mapping[str, frozenset[str]] = field(default_factory=dict)
    roles: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    issuers: frozenset[str] | None = None
    local: frozenset[str] = frozenset()  # the roles of the client `local`, who is the operator, too
    clients: tuple[Client, ...] = ()  # everybody, where no tokens are taken
    forwarding: frozenset[str] = frozenset()  # servers of which names are relayed that they did not list
    prefixes: Mapping[str, str] = field(default_factory=dict)  # before the URIs of each server, for clients


def check_sense(
    rows: Sequence[Row], profiles: Mapping[str, ApprovalProfile], existing: KnownNames
) -> Iterator[PolicyFinding]:
    """`rows` have no wrong words."""
    rules, grants = [row for row in rows if row.kind != "g"], [row for row in rows if row.kind == "g"]
    yield from _never_granted(rows, grants, existing)
    yield from _never_approved(rules, grants, profiles, existing)
    yield from _foreign_tokens(rows, existing)
    yield from _circles(grants)
    yield from _duplicates(rows)
    hints: dict[tuple[str, ...], str] = {}
    for row in rules:
        yield from _names(row, existing, hints)
        yield from _never_matches(row)
        yield from _nearly_sluice(row)
    yield from _shadowed(rules)
    yield from _too_much(rules)
    yield from _clashes(rules, profiles, granted(grants))


def lint(
    rows: Sequence[Row], profiles: Mapping[str, ApprovalProfile], existing: KnownNames | None = None
) -> list[PolicyFinding]:
    """What rows say is judged only where they use the right words: else one mistake is reported as many."""
    wrong = list(check_words(rows, profiles))
    at = {(finding.file, finding.line) for finding in wrong}
    sound = [row for row in rows if (row.file, row.line) not in at]
    odd = check_sense(sound, profiles, existing or KnownNames())
    files = list(dict.fromkeys(row.file for row in rows))
    return sorted([*wrong, *odd], key=lambda finding: (files.index(finding.file), finding.line, finding.column))


def _warn(row: Row, at: str, code: str, message: str, hint: str = "", level: Level = "warning") -> PolicyFinding:
    return PolicyFinding(row.file, row.line, row.column(at), code, level, message, hint)


def _never_granted(rows: Iterable[Row], grants: Iterable[Row], existing: KnownNames) -> Iterator[PolicyFinding]:
    if existing.roles is None:
        return
    granted = {row.last for row in grants} | existing.roles | BUILT_IN
    hints: dict[str, str] = {}  # comparing a name with all others takes long, and many rows have the same one
    for row in rows:
        name = row.fields[0]
        if name.startswith("role:") and name not in granted:
            if name not in hints:
                hints[name] = suggest(name, granted, "give it in the config's clients, or with a g row")
            at = "member" if row.kind == "g" else "sub"
            yield _warn(row, at, "role-never-granted", f"nobody has {name}", hints[name])


def _never_approved(
    rules: Iterable[Row], grants: Iterable[Row], profiles: Mapping[str, ApprovalProfile], existing: KnownNames
) -> Iterator[PolicyFinding]:
    if existing.roles is None:
        return
    given = {row.last for row in grants} | existing.roles | BUILT_IN
    able, edges = _who_may_decide(rules, grants, existing), granted(grants)

    @cache
    def people(profile: str) -> frozenset[str]:
        """Keys of one owner are one person."""
        deciders = profiles[profile].deciders
        return frozenset(
            (client.owner or client.principal).casefold() for client in existing.clients
            if not deciders.isdisjoint(held(client, edges))
        )  # fmt: skip

    for row in rules:
        deciders = profiles[row.last].deciders if row.kind == "p2" and row.last in profiles else frozenset()
        if deciders and all(name.startswith("role:") and name not in given for name in deciders):
            names = " or ".join(sorted(deciders))
            hint = "give it in the config's clients, or with a g row"
            yield _warn(row, "profile", "approver-never-granted", f"nobody has {names}, so nobody can approve", hint)
        elif deciders and able is not None and deciders.isdisjoint(able):
            message = f"no row lets {' or '.join(sorted(deciders))} decide, so nobody can approve"
            hint = written("p", min(deciders), RESERVED, _DECIDE, "*", "allow")
            yield _warn(row, "profile", "approver-without-right", message, hint)
        elif deciders and existing.issuers == frozenset() and len(people(row.last)) < profiles[row.last].quorum:
            names, count = " or ".join(sorted(deciders)), len(people(row.last))
            code, message = "approver-never-granted", f"nobody has {names}, so nobody can approve"
            hint = "give it in the config's clients, or with a g row"
            if count:
                code, hint = "quorum-too-high", f"give {names} to keys of other owners, or lower its quorum"
                message = f"{profiles[row.last].quorum} people have to approve, and {count} may, so nobody can"
            yield _warn(row, "profile", code, message, hint)


def _who_may_decide(rules: Iterable[Row], grants: Iterable[Row], existing: KnownNames) -> Collection[str] | None:
    """The subjects of whoever may decide on approvals, where that is `local` alone or nobody. None: others may, and
    which roles a key or a token has besides is not known here."""
    fields = [row.fields for row in rules if row.kind == "p" and not row.denies]
    subjects = {
        sub for sub, srv, obj, act, _ in fields
        if srv == RESERVED and obj in (_DECIDE, ADMIN + "*") and act in ("write", "*")
    }  # fmt: skip
    if subjects - {"local"}:
        return None
    return chains(("local", *existing.local), granted(grants)) if subjects else ()


def _foreign_tokens(rows: Iterable[Row], existing: KnownNames) -> Iterator[PolicyFinding]:
    hints: dict[str, str] = {}  # one issuer may have thousands of rows
    for row in rows:
        kind, _, name = row.fields[0].partition(":")
        issuer = name.partition("#")[0]
        if kind == "jwt" and existing.issuers is not None and issuer not in existing.issuers:
            if issuer not in hints:
                hints[issuer] = suggest(issuer, existing.issuers)
            at = "member" if row.kind == "g" else "sub"
            message = f"no token of {issuer} is taken, so nobody is {row.fields[0]}"
            yield _warn(row, at, "unknown-issuer", message, hints[issuer])


def _names(row: Row, existing: KnownNames, hints: dict[tuple[str, ...], str]) -> Iterator[PolicyFinding]:
    def unknown(at: str, code: str, message: str, word: str, words: Iterable[str], *among: str) -> PolicyFinding:
        if (code, word, *among) not in hints:
            hints[code, word, *among] = suggest(word, words)
        return _warn(row, at, code, message, hints[code, word, *among])

    sub, srv, obj, _, _ = row.fields
    if existing.keys is not None and sub.startswith("key:") and sub.removeprefix("key:") not in existing.keys:
        yield unknown("sub", "unknown-key", f"there is no {sub}", sub, (f"key:{key}" for key in existing.keys))
    if srv == RESERVED or existing.servers is None:
        return
    reached = [server for server in existing.servers if matches(server, srv)]
    if row.denies and obj.startswith(("tool:", "prompt:")) and not existing.forwarding.isdisjoint(reached):
        message = "a row that denies does not know the names that the server does not list, and those are relayed"
        hint = "allow by name what may be used, or remove unlisted: forward"
        yield _warn(row, "obj", "denies-unlisted", message, hint)
    if not reached:
        yield unknown("srv", "unknown-server", f'no server is called "{srv}"', srv, existing.servers)
    elif obj.startswith("res:"):
        found = own_uri(obj.removeprefix("res:"), {existing.prefixes.get(server, "") for server in reached})
        if found is not None:
            message = f"clients see {found[0]}+ before a URI; a row has the URI of the server"
            yield _warn(row, "obj", "public-uri", message, f"write res:{found[1]}")
    elif obj.startswith("tool:") and all(server in existing.tools for server in reached):
        names = sorted(name for server in reached for name in existing.tools[server])
        if not any(matches(name, obj.removeprefix("tool:")) for name in names):
            message = f"no tool there is called {obj.removeprefix('tool:')}"
            yield unknown("obj", "unknown-tool", message, obj, (f"tool:{name}" for name in names), *reached)


def _circles(grants: Iterable[Row]) -> Iterator[PolicyFinding]:
    edges = granted(grants)
    for row in grants:
        member, role = row.fields
        if member in chains((role,), edges):
            yield _warn(row, "role", "role-circle", f"{member} and {role} give each other: they are one role")


def _duplicates(rows: Iterable[Row]) -> Iterator[PolicyFinding]:
    first: dict[tuple[str, ...], Row] = {}
    for row in rows:
        same = first.setdefault((row.kind, *row.fields), row)
        if same is not row:
            at = "member" if row.kind == "g" else "sub"
            yield _warn(row, at, "same-row", f"the same as {same.where}", "remove it")


def _never_matches(row: Row) -> Iterator[PolicyFinding]:
    _, srv, obj, act, _ = row.fields
    if obj.startswith(("prompt:", "res:")) and act in ("write", "destroy"):
        message = f"prompts and resources are always read, never {act}"
        yield _warn(row, "act", "never-matches", message, "write read or *")
    if obj.startswith("res:") and not is_glob(obj) and not is_clean(obj.removeprefix("res:")):
        message = "a URI in this spelling is never found, so no request has it"
        hint = "write its scheme and host in small letters, no dot segments, and nothing encoded that need not be"
        yield _warn(row, "obj", "never-matches", message, hint)
    if srv == RESERVED and act == "destroy":
        yield _warn(row, "act", "never-matches", "rights on Sluice are read or write", "write write")


def _shadowed(rules: Sequence[Row]) -> Iterator[PolicyFinding]:
    denies = Denies(rules)
    for row in rules:
        if not row.denies:
            over = next((deny for deny in denies.near(row) if is_wider(deny, row)), None)
            if over:
                yield _warn(row, "obj", "shadowed", f"everything here is denied by {over.where}", "remove one of them")


class Denies:
    """The deny rows that could be wider than another row, found without a look at the others: each row compared with
    each is minutes for a policy of ten thousand. A glob is wider only than what begins with its own beginning."""

    def __init__(self, rules: Iterable[Row]) -> None:
        self._rows: dict[tuple[str, str, str], list[tuple[int, Row]]] = {}
        self._lengths: set[int] = set()
        for order, row in enumerate(rules):
            if row.denies:
                sub, srv, obj, _, _ = row.fields
                start = literal_start(obj)
                self._lengths.add(len(start))
                self._rows.setdefault((sub, "*" if is_glob(srv) else srv, start), []).append((order, row))

    def near(self, row: Row) -> Iterator[Row]:
        """In the order of the files."""
        sub, srv, obj, _, _ = row.fields
        begin = literal_start(obj)
        starts = [begin[:length] for length in self._lengths if length <= len(begin)]
        keys = product({*_ALL, AUTHENTICATED, sub}, {srv, "*"}, starts)
        found = [numbered for key in keys if key in self._rows for numbered in self._rows[key]]
        return (deny for _, deny in sorted(found, key=itemgetter(0)))


def is_wider(deny: Row, row: Row) -> bool:
    """Whether all that `row` can match is matched by `deny`, too."""
    sub, srv, obj, act, _ = deny.fields
    if act not in ("*", row.fields[3]):
        return False
    who = sub in _ALL or sub == row.fields[0] or (sub == AUTHENTICATED and row.fields[0].startswith(("key:", "jwt:")))
    return who and covers(srv, row.fields[1]) and covers(obj, row.fields[2])


def _nearly_sluice(row: Row) -> Iterator[PolicyFinding]:
    srv = row.fields[1]
    if not row.denies and srv not in (RESERVED, "*") and is_glob(srv) and matches(RESERVED, srv):
        message = f"{srv} does not reach Sluice itself: no wildcard does"
        hint = f"write {RESERVED} in a row of its own, if that was meant"
        yield _warn(row, "srv", "wildcard-on-sluice", message, hint)


def _too_much(rules: Sequence[Row]) -> Iterator[PolicyFinding]:
    asks = [row for row in rules if row.kind == "p2" and row.last != NONE]
    for row in rules:
        sub, srv, obj, act, last = row.fields
        everybody = row.kind == "p" and last == "allow" and sub in (*_ALL, AUTHENTICATED)
        if everybody and act in ("destroy", "*") and covers(obj, "tool:*") and not _is_asked(sub, srv, asks):
            who = "whoever has a credential" if sub == AUTHENTICATED else "everybody"
            message = f"{who} may use every tool here, those that destroy included"
            hint = "name roles, or ask with: p2, *, *, tool:*, destroy, confirm"
            yield _warn(row, "act", "allows-everything", message, hint)


def _is_asked(who: str, server: str, asks: Iterable[Row]) -> bool:
    """Whether all of them need an approval for every tool that destroys."""
    return any(
        sub in (*_ALL, who) and act in ("destroy", "*") and covers(srv, server) and covers(obj, "tool:*")
        for sub, srv, obj, act, _ in (ask.fields for ask in asks)
    )


def _clashes(rules: Iterable[Row], profiles: Mapping[str, ApprovalProfile], edges: Grants) -> Iterator[PolicyFinding]:
    asks = [row for row in rules if row.kind == "p2" and row.last != NONE]
    clashing = {row.last for row in asks for other in profiles.values() if clash(profiles[row.last], other)}
    for one, other in combinations((row for row in asks if row.last in clashing), 2):
        if not clash(profiles[one.last], profiles[other.last]) or not _may_meet(one, other):
            continue
        surely = _same_people(one.fields[0], other.fields[0], edges)
        message = f"{other.last} is as strict as {one.last} ({one.where}) but names other approvers"
        hint = "a call that both match is denied: make one of them stricter, or keep them apart"
        yield _warn(other, "profile", "clashing-approvals", message, hint, "error" if surely else "warning")


def _may_meet(one: Row, other: Row) -> bool:
    act, act_too = one.fields[3], other.fields[3]
    same_act = act == act_too or "*" in (act, act_too)
    return same_act and meets(one.fields[1], other.fields[1]) and meets(one.fields[2], other.fields[2])


def _same_people(one: str, other: str, edges: Grants) -> bool:
    """Whether somebody surely is both; two groups or two roles may or may not share a person."""
    everybody = _ALL | {AUTHENTICATED}
    return bool({one, other} & everybody) or other in chains((one,), edges) or one in chains((other,), edges)
