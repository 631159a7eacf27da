"""What proves that a call was not executed: the table, row by row, in both eras and on every transport; and everything
else, which proves nothing."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from scripted_servers import (
    LEGACY,
    MODERN,
    Account,
    Asked,
    child,
    endpoint,
    event,
    legacy_start,
    modern_start,
    running,
    until,
)

from sluicegate.downstream.failures import PROOFS, Lost, as_lost
from sluicegate.downstream.session import modern
from sluicegate.downstream.transport import http_base
from sluicegate.protocol.model import Call, Client, Failure, InputRequired, Result, Target

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "reasons.md"
UNKNOWN, UNAVAILABLE = "outcome_unknown", "server_unavailable"
CLIENTS = {"legacy": LEGACY, "modern": MODERN}
Headers = dict[str, str]


async def no_answer(session: str, method: str, params: Any) -> None:
    return None


def test_the_reference_has_the_table() -> None:
    text = PAGE.read_text()
    for proof in PROOFS:
        assert f"| {proof.what} | {proof.why} |" in text


def test_clients_read_what_was_lost_and_who_runs_sluice_reads_the_detail_too() -> None:
    lost = Lost("the server is gone", sent=True, gone=True, status=502, detail="/usr/bin/x")
    assert str(lost) == "the server is gone (/usr/bin/x)"
    assert (lost.text, lost.detail) == ("the server is gone", "/usr/bin/x")
    assert (lost.sent, lost.gone, lost.status, str(Lost("gone", sent=False))) == (True, True, 502, "gone")
    again = as_lost(lost)
    assert (again.sent, again.text, again.detail) == (False, lost.text, lost.detail), "nothing of this one was sent"
    told = [(one.sent, one.text) for one in (as_lost(OSError("boom"), "no answer"), as_lost(OSError(), "no answer"),
                                             as_lost(OSError()))]  # fmt: skip
    assert told == [(False, "boom"), (False, "no answer"), (False, "OSError")]


class Scripted:
    """A server of one era that answers each call as it is told; `calls` are those that it got."""

    def __init__(self, era: str, status: int, headers: Headers, session: str = "") -> None:
        self.era, self.status, self.headers, self.session = era, status, headers, session
        self.calls: list[Asked] = []

    async def __call__(self, asked: Asked) -> None:
        more = {"Mcp_Session_Id": self.session} if self.session else {}
        if await (modern_start(asked) if self.era == "modern" else legacy_start(asked, **more)):
            return
        self.calls.append(asked)
        if self.status:
            await asked.reply(b"no", self.status, "text/plain", **self.headers)
        else:
            asked.writer.close()


async def reason(server: Scripted, client: Client, **settings: Any) -> tuple[str, str]:
    """The word and the sentence that the client gets."""
    async with endpoint(server) as (url, _), running(url=url, era=server.era, **settings) as rig:
        outcome = await rig.request("tools/call", {"name": "t"}, client)
    assert isinstance(outcome, Result) and outcome.value["isError"]
    return outcome.value["_meta"]["dev.sluice/reason"], outcome.value["content"][0]["text"]


PROVEN: list[tuple[int, Headers]] = [
    (401, {"WWW-Authenticate": "Bearer"}),
    (401, {"WWW-Authenticate": 'Bearer error="invalid_token"'}),
    (401, {"WWW-Authenticate": 'Basic realm="x"'}),
    (403, {"WWW-Authenticate": 'Bearer error="insufficient_scope", scope="x"'}),
    (403, {"WWW-Authenticate": 'Basic realm="x", Bearer scope="x", error=insufficient_scope'}),
]
UNPROVEN: list[tuple[int, Headers]] = [
    *((status, {}) for status in (0, 200, 202, 204, 301, 302, 400, 401, 403, 405, 406, 408, 409, 410, 413, 415, 421,
                                  423, 425, 429, 500, 501, 502, 503, 504)),
    (404, {}), (307, {"Location": "/other"}), (308, {"Location": "/other"}), (307, {"Location": "http://evil.test/"}),
    (401, {"WWW-Authenticate": ""}), (401, {"WWW-Authenticate": " , "}), (401, {"Proxy-Authenticate": "Bearer"}),
    *((403, {"WWW-Authenticate": said}) for said in (
        'Bearer error="x_insufficient_scope"', 'Bearer error_description="insufficient_scope"',
        "insufficient_scope", 'Basic realm="x", error="insufficient_scope"', 'Bearer error="insufficient_scope_"',
        "Bearer insufficient_scope",
    )),
    (403, {"WWW-Authenticate": "Bearer"}), (429, {"Retry-After": "1"}), (503, {"Retry-After": "1"}),
]  # fmt: skip


@pytest.mark.parametrize("era", CLIENTS)
@pytest.mark.parametrize(("status", "headers"), PROVEN)
async def test_an_answer_of_the_table_says_that_nothing_was_executed(era: str, status: int, headers: Headers) -> None:
    server = Scripted(era, status, headers)
    word, text = await reason(server, CLIENTS[era])
    assert word == UNAVAILABLE and "may or may not" not in text and len(server.calls) == 1


@pytest.mark.parametrize("era", CLIENTS)
@pytest.mark.parametrize(("status", "headers"), UNPROVEN)
async def test_any_other_answer_proves_nothing_and_the_call_is_made_once(
    era: str, status: int, headers: Headers
) -> None:
    server = Scripted(era, status, headers)
    word, text = await reason(server, CLIENTS[era])
    assert word == UNKNOWN and "may or may not have been executed" in text
    assert [asked.rpc for asked in server.calls] == ["tools/call"]  # also not where a redirect leads


OTHER = {"jsonrpc": "2.0", "id": 99_999, "result": {"content": []}}


@pytest.mark.parametrize("account", [None, Account()], ids=["no-login", "login"])
@pytest.mark.parametrize("era", CLIENTS)
@pytest.mark.parametrize(("status", "headers"), [*PROVEN[::3], (404, {})])
async def test_a_refusal_that_holds_a_result_refuses_nothing(
    era: str, status: int, headers: Headers, account: Any
) -> None:
    class Contradicting(Scripted):
        said: Any = None

        async def __call__(self, asked: Asked) -> None:
            if asked.rpc != "tools/call":
                return await super().__call__(asked)
            self.calls.append(asked)
            own = {"jsonrpc": "2.0", "id": asked.message["id"], "result": {"content": [], "resultType": "complete"}}
            body, kind = self.said(own)
            await asked.reply(body, self.status, kind, **self.headers)

    async def told(said: Callable[[Any], tuple[Any, str]]) -> Any:
        server = Contradicting(era, status, headers, session="s" if era == "legacy" else "")
        server.said = said
        async with endpoint(server) as (url, _), running(url=url, era=era, account=account) as rig:
            outcome = await rig.request("tools/call", {"name": "t"}, CLIENTS[era])
        assert len(server.calls) == 1
        assert isinstance(outcome, Result)
        return outcome.value.get("_meta", {}).get("dev.sluice/reason", "answered")

    json_kind = "application/json; charset=utf-8"
    assert await told(lambda own: (own, json_kind)) == "answered"
    for unclear in (OTHER, [OTHER], b'{"result": {'):
        assert await told(lambda own, body=unclear: (body, json_kind)) == UNKNOWN  # type: ignore[misc]
    assert await told(lambda own: ({"result": "x" * 300_000}, json_kind)) == "result_too_large"
    assert await told(lambda own: (b"data: " + json.dumps(own).encode() + b"\n\n", "text/event-stream")) == UNKNOWN


@pytest.mark.parametrize(
    ("body", "may_be"),
    [
        (json.dumps({"error": {"message": "\u00e9 result" * 10_000}}), False),
        (json.dumps({"error": {"message": '"result": 1'}}), False),
        ('{"error": "result", "code": "result"}', False),
        (json.dumps([{"error": {"message": "\u00e9" * 10_000}}, {"result": {}}]), True),
        ('{"result" :{', True),
        ("".join(f"\\u{ord(char):04X}" for char in "result").join(('{"', '":1}')), True),
        ('{"\\u0072es\\u0075\\u006ct":1}', True),
    ],
)  # fmt: skip
def test_whether_a_refusal_holds_a_result_is_known_before_it_is_decoded(
    body: str, may_be: bool, decoded: list[int]
) -> None:
    """A body of 256 KiB was decoded in one step."""
    assert http_base._may_be_result(body.encode()) is may_be
    assert not decoded


@pytest.mark.parametrize("account", [None, Account()], ids=["no-login", "login"])
@pytest.mark.parametrize("status", [401, 404])
async def test_progress_on_another_stream_of_the_session_proves_that_the_call_has_begun(
    account: Any, status: int
) -> None:
    class Telling(Scripted):
        stream: Asked | None = None

        async def __call__(self, asked: Asked) -> None:
            if asked.method == "GET":
                self.stream = asked
                await asked.stream(end=False)
                await asked.gone()
            elif asked.rpc == "tools/call":
                self.calls.append(asked)
                await until(lambda: self.stream is not None)
                assert self.stream is not None
                said = {"progressToken": asked.message["id"], "progress": 1}
                await self.stream.more(event({"method": "notifications/progress", "params": said}))
                await anyio.sleep(0.1)  # it comes on another connection
                await asked.reply(b"", self.status, **self.headers)
            else:
                await super().__call__(asked)

    server = Telling("legacy", status, {"WWW-Authenticate": "Bearer"}, session="s")
    async with endpoint(server) as (url, _), running(url=url, era="legacy", account=account) as rig:
        assert await rig.reason("t") == UNKNOWN
    assert len(server.calls) == 1


async def test_a_refusal_that_never_ends_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_base, "SEND_TIME", 0.2)
    gone: list[bytes] = []

    class Endless(Scripted):
        async def __call__(self, asked: Asked) -> None:
            if asked.rpc != "tools/call":
                return await super().__call__(asked)
            head = "HTTP/1.1 401 X\r\nWWW-Authenticate: Bearer\r\nContent-Type: application/json\r\n"
            asked.writer.write(f"{head}Content-Length: 100000\r\n\r\n{{".encode())
            gone.append(await asked.reader.read())  # until the other side hangs up

    server = Endless("modern", 401, {})
    for account in (None, Account()):
        async with endpoint(server) as (url, _), running(url=url, era="modern", account=account) as rig:
            assert await rig.reason("t", MODERN) == UNKNOWN
            await until(lambda: gone == [b""])
            gone.clear()


async def test_a_404_proves_it_where_the_request_had_a_session_and_nowhere_else() -> None:
    with_session = Scripted("legacy", 404, {}, session="s")
    assert (await reason(with_session, LEGACY))[0] == UNAVAILABLE
    assert len(with_session.calls) == 2  # once more in another session, which ends the same way
    for era in CLIENTS:
        without = Scripted(era, 404, {})
        assert (await reason(without, CLIENTS[era]))[0] == UNKNOWN and len(without.calls) == 1


@pytest.mark.parametrize("era", CLIENTS)
async def test_a_server_that_takes_the_call_and_says_nothing_may_have_executed_it(era: str) -> None:
    class Silent(Scripted):
        async def __call__(self, asked: Asked) -> None:
            if asked.rpc == "tools/call":
                self.calls.append(asked)
                await anyio.sleep_forever()
            await super().__call__(asked)

    server = Silent(era, 0, {})
    word, text = await reason(server, CLIENTS[era], timeout=0.5)
    assert word == "timeout" and "may or may not have been executed" in text and len(server.calls) == 1


@pytest.mark.parametrize("era", CLIENTS)
@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout])
async def test_without_a_connection_nothing_was_executed(era: str, error: type[httpx.TransportError]) -> None:
    server = Scripted(era, 200, {})
    async with endpoint(server) as (url, _), running(url=url, era=era) as rig:

        async def refuse(origin: object) -> httpx.Response:
            raise error("no")

        client: Any = rig.server._http
        client._take, client._dial = (lambda origin: None), refuse
        assert await rig.reason("t", CLIENTS[era]) == UNAVAILABLE
        assert server.calls == []


@pytest.mark.parametrize("status", [500, 503, 401, 403, 404, 302])
@pytest.mark.usefixtures("dialled_soon")
async def test_a_handshake_that_fails_sent_no_call(status: int) -> None:
    async def script(asked: Asked) -> None:
        await asked.reply(status=status)

    async with endpoint(script) as (url, log), running(url=url, era="legacy", lazy=True) as rig:
        assert await rig.reason("t") == UNAVAILABLE
        assert all(asked.rpc != "tools/call" for asked in log)


@pytest.mark.usefixtures("dialled_soon")
async def test_a_process_that_dies_with_the_call_may_have_executed_it_and_one_that_died_before_did_not() -> None:
    async with running(command=child(), era="legacy") as rig:
        assert await rig.reason("die") == UNKNOWN
    async with running(command=child("exit-at-start"), era="legacy") as rig:
        assert await rig.reason("echo") == UNAVAILABLE


@pytest.mark.parametrize("code", [proof.code for proof in PROOFS if proof.code is not None] + [-32603, -32000])
async def test_only_a_call_with_an_error_of_the_table_is_made_again(code: int) -> None:
    await made_again(code, begins=False)


@pytest.mark.parametrize("code", [proof.code for proof in PROOFS if proof.code is not None])
async def test_a_call_of_which_the_server_said_something_before_is_not_made_again(code: int) -> None:
    for note in ("progress", "message", "tools/list_changed"):
        await made_again(code, begins=True, note=note)


async def made_again(code: int, begins: bool, note: str = "") -> None:
    calls: list[Asked] = []

    async def script(asked: Asked) -> None:
        if asked.rpc == "tools/call":
            calls.append(asked)
            extension = {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
            data = {"supported": ["2026-07-28"], "requested": "x", **extension}
            if not begins:
                return await asked.error(code, 400, data)
            said = {"progressToken": asked.message["params"]["_meta"]["progressToken"], "progress": 1, "data": "x"}
            notice = {"jsonrpc": "2.0", "method": f"notifications/{note}", "params": said}
            error = {"jsonrpc": "2.0", "id": asked.message["id"], "error": {"code": code, "message": "m", "data": data}}
            await asked.stream(*(f"data: {json.dumps(one)}" for one in (notice, error)))
        elif asked.rpc == "tools/list":
            await asked.result({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
        else:
            await modern_start(asked)

    async with endpoint(script) as (url, _), running(url=url, era="modern") as rig:
        outcome = await rig.request("tools/call", {"name": "t"}, MODERN, progressToken="p")
        assert isinstance(outcome, Failure)
        assert len(calls) == (2 if code in (-32021, -32022) and not begins else 1)


async def test_a_task_whose_call_is_cancelled_in_the_moment_of_its_answer_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled, loop = anyio.Event(), asyncio.get_running_loop()
    original = modern.ModernConnection._send
    calling: list[asyncio.Task[Any]] = []

    async def send(self: Any, call: Any, *rest: Any, **options: Any) -> Any:
        response = await original(self, call, *rest, **options)
        if options.get("with_tasks"):
            loop.call_soon(calling[0].cancel)  # behind what is told of the answer, and before who waits for it
        return response

    async def script(asked: Asked) -> None:
        if asked.rpc == "tools/call":
            meta = asked.message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
            if "extensions" not in meta:
                data = {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
                return await asked.error(-32021, 400, data)
            stamp = "2026-01-01T00:00:00Z"
            task = {"taskId": "1", "status": "working", "createdAt": stamp, "lastUpdatedAt": stamp, "ttlMs": 60_000}
            await asked.result({"resultType": "task", **task, "pollIntervalMs": 20})
        elif asked.rpc == "tasks/cancel":
            cancelled.set()
            await asked.result({})
        else:
            await modern_start(asked)

    monkeypatch.setattr(modern.ModernConnection, "_send", send)
    async with endpoint(script) as (url, _), running(url=url, era="modern") as rig:
        calling.append(asyncio.create_task(rig.request("tools/call", {"name": "t"}, MODERN)))
        with pytest.raises(asyncio.CancelledError):
            await calling[0]
        with anyio.fail_after(20):
            await cancelled.wait()


TASKS = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
PATIENT = Target("scripted", "tool", "t", "t", {"name": "t", "execution": {"taskSupport": "required"}})


@pytest.mark.parametrize("account", [None, Account()], ids=["no-login", "login"])
@pytest.mark.parametrize(("status", "headers"), [(404, {}), PROVEN[0]])
async def test_what_a_server_says_of_a_task_proves_nothing_of_the_call_that_made_it(
    status: int, headers: Headers, account: Any
) -> None:
    calls: list[Asked] = []
    task = {"taskId": "1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttl": 60_000, "pollInterval": 20}

    async def script(asked: Asked) -> None:
        if asked.rpc == "tools/call":
            calls.append(asked)
            await asked.result({"task": task})
        elif asked.rpc == "tasks/get":
            await asked.result({**task, "status": "completed"})
        elif asked.rpc == "tasks/result":
            await asked.reply(b"", status, **headers)
        else:
            await legacy_start(asked, TASKS, Mcp_Session_Id="s")

    async with endpoint(script) as (url, _), running(url=url, era="legacy", account=account) as rig:
        outcome = await rig.server(Call(MODERN, "tools/call", {"name": "t"}, {}, PATIENT))
    assert isinstance(outcome, Result) and outcome.reason == UNKNOWN and len(calls) == 1


async def test_the_result_of_a_task_is_fetched_with_a_newer_token() -> None:
    asked_for: list[str] = []
    task = {"taskId": "1", "status": "completed", "createdAt": "2026-01-01T00:00:00Z", "ttl": 60_000}

    async def script(asked: Asked) -> None:
        asked_for.append(asked.rpc)
        if asked.rpc == "tools/call":
            await asked.result({"task": task})
        elif asked.rpc == "tasks/result" and asked_for.count("tasks/result") == 1:
            await asked.reply(b"", 401, WWW_Authenticate="Bearer")
        elif asked.rpc == "tasks/result":
            await asked.result({"content": []})
        else:
            await legacy_start(asked, TASKS, Mcp_Session_Id="s")

    async with endpoint(script) as (url, _), running(url=url, era="legacy", account=Account()) as rig:
        outcome = await rig.server(Call(MODERN, "tools/call", {"name": "t"}, {}, PATIENT))
    assert outcome == Result({"content": []}) and asked_for.count("tools/call") == 1


OPENS = {"elicitation": {"form": {}, "url": {}}}
CAN_OPEN = replace(MODERN, capabilities=OPENS, capability_key=json.dumps(OPENS, separators=(",", ":")))
VISIT = {"mode": "url", "message": "m", "url": "https://a.test/", "elicitationId": "e"}


@pytest.mark.parametrize("begins", [False, True])
async def test_pages_to_visit_first_are_none_where_the_call_has_begun(begins: bool) -> None:
    async def script(asked: Asked) -> None:
        if asked.rpc != "tools/call":
            assert await legacy_start(asked)
            return
        said = {"progressToken": asked.message["id"], "progress": 1}
        error = {"code": -32042, "message": "m", "data": {"elicitations": [VISIT]}}
        messages = [{"method": "notifications/progress", "params": said}] * begins
        await asked.stream(*map(event, [*messages, {"id": asked.message["id"], "error": error}]))

    async with endpoint(script) as (url, _), running(ask=no_answer, url=url, era="legacy") as rig:
        outcome = await rig.request("tools/call", {"name": "t"}, CAN_OPEN, progressToken="p")
    assert isinstance(outcome, Result if begins else InputRequired)


@pytest.mark.parametrize("client", [MODERN, CAN_OPEN])
async def test_no_call_follows_a_redirect_also_of_a_client_that_may_be_asked(client: Client) -> None:
    server = Scripted("legacy", 307, {"Location": "/other"})
    async with endpoint(server) as (url, _), running(ask=no_answer, url=url, era="legacy") as rig:
        assert await rig.reason("t", client) == UNKNOWN
    assert len(server.calls) == 1
