"""Public resource URIs, URI templates and the one spelling of a URI that can be judged.

Pure text to text: knows no catalog and no call. Where in a message a URI stands is the business of `places`.
A public URI is the own URI behind `{prefix}+`, as schemes like `git+ssh` do it: still a URI, of a scheme that
tells whose it is, and turned back by cutting at the first `+`. Nothing is ever decoded, normalised or rebuilt.
"""

import ipaddress
import re
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from unicodedata import combining, normalize
from urllib.parse import quote, unquote

from sluicegate.deferred import deferred_pattern

_APP: Final = "ui://"
_WEB = re.compile(r"https?:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rewriting:
    """How the URIs of one server are shown. `plain` (`uris: plain`) shows them as they are, but for those that begin as
    the ones of `others` do: whoever asks for such a URI reaches the server of that prefix."""

    prefix: str
    plain: bool = False
    others: frozenset[str] = frozenset()

    def public(self, uri: str) -> str:
        return uri if self.plain and not self.is_of_another(uri) else public_uri(self.prefix, uri)

    def is_of_another(self, uri: str) -> bool:
        return self.plain and own_uri(uri, self.others) is not None

    def own(self, uri: str) -> str:
        """The server's own URI for a public one; what is not under this prefix stays as it is."""
        found = own_uri(uri, (self.prefix,))
        return uri if found is None else found[1]


def public_uri(prefix: str, uri: str) -> str:
    """The public form of a resource URI or URI template.

    `http(s)` URIs stay: clients may fetch those themselves (2026-07-28 server/resources#common-uri-schemes).
    Hosts of MCP Apps look for `ui://` at the start (SEP-1865), so there the prefix goes behind it.
    """
    if not prefix or _WEB.match(uri):
        return uri
    if uri.startswith(_APP):
        return f"{_APP}{prefix}+{uri[len(_APP) :]}"
    return f"{prefix}+{uri}"


def own_uri(public: str, prefixes: Container[str]) -> tuple[str, str] | None:
    """(prefix, own URI) of a public URI; None for one that is under none of `prefixes`.

    `gh+https://...` and `gh+ui://...` are accepted too, though we never show them: a template like `{+url}`
    expands to such.
    """
    scheme = _APP if public.startswith(_APP) else ""
    prefix, plus, rest = public[len(scheme) :].partition("+")
    if not plus or not prefix or prefix not in prefixes:
        return None
    return prefix, scheme + rest


# `(?:25)*`: whoever decodes a second time reads %252E as a dot.
_SLASH = deferred_pattern(r"[/\\]|%(?:25)*(?:2[Ff]|5[Cc])")
_SCHEME = deferred_pattern(r"([A-Za-z][A-Za-z0-9+.-]*):")
# %2F and %5C are slashes; the rest are the unreserved characters of RFC 3986 2.3: - . 0-9 A-Z _ a-z ~
_HIDDEN = deferred_pattern(r"%(?:25)*(?:2[DdEeFf]|3[0-9]|4[1-9A-Fa-f]|5[0-9AaCcFf]|6[1-9A-Fa-f]|7[0-9AaEe])")
# Where a text ends for whoever decodes it to C's strings, and what splits lines.
_CONTROL = deferred_pattern(r"%(?:25)*(?:[01][0-9A-Fa-f]|7[Ff])")
_ESCAPE = deferred_pattern(r"%[0-9A-Fa-f]{2}")
_NO_UTF8 = deferred_pattern("[\udc80-\udcff]")
_QUERY_OR_FRAGMENT = deferred_pattern(r"[?#]")
_SLASHES = deferred_pattern(r"//+")
_MAX_DECODINGS: Final = 3
_MAX_MARKS: Final = 30
_MAX_ODD: Final = 64
_MARKS_OF_NO_CLASS: Final = frozenset("\u0344\u0f73\u0f75\u0f81\uff9e\uff9f")  # until they are decomposed
# WHATWG URL parsers drop tabs and line breaks anywhere and controls and spaces at both ends: ".\t." is "..".
_DROPPED = deferred_pattern(r"[\x00-\x1f\x7f]|\A | \Z")
# Whoever decodes a whole URI first finds another scheme: `%20file:`, `file%3A`.
_HIDDEN_SCHEME = deferred_pattern(r"\A[^:/?#]*%")
# Some servers cut a segment at its parameters (`..;x`) before they look for dots.
_DOTS = deferred_pattern(r"(?:\A|[/?#])\.\.?(?=[/?#;]|%(?:25)*(?:23|3[BbFf])|\Z)")
# A user, a host and a port (RFC 3986 3.2): colons of an IPv6 address are between brackets.
_PLACE = deferred_pattern(r"(?:.*@)?(\[[^\]]*\]|[^:]*)(:.*)?")
_PORTS: Final = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
# What WHATWG's parser leaves as it is, of all that it maps to a host of these schemes
_WEB_PLACE = deferred_pattern(r"(?:.*@)?(?:[a-z0-9._~-]+|\[[0-9a-f:]+\])(?::[1-9][0-9]*)?")
_MAX_HOST: Final = 253  # RFC 1035 2.3.4, without the last dot
_NUMBER = deferred_pattern(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?|\[.*")


def is_clean(uri: str) -> bool:
    """Whether a URI has the one spelling that policy and server read alike; others are not found.

    A hierarchical URI (a slash in it, plain or encoded) may have no dot segments, no percent-encoded unreserved
    character or slash, however often it was encoded, nothing encoded before its scheme ends, no upper-case scheme or
    host, no backslash; a file has no `localhost` as authority and no empty segment. What browsers know (`https:`) has
    `//`, a host in ASCII and no port that is empty or begins with 0. Opaque ones (`urn:a:b`, `memo:x`) are compared as
    they are. None has a control character, plain or encoded, or one that is not seen, and none is longer than
    `MAX_URI`.
    """
    if len(uri) > MAX_URI or not uri.isprintable() or _DROPPED.search(uri) or _CONTROL.search(uri):
        return False
    scheme, rest = _split(uri)
    if _kind(scheme) in _PORTS and not _is_clean_web(rest):
        return False
    if not _SLASH.search(uri):
        return True
    if scheme != scheme.lower() or "\\" in uri or _HIDDEN.search(uri) or _HIDDEN_SCHEME.match(uri):
        return False
    return not _DOTS.search(rest) and _is_clean_authority(scheme, rest)


def has_dot_segment(text: str) -> bool:
    """Whether a part of a URI makes every URI with it unclean: by a dot segment, also an encoded one."""
    return _DOTS.search(text) is not None or _HIDDEN.search(text) is not None


def _split(uri: str) -> tuple[str, str]:
    found = _SCHEME.match(uri)
    return (found[1], uri[found.end() :]) if found else ("", uri)


def _kind(scheme: str) -> str:
    """`https` of `git+https`."""
    return scheme.lower().rpartition("+")[2]


def _authority(rest: str) -> str:
    return re.split(r"[/?#]", rest[2:], maxsplit=1)[0]


def _host_and_port(authority: str) -> tuple[str, str]:
    found = _PLACE.fullmatch(authority)
    assert found is not None  # each part of it may be empty
    return found[1], (found[2] or ":")[1:]


def _is_clean_web(rest: str) -> bool:
    """Whether WHATWG's parser takes it as it is. It adds slashes that are missing, maps letters and dots of other
    scripts to ASCII, and reads `0x7f.1` as 127.0.0.1."""
    authority = _authority(rest)
    if not rest.startswith("//") or not _WEB_PLACE.fullmatch(authority):
        return False
    host = _host_and_port(authority)[0]
    if not _NUMBER.fullmatch(host):
        return True
    with suppress(ValueError):
        address = ipaddress.ip_address(host.strip("[]"))
        return str(address) == host if address.version == 4 else f"[{address}]" == host and not address.ipv4_mapped
    return False


def _is_clean_authority(scheme: str, rest: str) -> bool:
    is_file = _kind(scheme) == "file"
    if not rest.startswith("//"):
        return not is_file or "//" not in rest
    authority = _authority(rest)
    host = _ESCAPE.sub("", authority.rpartition("@")[2])  # hex digits of an escape have no case
    if host != host.lower():
        return False
    return not is_file or (host.partition(":")[0] != "localhost" and "//" not in rest[2:])


def readings(uri: str) -> list[str]:
    """What else servers take a clean URI for: schemes have no case (RFC 3986 6.2.2.1), many parsers look at the path of
    a `file:` URI alone, or drop a query, a fragment, a user or the last dot of a host. A default port is there or
    not, an empty path is `/` (6.2.3), and a host of other letters is written in ASCII or not. Several slashes are one
    for file systems and many HTTP servers."""
    scheme, rest = _split(uri)
    scheme = scheme.lower()
    is_file, before = _kind(scheme) == "file", f"{scheme}:" if scheme else ""
    if not rest.startswith("//"):
        path = f"/{rest.removeprefix('/')}" if is_file else rest
        starts = [f"{scheme}://" if is_file else before]
    else:
        authority = _authority(rest)
        path = rest[2 + len(authority) :]
        places = [""] if is_file else _places(authority, _PORTS.get(_kind(scheme), ""))
        starts = [f"{before}//{place}" for place in places]
    bare = without_query(path)
    merged = _SLASHES.sub("/", bare)
    paths = [path, bare, bare.removesuffix("/"), merged + path[len(bare) :], merged, merged.removesuffix("/")]
    if rest.startswith("//") and bare in ("", "/"):
        paths += ["/", path[len(bare) :], f"/{path[len(bare) :]}"]
    found = [start + end for start in starts for end in paths]
    found += [unquote(one) for one in found if "%" in one and not _SLASH.search(uri)]
    return [one for one in dict.fromkeys(found) if one != uri]


def _places(authority: str, default: str) -> list[str]:
    """Host and port in every spelling."""
    host, port = _host_and_port(authority)
    hosts, number = [host.removesuffix(".")], port.lstrip("0")
    if "xn--" in host and len(host) <= _MAX_HOST:  # decoding takes quadratic time
        with suppress(UnicodeError):
            hosts.append(hosts[0].encode("ascii").decode("idna"))
    ports = ["", f":{default}"] if default and number in ("", default) else [f":{number}" if number else ""]
    return [one + shown for one in hosts for shown in ports]


def is_judged_quickly(uri: str) -> bool:
    """Whether `decodings` takes about as long as its length says. `normalize` takes the square of a run of marks: texts
    have at most 30 in a row (UAX #15, Stream-Safe Text Format). Bytes that are no UTF-8, and what is encoded twice,
    make several texts of one."""
    for times in range(_MAX_DECODINGS + 1):
        if not uri.isascii() and (_has_long_marks(uri) or len(_NO_UTF8.findall(uri)) > _MAX_ODD):
            return False
        if times and uri.count("%") > _MAX_ODD:
            return False
        if "%" not in uri:
            return True
        uri = unquote(uri, errors="surrogateescape")
    return True


def _has_long_marks(text: str) -> bool:
    run = 0
    for char in text:
        run = run + 1 if combining(char) or char in _MARKS_OF_NO_CLASS else 0
        if run > _MAX_MARKS:
            return True
    return False


def decodings(uri: str) -> list[str]:
    """What a server reads that decodes percent-encoding (RFC 3986 2.1) up to three times and normalizes letters to NFC.
    In a query `+` may be a blank."""
    found, last = [uri], [uri]
    for _ in range(_MAX_DECODINGS):
        last = [text for one in last if "%" in one for text in decoded(one)]
        found += last
    start, mark, query = uri.partition("?")
    if "+" in query:
        found += decoded(start + mark + query.replace("+", " "))
    return list(dict.fromkeys(normalize("NFC", one) for one in found))


def decoded(text: str) -> list[str]:
    """The text in UTF-8, and in Latin-1 too if a byte is no UTF-8. Different such bytes stay different."""
    found = unquote(text, errors="surrogateescape")
    return [found, unquote(text, "latin-1")] if _NO_UTF8.search(found) else [found]


def without_query(uri: str) -> str:
    return _QUERY_OR_FRAGMENT.split(uri, maxsplit=1)[0]


MAX_URI: Final = 4096
MAX_STEPS: Final = 50_000
"""Of matching one URI: places in it that were looked at. A template that is not about it takes one."""
_MAX_TEMPLATE: Final = 2048
_MAX_EXPRESSIONS: Final = 32
_MAX_VARIABLES: Final = 64

_EXPRESSION = deferred_pattern(r"\{([^{}]*)\}")
# RFC 6570 2.3 plus "-", which servers write and their SDKs take
_VARIABLE = r"(?:[A-Za-z0-9_.-]|%[0-9A-Fa-f]{2})+(?:\*|:[1-9][0-9]{0,3})?"
_BODY = deferred_pattern(rf"([+#./;?&]?)({_VARIABLE}(?:,{_VARIABLE})*)\Z")


@dataclass(frozen=True, slots=True)
class _Gap:
    """What one expression may expand to: nothing, or `first` and then characters not in `stops` (RFC 6570 3.2)."""

    first: str
    stops: re.Pattern[str] | None


_SEGMENT, _PATH, _QUERY = deferred_pattern("[/?#]"), deferred_pattern("[?#]"), deferred_pattern("#")
_GAPS: Final = {
    "": _Gap("", _SEGMENT),
    "+": _Gap("", None),
    "#": _Gap("#", None),
    ".": _Gap(".", _SEGMENT),
    "/": _Gap("/", _PATH),
    ";": _Gap(";", _SEGMENT),
    "?": _Gap("?", _QUERY),
    "&": _Gap("&", _QUERY),
}

_NAMED: Final = (";", "?", "&")
_BETWEEN: Final = {".": ".", "/": "/", ";": ";", "?": "&", "&": "&"}  # values of one expression; a comma else

_Parts = tuple[str | _Gap, ...]
_Range = tuple[int, int]


def literal_prefix(template: str) -> str:
    """What every URI of a template begins with: the text before its first expression."""
    return template.partition("{")[0]


class TemplateMatcher:
    """Whether a URI can be an expansion of one server's RFC 6570 templates. What a server writes into them bounds no
    work, so `steps` does, of all of them together: once these are used up, nothing of that server matches any more."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.steps = 0

    def matches(self, template: str) -> bool:
        """A malformed template matches nothing, and neither does one that could end in very many places."""
        uri = self._uri
        self.steps += 1
        if len(uri) > MAX_URI or not uri.startswith(literal_prefix(template)) or (parts := _parse(template)) is None:
            return False
        ends = [(0, 0)]
        for part in parts:
            ends = self._after_text(ends, part) if isinstance(part, str) else self._after_gap(ends, part)
            if not ends or self.steps > MAX_STEPS:
                return False
        return ends[-1][1] == len(uri)

    # Where the parts so far can end: ranges of places, both ends included, in order and apart from one another.

    def _after_text(self, ends: list[_Range], text: str) -> list[_Range]:
        found: list[_Range] = []
        if not text:
            return ends
        for first, last in ends:
            at = self._uri.find(text, first, last + len(text))
            while at >= 0:
                self.steps += 1
                if self.steps > MAX_STEPS:
                    return []
                _add(found, at + len(text), at + len(text))
                at = self._uri.find(text, at + 1, last + len(text))
        return found

    def _after_gap(self, ends: list[_Range], gap: _Gap) -> list[_Range]:
        found: list[_Range] = []
        for first, last in ends:
            self.steps += 1
            if not gap.first:
                _add(found, first, self._stop(gap, last))
                continue
            _add(found, first, last)  # an undefined variable expands to nothing
            at = self._uri.find(gap.first, first, last + 1)
            while at >= 0:
                self.steps += 1
                reached = self._stop(gap, at + 1)
                _add(found, at + 1, reached)
                at = self._uri.find(gap.first, reached, last + 1)  # any start before that reaches no further
        return found

    def _stop(self, gap: _Gap, start: int) -> int:
        found = gap.stops.search(self._uri, start) if gap.stops else None
        return found.start() if found else len(self._uri)


def _add(found: list[_Range], first: int, last: int) -> None:
    if found and first <= found[-1][1] + 1:
        first, last = found[-1][0], max(found[-1][1], last)
        found.pop()
    found.append((first, last))


Spellings = tuple[dict[str, str], dict[str, str], dict[str, str]]
"""The values of some variables: as they are, and encoded in both ways (RFC 6570 3.2)."""


def spellings(values: Mapping[str, str]) -> Spellings:
    encoded = {name: quote(value) for name, value in values.items()}
    return dict(values), encoded, {name: quote(value, safe="") for name, value in values.items()}


def expansions(template: str, values: Mapping[str, str], others: Spellings = ({}, {}, {})) -> set[str]:
    """What the template may become with these values and those `others`, and nothing for all other variables. Nothing
    where the template is malformed, or one of them were longer than a URI may be."""
    if _parse(template) is None or any(len(value) > MAX_URI for value in values.values()):
        return set()
    pieces = _EXPRESSION.split(template)
    found = {_expand(pieces, {**known, **new}) for known, new in zip(others, spellings(values), strict=True)}
    return set() if None in found else {uri for uri in found if uri is not None}


def variables(template: str) -> frozenset[str]:
    """The names of its variables; none where it is malformed."""
    bodies = _EXPRESSION.findall(template) if _parse(template) is not None else ()
    return frozenset(name for body in bodies for name in _names(body))


def _names(body: str) -> list[str]:
    return [name.rstrip("*").partition(":")[0] for name in body.lstrip("+#./;?&").split(",")]


def _expand(pieces: list[str], values: Mapping[str, str]) -> str | None:
    """None for what is longer than a URI may be: nothing longer is made on the way."""
    written, size = [], 0
    for index, piece in enumerate(pieces):
        if index % 2:
            first = _GAPS[piece[0]].first if piece[0] in _GAPS else ""
            given = [(f"{name}=" if first in _NAMED else "", values[name]) for name in _names(piece) if name in values]
            if size + sum(len(name) + len(value) for name, value in given) > MAX_URI:
                return None
            piece = first + _BETWEEN.get(first, ",").join(map("".join, given)) if given else ""
        size += len(piece)
        if size > MAX_URI:
            return None
        written.append(piece)
    return "".join(written)


def _parse(template: str) -> _Parts | None:
    return _parsed(template) if len(template) <= _MAX_TEMPLATE else None  # what is longer is not remembered


@lru_cache(maxsize=4096)
def _parsed(template: str) -> _Parts | None:
    pieces = _EXPRESSION.split(template)  # text, expression, text, ... , text
    if len(pieces) > 2 * _MAX_EXPRESSIONS + 1 or sum(piece.count(",") + 1 for piece in pieces[1::2]) > _MAX_VARIABLES:
        return None
    parts: list[str | _Gap] = []
    for index, piece in enumerate(pieces):
        part = _gap(piece) if index % 2 else _text(piece)
        if part is None:
            return None
        parts.append(part)
    return tuple(parts)


def _text(piece: str) -> str | None:
    return None if "{" in piece or "}" in piece else piece


def _gap(body: str) -> _Gap | None:
    found = _BODY.match(body)
    return _GAPS[found[1]] if found else None
