"""Load: a kind of call, made over and over by wrk, and the figures of it.

Knows MCP over HTTP as far as a call needs it, and what a right answer says; knows nothing of who answers.
"""

import json
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from fast_server import TEXTS
from subjects import NotMeasured, Subject, pinned

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO: dict[str, Any] = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class NoAnswer(NotMeasured):
    """Not one call was answered while the load ran. At fewer calls at once they may be."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of call: the era of its client, and what its tool's name has after `echo`, which says what is answered."""

    name: str
    era: str = "legacy"
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One tools/call as bytes and headers. `answered` is how many bytes its answer has at least. `is_numbered`: each
    has an id of its own, as some gateways want it of the calls of one session, and the specification of all."""

    url: str
    headers: dict[str, str]
    body: str
    answered: int = 0
    is_numbered: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run, or the medians of several: CPU microseconds of the subject per call, calls a second, latency in
    microseconds, resident MiB of the subject after it."""

    cpu: float
    rate: float
    p50: float
    p99: float
    memory: float


def message(method: str, params: dict[str, Any], id: int | None = 1) -> dict[str, Any]:
    request: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return request if id is None else {**request, "id": id}


def plain_headers(subject: Subject) -> dict[str, str]:
    accept = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    return {**accept, **dict(subject.headers)}


def legacy_session(subject: Subject, client: httpx.Client, revision: str = LEGACY) -> dict[str, str]:
    """A new session: the headers to use it with."""
    headers = plain_headers(subject)
    hello = HELLO | {"protocolVersion": revision}
    answer = client.post(subject.url, headers=headers, json=message("initialize", hello))
    headers["MCP-Protocol-Version"] = revision
    if session := answer.headers.get("mcp-session-id"):
        headers["Mcp-Session-Id"] = session
    client.post(subject.url, headers=headers, json=message("notifications/initialized", {}, None)).raise_for_status()
    return headers


def legacy_call(subject: Subject, client: httpx.Client, suffix: str = "", text: str = "") -> Call:
    """`text` is what a tool that is not the fast server's says."""
    params = {"name": subject.tool + suffix, "arguments": {"text": "hello"}}
    return _proven(subject.url, legacy_session(subject, client), params, client, text or TEXTS["echo" + suffix])


def modern_call(subject: Subject, client: httpx.Client, suffix: str = "", text: str = "") -> Call:
    params = {"name": subject.tool + suffix, "arguments": {"text": "hello"}, "_meta": META}
    routing = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": params["name"]}
    told = text or TEXTS["echo" + suffix]
    return _proven(subject.url, {**plain_headers(subject), **routing}, params, client, told)


def found_call(subject: Subject, client: httpx.Client) -> Call:
    """The same call through `call_tool`."""
    params = {
        "name": "call_tool", "arguments": {"name": subject.tool, "arguments": {"text": "hello"}}, "_meta": META
    }  # fmt: skip
    routing = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "call_tool"}
    return _proven(subject.url, {**plain_headers(subject), **routing}, params, client, TEXTS["echo"])


def make_call(kind: Kind, subject: Subject, client: httpx.Client) -> Call:
    return (legacy_call if kind.era == "legacy" else modern_call)(subject, client, kind.suffix)


def _proven(url: str, headers: dict[str, str], params: dict[str, Any], client: httpx.Client, text: str) -> Call:
    """The call, once it was seen to give what the server said, to the letter."""
    body = json.dumps(message("tools/call", params, 7), separators=(",", ":"))
    answer = client.post(url, headers=headers, content=body)
    result = result_of(answer) if answer.status_code == 200 else {}
    content = result.get("content", [{}])
    if result.get("isError") or content[0].get("text") != text:
        raise NotMeasured(f"answered {answer.status_code}, but not what the server said", f"{url}: {answer.text[:500]}")
    head = sum(len(name) + len(value) + len(": \r\n") for name, value in answer.headers.raw)
    return Call(url, headers, body, len("HTTP/1.1 200 \r\n\r\n") + head + len(answer.content))


def result_of(answer: httpx.Response) -> dict[str, Any]:
    """Of a whole answer, or of the last event of a stream."""
    content = answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        content = [line for line in content.splitlines() if line.startswith("data:")][-1].removeprefix("data:")
    return dict(json.loads(content).get("result", {}))


NUMBERED = """
local number = 1000000
request = function()
  number = number + 1
  return wrk.format(nil, nil, nil, %s .. number .. "}")
end
"""
LUA = """
wrk.method = "POST"
wrk.body = %s
%s
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT %%d %%d %%d %%d %%d %%d\\n", summary.requests, summary.duration, summary.bytes,
    e.connect + e.read + e.write + e.timeout + e.status, latency:percentile(50), latency:percentile(99)))
end
"""


def quoted(text: str) -> str:
    """As a Lua string."""
    return '"' + "".join(f"\\{ord(c):03d}" if c in '"\\\n\r' or ord(c) > 126 else c for c in text) + '"'


def run(subject: Subject, call: Call, concurrency: int, seconds: int, folder: Path, core: int) -> Figures:
    """One run of wrk on `core`. An answer that is not 2xx ends the bench, and so do answers that are too short: a fast
    refusal is no fast call."""
    script = folder / "call.lua"
    lines = [f"wrk.headers[{quoted(name)}] = {quoted(value)}" for name, value in call.headers.items()]
    numbered = NUMBERED % quoted(call.body.removesuffix("7}")) if call.is_numbered else ""
    script.write_text(LUA % (quoted(call.body), "\n".join(lines)) + numbered)
    options = ["-t1", f"-c{concurrency}", f"-d{seconds}s", "--timeout", "20s", "--latency", "-s", str(script)]
    subject.rest()
    before = subject.cpu()
    output = subprocess.run(pinned(core, ["wrk", *options, call.url]), capture_output=True, text=True, check=False)
    used = subject.cpu() - before
    result = [line for line in output.stdout.splitlines() if line.startswith("RESULT ")]
    if not result:
        raise NotMeasured("wrk failed", f"{output.stdout}{output.stderr}")
    calls, duration, size, errors, p50, p99 = (int(field) for field in result[0].split()[1:])
    if not calls and not errors:
        raise NoAnswer(f"answered none of {concurrency} calls in {seconds} s", call.url)
    if errors:
        raise NotMeasured(f"{errors} of {calls} calls failed", f"{call.url}\n{output.stdout}")
    if size < calls * call.answered:
        raise NotMeasured(f"{calls} calls gave {size} bytes, {call.answered} each were expected", call.url)
    return Figures(used / calls * 1e6, calls / duration * 1e6, p50, p99, subject.memory())


def middle(runs: list[Figures]) -> Figures:
    return Figures(*(median(getattr(figures, field.name) for figures in runs) for field in fields(Figures)))
