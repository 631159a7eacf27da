"""Servers that send numbers which no client can read, such as 1e999: their own call ends, and nothing else does."""

import json

import pytest
from scripted_servers import LEGACY, MODERN, Asked, child, endpoint, event, legacy_start, modern_start, running
from test_legacy_sse_servers import Older

from sluicegate.protocol.jsonrpc import PARSE_ERROR, Json

HUGE = "1e999"


def with_huge(message: Json) -> str:
    """The message as JSON, with a number in place of the text HUGE."""
    return json.dumps({"jsonrpc": "2.0", **message}).replace(f'"{HUGE}"', HUGE)


@pytest.mark.parametrize("modes", [(), ("modern",)], ids=["legacy", "modern"])
async def test_the_call_of_a_child_ends_at_once_and_the_child_stays(modes: tuple[str, ...]) -> None:
    async with running(command=child(*modes), era="modern" if modes else "legacy") as rig:
        for _ in range(6):  # more than a server may fail in a row
            assert await rig.reason("infinite") == "outcome_unknown"
        assert await rig.tool("echo", {"a": 1}) == {"a": 1}


async def test_notifications_are_dropped_and_questions_are_answered() -> None:
    async with running(command=child(), era="legacy") as rig:
        assert await rig.tool("infinite meanwhile", progressToken="p") == [PARSE_ERROR]
        assert rig.emitted == []
        assert rig.server.status == "up"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_over_http_too(era: str) -> None:
    async def script(asked: Asked) -> None:
        if await (modern_start if era == "modern" else legacy_start)(asked):
            return
        answer = {"id": asked.message["id"], "result": {"content": [], "x": HUGE, "resultType": "complete"}}
        note = {"method": "notifications/message", "params": {"level": "info", "data": HUGE}}
        done = {"content": [{"type": "text", "text": '"done"'}], "resultType": "complete"}
        match asked.message["params"]["name"]:
            case "stream":
                await asked.stream("data: " + with_huge(answer))
            case "body":
                await asked.reply(with_huge(answer).encode())
            case "note":
                await asked.stream("data: " + with_huge(note), event({"id": asked.message["id"], "result": done}))
            case _:
                await asked.result(done)

    client = MODERN if era == "modern" else LEGACY
    async with endpoint(script) as (url, _), running(url=url, era=era) as rig:
        for name in ["body", "stream"] * 3:
            assert await rig.reason(name, client) == "outcome_unknown"
        assert await rig.tool("note", client=client) == "done"
        assert await rig.tool("other", client=client) == "done"
        assert rig.emitted == [] and rig.server.status == "up"


async def test_on_the_2024_transport_too() -> None:
    async def act(server: Older, asked: Asked) -> Json | None:
        if asked.message["params"]["name"] == "huge":
            answer = with_huge({"id": asked.message["id"], "result": {"content": [], "x": HUGE}})
            await server.streams[-1].more(f"event: message\ndata: {answer}")
            return None
        return {"content": [{"type": "text", "text": '"done"'}]}

    async with endpoint(Older(act=act)) as (url, _), running(url=url) as rig:
        assert await rig.reason("huge") == "outcome_unknown"
        assert await rig.tool("other") == "done"
