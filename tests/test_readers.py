"""A reader who knows HTTP, MCP and proxies finds a behaviour by the name that the field gives it.

Each question is what such a reader types into a search. Modules are ranked as a reader looks at the results: words in
the file's name first, then in the names of its classes and functions, then in its first docstring and its comments.
The module that does it must be among the first three. Where one is not, it lacks the field's word: give it the word.
"""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "proxy" / "sluicegate"
FOUND_WITHIN = 3
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
# Regular expressions, because syntax trees of the whole package take ten times as long.
DEFINED = re.compile(r"^[ \t]*(?:class|def|async def) (\w+)", re.MULTILINE)
DOCSTRING = re.compile(r'\A"""(.*?)"""', re.DOTALL)
IN_PATH, IN_NAMES, IN_TEXT = 8.0, 3.0, 1.0

QUESTIONS = {
    # HTTP
    "Host header and Origin check": "http/hosts.py",
    "CORS preflight": "http/hosts.py",
    "X-Forwarded-For headers of a reverse proxy": "http/forwarded_headers.py",
    "SSRF: egress to private addresses": "http/egress.py",
    "server-sent events parser": "http/sse.py",
    "HTTP client connection pool": "http/client/pool.py",
    "HTTP/1.1 request parser, pipelined requests, slow clients": "listen/http1.py",
    "request size and in-flight limits of large requests": "listen/large_requests.py",
    "OAuth protected resource metadata": "listen/protected_resource_metadata.py",
    "bearer token claims": "listen/auth/tokens.py",
    "JWKS of a token issuer": "listen/auth/issuers.py",
    "JWS signature": "listen/auth/signature.py",
    # MCP
    "Streamable HTTP transport of a listener": "listen/streamable_http.py",
    "HTTP+SSE transport of 2024-11-05": "listen/http_sse.py",
    "session idle timeout": "listen/sessions.py",
    "resumability: replay buffer": "listen/replay.py",
    "table of methods": "protocol/methods.py",
    "JSON-RPC limits: depth, duplicate keys": "protocol/jsonrpc.py",
    "table of protocol revisions": "protocol/revisions.py",
    "elicitation and sampling validator": "protocol/input_forms.py",
    "mirrored headers Mcp-Param": "protocol/mirrored_headers.py",
    "seal of requestState": "guards/seal.py",
    "tool name prefix": "catalog/names.py",
    "cursor of a list": "catalog/cursor.py",
    "list snapshot": "catalog/snapshot.py",
    "tools/list cache": "catalog_cache/cache.py",
    "subscriptions/listen stream": "router/subscription_stream.py",
    "resource subscriptions at a server": "downstream/resource_subscriptions.py",
    "task polling": "downstream/tasks/polling.py",
    # a proxy's work
    "circuit breaker, retry backoff": "downstream/call_limits.py",
    "concurrency limit": "runtime/concurrency_limit.py",
    "selector of connections": "downstream/server_life.py",
    "connection pool of one server": "downstream/pool.py",
    "stdio child process": "downstream/transport/process.py",
    "stderr of a server": "downstream/server_output.py",
    "config reload": "app/reload.py",
    "graceful drain of a port": "listen/server.py",
    "worker supervisor": "app/workers.py",
    "rate limit": "policy/rates.py",
    "compare-and-set in SQLite": "store/sqlite.py",
    "key ring and sealed tokens": "store/keys.py",
    "Prometheus series": "metrics/__init__.py",
    "OpenTelemetry spans": "tracing.py",
    # a firewall's work
    "casbin matcher": "policy/engine.py",
    "policy decision by rows": "policy/rules.py",
    "explain a policy decision": "policy/explain.py",
    "lint of policy rows": "policy/lint.py",
    "JSON Schema rules for arguments": "policy/schemas.py",
    "outputSchema and structuredContent": "policy/schemas.py",
    "cost of a JSON Schema": "policy/schema_cost.py",
    "hidden text, terminal escapes, bidi": "policy/hidden_text.py",
    "pinned definitions": "policy/pins.py",
    "approval queue": "approval/queue.py",
    "eligibility of approvers: tiers, quorum": "approval/eligibility.py",
    "webhook": "approval/webhook.py",
    "grants that are remembered": "approval/grants.py",
    "hash chain of the audit log": "audit/chain.py",
    "signed checkpoint": "audit/checkpoint.py",
    "verify the log": "audit/verify.py",
    "redaction of secrets in arguments": "audit/redact.py",
    "syslog sink": "audit/sinks.py",
    "OCSF export": "audit/export.py",
    "retention of old segments": "audit/segment.py",
}
COMMON = frozenset("a and at by for in is it of on that the to which who with".split())


def words(text: str) -> list[str]:
    return [word.lower().removesuffix("s") for word in WORDS.findall(text) if word.lower() not in COMMON]


@cache
def modules() -> dict[str, tuple[set[str], Counter[str], Counter[str]]]:
    """Of each module the words in its path, in the names that it defines, and in its docstring and comments."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        names = " ".join(DEFINED.findall(text))
        said = [*DOCSTRING.findall(text), *re.findall(r"# (.*)", text)]
        file = str(path.relative_to(PACKAGE))
        found[file] = set(words(file.removesuffix(".py"))), Counter(words(names)), Counter(words(" ".join(said)))
    return found


@cache
def weight(word: str) -> float:
    """A word that few modules have tells more than one that many have."""
    having = sum(word in path or word in names or word in text for path, names, text in modules().values())
    return 0.0 if not having else 1.0 / having**0.5


def ranked(question: str) -> list[str]:
    asked = dict.fromkeys(words(question))

    def score(file: str) -> float:
        path, names, text = modules()[file]
        return sum(
            weight(word) * (IN_PATH * (word in path) + IN_NAMES * min(names[word], 3) + IN_TEXT * min(text[word], 3))
            for word in asked
        )

    return sorted(modules(), key=score, reverse=True)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_behaviour_is_found_by_the_name_that_the_field_gives_it(question: str) -> None:
    assert QUESTIONS[question] in ranked(question)[:FOUND_WITHIN]


def test_a_question_is_about_a_module_that_there_is() -> None:
    assert {*QUESTIONS.values()} <= modules().keys()
