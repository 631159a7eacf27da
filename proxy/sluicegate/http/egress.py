"""Which addresses a connection may go to, asked at the moment of connecting: what a name means can change at any time.

A host that the config names may be private; one that a server or a token issuer names may not, unless it is of the
same origin as the URL in the config or the operator allows it. Link-local and metadata addresses are refused for
both, unless the config has them as an address. Knows no protocol: whoever connects asks, and connects to what it got.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from sluicegate.http.addresses import AddressKind, is_literal, kind_of

TELL_EVERY: Final = 60.0  # seconds, of one place: who tries again and again does not fill the log
_MAX_TOLD: Final = 1_000

log = logging.getLogger(__name__)


class Blocked(OSError):
    """The address may not be connected to; nothing was sent."""


@dataclass(frozen=True, slots=True)
class AddressRefused:
    """One refusal, as it is told: for whom, which host, what it turned out to be, and why not."""

    whose: str
    host: str
    address: str
    why: str


class Egress:
    """`allow_private` are networks, addresses and host names. With a `proxy` (its URL) it is the proxy that resolves
    names, and so the proxy that judges; only literal addresses are still judged here."""

    def __init__(
        self, allow_private: Iterable[str] = (), proxy: str | None = None,
        on_refused: Callable[[AddressRefused], None] = lambda refused: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.proxy = proxy
        self.on_refused = on_refused
        self._clock = clock
        self._reported: dict[tuple[str, str], float] = {}
        self.replace(allow_private)

    def replace(self, allow_private: Iterable[str]) -> None:
        entries = [entry.lower() for entry in allow_private]
        networks = [(entry, network) for entry in entries if (network := _network(entry))]
        self._networks = [network for _, network in networks]
        self._hosts = {entry.rstrip(".") for entry in entries} - {entry for entry, _ in networks}

    def permit(self, whose: str, host: str, addresses: Iterable[str], *, is_named: bool = False) -> Sequence[str]:
        """Those of a host's addresses that may be connected to. `is_named`: somebody else than the operator named the
        host. Raises `Blocked` if there is none."""
        refused: list[tuple[str, str]] = []
        good = []
        for address in addresses:
            why = self._why_not(host, address, is_named)
            if why:
                refused.append((address, why))
            else:
                good.append(address)
        if good or not refused:
            return good
        address, why = refused[0]
        self._tell(AddressRefused(whose, host, address, why))
        raise Blocked(why if is_literal(host) else f"{host} is {address}: {why}")

    def _why_not(self, host: str, address: str, is_named: bool) -> str:
        kind = kind_of(address)
        if kind is AddressKind.FORBIDDEN and (is_named or not is_literal(host)):
            return "link-local and metadata addresses are refused"
        if kind is AddressKind.PRIVATE and is_named and not self._is_allowed(host, address):
            return "a private address, and not in network.allow_private"
        return ""

    def _is_allowed(self, host: str, address: str) -> bool:
        ip = ip_address(address)
        mapped = ip.ipv4_mapped if ip.version == 6 else None
        return host.lower().rstrip(".") in self._hosts or any((mapped or ip) in network for network in self._networks)

    def _tell(self, refused: AddressRefused) -> None:
        now, refused_host = self._clock(), (refused.whose, refused.host)
        if now - self._reported.get(refused_host, -TELL_EVERY) < TELL_EVERY:
            return
        if len(self._reported) >= _MAX_TOLD:
            self._reported.clear()
        self._reported[refused_host] = now
        log.warning("connection refused: %s", refused.why, extra={"for": refused.whose, "host": refused.host})
        self.on_refused(refused)


def _network(entry: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(entry, strict=False)
    except ValueError:
        return None
