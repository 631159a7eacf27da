"""The name guard: public outside, own inside, and nothing in between that tells hidden from unknown."""

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluicegate.catalog.uris import Rewriting
from sluicegate.guards.name import name
from sluicegate.protocol.model import (
    Call,
    Client,
    Failure,
    InputRequired,
    Outcome,
    Result,
    Target,
    not_found,
)

CREATE = Target("github", "tool", "create issue", "gh__create_issue_0a1b2c", {"name": "create issue"})
GREET = Target("github", "prompt", "greet", "gh__greet")
FILE = Target("github", "res", "file:///a", "gh+file:///a")
FILES = Target("github", "res", "file:///{+path}", "gh+file:///{+path}")
WEB = Target("github", "res", "https://a/b", "https://a/b")

TOOL_CALL: dict[str, Any] = {"name": CREATE.public, "arguments": {"uri": "gh+file:///a"}}


@dataclass
class Inside:
    """What stands behind the guard: remembers the call and answers as told."""

    answer: Outcome = field(default_factory=lambda: Result({}))
    calls: list[Call] = field(default_factory=list)

    async def __call__(self, call: Call) -> Outcome:
        self.calls.append(call)
        return self.answer


async def ask(method: str, params: dict[str, Any], target: Target | None, inside: Inside, **how: Any) -> Outcome:
    async def resolve(call: Call) -> Target | None:
        return target

    rewriting = how.get("rewriting", Rewriting("gh"))
    return await name(resolve, lambda server: rewriting)(Call(Client("key:ci"), method, params), inside)


@pytest.mark.parametrize(
    ("method", "target", "params", "own"),
    [
        ("tools/call", CREATE, TOOL_CALL, {**TOOL_CALL, "name": "create issue"}),
        ("prompts/get", GREET, {"name": "gh__greet"}, {"name": "greet"}),
        ("resources/read", FILE, {"uri": "gh+file:///a"}, {"uri": "file:///a"}),
        ("completion/complete", GREET, {"ref": {"type": "ref/prompt", "name": "gh__greet", "title": "x"}, "context": 1},
         {"ref": {"type": "ref/prompt", "name": "greet", "title": "x"}, "context": 1}),
        ("completion/complete", FILES, {"ref": {"type": "ref/resource", "uri": "gh+file:///{+path}"}},
         {"ref": {"type": "ref/resource", "uri": "file:///{+path}"}}),
        ("completion/complete", GREET, {"ref": {"type": "ref/prompt", "name": "gh__greet", "uri": "gh+file:///a"}},
         {"ref": {"type": "ref/prompt", "name": "greet"}}),
        ("completion/complete", FILES,
         {"ref": {"type": "ref/resource", "uri": "gh+file:///{+path}", "name": "gh__secret", "other": 1}},
         {"ref": {"type": "ref/resource", "uri": "file:///{+path}"}}),
    ],
)  # fmt: skip
async def test_inside_the_guard_a_call_has_its_target_and_own_names(
    method: str, target: Target, params: dict[str, Any], own: dict[str, Any]
) -> None:
    inside, kept = Inside(), copy.deepcopy(params)
    assert await ask(method, params, target, inside) == Result({})
    assert inside.calls[0].target == target
    assert inside.calls[0].params == own
    assert params == kept


@pytest.mark.parametrize(
    "method", ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover",
               "subscriptions/listen"],
)  # fmt: skip
async def test_what_has_no_target_passes_untouched(method: str) -> None:
    answer = Result({"resources": [{"uri": "file:///a"}]})
    inside, params = Inside(answer), {"name": "x", "uri": "gh+file:///a"}
    assert await ask(method, params, CREATE, inside) is answer
    assert inside.calls[0].params is params
    assert inside.calls[0].target is None


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "gh__nothing"}),
        ("prompts/get", {"name": "gh__nothing"}),
        ("resources/read", {"uri": "gh+file:///nothing"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "gh__nothing"}}),
    ],
)
async def test_what_cannot_be_resolved_is_answered_as_a_denial(method: str, params: dict[str, Any]) -> None:
    inside = Inside()
    assert await ask(method, params, None, inside) == not_found(method, params)
    assert inside.calls == []


@pytest.mark.parametrize(
    ("method", "target", "params"),
    [
        ("tools/call", CREATE, TOOL_CALL),
        ("prompts/get", GREET, {"name": "gh__greet"}),
        ("resources/read", FILE, {"uri": "gh+file:///a"}),
        ("completion/complete", GREET, {"ref": {"type": "ref/prompt", "name": "gh__greet"}}),
    ],
)
async def test_a_denial_said_inside_reads_like_an_unknown_name(
    method: str, target: Target, params: dict[str, Any]
) -> None:
    @dataclass
    class Denying(Inside):
        async def __call__(self, call: Call) -> Outcome:
            return not_found(call.method, call.params)

    assert await ask(method, params, target, Denying()) == await ask(method, params, None, Inside())


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {}),
        ("tools/call", {"name": ["gh__a"]}),
        ("prompts/get", {"name": None}),
        ("resources/read", {"uri": {"a": 1}}),
        ("completion/complete", {}),
        ("completion/complete", {"ref": "gh__greet"}),
        ("completion/complete", {"ref": {"type": "ref/tool", "name": "gh__greet"}}),
        ("completion/complete", {"ref": {"type": {}, "name": "gh__greet"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "uri": "gh+file:///a"}}),
    ],
)
async def test_params_that_name_nothing_are_unknown_and_resolve_nothing(method: str, params: dict[str, Any]) -> None:
    inside = Inside()
    assert await ask(method, params, CREATE, inside) == not_found(method, params)
    assert inside.calls == []


@pytest.mark.parametrize("own", ["file:///a/../b", "file:///%61", "FILE:///a", "file://localhost/a", "file:///a\\b"])
@pytest.mark.parametrize("rewriting", [Rewriting("gh"), None])
async def test_another_spelling_of_a_uri_is_not_found(own: str, rewriting: Rewriting | None) -> None:
    inside, params = Inside(), {"uri": f"gh+{own}"}
    answer = await ask(
        "resources/read", params, Target("github", "res", own, params["uri"]), inside, rewriting=rewriting
    )
    assert answer == not_found("resources/read", params)
    assert inside.calls == []


async def test_uris_in_an_answer_become_public() -> None:
    link = {"type": "resource_link", "uri": "file:///b", "name": "b"}
    value: dict[str, Any] = {
        "content": [{"type": "text", "text": "file:///a"}, link],
        "structuredContent": {"uri": "file:///b"},
    }
    answer = await ask("tools/call", TOOL_CALL, CREATE, Inside(Result(value)))
    assert answer == Result({**value, "content": [value["content"][0], {**link, "uri": "gh+file:///b"}]})
    assert link["uri"] == "file:///b"


async def test_an_answer_of_text_comes_back_itself() -> None:
    answer = Result({"content": [{"type": "text", "text": "file:///a"}]})
    assert await ask("tools/call", TOOL_CALL, CREATE, Inside(answer)) is answer


@pytest.mark.parametrize(
    ("target", "used"),
    [(FILE, "gh+file:///a"), (FILE, "file:///a"), (WEB, "https://a/b"), (WEB, "gh+https://a/b")],
)
async def test_a_read_resource_comes_back_under_the_uri_the_client_used(target: Target, used: str) -> None:
    value = {"contents": [{"uri": target.own, "text": "x"}, {"uri": "file:///a/part", "text": "y"}]}
    answer = await ask("resources/read", {"uri": used}, target, Inside(Result(value)))
    assert isinstance(answer, Result)
    assert [part["uri"] for part in answer.value["contents"]] == [used, "gh+file:///a/part"]


async def test_the_uri_in_an_error_is_the_clients() -> None:
    failure = Failure(-32602, "gone", {"uri": "file:///a", "more": 1})
    answer = await ask("resources/read", {"uri": "file:///a"}, FILE, Inside(failure))
    assert answer is failure
    answer = await ask("resources/read", {"uri": "gh+file:///a"}, FILE, Inside(failure))
    assert answer == Failure(-32602, "gone", {"uri": "gh+file:///a", "more": 1})


async def test_an_ask_says_which_server_asks_and_keeps_its_state() -> None:
    link = {"type": "resource_link", "uri": "file:///b"}
    requests = {
        "e": {"method": "elicitation/create", "params": {"message": "Your name?", "requestedSchema": {}}},
        "u": {"method": "elicitation/create", "params": {"mode": "url", "message": "Log in", "url": "https://a"}},
        "s": {"method": "sampling/createMessage", "params": {"messages": [{"role": "user", "content": [link]}]}},
        "r": {"method": "roots/list"},
        "odd": {"method": "elicitation/create", "params": {"message": 7}},
    }
    kept = copy.deepcopy(requests)
    answer = await ask("tools/call", TOOL_CALL, CREATE, Inside(InputRequired(requests, "")))
    assert isinstance(answer, InputRequired)
    assert answer.state == ""
    assert answer.requests["e"]["params"] == {"message": "[github] Your name?", "requestedSchema": {}}
    assert answer.requests["u"]["params"]["message"] == "[github] Log in"
    assert answer.requests["s"]["params"]["messages"][0]["content"] == [{**link, "uri": "gh+file:///b"}]
    assert [answer.requests[key] for key in ("r", "odd")] == [requests["r"], requests["odd"]]
    assert requests == kept


@pytest.mark.parametrize("is_task", [False, True])
async def test_no_server_asks_for_the_context_of_those_beside_it(is_task: bool) -> None:
    said = {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]}
    wanted = {"method": "sampling/createMessage", "params": {**said, "includeContext": "thisServer"}}
    requests = {"s": wanted, "odd": {"method": "sampling/createMessage"}}
    asked = Result({"taskId": "t", "inputRequests": requests}) if is_task else InputRequired(requests)
    method, params = ("tasks/get", {"taskId": "t"}) if is_task else ("tools/call", TOOL_CALL)
    for rewriting, shown in ((Rewriting("gh"), {**wanted, "params": said}), (None, wanted)):
        answer = await ask(method, params, CREATE, Inside(asked), rewriting=rewriting)
        found = answer.value["inputRequests"] if isinstance(answer, Result) else answer.requests
        assert found == {**requests, "s": shown}


@pytest.mark.parametrize(("rewriting", "id"), [(Rewriting("gh"), "github:1"), (None, "1")])
async def test_a_page_of_one_server_is_not_that_of_another(rewriting: Rewriting | None, id: str) -> None:
    page = {"mode": "url", "message": "m", "url": "https://a.test/", "elicitationId": "1"}
    asks: list[Outcome] = [
        InputRequired({"u": {"method": "elicitation/create", "params": page}}),
        Failure(-32042, "m", {"elicitations": [page]}),
    ]
    for asked in asks:
        answer = await ask("tools/call", TOOL_CALL, CREATE, Inside(asked), rewriting=rewriting)
        if isinstance(answer, InputRequired):
            assert answer.requests["u"]["params"]["elicitationId"] == id
        else:
            assert isinstance(answer, Failure) and answer.data["elicitations"][0]["elicitationId"] == id


async def test_sampled_answers_go_in_with_own_uris() -> None:
    link = {"type": "resource_link", "uri": "gh+file:///b"}
    form = {"action": "accept", "content": {"uri": "gh+file:///b"}}
    responses = {"s": {"role": "assistant", "content": [link]}, "e": form}
    inside = Inside()
    await ask("tools/call", {**TOOL_CALL, "inputResponses": responses, "requestState": "x"}, CREATE, inside)
    assert inside.calls[0].params["inputResponses"]["s"]["content"] == [{**link, "uri": "file:///b"}]
    assert inside.calls[0].params["inputResponses"]["e"] is form
    assert inside.calls[0].params["requestState"] == "x"


async def test_transparent_mode_only_resolves_and_says_whose_forms_are() -> None:
    target = Target("github", "tool", "create", "create")
    linked = Result({"content": [{"type": "resource_link", "uri": "file:///a"}]})
    for answer in (linked, Failure(-32602, "no", {"uri": "file:///a"})):
        inside, params = Inside(answer), {"name": "create"}
        assert await ask("tools/call", params, target, inside, rewriting=None) == answer
        assert inside.calls[0].params is params
        assert inside.calls[0].target is target
    form = {"method": "elicitation/create", "params": {"message": "Sluice asks: run it?"}}
    sampling = {"method": "sampling/createMessage", "params": {"messages": [{"content": linked.value["content"]}]}}
    answer = await ask("tools/call", params, target, Inside(InputRequired({"e": form, "s": sampling})), rewriting=None)
    assert isinstance(answer, InputRequired)
    assert answer.requests["e"]["params"]["message"] == "[github] Sluice asks: run it?"
    assert answer.requests["s"] == sampling
    task = Result({"taskId": "t", "inputRequests": {"e": form}})
    answer = await ask("tasks/get", {"taskId": "t"}, target, Inside(task), rewriting=None)
    assert isinstance(answer, Result)
    assert answer.value["inputRequests"]["e"]["params"]["message"] == "[github] Sluice asks: run it?"


async def _ask_while_rights_change(now: Client | None, method: str, params: dict[str, Any], target: Target) -> Any:
    """The client, and what it was when its target was looked for, each time."""
    there, asked, inside = [Client("key:ci", ("role:all",))], list[Client](), Inside()

    async def resolve(call: Call) -> Target | None:
        asked.append(call.client)
        there[:] = [] if now is None else [now]
        return target

    guard = name(resolve, lambda server: None, current=lambda client: there[0] if there else None)
    outcome = await guard(Call(there[0], method, params), inside)
    return outcome, asked, [call.client for call in inside.calls]


@pytest.mark.parametrize(
    ("method", "target", "params"),
    [
        ("tools/call", CREATE, TOOL_CALL),
        ("prompts/get", GREET, {"name": "gh__greet"}),
        ("resources/read", FILE, {"uri": "file:///a"}),
        ("completion/complete", GREET, {"ref": {"type": "ref/prompt", "name": "gh__greet"}}),
        ("tasks/get", CREATE, {"taskId": "t"}),
    ],
)
async def test_a_call_whose_target_was_waited_for_is_made_with_the_rights_of_then(
    method: str, target: Target, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.guards.name._AT_ONCE", -1.0)  # each look is a wait
    less = Client("key:ci", ("role:low",))
    outcome, asked, inside = await _ask_while_rights_change(less, method, params, target)
    assert (outcome, inside) == (Result({}), [less])
    assert [one.roles for one in asked] == [("role:all",), ("role:low",)], "it may stand for something else to others"
    outcome, _, inside = await _ask_while_rights_change(None, method, params, target)
    assert (outcome.reason, inside) == ("denied", [])
