"""One server's tools, prompts and resource templates, frozen: what lists are answered from and names looked up in.

Pure: given own items as the server listed them (in modern form), it names, rewrites, drops what cannot be served and
says why. Knows nothing of clients, policy or time. Snapshots of equal content have equal digests, so that whoever
keeps them can keep one.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

from sluicegate.catalog import names, uri_fields
from sluicegate.catalog.list_bounds import ITEM, MAX_DEFINITION, PIECE
from sluicegate.catalog.uris import Rewriting
from sluicegate.protocol.jsonrpc import Json, Malformed, dump, inside
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Kind, Target
from sluicegate.protocol.modern_server import time_to_live
from sluicegate.protocol.pieces import in_one_step
from sluicegate.protocol.shape import Shape

# Resources are not held: there may be a million, and each can be asked for by its URI.
KINDS: Final[Mapping[str, Kind]] = {method: one.kind for method, one in LISTS.items() if method != "resources/list"}
"""The lists that are held, and what their items are. `resources/list` may be endless and is not among them."""

MAX_NAME: Final = 512
_ENTRIES: Final = 500  # that are looked through in one piece


@dataclass(frozen=True, slots=True)
class ServerNaming:
    """How one server is shown: its prefix ("" renames nothing), the longest public name, whether URIs stay plain.
    `fingerprint` is how its definitions are told apart, None where nobody compares them. `others` are the prefixes of
    other servers, `reserved` the names of Sluice's own tools. `shapes` are by kind and own name."""

    server: str
    prefix: str
    names_max: int
    plain: bool = False
    fingerprint: Callable[[Json], str] | None = None
    others: frozenset[str] = frozenset()
    reserved: frozenset[str] = frozenset()
    shapes: Mapping[tuple[Kind, str], Shape] = field(default_factory=dict)

    @property
    def uris(self) -> Rewriting:
        return Rewriting(self.prefix, self.plain, self.others)


@dataclass(frozen=True, slots=True)
class Entry:
    """`target.item` is the definition as the server gave it, `shown` as clients see it. `digest` tells one line of a
    list from another; `fingerprint` is of the definition alone, whatever the order of its keys. `size` is about how
    many bytes it has as it is sent."""

    target: Target
    shown: Json
    digest: bytes
    fingerprint: str = ""
    size: int = 0


class Indexed(tuple[Entry, ...]):
    """The entries of one list, and what is looked up in them, made once for all snapshots that they are part of."""

    digest: bytes
    find: Mapping[tuple[Kind, str], Entry]
    tools: Mapping[str, Entry]
    has_app: bool

    @cached_property
    def by_lower_name(self) -> Mapping[str, Sequence[Target]]:
        """Made at first use: few servers are called by names that they do not list."""
        found = defaultdict[str, list[Target]](list)
        for entry in self:
            for name in {entry.target.public.lower(), entry.target.own.lower()}:
                found[name].append(entry.target)
        return dict(found)

    @classmethod
    def made(cls, entries: Iterable[Entry]) -> Generator[None, None, "Indexed"]:
        """In pieces of `_ENTRIES`."""
        made, state = cls(entries), blake2b(digest_size=16)
        find, tools, has_app = dict[tuple[Kind, str], Entry](), dict[str, Entry](), False
        for number, entry in enumerate(made):
            state.update(entry.digest)
            find[entry.target.kind, entry.target.public] = entry
            if entry.target.kind == "tool":
                tools[entry.target.own] = entry
                has_app = has_app or _is_app(entry.target.item)
            if number % _ENTRIES == _ENTRIES - 1:
                yield
        made.digest, made.find, made.tools, made.has_app = state.digest(), find, tools, has_app
        return made


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ListSection:
    """One list of one server. `left_out` says in words what is not served and why; `cut` is that part of it which says
    where the list was cut. `size` is about the bytes of its definitions."""

    method: str
    entries: tuple[Entry, ...] = ()
    ttl_ms: int = 0
    left_out: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    size: int = 0

    @property
    def digest(self) -> bytes:
        return self.entries.digest if isinstance(self.entries, Indexed) else digest(self.entries)

    def again(self, ttl_ms: int, cut: tuple[str, ...]) -> "ListSection":
        """The same items, listed once more."""
        if (ttl_ms, cut) == (self.ttl_ms, self.cut):
            return self
        return replace(self, ttl_ms=ttl_ms, cut=cut, left_out=cut + self.left_out[len(self.cut) :])


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Snapshot:
    """`about` is what the server said of itself: capabilities, and instructions where it has any. `by_own` holds
    tools by own name; `has_app` is whether one of them brings a user interface (MCP Apps)."""

    server: str
    about: Json
    listings: Mapping[str, ListSection]
    digest: bytes
    ttl_ms: int
    find: Mapping[tuple[Kind, str], Entry] = field(repr=False)
    by_own: Mapping[str, Entry] = field(repr=False)
    has_app: bool

    def entries(self, method: str) -> tuple[Entry, ...]:
        listing = self.listings.get(method)
        return listing.entries if listing else ()

    def alike(self, method: str, name: str) -> Sequence[Target]:
        """Targets of that list whose public or own name is this one, in upper or lower case."""
        entries = self.entries(method)
        return _indexed(entries).by_lower_name.get(name.lower(), ()) if entries else ()

    def declares(self, capability: str) -> bool:
        return capability in self.about["capabilities"]

    @property
    def subscribes(self) -> bool:
        """Whether one can subscribe to its resources."""
        resources = self.about["capabilities"].get("resources")
        return isinstance(resources, dict) and resources.get("subscribe") is True


def digest(entries: Iterable[Entry]) -> bytes:
    """Equal for equal items in equal order: how a change of a list, or of a client's part of it, is noticed."""
    state = blake2b(digest_size=16)
    for entry in entries:
        state.update(entry.digest)
    return state.digest()


def listing_in_pieces(
    naming: ServerNaming, method: str, items: Iterable[Any], ttl_ms: int, cut: tuple[str, ...] = ()
) -> Generator[None, None, ListSection]:
    """The list as it is served: in the server's order, each name once (the first of equals wins)."""
    key = "uriTemplate" if KINDS[method] == "res" else "name"
    out = list(cut)
    sound: dict[str, tuple[Json, bytes]] = {}
    done = 0
    for item in items:
        if done >= PIECE:
            done = 0
            yield
        data = _encoded(item, key)
        done += ITEM // 4 + (len(data) if isinstance(data, bytes) else 0)
        if isinstance(data, str):
            out.append(f"{method}: {_label(item, key)}: {data}")
        elif item[key] in sound:
            out.append(f"{method}: {_label(item, key)}: listed twice, the first is served")
        else:
            sound[item[key]] = (item, data)
    public = yield from _public(naming, method, sound)
    out += [f"{method}: {own[:80]!r}: its public name is taken by another" for own in sound if own not in public]
    yield
    entries, size = list[Entry](), 0
    for own, (item, data) in sound.items():
        if own in public:
            size += len(data)
            entries.append(_entry(naming, method, own, public[own], item, data))
            if (done := done + len(data) + ITEM) >= PIECE:
                done = 0
                yield
    indexed = yield from Indexed.made(entries)
    return ListSection(method, indexed, ttl_ms, tuple(out), cut, size)


def _encoded(item: Any, key: str) -> bytes | str:
    """The definition as bytes, or why it cannot be served."""
    if not isinstance(item, dict):
        return "not an object"
    own = item.get(key)
    if not isinstance(own, str) or not own or len(own) > MAX_NAME:
        return f"{key} is not a text of 1 to {MAX_NAME} characters"
    try:
        data = dump(item)
    except Malformed as problem:
        return problem.text
    return data if len(data) <= MAX_DEFINITION else f"a definition of more than {MAX_DEFINITION} bytes"


def _label(item: Any, key: str) -> str:
    own = inside(item, key)
    return repr(own[:80]) if isinstance(own, str) else "no name"


def _public(naming: ServerNaming, method: str, own: Iterable[str]) -> Generator[None, None, Mapping[str, str]]:
    kind = KINDS[method]
    if kind == "res":
        return {uri: naming.uris.public(uri) for uri in own if not naming.uris.is_of_another(uri)}
    reserved = naming.reserved if kind == "tool" else ()
    called = _called(naming, kind, own)
    yield
    named = yield from names.publish_in_pieces(naming.server, naming.prefix, called, naming.names_max, reserved)
    return {own: named.public[name] for name, own in called.items() if name in named.public}


def _called(naming: ServerNaming, kind: Kind, own: Iterable[str]) -> dict[str, str]:
    """The names that public ones are made of -> own names. One that the operator gave wins over a server's own."""
    given = {shape.name: name for (of, name), shape in naming.shapes.items() if of == kind and shape.name}
    renamed = frozenset(given.values())
    plain = {name: name for name in own if name not in renamed and name not in given}
    return {name: given[name] for name in given if given[name] in own} | plain


def _entry(naming: ServerNaming, method: str, own: str, public: str, item: Json, data: bytes) -> Entry:
    kind = KINDS[method]
    shape = naming.shapes.get((kind, own))
    if shape is not None:
        data = dump(shape.shown(item))  # to clients it is another one
    shown = item if shape is None else shape.shown(item)
    if naming.prefix:
        shown = uri_fields.items(method, shown, naming.uris.public)
    if kind != "res" and public != own:
        shown = {**shown, "name": public}
    mark = blake2b(public.encode() + b"\0" + data, digest_size=16).digest()
    print_ = naming.fingerprint(item) if naming.fingerprint else ""
    size = len(data) + len(public) - len(own)
    return Entry(Target(naming.server, kind, own, public, item, shape=shape), shown, mark, print_, size)


def assemble(server: str, about: Json, listings: Mapping[str, ListSection]) -> Snapshot:
    """One snapshot out of the lists that are known so far; a list that is not among them is empty."""
    listings = {method: listings[method] for method in KINDS if method in listings}  # in whatever order they landed
    parts = {method: _indexed(held.entries) for method, held in listings.items()}
    filled = [part for part in parts.values() if part]
    find, tools = dict[tuple[Kind, str], Entry](), dict[str, Entry]()
    for part in filled if len(filled) > 1 else ():
        find |= part.find
        tools |= part.tools
    ttl_ms = min((held.ttl_ms for held in listings.values()), default=0)
    state = blake2b(dump([server, about, ttl_ms, [[m, held.ttl_ms, held.left_out] for m, held in listings.items()]]))
    for part in parts.values():
        state.update(part.digest)
    return Snapshot(
        server=server,
        about=about,
        listings=listings,
        digest=state.digest(),
        ttl_ms=ttl_ms,
        find=filled[0].find if len(filled) == 1 else find,  # the usual case, which copies nothing
        by_own=filled[0].tools if len(filled) == 1 else tools,
        has_app=any(part.has_app for part in parts.values()),
    )


def _indexed(entries: tuple[Entry, ...]) -> Indexed:
    return entries if isinstance(entries, Indexed) else in_one_step(Indexed.made(entries))


def without(whole: Snapshot, withheld: Collection[tuple[str, str]], instructions: bool = False) -> Snapshot:
    """The snapshot without these (kind, own name), and without the instructions where that is said; the same object
    if that changes nothing."""
    if not withheld and not instructions:
        return whole
    about = {key: value for key, value in whole.about.items() if key != "instructions" or not instructions}
    listings = {method: _thinned(held, withheld) for method, held in whole.listings.items()}
    return assemble(whole.server, about, listings)


def _thinned(held: ListSection, withheld: Collection[tuple[str, str]]) -> ListSection:
    entries = (entry for entry in held.entries if (entry.target.kind, entry.target.own) not in withheld)
    return replace(held, entries=_indexed(tuple(entries)))


def _is_app(item: Json | None) -> bool:
    """Whether a tool names its user interface (SEP-1865: `_meta.ui.resourceUri`, before that `ui/resourceUri`)."""
    names = ("ui", "resourceUri") if isinstance(inside(item, "_meta", "ui"), dict) else ("ui/resourceUri",)
    uri = inside(item, "_meta", *names)
    return isinstance(uri, str) and uri.startswith("ui://")


Make = Callable[[str, list[Any], int], Generator[None, None, ListSection]]
"""Makes a list of its method, its items and its time to live."""


def to_json(snapshot: Snapshot) -> Json:
    """What the store keeps: own items, so that a change of prefix or name length does no harm to them."""
    lists = {
        method: {"items": [entry.target.item for entry in held.entries], "ttlMs": held.ttl_ms}
        for method, held in snapshot.listings.items()
    }
    return {"about": snapshot.about, "lists": lists}


def from_json(server: str, value: Any, make: Make) -> Generator[None, None, Snapshot | None]:
    """The snapshot that was kept, of lists as `make` shows them now; None for what is not one (an older format)."""
    match value:
        case {"about": {"capabilities": dict()} as about, "lists": dict() as stored}:
            listings = dict[str, ListSection]()
            for method in KINDS:
                match stored.get(method, ...):
                    case {"items": list() as items, "ttlMs": int()} as held:
                        listings[method] = yield from make(method, items, time_to_live(held))
                    case other if other is not ...:
                        listings[method] = ListSection(method)
            return assemble(server, about, listings)
    return None
