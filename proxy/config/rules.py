"""What the types cannot say: rules between keys. Pure: a `Config` in, problems with their paths out."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from proxy.config.finding import Problem
from proxy.config.models import Config, HttpServer

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def broken_rules(config: Config) -> list[Problem]:
    return [problem for rule in RULES for problem in rule(config)]


def _open_policy_stays_at_home(config: Config) -> Iterator[Problem]:
    for name, address in (("mcp", config.listen.mcp), ("admin", config.listen.admin)):
        if not address.is_loopback:
            message = "the open policy lets everybody do everything and is refused on an address that is not loopback"
            yield Problem(("listen", name), "open-policy", message, "listen on 127.0.0.1")


def _two_listeners_have_two_addresses(config: Config) -> Iterator[Problem]:
    if config.listen.mcp == config.listen.admin and config.listen.mcp.port:
        yield Problem(("listen", "admin"), "same-address", "mcp and admin need an address each")


def _anonymous_stays_at_home(config: Config) -> Iterator[Problem]:
    if config.clients.anonymous is None:
        return
    path = ("clients", "anonymous")
    if not config.listen.mcp.is_loopback:
        message = "clients without a credential are refused on an address that is not loopback"
        yield Problem(path, "anonymous", message, "remove this section, or listen on 127.0.0.1", at_key=True)
    others = [host for host in config.listen.allowed_hosts if _name(host) not in LOOPBACK_NAMES]
    if others:
        message = "clients without a credential are refused where listen.allowed_hosts names other hosts"
        yield Problem(path, "anonymous", message, "remove this section, or allowed_hosts", at_key=True)


def _name(host: str) -> str:
    return (host[: host.index("]") + 1] if host.startswith("[") else host.partition(":")[0]).lower()


def _prefixes_differ(config: Config) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for key, server in config.servers.items():
        first = owners.setdefault(server.prefix, key)
        if first != key and server.prefix:
            path = ("servers", key, "prefix")
            yield Problem(path, "duplicate-prefix", f'"{server.prefix}" is the prefix of the server {first} already')


def _transparent_means_alone(config: Config) -> Iterator[Problem]:
    enabled = [key for key, server in config.servers.items() if server.enabled]
    for key in enabled:
        if config.servers[key].prefix == "" and len(enabled) > 1:
            message = "an empty prefix (transparent mode) is for exactly one enabled server"
            hint = "give it a prefix, or disable the other servers"
            yield Problem(("servers", key, "prefix"), "transparent", message, hint)


def _forwarding_means_transparent(config: Config) -> Iterator[Problem]:
    for key, server in config.servers.items():
        if server.unlisted == "forward" and server.prefix:
            message = "forward works in transparent mode only"
            yield Problem(("servers", key, "unlisted"), "transparent", message, 'set prefix: "", or remove this key')


def _pins_need_a_list(config: Config) -> Iterator[Problem]:
    for key, server in config.servers.items():
        if server.unlisted == "forward" and server.pinning in ("review", "block"):
            message = f"{server.pin} cannot withhold a name that is relayed whether it is listed or not"
            hint = "remove unlisted: forward, or set pin: warn or off"
            yield Problem(("servers", key, "pin"), "pin-and-forward", message, hint)
        elif server.unlisted == "forward" and "pin" not in server.model_fields_set:
            message = "definitions of this server are not pinned, because names that it did not list are relayed"
            hint = "set pin: off to say so, or pin: warn to have changes reported"
            yield Problem(("servers", key, "unlisted"), "not-pinned", message, hint, severity="warning")


def _timeouts_are_in_order(config: Config) -> Iterator[Problem]:
    for key, server in config.servers.items():
        if server.max_time < server.timeout:
            path = ("servers", key, "max_time" if "max_time" in server.model_fields_set else "timeout")
            yield Problem(path, "wrong-value", "max_time is shorter than timeout", "max_time bounds the whole call")


def _authorities_exist(config: Config) -> Iterator[Problem]:
    for key, server in config.servers.items():
        if isinstance(server, HttpServer) and server.ca and not server.ca.is_file():
            yield Problem(("servers", key, "ca"), "unreadable-file", "there is no such file")


def _hashes_differ(config: Config) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for name, key in config.clients.keys.items():
        first = owners.setdefault(key.hash.get_secret_value(), name)
        if first != name:
            yield Problem(("clients", "keys", name, "hash"), "duplicate-hash", f"the key {first} has the same hash")


def _keys_are_in_time(config: Config) -> Iterator[Problem]:
    now = datetime.now(UTC)
    for name, key in config.clients.keys.items():
        if key.expires and key.expires <= now:
            path = ("clients", "keys", name, "expires")
            yield Problem(path, "expired-key", "this key has expired and is refused", severity="warning")


def _somebody_gets_in(config: Config) -> Iterator[Problem]:
    if config.clients.anonymous is None and not config.clients.keys:
        message = "no HTTP client gets in; only `sluice stdio` works"
        hint = "add a key (`sluice keys new NAME`), or clients.anonymous on loopback"
        yield Problem(("clients",), "no-clients", message, hint, severity="warning", at_key=True)


def _something_is_behind(config: Config) -> Iterator[Problem]:
    if not any(server.enabled for server in config.servers.values()):
        yield Problem(("servers",), "no-servers", "no server is enabled", severity="warning", at_key=True)


RULES: tuple[Callable[[Config], Iterator[Problem]], ...] = (
    _open_policy_stays_at_home, _two_listeners_have_two_addresses, _anonymous_stays_at_home, _prefixes_differ,
    _transparent_means_alone, _forwarding_means_transparent, _pins_need_a_list, _timeouts_are_in_order,
    _authorities_exist, _hashes_differ, _keys_are_in_time, _somebody_gets_in, _something_is_behind,
)  # fmt: skip
