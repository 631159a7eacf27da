"""Servers behind a URL, in both eras: scripted endpoints on loopback that answer, stream, break and forget."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
from scripted_servers import LEGACY, MODERN, Asked, Script, endpoint, event, legacy_start, modern_start, running, until

from sluicegate.catalog.list_bounds import MAX_IDLE
from sluicegate.downstream.session import change_streams, legacy, modern
from sluicegate.downstream.session.connection import MAX_BATCH, _glimpse
from sluicegate.protocol.jsonrpc import Json, Response
from sluicegate.protocol.model import Call, Client, Failure, InputRequired, Result, Target, Trail

TEXT: Json = {"content": [{"type": "text", "text": '"done"'}]}
COMPLETE: Json = {**TEXT, "resultType": "complete"}


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def answer(asked: Asked, value: Json = TEXT) -> Json:
    return {"id": asked.message["id"], "result": value}


# ---------------------------------------------------------------- legacy


async def test_a_session_is_kept_from_initialize_never_from_a_probe_and_deleted_at_the_end() -> None:
    async def script(asked: Asked) -> None:
        if asked.rpc == "server/discover":
            await asked.reply({"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "no"}},
                              400, Mcp_Session_Id="of-the-probe")  # fmt: skip
        elif not await legacy_start(asked, Mcp_Session_Id="s-1"):
            await asked.result(TEXT)

    async with endpoint(script) as (url, log):
        async with running(url=url, headers={"Authorization": "Bearer configured"}) as rig:
            assert rig.server.era_for(MODERN) == "legacy"
            assert await rig.tool("t") == "done"
        sessions = [(asked.rpc or asked.method, asked.headers.get("mcp-session-id")) for asked in log]
        assert (
            ("initialize", None) in sessions and ("tools/call", "s-1") in sessions and sessions[-1] == ("DELETE", "s-1")
        )
        called = next(asked for asked in log if asked.rpc == "tools/call")
        assert called.headers["authorization"] == "Bearer configured"
        assert called.headers["mcp-protocol-version"] == "2025-11-25"
        assert called.headers["accept"] == "application/json, text/event-stream"


async def test_a_session_that_is_gone_is_begun_again_and_the_call_is_sent_once_more() -> None:
    started: list[str] = []

    async def script(asked: Asked) -> None:
        if asked.rpc == "initialize":
            started.append(f"s-{len(started)}")
        if await legacy_start(asked, Mcp_Session_Id=started[-1] if started else ""):
            return
        if asked.headers["mcp-session-id"] == "s-0":
            await asked.reply(status=404)
        else:
            await asked.result(TEXT)

    async with endpoint(script) as (url, log), running(url=url, era="legacy") as rig:
        assert await rig.tool("t") == "done"
        assert [asked.headers["mcp-session-id"] for asked in log if asked.rpc == "tools/call"] == ["s-0", "s-1"]
        assert "mcp-session-id" not in [asked for asked in log if asked.rpc == "initialize"][1].headers


async def test_an_event_stream_carries_progress_and_then_the_answer() -> None:
    async def script(asked: Asked) -> None:
        if not await legacy_start(asked, {"tools": {}, "logging": {}}):
            token = asked.message["params"]["_meta"]["progressToken"]
            progress = {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
            wrong = {"id": 777, "result": {}}
            ask = {"id": "x", "method": "roots/list"}
            await asked.stream(
                ": hello", "id: 1\ndata:", event(progress), event(wrong), event(ask), event(answer(asked))
            )

    async with endpoint(script) as (url, log), running(url=url, era="legacy") as rig:
        assert await rig.tool("t", progressToken="me") == "done"
        assert [note.params for note in rig.emitted] == [{"progressToken": "me", "progress": 1}]
        await until(lambda: [asked for asked in log if asked.method == "POST" and not asked.rpc])
        refusals = [asked.message for asked in log if asked.method == "POST" and not asked.rpc]
        assert refusals[0]["id"] == "x" and refusals[0]["error"]["code"] == -32601


async def test_a_stream_that_breaks_is_resumed_after_its_last_event() -> None:
    calls: list[Asked] = []

    async def script(asked: Asked) -> None:
        if asked.method == "GET" and asked.headers.get("last-event-id") == "7":
            await asked.stream(event(answer(calls[0]), "8"))
        elif not await legacy_start(asked):
            calls.append(asked)
            await asked.stream("retry: 10\nid: 7\ndata:")

    async with endpoint(script) as (url, _), running(url=url, era="legacy") as rig:
        assert await rig.tool("t") == "done"
        assert len(calls) == 1


@pytest.mark.parametrize("client", [LEGACY, MODERN], ids=["legacy", "modern"])
async def test_a_stream_that_breaks_without_an_id_leaves_a_tools_outcome_unknown_and_a_list_is_asked_again(
    client: Client,
) -> None:
    async def script(asked: Asked) -> None:
        start = legacy_start if client is LEGACY else modern_start
        if not await start(asked):
            await asked.stream(": nothing")

    async with endpoint(script) as (url, log), running(url=url, era=client.era) as rig:
        assert await rig.reason("t", client) == "outcome_unknown"
        outcome = await rig.request("tools/list", client=client)
        assert isinstance(outcome, Failure) and outcome.data == {"reason": "server_unavailable"}
        assert [asked.rpc for asked in log if asked.rpc][-3:] == ["tools/call", "tools/list", "tools/list"]


async def test_a_batch_is_understood_where_its_revision_has_them() -> None:
    revision, more = "2025-03-26", 0

    async def script(asked: Asked) -> None:
        if asked.rpc == "initialize":
            await asked.result({"protocolVersion": revision, "capabilities": {}})
        elif not await legacy_start(asked):
            progress = {
                "jsonrpc": "2.0",
                "method": "notifications/progress",
                "params": {"progressToken": 2, "progress": 1},
            }
            await asked.reply([*[progress] * (1 + more), {"jsonrpc": "2.0", **answer(asked)}])

    async with endpoint(script) as (url, log):
        async with running(url=url, era="legacy") as rig:
            assert await rig.tool("t", progressToken=0) == "done"
            assert rig.emitted[0].params["progressToken"] == 0
            assert "mcp-protocol-version" not in log[-1].headers
            more = MAX_BATCH
            assert await rig.reason("t") == "outcome_unknown", "all are taken in one step"
        more = 0
        revision = "2025-06-18"
        async with running(url=url, era="legacy") as rig:
            assert await rig.reason("t") == "outcome_unknown"


def test_of_a_message_that_is_none_only_the_beginning_is_made_text() -> None:
    class Part:
        def __repr__(self) -> str:
            raise AssertionError("it may be one of a hundred thousand")

    assert _glimpse([Part()] * 1_000) == "a list of 1000"
    assert _glimpse({f"k{n}": Part() for n in range(1_000)}) == f"an object with {', '.join(f'k{n}' for n in range(8))}"
    assert len(_glimpse("x" * 1_000_000)) <= 4_096 and _glimpse(1.5) == "1.5"


async def test_the_get_stream_brings_what_the_server_says_by_itself() -> None:
    streams: list[Asked] = []

    async def script(asked: Asked) -> None:
        if asked.method == "GET":
            streams.append(asked)
            await asked.stream(": open", end=False)
            await asked.gone()
        elif not await legacy_start(asked):
            await asked.result(TEXT)

    async with endpoint(script) as (url, _), running(url=url, era="legacy") as rig:
        release = await rig.server.hold(LEGACY)
        changed = event({"method": "notifications/tools/list_changed"})
        rig.published.clear()
        await until(lambda: streams)
        await streams[0].more(changed, event({"method": "notifications/x"}))
        await until(lambda: rig.published)  # on a connection that is nobody's yet: everybody hears it
        await rig.request("tools/call", {"name": "t"})
        await streams[0].more(changed)
        await until(lambda: len(rig.published) == 2)
        assert [(scope, note.method) for _, scope, note in rig.published] == [
            (None, "notifications/tools/list_changed"),
            (rig.server.scope(LEGACY), "notifications/tools/list_changed"),
        ]
        release()


def asks_at_once(log: list[str], may_open: Callable[[], bool] = lambda: True) -> Script:
    """A server that asks for roots as soon as it is initialized, on its GET stream: without one the question is lost.
    `log` has each handshake, and each answer."""
    streams: list[Asked] = []

    async def script(asked: Asked) -> None:
        if asked.method == "GET" and may_open():
            await anyio.sleep(0.05)  # it is no fast one
            await asked.stream(": open", end=False)
            streams.append(asked)
            await asked.gone()
        elif asked.method == "GET":
            await asked.reply(status=400)
        elif asked.rpc == "notifications/initialized":
            log.append(asked.rpc)
            for stream in streams[-1:]:
                await stream.more(event({"id": "now", "method": "roots/list"}))
            await asked.reply(status=202)
        elif asked.message and asked.message.get("id") == "now":
            log.append(str(asked.message.get("result")))
            await asked.reply(status=202)
        elif not await legacy_start(asked):
            await asked.result(TEXT)

    return script


async def roots(session: str, method: str, params: Json) -> Response:
    return Response(None, {"roots": []})


async def test_what_a_server_asks_as_soon_as_it_is_initialized_is_heard_and_answered() -> None:
    log: list[str] = []
    has_roots = Client("key:a", revision="2025-11-25", session="s1", capabilities={"roots": {}}, capability_key="r")
    async with endpoint(asks_at_once(log)) as (url, _), running(ask=roots, url=url) as rig:
        assert await rig.tool("t", client=has_roots) == "done"
        await until(lambda: len(log) == 4)
    # nobody's connection first, and then the client's own
    assert log == ["notifications/initialized", "None", "notifications/initialized", "{'roots': []}"]


async def test_a_stream_that_is_refused_before_the_handshake_is_over_is_asked_for_after_it() -> None:
    log: list[str] = []
    script = asks_at_once(log, may_open=lambda: bool(log))
    async with endpoint(script) as (url, asked), running(url=url, era="legacy") as rig:
        assert await rig.tool("t") == "done"
        await until(lambda: [one.method for one in asked].count("GET") == 2)


async def test_a_server_that_answers_nothing_to_the_request_for_a_stream_is_waited_for_once_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(legacy, "STREAM_TIME", 0.3)

    async def script(asked: Asked) -> None:
        if asked.method == "GET":
            await asked.gone()
        elif not await legacy_start(asked):
            await asked.result(TEXT)

    async with endpoint(script) as (url, log), running(url=url, era="legacy") as rig:
        for _ in range(3):
            assert await rig.tool("t") == "done"
        names = [asked.rpc or asked.method for asked in log]
        assert names == ["initialize", "GET", "notifications/initialized", *["tools/call"] * 3]


async def test_a_server_without_a_stream_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy, "STREAM_TIME", inf)

    async def script(asked: Asked) -> None:
        if not await legacy_start(asked):
            await asked.result(TEXT)

    async with endpoint(script) as (url, _), running(url=url, era="legacy") as rig:
        assert await rig.tool("t") == "done"


async def test_a_cancelled_legacy_call_is_cancelled_by_a_message() -> None:
    reached, told = anyio.Event(), anyio.Event()

    async def script(asked: Asked) -> None:
        if asked.rpc == "notifications/cancelled":
            told.set()
        if not await legacy_start(asked):
            reached.set()
            await asked.gone()

    async with endpoint(script) as (url, log), running(url=url, era="legacy") as rig:
        call = asyncio.ensure_future(rig.tool("t"))
        await reached.wait()
        call.cancel()
        await told.wait()
        ids = {
            asked.rpc: asked.message.get("params", {}).get("requestId", asked.message.get("id"))
            for asked in log
            if asked.rpc
        }
        assert ids["notifications/cancelled"] == ids["tools/call"]


# ---------------------------------------------------------------- modern


async def test_a_modern_request_is_mirrored_into_headers() -> None:
    async def script(asked: Asked) -> None:
        if not await modern_start(asked):
            await asked.result(COMPLETE)

    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    target = Target("scripted", "tool", "t ö", "p__t", {"name": "t ö", "inputSchema": schema})
    async with endpoint(script) as (url, log), running(url=url) as rig:
        assert rig.server.describe()["eras"] == ["modern"]
        params = {"name": "t ö", "arguments": {"region": " eu "}}
        client = Client("key:a", capabilities={"sampling": {}}, capability_key="x")
        assert await rig.server(Call(client, "tools/call", params, target=target)) == Result(TEXT)
        headers = log[-1].headers
        assert headers["mcp-protocol-version"] == "2026-07-28" and headers["mcp-method"] == "tools/call"
        assert headers["mcp-name"] == "=?base64?dCDDtg==?=" and headers["mcp-param-region"] == "=?base64?IGV1IA==?="
        assert log[-1].message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {"sampling": {}}


async def test_a_server_that_asks_ends_the_round_with_what_it_asks() -> None:
    async def script(asked: Asked) -> None:
        if not await modern_start(asked):
            ask = {"q": {"method": "roots/list"}}
            await asked.result({"resultType": "input_required", "inputRequests": ask, "requestState": ""})

    async with endpoint(script) as (url, _), running(url=url) as rig:
        outcome = await rig.request("tools/call", {"name": "t"}, MODERN)
        assert outcome == InputRequired({"q": {"method": "roots/list"}}, "")


async def test_a_cancelled_modern_call_is_cancelled_by_closing_its_stream() -> None:
    reached, closed = anyio.Event(), anyio.Event()

    async def script(asked: Asked) -> None:
        if not await modern_start(asked):
            await asked.stream(": wait", end=False)
            reached.set()
            await asked.gone()
            closed.set()

    async with endpoint(script) as (url, log), running(url=url) as rig:
        call = asyncio.ensure_future(rig.tool("t", client=MODERN))
        await reached.wait()
        call.cancel()
        await closed.wait()
        assert log[-1].rpc == "tools/call"


MIRRORING: Json = {"name": "t", "inputSchema": {"properties": {"a": {"type": "integer", "x-mcp-header": "A"}}}}


async def test_after_a_header_mismatch_a_tool_that_is_what_it_was_is_called_once_more() -> None:
    async def script(asked: Asked) -> None:
        if await modern_start(asked):
            return
        if asked.rpc == "tools/list":
            listed = {"inputSchema": MIRRORING["inputSchema"], "name": "t", "execution": {"taskSupport": "optional"}}
            await asked.result({"resultType": "complete", "tools": [listed]})
        elif asked.headers.get("mcp-param-a") == "1" and len(log) > 2:
            await asked.result(COMPLETE)
        else:
            await asked.error(-32020, 400)

    async with endpoint(script) as (url, log), running(url=url, era="modern") as rig:
        log.clear()
        target = Target("scripted", "tool", "t", "p__t", MIRRORING)
        call = Call(MODERN, "tools/call", {"name": "t", "arguments": {"a": 1}}, target=target)
        assert await rig.server(call) == Result(TEXT)
        ids = [asked.message["id"] for asked in log if asked.rpc == "tools/call"]
        assert len(ids) == len(set(ids)) == 2 and not rig.published
        stubborn = Call(MODERN, "tools/call", {"name": "t", "arguments": {"a": 2}}, target=target)
        outcome = await rig.server(stubborn)
        assert isinstance(outcome, Failure) and outcome.code == -32603


@pytest.mark.parametrize(
    ("judged", "has_begun", "reason"),
    [({"name": "t", "inputSchema": {}}, False, "server_unavailable"), (None, False, "server_unavailable"),
     ({**MIRRORING, "description": "Sends money."}, True, "outcome_unknown")],
    ids=["another schema", "an unlisted tool", "another description, in a later round"],
)  # fmt: skip
async def test_after_a_header_mismatch_nothing_is_sent_to_a_tool_that_was_not_judged(
    judged: Json | None, has_begun: bool, reason: str
) -> None:
    """Pins, approvals and argument rules were about the tool that was listed. Its list is looked at again."""

    async def script(asked: Asked) -> None:
        if await modern_start(asked):
            return
        if asked.rpc == "tools/list":
            await asked.result({"resultType": "complete", "tools": [MIRRORING]})
        else:
            await asked.error(-32020, 400)

    async with endpoint(script) as (url, log), running(url=url) as rig:
        trail = Trail("later")
        if has_begun:
            trail.resume("first", 1)
        target = Target("scripted", "tool", "t", "p__t", judged)
        call = Call(MODERN, "tools/call", {"name": "t", "arguments": {"a": 1}}, target=target, trail=trail)
        outcome = await rig.server(call)
        assert isinstance(outcome, Result) and outcome.reason == reason
        assert ("NOT EXECUTED" in str(outcome.value)) is not has_begun
        assert sum(asked.rpc == "tools/call" for asked in log) == 1
        assert [note.method for _, _, note in rig.published] == ["notifications/tools/list_changed"]


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
async def test_what_a_server_wants_otherwise_is_not_sent_again_once_its_right_is_lost(code: int) -> None:
    lost = list[bool]()
    tasks = {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
    data = {-32021: tasks, -32022: {"supported": ["2026-07-28"]}}.get(code)

    async def script(asked: Asked) -> None:
        if await modern_start(asked):
            return
        lost.append(True)
        if asked.rpc == "tools/list":
            await asked.result({"resultType": "complete", "tools": [MIRRORING]})
        else:
            await asked.error(code, 400, data)

    async with endpoint(script) as (url, log), running(url=url, may_still=lambda call: not lost) as rig:
        target = Target("scripted", "tool", "t", "p__t", MIRRORING)
        call = Call(MODERN, "tools/call", {"name": "t", "arguments": {"a": 1}}, target=target)
        outcome = await rig.server(call)
        assert isinstance(outcome, Result) and outcome.reason == "denied"
        assert sum(asked.rpc == "tools/call" for asked in log) == 1
        assert rig.server.numbers()["circuit"] == "closed"


@pytest.mark.parametrize("method", ["tools/call", "resources/read"])
async def test_what_a_session_that_ended_lost_is_not_sent_again_once_its_right_is_lost(method: str) -> None:
    lost = list[bool]()

    async def script(asked: Asked) -> None:
        if not await legacy_start(asked, {"tools": {}, "resources": {}}, Mcp_Session_Id="s"):
            lost.append(True)
            await asked.reply(status=404)

    async with (
        endpoint(script) as (url, log),
        running(url=url, era="legacy", may_still=lambda call: not lost) as rig,
    ):
        outcome = await rig.request(method, {"name": "t", "uri": "a:b"})
        assert isinstance(outcome, Result | Failure) and outcome.reason == "denied"
        assert sum(asked.rpc == method for asked in log) == 1


@pytest.mark.parametrize("may_be_asked", [False, True], ids=["a plain call", "one that may be asked back"])
async def test_a_call_whose_right_is_lost_while_a_server_sets_its_log_level_is_not_sent(may_be_asked: bool) -> None:
    lost = list[bool]()

    async def script(asked: Asked) -> None:
        if asked.rpc == "logging/setLevel":
            lost.append(True)
        if not await legacy_start(asked, {"tools": {}, "logging": {}}):
            await asked.result({} if asked.rpc == "logging/setLevel" else TEXT)

    client = replace(LEGACY, session="s-1", capabilities={"roots": {}} if may_be_asked else {})
    client = replace(client, capability_key="roots" if may_be_asked else "{}")
    async with (
        endpoint(script) as (url, log),
        running(url=url, era="legacy", may_still=lambda call: not lost) as rig,
    ):
        level = {"io.modelcontextprotocol/logLevel": "debug"}
        outcome = await rig.server(Call(client, "tools/call", {"name": "t"}, level))
        assert isinstance(outcome, Result) and outcome.reason == "denied"
        assert lost and not any(asked.rpc == "tools/call" for asked in log)


@pytest.mark.parametrize("may_be_asked", [False, True], ids=["a plain call", "one that may be asked back"])
async def test_a_call_that_waits_for_a_log_level_which_fails_was_not_executed(may_be_asked: bool) -> None:
    async def script(asked: Asked) -> None:
        if not await legacy_start(asked, {"tools": {}, "logging": {}}):
            await asked.result({"pad": "x" * 2_000} if asked.rpc == "logging/setLevel" else TEXT)

    client = replace(LEGACY, session="s-1", capabilities={"roots": {}} if may_be_asked else {})
    client = replace(client, capability_key="roots" if may_be_asked else "{}")
    async with endpoint(script) as (url, log), running(url=url, era="legacy", max_result=1_000) as rig:
        level = {"io.modelcontextprotocol/logLevel": "debug"}
        outcome = await rig.server(Call(client, "tools/call", {"name": "t"}, level))
        assert isinstance(outcome, Result) and outcome.reason == "server_unavailable"
        assert not any(asked.rpc == "tools/call" for asked in log)


@pytest.mark.parametrize(
    ("pages", "asked_for"), [(100, 100), (0, MAX_IDLE), (-1, 3)], ids=["at the end", "nowhere", "page 3 fails"]
)
async def test_after_a_header_mismatch_the_tool_is_looked_for_on_every_page(pages: int, asked_for: int) -> None:
    """Where it is not found, the refusal is what the client gets: it proves that the call was not executed."""
    called = list[Asked]()

    async def script(asked: Asked) -> None:
        if await modern_start(asked):
            return
        if asked.rpc == "tools/list":
            number = int(asked.message["params"].get("cursor", "1"))
            if pages < 0 and number == 3:
                asked.writer.close()
            elif number == pages:
                await asked.result({"resultType": "complete", "tools": [MIRRORING]})
            else:
                own = [{"name": f"other{number}" if pages > 0 else "other", "inputSchema": {}}]
                await asked.result({"resultType": "complete", "tools": own, "nextCursor": str(number + 1)})
            return
        called.append(asked)
        if len(called) == 2:
            await asked.result(COMPLETE)
        else:
            await asked.error(-32020, 400)

    async with endpoint(script) as (url, log), running(url=url) as rig:
        target = Target("scripted", "tool", "t", "p__t", MIRRORING)
        call = Call(MODERN, "tools/call", {"name": "t", "arguments": {"a": 1}}, target=target)
        outcome = await rig.server(call)
        assert outcome == Result(TEXT) if pages > 0 else isinstance(outcome, Failure) and outcome.code == -32603
        assert max(int(asked.message["params"].get("cursor", "1")) for asked in log if asked.rpc == "tools/list") == (
            asked_for + (pages == 0)
        )
        assert sum(asked.rpc == "tools/call" for asked in log) == 1 + (pages > 0)
        assert len(rig.published) == (pages <= 0)


async def test_a_tool_with_an_invalid_annotation_is_not_listed_and_the_others_are() -> None:
    async def script(asked: Asked) -> None:
        if not await modern_start(asked):
            bad = {"name": "bad", "inputSchema": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}}
            await asked.result({"tools": [bad, {"name": "good", "inputSchema": {}}]})

    async with endpoint(script) as (url, _), running(url=url) as rig:
        outcome = await rig.request("tools/list", client=MODERN)
        assert isinstance(outcome, Result) and [tool["name"] for tool in outcome.value["tools"]] == ["good"]


async def test_of_many_tools_that_are_not_offered_the_log_names_few(caplog: pytest.LogCaptureFixture) -> None:
    bad = {"inputSchema": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}}

    async def script(asked: Asked) -> None:
        if not await modern_start(asked):
            tools = [{"name": f"bad{number}", **bad} for number in range(500)]
            await asked.result({"resultType": "complete", "tools": tools, "ttlMs": 1, "cacheScope": "private"})

    async with endpoint(script) as (url, _), running(url=url, era="modern") as rig:
        outcome = await rig.request("tools/list", client=MODERN)
    assert isinstance(outcome, Result) and outcome.value["tools"] == []
    told = [record for record in caplog.records if "not offered" in record.message]
    assert len(told) == modern.MAX_TOLD + 1 and vars(told[-1])["count"] == 500 - modern.MAX_TOLD


async def test_a_modern_server_is_listened_to_again_when_the_stream_ends() -> None:
    capabilities = {"tools": {"listChanged": True}, "prompts": {}}

    async def script(asked: Asked) -> None:
        if await modern_start(asked, capabilities):
            return
        tag = {"io.modelcontextprotocol/subscriptionId": asked.message["id"]}
        wanted = asked.message["params"]["notifications"]
        acknowledged = {
            "method": "notifications/subscriptions/acknowledged",
            "params": {"_meta": tag, "notifications": wanted},
        }
        changed = {"method": "notifications/tools/list_changed", "params": {"_meta": tag}}
        await asked.stream(event(acknowledged), event(changed), event(answer(asked, {"_meta": tag})))

    async with endpoint(script) as (url, log), running(url=url) as rig:
        (await rig.server.hold(MODERN))()
        rig.published.clear()
        await until(lambda: len(rig.published) >= 2)
        assert {(scope, note.method) for _, scope, note in rig.published} == {
            (None, "notifications/tools/list_changed")
        }
        listens = [asked for asked in log if asked.rpc == "subscriptions/listen"]
        assert listens[0].message["params"]["notifications"] == {"toolsListChanged": True}
        assert len(listens) >= 2


# ---------------------------------------------------------------- what goes wrong


STATUSES = (200, 299, 302, 399, 400, 401, 403, 404, 408, 425, 429, 499, 500, 502, 503, 504, 600, 999)


@pytest.mark.parametrize(
    ("status", "reason"),
    [(status, "outcome_unknown") for status in STATUSES],
)
async def test_an_answer_without_a_message_is_told_by_its_status(status: int, reason: str) -> None:
    async def script(asked: Asked) -> None:
        if not await modern_start(asked):
            await asked.reply(b"<html>", status, "text/html", Location="http://evil.example/")

    async with endpoint(script) as (url, _), running(url=url) as rig:
        assert await rig.reason("t", MODERN) == reason


async def test_an_error_is_relayed_whatever_its_status() -> None:
    async def script(asked: Asked) -> None:
        if not await modern_start(asked):
            await asked.error(-32602, 400, {"uri": "x:y"}, id=None)

    async with endpoint(script) as (url, _), running(url=url) as rig:
        assert await rig.request("tools/call", {"name": "t"}, MODERN) == Failure(-32602, "no", {"uri": "x:y"})


async def test_an_answer_that_is_too_large_is_not_read_to_its_end() -> None:
    async def script(asked: Asked) -> None:
        if not await modern_start(asked):
            text = {"content": [{"type": "text", "text": "x" * 200_000}]}
            if asked.message["params"]["name"] == "stream":
                await asked.stream(event(answer(asked, {"content": [{"type": "text", "text": "x" * 9_000_000}]})))
            else:
                await asked.result(text)

    async with endpoint(script) as (url, _), running(url=url, max_result=100_000) as rig:
        assert await rig.reason("body", MODERN) == "result_too_large"
        assert await rig.reason("stream", MODERN) == "result_too_large"


async def test_a_redirect_within_the_origin_is_followed_and_any_other_is_not() -> None:
    async def script(asked: Asked) -> None:
        if asked.path == "/mcp":
            await asked.reply(status=307, Location="/mcp/")
        elif not await modern_start(asked):
            await asked.result(COMPLETE)

    async with endpoint(script) as (url, log):
        async with running(url=url, era="modern") as rig:
            assert await rig.tool("t", client=MODERN) == "done"
            assert [asked.path for asked in log] == ["/mcp", "/mcp/", "/mcp/"]
        log.clear()

        async def elsewhere(asked: Asked) -> None:
            await asked.reply(status=307, Location=url)

        async with endpoint(elsewhere) as (outer, _), running(url=outer, era="modern") as rig:
            assert rig.server.status == "down"
        assert log == []


async def test_a_server_that_nobody_listens_for_is_down_and_comes_back() -> None:
    async def script(asked: Asked) -> None:
        if not await modern_start(asked):
            await asked.result(COMPLETE)

    async with endpoint(script) as (url, _), running(url=url) as rig:
        assert await rig.tool("t", client=MODERN) == "done"

        async def refuse(origin: object) -> httpx.Response:
            raise httpx.ConnectError("refused")

        client: Any = rig.server._http
        client._take, client._dial = (lambda origin: None), refuse
        assert await rig.reason("t", MODERN) == "server_unavailable"
        assert rig.server.status == "down"
        del client._take, client._dial
        await until(lambda: rig.server.status == "up")
        assert await rig.tool("t", client=MODERN) == "done" and rig.moves == ["up", "down", "up"]


async def test_a_modern_server_that_returns_is_listened_to_before_it_is_said_to_be_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is announced when its stream is back would else be told a second time."""
    open_streams: list[Asked] = []
    ended = anyio.Event()

    def pause(failures: int) -> float:
        ended.set()
        return 600.0

    monkeypatch.setattr(change_streams, "DEFAULT_BACKOFF", SimpleNamespace(pause=pause))

    async def script(asked: Asked) -> None:
        if await modern_start(asked, {"tools": {}, "resources": {"listChanged": True}}):
            return
        if asked.rpc != "subscriptions/listen":
            return await asked.result(COMPLETE)
        tag = {"io.modelcontextprotocol/subscriptionId": asked.message["id"]}
        params = {"_meta": tag, "notifications": asked.message["params"]["notifications"]}
        await asked.stream(event({"method": "notifications/subscriptions/acknowledged", "params": params}), end=False)
        open_streams.append(asked)
        await asked.gone()

    async with endpoint(script) as (url, _), running(url=url) as rig:
        (await rig.server.hold(MODERN))()

        async def refuse(origin: object) -> httpx.Response:
            raise httpx.ConnectError("refused")

        client: Any = rig.server._http
        client._take, client._dial = (lambda origin: None), refuse
        open_streams[0].writer.close()
        with anyio.fail_after(20):
            await ended.wait()  # else the server may be back before anybody has seen that its stream ended
        assert await rig.reason("t", MODERN) == "server_unavailable"
        assert rig.moves == ["up", "down"] and rig.published == []
        del client._take, client._dial
        await until(lambda: rig.moves == ["up", "down", "up"])
        assert [note.method for _, _, note in rig.published] == ["notifications/resources/list_changed"]
        assert rig.published_at_moves == [0, 0, 1] and len(open_streams) == 2


class Ailing:
    """Fails each request after the start, until it is well."""

    is_well = False

    async def __call__(self, asked: Asked) -> None:
        if await modern_start(asked):
            return
        if self.is_well:
            await asked.result(COMPLETE)
        else:
            await asked.reply(status=500)


async def test_a_server_that_keeps_failing_is_left_alone_and_then_tried_once() -> None:
    script = Ailing()
    async with endpoint(script) as (url, log), running(url=url) as rig:
        for _ in range(5):
            assert await rig.reason("t", MODERN) == "outcome_unknown"
        asked_before = len(log)
        assert await rig.reason("t", MODERN) == "server_unavailable"
        assert len(log) == asked_before and rig.server.describe()["circuit"] == "open"
        rig.clock.ahead = 31.0
        assert rig.server.describe()["circuit"] == "half-open"
        assert await rig.reason("t", MODERN) == "outcome_unknown"
        assert rig.server.describe()["circuit"] == "open"
        script.is_well, rig.clock.ahead = True, 62.0
        assert await rig.tool("t", client=MODERN) == "done"
        assert rig.server.describe()["circuit"] == "closed"


@pytest.mark.parametrize(("method", "params"), [("tasks/get", {"taskId": "gone:1"}), ("server/discover", {})])
async def test_a_trial_that_says_nothing_of_the_server_is_not_the_last_one(method: str, params: Json) -> None:
    script = Ailing()
    async with endpoint(script) as (url, _), running(url=url) as rig:
        for _ in range(5):
            assert await rig.reason("t", MODERN) == "outcome_unknown"
        script.is_well, rig.clock.ahead, rig.server.life.status = True, 31.0, "starting"
        await rig.request(method, params, MODERN)
        assert await rig.tool("t", client=MODERN) == "done"
        assert rig.server.describe()["circuit"] == "closed"


async def test_what_one_client_makes_a_server_fail_at_closes_it_to_nobody_else() -> None:
    """A tool that fails on what it was given: whoever calls it again and again is left waiting alone."""

    async def script(asked: Asked) -> None:
        if await modern_start(asked):
            return
        if asked.message["params"]["name"] == "fragile":
            await asked.reply(status=500)
        else:
            await asked.result(COMPLETE)

    async with endpoint(script) as (url, log), running(url=url) as rig:
        for _ in range(5):
            assert await rig.reason("fragile", MODERN) == "outcome_unknown"
        asked_before = len(log)
        assert await rig.reason("fragile", MODERN) == "server_unavailable" and len(log) == asked_before
        assert rig.server.describe()["circuit"] == "open"
        assert await rig.tool("t", client=Client("key:b")) == "done"


async def test_a_server_that_listens_again_is_called_at_once_however_often_it_refused() -> None:
    """Sluice has looked itself, and says that it is up."""

    async def script(asked: Asked) -> None:
        if not await modern_start(asked):
            await asked.result(COMPLETE)

    async def refuse(origin: object) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with endpoint(script) as (url, _), running(url=url) as rig:
        client: Any = rig.server._http
        client._take, client._dial = (lambda origin: None), refuse
        for _ in range(6):
            assert await rig.reason("t", MODERN) == "server_unavailable"
        assert rig.server.numbers()["circuit"] == "open"
        del client._take, client._dial
        await until(lambda: rig.server.status == "up")
        assert rig.server.numbers()["circuit"] == "closed"
        assert await rig.tool("t", client=MODERN) == "done"


async def test_no_more_calls_run_at_once_than_may() -> None:
    running_now, most = 0, 0
    let_go = anyio.Event()

    async def script(asked: Asked) -> None:
        nonlocal running_now, most
        if await modern_start(asked):
            return
        running_now += 1
        most = max(most, running_now)
        if running_now == 2:
            let_go.set()
        await let_go.wait()
        running_now -= 1
        await asked.result(COMPLETE)

    async with endpoint(script) as (url, _), running(url=url, concurrency=2) as rig:
        assert await asyncio.gather(*(rig.tool("t", client=MODERN) for _ in range(6))) == ["done"] * 6
        assert most == 2 and rig.server.describe()["in_flight"] == 0


@pytest.mark.parametrize("era", [LEGACY, MODERN], ids=["legacy", "modern"])
async def test_a_call_whose_right_is_lost_while_it_waits_is_not_sent(era: Client) -> None:
    may_end, lost, sent = asyncio.Event(), list[bool](), list[Json]()

    async def script(asked: Asked) -> None:
        if await (legacy_start if era is LEGACY else modern_start)(asked):
            return
        sent.append(asked.message["params"]["arguments"])
        await may_end.wait()
        await asked.result(COMPLETE)

    async with (
        endpoint(script) as (url, _),
        running(url=url, concurrency=1, may_still=lambda call: not lost) as rig,
        asyncio.TaskGroup() as group,
    ):
        first = group.create_task(rig.request("tools/call", {"name": "t", "arguments": {"n": 1}}, era))
        await until(lambda: len(sent) == 1)
        second = group.create_task(rig.request("tools/call", {"name": "t", "arguments": {"n": 2}}, era))
        await until(lambda: rig.server.numbers()["waiting"] == 1)
        lost.append(True)
        may_end.set()
        assert isinstance(await first, Result)
        refused = await second
        assert isinstance(refused, Result) and refused.reason == "denied" and sent == [{"n": 1}]
        assert rig.server.numbers()["in_flight"] == 0


async def test_a_right_that_cannot_be_judged_keeps_no_place() -> None:
    may_end, sent = asyncio.Event(), list[Json]()

    async def script(asked: Asked) -> None:
        if await modern_start(asked):
            return
        sent.append(asked.message["params"]["arguments"])
        await may_end.wait()
        await asked.result(COMPLETE)

    def may_still(call: Call) -> bool:
        if sent:
            raise RuntimeError("the policy has a bug")
        return True

    async with endpoint(script) as (url, _), running(url=url, concurrency=1, may_still=may_still) as rig:
        first = asyncio.ensure_future(rig.tool("t", {"n": 1}, MODERN))
        await until(lambda: len(sent) == 1)
        second = asyncio.ensure_future(rig.tool("t", {"n": 2}, MODERN))
        await until(lambda: rig.server.numbers()["waiting"] == 1)
        may_end.set()
        assert await first == "done"
        with pytest.raises(RuntimeError):
            await second
        assert sent == [{"n": 1}] and rig.server.numbers()["in_flight"] == 0


async def test_one_that_has_begun_is_not_said_to_be_unexecuted_where_its_right_is_lost() -> None:
    may_end, lost, sent = asyncio.Event(), list[bool](), list[Json]()

    async def script(asked: Asked) -> None:
        if await modern_start(asked):
            return
        sent.append(asked.message["params"]["arguments"])
        await may_end.wait()
        await asked.result(COMPLETE)

    async with (
        endpoint(script) as (url, _),
        running(url=url, concurrency=1, may_still=lambda call: not lost) as rig,
        asyncio.TaskGroup() as group,
    ):
        first = group.create_task(rig.request("tools/call", {"name": "t", "arguments": {"n": 1}}, MODERN))
        await until(lambda: len(sent) == 1)
        trail = Trail("later")
        trail.resume("first", 1)
        call = Call(MODERN, "tools/call", {"name": "t", "arguments": {"n": 2}}, trail=trail)
        second = group.create_task(rig.server(call))
        await until(lambda: rig.server.numbers()["waiting"] == 1)
        lost.append(True)
        may_end.set()
        await first
        refused = await second
        assert isinstance(refused, Result) and refused.reason == "outcome_unknown" and sent == [{"n": 1}]
        assert "NOT EXECUTED" not in str(refused.value)


@pytest.mark.parametrize("era", [LEGACY, MODERN], ids=["legacy", "modern"])
async def test_a_client_whose_calls_take_long_leaves_places_to_the_others(era: Client) -> None:
    may_end = asyncio.Semaphore(0)

    async def script(asked: Asked) -> None:
        if await (legacy_start if era is LEGACY else modern_start)(asked):
            return
        if asked.message["params"]["arguments"].get("slow"):
            await may_end.acquire()
        await asked.result(COMPLETE)

    greedy, other = replace(era, principal="greedy"), replace(era, principal="other")
    async with endpoint(script) as (url, _), running(url=url, concurrency=2) as rig, asyncio.TaskGroup() as group:
        for _ in range(60):
            group.create_task(rig.request("tools/call", {"name": "t", "arguments": {"slow": True}}, greedy))
        await until(lambda: rig.server.numbers()["waiting"] == 32)
        first = group.create_task(rig.tool("t", client=other))
        await until(lambda: rig.server.numbers()["waiting"] == 32)
        may_end.release()  # the next place is the other client's, and while it comes often one is kept for it
        assert await first == "done"
        assert [await rig.tool("t", client=other) for _ in range(20)] == ["done"] * 20
        assert rig.server.numbers()["in_flight"] == 1
        for _ in range(60):
            may_end.release()


# ---------------------------------------------------------------- the probe


@pytest.mark.parametrize("status", [408, 429, 500, 503, 401, 403])
async def test_a_probe_that_proves_nothing_leaves_the_era_open(status: int) -> None:
    async def script(asked: Asked) -> None:
        await asked.reply(status=status)

    async with endpoint(script) as (url, log), running(url=url) as rig:
        assert rig.server.status == "down" and rig.server.era_for(MODERN) is None
        assert {asked.rpc for asked in log} == {"server/discover"}


async def test_a_server_of_the_older_transport_is_said_to_be_one() -> None:
    async def script(asked: Asked) -> None:
        await asked.reply(status=405)

    async with endpoint(script) as (url, _), running(url=url) as rig:
        assert rig.server.status == "down"
        assert "HTTP+SSE" in rig.server.describe()["last_error"]
