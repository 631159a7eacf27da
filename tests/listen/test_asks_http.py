"""Legacy clients over HTTP are asked on their own call's stream, and nobody else's answer counts."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from asker import (
    ACCEPTED,
    ALL,
    FORM,
    ROOTED,
    ROOTS,
    SAMPLE,
    SAMPLED,
    URL,
    Asker,
    answer,
    ask_its_name,
    result_for,
    said,
)
from listen_harness import B, Site, call, messages, open_session, post, site, until

from sluicegate.listen import client_channel, http_session
from sluicegate.protocol.jsonrpc import Json, Notification, Response
from sluicegate.protocol.model import Call, InputRequired, Outcome, Result, Trail


class Stream:
    """The answer to one POST, or a GET stream, message by message."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()
        self.last_id = ""

    async def next(self) -> Json:
        """The next message; empty data is none."""
        async for line in self._lines:
            if line.startswith("id: "):
                self.last_id = line[4:]
            elif line.startswith("data: ") and len(line) > 6:
                found: Json = json.loads(line[6:])
                return found
        raise EOFError

    async def rest(self) -> list[Json]:
        return messages("\n".join([line async for line in self._lines]))


@asynccontextmanager
async def calling(client: httpx.AsyncClient, body: Any) -> AsyncIterator[Stream]:
    async with client.stream("POST", "/mcp", json=body) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream"
        yield Stream(response)


@asynccontextmanager
async def listening(client: httpx.AsyncClient, **headers: str) -> AsyncIterator[Stream]:
    async with client.stream("GET", "/mcp", headers=headers) as response:
        assert response.status_code == 200
        yield Stream(response)


async def tell(client: httpx.AsyncClient, *sent: Json) -> None:
    for message in sent:
        told = await client.post("/mcp", json=message)
        assert (told.status_code, told.content) == (202, b"")


def use(here: Site, tool: Any) -> Any:
    here.handler.tool_ask = tool  # type: ignore[attr-defined]
    return tool


def cancel(id: Any) -> Json:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}


@pytest.fixture
def abandoned() -> list[str]:
    return []


# ---------------------------------------------------------------- asked and answered


@pytest.mark.parametrize("ask", [FORM, URL, SAMPLE, ROOTS], ids=["form", "url", "sampling", "roots"])
async def test_a_question_comes_on_the_calls_own_stream_and_the_call_goes_on(ask: Json) -> None:
    async with site() as here, here.client() as client:
        asker = use(here, Asker({"q": ask}))
        await open_session(client, **ALL)
        async with calling(client, call("ask", id="c", a=1)) as stream:
            question = await stream.next()
            assert (question["jsonrpc"], question["method"]) == ("2.0", ask["method"])
            if ask is URL:
                assert len(question["params"].pop("elicitationId")) > 20
            assert question["params"] == ask.get("params", {})
            await tell(client, answer(question["id"], result_for(ask["method"])))
            end = await stream.next()
            if ask is URL:  # the id was ours, and the server is done
                assert end["method"] == "notifications/elicitation/complete"
                assert list(end["params"]) == ["elicitationId"]
                end = await stream.next()
            assert end["id"] == "c" and said(end) == [None, {"q": result_for(ask["method"])}]
            assert await stream.rest() == []
        first, second = asker.calls
        assert second.params == {
            **first.params,
            "inputResponses": {"q": result_for(ask["method"])},
            "requestState": "1",
        }
        assert second.client is first.client and second.trail.id != first.trail.id


async def test_three_questions_at_once_may_be_answered_in_any_order() -> None:
    async with site() as here, here.client() as client:
        asker = use(here, Asker({"form": FORM, "sample": SAMPLE, "roots": ROOTS}))
        await open_session(client, **ALL)
        async with calling(client, call("ask")) as stream:
            questions = [await stream.next() for _ in range(3)]
            assert len({question["id"] for question in questions}) == 3
            for question in reversed(questions):
                await tell(client, answer(question["id"], result_for(question["method"])))
            assert said(await stream.next())[1] == {"form": ACCEPTED, "sample": SAMPLED, "roots": ROOTED}
        assert len(asker.calls) == 2


async def test_two_rounds_have_ids_of_their_own_and_progress_only_rises() -> None:
    async with site() as here, here.client() as client:
        use(here, Asker({"a": FORM}, {"b": ROOTS}))
        await open_session(client, **ALL)
        body = call("ask")
        body["params"]["_meta"] = {"progressToken": "t"}
        progress, ids = [], []
        async with calling(client, body) as stream:
            while "result" not in (message := await stream.next()):
                if message["method"] == "notifications/progress":
                    progress.append(message["params"]["progress"])
                else:
                    ids.append(message["id"])
                    await tell(client, answer(message["id"], result_for(message["method"])))
            assert said(message) == [None, {"a": ACCEPTED}, {"b": ROOTED}]
        assert progress == [1, 2, 3, 4, 5] and len(set(ids)) == 2


@pytest.mark.parametrize("state", ["", "x", None])
async def test_the_state_goes_back_as_it_came(state: str | None) -> None:
    calls: list[Call] = []

    async def tool(asked: Call) -> Outcome:
        calls.append(asked)
        return InputRequired({"q": ROOTS}, state) if len(calls) == 1 else Result({"content": []})

    async with site() as here, here.client() as client:
        use(here, tool)
        await open_session(client, **ALL)
        async with calling(client, call("ask")) as stream:
            await tell(client, answer((await stream.next())["id"], ROOTED))
            assert (await stream.next())["result"] == {"content": []}
    assert calls[1].params.get("requestState", "absent") == ("absent" if state is None else state)


async def test_a_client_cannot_answer_before_it_is_asked() -> None:
    """What a newer revision calls a retry is nothing in this one."""
    async with site() as here, here.client() as client:
        asker = use(here, Asker())
        await open_session(client, **ALL)
        body = call("ask")
        body["params"] |= {"requestState": "7", "inputResponses": {"q": ACCEPTED}}
        assert (await client.post("/mcp", json=body)).status_code == 200
        assert asker.calls[0].params == {"name": "ask", "arguments": {}}


async def test_an_item_of_a_batch_is_asked_too() -> None:
    async with site() as here, here.client() as client:
        use(here, Asker({"q": ROOTS}))
        await open_session(client, "2025-03-26", **ALL)
        async with calling(client, [call("ask", id=1), call("echo", id=2)]) as stream:
            found = [await stream.next()]
            question = found[0] if "method" in found[0] else await stream.next()
            await tell(client, answer(question["id"], ROOTED))
            found += await stream.rest()
            assert {message["id"] for message in found if "result" in message} == {1, 2}


async def test_the_oldest_revision_is_asked_for_roots() -> None:
    async with site() as here, here.client() as client:
        use(here, Asker({"q": ROOTS}))
        await open_session(client, "2024-11-05", **ALL)
        async with calling(client, call("ask")) as stream:
            await tell(client, answer((await stream.next())["id"], ROOTED))
            assert said(await stream.next()) == [None, {"q": ROOTED}]


# ---------------------------------------------------------------- no answer


@pytest.mark.parametrize(
    ("response", "relayed"),
    [({"result": {"action": "decline"}}, "decline"), ({"result": {"action": "cancel"}}, "cancel"),
     ({"error": {"code": -1, "message": "no"}}, "cancel")],
)  # fmt: skip
async def test_a_user_may_decline(response: Json, relayed: str) -> None:
    async with site() as here, here.client() as client:
        use(here, Asker({"q": FORM}))
        await open_session(client, **ALL)
        async with calling(client, call("ask")) as stream:
            await tell(client, answer((await stream.next())["id"], **response))
            assert said(await stream.next()) == [None, {"q": {"action": relayed}}]


async def test_what_has_no_form_for_no_ends_the_call_and_withdraws_the_other_questions(abandoned: list[str]) -> None:
    async with site(on_abandoned=abandoned.append) as here, here.client() as client:
        asker = use(here, Asker({"sample": SAMPLE, "form": FORM}))
        await open_session(client, **ALL)
        async with calling(client, call("ask", id=5)) as stream:
            sample, form = await stream.next(), await stream.next()
            await tell(client, answer(sample["id"], error={"code": -1, "message": "User rejected sampling request"}))
            withdrawn = await stream.next()
            assert withdrawn["method"] == "notifications/cancelled"
            assert withdrawn["params"]["requestId"] == form["id"]
            end = await stream.next()
            assert end["id"] == 5 and end["result"]["isError"] is True
            assert "User rejected sampling request" in end["result"]["content"][0]["text"]
        assert [first.trail.id for first in asker.calls] == abandoned


async def test_a_prompt_that_cannot_be_answered_is_an_error() -> None:
    async with site() as here, here.client() as client:
        use(here, Asker({"q": ROOTS}))
        await open_session(client)
        body = {"jsonrpc": "2.0", "id": 1, "method": "prompts/get", "params": {"name": "ask"}}
        error = (await client.post("/mcp", json=body)).json()["error"]
        assert error["code"] == -32603 and "does not support" in error["message"]


async def test_a_client_is_not_asked_what_it_did_not_declare(abandoned: list[str]) -> None:
    async with site(on_abandoned=abandoned.append) as here, here.client() as client:
        asker = use(here, Asker({"roots": ROOTS, "form": FORM}))
        await open_session(client, roots={})
        response = await client.post("/mcp", json=call("ask"))
        assert response.headers["content-type"] == "application/json", "nothing was sent before"
        result = response.json()["result"]
        assert result["isError"] is True and "does not support" in result["content"][0]["text"]
        assert len(asker.calls) == len(abandoned) == 1


@pytest.mark.parametrize("bad", [{"action": "maybe"}, {}, {"content": {"name": "x"}}])
async def test_a_malformed_answer_ends_the_call_and_the_server_does_not_see_it(bad: Json) -> None:
    async with site() as here, here.client() as client:
        asker = use(here, Asker({"q": FORM}))
        await open_session(client, **ALL)
        async with calling(client, call("ask")) as stream:
            await tell(client, answer((await stream.next())["id"], bad))
            assert "malformed" in (await stream.next())["result"]["content"][0]["text"]
        assert len(asker.calls) == 1


@pytest.mark.parametrize("bad", [{"result": None}, {"result": [], "error": None}, {"error": "no"}])
async def test_what_is_no_response_is_refused_and_ends_the_call_as_well(bad: Json) -> None:
    async with site() as here, here.client() as client:
        use(here, Asker({"q": FORM}))
        await open_session(client, **ALL)
        async with calling(client, call("ask")) as stream:
            message = {"jsonrpc": "2.0", "id": (await stream.next())["id"], **bad}
            assert (await client.post("/mcp", json=message)).status_code == 400
            assert "malformed" in (await stream.next())["result"]["content"][0]["text"]


async def test_answers_to_what_nobody_asked_and_second_answers_change_nothing() -> None:
    async with site() as here, here.client() as client:
        use(here, Asker({"a": FORM}, {"b": FORM}))
        await open_session(client, **ALL)
        await tell(client, answer(1, ACCEPTED), answer("1", ACCEPTED))
        async with calling(client, call("ask")) as stream:
            first = await stream.next()
            await tell(client, answer(str(first["id"]), ROOTED), answer(first["id"] + 1, ROOTED))
            await tell(client, answer(first["id"], ACCEPTED), answer(first["id"], {"action": "decline"}))
            second = await stream.next()
            await tell(client, answer(first["id"], {"action": "decline"}), answer(second["id"], ACCEPTED))
            assert said(await stream.next()) == [None, {"a": ACCEPTED}, {"b": ACCEPTED}]


async def test_a_form_that_nobody_fills_in_counts_as_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_channel, "ANSWER_WITHIN", 0.01)
    async with site() as here, here.client() as client:
        await open_session(client, **ALL)
        use(here, Asker({"q": FORM}))
        async with calling(client, call("ask")) as stream:
            question, withdrawn, end = await stream.next(), await stream.next(), await stream.next()
            assert withdrawn["params"]["requestId"] == question["id"]
            assert said(end) == [None, {"q": {"action": "cancel"}}]
        use(here, Asker({"q": ROOTS}))
        async with calling(client, call("ask")) as stream:
            *_, end = await stream.rest()
            assert end["result"]["isError"] is True and "in time" in end["result"]["content"][0]["text"]


async def test_a_question_is_open_no_longer_than_the_call_of_its_server() -> None:
    async with site() as here, here.client() as client:
        await open_session(client, **ALL)

        async def ask(call: Call) -> Outcome:
            return InputRequired({"q": FORM}, "s", is_held=True, remaining_seconds=0.05)

        use(here, ask)
        async with calling(client, call("ask")) as stream:
            question, withdrawn, end = await stream.next(), await stream.next(), await stream.next()
        assert withdrawn["params"]["requestId"] == question["id"]
        assert end["result"]["isError"] is True and end["result"]["_meta"]["dev.sluice/reason"] == "timeout"


# ---------------------------------------------------------------- bounds


async def test_a_stateless_server_may_ask_ten_times_and_one_that_holds_the_call_as_often_as_it_likes() -> None:
    async with site() as here, here.client() as client:
        await open_session(client, **ALL)
        for held in (False, True):
            asker = use(here, Asker(*[{"q": ROOTS}] * 15, is_held=held))
            async with calling(client, call("ask")) as stream:
                while "result" not in (message := await stream.next()):
                    await tell(client, answer(message["id"], ROOTED))
            assert len(asker.calls) == (16 if held else 11)
            assert ("more than 10 times" in message["result"]["content"][0]["text"]) is not held


async def test_a_state_alone_is_brought_back_without_a_question() -> None:
    async with site() as here, here.client() as client:
        asker = use(here, Asker({}, {}))
        await open_session(client)
        response = await client.post("/mcp", json=call("ask"))
        assert response.json()["result"]["content"][0]["text"] == "[null, null, null]"
        assert [asked.params.get("requestState") for asked in asker.calls] == [None, "1", "2"]


async def test_a_session_has_room_for_so_many_questions() -> None:
    async with site() as here, here.client() as client:
        use(here, Asker({f"q{number}": ROOTS for number in range(21)}))
        await open_session(client, **ALL)
        async with calling(client, call("ask")) as stream:
            *found, end = await stream.rest()
            assert "too many" in end["result"]["content"][0]["text"]
            asked = [message["id"] for message in found if message["method"] == "roots/list"]
            withdrawn = [message["params"]["requestId"] for message in found if "requestId" in message["params"]]
            assert len(asked) == 20 and asked == withdrawn
        use(here, Asker({"q": ROOTS}))
        async with calling(client, call("ask")) as stream:
            await tell(client, answer((await stream.next())["id"], ROOTED))
            assert said(await stream.next()) == [None, {"q": ROOTED}]


# ---------------------------------------------------------------- going away


async def test_a_cancelled_call_withdraws_its_questions_and_is_answered_nothing(abandoned: list[str]) -> None:
    async with site(on_abandoned=abandoned.append) as here, here.client() as client:
        asker = use(here, Asker({"a": FORM, "b": ROOTS}))
        await open_session(client, **ALL)
        async with calling(client, call("ask", id=7)) as stream:
            ids = [(await stream.next())["id"] for _ in range(2)]
            await tell(client, answer(ids[1], ROOTED), cancel(7))
            withdrawn = await stream.next()
            assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", ids[0])
            assert await stream.rest() == []
        await tell(client, answer(ids[0], ACCEPTED))
        assert len(asker.calls) == 1 and abandoned == [asker.calls[0].trail.id]
        assert (await client.post("/mcp", json=call("echo"))).status_code == 200


async def test_a_session_that_ends_takes_its_questions_with_it(abandoned: list[str]) -> None:
    async with site(on_abandoned=abandoned.append) as here, here.client() as client:
        asker = use(here, Asker({"a": FORM}))
        id = await open_session(client, **ALL)
        async with calling(client, call("ask")) as stream:
            await stream.next()
            await client.delete("/mcp")
            assert await stream.rest() == []
        assert here.ended == [id] and abandoned == [asker.calls[0].trail.id]


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_client_that_lost_its_stream_is_asked_again_when_it_resumes(revision: str) -> None:
    ask = ROOTS if revision < "2025-06-18" else FORM
    async with site() as here, here.client() as client:
        use(here, Asker({"first": ROOTS}, {"second": ask}))
        id = await open_session(client, revision, **ALL)
        raw = await here.raw(post(call("ask", id="c"), f"Mcp-Session-Id: {id}"))
        assert (await raw.head())[0] == 200
        await raw.reader.readuntil(b"roots/list")
        raw.close()
        await until(lambda: here.server.connections == 1)
        async with listening(client, **{"last-event-id": "1-0"}) as stream:
            first = await stream.next()
            assert first["method"] == "roots/list"
            await tell(client, answer(first["id"], ROOTED))
            second = await stream.next()
            assert second["method"] == ask["method"]
            await tell(client, answer(second["id"], result_for(ask["method"])))
            end = await stream.next()
            assert end["id"] == "c" and len(said(end)) == 3


async def test_a_client_that_is_gone_before_its_first_question_is_not_waited_for(abandoned: list[str]) -> None:
    async with site(on_abandoned=abandoned.append) as here, here.client() as client:

        async def tool(asked: Call) -> Outcome:
            await here.handler.tool_wait(asked)
            return InputRequired({"q": ROOTS}, "s")

        use(here, tool)
        id = await open_session(client, **ALL)
        raw = await here.raw(post(call("ask"), f"Mcp-Session-Id: {id}"))
        await here.handler.waiting.wait()
        raw.close()
        await until(lambda: here.server.connections == 1)
        here.handler.go.set()
        await until(lambda: len(abandoned) == 1)


# ---------------------------------------------------------------- isolation


async def test_sessions_that_are_asked_at_once_never_cross() -> None:
    """Their questions have the same ids; the session tells whose an answer is."""
    async with site() as here, here.client() as one, here.client(B) as other, here.client() as third:
        use(here, ask_its_name)
        for client in (one, other, third):
            await open_session(client, **ALL)
        ends: dict[str, str] = {}

        async def run(client: httpx.AsyncClient, name: str) -> None:
            async with calling(client, call("ask", id=1, who=name)) as stream:
                question = await stream.next()
                assert question["params"]["message"] == name
                asked.append(question["id"])
                await until(lambda: len(asked) == 9)
                for foreign in (one, other, third):
                    if foreign is not client:  # theirs may be waiting under that id, too: as a string it never is
                        await tell(foreign, answer(str(question["id"]), {"action": "accept", "content": {"name": "!"}}))
                await tell(client, answer(question["id"], {"action": "accept", "content": {"name": name}}))
                ends[name] = (await stream.next())["result"]["content"][0]["text"]

        asked: list[int] = []
        async with anyio.create_task_group() as group:
            for number in range(3):
                for letter, client in (("a", one), ("b", other), ("c", third)):
                    group.start_soon(run, client, f"{letter}{number}")
        assert len(set(asked)) == 3, "each session counts for itself"
        assert ends == {name: f"{name} {name} state of {name}" for name in ends} and len(ends) == 9


async def test_anothers_answer_is_no_answer() -> None:
    async with site() as here, here.client() as mine, here.client(B) as other:
        use(here, Asker({"q": FORM}))
        id = await open_session(mine, **ALL)
        await open_session(other, **ALL)
        async with calling(mine, call("ask")) as stream:
            question = await stream.next()
            await tell(other, answer(question["id"], {"action": "decline"}))
            theirs = {"mcp-session-id": id}
            stolen = await other.post("/mcp", json=answer(question["id"], {"action": "decline"}), headers=theirs)
            assert stolen.status_code == 404
            await tell(mine, answer(question["id"], ACCEPTED))
            assert said(await stream.next()) == [None, {"q": ACCEPTED}]


# ---------------------------------------------------------------- outside of any call


async def test_a_session_is_asked_aside_on_its_own_stream() -> None:
    async with site() as here, here.client() as client, anyio.create_task_group() as group:
        id = await open_session(client, **ALL)
        answers: list[Response | None] = []

        async def ask(method: str, params: Json) -> None:
            answers.append(await here.listener.sessions.ask(id, method, params))

        group.start_soon(ask, "roots/list", {})  # before there is a stream: clients open it right after
        async with listening(client) as stream:
            question = await stream.next()
            assert (question["method"], question["params"]) == ("roots/list", {})
            await tell(client, answer(question["id"], ROOTED))
            await until(lambda: len(answers) == 1)
            assert answers[0] is not None and answers[0].result == ROOTED
            group.start_soon(ask, "sampling/createMessage", SAMPLE["params"])
            question = await stream.next()
            await tell(client, answer(question["id"], error={"code": -1, "message": "no"}))
            await until(lambda: len(answers) == 2)
            assert answers[1] is not None and answers[1].error == {"code": -1, "message": "no"}


async def test_nobody_is_asked_aside_who_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_session, "STREAM_WITHIN", 0.01)
    monkeypatch.setattr(client_channel, "ASIDE_WITHIN", 0.01)
    async with site() as here, here.client() as client:
        id = await open_session(client, roots={})
        ask = here.listener.sessions.ask
        assert await ask("no such session", "roots/list", {}) is None
        assert await ask(id, "sampling/createMessage", SAMPLE["params"]) is None, "not declared"
        assert await ask(id, "roots/list", {}) is None, "no stream"
        async with listening(client) as stream:
            assert await ask(id, "roots/list", {}) is None, "no answer"
            question, withdrawn = await stream.next(), await stream.next()
            assert withdrawn["params"]["requestId"] == question["id"]


async def test_a_question_aside_survives_the_stream_and_not_the_session() -> None:
    async with site() as here, here.client() as client, anyio.create_task_group() as group:
        id = await open_session(client, **ALL)
        answers: list[Response | None] = []

        async def ask() -> None:
            answers.append(await here.listener.sessions.ask(id, "roots/list", {}))

        async with listening(client) as stream:
            group.start_soon(ask)
            first = await stream.next()
        async with listening(client, **{"last-event-id": "0-0"}) as stream:
            assert await stream.next() == first
            await client.delete("/mcp")
            await until(lambda: answers == [None])


# ---------------------------------------------------------------- what clients tell, and are told


async def test_changed_roots_reach_the_servers_once_for_each_time_they_are_news() -> None:
    changed = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
    async with site() as here, here.client() as client:
        await open_session(client, roots={"listChanged": True})
        await tell(client, changed)

        def told() -> list[Call]:
            return [one for one in here.handler.calls if one.method == changed["method"]]

        await until(lambda: len(told()) == 1)
        assert told()[0].client.session == client.headers["mcp-session-id"] and told()[0].params == {}
        await open_session(client)
        await tell(client, changed)
        assert (await client.post("/mcp", json=call("echo"))).status_code == 200
        assert len(told()) == 1, "who has no roots has no news of them"


async def test_logs_outside_of_calls_go_to_the_stream_from_the_sessions_level_on() -> None:
    def log(level: str, data: str) -> Notification:
        return Notification("notifications/message", {"level": level, "data": data})

    async with site() as here, here.client() as client:
        await open_session(client)
        await until(lambda: len(here.handler.listening) == 1)
        (told,) = here.handler.listening
        await told.emit(log("error", "before there is a stream"))
        async with listening(client) as stream:
            await told.emit(Notification("notifications/tools/list_changed", {}))
            assert (await stream.next())["method"] == "notifications/tools/list_changed"
            for note in (log("debug", "a"), log("info", "b"), log("info", "c")):
                await told.emit(note)
            assert [(await stream.next())["params"]["data"] for _ in "bc"] == ["b", "c"], "info, before it is said"
            body = {"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": "error"}}
            assert (await client.post("/mcp", json=body)).json()["result"] == {}
            for note in (log("warning", "d"), log("error", "e")):
                await told.emit(note)
            assert (await stream.next())["params"]["data"] == "e"


@pytest.mark.parametrize(("revision", "hears"), [("2025-11-25", True), ("2025-06-18", False)])
async def test_a_visited_page_is_news_where_pages_can_be_asked_for(revision: str, hears: bool) -> None:
    async with site() as here, here.client() as client:
        await open_session(client, revision)
        await until(lambda: len(here.handler.listening) == 1)
        (told,) = here.handler.listening
        async with listening(client) as stream:
            await told.emit(Notification("notifications/elicitation/complete", {"elicitationId": "1"}))
            await told.emit(Notification("notifications/elicitation/complete", {"elicitationId": "2"}))
            await told.emit(Notification("notifications/tools/list_changed", {}))
            found = [(await stream.next())["params"]["elicitationId"] for _ in "12"] if hears else []
            assert found == (["1", "2"] if hears else [])
            assert (await stream.next())["method"] == "notifications/tools/list_changed"


def test_nothing_is_asked_after_the_end() -> None:
    asks = client_channel.Asks()
    assert len(asks) == 0 and asks.put(lambda response: None) == 1 and len(asks) == 1
    asks.close()
    assert asks.put(lambda response: None) is None
    assert Trail("x").round is None
