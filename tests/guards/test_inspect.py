"""inspect, in its place in the chain: what it marks, takes out and withholds, and what it lets alone."""

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import anyio
import pytest
from loop_steps import Steps

from sluicegate.guards import ORDER, chain
from sluicegate.guards.inspect import Mode, inspect, inspect_params, inspect_task_state
from sluicegate.policy import hidden_text
from sluicegate.policy.schemas import Outputs
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import (
    Call,
    Client,
    Decision,
    Emit,
    Failure,
    Guard,
    InputRequired,
    Outcome,
    Result,
    Target,
    TaskStarted,
    Trail,
    Verdict,
)
from sluicegate.runtime.loop_budget import LARGE

pytestmark = pytest.mark.usefixtures("no_piece_is_short")

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOL = Target("git", "tool", "log", "g__log", {"name": "log"})
TYPED = Target("git", "tool", "count", "g__count", {"name": "count", "outputSchema": SCHEMA})
PROMPT = Target("git", "prompt", "p", "g__p", {})
FILE = Target("git", "res", "file:///a", "g+file:///a")
TAG = "\U000e0041"


def may_read(call: Call, target: Target) -> Decision:
    """Everything is to be read but what is secret; a person is asked for what is shy."""
    assert call.method == "resources/read" and (target.server, target.kind) == ("git", "res")
    verdict = Verdict.DENY if "secret" in target.own else Verdict.ASK if "shy" in target.own else Verdict.ALLOW
    return Decision(verdict, "a-rule", "because")


async def ask(
    outcome: Outcome, mode: Mode = "warn", method: str = "tools/call", target: Target | None = TOOL,
    said: Notification | None = None, emit: Emit | None = None,
) -> Outcome:  # fmt: skip
    async def server(call: Call) -> Outcome:
        if said is not None:
            await call.emit(said)
        return outcome

    guards: dict[str, Guard | None] = dict.fromkeys(ORDER)
    guards["inspect"] = inspect({"git": mode}, Outputs().check, may_read)
    call = Call(Client("key:a"), method, {"name": "log"}, target=target, trail=Trail("c"))
    if emit is not None:
        call = Call(call.client, method, call.params, target=target, emit=emit)
    return await chain(guards, server)(call)


async def test_a_promise_is_prepared_before_the_result_is_checked() -> None:
    """A thread compiles a large schema; the check is one step of the event loop."""
    steps: list[str] = []

    def preparing() -> None:
        assert threading.current_thread() is not threading.main_thread()
        steps.append("prepared")

    def check(server: str, tool: str, schema: Any, result: Json) -> None:
        steps.append("checked")

    guard = inspect({"git": "warn"}, check, may_read, lambda server, tool, schema: preparing)

    async def server(call: Call) -> Outcome:
        return Result({"content": [], "structuredContent": {}})

    await guard(Call(Client("key:a"), "tools/call", {"name": "count"}, target=TYPED), server)
    assert steps == ["prepared", "checked"]


@pytest.mark.parametrize("method", ["tools/call", "tasks/result", "tasks/get"])
async def test_large_results_are_checked_and_schemas_compiled_one_at_a_time(method: str) -> None:
    """Forty threads at once would hold the interpreter's lock, and nobody would pay for them."""
    working, most = [0], []
    large = text("x" * 2 * LARGE, structuredContent={"n": 1}).value

    def work(*about: Any) -> None:
        working[0] += 1
        most.append(working[0])
        time.sleep(0.005)  # the others would begin meanwhile
        working[0] -= 1

    guard = inspect({"git": "warn", "hub": "warn"}, work, may_read, lambda server, tool, schema: work)

    async def server(call: Call) -> Outcome:
        return Result({"taskId": "t", "status": "completed", "result": large} if method == "tasks/get" else large)

    async with anyio.create_task_group() as group:
        for target in (TYPED, replace(TYPED, server="hub")) * 3:
            group.start_soon(guard, Call(Client("key:a"), method, {"name": "count"}, target=target), server)
    assert most == [1] * 12


def text(*parts: str, **more: Any) -> Result:
    return Result({"content": [{"type": "text", "text": part} for part in parts], **more})


def marks(outcome: Outcome) -> list[str]:
    assert isinstance(outcome, Result)
    found: list[str] = outcome.value.get("_meta", {}).get("dev.sluice/flags", [])
    return found


def value(outcome: Outcome) -> Json:
    assert isinstance(outcome, Result)
    return outcome.value


@pytest.mark.parametrize("mode", ["off", "warn", "block"])
async def test_a_clean_result_comes_back_itself(mode: Mode) -> None:
    for clean in (text("hello\n", "wörld 👩‍💻"), text("x", structuredContent={"n": 1}), text("no", isError=True)):
        assert await ask(clean, mode) is clean
    typed = text("1", structuredContent={"n": 1})
    assert await ask(typed, mode, target=TYPED) is typed


@pytest.mark.parametrize("inner", [1.0, float("inf")])
async def test_what_cannot_be_encoded_is_the_listeners_to_say(inner: float) -> None:
    odd = text(f"x{TAG}", n=inner)
    assert await ask(text("x", n=inner)) == text("x", n=inner)
    assert marks(await ask(odd)) == ["tags"]


async def test_others_have_their_turn_while_a_large_result_is_made_ready() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(others())
    await asyncio.sleep(0)
    small, large = text("x"), text("x" * 4 * LARGE)
    assert await ask(small) is small and turns == 0
    assert await ask(text("x" * LARGE)) and turns == 2, "one of 16 KiB is cleaned and judged"
    turns = 0
    assert await ask(large) is large and turns >= 7, "encoded, cleaned in four pieces, searched for links, and answered"
    assert large.text is large.text  # made ready once, and kept
    turns = 0
    assert value(await ask(text(f"a{TAG}" * 8 * LARGE)))["content"][0]["text"] == "a" * 8 * LARGE
    assert turns > 16, "each piece of a text that is cleaned is a step of its own"
    beside.cancel()


async def test_orders_and_hidden_text_are_taken_out_and_named() -> None:
    outcome = await ask(text("a\x1b[31mb", f"c{TAG}", _meta={"their": 1}))
    assert value(outcome) == {
        "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}],
        "_meta": {"their": 1, "dev.sluice/flags": ["tags", "terminal"]},
    }


async def test_the_name_of_a_field_is_looked_at_where_all_else_is_plain() -> None:
    outcome = await ask(text("x", structuredContent={"rows": [{f"a{TAG}b": 1}]}))
    assert value(outcome)["structuredContent"] == {"rows": [{"ab": 1}]} and marks(outcome) == ["tags"]


async def test_what_is_only_named_stays_as_it_is() -> None:
    outcome = await ask(text("a\u202eb\u200bc"))
    assert marks(outcome) == ["bidi", "invisible"]
    assert value(outcome)["content"] == text("a\u202eb\u200bc").value["content"]


@pytest.mark.parametrize(
    ("method", "target", "given", "left"),
    [
        ("tools/call", TOOL, {"structuredContent": {"a\x00": ["b\x1b[1m"]}}, {"structuredContent": {"a": ["b"]}}),
        ("prompts/get", PROMPT, {"messages": [{"role": "user", "content": {"type": "text", "text": f"a{TAG}"}}]},
         {"messages": [{"role": "user", "content": {"type": "text", "text": "a"}}]}),
        ("resources/read", FILE, {"contents": [{"uri": "file:///a", "text": "a\x07"}]},
         {"contents": [{"uri": "file:///a", "text": "a"}]}),
        ("completion/complete", PROMPT, {"completion": {"values": ["a\x1b[2J"]}}, {"completion": {"values": ["a"]}}),
    ],
)  # fmt: skip
async def test_whatever_a_server_answers_is_inspected(method: str, target: Target, given: Json, left: Json) -> None:
    outcome = await ask(Result(given), method=method, target=target)
    assert marks(outcome)
    assert {key: part for key, part in value(outcome).items() if key != "_meta"} == left


@pytest.mark.parametrize("bad", ["a\x1b[31m", f"a{TAG}", "a\u202e", "a\u200bb"])
async def test_under_block_whatever_would_be_marked_is_withheld_and_nothing_of_it_is_said(bad: str) -> None:
    outcome = await ask(text(bad, "SECRET"), "block")
    assert value(outcome)["_meta"] == {"dev.sluice/reason": "result_withheld"} and value(outcome)["isError"] is True
    told = value(outcome)["content"][0]["text"]
    assert told.startswith("This was executed") and "servers.git.results" in told and "SECRET" not in str(outcome)
    read = await ask(Result({"contents": [{"uri": "a:b", "text": bad}]}), "block", "resources/read", FILE)
    assert isinstance(read, Failure) and read.data == {"reason": "result_withheld"}


async def test_off_is_off() -> None:
    for outcome in (text("\x1b"), Failure(1, "\x1b"), InputRequired({"a": {"params": {"message": "\x1b"}}})):
        assert await ask(outcome, "off") is outcome
    broken = text("x", structuredContent={})
    assert await ask(broken, "off", target=TYPED) is broken


async def test_lists_are_not_touched() -> None:
    listed = Result({"tools": [{"name": "a", "description": "\x1b"}]})
    assert await ask(listed, "block", "tools/list", None) is listed


@pytest.mark.parametrize("content", [{"structuredContent": {"n": "x"}}, {"structuredContent": {}}, {}])
async def test_a_broken_promise_is_marked_or_withheld(content: Json) -> None:
    marked = await ask(text("x", **content), target=TYPED)
    assert marks(marked) == ["output_schema"]
    assert value(marked).get("structuredContent") == content.get("structuredContent")
    refused = await ask(text("SECRET", **content), "block", target=TYPED)
    assert "not what the tool promised" in str(refused) and "SECRET" not in str(refused)


@pytest.mark.parametrize("mode", ["warn", "block"])
async def test_a_schema_that_may_not_be_used_is_told_and_withholds_nothing(mode: Mode) -> None:
    target = Target("git", "tool", "t", "g__t", {"outputSchema": {"$ref": "https://evil.example.com/"}})
    assert marks(await ask(text("x", structuredContent={}), mode, target=target)) == ["output_schema_unused"]


async def test_an_error_of_the_tool_promises_nothing() -> None:
    error = text("no such branch", isError=True)
    assert await ask(error, "block", target=TYPED) is error


async def test_what_is_withheld_of_an_error_is_not_said_to_have_been_executed() -> None:
    for is_error in (False, True):
        told = str(value(await ask(text("a\u202e", isError=is_error), "block")))
        assert ("This was executed" in told) is not is_error and ("answered with an error" in told) is is_error


ASKS = {
    "good": {"method": "elicitation/create", "params": {"message": "Your name?"}},
    "bad": {"method": "elicitation/create", "params": {"message": f"Sure?{TAG}\x1b[2K\u202e"}},
    "bare": {"method": "roots/list"},
}


async def test_questions_are_cleaned_and_marked_one_by_one() -> None:
    outcome = await ask(InputRequired(ASKS, "state"))
    assert outcome == InputRequired(
        {
            **ASKS,
            "bad": {
                "method": "elicitation/create",
                "params": {"message": "Sure?\u202e", "_meta": {"dev.sluice/flags": ["bidi", "tags", "terminal"]}},
            },
        },
        "state",
    )
    assert isinstance(await ask(InputRequired(ASKS), "block"), Result)
    passed = InputRequired({"good": ASKS["good"]}, "")
    assert await ask(passed, "block") == passed


@pytest.mark.parametrize("mode", ["warn", "block"])
async def test_errors_are_cleaned(mode: Mode) -> None:
    assert await ask(Failure(-32000, "no\x1b[31m", {"why": f"x{TAG}"}), mode) == Failure(-32000, "no", {"why": "x"})
    untouched = Failure(-32000, "no", {"why": "x"})
    assert await ask(untouched, mode) is untouched


async def test_what_is_said_during_a_call_is_cleaned() -> None:
    heard: list[Notification] = []

    async def emit(notification: Notification) -> None:
        heard.append(notification)

    progress = Notification("notifications/progress", {"progressToken": 1, "progress": 1, "message": "50 %\x1b[1A"})
    clean = Notification("notifications/message", {"level": "info", "data": {"a": ["b"]}})
    for said in (progress, clean):
        await ask(text("x"), said=said, emit=emit)
    flags = {"_meta": {"dev.sluice/flags": ["terminal"]}}
    assert heard[0].params == {"progressToken": 1, "progress": 1, "message": "50 %", **flags}
    assert heard[1] is clean
    for said in (progress, clean):
        await ask(text("x"), "block", said=said, emit=emit)
    assert heard[2:] == [clean]


async def test_what_is_said_at_length_is_looked_at_in_pieces() -> None:
    """Eight megabytes take 30 ms where a letter is not of ASCII."""
    heard: list[Notification] = []
    steps = Steps()

    async def emit(notification: Notification) -> None:
        heard.append(notification)

    plain = Notification("notifications/message", {"_meta": {"x.test/a": "\u00e9" * 2_000_000}})
    hidden = Notification("notifications/message", {"data": f"{'x' * 100_000}{TAG}"})
    for said in (plain, hidden):
        await ask(text("x"), said=said, emit=emit)
    steps.stop()
    assert heard == [plain] and steps.now >= 2_000_000 // hidden_text.PIECE


def link(uri: str) -> Json:
    return {"type": "resource_link", "name": "n", "uri": uri}


def embedded(uri: str) -> Json:
    return {"type": "resource", "resource": {"uri": uri, "text": "inside"}}


@pytest.mark.parametrize(
    ("block", "is_named"),
    [
        (link("file:///open"), False), (embedded("file:///open"), False), (link("https://secret.test/"), False),
        (link("file:///secret"), True), (embedded("file:///secret"), True), (embedded("https://secret.test/"), True),
        (link("file:///shy"), False), (embedded("file:///shy"), True), (link("file:///open/../x"), True),
        ({**embedded("file:///secret"), "type": "other"}, True),
    ],
)  # fmt: skip
async def test_resources_that_the_client_may_not_read_are_named_or_taken_out(block: Json, is_named: bool) -> None:
    plain = {"type": "text", "text": "x"}
    for method, target, given in (
        ("tools/call", TOOL, {"content": [plain, block], "structuredContent": {"result": [block]}}),
        ("tools/call", TOOL, {"content": [plain], "structuredContent": {"result": {"deep": [block]}}}),
        ("prompts/get", PROMPT, {"messages": [{"role": "user", "content": block}]}),
    ):
        warned = await ask(Result(given), method=method, target=target)
        assert marks(warned) == ["resources"] * is_named
        assert {key: part for key, part in value(warned).items() if key != "_meta"} == given
        blocked = await ask(Result(given), "block", method=method, target=target)
        assert marks(blocked) == ["resources"] * is_named
        assert value(blocked).keys() >= given.keys() - {"structuredContent"}
        assert not is_named or ("inside" not in str(blocked) and "file:///" not in str(blocked))
        assert is_named or blocked == Result(given)


async def test_of_what_was_read_only_the_contents_that_may_be_read_stay() -> None:
    parts = [{"uri": uri, "text": "t"} for uri in ("file:///a", "file:///b", "file:///secret")]
    assert marks(await ask(Result({"contents": parts}), method="resources/read", target=FILE)) == ["resources"]
    blocked = await ask(Result({"contents": parts}), "block", "resources/read", FILE)
    assert value(blocked)["contents"] == parts[:2]
    itself = {"contents": [{"uri": "file:///a", "text": "t"}]}
    assert value(await ask(Result(itself), "block", "resources/read", FILE)) == itself


@pytest.mark.parametrize("data", [
    {"seen": embedded("file:///secret")}, [link("file:///secret")], embedded("file:///secret"),
    {"resource": {"uri": "file:///secret", "text": "inside"}},
])  # fmt: skip
async def test_the_data_of_an_error_names_no_resource_that_the_client_may_not_read(data: Any) -> None:
    warned, blocked = [await ask(Failure(-32000, "m", data), mode) for mode in ("warn", "block")]  # type: ignore[arg-type]
    assert isinstance(warned, Failure) and isinstance(blocked, Failure)
    if isinstance(data, dict):
        assert warned.data == {**data, "dev.sluice/flags": ["resources"]}
        assert blocked.data["dev.sluice/flags"] == ["resources"]
    assert "inside" not in str(blocked.data) and "file:///" not in str(blocked.data)
    for harmless in ({"seen": embedded("file:///open")}, [link("file:///shy")], None, "file:///secret"):
        given = Failure(-32000, "m", harmless)
        assert await ask(given, "block") == given


async def test_a_task_that_begins_names_no_resource_that_the_client_may_not_read() -> None:
    began = TaskStarted({**STATE, "_meta": {"seen": embedded("file:///secret")}})
    warned, blocked = await ask(began), await ask(began, "block")
    assert isinstance(warned, TaskStarted) and isinstance(blocked, TaskStarted)
    assert warned.task["_meta"] == {**began.task["_meta"], "dev.sluice/flags": ["resources"]}
    assert blocked.task.items() >= STATE.items() and "inside" not in str(blocked)


async def test_what_is_said_during_a_call_names_no_resource_that_the_client_may_not_read() -> None:
    hidden = {"type": f"reso{TAG}urce_link", "name": "n", "uri": "file:///secret"}
    noted: list[Notification] = []

    async def note(notification: Notification) -> None:
        noted.append(notification)

    await ask(Result({"content": []}), said=Notification("notifications/message", {"data": [hidden]}), emit=note)
    assert noted[0].params["_meta"]["dev.sluice/flags"] == ["resources", "tags"]
    for item, is_bad in ((embedded("file:///secret"), True), (embedded("file:///open"), False)):
        said = Notification("notifications/message", {"level": "info", "data": {"seen": [item]}})
        for mode in ("warn", "block", "off"):
            heard: list[Notification] = []

            async def emit(notification: Notification, heard: list[Notification] = heard) -> None:
                heard.append(notification)

            await ask(Result({"content": []}), mode, said=said, emit=emit)  # type: ignore[arg-type]
            if mode == "off" or not is_bad:
                assert heard == [said]
            elif mode == "block":
                assert heard == []
            else:
                assert heard[0].params == {**said.params, "_meta": {"dev.sluice/flags": ["resources"]}}


def test_what_is_said_outside_of_calls_is_withheld_under_block_where_nobody_is_there_to_judge_a_resource_for() -> None:
    inspected = inspect_params({"git": "warn", "strict": "block"})
    for item in (embedded("file:///open"), link("file:///open")):
        said = {"level": "info", "data": [item]}
        assert inspected("strict", said) is None and inspected("git", said) is said
    for data in ({"resource": "a name", "type": "resource"}, {"properties": {"resource": {"type": "string"}}}):
        assert inspected("strict", plain := {"level": "info", "data": data}) is plain


async def test_what_is_withheld_from_a_task_is_told_as_such() -> None:
    task = {"taskId": "t", "status": "completed", "result": text("a\u202e").value}
    outcome = await ask(Result(task), "block", "tasks/get")
    assert isinstance(outcome, Result) and outcome.reason == "result_withheld" and "\u202e" not in str(outcome)


async def test_a_model_is_not_asked_about_what_the_client_may_not_read_unmarked() -> None:
    block = {"type": "tool_result", "toolUseId": "t", "content": [embedded("file:///secret")]}
    said = {"role": "user", "content": [block]}
    asked = InputRequired({"q": {"method": "sampling/createMessage", "params": {"messages": [said]}}})
    outcome = await ask(asked)
    assert isinstance(outcome, InputRequired)
    assert outcome.requests["q"]["params"]["_meta"] == {"dev.sluice/flags": ["resources"]}
    blocked = await ask(asked, "block")
    assert isinstance(blocked, Result) and blocked.reason == "result_withheld" and "inside" not in str(blocked)


ESC = "\x1b[0m"


@pytest.mark.parametrize("method", ["tools/call", "tasks/result"])
async def test_what_cleaning_makes_is_no_word_of_sluice_and_no_unseen_link(method: str) -> None:
    meta = {
        f"dev.slu{ESC}ice/reason": "approval_denied", f"dev.sluice{TAG}/approval": {},
        f"DEV.{ESC}sluice/redacted": {}, f"dev.\u017fluice/{TAG}part": {},
        f"a{TAG}": 1, f"b{TAG}": 2, f"io.modelcontextprotocol/related{ESC}-task": {}, "b": 3,
    }  # fmt: skip
    judged = await ask(text("x", _meta=meta), method=method)
    assert value(judged)["_meta"] == {"a": 1, "b": 3, "dev.sluice/flags": ["tags", "terminal"]}
    link = {"type": f"reso{ESC}urce_link", "uri": "secret:one", "name": "x"}
    other = {"type": "text", "text": "t", f"reso{TAG}urce": {"uri": "secret:one", "text": "SECRET"}}
    judged = await ask(Result({"content": [link, other]}), method=method)
    assert "resources" in marks(judged) and "SECRET" not in str(value(judged))


@pytest.mark.parametrize("name", ["reason", f"reas{ESC}on"])
async def test_what_cleaning_makes_of_an_error_is_no_reason_of_sluice(name: str) -> None:
    data = {name: f"rate_{TAG}limited", f"appro{TAG}val": {"id": "apr_000000000000"}, "more": 1}
    assert await ask(Failure(-32603, "x", data)) == Failure(-32603, "x", {"more": 1})


def test_a_long_notification_is_withheld_where_it_would_have_to_be_cleaned() -> None:
    inspected = inspect_params({"git": "warn", "off": "off"})
    plain, hidden = {"data": "a" * 200_000}, {"data": ["a" * 100_000, TAG]}
    assert inspected("git", plain) is plain and inspected("off", hidden) is hidden
    assert inspected("git", hidden) is None
    longer = {"data": "a" * 2_000_000}  # it belongs to no call, so that nobody can wait for its pieces
    assert inspected("git", longer) is None and inspected("off", longer) is longer


def test_notifications_and_questions_outside_of_calls_are_cleaned_marked_or_withheld() -> None:
    inspected = inspect_params({"git": "warn", "strict": "block", "off": "off"})
    dirty, clean = {"message": f"form{TAG}"}, {"message": "form"}
    assert inspected("git", dirty) == {**clean, "_meta": {"dev.sluice/flags": ["tags"]}}
    assert inspected("strict", dirty) is None
    assert inspected("off", dirty) is dirty
    assert all(inspected(server, clean) is clean for server in ("git", "strict", "off"))


STATE = {"taskId": "t", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttlMs": 1}


async def test_the_state_of_a_task_is_marked_and_under_block_keeps_what_its_client_needs() -> None:
    for message, kind in (("a\u202eb", "bidi"), (f"ab{TAG}", "tags")):
        dirty = {**STATE, "statusMessage": message, "other": message}
        for outcome in (Result(dirty), TaskStarted(dirty)):
            method = "tasks/get" if isinstance(outcome, Result) else "tools/call"
            warned = await ask(outcome, method=method)
            shown = warned.value if isinstance(warned, Result) else warned.task  # type: ignore[union-attr]
            assert shown["_meta"] == {"dev.sluice/flags": [kind]} and TAG not in str(shown)
            blocked = await ask(outcome, "block", method)
            assert (blocked.value if isinstance(blocked, Result) else blocked.task) == STATE  # type: ignore[union-attr]
            assert await ask(outcome, "off", method) is outcome
    odd = {**STATE, "createdAt": "\u202e", "statusMessage": "x"}
    assert inspect_task_state(inspect_params({"git": "block"}), "git", odd).keys() == STATE.keys() - {"createdAt"}


async def test_the_result_and_the_error_of_a_task_are_marked_by_themselves() -> None:
    done = {**STATE, "status": "completed", "result": text("a\u202e").value}
    assert value(await ask(Result(done), method="tasks/get")) == {
        **done, "result": {**done["result"], "_meta": {"dev.sluice/flags": ["bidi"]}}  # type: ignore[dict-item]
    }  # fmt: skip
    error = {"code": 1, "message": "x\x1b[0m", "data": {"reas\x00on": "denied"}}
    failed = {**STATE, "status": "failed", "error": error}
    for mode in ("warn", "block"):
        shown = value(await ask(Result(failed), mode, "tasks/get"))  # type: ignore[arg-type]
        assert shown == {**failed, "error": {"code": 1, "message": "x", "data": {}}}
