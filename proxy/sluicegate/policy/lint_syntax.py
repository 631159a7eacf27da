"""The words of a row: what each field may say. Every finding here is an error, because a word outside the contract
either vanishes without a trace or breaks every decision.

Knows rows and profiles; not who or what exists (that is `sense`).
"""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from sluicegate.policy.classes import CLASSES
from sluicegate.policy.csv_rows import Row
from sluicegate.policy.engine import RESERVED
from sluicegate.policy.finding import PolicyFinding
from sluicegate.policy.globs import has_open_set, is_glob
from sluicegate.policy.profiles import NONE
from sluicegate.policy.roles import ANYBODY, BUILT_IN, is_principal

EFFECTS: Final = ("allow", "deny")
ADMIN: Final = "admin:"
_AREAS: Final = ("servers", "tools", "approvals", "grants", "pins", "audit", "secrets", "policy", "logins")
AREAS: Final = tuple(ADMIN + area for area in _AREAS)
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
