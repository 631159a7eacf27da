"""Each guard by itself: what it lets through, what it refuses, what it hides."""

import logging
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from approval_kit import Town

from sluicegate.catalog import uris
from sluicegate.guards.approve import approve
from sluicegate.guards.commit import commit
from sluicegate.guards.enforce import enforce
from sluicegate.guards.measure import Measure
from sluicegate.guards.record import RecordGuard
from sluicegate.guards.seal import MAX_ROUNDS, seal, unresolved
from sluicegate.metrics import Count
from sluicegate.policy.rules import Ruling
from sluicegate.policy.schemas import Violation
from sluicegate.protocol.model import (
    ROUND_SECONDS,
    ApprovalRef,
    Call,
    Client,
    Decision,
    Failure,
    Guard,
    InputRequired,
    Outcome,
    Result,
    Target,
    Trail,
    Verdict,
    refuse,
)
from sluicegate.protocol.model import not_found as unknown
from sluicegate.runtime.loop_budget import LoopBudget, client_budgets
from sluicegate.store.keys import MAX_TOKEN_CHARS, KeyRing, Sealer
from sluicegate.store.memory import MemoryStore

TOOL = Target("git", "tool", "push", "g__push", {"inputSchema": {}})


def call(method: str = "tools/call", target: Target | None = TOOL, **params: Any) -> Call:
    return Call(Client("key:a"), method, {"name": "push", **params}, target=target, trail=Trail("c1"))


class Server:
    """Innermost: notes what reaches it and gives the scripted outcomes."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.seen: list[Call] = []
        self.outcomes = list(outcomes) or [Result({})]

    async def __call__(self, call: Call) -> Outcome:
        self.seen.append(call)
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]


# ---------------------------------------------------------------- enforce


def always(verdict: Verdict) -> Any:
    return lambda call, target: Decision(verdict, "a-rule", "because")


def enforcing(decide: Any, explain: bool = False, check: Any = lambda target, arguments: None) -> Guard:
    return enforce(decide, check, lambda: explain)


@pytest.mark.parametrize(
    ("method", "target"),
    [("tools/call", TOOL), ("prompts/get", Target("git", "prompt", "p", "g__p")),
     ("resources/read", Target("git", "res", "a:b", "g+a:b"))],
)  # fmt: skip
async def test_what_is_denied_looks_exactly_like_what_does_not_exist(method: str, target: Target) -> None:
    server, denied = Server(), call(method, target)
    outcome = await enforcing(always(Verdict.DENY))(denied, server)
    assert outcome == unknown(method, denied.params)
    assert not server.seen
    assert denied.trail.decisions == (Decision(Verdict.DENY, "a-rule", "because"),)


async def test_an_explained_denial_names_its_rule() -> None:
    outcome = await enforcing(always(Verdict.DENY), explain=True)(call(), Server())
    assert isinstance(outcome, Result) and outcome.value["isError"]
    assert outcome.value["_meta"] == {"dev.sluice/reason": "denied"}
    assert "a-rule" in outcome.value["content"][0]["text"]


async def test_what_is_allowed_passes_and_what_has_no_target_is_not_judged_here() -> None:
    server = Server()
    assert await enforcing(always(Verdict.ALLOW))(call(), server) == Result({})
    assert await enforcing(always(Verdict.DENY))(call("tools/list", None), server) == Result({})


async def test_mirrored_headers_are_checked_after_the_decision() -> None:
    item = {"inputSchema": {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}}
    lying = replace(call(arguments={"a": "x"}, target=replace(TOOL, item=item)), mirrored={"a": "y"})
    server = Server()
    outcome = await enforcing(always(Verdict.ALLOW))(lying, server)
    assert isinstance(outcome, Failure) and outcome.code == -32020 and not server.seen
    hidden = await enforcing(always(Verdict.DENY))(lying, server)
    assert isinstance(hidden, Failure) and hidden.code == -32602


async def test_a_call_that_a_human_must_agree_to_passes_inwards_and_waits_there() -> None:
    asked = Ruling(Verdict.ASK, "policy.csv:7", "a row allows it", "write", "two-person")
    server, waiting, town = Server(), call(), Town()
    guard = approve(town.desk, town.means())

    async def inner(call: Call) -> Outcome:
        return await guard(call, server)

    outcome = await enforcing(lambda call, target: asked)(waiting, inner)
    assert isinstance(outcome, Result) and outcome.value["_meta"]["dev.sluice/reason"] == "approval_pending"
    text = outcome.value["content"][0]["text"]
    assert "g__push waits for approval apr_" in text and text.startswith("NOT EXECUTED")
    assert not server.seen and waiting.trail.decisions == (asked,)
    read = await guard(replace(call("resources/read"), trail=waiting.trail), server)
    assert isinstance(read, Failure) and read.data["reason"] == "approval_pending" and not server.seen


async def test_only_a_decision_to_ask_is_kept_from_the_server() -> None:
    server, town = Server(), Town()
    guard = approve(town.desk, town.means())
    assert await guard(call("tools/list", None), server) == Result({})
    assert await enforcing(always(Verdict.ALLOW))(call(), lambda call: guard(call, server)) == Result({})
    assert len(server.seen) == 2


async def test_arguments_are_judged_after_the_decision_and_named_without_their_values() -> None:
    def check(target: Target, arguments: Any) -> Violation | None:
        return None if arguments == {"a": 1} else Violation("/a", "the value is not of type integer")

    server, wrong = Server(), call(arguments={"a": "hunter2"})
    outcome = await enforcing(always(Verdict.ASK), check=check)(wrong, server)
    assert isinstance(outcome, Result) and outcome.value["_meta"] == {"dev.sluice/reason": "invalid_arguments"}
    assert "/a: the value is not of type integer" in outcome.value["content"][0]["text"]
    assert not server.seen and wrong.trail.decisions[-1].verdict is Verdict.DENY
    assert "hunter2" not in repr(wrong.trail)
    hidden = await enforcing(always(Verdict.DENY), check=check)(wrong, server)
    assert hidden == unknown("tools/call", wrong.params)
    assert await enforcing(always(Verdict.ALLOW), check=check)(call(arguments={"a": 1}), server) == Result({})
    assert await enforcing(always(Verdict.ALLOW), check=check)(call("prompts/get"), server) == Result({})


async def test_what_shadow_mode_lets_pass_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    passed = Ruling(Verdict.ALLOW, "policy.csv:7", "shadow mode: a row denies it", "write", "", True)
    with caplog.at_level(logging.INFO):
        assert await enforcing(lambda call, target: passed)(call(), Server()) == Result({})
    assert "would deny tools/call g__push for key:a by policy.csv:7" in caplog.text


# ---------------------------------------------------------------- seal and commit


@pytest.fixture
def sealer(tmp_path: Any) -> Sealer:
    return Sealer(KeyRing.load(tmp_path / "keys", "seal"))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def same(call: Call, outcome: Outcome) -> Outcome:
    return outcome


def retry(state: Any, principal: str = "key:a", **params: Any) -> Call:
    again = call(requestState=state, inputResponses={"q": {"action": "accept"}}, **params)
    return replace(again, client=Client(principal), trail=Trail("c2"))


ASK = InputRequired({"q": {"method": "elicitation/create"}}, "server state")


@pytest.mark.parametrize("state", ["server state", "", None, "long" * 500_000], ids=["text", "empty", "none", "long"])
async def test_a_servers_state_travels_sealed_and_comes_back_byte_for_byte(sealer: Sealer, state: str | None) -> None:
    guard, server = seal(sealer.seal, sealer.unseal, same), Server(replace(ASK, state=state), Result({}))
    asked = await guard(call(), server)
    assert isinstance(asked, InputRequired) and asked.state and "server state" not in asked.state
    assert len(asked.state) <= MAX_TOKEN_CHARS
    assert await guard(retry(asked.state), server) == Result({})
    assert server.seen[1].params.get("requestState", None) == state
    assert ("requestState" in server.seen[1].params) is (state is not None)
    assert server.seen[1].params["inputResponses"] == {"q": {"action": "accept"}}
    assert server.seen[1].trail.round == ("c1", 1)


async def test_whatever_does_not_fit_the_envelope_is_an_error(sealer: Sealer) -> None:
    clock, server = Clock(), Server(ASK)
    guard = seal(sealer.seal, sealer.unseal, same, clock=clock)
    asked = await guard(call(arguments={"n": 1}), server)
    assert isinstance(asked, InputRequired) and asked.state is not None
    good = asked.state
    flipped = good[:20] + ("A" if good[20] != "A" else "B") + good[21:]
    bad = [
        retry(flipped, arguments={"n": 1}),
        retry(good + "-TAMPERED", arguments={"n": 1}),
        retry("server state", arguments={"n": 1}),
        retry("", arguments={"n": 1}),
        retry(None, arguments={"n": 1}),
        retry(7, arguments={"n": 1}),
        retry(good, arguments={"n": 2}),
        retry(good, arguments={"n": 1.0}),
        retry(good, "key:b", arguments={"n": 1}),
        replace(retry(good, arguments={"n": 1}), client=Client("key:a", toolset="dev")),
        replace(retry(good, arguments={"n": 1}), method="prompts/get"),
        replace(retry(good, arguments={"n": 1}), target=replace(TOOL, server="hub")),
        replace(retry(good, arguments={"n": 1}), target=replace(TOOL, own="pull")),
    ]
    for attempt in bad:
        assert await guard(attempt, server) == Failure(-32602, "Invalid or expired requestState")
    assert len(server.seen) == 1


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, Result)
    return str(outcome.reason)


async def test_a_round_that_comes_too_late_or_to_another_program_is_one_of_a_call_that_had_begun(
    sealer: Sealer,
) -> None:
    clock, programs, server = Clock(), {"git": "one"}, Server(ASK)
    guard = seal(sealer.seal, sealer.unseal, same, clock=clock, identity=programs.__getitem__)
    asked = await guard(call(), server)
    ours = await guard(call(), Server(replace(ASK, approval_ref=ApprovalRef("a1", "d", "r", "p", "key"))))
    assert isinstance(asked, InputRequired) and isinstance(ours, InputRequired)
    programs["git"] = "two"
    assert reason(await guard(retry(asked.state), server)) == "outcome_unknown"
    assert await guard(retry(ours.state), server) == Failure(-32602, "Invalid or expired requestState")
    programs["git"] = "one"
    clock.now += ROUND_SECONDS + 1
    assert reason(await guard(retry(asked.state), server)) == "outcome_unknown"
    assert await guard(retry(ours.state), server) == Failure(-32602, "Invalid or expired requestState")
    assert len(server.seen) == 1


async def test_a_round_of_a_replaced_key_or_of_an_earlier_version_is_not_gone_on_with(sealer: Sealer) -> None:
    before, server = replace(call(), client=Client("key:a", credential="one")), Server(ASK, Result({}))
    guard = seal(sealer.seal, sealer.unseal, same)
    asked = await guard(before, server)
    assert isinstance(asked, InputRequired) and asked.state is not None

    def again(state: str, credential: str) -> Call:
        return replace(retry(state), client=Client("key:a", credential=credential))

    assert reason(await guard(again(asked.state, "two"), server)) == "outcome_unknown"
    whole = sealer.unseal("round", asked.state, "key:a")
    assert whole is not None
    for name in ("identity", "credential", "expires", "public"):
        old = sealer.seal("round", {key: value for key, value in whole.items() if key != name}, "key:a")
        if name == "public":
            assert unresolved(sealer.unseal)(again(old, "one")) is None
        else:
            assert reason(await guard(again(old, "one"), server)) == "outcome_unknown"
    assert len(server.seen) == 1
    assert await guard(again(asked.state, "one"), server) == Result({}) and len(server.seen) == 2


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_server_that_is_replaced_while_a_call_is_recorded_does_not_get_it(has_begun: bool) -> None:
    """What was sealed or approved for the one before is not meant for it."""
    programs, server, meant = {TOOL.server: "one"}, Server(Result({})), call()

    async def replaced(call: Call, approval: Any) -> bool:
        programs[TOOL.server] = "two"
        return True

    meant.trail.identity = "one"
    if has_begun:
        meant.trail.resume("c0", 1)
    guard = commit(MemoryStore().spend, replaced, identity=programs.__getitem__)
    outcome = await guard(meant, server)
    assert reason(outcome) == ("outcome_unknown" if has_begun else "approval_denied") and not server.seen
    assert await guard(call(), server) == Result({}), "one that was meant for nobody else goes to whoever is there"


async def test_a_round_whose_tool_is_gone_is_one_of_a_call_that_had_begun(sealer: Sealer) -> None:
    guard, gone = seal(sealer.seal, sealer.unseal, same), unresolved(sealer.unseal)
    asked = await guard(call(), Server(ASK))
    assert isinstance(asked, InputRequired)

    def public(state: Any, name: str = TOOL.public, principal: str = "key:a") -> Call:
        return replace(retry(state, principal), params={"name": name, "requestState": state})

    outcome = gone(public(asked.state))
    assert outcome is not None and reason(outcome) == "outcome_unknown"
    others = [public(asked.state, "other"), public(asked.state, principal="key:b"), public("forged"), call()]
    assert [gone(one) for one in others] == [None] * 4


@pytest.mark.parametrize("why", [
    "server_unavailable", "audit_unavailable", "store_unavailable", "login_required", "invalid_arguments",
    "approval_expired", "denied",
])  # fmt: skip
async def test_what_keeps_a_later_round_from_its_server_proves_nothing_of_the_first(sealer: Sealer, why: Any) -> None:
    guard = seal(sealer.seal, sealer.unseal, same)
    refused = refuse("tools/call", why, "NOT EXECUTED: It cannot be had.")
    asked = await guard(call(), Server(ASK))
    assert isinstance(asked, InputRequired)
    told = await guard(retry(asked.state), Server(refused))
    assert reason(told) == "outcome_unknown" and "NOT EXECUTED" not in str(told)
    ours = await guard(call(), Server(replace(ASK, approval_ref=ApprovalRef("a1", "d", "r", "p", "key"))))
    assert isinstance(ours, InputRequired)
    assert reason(await guard(retry(ours.state), Server(refused))) == why
    assert reason(await guard(call(), Server(refused))) == why


async def test_a_server_whose_call_a_rule_ends_waits_no_longer(sealer: Sealer) -> None:
    """A round that was used before is no such: another one of the same call may be under way."""
    given_up: list[tuple[str, str]] = []
    guard = seal(sealer.seal, sealer.unseal, same, abandon=lambda server, id: given_up.append((server, id)))
    asked = await guard(call(), Server(ASK))
    assert isinstance(asked, InputRequired)
    used = Failure(-32602, "This requestState was used before")
    assert await guard(retry(asked.state), Server(used)) == used and given_up == []
    assert isinstance(await guard(retry(asked.state), Server(ASK)), InputRequired) and given_up == []
    inner = enforcing(always(Verdict.DENY))
    assert reason(await guard(retry(asked.state), partial(inner, inner=Server(ASK)))) == "outcome_unknown"
    assert given_up == [("git", "c1")]


@pytest.mark.parametrize(
    ("method", "answer"),
    [("elicitation/create", {"roots": []}), ("roots/list", {"action": "accept"}),
     ("sampling/createMessage", {"action": "accept"}), ("of/no/kind", {"action": "accept"})],
)  # fmt: skip
async def test_an_answer_of_another_form_than_its_question_reaches_no_server(
    sealer: Sealer, method: str, answer: Any
) -> None:
    guard, server = seal(sealer.seal, sealer.unseal, same), Server(InputRequired({"q": {"method": method}}), Result({}))
    asked = await guard(call(), server)
    assert isinstance(asked, InputRequired)
    unfit = retry(asked.state)
    unfit = replace(unfit, params={**unfit.params, "inputResponses": {"q": answer}})
    assert await guard(unfit, server) == Failure(-32602, f"inputResponses['q'] is no answer to {method}")
    assert len(server.seen) == 1


async def test_answers_to_what_was_not_asked_reach_no_server(sealer: Sealer) -> None:
    guard, fits = seal(sealer.seal, sealer.unseal, same), {"q": {"action": "accept"}}
    for asks, arrives in ((ASK, fits), (InputRequired({}, "server state"), {})):
        server = Server(asks, Result({}))
        asked = await guard(call(), server)
        assert isinstance(asked, InputRequired)
        more = retry(asked.state)
        more = replace(more, params={**more.params, "inputResponses": {**fits, "other": {"roots": 1}}})
        assert await guard(more, server) == Result({})
        assert server.seen[1].params["inputResponses"] == arrives


async def test_what_is_answered_to_a_call_that_waits_is_judged_where_it_waits(sealer: Sealer) -> None:
    """Such an answer ends its question there, which this guard cannot."""
    guard, server = seal(sealer.seal, sealer.unseal, same), Server(replace(ASK, takes_errors=True), Result({}))
    asked = await guard(call(), server)
    assert isinstance(asked, InputRequired)
    unfit = retry(asked.state)
    assert await guard(replace(unfit, params={**unfit.params, "inputResponses": {"q": {}}}), server) == Result({})
    assert server.seen[1].params["inputResponses"] == {"q": {}}


async def test_a_retry_without_a_state_passes_as_it_is(sealer: Sealer) -> None:
    server = Server()
    await seal(sealer.seal, sealer.unseal, same)(call(inputResponses=None), server)
    assert server.seen[0].params == {"name": "push", "inputResponses": None}


async def test_rounds_are_counted_and_capped(sealer: Sealer) -> None:
    guard, server = seal(sealer.seal, sealer.unseal, same), Server(ASK)
    outcome = await guard(call(), Server(ASK))
    rounds = 1
    while isinstance(outcome, InputRequired):
        outcome, rounds = await guard(retry(outcome.state), server), rounds + 1
    assert isinstance(outcome, Failure) and rounds == MAX_ROUNDS + 1


async def test_a_round_reaches_the_server_once_however_often_it_is_sent(sealer: Sealer) -> None:
    server, outer, inner = Server(ASK, Result({})), seal(sealer.seal, sealer.unseal, same), commit(MemoryStore().spend)

    async def chained(call: Call) -> Outcome:
        return await inner(call, server)

    asked = await outer(call(), chained)
    assert isinstance(asked, InputRequired)
    outcomes: list[Outcome] = []

    async def send() -> None:
        outcomes.append(await outer(retry(asked.state), chained))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(send)
    assert len(server.seen) == 2
    assert sum(isinstance(outcome, Result) for outcome in outcomes) == 1


# ---------------------------------------------------------------- measure and record


async def test_every_ending_is_measured_cancellation_too() -> None:
    seen: list[Outcome | None] = []
    level = Count()
    guard = Measure(lambda call, outcome, seconds: seen.append(outcome), level)
    await guard(call(), Server(Result({"a": 1})))

    async def hang(call: Call) -> Outcome:
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.move_on_after(0.01):
        await guard(call(), hang)
    assert seen == [Result({"a": 1}), None]
    assert level.value == 0


async def test_a_denial_is_logged_with_its_rule_whatever_the_client_was_told(caplog: pytest.LogCaptureFixture) -> None:
    async def denied(call: Call) -> Outcome:
        return await enforcing(always(Verdict.DENY))(call, Server())

    with caplog.at_level(logging.INFO):
        await RecordGuard()(call(), denied)
    assert [r.getMessage() for r in caplog.records] == ["denied tools/call g__push for key:a by a-rule"]




async def test_a_completion_names_no_resource_that_the_client_may_not_read() -> None:
    def decide_reads(call: Call, target: Target) -> Decision:
        hidden = "secret" in target.own or target.own.startswith(("file:///etc", "db://h?x=mine", "db://h/mine/"))
        is_denied = call.method == "resources/read" and hidden
        return Decision(Verdict.DENY if is_denied else Verdict.ALLOW, "r", "because")

    async def completed(template: str, values: list[str], **context: str) -> Any:
        async def server(call: Call) -> Outcome:
            return Result({"completion": {"values": values, "total": len(values), "hasMore": False}})

        target = Target("git", "res", template, f"g+{template}", {"uriTemplate": template})
        params: Any = {"ref": {"type": "ref/resource", "uri": template}, "argument": {"name": "x", "value": ""}}
        params["context"] = {"arguments": context}
        call = Call(Client("key:a"), "completion/complete", params, target=target)
        guard = enforce(decide_reads, lambda target, arguments: None, lambda: False)
        outcome = await guard(replace(call, trail=Trail("c")), server)
        assert isinstance(outcome, Result)
        return outcome.value["completion"]

    assert await completed("memo:{x}", ["a", "secret-b"]) == {"values": ["a"], "hasMore": False}
    assert await completed("file:///{dir}/{x}", ["passwd"], dir="etc") == {"values": [], "hasMore": False}
    assert (await completed("file:///{dir}/{x}", ["passwd"], dir="pub"))["total"] == 1
    assert await completed("file:///{x}/{name}", ["etc", "pub"]) == {"values": ["pub"], "hasMore": False}
    assert await completed("file://{+x}{?q}", ["/etc/x", "/pub/x"]) == {"values": ["/pub/x"], "hasMore": False}
    assert await completed("db://h{?x}", ["mine", "all"]) == {"values": ["all"], "hasMore": False}
    assert await completed("db://h{/dir,x}", ["a"], dir="mine") == {"values": [], "hasMore": False}
    dotted = ["../etc/x", "./x", "x/../../etc", "..", "%2e%2e/x", "a..b/.c"]
    assert await completed("file:///pub/{+x}", dotted) == {"values": ["a..b/.c"], "hasMore": False}
    assert len((await completed("memo:{x}", [str(n) for n in range(300)]))["values"]) == 100


TEMPLATE = Target("git", "res", "file:///{dir}/{name}", "g+file:///{dir}/{name}", {})
PROMPT = Target("git", "prompt", "ask", "g__ask", {"name": "ask", "arguments": [{"name": "dir"}, {"name": "name"}]})


def completion(target: Target, name: Any, given: Any = None) -> Call:
    params = {"argument": {"name": name, "value": ""}, "context": {"arguments": given}}
    return Call(Client("key:a"), "completion/complete", params, target=target, trail=Trail("c"))


def allowed(call: Call, target: Target) -> Decision:
    return Decision(Verdict.ALLOW, "r", "because")


@pytest.mark.parametrize("target", [TEMPLATE, PROMPT], ids=["template", "prompt"])
@pytest.mark.parametrize(
    ("name", "given"),
    [("Name", {}), ("path", {}), ("name*", {}), ("name:3", {}), ("{name}", {}), ("", {}), (None, {}), (["name"], {}),
     ("name", {"Dir": "secret"}), ("name", {"dir*": "secret"}), ("name", {"dir": ["secret"]}), ("name", ["dir"])],
    ids=str,
)  # fmt: skip
async def test_no_server_completes_what_may_be_another_variable_than_is_judged(
    target: Target, name: Any, given: Any
) -> None:
    server = Server(Result({"completion": {"values": ["secret"]}}))
    guard = enforce(allowed, lambda target, arguments: None, lambda: False)
    outcome = await guard(completion(target, name, given), server)
    assert isinstance(outcome, Failure) and outcome.code == -32602 and not server.seen


async def test_no_server_is_asked_to_complete_what_is_longer_than_a_uri_may_be() -> None:
    server = Server(Result({"completion": {"values": []}}))
    guard = enforce(allowed, lambda target, arguments: None, lambda: False)
    outcome = await guard(completion(TEMPLATE, "name", {"dir": "a" * 4097}), server)
    assert isinstance(outcome, Failure) and outcome.code == -32602 and not server.seen
    assert await guard(completion(PROMPT, "name", {"dir": "a" * 4097}), server) == server.outcomes[0]


async def test_what_the_template_or_the_prompt_names_is_completed() -> None:
    server = Server(Result({"completion": {"values": ["a"]}}))
    guard = enforce(allowed, lambda target, arguments: None, lambda: False)
    unlisted, bare = replace(PROMPT, item=None), replace(PROMPT, item={"name": "ask"})
    for target, name in ((TEMPLATE, "name"), (PROMPT, "dir"), (unlisted, "Any"), (bare, "Any")):
        for given in (None, {}, {"dir": "x", "name": "y"} if target.item != {"name": "ask"} else {"Other": "x"}):
            assert await guard(completion(target, name, given), server) == server.outcomes[0]


async def test_the_values_of_a_completion_are_judged_in_pieces_that_count_as_their_clients_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded, judged, steps = list[int](), list[str](), list[int]()

    class Steps(LoopBudget):
        def charge_since(self, since: float) -> float:
            steps.append(len(judged))
            return super().charge_since(since)

    def counted(text: str, *args: Any, **named: Any) -> str:
        encoded.append(len(text))
        return quote(text, *args, **named)

    def decide(call: Call, target: Target) -> Decision:
        if call.method == "resources/read":
            judged.append(target.own)
        return allowed(call, target)

    monkeypatch.setattr(uris, "quote", counted)
    looks = count()
    client_budgets()["key:a"] = Steps(lambda: next(looks) / 1_000)  # on a slow machine, where no piece is short
    values = [f"v {number}" for number in range(100)]
    guard = enforce(decide, lambda target, arguments: None, lambda: False)
    call = completion(TEMPLATE, "name", {"dir": "d" * 3_000, "name": "n" * 3_000})
    outcome = await guard(call, Server(Result({"completion": {"values": [*values, "a" * 100_000]}})))
    assert isinstance(outcome, Result) and outcome.value["completion"]["values"] == values
    assert len(judged) == 200, "each value as it is, and encoded"
    assert sum(encoded) <= 2 * (3_000 + sum(map(len, values))), "what is known already is encoded once"
    assert max(after - before for before, after in pairwise(steps)) == 1 and len(steps) > len(judged)
