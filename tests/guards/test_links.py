"""Resources in an answer: what a client may not read is found and taken out, in whatever place it stands."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from sluicegate.guards import links as links_module
from sluicegate.guards.links import FLAG, MAX_LINKS, TAKEN_OUT, Links, may_hold
from sluicegate.protocol.jsonrpc import Json, dump
from sluicegate.protocol.model import Call, Client, Decision, Target, Verdict

READ, TOOL = Target("git", "res", "file:///asked", "git+file:///asked"), Target("git", "tool", "x", "git__x")
VERDICTS = {"file:///free": Verdict.ALLOW, "file:///ask": Verdict.ASK}
FREE, ASK, BAD = "file:///free", "file:///ask", "file:///bad"


def links(target: Target = TOOL) -> Links:
    def decide(call: Call, asked: Target) -> Decision:
        assert (call.method, asked.server, asked.kind) == ("resources/read", "git", "res")
        return Decision(VERDICTS.get(asked.own, Verdict.DENY), "rule", "because")

    return Links(Call(Client("key:a"), "tools/call", {}, {}, target), target, decide)


def link(uri: Any) -> Json:
    return {"type": "resource_link", "name": "n", "uri": uri}


def embedded(uri: Any) -> Json:
    return {"type": "resource", "resource": {"uri": uri, "text": "t"}}


@pytest.mark.parametrize(
    ("item", "is_bad"),
    [
        (link(FREE), False), (link(ASK), False), (link(BAD), True), (link("https://x/"), False),
        (link("HTTP://x/"), False), (link(7), False), (link("file:///free/../bad"), True),
        (embedded(FREE), False), (embedded(ASK), True), (embedded(BAD), True), (embedded("https://x/"), True),
        ({"type": "text", "text": BAD}, False), ({"uri": BAD}, False),
        (embedded(None), True), (embedded([BAD]), True), ({"type": "resource", "resource": {"text": "t"}}, True),
        ({"resource": {"id": 7}}, False), ({"type": "resource", "resource": {"id": 7}}, False),
        ({"type": "other", "resource": {"uri": None}}, False),
    ],
)  # fmt: skip
async def test_a_link_may_be_known_and_contents_may_be_read(item: Json, is_bad: bool) -> None:
    words: Json = {"type": "text", "text": "words"}
    assert await links().found([words, {"deep": [item]}]) is is_bad
    assert await links().in_result({"content": [words, item]}) is is_bad
    made = await links().without({"content": [words, item], "isError": False, "messages": [{"content": item}]})
    shown = TAKEN_OUT if is_bad else item
    assert made == {"content": [words, shown], "isError": False, "messages": [{"content": shown}]}
    structured = await links().without({"content": [], "structuredContent": {"a": [item]}})
    assert structured == ({"content": []} if is_bad else {"content": [], "structuredContent": {"a": [item]}})
    assert not is_bad or may_hold(dump({"content": [item]}), {"content": [item]})


async def test_contents_of_what_was_asked_for_stay_and_others_go() -> None:
    asked, free, ask, web = ({"uri": uri, "text": "t"} for uri in (READ.own, FREE, ASK, "https://x/"))
    assert not await links(READ).in_result({"contents": [asked, free]})
    for other in (ask, web):
        assert await links(READ).in_result({"contents": [asked, other]})
        assert await links(READ).without({"contents": [asked, other, free, "odd"]}) == {"contents": [asked, free]}
    assert await links(TOOL).in_result({"contents": [asked]}), "a tool asked for no resource"
    assert await links(TOOL).without({"contents": "odd"}) == {"contents": []} and FLAG == "resources"


async def test_contents_without_a_uri_are_of_nobody_knows_what() -> None:
    nameless: list[Json] = [{"text": "t"}, {"uri": None, "text": "t"}, {"uri": [FREE], "blob": ""}]
    for part in nameless:
        assert await links(TOOL).in_result({"contents": [part]})
        assert await links(TOOL).without({"contents": [part]}) == {"contents": []}
        assert await links(READ).in_result({"contents": [part]}) is ("uri" in part), "else it is what was asked for"


@pytest.mark.parametrize("item", [link(BAD), embedded(BAD)])
async def test_structured_content_goes_with_every_text_that_says_the_same(item: Json) -> None:
    structured = {"a": [item]}
    words: Json = {"type": "text", "text": "words"}
    texts: list[Json] = [
        {"type": "text", "text": text}
        for text in (dump(structured).decode(), " " + json.dumps(structured, indent=2), json.dumps({"result": item}))
    ]
    large: Json = {"type": "text", "text": json.dumps([structured] * 10_000)}
    deep: Json = {"type": "text", "text": "[" * 100_000}
    given = {"content": [words, *texts, large, deep], "structuredContent": structured}
    shown = {"content": [words, *[TAKEN_OUT] * 5]}
    assert await links().without(given) == shown
    assert await links().without({"result": given, "taskId": "t"}) == {"result": shown, "taskId": "t"}, "of a task"
    harmless = {"content": [words, {"type": "text", "text": '{"a": 1}'}, item], "structuredContent": {"a": 1}}
    assert await links().without(harmless) == {**harmless, "content": [*harmless["content"][:-1], TAKEN_OUT]}


async def test_a_result_that_is_a_link_itself_loses_what_makes_it_one() -> None:
    for item in (link(BAD), embedded(BAD), {"resource": {"uri": BAD, "text": "t"}}):
        given = {"content": [], **item}
        assert await links().in_result(given)
        made = await links().without(given)
        assert not await links().in_result(made) and made["content"] == [] and BAD not in str(made)


def test_a_quick_look_says_no_only_where_nothing_can_be() -> None:
    assert may_hold(None, {}) and may_hold(b'{"contents":[]}', {"contents": []})
    assert may_hold(b'{"type":"resource_link"}', {"type": "resource_link"})
    assert not may_hold(b'{"content":[{"type":"text"}]}', {"content": [{"type": "text"}]})


async def test_others_run_between_the_decisions_on_many_links_and_each_uri_is_decided_on_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links_module, "STEP", 0.0)
    decided: list[str] = []
    turns = 0
    before: list[int] = []

    def decide(call: Call, asked: Target) -> Decision:
        before.append(turns)
        decided.append(asked.own)
        return Decision(Verdict.DENY if asked.own == f"{FREE}/299" else Verdict.ALLOW, "rule", "because")

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await asyncio.sleep(0)
    result: Json = {"content": [link(f"{FREE}/{number}") for number in range(300)]}
    look = Links(Call(Client("key:a"), "tools/call", {}, {}, TOOL), TOOL, decide)
    assert await look.in_result(result)
    assert (await look.without(result))["content"] == [*result["content"][:-1], TAKEN_OUT]
    assert decided == [f"{FREE}/{number}" for number in range(300)]
    assert all(earlier < later for earlier, later in pairwise(before))
    beside.cancel()


async def test_links_beyond_the_bound_are_not_decided_on_and_count_as_bad() -> None:
    decided: list[str] = []

    def decide(call: Call, asked: Target) -> Decision:
        decided.append(asked.own)
        return Decision(Verdict.ALLOW, "rule", "because")

    many = [link(f"{FREE}/{number}") for number in range(MAX_LINKS)]
    look = Links(Call(Client("key:a"), "tools/call", {}, {}, TOOL), TOOL, decide)
    assert not await look.in_result({"content": [*many, *many]}), "one that stands there twice is one"
    over: Json = {"content": [*many, link(f"{FREE}/over")]}
    assert await look.in_result(over) and await look.without(over) == {"content": [*many, TAKEN_OUT]}
    assert len(decided) == MAX_LINKS
