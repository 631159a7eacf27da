"""What of a call is written down or shown: secrets replaced, sizes bounded, everything in printable ASCII.

Three things make a value a secret: a name (of its member, or in the text around it: `credentials`), the look of
well-known credentials (`vendors`), and places that the operator names for a tool (JSON pointers, RFC 6901). JSON inside
a string is read like the rest. A secret becomes a keyed digest: equal secrets can be told to be equal, and nobody
without the key can try out guesses. Pure; knows no file.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Final

from sluicegate.audit import bounded, credentials, forms, names, randomness, tables, values, vendors
from sluicegate.audit.bounded import lazy
from sluicegate.protocol.canonical_json import canonical
from sluicegate.protocol.jsonrpc import Json

IsSecret = Callable[[str], bool]
_BLOCK: Final = 64  # bytes that SHA-256 works on at once
MAX_TEXT: Final = 4_096  # characters kept of one text
MAX_NODES: Final = 2_000  # values kept of one call's arguments
MAX_CHARS: Final = 64 * 1024  # characters kept of one call's arguments
MAX_RESULT: Final = 16 * 1024  # bytes kept of one result
_MAX_RESULT_NODES: Final = 1_000
MAX_NAME: Final = 256
MAX_DEPTH: Final = 64
_OVERLAP: Final = 512  # looked at behind a cut: enough to know a secret that the cut splits
_MAX_MEMORY: Final = 10_000
_MAX_RECALLED: Final = 64
_ANY: Final = "*"  # in a pointer: every element of an array

_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS: Final = lazy(f"({_STRING}:)|({_STRING})")  # the strings of a JSON text: names and values
_INNER_JSON: Final = lazy(r'(?m)^"(?:\s|\\[nrtf])*+(?:[{\[]|\\")')  # of those in lines, one that may be JSON itself
_JSON_BEGINS: Final = frozenset('{["')
# Objects that are one name and one value: `{"name": "password", "value": "..."}`.
_PAIR_NAMES: Final = frozenset(tables.words("pair names"))
# Names of members that describe a field of a form, and of those that say where a value goes.
_LABELS: Final = frozenset("element selector label placeholder locator target xpath css field aria prompt".split())
_PATHS: Final = frozenset("path file filename filepath type format".split())
_TELLING: Final = _PAIR_NAMES | _PATHS
_PAIR_VALUES: Final = frozenset(tables.words("pair values"))
_MAX_PAIR: Final = 16
_PLAIN_WORD: Final = lazy(r"[A-Za-z_]{0,256}+")
# Members with the names of a table's columns, with its rows, and with the words of a command.
_COLUMNS: Final = frozenset("columns header headers fields cols column_names columnnames".split())
_ROWS: Final = frozenset("rows data values records result results".split())
# Parameters of a statement, what binds a name to one of them, and the private members of a JSON Web Key.
_PARAMETERS: Final = frozenset("variables params parameters bindings binds bind args values vars".split())
_BOUND: Final = frozenset(f'"{name}":' for name in _PARAMETERS)
_BINDING: Final = tables.pattern("binding")
_RANDOM_RESULTS: Final = ("random_password", "random_string")  # types of resources in a state of Terraform
_CARD: Final = lazy(r"(?i)^(?:cvc|cvv|csc|exp[_a-z]{0,8}(?:month|date|iry)|expiry)")
_PRIVATE: Final = frozenset("d p q dp dq qi oth k".split())
_WORDS: Final = frozenset("args argv arguments command cmd".split())
_PROGRAM: Final = ("command", "cmd", "program", "executable", "bin")
_PROGRAM_NAMES: Final = frozenset(f'"{name}":' for name in _PROGRAM)
_HEADERS: Final = frozenset("headers header rawheaders raw_headers".split())
_MAX_WORDS: Final = 256
# Names of secrets if the value looks like one.
_SOMETIMES: Final = frozenset(("auth", "_auth", "sas", "sig", "signature"))
# Steps of a browser or a phone, one for each item of a list: what is typed goes where the step before it went.
_STEP: Final = lazy(r"(?i)\s{0,8}(?:click|tap|focus|select|hover|press|type|input|enter|fill|goto|wait)\b")
_TYPED: Final = frozenset("text value keys input chars content".split())
_ACTIONS: Final = frozenset("action type command kind op method name tool".split())
_TYPING: Final = lazy(r"(?i)type|fill|input|enter|key|write|paste|set")
_SECOND_FACTORS: Final = frozenset("otp totp hotp mfa 2fa sms two_factor two-factor authenticator".split())
_PRINCIPALS: Final = frozenset({"principal", "approver", "by", "what"})  # what our own records call them
_PARSED_DEPTH: Final = 8  # what JSON inside a string takes of the depth
_LONE: Final = lazy("[\ud800-\udfff]")
# No blanks, printable ASCII alone: nothing in a line is a control character or looks like a second line.
_encode: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode


def dump(value: Any) -> str:
    """JSON in printable ASCII. A lone surrogate, which strict readers refuse, becomes U+FFFD."""
    text = _encode(value)
    return _encode(_whole(value)) if "\\ud" in text else text


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return _LONE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(item) for item in value]
    return value


@dataclass(slots=True)
class _Budget:
    nodes: int = MAX_NODES
    chars: int = MAX_CHARS
    text: int = MAX_TEXT
    is_cut: bool = False
    members: bool = True  # whether the names of members count: those of our own records do not


class KeyedDigests:
    """Equal texts have equal digests, and nobody without the key can try out guesses."""

    def __init__(self, key: bytes) -> None:
        block = (sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner, self._outer = (sha256(bytes(byte ^ pad for byte in block)) for pad in (0x36, 0x5C))

    def digest(self, data: bytes) -> str:
        """The keyed digest of a whole value: HMAC (RFC 2104), the key worked in once. `hmac` itself takes twice as
        long, in Python around the same."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(data)
        outer.update(inner.digest())
        return f"hmac-sha256:{outer.hexdigest()}"

    def short_digest(self, text: str) -> str:
        """Enough of it to tell texts apart: 16 hex digits."""
        return self.digest(text.encode("utf-8", "surrogatepass")).removeprefix("hmac-sha256:")[:16]

    def mark(self, secret: str) -> str:
        """What stands for a secret; equal secrets, equal marks."""
        return f"[redacted:{self.short_digest(secret)}]"


class NeighbourMasker:
    """Masks what is a secret because of what stands beside it: in the words of a command, in headers, in the steps of
    a form, in a table and among a statement's parameters. `mark` gives what stands for a secret."""

    def __init__(self, mark: Callable[[str], str], hints: tuple[str, ...]) -> None:
        self._mark, self._hints = mark, hints

    def without_options(self, items: list[Any], is_secret: IsSecret, program: str) -> list[Any]:
        """The words of a command without secrets, and the pair of a name and a value without the value."""
        if len(items) == 2 and all(isinstance(item, str) for item in items) and not items[0].startswith("-"):
            name, value = items
            is_pair = is_secret(name[:MAX_NAME]) and _PLAIN_WORD.fullmatch(value) is None
            return [name, self._mark(value)] if is_pair and values.is_secret_value(value, name) else items
        words = [item if isinstance(item, str) and len(item) <= MAX_NAME else "_" for item in items[:_MAX_WORDS]]
        if any(word[:1] in ("-", "/") for word in words):
            separator = " "
        elif any(_STEP.match(word) for word in words):
            separator = "\n"
        else:
            return items
        line, changed, at = program, list(items), len(program)
        places = []
        for word in words:
            places.append(at + 1)
            line += separator + word
            at = len(line)
        for start, end in credentials.find(line, is_secret, self._hints):
            for index in range(bisect_right(places, start) - 1, bisect_right(places, end - 1)):
                word, left, right = words[index], max(start - places[index], 0), end - places[index]
                if index >= 0 and left < len(word) and changed[index] == word:
                    changed[index] = word[:left] + self._mark(word[left:right]) + word[right:]
        return changed

    def without_flat(self, items: list[Any], is_secret: IsSecret) -> list[Any]:
        """Headers as names and values in turn without the values of secrets."""
        if len(items) % 2 or len(items) > _MAX_WORDS or not all(isinstance(item, str) for item in items):
            return items
        pairs = zip(items[::2], items[1::2], strict=True)
        return [
            self._mark(item) if is_value and is_secret(name) and values.is_secret_value(item, name) else item
            for name, value in pairs
            for is_value, item in ((False, name), (True, value))
        ]

    def without_typed(self, steps: list[Any]) -> list[Any]:
        """The steps of a form without what is typed where the step before went to the field of a secret."""
        changed, is_there = list(steps), False
        for at, step in enumerate(steps[:_MAX_WORDS]):
            if not isinstance(step, dict) or len(step) > _MAX_PAIR:
                continue
            texts = {name: item for name, item in step.items() if isinstance(item, str)}
            labels = [item for name, item in texts.items() if names.last_word(name) in _LABELS]
            actions = [item[:MAX_NAME] for name, item in texts.items() if names.last_word(name) in _ACTIONS]
            typed = [name for name in texts if names.last_word(name) in _TYPED]
            if labels:
                is_there = any(map(names.is_secret_label, labels))
            elif is_there and typed and (not actions or any(map(_TYPING.search, actions))):
                changed[at] = step | {name: self._mark(texts[name]) for name in typed}
                is_there = False
        return changed

    def without_columns(self, value: Json, is_secret: IsSecret) -> Json:
        """A table without the values of columns that have the name of a secret; all data of Kubernetes' secrets."""
        if value.get("kind") == "Secret":
            return {
                name: {key: self._mark(canonical(inner)) for key, inner in item.items()}
                if name in ("data", "stringData") and isinstance(item, dict) else item
                for name, item in value.items()
            }  # fmt: skip
        if value.get("type") in _RANDOM_RESULTS:  # in a state of Terraform
            pointer = ["instances", _ANY, "attributes", "result"]
            return dict(_change(value, pointer, lambda secret: self._mark(canonical(secret))))
        if "number" in value and any(_CARD.search(name) for name in value):  # a card of payment
            return {name: self._mark(canonical(item)) if name == "number" else item for name, item in value.items()}
        if "code" in value and not _SECOND_FACTORS.isdisjoint(
            item.lower() for item in value.values() if isinstance(item, str)
        ):
            return {name: self._mark(canonical(item)) if name == "code" else item for name, item in value.items()}
        if isinstance(value.get("kty"), str):  # a JSON Web Key, RFC 7517
            return {name: self._mark(canonical(item)) if name in _PRIVATE else item for name, item in value.items()}
        for name, columns in value.items():
            if name.lower() in _COLUMNS and isinstance(columns, list):
                titles = [item.get("name") if isinstance(item, dict) else item for item in columns[:MAX_NAME]]
                wanted = {at for at, title in enumerate(titles) if isinstance(title, str) and is_secret(title)}
                return {
                    key: self._without_cells(item, wanted) if wanted and key.lower() in _ROWS else item
                    for key, item in value.items()
                }
        return value

    def without_bound(self, value: Json, is_secret: IsSecret) -> Json:
        """A statement's parameters without those that it binds to the name of a secret: `password = :p`."""
        given = {name: item for name, item in value.items() if name.lower() in _PARAMETERS and item}
        if not given:
            return value
        wanted: set[str] = set()
        for text in value.values():
            if isinstance(text, str):
                for number, found in enumerate(_BINDING.find_all(text[:MAX_TEXT])):
                    name, parameter = found.groups()
                    if name is not None and is_secret(name):
                        wanted.add(parameter or str(number + 1))
                for insert in forms.INSERT.find_all(text[:MAX_TEXT]):
                    columns = insert[1].split(",")
                    wanted |= {str(at) for at, name in enumerate(columns, 1) if is_secret(name.strip(" \"`[]\n"))}
        return {name: self._without_parameters(item, wanted) if name in given else item for name, item in value.items()}

    def _without_parameters(self, given: Any, wanted: set[str]) -> Any:
        if isinstance(given, dict):
            found = {name: name.lstrip("$:@") in wanted for name in given}
            return {name: self._mark(canonical(item)) if found[name] else item for name, item in given.items()}
        if not isinstance(given, list):
            return given
        head = given[:MAX_NAME]
        shown = [self._mark(canonical(item)) if str(at) in wanted else item for at, item in enumerate(head, 1)]
        return shown + given[MAX_NAME:]

    def _without_cells(self, rows: Any, wanted: set[int]) -> Any:
        if not isinstance(rows, list):
            return rows
        return [
            [
                self._mark(canonical(cell)) if at in wanted and values.is_secret_value(cell) else cell
                for at, cell in enumerate(row)
            ] if isinstance(row, list) else row
            for row in rows[:MAX_NODES]
        ] + rows[MAX_NODES:]  # fmt: skip


class Redactor:
    """`key` is the secret of the digests; `keys` and `pointers` are the operator's own."""

    def __init__(self, key: bytes, keys: Iterable[str] = (), pointers: Mapping[str, Iterable[str]] | None = None):
        digests = KeyedDigests(key)
        self.digest, self.short_digest, self._mark = digests.digest, digests.short_digest, digests.mark
        self._keys = frozenset(names.plain(name) for name in keys)
        # Names in texts are looked for only where a text has a hint of one.
        self._hints = tuple(hint for key in self._keys if (hint := names.hint(key)))
        self._neighbours = NeighbourMasker(self._mark, self._hints)
        self._pointers = [(tool, [_parse(pointer) for pointer in places]) for tool, places in (pointers or {}).items()]
        self._names: dict[str, bool] = {}
        self._shown_names = set[str]()  # names of members without a secret in them
        # Names that are no secrets, have none in them and tell of none beside them, as canonical JSON has them.
        self._innocent = {""}
        # Those of them whose values may name, or describe, what is beside them.
        self._telling, self._labels = set[str](), set[str]()

    # ------------------------------------------------------------ texts

    def text(self, text: str, limit: int = MAX_NAME) -> str:
        """A text that a peer chose (a name, a URI): without credentials and not longer than about `limit`."""
        return self._one(text, limit, None)

    def written(self, text: str, limit: int | None = None) -> str:
        """Free text, such as what a program logs: also without what the text itself names as a secret."""
        return self._one(text, len(text) if limit is None else limit, self._is_secret_name)

    def _one(self, text: str, limit: int, is_secret: IsSecret | None) -> str:
        bounded.begin()
        try:
            return self._without(text, limit, is_secret)
        except TimeoutError:
            return self._unsearched(text)

    def _unsearched(self, value: Any) -> str:
        """What stands for a value that took too long to search: all of it may be secret."""
        text = value if isinstance(value, str) else canonical(value)
        return f"{self._mark(text)}...({len(text)} more)"

    def _without(self, text: str, limit: int, is_secret: IsSecret | None, *, with_random: bool = True) -> str:
        cut = len(text) - limit
        seen = text if cut <= 0 else text[: limit + _OVERLAP]
        parts: list[str] = []
        at = 0
        for start, end in credentials.find(seen, is_secret, self._hints, with_random):
            if start >= limit:
                break
            parts += seen[at:start], self._mark(seen[start:end])
            at = end
        shown = "".join((*parts, seen[at:limit]))
        return f"{shown}...({cut} more)" if cut > 0 else shown

    # ------------------------------------------------------------ values

    def is_innocent(self, text: str, tool: str) -> bool:
        """Whether arguments, given as canonical JSON, may be written down as they are. A yes is sure and quick;
        a no only means that every value must be looked at."""
        if len(text) > MAX_TEXT or vendors.may_look_secret(text):
            return False
        strings = _STRINGS.findall(text)
        found = {name for name, _ in strings}
        if not self._innocent.issuperset(found):
            return False
        given = [value for _, value in strings if value]
        lines = "\n".join(given)
        # Neighbours stand as in the line of a command: the words of one may be items of a list.
        texts = lines.replace('"\n"', " ")
        if "\\u" in texts or credentials.may_name_secret(texts, self._hints):
            return False
        is_label = not self._labels.isdisjoint(found)
        is_telling = is_label or '["' in text or not self._telling.isdisjoint(found)
        if is_telling and self._may_spell_secret(given, is_label):
            return False
        if "_" in texts and not {":", "$", "?"}.isdisjoint(texts) and any(name.lower() in _BOUND for name in found):
            return False  # a statement may bind parameters to names that are spelled with separators
        if _has_structure(text, found, given, lines):
            return False
        return not (self._pointers and any(_is_meant(tool, glob) for glob, _ in self._pointers))

    def _may_spell_secret(self, given: list[str], is_label: bool) -> bool:
        """Whether a value may be the name of a secret with separators in it, such as `P.I.N.`."""
        texts = [value[1:-1][:MAX_NAME] for value in given]
        lasts = [text.rpartition("/")[2] for text in texts]
        spelled = {*texts, *lasts, *(last.partition(".")[0] for last in lasts)}
        ends = [names.squeezed(text if is_label else names.end_of_name(text)) for text in spelled]
        if not credentials.may_name_secret("\n".join(ends), self._hints):
            return False
        return any(map(self._is_secret_name, spelled)) or (is_label and any(map(names.is_secret_label, texts)))

    def arguments(self, value: Json, tool: str) -> Any:
        """The arguments of a call to `server/own_name`, as they may be written down."""
        return self._begin(self._without_places(value, tool), _Budget(), self._is_secret_name)

    def result(self, value: Json, tool: str) -> tuple[str, bool]:
        """The result of a call to `server/own_name` as JSON of at most `MAX_RESULT` bytes, and whether it was cut."""
        text, nodes, chars, is_cut = "", _MAX_RESULT_NODES, MAX_RESULT, False
        while not text or len(text) > MAX_RESULT:  # escapes and short names take more than their characters
            masked, is_cut = self.masked(value, tool, min(MAX_TEXT, chars), nodes, chars)
            text, nodes, chars = dump(masked), nodes // 2, chars // 2
        return text, is_cut

    def masked(self, value: Any, tool: str, text: int, nodes: int, chars: int) -> tuple[Any, bool]:
        """The same within other bounds, and whether something had to be left out."""
        budget = _Budget(nodes, chars, text)
        return self._begin(self._without_places(value, tool), budget, self._is_secret_name), budget.is_cut

    def _without_places(self, value: Any, tool: str) -> Any:
        places = [pointer for glob, found in self._pointers if _is_meant(tool, glob) for pointer in found]
        for pointer in places:
            value = _change(value, pointer, lambda secret: self._mark(canonical(secret)))
        return value

    def fields(self, value: Json) -> Any:
        """What a record of our own says: its texts may be somebody's, its names are ours. A principal reads as it does
        in records of calls, so that both are found: `key:NAME` is no key with its value."""
        return self._begin(value, _Budget(members=False), self._is_secret_name)

    def without_credentials(self, value: Json) -> Any:
        """Everything but what looks like a credential: no setting lets a token into the log."""
        return self._begin(value, _Budget(), None)

    def _begin(self, value: Any, budget: _Budget, is_secret: IsSecret | None) -> Any:
        bounded.begin()
        return self._walk(value, budget, MAX_DEPTH, is_secret)

    def _walk(self, value: Any, budget: _Budget, depth: int, is_secret: IsSecret | None, name: str = "") -> Any:
        """`name` is that of the member that has the value, or the list around it."""
        try:
            return self._searched(value, budget, depth, is_secret, name)
        except TimeoutError:
            budget.is_cut = True
            budget.chars -= MAX_NAME
            return self._unsearched(value)

    def _searched(self, value: Any, budget: _Budget, depth: int, is_secret: IsSecret | None, name: str) -> Any:
        budget.nodes -= 1
        if isinstance(value, str):
            return self._string(value, budget, depth, is_secret, name)
        if not isinstance(value, dict | list):
            if not isinstance(value, int) or abs(value) < 10**40:
                return value
            budget.is_cut = True
            return "...(a long number)"
        if depth <= 0 or budget.nodes < 0 or budget.chars < 0:
            budget.is_cut = True
            return f"...({len(value)} more)"
        if isinstance(value, list):
            return self._items(value, budget, depth, is_secret, name)
        return self._members(value, budget, depth, is_secret)

    def _string(self, value: str, budget: _Budget, depth: int, is_secret: IsSecret | None, name: str) -> str:
        shown = value
        if name in _PRINCIPALS and not budget.members:
            is_secret = None
        may_parse = is_secret is not None and len(value) <= budget.text and value[:64].lstrip()[:1] in _JSON_BEGINS
        if budget.chars < 0 or (may_parse and budget.nodes < 0):  # before the work: searching a text takes milliseconds
            budget.is_cut = True
            return f"...({len(value)} more)"
        if may_parse:
            with suppress(ValueError, RecursionError):
                parsed = json.loads(value)
                inner = self._walk(parsed, budget, depth - _PARSED_DEPTH, is_secret)
                shown = value if inner == parsed else json.dumps(inner, ensure_ascii=False)
        # Also where nothing was found: a parser sees only the last of two members of the same name.
        with_random = budget.members and not (name and randomness.is_harmless_name(name))
        text = self._without(shown, budget.text, is_secret, with_random=with_random)
        budget.chars -= len(text)
        budget.is_cut |= len(value) > budget.text or budget.chars < 0
        return text if budget.chars >= 0 else f"...({len(value)} more)"

    def _items(
        self, value: list[Any], budget: _Budget, depth: int, is_secret: IsSecret | None, name: str, program: str = ""
    ) -> list[Any]:
        if is_secret is not None:
            if name.lower() in _HEADERS and len(value) > 2:
                value = self._neighbours.without_flat(value, is_secret)
            head = self._neighbours.without_options(value[: budget.nodes + 1], is_secret, program)
            value = self._neighbours.without_typed(head) + value[budget.nodes + 1 :]
        masked = [self._walk(item, budget, depth - 1, is_secret, name) for item in value[: budget.nodes + 1]]
        budget.is_cut |= len(masked) < len(value)
        return masked if len(masked) == len(value) else [*masked, f"...({len(value) - len(masked)} more)"]

    def _members(self, value: Json, budget: _Budget, depth: int, is_secret: IsSecret | None) -> Json:
        masked: Json = {}
        by_member = is_secret if budget.members else None
        if by_member is not None and values.are_labels(value, by_member):
            by_member = None
        pair = _pair(value, by_member) if by_member is not None else None
        if by_member is not None and len(value) <= _MAX_PAIR:
            value = self._neighbours.without_bound(self._neighbours.without_columns(value, by_member), by_member)
        for name, item in value.items():
            if budget.nodes < 0 or budget.chars < 0:
                masked["..."] = f"({len(value) - len(masked)} more)"
                budget.is_cut = True
                break
            shown = self._shown_name(name, by_member)
            if shown in masked:  # names that differ only in what is cut off or masked
                shown, budget.is_cut = f"{shown} {self._mark(name)}", True
            budget.chars -= len(shown)
            if by_member is not None and _is_secret_member(name, item, by_member, pair):
                masked[shown] = self._mark(item if isinstance(item, str) else canonical(item))
                budget.nodes -= 1
            elif isinstance(item, list) and by_member is not None and name.lower() in _WORDS:
                program = next((text for key in _PROGRAM if isinstance(text := value.get(key), str)), "")
                masked[shown] = self._items(item, budget, depth - 1, is_secret, name, program[:MAX_NAME])
            else:
                # A longer one says nothing: it would be looked at once for each item of a list.
                about = name if len(name) <= MAX_NAME else ""
                masked[shown] = self._walk(item, budget, depth - 1, is_secret, about)
        return masked

    def _shown_name(self, name: str, is_secret: IsSecret | None) -> str:
        if name in self._shown_names:
            return name
        shown = self._without(name, MAX_NAME, is_secret)
        if shown == name and is_secret is not None:
            if len(self._shown_names) >= _MAX_MEMORY:
                self._shown_names.clear()
                self._innocent, self._telling, self._labels = {""}, set(), set()
            self._shown_names.add(name)
            if not (is_secret(name) or name.lower() in _SOMETIMES or name == "kty" or _CARD.search(name)):
                written, last = f"{canonical(name)}:", names.last_word(name)
                self._innocent.add(written)
                if last in _LABELS:
                    self._labels.add(written)
                elif last in _TELLING or name.lower() in _COLUMNS:
                    self._telling.add(written)
        return shown

    def _is_secret_name(self, name: str) -> bool:
        cached = self._names.get(name)
        if cached is None:
            cached = names.plain(name[:MAX_NAME]) in self._keys or names.is_secret_name(name)
            if len(self._names) >= _MAX_MEMORY:
                self._names = {}
            if len(name) <= MAX_NAME:
                self._names[name] = cached
        return cached


class RecallingRedactor(Redactor):
    """Recalls once what it found innocent: a hook is shown arguments, and then they are recorded."""

    def __init__(self, key: bytes, keys: Iterable[str] = (), pointers: Mapping[str, Iterable[str]] | None = None):
        super().__init__(key, keys, pointers)
        self._found = set[tuple[str, str]]()

    def is_innocent(self, text: str, tool: str) -> bool:
        if (text, tool) in self._found:
            self._found.discard((text, tool))
            return True
        is_so = super().is_innocent(text, tool)
        if is_so:
            if len(self._found) >= _MAX_RECALLED:
                self._found.clear()
            self._found.add((text, tool))
        return is_so


def _has_structure(text: str, found: set[str], given: list[str], lines: str) -> bool:
    """Whether innocent names and values of canonical JSON may still be masked or cut because they stand together."""
    if '"code":' in found and not _SECOND_FACTORS.isdisjoint(value[1:-1].lower() for value in given):
        return True
    if '"type":' in found and any(f'"{kind}"' in lines for kind in _RANDOM_RESULTS):
        return True
    if '":["' in text and not _PROGRAM_NAMES.isdisjoint(found):  # the words of a command, and its program
        return True
    if ('"{' in lines or '"[' in lines or "\\" in lines or '" ' in lines) and _INNER_JSON.search(lines):
        return True
    depth = text.count("{") + text.count("[")
    return depth >= MAX_DEPTH or (len(text) > MAX_NODES // 2 and depth + text.count(",") >= MAX_NODES // 2)


def _pair(value: Json, is_secret: IsSecret) -> str | None:
    """The name of a secret that one member of an object gives, and whose value so is in another."""
    if len(value) > _MAX_PAIR:
        return None
    for member, item in value.items():
        if not isinstance(item, str) or len(item) > MAX_NAME:
            continue
        word = names.last_word(member)
        if word in _PATHS:
            one = next((text for key in value if key in _PAIR_VALUES and isinstance(text := value[key], str)), "")
            base = item.rpartition("/")[2].partition(".")[0]
            if word in ("type", "format"):
                is_named = item.lower() in ("password", "securestring")
            else:
                is_named = is_secret(base) or is_secret(item.rpartition("/")[2])
            if is_named and not set(one.strip()) & set(" \n:=,"):
                return item
        elif (word in _PAIR_NAMES and is_secret(item)) or (word in _LABELS and names.is_secret_label(item)):
            return item
    return None


def _is_secret_member(name: str, item: Any, is_secret: IsSecret, pair: str | None) -> bool:
    if is_secret(name):
        return values.is_secret_value(item, name)
    if pair is not None and names.last_word(name) in _PAIR_VALUES:
        return values.is_secret_value(item, pair)
    if name.lower() not in _SOMETIMES:
        return False
    # As a file of Docker has it, or as a pair of a user and a password.
    is_pair = isinstance(item, list) and len(item) == 2 and isinstance(item[1], str) and values.is_odd(item[1])
    return is_pair or (isinstance(item, str) and values.is_random(item))


def _is_meant(tool: str, glob: str) -> bool:
    """In whatever letters: a name that is relayed unlisted may be another spelling of the tool's."""
    return fnmatchcase(tool.lower(), glob.lower())


# ---------------------------------------------------------------- JSON pointers


def _parse(pointer: str) -> list[str]:
    """RFC 6901, and `*` for every element of an array. Raises ValueError for what is no pointer."""
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"a JSON pointer begins with a slash: {pointer}")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _change(value: Any, pointer: list[str], change: Callable[[Any], Any]) -> Any:
    """A copy of `value`, changed at that place; `value` itself where there is no such place."""
    if not pointer:
        return change(value)
    part, rest = pointer[0], pointer[1:]
    if isinstance(value, dict) and part in value:
        return {**value, part: _change(value[part], rest, change)}
    if isinstance(value, list):
        if part == _ANY:
            return [_change(item, rest, change) for item in value]
        if part.isdecimal() and part.isascii() and len(part) < 10 and int(part) < len(value):
            at = int(part)
            return [*value[:at], _change(value[at], rest, change), *value[at + 1 :]]
    return value
