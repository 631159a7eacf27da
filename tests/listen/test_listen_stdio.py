"""MCP over a byte stream: both eras on one pipe, whatever the lines say, and an orderly end."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketStream
from listen_harness import BAD_BATCHES
from stdio_peer import CLIENT, SERVER_INFO, Peer, failing

from sluicegate.listen import jsonrpc_session, line_streams, stdio
from sluicegate.protocol import jsonrpc
from sluicegate.protocol.jsonrpc import Json, Message
from sluicegate.protocol.model import Call, Handler, Outcome, Result
from sluicegate.protocol.revisions import CLIENT_CAPABILITIES, CLIENT_INFO, LEGACY, PROTOCOL_VERSION
from sluicegate.protocol.revisions import SERVER_INFO as SERVER_KEY

ENVELOPE: Json = {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {"roots": {}}, CLIENT_INFO: {"name": "t"}}


class Wire:
    """The client's side of the pipe."""

    def __init__(self, stream: SocketStream, peer: Peer) -> None:
        self.stream, self.peer = stream, peer
        self._buffer = b""

    async def send(self, *messages: Json | list[Json] | bytes) -> None:
        lines = (m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages)
        await self.stream.send(b"".join(line + b"\n" for line in lines))

    async def receive(self) -> Any:
        while b"\n" not in self._buffer:
            self._buffer += await self.stream.receive()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    async def ask(self, message: Json | list[Json] | bytes) -> Any:
        await self.send(message)
        return await self.receive()

    async def initialize(self, revision: str = "2025-11-25") -> Json:
        hello = {"protocolVersion": revision, "capabilities": {"roots": {}}, "clientInfo": {"name": "old"}}
        answer: Json = await self.ask(request("initialize", 0, hello))
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    async def until(self, condition: Callable[[], object]) -> None:
        """Pings until the listener has done what was sent before."""
        while not condition():
            assert (await self.ask(request("ping", "until")))["id"] == "until"


def request(method: str, id: Any = 1, params: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def tool(name: str, id: Any = 1, arguments: Json | None = None, **meta: Any) -> Json:
    params: Json = {"name": name, "arguments": arguments or {}}
    return request("tools/call", id, {**params, "_meta": meta} if meta else params)


def modern(message: Json) -> Json:
    params = message["params"]
    return {**message, "params": {**params, "_meta": {**ENVELOPE, **params.get("_meta", {})}}}


def cancel(id: Any) -> Json:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, "reason": "r"}}


@asynccontextmanager
async def connected(handler: Handler | None = None, **options: Any) -> AsyncIterator[Wire]:
    """A client and a listener on a pair of sockets; on the way out the client closes and the listener returns."""
    peer = Peer()
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    with anyio.fail_after(60):
        async with await SocketStream.from_socket(ours) as stream, anyio.create_task_group() as group:

            async def run() -> None:
                await stdio.serve(
                    handler or peer, reader=reader, writer=writer, client=CLIENT, server_info=SERVER_INFO,
                    on_session_end=peer.ended.append, **{"grace": 0.0, **options},
                )  # fmt: skip
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

            group.start_soon(run)
            yield Wire(stream, peer)
            await stream.aclose()


# ---------------------------------------------------------------- both eras


async def test_a_modern_request_is_served_by_itself() -> None:
    async with connected() as wire:
        answer = await wire.ask(modern(tool("echo", "a", {"n": 1})))
        assert answer["id"] == "a" and answer["result"]["content"][0]["text"] == "{'n': 1}"
        assert answer["result"]["resultType"] == "complete"
        assert answer["result"]["_meta"][SERVER_KEY] == SERVER_INFO
        (call,) = wire.peer.calls
        assert (call.client.principal, call.client.roles, call.client.owner) == ("local", ("role:owner",), "me")
        assert (call.client.era, call.client.session, call.client.capabilities) == ("modern", None, {"roots": {}})
        assert call.meta == {} and len(call.trail.id) == 32
    assert wire.peer.ended == []


@pytest.mark.parametrize("revision", LEGACY)
async def test_a_legacy_client_opens_a_session_and_calls(revision: str) -> None:
    async with connected() as wire:
        hello = await wire.initialize(revision)
        assert hello["result"]["protocolVersion"] == revision
        assert hello["result"]["serverInfo"] == SERVER_INFO and hello["result"]["instructions"] == "hello"
        answer = await wire.ask(request("tools/list", 5))
        assert answer == {"jsonrpc": "2.0", "id": 5, "result": {"tools": [{"name": "echo"}]}}
        client = wire.peer.calls[-1].client
        assert (client.era, client.revision, client.info) == ("legacy", revision, {"name": "old"})
        assert client.session and client.capabilities == {"roots": {}}
    assert wire.peer.ended == [client.session]


async def test_both_eras_run_on_one_pipe() -> None:
    async with connected() as wire:
        assert "resultType" in (await wire.ask(modern(tool("echo"))))["result"]
        await wire.initialize()
        assert "resultType" not in (await wire.ask(tool("echo")))["result"]
        assert "resultType" in (await wire.ask(modern(tool("echo"))))["result"]
        assert wire.peer.calls[-1].client.session is None


async def test_before_initialize_only_ping_and_modern_requests_are_served() -> None:
    async with connected() as wire:
        assert (await wire.ask(request("ping")))["result"] == {}
        assert (await wire.ask(tool("echo")))["error"]["code"] == -32602
        assert (await wire.ask({**modern(tool("echo")), "method": "initialize"}))["error"]["code"] == -32601
        assert wire.peer.calls == []


async def test_a_second_initialize_is_refused() -> None:
    async with connected() as wire:
        await wire.initialize()
        assert (await wire.ask(request("initialize", 9, {"protocolVersion": "2025-06-18"})))["error"]["code"] == -32600
        assert (await wire.ask(request("ping", 10)))["result"] == {}


async def test_an_initialize_that_fails_can_be_tried_again() -> None:
    async with connected(failing) as wire:
        for _ in range(2):
            assert (await wire.initialize())["error"]["message"] == "nothing works"
        assert (await wire.ask(request("initialize", 3, {"protocolVersion": 7})))["error"]["code"] == -32602
    assert len(wire.peer.ended) == 2


async def test_the_level_of_a_session_goes_with_its_later_calls() -> None:
    async with connected() as wire:
        await wire.initialize()
        await wire.ask(tool("echo"))
        assert (await wire.ask(request("logging/setLevel", 2, {"level": "error"})))["result"] == {}
        assert (await wire.ask(request("logging/setLevel", 3, {"level": ["error"]})))["error"]["code"] == -32602
        await wire.ask(tool("echo"))
        levels = [call.meta.get("io.modelcontextprotocol/logLevel") for call in wire.peer.calls]
        assert levels[-2:] == ["info", "error"]


# ---------------------------------------------------------------- what belongs to a call


@pytest.mark.parametrize("token", [7, "7"])
async def test_progress_comes_before_the_answer_with_the_clients_token(token: int | str) -> None:
    async with connected() as wire:
        await wire.initialize("2024-11-05")
        await wire.send(tool("progress", 1, progressToken=token))
        one, two, answer = [await wire.receive() for _ in range(3)]
        assert [one["params"], two["params"]] == [{"progressToken": token, "progress": n} for n in (1, 2)]
        assert answer["id"] == 1
        await wire.send(modern(tool("progress", 2, progressToken=token)))
        one, two, answer = [await wire.receive() for _ in range(3)]
        assert one["params"] == {"progressToken": token, "progress": 1, "message": "going on"}


async def test_requests_do_not_wait_for_one_another() -> None:
    async with connected() as wire:
        await wire.initialize()
        await wire.send(tool("hold", 1), modern(tool("hold", 2)), tool("echo", 3))
        assert (await wire.receive())["id"] == 3
        wire.peer.release.set()
        assert {(await wire.receive())["id"] for _ in range(2)} == {1, 2}


async def test_a_broken_handler_fails_its_own_request_alone() -> None:
    async with connected() as wire:
        await wire.initialize()
        assert (await wire.ask(tool("crash", 1)))["error"] == {"code": -32603, "message": "Internal error"}
        assert (await wire.ask(modern(tool("crash", 2))))["error"]["code"] == -32603
        assert (await wire.ask(tool("infinite", 3)))["error"]["code"] == -32603
        assert (await wire.ask(tool("echo", 4)))["id"] == 4


# ---------------------------------------------------------------- cancellation


@pytest.mark.parametrize("is_modern", [False, True])
async def test_a_cancelled_request_is_stopped_and_never_answered(is_modern: bool) -> None:
    async with connected() as wire:
        await wire.initialize()
        held = tool("hold", 1)
        await wire.send(modern(held) if is_modern else held, tool("hold", "1"), cancel(1))
        await wire.until(lambda: wire.peer.cancelled == ["hold"])
        wire.peer.release.set()
        assert (await wire.receive())["id"] == "1"
        assert (await wire.ask(tool("echo", 3)))["id"] == 3


@pytest.mark.parametrize("id", [1, 1.0, True, None, [], {}, "unknown", "0"])
async def test_a_cancellation_of_nothing_is_ignored(id: object) -> None:
    async with connected() as wire:
        await wire.initialize()
        await wire.send(cancel(id), {"jsonrpc": "2.0", "method": "notifications/cancelled"})
        assert (await wire.ask(tool("echo", 2)))["id"] == 2


async def test_initialize_is_never_cancelled() -> None:
    async with connected() as wire:
        hello = request("initialize", 1, {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}})
        await wire.send(hello, cancel(1))
        assert (await wire.receive())["result"]["protocolVersion"] == "2025-11-25"


async def test_one_id_may_be_in_flight_twice() -> None:
    async with connected() as wire:
        await wire.initialize()
        await wire.send(tool("hold", 1), tool("hold", 1))
        await wire.until(lambda: sum(call.method == "tools/call" for call in wire.peer.calls) == 2)
        wire.peer.release.set()
        assert [(await wire.receive())["id"] for _ in range(2)] == [1, 1]


# ---------------------------------------------------------------- subscriptions


async def test_a_session_hears_of_list_changes_after_initialized() -> None:
    async with connected() as wire:
        await wire.initialize()
        await wire.until(lambda: wire.peer.listens)
        await wire.send(tool("change", 1))
        assert await wire.receive() == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        assert (await wire.receive())["id"] == 1
        (listen,) = wire.peer.listens
        assert listen.client.session and "resourceSubscriptions" not in listen.params["notifications"]
    assert wire.peer.cancelled == ["subscriptions/listen"]


async def test_nothing_is_told_before_the_answer_to_initialize() -> None:
    async with connected() as wire:
        hello = request("initialize", 1, {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}})
        await wire.send(hello, {"jsonrpc": "2.0", "method": "notifications/initialized"}, request("ping", 2))
        assert {(await wire.receive())["id"] for _ in range(2)} == {1, 2}
        await wire.until(lambda: wire.peer.listens)
        assert [call.method for call in wire.peer.calls] == ["server/discover", "subscriptions/listen"]


async def test_resources_are_subscribed_one_by_one() -> None:
    async with connected() as wire:
        await wire.initialize()
        for number, uri in enumerate(("a:1", "a:2", "a:1")):
            assert (await wire.ask(request("resources/subscribe", number, {"uri": uri})))["result"] == {}
        await wire.until(lambda: len(wire.peer.listens) == 1)
        assert wire.peer.listens[0].params["notifications"]["resourceSubscriptions"] == ["a:1", "a:2"]
        assert (await wire.ask(request("resources/unsubscribe", 4, {"uri": "a:1"})))["result"] == {}
        await wire.until(lambda: len(wire.peer.listens) == 1)
        assert wire.peer.listens[0].params["notifications"]["resourceSubscriptions"] == ["a:2"]
        assert (await wire.ask(request("resources/subscribe", 5, {"uri": 7})))["error"]["code"] == -32602


async def test_subscriptions_at_once_are_all_kept() -> None:
    async with connected() as wire:
        await wire.initialize()
        await wire.send(*(request("resources/subscribe", n, {"uri": f"a:{n}"}) for n in range(10)))
        assert [(await wire.receive())["result"] for _ in range(10)] == [{}] * 10
        await wire.until(lambda: len(wire.peer.listens) == 1)
        assert len(wire.peer.listens[0].params["notifications"]["resourceSubscriptions"]) == 10


async def test_a_subscription_that_is_not_honoured_is_not_found() -> None:
    async with connected() as wire:
        wire.peer.honours = False
        await wire.initialize()
        answer = await wire.ask(request("resources/subscribe", 1, {"uri": "a:1"}))
        assert answer["error"] == {"code": -32002, "message": "Resource not found", "data": {"uri": "a:1"}}
        await wire.until(lambda: len(wire.peer.listens) == 1)


async def test_a_modern_listen_is_acknowledged_tagged_and_ended() -> None:
    async with connected() as wire:
        wanted = {"notifications": {"toolsListChanged": True}}
        acknowledged = await wire.ask(modern(request("subscriptions/listen", "L", wanted)))
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        await wire.send(modern(tool("change", 2)))
        changed = await wire.receive()
        for message in (acknowledged, changed):
            assert message["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": "L"}
        await wire.receive()
        wire.peer.release.set()
        assert (await wire.receive())["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "L"


# ---------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("line", "code", "id"),
    [
        (b"nonsense", -32700, None),
        (b"\xff\xfe", -32700, None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"n": NaN}}', -32700, None),
        (b'{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "ping"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600, None),
        (b'{"jsonrpc": "1.0", "id": 7, "method": "ping"}', -32600, 7),
        (b'{"jsonrpc": "2.0", "id": "x", "method": "ping", "params": []}', -32600, "x"),
        (b'"text"', -32600, None),
        (b"[" * 100_000, -32600, None),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', -32600, None),
    ],
)
async def test_a_bad_line_is_answered_and_the_next_one_works(line: bytes, code: int, id: object) -> None:
    async with connected() as wire:
        answer = await wire.ask(line)
        assert (answer["error"]["code"], answer.get("id"), "id" in answer) == (code, id, id is not None)
        assert (await wire.ask(request("ping", 2)))["id"] == 2


async def test_empty_lines_and_carriage_returns_do_no_harm() -> None:
    async with connected() as wire:
        await wire.send(b"", b"\r", b"  ", json.dumps(request("ping", 1)).encode() + b"\r")
        assert (await wire.receive())["id"] == 1


async def test_responses_and_unknown_notifications_are_ignored() -> None:
    async with connected() as wire:
        await wire.send({"jsonrpc": "2.0", "id": 9, "result": {}}, {"jsonrpc": "2.0", "method": "notifications/other"})
        await wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (await wire.ask(request("ping", 1)))["id"] == 1


@pytest.mark.parametrize("size", [1001, 70_000, 1_000_000])
async def test_a_line_that_is_too_long_is_skipped(size: int) -> None:
    async with connected(max_line=1000) as wire:
        await wire.send(b"x" * size, request("ping", 1))
        assert (await wire.receive())["error"] == {"code": -32600, "message": "message too long"}
        assert (await wire.receive())["id"] == 1
        exact = json.dumps(request("ping", 2)).encode()
        assert (await wire.ask(exact + b" " * (1000 - len(exact))))["id"] == 2


async def test_a_line_may_come_in_pieces_and_without_an_end() -> None:
    async with connected(grace=5) as wire:
        data = json.dumps(request("ping", "é")).encode()
        for place in range(len(data)):
            await wire.stream.send(data[place : place + 1])
        await wire.stream.send_eof()
        assert (await wire.receive())["id"] == "é"


# ---------------------------------------------------------------- batches


async def test_a_batch_is_answered_together_in_its_one_revision() -> None:
    async with connected() as wire:
        await wire.initialize("2025-03-26")
        batch: list[Any] = [
            request("ping", 1), tool("progress", 2, progressToken="t"), request("nope", 4),
            {"jsonrpc": "2.0", "method": "notifications/x"},
        ]  # fmt: skip
        await wire.send(batch)
        assert [(await wire.receive())["method"] for _ in range(2)] == ["notifications/progress"] * 2
        answers = await wire.receive()
        codes = {answer["id"]: answer.get("error", {}).get("code") for answer in answers}
        assert codes == {1: None, 2: None, 4: -32601}


async def test_a_batch_without_requests_has_no_answer_and_a_cancelled_one_is_left_out() -> None:
    async with connected() as wire:
        await wire.initialize("2025-03-26")
        await wire.send([{"jsonrpc": "2.0", "method": "notifications/x"}, {"jsonrpc": "2.0", "id": 1, "result": {}}])
        await wire.send([tool("hold", 1), tool("echo", 2)], [cancel(1)])
        assert [answer["id"] for answer in await wire.receive()] == [2]


@pytest.mark.parametrize("case", BAD_BATCHES)
async def test_a_bad_batch_is_refused_as_a_whole(case: str) -> None:
    async with connected() as wire:
        await wire.initialize("2025-03-26")
        answer = await wire.ask(BAD_BATCHES[case])
        assert (answer["error"]["code"], "id" in answer) == (-32600, False)
        assert (await wire.ask(request("ping", "after")))["id"] == "after"
        assert all(call.method != "tools/call" for call in wire.peer.calls)


@pytest.mark.parametrize("revision", [revision for revision in LEGACY if revision != "2025-03-26"])
async def test_other_revisions_have_no_batches(revision: str) -> None:
    async with connected() as wire:
        await wire.initialize(revision)
        answer = await wire.ask([request("ping", 1)])
        assert (answer["error"]["code"], "id" in answer) == (-32600, False)


# ---------------------------------------------------------------- load and the end


async def test_requests_in_flight_are_bounded_and_can_still_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonrpc_session, "MAX_OPEN", 3)
    async with connected() as wire:
        await wire.initialize()
        await wire.send(*(tool("hold", n) for n in range(3)))
        refused = await wire.ask(tool("echo", 9))
        assert refused["result"]["_meta"] == {"dev.sluice/reason": "rate_limited"}
        refused = await wire.ask(modern(request("tools/list", 10)))
        assert refused["error"]["data"] == {"reason": "rate_limited"}
        await wire.send(cancel(0))
        await wire.until(lambda: wire.peer.cancelled == ["hold"])
        assert "isError" not in (await wire.ask(tool("echo", 11)))["result"]


async def test_a_client_that_reads_slowly_gets_every_answer_whole() -> None:
    async with connected() as wire:
        await wire.initialize()
        await wire.send(*(tool("big", n, {"size": 200_000}) for n in range(50)))
        answers = [await wire.receive() for _ in range(50)]
        assert sorted(answer["id"] for answer in answers) == list(range(50))
        assert {len(answer["result"]["content"][0]["text"]) for answer in answers} == {200_000}


async def test_a_client_that_goes_away_ends_its_calls_and_its_session() -> None:
    async with connected(grace=60) as wire:
        await wire.initialize()
        await wire.send(tool("hold", 1), tool("big", 2, {"size": 5_000_000}))
        await wire.stream.receive()
        await wire.stream.aclose()
    assert sorted(wire.peer.cancelled) == ["hold", "subscriptions/listen"]
    assert len(wire.peer.ended) == 1


async def test_answers_that_are_not_read_are_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Message] = []

    def encode(message: Message) -> bytes:
        encoded.append(message)
        return jsonrpc.encode(message)

    async def large(call: Call) -> Outcome:
        calls.append(call)
        return Result({"content": [{"type": "text", "text": "x" * 5_000_000}]})

    calls: list[Call] = []
    monkeypatch.setattr(line_streams, "encode", encode)
    async with connected(large) as wire:
        await wire.send(*(modern(tool("large", id)) for id in range(20)))
        while len(calls) < 20:
            await anyio.lowlevel.checkpoint()
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        assert len(encoded) <= 5  # the pipe and the reader take some
        assert [(await wire.receive())["id"] for _ in range(20)] == list(range(20))


async def test_large_answers_of_a_batch_come_in_several_arrays() -> None:
    async with connected() as wire:
        await wire.initialize("2025-03-26")
        await wire.send([tool("echo", id, {"text": "x" * 60_000}) for id in range(20)])
        arrays = [await wire.receive()]
        while sum(map(len, arrays)) < 20:
            arrays.append(await wire.receive())
        assert max(len(json.dumps(array)) for array in arrays) < 512 * 1024
        assert sorted(answer["id"] for array in arrays for answer in array) == list(range(20))
