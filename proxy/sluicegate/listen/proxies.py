"""Where we stand behind reverse proxies: under which path clients know us, and which address is theirs. Pure.

A header that tells of it counts only where it comes from an address that the operator trusts: anybody can write one.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Final

from sluicegate.listen.settings import Names

# One absolute path of plain segments: it becomes a part of an address that is sent to clients.
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+;=:@%-]+)+/?")
_MAX_PREFIX: Final = 256
_AUTHORITY: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")


class Proxies:
    """`beside` is the path beside which everything else is published; "" is the root."""

    def __init__(self, names: Names) -> None:
        self._trusted = tuple(map(ip_network, names.trusted_proxies))
        self.beside = "" if names.public_path is None else names.public_path.rpartition("/")[0]

    def __repr__(self) -> str:
        return f"Proxies({len(self._trusted)} trusted, beside {self.beside or '/'})"

    def trusts(self, address: str) -> bool:
        try:
            return any(ip_address(address) in network for network in self._trusted)
        except ValueError:
            return False

    def prefix(self, peer: str, head: Mapping[bytes, bytes]) -> str:
        """What stands before our own paths on the outside: as the proxy says, else as configured."""
        said = head.get(b"x-forwarded-prefix")
        if said is None or not self.trusts(peer):
            return self.beside
        prefix = said.decode("latin-1")
        if len(prefix) > _MAX_PREFIX or not _PREFIX.fullmatch(prefix):
            return self.beside
        if any(segment in (".", "..") for segment in prefix.split("/")):
            return self.beside
        return prefix.rstrip("/")

    def origin(self, peer: str, head: Mapping[bytes, bytes]) -> str:
        """Scheme and host of the request as the client made it: as the proxy says, else as it came here."""
        scheme, host = "http", head.get(b"host", b"").decode("latin-1")
        if self.trusts(peer):
            said = head.get(b"x-forwarded-proto", b"").decode("latin-1").strip().lower()
            scheme = said if said in ("http", "https") else scheme
            there = head.get(b"x-forwarded-host", b"").decode("latin-1").strip()
            host = there if _AUTHORITY.fullmatch(there) else host
        return f"{scheme}://{host}"

    def client(self, peer: str, head: Mapping[bytes, bytes]) -> str:
        """The address that is not one of our proxies', seen from here."""
        address = peer
        for hop in reversed(head.get(b"x-forwarded-for", b"").decode("latin-1").split(",")):
            if not self.trusts(address) or not _is_address(hop.strip()):
                return address
            address = hop.strip()
        return address


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
