"""`call`: one tool call of a running Sluice, as whoever the key stands for, decided and recorded as any other.

Speaks MCP as any client does, in the newest revision, which has no session to open: over HTTP, or at the socket of a
desktop client's Sluice. It can answer no questions, and so declares no capabilities.
"""

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Final

import httpx
import typer

from sluicegate import __version__
from sluicegate.cli.admin import KEY_VARIABLE, TIMEOUT, Admin, AdminKey, GivenKey, key_of
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import Code, Unreachable, info, json_object, print_json, print_out, stop, with_config
from sluicegate.http.sse import EventParser, StreamPosition
from sluicegate.policy.display import visible
from sluicegate.protocol import modern_server
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.mirrored_headers import annotations_of
from sluicegate.protocol.model import HEADER_MISMATCH, MODERN
from sluicegate.protocol.reserved_keys import REASONS

MAX_ARGUMENTS: Final = 64 * 1024 * 1024
_PAUSE: Final = 2.0
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "sluice-call", "version": __version__},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_MAX_EVENT: Final = 64 * 1024 * 1024  # bytes of one message that a Sluice sends
_REASON: Final = "dev.sluice/reason"
_APPROVAL: Final = "dev.sluice/approval"

ClientKeyFile = Annotated[
    str | None,
    typer.Option("--key-file", metavar="FILE", show_default=False,
                 help="A file that holds a client key; - reads stdin. Else $SLUICE_KEY, else the call is anonymous."),
]  # fmt: skip


def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Its name, as `sluice tools` shows it.")],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="The arguments, as a JSON object; - reads them from stdin.")
    ] = "{}",
    config_file: ConfigFile = None,
    key_file: ClientKeyFile = None,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Call a tool, as the client whose key is given. Policy, approvals and audit apply as to every client. Waits while
    a person has to approve it. Exits 1 if the call is refused or fails."""
    if arguments == "-" == key_file:
        stop(Code.USAGE, "stdin holds the key or the arguments, not both: --key-file takes a file, too")
    tools = with_config("sluice tools", config_file)
    if not tool.isprintable():
        stop(Code.USAGE, f"{visible(tool)} is no name of a tool; `{tools}` shows them")
    given, shown = _arguments(arguments), key_of(key_file, key)
    running = Admin(config_file)
    with ExitStack() as stack:
        desktop = running.clients()
        if desktop is None:
            connection: McpOverHttp | McpOverSocket = stack.enter_context(McpOverHttp(running, shown))
        else:
            if shown is not None and not shown.source.endswith(KEY_VARIABLE):
                stop(Code.USAGE, "a desktop client's Sluice runs with this config: leave the key out")
            if shown is not None:
                info(f"${KEY_VARIABLE} is not used: the clients of a desktop client's Sluice are `local`")
            connection = stack.enter_context(McpOverSocket(running, desktop))
        response = _until_decided(connection, tool, given, config_file)
    _show(response, as_json, tools)


def _arguments(text: str) -> Json:
    """Exits 2 for what is no object; an error shows nothing of it, as it may hold a secret."""
    try:
        if text == "-" and not (text := sys.stdin.buffer.read(MAX_ARGUMENTS).decode()).strip():
            raise ValueError("stdin is empty")
        return json_object(text)
    except ValueError as error:
        stop(Code.USAGE, f"the arguments are no JSON object: {error}", """they look like '{"city": "Oslo"}'""")


def _until_decided(
    connection: "McpOverHttp | McpOverSocket", tool: str, arguments: Json, config_file: Path | None
) -> Json:
    """The response to the call. While nobody has decided, the same call is made again: it runs once."""
    params = {"name": tool, "arguments": arguments}
    asker = _Asker(connection, config_file)
    while True:
        response = asker.ask("tools/call", params)
        meta = _meta(response)
        if meta.get(_REASON) != "approval_pending":
            return response
        asker.name_approval(meta.get(_APPROVAL, {}))
        time.sleep(_PAUSE)


class _Asker:
    def __init__(self, connection: "McpOverHttp | McpOverSocket", config_file: Path | None) -> None:
        self._connection, self._config_file = connection, config_file
        self._numbers = count(1)
        self._heard = self._approval = ""

    def name_approval(self, about: Json) -> None:
        """Once, who approves it, and how."""
        if about.get("id") != self._approval:
            self._approval = about.get("id", "")
            who, until = about.get("approvers", "a person"), about.get("expires_at", "")
            who += "" if who == "whoever asked" else ", not by you,"
            command = with_config(f"sluice approve {self._approval}", self._config_file)
            info(visible(f"waiting for approval {self._approval} by {who} until {until}: {command}"))

    def ask(self, method: str, params: Json) -> Json:
        response = self._exchange(method, params, {})
        code = response.get("error", {}).get("code")
        if method == "tools/call" and self._connection.is_http and code == HEADER_MISMATCH:
            # The tool wants some of its arguments as headers; its definition says which.
            definition = next((one for one in self._tools() if one.get("name") == params["name"]), {})
            headers = modern_server.headers(method, params, annotations_of(definition))
            return self._exchange(method, params, {name.decode(): value.decode() for name, value in headers})
        return response

    def _tools(self) -> Iterator[Json]:
        params: Json = {}
        while True:
            result = self._exchange("tools/list", params, {}).get("result", {})
            yield from result.get("tools", ())
            if "nextCursor" not in result:
                return
            params = {"cursor": result["nextCursor"]}

    def _exchange(self, method: str, params: Json, headers: dict[str, str]) -> Json:
        number = next(self._numbers)
        meta = {**_META, "progressToken": number}
        own = {name.decode(): value.decode() for name, value in modern_server.headers(method, params)}
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": meta}}
        for message in self._connection.ask(request, own | headers):
            if message.get("id") in (number, None) and "method" not in message:  # None: of what cannot be read
                return message
            received = message.get("params", {})
            text = received.get("message")
            if message.get("method") != "notifications/progress":
                continue
            if about := received.get("_meta", {}).get(_APPROVAL):
                self.name_approval(about)
            elif isinstance(text, str) and text != self._heard:
                self._heard = text
                info(f"progress: {visible(text)}")
        raise Unreachable("Sluice ended before it answered: the call may or may not have been executed")


class McpOverHttp:
    """The port for clients. Without a key whoever asks is anonymous. What a body says stands in headers, too."""

    is_http = True

    def __init__(self, running: Admin, key: GivenKey | None) -> None:
        self._running, self._key, self._url = running, key, running.mcp_url
        headers = {
            "Accept": "application/json, text/event-stream", "Content-Type": "application/json",
            "MCP-Protocol-Version": MODERN,
            **({"Authorization": f"Bearer {key.value}"} if key else {}),
        }  # fmt: skip
        # trust_env: a proxy from the environment must never see the key; read: a person may have to decide first
        timeout = httpx.Timeout(TIMEOUT, read=None)
        self._client = httpx.Client(headers=headers, timeout=timeout, trust_env=False)

    def __enter__(self) -> "McpOverHttp":
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def ask(self, request: Json, headers: dict[str, str]) -> Iterator[Json]:
        try:
            body = json.dumps(request).encode("ascii")
            with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                self._running.tell_broken()
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    yield from map(json.loads, _messages(response))
                else:
                    response.read()
                    yield self._message(response)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            why = f"no Sluice answers at {self._url} (listen.mcp): {type(error).__name__}"
            raise self._running.nobody(why) from None
        except httpx.HTTPError as error:
            self._running.tell_broken()
            why = f"Sluice did not answer ({type(error).__name__}): the call may or may not have been executed"
            raise Unreachable(why) from None

    def _message(self, response: httpx.Response) -> Json:
        if response.status_code in (401, 403):
            who = self._key.source if self._key else "nobody; give a key with --key-file or $SLUICE_KEY"
            stop(Code.AUTH, f"Sluice refuses this credential ({response.status_code})", f"credential: {who}")
        try:
            found = response.json()
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found.keys() & {"result", "error"}:
            stop(Code.UNREACHABLE, f"what answers at {self._url} is no Sluice ({response.status_code})")
        return found


@dataclass
class McpOverSocket:
    """Where the clients of a desktop client's Sluice come in: one message a line."""

    running: Admin
    address: str
    is_http = False

    def __enter__(self) -> "McpOverSocket":
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(self.address)
        except OSError as error:
            raise self.running.nobody(f"no Sluice answers at its socket: {error.strerror}") from None
        self.running.tell_broken()
        self._lines = self._socket.makefile("rb")
        return self

    def __exit__(self, *error: object) -> None:
        self._lines.close()
        self._socket.close()

    def ask(self, request: Json, headers: dict[str, str]) -> Iterator[Json]:
        try:
            self._socket.sendall(json.dumps(request).encode("ascii") + b"\n")
            yield from (json.loads(line) for line in self._lines if line.endswith(b"\n"))  # the last may be cut
        except OSError:
            return


def _messages(response: httpx.Response) -> Iterator[bytes]:
    """The data of each event of a stream. httpx's own lines end at U+2028, too, which a message may have in it."""
    events = EventParser(StreamPosition(), _MAX_EVENT)
    for chunk in response.iter_bytes():
        yield from (data for data in events.feed(chunk) if isinstance(data, bytes))  # none is kept in a file


def _meta(response: Json) -> Json:
    found = response.get("result", {}).get("_meta", {})
    return found if isinstance(found, dict) else {}


def _show(response: Json, as_json: bool, tools: str) -> None:
    """`tools` is the command that shows the names of tools."""
    if "error" in response:
        error = response["error"]
        # Marked, like what tools write: a server may have written it, and Sluice's own lines have no such mark.
        stop(Code.NEGATIVE, visible(f"error: {error.get('message')} ({error.get('code')})"), *_hints(error, tools))
    result = response["result"]
    is_error = bool(result.get("isError"))
    if as_json:
        print_json(result)
    reason = _meta(response).get(_REASON)  # no server can write it
    for text in () if as_json else _lines(result):
        if is_error:
            # Between lines of Sluice's own: the tool's are marked, whatever they say.
            info(text if reason else "\n".join(f"tool: {line}" for line in text.split("\n")))
        else:
            print_out(text)
    if is_error:
        stop(Code.NEGATIVE, *([f"reason: {reason}"] if reason else []))


def _hints(error: Json, tools: str) -> Iterator[str]:
    data = error.get("data")
    reason = data.get("reason") if isinstance(data, dict) else None
    if isinstance(reason, str) and reason in REASONS:  # no server can write one of these
        yield f"reason: {reason}"
    elif str(error.get("message", "")).startswith("Unknown tool"):
        yield f"`{tools}` shows the names; a tool that this client may not use is unknown to it"


def _lines(result: Json) -> Iterator[str]:
    """The texts of a result as they are; of everything else, what it is."""
    content = result.get("content", [])
    for item in content:
        if item.get("type") == "text":
            yield visible(str(item.get("text", "")), "\n\t")
        else:
            yield visible(f"[{item.get('type')}{''.join(f' {item[n]}' for n in ('mimeType', 'uri') if n in item)}]")
    if not content and "structuredContent" in result:
        yield visible(json.dumps(result["structuredContent"], indent=2, ensure_ascii=False), "\n")
