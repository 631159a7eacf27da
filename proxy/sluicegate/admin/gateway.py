"""The admin port of several workers: one for whoever asks, made of theirs.

What one worker has, an approval for one, is asked of them until one knows it; what each has a part of is put together;
what changes something for all is known to all before it is answered. Credentials and rights are judged by the workers.
"""

from __future__ import annotations  # httpx is imported at its first use

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from sluicegate.admin.paging import PageRequest, merge_pages, read_page_request
from sluicegate.admin.peers import TAKES_BODY, NoAnswer, Peer, Up, look_at_peer, request
from sluicegate.admin.response import AdminResponse, EventStreamResponse, error_response, json_response, read_body
from sluicegate.admin.routes import API, MAX_QUERY, route_of
from sluicegate.http.hosts import ADMIN_PORT, HostOriginPolicy, ServedNames
from sluicegate.metrics.merged import Merged
from sluicegate.protocol.jsonrpc import Json, Malformed, decode

_DONE: Final = 200
_UNKNOWN: Final = 404
_LOOK_EVERY: Final = 1.0
_CIRCUITS: Final = ("closed", "half-open", "open")
MAX_BEHIND: Final = 1_000
_ID: Final = re.compile(rb"\nid: ([^\n]*)\n")


class Gateway:
    """`down` says which workers are not up, and why Sluice as a whole is not ready; `owner_of` gives the number of
    the worker that a principal belongs to. `server_changed` learns what an operator did with which server. `notes`
    are for those who may know the status: they can quote the config."""

    def __init__(
        self, up: Up, down: Callable[[], list[str]], owner_of: Callable[[str], int], names: ServedNames,
        server_changed: Callable[[str, str], None] = lambda server, action: None,
        notes: Callable[[], list[str]] = list,
    ) -> None:  # fmt: skip
        self._up, self._down, self._owner_of = up, down, owner_of
        self._server_changed, self._notes = server_changed, notes
        self._policy = HostOriginPolicy(names, ADMIN_PORT)
        self._merged, self._merging = Merged(), anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await (await self._answer(scope, receive))(scope, receive, send)
        except ClientDisconnect:
            return

    async def _answer(self, scope: Scope, receive: Receive) -> AdminResponse | EventStreamResponse:
        path, is_look = scope["path"], scope["method"] in ("GET", "HEAD")
        refused = self._policy.check(scope["headers"], scope.get("server"), path)
        if refused is not None:
            return error_response(refused.status, refused.text)
        if path == "/livez" and is_look:
            return json_response(200, {"status": "ok"})
        if len(scope.get("query_string", b"")) > MAX_QUERY:  # it is read here before a worker knows whose it is
            return error_response(400, "the query is too long")
        peers = self._up()
        if not peers:
            return AdminResponse(503, b"", "text/plain") if path == "/readyz" else _nobody()
        if scope["method"] == "POST":  # no other method has one, and what the head refuses is not read
            judged = await peers[0].ask(scope, None)
            if judged is None or judged.status_code != TAKES_BODY:
                return judged or _nobody()
            if (body := await read_body(Request(scope, receive))) is None:
                return error_response(413, "the body is too large")
            return await self._by_route(scope, body, peers)
        return await self._by_route(scope, b"", peers)

    async def _by_route(self, scope: Scope, body: bytes, peers: Sequence[Peer]) -> AdminResponse | EventStreamResponse:
        """As the row of the table says. What there is not, and methods that are not served, any worker refuses."""
        route = route_of(scope["method"], scope["path"])
        match route.workers if route is not None else "first":
            case "holder":
                return await self._holder(scope, body, peers)
            case "named":
                return await self._of_client(scope, peers, body)
            case "caller":
                return await self._of_caller(scope, peers, body)
            case "stream":
                return await self._events(scope, body, peers)
            case "every" if scope["path"] == API + "pins":
                return await self._accept(scope, body, peers)
            case "every":
                return await self._change_server(scope, body, peers)
            case "joined" if route is not None:
                return await self._join(route.operation, scope, peers)
        return await self._first(scope, body, peers)

    async def _join(self, operation: str, scope: Scope, peers: Sequence[Peer]) -> AdminResponse:
        match operation:
            case "metrics":
                return await self._metrics(scope, peers)
            case "ready":
                return await self._ready(scope, peers)
            case "show_audit_head":
                return _heads(await _all(scope, peers, goes_on=(_UNKNOWN,)))
        answers, silent = _heard(await _all(scope, peers))
        if not answers or (refusal := next((one for one in answers if one.status_code != _DONE), None)):
            return refusal if answers and refusal else _nobody(*silent)
        parts = [json.loads(answer.body) for answer in answers]
        match operation:
            case "show_status":
                whole = _status(parts, [*self._down(), *silent], self._notes())
            case "list_servers":
                whole = {"servers": _servers([row for part in parts for row in part["servers"]])}
            case "show_server":
                whole = _server(parts)
            case "show_output":  # every worker has processes of its own: lines of one worker after the other
                whole = _server(parts) | {"position": ",".join(part["position"] for part in parts)}
            case _:
                whole = await _page(scope, parts, operation.removeprefix("list_"))
        if (missing := [*self._down(), *silent]) and operation != "show_status":
            whole["incomplete"] = missing  # what their workers have is not in it
        return json_response(_DONE, whole)

    async def _first(self, scope: Scope, body: bytes, peers: Sequence[Peer]) -> AdminResponse:
        """The first that answers. What one may yet do, nobody else is asked to do as well."""
        answer = None
        for peer in peers:
            answer = await peer.ask(scope, body) or answer
            if answer is not None and not (isinstance(answer, NoAnswer) and scope["method"] in ("GET", "HEAD")):
                return answer
        return answer or _nobody()

    async def _holder(self, scope: Scope, body: bytes, peers: Sequence[Peer]) -> AdminResponse:
        """The first answer that is no "not found". While a worker is down or does not answer, it may have it."""
        last, silent = None, []
        for peer in peers:
            answer = await peer.ask(scope, body)
            if isinstance(answer, NoAnswer):
                silent.append(answer.why)
            elif answer is not None and answer.status_code != _UNKNOWN:
                return answer
            last = answer or last
        missing = [*self._down(), *silent]
        return last if last is not None and not missing else _nobody(*(missing if last is not None else ()))

    async def _of_client(self, scope: Scope, peers: Sequence[Peer], body: bytes = b"") -> AdminResponse:
        """As a client sees them: by the connections that its own worker has for it."""
        who = _client_of(body) or parse_qs(scope.get("query_string", b"").decode("latin-1")).get("as", ["local"])[0]
        return await self._by_owner(who, scope, peers, body)

    async def _of_caller(self, scope: Scope, peers: Sequence[Peer], body: bytes) -> AdminResponse:
        """A call of whoever asks, and so one of their own worker."""
        me = await peers[0].ask(scope, b"", "GET", API + "me") or _nobody()
        if me.status_code != _DONE:
            return me
        return await self._by_owner(json.loads(me.body)["principal"], scope, peers, body)

    async def _by_owner(self, who: str, scope: Scope, peers: Sequence[Peer], body: bytes) -> AdminResponse:
        principal = who if ":" in who or who in ("local", "anonymous") else f"key:{who}"
        owner = next((peer for peer in peers if peer.number == self._owner_of(principal)), None)
        return _nobody() if owner is None else await owner.ask(scope, body) or _nobody()

    async def _accept(self, scope: Scope, body: bytes, peers: Sequence[Peer]) -> AdminResponse:
        """One takes the definitions in, and all look at once."""
        answer = await self._first(scope, body, peers)
        if answer.status_code == _DONE:
            async with anyio.create_task_group() as group:
                for peer in peers:
                    group.start_soon(look_at_peer, peer)
        return answer

    async def _change_server(self, scope: Scope, body: bytes, peers: Sequence[Peer]) -> AdminResponse:
        """Every worker does it, once the first one has: a worker that starts later begins so."""
        _, key, action = scope["path"].removeprefix(API).split("/")
        answer = await peers[0].ask(scope, body) or _nobody()
        if answer.status_code != _DONE:
            return answer
        self._server_changed(key, action)
        others = [peer for peer in self._up() if peer != peers[0]]  # also one that came up meanwhile
        heard, silent = _heard([answer, *(await _ask_all(scope, others, body, "POST")).values()])
        if failed := next((one for one in heard if one.status_code != _DONE), None):
            return failed
        if silent:
            why = ", and ".join(silent)
            return error_response(503, f"{why}: whether it is done there is not known; the other workers have done it")
        bodies = [json.loads(one.body) for one in heard]
        return json_response(_DONE, {**bodies[0], "open_calls": sum(one["open_calls"] for one in bodies)})

    async def _ready(self, scope: Scope, peers: Sequence[Peer]) -> AdminResponse:
        answers, silent = _heard(await _all(scope, peers, goes_on=(503,)))
        missing = [*self._down(), *silent]
        if len(answers) == 1 and answers[0].status_code not in (200, 503):
            return answers[0]
        is_ready = not missing and bool(answers) and all(answer.status_code == _DONE for answer in answers)
        status, word = (200, "ready") if is_ready else (503, "not ready")
        bodies = [json.loads(answer.body) for answer in answers if answer.body]
        if not bodies:  # who asks is told no reasons
            return AdminResponse(status, b"", "text/plain")
        reasons = [*missing, *(reason for one in bodies for reason in one["reasons"])]
        workers_notes = (note for one in bodies for note in one.get("notes", ()))
        notes = list(dict.fromkeys((*self._notes(), *workers_notes)))
        summary = {"status": word, "reasons": list(dict.fromkeys(reasons)), **({"notes": notes} if notes else {})}
        return json_response(status, summary)

    async def _metrics(self, scope: Scope, peers: Sequence[Peer]) -> AdminResponse:
        async with self._merging:
            answers = await _ask_all(scope, peers)
            heard, silent = _heard(answers.values())
            first = next(iter(heard), None)
            if first is None or first.status_code != _DONE:
                return first or _nobody(*silent)
            texts = {peer.mark: one.body.decode() for peer, one in answers.items() if one in heard}
            there = {peer.mark for peer in self._up()}
            text, kind = await anyio.to_thread.run_sync(_merge, self._merged, texts, there)
        return AdminResponse(_DONE, text, kind)

    async def _events(self, scope: Scope, body: bytes, peers: Sequence[Peer]) -> AdminResponse | EventStreamResponse:
        """What happens at each, as one stream. It ends when one of them does, or another comes: in the beginning of
        the next one everything is found again."""
        marks = [peer.mark for peer in peers]
        streams = AsyncExitStack()
        try:
            opened = []
            for peer in peers:
                client = await streams.enter_async_context(peer.client(is_stream=True))
                with anyio.fail_after(peer.patience):
                    response = await client.send(request(client, scope, body), stream=True)
                streams.push_async_callback(response.aclose)
                if response.status_code != _DONE:
                    await streams.aclose()
                    return await peer.ask(scope, body) or _nobody()
                opened.append(response)
        except httpx.TransportError:
            await streams.aclose()
            return _nobody()
        except TimeoutError:
            await streams.aclose()
            return NoAnswer(peer.number)
        except BaseException:  # cancelled as well: the streams that are open already belong to nobody else
            await streams.aclose()
            raise
        return EventStreamResponse(self._parts(streams, opened, lambda: [peer.mark for peer in self._up()] == marks))

    async def _parts(
        self, streams: AsyncExitStack, opened: Iterable[httpx.Response], is_same: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        queue = asyncio.Queue[bytes](MAX_BEHIND)
        ids: dict[int, bytes] = {}
        readers = [asyncio.create_task(_read(each, queue, ids, at)) for at, each in enumerate(opened)]
        try:
            while is_same() and not (queue.empty() and any(reader.done() for reader in readers)):
                part = b""
                with anyio.move_on_after(_LOOK_EVERY):
                    part = await queue.get()
                if part:
                    yield part
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            with anyio.CancelScope(shield=True):
                await streams.aclose()


def _client_of(body: bytes) -> str:
    """The client that a body names as `as`; nothing where a worker is going to refuse the body."""
    try:
        value = decode(body) if body else None
    except Malformed:
        return ""
    return value["as"] if isinstance(value, dict) and isinstance(value.get("as"), str) else ""


async def _read(response: httpx.Response, queue: asyncio.Queue[bytes], ids: dict[int, bytes], at: int) -> None:
    """Event by event: those of several streams must not be mixed. An event's id has the newest of each stream: it is
    sent to all of them when the reader comes back."""

    def of_all(own: re.Match[bytes]) -> bytes:
        ids[at] = own[1]
        return b"\nid: " + b"+".join(ids.values()) + b"\n"

    waiting = b""
    try:
        async for data in response.aiter_raw():
            *events, waiting = (waiting + data).split(b"\n\n")
            for event in events:
                await queue.put(_ID.sub(of_all, event) + b"\n\n")
    except httpx.TransportError:
        return


def _nobody(*why: str) -> AdminResponse:
    return error_response(503, "; ".join(why) or "no worker is up: they are being started anew", {"retry-after": "1"})


def _merge(merged: Merged, texts: Mapping[Any, str], there: set[Any]) -> tuple[bytes, str]:
    for mark in merged.workers - there:
        merged.end(mark)
    for mark, text in texts.items():
        merged.take(mark, text)
    return merged.render()


def _heard(answers: Iterable[AdminResponse | None]) -> tuple[list[AdminResponse], list[str]]:
    """The answers, and which workers gave none in time."""
    given = [one for one in answers if one is not None]
    silent = [one.why for one in given if isinstance(one, NoAnswer)]
    return [one for one in given if not isinstance(one, NoAnswer)], silent


async def _ask_all(
    scope: Scope, peers: Sequence[Peer], body: bytes = b"", method: str = "GET"
) -> dict[Peer, AdminResponse | None]:
    found: dict[Peer, AdminResponse | None] = dict.fromkeys(peers)

    async def one(peer: Peer) -> None:
        found[peer] = await peer.ask(scope, body, method)

    async with anyio.create_task_group() as group:
        for peer in found:
            group.start_soon(one, peer)
    return found


async def _all(scope: Scope, peers: Sequence[Peer], goes_on: tuple[int, ...] = ()) -> list[AdminResponse | None]:
    """The first is asked alone: a credential that is refused is refused, and written down, once."""
    first, *others = peers
    answer = await first.ask(scope, b"", "GET")
    heard, _ = _heard([answer])
    if any(one.status_code != _DONE and one.status_code not in goes_on for one in heard):
        return [answer]
    return [answer, *(await _ask_all(scope, others)).values()]


async def _page(scope: Scope, parts: list[Json], name: str) -> Json:
    asked = read_page_request(parse_qs(scope.get("query_string", b"").decode("latin-1"))) or PageRequest()
    page = await merge_pages([{**one, "rows": one[name]} for one in parts], asked)
    return {name: page.pop("rows"), **page}


def _status(parts: list[Json], down: Sequence[str], notes: Sequence[str]) -> Json:
    """That of all: ready if each is, and of what each has signed what is oldest."""
    whole: Json = dict(parts[0])
    for name in ("reasons", "notes"):
        whole[name] = list(dict.fromkeys(text for one in parts for text in one[name]))
    whole["reasons"] += down
    whole["notes"] += notes
    whole["status"] = "not ready" if whole["reasons"] else "ready"
    if all("counted" in one for one in parts):
        whole["counted"] = {name: sum(one["counted"][name] for one in parts) for name in parts[0]["counted"]}
    if all("audit" in one for one in parts):
        signed = [one["audit"]["signed"] for one in parts]
        oldest = min((one for one in signed if one is not None), key=lambda one: one["time"]) if all(signed) else None
        problem = next((one["audit"]["problem"] for one in parts if one["audit"]["problem"]), "")
        whole["audit"] = {"problem": problem, "signed": oldest}
    return whole


def _heads(answers: list[AdminResponse | None]) -> AdminResponse:
    """Every worker has a log of its own: one checkpoint a line, as `audit verify --checkpoint` takes them."""
    there, silent = _heard(answers)
    found = [answer.body for answer in there if answer.status_code == _DONE]
    if not found:
        return there[0] if there else _nobody(*silent)
    return AdminResponse(_DONE, b"".join(found))


def _servers(rows: list[Json]) -> list[Json]:
    """A row for each server: numbers added up, and of states the one that somebody should know."""
    found: dict[str, list[Json]] = {}
    for row in rows:
        found.setdefault(row["key"], []).append(row)
    return [_server(parts) for parts in found.values()]


def _server(parts: list[Json]) -> Json:
    """Workers take a change into use one after the other, so that a row may have more at one of them."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _merged_value(name, [part[name] for part in parts if name in part]) for name in names}


def _merged_value(name: str, values: list[Any]) -> Any:
    if name == "circuit":
        return max(values, key=_CIRCUITS.index)
    if name == "status":
        return next((value for value in values if value != "up"), "up")
    if name == "timeline":
        return sorted((step for value in values for step in value), key=lambda step: str(step["at"]))
    if isinstance(values[0], list):
        merged = [item for value in values for item in value]
        return merged if name in ("pids", "stderr", "lines") else sorted(set(merged))
    if isinstance(values[0], int) and name != "required":
        return sum(values)
    return next((value for value in values if value), values[0])
