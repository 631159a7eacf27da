"""The text of a new config file. Pure: servers in, YAML out; comments say what every key is for."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

HEAD: Final = """\
# Sluice: one MCP server in front of many.   Check this file: sluice check
# Values may hold ${env:NAME}, ${env:NAME:-default} and ${file:path}. Paths are relative to this file.
version: 1

# !!! `use: open` lets every client that gets in use EVERY tool of EVERY server, except those under tools.deny.
# !!! It is for development on your own machine, and is refused on an address that others can reach.
policy:
  use: open                # open | personal | team: policies that come with Sluice. Or one of your own:
  # files: [policies/policy.csv]       # rows: who may do what. Instead of `use`
  # arguments: policies/arguments      # JSON Schemas, SERVER/TOOL.json
  # tests: policies/tests.yaml         # what it promises: sluice policy test
  # mode: enforce          # shadow: let pass what the rows deny, and log it, ...
  # until: 2030-01-31      # ... until then
  # on_deny: hide          # a refused tool looks unknown; `explain` says which rule refused it
  # watch: true            # changes of this file and of the policy are taken into use

"""

EXAMPLE: Final = """\
# The servers behind Sluice. Their tools are called PREFIX__NAME; the prefix is the key unless set.
servers:
  # files:                                    # a server that Sluice starts
  #   command: npx
  #   args: [-y, "@modelcontextprotocol/server-filesystem", /srv/files]
  #   env: {API_TOKEN: "${env:API_TOKEN}"}    # beside PATH, HOME, authorities, proxies and a few more
  #   cwd: .
  #   # sandbox: {network: none, read: [], write: [/srv/files]}   # by bubblewrap (Linux); network: all
  #   # image: registry.example.com/server:1.2    # a container in place of command, by docker or podman
  #   # For a server that runs elsewhere, in place of the four keys above:
  #   #   url: https://mcp.example.com/mcp
  #   #   headers: {Authorization: "Bearer ${env:EXAMPLE_TOKEN}"}
  #   #   ca: company-ca.pem                  # trusted instead of the system's authorities
  #   #   login:                                # OAuth; `sluice login KEY` needs none of these lines
  #   #     per: client                         # client | owner | gateway: whose account is used
  #   #     grant: code                         # code | client_credentials
  #   #     client_id: "${env:CLIENT_ID}"       # a client that is registered; Sluice registers itself else
  #   #     client_secret: "${env:CLIENT_SECRET}"
  #   #     client_key: client.pem              # in place of a secret
  #   #     auth: client_secret_basic           # client_secret_basic | client_secret_post | none | private_key_jwt
  #   #     issuer: https://login.example.com   # the only authorization server that is taken
  #   #     endpoints:                          # of one without metadata
  #   #       {authorize: https://x.example/a, token: https://x.example/t, revoke: https://x.example/r}
  #   #     scopes: [read]                      # asked for at first; what the server says else
  #   #     max_scopes: ["*"]                   # globs
  #   #     resource: omit                      # what tokens are for; found else
  #   #     pkce: required                      # required | assume
  #   #     params: {access_type: offline}      # further parameters of the authorization request
  #   #     list: known                         # own: without a login nothing is shown that others accepted
  #   #   transport: auto                     # auto | http | sse (HTTP+SSE, 2024-11-05)
  #   tools: {allow: ["*"], deny: ["delete_*"]}   # globs over the server's own names
  #   # what the policy goes by: tools.classes: {list_files: read, "delete_*": destroy}; without one: write
  #   # other names and texts, and fixed arguments, by own name; prompts.shape likewise
  #   # tools.shape: {list_files: {name: files, title: "", description: "", defaults: {root: /}, hide: []}}
  #   enabled: true
  #   prefix: files                           # "" for a single server: nothing is renamed
  #   uris: prefix                            # prefix | plain: how resource URIs are shown
  #   sharing: session                        # session | client | shared: who shares a connection
  #   era: auto                               # auto | legacy | modern: how the server is spoken to
  #   lazy: false                             # true: reached at its first use
  #   required: false                         # true: /readyz fails while it is down
  #   start_timeout: 30s                      # how long a first list on stdio waits for it
  #   timeout: 60s                            # without an answer or progress
  #   max_time: 1h                            # whatever the progress
  #   concurrency: 8                          # open calls at once
  #   idle: never                             # or 10m: sessions without a stream or call give their processes back
  #   processes: 512                          # at most so many of it
  #   results: warn                           # off | warn | block: answers with terminal orders or hidden text
  #   results_over: refuse                    # page: what is over limits.max_result is read in parts
  #   pin: review                             # off | warn | review | block: definitions that changed wait for
  #                                           # `sluice pins accept`
  #   unlisted: refuse                        # forward (with prefix "" only): relay names it did not list

"""

REST: Final = """\
# What follows are the defaults.

# clients:
#   local: {roles: ["role:owner"]}            # the client of `sluice stdio`
#   anonymous: {roles: []}                    # HTTP clients without a key; closed unless this line is there
#   keys:                                     # HTTP clients with a key: sluice keys new NAME
#     laptop: {hash: "sha256:...", roles: [], owner: me, expires: 2030-01-31}
#   jwt: {issuers: [], scopes: []}            # HTTP clients with a token; scopes: what every token has to hold
#   # An issuer. What is said here of jwks, algorithms and typ is so unless set.
#   #   {issuer: https://login.example.com, audience: https://mcp.example.com/mcp, roles_from: [groups],
#   #    admin_audience: https://mcp.example.com/admin, jwks: auto, algorithms: [RS256, ES256, EdDSA], typ: at+jwt}
#   # Clients log in by themselves: Sluice is their authorization server, in front of this provider.
#   # login: {issuer: https://login.example.com, client_id: sluice, scopes: [openid], roles_from: [groups], lasts: 7d}

# toolsets: {}                                # parts of it, each at /mcp/NAME or with `sluice stdio --toolset NAME`
#   # dev: {tools: ["github/*", "!github/delete_*"], prompts: ["github/*"], resources: ["github/*"],
#   #       for: ["role:dev"], default_for: [], pinned: [], search: off, budget: 20000}
# search: off                                 # on | auto: tools are found by find_tools, and called by call_tool

# approvals:
#   hold_for: 45s                             # how long a call waits for its approval before it is told to come back
#   profiles:                                 # what p2 rows may ask for besides confirm, one-of-leads and two-person
#     security: {tier: other, approvers: ["role:security"], quorum: 1, expires: 30m, remember: [once, 15m]}
#     board: {tier: other, approvers: ["role:board"], quorum: 2, require_reason: true}
#     careful: {tier: self, via: [elicitation, api], expires: 5m}
#   # format: json, which is signed, or slack, teams, ntfy, which have no secret but their URL
#   notify: []      # {type: webhook, format: json, url: "https://...", secret: "whsec_...", profiles: []}

# hooks: {}                                   # services of yours that are asked about calls and results
#   # dlp: {url: "https://...", on: [call, result], servers: [], tools: [], clients: [], timeout: 500ms,
#   #       on_failure: deny, sees: masked, secret: "whsec_...", key: NAME,
#   #       form: json}                         # sees: whole; form: opa; on: [approval] with the key of a client

# listen:
#   mcp: 127.0.0.1:7410                       # clients: http://127.0.0.1:7410/mcp
#   admin: 127.0.0.1:7411                     # /livez /readyz /metrics /api/v1/
#   # tls: {cert: FILE, key: FILE, client_ca: FILE}   # HTTPS at mcp, without a proxy in front
#   # public_url: https://mcp.example.com/mcp   # where clients reach us through a reverse proxy
#   trusted_proxies: []                       # addresses whose X-Forwarded-* counts: 10.1.2.3, 10.1.0.0/16
#   allowed_hosts: []                         # other names that we are reached by
#   allowed_origins: []                       # web pages that may call us

# audit:
#   enabled: true
#   path: audit/sluice.jsonl                  # the log; its directory is for it alone
#   durability: fsync                         # write: faster; a crash of the machine loses some records
#   on_failure: deny                          # allow_and_alarm: calls pass while the log cannot be written
#   arguments: redacted                       # none | digest | redacted | full
#   results: digest                           # none | digest | redacted
#   # members that are secret beside the usual ones, and places, such as {"hr/lookup": ["/person/name"]}
#   redact: {keys: [], pointers: {}}
#   rotate: {size: 100MiB, age: 1d}
#   retain: 400d
#   checkpoints: {every: 10s, to: []}         # signed; `to` are files elsewhere, and http(s) URLs
#   sinks: []                                 # {name: siem, to: "https://...", headers: {}} or tcp:// udp:// syslog
#   # confirm: {sink: siem, classes: [write, destroy]}   # such calls wait until that sink has their record

# limits:
#   max_request: 4MiB
#   max_result: 8MiB
#   paged_results: 64MiB                      # with results_over: page; of one answer, and of all of one client
#   paged_for: 15m
#   max_depth: 64                             # nesting of JSON
#   nodes: 20000                              # values in a client's message
#   result_nodes: 100000                      # values in a server's message
#   max_batch: 50                             # messages in a JSON array
#   headers: 16KiB
#   streams: 100                              # open streams of a client
#   page: 1000                                # items in a page of a list
#   list_items: 10000                         # taken of one list of one server
#   list_bytes: 16MiB
#   pending_approvals: 20                     # approvals of a client that wait
#   per_client: 600/min                       # requests of a client: 10/s, 600/min, 1000/h, 5000/d; no limit unless set
#   per_tool: 120/min                         # calls of one tool by one client; no limit unless set

# names: {max: 50}                            # longest public name
# network:
#   allow_private: []                         # private places that others may name: 10.1.0.0/16, keys.internal
#   proxy: off                                # http://host:port: the way to servers and token issuers
# state:
#   dir: ~/.local/state/sluice                # keys, the operator token, last known lists
#   replicated: false                         # true: the database keeps what it confirmed, by means of its own
#   stale: 60s                                # how long a replica of a fleet serves without it, or never
#   # url: postgresql://sluice@db/sluice      a PostgreSQL that keeps approvals, grants, logins and pins
#   # password: "${file:FILE}"                for it
#   # keys: {seal: "...", digest: "...", sign: "...", login: "..."}   with url; openssl rand -base64 32
# telemetry: {metrics: true}                 # otlp: "http://collector:4318" sends spans
# log: {level: info, format: auto}            # debug | info | warning | error; auto | json | text
# console: {enabled: true}                    # the page for a browser at listen.admin: sluice console
#   # public_url: https://sluice.example.com/console   # where people reach it through a reverse proxy
# login:                                       # how people log in to servers
#   callback: http://127.0.0.1:7412/callback   # where a browser of this machine returns to
#   client_document: ""                        # URL of a client ID metadata document
#   key: auto                                  # auto | keyring | file: where the key that seals logins is kept
#   key_page: true                             # people of a team type their key into a page to log in to servers
#   legacy: ask                                # ask | error: how a client of 2025-11-25 that opens pages learns of it
#   # idp: {issuer: https://login.example.com, client_id: sluice}   # where people with tokens sign in on that page
#   within: 10m                                # how long a login may take
# drain: 30s                                  # how long open calls may take at the end
# drain_delay: 0s                             # before that: how long /readyz says 503 while all is served
# # fleet:                                    several Sluices on one database
# #   name: "${env:HOSTNAME}"                 of this one
# #   peer: {listen: 0.0.0.0:7413, url: "https://HOST:7413", insecure: false, tls: {cert: FILE, key: FILE, ca: FILE}}
"""

# What JSON may hold and YAML does not, or reads as a line break (YAML 1.2.2, 5.1 and 5.4)
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_WARNING = re.compile(r"^# !!! .*\n", re.MULTILINE)
_SERVERS = re.compile(r"^servers:[ \t]*(?:\{[ \t]*\}|null|~)?(?:[ \t]*#[^\r\n]*)?[ \t]*\r?$", re.MULTILINE)
_EMPTY = re.compile(r":[ \t]*(?:\{[ \t]*\}|null|~)")
_FIRST = re.compile(r"(?:\s*(?:#[^\n]*)?\n)*([ ]+)[^\s#]")
_SIMPLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WORDS_OF_YAML: Final = frozenset({"null", "true", "false"})


def new_file(servers: Mapping[str, Mapping[str, Any]] | None = None, use: str = "open") -> str:
    """A config file with these servers, or with one that is commented out, and with a policy that comes with Sluice."""
    head = HEAD if use == "open" else _WARNING.sub("", HEAD).replace("use: open ", f"use: {use} ")
    if not servers:
        return head + EXAMPLE + REST
    return head + "\n".join(["servers:", *server_lines(servers), ""]) + REST


def with_servers(text: str, servers: Mapping[str, Mapping[str, Any]]) -> str:
    """A config file with more servers, in front of its own. Not one byte of it is changed beside that."""
    newline = "\r\n" if "\r\n" in text else "\n"
    head = _SERVERS.search(text)
    if not servers:
        return text
    own = _FIRST.match(text, head.end()) if head else None
    indent = own[1] if own else "  "
    lines = [f"{indent}{line[2:]}" if line else line for line in server_lines(servers)]
    if head is None:
        return newline.join([*([text.rstrip("\r\n"), ""] if text.strip() else []), "servers:", *lines])
    start = _EMPTY.sub(":", head[0].rstrip("\r"), count=1)
    rest = ("\r" if head[0].endswith("\r") else "") + text[head.end() :]
    return text[: head.start()] + newline.join([start, *lines]) + rest


def with_server_last(text: str, key: str, server: Mapping[str, Any]) -> str:
    """A config file with one more server behind its own, so that no other changes its rank."""
    own = _own_lines(text)
    if not own:
        return with_servers(text, {key: server})
    lines, indent, _, end = own
    newline = "\r\n" if "\r\n" in text else "\n"
    section = [f"{indent}{line[2:]}" for line in server_lines({key: server}) if line]
    above = "".join(lines[:end])
    return newline.join([above.rstrip("\r\n"), *section, ""]) + "".join(lines[end:])


def without_server(text: str, key: str) -> str:
    """A config file without one server. What stands above the server and below it stays, comments as well."""
    found = _lines_of(text, key)
    if not found:
        return text
    lines, start, stop, _ = found
    while stop < len(lines) and not lines[stop].strip() and not lines[start - 1].strip():
        stop += 1  # of two gaps, one stays
    return "".join(lines[:start] + lines[stop:])


def with_classes(text: str, key: str, classes: Mapping[str, str]) -> str:
    """A config file with classes for a server that has none: below `tools:`, else behind the server's last line."""
    found = _lines_of(text, key)
    if not found:
        return text
    lines, start, stop, indent = found
    newline = "\r\n" if "\r\n" in text else "\n"
    member = re.compile(rf"({indent}[ \t]+)[^\s#]")
    inner = next((match[1] for line in lines[start + 1 : stop] if (match := member.match(line))), f"{indent}  ")
    is_tools = re.compile(rf"{inner}tools:[ \t]*(?:#.*)?$")
    at = next((at for at in range(start + 1, stop) if is_tools.match(lines[at].rstrip("\r\n"))), None)
    section = [f"{inner}tools:"] if at is None else []
    deeper = re.compile(rf"({inner}[ ]+)[^\s#]").match(lines[at + 1]) if at is not None and at + 1 < stop else None
    section.append(f"{deeper[1] if deeper else f'{inner}  '}classes: {_flow(classes)}")
    at = stop if at is None else at + 1
    above = "".join(lines[:at])
    gap = "" if above.endswith("\n") else newline
    return above + gap + newline.join([*section, ""]) + "".join(lines[at:])


def _lines_of(text: str, key: str) -> tuple[list[str], int, int, str] | None:
    """The lines, those of one server from its key to the one behind its last, and the indentation of its key."""
    own = _own_lines(text)
    if not own:
        return None
    lines, indent, head, end = own
    is_key = re.compile(rf"""{indent}(?:{re.escape(key)}|"{re.escape(key)}"|'{re.escape(key)}')[ ]*:""")
    start = next((at for at in range(head, end) if is_key.match(lines[at])), None)
    return None if start is None else (lines, start, _end_of(lines, start + 1, indent), indent)


def _own_lines(text: str) -> tuple[list[str], str, int, int] | None:
    """The lines, the indentation of the servers, the first line of theirs and the one behind their last."""
    head = _SERVERS.search(text)
    own = _FIRST.match(text, head.end()) if head else None
    if head is None or own is None:
        return None
    lines, first = text.splitlines(keepends=True), text.count("\n", 0, head.end()) + 1
    return lines, own[1], first, _end_of(lines, first, "")


def _end_of(lines: list[str], start: int, indent: str) -> int:
    """The line behind the last that is indented deeper. A comment counts only if it is."""
    deeper = re.compile(rf"{indent}[ \t]+\S")
    end = at = start
    while at < len(lines) and (not lines[at].strip() or lines[at].lstrip().startswith("#") or deeper.match(lines[at])):
        at += 1
        if deeper.match(lines[at - 1]):
            end = at
    return end


def server_lines(servers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The servers as they are written below `servers:`, an empty line behind each."""
    return [line for key, server in servers.items() for line in (f"  {key}:", *_section(server), "")]


def _section(server: Mapping[str, Any]) -> Iterator[str]:
    for name, value in server.items():
        if isinstance(value, dict):
            yield f"    {name}:"
            yield from (f"      {_scalar(key)}: {_flow(item)}" for key, item in value.items())
        else:
            yield f"    {name}: {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_scalar(key)}: {_flow(item)}' for key, item in value.items())}}}"
    return f"[{', '.join(map(_scalar, value))}]" if isinstance(value, list) else _scalar(value)


def _scalar(value: Any) -> str:
    """Plain where nothing can be read into it, else quoted as in JSON, which YAML reads alike."""
    if isinstance(value, str) and _SIMPLE.fullmatch(value) and value.lower() not in _WORDS_OF_YAML:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
