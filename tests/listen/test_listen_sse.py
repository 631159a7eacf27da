"""HTTP+SSE as clients of the 2024 transport speak it: the stream, its endpoint, who reaches it, and its bounds."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from listen_harness import (
    ANYBODY,
    BAD_BATCHES,
    TWO_KEYS,
    A,
    B,
    Raw,
    Site,
    call,
    key,
    modern,
    open_session,
    patch,
    site,
    until,
)

from sluicegate.listen import legacy_http, line_streams
from sluicegate.listen.auth import IdentitySettings
from sluicegate.listen.settings import ConnectionLimits, ListenSettings
from sluicegate.protocol import jsonrpc
from sluicegate.protocol.jsonrpc import Message, Notification
from sluicegate.protocol.model import Call, InputRequired, Outcome, Result

Json = dict[str, Any]
HELLO: Json = {"capabilities": {"elicitation": {}, "roots": {}}, "clientInfo": {"name": "t", "version": "1"}}


class Client:
    """One stream and the POSTs that belong to it."""

    def __init__(self, here: Site, raw: Raw, secret: str) -> None:
        self.here, self.raw, self.secret = here, raw, secret
        self.endpoint = ""
        self._rest = b""

    async def event(self) -> tuple[str, str]:
        """Kind and data of the next event; comments are left out."""
        while True:
            while b"\n\n" not in self._rest:
                self._rest += await self._chunk()
            block, _, self._rest = self._rest.partition(b"\n\n")
            fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if not line.startswith(":"))
            if fields:
                return fields["event"], fields["data"]

    async def _chunk(self) -> bytes:
        size = int(await self.raw.reader.readuntil(b"\r\n"), 16)
        data = await self.raw.reader.readexactly(size + 2)
        if not size:
            raise EOFError
        return data[:-2]

    async def receive(self) -> Any:
        kind, data = await self.event()
        assert kind == "message"
        return json.loads(data)

    async def post(self, message: Any, secret: str = "") -> int:
        async with self.here.client(secret or self.secret) as client:
            content = message if isinstance(message, bytes) else json.dumps(message).encode()
            return (await client.post(self.endpoint, content=content, headers=JSON)).status_code

    async def ask(self, message: Any) -> Any:
        assert await self.post(message) == 202
        return await self.receive()

    async def initialize(self, revision: str = "2024-11-05") -> Any:
        answer = await self.ask(request("initialize", 0, {**HELLO, "protocolVersion": revision}))
        assert answer["result"]["protocolVersion"] == revision
        assert await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}) == 202
        return answer["result"]

    async def is_over(self) -> bool:
        """Reads to the end of the stream, which must come."""
        try:
            while True:
                await self._chunk()
        except (EOFError, asyncio.IncompleteReadError, ConnectionError):
            return True


JSON = {"content-type": "application/json", "accept": "*/*"}


def request(method: str, id: Any = 1, params: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def get(*extra: str, path: str = "/sse", secret: str = A) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {secret}", *extra]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@asynccontextmanager
async def stream(here: Site, *extra: str, secret: str = A, path: str = "/sse") -> AsyncIterator[Client]:
    raw = await here.raw(get("Accept: text/event-stream", *extra, secret=secret, path=path))
    status, headers = await raw.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    client = Client(here, raw, secret)
    kind, client.endpoint = await client.event()
    assert kind == "endpoint"
    yield client
    raw.close()


# ---------------------------------------------------------------- the conversation


async def test_nobody_looks_among_event_streams_for_a_session_of_streamable_http() -> None:
    """A server's pool asks so for each of its 512 connections: with 1,000 streams that took 50 ms, in one step."""
    looks: list[None] = []

    class Noted(dict[str, Any]):
        def values(self) -> Any:
            looks.append(None)
            return super().values()

    async with site() as here, stream(here) as client, here.client() as other:
        await client.initialize()
        on_stream = here.handler.calls[-1].client.session or ""
        await open_session(other)
        here.listener._event_streams._streams = Noted(here.listener._event_streams._streams)
        assert here.listener.is_idle(other.headers["mcp-session-id"])
        assert not looks and not here.listener.is_idle(on_stream)


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_legacy_revision_is_spoken_over_a_stream(revision: str) -> None:
    async with site() as here, stream(here) as client:
        await client.initialize(revision)
        answer = await client.ask(call("echo", id="x", a=1))
        assert (answer["id"], answer["result"]["content"][0]["text"]) == ("x", '{"a": 1}')
        assert here.handler.calls[-1].client.principal == "key:a"
        assert here.handler.calls[-1].client.revision == revision
        assert here.listener.open_sessions == 1


async def test_a_session_works_at_addresses_that_end_in_a_slash() -> None:
    async with site() as here, stream(here, path="/sse/") as client:
        client.endpoint = client.endpoint.replace("/messages?", "/messages/?")
        await client.initialize()
        assert (await client.ask(call("echo", id="x", a=1)))["id"] == "x"


async def test_a_batch_is_answered_by_one_event_in_its_one_revision() -> None:
    async with site() as here, stream(here) as client:
        await client.initialize("2025-03-26")
        answers = await client.ask([call("echo", id=1), call("echo", id=2)])
        assert sorted(answer["id"] for answer in answers) == [1, 2]
    async with site() as here, stream(here) as client:
        await client.initialize("2025-06-18")
        assert await client.post([call("echo")]) == 400


@pytest.mark.parametrize("case", BAD_BATCHES)
async def test_a_bad_batch_is_refused_as_a_whole(case: str) -> None:
    async with site() as here, stream(here) as client:
        await client.initialize("2025-03-26")
        async with here.client() as poster:
            answer = await poster.post(client.endpoint, json=BAD_BATCHES[case])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600)
        assert "id" not in answer.json()
        assert (await client.ask(request("ping", "after")))["id"] == "after"
        assert all(call.method != "tools/call" for call in here.handler.calls)


async def test_progress_comes_before_its_answer_and_a_cancelled_call_is_never_answered() -> None:
    async with site() as here, stream(here) as client:
        await client.initialize()
        assert await client.post(call("progress", id=5)) == 202
        seen = [await client.receive() for _ in range(4)]
        assert [note.get("params", {}).get("progress") for note in seen] == [0, 1, 2, None]
        assert await client.post(call("wait", id=6)) == 202
        await here.handler.waiting.wait()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 6}}
        assert await client.post(cancel) == 202
        await here.handler.ended.wait()
        assert (await client.ask(request("ping", 7)))["id"] == 7


async def test_list_changes_and_subscribed_resources_are_told_on_the_stream() -> None:
    async with site() as here, stream(here) as client:
        await client.initialize()
        await until(lambda: len(here.handler.listening) == 1)
        assert (await client.ask(request("resources/subscribe", 2, {"uri": "a://b"})))["result"] == {}
        await until(lambda: len(here.handler.listening) == 1)
        listen = here.handler.listening[0]
        await listen.emit(Notification("notifications/tools/list_changed", {}))
        await listen.emit(Notification("notifications/resources/updated", {"uri": "a://b"}))
        assert (await client.receive())["method"] == "notifications/tools/list_changed"
        assert (await client.receive())["params"]["uri"] == "a://b"


async def test_a_question_is_asked_on_the_stream_and_answered_by_a_post() -> None:
    async with site() as here:

        async def tool_ask(call: Call) -> Outcome:
            if "inputResponses" in call.params:
                return Result({"content": [{"type": "text", "text": json.dumps(call.params["inputResponses"])}]})
            asks = {"k": {"method": "roots/list", "params": {}}}
            return InputRequired(asks, "state")

        here.handler.tool_ask = tool_ask  # type: ignore[attr-defined]
        async with stream(here) as client:
            await client.initialize()
            question = await client.ask(call("ask", id=1))
            assert question["method"] == "roots/list"
            roots = {"roots": [{"uri": "file:///a"}]}
            answer = await client.ask({"jsonrpc": "2.0", "id": question["id"], "result": roots})
            assert json.loads(answer["result"]["content"][0]["text"]) == {"k": roots}


async def test_a_question_outside_of_calls_reaches_the_session_it_is_for() -> None:
    async with site() as here, stream(here) as other, stream(here) as client:
        await other.initialize()
        await client.initialize()
        await client.ask(call("echo"))
        session = here.handler.calls[-1].client.session
        assert session is not None and session not in client.endpoint
        async with anyio.create_task_group() as tasks:
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(await here.listener.ask(session, "roots/list", {}))

            tasks.start_soon(ask)
            question = await client.receive()
            await client.post({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}})
        assert answers[0].result == {"roots": []}
        assert await here.listener.ask("sse-nobody", "roots/list", {}) is None


async def test_modern_requests_have_no_place_on_this_transport() -> None:
    async with site() as here, stream(here) as client:
        probe = modern("server/discover", id=9)[1]
        answer = await client.ask(probe)
        assert (answer["id"], answer["error"]["code"]) == (9, -32600)
        assert not here.handler.calls
        await client.initialize()
        assert (await client.ask(probe))["error"]["code"] == -32601


# ---------------------------------------------------------------- the session


async def test_an_endpoint_is_good_for_the_principal_that_opened_it_and_for_nobody_else() -> None:
    async with site() as here, stream(here) as client, stream(here, secret=B) as other:
        assert client.endpoint != other.endpoint
        assert len(client.endpoint.partition("session_id=")[2]) >= 32
        await client.initialize()
        assert await client.post(call("echo"), secret=B) == 404
        assert await client.post(call("echo"), secret="nobody") == 401
        assert [c.method for c in here.handler.calls].count("tools/call") == 0


async def test_an_unknown_session_is_not_found() -> None:
    async with site() as here, here.client() as client:
        for query in ("", "?session_id=", "?session_id=x", "?session_id=x&session_id=y", "?other=1"):
            answer = await client.post(f"/messages{query}", json=call("echo"))
            assert answer.status_code == 404, query


async def test_a_stream_that_ends_takes_its_session_and_its_calls_with_it() -> None:
    async with site() as here:
        async with stream(here) as client:
            await client.initialize()
            assert await client.post(call("wait")) == 202
            await here.handler.waiting.wait()
        await here.handler.ended.wait()
        await until(lambda: not here.listener.open_sessions)
        assert await client.post(call("echo")) == 404
        assert len(here.ended) == 1 and here.ended[0].startswith("sse-")
        assert "listen" in here.handler.cancelled


async def test_a_revoked_key_loses_its_streams() -> None:
    async with site() as here, stream(here) as client:
        await client.initialize()
        here.identity.replace(IdentitySettings(keys=(key("b", B),)))
        list(here.listener.sweep())
        assert await client.is_over()
        await until(lambda: not here.listener.open_sessions)


async def test_a_call_has_the_roles_that_its_key_has_now() -> None:
    async with site() as here, stream(here) as client:
        await client.initialize()
        here.identity.replace(IdentitySettings(keys=(key("a", A, roles=("role:other",)),)))
        await client.ask(call("echo"))
        assert here.handler.calls[-1].client.roles == ("role:other",)


LATER = IdentitySettings(keys=(key("a", A, roles=("role:later",)),))


@pytest.mark.parametrize(("settings", "status"), [(LATER, 202), (IdentitySettings(), 401)], ids=["role", "key"])
async def test_a_body_that_comes_late_is_a_call_of_the_key_as_it_is_then(
    settings: IdentitySettings, status: int
) -> None:
    async with site() as here, stream(here) as client:
        await client.initialize()
        known = len(here.handler.calls)
        body = json.dumps(call("echo")).encode()
        lines = [f"POST {client.endpoint} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {A}",
                 "Content-Type: application/json", f"Content-Length: {len(body)}"]  # fmt: skip
        late = await here.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body[:10])
        # Its connection is served once the head is there: another request, sent later, is answered first.
        await client.ask(call("echo"))
        here.identity.replace(settings)
        late.writer.write(body[10:])
        assert (await late.answer())[0] == status
        if status == 202:
            await client.receive()
        roles = [one.client.roles for one in here.handler.calls[known:] if one.method == "tools/call"]
        assert roles == [("role:a",), ("role:later",)][: 1 + (status == 202)]


async def test_at_the_end_of_the_listener_open_calls_are_answered_and_then_the_stream_ends() -> None:
    async with site() as here, stream(here) as client, stream(here) as idle:
        await client.initialize()
        assert await client.post(call("wait", id=3)) == 202
        await here.handler.waiting.wait()
        here.listener.close()
        assert await idle.is_over()
        here.handler.go.set()
        assert (await client.receive())["id"] == 3
        assert await client.is_over()


# ---------------------------------------------------------------- bounds


async def test_a_stream_without_a_handshake_is_closed() -> None:
    settings = patch(ListenSettings(), "pace", handshake=0.0)
    async with site(settings) as here, stream(here) as client:
        assert await client.is_over()


async def test_streams_are_counted() -> None:
    settings = patch(ListenSettings(), "limits", streams=1)
    async with site(settings) as here, stream(here), stream(here, secret=B):
        raw = await here.raw(get("Accept: text/event-stream"))
        assert (await raw.answer())[0] == 429
        assert here.listener.open_sessions == 2


async def test_the_requests_in_flight_of_all_streams_of_a_client_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_http, "MAX_OPEN", 5)
    async with site() as here:
        async with stream(here) as one, stream(here) as two, stream(here, secret=B) as other:
            for client in (one, two, other):
                await client.initialize()
            for number in range(3):
                assert await one.post(call("wait", id=number)) == 202
            for number in range(2):
                assert await two.post(call("wait", id=number)) == 202
            assert await two.post(call("wait", id=9)) == await one.post(call("echo", id=9)) == 429
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}}
            assert await one.post(cancel) == 202
            assert await other.post(call("echo", id=9)) == 202
            await until(lambda: len(here.handler.cancelled) == 1)
            assert await one.post(call("echo", id=9)) == 202
        await until(lambda: not here.listener._event_streams._in_flight._counts)


async def test_a_reader_that_does_not_read_is_closed_and_its_calls_end() -> None:
    async with (
        site(wire=ConnectionLimits(write_buffer=1024, stall=0.05)) as here,
        stream(here) as client,
        stream(here) as other,
    ):
        await client.initialize()
        client.raw.pause()
        assert await client.post(call("big", id=1)) == 202
        await until(lambda: here.listener.open_sessions == 1)
        await other.initialize()
        assert (await other.ask(call("echo", id=2)))["id"] == 2


async def test_what_a_slow_reader_may_miss_is_left_out_and_the_call_goes_on() -> None:
    async with site(wire=ConnectionLimits(write_buffer=1024)) as here, stream(here) as client:
        await client.initialize()
        client.raw.pause()
        assert await client.post(call("big", id=1)) == 202
        await here.handler.ended.wait()
        assert await client.post(call("progress", id=2)) == 202
        await until(lambda: [c.params.get("name") for c in here.handler.calls].count("progress") == 1)
        client.raw.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert [(await client.receive())["id"] for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400), (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', 400), (b"[]", 400), (b"\xff\xfe", 400),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', 400), (b'{"a":' * 70 + b"1" + b"}" * 70, 400),
        (b'{"x":"' + b"x" * 5000 + b'"}', 413),
    ],
)  # fmt: skip
async def test_a_bad_body_is_refused_where_it_was_posted_and_the_stream_lives_on(body: bytes, status: int) -> None:
    async with site(patch(ListenSettings(), "limits", max_request=4096)) as here, stream(here) as client:
        assert await client.post(body) == status
        await client.initialize()
        assert (await client.ask(request("ping", 7)))["id"] == 7


async def test_forms_that_no_client_sends_are_refused() -> None:
    async with site() as here, stream(here) as open_, here.client() as client:
        plain = {"content-type": "text/plain"}
        assert (await client.post(open_.endpoint, content=b"{}", headers=plain)).status_code == 415
        assert (await client.get(open_.endpoint)).status_code == 405
        assert (await client.post("/sse", json=call("echo"))).status_code == 405
        assert (await client.get("/sse", headers={"accept": "application/json"})).status_code == 406
        assert (await client.delete("/sse")).headers["allow"] == "GET, OPTIONS"


# ---------------------------------------------------------------- who may come, and where they are sent


async def test_host_origin_and_credential_are_checked_as_for_the_endpoint() -> None:
    async with site() as here, here.client() as client:
        for path in ("/sse", "/messages?session_id=x"):
            method = "GET" if path == "/sse" else "POST"
            sent = [
                ({"host": "evil.example"}, 421), ({"origin": "https://evil.example"}, 403),
                ({"authorization": "Bearer no"}, 401),
            ]  # fmt: skip
            for headers, status in sent:
                answer = await client.request(method, path, headers=headers, json={} if method == "POST" else None)
                assert answer.status_code == status, (path, headers)


async def test_an_anonymous_client_is_served_only_where_nothing_was_forwarded() -> None:
    async with site(identity=ANYBODY) as here:
        raw = await here.raw(b"GET /sse HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await raw.head())[0] == 200
        raw = await here.raw(b"GET /sse HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Prefix: /x\r\n\r\n")
        assert (await raw.head())[0] == 401


@pytest.mark.parametrize(
    ("trusted", "said", "told"),
    [
        (("127.0.0.0/8",), "/tools", "/tools/messages"), (("127.0.0.1",), "/a/b/", "/a/b/messages"),
        ((), "/tools", "/messages"), (("10.0.0.0/8", "::1"), "/tools", "/messages"),
        (("127.0.0.1",), "//evil.example", "/messages"), (("127.0.0.1",), "https://evil.example/", "/messages"),
        (("127.0.0.1",), "/a/../b", "/messages"), (("127.0.0.1",), "/a, /b", "/messages"),
        (("127.0.0.1",), "/a?b", "/messages"), (("127.0.0.1",), "/" + "x" * 300, "/messages"),
        (("127.0.0.1",), "/", "/messages"),
    ],
)  # fmt: skip
async def test_the_endpoint_has_the_prefix_that_a_trusted_proxy_tells(
    trusted: tuple[str, ...], said: str, told: str
) -> None:
    settings = patch(ListenSettings(), "names", trusted_proxies=trusted)
    async with site(settings) as here, stream(here, f"X-Forwarded-Prefix: {said}") as client:
        assert client.endpoint.partition("?")[0] == told


@pytest.mark.parametrize(
    ("public", "told"),
    [("/tools/mcp", "/tools/messages"), ("/mcp", "/messages"), ("/", "/messages"), ("/a/b/", "/a/b/messages")],
)
async def test_the_endpoint_is_beside_the_public_url_which_is_served_itself(public: str, told: str) -> None:
    settings = patch(ListenSettings(), "names", public_url=public and f"https://mcp.example.com{public}")
    async with site(settings) as here, stream(here) as client:
        assert client.endpoint.partition("?")[0] == told
        await client.initialize()
        async with stream(here, path=told.replace("messages", "sse")) as other:
            assert other.endpoint.partition("?")[0] == told
        async with here.client() as plain:
            assert (await plain.post(public, json=request("ping"))).status_code == 400  # a session is missing there


async def test_a_refused_credential_is_told_with_the_address_behind_trusted_proxies() -> None:
    told: list[tuple[str, str]] = []
    settings = patch(ListenSettings(), "names", trusted_proxies=("127.0.0.1", "10.0.0.0/8"))
    async with site(settings, TWO_KEYS, on_refused=lambda *why: told.append(why)) as here, here.client("no") as client:
        for value in ("203.0.113.7, 10.1.1.1", "203.0.113.7, junk", "10.0.0.9", ""):
            await client.get("/sse", headers={"x-forwarded-for": value})
    assert [address for address, _ in told] == ["203.0.113.7", "127.0.0.1", "10.0.0.9", "127.0.0.1"]


async def test_listening_follows_the_roles_of_the_newest_message() -> None:
    async with site() as here, stream(here) as client:
        await client.initialize()
        await until(lambda: len(here.handler.listening) == 1)
        here.identity.replace(IdentitySettings(keys=(key("a", A, roles=("role:other",)),)))
        await client.ask(call("echo"))
        await until(lambda: [one.client.roles for one in here.handler.listening] == [("role:other",)])


async def test_a_replaced_key_loses_its_streams_and_the_new_one_finds_none_of_them() -> None:
    async with site() as here, stream(here) as client:
        await client.initialize()
        assert await client.post(call("slow")) == 202
        await here.handler.waiting.wait()
        here.identity.replace(IdentitySettings(keys=(key("a", "second", roles=("role:a",)),)))
        assert await client.post(call("echo"), secret="second") == 404
        list(here.listener.sweep())
        with anyio.fail_after(5):
            assert await client.is_over()


# ---------------------------------------------------------------- what is not read


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each message that an event stream or a pipe had encoded."""
    sizes: list[int] = []

    def encode(message: Message) -> bytes:
        data = jsonrpc.encode(message)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(line_streams, "encode", encode)
    return sizes


async def test_answers_that_are_not_read_are_not_encoded(encoded: list[int]) -> None:
    async with site() as here, stream(here) as client:
        await client.initialize()
        client.raw.pause()
        before = len(encoded)
        for id in range(20):
            assert await client.post(call("big", id=id)) == 202
        await until(lambda: len(here.handler.calls) >= 20)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        assert len(encoded) - before <= 2


async def test_large_answers_of_a_batch_come_in_several_arrays() -> None:
    async with site() as here, stream(here) as client:
        await client.initialize("2025-03-26")
        assert await client.post([call("echo", id=id, text="x" * 60_000) for id in range(20)]) == 202
        arrays, ids = 0, list[int]()
        while len(ids) < 20:
            answers = await client.receive()
            assert len(json.dumps(answers)) < 512 * 1024
            ids += [answer["id"] for answer in answers]
            arrays += 1
        assert sorted(ids) == list(range(20)) and arrays > 1


async def test_a_credential_that_comes_twice_is_none_whatever_else_comes_twice() -> None:
    async with site() as here, stream(here) as one:
        await one.initialize()
        credentials = [("Authorization", f"Bearer {B}"), ("Authorization", f"Bearer {one.secret}")]
        versions = [("MCP-Protocol-Version", "2025-06-18")] * 2
        for headers in (credentials + versions, versions + credentials):
            async with here.client(None) as client:
                answer = await client.post(one.endpoint, json=request("ping", 1), headers=[*headers, *JSON.items()])
            assert answer.status_code == 401, answer.text
