"""What the types cannot say: rules between keys. Pure: a `Config` in, problems with their paths out."""

import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sluicegate.config.finding import Path as TreePath
from sluicegate.config.finding import Problem
from sluicegate.config.hook_rules import RULES as HOOK_RULES
from sluicegate.config.models import Config, HttpServer, ImageServer, StdioServer
from sluicegate.config.names import LOCAL_URL
from sluicegate.config.sandbox import in_each, problems, runner
from sluicegate.config.units import Address

OTEL: Final = "opentelemetry.exporter.otlp.proto.http"
PSYCOPG: Final = "psycopg"
NTFY_TOPIC: Final = re.compile(r"[-_A-Za-z0-9]{1,64}")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
BUILT_IN_PROFILES = frozenset({"confirm", "one-of-leads", "two-person"})


def broken_rules(config: Config) -> list[Problem]:
    return [problem for rule in RULES for problem in rule(config)]


def _there_is_one_policy(config: Config) -> Iterator[Problem]:
    policy = config.policy
    if policy.use is None and not policy.files:
        message = "there is no policy, and nothing is allowed without one"
        yield Problem(("policy", "use"), "missing-key", message, "write use: personal, or files: [policy.csv]")
    for key in ("files", "model", "arguments", "tests"):
        if policy.use is not None and key in policy.model_fields_set:
            message = f'"{key}" belongs to a policy of your own, and `use` names one that comes with Sluice'
            yield Problem(("policy", key), "two-policies", message, "remove one of them", at_key=True)
    if policy.model is not None and policy.use is None:
        message = "this key has no effect: Sluice reads rows by one model, which comes with it"
        yield Problem(("policy", "model"), "deprecated-key", message, "remove it", severity="warning", at_key=True)


def _shadow_mode_ends(config: Config) -> Iterator[Problem]:
    policy = config.policy
    if policy.mode == "shadow" and policy.until is None:
        message = "shadow mode lets pass what the policy denies, so it needs an end"
        yield Problem(("policy", "until"), "no-end", message, "add until: DATE")
    elif policy.mode == "shadow" and policy.until and policy.until <= datetime.now(UTC):
        message = "shadow mode is over: the policy is enforced"
        yield Problem(("policy", "until"), "shadow-over", message, "write mode: enforce", severity="warning")
    elif policy.mode == "enforce" and policy.until is not None:
        yield Problem(("policy", "until"), "wrong-value", "until is when shadow mode ends", "remove it", at_key=True)


def _approvals_can_be_given(config: Config) -> Iterator[Problem]:
    for name, profile in config.approvals.profiles.items():
        path = ("approvals", "profiles", name)
        if profile.tier == "other" and not profile.approvers:
            hint = "add approvers: [role:NAME]"
            yield Problem(path, "no-approvers", "nobody could ever approve this", hint, at_key=True)
        for key in ("approvers", "quorum"):
            if profile.tier == "self" and key in profile.model_fields_set:
                message = f"{key} is for tier other: with tier self whoever asked confirms"
                yield Problem((*path, key), "wrong-value", message, "remove it", at_key=True)
        if profile.tier == "other" and "via" in profile.model_fields_set and "elicitation" in profile.via:
            message = "elicitation asks whoever called, and tier other is decided by somebody else"
            yield Problem((*path, "via"), "wrong-value", message, "write via: [api]")
        if profile.quorum > 1 and set(profile.remember) != {"once"}:
            message = "what several people agree to together is good once"
            yield Problem((*path, "remember"), "wrong-value", message, "write remember: [once]")
        if profile.require_reason and profile.tier == "self":
            message = "a reason is for somebody else's eyes: with tier self whoever asked confirms"
            yield Problem((*path, "require_reason"), "wrong-value", message, "remove it", at_key=True)


def _notices_can_be_sent(config: Config) -> Iterator[Problem]:
    existing = {*config.approvals.profiles, *BUILT_IN_PROFILES}
    for at, webhook in enumerate(config.approvals.notify):
        path = ("approvals", "notify", at)
        for name in webhook.profiles:
            if name not in existing:
                hint = f"profiles are {', '.join(sorted(existing))}"
                yield Problem((*path, "profiles"), "unknown-profile", f"there is no {name}", hint)
        if webhook.format == "json" and webhook.secret is None:
            yield Problem((*path, "secret"), "missing-key", '"secret" is missing', "the format json is signed with it")
        elif webhook.format != "json" and webhook.secret is not None:
            message = f"secret is what the format json is signed with; {webhook.format} takes no signature"
            yield Problem((*path, "secret"), "wrong-value", message, "remove it", at_key=True)
        topic = urlsplit(webhook.url.get_secret_value()).path.rpartition("/")[2]
        if webhook.format == "ntfy" and not NTFY_TOPIC.fullmatch(topic):
            message = "the URL ends in no topic of ntfy, which is 1 to 64 of A-Z, a-z, 0-9, - and _"
            yield Problem((*path, "url"), "bad-url", message, "write https://ntfy.example.com/TOPIC")


def _open_policy_stays_at_home(config: Config) -> Iterator[Problem]:
    if config.policy.use != "open":
        return
    for where, address in config.addresses.items():
        if not address.is_loopback:
            message = "the open policy lets everybody do everything and is refused on an address that is not loopback"
            yield Problem(where, "open-policy", message, "listen on 127.0.0.1")


def _two_listeners_have_two_addresses(config: Config) -> Iterator[Problem]:
    seen: dict[Address, TreePath] = {}
    for where, address in config.addresses.items():
        first = seen.setdefault(address, where)
        if first != where and address.port:
            names = f"{'.'.join(map(str, first[1:]))} and {'.'.join(map(str, where[1:]))}"
            yield Problem(where, "same-address", f"{names} need an address each")


def _the_console_needs_https(config: Config) -> Iterator[Problem]:
    if config.console.enabled and not config.listen.admin.is_loopback and not config.listen.trusted_proxies:
        message = "from other machines the console is served over https only: over this address it answers 404"
        hint = "put a reverse proxy with https in front and in listen.trusted_proxies, or set console: {enabled: false}"
        yield Problem(("listen", "admin"), "console-needs-https", message, hint, severity="warning")


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
    for key in ("public_url", "trusted_proxies"):
        if getattr(config.listen, key):
            message = f"clients without a credential are refused where listen.{key} leads others here"
            yield Problem(path, "anonymous", message, f"remove this section, or {key}", at_key=True)


def _name(host: str) -> str:
    return (host[: host.index("]") + 1] if host.startswith("[") else host.partition(":")[0]).lower()


def _prefixes_differ(config: Config) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for key, server in config.servers.items():
        first = owners.setdefault(server.prefix, key)
        if first != key and server.prefix:
            path = ("servers", key, "prefix")
            yield Problem(path, "duplicate-prefix", f'"{server.prefix}" is the prefix of the server {first} already')


def _toolsets_hold_something(config: Config) -> Iterator[Problem]:
    """Globs of servers are judged here, those of names where the lists are known."""
    roles: dict[str, str] = {}
    for name, toolset in config.toolsets.items():
        path = ("toolsets", name)
        if not (toolset.tools or toolset.prompts or toolset.resources):
            yield Problem(path, "empty-toolset", "this toolset has nothing", "add tools: [SERVER/GLOB]")
        for part, globs in toolset.globs():
            for at, glob in enumerate(globs):
                server = glob.removeprefix("!").partition("/")[0]
                if not any(fnmatchcase(key, server) for key in config.servers):
                    message, hint = f'no server is called "{server}"', f"servers are {', '.join(config.servers)}"
                    yield Problem((*path, part, at), "unknown-server", message, hint, severity="warning")
        for at, role in enumerate(toolset.default_for):
            first = roles.setdefault(role, name)
            if first != name:
                message = f"{role} has the toolset {first} by default already, which comes first"
                yield Problem((*path, "default_for", at), "two-defaults", message, "remove one", severity="warning")


def _shapes_have_names_of_their_own(config: Config) -> Iterator[Problem]:
    for key, server in config.servers.items():
        for part, shapes in (("tools", server.tools.shape), ("prompts", server.prompts.shape)):
            owners: dict[str, str] = {}
            for own, shape in shapes.items():
                first = owners.setdefault(shape.name, own)
                if shape.name and first != own:
                    path = ("servers", key, part, "shape", own, "name")
                    yield Problem(path, "duplicate-name", f'"{shape.name}" is the name of {first} already')
                for one in sorted(set(shape.hide) & shape.defaults.keys()):
                    path = ("servers", key, part, "shape", own, "hide")
                    message = f'"{one}" has a default, and so no client sees it anyway'
                    yield Problem(path, "hidden-twice", message, "remove it here", severity="warning")


def _a_search_covers_many(config: Config) -> Iterator[Problem]:
    places: list[tuple[str, ...]] = [("search",)] if config.search != "off" else []
    places += [("toolsets", name, "search") for name, toolset in config.toolsets.items() if toolset.search != "off"]
    for path in places:
        message = 'a client\'s own "always allow" for call_tool covers every tool behind it'
        hint = "let the policy ask a person, with a p2 row, for what should not run unseen"
        yield Problem(path, "one-leave-for-all", message, hint, severity="warning")


def _transparent_means_alone(config: Config) -> Iterator[Problem]:
    enabled = [key for key, server in config.servers.items() if server.enabled]
    for key in enabled:
        if config.servers[key].prefix == "" and len(enabled) > 1:
            message = "an empty prefix (transparent mode) is for exactly one enabled server"
            hint = "give it a prefix, or disable the other servers"
            yield Problem(("servers", key, "prefix"), "transparent", message, hint)


def _keys_of_a_server_agree(config: Config) -> Iterator[Problem]:
    for key, server in config.servers.items():
        path, written = ("servers", key), server.model_fields_set
        if server.unlisted == "forward" and server.prefix:
            message = "forward works in transparent mode only"
            yield Problem((*path, "unlisted"), "transparent", message, 'set prefix: "", or remove this key')
        if server.results_over == "page" and server.results == "block":
            message = "with results: block no part can be read of what was not looked at as a whole"
            hint = "remove this key, or set results: warn"
            yield Problem((*path, "results_over"), "page-and-block", message, hint)
        if server.unlisted == "forward" and server.tools.deny:
            message = "a deny list does not know the names that the server does not list, and those are relayed"
            hint = "name what may be called in tools.allow, or remove unlisted: forward"
            yield Problem((*path, "tools", "deny"), "denies-unlisted", message, hint, severity="warning")
        if server.max_time < server.timeout:
            where, hint = "max_time" if "max_time" in written else "timeout", "max_time bounds the whole call"
            yield Problem((*path, where), "wrong-value", "max_time is shorter than timeout", hint)
        if isinstance(server, HttpServer) and server.transport == "sse" and server.era == "modern":
            message = "no modern server speaks HTTP+SSE, the transport of 2024-11-05"
            yield Problem((*path, "transport"), "wrong-value", message, "remove era, or transport")
        if isinstance(server, ImageServer) and "cwd" in written:
            message = "a container begins in the folder that its image says"
            yield Problem((*path, "cwd"), "wrong-value", message, "remove it", at_key=True)


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


def _logins_are_whole(config: Config) -> Iterator[Problem]:
    for key, server in config.servers.items():
        login = server.login if isinstance(server, HttpServer) else None
        if login is None:
            continue
        path = ("servers", key, "login")
        if login.grant == "client_credentials" and login.per != "gateway":
            message = "client_credentials is an account of Sluice itself, and so of all whom the policy lets in"
            yield Problem((*path, "per"), "wrong-value", message, "write per: gateway")
        has_proof = login.client_secret is not None or login.client_key is not None
        if login.grant == "client_credentials" and not (login.client_id and has_proof):
            message = "client_credentials needs client_id, and client_secret or client_key"
            yield Problem((*path, "grant"), "missing-key", message)
        if login.client_id is None and has_proof:
            yield Problem(path, "missing-key", "client_secret and client_key belong to a client_id", at_key=True)
        if login.client_secret is None:
            continue
        has_secret = login.client_id is not None and login.client_secret.get_secret_value() != ""
        if login.client_key is not None:
            message = "a client proves itself with a secret or with a key, not with both"
            yield Problem((*path, "client_key"), "wrong-value", message, "remove one of them", at_key=True)
        if has_secret and login.issuer is None and login.endpoints is None:
            message, hint = "the authorization server that the server names first gets the secret", "set issuer"
            yield Problem((*path, "client_secret"), "no-issuer", message, hint, severity="warning", at_key=True)


def _people_can_sign_in(config: Config) -> Iterator[Problem]:
    by_path: dict[TreePath, object] = {("login", "idp"): config.login.idp, ("clients", "login"): config.clients.login}
    for path, section in by_path.items():
        if section is not None and not config.listen.login_pages:
            message = "people sign in on pages beside listen.public_url, which has to be an https URL"
            yield Problem(path, "missing-key", message, "set listen.public_url", at_key=True)
    if config.clients.login is not None and "openid" not in config.clients.login.scopes:
        message = "without the scope openid the provider does not say who somebody is"
        yield Problem(("clients", "login", "scopes"), "wrong-value", message, "add openid")


def _logins_are_somebodys(config: Config) -> Iterator[Problem]:
    for key, server in config.servers.items():
        if not isinstance(server, HttpServer) or server.login is None:
            continue
        path = ("servers", key, "login")
        if not server.may_log_in:
            message = "headers.Authorization is sent as it is, so that no login is used"
            yield Problem(path, "two-credentials", message, "remove one of them", at_key=True)
        if not server.url.lower().startswith("https://") and not LOCAL_URL.match(server.url):
            message = "tokens are sent over https only, but on this machine"
            yield Problem(("servers", key, "url"), "bad-url", message, "write https://")
        is_own = server.login.per != "gateway"
        if is_own and server.sharing == "shared":
            message = "one connection for all cannot carry everybody's own login"
            yield Problem((*path, "per"), "wrong-value", message, "write per: gateway, or remove sharing: shared")
        if is_own and config.clients.anonymous is not None:
            message = "clients without a credential cannot be told apart: they have no login, and get no answer"
            yield Problem((*path, "per"), "anonymous-login", message, "write per: gateway, or give them keys",
                          severity="warning")  # fmt: skip


def named_files(config: Config) -> Iterator[tuple[TreePath, Path]]:
    """Where the config names files that have to be there, and the files; `policy.arguments` is a folder."""
    policy = config.policy
    if policy.use is None:
        yield from ((("policy", "files", at), path) for at, path in enumerate(policy.files))
        others = {"model": policy.model, "tests": policy.tests, "arguments": policy.arguments}
        yield from ((("policy", key), path) for key, path in others.items() if path is not None)
    for key, server in config.servers.items():
        if isinstance(server, HttpServer) and server.ca:
            yield ("servers", key, "ca"), server.ca
        if isinstance(server, HttpServer) and server.login and server.login.client_key:
            yield ("servers", key, "login", "client_key"), server.login.client_key
    if config.fleet is not None and config.fleet.peer is not None and (tls := config.fleet.peer.tls) is not None:
        files = {"cert": tls.cert, "key": tls.key, "ca": tls.ca}
        yield from ((("fleet", "peer", "tls", name), path) for name, path in files.items())
    if config.listen.tls is not None:
        named = {"cert": config.listen.tls.cert, "key": config.listen.tls.key, "client_ca": config.listen.tls.client_ca}
        yield from ((("listen", "tls", name), path) for name, path in named.items() if path is not None)


def _named_files_exist(config: Config) -> Iterator[Problem]:
    for where, path in named_files(config):
        what = "folder" if where[-1] == "arguments" else "file"
        if not path.exists():
            yield Problem(where, "unreadable-file", f"there is no such {what}", "paths are relative to this file")
        elif path.is_dir() != (what == "folder"):
            yield Problem(where, "unreadable-file", f"this is no {what}")
        elif not os.access(path, os.R_OK):
            yield Problem(where, "unreadable-file", f"Sluice may not read this {what}", "give its user the right")


def _sandboxes_hold(config: Config) -> Iterator[Problem]:
    boxed = {
        key: (server, server.sandbox) for key, server in config.servers.items()
        if isinstance(server, StdioServer) and server.sandbox is not None
    }  # fmt: skip
    barred = {
        "Sluice's state and audit log": (config.state.dir, config.audit.path.parent),
        "the config, or a file that it names": (*config.files, *(file for _, file in named_files(config))),
    }
    writable = {path for _, sandbox in boxed.values() for path in sandbox.write}
    private = (*config.files, *(file for at, file in named_files(config) if at[-1] not in ("cert", "ca", "client_ca")))
    bare = in_each((config.state.dir, config.audit.path.parent, *private))
    for key, (server, sandbox) in boxed.items():
        where = ("servers", key)
        yield from problems((*where, "sandbox"), sandbox, barred, writable)
        if bare and not isinstance(server, ImageServer):
            message = f"a sandbox has the folders of the system, and so {bare[0]}"
            yield Problem((*where, "sandbox"), "sandbox-path", message, "move that file or folder", at_key=True)
        if isinstance(server, ImageServer):
            for name in ("read", "write"):
                if any(":" in str(path) for path in getattr(sandbox, name)):
                    message = "docker and podman take no path with a colon"
                    yield Problem((*where, "sandbox", name), "wrong-value", message)
        elif "cwd" in server.model_fields_set and not sandbox.covers(server.cwd):
            message = "the sandbox does not have this folder"
            yield Problem((*where, "cwd"), "sandbox-cwd", message, "add it to sandbox.read or sandbox.write")
        elif name := runner(server.command):
            left = "has no network" if sandbox.network == "none" else "keeps nothing between two starts"
            message = f"{name} installs its package when it starts, and the sandbox {left}"
            hint = "install the package first, and write its own program as command"
            yield Problem((*where, "command"), "sandbox-runner", message, hint, severity="warning")


def _sinks_differ(config: Config) -> Iterator[Problem]:
    names: set[str] = set()
    for at, sink in enumerate(config.audit.sinks):
        if sink.name in names:
            yield Problem(("audit", "sinks", at, "name"), "duplicate-sink", "every sink has a name of its own")
        names.add(sink.name)


def _what_confirms_can(config: Config) -> Iterator[Problem]:
    section, confirm = config.audit, config.audit.confirm
    if confirm is None:
        return
    sink = next((one for one in section.sinks if one.name == confirm.sink), None)
    path, names = ("audit", "confirm", "sink"), ", ".join(one.name for one in section.sinks) or "none"
    if sink is None:
        yield Problem(path, "unknown-sink", f"audit.sinks has no {confirm.sink}", f"its names are: {names}")
    elif not sink.to.startswith(("http://", "https://")):
        yield Problem(path, "cannot-confirm", "a syslog server does not say what has arrived", "name an http(s) sink")
    if not section.enabled:
        yield Problem(path[:2], "cannot-confirm", "there is no audit log", "remove audit.enabled", at_key=True)
    elif section.on_failure != "deny":
        message = "calls pass while the log cannot be written, so nothing is confirmed"
        yield Problem(path[:2], "cannot-confirm", message, "write on_failure: deny", at_key=True)


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


def _tokens_are_for_one_port(config: Config) -> Iterator[Problem]:
    """A token for the tools must not open the admin port, by whichever of an issuer's entries."""
    issuers = config.clients.jwt.issuers
    for at, issuer in enumerate(issuers):
        path = ("clients", "jwt", "issuers", at)
        before = [other for other in issuers[:at] if other.issuer == issuer.issuer]
        if any(other.audience == issuer.audience for other in before):
            yield Problem((*path, "audience"), "duplicate-issuer", "this issuer has an entry for the same audience")
        ours = {other.audience for other in issuers if other.issuer == issuer.issuer}
        if issuer.admin_audience in ours:
            message = "every client's token would be good at the admin port"
            yield Problem((*path, "admin_audience"), "same-audience", message, "use an audience of its own")


def _somebody_gets_in(config: Config) -> Iterator[Problem]:
    """Of a file that says nothing of HTTP, `serve` alone says it: `sluice stdio` needs no client keys."""
    others = config.clients.model_fields_set - {"local"}
    if others or "listen" in config.model_fields_set or config.policy.use == "team":
        yield from nobody_gets_in(config)


def nobody_gets_in(config: Config) -> Iterator[Problem]:
    if config.clients.anonymous is None and not config.clients.keys and not config.clients.jwt.issuers:
        message = "no HTTP client gets in; only `sluice stdio` works"
        hint = "add a key (`sluice keys new NAME`), or clients.anonymous on loopback"
        yield Problem(("clients",), "no-clients", message, hint, severity="warning", at_key=True)


def _sessions_let_go_of_processes(config: Config) -> Iterator[Problem]:
    """On a desktop a session ends with its client; over HTTP many clients never say that theirs is over."""
    if len(config.clients.keys) < 2 and not config.clients.jwt.issuers:
        return
    keys = [
        key for key, server in config.servers.items()
        if server.enabled and isinstance(server, StdioServer) and server.sharing == "session" and server.era != "modern"
        and not {"idle", "processes"} & server.model_fields_set
    ]  # fmt: skip
    if keys:
        message = f"each HTTP session keeps a process of its own until it ends, which may be a day: {', '.join(keys)}"
        hint = "set idle: 10m where a server keeps nothing between calls, else processes: N; or idle: never to say so"
        yield Problem(("servers",), "idle-sessions", message, hint, severity="warning", at_key=True)


def _something_is_behind(config: Config) -> Iterator[Problem]:
    if not any(server.enabled for server in config.servers.values()):
        hint = "`sluice add NAME -- COMMAND` adds one"
        yield Problem(("servers",), "no-servers", "no server is enabled", hint, severity="warning", at_key=True)


def _the_extra_is_installed(config: Config) -> Iterator[Problem]:
    if config.telemetry.otlp and not _is_there(OTEL):
        message = "spans are sent by OpenTelemetry's SDK, which is not installed"
        yield Problem(("telemetry", "otlp"), "missing-extra", message, "install sluicegate[otel], or remove it")
    if config.state.url is not None and not _is_there(PSYCOPG):
        message = "PostgreSQL is reached by psycopg, which is not installed"
        yield Problem(("state", "url"), "missing-extra", message, "install sluicegate[postgres], or remove it")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent
        return False


def _a_database_is_whole(config: Config) -> Iterator[Problem]:
    state = config.state
    if state.url is not None and state.keys is None:
        message = "key rings in files of state.dir are lost with the machine, and the database's contents with them"
        yield Problem(("state", "url"), "no-keys", message, "add state.keys", at_key=True)
    for key in ("password", "replicated"):
        if state.url is None and getattr(state, key):
            message = f"{key} is for a database, and state.url names none"
            yield Problem(("state", key), "wrong-value", message, "add state.url, or remove it", at_key=True)


def _a_fleet_is_whole(config: Config) -> Iterator[Problem]:
    fleet = config.fleet
    if fleet is None:
        return
    if config.state.url is None:
        message = "replicas share a database, and state.url names none"
        yield Problem(("fleet",), "no-database", message, "add state.url and state.keys, or remove it", at_key=True)
    if config.clients.anonymous is not None:
        message = "a request that another replica passed on is never anonymous"
        yield Problem(("clients", "anonymous"), "wrong-value", message, "give clients keys or tokens", at_key=True)
    if fleet.peer is None:
        message = "a session is lost where the balancer sends it to another replica"
        hint = "add peer: {listen: HOST:PORT, url: URL}"
        yield Problem(("fleet",), "no-peer", message, hint, severity="warning", at_key=True)
    if not config.drain_delay:
        message = "a balancer sends calls to a replica that has just stopped, and they fail"
        yield Problem(("fleet",), "no-delay", message, "add drain_delay: 5s", severity="warning", at_key=True)


def _peers_are_sure_of_each_other(config: Config) -> Iterator[Problem]:
    peer = config.fleet.peer if config.fleet is not None else None
    if peer is None:
        return
    scheme, at = urlsplit(peer.url).scheme, ("fleet", "peer", "url")
    if (scheme == "https") != (peer.tls is not None):
        message = f"{scheme} {'needs' if scheme == 'https' else 'cannot be used with'} fleet.peer.tls"
        yield Problem(at, "wrong-value", message, "write https with tls, and http without", at_key=True)
    if peer.tls is None and not (peer.listen.is_loopback or peer.insecure):
        message = "clients' keys and tokens would leave the machine in plain text"
        hint = "add tls: {cert: FILE, key: FILE, ca: FILE}, or insecure: true where the network encrypts"
        yield Problem(("fleet", "peer", "listen"), "no-tls", message, hint, at_key=True)
    elif peer.tls is None and not peer.listen.is_loopback and config.listen.tls and config.listen.tls.client_ca:
        message = "whoever reaches this port needs no certificate that listen.tls.client_ca signed"
        hint, at = "add tls: {cert: FILE, key: FILE, ca: FILE}", ("fleet", "peer", "insecure")
        yield Problem(at, "no-client-certificate", message, hint, severity="warning", at_key=True)


def _certificates_can_be_used(config: Config) -> Iterator[Problem]:
    listen, peer = config.listen.tls, config.fleet.peer if config.fleet is not None else None
    found: list[tuple[TreePath, Path, Path, Path | None]] = []
    if listen is not None:
        found.append((("listen", "tls"), listen.cert, listen.key, listen.client_ca))
    if peer is not None and peer.tls is not None:
        found.append((("fleet", "peer", "tls"), peer.tls.cert, peer.tls.key, peer.tls.ca))
    for where, cert, key, ca in found:
        if all(path is None or os.access(path, os.R_OK) for path in (cert, key, ca)):
            yield from _unusable(where, cert, key, ca)


def _unusable(where: TreePath, cert: Path, key: Path, ca: Path | None) -> Iterator[Problem]:
    ssl = import_module("ssl")  # by name: few have certificates here, and it is slow to import
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except (OSError, ValueError):
        message = "not a certificate in PEM and its private key, without a passphrase"
        yield Problem((*where, "cert"), "bad-certificate", message, "openssl x509 -in FILE -noout -text shows one")
    try:
        if ca is not None:
            context.load_verify_locations(ca)
    except OSError:
        name = "client_ca" if where[0] == "listen" else "ca"
        yield Problem((*where, name), "bad-certificate", "no certificate of an authority in PEM")


def _no_passphrase() -> str:
    raise ValueError("the key has one")


RULES: tuple[Callable[[Config], Iterator[Problem]], ...] = (
    _there_is_one_policy, _shadow_mode_ends, _approvals_can_be_given, _notices_can_be_sent,
    _open_policy_stays_at_home, _two_listeners_have_two_addresses,
    _anonymous_stays_at_home, _the_console_needs_https,
    _toolsets_hold_something, _a_search_covers_many, _shapes_have_names_of_their_own,
    _prefixes_differ, _transparent_means_alone, _keys_of_a_server_agree, *HOOK_RULES,
    _pins_need_a_list, _named_files_exist, _sandboxes_hold, _sinks_differ, _what_confirms_can, _hashes_differ,
    _keys_are_in_time,
    _tokens_are_for_one_port, _somebody_gets_in, _something_is_behind, _sessions_let_go_of_processes,
    _the_extra_is_installed, _logins_are_whole, _logins_are_somebodys, _people_can_sign_in,
    _a_database_is_whole, _a_fleet_is_whole, _peers_are_sure_of_each_other, _certificates_can_be_used,
)  # fmt: skip
BY_LISTENERS: Final = (_open_policy_stays_at_home, _anonymous_stays_at_home)
"""What a reload brings into force, and only where the running process listens on loopback alone."""
