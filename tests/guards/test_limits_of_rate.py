"""throttle and quota, through the whole chain: who is counted, for what, and what a limit must not tell."""

from typing import Any

import pytest

from sluicegate.guards import ORDER, chain
from sluicegate.guards.enforce import enforce
from sluicegate.guards.name import name
from sluicegate.guards.quota import quota
from sluicegate.guards.throttle import throttle
from sluicegate.policy.rates import Windows
from sluicegate.protocol.model import (
    Call,
    Client,
    Decision,
    Failure,
    Guard,
    Outcome,
    Result,
    Target,
    Trail,
    Verdict,
    not_found,
)

TARGETS = {
    "g__push": Target("git", "tool", "push", "g__push", {}),
    "g__pull": Target("git", "tool", "pull", "g__pull", {}),
    "g__secret": Target("git", "tool", "secret", "g__secret", {}),
    "g__a": Target("git", "tool", "a", "g__a"),  # relayed without being listed
    "g__b": Target("git", "tool", "b", "g__b"),
}


class Front:
    """A chain with these guards, in front of a server that answers everything. A clock that stands still."""

    def __init__(self, per_client: int | None = None, per_tool: int | None = None) -> None:
        self.now = 0.0
        self.seen: list[Call] = []
        guards: dict[str, Guard | None] = dict.fromkeys(ORDER)
        guards["name"] = name(self.resolve, lambda server: None)
        guards["enforce"] = enforce(self.decide, lambda target, arguments: None, lambda: False)
        guards["throttle"] = throttle(self.windows(per_client)) if per_client else None
        guards["quota"] = quota(self.windows(per_tool)) if per_tool else None
        self.handler = chain(guards, self.answer)

    def windows(self, amount: int) -> Windows:
        return Windows(amount, 60.0, lambda: self.now)

    async def resolve(self, call: Call) -> Target | None:
        return TARGETS.get(call.params["name"])

    def decide(self, call: Call, target: Target) -> Decision:
        return Decision(Verdict.DENY if target.own == "secret" else Verdict.ALLOW, "row", "because")

    async def answer(self, call: Call) -> Outcome:
        self.seen.append(call)
        return Result({"content": []})

    async def ask(self, method: str = "tools/call", client: str = "key:a", **more: Any) -> Outcome:
        params = {"name": more.pop("tool", "g__push")} if method == "tools/call" else {}
        caller = Client(client, session=more.pop("session", None), info=more.pop("info", {}))
        return await self.handler(Call(caller, method, params, trail=more.pop("trail", Trail("c"))))


def reason(outcome: Outcome) -> str | None:
    if isinstance(outcome, Failure):
        return (outcome.data or {}).get("reason")
    assert isinstance(outcome, Result)
    meta: dict[str, str] = outcome.value.get("_meta", {})
    return meta.get("dev.sluice/reason")


METHODS = (
    "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list",
    "subscriptions/listen", "tools/call",
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
async def test_every_kind_of_request_counts_and_is_refused_alike(method: str) -> None:
    front = Front(per_client=3)
    for kind in ("tools/list", "subscriptions/listen", "tools/call"):
        assert reason(await front.ask(kind)) is None
    refused = await front.ask(method)
    assert reason(refused) == "rate_limited"
    assert len(front.seen) == 3
    text = refused.message if isinstance(refused, Failure) else refused.value["content"][0]["text"]  # type: ignore[union-attr]
    assert text == "Too many requests, this one was not executed: 3 per minute are allowed; try again in 60 s."
    front.now = 60.0
    assert reason(await front.ask(method)) is None


async def test_a_refused_call_is_a_result_that_a_model_can_act_on_and_the_rest_are_errors() -> None:
    front = Front(per_client=1)
    await front.ask()
    call, listed = await front.ask(), await front.ask("tools/list")
    assert isinstance(call, Result) and call.value["isError"] is True
    assert isinstance(listed, Failure) and listed.code == -32603


@pytest.mark.parametrize("limits", [{"per_client": 2}, {"per_tool": 2}])
async def test_a_new_session_or_another_name_starts_nothing_anew(limits: dict[str, int]) -> None:
    front = Front(**limits)
    for number in range(2):
        assert reason(await front.ask(session=f"s{number}", info={"name": f"agent {number}"})) is None
    assert reason(await front.ask(session="s9", info={"name": "another"})) == "rate_limited"
    assert reason(await front.ask(client="key:b")) is None


async def test_a_tool_has_its_own_quota_for_each_client() -> None:
    front = Front(per_tool=1)
    assert reason(await front.ask()) is None
    refused = await front.ask()
    assert reason(refused) == "rate_limited" and "g__push" in str(refused)
    assert reason(await front.ask(tool="g__pull")) is None
    assert reason(await front.ask(client="key:b")) is None
    assert reason(await front.ask("tools/list")) is None
    assert len(front.seen) == 4


async def test_names_that_no_server_listed_share_one_quota() -> None:
    front = Front(per_tool=1)
    assert reason(await front.ask(tool="g__a")) is None
    assert reason(await front.ask(tool="g__b")) == "rate_limited"


async def test_later_rounds_of_a_counted_call_are_not_counted() -> None:
    front = Front(per_tool=1)
    assert reason(await front.ask()) is None
    later = Trail("c2")
    later.resume("c", 1)
    assert reason(await front.ask(trail=later)) is None
    assert reason(await front.ask()) == "rate_limited"


async def test_a_hidden_tool_answers_as_an_unknown_one_before_any_quota_can_tell() -> None:
    front = Front(per_tool=1)
    for _ in range(3):
        assert await front.ask(tool="g__secret") == not_found("tools/call", {"name": "g__secret"})
        assert await front.ask(tool="g__nothing") == not_found("tools/call", {"name": "g__nothing"})
    assert front.seen == []


async def test_what_throttles_says_the_same_of_hidden_unknown_and_known_names() -> None:
    front = Front(per_client=1)
    await front.ask()
    answers = [await front.ask(tool=tool) for tool in ("g__secret", "g__nothing", "g__push")]
    assert answers[0] == answers[1] == answers[2]
