"""What kind of place an address is: anybody's, somebody's own, or one that nothing named from afar may reach. Pure.

An address is judged by what it stands for: inside many IPv6 addresses there is an IPv4 address, to which a router or
the system itself would bring the connection. Only what the resolver gave is judged, so every spelling of a host
(decimal, octal, hexadecimal, with a zone) has become an address before.
"""

from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

Ip = IPv4Address | IPv6Address


class AddressKind(Enum):
    PUBLIC = "public"
    PRIVATE = "private"  # of this machine, of a network of one's own, or for special use
    FORBIDDEN = "link-local or metadata"


# Where clouds tell machines their secrets. Some of them are global addresses by the book.
_METADATA: Final = frozenset(
    map(
        ip_address,
        ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192",
         "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42"),
    )
)  # fmt: skip
_NAT64: Final = ip_network("64:ff9b::/96")  # RFC 6052
_NAT64_LOCAL: Final = ip_network("64:ff9b:1::/48")  # RFC 8215
_COMPATIBLE: Final = ip_network("::/96")  # RFC 4291 2.5.5.1
_TRANSLATED: Final = ip_network("::ffff:0:0:0/96")  # RFC 2765
_TUNNELS: Final = (ip_network("2002::/16"), ip_network("2001::/32"))  # RFC 3056, RFC 4380: no way of today's
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})  # RFC 5214 6.1


@lru_cache(maxsize=4096)
def kind_of(address: str) -> AddressKind:
    """Raises `ValueError` for what is no address."""
    text, _, zone = address.partition("%")
    ip = _unwrapped(ip_address(text))
    kinds = {_kind(one) for one in (ip, *_inside(ip))}
    if zone or AddressKind.FORBIDDEN in kinds:  # RFC 4007 6: only addresses that mean something on one link have a zone
        return AddressKind.FORBIDDEN
    return AddressKind.PRIVATE if AddressKind.PRIVATE in kinds else AddressKind.PUBLIC


def _kind(ip: Ip) -> AddressKind:
    if ip in _METADATA or ip.is_link_local:
        return AddressKind.FORBIDDEN
    if ip.version == 6 and (ip.is_site_local or any(ip in tunnel for tunnel in _TUNNELS)):
        return AddressKind.PRIVATE
    if ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified):
        return AddressKind.PUBLIC
    return AddressKind.PRIVATE


def _unwrapped(ip: Ip) -> Ip:
    """An IPv4 address that is only written as another: on networks without IPv4 this is how all of it is reached."""
    if ip.version == 6 and (ip.ipv4_mapped is not None or ip in _NAT64):
        return _last(ip)
    return ip


def _last(ip: IPv6Address) -> IPv4Address:
    return IPv4Address(int(ip) & 0xFFFF_FFFF)


def _inside(ip: Ip) -> Iterator[IPv4Address]:
    """The IPv4 addresses that an IPv6 address carries, whoever would unpack them."""
    if ip.version == 4:
        return
    number = int(ip)
    is_compatible = ip in _COMPATIBLE and number > 1  # not `::` and `::1`
    if ip in _NAT64_LOCAL or ip in _TRANSLATED or is_compatible or (number >> 32) & 0xFFFF_FFFF in _ISATAP:
        yield _last(ip)
    if ip.sixtofour is not None:
        yield ip.sixtofour
    if ip.teredo is not None:
        yield from ip.teredo


def is_literal(host: str) -> bool:
    """Whether a host is an address in its one usual spelling, and so cannot come to mean another."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=4096)
def counted_as(address: str) -> str:
    """What an address counts as where requests of one are limited: whoever has one of IPv6 has the 2^64 of its network
    (RFC 4291 2.5.1). Anything that is no address is itself."""
    try:
        ip = _unwrapped(ip_address(address))
    except ValueError:
        return address
    return str(ip) if ip.version == 4 else str(IPv6Address(int(ip) >> 64 << 64))
