"""Approvals of calls that are answered later: a task that waits for a person, between real peers of both eras."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from approval_kit import ANN, TOOL, Town
from e2e.sluice_process import sluice
from e2e.wire import MODERN
from peers.fleet import LEGACY_TASKS, peers, run_client, task_server
from peers.install import MCP1
from policy_bed import Bed, bearer, bed, client_keys, recorder

from sluicegate.guards import approval_tasks
from sluicegate.guards.approval_tasks import ApprovalTaskDeps, ApprovalTasks
from sluicegate.protocol.model import Call, Failure, Outcome, Result, TaskStarted
from sluicegate.protocol.tasks import owner

Json = dict[str, Any]
__all__ = ["peers"]

EXTENSION = "io.modelcontextprotocol/tasks"
CALLER = [str(MCP1 / "python"), str(Path(__file__).parent / "sdk_task_caller.py"), "{job}"]
ASKING = Path(__file__).parents[1] / "e2e" / "asking_server.py"
ROWS = """\
p, role:everyone, *, *, *, allow
p2, *, bank, *, *, one-of-leads
p2, *, pipe, *, *, one-of-leads
p2, *, new, *, *, one-of-leads
p2, *, asking, tool:name, *, one-of-leads
p, role:lead, sluice, admin:approvals, *, allow
p, key:ann, sluice, admin:approvals, *, allow
"""
KEYS = client_keys(ann=[], eve=[], lea=["role:lead"])


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("later")
    command, *arguments = LEGACY_TASKS
    with task_server(folder, "--journal", str(folder / "new.journal")) as new:
        servers: Json = {
            "bank": recorder(folder, "bank", tools=["wire"]),
            "pipe": {"command": command, "args": [*arguments, str(folder / "pipe.journal")]},
            "new": {"url": new, "era": "modern"},
            "asking": {"command": sys.executable, "args": [str(ASKING)]},
        }
        with bed(folder, ROWS, servers, clients={"keys": KEYS}, approvals={"hold_for": "300ms"}) as running:
            yield running


def say(town: Bed, who: str, method: str, **params: Any) -> Json:
    """A stateless client that can be answered later."""
    capabilities = {"elicitation": {}, "extensions": {EXTENSION: {}}}
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": capabilities,
    }  # fmt: skip
    headers = {
        "MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": params.get("name", params.get("taskId")),
    }  # fmt: skip
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return dict(town.post(who, body, headers).json())


def begin(town: Bed, tool: str, who: str = "ann", **arguments: Any) -> Json:
    task: Json = say(town, who, "tools/call", name=tool, arguments=arguments)["result"]
    assert (task["resultType"], task["status"]) == ("task", "working"), task
    return task


def get(town: Bed, id: str, who: str = "ann") -> Json:
    return dict(say(town, who, "tasks/get", taskId=id)["result"])


def until(town: Bed, id: str, *statuses: str) -> Json:
    town.until(lambda: get(town, id)["status"] in statuses)
    return get(town, id)


def decide(town: Bed, decision: str, tool: str, **arguments: Any) -> None:
    """Over the admin port, by whoever may, on the one call that waits with these arguments."""
    place = f"{town.process.admin}/api/v1/approvals"

    def waiting() -> list[Json]:
        rows = httpx.get(place, params={"state": "pending"}, headers=bearer("lea"), timeout=30).json()["approvals"]
        return [row for row in rows if row["tool"] == tool and row["arguments"] == arguments]

    town.until(lambda: len(waiting()) == 1)
    (row,) = waiting()
    body = {"decision": decision, "seen_digest": row["digest"], "comment": "as I see it"}
    assert httpx.post(f"{place}/{row['id']}/decisions", json=body, headers=bearer("lea"), timeout=30).status_code == 200


def approval_of(task: Json) -> str:
    return next(word for word in task["statusMessage"].replace(",", "").split() if word.startswith("apr_"))


def count(town: Bed, **arguments: Any) -> int:
    return sum(message["params"].get("arguments") == arguments for message in town.seen("bank"))


def begun(town: Bed) -> int:
    file = town.folder / "new.journal"
    return file.read_text().count("begun") if file.exists() else 0


# ---------------------------------------------------------------- the extension of 2026-07-28


def test_a_call_that_needs_approval_is_a_task_at_once_and_completes_with_its_result(town: Bed) -> None:
    task = begin(town, "bank__wire", n=1)
    assert "by role:lead" in task["statusMessage"] and task["ttlMs"] > 1_800_000 and count(town, n=1) == 0
    assert begin(town, "bank__wire", n=1)["taskId"] == task["taskId"], "the same call is the same task"
    decide(town, "approve", "wire", n=1)
    done = until(town, task["taskId"], "completed")
    assert done["result"]["content"][0]["text"] == "ran wire" and count(town, n=1) == 1
    assert begin(town, "bank__wire", n=1)["taskId"] != task["taskId"], "an approval is for once"
    assert get(town, task["taskId"])["status"] == "completed" and count(town, n=1) == 1


def test_a_denial_completes_the_task_with_the_words_of_whoever_said_no(town: Bed) -> None:
    id = begin(town, "bank__wire", n=2)["taskId"]
    decide(town, "deny", "wire", n=2)
    result = until(town, id, "completed")["result"]
    assert result["isError"] and result["_meta"]["dev.sluice/reason"] == "approval_denied"
    assert "as I see it" in result["content"][0]["text"] and count(town, n=2) == 0


def test_who_cancels_the_task_cancels_the_approval(town: Bed) -> None:
    id = begin(town, "bank__wire", n=3)["taskId"]
    approval = approval_of(get(town, id))
    assert "error" in say(town, "eve", "tasks/cancel", taskId=id), "another client's"
    assert say(town, "eve", "tasks/get", taskId=id)["error"]["message"] == "Task not found"
    assert "error" not in say(town, "ann", "tasks/cancel", taskId=id)
    assert get(town, id)["status"] == "cancelled"
    place = f"{town.process.admin}/api/v1/approvals/{approval}"
    assert httpx.get(place, headers=bearer("lea"), timeout=30).json()["state"] == "cancelled" and count(town, n=3) == 0
    assert "error" not in say(town, "ann", "tasks/cancel", taskId=id) and get(town, id)["status"] == "cancelled"


def test_a_plain_repeat_waits_beside_the_task_and_the_call_runs_once(town: Bed) -> None:
    id = begin(town, "bank__wire", n=4)["taskId"]
    pending = town.call("ann", "bank__wire", n=4).json()["result"]
    assert pending["_meta"]["dev.sluice/reason"] == "approval_pending"
    decide(town, "approve", "wire", n=4)
    assert until(town, id, "completed")["result"]["content"][0]["text"] == "ran wire" and count(town, n=4) == 1


def test_who_cancels_the_task_while_its_server_asks_ends_the_call_there(town: Bed) -> None:
    id = begin(town, "asking__name")["taskId"]
    decide(town, "approve", "name")
    until(town, id, "input_required")
    assert "error" not in say(town, "ann", "tasks/cancel", taskId=id)
    town.until(lambda: "cancelled" in str(say(town, "ann", "tools/call", name="asking__told", arguments={})))


def test_a_task_of_the_server_goes_on_under_the_same_id_and_asks_its_client(town: Bed) -> None:
    before = begun(town)
    id = begin(town, "new__confirm_delete", filename="x")["taskId"]
    assert begun(town) == before
    decide(town, "approve", "confirm_delete", filename="x")
    ((key, ask),) = until(town, id, "input_required")["inputRequests"].items()
    assert ask["params"]["message"] == "[new] Delete x?" and begun(town) == before + 1
    answer = {key: {"action": "accept", "content": {"confirm": True}}}
    say(town, "ann", "tasks/update", taskId=id, inputResponses=answer)
    assert until(town, id, "completed")["result"]["content"][0]["text"] == "deleted x"


def test_what_a_server_asks_before_it_begins_is_asked_through_the_task(town: Bed) -> None:
    id = begin(town, "new__test_tool_with_task")["taskId"]
    decide(town, "approve", "test_tool_with_task")
    ((key, ask),) = until(town, id, "input_required")["inputRequests"].items()
    assert ask["params"]["message"] == "[new] Your name?"
    say(town, "ann", "tasks/update", taskId=id, inputResponses={"other": {"action": "accept"}})
    unfit = say(town, "ann", "tasks/update", taskId=id, inputResponses={key: {"roots": []}})
    assert unfit["error"]["message"] == f"inputResponses[{key!r}] is no answer to elicitation/create"
    assert get(town, id)["status"] == "input_required"
    answer = {key: {"action": "accept", "content": {"name": "Ann"}}}
    say(town, "ann", "tasks/update", taskId=id, inputResponses=answer)
    assert until(town, id, "completed")["result"]["content"][0]["text"] == "Hello, Ann!"


def test_every_call_behind_a_task_has_its_intent_and_its_end_in_the_log(town: Bed) -> None:
    id = begin(town, "bank__wire", n=5)["taskId"]
    decide(town, "approve", "wire", n=5)
    until(town, id, "completed")

    def ended() -> bool:
        calls = [one["call"] for one in town.audit() if one["type"] == "outcome" and one.get("method") == "tools/call"]
        intents = {one["call"] for one in town.audit() if one["type"] == "intent" and one["method"] == "tools/call"}
        return bool(intents) and intents <= set(calls)

    town.until(ended)


def test_a_task_ends_with_its_process_and_its_approval_does_not(peers: None, tmp_path: Path) -> None:
    with task_server(tmp_path) as new:
        servers: Json = {"bank": recorder(tmp_path, "bank", tools=["wire"]), "new": {"url": new, "era": "modern"}}
        with bed(tmp_path, ROWS, servers, clients={"keys": KEYS}, approvals={"hold_for": "300ms"}) as town:
            task = begin(town, "bank__wire", n=6)
            town.process.process.kill()
            town.process.process.wait(30)
        with sluice(json.loads((tmp_path / "sluice.yaml").read_text()), tmp_path) as process:
            town = Bed(process, tmp_path)
            assert say(town, "ann", "tasks/get", taskId=task["taskId"])["error"]["message"] == "Task not found"
            again = begin(town, "bank__wire", n=6)
            assert approval_of(again) == approval_of(task) and again["taskId"] != task["taskId"]
            decide(town, "approve", "wire", n=6)
            until(town, again["taskId"], "completed")
            assert count(town, n=6) == 1


# ---------------------------------------------------------------- 2025-11-25, on the SDK 1.x


def test_a_legacy_client_has_its_task_while_a_person_decides(town: Bed) -> None:
    job = {"url": town.process.url, "headers": bearer("ann")}
    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(run_client, CALLER, job, 60)
        decide(town, "approve", "slow", seconds=0.1)
        decide(town, "approve", "ask")
        decide(town, "deny", "slow", seconds=9)
        told = seen.result(60)
    assert told["begun"][0] == "working" and "waiting for approval apr_" in told["begun"][1]
    assert told["result"] == "slow took 0.1" and told["status"] == "completed"
    assert told["asking"] == "accept Ada" and told["asked"] == ["[pipe] Who calls ask?"]
    assert told["denied"][0] == "failed" and "as I see it" in told["denied"][1]
    assert told["cancelled"] == "cancelled" and told["cancelled_again"] == -32602
    assert told["forbidden"] == -32601
    assert not (town.folder / "pipe.journal").read_text().count("9")


# ---------------------------------------------------------------- what is kept when they have ended


async def test_an_ended_task_keeps_no_arguments_or_capabilities_and_a_client_has_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(approval_tasks, "MAX_ENDED", 3)
    town, started, forgotten = Town(), list[Any](), list[str]()
    held = ApprovalTasks(town.desk, _deps(started, forgotten))
    async with anyio.create_task_group() as group:
        for number in range(5):
            who = replace(ANN, capabilities={"experimental": {"x": [[]] * 5_000}}, capability_key="x" * 16_000)
            call = town.call(who, amount=number, text="x" * 1_000_000)
            await town.run(call)
            (approval,) = town.desk.open_ones()
            task = await held.hold(call, TOOL, approval)
            assert isinstance(task, TaskStarted)
            one = next(iter(held._waiting.values()))
            group.start_soon(started[-1])
            cancel = Call(ANN, "tasks/cancel", {"taskId": one.id})
            with anyio.fail_after(20):
                await anyio.wait_all_tasks_blocked()
                await one.answer(cancel)
                await anyio.wait_all_tasks_blocked()
            assert one._call.params == {} and one._detailed()["status"] == "cancelled"
            assert (one._call.client, one.owner) == (replace(who, capabilities={}, capability_key="{}"), owner(who))
            assert one._trail.target is None
        assert forgotten == ["task-0", "task-1"]
        group.cancel_scope.cancel()
    assert held._ended == {} and held._waiting == {}


@pytest.mark.parametrize(("outcome", "left"), [
    (Result({"content": [{"type": "text", "text": "x" * 30_000}]}), 3), (Failure(-32000, "x" * 30_000), 3),
    (Failure(-32000, "no", "x" * 30_000), 3), (Result({"content": [[]] * 5_000}), 1), (Result({"content": []}), 6),
])  # fmt: skip
async def test_a_client_has_so_many_bytes_of_answers_and_the_newest_in_any_case(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome, left: int
) -> None:
    monkeypatch.setattr(approval_tasks, "MAX_KEPT", 100_000)
    town, started, forgotten = Town(), list[Any](), list[str]()

    async def again(call: Call) -> Outcome:
        return outcome

    held = ApprovalTasks(town.desk, replace(_deps(started, forgotten), again=again))
    async with anyio.create_task_group() as group:
        for number in range(6):
            call = town.call(amount=number)
            await town.run(call)
            approval = town.desk.open_ones()[-1]
            assert isinstance(await held.hold(call, TOOL, approval), TaskStarted)
            group.start_soon(started[-1])
            with anyio.fail_after(20):
                await anyio.wait_all_tasks_blocked()
        assert forgotten == [f"task-{number}" for number in range(6 - left)]
        group.cancel_scope.cancel()


def test_an_answer_is_weighed_in_steps_by_the_memory_that_it_takes() -> None:
    """Its JSON would be one long step: commas in a text are told from others by taking the texts out."""
    def weigh(value: Any) -> tuple[int, int]:
        steps, work = 0, approval_tasks._sizes(value)
        while True:
            try:
                next(work)
            except StopIteration as end:
                return steps, end.value
            steps += 1

    text = "a,b\n" * 1_000_000
    assert weigh({"content": [{"type": "text", "text": text}]}) == (0, pytest.approx(len(text), rel=0.01))
    steps, weight = weigh({"content": [[] for _ in range(50_000)], "k" * 1_000: "\U0001f600" * 1_000})
    assert steps == 50 and 50_000 * 56 < weight < 50_000 * 80


def _deps(started: list[Any], forgotten: list[str]) -> ApprovalTaskDeps:
    async def again(call: Call) -> Outcome:
        await anyio.sleep_forever()
        raise AssertionError

    async def may_hold(call: Call) -> bool:
        return True

    async def keep(call: Call, target: Any, task: TaskStarted, holder: Any) -> Outcome:
        return TaskStarted({**task.task, "taskId": f"task-{len(started)}"})

    async def forget(principal: str, id: str) -> None:
        forgotten.append(id)

    async def nothing(*about: Any) -> Any:
        return None

    return ApprovalTaskDeps(
        again=again, start=started.append, unfit=nothing, may_hold=may_hold, keep=keep, hand_over=nothing,
        forget=forget, about=nothing, announce=lambda *news: None, current=lambda client: client,
        abandon=lambda *call: None,
    )  # fmt: skip
