"""What is fuzzed, as a table: each target gives bytes to a parser of Sluice and checks what must hold of it.

Only declared errors are raised, bounds hold, what is written reads back as it was, and it does not matter how bytes
were cut on their way. `fuzz_run.py` looks for bytes for which that is not so, and `test_fuzz.py` replays those that
were found.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from value_targets import SEPARATOR, config_text, jwt, policy_files, policy_rows, sealed
from wire_targets import http1, json_rpc, sse, stdio_lines, stdio_session


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """`check` raises for what must not be. `words` are what a fuzzer would need long to come to by itself; `runs` are
    those of continuous integration."""

    check: Callable[[bytes], None]
    words: Sequence[str] = ()
    runs: int = 3000
    max_size: int = 2048


_MESSAGES = ('"jsonrpc"', '"2.0"', '"id"', '"method"', '"params"', '"result"', '"error"', "1e999", "\\ud800", '\\"')
_CALLS = ("tools/call", "tools/list", "initialize", "ping", "notifications/cancelled", "subscriptions/listen", "_meta",
          "protocolVersion", "2025-03-26", "2026-07-28", "io.modelcontextprotocol/")  # fmt: skip
TARGETS = {
    "http1": FuzzTarget(http1, (
        "\r\n\r\n", "POST / HTTP/1.1\r\n", "Host: x\r\n", "Content-Length: ", "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n", "Expect: 100-continue\r\n", "HTTP/1.0", "0\r\n\r\n", "Upgrade: h2c\r\n", "%2e",
        "X_Y: z\r\n",
    ), 1500),
    "jsonrpc": FuzzTarget(json_rpc, _MESSAGES, 15_000),
    "sse": FuzzTarget(sse, (
        "data: ", "event: ", "id: ", "retry: ", "endpoint", "message", "\r\n", "\xef\xbb\xbf",
    ), 1500),
    "lines": FuzzTarget(stdio_lines, (), 1500, 512),
    "stdio": FuzzTarget(stdio_session, (*_MESSAGES, *_CALLS), 800),
    "policy": FuzzTarget(policy_rows, (
        "p, ", "p2, ", "g, ", "role:", "group:", "key:", ", allow", ", deny", "tool:", "res:", "sluice", "admin:",
        "confirm", "two-person", "none", "role:everyone", '""', "[!",
    ), 1500, 1024),
    "policy-files": FuzzTarget(policy_files, (
        SEPARATOR.decode(), '"type"', '"properties"', '"pattern"', '"$ref"', '"#/$defs/', "as: ", "call: ", "expect: ",
    ), 250, 1024),
    "config": FuzzTarget(config_text, (
        "version: 1\n", "servers:", "command: ", "url: ", "policy: ", "clients:", "keys:", "listen:", "limits:",
        "${env:TOKEN}", "${env:", ":-", "$${", "&a", "*a", "!!", "---\n", "|-\n", "toolsets:", "hooks:",
        "sandbox:", "roles:",
    ), 400, 1024),
    "sealed": FuzzTarget(sealed, ('"s"', '"c"', '"o"', '"g"', '"kept"'), 3000),
    "jwt": FuzzTarget(jwt, (
        '"alg"', '"EdDSA"', '"typ"', '"crit"', '"kid"', '"iss"', '"aud"', '"sub"', '"exp"', '"nbf"', '"groups"',
        "https://issuer.test", "sluice",
    ), 800),
}  # fmt: skip
