"""Every kind of mistake in a config file, with the place and the words that a person gets."""

from pathlib import Path

import pytest

from sluicegate import config
from sluicegate.app import settings

HASH = "sha256:" + "a" * 64
# What a case needs besides, unless it says it itself.
REST = {"policy": "policy: {use: open}", "clients": "clients: {anonymous: {}}", "servers": "servers: {a: {command: x}}"}

# § stands where the finding must be -> its code and words
_RINGS = f"{{seal: {'A' * 43}, digest: {'A' * 43}, sign: {'A' * 43}}}"
A_DATABASE = f"state: {{url: 'postgresql://db/sluice', keys: {_RINGS}}}"
A_FLEET = f"{A_DATABASE}\nfleet:\n  name: a\n"
A_TEAM = "clients: {local: {}}\npolicy: {use: team}"
WHSEC = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"
A_PEER = "{listen: '127.0.0.1:7413', url: 'http://127.0.0.1:7413'}"

MISTAKES = {
    "unknown section, with a guess": ("§lissten: {}", ['unknown-key did you mean "listen"']),
    "unknown key of a server": ("servers:\n  a: {command: x, §comand: y}", ['unknown-key did you mean "command"']),
    "unknown key without a guess": ("servers: {a: {command: x, §zzz: y}}", ['unknown-key "zzz" is no key']),
    "a small section names its keys": ("names: {§zzz: y}", ["unknown-key (its keys are max)"]),
    "a key of desktop clients": (
        "§mcpServers: {a: {command: x}}",
        ['unknown-key did you mean "servers"'],
    ),
    "another key of theirs": ("servers: {a: {command: x, §disabled: true}}", ['unknown-key mean "enabled: false"']),
    "and another": ("servers: {a: {url: 'https://x/', §type: http}}", ['unknown-key did you mean "transport"']),
    "servers as a list": ("servers: §[{command: x}]", ["wrong-type write each server under its key"]),
    "a command with its arguments": (
        "servers: {a: {command: §[npx, -y]}}",
        ["wrong-type name or path of a program; its arguments go into args"],
    ),
    "variables as a list": ("servers: {a: {command: x, env: §[A=b]}}", ["wrong-type write NAME: value for each"]),
    "a fraction": ("servers: {a: {command: x, concurrency: §1.5}}", ["wrong-type whole number, found a fraction"]),
    "a login beside a credential": (
        'servers: {a: {url: "https://x.example/mcp", headers: {authorization: "Bearer t"}, §login: {}}}',
        ["two-credentials remove one of them"],
    ),
    "a login without TLS": (
        'servers: {a: {url: §"http://x.example/mcp", login: {}}}',
        ["bad-url write https://"],
    ),
    "an account of each client on one connection": (
        'servers: {a: {url: "https://x.example/mcp", sharing: shared, login: {per: §client}}}',
        ["wrong-value write per: gateway"],
    ),
    "a machine for each client": (
        'servers: {a: {url: "https://x.example/mcp", login: '
        "{per: §client, grant: client_credentials, client_id: a, client_secret: b}}}",
        ["wrong-value write per: gateway"],
    ),
    "a machine without a secret": (
        'servers: {a: {url: "https://x.example/mcp", login: {per: gateway, grant: §client_credentials, client_id: a}}}',
        ["missing-key client_secret or client_key"],
    ),
    "a secret of no client": (
        'servers: {a: {url: "https://x.example/mcp", §login: {client_secret: b}}}',
        ["missing-key belong to a client_id"],
    ),
    "a parameter of ours": (
        'servers: {a: {url: "https://x.example/mcp", login: {params: {§state: x}}}}',
        ["bad-parameter state is written by Sluice itself"],
    ),
    "an issuer that is no URL": (
        'servers: {a: {url: "https://x.example/mcp", login: {issuer: §login.example.com}}}',
        ["bad-url https"],
    ),
    "a scope with a blank": (
        'servers: {a: {url: "https://x.example/mcp", login: {scopes: [§"a b"]}}}',
        ["bad-scope one word"],
    ),
    "a login of a program": (
        'servers: {a: {command: x, §login: {}}}',
        ["unknown-key"],
    ),
    "a callback elsewhere": (
        'login: {callback: §"http://example.com:7412/callback"}',
        ["bad-url write http://127.0.0.1:PORT/PATH"],
    ),
    "a sandbox of another kind": (
        "servers: {a: {command: x, sandbox: {network: §loopback}}}",
        ["wrong-value must be none or all"],
    ),
    "the contents of a file for its path": (
        f"servers: {{a: {{url: 'https://a.test/mcp', ca: §{'MIIC' * 100}}}}}", ["wrong-type expected a path"],
    ),
    "a path of many folders": (
        f"servers: {{a: {{command: x, sandbox: {{read: [§{'/a' * 2_000}]}}}}}}", ["wrong-type expected a path"],
    ),
    "a sandbox that was begun": ("servers: {a: {command: x, sandbox: §~}}", ["wrong-type {} is no network"]),
    "a sandbox with all of the machine": (
        "servers: {a: {command: x, sandbox: {read: [§/]}}}",
        ["sandbox-path because of what it tells of other processes"],
    ),
    "a sandbox with a path that is not there": (
        "servers: {a: {command: x, sandbox: {read: [§nowhere]}}}",
        ["unreadable-file no such file or folder"],
    ),
    "a working directory outside of the sandbox": (
        "servers: {a: {command: x, cwd: §/tmp, sandbox: {}}}",
        ["sandbox-cwd sandbox.read or sandbox.write"],
    ),
    "a sandbox of a server elsewhere": (
        "servers: {a: {url: 'https://x/', §sandbox: {}}}",
        ['unknown-key "sandbox" is for a server that Sluice starts by command'],
    ),
    "an image that is an option": (
        "servers: {a: {image: §--privileged}}",
        ["bad-image NAME:TAG"],
    ),
    "a working directory of an image": (
        "servers: {a: {image: x, §cwd: /tmp}}",
        ["wrong-value the folder that its image says"],
    ),
    "an image of a server elsewhere": (
        "servers: {a: {url: 'https://x/', §image: x}}",
        ['unknown-key "image" is for a server that Sluice starts by command'],
    ),
    "an empty list": ("approvals: {profiles: {a: {tier: self, via: §[]}}}", ["wrong-value must not be empty"]),
    "nearly the right word": ("log: {level: §warn}", ['wrong-value warning or error (did you mean "warning"?)']),
    "no such policy file": ("policy: {files: [§nope.csv]}", ["unreadable-file there is no such file"]),
    "unknown key deep inside": (
        "servers:\n  a:\n    command: x\n    tools: {§alow: []}",
        ['unknown-key did you mean "allow"'],
    ),
    "key of the other kind of server": (
        "servers:\n  a: {url: 'https://x/', §env: {}}",
        ['unknown-key "env" is for a server that Sluice starts'],
    ),
    "nearly a key of the other kind of server": (
        "servers: {a: {url: 'https://x/', §comand: y}}",
        ['unknown-key did you mean "command"'],
    ),
    "nearly a url": ("servers: {a: {§ulr: 'https://x/'}}", ['unknown-key did you mean "url"']),
    "nearly what others call it": ("servers: {a: {command: x, §enviroment: {}}}", ['unknown-key did you mean "env"']),
    "what others say of a program": ("servers: {a: {command: x, §type: stdio}}", ["unknown-key (leave it out)"]),
    "neither command nor url": ("servers:\n  §a: {}", ['missing-key "command" (to start it) or a "url"']),
    "a database without keys": ("state: {§url: postgresql://db/sluice}", ["no-keys"]),
    "a password for no database": ("state: {§password: x}", ["wrong-value password is for a database"]),
    "a promise of no database": ("state: {§replicated: true}", ["wrong-value replicated is for a database"]),
    "replicas without a database": ("§fleet: {name: a}\nclients: {local: {}}", ["no-database"]),
    "a replica with a dot in its name": (f"{A_DATABASE}\nfleet: {{name: §a.b}}", ["bad-name letters"]),
    "peers in plain text": (
        f"{A_FLEET}  peer: {{§listen: '0.0.0.0:7413', url: 'http://10.0.0.1:7413'}}\n{A_TEAM}",
        ["no-tls plain text"],
    ),
    "peers that say https and show nothing": (
        f"{A_FLEET}  peer: {{listen: '127.0.0.1:7413', §url: 'https://127.0.0.1:7413'}}\nclients: {{local: {{}}}}",
        ["wrong-value https needs fleet.peer.tls"],
    ),
    "replicas for whoever comes": (
        f"clients: {{§anonymous: {{}}}}\n{A_FLEET}  peer: {A_PEER}",
        ["wrong-value never anonymous"],
    ),
    "a key of 31 bytes": (
        f"state: {{keys: {{seal: §{'A' * 42}, digest: {'A' * 43}, sign: {'A' * 43}}}}}",
        ["bad-keys not base64 keys of 32 bytes"],
    ),
    "a later key": ("state: {§redis: x}", ['not-in-this-version "redis"']),
    "a private place that is none": ("network: {allow_private: [§'10.0.0.1/8']}", ["bad-network keys.example"]),
    "a proxy that is none": ("network: {proxy: §'socks5://x:1'}", ["bad-proxy http://host:port"]),
    "a trusted name": ("listen: {trusted_proxies: [§proxy]}\nclients: {local: {}}", ["bad-network 10.1.0.0/16"]),
    "a public URL with a query": ("listen: {public_url: §'https://x/?a=b'}\nclients: {local: {}}", ["bad-url query"]),
    "anonymous behind a public URL": (
        "clients: {§anonymous: {}}\nlisten: {public_url: 'https://x/mcp'}",
        ["anonymous listen.public_url leads others here"],
    ),
    "anonymous behind a proxy": (
        "clients: {§anonymous: {}}\nlisten: {trusted_proxies: [127.0.0.1]}",
        ["anonymous listen.trusted_proxies leads others here"],
    ),
    "an issuer over plain HTTP": (
        "clients: {jwt: {issuers: [{issuer: §'http://login.acme.com', audience: a}]}}",
        ["bad-issuer https://login.example.com"],
    ),
    "a signature made with a secret": (
        "clients: {jwt: {issuers: [{issuer: 'https://x', audience: a, algorithms: [§HS256]}]}}",
        ["wrong-value RS256"],
    ),
    "no signature at all": (
        "clients: {jwt: {issuers: [{issuer: 'https://x', audience: a, algorithms: §[]}]}}",
        ["wrong-value"],
    ),
    "one audience for both ports": (
        "clients: {jwt: {issuers: [{issuer: 'https://x', audience: a, admin_audience: §a}]}}",
        ["same-audience good at the admin port"],
    ),
    "an issuer twice for one audience": (
        "clients: {jwt: {issuers: [{issuer: 'https://x', audience: a}, {issuer: 'https://x', audience: §a}]}}",
        ["duplicate-issuer an entry for the same audience"],
    ),
    "a scope of two words": ("clients: {jwt: {scopes: [§a b]}}", ["bad-scope one word"]),
    "a question to somebody who may not decide": (
        "approvals: {profiles: {a: {tier: other, approvers: ['role:x'], via: §[elicitation]}}}",
        ["wrong-value via: [api]"],
    ),
    "what several people remember": (
        "approvals: {profiles: {a: {tier: other, approvers: ['role:x'], quorum: 2, remember: §[once, 15m]}}}",
        ["wrong-value remember: [once]"],
    ),
    "a reason for oneself": (
        "approvals: {profiles: {a: {tier: self, §require_reason: true}}}",
        ["wrong-value a reason is for somebody else's eyes"],
    ),
    "a webhook without a good secret": (
        "approvals: {notify: [{type: webhook, url: 'https://x/', secret: §whsec_c2hvcnQ=}]}",
        ["bad-secret 24 to 64 bytes"],
    ),
    "a signed webhook without a secret": (
        "approvals: {notify: [§{type: webhook, url: 'https://x/'}]}",
        ['missing-key "secret" is missing'],
    ),
    "a secret that signs nothing": (
        "approvals: {notify: [{type: webhook, format: slack, url: 'https://x/',"
        " §secret: whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz}]}",
        ["wrong-value slack takes no signature"],
    ),
    "a topic that ntfy does not take": (
        "approvals: {notify: [{type: webhook, format: ntfy, url: §'https://x/a.b'}]}",
        ["bad-url write https://ntfy.example.com/TOPIC"],
    ),
    "a console at another path": (
        "console: {public_url: §'https://x/'}",
        ["bad-url write https://host/console"],
    ),
    "a webhook for a profile that is not there": (
        "approvals: {notify: [{type: webhook, url: 'https://x/', secret: whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz,"
        " profiles: §[confrm]}]}",
        ["unknown-profile profiles are confirm"],
    ),
    "a profile that nobody can approve": ("approvals: {profiles: {§a: {tier: other}}}", ["no-approvers role:NAME"]),
    "approvers where whoever asked confirms": (
        "approvals: {profiles: {a: {tier: self, §approvers: ['role:x']}}}",
        ["wrong-value approvers is for tier other"],
    ),
    "a profile called as what exempts": ("approvals: {profiles: {§none: {tier: self}}}", ["bad-profile-name not none"]),
    "no name for a log": ("audit: {path: §audit/Log.txt}", ["bad-path ends in .jsonl"]),
    "a place that no sink speaks": ("audit: {sinks: [{name: a, to: §'ftp://x'}]}", ["bad-sink tcp://host:port"]),
    "a sink at a port that does not exist": ("audit: {sinks: [{name: a, to: §'tcp://x:65536'}]}", ["bad-sink tcp://"]),
    "a sink at half an address": ("audit: {sinks: [{name: a, to: §'tcp://[::1'}]}", ["bad-sink tcp://"]),
    "two sinks with one name": (
        "audit: {sinks: [{name: a, to: 'udp://x:1'}, {name: §a, to: 'udp://y:1'}]}",
        ["duplicate-sink a name of its own"],
    ),
    "a sink that is to confirm, and is not there": (
        "audit: {sinks: [{name: a, to: 'https://x'}], confirm: {sink: §b}}", ["unknown-sink its names are: a"],
    ),
    "a sink that cannot confirm": (
        "audit: {sinks: [{name: a, to: 'tcp://x:1'}], confirm: {sink: §a}}", ["cannot-confirm http(s) sink"],
    ),
    "nothing to confirm": (
        "audit: {enabled: false, sinks: [{name: a, to: 'https://x'}], §confirm: {sink: a}}", ["cannot-confirm enabled"],
    ),
    "calls that pass unconfirmed": (
        "audit: {on_failure: allow_and_alarm, sinks: [{name: a, to: 'https://x'}], §confirm: {sink: a}}",
        ["cannot-confirm on_failure: deny"],
    ),
    "no class that a sink confirms": (
        "audit: {sinks: [{name: a, to: 'https://x'}], confirm: {sink: a, classes: §[]}}", ["wrong-value not be empty"],
    ),
    "no JSON pointer": ("audit: {redact: {pointers: {'a/b': [§body]}}}", ["bad-pointer begins with /"]),
    "unknown key of a sink": ("audit: {sinks: [{name: a, to: 'udp://x', §too: 1}]}", ['unknown-key did you mean "to"']),
    "unknown way to pin": ("servers: {a: {command: x, pin: §maybe}}", ["wrong-value off, warn, review or block"]),
    "parts of what may not be looked at": (
        "servers: {a: {command: x, results: block, results_over: §page}}",
        ["page-and-block with results: block no part"],
    ),
    "pins of what is not listed": (
        "servers: {a: {command: x, prefix: '', unlisted: forward, pin: §review}}",
        ["pin-and-forward review cannot withhold"],
    ),
    "unknown class": (
        "servers: {a: {command: x, tools: {classes: {a: §delete}}}}",
        ["wrong-value must be read, write or destroy"],
    ),
    "a modern server of the older transport": (
        "servers: {a: {url: 'https://x/sse', era: modern, transport: §sse}}",
        ["wrong-value no modern server speaks HTTP+SSE"],
    ),
    "unknown transport": ("servers: {a: {url: 'https://x/', transport: §ws}}", ["wrong-value auto, http or sse"]),
    "wrong word": ("servers: {a: {command: x, era: §old}}", ["wrong-value must be auto, legacy or modern"]),
    "yes is text in YAML 1.2": (
        "servers: {a: {command: x, lazy: §yes}}",
        ["wrong-type expected true or false, found text"],
    ),
    "a number where text belongs": (
        "servers: {a: {command: x, args: [--port, §80]}}",
        ["wrong-type expected text, found a number (put it in quotes)"],
    ),
    "text where a mapping belongs": ("servers: {a: §npx}", ["wrong-type expected a mapping, found text"]),
    "nothing where a mapping belongs": ("servers:\n  a:§", ["wrong-type expected a mapping, found nothing"]),
    "nothing, and another key below": (
        "servers:\n  a:§\n\n  b: {command: x}", ["wrong-type expected a mapping, found nothing"],
    ),
    "nothing in a list, and another item below": (
        "servers:\n  a:\n    command: x\n    args:\n      -§\n      - y", ["wrong-type expected text, found nothing"],
    ),
    "text where a list belongs": ("servers: {a: {command: x, args: §y}}", ["wrong-type expected a list, found text"]),
    "quoted number": ("servers: {a: {command: x, concurrency: §'8'}}", ["wrong-type expected a whole number"]),
    "number out of bounds": ("servers: {a: {command: x, concurrency: §0}}", ["wrong-value must be 1 or more"]),
    "number too large": ("names: {max: §400}", ["wrong-value must be 128 or less"]),
    "bad duration": ("servers: {a: {command: x, timeout: §5 sec}}", ["bad-duration such as 500ms, 5s"]),
    "duration without unit": ("servers: {a: {command: x, timeout: §5}}", ["bad-duration number and a unit"]),
    "duration of nothing": ("servers: {a: {command: x, timeout: §0s}}", ["wrong-value more than zero"]),
    "bad size": ("limits: {max_request: §4MB}", ["bad-size 4MiB"]),
    "bad address": ("listen: {mcp: §7410}", ["bad-address host:port"]),
    "port out of range": ("listen: {mcp: §'a:70000'}", ["bad-address"]),
    "bad server key": ("servers: {§GitHub: {command: x}, a: {command: x}}", ["bad-server-key 1 to 20 of a-z"]),
    "reserved server key": ("servers: {§sluice: {command: x}, a: {command: x}}", ["reserved-name"]),
    "bad prefix": ("servers: {a: {command: x, prefix: §a_b}}", ["bad-prefix"]),
    "reserved prefix": ("servers: {a: {command: x, prefix: §sluice}}", ["reserved-name"]),
    "equal prefixes": (
        "servers:\n  a: {command: x}\n  b: {command: x, prefix: §a}",
        ["duplicate-prefix prefix of the server a already"],
    ),
    "an empty toolset": ("servers: {a: {command: x}}\ntoolsets: {dev: §{for: [role:a]}}", ["empty-toolset tools"]),
    "a glob without a server": (
        "servers: {a: {command: x}}\ntoolsets: {dev: {tools: [§read, a/*]}}", ["bad-glob SERVER/GLOB"],
    ),
    "a bad toolset name": ("servers: {a: {command: x}}\ntoolsets: {§Dev: {tools: [a/*]}}", ["bad-toolset-name"]),
    "a bad hook name": (
        "servers: {a: {command: x}}\nhooks: {§Dlp: {url: https://h, on: [call]}}", ["bad-hook-name"],
    ),
    "a hook about no server": (
        "servers: {a: {command: x}}\nhooks: {dlp: {url: https://h, on: [call], servers: [§b*]}}",
        ["unknown-server servers are a"],
    ),
    "a hook that is told of approvals unsigned": (
        "servers: {a: {command: x}}\nhooks: {§dlp: {url: https://h, on: [approval]}}", ["missing-key set secret"],
    ),
    "a hook with the key of nobody": (
        "servers: {a: {command: x}}\n"
        f"hooks: {{dlp: {{url: https://h, on: [approval], secret: {WHSEC}, key: §who}}}}",
        ["unknown-key-name there is no client key who"],
    ),
    "a hook about nobody": (
        "servers: {a: {command: x}}\nhooks: {dlp: {url: https://h, on: [call], clients: [§dev]}}",
        ["wrong-value role:NAME"],
    ),
    "a hook with a timeout for nothing": (
        "servers: {a: {command: x}}\n"
        f"hooks: {{dlp: {{url: https://h, on: [approval], secret: {WHSEC}, §sees: whole}}}}",
        ["wrong-value without effect"],
    ),
    "a hook with a key for nothing": (
        "servers: {a: {command: x}}\nclients: {keys: {who: {hash: "
        f"'{HASH}'}}}}}}\nhooks: {{dlp: {{url: https://h, on: [call], §key: who}}}}",
        ["wrong-value denies approvals"],
    ),
    "results that are judged and read in parts": (
        "servers: {a: {command: x, results_over: §page}}\nhooks: {dlp: {url: https://h, on: [result]}}",
        ["page-and-hook the hook dlp"],
    ),
    "two shapes of one name": (
        "servers: {a: {command: x, tools: {shape: {b: {name: x}, c: {name: §x}}}}}",
        ["duplicate-name name of b already"],
    ),
    "transparent and not alone": (
        "servers:\n  a: {command: x, prefix: §''}\n  b: {command: x}",
        ["transparent exactly one enabled server"],
    ),
    "forward and not transparent": (
        "servers: {a: {command: x, unlisted: §forward}}",
        ["transparent forward works in transparent mode only"],
    ),
    "max_time below timeout": (
        "servers: {a: {command: x, timeout: §2h}}",
        ["wrong-value max_time is shorter than timeout"],
    ),
    "no such ca": ("servers: {a: {url: 'https://x/', ca: §nope.pem}}", ["unreadable-file no such file"]),
    "a rate without a unit": ("limits: {per_client: §600}", ["bad-rate such as 10/s, 600/min"]),
    "a rate in a unit of its own": ("limits: {per_tool: §600/minute}", ["bad-rate"]),
    "a rate of nothing": ("limits: {per_tool: §0/min}", ["wrong-value must be more than zero"]),
    "a rate that was begun and not written": ("limits: {per_client:§ }", ["bad-rate"]),
    "wrong strictness": ("servers: {a: {command: x, results: §strict}}", ["wrong-value must be off, warn or block"]),
    "bad url": ("servers: {a: {url: §'ftp://x/'}}", ["bad-url https://host/path"]),
    "credentials in a url": ("servers: {a: {url: §'https://u:hunter2@x/'}}", ["bad-url no user name or password"]),
    "bad header name": ("servers: {a: {url: 'https://x/', headers: {§'a b': c}}}", ["bad-header not a header name"]),
    "own header": ("servers: {a: {url: 'https://x/', headers: {§Host: c}}}", ["bad-header written by Sluice"]),
    "header with a line break": (
        'servers: {a: {url: "https://x/", headers: {A: §"b\\r\\nC: d"}}}',
        ["bad-header no control characters"],
    ),
    "bad variable name": ("servers: {a: {command: x, env: {§'A=B': c}}}", ["bad-variable"]),
    "unset variable": (
        "servers: {a: {command: x, env: {A: §'${env:NOT_SET}'}}}",
        [
            "unset-variable the server a is disabled: the environment variable NOT_SET is not set "
            "(set it, or write ${env:NOT_SET:-default})"
        ],
    ),
    "unset variable says nothing else about its value": (
        "servers: {a: {url: §'${env:NOT_SET}'}}",
        ["unset-variable NOT_SET is not set"],
    ),
    "no such included file": ("servers: {a: {command: x, args: [§'${file:nope}']}}", ["unreadable-file nope"]),
    "a foreign form of variable": ("servers: {a: {command: x, args: [§'${NOT_SET}']}}", ["bad-reference"]),
    "an unfinished variable": ("servers: {a: {command: x, args: [§'${env:X']}}", ["bad-reference"]),
    "a variable in a key": (
        "servers: {a: {command: x, env: {§'${env:HOME}': c}}}",
        ["bad-key ${...} stands in values only"],
    ),
    "duplicate key": (
        "servers:\n  a: {command: x}\n  §a: {command: y}",
        ['duplicate-key "a" is here twice (the first is in line 4)'],
    ),
    "duplicate section": ("names: {}\n§names: {}", ["duplicate-key the first is in line 4"]),
    "a tag": ("servers: {a: {command: §!!python/name:os.system x}}", ["tag YAML tags are not part"]),
    "a core tag": ("servers: {a: {command: §!!str x}}", ["tag YAML tags are not part"]),
    "an anchor and its alias": (
        "servers:\n  a: §&a {command: x}\n  b: §*a",
        ["anchor", "anchor anchors and aliases are not part"],
    ),
    "a key that is no text": ("servers: {a: {command: x}, §[b]: {command: x}}", ["bad-key a key is text"]),
    "no YAML": ("servers: {a: [§}", ["bad-yaml a value is missing here"]),
    "an open bracket": ("servers: {a: {command: x\n  b§: {command: y}", ["bad-yaml (the bracket is opened in line 3)"]),
    "wrong indentation": (
        "log:\n  level: info\n §format: json",
        ["bad-yaml this does not belong to the lines above (keys of one section begin in the same column)"],
    ),
    "no colon behind a key": (
        "servers:\n  a:\n    command: x\n  §time\n    command: y",
        ["bad-yaml there is no colon behind this (a key ends with one, such as `time:`; quote a text of"],
    ),
    "a quotation mark too many": (
        'servers: {a: {command: x, args: [""§y"]}}',
        ["bad-yaml or a quotation mark is too many (the bracket is opened in line 3)"],
    ),
    "a tab": ("log:\n§\tlevel: info", ["bad-yaml a tab cannot indent (use spaces)"]),
    "a quotation mark that is not closed": ("log: {level: 'info}\n§", ["bad-yaml not closed (it is opened in line 4)"]),
    "a colon in a text": ("log: level§: info", ["bad-yaml a key cannot stand here"]),
    "a path of Windows": (
        'servers: {a: {command: "C:\\U§sers"}}',
        ["bad-yaml a backslash in double quotes begins one (use single quotes)"],
    ),
    "a control character": ("servers: {a: {command: '§\x07'}}", ["bad-yaml character that YAML does not allow"]),
    "a second document": ("servers: {a: {command: x}}\n§---\nb: 1", ["bad-yaml second document"]),
    "nested too deep": ("servers: " + "[" * 32 + "§" + "[" * 8 + "]" * 40, ["too-deep"]),
    "bad key name": ("clients: {keys: {§Bot: {hash: '" + HASH + "'}}}", ["bad-key-name 1 to 64"]),
    "bad hash": ("clients: {keys: {bot: {hash: §'hunter2'}}}", ["bad-hash `sluice keys new NAME`"]),
    "two keys with one hash": (
        "clients: {keys: {a: {hash: '" + HASH + "'}, b: {hash: §'" + HASH + "'}}}",
        ["duplicate-hash the key a has the same hash"],
    ),
    "bad role": ("clients: {local: {roles: [§owner]}}", ["bad-role role:NAME"]),
    "bad date": ("clients: {keys: {a: {hash: '" + HASH + "', expires: §soon}}}", ["bad-date"]),
    "bad host": ("listen: {allowed_hosts: [§'https://x/']}", ["bad-host"]),
    "bad origin": ("listen: {allowed_origins: [§'*']}", ["bad-origin no wildcard"]),
    "anonymous beside other hosts": (
        "policy: {use: open}\nclients: {§anonymous: {}}\nlisten: {allowed_hosts: [sluice.acme.com]}",
        ["anonymous listen.allowed_hosts names other hosts"],
    ),
    "open and anonymous for the whole network": (
        "policy: {use: open}\nclients: {§anonymous: {}}\nlisten: {mcp: §'0.0.0.0:7410'}",
        ["anonymous not loopback", "open-policy refused on an address that is not loopback"],
    ),
    "open admin port": ("listen: {admin: §'10.0.0.1:7411'}", ["open-policy refused"]),
    "one address for both": ("listen: {mcp: 'localhost:7', admin: §'localhost:7'}", ["same-address"]),
    "another version of the format": ("version: §2", ["wrong-value must be 1"]),
    "many at once": (
        "servers:\n  a: {command: x, timeout: §5}\n  b: {command: x, prefix: c}\n  §c: {command: x}\n"
        "  d: {command: §'${env:NOT_SET}'}\nlog: {§levl: 1}",
        ["bad-duration", "duplicate-prefix", "unset-variable", 'unknown-key did you mean "level"'],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_at_its_place_and_nothing_else_is(name: str) -> None:
    marked, expected = MISTAKES[name]
    rest = [line for section, line in REST.items() if f"{section}:" not in marked]
    text, places = unmark("\n".join([*rest, marked]))
    checked = config.check_text(text, "sluice.yaml", Path("/base"), {"HOME": "/home/x"})
    assert len(checked.errors) == len(expected), checked.errors
    for error, (line, column), wanted in zip(checked.errors, places, expected, strict=True):
        code, _, words = wanted.partition(" ")
        assert str(error).startswith(f"sluice.yaml:{line}:{column} {code} ")
        assert words in str(error)
    assert (checked.config is None) == any("the server a is disabled" not in str(error) for error in checked.errors)


def unmark(marked: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without its marks, and the line and column of each."""
    *parts, _ = marked.split("§")
    befores = ["".join(parts[: count + 1]) for count in range(len(parts))]
    places = [(before.count("\n") + 1, len(before) - before.rfind("\n")) for before in befores]
    return marked.replace("§", ""), places


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", "1:1 missing-key nothing is allowed without one (add the line `policy: {use: personal}`"),
        ("policy:", "1:1 missing-key there is no policy"),
        ("policy: {}", "1:1 missing-key there is no policy"),
        ("policy: {mode: enforce}", "1:1 missing-key there is no policy"),
        ("policy: {files: []}", "1:1 missing-key write use: personal, or files: [policy.csv]"),
        ("policy: {use: opn}", "1:15 wrong-value must be open, personal or team"),
        ("policy: {use: team, files: [p.csv]}", "1:21 two-policies"),
        ("policy: {use: team, tests: t.yaml}", "1:21 two-policies"),
        ("policy: {use: team, mode: shadow}", "1:1 no-end add until: DATE"),
        ("policy: {use: team, mode: Shadow}", "1:27 wrong-value must be enforce or shadow"),
        ("policy: {use: team, until: 2099-01-01}", "1:21 wrong-value until is when shadow mode ends"),
        ("policy: {use: team, mode: shadow, until: soon}", "1:42 bad-date"),
        ("policy: open", "1:9 wrong-type expected a mapping"),
        ("policy: {files: p.csv}", "1:17 wrong-type expected a list, found text (write a list: [policy.csv])"),
    ],
)  # fmt: skip
def test_a_config_without_a_policy_does_not_start_and_says_how_to_add_one(policy: str, expected: str) -> None:
    checked = config.check_text(f"{policy}\nservers: {{a: {{command: x}}}}", "f", Path("/base"), {})
    errors = [str(finding) for finding in checked.errors]
    place, code, *words = expected.split(" ")
    assert errors[0].startswith(f"f:{place} {code} ")
    assert " ".join(words) in errors[0]
    assert checked.config is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("policy: {use: personal}\nserver: {a: {command: x}}\ntoolsets: {d: {tools: [a/*]}}", "2:1"),
        ("polcy: {use: team}\nservers: {a: {command: x}}", "1:1"),
        ("policy: {use: personal}\nservers: {a: {comand: x}}", "2:15"),
        ("policy: {use: personal}\nservers: {a: {ulr: 'https://x/'}}", "2:15"),
        ("policy: {use: personal}\nservers: {a: {serverUrl: 'https://x/'}}", "2:15"),
        ("policy: {use: personal}\nservers: {a: {imgae: x}}", "2:15"),
        ("policy: {use: team}\nservers: {a: {command: x}}\nclients: {keys: {b: {hsh: x}}}", "3:22"),
    ],
)
def test_a_key_with_a_typing_mistake_is_not_said_to_be_missing_as_well(text: str, place: str) -> None:
    found = config.check_text(text, "f", Path("/base"), {}).findings
    assert [(f"{one.line}:{one.column}", one.code) for one in found] == [(place, "unknown-key")]


def test_every_file_that_the_config_names_is_looked_for_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    text = (
        "policy:\n  files: [file, folder, nope]\n  model: nope\n  tests: nope\n  arguments: file\n"
        "servers: {a: {url: 'https://x/', ca: folder}}\nclients: {anonymous: {}}\n"
    )
    checked = config.check_text(text, "f", tmp_path, {})
    assert [(e.line, e.column, e.code, e.message) for e in checked.errors] == [
        (2, 17, "unreadable-file", "this is no file"),
        (2, 25, "unreadable-file", "there is no such file"),
        (3, 10, "unreadable-file", "there is no such file"),
        (4, 10, "unreadable-file", "there is no such file"),
        (5, 14, "unreadable-file", "this is no folder"),
        (6, 38, "unreadable-file", "this is no file"),
    ]


def test_an_empty_file_and_a_list_are_no_config() -> None:
    assert [f.code for f in config.check_text("", "f", Path("/base"), {}).errors] == ["missing-key"]
    assert [f.code for f in config.check_text("- a", "f", Path("/base"), {}).errors] == ["wrong-type"]


def test_shadow_mode_that_is_over_is_a_warning_and_means_that_the_policy_is_enforced() -> None:
    text = "policy: {use: team, mode: shadow, until: 2020-01-01}\nclients: {anonymous: {}}\nservers: {a: {command: x}}"
    checked = config.check_text(text, "f", Path("/base"), {})
    assert [f.code for f in checked.findings] == ["shadow-over"] and checked.config is not None


def test_only_the_open_policy_is_kept_on_loopback() -> None:
    for use, errors in (("open", ["open-policy"]), ("team", []), ("personal", [])):
        text = f"policy: {{use: {use}}}\nlisten: {{mcp: '0.0.0.0:7410'}}\nservers: {{a: {{command: x}}}}"
        assert [f.code for f in config.check_text(text, "f", Path("/base"), {}).errors] == errors


def test_a_deny_list_does_not_know_names_that_nobody_listed() -> None:
    server = "{command: x, prefix: '', unlisted: forward, pin: off, tools: {deny: [a]}}"
    checked = config.check_text(f"policy: {{use: open}}\nservers: {{a: {server}}}", "f", Path("/base"), {})
    (found,) = [finding for finding in checked.findings if finding.code == "denies-unlisted"]
    assert found.severity == "warning" and "tools.allow" in found.hint


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("toolsets: {dev: {tools: [a/*, b/x]}}", 'unknown-server no server is called "b"'),
        ("toolsets: {b: {tools: [a/*], default_for: [role:a]}, c: {tools: [a/*], default_for: [role:a]}}",
         "two-defaults role:a has the toolset b by default already"),
        ("search: on", "one-leave-for-all"),
        ("toolsets: {dev: {tools: [a/*], search: auto}}", "one-leave-for-all"),
    ],
)  # fmt: skip
def test_toolsets_that_work_and_can_hardly_be_meant_are_warned_of(rest: str, said: str) -> None:
    text = f"policy: {{use: open}}\nservers: {{a: {{command: x}}}}\nclients: {{anonymous: {{}}}}\n{rest}\n"
    checked = config.check_text(text, "f", Path("/"), {})
    (found,) = [one for one in checked.findings if one.line == 4]
    assert checked.config is not None and found.severity == "warning"
    assert f"{found.code} {found.message}".startswith(said)


def test_a_hidden_argument_with_a_default_is_warned_of() -> None:
    shape = "{name: x, defaults: {o: 1}, hide: [o]}"
    text = f"policy: {{use: open}}\nservers: {{a: {{command: x, tools: {{shape: {{b: {shape}}}}}}}}}\n"
    found = [one.code for one in config.check_text(text, "f", Path("/"), {}).findings]
    assert "hidden-twice" in found


def test_warnings_name_what_works_but_can_hardly_be_meant() -> None:
    text = f"policy: {{use: open}}\nclients:\n  keys: {{a: {{hash: '{HASH}', expires: 2020-01-31}}}}\nservers:\n"
    checked = config.check_text(text, "f", Path("/base"), {})
    assert [(f.line, f.column, f.code) for f in checked.findings] == [(3, 104, "expired-key"), (4, 1, "no-servers")]
    assert checked.config is not None


@pytest.mark.parametrize(
    ("said", "at"),
    [
        ("policy: {use: open}\nlisten: {mcp: '127.0.0.1:1'}", "1:1"), ("policy: {use: team}", "1:1"),
        ("policy: {use: open}\nclients: {keys: {}}", "2:1"), ("policy: {use: open}", None),
        ("policy: {use: open}\nclients: {local: {roles: ['role:a']}}", None),
    ],
)  # fmt: skip
def test_that_no_http_client_gets_in_is_said_of_a_file_that_speaks_of_http(said: str, at: str | None) -> None:
    checked = config.check_text(f"{said}\nservers: {{a: {{command: x}}}}", "f", Path("/base"), {})
    assert [str(finding) for finding in checked.findings] == ([
        f"f:{at} no-clients warning: no HTTP client gets in; only `sluice stdio` works "
        "(add a key (`sluice keys new NAME`), or clients.anonymous on loopback)"
    ] if at else [])  # fmt: skip


SECRET = "hunter2-correct-horse"


@pytest.mark.parametrize(
    "text",
    [
        "servers: {a: {command: x, env: {A: '${env:S}'}, timeout: '${env:S}', era: '${env:S}', lazy: '${env:S}'}}",
        "servers: {a: {url: 'https://u:${env:S}@x/', headers: {Authorization: \"${env:S}\\n\"}, ca: '${env:S}'}}",
        "servers: {a: {command: x, args: ['${env:S}'], prefix: '${env:S}', concurrency: '${env:S}', cwd: {}}}",
        "clients: {keys: {a: {hash: '${env:S}', expires: '${env:S}', roles: ['${env:S}']}}}",
        "listen: {mcp: '${env:S}', allowed_hosts: ['https://${env:S}'], allowed_origins: ['${env:S}']}",
        "servers: {a: {command: x, env: {A: {B: '${env:S}'}}}}",
        "version: '${env:S}'\npolicy: {use: '${env:S}'}",
    ],
)
def test_no_value_stands_in_a_finding(text: str) -> None:
    checked = config.check_text(text, "f", Path("/base"), {"S": SECRET})
    assert checked.errors
    assert SECRET not in repr(checked) + "".join(str(finding) for finding in checked.findings)


def test_no_secret_stands_in_the_repr_of_a_config() -> None:
    text = (
        "policy: {use: open}\nservers:\n"
        "  a: {command: x, args: ['--key=${env:S}'], env: {A: '${env:S}'}}\n"
        "  b: {url: 'https://x/?key=${env:S}', headers: {Authorization: 'Bearer ${env:S}'}}\n"
        f"clients: {{keys: {{k: {{hash: '{HASH}'}}}}}}"
    )
    checked = config.check_text(text, "f", Path("/base"), {"S": SECRET})
    assert checked.config is not None
    shown = repr(checked.config) + str(checked.config)
    assert SECRET not in shown and HASH not in shown


KEYS = f"clients: {{keys: {{k: {{hash: '{HASH}'}}, l: {{hash: '{HASH[:-1]}0'}}}}}}\n"
ONE_KEY = f"clients: {{keys: {{k: {{hash: '{HASH}'}}}}}}\n"


@pytest.mark.parametrize(
    ("clients", "server", "is_suggested"),
    [
        (KEYS, "command: x", True),
        (KEYS, "command: x, idle: 10m", False),
        (KEYS, "command: x, idle: never", False),
        (KEYS, "command: x, processes: 4", False),
        (KEYS, "command: x, sharing: shared", False),
        (KEYS, "command: x, era: modern", False),
        (KEYS, "command: x, enabled: false", False),
        (KEYS, "url: 'https://x/'", False),
        (ONE_KEY, "command: x", False),
        ("clients: {local: {roles: []}}\n", "command: x", False),
        ("clients: {anonymous: {}}\n", "command: x", False),
    ],
)
def test_idle_is_suggested_where_many_clients_share_started_servers(
    clients: str, server: str, is_suggested: bool
) -> None:
    checked = config.check_text(f"policy: {{use: personal}}\n{clients}servers: {{a: {{{server}}}}}\n", "f", Path(), {})
    found = [finding for finding in checked.findings if finding.code == "idle-sessions"]
    assert not checked.errors and [finding.severity for finding in found] == ["warning"] * is_suggested


def test_an_idle_time_is_a_duration_or_never() -> None:
    servers = "{a: {command: x, idle: never}, b: {url: 'https://x/', idle: 90s}, c: {command: x}}"
    text = f"policy: {{use: open}}\nservers: {servers}"
    checked = config.check_text(text, "f", Path(), {})
    assert checked.config is not None
    assert [server.idle for server in checked.config.servers.values()] == [float("inf"), 90.0, None]
    for wrong in ("0s", "soon", "600", "~"):
        bad = config.check_text(
            f"policy: {{use: open}}\nservers: {{a: {{command: x, idle: {wrong}}}}}", "f", Path(), {}
        )
        assert bad.errors, wrong


def test_what_a_variable_brings_into_an_argument_is_known() -> None:
    text = "policy: {use: open}\nservers: {a: {command: x, args: [-y, '--key=${env:S}']}}"
    checked = config.check_text(text, "f", Path("/base"), {"S": SECRET})
    assert checked.config is not None
    made = settings.server("a", checked.config.servers["a"], checked.config, lambda amount: amount, str)
    assert made.command == ("x", "-y", f"--key={SECRET}") and made.expanded == (SECRET,)


@pytest.mark.parametrize(("listen", "more", "is_said"), [
    ("admin: '0.0.0.0:7411'", "", True), ("admin: '127.0.0.1:7411'", "", False),
    ("admin: '0.0.0.0:7411'", "console: {enabled: false}\n", False),
    ("admin: '0.0.0.0:7411', trusted_proxies: [10.0.0.1]", "", False),
])  # fmt: skip
def test_check_says_where_the_console_needs_https(listen: str, more: str, is_said: bool) -> None:
    checked = config.check_text(f"policy: {{use: team}}\nlisten: {{{listen}}}\n{more}", "f", Path(), {})
    found = [finding for finding in checked.findings if finding.code == "console-needs-https"]
    assert not checked.errors and [finding.severity for finding in found] == ["warning"] * is_said


@pytest.mark.parametrize(("section", "code"), [
    ({"servers": "servers: {a: {command: x, arg: [y]}}"}, "unknown-key"),
    ({"clients": f"clients: {{keys: {{k: {{hash: '{HASH}', role: []}}}}}}"}, "unknown-key"),
    ({"policy": "policy: {use: opne}"}, "wrong-value"),
    ({"policy": "policy: {files: policy.csv}"}, "wrong-type"),
    ({"policy": "policy: {us: personal}"}, "unknown-key"),
    ({"policy": "policy: {use: open, mode: shadow, unti: 2030-01-01}"}, "unknown-key"),
    ({"servers": "servers: {a: {command: x, arg: [y]}, b: {command: x}}",
      "toolsets": "toolsets: {t: {tools: [a/x]}}"}, "unknown-key"),
    ({"servers": "servers: {a: {command: x, arg: [y]}}",
      "hooks": "hooks: {h: {url: 'https://h', on: [call], servers: [a]}}"}, "unknown-key"),
    ({"hooks": "hooks: {h: {url: 'https://h', on: [approval], secre: x}}"}, "unknown-key"),
    ({"clients": f"clients: {{anonymous: {{}}, keys: {{k: {{hash: '{HASH}', role: []}}}}}}",
      "hooks": f"hooks: {{h: {{url: 'https://h', on: [approval], secret: {WHSEC}, key: k}}}}"}, "unknown-key"),
    ({"approvals": "approvals:\n  profiles: {p: {tier: self, vai: []}}\n"
                   f"  notify: [{{type: webhook, url: 'https://x/', secret: {WHSEC}, profiles: [p]}}]"}, "unknown-key"),
])  # fmt: skip
def test_what_has_a_mistake_is_not_said_to_be_missing(section: dict[str, str], code: str) -> None:
    found = config.check_text("\n".join((REST | section).values()), "f", Path(), {}).findings
    assert [one.code for one in found] == [code]


def test_what_is_missing_is_said_beside_a_server_that_only_lacks_a_variable() -> None:
    """Sluice starts without such a server, so that no other mistake may go unsaid."""
    hook = "hooks: {h: {url: 'https://h', on: [call], servers: [b]}}"
    text = "\n".join((REST | {"servers": "servers: {a: {url: '${env:NO}'}}", "hooks": hook}).values())
    checked = config.check_text(text, "f", Path(), {})
    assert checked.config is None and [one.code for one in checked.findings] == ["unset-variable", "unknown-server"]


@pytest.mark.parametrize(("login", "is_said"), [
    ("client_id: c, client_secret: s", True), ("client_id: c, client_key: k", False),
    ("client_id: c, client_secret: s, issuer: 'https://x'", False),
    ("client_id: c, client_secret: s, endpoints: {token: 'https://x/t'}", False),
    ("client_secret: s", False), ("client_id: c, client_secret: ''", False),
])  # fmt: skip
def test_check_says_where_the_server_chooses_who_gets_the_secret(login: str, is_said: bool) -> None:
    server = f"{{url: 'https://a.test/mcp', login: {{per: gateway, {login}}}}}"
    checked = config.check_text(f"policy: {{use: team}}\nservers: {{a: {server}}}", "f", Path("/base"), {})
    found = [finding for finding in checked.findings if finding.code == "no-issuer"]
    assert [(one.line, one.severity) for one in found] == [(2, "warning")] * is_said


@pytest.mark.parametrize(("ca", "at", "is_said"), [
    (", client_ca: a", "0.0.0.0", True), (", client_ca: a", "127.0.0.1", False), ("", "0.0.0.0", False),
])  # fmt: skip
def test_check_says_where_clients_need_no_certificate_although_they_do_elsewhere(
    ca: str, at: str, is_said: bool
) -> None:
    peer = f"{{listen: '{at}:7413', url: 'http://10.0.0.1:7413', insecure: true}}"
    text = f"{A_TEAM}\nlisten: {{tls: {{cert: c, key: k{ca}}}}}\n{A_FLEET}  peer: {peer}"
    found = [one for one in config.check_text(text, "f", Path(), {}).findings if one.code == "no-client-certificate"]
    assert [(one.line, one.severity) for one in found] == [(7, "warning")] * is_said
