"""The decision: may this client use this thing, and does a human have to agree?

Sync and without I/O: a decision is a function of a client, a target, its class and the rows. One `PolicyRules` is one
revision of the rows; it never changes, so what it once decided it may remember. casbin gives the verdict, this room
says which row gave it; where the two differ nobody gets through.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final
from unicodedata import normalize

from sluicegate.catalog import uris
from sluicegate.policy import roles
from sluicegate.policy.csv_rows import Row, granted
from sluicegate.policy.engine import NAMED, RESERVED, Engine, reaches
from sluicegate.policy.globs import covers, escape, is_glob, matcher, matches_folded, meets
from sluicegate.policy.memo import Memo
from sluicegate.policy.profiles import ApprovalProfile, find_need
from sluicegate.protocol.model import Client, Decision, Target, Verdict

_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


@dataclass(frozen=True, slots=True)
class Rule:
    """A `p` or `p2` row, taken apart once. `order` is its place among all rows."""

    order: int
    row: Row
    sub: str
    srv: str
    obj: str
    act: str
    effect: str  # of a `p2` row: allow, because it grants nothing that a wildcard may not
    matches_obj: Callable[[str], object]
    matches_decoded: Callable[[str], object]

    def matches(self, held: frozenset[str], server: str, obj: str, act: str) -> bool:
        """The sentence of the model file, said again by itself: explanations come from here, verdicts from casbin."""
        about = self.act in ("*", act) and bool(self.matches_obj(obj))
        return about and reaches(server, self.srv, self.effect) and self.sub in held


def read_rules(rows: Iterable[Row], kind: str) -> tuple[Rule, ...]:
    return tuple(_read(order, row) for order, row in enumerate(rows) if row.kind == kind)


def _decoded(glob: str) -> Callable[[str], object]:
    """For URIs that are decoded: what is encoded in the glob stands for itself."""

    def spelled(reading: int) -> str:
        return normalize("NFC", _ESCAPES.sub(lambda escapes: escape(uris.decoded(escapes[0])[reading]), glob))

    first, last = matcher(spelled(0)), matcher(spelled(-1))
    return first if first is last else lambda text: first(text) or last(text)


def _read(order: int, row: Row) -> Rule:
    sub, srv, obj, act, last = row.fields
    of_decoded = _decoded(obj) if obj.startswith("res:") else matcher(obj)
    return Rule(order, row, sub, srv, obj, act, last if row.kind == "p" else "allow", matcher(obj), of_decoded)


class RuleIndex:
    """Some rules, found by object: whole names in one step, globs one after the other."""

    __slots__ = ("_globs", "_named", "rules")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._globs = tuple(rule for rule in self.rules if is_glob(rule.obj))
        self._named: dict[str, tuple[Rule, ...]] = {}
        for rule in self.rules:
            if not is_glob(rule.obj):
                self._named[rule.obj] = (*self._named.get(rule.obj, ()), rule)

    def about(self, obj: str) -> list[Rule]:
        """In the order of the files."""
        found = [rule for rule in self._globs if rule.matches_obj(obj)]
        named = self._named.get(obj)
        return sorted((*named, *found), key=lambda rule: rule.order) if named else found


def shard(rules: Iterable[Rule], held: frozenset[str], server: str) -> RuleIndex:
    return RuleIndex(rule for rule in rules if rule.sub in held and reaches(server, rule.srv, rule.effect))


@lru_cache(16)  # a URI is judged for many listeners at about the same time
def _other_uris(uri: str) -> list[str]:
    """What else a server may take the URI for: it decodes, and then reads what it has got."""
    bare = uris.without_query(uri)
    # A query may decode to bytes that are no text, so the URI without it is decoded, too.
    read = (*uris.decodings(uri), *(uris.decodings(bare) if bare != uri else ()))
    found = dict.fromkeys(other for one in dict.fromkeys(read) for other in (one, *uris.readings(one)))
    return [f"res:{other}" for other in found if other != uri]


_Matches = Callable[[str], object]


@lru_cache(1024)  # a URI may be judged for many servers, by the same rows
def _means_one(matches_obj: _Matches, matches_decoded: _Matches, uri: str) -> bool:
    others = _other_uris(uri)
    if any(map(matches_obj, others)):
        return True
    return matches_decoded is not matches_obj and any(map(matches_decoded, (f"res:{uri}", *others)))


def _too_much(uri: str, objects: Collection[str]) -> str:
    """Why this URI's other spellings are not judged by rows with these objects; empty where they are."""
    if not uris.is_judged_quickly(uri):
        return _MARKS
    others, globs = _other_uris(uri), sum(map(is_glob, objects))
    size, names = sum(map(len, others)), len(objects) - globs
    if size * globs + len(others) * names <= _MAX_LOOKED_AT:
        return ""
    return (
        f"its {len(others)} other spellings have {size:,} characters: with {globs:,} globs and {names:,} whole names "
        f"of rows, more than {_MAX_LOOKED_AT:,}"
    )


DEFAULT_RULE: Final = "default"
MAX_DECISIONS: Final = 50_000
MAX_RESOURCES: Final = 10_000  # decisions on resources: a walk through a million of them must not push out the rest
MAX_REMEMBERED: Final = 512
"""Characters of a name or URI that is remembered itself: ten thousand of the longest URIs were hundreds of MiB. Of a
longer one it is a digest."""
MAX_SEEN: Final = 20_000
MAX_CLIENTS: Final = 10_000
MAX_SHARDS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Ruling(Decision):
    """A decision with what the later guards and the audit want to know of it. `rule` is the row that decided
    (`file:line`) or `default`; `profile` is set where a human is asked, `would_deny` where shadow mode let pass."""

    act: str = ""
    profile: str = ""
    would_deny: bool = False


class Disagreement(RuntimeError):
    """casbin and this room read the same rows differently. A bug; the caller refuses the request."""


@dataclass(frozen=True, slots=True)
class Matches:
    """The rows that speak of one request, in the order of the files, and what they say together."""

    allows: tuple[Row, ...]
    denies: tuple[Row, ...]
    approvals: tuple[Row, ...]

    @property
    def allowed(self) -> bool:
        return bool(self.allows) and not self.denies


_LOCAL: Final = "local"
_OTHER_URI: Final = "a row is about another spelling of this URI"
_MARKS: Final = "it has more marks in a row, odd bytes, or double encoding than can be judged"
_MAX_LOOKED_AT: Final = 400_000
"""Characters of a URI's other spellings, as often as globs look at them: 10 ms for `*x*`, and mostly a tenth of that.
A whole name is compared with each spelling in the time of one character."""
_NO_URI: Final = ("tool:", "prompt:")


class PolicyRules:
    """`shadow` lets pass what a `p` row, or the want of one, denies; everything else stays enforced."""

    def __init__(
        self, engine: Engine, rows: Sequence[Row], profiles: Mapping[str, ApprovalProfile], revision: str,
        shadow: bool = False,
    ) -> None:  # fmt: skip
        self.rows = tuple(rows)
        self.profiles = profiles
        self.revision = revision
        self.shadow = shadow
        self.grants = granted(rows)
        self._engine = engine
        self._rules = read_rules(rows, "p")
        self._approvals = read_rules(rows, "p2")
        self._subjects = frozenset(rule.sub for rule in (*self._rules, *self._approvals))
        self._held: Memo[tuple[str, tuple[str, ...]], frozenset[str]] = Memo(MAX_CLIENTS)
        self._shards: Memo[tuple[frozenset[str], str], tuple[RuleIndex, RuleIndex]] = Memo(MAX_SHARDS)
        self._decided: Memo[tuple[frozenset[str], str, str, str | bytes, str], Ruling] = Memo(MAX_DECISIONS)
        self._resources: Memo[tuple[frozenset[str], str, str, str | bytes, str], Ruling] = Memo(MAX_RESOURCES)
        self._seen: Memo[tuple[frozenset[str], str], bool] = Memo(MAX_SEEN)

    def __reduce__(self) -> tuple[type["PolicyRules"], tuple[object, ...]]:
        """In another process it decides the same, and remembers nothing."""
        return PolicyRules, (self._engine, self.rows, self.profiles, self.revision, self.shadow)

    def __repr__(self) -> str:
        mode = "shadow" if self.shadow else "enforce"
        count = len(self._decided) + len(self._resources)
        return f"PolicyRules({self.revision} {mode} {len(self.rows)} rows, {count} decisions kept)"

    def with_shadow(self, shadow: bool) -> "PolicyRules":
        """The same rows in the other mode (its end is a date, and dates are the caller's business)."""
        return PolicyRules(self._engine, self.rows, self.profiles, self.revision, shadow)

    def beside(self, rows: Sequence[Row], revision: str) -> "PolicyRules":
        """Other rows, read by the same model, with the same engine."""
        return PolicyRules(self._engine, rows, {}, revision)

    def apart(self) -> "PolicyRules":
        """The same with an engine of its own, for a thread: an engine holds the rows of one question."""
        found = object.__new__(PolicyRules)
        vars(found).update(vars(self), _engine=copy(self._engine))
        return found

    def decide(self, client: Client, target: Target, act: str) -> Ruling:
        """The one answer for lists, calls, reads and notifications; `act` is the target's class.

        Raises for what cannot be decided; the caller treats that as a deny.
        """
        held = self._held.get((client.principal, client.roles)) or self._hold(client)
        own: str | bytes = target.own
        if len(own) > MAX_REMEMBERED:
            own = sha256(target.own.encode("utf-8", "surrogatepass")).digest()
        key = (held, target.server, target.kind, own, act)
        memo = self._resources if target.kind == "res" else self._decided
        return memo.get(key) or memo.keep(key, self._decide(held, target, act))

    def decide_alike(self, client: Client, target: Target, act: str) -> Ruling | None:
        """The denial of what a row denies in another spelling, or lets nobody use without an approval: a name that its
        server has not listed, in other letters, or a URI; and of a URI that cannot be judged in its other spellings. In
        shadow mode deny rows do not count."""
        rules, approvals = self._shards_of(self.held(client), target.server)
        denies = () if self.shadow else [rule for rule in rules.rules if rule.effect == "deny"]
        own, obj, is_uri = target.own, f"{target.kind}:{target.own}", target.kind == "res"
        looking: dict[str, Rule] = {}  # equal objects look alike
        for rule in (*denies, *approvals.rules):
            if is_uri and (rule.act not in ("*", act) or rule.obj.startswith(_NO_URI)):
                continue
            looking.setdefault(rule.obj, rule)
        if is_uri and looking and _too_much(own, looking):
            looking = {one: rule for one, rule in looking.items() if not rule.matches_obj(obj)}
            if looking and (why := _too_much(own, looking)):
                return Ruling(Verdict.DENY, DEFAULT_RULE, why, act)
        for rule in looking.values():
            of_uri = rule.matches_obj, rule.matches_decoded, own
            is_alike = _means_one(*of_uri) if is_uri else matches_folded(obj, rule.obj)
            if is_alike and not rule.matches_obj(obj):  # what does has its say in `decide`
                what = _OTHER_URI if is_uri else "it is not listed, and a row is about other letters"
                return Ruling(Verdict.DENY, rule.row.where, what, act)
        return None

    def decide_template(self, client: Client, target: Target) -> Ruling:
        """Whether a resource template is shown: if what it may expand to meets a row that allows, and no deny row
        takes it all. The expanded URI is judged by itself."""
        held = self.held(client)
        key = (held, target.server, "template", target.own, "read")
        if len(target.own) > uris.MAX_URI:  # it matches nothing, and is not kept
            return self._judge_template(held, target)
        return self._decided.get(key) or self._decided.keep(key, self._judge_template(held, target))

    def decide_admin(self, client: Client, area: str, act: str) -> Ruling:
        """A right on Sluice itself: `area` is one of `words.AREAS`. Never in shadow."""
        held, obj = self.held(client), f"admin:{area}"
        ruling = self._judge(held, RESERVED, obj, act)
        if ruling.verdict is Verdict.DENY or act != "write" or area not in NAMED or client.principal == _LOCAL:
            return ruling
        rules = self._shards_of(held, RESERVED)[0].about(obj)
        if any(rule.effect == "allow" and rule.obj == obj and rule.act in ("*", act) for rule in rules):
            return ruling
        return Ruling(Verdict.DENY, DEFAULT_RULE, f"no row names {obj}, and {ruling.rule} does not reach it", act)

    def may_see(self, client: Client, server: str) -> bool:
        """Whether a client has any right on a server: on one without, not even its name is shown."""
        held = self.held(client)
        seen = self._seen.get((held, server))
        return seen if seen is not None else self._seen.keep((held, server), self._may_see(held, server))

    def _may_see(self, held: frozenset[str], server: str) -> bool:
        rules = self._shards_of(held, server)[0].rules
        denies = [rule for rule in rules if rule.effect == "deny"]
        return self.shadow or any(rule.effect == "allow" and not _is_covered(rule, denies) for rule in rules)

    def held(self, client: Client) -> frozenset[str]:
        """All of that as far as a row names it: equal for clients of equal rights."""
        return self._held.get((client.principal, client.roles)) or self._hold(client)

    def roles_of(self, client: Client) -> frozenset[str]:
        """All subjects that a client stands for, inherited roles included."""
        return roles.held(client, self.grants)

    def probe(self) -> bool:
        """A decision whose answer is known: false, or an exception, means that this policy cannot decide."""
        held, allow, deny = frozenset({"*"}), ("*", "*", "tool:*", "*", "allow"), ("*", "*", "*", "*", "deny")
        self._judge(held, "probe", "tool:probe", "read")
        answers = [
            self._engine.allows(held, "probe", "tool:probe", "read", rows)
            for rows in ((allow,), (allow, deny), (deny, allow), ())
        ]
        return answers == [True, False, False, False]

    def row_at(self, where: str) -> Row | None:
        return next((row for row in self.rows if row.where == where), None)

    def matches(self, client: Client, server: str, obj: str, act: str) -> Matches:
        """Every row that speaks of a request, found without casbin and without the shards."""
        held = roles.held(client, self.grants)
        return _sort(
            [rule for rule in self._rules if rule.matches(held, server, obj, act)],
            [rule for rule in self._approvals if rule.matches(held, server, obj, act)],
        )

    def conclude(self, found: Matches, server: str, act: str) -> Ruling:
        """Returns the verdict of all rows that match."""
        if found.allowed:
            ruling = Ruling(Verdict.ALLOW, found.allows[0].where, "a row allows it", act)
        else:
            ruling = self._denied(next(iter(found.denies), None), act, server)
        need = find_need(found.approvals, self.profiles)
        if ruling.verdict is Verdict.DENY or not need.row or need.exempt:
            return ruling
        if not need.profile:
            return Ruling(Verdict.DENY, need.row.where, "equally strict approvals name different approvers", act)
        reason = f"{ruling.reason} ({ruling.rule}), after approval ({need.profile.name})"
        return Ruling(Verdict.ASK, need.row.where, reason, act, need.profile.name, ruling.would_deny)

    def _hold(self, client: Client) -> frozenset[str]:
        """Only subjects that a row names: clients that differ in nothing that counts share their decisions."""
        held = roles.held(client, self.grants) & self._subjects | {roles.ANYBODY}
        return self._held.keep((client.principal, client.roles), held)

    def _shards_of(self, held: frozenset[str], server: str) -> tuple[RuleIndex, RuleIndex]:
        found = self._shards.get((held, server))
        if found is None:
            pair = shard(self._rules, held, server), shard(self._approvals, held, server)
            found = self._shards.keep((held, server), pair)
        return found

    def _decide(self, held: frozenset[str], target: Target, act: str) -> Ruling:
        return self._judge(held, target.server, f"{target.kind}:{target.own}", act)

    def _judge(self, held: frozenset[str], server: str, obj: str, act: str) -> Ruling:
        rules, approvals = (found.about(obj) for found in self._shards_of(held, server))
        request = (held, server, obj, act)
        found = _sort(
            [rule for rule in rules if rule.matches(*request)],
            [rule for rule in approvals if rule.matches(*request)],
        )
        if self._engine.allows(*request, [rule.row.fields for rule in rules]) != found.allowed:
            raise Disagreement(f"{act} {obj} on {server}: {found}")
        ruling = self.conclude(found, server, act)
        # A denied request needs no second question; one that is let through without an approval does.
        if approvals and ruling.verdict is not Verdict.DENY:
            if self._engine.asks(*request, [rule.row.fields for rule in approvals]) != bool(found.approvals):
                raise Disagreement(f"approval of {act} {obj} on {server}: {found}")
        return ruling

    def _judge_template(self, held: frozenset[str], target: Target) -> Ruling:
        start, is_open = "res:" + uris.literal_prefix(target.own), "{" in target.own
        pattern = escape(start) + ("*" if is_open else "")
        shards = self._shards_of(held, target.server)
        rules, approvals = ([rule for rule in found.rules if rule.act in ("*", "read")] for found in shards)
        allows = tuple(rule.row for rule in rules if rule.effect == "allow" and meets(rule.obj, pattern))
        taking = [rule for rule in rules if rule.effect == "deny" and (rule.obj.endswith("*") or not is_open)]
        denies = tuple(rule.row for rule in taking if rule.matches_obj(start))  # and all that begins so
        asks = tuple(rule.row for rule in approvals if meets(rule.obj, pattern))
        return self.conclude(Matches(allows, denies, asks), target.server, "read")

    def _denied(self, row: Row | None, act: str, server: str) -> Ruling:
        rule = row.where if row else DEFAULT_RULE
        reason = "a row denies it" if row else "no row allows it"
        if self.shadow and server != RESERVED:
            return Ruling(Verdict.ALLOW, rule, f"shadow mode: {reason}", act, "", True)
        return Ruling(Verdict.DENY, rule, reason, act)


def _sort(rules: Iterable[Rule], approvals: Iterable[Rule]) -> Matches:
    by_effect: dict[str, list[Row]] = {"allow": [], "deny": []}
    for rule in rules:
        by_effect[rule.effect].append(rule.row)
    return Matches(tuple(by_effect["allow"]), tuple(by_effect["deny"]), tuple(rule.row for rule in approvals))


def _is_covered(rule: Rule, denies: Iterable[Rule]) -> bool:
    return any(deny.act in ("*", rule.act) and covers(deny.obj, rule.obj) for deny in denies)
