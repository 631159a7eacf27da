"""The section `network` of the config file: what Sluice may connect to where others name the place."""

import re
from ipaddress import ip_network
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from sluicegate.config.section import Section
from sluicegate.config.units import problem

_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_NUMBERS = re.compile(r"[0-9.]+(?:/.*)?|.*[:/].*")
_PROXY = re.compile(r"http://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}/?")


def _place(value: str) -> str:
    try:
        ip_network(value, strict=True)
        return value
    except ValueError:
        if _NUMBERS.fullmatch(value) or not _NAME.fullmatch(value):
            message = "not a network, an address or a host; write 10.1.0.0/16, 10.1.2.3 or keys.example.internal"
            raise problem("bad-network", message) from None
    return value


def network(value: str) -> str:
    """An address or a network."""
    try:
        ip_network(value, strict=True)
    except ValueError:
        raise problem("bad-network", "not a network or an address; write 10.1.0.0/16 or 10.1.2.3") from None
    return value


def _proxy(value: Any) -> Any:
    """YAML 1.1 reads `off` as a truth value, 1.2 as a word."""
    if value is None or value is False or value == "off":
        return None
    if not isinstance(value, str) or not _PROXY.fullmatch(value):
        raise problem("bad-proxy", "not a proxy; write off, or http://host:port")
    return value.rstrip("/")


Place = Annotated[str, AfterValidator(_place)]
NetworkText = Annotated[str, AfterValidator(network)]


class Network(Section):
    allow_private: tuple[Place, ...] = ()
    """Private networks, addresses and hosts that may be connected to although a server or a token issuer named them."""
    proxy: Annotated[
        str | None, BeforeValidator(_proxy), WithJsonSchema({"type": "string", "examples": ["http://proxy:3128"]})
    ] = None
    """An HTTP proxy through which servers and token issuers are reached. It resolves names then, and so it has to judge
    where they lead."""
