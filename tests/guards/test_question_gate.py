"""The gate for questions by itself: everything in which a question can come, and what the caller gets instead."""

from dataclasses import replace
from typing import Any

import pytest

from sluicegate.guards.name import _outwards
from sluicegate.guards.questions import judged
from sluicegate.protocol.elicitation_urls import OwnUrls, address
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import (
    ApprovalRef,
    Call,
    Client,
    Failure,
    InputRequired,
    Outcome,
    Result,
    Target,
)

TOOL = Target("git", "tool", "push", "g__push")
OWN = OwnUrls()
OWN.add("http://10.0.0.7:7411")
GOOD: Json = {"method": "elicitation/create", "params": {"mode": "url", "message": "m", "url": "https://x.test/"}}
BAD: Json = {"method": "elicitation/create", "params": {**GOOD["params"], "url": "http://10.0.0.7:7411/approve"}}


def judge(outcome: Outcome, method: str = "tools/call", revision: str = "2026-07-28", **capabilities: Any) -> Outcome:
    declared = capabilities or {"elicitation": {"form": {}, "url": {}}}
    client = Client("key:a", revision=revision, capabilities=declared)
    return judged(Call(client, method, {"name": "push"}, target=TOOL), outcome, OWN)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_one_bad_question_ends_the_call(revision: str) -> None:
    asked = InputRequired({"a": GOOD}, "s")
    assert judge(asked, revision=revision) == asked
    told = judge(InputRequired({"a": GOOD, "b": BAD}, "s"), revision=revision)
    assert isinstance(told, Result) and told.value["isError"] and "Sluice's own" in told.value["content"][0]["text"]
    assert isinstance(judge(InputRequired({"b": BAD}), "prompts/get", revision), Failure)


@pytest.mark.parametrize("ask", [None, "x", {}, {"method": []}, {"method": "roots/list", "params": []}, {"params": {}}])
def test_what_is_no_question_ends_it_too(ask: Any) -> None:
    told = judge(InputRequired({"a": ask}, "s"), roots={})
    assert isinstance(told, Result) and told.value["isError"]


@pytest.mark.parametrize("declared", [True, [], "form", None])
def test_a_capability_that_is_none_declares_nothing(declared: Any) -> None:
    for kind, ask in (("elicitation", GOOD), ("roots", {"method": "roots/list"})):
        told = judge(InputRequired({"a": ask}, "s"), **{kind: declared})
        assert isinstance(told, Failure) and told.code == -32021


def test_the_questions_of_a_task_are_judged() -> None:
    task = Result({"taskId": "t", "status": "input_required", "inputRequests": {"a": GOOD}})
    assert judge(task, "tasks/get") == task
    assert isinstance(judge(Result({**task.value, "inputRequests": {"a": BAD}}), "tasks/get"), Failure)
    many = Result({**task.value, "inputRequests": {str(number): GOOD for number in range(33)}})
    assert isinstance(judge(many, "tasks/get"), Failure)
    lacks = judge(task, "tasks/get", sampling={})
    assert isinstance(lacks, Failure) and lacks.code == -32021
    assert lacks.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", "2026-07-28"])
def test_the_context_of_a_client_is_asked_for_only_where_it_declared_that(revision: str) -> None:
    said = {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]}
    wanted = {"method": "sampling/createMessage", "params": {**said, "includeContext": "allServers"}}
    bare = {**wanted, "params": said}
    for declared, shown in (({}, bare if revision > "2025-06-18" else wanted), ({"context": {}}, wanted)):
        for kind in (InputRequired({"a": wanted}, "s"), Result({"taskId": "t", "inputRequests": {"a": wanted}})):
            told = judge(kind, "tasks/get", revision, sampling=declared)
            found = told.value["inputRequests"] if isinstance(told, Result) else getattr(told, "requests", told)
            assert found == {"a": shown}


def test_what_is_not_passed_on_is_logged_with_its_server(caplog: pytest.LogCaptureFixture) -> None:
    judge(InputRequired({"a": GOOD}))
    assert caplog.records == []
    judge(InputRequired({"a": BAD}))
    judged(Call(Client("key:a"), "prompts/get", {}), InputRequired({"a": None}), OWN)
    assert [record.message for record in caplog.records] == ["a server's question is not passed on"] * 2
    first, second = (vars(record) for record in caplog.records)
    assert first["server"] == "git" and "Sluice's own" in first["why"] and second["server"] == "" and second["why"]


def test_only_questions_are_judged() -> None:
    for outcome in (Result({"inputRequests": {"a": BAD}}), Failure(1, "m", {"elicitations": [BAD["params"]]})):
        assert judge(outcome) is outcome
    odd = Result({"inputRequests": []})
    assert judge(odd, "tasks/get") is odd
    withheld = Result({"inputRequests": {"a": GOOD}}, reason="denied")
    kept = judge(withheld, "tasks/get")
    assert isinstance(kept, Result) and kept.reason == "denied"


def test_the_pages_of_an_error_are_judged_and_have_no_schema() -> None:
    def asked(*pages: Json) -> Failure:
        return Failure(-32042, "visit", {"elicitations": list(pages), "other": 1})

    good = asked({**GOOD["params"], "elicitationId": "e", "requestedSchema": {"type": "object"}}, GOOD["params"])
    bare = asked({**GOOD["params"], "elicitationId": "e"}, GOOD["params"])
    assert judge(good, revision="2025-11-25") == bare
    for bad in (asked(GOOD["params"], BAD["params"]), asked(), asked({"mode": "form"}), Failure(-32042, "visit", None)):
        told = judge(bad)
        assert isinstance(told, Result) and told.value["isError"]
        assert isinstance(judge(bad, "prompts/get"), Failure)
    assert judge(asked()) == Result({"content": [{"type": "text", "text": "visit"}], "isError": True})
    assert judge(asked(), "prompts/get") == Failure(-32603, "visit")
    lacks = judge(good, sampling={})
    assert isinstance(lacks, Failure) and lacks.code == -32021


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("other", ["URL", "ur_l", "Mode", "MESSAGE", "elicitation_id", "RequestedSchema", "\uff55rl"])
def test_no_member_is_asked_under_another_spelling(other: str, revision: str) -> None:
    """Some clients read members in any case of letters: what they read was judged by nobody then."""
    for params in (GOOD["params"], {"message": "m", "requestedSchema": {}}):
        ask = {"method": "elicitation/create", "params": {**params, other: BAD["params"]["url"]}}
        told = judge(InputRequired({"a": ask}), revision=revision)
        assert isinstance(told, Result) and told.value["isError"]


@pytest.mark.parametrize("other", ["Messages", "TOOLS", "tool_choice"])
def test_a_model_is_asked_nothing_under_another_spelling(other: str) -> None:
    ask: Json = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1, "systemPrompt": "x"}}
    assert isinstance(judge(InputRequired({"a": ask}), sampling={}), InputRequired)
    ask["params"][other] = []
    told = judge(InputRequired({"a": ask}), sampling={})
    assert isinstance(told, Result) and told.value["isError"]


def test_a_question_has_a_method_and_params_alone() -> None:
    asked = InputRequired({"a": {**GOOD, "Method": "roots/list", "Params": {}}, "b": {"method": "roots/list", "x": 1}})
    told = judge(asked, elicitation={"url": {}}, roots={})
    assert told == InputRequired({"a": GOOD, "b": {"method": "roots/list"}})


def test_an_error_names_no_page_under_another_spelling() -> None:
    bad = BAD["params"]
    page = {**GOOD["params"], "elicitationId": "e", "title": "t"}
    data = {"elicitations": [page, "x", 5], "Elicitations": [bad], "other": 1}
    told = judge(Failure(-32042, "visit", data), revision="2025-11-25")
    assert told == Failure(-32042, "visit", {"elicitations": [{**GOOD["params"], "elicitationId": "e"}], "other": 1})
    asked = Failure(-32042, "visit", {"elicitations": [{**page, "URL": bad["url"]}]})
    assert isinstance(judge(asked, revision="2025-11-25"), Result)


def test_what_sluice_asks_itself_is_not_judged() -> None:
    own = InputRequired({"a": BAD}, None, approval_ref=ApprovalRef("apr_1", "d", "r", "p", key="k"))
    assert judge(own) is own


def test_the_page_of_sluices_own_login_is_not_judged_and_not_said_to_be_a_servers() -> None:
    """`login.legacy: error`: its page is at the gateway itself."""
    page = {**BAD["params"], "elicitationId": "e"}
    ours = Failure(-32042, "NOT EXECUTED", {"elicitations": [page], "reason": "login_required"}, "login_required")
    assert judge(ours, revision="2025-11-25") == ours
    call = Call(Client("key:a", revision="2025-11-25"), "tools/call", {"name": "g__push"})
    assert _outwards(call, call, ours, TOOL, None) == ours
    theirs = replace(ours, data={"elicitations": [{**page, "url": GOOD["params"]["url"]}]}, reason=None)
    shown = _outwards(call, call, theirs, TOOL, None)
    assert isinstance(shown, Failure) and shown.data["elicitations"][0]["message"] == "[git] m"


def test_blocks_of_a_model_are_of_one_type() -> None:
    said = {"role": "user", "content": {"type": "text", "text": "x", "resource": {"uri": "a:b"}}}
    ask = {"method": "sampling/createMessage", "params": {"messages": [said]}}
    told = judge(InputRequired({"a": ask}), sampling={})
    assert isinstance(told, InputRequired)
    assert told.requests["a"]["params"]["messages"] == [{"role": "user", "content": {"type": "text", "text": "x"}}]


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("http://10.0.0.7:7411/", True), ("https://10.0.0.7:7411", True), ("http://localhost:7411/x", True),
        ("http://[::1]:7411/", True), ("http://10.7:7411/", True), ("http://0xa000007:7411/", True),
        ("http://10.0.0.7/", False), ("http://x.test:7411/", False), ("https://7411.test/", False),
        ("http://10.0.0.7:74110/", False), ("javascript:7411", False),
    ],
)  # fmt: skip
def test_which_pages_are_sluices_own(url: str, is_own: bool) -> None:
    assert (url in OWN) is is_own


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("http://vm:7411/", True), ("https://VM.:7411/x", True), ("https://vm/", True), ("http://vm", True),
        ("http://vm:8080/", False), ("https://gate.test:8443/", True), ("https://gate.test/", False),
        ("http://[2001:db8::1]/", True), ("http://other/", False), ("http://localhost/", False),
        ("http://host.docker.internal/", False), ("http://host.docker.internal:7411/", True),
    ],
)  # fmt: skip
def test_pages_under_further_names_are_sluices_own(url: str, is_own: bool) -> None:
    own = OwnUrls(["vm", "gate.test:8443", "[2001:db8::1]", "localhost", "host.docker.internal"])
    own.add("http://127.0.0.1:7411")
    assert (url in own) is is_own


def test_a_host_has_the_length_that_a_name_may_have() -> None:
    assert address(f"https://{'a' * 253}/") == ("a" * 253, 443)
    assert address(f"https://{'a' * 254}/") is None
    assert address("https://a" + "\u0301\u0327" * 40_000 + "/") is None
    assert address(f"https://a/{'b' * 8200}") is None


@pytest.mark.parametrize(
    "url",
    ["https://gate\u3002test/", "https://ga\xadte.test/", "http://gate\uff61test", "https://ga\u200bte.test/",
     "https://gat\ufe00e.test/", "https://b\xfccher.test/"],
)  # fmt: skip
def test_a_browser_takes_other_letters_for_those_of_our_names(url: str) -> None:
    """It drops what is not seen, and knows further dots (UTS #46), and a name of other letters by its ASCII form."""
    assert url in OwnUrls(["gate.test", "xn--bcher-kva.test"])
    assert url not in OwnUrls(["gate.test:8443", "localhost"])


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("https://m\xfcnchen.de/login", ["gate.test"]), ("https://\u65e5\u672c.jp/", ["gate.test", "10.0.0.7"]),
        ("https://g\xe4te.test/", ["gate.test"]), ("http://10.0.0.8/", ["10.0.0.7"]),
        ("https://[2001:db8::5]/a", ["10.0.0.7", "[2001:db8::1]"]), ("https://10.0.0.7/", ["gate.test"]),
    ],
)  # fmt: skip
def test_other_names_and_addresses_are_not_ours(url: str, hosts: list[str]) -> None:
    assert url not in OwnUrls(hosts)


@pytest.mark.parametrize("url", ["http://0xa000007/", "http://10.7/", "https://167772167/", "http://[::ffff:a00:7]/",
                                 "http://10\u30020\uff610\u30027/"])  # fmt: skip
def test_an_address_is_ours_in_each_spelling(url: str) -> None:
    assert url in OwnUrls(["gate.test", "10.0.0.7"]) and url not in OwnUrls(["gate.test", "10.0.0.7:8443"])
    assert url not in OwnUrls(["gate.test"])
