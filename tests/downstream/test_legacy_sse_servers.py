"""Servers of the 2024 transport: found out, spoken to, and what becomes of calls when they break or lie."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import httpx
import pytest
from scripted_servers import LEGACY, MODERN, Account, Asked, Rig, endpoint, event, running, until

from sluicegate.downstream.transport import sse_transport
from sluicegate.downstream.transport.http_base import on_origin
from sluicegate.http.sse import EventParser, StreamPosition
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Client, InputRequired, Result

TEXT: Json = {"content": [{"type": "text", "text": '"done"'}]}
WHERE = "/messages/?session_id="


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@dataclass
class Older:
    """A server as they were in 2024. `act` does what a tool call is for, and gives its result; `begin` is what a
    stream begins with, given the path to POST to."""

    begin: Callable[[str], str] = "event: endpoint\ndata: {}".format
    where: str = WHERE
    accepts: int = 202
    refuses: tuple[int, Any] = (405, None)
    streams: list[Asked] = field(default_factory=list)
    told: list[Json] = field(default_factory=list)
    act: Callable[["Older", Asked], Awaitable[Json | None]] | None = None

    async def __call__(self, asked: Asked) -> None:
        path = asked.path.partition("?")[0]
        if path == "/mcp":
            await asked.reply(status=307, Location="/mcp/")
        elif path == "/mcp/" and asked.method == "GET":
            self.streams.append(asked)
            await asked.stream(self.begin(f"{self.where}{len(self.streams)}"), end=False)
            await asked.gone()
        elif path == "/mcp/":
            await asked.reply(self.refuses[1], self.refuses[0])
        elif not asked.path.endswith(f"={len(self.streams)}"):
            await asked.reply({"detail": "no such session"}, 404)
        else:
            await asked.reply(b"Accepted", self.accepts)
            await self._serve(asked)

    async def _serve(self, asked: Asked) -> None:
        self.told.append(asked.message)
        if asked.rpc == "initialize":
            hello = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": {}}
            await self.say({"id": asked.message["id"], "result": hello})
        elif asked.rpc == "tools/call":
            result = TEXT if self.act is None else await self.act(self, asked)
            if result is not None:
                await self.say({"id": asked.message["id"], "result": result})
        elif asked.rpc and "id" in asked.message:
            await self.say({"id": asked.message["id"], "result": {"tools": []}})

    async def say(self, message: Json) -> None:
        await self.streams[-1].more("event: message\n" + event(message))

    def heard(self, method: str) -> list[Json]:
        return [message for message in self.told if message.get("method") == method]


@asynccontextmanager
async def older(server: Older, **settings: Any) -> AsyncIterator[tuple[Rig, list[Asked]]]:
    async with endpoint(server) as (url, log), running(url=url, **settings) as rig:
        yield rig, log


# ---------------------------------------------------------------- found out


async def test_a_server_that_refuses_posts_is_spoken_to_over_a_stream_and_redirects_are_followed() -> None:
    async with older(Older(), headers={"Authorization": "Bearer configured"}) as (rig, log):
        assert await rig.tool("t") == "done"
        assert await rig.tool("t", client=MODERN) == "done"
        told = rig.server.describe()
        assert (told["transport"], told["eras"], told["revisions"]) == ("sse", ["legacy"], ["2024-11-05"])
        calls = [asked for asked in log if asked.rpc == "tools/call"]
        assert calls[0].path.startswith(WHERE) and calls[0].headers["authorization"] == "Bearer configured"
        get = next(asked for asked in log if asked.method == "GET" and asked.path == "/mcp/")
        assert (get.headers["accept"], get.headers["authorization"]) == ("text/event-stream", "Bearer configured")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, None), (400, None), (404, {"detail": "Not Found"}),
        (405, {"jsonrpc": "2.0", "error": {"code": -32000, "message": "Method not allowed."}, "id": None}),
    ],
)  # fmt: skip
async def test_each_way_in_which_such_a_server_refuses_a_post_is_understood(status: int, body: Any) -> None:
    async with older(Older(refuses=(status, body))) as (rig, _):
        assert await rig.tool("t") == "done"


async def test_a_server_that_is_said_to_be_of_2024_is_never_sent_anything_else() -> None:
    async with older(Older(), transport="sse") as (rig, log):
        assert await rig.tool("t") == "done"
        assert {asked.method for asked in log if asked.path.startswith("/mcp")} == {"GET"}


async def test_a_server_that_is_said_not_to_be_is_not_asked_for_a_stream() -> None:
    async with older(Older(), transport="http") as (rig, log):
        assert rig.server.status == "down"
        assert {asked.method for asked in log} == {"POST"}


@pytest.mark.usefixtures("dialled_soon")
async def test_a_server_that_gives_up_its_older_transport_is_found_out_anew() -> None:
    server = Older()
    async with older(server) as (rig, _):
        assert await rig.tool("t") == "done"

        async def newer(asked: Asked) -> None:
            if asked.method == "GET":
                return await asked.reply(status=405)
            if asked.rpc == "initialize":
                hello = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}}
                return await asked.result(hello)
            await (asked.result(TEXT) if "id" in asked.message else asked.reply(status=202))

        server.__class__ = type("Newer", (Older,), {"__call__": lambda self, asked: newer(asked)})
        server.streams[-1].writer.close()
        await until(lambda: rig.server.describe()["transport"] == "http")
        await until(lambda: rig.server.describe()["connections"])
        assert await rig.tool("t") == "done"


# ---------------------------------------------------------------- spoken to


async def test_a_server_that_accepts_only_when_it_is_done_is_waited_for_on_the_stream() -> None:
    async def act(server: Older, asked: Asked) -> None:
        await server.say({"id": asked.message["id"], "result": TEXT})

    class Late(Older):
        async def __call__(self, asked: Asked) -> None:
            if asked.rpc != "tools/call":
                return await super().__call__(asked)
            await self._serve(asked)
            await asked.gone()  # and never is

    async with older(Late(act=act)) as (rig, _):
        assert await rig.tool("t") == "done"


async def test_progress_comes_on_the_stream_and_a_cancelled_call_is_told() -> None:
    async def act(server: Older, asked: Asked) -> Json | None:
        token = asked.message["params"].get("_meta", {}).get("progressToken")
        await server.say({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
        return None if asked.message["params"]["name"] == "hang" else TEXT

    server = Older(act=act)
    async with older(server) as (rig, _):
        assert await rig.tool("t", progressToken="mine") == "done"
        assert [note.params for note in rig.emitted] == [{"progressToken": "mine", "progress": 1}]
        async with anyio.create_task_group() as group:
            group.start_soon(rig.tool, "hang")
            await until(lambda: len(server.heard("tools/call")) == 2)
            group.cancel_scope.cancel()
        await until(lambda: server.heard("notifications/cancelled"))
        cancelled = server.heard("notifications/cancelled")[0]["params"]["requestId"]
        assert cancelled == server.heard("tools/call")[1]["id"]


async def test_changes_are_heard_and_questions_are_answered() -> None:
    async def act(server: Older, asked: Asked) -> None:
        await server.say({"method": "notifications/tools/list_changed"})
        await server.say({"id": "q", "method": "roots/list"})

    server = Older(act=act)
    client = LEGACY.__class__(LEGACY.principal, revision="2025-11-25", session="s", capabilities={"roots": {}},
                              capability_key='{"roots":{}}')  # fmt: skip
    async with older(server) as (rig, _):
        call = Call(client, "tools/call", {"name": "t"})
        asked = await rig.server(call)
        assert isinstance(asked, InputRequired)
        roots = {"roots": [{"uri": "file:///a"}]}
        again = {"name": "t", "requestState": asked.state, "inputResponses": dict.fromkeys(asked.requests, roots)}

        async def answer() -> None:
            await until(lambda: any(message.get("id") == "q" for message in server.told))
            await server.say({"id": server.heard("tools/call")[0]["id"], "result": TEXT})

        async with anyio.create_task_group() as group:
            group.start_soon(answer)
            outcome = await rig.server(Call(client, "tools/call", again))
        assert isinstance(outcome, Result)
        assert next(message for message in server.told if message.get("id") == "q")["result"] == roots
        assert [note.method for _, _, note in rig.published][-1] == "notifications/tools/list_changed"


# ---------------------------------------------------------------- broken


async def test_a_stream_that_ends_in_a_call_leaves_its_outcome_unknown_and_the_next_call_has_another() -> None:
    async def act(server: Older, asked: Asked) -> Json | None:
        if asked.message["params"]["name"] == "t":
            return TEXT
        server.streams[-1].writer.close()
        return None

    server = Older(act=act)
    async with older(server) as (rig, log):
        assert await rig.reason("cut") == "outcome_unknown"
        assert await rig.tool("t") == "done"
        assert len(server.streams) >= 2
        assert [asked.message["params"]["name"] for asked in log if asked.rpc == "tools/call"].count("cut") == 1


async def test_a_session_that_is_gone_is_begun_again_and_no_call_is_sent_once_more() -> None:
    """No page of 2024-11-05 says that a server which answers 404 has not executed the call."""
    server = Older()
    async with older(server) as (rig, log):
        assert await rig.tool("t") == "done"
        server.streams.append(server.streams[-1])  # from here on the server knows another session
        assert await rig.reason("t") == "outcome_unknown"
        assert len([asked for asked in log if asked.rpc == "tools/call"]) == 2
        assert await rig.tool("t") == "done"
        assert len(server.heard("initialize")) >= 2


@pytest.mark.parametrize(
    "where",
    [
        "http://127.0.0.1:1/messages?session_id=", "https://evil.example/?session_id=", "//evil.example/?session_id=",
        "http://[/?session_id=", "ftp://127.0.0.1/?session_id=", "http://user@{host}/?session_id=",
    ],
)  # fmt: skip
async def test_an_endpoint_on_another_origin_is_refused_and_nothing_is_sent_there(where: str) -> None:
    server = Older(where=where)
    async with endpoint(server) as (url, log):
        server.where = where.replace("{host}", url.removeprefix("http://").removesuffix("/mcp"))
        async with running(url=url, transport="sse", headers={"Authorization": "Bearer secret"}) as rig:
            assert rig.server.status == "down"
            assert "another origin" in rig.server.describe()["last_error"]
        assert {asked.method for asked in log} == {"GET"}


async def test_a_redirect_to_another_origin_is_refused() -> None:
    async def script(asked: Asked) -> None:
        await asked.reply(status=302, Location="http://127.0.0.1:1/sse")

    async with endpoint(script) as (url, _), running(url=url, transport="sse") as rig:
        assert "redirects to another origin" in rig.server.describe()["last_error"]


async def test_redirects_without_end_come_to_one() -> None:
    async def script(asked: Asked) -> None:
        await asked.reply(status=307, Location=asked.path + "/")

    async with endpoint(script) as (url, _), running(url=url, transport="sse") as rig:
        assert "redirects without end" in rig.server.describe()["last_error"]


@pytest.mark.parametrize(
    "begin", [": nothing", "event: message\ndata: {}", "event: endpoint\ndata:"], ids=["nothing", "else", "empty"]
)
async def test_a_stream_that_never_says_where_to_post_is_given_up(begin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_transport, "ENDPOINT_WITHIN", 0.05)
    async with older(Older(begin=lambda where: begin), transport="sse") as (rig, _):
        assert rig.server.status == "down"
        assert "did not begin with its endpoint" in rig.server.describe()["last_error"]


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_a_stream_that_is_refused_says_so(status: int) -> None:
    async def script(asked: Asked) -> None:
        await asked.reply(status=status)

    async with endpoint(script) as (url, _), running(url=url, transport="sse") as rig:
        assert f"HTTP {status}" in rig.server.describe()["last_error"]


async def test_an_answer_that_is_no_stream_says_so() -> None:
    async def script(asked: Asked) -> None:
        await asked.reply({"hello": 1})

    async with endpoint(script) as (url, _), running(url=url, transport="sse") as rig:
        assert "no event stream" in rig.server.describe()["last_error"]


async def test_a_flood_without_line_ends_costs_its_connection_and_no_more() -> None:
    sent = 0

    async def act(server: Older, asked: Asked) -> Json | None:
        nonlocal sent
        if asked.message["params"]["name"] == "t":
            return TEXT
        writer = server.streams[-1].writer
        while not writer.is_closing():
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()
        return None

    async with older(Older(act=act), max_result=100_000) as (rig, _):
        assert await rig.reason("flood") == "outcome_unknown"
        assert await rig.tool("t") == "done"
    assert sent < 20_000_000


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [*((status, {}, "outcome_unknown") for status in (307, 400, 401, 403, 404, 408, 425, 429, 500, 503)),
     (401, {"WWW-Authenticate": "Bearer"}, "server_unavailable")],
)  # fmt: skip
async def test_a_message_that_is_not_accepted_ends_its_call(status: int, headers: Json, reason: str) -> None:
    calls = 0

    class Picky(Older):
        async def __call__(self, asked: Asked) -> None:
            nonlocal calls
            if asked.rpc != "tools/call":
                return await super().__call__(asked)
            calls += 1
            await asked.reply(b"", status, **headers, Location="/elsewhere")

    async with older(Picky()) as (rig, _):
        assert await rig.reason("t") == reason and calls == 1
        assert (await rig.request("tools/list")).__class__ is Result


WORDS = {
    "progress": lambda id: {"method": "notifications/progress", "params": {"progressToken": id, "progress": 1}},
    "log": lambda id: {"method": "notifications/message", "params": {"level": "info", "data": "x"}},
    "question": lambda id: {"id": 7, "method": "elicitation/create",
                            "params": {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}},
    "result": lambda id: {"id": id, "result": TEXT},
}  # fmt: skip
ASKABLE = replace(LEGACY, capabilities={"elicitation": {}}, capability_key='{"elicitation":{}}')


@pytest.mark.parametrize("account", [None, Account()], ids=["no-login", "login"])
@pytest.mark.parametrize("word", WORDS)
async def test_a_refusal_behind_a_sign_of_life_proves_nothing_and_nothing_is_sent_again(
    word: str, account: Any
) -> None:
    class Talking(Older):
        calls = 0

        async def __call__(self, asked: Asked) -> None:
            if asked.rpc != "tools/call":
                return await super().__call__(asked)
            self.calls += 1
            await self.say(WORDS[word](asked.message["id"]))
            await anyio.sleep(0.1)  # it comes on another connection
            await asked.reply(b"", 401, WWW_Authenticate="Bearer")

    server = Talking()
    async with older(server, transport="sse", account=account) as (rig, _):
        outcome = await rig.request("tools/call", {"name": "t"}, ASKABLE, progressToken="p")
        if isinstance(outcome, Result) and word != "result":
            assert outcome.value["_meta"]["dev.sluice/reason"] == "outcome_unknown"
        elif isinstance(outcome, Result):
            assert outcome.value == TEXT
        else:
            assert word == "question" and isinstance(outcome, InputRequired)
        await anyio.sleep(0.1)
    assert server.calls == 1


@pytest.mark.parametrize("end", ["timeout", "cancelled"])
async def test_a_call_that_was_given_up_is_not_sent_again_with_a_newer_token(end: str) -> None:
    class Late(Older):
        calls = 0
        given_up = anyio.Event()

        async def __call__(self, asked: Asked) -> None:
            if asked.rpc != "tools/call":
                return await super().__call__(asked)
            self.calls += 1
            await self.given_up.wait()
            await asked.reply(b"", 401, WWW_Authenticate="Bearer")

    server = Late()
    server.given_up = anyio.Event()
    async with older(server, transport="sse", account=Account(), timeout=0.3) as (rig, _):
        if end == "timeout":
            assert await rig.reason("t") == "timeout"
        else:
            with anyio.move_on_after(0.2):
                await rig.reason("t")
        server.given_up.set()
        await anyio.sleep(0.2)
        assert (await rig.request("tools/list")).__class__ is Result
    assert server.calls == 1


async def test_noise_on_the_stream_harms_nobody() -> None:
    async def act(server: Older, asked: Asked) -> Json | None:
        stream = server.streams[-1]
        await stream.more("data: {not json", "event: endpoint\ndata: http://evil.example/", "event: other\ndata: {}")
        await stream.more("data: " + json.dumps({"jsonrpc": "2.0", "id": 4711, "result": {}}), ": ping", "\n")
        return TEXT

    async with older(Older(act=act)) as (rig, _):
        for _ in range(3):
            assert await rig.tool("t") == "done"


async def test_many_calls_at_once_get_each_their_own_answer() -> None:
    async def act(server: Older, asked: Asked) -> Json | None:
        await asyncio.sleep(0)
        return {"content": [{"type": "text", "text": json.dumps(asked.message["params"]["arguments"])}]}

    async with older(Older(act=act), concurrency=50) as (rig, _):
        answers: dict[int, Any] = {}

        async def one(number: int) -> None:
            answers[number] = await rig.tool("t", {"n": number})

        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(one, number)
        assert answers == {number: {"n": number} for number in range(100)}


# ---------------------------------------------------------------- what it may hold


@pytest.mark.parametrize("path", ["/.." * 1_000_000, "/a" * 1_100, "/" + "x" * 2_100])
async def test_an_endpoint_that_is_longer_than_an_address_ends_the_stream_unread(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[str] = []
    monkeypatch.setattr(sse_transport, "on_origin", lambda url, reference: joined.append(reference))
    async with older(Older(begin=lambda where: f"event: endpoint\ndata: {path}"), transport="sse") as (rig, _):
        assert rig.server.status == "down"
    assert path not in joined


@pytest.mark.parametrize("reference", ["http://xn--a/", "//xn--a", "//[", "http://[::1"])
def test_an_address_that_no_reader_understands_is_another_origin(reference: str) -> None:
    assert on_origin(httpx.URL("http://127.0.0.1:1/a"), reference) is None


def test_an_address_that_is_longer_than_any_is_not_joined() -> None:
    url = httpx.URL("http://127.0.0.1:1/a/b")
    assert on_origin(url, "/" + "x" * 2_000) is not None
    assert on_origin(url, "/.." * 1_000_000) is None


def test_only_a_stream_of_2024_says_where_to_post() -> None:
    for takes, expected in ((False, ""), (True, "/messages")):
        position = StreamPosition()
        EventParser(position, 1_000_000, takes_endpoint=takes).feed(b"event: endpoint\ndata: /messages\n\n")
        assert position.endpoint == expected


@dataclass
class Silent(Older):
    """Answers calls on the stream, and never the POSTs that they came with. `open` are those that it still holds."""

    open: int = 0

    async def __call__(self, asked: Asked) -> None:
        if asked.rpc != "tools/call":
            return await super().__call__(asked)
        self.open += 1
        try:
            await self._serve(asked)
            await asked.gone()
        finally:
            self.open -= 1


async def test_a_post_that_is_never_answered_ends_soon_after_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_transport, "SEND_TIME", 0.2)
    server = Silent()
    async with older(server, transport="sse") as (rig, _):
        for _ in range(3):
            assert await rig.tool("t") == "done"
        await until(lambda: server.open == 0)
        assert await rig.tool("t") == "done"  # the stream is as good as before


@pytest.mark.parametrize(("most", "size"), [(2, 1), (100, 40_000)])
async def test_few_such_posts_are_left_and_hold_little(most: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_transport, "SEND_TIME", 1_000)
    monkeypatch.setattr(sse_transport, "MAX_SENDING", most)
    monkeypatch.setattr(sse_transport, "MAX_LATE_BYTES", 100_000)
    server = Silent()
    async with older(server, transport="sse") as (rig, _):
        for _ in range(6):
            assert await rig.tool("t", {"text": "x" * size}) == "done"
        await until(lambda: server.open == 2)


async def test_a_post_whose_caller_has_left_ends_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_transport, "SEND_TIME", 0.2)

    async def never(server: Older, asked: Asked) -> Json | None:
        return None

    server = Silent(act=never)
    async with older(server, transport="sse", timeout=0.3) as (rig, _):
        assert await rig.reason("t") == "timeout"
        await until(lambda: server.open == 0)


@asynccontextmanager
async def cut_off() -> AsyncIterator[tuple[Rig, Any, list[object]]]:
    """A server that was up, whose stream has ended, and that refuses connections; its HTTP client and what was dialled.
    Without `_take` and `_dial` of its own the client reaches the server."""
    server, dialled = Older(), list[object]()

    async def refuse(origin: object) -> httpx.Response:
        dialled.append(origin)
        raise httpx.ConnectError("refused")

    async with endpoint(server) as (url, _), running(url=url) as rig:
        assert await rig.tool("t") == "done"
        client: Any = rig.server._http
        client._take, client._dial = (lambda origin: None), refuse
        server.streams[-1].writer.close()
        await until(lambda: not rig.server.life.pool.live())
        yield rig, client, dialled


@pytest.mark.usefixtures("dialled_soon")
async def test_a_server_that_listens_again_is_called_at_once_although_its_stream_had_ended() -> None:
    """No connection is left that could be looked at: a new one says that the server is there."""
    async with cut_off() as (rig, client, _):
        for _ in range(5):
            assert await rig.reason("t") == "server_unavailable"
            rig.server.life._backoff.forget()  # each call dials
        assert rig.server.numbers()["circuit"] == "open"
        del client._take, client._dial
        await until(lambda: rig.server.status == "up")
        assert rig.server.numbers()["circuit"] == "closed"
        assert await rig.tool("t") == "done"


async def test_calls_that_dial_nothing_so_soon_after_a_failure_open_no_circuit() -> None:
    """One client's process may have crashed: that others ask in the same seconds says nothing of their own."""
    async with cut_off() as (rig, _, dialled):
        rig.server.life._backoff._of_all.until = rig.clock() + 20.0
        dialled.clear()
        for number in range(40):
            assert await rig.reason("t", Client(f"key:{number % 4}")) == "server_unavailable"
        assert not dialled and rig.server.numbers()["circuit"] == "closed"
