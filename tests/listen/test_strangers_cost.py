"""Requests without a good credential: their addresses pay for the answers, as clients do for their refusals."""

import asyncio
from collections import Counter
from time import perf_counter
from typing import Any

import pytest
from issuer import AUDIENCE, issuer
from listen_harness import call, post, site, until
from loop_steps import Steps

from sluicegate.http.egress import Egress
from sluicegate.http.fetch import Fetcher
from sluicegate.listen.auth import IdentitySettings
from sluicegate.listen.auth.issuers import KeySets, TokenIssuer
from sluicegate.listen.auth.tokens import TokenSettings
from sluicegate.runtime import loop_budget
from sluicegate.runtime.loop_budget import LoopBudget

SHAPES = {
    "a wrong key": (post(b"{}", secret="wrong"), 401),
    "a token that is none": (post(b"{}", secret="e30.e30.e30"), 401),
    "no credential": (post(b"{}").replace(b"Authorization", b"X-Other"), 401),
    "a path that is none": (b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "a strange host": (b"GET /mcp HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
    "too large": (b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n", 413),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_answer_without_a_credential_is_paid_by_its_address(
    monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    data, status = SHAPES[shape]
    paid: list[LoopBudget] = []
    monkeypatch.setattr(LoopBudget, "refused", lambda budget, *cost: paid.append(budget))
    async with site() as here:
        raw = await here.raw(data)
        assert (await raw.answer())[0] == status
        raw.close()
        assert paid == [loop_budget.client_budgets()["address 127.0.0.1"]]


async def test_a_good_token_stands_behind_no_refusals_of_its_address() -> None:
    """All who come through one proxy may have one address."""
    with issuer() as login:
        sets = KeySets(Fetcher(Egress()))
        identity = IdentitySettings(tokens=TokenSettings((TokenIssuer(login.url, AUDIENCE),)))
        async with site(identity=identity, keysets=sets) as here:
            budget = loop_budget.client_budgets()["address 127.0.0.1"]
            budget.charge(1.0)
            async with budget.turn:  # whoever is refused waits
                raw = await here.raw(post(call("echo"), secret=login.token()))
                assert (await raw.answer())[0] == 400, "it has no session"
            raw.close()


async def test_whoever_leaves_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came, was refused and left again and again would leave a task each time."""
    charged = 0

    def counted(budget: LoopBudget, seconds: float) -> None:
        nonlocal charged
        charged += 1

    async with site() as here:
        budget = loop_budget.client_budgets()["address 127.0.0.1"]
        budget.charge(1.0)
        monkeypatch.setattr(LoopBudget, "charge", counted)
        async with budget.turn:
            before = len(asyncio.all_tasks())
            raws = [await here.raw(post(b"{}", secret="wrong")) for _ in range(20)]
            await until(lambda: len(budget.turn._waiters or ()) == 20)
            for raw in raws:
                raw.close()
            await until(lambda: not here.server.connections)
            await until(lambda: len(asyncio.all_tasks()) <= before)
        assert charged == 20, "each pays for its verdict all the same"


async def test_a_flood_of_wrong_keys_is_answered_one_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that 40 connections had sent were answered in the same steps, and others waited for each of them."""
    refused, steps = Counter[int](), Steps()
    charge = LoopBudget.refused

    def counted(budget: LoopBudget, *cost: Any) -> None:
        refused[steps.now] += 1
        charge(budget, *cost)

    monkeypatch.setattr(LoopBudget, "refused", counted)
    async with site() as here:
        # What was paid is forgotten slowly: a busy machine may do something else between two requests. Who has used up
        # its part waits for an idle moment, and each is idle: another thread of this process may be busy.
        slowly = LoopBudget(lambda: perf_counter() / 1000, used=lambda: 0.0)
        loop_budget.client_budgets()["address 127.0.0.1"] = slowly
        raws = [await here.raw(b"") for _ in range(40)]
        for _ in range(3):
            for raw in raws:
                raw.writer.write(post(call("echo"), secret="wrong"))
            await asyncio.gather(*(raw.answer() for raw in raws))
    steps.stop()
    assert refused.total() == 120
    assert max(refused.values()) <= 2, "one at the end of a step, and one at the beginning of the next"
