"""How long a preview may take and how many are open, before the guard of approvals and a real queue."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio
from approval_kit import ANN, LEA, Town

from sluicegate.app.admin_app import MAX_OPEN, MAX_PER_PRINCIPAL, Previews
from sluicegate.guards.approve import approve
from sluicegate.protocol.model import Call, Client, Outcome, Result, Target

PROMPT = Target("bank", "prompt", "ask", "b__ask", {"name": "ask"})
PARAMS = {"name": "b__ask", "arguments": {}}


class Core:
    """What a preview needs of it: the guard of approvals before a server, and its queue."""

    def __init__(self, town: Town) -> None:
        self.town, self.queue = town, town.desk
        self.handler = self.handle

    async def handle(self, call: Call) -> Outcome:
        call.trail.add(self.town.ruling())
        return await approve(self.queue, self.town.means())(replace(call, target=PROMPT), self.town.server)


async def test_a_preview_that_is_held_for_an_approval_names_it_and_uses_it_later() -> None:
    town = Town(hold_for=45.0)
    town.target, town.outcomes = PROMPT, [Result({"messages": []})]
    core: Any = Core(town)
    previews = Previews(core, seconds=0.2)
    with anyio.fail_after(10):
        told = await previews.show(ANN, "prompts/get", PARAMS)
        assert isinstance(told, dict) and town.seen == []
        assert told["failure"]["reason"] == "approval_pending"
        approval = await town.get(told["failure"]["data"]["approval"]["id"])
        assert approval.is_waiting and approval.id in told["failure"]["message"]
        await town.decide(approval, LEA)
        again = await previews.show(ANN, "prompts/get", PARAMS)
        assert isinstance(again, dict) and again["result"] == {"messages": []} and len(town.seen) == 1


async def test_a_preview_of_a_slow_server_names_no_approval() -> None:
    previews = Previews(_never(), seconds=0.05)
    told = await previews.show(ANN, "prompts/get", PARAMS)
    assert isinstance(told, dict)
    assert told["failure"] == {"message": "it took longer than 0.05 seconds", "reason": "", "data": {}}


async def test_one_principal_fills_its_own_places_and_all_together_have_a_bound() -> None:
    previews = Previews(_never(), seconds=30)
    refusals: dict[str, list[str]] = {}

    async def show(client: Client) -> None:
        told = await previews.show(client, "prompts/get", PARAMS)
        if isinstance(told, str):
            refusals.setdefault(client.principal, []).append(told)

    clients = [replace(ANN, principal=f"key:{number}") for number in range(MAX_OPEN // MAX_PER_PRINCIPAL + 1)]
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for client in clients:
                for _ in range(MAX_PER_PRINCIPAL + (client is clients[0])):
                    group.start_soon(show, client)
            await anyio.wait_all_tasks_blocked()
            assert {who: len(texts) for who, texts in refusals.items()} == {"key:0": 1, clients[-1].principal: 8}
            group.cancel_scope.cancel()
        async with anyio.create_task_group() as group:
            group.start_soon(show, clients[-1])
            await anyio.wait_all_tasks_blocked()
            assert len(refusals[clients[-1].principal]) == 8, "places of those that ended are free"
            group.cancel_scope.cancel()


def _never() -> Any:
    async def handler(call: Call) -> Outcome:
        await anyio.sleep_forever()
        raise AssertionError

    return SimpleNamespace(handler=handler)
