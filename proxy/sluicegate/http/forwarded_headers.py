"""What reverse proxies say of a request in forwarded headers, and when it counts: one rule for both ports. Pure.

Anybody can write such a header. So what it says counts only where it comes from an address in `trusted_proxies`. That
it is there at all counts from everybody: whoever was forwarded is not a client of this machine, and never anonymous.
"""

import re
from ipaddress import ip_address, ip_network
from typing import Final

from sluicegate.http.addresses import is_literal
from sluicegate.http.hosts import Headers, ServedNames, authority

# One absolute path of plain segments: it becomes a part of an address that is sent to clients.
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+;=:@%-]+)+/?")
_MAX_PREFIX: Final = 256
_MAX_HOPS: Final = 16
"""Proxies in a row that may be ours. What stands before them in the header is not looked at."""
# RFC 7239, RFC 9110 7.6.3, RFC 8586, what stood there before them, and what tunnels and content networks add.
_MARKS: Final = frozenset({
    b"forwarded", b"via", b"cdn-loop", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"true-client-ip",
    b"cf-connecting-ip", b"cf-connecting-ipv6", b"cf-ray", b"fly-client-ip", b"fastly-client-ip", b"x-azure-clientip",
    b"x-envoy-external-address", b"x-original-forwarded-for", b"x-proxyuser-ip",
})  # fmt: skip


def is_forwarded(headers: Headers) -> bool:
    return any(name in _MARKS or name.startswith(b"x-forwarded-") for name, _ in headers)


class ForwardedHeaders:
    """`beside` is the path beside which everything else is published; "" is the root. `peer` is the address that a
    request came from."""

    def __init__(self, names: ServedNames) -> None:
        self._trusted = tuple(map(ip_network, names.trusted_proxies))
        self._scheme = names.scheme
        self.beside = "" if names.public_path is None else names.public_path.rpartition("/")[0]

    def trusts(self, address: str) -> bool:
        try:
            return any(ip_address(address) in network for network in self._trusted)
        except ValueError:
            return False

    def prefix(self, peer: str, headers: Headers) -> str:
        """What stands before our own paths on the outside: as the proxy says, else as configured."""
        prefix = _one(headers, b"x-forwarded-prefix")
        if not prefix or not self.trusts(peer) or len(prefix) > _MAX_PREFIX or not _PREFIX.fullmatch(prefix):
            return self.beside
        if any(segment in (".", "..") for segment in prefix.split("/")):
            return self.beside
        return prefix.rstrip("/")

    def origin(self, peer: str, headers: Headers) -> str:
        """Scheme and host of the request as the client made it: as the proxy says, else as it came here."""
        scheme, host = self._scheme, _one(headers, b"host")
        if self.trusts(peer):
            outside = _one(headers, b"x-forwarded-proto").lower()
            scheme = outside if outside in ("http", "https") else scheme
            there = _one(headers, b"x-forwarded-host")
            host = there if authority(there) else host
        return f"{scheme}://{host}"

    def client(self, peer: str, headers: Headers) -> str:
        """The nearest address that is not one of our proxies'."""
        if not self.trusts(peer):
            return peer
        address = peer
        hops = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1")
        for hop in reversed(hops.rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
            if not self.trusts(address) or not is_literal(hop.strip()):
                return address
            address = hop.strip()
        return address


def _one(headers: Headers, name: bytes) -> str:
    """The value of a header that comes once; "" of one that comes twice, as two readers could differ about it."""
    values = [value for key, value in headers if key == name]
    return values[0].decode("latin-1").strip() if len(values) == 1 else ""
