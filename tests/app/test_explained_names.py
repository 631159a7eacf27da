"""What `explain` and `block` look up of a server's list costs others nothing, whatever the server lists."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from approval_kit import bind
from listed import listing
from loop_steps import Steps

from sluicegate.app.explain_facts import ServerFacts
from sluicegate.approval.grants import Grant
from sluicegate.catalog.snapshot import ServerNaming, Snapshot, assemble
from sluicegate.catalog_cache import ListSettings
from sluicegate.policy.profiles import BUILT_IN
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client, Era

ANN = Client("key:ann")
NAMING = ServerNaming("git", "git", 50)


def facts(tools: list[Json], grants: Iterable[Grant] = ()) -> ServerFacts:
    lists = {"tools/list": listing(NAMING, "tools/list", tools, 0)}
    whole = assemble("git", {"capabilities": {"tools": {}}}, lists)

    async def wholes(server: str) -> list[tuple[Era, Snapshot]]:
        return [("legacy", whole)]

    pins: Any = SimpleNamespace(serves=lambda *about: True, has_accepted=lambda target: False)
    return ServerFacts(ListSettings({"git": "git"}), wholes, pins, grants, BUILT_IN)


async def near(name: str, listed: list[str]) -> str:
    found = facts([{"name": one} for one in listed])
    (candidate,) = await found.candidates(ANN, "tools/call", f"git/{name}", ["git"])
    assert candidate.state == "missing"
    return candidate.near


async def test_a_name_that_is_not_listed_is_compared_with_few_and_others_have_their_turn() -> None:
    others = [f"{number:05d}_tnemyap_etaerc_eussi" for number in range(3_000)]
    steps = Steps()
    try:
        before = steps.now
        assert await near("00007_create_payment_issu", [*others[:500], "create_payment_issue", *others]) != ""
        assert steps.now - before > 20, "the event loop waited"
    finally:
        steps.stop()
    assert await near("create_payment_issu", [*others, "create_payment_issue"]) != "create_payment_issue"
    long = "x" * 4_000
    assert await near(long, [long + "y"]) == "" and await near("create_pay", [long, "create_pai"]) == "create_pai"


async def test_a_definition_is_hashed_once_for_the_grants_of_its_tool_and_for_no_other() -> None:
    looked: list[str] = []

    class Item(dict[str, Any]):
        """Says when it is walked."""

        def items(self) -> Any:
            looked.append(self["name"])
            return super().items()

    pay, pull = ({"name": name, "inputSchema": {}} for name in ("pay", "pull"))
    plain = facts([pay, pull])
    by_own = (await plain.wholes("git"))[0][1].by_own
    terms = BUILT_IN["one-of-leads"]

    def grant(number: int, own: str, who: Client = ANN) -> Grant:
        binding = bind(who, "tools/call", by_own[own].target, {"name": own}, "p:1", terms)
        return Grant(f"grt_{number}", "apr", binding, "rev", "15m", "", "key:lea", 0.0, 1e12)

    async def ids(*grants: Grant) -> tuple[list[str], int]:
        """Of those that count, and how often the definition was walked for that."""
        known = facts([Item(pay), pull], grants)
        looked.clear()
        (found,) = await known.candidates(ANN, "tools/call", "git/pay", ["git"])
        return [one.id for one in found.grants], len(looked)

    one, walked = await ids(grant(1, "pay"))
    assert one == ["grt_1"] and walked > 0
    assert await ids(grant(1, "pay"), grant(2, "pay")) == (["grt_1", "grt_2"], walked)
    assert await ids(grant(3, "pull"), grant(4, "pay", Client("key:bob"))) == ([], 0)
