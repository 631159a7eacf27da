"""Whole conversations with a Sluice in this process, and a small model that says what has to come of each step.

Three clients with different rights speak both eras at once with two scripted servers, one of each era, which answer,
err, stay silent and go away. A step is a list of plain values, so that a conversation can be kept as JSON. At the
end the audit log is read: what reached a server was recorded before, and each intent has one outcome.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from downstream.scripted_servers import Asked, endpoint, event, legacy_start, modern_start
from e2e.wire import META, MODERN
from listen.listen_harness import ACCEPT, messages
from policy_bed import bearer, client_keys, encoded

from sluicegate import config
from sluicegate.app.serve import running

Json = dict[str, Any]
SERVERS = ("old", "new")
WHO = {"ann": ["role:all"], "bob": ["role:some"], "eve": []}
ROWS = "p, role:all, *, *, *, allow\np, role:some, old, *, read, allow\np, *, *, tool:secret, *, deny\n"
CLASSES = {"echo": "read", "fail": "read", "error": "read", "hang": "read", "tell": "read", "junk": "write",
           "leave": "write", "secret": "read"}  # fmt: skip
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MAX_WAITING = 4
DONE = {"resultType": "complete"}
UNKNOWN, UNAVAILABLE = "outcome_unknown", "server_unavailable"


def may(who: str, server: str, tool: str) -> bool:
    """What the policy says, said again."""
    if tool not in CLASSES or tool == "secret":
        return False
    return who == "ann" or (who == "bob" and server == "old" and CLASSES[tool] == "read")


class FuzzPeer:
    """A server that does what a tool's name says. `seen` counts the words of the calls that reached it, `unrecorded`
    are those whose intent was not on disk by then, and `waiting` those without an answer yet."""

    def __init__(self, key: str, audit: Path) -> None:
        self.key, self._audit = key, audit
        self.seen = Counter[str]()
        self.unrecorded: list[str] = []
        self.waiting: dict[str, Asked] = {}
        self.is_gone = self.was_gone = False

    async def __call__(self, asked: Asked) -> None:
        if self.is_gone:
            asked.writer.close()
        elif await (legacy_start if self.key == "old" else modern_start)(asked):
            return
        elif asked.rpc == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in CLASSES]
            await asked.result({"tools": tools, **DONE})
        elif asked.rpc == "tools/call":
            await self._call(asked, asked.message["params"]["name"], asked.message["params"]["arguments"]["word"])
        else:
            await asked.error(-32601, 200 if self.key == "old" else 404)

    async def _call(self, asked: Asked, tool: str, word: str) -> None:
        self.seen[word] += 1
        if not any('"intent"' in line and f'"{word}"' in line for line in self._audit.read_text().splitlines()):
            self.unrecorded.append(word)
        match tool:
            case "fail":
                await asked.result({**self._said(word), "isError": True})
            case "error":
                await asked.error(-32000)
            case "junk":
                await asked.reply(b"<html>", kind="text/html")
            case "leave":
                asked.writer.close()
            case "hang" | "tell":
                self.waiting[word] = asked
                if tool == "tell":
                    token = asked.message["params"]["_meta"]["progressToken"]
                    note = {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
                    await asked.stream(event(note), end=False)
            case _:
                await asked.result(self._said(word))

    def _said(self, word: str) -> Json:
        return {"content": [{"type": "text", "text": f"{self.key} {word}"}], **DONE}

    async def answer(self, word: str, is_stream: bool) -> None:
        asked = self.waiting.pop(word)
        if is_stream:
            await asked.more(event({"id": asked.message["id"], "result": self._said(word)}))
            asked.writer.close()
        else:
            await asked.result(self._said(word))


@dataclass
class LegacyClient:
    """A session, as its client knows it."""

    who: str
    revision: str
    id: str
    is_over: bool = False

    @property
    def headers(self) -> dict[str, str]:
        return {"mcp-session-id": self.id, "mcp-protocol-version": self.revision}


@dataclass
class WaitingCall:
    """A call that its server has not answered. `told` are the messages that its client got for it."""

    who: str
    session: LegacyClient | None
    server: str
    tool: str
    word: str
    id: int
    told: list[Json] = field(default_factory=list)
    last_event: str = ""
    task: "asyncio.Task[None] | None" = None

    @property
    def answers(self) -> list[Json]:
        return [one for one in self.told if "id" in one]


class Conversation:
    """`do` takes a step; `finish` ends all that is open and reads the audit log."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.audit = folder, folder / "audit" / "sluice.jsonl"
        self.peers = {key: FuzzPeer(key, self.audit) for key in SERVERS}
        self.sessions: list[LegacyClient] = []
        self.waiting: list[WaitingCall] = []
        self.expected: dict[str, set[str]] = {}
        """The outcomes that the audit log may have of a call that may reach its server, by its word."""
        self._numbers = count(1)
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        ready = self._loop.create_future()
        self._life = self._loop.create_task(self._live(ready))
        self._run(asyncio.wait({ready, self._life}, return_when="FIRST_COMPLETED"))
        if self._life.done():
            self._life.result()

    async def _live(self, ready: "asyncio.Future[None]") -> None:
        (self._folder / "policy.csv").write_text(ROWS)
        async with (
            endpoint(self.peers["old"]) as (old, _), endpoint(self.peers["new"]) as (new, _),
            httpx.AsyncClient(timeout=30, trust_env=False, headers={"accept": ACCEPT}) as self._http,
        ):  # fmt: skip
            servers = {
                key: {"url": url, "era": era, "tools": {"classes": CLASSES}}
                for key, url, era in (("old", old, "legacy"), ("new", new, "modern"))
            }
            made = config.make({
                "servers": servers, "policy": {"files": ["policy.csv"]}, "state": {"dir": "state"}, "drain": "1s",
                "clients": {"keys": client_keys(**WHO)}, "listen": {"mcp": "127.0.0.1:0", "admin": "127.0.0.1:0"},
            }, self._folder)  # fmt: skip
            async with running(made) as sluice:
                self._url = sluice.endpoint
                await sluice.core.ready()
                ready.set_result(None)
                await self._end.wait()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, 60))

    def do(self, step: list[Any]) -> None:
        name, *values = step
        self._run(getattr(self, f"step_{name}")(*values))
        assert not any(peer.unrecorded for peer in self.peers.values()), "a server got what was not recorded"

    def finish(self) -> None:
        try:
            for call in self.waiting[::-1]:
                self._run(self._let_go(call))
        finally:
            self._loop.call_soon_threadsafe(self._end.set)
            self._run(self._life)
            self._loop.close()
        self._check_audit()

    # ------------------------------------------------------------ what clients send

    async def _post(self, who: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        every = {"content-type": "application/json", **bearer(who), **headers}
        return await self._http.post(self._url, content=content, headers=every)

    def _message(self, session: LegacyClient | None, method: str, params: Json) -> tuple[Json, dict[str, str]]:
        """A request of either era, with its headers."""
        body = {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}
        if session is not None:
            return body, session.headers
        params["_meta"] = {**META, **params.get("_meta", {})}
        name = {"mcp-name": encoded(params["name"])} if "name" in params else {}
        return body, {"mcp-protocol-version": MODERN, "mcp-method": method, **name}

    def _session(self, which: int) -> LegacyClient | None:
        open_ones = [one for one in self.sessions if not one.is_over]
        return open_ones[which % len(open_ones)] if open_ones else None

    def _speaker(self, who: str, which: int) -> tuple[str, LegacyClient | None]:
        """One of the sessions, or `who` without one; a negative number is none."""
        session = self._session(which) if which >= 0 else None
        return (session.who, session) if session else (who, None)

    # ------------------------------------------------------------ sessions

    async def step_open(self, who: str, revision: str, is_whole: bool) -> None:
        hello = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}}
        answer = await self._post(who, self._message(LegacyClient(who, revision, ""), "initialize", hello)[0], {})
        assert answer.status_code == 200, answer.text
        told = answer.json()["result"]["protocolVersion"]
        assert told == (revision if revision in REVISIONS else REVISIONS[-1]), told
        session = LegacyClient(who, told, answer.headers["mcp-session-id"])
        assert session.id not in [one.id for one in self.sessions]
        self.sessions.append(session)
        if is_whole:
            done = await self._post(who, {"jsonrpc": "2.0", "method": "notifications/initialized"}, session.headers)
            assert (done.status_code, done.content) == (202, b"")

    async def step_ping(self, which: int) -> None:
        session = self._session(which)
        if session is not None:
            body, headers = self._message(session, "ping", {})
            answer = await self._post(session.who, body, headers)
            assert (answer.status_code, answer.json()) == (200, {"jsonrpc": "2.0", "id": body["id"], "result": {}})

    async def step_delete(self, which: int) -> None:
        """What is open in a session ends with it, without an answer."""
        session = self._session(which)
        if session is None:
            return
        ended = await self._http.delete(self._url, headers={**bearer(session.who), **session.headers})
        assert ended.status_code == 200, ended.text
        session.is_over = True
        for call in [one for one in self.waiting if one.session is session]:
            await self._ended_unanswered(call)

    async def step_stale(self, which: int, who: str) -> None:
        """A session that is over, or somebody else's, does not exist; nothing of it tells the two apart."""
        others = [one for one in self.sessions if one.is_over or one.who != who]
        if others:
            session = others[which % len(others)]
            body, headers = self._message(session, "tools/list", {})
            posted = await self._post(who, body, headers)
            own = {**bearer(who), **session.headers}
            async with self._http.stream("GET", self._url, headers=own) as got:  # a stream would have no end
                assert got.status_code == posted.status_code == 404
                await got.aread()
            ended = await self._http.delete(self._url, headers=own)
            assert ended.status_code == 404 and posted.content == got.content == ended.content

    # ------------------------------------------------------------ lists and calls

    async def step_list(self, who: str, which: int) -> None:
        """Everybody sees what they may use, and nothing else."""
        who, session = self._speaker(who, which)
        body, headers = self._message(session, "tools/list", {})
        answer = await self._post(who, body, headers)
        assert answer.status_code == 200, answer.text
        (message,) = (one for one in messages_of(answer) if one.get("id") == body["id"])
        names = {tool["name"] for tool in message["result"]["tools"]}
        wanted = {f"{key}__{tool}" for key in SERVERS for tool in CLASSES if may(who, key, tool)}
        assert names <= wanted, names - wanted
        assert names == wanted or any(peer.was_gone for peer in self.peers.values()), wanted - names

    async def step_call(self, who: str, which: int, server: str, tool: str) -> None:
        who, session = self._speaker(who, which)
        word = f"w{next(self._numbers)}"
        body, headers = self._message(session, "tools/call", self._params(server, tool, word))
        answer = await self._post(who, body, headers)
        assert answer.status_code == 200, answer.text
        (message,) = (one for one in messages_of(answer) if one.get("id") == body["id"])
        self._judge(who, server, tool, word, message)

    def _params(self, server: str, tool: str, word: str) -> Json:
        return {"name": f"{server}__{tool}", "arguments": {"word": word}, "_meta": {"progressToken": word}}

    def _judge(self, who: str, server: str, tool: str, word: str, message: Json) -> None:
        """The answer is the one that the model has, and says the truth about whether anything was executed."""
        peer = self.peers[server]
        if not may(who, server, tool):
            assert message["error"]["code"] == -32602 and "Unknown tool" in message["error"]["message"], message
            assert not peer.seen[word]
            return
        result = message.get("result", {})
        why = result.get("_meta", {}).get("dev.sluice/reason")
        if why == UNAVAILABLE and peer.was_gone:
            assert not peer.seen[word], "executed, and said not to be"
            self.expected[word] = {"tool_error"}
        elif tool in ("junk", "leave") or (why == UNKNOWN and peer.was_gone):
            assert why == UNKNOWN, message
            self.expected[word] = {"unknown"}
        elif tool == "error":
            assert message["error"]["code"] == -32000, message
            self.expected[word] = {"protocol_error"}
        else:
            assert result["content"][0]["text"] == f"{server} {word}" and why is None, message
            assert result.get("isError", False) is (tool == "fail"), message
            self.expected[word] = {"tool_error" if tool == "fail" else "ok"}
        assert peer.seen[word] <= 1, "executed twice"

    # ------------------------------------------------------------ calls that wait

    async def step_hang(self, who: str, which: int, server: str, tool: str) -> None:
        """A call that its server does not answer yet; `tell` says that it goes on, which makes a stream of it."""
        who, session = self._speaker(who, which)
        if not may(who, server, tool):
            await self.step_call(who, which, server, tool)
        elif len(self.waiting) < MAX_WAITING and not self.peers[server].was_gone:
            word = f"w{next(self._numbers)}"
            body, headers = self._message(session, "tools/call", self._params(server, tool, word))
            call = WaitingCall(who, session, server, tool, word, body["id"])
            request = self._http.build_request("POST", self._url, json=body, headers={**bearer(who), **headers})
            call.task = self._loop.create_task(self._follow(call, request))
            self.waiting.append(call)
            await self._until(call, lambda: word in self.peers[server].waiting and (tool == "hang" or call.told))

    async def _follow(self, call: WaitingCall, request: httpx.Request) -> None:
        """Reads what the client is told, until that ends."""
        answer = await self._http.send(request, stream=True)
        try:
            assert answer.status_code == 200, await answer.aread()
            if answer.headers["content-type"].startswith("application/json"):
                call.told.append(json.loads(await answer.aread()))
                return
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    call.last_event = line[4:]
                if line.startswith("data: ") and line[6:]:
                    call.told.append(json.loads(line[6:]))
        finally:
            await answer.aclose()

    async def _until(self, call: WaitingCall, holds: Any) -> None:
        while not holds():
            assert call.task is None or not call.task.done() or call.task.result(), call.told
            await asyncio.sleep(0.001)

    def _waiting(self, which: int) -> WaitingCall | None:
        return self.waiting[which % len(self.waiting)] if self.waiting else None

    async def step_answer(self, which: int) -> None:
        call = self._waiting(which)
        if call is not None:
            await self._let_go(call)

    async def _let_go(self, call: WaitingCall) -> None:
        """The server answers. Its client gets that, once, if it still listens."""
        self.waiting.remove(call)
        await self.peers[call.server].answer(call.word, call.tool == "tell")
        self.expected[call.word] = {"ok"} if call.task is not None else {"ok", "cancelled"}  # its session may end first
        if call.task is not None:
            await call.task
            (answer,) = call.answers
            assert answer["id"] == call.id
            self._judge(call.who, call.server, call.tool, call.word, answer)

    async def step_cancel(self, which: int) -> None:
        """A legacy client says so. Nothing more is heard of the call."""
        calls = [one for one in self.waiting if one.session is not None]
        if not calls:
            return
        call = calls[which % len(calls)]
        assert call.session is not None
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call.id}}
        answer = await self._post(call.who, note, call.session.headers)
        assert answer.status_code == 202, answer.text
        await self._ended_unanswered(call)

    async def _ended_unanswered(self, call: WaitingCall) -> None:
        self.waiting.remove(call)
        self.peers[call.server].waiting.pop(call.word).writer.close()
        self.expected[call.word] = {"cancelled"}
        if call.task is not None:
            await call.task
        assert not call.answers, call.told

    async def step_drop(self, which: int) -> None:
        """The connection breaks: that cancels a modern client's call, and no legacy client's."""
        call = self._waiting(which)
        if call is None or call.task is None:
            return
        task, call.task = call.task, None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if call.session is None:
            await self._ended_unanswered(call)

    async def step_resume(self, which: int) -> None:
        """A broken stream goes on where it was, from revision 2025-03-26 on."""
        lost = [one for one in self.waiting if one.task is None and one.tool == "tell" and one.last_event]
        if lost:
            call = lost[which % len(lost)]
            assert call.session is not None
            headers = {**bearer(call.who), **call.session.headers, "last-event-id": call.last_event}
            request = self._http.build_request("GET", self._url, headers=headers)
            call.task = self._loop.create_task(self._follow(call, request))
            await asyncio.sleep(0)

    # ------------------------------------------------------------ servers that go away, and clients that are hostile

    async def step_gone(self, server: str) -> None:
        peer = self.peers[server]
        if not any(call.server == server for call in self.waiting):
            peer.is_gone = peer.was_gone = True

    async def step_back(self, server: str) -> None:
        self.peers[server].is_gone = False

    async def step_odd(self, who: str, which: int) -> None:
        """What no honest client sends is refused, and goes nowhere."""
        label, method, headers, body, statuses = ODD[which % len(ODD)]
        every = {"content-type": "application/json", **bearer(who), **headers}
        sent = {name: value for name, value in every.items() if value}
        url = self._url + ("/nothing" if label == "path" else "")
        answer = await self._http.request(method, url, content=body, headers=sent)
        assert answer.status_code in statuses, (label, answer.status_code, answer.text)

    # ------------------------------------------------------------ the end

    def _check_audit(self) -> None:
        records = [json.loads(line) for line in self.audit.read_text().splitlines()]
        outcomes: dict[str, list[Json]] = {}
        for record in records:
            if record["type"] == "outcome":
                outcomes.setdefault(record["call"], []).append(record)
        assert all(len(found) == 1 for found in outcomes.values()), "a call ended twice"
        recorded = Counter[str]()
        for record in records:
            if record["type"] == "intent" and record["method"] == "tools/call":
                word = record["arguments"]["word"]
                recorded[word] += 1
                (outcome,) = outcomes[record["call"]]
                assert outcome["outcome"] in self.expected[word], (word, outcome, self.expected[word])
                assert outcome["principal"] == record["principal"]
        for peer in self.peers.values():
            for word, number in peer.seen.items():
                assert number == 1 and recorded[word] == 1 and word in self.expected, (word, number)


def messages_of(answer: httpx.Response) -> list[Json]:
    if answer.headers["content-type"].startswith("application/json"):
        return [answer.json()]
    return messages(answer.text)


def _body(method: str, name: str = "", **more: Any) -> bytes:
    named = {"name": name, "arguments": {"word": "odd"}} if name else {}
    params = {**named, "_meta": META}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **more}).encode()


def _modern(method: str, name: str = "") -> dict[str, str]:
    return {"mcp-protocol-version": MODERN, "mcp-method": method, "mcp-name": name}


_PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
# label, HTTP method, headers ("" leaves one out), body, and the statuses of which one is right
ODD: list[tuple[str, str, dict[str, str], bytes, set[int]]] = [
    ("no JSON", "POST", {}, b"{", {400}),
    ("no credential", "POST", {"Authorization": ""}, _PING, {401}),
    ("a wrong credential", "POST", {"Authorization": "Bearer nobody"}, _PING, {401}),
    ("a key twice", "POST", {}, b'{"jsonrpc":"2.0","id":1,"id":1,"method":"ping"}', {400}),
    ("too deep", "POST", {}, b"[" * 100 + b"]" * 100, {400}),
    ("an infinity", "POST", {}, b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"n":1e999}}', {400}),
    ("text", "POST", {"content-type": "text/plain"}, _PING, {415}),
    ("compressed", "POST", {"content-encoding": "gzip"}, _PING, {415}),
    ("takes no stream", "POST", {"accept": "application/json"}, _PING, {406}),
    ("of a web page", "POST", {"origin": "https://evil.test"}, _PING, {403}),
    ("rebound", "POST", {"host": "evil.test"}, _PING, {403, 421}),
    ("no session", "POST", {}, _PING, {400}),
    ("an unknown session", "POST", {"mcp-session-id": "x"}, _PING, {404}),
    ("an unknown revision", "POST", {"mcp-protocol-version": "2099-01-01"}, _PING, {400}),
    ("an array", "POST", {}, b"[" + _PING + b"]", {400}),
    ("put", "PUT", {}, b"", {405}),
    ("path", "POST", {}, _PING, {404}),
    ("a modern stream", "GET", {"mcp-protocol-version": MODERN}, b"", {405}),
    ("a modern answer", "POST", _modern("ping"), b'{"jsonrpc":"2.0","id":1,"result":{}}', {400}),
    ("another name", "POST", _modern("tools/call", "new__fail"), _body("tools/call", "new__echo"), {400}),
    ("another method", "POST", _modern("tools/list"), _body("tools/call", "new__echo"), {400}),
    ("no envelope", "POST", _modern("tools/call", "new__echo"), _body("tools/call", "new__echo", params={}), {400}),
    ("a method of nobody", "POST", _modern("tools/burn"), _body("tools/burn"), {404}),
    ("a modern initialize", "POST", _modern("initialize"), _body("initialize"), {404}),
]
