"""How long the store holds what belongs to an approval, and what is left behind by calls and receivers that wait."""

import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from approval_kit import ANN, CAREFUL, LEA, LEO, TOOL, Clock, Town, about, bind, reason
from test_approval_webhook import SECRET, Hook, serving, until

from sluicegate.approval import webhook
from sluicegate.approval.eligibility import VoteRefused
from sluicegate.approval.grants import A_TURN, MAX_OF, PREFIX, Grant, Grants
from sluicegate.approval.presentation import take
from sluicegate.approval.queue import MAX_WHOLE, ApprovalQueue
from sluicegate.approval.record import Approval, CallBinding, bind_any, session_mark, stored_form
from sluicegate.approval.validity import ApprovalValidity
from sluicegate.approval.webhook import Receiver, Webhooks
from sluicegate.audit.record import fingerprint
from sluicegate.audit.redact import Redactor
from sluicegate.policy.profiles import BUILT_IN
from sluicegate.protocol.canonical_json import canonical
from sluicegate.protocol.model import Client
from sluicegate.store.memory import MemoryStore

START = 1_000_000.0
DAY = 24 * 3600.0


def timed_town(**how: Any) -> Town:
    """The store and the queue read one clock, so that a test can let both of them pass a moment."""
    clock = Clock()
    return Town(store=MemoryStore(clock), clock=clock, **how)


async def keys(town: Town) -> set[str]:
    """Each kind of what the store holds, by the part of the key before an id."""
    return {key.rsplit("/", 1)[0] for key in await town.store.scan("approval/")}


async def ends_at(town: Town, prefix: str) -> float:
    """The first moment at which the store has nothing under `prefix` any more, in whole seconds; inf if never."""
    now = town.clock.now
    assert await town.store.scan(prefix)
    has, has_not = 0, int(3 * DAY)  # seconds from now
    while has_not - has > 1:
        town.clock.now = now + (has + has_not) // 2
        if await town.store.scan(prefix):
            has = (has + has_not) // 2
        else:
            has_not = (has + has_not) // 2
    town.clock.now = now
    return now + has_not if has_not < 3 * DAY else float("inf")


async def test_what_people_look_at_outlives_the_time_to_decide_by_a_day() -> None:
    town = timed_town()
    approval = await town.pending(amount=1)
    assert approval.expires == START + 1800
    assert await ends_at(town, "approval/shown/") == await ends_at(town, "approval/row/") == START + 1800 + DAY
    assert await ends_at(town, "approval/open/") == await ends_at(town, "approval/of/") == float("inf")


@pytest.mark.parametrize("passed", [0.0, 60.0, 1799.0])
async def test_a_denial_answers_the_same_call_until_its_time_is_over_and_is_shown_for_a_day(passed: float) -> None:
    town = timed_town()
    approval = await town.pending(amount=1)
    town.clock.now += passed
    await town.decide(approval, word="deny")
    assert await ends_at(town, "approval/of/") == approval.expires
    assert await ends_at(town, "approval/done/") == await ends_at(town, "approval/shown/") == START + passed + DAY
    assert await town.store.scan("approval/open/") == {}
    assert reason(await town.run(amount=1)) == "approval_denied"
    town.clock.now = approval.expires
    assert (await town.pending(amount=1)).id != approval.id and not town.seen


async def test_a_denial_at_the_very_end_is_in_the_store_for_one_second() -> None:
    town = timed_town()
    approval = await town.pending(amount=1)
    town.clock.now = approval.expires - 0.5
    kept = await town.desk.book.read(approval.id)
    assert kept is not None
    denied = approval.become("denied", by="key:lea", ended=town.clock.now)
    assert await town.desk.book.move(kept, denied, town.clock.now)
    (key,) = await town.store.scan("approval/of/")
    town.clock.now += 0.99
    assert await town.store.get(key) == approval.id.encode()
    town.clock.now += 0.01
    assert await town.store.get(key) is None


async def test_what_was_used_leaves_no_answer_to_the_same_call_and_is_compared_with_for_a_day() -> None:
    town = timed_town()
    await town.decide(await town.pending(amount=1))
    await town.run(amount=1)
    assert await keys(town) == {"approval/done", "approval/shown", "approval/row", "approval/last/bank/tool:pay"}
    for prefix in ("approval/done/", "approval/shown/", "approval/row/", "approval/last/"):
        assert await ends_at(town, prefix) == START + DAY


async def test_a_change_of_what_is_no_longer_so_changes_nothing_in_the_store() -> None:
    town = timed_town()
    approval = await town.pending(amount=1)
    read = await town.desk.book.read(approval.id)
    assert read is not None
    await town.decide(approval)
    before = await town.store.scan("approval/")
    denied = approval.become("denied", by="key:leo", ended=START)
    assert not await town.desk.book.move(read, denied, START)
    assert not await town.desk._ledger.apply(read, denied)
    assert not await town.desk.book.open(approval, {}, {})
    assert await town.store.scan("approval/") == before
    assert town.desk.counts["one-of-leads", "denied"] == 0


async def test_a_grant_is_in_the_store_as_long_as_it_can_be_used() -> None:
    for profile, scope, who, seconds in (("one-of-leads", "15m", LEA, 900), ("confirm", "session", ANN, 1800)):
        town = timed_town(profile=profile)
        approval = await town.pending(amount=1)
        await town.decide(approval, who, scope=scope)
        assert await ends_at(town, "approval/grant/") == START + seconds
        town.clock.now += 800
        (grant,) = town.desk.grants.alive()
        assert await town.desk.use_grant(grant)
        (grant,) = town.desk.grants.alive()
        end = START + 800 + seconds if scope == "session" else START + seconds
        assert grant.expires == end == await ends_at(town, "approval/grant/")


async def test_a_grant_for_a_session_has_an_end_however_often_it_is_used() -> None:
    town = timed_town(profile="confirm")
    approval = await town.pending(amount=1)
    await town.decide(approval, ANN, scope="session")
    uses = 0
    while grants := list(town.desk.grants.alive()):
        assert await town.desk.use_grant(grants[0])
        (grant,) = town.desk.grants.alive()
        assert grant.expires == await ends_at(town, "approval/grant/") <= START + 8 * 3600
        uses, town.clock.now = uses + 1, town.clock.now + 1700
    assert uses == 17 and not await town.desk.use_grant(grant)


async def test_the_end_of_a_session_ends_the_grants_of_that_session_and_no_others() -> None:
    town = timed_town(profile="confirm")
    here, there = replace(ANN, session="s1"), replace(ANN, session="s2")
    for who, scope in ((here, "session"), (there, "session")):
        asked = about(await town.run(town.call(who, amount=1)))["id"]
        await town.decide(await town.get(asked), who, scope=scope)
        assert reason(await town.run(town.call(who, amount=1))) == ""  # uses the approval itself
    town.profile = "one-of-leads"
    asked = about(await town.run(town.call(here, amount=2)))["id"]
    await town.decide(await town.get(asked), LEA, scope="15m")
    first, second, timed = town.desk.grants.alive()
    assert (first.scope, second.scope, timed.scope) == ("session", "session", "15m") != first.session
    town.desk.grants.end_session("s1")
    assert list(town.desk.grants.alive()) == [second, timed], "at once, and before the store is looked at"
    assert not await town.desk.use_grant(first) and await town.desk.use_grant(second)
    await town.desk.refresh()
    assert {key.rpartition("/")[2] for key in await town.store.scan("approval/grant/")} == {second.id, timed.id}
    assert town.desk.grants.get(first.id) is None and not town.desk.grants._over


async def test_a_grant_that_another_process_used_meanwhile_is_still_one_and_one_that_it_ended_is_not() -> None:
    class Meanwhile(MemoryStore):
        """Another process acts between the look at a grant and its renewal."""

        async def swap(self, key: str, expected: bytes | None, writes: Any) -> bool:
            await act(key)
            return await super().swap(key, expected, writes)

    async def renew(key: str) -> None:
        held = await town.store.get(key)
        if key.startswith("approval/grant/") and held is not None:
            await town.store.put(key, held + b" ", 1800)

    async def nothing(key: str) -> None:
        return None

    act: Any = nothing
    clock = Clock()
    town = Town(store=MemoryStore(clock), clock=clock, profile="confirm")
    town.store = Meanwhile(clock)
    town.desk = town.new_desk()
    await town.decide(await town.pending(amount=1), ANN, scope="session")
    (grant,) = town.desk.grants.alive()
    act = renew
    assert await town.desk.use_grant(grant)
    act = town.store.delete
    assert not await town.desk.use_grant(grant)
    assert not await town.desk.use_grant(grant), "it is gone before the look, too"


# ---------------------------------------------------------------- those who wait


@asynccontextmanager
async def waiting(town: Town, approval: Approval, *as_task: bool) -> AsyncIterator[list[tuple[bool, str]]]:
    """So many wait for an approval, far longer than a test lasts; what they heard, as they hear it."""
    heard: list[tuple[bool, str]] = []

    async def wait(is_task: bool) -> None:
        heard.append((is_task, (await town.desk.wait(approval, 600.0, is_task)).state))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for is_task in as_task:
                group.start_soon(wait, is_task)
                await until(lambda: any(key[1] is is_task for key in town.desk.waiting._waiters))  # noqa: B023
            yield heard
    assert town.desk.waiting._waiters == {}


async def test_a_call_and_a_task_wait_side_by_side_and_both_hear_and_leave_nothing_behind() -> None:
    town = Town()
    approval = await town.pending(amount=1)
    async with waiting(town, approval, False, True) as heard:
        assert len(town.desk.waiting._waiters) == 2 and heard == []
        await town.decide(approval)
    assert sorted(heard) == [(False, "approved"), (True, "approved")]


async def test_whoever_waits_when_sluice_stops_is_answered_at_once_and_so_is_whoever_comes_after() -> None:
    town = Town()
    approval = await town.pending(amount=1)
    async with waiting(town, approval, False, True) as heard:
        town.desk.waiting.release()
        await until(lambda: len(heard) == 2)
        with anyio.fail_after(5):
            assert (await town.desk.wait(approval, 600.0)).state == "pending"
    assert town.desk.waiting.is_closing and sorted(heard) == [(False, "pending"), (True, "pending")]


async def test_nobody_waits_longer_than_there_is_to_decide_or_than_was_asked_for() -> None:
    town = Town()
    approval = await town.pending(amount=1)
    with anyio.fail_after(20):
        assert (await town.desk.wait(approval, 0.0)).state == "pending"
        assert (await town.desk.wait(replace(approval, expires=town.clock.now - 1), 600.0)).state == "pending"
        town.clock.now = approval.expires
        assert (await town.desk.wait(approval, 600.0)).state == "expired"
    assert town.desk.waiting._waiters == {}


async def test_a_look_at_the_store_that_finds_nothing_new_notices_nothing() -> None:
    town = Town()
    other, approval = town.new_desk(), await town.pending(amount=1)
    heard: list[tuple[str, int]] = []
    other.watchers.append(lambda one: heard.append(one.version))
    for _ in range(3):
        await other.refresh()
    assert heard == [("pending", 0)], "each change is noticed once"
    assert [one.id for one in other.open_ones()] == [approval.id]
    await town.decide(approval, word="deny", comment="c")
    for _ in range(3):
        await other.refresh()
    assert heard == [("pending", 0), ("denied", 0)] and other.open_ones() == []
    assert other._ledger._raw == {} and other._ledger._open_of == {}


async def test_an_approval_that_was_never_asked_for_is_neither_approved_nor_used_nor_ended() -> None:
    town = Town()
    approval = await town.pending(amount=1)
    absent = replace(approval.binding, digest="sha256:0")
    assert not await town.desk.is_approved(absent) and not await town.desk.is_approved(approval.binding)
    assert not await town.desk.consume("apr_0") and await town.desk.end("apr_0", "cancelled") is None
    assert not await town.desk.consume(approval.id)
    await town.decide(approval)
    assert await town.desk.is_approved(approval.binding)
    ended = await town.desk.end(approval.id, "cancelled", "key:ann", "c" * 3000)
    assert ended is not None and (ended.state, ended.by, len(ended.comment)) == ("cancelled", "key:ann", 2000)
    assert await town.desk.end(approval.id, "superseded") == ended, "what is over ends once"
    assert not await town.desk.is_approved(approval.binding) and not await town.desk.consume(approval.id)


async def test_settings_of_a_changed_config_are_in_force_at_once_for_what_is_asked_and_for_what_was_agreed() -> None:
    town = Town()
    approval = await town.pending(amount=1)
    await town.decide(approval)
    town.people[LEA.principal] = replace(LEA, roles=())
    few = replace(town.desk.settings, per_client=1, profiles={"one-of-leads": BUILT_IN["one-of-leads"]})
    town.desk.configure(few)
    assert town.desk.settings is few and town.desk.pending() == {"one-of-leads": 0}
    assert reason(await town.run(amount=2)) == "rate_limited"
    town.people[LEA.principal] = LEA
    assert not await town.desk.consume(approval.id), "what was withdrawn stays so when the change is undone"


async def test_what_ends_an_approval_is_recorded_with_who_and_why_and_with_neither_where_time_did() -> None:
    town = timed_town()
    cancelled, expired = await town.pending(amount=1), await town.pending(amount=2)
    tool = {"principal": "key:ann", "server": "bank", "own": "pay"}
    ended = await town.desk.end(cancelled.id, "cancelled", "key:ann", "not any more")
    said = {"id": cancelled.id, "state": "cancelled", "digest": cancelled.binding.digest, "profile": "one-of-leads"}
    assert town.told[-1] == {"approval": {**said, "approver": "key:ann", "comment": "not any more"}, **tool}
    assert ended is not None and (ended.by, ended.comment, ended.ended) == ("key:ann", "not any more", START)
    town.clock.now = expired.expires
    over = await town.get(expired.id)
    said = {"id": expired.id, "state": "expired", "digest": expired.binding.digest, "profile": "one-of-leads"}
    assert town.told[-1] == {"approval": said, **tool}
    assert (over.state, over.by, over.comment, over.ended) == ("expired", "", "", expired.expires)


async def test_one_who_agreed_and_may_no_longer_ends_the_approval_for_whoever_uses_it() -> None:
    for change in ("person", "policy"):
        town = Town()
        approval = await town.pending(amount=1)
        await town.decide(approval)
        if change == "person":
            del town.people[LEA.principal]
        else:
            town.policy = "rev2"
        assert not await town.desk.consume(approval.id), change
        assert (await town.get(approval.id)).state == "superseded", change
        assert town.told[-1]["approval"]["state"] == "superseded" and "approver" not in town.told[-1]["approval"]


async def test_an_approval_carries_who_asked_with_which_client_session_and_trace() -> None:
    town = Town()
    town.tokens[ANN.principal] = START + 77
    info = {"name": "n" * 70, "version": "v" * 70}
    call = town.call(Client("key:ann", ("role:dev",), "Ann", session="s1", info=info), amount=1)
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    approval = await town.get(about(await town.run(replace(call, meta={"traceparent": trace})))["id"])
    assert approval.client == "n" * 64 + " " + "v" * 64 and approval.trace == trace
    assert (approval.owner, approval.persons) == ("Ann", ("key:ann", "ann")) and len(approval.session) == 32
    assert (approval.created, approval.expires, approval.token_end) == (START, START + 1800, START + 77)
    assert (approval.method, approval.public, approval.binding.class_, approval.policy) == (
        "tools/call", "b__pay", "write", "rev1")  # fmt: skip
    assert len(approval.home) == 12 and approval.home != town.new_desk()._home
    bare = town.call(Client("key:ann"), amount=2)
    approval = await town.get(about(await town.run(replace(bare, meta={"traceparent": "t" * 70})))["id"])
    assert (approval.client, approval.trace, approval.session, approval.owner) == ("", "", "", "")


def test_what_is_kept_of_a_call_says_whose_words_are_whose_and_nothing_where_there_are_none() -> None:
    town, redactor = Town(), Redactor(b"k" * 32)
    call = replace(town.call(amount=1), meta={"dev.sluice/reason": "r" * 1001})
    kept = take(call, redactor, "accepted")
    assert (kept["description"], kept["review"], kept["arguments"]) == ("Pays.", "accepted", {"amount": 1})
    assert kept["size"] == len('{"amount":1}') and not kept["is_cut"] and kept["hidden"] == 0
    assert kept["reason"].startswith("r" * 900) and len(kept["reason"]) < 1_100 and kept["reason"] != "r" * 1001
    for target in (None, replace(TOOL, item=None), replace(TOOL, item={"name": "pay", "description": 5})):
        bare = take(replace(call, target=target, meta={"dev.sluice/reason": 5}), redactor, "")
        assert (bare["description"], bare["reason"], bare["arguments"]) == ("", "", {"amount": 1})
    read = take(replace(call, params={"uri": "file:///a", "_meta": {}}), redactor, "")
    assert read["arguments"] == {"uri": "file:///a"} and read["digest"].startswith("hmac-sha256:")
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    assert take(replace(call, params={"arguments": [deep, "y" * 300_000]}), redactor, "")["is_cut"]


def test_the_digest_of_a_tools_call_is_of_what_is_bound_alone_so_that_a_store_of_before_still_answers() -> None:
    params = {"name": "pay", "arguments": {"b": 1, "a": "\u00e9"}, "_meta": {"x": 1}, "requestState": "s"}
    bound = {
        "principal": "key:ann", "server": "bank", "tool": "pay", "definition": fingerprint(TOOL.item or {}),
        "params": {"name": "pay", "arguments": {"b": 1, "a": "\u00e9"}},
    }  # fmt: skip
    made = bind(ANN, "tools/call", TOOL, params, "r", BUILT_IN["confirm"])
    assert made.digest == f"sha256:{sha256(canonical(bound).encode()).hexdigest()}"


def test_the_built_in_profiles_are_what_the_reference_says() -> None:
    told = {
        name: (one.name, one.tier, one.quorum, one.approvers, one.via, one.expires, one.remember, one.require_reason)
        for name, one in BUILT_IN.items()
    }
    assert told == {
        "confirm": ("confirm", "self", 1, (), ("elicitation", "api"), 300.0, ("once", "session"), False),
        "one-of-leads": ("one-of-leads", "other", 1, ("role:lead",), ("api",), 1800.0, ("once", "15m"), False),
        "two-person": ("two-person", "other", 2, ("role:lead",), ("api",), 3600.0, ("once",), True),
    }


# ---------------------------------------------------------------- the very moment, the very size


async def test_an_approval_is_over_at_its_very_end_for_whoever_looks_uses_or_asks() -> None:
    for is_over in (False, True):
        town = timed_town()
        for amount in (1, 2, 3):
            await town.decide(await town.pending(amount=amount))
        looked, used, asked = town.desk.open_ones()
        town.clock.now = looked.expires - (0.0 if is_over else 0.01)
        assert (await town.get(looked.id)).state == ("expired" if is_over else "approved")
        assert await town.desk.consume(used.id) is not is_over
        assert reason(await town.run(amount=3)) == ("approval_pending" if is_over else "")
        assert (await town.get(asked.id)).state == ("expired" if is_over else "consumed")


async def test_a_grant_is_over_at_its_very_end_and_at_the_very_end_of_its_holders_last_token() -> None:
    town = timed_town()
    town.tokens[ANN.principal] = START + 100
    await town.decide(await town.pending(amount=1), scope="15m")
    (grant,) = town.desk.grants.all()
    assert (grant.token_end, grant.expires) == (START + 100, START + 900)
    for now, end, is_orphaned in ((99.9, None, False), (100, None, True), (100, 99, True), (100, 100, True),
                                  (100, 100.1, False), (99.9, 50, False)):  # fmt: skip
        assert grant.is_orphaned(START + now, None if end is None else START + end) is is_orphaned
    bare = replace(grant, token_end=None)
    assert not bare.is_orphaned(START + 10**6, None) and bare.is_orphaned(START + 5, START + 5)
    town.clock.now = START + 899.9
    assert town.desk.grants.all() == list(town.desk.grants.alive()) == [grant]
    town.clock.now = START + 900
    assert town.desk.grants.all() == list(town.desk.grants.alive()) == []


async def test_what_is_too_much_is_refused_with_its_status_and_what_is_just_not_is_taken() -> None:
    town = timed_town(per_client=1)
    call = town.call(amount=2)
    binding = bind(ANN, "tools/call", TOOL, call.params, "policy.csv:7", BUILT_IN["one-of-leads"], town.identity)
    assert isinstance(await town.desk.ask(call, binding, dict), Approval)
    other = bind(ANN, "tools/call", TOOL, {"name": "pay"}, "policy.csv:7", BUILT_IN["one-of-leads"], town.identity)
    refused = await town.desk.ask(call, other, dict)
    assert isinstance(refused, VoteRefused) and refused.status == 429
    (approval,) = town.desk.open_ones()
    long = len('{"a":""}')
    for size, is_told in ((MAX_WHOLE + 1, False), (MAX_WHOLE, True)):
        town.desk.keep_whole(approval, {"a": "x" * (size - long)})
        told = await town.desk.reveal(approval.id, LEA)
        assert isinstance(told, dict) if is_told else isinstance(told, VoteRefused) and told.status == 409
    tracemalloc.start()
    try:
        town.desk.keep_whole(approval, json.loads(f'{{"a":[{"{},{}," * 5_000}{{}}]}}'))
        assert tracemalloc.get_traced_memory()[0] < 4 * MAX_WHOLE, "10,001 objects take ten times their text"
    finally:
        tracemalloc.stop()
    told = await town.desk.reveal(approval.id, LEA)
    assert isinstance(told, dict) and told["arguments"] == {"a": [{}] * 10_001}
    voted = await town.decide(approval, word="deny", comment="c" * 2001)
    assert isinstance(voted, Approval) and voted.comment == "c" * 2000 and voted.by == "key:lea"
    assert town.told[-1]["approval"]["comment"] == "c" * 2000
    told = await town.desk.reveal(approval.id, LEA)
    assert isinstance(told, VoteRefused) and told.status == 409


# ---------------------------------------------------------------- receivers


@asynccontextmanager
async def telling(desk: ApprovalQueue, *receivers: Receiver) -> AsyncIterator[Webhooks]:
    webhooks = Webhooks(desk, lambda: receivers, pause=0.02)
    async with anyio.create_task_group() as group:
        group.start_soon(webhooks.run)
        await until(lambda: desk.watchers)
        yield webhooks
        group.cancel_scope.cancel()
    assert desk.watchers == [], "nobody is left who would be told"


async def test_each_receiver_is_told_each_approval_once_though_another_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT", 600.0)  # the silent one stays so, however slow the machine is
    town, silent, first, second = timed_town(), Hook(0), Hook(200), Hook(201)
    async with serving(silent) as a, serving(first) as b, serving(second) as c:
        receivers = [Receiver(f"http://127.0.0.1:{port}/hook", SECRET) for port in (a, b, c)]
        async with telling(town.desk, *receivers) as webhooks:
            asked = [(await town.pending(amount=amount)).id for amount in (1, 2, 3)]
            await until(lambda: webhooks.sent == 6 and len(silent.requests) == 3)
            assert (len(webhooks._busy), webhooks.sent, webhooks.failures) == (3, 6, 0)
            for hook in (silent, first, second):
                assert sorted(hook.told(at)["data"]["id"] for at in range(3)) == sorted(asked)
            assert all(headers["content-type"] == "application/json" for headers, _ in first.requests)
        assert await ends_at(town, "approval/told/") == START + 1800, "as long as somebody may be needed"
        told = await town.store.scan("approval/told/")
        assert set(told) == {f"approval/told/{one.mark}/{id}" for one in receivers[1:] for id in asked}


async def test_a_first_vote_and_a_repeat_of_the_call_tell_nobody_again() -> None:
    town, hook = Town(profile="two-person"), Hook(200)
    async with serving(hook) as port, telling(town.desk, Receiver(f"http://127.0.0.1:{port}/hook", SECRET)) as webhooks:
        approval = await town.pending(amount=1)
        await until(lambda: webhooks.sent == 1)
        await town.decide(approval, LEA, comment="c")
        assert (await town.pending(amount=1)).id == approval.id
        other = await town.pending(amount=2)
        await until(lambda: webhooks.sent == 2)
        await town.decide(approval, LEO, comment="c")
    assert [hook.told(at)["data"]["id"] for at in range(2)] == [approval.id, other.id] and len(hook.requests) == 2


async def test_what_is_decided_or_erased_while_its_receiver_fails_is_told_no_more() -> None:
    for erase in (False, True):
        town, hook = Town(), Hook(500)
        receiver = Receiver("http://127.0.0.1:{}/hook", SECRET)
        async with serving(hook) as port:
            receiver = replace(receiver, url=receiver.url.format(port))
            async with telling(town.desk, receiver) as webhooks:
                approval = await town.pending(amount=1)
                await until(lambda: webhooks.failures >= 1)
                if erase:
                    await town.store.delete(f"approval/open/{approval.id}")
                else:
                    await town.decide(approval)
                await until(lambda: not webhooks._busy and not webhooks.sent)


async def test_a_message_is_signed_for_the_time_it_names_in_every_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    town, hook = Town(), Hook(200)
    try:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        async with serving(hook) as port:
            async with telling(town.desk, Receiver(f"http://127.0.0.1:{port}/hook", SECRET)) as webhooks:
                approval = await town.pending(amount=1)
                await until(lambda: webhooks.sent == 1)
        assert hook.told()["data"]["id"] == approval.id, "told verifies the signature, which covers the time"
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_a_client_keeps_its_newest_grants_and_what_judges_them_leaves_turns_to_others() -> None:
    """One in each of 10,000 sessions stopped the event loop for 700 ms each second, and for 200 ms at each call."""
    town, turns = Town(profile="confirm"), 0
    bound = bind_any(ANN, TOOL, town.rule, CAREFUL["confirm"], town.identity, "write")
    for number in range(MAX_OF + 3):
        made = town.clock.now + number / 1000
        mark = session_mark(f"s{number}")
        grant = Grant(f"grt_{number:03}", "apr", bound, "rev1", "session", mark, "key:ann", made, made + 1800)
        await town.store.put(PREFIX + grant.id, stored_form(grant), 1800)
        town.desk.grants.add(grant)
    alive = {one.id for one in town.desk.grants.alive()}
    assert len(alive) == MAX_OF and alive.isdisjoint({"grt_000", "grt_001", "grt_002"})

    async def have_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(have_turns)
        await town.desk.refresh()
        group.cancel_scope.cancel()
    assert turns > MAX_OF // 20 + A_TURN // 20, "while rows are read, and while grants are judged"
    assert {one.id for one in town.desk.grants.all()} == alive and len(await town.store.scan(PREFIX)) == MAX_OF
    assert [one["approval"]["comment"] for one in town.told] == [f"its client has {MAX_OF} that were used later"] * 3
    judged = list[str]()

    def identity_of(server: str) -> str:
        judged.append(server)
        return town.identity

    town.desk._validity._deps = replace(town.world(), identity_of=identity_of)
    found = town.desk.find_grant(bound, replace(ANN, session="s7"))
    assert found is not None and found.id == "grt_007" and len(judged) == 1
    assert town.desk.find_grant(bound, replace(ANN, session="s0")) is None


def session_grant(town: Town, number: int, used: float = 0.0, made: float | None = None) -> Grant:
    """One of Ann's for a session of its own, used that many seconds ago."""
    bound, now = bind_any(ANN, TOOL, town.rule, CAREFUL["confirm"], town.identity, "write"), town.clock.now
    mark, end = session_mark(f"s{number}"), now - used + 1800
    made = now - used if made is None else made
    return Grant(f"grt_{number:03}", "apr", bound, "rev1", "session", mark, "key:ann", made, end)


async def keep(town: Town, grant: Grant) -> None:
    await town.store.put(PREFIX + grant.id, stored_form(grant), 1800)


async def test_the_grants_that_end_beyond_the_bound_are_those_not_used_for_longest() -> None:
    town = Town(profile="confirm")
    busy = session_grant(town, 0, made=town.clock.now - 7000)
    grants = [busy, *(session_grant(town, number, used=600) for number in range(1, MAX_OF))]
    timed = replace(session_grant(town, 999), scope="15m", expires=town.clock.now + 900)
    for grant in (*grants, timed):
        town.desk.grants.add(grant)
    assert {one.id for one in (*grants, timed)} - {one.id for one in town.desk.grants.alive()} == {"grt_001"}


async def test_grants_that_did_not_change_are_judged_some_at_each_turn_and_each_once_in_a_round() -> None:
    town, judged = Town(profile="confirm"), list[str]()
    for number in range(2 * A_TURN + 5):
        await keep(town, session_grant(town, number))

    def objection(grant: Grant) -> str:
        judged.append(grant.id)
        return ""

    counts = list[int]()
    for is_moved in (True, False, False, True, False, True):
        before = len(judged)
        await town.desk.grants.refresh(objection, lambda principal, roles: None, is_moved)
        counts.append(len(judged) - before)
    assert counts == [2 * A_TURN + 5, A_TURN, 5, A_TURN, A_TURN, 5], "of what is new each one, at once"
    assert len(set(judged[-2 * A_TURN - 5 :])) == 2 * A_TURN + 5


async def test_however_many_grants_there_are_each_ends_at_the_next_turn_after_its_holders_token() -> None:
    town = Town(profile="confirm")
    for number in range(2 * A_TURN + 5):
        await keep(town, replace(session_grant(town, number), token_end=town.clock.now + 60))
    await town.desk.refresh()
    town.clock.now += 60
    await town.desk.refresh(is_moved=False)
    assert not town.desk.grants.all()


async def test_a_call_looks_at_the_grants_of_its_own_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    town, looked = Town(profile="confirm"), list[str]()
    grant, is_about = session_grant(town, 7), Grant.is_about
    for principal in ("key:ann", "key:lea", "key:leo"):
        bound = replace(grant.binding, principal=principal)
        town.desk.grants.add(replace(grant, id=f"grt_{principal}", binding=bound))

    def noted(one: Grant, *about: Any) -> bool:
        looked.append(one.id)
        return is_about(one, *about)

    monkeypatch.setattr(Grant, "is_about", noted)
    found = town.desk.find_grant(grant.binding, replace(ANN, session="s7"))
    assert found is not None and set(looked) == {"grt_key:ann"}
    assert await town.desk.grants.revoke(found, "key:lea")
    assert town.desk.find_grant(grant.binding, replace(ANN, session="s7")) is None and len(town.desk.grants) == 2


async def test_a_new_policy_ends_every_grant_without_a_look_at_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them in one step of the event loop, in which ten thousand judgements by roles and rules take most of a
    second."""
    town = Town(profile="confirm")
    for number in range(20):
        town.desk.grants.add(session_grant(town, number))

    def judged(validity: ApprovalValidity, binding: CallBinding) -> str:
        raise AssertionError("a grant was judged by the rules, though its policy is over")

    monkeypatch.setattr(ApprovalValidity, "_of_binding", judged)
    town.policy = "another"
    town.desk.reconsider()
    assert not list(town.desk.grants.alive())


class SlowStore(MemoryStore):
    """One whose entries are read at once, and come a moment later: something happens meanwhile."""

    meanwhile: Any = None

    async def scan(self, prefix: str) -> dict[str, bytes]:
        found = await super().scan(prefix)
        if self.meanwhile is not None and prefix == PREFIX:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return found


async def test_what_changes_during_a_look_at_the_store_stays_as_it_was_changed() -> None:
    clock = Clock()
    store = SlowStore(clock)
    town = Town(store=store, clock=clock, profile="confirm")
    revoked, used, new = (session_grant(town, number, used=60) for number in range(3))
    for grant in (revoked, used):
        await keep(town, grant)
    await town.desk.refresh()
    grants = town.desk.grants

    async def meanwhile() -> None:
        await grants.revoke(grants.all()[0], "key:lea")
        assert await grants.use(grants.all()[0])
        grants.add(new)

    store.meanwhile = meanwhile
    await town.desk.refresh()
    assert [(one.id, one.expires) for one in grants.all()] == [
        (used.id, clock.now + 1800), (new.id, new.expires),
    ]  # fmt: skip


async def test_rows_that_did_not_change_are_not_decoded_again() -> None:
    town = Town(profile="confirm")
    first, second = (session_grant(town, number) for number in range(2))
    for grant in (first, second):
        await keep(town, grant)
    await town.desk.refresh()
    one, other = town.desk.grants.all()
    await keep(town, replace(second, expires=second.expires - 1))
    await town.desk.refresh()
    assert town.desk.grants.get(one.id) is one and town.desk.grants.get(other.id) is not other


async def test_what_several_processes_gave_is_trimmed_at_the_next_look_and_recorded_once() -> None:
    town, told = Town(profile="confirm"), list[Any]()

    async def tell(record: Any) -> bool:
        told.append(record["approval"]["grant"])
        return True

    for number in range(MAX_OF + 2):
        await keep(town, session_grant(town, number, used=900 - number))
    one, other = (Grants(town.store, tell, town.clock) for _ in range(2))
    for grants in (one, other):
        await grants._look()
    for grants in (one, other):
        await grants.refresh(lambda grant: "", lambda principal, roles: None, False)
        assert len(grants) == MAX_OF
    assert told == ["grt_000", "grt_001"] and len(await town.store.scan(PREFIX)) == MAX_OF
