"""What hooks leave of tasks and of rounds, by a real hook and the guards alone."""

import asyncio
import time
from collections.abc import Awaitable, Iterator
from threading import Lock
from typing import Any

import pytest
from hook_service import HookService, hook_service

from sluicegate.audit.redact import Redactor
from sluicegate.guards.hooks import call_hooks, result_hooks
from sluicegate.hooks import messages
from sluicegate.hooks.asker import Hooks
from sluicegate.hooks.settings import HookSettings
from sluicegate.policy.hooked import HookVerdict
from sluicegate.policy.profiles import BUILT_IN
from sluicegate.policy.rules import Ruling
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import (
    LOGIN_PROFILE,
    ApprovalRef,
    Call,
    Client,
    Failure,
    Outcome,
    Result,
    Target,
    TaskStarted,
    Trail,
    Verdict,
)

ANN = Client("key:ann", ("role:dev",))
TOOL = Target("fs", "tool", "read", "fs__read")
SECRET: Any = [{"type": "text", "text": "secret"}]
TASK = {"taskId": "t", "status": "working", "statusMessage": "secret", "_meta": {"x": "secret"}, "more": "secret"}


@pytest.fixture
def hook() -> Iterator[HookService]:
    with hook_service() as made:
        made.answers = lambda asked: {"verdict": "withhold" if "secret" in str(asked) else "allow"}
        yield made


async def judged(hook: HookService, method: str, outcome: Outcome) -> Outcome:
    hooks = Hooks([HookSettings("dlp", hook.url, frozenset({"result"}), timeout=20)], Redactor(b"k"), str, dict)
    trail = Trail("c")
    trail.add(Ruling(Verdict.ALLOW, "a.csv:1", "", "read"))

    async def server(call: Call) -> Outcome:
        return outcome

    try:
        return await result_hooks(hooks)(Call(ANN, method, {}, target=TOOL, trail=trail), server)
    finally:
        await hooks.aclose()


async def test_a_member_beside_the_content_of_a_result_hides_nothing(hook: HookService) -> None:
    made = await judged(hook, "tasks/result", Result({"content": SECRET, "result": {}}))
    assert isinstance(made, Failure) and made.reason == "result_withheld"


@pytest.mark.parametrize("part", [{"result": {"content": SECRET}}, {"error": {"code": 1, "message": "secret"}}])
async def test_a_task_whose_end_is_withheld_has_a_refusal_as_its_result(hook: HookService, part: Any) -> None:
    made = await judged(hook, "tasks/get", Result({**TASK, "status": "failed", **part}))
    assert isinstance(made, Result) and made.reason == "result_withheld"
    assert made.value["status"] == "completed" and made.value["result"]["isError"] is True
    assert "secret" not in str(made.value)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "tasks/update"])
async def test_of_a_tasks_state_only_what_has_a_form_is_left(hook: HookService, method: str) -> None:
    made = await judged(hook, method, Result(TASK))
    assert isinstance(made, Result) and made.value == {"taskId": "t", "status": "working"}


async def test_the_same_of_a_task_that_begins(hook: HookService) -> None:
    made = await judged(hook, "tools/call", TaskStarted(TASK))
    assert isinstance(made, TaskStarted) and made.task == {"taskId": "t", "status": "working"}


async def test_no_member_of_an_answer_keeps_the_mark_of_a_redaction_away(hook: HookService) -> None:
    """An error that hooks look at is wrapped under that name, and has no place for marks."""
    hook.answers = lambda asked: {"verdict": "redact", "redact": ["/contents/0/text"]}
    given = {"contents": [{"uri": "a:b", "text": "secret"}], "error": 1}
    made = await judged(hook, "resources/read", Result(given))
    assert isinstance(made, Result) and "secret" not in str(made.value)
    assert made.value["_meta"]["dev.sluice/redacted"] == {"dlp": ["/contents/0/text"]}


async def test_a_redacted_result_stays_a_result(hook: HookService) -> None:
    value = {"content": [*SECRET, {"type": "image", "data": "AAAA", "mimeType": "image/png"}],
             "structuredContent": {"type": "x", "items": [1]}}  # fmt: skip
    for pointer, expected in (
        ("/content/0", {"type": "text", "text": "[redacted by the hook dlp]"}), ("/structuredContent/items", []),
        ("/content/1/data", ""), ("/structuredContent/type", "[redacted by the hook dlp]"), ("/content", None),
        ("/structuredContent", None),
    ):  # fmt: skip
        hook.answers = lambda asked, pointer=pointer: {"verdict": "redact", "redact": [pointer]}
        made = await judged(hook, "tools/call", Result(value))
        assert isinstance(made, Result)
        if expected is None:
            assert made.reason == "result_withheld"
            continue
        found: Any = made.value
        for step in pointer[1:].split("/"):
            found = found[int(step)] if isinstance(found, list) else found[step]
        assert found == expected, pointer


async def test_large_results_are_redacted_one_after_the_other(
    hook: HookService, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Each had a thread of its own, and nobody counted its time."""
    free, had, redacted = Lock(), list[bool](), messages.redacted

    def noted(value: Json, verdict: HookVerdict) -> Json:
        had.append(free.acquire(blocking=False))
        time.sleep(0.5)  # another one could begin
        try:
            return redacted(value, verdict)
        finally:
            if had[-1]:
                free.release()

    monkeypatch.setattr(messages, "redacted", noted)
    hook.answers = lambda asked: {"verdict": "redact", "redact": ["/content/0/text"]}
    settings = HookSettings("dlp", hook.url, frozenset({"result"}), timeout=20, sees_whole=True)
    hooks = Hooks([settings], Redactor(b"k"), str, dict)
    result = Result({"content": SECRET, "structuredContent": {"rows": [{"n": "x" * 50}] * 10_000}})

    async def server(call: Call) -> Outcome:
        return result

    def ask() -> Awaitable[Outcome]:
        trail = Trail("c")
        trail.add(Ruling(Verdict.ALLOW, "a.csv:1", "", "read"))
        return result_hooks(hooks)(Call(ANN, "tools/call", {}, target=TOOL, trail=trail), server)

    made = await asyncio.gather(*(ask() for _ in range(3)))
    assert all(isinstance(one, Result) and "secret" not in str(one.value) for one in made)
    assert had == [True] * 3
    await hooks.aclose()


@pytest.mark.parametrize(
    "outcome", [Failure(1, "no"), Result({"taskId": "t", "status": "completed", "result": {"content": SECRET}})]
)
async def test_a_short_answer_waits_for_no_large_one(hook: HookService, outcome: Outcome) -> None:
    hooks = Hooks([HookSettings("dlp", hook.url, frozenset({"result"}), timeout=20)], Redactor(b"k"), str, dict)
    trail = Trail("c")
    trail.add(Ruling(Verdict.ALLOW, "a.csv:1", "", "read"))

    async def server(call: Call) -> Outcome:
        return outcome

    async with hooks.masking, asyncio.timeout(20):  # a large one of another server is masked
        await result_hooks(hooks)(Call(ANN, "tasks/get", {}, target=TOOL, trail=trail), server)
    assert len(hook.asked) == 1
    await hooks.aclose()


@pytest.mark.parametrize(
    ("ref", "is_asked"),
    [
        (ApprovalRef("l", "", "", LOGIN_PROFILE, "login-1"), True),  # nothing was sent before a login
        (ApprovalRef("a", "d", "hook dlp", "confirm", "approve-1"), True),  # nor before an answer to an approval
        (ApprovalRef("a", "d", "hook dlp", "confirm"), False),
        (None, False),
    ],
)
async def test_a_round_is_asked_about_unless_its_call_has_begun(
    hook: HookService, ref: ApprovalRef | None, is_asked: bool
) -> None:
    hooks = Hooks([HookSettings("dlp", hook.url, frozenset({"call"}), timeout=20)], Redactor(b"k"), str,
                  lambda: BUILT_IN)  # fmt: skip
    trail = Trail("c")
    trail.add(Ruling(Verdict.ALLOW, "a.csv:1", "", "read"))
    trail.resume("first", 1, ref)

    async def server(call: Call) -> Outcome:
        return Result({})

    await call_hooks(hooks)(Call(ANN, "tools/call", {}, target=TOOL, trail=trail), server)
    await hooks.aclose()
    assert bool(hook.asked) is is_asked
    wants_person = ref is not None and ref.rule == "hook dlp"
    assert (trail.decisions[-1].verdict is Verdict.ASK) is wants_person


@pytest.mark.parametrize(("own", "glob"), [("SEND_it", "send_*"), ("send_it", "Send_*"), ("send_it", "[!A-Z]end_*")])
async def test_a_hook_is_asked_about_its_tools_in_whatever_letters(hook: HookService, own: str, glob: str) -> None:
    """A name that is relayed unlisted may be another spelling of one that the server knows."""
    settings = HookSettings("dlp", hook.url, frozenset({"call"}), tools=(glob,), timeout=20)
    hooks = Hooks([settings], Redactor(b"k"), str, lambda: BUILT_IN)
    hook.answers = lambda asked: {"verdict": "deny"}
    trail = Trail("c")
    trail.add(Ruling(Verdict.ALLOW, "a.csv:1", "", "read"))

    async def server(call: Call) -> Outcome:
        return Result({})

    target = Target("fs", "tool", own, own, is_unlisted=True)
    made = await call_hooks(hooks)(Call(ANN, "tools/call", {}, target=target, trail=trail), server)
    await hooks.aclose()
    assert isinstance(made, Result) and made.reason == "denied"


@pytest.mark.parametrize("is_later_round", [False, True])
async def test_what_a_hook_was_not_shown_of_a_call_reaches_no_server(hook: HookService, is_later_round: bool) -> None:
    settings = HookSettings("dlp", hook.url, frozenset({"call"}), tools=("read",), timeout=20)
    hooks, seen = Hooks([settings], Redactor(b"k"), str, lambda: BUILT_IN), list[Json]()

    async def server(call: Call) -> Outcome:
        seen.append(call.meta)
        return Result({})

    for target in (TOOL, Target("fs", "tool", "other", "fs__other")):
        trail = Trail("c")
        trail.add(Ruling(Verdict.ALLOW, "a.csv:1", "", "read"))
        if is_later_round:
            trail.resume("first", 1)
        meta = {"progressToken": 1, "com.example/note": "secret"}
        await call_hooks(hooks)(Call(ANN, "tools/call", {}, meta, target=target, trail=trail), server)
    await hooks.aclose()
    assert seen == [{"progressToken": 1}, meta]


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/update", "tasks/cancel"])
async def test_nor_what_is_said_of_its_task(hook: HookService, method: str) -> None:
    settings = HookSettings("dlp", hook.url, frozenset({"call"}), tools=("read",), timeout=20)
    hooks, seen = Hooks([settings], Redactor(b"k"), str, lambda: BUILT_IN), list[Call]()

    async def server(call: Call) -> Outcome:
        seen.append(call)
        return Result({})

    meta = {"progressToken": 1, "com.example/note": "secret"}
    params: Json = {"taskId": "t", "inputResponses": {"k": {"action": "accept"}}}
    await call_hooks(hooks)(Call(ANN, method, params, meta, target=TOOL, trail=Trail("c")), server)
    await hooks.aclose()
    assert [(call.params, call.meta) for call in seen] == [(params, {"progressToken": 1})] and not hook.asked


@pytest.mark.parametrize("is_later_round", [False, True])
async def test_nor_answers_that_no_server_asked_for(hook: HookService, is_later_round: bool) -> None:
    """A server that keeps no state takes them with a call's first round, too."""
    settings = HookSettings("dlp", hook.url, frozenset({"call"}), timeout=20)
    hooks, seen = Hooks([settings], Redactor(b"k"), str, lambda: BUILT_IN), list[Json]()

    async def server(call: Call) -> Outcome:
        seen.append(call.params)
        return Result({})

    trail = Trail("c")
    trail.add(Ruling(Verdict.ALLOW, "a.csv:1", "", "read"))
    if is_later_round:
        trail.resume("first", 1)
    params: Json = {"name": "read", "inputResponses": {"k": {"content": "secret"}}}
    await call_hooks(hooks)(Call(ANN, "tools/call", params, target=TOOL, trail=trail), server)
    await hooks.aclose()
    assert seen == [params if is_later_round else {"name": "read"}]


async def test_of_the_tools_that_a_server_lists_a_hook_is_asked_about_those_that_it_names() -> None:
    settings = HookSettings("dlp", "http://h.example", frozenset({"call"}), tools=("[A-Z]*",))
    hooks = Hooks([settings], Redactor(b"k"), str, lambda: BUILT_IN)

    def is_asked(own: str, is_unlisted: bool) -> bool:
        return bool(hooks.due("call", ANN, Target("fs", "tool", own, own, is_unlisted=is_unlisted)))

    assert is_asked("Send", is_unlisted=False) and not is_asked("send", is_unlisted=False)
    assert is_asked("send", is_unlisted=True), "another client may be listed what this one is not"


async def test_a_long_name_of_a_client_is_cut_before_it_is_kept(hook: HookService) -> None:
    hooks = Hooks([HookSettings("dlp", hook.url, frozenset({"call"}), timeout=20)], Redactor(b"k"), str, dict)
    client = Client("key:ann", info={"name": "n" * 1_000_000})
    await hooks.about_call(Call(client, "tools/call", {}, target=TOOL), TOOL, hooks.due("call", client, TOOL))
    await hooks.aclose()
    assert len(hook.bodies[0]) < 1_000
    assert sum(len(str(key)) for key in hooks._heads) < 1_000
