"""A list is judged once for all clients of equal rights, and again as soon as anything it goes by is another."""

import asyncio
import gc
from collections.abc import Callable

import pytest
from scripted_server import Front, Scripted, tools

from sluicegate.catalog.snapshot import Snapshot
from sluicegate.policy.classes import Classes
from sluicegate.policy.judge import PolicyEngine, PolicyInForce
from sluicegate.policy.rulebook import Rulebook, ToolRules, allowlist
from sluicegate.protocol import legacy_client, modern_client
from sluicegate.protocol.jsonrpc import SharedList, decode, dump, encode, to_value
from sluicegate.protocol.model import Call, Client, Result, Target
from sluicegate.router.combined_lists import MAX_SHARED
from sluicegate.router.visible_lists import VisibleList, VisibleLists
from tests.policy.policies import policy_of

ROWS = "p, role:dev, git, tool:get_*, *, allow"
ANN, BOB, EVE = Client("key:ann", ("role:dev",)), Client("key:bob", ("role:dev", "role:else")), Client("key:eve")
OWN = ("get_a", "get_b", "put_a")


def law(rows: str) -> PolicyInForce:
    return PolicyInForce(Rulebook(policy_of(rows), Classes({}), allowlist({"git": ToolRules()})))


class Counting:
    """The judge of a front, and how often it was asked about a tool since the last look."""

    def __init__(self, rows: str = ROWS) -> None:
        self.judge = PolicyEngine(law(rows))
        self.server = Scripted("git", tools=OWN)
        self.server.scopes = lambda client: "everybody"
        self.front = Front(
            self.server, may_list=self.may_list, may_see=self.judge.may_see, permission_key=self.judge.permission_key
        )
        self._asked = 0

    def may_list(self, call: Call, server: str, target: Target) -> bool:
        self._asked += 1
        return self.judge.may_list(call, server, target)

    def asked(self) -> int:
        asked, self._asked = self._asked, 0
        return asked

    async def names(self, client: Client, method: str = "tools/list") -> list[str]:
        page = await self.front.page(method, client)
        return [tool["name"] for tool in page["tools"]]


async def test_clients_of_equal_rights_are_judged_once_and_others_by_themselves() -> None:
    made = Counting()
    async with made.front:
        assert await made.names(ANN) == await made.names(ANN) == await made.names(BOB) == ["git__get_a", "git__get_b"]
        assert made.asked() == len(OWN)
        assert await made.names(EVE) == []
        assert made.asked() == len(OWN)


def looks(views: VisibleLists, snapshot: Snapshot, *clients: Client) -> list[asyncio.Task[VisibleList]]:
    """At the same time, as all open streams do when a list has changed."""
    calls = [Call(client, "tools/list", {}) for client in clients]
    return [asyncio.create_task(views.view(call, "git", snapshot, call.method)) for call in calls]


async def long_list(made: Counting) -> Snapshot:
    made.server.items["tools/list"] = tools(*(f"get_{number}" for number in range(1_000)))
    snapshot = await made.front.lists.snapshot("git", ANN)
    assert snapshot is not None
    return snapshot


async def test_a_long_list_is_judged_once_for_all_of_equal_rights_who_look_at_it_at_once() -> None:
    made = Counting()
    async with made.front:
        views = VisibleLists(made.may_list, made.judge.permission_key)
        first, second, third = await asyncio.gather(*looks(views, await long_list(made), ANN, BOB, ANN))
        assert first is second is third and made.asked() == len(first.shown) == 1_000


@pytest.mark.parametrize("end", [lambda made, task: task.cancel(), lambda made, task: made.judge.renew()])
async def test_whoever_waited_for_a_judgement_judges_where_it_is_given_up_or_another_law_came(
    end: Callable[[Counting, asyncio.Task[VisibleList]], object],
) -> None:
    made = Counting()

    def may_list(call: Call, server: str, target: Target) -> bool:
        if made._asked == 500:
            end(made, first)
        return made.may_list(call, server, target)

    async with made.front:
        views = VisibleLists(may_list, made.judge.permission_key)
        first, second, third = looks(views, await long_list(made), ANN, BOB, ANN)
        assert await second is await third and len((await second).shown) == 1_000
        assert 1_000 < made.asked() <= 2_000 and first.done()


async def test_another_law_an_error_and_accepted_definitions_are_judged_anew() -> None:
    made = Counting()
    async with made.front:
        await made.names(ANN)
        made.judge.in_force = law("p, role:dev, git, tool:put_*, *, allow")
        assert await made.names(ANN) == ["git__put_a"]
        made.judge.renew()
        assert await made.names(ANN) == ["git__put_a"]
        assert made.asked() == 3 * len(OWN)
        made.judge.problem = "nothing can be decided"
        assert await made.names(ANN) == []
        made.judge.problem = ""
        assert await made.names(ANN) == ["git__put_a"]


async def test_what_was_seen_before_a_change_of_the_policy_is_not_kept() -> None:
    """It would be found by nobody, and hold the list of its server."""

    def kept() -> int:
        return sum(isinstance(one, VisibleList) for one in gc.get_objects())

    made, before = Counting(), kept()
    async with made.front:
        for _ in range(4 * MAX_SHARED):
            made.judge.renew()
            await made.names(ANN)
        assert kept() - before <= MAX_SHARED + 1, "pages that are the same for many hold theirs, and they are few"


async def test_a_list_that_changed_is_judged_anew() -> None:
    made = Counting()
    async with made.front:
        await made.names(ANN)
        made.server.items["tools/list"] = tools(*OWN, "get_c")
        made.front.lists.changed("git", None, "tool")
        assert await made.names(ANN) == ["git__get_a", "git__get_b", "git__get_c"]
        assert made.asked() == 2 * len(OWN) + 1


async def test_lists_that_a_server_had_before_are_not_kept_by_what_clients_saw_of_them() -> None:
    """A server may always change its list, of 16 MiB each time."""

    def kept() -> int:
        gc.collect()
        return sum(isinstance(one, Snapshot | SharedList) for one in gc.get_objects())

    made, found = Counting(), list[int]()
    async with made.front:
        for number in range(6):
            made.server.items["tools/list"] = tools(*OWN, f"get_{number}")
            made.front.lists.changed("git", None, "tool")
            assert f"git__get_{number}" in await made.names((ANN, BOB, EVE)[number % 2])
            assert await made.names(EVE) == []
            found.append(kept())
    assert found[-1] == found[1]


async def test_a_policy_that_changes_while_a_list_is_judged_leaves_nothing_behind() -> None:
    made = Counting()
    shut = law("")

    def may_list(call: Call, server: str, target: Target) -> bool:
        allowed = made.judge.may_list(call, server, target)
        made.judge.in_force = shut
        return allowed

    front = Front(made.server, may_list=may_list, may_see=made.judge.may_see, permission_key=made.judge.permission_key)
    async with front:
        await front.page("tools/list", ANN)
        assert (await front.page("tools/list", ANN))["tools"] == []


async def test_a_page_that_says_the_same_is_made_and_encoded_once_for_each_revision() -> None:
    made = Counting()
    async with made.front:
        pages = [await made.front.page("tools/list", client) for client in (ANN, BOB, ANN)]
        assert pages[0]["tools"] is pages[1]["tools"] is pages[2]["tools"]
        old, new = (
            [legacy_client.respond(n, "tools/list", Result(page), revision) for n, page in enumerate(pages)]
            for revision in ("2024-11-05", "2025-11-25")
        )
        newest = [modern_client.respond(n, "tools/list", Result(page), {})[1] for n, page in enumerate(pages)]
        for responses in (old, new, newest):
            assert responses[0].result["tools"] is responses[1].result["tools"]
            assert responses[0].result["tools"].json() is responses[1].result["tools"].json()
            for response in responses:
                assert decode(encode(response)) == to_value(response) == decode(dump(to_value(response)))
        made.server.items["tools/list"] = tools(*OWN, "get_c")
        made.front.lists.changed("git", None, "tool")
        assert len((await made.front.page("tools/list", ANN))["tools"]) == 3
        assert (await made.front.page("tools/list", EVE))["tools"] == []
