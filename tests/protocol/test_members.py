"""Of a message that may be one of several types only the members of its own type pass."""

from typing import Any

import pytest

from sluicegate.protocol import input_forms, legacy_server, modern_server, parameter_names, tasks, union_members
from sluicegate.protocol.jsonrpc import Json, Response
from sluicegate.protocol.model import Call, Client, Failure, Result

EVERY: Json = {
    "text": "t", "data": "d", "mimeType": "m", "resource": {"uri": "a:b", "text": "t"}, "uri": "c:d", "input": {},
    "content": [{"type": "text", "text": "x"}], "structuredContent": {}, "annotations": {}, "_meta": {}, "name": "n",
}  # fmt: skip
OWN = {"text": "text", "image": "data", "audio": "data", "resource": "resource", "resource_link": "uri",
       "tool_use": "input"}  # fmt: skip
COMMON = {"type", "mimeType", "annotations", "_meta", "name"}


@pytest.mark.parametrize(("kind", "own"), OWN.items())
def test_a_block_has_what_its_type_owns(kind: str, own: str) -> None:
    assert union_members.block({"type": kind, **EVERY}).keys() == COMMON | {own}
    results = union_members.block({"type": "tool_result", "toolUseId": "t", "content": [{"type": kind, **EVERY}]})
    assert results["content"][0].keys() == COMMON | {own}


def test_what_has_no_known_type_or_nothing_foreign_is_itself() -> None:
    for block in ({"type": "new", **EVERY}, {"type": [], "text": 1}, EVERY, "x", None, {"type": "text", "text": "x"}):
        assert union_members.block(block) is block


def test_contents_are_text_or_bytes() -> None:
    assert union_members.contents({"uri": "a:b", "text": "", "blob": "YQ=="}) == {"uri": "a:b", "text": ""}
    assert union_members.block({"type": "resource", "resource": {"uri": "a:b", "text": "", "blob": "YQ=="}}) == {
        "type": "resource", "resource": {"uri": "a:b", "text": ""},
    }  # fmt: skip
    for alone in ({"uri": "a:b", "blob": "YQ=="}, {"uri": "a:b", "text": None, "blob": "YQ=="}):
        assert union_members.contents(alone) is alone


def test_what_has_nothing_to_take_out_is_not_copied() -> None:
    text, other = {"type": "text", "text": "x"}, {"type": "text", "text": "x", "uri": "a:b"}
    for content in (text, [text, text], None, "x", [1, None]):
        said = {"role": "user", "content": content}
        assert union_members.message(said) is said and union_members.blocks(content) is content
        for method, key in (("tools/call", "content"), ("prompts/get", "messages"), ("tasks/result", "content")):
            whole = {key: [said if key == "messages" else content], "other": 1}
            assert union_members.result(method, whole) is whole
    assert union_members.message({"role": "user", "content": [text, other]}) == {
        "role": "user",
        "content": [text, text],
    }
    assert union_members.message({"role": "user"}) == {"role": "user"} and union_members.message("x") == "x"
    for method, listed in (("tools/list", {"tools": [other]}), ("completion/complete", {"completion": {}})):
        assert union_members.result(method, listed) is listed
        unfinished = {**listed, "inputRequests": {}, "requestState": "s", "task": {}}
        assert union_members.result(method, unfinished) == listed
    mixed = {"content": [other, text], "task": 1, "x": 2}
    assert union_members.result("tasks/result", mixed) == {"content": [text] * 2, "x": 2}


def test_of_very_many_members_those_pass_that_are_known() -> None:
    many = {f"k{number}": number for number in range(101)}
    assert union_members.result("tools/call", {"content": [], **many}) == {"content": []}
    task = {"taskId": "x", "status": "working", "createdAt": "", "lastUpdatedAt": "", "ttlMs": 1}
    assert tasks.read({**task, **many}) == task
    assert input_forms.problem("sampling/createMessage", {"messages": [], **many})


def test_names_of_many_other_letters_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer may have dozens of such objects, and each letter takes long."""
    monkeypatch.setattr(parameter_names, "normalize", None)
    long = {f"{number}" + "\u1f82" * 500: 1 for number in range(32)}
    said = input_forms.problem("sampling/createMessage", {"messages": [], **long})
    assert said == "with another spelling of a member"
    assert union_members.result("tools/call", {"content": [], **long}) == {"content": []}
    assert union_members.without_pages({**long, "x": 1}) == {"x": 1}
    monkeypatch.undo()
    assert union_members.result("tools/call", {"content": [], "\xe4": 1}) == {"content": [], "\xe4": 1}


@pytest.mark.parametrize("other", ["Task", "_Meta", "requested_schema", "URL"])
def test_a_question_has_no_other_spelling_of_its_members(other: str) -> None:
    form = {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}
    assert not input_forms.problem("elicitation/create", form)
    assert input_forms.problem("elicitation/create", {**form, other: {}}) == "with another spelling of a member"


@pytest.mark.parametrize("other", ["InputRequests", "input_requests", "RESULTTYPE", "request-state", "Task"])
def test_a_complete_result_asks_nothing_under_another_spelling(other: str) -> None:
    """A client that ignores case would read it, and be asked what nobody judged."""
    whole: Json = {"content": [], "structuredContent": {other: 1}, "isError": False, "_meta": {}}
    said = {**whole, "x": 2, "resultType": "complete", other: {"a": {"method": "elicitation/create"}}}
    call = Call(Client("key:a"), "tools/call", {"name": "t"})
    for dialect in (modern_server, legacy_server):
        assert dialect.outcome(call, Response(1, said)) == Result(whole)
        assert dialect.outcome(call, Response(1, {**whole, "x": 2})) == Result({**whole, "x": 2})


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("dialect", [legacy_server, modern_server])
@pytest.mark.parametrize(
    ("method", "good", "bad"),
    [
        ("tools/call", {"content": [{"type": "text", "text": "x"}]},
         {"content": [{"type": "text", "text": "x", "resource": {"uri": "a:b"}}]}),
        ("prompts/get", {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]},
         {"messages": [{"role": "user", "content": {"type": "text", "text": "x", "uri": "a:b"}}]}),
        ("resources/read", {"contents": [{"uri": "a:b", "text": "x"}]},
         {"contents": [{"uri": "a:b", "text": "x", "blob": "YQ=="}]}),
    ],
)  # fmt: skip
def test_a_result_is_complete_or_a_question_or_a_task(
    dialect: Any, revision: str, method: str, good: Json, bad: Json
) -> None:
    call = Call(Client("key:a", revision=revision), method, {})
    unfinished = {"inputRequests": {"q": {}}, "requestState": "s", "task": {"taskId": "t"}}
    told = dialect.outcome(call, Response(1, {**bad, **unfinished, "resultType": "complete"}))
    assert isinstance(told, Result) and told.value == dialect.outcome(call, Response(1, good)).value
    assert not unfinished.keys() & told.value.keys() and "resultType" not in told.value


@pytest.mark.parametrize(("said", "meant"), [
    ("true", True), ("false", True), (1, True), (0, True), ([], True), ({}, True), (1.0, True), (True, True),
    (False, False), (None, None),
])  # fmt: skip
def test_what_is_said_of_an_error_is_a_boolean(said: Any, meant: bool | None) -> None:
    """Some clients read "true" and 1 as true: the audit log and they must not differ."""
    answer: Json = {"content": [], "isError": said}
    wanted: Json = {"content": []} | ({} if meant is None else {"isError": meant})
    call = Call(Client("key:a"), "tools/call", {"name": "x"})
    for server in (legacy_server, modern_server):
        assert server.outcome(call, Response(1, result=answer)) == Result(wanted)
    state = {"taskId": "t", "status": "completed", "createdAt": "2026-01-01T00:00:00Z", "ttlMs": None,
             "lastUpdatedAt": "2026-01-01T00:00:00Z"}  # fmt: skip
    shown = modern_server.result("tasks/get", {**state, "result": answer})
    assert isinstance(shown, Result) and shown.value["result"] == wanted
    assert answer["isError"] is said or answer["isError"] == said


@pytest.mark.parametrize("code", [10**30, -(2**31), 1.5, True, "x", None])
def test_a_code_that_clients_cannot_read_is_an_internal_error(code: Any) -> None:
    call = Call(Client("key:a"), "tools/call", {"name": "x"})
    for server in (legacy_server, modern_server):
        failed = server.outcome(call, Response(1, error={"code": code, "message": "no"}))
        assert isinstance(failed, Failure) and (failed.code, failed.message) == (-32603, "no")
