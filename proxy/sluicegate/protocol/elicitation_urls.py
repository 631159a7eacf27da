"""The pages that a server may ask a person to open: web pages, and none that Sluice itself serves. Pure.

A browser reads a URL more freely than most parsers do (WHATWG URL: backslashes, user names, numbers as hosts). Only the
plain form is accepted, and a host that could be read as an address counts as ours where the port is.
"""

import unicodedata
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from sluicegate.deferred import deferred_pattern

_PAGE: Final = deferred_pattern(
    r"(?i)(https?)://([^\x00-\x20\x7f/?#@\\%:\[\]]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?(?:[/?#][^\x00-\x20\x7f]*)?"
)
# A host whose last label is a number is an IPv4 address in one of its spellings (WHATWG URL, "ends in a number").
_NAME: Final = deferred_pattern(r"(?:[a-z0-9_-]+\.)*(?!0x[0-9a-f]*\Z)[a-z0-9_-]*[a-z_-][a-z0-9_-]*")
_MAX_URL: Final = 8192
_MAX_HOST: Final = 253  # RFC 1035 2.3.4, without the last dot
_DEFAULT: Final = {"http": 80, "https": 443}
_IGNORED: Final = deferred_pattern("[\u034f\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "host.docker.internal"})
"""Names of a machine where others serve, too."""


def address(url: object) -> tuple[str, int] | None:
    """Host and port of a web page; None for everything else."""
    found = _PAGE.fullmatch(url) if isinstance(url, str) and len(url) <= _MAX_URL else None
    if found is None or len(found[2]) > _MAX_HOST:  # first: `normalize` takes the square of a run of marks
        return None
    port = int(found[3]) if found[3] else _DEFAULT[found[1].lower()]
    host = unicodedata.normalize("NFKC", found[2]).lower().rstrip(".")
    return (host, port) if 0 < port < 65536 and host else None


class OwnUrls:
    """Where Sluice itself listens: `add` is told of each of its URLs once the port is known. `hosts` are further names
    (`host[:port]`) under which it is served: at its own ports, and unless they are of this machine at the default ones
    of a reverse proxy."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._names = {"localhost"}
        self._ports: set[int] = set()
        self._proxied: set[tuple[str, int]] = set()
        for host in hosts:
            for scheme in _DEFAULT:
                if (found := address(f"{scheme}://{host}")) is not None:
                    self._names.add(found[0])
                    if found[0] not in _LOCAL:
                        self._proxied.add(found)

    def add(self, url: str) -> None:
        if (found := address(url)) is not None:
            self._names.add(found[0])
            self._ports.add(found[1])

    def remove(self, url: str) -> None:
        """Sluice listens there no more: another program may."""
        if (found := address(url)) is not None:
            self._ports.discard(found[1])

    def __contains__(self, url: object) -> bool:
        found = address(url)
        if found is None or found in self._proxied:
            return found is not None
        host, port = found
        is_name = _NAME.fullmatch(host) is not None
        if port in self._ports and (not is_name or host in self._names or host.endswith(".localhost")):
            return True
        return not is_name and any(_may_be(host, name) for name, proxied in self._proxied if proxied == port)


def _may_be(host: str, name: str) -> bool:
    """Whether a browser may take the host for that name or address. It drops letters that are not seen, knows further
    dots, and gives a name of other letters an ASCII form (UTS #46). An address has many spellings."""
    plain = "".join(letter for letter in _IGNORED.sub("", host) if unicodedata.category(letter) != "Cf")
    plain = unicodedata.normalize("NFKC", plain).replace("\u3002", ".").casefold()
    if not plain.isascii():
        return "xn--" in name
    if _NAME.fullmatch(plain) is not None or _NAME.fullmatch(name) is not None:
        return plain == name
    value = _value(plain)
    return value is None or value == _value(name)


def _value(host: str) -> IPv4Address | IPv6Address | None:
    """None for another spelling than the usual one."""
    try:
        value = ip_address(host.strip("[]"))
    except ValueError:
        return None
    return getattr(value, "ipv4_mapped", None) or value
