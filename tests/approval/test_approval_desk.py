"""Approvals in one process, the guard included: each ends in how many calls the server saw."""

import itertools
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from approval_kit import ANN, CAREFUL, LEA, LEO, TOOL, Town, about, bind, reason, text

from sluicegate.approval import presentation, validity
from sluicegate.approval import queue as desks
from sluicegate.approval.eligibility import VoteRefused, VoteRequest
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.approval.record import FINISHED, TRANSITIONS, Approval, may_become
from sluicegate.approval.repository import OPEN
from sluicegate.audit.read import approvals
from sluicegate.policy.schemas import ArgumentSchema
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import ApprovalRef, Client, InputRequired, Result, Trail, Verdict
from sluicegate.protocol.shape import Shape
from sluicegate.runtime.loop_budget import client_budgets
from sluicegate.store import StoreFailed, Write
from sluicegate.store.memory import MemoryStore
from sluicegate.store.sqlite import SqliteStore


@pytest.fixture
def town() -> Town:
    return Town()


def status(decided: Approval | VoteRefused) -> int | str:
    return decided.status if isinstance(decided, VoteRefused) else decided.state


def states(town: Town) -> list[str]:
    return [fields["approval"]["state"] for fields in town.told]


# ---------------------------------------------------------------- states


def test_what_is_finished_has_no_way_out_and_everything_begins_pending() -> None:
    assert FINISHED == {"consumed", "denied", "expired", "cancelled", "superseded"}
    assert {way for ways in TRANSITIONS.values() for way in ways} == set(TRANSITIONS) - {"pending"}
    assert not may_become("pending", "consumed") and not may_become("denied", "approved")


# ---------------------------------------------------------------- S27


async def test_what_is_approved_runs_once_and_a_repeat_asks_anew(town: Town) -> None:
    approval = await town.pending(amount=5)
    assert not town.seen
    assert status(await town.decide(approval)) == "approved"
    assert reason(await town.run(amount=5)) == "" and len(town.seen) == 1
    again = await town.pending(amount=5)
    assert again.id != approval.id and (await town.get(approval.id)).state == "consumed"
    assert len(town.seen) == 1
    assert states(town) == ["pending", "approved", "pending"]
    assert town.intents == [
        {"id": approval.id, "state": "consumed", "digest": approval.binding.digest, "profile": "one-of-leads",
         "approver": "key:lea"}
    ]  # fmt: skip


async def test_what_a_client_adds_to_an_approved_call_is_not_sent(town: Town) -> None:
    """It is no part of what the approver saw, and may be another at each call."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    defined = {"progressToken": 1, "traceparent": parent, "io.modelcontextprotocol/logLevel": "info"}
    unseen = {"io.modelcontextprotocol/mode": "force", "baggage": "force=true", "tracestate": "a=force it"}
    await town.decide(await town.pending(amount=5))
    call = replace(town.call(amount=5), meta={**defined, **unseen, "com.example/dry_run": False, "path": "/etc"})
    assert reason(await town.run(call)) == "" and town.seen[0].meta == defined
    words = {"traceparent": f"{parent} force", "io.modelcontextprotocol/logLevel": "force"}
    await town.decide(await town.pending(amount=6))
    assert reason(await town.run(replace(town.call(amount=6), meta=words))) == "" and town.seen[1].meta == {}


async def test_a_denial_is_told_with_its_comment_and_nobody_is_asked_again_at_once(town: Town) -> None:
    approval = await town.pending(amount=5)
    assert status(await town.decide(approval, word="deny", comment="not today")) == "denied"
    for _ in range(2):
        outcome = await town.run(amount=5)
        assert reason(outcome) == "approval_denied" and "not today" in text(outcome)
    town.clock.now += 1801
    assert (await town.pending(amount=5)).id != approval.id
    assert not town.seen


async def test_silence_is_a_no(town: Town) -> None:
    approval = await town.pending(amount=5)
    town.clock.now += 1800
    assert status(await town.decide(approval)) == 409
    assert (await town.get(approval.id)).state == "expired"
    assert (await town.pending(amount=5)).id != approval.id
    assert not town.seen


async def test_what_was_approved_and_not_used_in_time_is_expired(town: Town) -> None:
    approval = await town.pending(amount=5)
    await town.decide(approval)
    town.clock.now += 1800
    assert (await town.pending(amount=5)).id != approval.id
    assert (await town.get(approval.id)).state == "expired" and not town.seen


async def test_a_waiting_call_hears_that_nobody_answered_in_time() -> None:
    town = Town(profile="brief", hold_for=60.0)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(_let_pass, town)
            outcome = await town.run(amount=5)
    assert reason(outcome) == "approval_expired" and not town.seen


async def _let_pass(town: Town) -> None:
    while not town.desk.open_ones():
        await anyio.lowlevel.checkpoint()
    town.clock.now += 5
    await town.desk.refresh()


# ---------------------------------------------------------------- S28: what is bound


async def test_other_arguments_are_another_call(town: Town) -> None:
    approval = await town.pending(amount=1)
    await town.decide(approval)
    for arguments in ({"amount": 1.0}, {"amount": 2}, {"amount": "1"}, {"amount": True}, {"amount": 1, "to": None}):
        assert (await town.pending(**arguments)).id != approval.id
    assert not town.seen
    assert reason(await town.run(amount=1)) == "" and len(town.seen) == 1


def test_order_and_retries_are_not_bound_and_everything_else_is(town: Town) -> None:
    def digest(params: Any, who: Client = ANN, target: Any = TOOL) -> str:
        return bind(who, "tools/call", target, params, "r", town.desk.settings.profiles["confirm"]).digest

    one = digest({"name": "pay", "arguments": {"a": 1, "b": "é"}})
    retry = {"requestState": "x", "inputResponses": {}}
    assert one == digest({"arguments": {"b": "\u00e9", "a": 1}, "name": "pay", **retry})
    assert one == digest({"arguments": {"a": 1, "b": "é"}, "name": "pay", "task": {"ttl": 5}})
    assert digest({"name": "pay"}) == digest({"name": "pay", "arguments": {}}) != one
    others = [
        digest({"name": "pay", "arguments": {"a": 1, "b": "e\u0301"}}),
        digest({"name": "pay", "arguments": {"a": 1, "b": "é"}}, LEA),
        digest({"name": "pay", "arguments": {"a": 1, "b": "é"}}, target=replace(TOOL, server="other")),
        digest({"name": "pay", "arguments": {"a": 1, "b": "é"}}, target=replace(TOOL, item={"name": "pay"})),
    ]
    assert one not in others and len(set(others)) == len(others)


async def test_answers_that_no_server_asked_for_are_not_sent(town: Town) -> None:
    approval = await town.pending(amount=1)
    await town.decide(approval)
    call = town.call(amount=1)
    await town.run(replace(call, params={**call.params, "inputResponses": {"x": {"action": "accept"}}}))
    assert [set(seen.params) for seen in town.seen] == [{"name", "arguments"}]


# ---------------------------------------------------------------- S29: who decides


async def test_nobody_approves_what_they_asked_for_themselves(town: Town) -> None:
    twin = Client("key:ann-laptop", ("role:lead",), "Ann")
    town.people[ANN.principal] = boss = replace(ANN, roles=("role:lead",))
    approval = await town.pending(amount=1)
    assert status(await town.decide(approval, boss)) == 403
    assert status(await town.decide(approval, twin)) == 404, "the same owner, written otherwise"
    assert status(await town.decide(approval, Client("key:x", ("role:dev",)))) == 404
    assert status(await town.decide(approval, replace(LEA, roles=()))) == 404, "the role was removed meanwhile"
    assert (await town.get(approval.id)).state == "pending" and not town.seen


async def test_a_role_that_is_gone_before_the_use_makes_the_approval_void(town: Town) -> None:
    approval = await town.pending(amount=1)
    await town.decide(approval)
    town.people[LEA.principal] = replace(LEA, roles=())
    assert (await town.pending(amount=1)).id != approval.id
    assert (await town.get(approval.id)).state == "superseded" and not town.seen


def _key_revoked(town: Town) -> None:
    del town.people[LEA.principal]


def _role_taken(town: Town) -> None:
    town.people[LEA.principal] = replace(LEA, roles=())


def _policy_changed(town: Town) -> None:
    town.policy = "rev2"


def _restore(town: Town) -> None:
    town.people[LEA.principal] = LEA
    town.policy = "rev1"


GROUNDS = pytest.mark.parametrize("take_away", [_key_revoked, _role_taken, _policy_changed])


@GROUNDS
@pytest.mark.parametrize("is_restored", [False, True])
async def test_an_approval_ends_with_what_it_was_given_on(town: Town, take_away: Any, is_restored: bool) -> None:
    """Also where the call was let in before, and is at its last step."""
    approval = await town.pending(amount=1)
    await town.decide(approval)
    take_away(town)
    town.desk.reconsider()
    if is_restored:
        _restore(town)
    assert not await town.desk.consume(approval.id)
    assert (await town.get(approval.id)).state == "superseded"


@GROUNDS
async def test_what_was_taken_away_is_noticed_at_the_last_step(town: Town, take_away: Any) -> None:
    """Before anybody was told that something has changed."""
    approval = await town.pending(amount=1)
    await town.decide(approval)
    take_away(town)
    assert not await town.desk.consume(approval.id)


@GROUNDS
async def test_an_approval_that_was_withdrawn_is_over_for_every_process(town: Town, take_away: Any) -> None:
    approval = await town.pending(amount=1)
    await town.decide(approval)
    take_away(town)
    town.desk.reconsider()
    await town.desk.refresh()
    _restore(town)
    assert not await town.new_desk().consume(approval.id)


@GROUNDS
async def test_a_first_vote_that_was_withdrawn_does_not_count_again(take_away: Any) -> None:
    town = Town(profile="two-person")
    approval = await town.pending(amount=1)
    await town.decide(approval, comment="fine")
    take_away(town)
    town.desk.reconsider()
    await town.desk.refresh()
    _restore(town)
    assert status(await town.decide(approval, LEO, comment="ok")) == 409


@GROUNDS
@pytest.mark.parametrize("is_restored", [False, True])
async def test_a_grant_ends_with_what_it_was_given_on(town: Town, take_away: Any, is_restored: bool) -> None:
    await town.decide(await town.pending(amount=1), scope="15m")
    assert reason(await town.run(amount=1)) == ""
    take_away(town)
    town.desk.reconsider()
    if is_restored:
        _restore(town)
    assert reason(await town.run(amount=2)) == "approval_pending" and len(town.seen) == 1


def _requesters_key_replaced(town: Town) -> None:
    town.people[ANN.principal] = replace(ANN, credential="another")


def _voters_key_replaced(town: Town) -> None:
    town.people[LEA.principal] = replace(LEA, credential="another")


def _one_owner(town: Town) -> None:
    town.people |= {who.principal: replace(who, owner="team") for who in (ANN, LEA)}


def _requester_of_the_voters_owner(town: Town) -> None:
    town.people[ANN.principal] = replace(ANN, owner=LEA.owner)


def _voter_of_the_requesters_owner(town: Town) -> None:
    town.people[LEA.principal] = replace(LEA, owner=ANN.owner.upper())


def _server_replaced(town: Town) -> None:
    town.identity = "pay-2"


def _server_removed(town: Town) -> None:
    town.identity = ""


def _right_taken(town: Town) -> None:
    town.may_call = False


def _restore_all(town: Town) -> None:
    town.people |= {ANN.principal: ANN, LEA.principal: LEA}
    town.identity, town.may_call = "pay-1", True


OF_THE_CALL = {
    _requesters_key_replaced: ("cancelled", validity.OTHER_KEY),
    _server_replaced: ("superseded", validity.REPLACED),
    _server_removed: ("superseded", validity.NOT_RUNNING),
    _right_taken: ("superseded", validity.FORBIDDEN),
}
GROUND = pytest.mark.parametrize("take_away", OF_THE_CALL)
ALL_GROUND = pytest.mark.parametrize("take_away", [
    *OF_THE_CALL, _voters_key_replaced, _one_owner, _requester_of_the_voters_owner, _voter_of_the_requesters_owner,
])  # fmt: skip


@ALL_GROUND
async def test_what_an_approval_stands_on_is_taken_away_and_it_stays_over_when_that_is_restored(
    town: Town, take_away: Any
) -> None:
    approval = await town.pending(amount=1)
    await town.decide(approval)
    take_away(town)
    town.desk.reconsider()
    _restore_all(town)
    assert not await town.desk.consume(approval.id)
    ended = await town.get(approval.id)
    assert (ended.state, ended.comment) == OF_THE_CALL.get(take_away, ("superseded", validity.UNSUPPORTED))
    assert reason(await town.run(amount=1)) == "approval_pending" and not town.seen


@ALL_GROUND
async def test_at_the_last_step_an_approval_or_grant_of_other_ground_is_not_used(town: Town, take_away: Any) -> None:
    """Before anybody was told that something has changed."""
    approval = await town.pending(amount=1)
    await town.decide(approval)
    await town.decide(await town.pending(amount=2), scope="15m")
    (grant,) = town.desk.grants.alive()
    take_away(town)
    assert not await town.desk.consume(approval.id) and not await town.desk.use_grant(grant)


@ALL_GROUND
@pytest.mark.parametrize("is_restored", [False, True])
async def test_a_grant_ends_with_its_ground_and_its_end_is_recorded(
    town: Town, take_away: Any, is_restored: bool
) -> None:
    await town.decide(await town.pending(amount=1), scope="15m")
    assert reason(await town.run(amount=1)) == ""
    (grant,) = town.desk.grants.alive()
    take_away(town)
    town.desk.reconsider()
    if is_restored:
        _restore_all(town)
    await town.desk.refresh()
    assert town.desk.grants.get(grant.id) is None and not await town.desk.use_grant(grant)
    _, why = OF_THE_CALL.get(take_away, ("", validity.UNSUPPORTED))
    said = {"id": grant.approval, "state": "revoked", "grant": grant.id, "scope": "15m", "comment": why}
    assert [one["approval"] for one in town.told if one["approval"].get("grant") == grant.id][-1] == said
    _restore_all(town)
    assert reason(await town.run(amount=2)) == "approval_pending" and len(town.seen) == 1


@GROUND
async def test_whoever_waits_is_told_why_what_they_asked_for_is_withdrawn(take_away: Any) -> None:
    town = Town(hold_for=30.0)
    heard: list[Any] = []

    async def call() -> None:
        heard.append(await town.run(amount=1))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await _until(lambda: town.desk.waiting._waiters)
            (approval,) = town.desk.open_ones()
            take_away(town)
            town.desk.reconsider()
            _restore_all(town)
            await town.desk.refresh()
    state, why = OF_THE_CALL[take_away]
    assert reason(heard[0]) == "approval_denied"
    assert text(heard[0]) == f"NOT EXECUTED. The approval {approval.id} of b__pay is {state}: {why}."
    assert status(await town.decide(approval)) == 409 and not town.seen


@GROUND
@pytest.mark.parametrize("by", ["decide", "use"])
async def test_what_changed_while_nothing_ran_ends_what_waited(town: Town, take_away: Any, by: str) -> None:
    """Another process, on the store that the one before has left."""
    waits, agreed = await town.pending(amount=1), await town.pending(amount=2)
    await town.decide(agreed)
    take_away(town)
    later = town.new_desk()
    if by == "decide":
        refused = await later.decide(waits.id, LEA, VoteRequest("approve", waits.binding.digest), "cli")
        assert isinstance(refused, VoteRefused) and refused.status == 409
        assert refused.text == f"it was withdrawn: {OF_THE_CALL[take_away][1]}"
    else:
        assert not await later.consume(agreed.id)
    await later.refresh()
    for one in (waits, agreed):
        ended = await later.get(one.id)
        assert ended is not None and (ended.state, ended.comment) == OF_THE_CALL[take_away]


async def test_a_vote_of_a_replaced_key_is_none_in_a_quorum() -> None:
    town = Town(profile="two-person")
    approval = await town.pending(amount=1)
    await town.decide(approval, comment="fine")
    _voters_key_replaced(town)
    assert status(await town.decide(approval, LEO, comment="ok")) == "partially_approved"


@pytest.mark.parametrize("of", ["open", "grant"])
async def test_a_row_that_an_earlier_version_wrote_is_read_and_counts_for_nothing(
    town: Town, of: str, caplog: pytest.LogCaptureFixture
) -> None:
    town.people |= {one.principal: replace(one, credential="k") for one in (ANN, LEA)}
    ann, lea = town.people[ANN.principal], town.people[LEA.principal]
    approval = await town.get(about(await town.run(town.call(ann, amount=1)))["id"])
    await town.decide(approval, lea, scope="15m" if of == "grant" else "once")
    for place, raw in (await town.store.scan("approval/")).items():
        if not place.startswith((OPEN, "approval/grant/")):
            continue
        row = json.loads(raw)
        for fields in (row, row["matter"], *row.get("votes", ())):
            for name in ("identity", "credential", "class_"):
                fields.pop(name, None)
        await town.store.put(place, json.dumps(row).encode())
    later = town.new_desk()
    await later.refresh()
    assert not later.grants.all() and not await later.consume(approval.id)
    ended = await later.get(approval.id)
    assert ended is not None and (ended.state, ended.comment) == ("superseded", validity.UNIDENTIFIED)


@pytest.mark.parametrize("scope", ["once", "15m"])
async def test_a_yes_to_a_tool_of_one_class_is_none_to_it_as_another(town: Town, scope: str) -> None:
    approval = await town.pending(amount=1)
    assert approval.binding.class_ == "write"
    await town.decide(approval, scope=scope)
    town.class_ = "destroy"  # the config says so by now
    asked = about(await town.run(town.call(amount=1)))
    assert asked["state"] == "pending" and asked["id"] != approval.id and not town.seen
    again = await town.get(asked["id"])
    assert again.binding.class_ == "destroy"
    await town.decide(again)
    await town.run(town.call(amount=1))
    assert len(town.seen) == 1


async def test_a_grant_that_cannot_be_read_is_said_and_keeps_nobody_else_from_theirs(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    await town.decide(await town.pending(amount=1), scope="15m")
    (whole,) = (await town.store.scan("approval/grant/")).values()
    late = json.dumps({**json.loads(whole), "id": "grt_y", "expires": "later"}).encode()
    for id, broken in (("grt_x", b'{"id": "grt_x"}'), ("grt_y", late)):
        await town.store.put(f"approval/grant/{id}", broken)
    await town.desk.refresh()
    assert len(town.desk.grants.all()) == 1 and caplog.text.count("a grant in the store cannot be read") == 2


async def test_what_was_agreed_to_ends_with_the_server_that_it_was_for(town: Town) -> None:
    once, waits = await town.pending(amount=1), await town.pending(amount=2)
    await town.decide(once)
    await town.decide(await town.pending(amount=3), scope="15m")
    (grant,) = town.desk.grants.alive()
    town.desk.withdraw_servers({"another"})
    await town.desk.refresh()
    assert (await town.get(once.id)).state == "approved" and [*town.desk.grants.alive()] == [grant]
    town.desk.withdraw_servers({once.binding.server})
    assert not await town.desk.consume(once.id) and not await town.desk.use_grant(grant)
    await town.desk.refresh()
    assert {(await town.get(one.id)).state for one in (once, waits)} == {"superseded"}
    assert reason(await town.run(amount=4)) == "approval_pending" and not town.seen


@GROUNDS
async def test_what_was_taken_away_ends_a_grant_before_anybody_was_told(town: Town, take_away: Any) -> None:
    """As when the key of whoever gave it expires."""
    await town.decide(await town.pending(amount=1), scope="15m")
    (grant,) = town.desk.grants.alive()
    take_away(town)
    assert not await town.desk.use_grant(grant)
    assert reason(await town.run(amount=2)) == "approval_pending"
    _restore(town)
    await town.desk.refresh()
    assert not list(town.desk.grants.alive()) and not town.seen


async def test_a_yes_by_token_counts_while_a_token_of_theirs_is_good(town: Town) -> None:
    leo = Client("jwt:https://idp#leo", ("role:lead",), "leo")
    town.people[leo.principal] = leo
    first, second = await town.pending(amount=1), await town.pending(amount=2)
    await town.decide(first, leo)
    await town.decide(second, leo, scope="15m")
    (grant,) = town.desk.grants.alive()
    world = replace(town.world(), client_of=lambda who, roles, is_operator: None, is_gone=lambda who: False)
    town.desk._validity._deps = world
    assert not await town.desk.consume(first.id) and not await town.desk.use_grant(grant)


async def test_a_token_counts_for_the_owner_of_the_same_name(town: Town) -> None:
    approval = await town.pending(amount=1)
    assert status(await town.decide(approval, Client("jwt:https://idp#ANN", ("role:lead",)))) == 404


async def test_what_was_not_seen_is_not_approved(town: Town) -> None:
    approval = await town.pending(amount=1)
    assert status(await town.decide(approval, seen="")) == 400
    assert status(await town.decide(approval, seen="sha256:" + "0" * 64)) == 409
    assert status(await town.desk.decide("apr_nothing", LEA, VoteRequest("approve", "x"), "api")) == 404
    assert status(await town.decide(approval)) == "approved"
    assert status(await town.decide(approval, LEO)) == 409
    assert status(await town.decide(approval, LEO, "deny")) == 409, "decided is decided"


async def test_a_quorum_counts_owners_and_wants_reasons() -> None:
    town = Town(profile="two-person")
    approval = await town.pending(amount=1)
    assert status(await town.decide(approval)) == 400, "a reason is needed"
    assert status(await town.decide(approval, comment="fine")) == "partially_approved"
    assert "1 agreed, 1 still missing" in text(await town.run(amount=1))
    assert status(await town.decide(approval, comment="again")) == 409
    twin = Client("key:lea-phone", ("role:lead",), "lea")
    assert status(await town.decide(approval, twin, comment="me too")) == 403
    assert status(await town.decide(approval, LEO, comment="ok", scope="15m")) == 400, "good once"
    assert not town.seen
    assert status(await town.decide(approval, LEO, comment="ok")) == "approved"
    assert reason(await town.run(amount=1)) == "" and len(town.seen) == 1
    assert town.intents[-1] is not None and town.intents[-1]["approver"] == "key:lea, key:leo"


async def test_a_vote_counts_only_while_its_voter_may_vote() -> None:
    town = Town(profile="two-person")
    approval = await town.pending(amount=1)
    await town.decide(approval, comment="fine")
    del town.people[LEA.principal]
    assert status(await town.decide(approval, LEO, comment="ok")) == "partially_approved"
    assert reason(await town.run(amount=1)) == "approval_pending" and not town.seen


@pytest.mark.parametrize("is_told", [False, True])
async def test_two_votes_of_what_is_one_owner_by_now_are_one_vote(is_told: bool) -> None:
    town = Town(profile="two-person")
    approval = await town.pending(amount=1)
    await town.decide(approval, comment="fine")
    town.people |= {who.principal: replace(who, owner="leads") for who in (LEA, LEO)}
    assert status(await town.decide(approval, town.people[LEO.principal], comment="ok")) == 403
    town.people |= {LEA.principal: LEA, LEO.principal: LEO}
    assert status(await town.decide(approval, LEO, comment="ok")) == "approved"
    town.people |= {who.principal: replace(who, owner="leads") for who in (LEA, LEO)}
    if is_told:
        town.desk.reconsider()
        town.people |= {LEA.principal: LEA, LEO.principal: LEO}
    assert not await town.desk.consume(approval.id)
    ended = await town.get(approval.id)
    assert (ended.state, ended.comment) == ("superseded", validity.UNSUPPORTED)
    assert reason(await town.run(amount=1)) == "approval_pending" and not town.seen


async def test_whoever_asked_may_not_decide_by_the_names_of_now(town: Town) -> None:
    approval = await town.pending(amount=1)
    town.people[ANN.principal] = replace(ANN, owner="leos")
    assert status(await town.decide(approval, replace(LEO, owner="leos"))) == 404
    assert status(await town.decide(approval)) == "approved"


async def test_two_decide_at_once_and_one_is_heard(town: Town) -> None:
    approval = await town.pending(amount=1)
    heard: list[int | str] = []

    async def decide(who: Client, word: Any) -> None:
        heard.append(status(await town.decide(approval, who, word)))

    async with anyio.create_task_group() as group:
        group.start_soon(decide, LEA, "approve")
        group.start_soon(decide, LEO, "deny")
    assert sorted(heard, key=str) in ([409, "approved"], [409, "denied"])


# ---------------------------------------------------------------- what is recorded is what takes effect


def _recorded(town: Town, id: str) -> list[str]:
    return [one["approval"]["state"] for one in town.told if one["approval"]["id"] == id]


def _row(town: Town, id: str) -> Json:
    """What `sluice audit approvals` makes of the log."""
    told = [{"type": "approval", "time": str(number), **one} for number, one in enumerate(town.told)]
    return next(row for row in approvals(told) if row["id"] == id)


def _written_slowly(town: Town) -> ApprovalQueue:
    """A desk whose log takes its time: others act before a record is kept."""

    async def tell(fields: Json) -> bool:
        town.told.append(fields)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        return True

    return ApprovalQueue(town.store, town.desk.settings, replace(town.world(), tell=tell), town.clock)


async def _approve(town: Town, approval: Approval) -> Any:
    return await town.decide(approval)


async def _cancel(town: Town, approval: Approval) -> Any:
    return await town.desk.end(approval.id, "cancelled", ANN.principal)


async def _look_late(town: Town, approval: Approval) -> Any:
    town.clock.now = approval.expires + 1
    return await town.desk.get(approval.id)


async def _take_away(town: Town, approval: Approval) -> Any:
    town.may_call = False
    town.desk.reconsider()
    return await town.desk.refresh()


async def _use(town: Town, approval: Approval) -> Any:
    return await town.desk.consume(approval.id)


@pytest.mark.parametrize("first", [_approve, _cancel, _look_late, _take_away, _use])
@pytest.mark.parametrize("second", [_approve, _cancel, _look_late, _take_away, _use])
@pytest.mark.parametrize("state", ["pending", "approved"])
async def test_of_what_happens_at_once_that_is_recorded_which_takes_effect(
    town: Town, first: Any, second: Any, state: str
) -> None:
    approval = await town.pending(amount=1)
    if state == "approved":
        await town.decide(approval)
    town.desk = _written_slowly(town)
    await town.desk.refresh()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(first, town, approval)
            group.start_soon(second, town, approval)
    stored = await town.desk.book.read(approval.id)
    assert stored is not None
    now, recorded = stored.approval.state, _recorded(town, approval.id)
    assert _row(town, approval.id)["state"] == now or (now == "consumed" and recorded[-1] == "approved"), recorded
    finished = [one["approval"]["state"] in FINISHED for one in town.told if "void" not in one["approval"]]
    assert not any(finished[:-1]), "nothing is recorded behind its end"
    assert not town.desk._ledger._locks


async def test_what_another_process_was_first_with_makes_a_record_void(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    town = Town(store=store)
    approval = await town.pending(amount=1)

    async def tell(fields: Json) -> bool:
        town.told.append(fields)
        if fields["approval"]["state"] == "approved":  # between the record of it and its effect
            await town.desk.end(approval.id, "cancelled", ANN.principal)
        return True

    other = ApprovalQueue(store, town.desk.settings, replace(town.world(), tell=tell), town.clock)
    vote = VoteRequest("approve", seen=approval.binding.digest)
    assert status(await other.decide(approval.id, LEA, vote, "api")) == 409
    assert _recorded(town, approval.id) == ["pending", "approved", "cancelled", "cancelled"]
    last = town.told[-1]["approval"]
    assert (last["void"], last["approver"], last["state"]) == ("approved", LEA.principal, "cancelled")
    row = _row(town, approval.id)
    decided = [(one["approver"], one["state"], one.get("is_void", False)) for one in row["decisions"]]
    assert row["state"] == "cancelled"
    assert decided == [(LEA.principal, "approved", True), (ANN.principal, "cancelled", False)]
    await store.close()


async def test_what_others_always_overtake_fails_and_the_approval_waits_still(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    approval = await town.pending(amount=1)

    async def overtaken(*change: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return False

    with monkeypatch.context() as patch:
        patch.setattr(town.store, "swap", overtaken)
        for act in (town.decide(approval), town.desk.end(approval.id, "cancelled", ANN.principal)):
            with anyio.fail_after(20), pytest.raises(StoreFailed, match="other processes write all the time"):
                await act
    assert (await town.get(approval.id)).is_waiting
    assert not isinstance(await town.decide(approval), VoteRefused)


async def test_an_intent_that_came_too_late_for_its_approval_is_said_to_be_void(town: Town) -> None:
    approval = await town.pending(amount=1)
    await town.decide(approval)
    await _cancel(town, approval)
    assert not await town.desk.consume(approval.id)
    assert town.told[-1]["approval"] | {"state": "cancelled", "void": "consumed"} == town.told[-1]["approval"]


# ---------------------------------------------------------------- S30: used once


async def test_one_approval_is_used_once_on_two_replicas_by_a_hundred_calls(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    town = Town(store=store)
    other = town.new_desk()
    rounds = 5
    with anyio.fail_after(60):
        for number in range(rounds):
            await town.decide(await town.pending(amount=number))
            async with anyio.create_task_group() as group:
                for at in range(100):
                    group.start_soon(town.run, town.call(amount=number), (town.desk, other)[at % 2])
            assert len(town.seen) == number + 1
    await store.close()


async def test_two_replicas_use_a_hundred_approvals_at_once_a_hundred_times(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / "db"), SqliteStore(tmp_path / "db")]
    town = Town(store=stores[0], per_client=1000)
    replica = ApprovalQueue(stores[1], town.desk.settings, town.world(), town.clock)
    with anyio.fail_after(60):
        for number in range(100):
            await town.decide(await town.pending(amount=number))
            async with anyio.create_task_group() as group:
                for desk in (town.desk, replica):
                    group.start_soon(town.run, town.call(amount=number), desk)
            assert len(town.seen) == number + 1
    for store in stores:
        await store.close()


async def test_an_approval_survives_its_process_and_is_used_once_after_it(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "db")
    town = Town(store=first)
    await town.decide(await town.pending(amount=1))
    second = SqliteStore(tmp_path / "db")  # the first never closed: it was killed
    later = Town(store=second)
    later.clock.now = town.clock.now
    assert reason(await later.run(amount=1)) == "" and len(later.seen) == 1
    assert reason(await later.run(amount=1)) == "approval_pending" and len(later.seen) == 1
    await first.close()
    await second.close()


async def test_what_an_approver_is_shown_is_masked_in_a_thread(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes of arguments take 300 ms, and whoever sent them pays: one client had a thread work all the time."""
    threads: list[threading.Thread] = []
    take = presentation.take

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return take(*args)

    monkeypatch.setattr(presentation, "take", noted)
    await town.pending(amount=1)
    assert len(threads) == 1 and threads[0] is not threading.main_thread()
    assert client_budgets()[ANN.principal]._start > 0


async def test_without_a_record_nothing_is_asked_decided_or_run(town: Town) -> None:
    town.keeps = False
    assert reason(await town.run(amount=1)) == "audit_unavailable" and not town.desk.open_ones()
    town.keeps = True
    approval = await town.pending(amount=1)
    town.keeps = False
    assert status(await town.decide(approval)) == 503
    assert (await town.get(approval.id)).state == "pending" and not town.seen


# ---------------------------------------------------------------- decided again at its use


@pytest.mark.parametrize("change", ["rule", "profile", "definition"])
async def test_a_call_that_is_another_matter_by_now_is_asked_anew(town: Town, change: str) -> None:
    approval = await town.pending(amount=1)
    await town.decide(approval)
    if change == "rule":
        town.rule = "policy.csv:8"
    elif change == "profile":
        town.profile = "two-person"
    else:
        town.target = replace(TOOL, item={"name": "pay", "description": "Pays twice."})
    assert (await town.pending(amount=1)).id != approval.id
    assert not town.seen
    assert change == "definition" or (await town.get(approval.id)).state == "superseded"


async def test_a_policy_that_changes_while_a_call_waits_is_obeyed(town: Town) -> None:
    town.desk.settings = replace(town.desk.settings, hold_for=30.0)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(_approve_and_forbid, town)
            outcome = await town.run(amount=1)
    assert getattr(outcome, "message", "") == "Unknown tool: pay" and not town.seen


@pytest.mark.parametrize("verdict", [Verdict.ASK, Verdict.ALLOW])
async def test_arguments_that_an_earlier_shape_filled_in_do_not_run(town: Town, verdict: Verdict) -> None:
    """An operator who fixes an argument otherwise, or hides one, means calls that wait, too."""
    town.desk.settings = replace(town.desk.settings, hold_for=30.0)

    async def reshape() -> None:
        await _until(town.desk.open_ones)
        assert town.target is not None
        town.target, town.verdict = replace(town.target, shape=Shape(fixed={"amount": 2})), verdict
        await town.decide(town.desk.open_ones()[0])

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(reshape)
            outcome = await town.run(amount=1)
    assert reason(outcome) == "invalid_arguments" and not town.seen
    assert [one for one in states(town) if one in FINISHED] == ["superseded"]


@pytest.mark.parametrize("verdict", [Verdict.ASK, Verdict.ALLOW])
async def test_arguments_that_the_policy_takes_no_more_do_not_run(town: Town, verdict: Verdict) -> None:
    town.desk.settings = replace(town.desk.settings, hold_for=30.0)

    async def tighten() -> None:
        await _until(town.desk.open_ones)
        town.argument_rule = ArgumentSchema({"properties": {"amount": {"maximum": 100}}})
        town.verdict = verdict
        await town.decide(town.desk.open_ones()[0])

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(tighten)
            outcome = await town.run(amount=1_000_000)
    assert reason(outcome) == "invalid_arguments" and "/amount" in text(outcome) and not town.seen
    assert [one for one in states(town) if one in FINISHED] == ["superseded"]
    town.desk.settings = replace(town.desk.settings, hold_for=0.0)
    town.verdict = Verdict.ASK
    approval = await town.pending(amount=100)
    await town.decide(approval)
    assert reason(await town.run(amount=100)) == "" and len(town.seen) == 1


NOTHING = ["", " ", "\u200b", " \u2060\u3164\U000e0041\u00ad", "\u0301", "\u20dd\u0e31", "...", "\U0001f44d"]


@pytest.mark.parametrize("comment", NOTHING)
async def test_a_comment_without_a_letter_that_is_seen_is_no_reason(comment: str) -> None:
    town = Town(profile="brief")
    reasoned = replace(CAREFUL["brief"], require_reason=True)
    town.desk.settings = replace(town.desk.settings, profiles=CAREFUL | {"brief": reasoned})
    approval = await town.pending(amount=1)
    assert status(await town.decide(approval, comment=comment)) == 400
    assert status(await town.decide(approval, comment=f"{comment}rent")) == "approved"


async def _approve_and_forbid(town: Town) -> None:
    while not town.desk.open_ones():
        await anyio.lowlevel.checkpoint()
    town.verdict = Verdict.DENY
    await town.decide(town.desk.open_ones()[0])


async def test_a_waiting_call_runs_when_it_is_approved_and_an_older_twin_is_answered(town: Town) -> None:
    town.desk.settings = replace(town.desk.settings, hold_for=30.0)
    heard: list[str] = []

    async def call() -> None:
        heard.append(reason(await town.run(amount=1)))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await _until(lambda: len(town.desk.waiting._waiters) == 1)
            first = next(iter(town.desk.waiting._waiters.values()))
            group.start_soon(call)
            await _until(lambda: next(iter(town.desk.waiting._waiters.values()), first) is not first)
            await _until(lambda: heard == ["approval_pending"])
            await town.decide(town.desk.open_ones()[0])
    assert heard == ["approval_pending", ""] and len(town.seen) == 1


async def _until(is_so: Any) -> None:
    while not is_so():
        await anyio.lowlevel.checkpoint()


async def test_a_client_that_goes_away_leaves_its_approval(town: Town) -> None:
    town.desk.settings = replace(town.desk.settings, hold_for=30.0)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: town.run(amount=1))
        await _until(lambda: town.desk.waiting._waiters)
        group.cancel_scope.cancel()
    assert not town.desk.waiting._waiters
    await town.decide(town.desk.open_ones()[0])
    assert reason(await town.run(amount=1)) == "" and len(town.seen) == 1


async def test_whoever_can_no_longer_come_in_loses_approvals_and_grants(town: Town) -> None:
    approval = await town.pending(amount=1)
    await town.decide(approval, scope="15m")
    await town.desk.refresh()
    del town.people[ANN.principal]
    await town.desk.refresh()
    assert (await town.get(approval.id)).state == "cancelled" and not town.desk.grants.all() and not town.seen


# ---------------------------------------------------------------- the requester's own seat


def answer(**content: Any) -> Any:
    return {"action": "accept", "content": content}


async def asked(town: Town, **arguments: Any) -> tuple[str, Any, ApprovalRef]:
    outcome = await town.run(**arguments)
    assert isinstance(outcome, InputRequired) and outcome.approval_ref is not None
    ((key, ask),) = outcome.requests.items()
    assert key == outcome.approval_ref.key
    return key, ask, outcome.approval_ref


async def answered(
    town: Town, approval_ref: ApprovalRef, value: Any, desk: ApprovalQueue | None = None, **arguments: Any
) -> Any:
    trail = Trail("c2")
    trail.resume("c1", 1, approval_ref)
    call = town.call(trail=trail, **arguments)
    return await town.run(replace(call, params={**call.params, "inputResponses": {approval_ref.key: value}}), desk)


async def test_whoever_asked_confirms_in_a_form() -> None:
    town = Town(profile="confirm", how="form")
    _, ask, approval_ref = await asked(town, amount=1, note="a\u202eb")
    assert "run pay of bank" in ask["params"]["message"] and "⟨U+202E⟩" in ask["params"]["message"]
    choice = ask["params"]["requestedSchema"]["properties"]["decision"]
    assert [one["const"] for one in choice["oneOf"]] == ["once", "session", "deny"] and choice["default"] == "deny"
    assert reason(await answered(town, approval_ref, answer(decision="once"), amount=1, note="a\u202eb")) == ""
    assert len(town.seen) == 1 and "inputResponses" not in town.seen[0].params
    replayed = await answered(town, approval_ref, answer(decision="once"), amount=1, note="a\u202eb")
    assert reason(replayed) == "outcome_unknown" and len(town.seen) == 1, "an answer is for one approval"


@pytest.mark.parametrize("word", ["once", "deny"])
async def test_an_answer_that_is_sent_again_gets_no_new_question(word: str) -> None:
    """Rates count a call and its rounds once: each new question would be a call that nothing counted."""
    town = Town(profile="confirm", how="form")
    _, _, approval_ref = await asked(town, amount=1)
    await answered(town, approval_ref, answer(decision=word), amount=1)
    for _ in range(3):
        again = await answered(town, approval_ref, answer(decision="once"), amount=1)
        assert reason(again) == ("outcome_unknown" if word == "once" else "approval_denied")
        assert len(town.seen) == (word == "once")
    other = await answered(town, approval_ref, answer(decision="once"), amount=2)
    assert reason(other) == "approval_denied" and len(town.seen) == (word == "once")
    assert isinstance(await town.run(amount=3), InputRequired), "a call of its own asks anew"


async def test_of_two_same_rounds_at_once_one_is_executed_and_the_other_is_told_that_nobody_knows() -> None:
    town = Town(profile="confirm", how="form")
    _, _, approval_ref = await asked(town, amount=1)
    ends: list[str] = []

    async def send() -> None:
        ends.append(reason(await answered(town, approval_ref, answer(decision="once"), amount=1)))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(send)
    assert sorted(ends) == ["", *["outcome_unknown"] * 3] and len(town.seen) == 1


class Slow(MemoryStore):
    """As over a network: others have their turn meanwhile, and a different number of turns each time."""

    def __init__(self, turns: Sequence[int]) -> None:
        super().__init__()
        self._turns = itertools.cycle(turns)

    async def get(self, key: str) -> bytes | None:
        for _ in range(next(self._turns)):
            await anyio.lowlevel.checkpoint()
        return await super().get(key)

    async def swap(self, key: str, expected: bytes | None, writes: Sequence[Write]) -> bool:
        for _ in range(next(self._turns)):
            await anyio.lowlevel.checkpoint()
        return await super().swap(key, expected, writes)


@pytest.mark.parametrize("turns", [(1,), (3, 0), (0, 5, 1), (7, 1, 0, 2), (2, 9)])
@pytest.mark.parametrize("desks", [1, 2])
async def test_that_is_so_with_a_slow_store_and_at_two_replicas(turns: Sequence[int], desks: int) -> None:
    town = Town(profile="confirm", how="form", store=Slow(turns))
    _, _, approval_ref = await asked(town, amount=1)
    ends: list[str] = []
    others = [town.desk, *(town.new_desk() for _ in range(desks - 1))]

    async def send(desk: ApprovalQueue, wait: int) -> None:
        for _ in range(wait):
            await anyio.lowlevel.checkpoint()
        outcome = await answered(town, approval_ref, answer(decision="once"), desk=desk, amount=1)
        ends.append("outcome_unknown" if outcome.value.get("lost") else reason(outcome))  # as `commit` says it

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(send, others[number % desks], 4 * number)
    assert sorted(ends) == ["", *["outcome_unknown"] * 5] and len(town.seen) == 1, ends


@pytest.mark.parametrize(
    "value",
    [answer(decision="deny"), answer(decision="15m"), answer(decision=True), answer(), {"action": "decline"},
     {"action": "cancel"}, {}, "yes", None],
)  # fmt: skip
async def test_everything_but_a_clear_yes_is_a_no(value: Any) -> None:
    town = Town(profile="confirm", how="form")
    _, _, approval_ref = await asked(town, amount=1)
    outcome = await answered(town, approval_ref, value, amount=1)
    assert isinstance(outcome, InputRequired) if value is None else reason(outcome) == "approval_denied"
    assert not town.seen


async def test_a_forged_key_answers_nothing() -> None:
    town = Town(profile="confirm", how="form")
    _, _, approval_ref = await asked(town, amount=1)
    trail = Trail("c2")
    trail.resume("c1", 1, approval_ref)
    call = town.call(trail=trail, amount=1)
    forged = {"approve-0": answer(decision="once"), "decision": "once"}
    outcome = await town.run(replace(call, params={**call.params, "inputResponses": forged}))
    assert isinstance(outcome, InputRequired) and not town.seen


async def test_only_whoever_asked_confirms_and_may_do_so_elsewhere() -> None:
    town = Town(profile="confirm")
    approval = await town.pending(amount=1)
    assert status(await town.decide(approval, LEA)) == 404
    assert status(await town.decide(approval, ANN)) == "approved"
    assert reason(await town.run(amount=1)) == "" and len(town.seen) == 1


async def test_later_rounds_of_an_approved_call_are_covered_and_no_others() -> None:
    town = Town()
    town.outcomes = [InputRequired({"q": {"method": "roots/list"}}, "s"), Result({})]
    await town.decide(await town.pending(amount=1))
    outcome = await town.run(amount=1)
    assert isinstance(outcome, InputRequired) and outcome.approval_ref is not None and not outcome.is_ours
    for approval_ref, rule, count in ((outcome.approval_ref, "policy.csv:8", 1), (None, "policy.csv:7", 1),
                               (replace(outcome.approval_ref, digest="sha256:0"), "policy.csv:7", 1),
                               (outcome.approval_ref, "policy.csv:7", 2)):  # fmt: skip
        town.rule = rule
        trail = Trail("c2")
        trail.resume("c1", 1, approval_ref)
        await town.run(town.call(trail=trail, amount=1))
        assert len(town.seen) == count


# ---------------------------------------------------------------- grants


async def test_a_grant_covers_the_tool_until_it_is_over_revoked_or_another_matter(town: Town) -> None:
    await town.decide(await town.pending(amount=1), scope="15m")
    assert reason(await town.run(amount=1)) == "" and reason(await town.run(amount=2)) == ""
    assert [note and note.get("grant", "-")[:4] for note in town.intents] == ["-", "grt_"]
    town.target = replace(TOOL, item={"name": "pay"})
    assert reason(await town.run(amount=4)) == "approval_pending"
    town.target = TOOL
    assert reason(await town.run(amount=5)) == ""
    (grant,) = town.desk.grants.all()
    assert await town.desk.grants.revoke(grant, "key:lea")
    assert reason(await town.run(amount=6)) == "approval_pending" and len(town.seen) == 3


async def test_a_grant_ends_also_where_others_always_renew_it(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end was recorded, and its calls went on."""
    await town.decide(await town.pending(amount=1), scope="15m")
    (grant,) = town.desk.grants.all()

    async def overtaken(*change: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return False

    with monkeypatch.context() as patch:
        patch.setattr(town.store, "swap", overtaken)
        assert await town.desk.grants.revoke(grant, "key:lea")
    assert town.desk.grants.all() == [] and reason(await town.run(amount=2)) == "approval_pending"


async def test_a_grant_for_fifteen_minutes_ends_then(town: Town) -> None:
    await town.decide(await town.pending(amount=1), scope="15m")
    town.clock.now += 900
    assert reason(await town.run(amount=2)) == "approval_pending" and not town.seen


async def test_a_grant_ends_with_its_holders_token_unless_there_is_a_newer_one(town: Town) -> None:
    town.tokens[ANN.principal] = town.clock.now + 60
    await town.decide(await town.pending(amount=1), scope="15m")
    assert reason(await town.run(amount=1)) == ""
    town.clock.now += 59
    await town.desk.refresh()
    assert reason(await town.run(amount=2)) == ""
    town.tokens[ANN.principal] = town.clock.now + 60
    town.clock.now += 30
    await town.desk.refresh()
    assert reason(await town.run(amount=3)) == "", "a newer token keeps what an older one gave"
    town.tokens.clear()  # as after a restart, before anybody has come
    after = town.new_desk()
    await after.refresh()
    assert not after.grants.all() and len(town.seen) == 3


@pytest.mark.parametrize("state", ["pending", "approved"])
async def test_what_a_token_asked_for_ends_with_it_unless_there_is_a_newer_one(town: Town, state: str) -> None:
    town.tokens[ANN.principal] = town.clock.now + 60
    approval = await town.pending(amount=1)
    if state == "approved":
        await town.decide(approval)
    town.clock.now += 59
    town.tokens[ANN.principal] = town.clock.now + 60
    town.clock.now += 30
    await town.desk.refresh()
    assert (await town.get(approval.id)).state == state
    after = town.new_desk()
    town.clock.now += 31
    assert not await town.desk.consume(approval.id)
    await after.refresh()
    assert (await town.get(approval.id)).state == "cancelled" and not town.seen


async def test_what_a_token_asked_for_ends_when_its_issuer_is_removed(town: Town) -> None:
    town.tokens[ANN.principal] = town.clock.now + 60
    approval = await town.pending(amount=1)
    town.tokens.clear()
    refused = await town.decide(approval)
    assert isinstance(refused, VoteRefused) and refused.status == 409
    assert (await town.get(approval.id)).state == "cancelled"


async def test_a_grant_of_a_token_survives_a_restart_while_the_token_is_good(town: Town) -> None:
    town.tokens[ANN.principal] = town.clock.now + 60
    approval = await town.pending(amount=1)
    town.tokens.clear()
    town.desk = after = town.new_desk()  # where no token was shown
    await town.decide(approval, scope="15m")
    await after.refresh()
    assert len(after.grants.all()) == 1
    town.clock.now += 61
    await after.refresh()
    assert not after.grants.all()


async def test_a_grant_for_a_session_ends_with_it_and_when_it_is_idle() -> None:
    town = Town(profile="confirm")
    here, there = replace(ANN, session="s1"), replace(ANN, session="s2")
    outcome = await town.run(town.call(here, amount=1))
    await town.decide(await town.get(about(outcome)["id"]), ANN, scope="session")
    for amount in (1, 2):
        assert reason(await town.run(town.call(replace(here), amount=amount))) == ""
    assert reason(await town.run(town.call(there, amount=3))) == "approval_pending"
    assert len(town.seen) == 2
    town.clock.now += 1799
    assert reason(await town.run(town.call(here, amount=4))) == ""
    town.clock.now += 1801
    assert reason(await town.run(town.call(here, amount=5))) == "approval_pending"
    assert len(town.seen) == 3


# ---------------------------------------------------------------- bounds, and what is shown


async def test_one_client_asks_for_so_much_and_no_more() -> None:
    town = Town(per_client=3)
    for amount in range(3):
        await town.pending(amount=amount)
    outcome = await town.run(amount=4)
    assert reason(outcome) == "rate_limited" and "limits.pending_approvals" in text(outcome)
    assert reason(await town.run(amount=1)) == "approval_pending", "what is asked for already can be asked after"
    assert not town.seen


async def test_so_many_wait_and_the_next_is_refused_clearly() -> None:
    """Ten thousand; they are made by hand but for the last, for only their number counts."""
    town = Town(per_client=20_000)
    approval = await town.pending(amount=-2)
    own, raw = approval.id.encode(), approval.encode()
    for number in range(desks.MAX_OPEN - 1):
        await town.store.put(f"{OPEN}apr_{number}", raw.replace(own, b"apr_%d" % number))
    await town.desk.refresh()
    outcome = await town.run(amount=-1)
    assert reason(outcome) == "rate_limited" and "10000 approvals are open already" in text(outcome)
    assert reason(await town.run(amount=-2)) == "approval_pending", "what waits already goes on"
    assert sum(town.desk.pending().values()) == desks.MAX_OPEN and not town.seen


async def test_huge_and_hostile_arguments_are_shown_whole_or_marked_as_cut(town: Town) -> None:
    hostile = {"body": "x" * 2**20, "note": "\x1b[31m\x00\u202e", "api_key": "hunter2-hunter2", "to": "ann@acme"}
    approval = await town.pending(**hostile)
    kept = await town.desk.book.shown(approval.id)
    told = presentation.tell_all(approval, kept, {}, [], "p2, *", town.clock.now)
    text = json.dumps(told, ensure_ascii=False)
    assert told["arguments_cut"] and told["arguments_size"] > 2**20 and told["arguments_digest"].startswith("hmac-")
    assert "hunter2" not in text and not {"\x1b", "\x00", "\u202e"} & set(text) and len(text) < 400_000
    assert "⟨U+001B⟩[31m⟨U+0000⟩⟨U+202E⟩" in told["arguments"]["note"] and told["hidden_characters"] == 3
    assert told["aims_at"]["to"] == "ann@acme" and told["description"]["written_by"] == "the server"
    small = await town.pending(amount=1)
    row = presentation.tell(small, await town.desk.book.shown(small.id))
    assert row["arguments"] == {"amount": 1} and not row["arguments_cut"]


async def test_secrets_are_revealed_to_who_decides_while_it_waits_once_that_is_written_down(town: Town) -> None:
    approval = await town.pending(api_key="hunter2-hunter2")
    town.keeps = False
    assert await town.desk.reveal(approval.id, LEA) == desks.UNRECORDED
    town.keeps = True
    told = await town.desk.reveal(approval.id, LEA)
    assert isinstance(told, dict) and told["arguments"] == {"api_key": "hunter2-hunter2"}
    assert town.told[-1]["approval"]["state"] == "revealed" and town.told[-1]["approval"]["approver"] == "key:lea"
    assert "hunter2" not in json.dumps(town.told)
    eve = Client("key:eve", ("role:dev",))
    for id, who in ((approval.id, eve), ("apr_000000000000", LEA)):
        refused = await town.desk.reveal(id, who)
        assert isinstance(refused, VoteRefused) and refused.status == 404
    assert isinstance(await town.new_desk().reveal(approval.id, LEA), VoteRefused), "another process has none"
    await town.decide(approval, word="deny")
    assert isinstance(await town.desk.reveal(approval.id, LEA), VoteRefused)


@pytest.mark.parametrize("review", ["accepted", "first_use", "changed", "unpinned"])
async def test_a_definition_that_changed_since_it_was_looked_at_is_marked(review: str) -> None:
    town = Town(profile="confirm", how="form")
    town.review = review
    outcome = await town.run(amount=1)
    assert isinstance(outcome, InputRequired)
    (ask,) = outcome.requests.values()
    assert ("THE TOOL HAS CHANGED" in ask["params"]["message"]) == (review == "changed")
    (approval,) = town.desk.open_ones()
    told = presentation.tell_all(approval, await town.desk.book.shown(approval.id), {}, [], "", town.clock.now)
    assert told["definition"]["review"] == review


async def test_arguments_of_what_is_finished_are_erased_after_a_day(tmp_path: Path) -> None:
    town = Town()
    town.store = store = SqliteStore(tmp_path / "db", town.clock)
    town.desk = town.new_desk()
    approval = await town.pending(secret_plan="x")
    town.clock.now += 60
    await town.decide(approval, word="deny")
    town.clock.now += 24 * 3600 - 1
    assert (await town.desk.book.shown(approval.id))["arguments"] is not None
    town.clock.now += 1
    assert await town.desk.book.shown(approval.id) == {} and await town.desk.get(approval.id) is None
    await store.close()


async def test_what_the_store_holds_of_an_approval_has_no_secret_in_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    town = Town(store=store)
    await town.pending(password="hunter2-canary", url="https://u:canary-pass@x/")
    await store.close()
    held = await anyio.to_thread.run_sync(_everything_in, tmp_path)
    assert b"apr_" in held and b"canary" not in held


def _everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_another_process_sees_what_was_decided_here(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    town = Town(store=store)
    other = town.new_desk()
    approval = await town.pending(amount=1)
    await other.refresh()
    heard: list[str] = []
    other.watchers.append(lambda one: heard.append(one.state))
    assert [one.id for one in other.open_ones()] == [approval.id]
    await town.decide(approval)
    await other.refresh()
    await town.run(amount=1)
    await other.refresh()
    assert heard == ["approved", "consumed"] and not other.open_ones()
    await store.close()


async def test_what_is_cancelled_says_who_and_why_and_what_is_unknown_is_nothing(town: Town) -> None:
    approval = await town.pending(amount=1)
    ended = await town.desk.end(approval.id, "cancelled", "key:ann", "not needed")
    assert ended is not None and (ended.state, ended.comment) == ("cancelled", "not needed")
    assert (await town.get(approval.id)).comment == "not needed" and town.told[-1]["approval"]["state"] == "cancelled"
    again = await town.desk.end(approval.id, "expired", "key:lea", "later")
    assert again is not None and (again.state, again.comment) == ("cancelled", "not needed"), "it was finished"
    assert await town.desk.end("apr_unknown", "cancelled") is None


async def test_approvals_are_counted_by_profile_and_by_what_became_of_them(town: Town) -> None:
    first, second, _ = [await town.pending(amount=amount) for amount in (1, 2, 3)]
    await town.decide(first)
    await town.decide(second, word="deny", comment="no")
    counts = {state: town.desk.counts[town.profile, state] for state in ("pending", "approved", "denied", "expired")}
    assert counts == {"pending": 3, "approved": 1, "denied": 1, "expired": 0}


async def test_a_use_of_a_sessions_grant_begins_its_idle_time_anew_for_every_process() -> None:
    town = Town(profile="confirm")
    here = replace(ANN, session="s1")
    outcome = await town.run(town.call(here, amount=1))
    await town.decide(await town.get(about(outcome)["id"]), ANN, scope="session")
    for amount in (1, 2):
        assert reason(await town.run(town.call(replace(here), amount=amount))) == ""
    town.clock.now += 1_000
    assert reason(await town.run(town.call(here, amount=3))) == ""
    other = town.new_desk()
    await other.refresh()
    (grant,) = other.grants.all()
    assert grant.expires == town.clock.now + 1_800
    assert reason(await town.run(town.call(here, amount=4), other)) == "" and len(town.seen) == 4
