"""What is shown, told and recorded of an approval, word for word: approvers decide by it, and programs read it."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from approval_kit import ANN, CAREFUL, LEA, LEO, TOOL, Town, about, bind, reason, text
from loop_steps import Steps

from sluicegate.approval import eligibility, messages, presentation, repository
from sluicegate.approval.eligibility import VoteRefused, VoteRequest
from sluicegate.approval.record import Approval, new_id, session_mark
from sluicegate.approval.webhook import Receiver, payload
from sluicegate.cli.approvals import _screen
from sluicegate.policy.display import WIDTH
from sluicegate.policy.profiles import BUILT_IN
from sluicegate.protocol.canonical_json import canonical
from sluicegate.protocol.model import ApprovalRef, Client, Failure, Result, refuse

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"

DEV = Client("key:ann", ("role:dev",), "ann", session="s1", info={"name": "ide\u202e", "version": "1.0", "x": 1})
START, END = "1970-01-12T13:46:40Z", "1970-01-12T14:16:40Z"


async def asked(town: Town, **arguments: Any) -> tuple[Approval, Any]:
    call = town.call(DEV, **arguments)
    meta = {"dev.sluice/reason": "rent\u202e", "traceparent": TRACE}
    approval = await town.get(about(await town.run(replace(call, meta=meta)))["id"])
    return approval, await town.desk.book.shown(approval.id)


def row(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.id, "state": "pending", "digest": approval.binding.digest, "principal": "key:ann",
        "owner": "ann", "client_claims_to_be": "ide⟨U+202E⟩ 1.0",
        "method": "tools/call", "server": "bank", "tool": "pay",
        "public": "b__pay", "class": "write", "arguments": {"to": "bob", "n": [5], "note": "a⟨U+202E⟩b\n"},
        "arguments_size": 40, "arguments_cut": False, "cut": False, "arguments_erased": False, "hidden_characters": 1,
        "profile": "one-of-leads", "tier": "other", "quorum": 1, "approvers": ["role:lead"],
        "remember": ["once", "15m"], "require_reason": False, "created_at": START, "expires_at": END, "votes": [],
        "decided_by": "", "comment": "", "scope": "once", "ended_at": None,
    }  # fmt: skip


async def test_an_approver_sees_everything() -> None:
    town = Town()
    approval, kept = await asked(town, to="bob", n=[5], note="a\u202eb\n")
    digest = kept["digest"]
    assert digest.startswith("hmac-sha256:")
    last = {"arguments": {"to": "bob", "n": [4]}}
    told = presentation.tell_all(approval, kept, last, [{"x": 1}], "p, \u202e", town.clock.now + 1.4)
    assert told == {
        **row(approval), "arguments_digest": digest,
        "asked_by_row": {"rule": "policy.csv:7", "row": "p, ⟨U+202E⟩", "policy": "rev1"},
        "definition": {"fingerprint": approval.binding.definition, "review": "accepted"},
        "description": {"written_by": "the server", "text": "Pays."},
        "reason": {"written_by": "the agent", "text": "rent⟨U+202E⟩"}, "aims_at": {"to": "bob"},
        "arguments_lines": ["n[0]: 5", "note:", "    | a⟨U+202E⟩b", "    | ", 'to: "bob"'],
        "compared_with_last_approved": [
            "- n[0]: 4", "+ n[0]: 5", "+ note:", "+     | a⟨U+202E⟩b", "+     | ", '  to: "bob"'],
        "last_calls": [{"x": 1}], "seconds_left": 1799, "trace": TRACE,
    }  # fmt: skip
    late = presentation.tell_all(approval, kept, {}, [], "", approval.expires + 9)
    assert late["compared_with_last_approved"] is None and late["seconds_left"] == 0
    erased = presentation.tell_all(approval, {}, last, [], "", 0)
    assert erased["arguments_erased"] and erased["compared_with_last_approved"] is None
    assert erased["arguments_lines"] == [] and erased["aims_at"] == {} and erased["arguments"] is None
    assert erased["description"]["text"] == erased["reason"]["text"] == ""
    assert payload(approval, kept) == {
        "type": "approval.pending", "timestamp": START,
        "data": {
            "id": approval.id, "profile": "one-of-leads", "approvers": ["role:lead"], "principal": "key:ann",
            "client_claims_to_be": "ide⟨U+202E⟩ 1.0", "server": "bank", "tool": "pay", "class": "write",
            "digest": approval.binding.digest, "expires_at": END,
            "arguments": '{"to": "bob", "n": [5], "note": "a⟨U+202E⟩b\\n"}',
            "command": f"sluice approve {approval.id} --seen {approval.binding.digest}",
        },
    }  # fmt: skip


async def test_what_was_decided_is_shown_recorded_and_granted() -> None:
    town = Town()
    approval, _ = await asked(town, amount=5)
    new = await town.decide(approval, comment="ok\u202e", scope="15m")
    assert isinstance(new, Approval)
    told = presentation.tell(new, {"arguments": {}})
    vote = {"principal": "key:lea", "channel": "api", "at": START, "comment": "ok⟨U+202E⟩"}
    assert (told["state"], told["votes"], told["comment"], told["scope"]) == ("approved", [vote], "ok⟨U+202E⟩", "15m")
    (grant,) = town.desk.grants.all()
    assert grant.show() == {
        "id": grant.id, "approval": approval.id, "principal": "key:ann", "server": "bank", "tool": "pay",
        "kind": "tool", "profile": "one-of-leads", "scope": "15m", "by": "key:lea", "made_at": 1_000_000.0,
        "expires_at": 1_000_900.0,
    }  # fmt: skip
    said = {"id": approval.id, "digest": approval.binding.digest, "profile": "one-of-leads"}
    tool = {"principal": "key:ann", "server": "bank", "own": "pay"}
    by = {"approver": "key:lea", "channel": "api"}
    given = {"state": "approved", **by, "comment": "ok\u202e", "grant": grant.id, "scope": "15m"}
    assert town.told == [{"approval": {**said, "state": "pending"}, **tool}, {"approval": {**said, **given}, **tool}]
    assert len(town.desk.open_ones()) == len(town.desk.grants) == 1
    assert town.desk.grants.get(grant.id) is grant
    town.keeps = False
    assert not await town.desk.grants.revoke(grant, "key:leo") and len(town.desk.grants) == 1
    town.keeps = True
    assert await town.desk.grants.revoke(grant, "key:leo") and len(town.desk.grants) == 0
    revoked = {"id": approval.id, "state": "revoked", "grant": grant.id, "scope": "15m", "approver": "key:leo"}
    assert town.told[-1] == {"approval": revoked, **tool}
    assert town.desk.counts == {("one-of-leads", "pending"): 1, ("one-of-leads", "approved"): 1}
    assert town.desk.pending() == {"confirm": 0, "one-of-leads": 0, "two-person": 0, "brief": 0}


async def test_who_asks_reads_what_to_do_next() -> None:
    town = Town(profile="two-person")
    waits, until = await town.run(amount=1), "1970-01-12T14:46:40Z"
    id = about(waits)["id"]
    assert about(waits) == {
        "id": id, "state": "pending", "expires_at": until, "approvers": "2 of role:lead, of different owners",
    }  # fmt: skip
    start = f"NOT EXECUTED. b__pay waits for approval {id} by 2 of role:lead, of different owners (two-person), "
    end = (
        f"They decide with: sluice approve {id}. Call again with exactly the same arguments: once approved it runs,"
        " exactly once; do not vary them."
    )
    assert text(waits) == f"{start}until {until}. {end}"
    approval = await town.get(id)
    assert (
        messages.awaited(approval) == f"waiting for approval {id} by 2 of role:lead, of different owners, until {until}"
    )
    assert await town.decide(approval) == VoteRefused(400, "two-person wants a reason: give a comment")
    assert await town.decide(approval, comment=" ") == VoteRefused(400, "two-person wants a reason: give a comment")
    await town.decide(approval, comment="c")
    assert text(await town.run(amount=1)) == f"{start}until {until}. 1 agreed, 1 still missing. {end}"
    assert await town.decide(approval, comment="c") == VoteRefused(409, "you have agreed already")
    town.people["key:lea2"] = twin = Client("key:lea2", ("role:lead",), "LEA")
    same = VoteRefused(403, "somebody of the same owner has agreed already: a quorum counts different owners")
    assert await town.decide(approval, twin, comment="c") == same
    await town.decide(approval, LEO, word="deny", comment="no\u202e")
    denied = await town.run(amount=1)
    assert (reason(denied), about(denied)["state"]) == ("approval_denied", "denied")
    assert text(denied) == (
        f"NOT EXECUTED. b__pay was denied by key:leo ({id}). They say: no⟨U+202E⟩"
        f" The same call is not asked for again before {until}."
    )
    over = await town.get(id)
    assert messages.denied(replace(over, comment="")) == (
        f"NOT EXECUTED. b__pay was denied by key:leo ({id}). The same call is not asked for again before {until}."
    )
    assert messages.expired(over) == (
        f"NOT EXECUTED. Nobody approved b__pay in time ({id}, two-person). The same call again asks anew."
    )
    assert messages.ended(over) == f"NOT EXECUTED. The approval {id} of b__pay is denied: no⟨U+202E⟩."
    assert messages.ended(replace(over, comment="")) == f"NOT EXECUTED. The approval {id} of b__pay is denied."
    assert await town.decide(over) == VoteRefused(409, "it is denied already")
    assert await town.decide(replace(over, id="apr_x")) == VoteRefused(404, "no such approval")


def test_an_answer_names_its_approval_in_results_and_in_errors() -> None:
    made = bind(ANN, "tools/call", TOOL, {}, "r", BUILT_IN["confirm"])
    approval = Approval("apr_1", "pending", made, "m", "p", "r", (), "", "", "", "", "", 0.0, 60.0)
    named = {"id": "apr_1", "state": "pending", "expires_at": "1970-01-01T00:01:00Z", "approvers": "whoever asked"}
    result = messages.answer("tools/call", "approval_pending", "wait", approval)
    refused = refuse("tools/call", "approval_pending", "wait")
    assert isinstance(result, Result) and isinstance(refused, Result) and result.reason == "approval_pending"
    meta = {"dev.sluice/reason": "approval_pending", "dev.sluice/approval": named}
    assert result.value == {**refused.value, "_meta": meta}
    failure = messages.answer("prompts/get", "approval_denied", "no", approval)
    data = {"reason": "approval_denied", "approval": named}
    assert failure == Failure(-32603, "no", data, "approval_denied")
    for change in ("consumed", "pending"):
        with pytest.raises(ValueError, match=f"^apr_1 cannot become {change}: it is pending$"):
            approval.become(change)  # type: ignore[arg-type]
    assert Approval.decode(approval.encode()) == approval and approval.version == ("pending", 0)


@pytest.mark.parametrize("how", ["form", "url"])
async def test_the_question_is_one_screen_and_a_no_is_preset(how: Any) -> None:
    town = Town(profile="confirm", how=how)
    town.review = "changed"
    call = town.call(DEV, note="\u202e", **{f"a{n:03}": n for n in range(70)})
    await town.run(replace(call, meta={"dev.sluice/reason": "w\u202e"}))
    (approval,) = town.desk.open_ones()
    kept = await town.desk.book.shown(approval.id)
    listed = [f"  a{n:03}: {n}" for n in range(60)]
    message = [
        "Sluice asks: run pay of bank (write)?", *listed,
        f"  ...(cut: {kept['size']} bytes, {kept['digest']}; whole: sluice show)",
        "  1 hidden characters are shown as ⟨U+XXXX⟩", "THE TOOL HAS CHANGED since its definition was looked at.",
        "The agent says why: w⟨U+202E⟩", "The server says what it does: Pays.",
        f"The policy asks: policy.csv:7 (confirm). {approval.id}, until 1970-01-12T13:51:40Z",
    ]  # fmt: skip
    form = messages.form(approval, kept, "sluice show")
    without = messages.form(replace(approval, session=""), kept, "sluice show")
    choices = without["params"]["requestedSchema"]["properties"]["decision"]["oneOf"]
    assert choices[1]["title"].endswith("while it is used at least every half hour, for 8 hours at most")
    assert form["params"]["message"].split("\n") == message
    short = messages.question(approval, {"arguments": {}, "review": "accepted", "description": "d" * 400}, "").split(
        "\n"
    )
    assert short == [message[0], *short[1:-2], f"The server says what it does: {'d' * 300}", message[-1]]
    assert messages.visit(approval, kept, "sluice show", "https://x/") == {
        "method": "elicitation/create",
        "params": {"mode": "url", "message": form["params"]["message"], "url": "https://x/"},
    }
    assert form == {
        "method": "elicitation/create",
        "params": {
            "mode": "form", "message": form["params"]["message"],
            "requestedSchema": {
                "type": "object", "required": ["decision"],
                "properties": {
                    "decision": {"type": "string", "title": "Run it?", "default": "deny", "oneOf": [
                        {"const": "once", "title": "Run it, this once"},
                        {"const": "session", "title": "Run it, and this tool for the rest of the session"},
                        {"const": "deny", "title": "Do not run it"}]},
                    "comment": {"type": "string", "title": "Comment", "description": "The model reads it.",
                                "maxLength": 500},
                },
            },
        },
    }  # fmt: skip
    digest = approval.binding.digest
    for value, ballot in (
        (
            {"action": "accept", "content": {"decision": "once", "comment": "c"}},
            VoteRequest("approve", digest, "once", "c"),
        ),
        ({"action": "accept", "content": {"decision": "deny", "comment": 1}}, VoteRequest("deny", digest)),
        ({"action": "decline", "content": {"comment": "c"}}, VoteRequest("deny", digest, comment="c")),
        ({"action": "decline"}, VoteRequest("deny", digest)), ({"action": "cancel"}, None), ([], None),
        ({"action": "accept"}, None), ({"action": "accept", "content": {"decision": "ever"}}, None),
    ):  # fmt: skip
        assert messages.read_vote(approval, value) == ballot


async def test_a_ballot_that_is_not_fit_is_refused_with_why() -> None:
    town = Town()
    approval, _ = await asked(town, amount=1)
    for who, ballot, refused in (
        (LEA, {"seen": "sha256:0"}, VoteRefused(409, "it changed while you looked at it: read it again")),
        (LEA, {"seen": ""}, VoteRefused(400, "seen_digest is needed: the digest of what you looked at")),
        (LEA, {"scope": "session"}, VoteRefused(400, "one-of-leads can be remembered as: once, 15m")),
        (
            ANN,
            {},
            VoteRefused(403, "nobody decides on what they asked for themselves, nor does anybody of the same owner"),
        ),
        (Client("key:eve"), {}, VoteRefused(404, "no such approval")),
    ):
        assert await town.decide(approval, who, **ballot) == refused  # type: ignore[arg-type]
    confirmed = Town(profile="confirm")
    own, _ = await asked(confirmed, amount=1)
    assert await confirmed.decide(own) == VoteRefused(404, "no such approval")
    assert eligibility.may_see(approval, DEV, ()) and not eligibility.may_see(own, LEA, {"role:lead"})
    assert eligibility.may_see(approval, LEA, {"role:lead"}) and not eligibility.may_see(approval, LEA, {"role:dev"})
    assert BUILT_IN["confirm"].describe() == "whoever asked"
    assert replace(BUILT_IN["two-person"], approvers=("a", "b")).describe() == "2 of a or b, of different owners"
    terms = replace(approval.binding.terms, approvers=("a", "b"))
    either = replace(approval, binding=replace(approval.binding, terms=terms))
    assert eligibility.objection(either, LEA, {"c"}) == "one-of-leads is decided by a or b"
    assert eligibility.persons(Client("jwt:iss#Lea", (), "Team")) == ("jwt:iss#lea", "team", "lea")
    town.keeps = False
    assert await town.decide(approval) == VoteRefused(
        503, "the audit log cannot be written, and nothing is decided unrecorded"
    )


async def test_a_client_has_so_many_and_is_told_which_limit_it_met() -> None:
    town = Town(per_client=1)
    await town.pending(amount=1)
    refused = await town.run(amount=2)
    limit = "this client has as many open approvals as limits.pending_approvals lets it have"
    assert reason(refused) == "rate_limited" and limit in text(refused)


async def test_what_the_store_holds_that_is_no_approval_counts_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    town = Town()
    whole = json.loads((await Town().pending(amount=1)).encode())
    times = [json.dumps({**whole, name: "later"}).encode() for name in ("created", "expires", "token_end")]
    for broken in (b"", b"[]", b"{}", b'{"matter":{},"votes":[]}', *times):
        assert repository.decoded(broken) is None
    assert {record.message for record in caplog.records} == {"an approval in the store cannot be read, and is not used"}
    await town.store.put("approval/open/apr_1", b"{}")
    assert await town.desk.get("apr_1") is None and await town.desk.book.opened() == {"apr_1": b"{}"}
    await town.desk.refresh()
    assert town.desk.open_ones() == [] and await town.desk.book.finished(town.clock.now) == []
    await town.store.put("approval/shown/apr_1", b"[]")
    assert await town.desk.book.shown("apr_1") == {} == await town.desk.book.shown("apr_2")


async def test_what_is_finished_is_read_from_the_store_once_in_pieces_and_the_newest_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    town, limit = Town(), 300
    monkeypatch.setattr(repository, "MAX_FINISHED", limit)
    first = await town.pending(amount=1)
    denied = first.become("denied", ended=town.clock.now)
    for number in range(3 * limit):
        one = replace(denied, id=f"apr_{number:012}", ended=denied.created - number)
        await town.store.put(f"approval/done/{one.id}", one.encode())
    steps, decode, decoded = Steps(), repository.decoded, Counter[int]()

    def counted(raw: bytes) -> Approval | None:
        decoded[steps.now] += 1
        return decode(raw)

    monkeypatch.setattr(repository, "decoded", counted)
    found = await town.desk.book.finished(town.clock.now)
    steps.stop()
    assert {one.id for one in found} == {f"apr_{number:012}" for number in range(limit)}
    assert decoded.total() == 3 * limit and max(decoded.values()) <= 50
    decoded.clear()
    await town.decide(first, LEA, "deny")
    again = await town.desk.book.finished(town.clock.now)
    assert first.id in {one.id for one in again} and len(again) == limit and decoded.total() <= 2
    assert await town.desk.book.finished(town.clock.now + repository.RETENTION) == []


async def test_a_client_that_ends_its_own_without_end_keeps_the_newest_in_the_store_and_each_no(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    town = Town()
    monkeypatch.setattr(repository, "MAX_FINISHED_OF", 3)
    town.people["key:bob"] = bob = replace(DEV, principal="key:bob")
    other = await town.get(about(await town.run(town.call(bob, amount=0)))["id"])
    await town.desk.end(other.id, "cancelled")
    denied = await town.pending(amount=1)
    await town.decide(denied, LEA, "deny")
    ended = list[Approval]()
    for amount in range(2, 8):
        town.clock.now += 1
        ended.append(one := await town.pending(amount=amount))
        await town.desk.end(one.id, "cancelled")
    await town.desk.refresh()
    kept = {other.id, *(one.id for one in ended[-3:])}
    assert {one.id for one in await town.desk.book.finished(town.clock.now)} == kept
    assert {key.rpartition("/")[2] for key in await town.store.scan("approval/shown/")} == kept
    assert {key.rpartition("/")[2] for key in await town.store.scan("approval/row/")} == kept
    assert {key.rpartition("/")[2] for key in await town.store.scan("approval/done/")} == kept | {denied.id}
    assert about(await town.run(amount=1))["id"] == denied.id, "the same call is answered as before"
    again = town.new_desk()
    assert {one.id for one in await again.book.finished(town.clock.now)} == kept


async def test_a_call_that_waits_hears_of_an_approval_that_ended_elsewhere_and_has_left_the_store() -> None:
    town = Town()
    approval = await town.pending(amount=1)
    waiting = asyncio.create_task(town.desk.wait(approval, 600.0))
    await anyio.lowlevel.checkpoint()
    await town.new_desk().end(approval.id, "cancelled")
    await town.store.delete(f"approval/done/{approval.id}")
    await town.desk.refresh()
    with anyio.fail_after(20):
        assert (await waiting).id == approval.id


async def test_the_bound_of_each_client_holds_beside_more_of_others_than_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repository, "MAX_FINISHED_OF", 3)
    monkeypatch.setattr(repository, "MAX_FINISHED", 5)
    town, clients, each = Town(), 8, 20
    pending = await town.pending(amount=1)
    denied = pending.become("denied", ended=town.clock.now)
    for number in range(clients * each):
        binding = replace(denied.binding, principal=f"key:{number % clients}")
        one = replace(denied, id=f"apr_{number:012}", binding=binding, ended=denied.created + number, expires=0.0)
        await town.store.put(f"approval/done/{one.id}", one.encode())
        town.desk.book.add(one)
    await town.desk.refresh()
    newest = {f"apr_{number:012}" for number in range(clients * (each - 3), clients * each)}
    assert {key.rpartition("/")[2] for key in await town.store.scan("approval/done/")} == newest
    assert {one.id for one in await town.desk.book.finished(town.clock.now)} == set(sorted(newest)[-5:])


async def test_the_next_call_is_compared_with_the_last_one_that_ran() -> None:
    town = Town()
    approval = await town.pending(amount=1)
    assert await town.desk.book.last(approval) == {}
    await town.decide(approval)
    await town.run(amount=1)
    assert await town.desk.book.last(approval) == {"arguments": {"amount": 1}, "principal": "key:ann"}
    assert [one.id for one in await town.desk.book.finished(town.clock.now)] == [approval.id]
    other = replace(approval, binding=replace(approval.binding, terms=CAREFUL["brief"]))
    assert await town.desk.book.last(other) == {}, "other people decide about that one"
    used = await town.get(approval.id)
    assert (used.state, used.by, used.ended) == ("consumed", "", 1_000_000.0)


def test_previews_are_bounded_and_aims_are_plain_values() -> None:
    assert presentation.preview({"arguments": "x" * 2046}) == '"' + "x" * 2046 + '"'
    assert (
        presentation.preview({"arguments": "é" * 2046, "digest": "D"}) == '"' + "é" * 1023 + " ...(cut: 4094 bytes, D)"
    )
    named = {"PATH": "x" * 200, "path": "x" * 201, "repo": ["x"], "url": 1.5, "body": "b", "to": True}
    assert presentation.aims(named) == {"PATH": "x" * 200, "url": 1.5, "to": True} and presentation.aims(["to"]) == {}
    names = "account amount branch bucket channel cluster collection currency database dataset date days zone"
    many = dict.fromkeys(names.split(), 1)
    assert list(presentation.aims(many)) == list(many)[:12]
    assert session_mark(None) == "" and len(session_mark("s")) == 32 and session_mark("s") != session_mark("t")
    ids = {new_id() for _ in range(20)} | {new_id("grt")}
    assert len(ids) == 21 and all(len(id) == 16 and id[:4] in ("apr_", "grt_") for id in ids)


def test_methods_and_prompts_are_bound_and_what_a_retry_adds_is_not() -> None:
    terms = BUILT_IN["confirm"]
    one = bind(ANN, "tools/call", TOOL, {"name": "pay", "_meta": {}, "requestState": "x"}, "r", terms)
    assert one == bind(ANN, "tools/call", TOOL, {"name": "pay", "inputResponses": {}}, "r", terms)
    assert one.digest != bind(ANN, "prompts/get", TOOL, {"name": "pay"}, "r", terms).digest
    assert (one.principal, one.server, one.kind, one.own, one.rule, one.terms) == (
        "key:ann", "bank", "tool", "pay", "r", terms)  # fmt: skip
    for method in ("tools/call", "prompts/get"):
        empty = bind(ANN, method, TOOL, {"name": "pay", "arguments": {}}, "r", terms)
        assert empty == bind(ANN, method, TOOL, {"name": "pay"}, "r", terms)
    bare = bind(ANN, "resources/read", replace(TOOL, item=None), {}, "r", terms)
    bound = {"principal": "key:ann", "server": "bank", "tool": "pay", "definition": "", "params": {},
             "method": "resources/read"}  # fmt: skip
    assert (bare.definition, bare.digest) == ("", f"sha256:{sha256(canonical(bound).encode()).hexdigest()}")
    shy = {"arguments": [["a\u202e"], {"\u202e": 1}]}
    assert presentation.tell(Approval("a", "pending", bare, "m", "p", "r", (), "", "", "", "", "", 0.0, 0.0), shy)[
        "arguments"] == [["a⟨U+202E⟩"], {"⟨U+202E⟩": 1}]  # fmt: skip
    assert presentation.preview({"arguments": "é\u202e"}) == '"é⟨U+202E⟩"'


async def test_what_another_process_asks_for_is_ended_by_it_or_a_little_later() -> None:
    town = Town()
    own, approval = town.desk, await town.pending(amount=1)
    other = town.new_desk()
    await other.refresh()
    town.clock.now = approval.expires + 4.9
    await other.refresh()
    kept = await other.book.read(approval.id)
    assert kept is not None and kept.approval.state == "pending"
    town.clock.now = approval.expires + 5.0
    await other.refresh()
    kept = await other.book.read(approval.id)
    assert kept is not None and kept.approval.state == "expired"
    assert own.open_ones() != [] == other.open_ones()
    await own.refresh()
    assert own.open_ones() == []


async def test_a_call_hears_what_another_process_decided_before_its_own_looked_at_the_store_first() -> None:
    town = Town(hold_for=600.0)

    async def deny_elsewhere() -> None:
        while not town.desk.open_ones():
            await anyio.lowlevel.checkpoint()
        (approval,) = town.desk.open_ones()
        ballot = VoteRequest("deny", approval.binding.digest)
        await town.new_desk().decide(approval.id, LEA, ballot, "api")
        await town.desk.refresh()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(deny_elsewhere)
            outcome = await town.run(amount=1)
    assert reason(outcome) == "approval_denied" and town.desk.open_ones() == []


async def test_of_several_workers_each_sees_its_own_principals() -> None:
    town = Town()
    approval = await town.pending(amount=1)
    for who, is_seen in (("key:ann", True), ("key:lea", False)):
        mine = repository.ApprovalRepository(town.store, lambda principal, who=who: principal == who)  # type: ignore[misc]
        assert (await mine.read(approval.id) is not None) is is_seen


def test_a_receiver_shows_no_address() -> None:
    receiver = Receiver("https://x.test/secret", "whsec_")
    assert repr(receiver) == f"Receiver({receiver.mark})" and len(receiver.mark) == 16
    assert ApprovalRef("apr_1", "d", "r", "p").key == "" and json.dumps(receiver.mark)


async def test_on_a_terminal_no_text_begins_a_line_of_its_own() -> None:
    """Blanks would fill a line that the terminal wraps, and what follows would read like one of Sluice's."""
    town = Town()
    approval, kept = await asked(town, to="bob")
    shown = presentation.tell_all(approval, kept, {}, [], "p", town.clock.now)
    forged = "definition sha256:0  accepted by key:bob"
    for holder in ("reason", "description"):
        shown[holder]["text"] = "x" + " " * 200 + forged
    lines = list(_screen(shown | {"client_claims_to_be": " " * 300 + forged, "comment": " " * 300 + forged}, str))
    assert max(map(len, lines)) <= WIDTH + len("    \u2026 ")
    changed = shown | {"definition": {"fingerprint": "", "review": "changed"}}
    assert any(line.endswith(": see <pins diff bank>") for line in _screen(changed, "<{}>".format))
    assert all(line.startswith("    \u2026 ") for line in lines if "accepted by key:bob" in line)
