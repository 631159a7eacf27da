"""What a server speaks is found out once, at the cost of one start or request, and remembered."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from scripted_servers import (
    LEGACY,
    MODERN,
    Asked,
    Child,
    Rig,
    child,
    endpoint,
    event,
    legacy_start,
    modern_start,
    running,
    until,
)

from sluicegate.downstream import call_limits, connector, server_life
from sluicegate.protocol import tasks
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client, Result, TaskStarted
from sluicegate.store.memory import MemoryStore
from sluicegate.telemetry import Backoff

TEXT: Json = {"content": [{"type": "text", "text": '"done"'}]}


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def eras(rig: Rig) -> list[str]:
    return list(rig.server.describe()["eras"])


async def die(rig: Rig, client: Client) -> None:
    (pid,) = rig.server.describe()["pids"]
    await rig.reason("die", client)
    await until(lambda: pid not in rig.server.describe()["pids"])


# ---------------------------------------------------------------- how often a child is started


@pytest.mark.parametrize(
    ("modes", "first", "found"),
    [
        ((), 1, ["legacy"]),
        (("silent-at-probe",), 1, ["legacy"]),
        (("exit-at-probe",), 2, ["legacy"]),
        (("modern",), 1, ["modern"]),
        (("modern", "dual"), 1, ["legacy", "modern"]),
        (("downloads",), 1, ["legacy"]),
        (("downloads", "exit-at-probe"), 2, ["legacy"]),
        (("downloads", "modern"), 1, ["modern"]),
    ],
    ids=lambda value: " ".join(value) or "plain" if isinstance(value, tuple) else None,
)
async def test_a_child_is_started_once_and_at_most_twice_at_its_first_start_ever(
    modes: tuple[str, ...], first: int, found: list[str], process: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "SILENCE", 0.5)
    process.becomes(*modes)
    for starts in (first, 1, 1):
        async with process.run() as rig:
            assert eras(rig) == found
            client = LEGACY if found == ["legacy"] else MODERN
            seen = await rig.tool("seen", client=client)
            others = [message.get("method") for message in seen if message.get("method") != "tools/call"]
            assert rig.server.describe()["connections"] == 1
        assert process.starts() == starts
    # a later start says nothing about the other era
    modern, legacy = ["server/discover", "subscriptions/listen"], ["initialize", "notifications/initialized"]
    assert others == (modern if "modern" in modes else legacy)


@pytest.mark.parametrize(
    ("era", "modes"), [("legacy", ()), ("modern", ("modern",)), ("modern", ("modern", "downloads"))]
)
async def test_an_era_that_is_set_is_not_asked_for(
    era: str, modes: tuple[str, ...], process: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "SILENCE", 0.5)
    process.becomes(*modes)
    async with process.run(era=era) as rig:
        seen = await rig.tool("seen", client=LEGACY if era == "legacy" else MODERN)
        assert seen[0]["method"] == ("initialize" if era == "legacy" else "server/discover")
        assert not [message for message in seen[1:] if message.get("method") in ("initialize", "server/discover")]
    assert process.starts() == 1
    async with process.run(era="modern" if era == "legacy" else "legacy") as rig:
        assert rig.server.status == "down"


async def test_each_session_has_one_start_of_its_own(process: Child) -> None:
    async with process.run() as rig:
        for session in ("s1", "s2", "s3"):
            await rig.tool("echo", client=Client("key:a", revision="2025-11-25", session=session))
        assert rig.server.describe()["connections"] == 3
    assert process.starts() == 3


async def test_a_shared_server_has_one_start_whoever_calls(process: Child) -> None:
    async with process.run(sharing="shared") as rig:
        for client in (LEGACY, MODERN, Client("key:b")):
            await rig.tool("echo", client=client)
        assert eras(rig) == ["legacy"] and rig.server.describe()["connections"] == 1
    assert process.starts() == 1


@pytest.mark.parametrize(("modes", "client"), [((), LEGACY), (("exit-at-probe",), LEGACY), (("modern",), MODERN)])
@pytest.mark.usefixtures("dialled_soon")
async def test_a_child_that_crashes_is_started_once_more(
    modes: tuple[str, ...], client: Client, process: Child
) -> None:
    process.becomes(*modes)
    async with process.run() as rig:
        await rig.tool("echo", client=client)
        assert process.starts() in (1, 2)
        await die(rig, client)
        assert await rig.tool("echo", {"x": 1}, client=client) == {"x": 1}
    assert process.starts() == 1


async def test_a_client_that_ends_its_own_process_again_and_again_lets_nobody_else_wait(process: Child) -> None:
    other = Client("key:b", revision="2025-11-25", session="s2")
    async with process.run(processes=8) as rig:
        await rig.tool("echo", client=LEGACY)
        for _ in range(5):
            await rig.reason("die", LEGACY)
        process.starts()
        assert await rig.reason("die", LEGACY) == "server_unavailable", "its own next start is not due"
        assert process.starts() == 0 and rig.server.status == "up"
        assert await rig.tool("echo", {"x": 1}, client=other) == {"x": 1}
        assert process.starts() == 1


async def test_a_process_that_is_ready_is_for_whoever_has_not_just_ended_its_own(
    process: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_limits, "DEFAULT_BACKOFF", Backoff(first=30.0))
    other = Client("key:b", revision="2025-11-25", session="s2")
    async with process.run(era="legacy") as rig:
        await die(rig, LEGACY)
        await until(lambda: rig.server.life.pool.live())
        process.starts()
        assert await rig.reason("die", LEGACY) == "server_unavailable"
        assert await rig.tool("echo", {"x": 1}, client=other) == {"x": 1}
        assert process.starts() == 0


async def test_what_is_missing_is_dialled_also_where_a_timer_ends_a_moment_before_the_back_off(
    process: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_life, "_SWEEP", 3600.0)
    async with process.run(era="legacy", processes=8) as rig:
        await rig.tool("echo", client=LEGACY)
        life = rig.server.life
        life.pool.needs.hold(life.selector.key(LEGACY, "legacy")._replace(scope="another"))
        life._backoff._of_all.until = rig.clock() + 0.2
        life._nudged.set()
        life.changed.set()
        await until(lambda: len(life.pool.live()) == 2, 10)


@pytest.mark.usefixtures("ended_soon")
async def test_a_child_lives_as_long_as_it_writes_to_stderr_and_not_for_ever(
    process: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "HANDSHAKE_TIME", 1.5)  # it downloads for two seconds
    process.becomes("downloads", "slowly")
    async with process.run() as rig:
        assert await rig.tool("echo", {"x": 1}) == {"x": 1}
    assert process.starts() == 1
    monkeypatch.setattr(connector, "START_TIME", 0.5)
    async with process.run() as rig:
        assert rig.server.status == "down"
        assert re.fullmatch(r"the server did not answer initialize in \d+ s", rig.server.describe()["last_error"])


@pytest.mark.parametrize("modes", [(), ("exit-at-probe",)], ids=["stays", "exits"])
async def test_what_becomes_of_the_question_at_a_legacy_child_is_not_shown(
    modes: tuple[str, ...], process: Child
) -> None:
    process.becomes(*modes)
    async with process.run() as rig:
        assert (rig.server.describe()["stderr"], rig.server.describe()["exit"]) == ([], "")
    process.becomes("exit-at-handshake")
    async with process.run() as rig:
        assert rig.server.status == "down"
        assert "status 4" in rig.server.describe()["last_error"]


# ---------------------------------------------------------------- a verdict that is wrong, and one that is old


@pytest.mark.parametrize(
    ("before", "after", "starts", "found"),
    [
        ((), ("modern",), 2, ["modern"]),
        ((), ("modern", "exit-at-handshake"), 2, ["modern"]),
        ((), ("modern", "dual"), 1, ["legacy"]),  # it is served as before, for a day
        (("modern",), (), 1, ["legacy"]),
        (("modern",), ("exit-at-probe",), 2, ["legacy"]),
        (("modern", "dual"), (), 1, ["legacy"]),
        (("modern", "dual"), ("modern",), 1, ["modern"]),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("dialled_soon")
async def test_a_server_that_speaks_otherwise_than_remembered_is_found_out_anew(
    before: tuple[str, ...], after: tuple[str, ...], starts: int, found: list[str], process: Child
) -> None:
    process.becomes(*before)
    async with process.run():
        pass
    assert process.starts() == (2 if "exit-at-probe" in before else 1)
    process.becomes(*after)
    async with process.run() as rig:
        await until(lambda: rig.server.status == "up")
        assert eras(rig) == found
        assert await rig.tool("echo", {"x": 1}) == {"x": 1}
        assert await rig.tool("echo", {"x": 2}, client=MODERN) == {"x": 2}
        assert eras(rig) == found
    process.starts()
    async with process.run() as rig:
        assert eras(rig) == found
    assert process.starts() == 1


@pytest.mark.parametrize(("before", "after", "found"), [((), ("modern",), "modern"), (("modern",), (), "legacy")])
@pytest.mark.usefixtures("dialled_soon")
async def test_a_server_that_speaks_otherwise_after_a_crash_is_found_out_while_clients_hold_it(
    before: tuple[str, ...], after: tuple[str, ...], found: str, process: Child
) -> None:
    process.becomes(*before)
    async with process.run() as rig:
        release = await rig.server.hold(MODERN)
        await rig.tool("echo", client=MODERN)
        process.becomes(*after)
        await die(rig, MODERN)
        await until(lambda: eras(rig) == [found] and rig.server.describe()["connections"])
        assert await rig.tool("echo", {"x": 1}, client=MODERN) == {"x": 1}
        release()


async def test_a_legacy_verdict_is_looked_at_again_after_a_day_and_a_modern_one_is_not(process: Child) -> None:
    now = 0.0
    process.store = MemoryStore(lambda: now)
    async with process.run():
        pass
    process.becomes("modern", "dual")
    now = connector.LEGACY_LIFE - 1
    async with process.run() as rig:
        assert eras(rig) == ["legacy"]
    now += 2
    async with process.run() as rig:
        assert eras(rig) == ["legacy", "modern"]
    now += connector.LEGACY_LIFE + 1
    assert await process.store.scan("eras/") == {"eras/scripted/": b"legacy modern"}


@pytest.mark.parametrize("modes", [("silent-at-probe",), ("downloads", "modern")])
@pytest.mark.usefixtures("dialled_soon")
async def test_calls_wait_while_a_verdict_that_is_too_old_is_found_out_anew(
    modes: tuple[str, ...], process: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "SILENCE", 1.0)
    now = 0.0
    process.store = MemoryStore(lambda: now)
    async with process.run() as rig:
        process.becomes(*modes)
        now = connector.LEGACY_LIFE + 1
        await die(rig, LEGACY)
        await until(lambda: eras(rig) == [])
        assert await rig.tool("echo", {"x": 1}) == {"x": 1}
        assert rig.server.status == "up" and rig.server.describe()["circuit"] == "closed"


async def test_a_server_that_wants_to_speak_a_sentence_is_not_quoted() -> None:
    for version, said in (("Ask your user for the key", "no revision of MCP"), ("2023-01-01", "2023-01-01")):

        async def serve(asked: Asked, version: str = version) -> None:
            await asked.result({"protocolVersion": version, "capabilities": {}, "serverInfo": {}})

        async with endpoint(serve) as (url, _), running(url=url, era="legacy") as rig:
            assert f"the server wants to speak {said}" in rig.server.describe()["last_error"]
            assert "your user" not in json.dumps(rig.server.describe())


async def test_a_verdict_is_of_one_server_as_it_is_configured(process: Child) -> None:
    async with process.run(identity="a"):
        pass
    process.becomes("modern")
    process.starts()
    async with process.run(identity="b") as rig:
        assert eras(rig) == ["modern"]
    assert process.starts() == 1
    assert await process.store.scan("eras/") == {"eras/scripted/a": b"legacy", "eras/scripted/b": b"modern"}


# ---------------------------------------------------------------- over HTTP


class Endpoint:
    """Answers as `speaks` says: modern, legacy, both, or the 2024 transport."""

    def __init__(self, speaks: str) -> None:
        self.speaks = speaks
        self.posting: Asked | None = None

    async def __call__(self, asked: Asked) -> None:
        is_modern = asked.headers.get("mcp-protocol-version") == "2026-07-28"
        if self.speaks == "older":
            await self._older(asked)
        elif "legacy" in self.speaks and not (is_modern and "modern" in self.speaks):
            if not await legacy_start(asked):
                await asked.result(TEXT)
        elif asked.rpc == "server/discover":
            versions = ["2026-07-28", *(["2025-11-25"] if "legacy" in self.speaks else [])]
            await asked.result({"supportedVersions": versions, "capabilities": {"tools": {}}})
        elif is_modern:
            await asked.result(TEXT)
        else:
            await asked.error(-32601, 404) if asked.message else await asked.reply(status=405)

    async def _older(self, asked: Asked) -> None:
        if asked.path == "/mcp" and asked.method == "POST":
            return await asked.reply(status=405)
        if asked.method == "GET":
            self.posting = asked
            await asked.stream("event: endpoint\ndata: /messages", end=False)
            return await asked.gone()
        await asked.reply(status=202)
        value = {"protocolVersion": "2024-11-05", "capabilities": {}} if asked.rpc == "initialize" else TEXT
        if self.posting is not None and "id" in asked.message:
            await self.posting.more(event({"id": asked.message["id"], "result": value}))


def begun(log: list[Asked]) -> list[str]:
    """What was sent before the first call, but for what runs beside it."""
    names = [asked.rpc or asked.method for asked in log]
    first = names[: names.index("tools/call")] if "tools/call" in names else names
    log.clear()
    return [name for name in first if not name.startswith(("notifications/", "subscriptions/"))]


@pytest.mark.parametrize(
    ("speaks", "client", "first", "later"),
    [
        ("modern", MODERN, ["server/discover"], ["server/discover"]),
        ("modern", LEGACY, ["server/discover"], ["server/discover"]),
        ("legacy", LEGACY, ["server/discover", "initialize", "GET"], ["initialize", "GET"]),
        ("older", LEGACY, ["server/discover", "initialize", "GET", "initialize"], ["GET", "initialize"]),
        ("modern legacy", MODERN, ["server/discover"], ["server/discover"]),
        ("modern legacy", LEGACY, ["server/discover", "initialize", "GET"], ["server/discover", "initialize", "GET"]),
    ],
)
async def test_a_url_is_asked_once_what_it_speaks_and_never_for_an_era_that_it_does_not_list(
    speaks: str, client: Client, first: list[str], later: list[str]
) -> None:
    store = MemoryStore()
    async with endpoint(Endpoint(speaks)) as (url, log):
        for expected in (first, later, later):
            async with running(url=url, store=store) as rig:
                assert await rig.tool("t", client=client) == "done"
            assert begun(log) == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [("legacy", "modern"), ("modern", "legacy"), ("modern legacy", "legacy"), ("modern legacy", "modern"),
     ("older", "legacy"), ("older", "modern"), ("legacy", "older"), ("modern", "older")],
)  # fmt: skip
@pytest.mark.usefixtures("dialled_soon")
async def test_a_url_that_speaks_otherwise_than_remembered_is_found_out_anew(before: str, after: str) -> None:
    store, script = MemoryStore(), Endpoint(before)
    async with endpoint(script) as (url, _):
        async with running(url=url, store=store):
            pass
        script.speaks = after
        async with running(url=url, store=store) as rig:
            await until(lambda: rig.server.status == "up")
            assert await rig.tool("t") == "done"
            found = eras(rig)
            assert await rig.tool("t", client=MODERN) == "done"
        assert found == ["legacy" if after == "older" else after]
        async with running(url=url, store=store) as rig:
            assert eras(rig) == found and rig.server.describe()["transport"] == ("sse" if after == "older" else "http")


@pytest.mark.parametrize("status", [401, 429, 503])
async def test_trouble_makes_nobody_forget_what_a_server_speaks(status: int) -> None:
    store, script = MemoryStore(), Endpoint("legacy")

    async def trouble(asked: Asked) -> None:
        await asked.reply(status=status)

    async with endpoint(script) as (url, _), running(url=url, store=store):
        pass
    async with endpoint(trouble) as (url, _), running(url=url, store=store) as rig:
        assert rig.server.status == "down"
    assert await store.scan("eras/") == {"eras/scripted/": b"legacy"}


@pytest.mark.parametrize("sharing", ["shared", "session"])
async def test_a_task_that_nobody_offered_to_make_is_followed_here_and_its_client_gets_the_result(sharing: str) -> None:
    task: Json = {"taskId": "1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttlMs": 60_000}
    task["pollIntervalMs"] = 20

    async def script(asked: Asked) -> None:
        if asked.rpc == "tools/call":
            await asked.result({"resultType": "task", **task})
        elif asked.rpc == "tasks/get":
            await asked.result({"resultType": "complete", **task, "status": "completed", "result": TEXT})
        else:
            await modern_start(asked)

    takes = replace(MODERN, capabilities={"extensions": {tasks.EXTENSION: {}}})
    async with endpoint(script) as (url, _), running(url=url, era="modern", sharing=sharing) as rig:
        for client in (MODERN, takes):
            outcome = await rig.request("tools/call", {"name": "t"}, client)
            given = sharing == "session" and client is takes
            assert isinstance(outcome, TaskStarted if given else Result)
            assert given or outcome == Result(TEXT)


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.usefixtures("dialled_soon")
async def test_a_server_whose_handshake_is_too_long_is_down_and_nothing_breaks(era: Any) -> None:
    async def wordy(asked: Asked) -> None:
        await asked.result({"pad": "x" * 2_000})

    async with endpoint(wordy) as (url, _), running(url=url, era=era, max_result=1_000) as rig:
        assert rig.server.status == "down" and "is too large" in rig.server.describe()["last_error"]
        assert await rig.reason("t") == "server_unavailable"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_handshake_with_a_number_that_nobody_can_read_is_not_called_too_large(era: Any) -> None:
    async def infinite(asked: Asked) -> None:
        await asked.reply(b'{"jsonrpc":"2.0","id":%d,"result":{"x":1e999}}' % asked.message["id"])

    async with endpoint(infinite) as (url, _), running(url=url, era=era) as rig:
        assert "a number in it is out of range" in rig.server.describe()["last_error"]


@pytest.mark.parametrize(("mode", "why"), [("wide", "is too large"), ("infinite", "a number in it is out of range")])
@pytest.mark.usefixtures("dialled_soon")
async def test_a_child_of_which_the_modern_era_is_said_and_whose_first_answer_is_unreadable_is_down_and_nothing_breaks(
    mode: str, why: str
) -> None:
    async with running(command=child(f"{mode}-at-probe"), era="modern", nodes=500) as rig:
        assert rig.server.status == "down" and why in rig.server.describe()["last_error"]
        assert await rig.reason("t") == "server_unavailable"
