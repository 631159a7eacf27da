"""Questions of legacy servers: what may be declared and asked, and how questions and answers read on either side."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol import input_requests_client, input_requests_server, legacy_server, modern_server, tasks
from sluicegate.protocol.input_forms import refusal
from sluicegate.protocol.jsonrpc import Json, Request, Response
from sluicegate.protocol.legacy_client import Handshake, initialize
from sluicegate.protocol.model import MODERN, Call, Client, Failure

UI: Json = {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}
EVERYTHING: Json = {
    "elicitation": {"form": {}, "url": {}, "x": {}},
    "sampling": {"tools": {}, "context": {}, "y": 1},
    "roots": {"listChanged": True},
    "tasks": {"list": {}},
    "experimental": {"z": {}},
    "extensions": {**UI, "io.modelcontextprotocol/tasks": {}},
}
FORM: Json = {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}
URL: Json = {"mode": "url", "message": "m", "url": "https://x.test", "elicitationId": "e"}
SAMPLE: Json = {"messages": [], "maxTokens": 1}


def client(revision: str, capabilities: Json = EVERYTHING) -> Client:
    """As its edge makes it."""
    if revision < MODERN:
        settled = initialize({"protocolVersion": revision, "capabilities": capabilities})
        assert isinstance(settled, Handshake)
        capabilities = settled.capabilities
    return Client("key:a", revision=revision, capabilities=capabilities)


# ---------------------------------------------------------------- what is declared


@pytest.mark.parametrize(
    ("revision", "declared"),
    [
        ("2024-11-05", {"sampling": {}, "roots": {"listChanged": True}, "extensions": UI}),
        ("2025-03-26", {"sampling": {}, "roots": {"listChanged": True}, "extensions": UI}),
        ("2025-06-18", {"elicitation": {}, "sampling": {}, "roots": {"listChanged": True}, "extensions": UI}),
        (
            "2025-11-25",
            {
                "elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}},
                "roots": {"listChanged": True}, "extensions": UI,
            },
        ),
        (
            "2026-07-28",
            {
                "elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {},
                "extensions": UI,
            },
        ),
    ],
)  # fmt: skip
def test_a_legacy_server_is_told_what_the_clients_revision_has_and_can_be_carried(
    revision: str, declared: Json
) -> None:
    assert input_requests_server.for_legacy_server(client(revision)) == declared


@pytest.mark.parametrize(
    ("capabilities", "declared"),
    [
        ({}, {}),
        ({"elicitation": {}}, {"elicitation": {}}),
        ({"elicitation": {"url": {}}}, {"elicitation": {"url": {}}}),
        ({"elicitation": True, "sampling": [], "roots": None}, {}),
        ({"roots": {"listChanged": "yes"}}, {"roots": {}}),
        ({"extensions": {"x/y": {}}, "experimental": {"a": {}}}, {}),
    ],
)
def test_capabilities_that_are_odd_or_unknown_make_no_difference(capabilities: Json, declared: Json) -> None:
    assert input_requests_server.for_legacy_server(client("2025-11-25", capabilities)) == declared


def test_a_modern_server_is_told_a_modern_clients_capabilities_exactly_but_for_what_nobody_can_carry() -> None:
    exact: Json = {"elicitation": {"form": {}, "q": 1}, "vendor": {"z": {}}}
    assert input_requests_server.for_modern_server(client("2026-07-28", exact)) is exact
    known = {**EVERYTHING["extensions"], "x.test/other": {}}
    carried = {key: value for key, value in EVERYTHING.items() if key != "experimental"}
    assert input_requests_server.for_modern_server(client("2026-07-28", {**EVERYTHING, "extensions": known})) == carried


def test_a_modern_server_is_told_a_legacy_clients_capabilities_in_its_own_words() -> None:
    assert input_requests_server.for_modern_server(client("2025-11-25")) == {
        "elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {},
        "extensions": UI,
    }  # fmt: skip
    assert "elicitation" not in input_requests_server.for_modern_server(client("2025-03-26"))


@pytest.mark.parametrize(("declared", "may"), [({}, False), ({"extensions": UI}, False), ({"roots": {}}, True)])
def test_only_some_capabilities_let_a_server_ask(declared: Json, may: bool) -> None:
    assert input_requests_server.may_ask(declared) is may


# ---------------------------------------------------------------- what is asked


@pytest.mark.parametrize(
    ("method", "params", "declared", "code"),
    [
        ("elicitation/create", FORM, {"elicitation": {}}, None),
        ("elicitation/create", FORM, {"elicitation": {"form": {}}}, None),
        ("elicitation/create", FORM, {"elicitation": {"url": {}}}, -32602),
        ("elicitation/create", URL, {"elicitation": {}}, -32602),
        ("elicitation/create", URL, {"elicitation": {"url": {}}}, None),
        ("elicitation/create", FORM, {}, -32601),
        ("elicitation/create", {"message": "m"}, {"elicitation": {}}, -32602),
        ("elicitation/create", {**FORM, "mode": ["form"]}, {"elicitation": {}}, -32602),
        ("elicitation/create", {**URL, "url": 1}, {"elicitation": {"url": {}}}, -32602),
        ("sampling/createMessage", SAMPLE, {"sampling": {}}, None),
        ("sampling/createMessage", {**SAMPLE, "tools": []}, {"sampling": {}}, -32602),
        ("sampling/createMessage", {**SAMPLE, "toolChoice": {}}, {"sampling": {"tools": {}}}, None),
        ("sampling/createMessage", {"messages": "x"}, {"sampling": {}}, -32602),
        ("roots/list", {}, {"roots": {}}, None),
        ("roots/list", {}, {"sampling": {}}, -32601),
        ("tasks/get", {}, EVERYTHING, -32601),
        ("tools/list", {}, EVERYTHING, -32601),
    ],
)
def test_what_a_server_may_ask(method: str, params: Json, declared: Json, code: int | None) -> None:
    error = input_requests_server.objection(Request(1, method, params), declared)
    assert (None if error is None else error["code"]) == code


@pytest.mark.parametrize(
    ("method", "params", "revision", "entry"),
    [
        ("elicitation/create", FORM, "2026-07-28", {**FORM, "mode": "form"}),
        ("elicitation/create", URL, "2026-07-28", {"mode": "url", "message": "m", "url": "https://x.test"}),
        ("elicitation/create", URL, "2025-11-25", URL),
        (
            "sampling/createMessage", {**SAMPLE, "task": {"ttl": 1}, "_meta": {"progressToken": 1}}, "2026-07-28",
            SAMPLE,
        ),
        ("roots/list", {"_meta": {"progressToken": 1}}, "2026-07-28", None),
    ],
)  # fmt: skip
def test_a_question_in_the_middles_words(method: str, params: Json, revision: str, entry: Json | None) -> None:
    made = input_requests_server.entry(Request(1, method, params), client(revision))
    assert made == {"method": method, **({} if entry is None else {"params": entry})}


@pytest.mark.parametrize("data", [None, [], {"elicitations": []}, {"elicitations": [{"message": "m"}]},
                                  {"elicitations": [FORM]}, {"elicitations": "x"}])  # fmt: skip
def test_a_refusal_that_names_no_page_asks_for_none(data: Any) -> None:
    assert input_requests_server.pages({"code": -32042, "message": "m", "data": data}) is None


def test_a_refusal_that_names_pages_asks_for_each() -> None:
    pages = input_requests_server.pages(
        {"code": -32042, "message": "m", "data": {"elicitations": [URL, {**URL, "message": "2"}]}}
    )
    params = {"mode": "url", "message": "m", "url": "https://x.test"}
    assert pages == {
        "page1": {"method": "elicitation/create", "params": params},
        "page2": {"method": "elicitation/create", "params": {**params, "message": "2"}},
    }


# ---------------------------------------------------------------- what is answered

BLOCK: Json = {"type": "text", "text": "t"}


@pytest.mark.parametrize(
    ("method", "value", "told"),
    [
        ("elicitation/create", {"action": "accept", "content": {"a": "x", "b": 1, "c": True, "d": ["y"]}}, ...),
        ("elicitation/create", {"action": "decline"}, ...),
        ("elicitation/create", {"action": "cancel", "content": None}, {"action": "cancel"}),
        ("elicitation/create", {"action": "yes"}, None),
        ("elicitation/create", {}, None),
        ("elicitation/create", {"action": "accept", "content": []}, None),
        ("elicitation/create", {"action": "accept", "content": {"a": {}}}, None),
        ("elicitation/create", {"action": "accept", "content": {"a": [1]}}, None),
        ("elicitation/create", {"action": ["accept"]}, None),
        ("elicitation/create", None, None),
        ("elicitation/create", "accept", None),
        ("sampling/createMessage", {"role": "assistant", "model": "m", "content": BLOCK}, ...),
        ("sampling/createMessage", {"role": "assistant", "model": "m", "content": [BLOCK, BLOCK]}, ...),
        ("sampling/createMessage", {"role": "assistant", "content": BLOCK}, None),
        ("sampling/createMessage", {"role": "assistant", "model": "m", "content": []}, None),
        ("sampling/createMessage", {"role": "assistant", "model": "m", "content": "t"}, None),
        ("roots/list", {"roots": []}, ...),
        ("roots/list", {"roots": [{"uri": "file:///a"}]}, ...),
        ("roots/list", {"roots": [{"name": "a"}]}, None),
        ("roots/list", [], None),
    ],
)
def test_an_answer_as_the_server_expects_it(method: str, value: Any, told: Any) -> None:
    answer = input_requests_server.answer(Request("s1", method, {}), "k", value, "2025-11-25")
    if told is None:
        assert isinstance(answer, Failure) and answer.code == -32602 and "'k'" in answer.message
    else:
        assert answer == Response("s1", value if told is ... else told)


def test_an_old_server_takes_one_block_of_a_models_answer() -> None:
    request = Request(1, "sampling/createMessage", {})
    one = {"role": "assistant", "model": "m", "content": [BLOCK]}
    assert input_requests_server.answer(request, "k", one, "2025-06-18") == Response(1, {**one, "content": BLOCK})
    assert isinstance(
        input_requests_server.answer(request, "k", {**one, "content": [BLOCK, BLOCK]}, "2025-06-18"), Failure
    )


@pytest.mark.parametrize(("params", "given"), [({}, {}), ({"inputResponses": None}, {}),
                                               ({"inputResponses": {"a": 1}}, {"a": 1})])  # fmt: skip
def test_no_answers_are_no_mistake(params: Json, given: Json) -> None:
    assert input_requests_server.read_answers(params) == given


@pytest.mark.parametrize("value", [[], "x", 1, True])
def test_answers_of_another_form_are(value: Any) -> None:
    assert isinstance(input_requests_server.read_answers({"inputResponses": value}), Failure)


ANSWERED: Json = {"action": "accept", "content": {"a": 1}}


@pytest.mark.parametrize(
    ("responses", "are"),
    [({}, True), ({"a": ANSWERED, "b": {"roots": []}}, True), ({"a": {"action": "decline"}}, True), (None, False),
     ([], False), ({"a": 12345}, False), ({"a": ANSWERED, "b": None}, False), ({"extra": {}}, True)],
)  # fmt: skip
def test_what_can_be_answers_by_key(responses: Any, are: bool) -> None:
    assert input_requests_server.are_answers(responses) is are


def test_a_refusal_is_polite_where_there_is_a_form_for_it() -> None:
    assert input_requests_server.refusal("elicitation/create", 1, "why") == Response(1, {"action": "cancel"})
    assert input_requests_server.refusal("roots/list", 1, "why") == Response(
        1, error={"code": -32603, "message": "why"}
    )


TRACE: Json = {"traceparent": "00-1-2-01", "tracestate": "a=b", "baggage": "c=d"}


def test_traces_in_questions_pass_between_legacy_peers_and_what_belongs_to_the_hop_does_not() -> None:
    meta = {**TRACE, "progressToken": 1, "io.modelcontextprotocol/related-task": {"taskId": "t"}}
    request = Request(1, "roots/list", {"_meta": meta})
    assert input_requests_server.entry(request, client("2025-06-18")) == {
        "method": "roots/list",
        "params": {"_meta": TRACE},
    }
    assert input_requests_server.entry(request, client("2026-07-28")) == {"method": "roots/list"}


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
def test_an_error_of_a_legacy_client_is_an_error_to_its_legacy_server(method: str) -> None:
    error = refusal({"code": -1, "message": "no", "data": {"x": 1}})
    told = input_requests_server.answer(Request(7, method, {}), "k", error, "2025-11-25")
    assert told == Response(7, error={"code": -1, "message": "no", "data": {"x": 1}})
    assert isinstance(input_requests_server.answer(Request(7, method, {}), "k", dict(error), "2025-11-25"), Failure)
    assert refusal({"code": True}) == {"code": -32603, "message": "Error"}


@pytest.mark.parametrize(
    ("method", "params", "declared", "needed"),
    [
        ("roots/list", {}, {}, {"roots": {}}),
        ("roots/list", {}, {"roots": {}}, None),
        ("elicitation/create", {"message": "m", "requestedSchema": {}}, {}, {"elicitation": {"form": {}}}),
        ("elicitation/create", {"message": "m", "mode": "url", "url": "https://u.test"}, {"elicitation": {"form": {}}},
         {"elicitation": {"url": {}}}),
        ("elicitation/create", {"message": "m", "requestedSchema": {}}, {"elicitation": {}}, None),
        ("elicitation/create", {}, {}, None),
        ("sampling/createMessage", {"messages": []}, {}, {"sampling": {}}),
        ("sampling/createMessage", {"messages": [], "tools": []}, {"sampling": {}}, {"sampling": {"tools": {}}}),
        ("tasks/list", {}, {}, None),
    ],
)  # fmt: skip
def test_what_a_client_lacks_to_be_asked(method: str, params: Json, declared: Json, needed: Json | None) -> None:
    assert input_requests_server.missing(Request(1, method, params), client("2026-07-28", declared)) == needed


# ---------------------------------------------------------------- capability sets


PARTS = st.none() | st.text(max_size=2) | st.fixed_dictionaries(
    {}, optional={name: st.none() | st.dictionaries(st.text(max_size=2), st.integers(), max_size=2)
                  for name in ("form", "url", "tools", tasks.EXTENSION, "x")}
)  # fmt: skip
CLAIMED = st.fixed_dictionaries(
    {}, optional={name: PARTS for name in ("elicitation", "sampling", "roots", "extensions", "tasks", "experimental")}
)  # fmt: skip


@given(CLAIMED, st.sampled_from(["2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28"]))
def test_whatever_a_client_claims_there_are_few_capability_sets(claimed: Json, revision: str) -> None:
    who = client(revision, claimed)
    for carried in (input_requests_server.for_legacy_server(who), input_requests_server.for_modern_server(who)):
        words = input_requests_server.capability_set(carried).split()
        assert words == [word for word in ("form", "url", "sampling", "roots", "tasks") if word in words]
        listing = input_requests_server.listing(carried)
        assert listing == input_requests_server.listing(listing)
        assert input_requests_server.capability_set(listing).split() == words
        apps = {"extensions"} if "tasks" in words else set()
        assert set(listing) == {"elicitation" if word in ("form", "url") else word for word in words} - {"tasks"} | apps


@pytest.mark.parametrize(
    ("revision", "claimed", "legacy", "modern"),
    [
        ("2025-11-25", EVERYTHING, "form url sampling roots", "form url sampling roots"),
        ("2026-07-28", EVERYTHING, "form url sampling roots", "form url sampling roots tasks"),
        ("2025-06-18", EVERYTHING, "form sampling roots", "form sampling roots"),
        ("2024-11-05", EVERYTHING, "sampling roots", "sampling roots"),
        ("2025-11-25", {"elicitation": {}}, "form", "form"),
        ("2025-11-25", {"elicitation": {"url": {}}}, "url", "url"),
        ("2025-11-25", {"extensions": UI, "experimental": {"a": {}}, "tasks": {}}, "", ""),
    ],
)
def test_a_capability_set_is_of_what_the_server_is_told(revision: str, claimed: Json, legacy: str, modern: str) -> None:
    who = client(revision, claimed)
    assert input_requests_server.capability_set(input_requests_server.for_legacy_server(who)) == legacy
    assert input_requests_server.capability_set(input_requests_server.for_modern_server(who)) == modern


def test_what_a_client_writes_into_its_capabilities_makes_no_connection_of_its_own() -> None:
    def declared(*capabilities: Json) -> int:
        modern = (Client("p", revision="2026-07-28", capabilities=one) for one in capabilities)
        return len({json.dumps(input_requests_server.for_legacy_server(one), sort_keys=True) for one in modern})

    values = [{"n": number} for number in range(9)]
    assert declared(*({"elicitation": {"form": n}, "sampling": n, "roots": n, "experimental": n} for n in values)) == 1
    assert declared(*({"extensions": {f"x/{number}": {}}} for number in range(9))) == 1
    types = [{"mimeTypes": ["text/html;profile=mcp-app", f"x/{number}"]} for number in range(9)]
    assert declared(*({"extensions": {"io.modelcontextprotocol/ui": one}} for one in values + types)) == 2


@pytest.mark.parametrize("mode", [[], {}, "form", None])
def test_only_forms_and_pages_have_a_mode(mode: Any) -> None:
    client = Client("a", capabilities={"sampling": {}})
    ask = {"method": "sampling/createMessage", "params": {"mode": mode, "url": "x:1", "messages": []}}
    judged = input_requests_server.judged({"a": ask}, client, input_requests_server.NO_PAGES)
    assert judged == {"a": ask}


@pytest.mark.parametrize("length", [input_requests_server.MAX_KEY, input_requests_server.MAX_KEY + 1])
def test_the_name_of_a_question_has_a_bound(length: int) -> None:
    client, ask = Client("a", capabilities={"roots": {}}), {"method": "roots/list"}
    judged = input_requests_server.judged({"k" * length: ask}, client, input_requests_server.NO_PAGES)
    assert isinstance(judged, Failure) is (length > input_requests_server.MAX_KEY)


@pytest.mark.parametrize("message", [None, "", [], ["\x7f" * 1_000], {"a": 1}, 5, True])
def test_an_error_whose_message_is_no_text_says_nothing(message: Any) -> None:
    """Written out, JSON takes up to four times its bytes, in one step of the event loop."""
    error = {"code": -32000, "message": message}
    for era in ("2026-07-28", "2025-11-25"):
        call = Call(Client("key:a", revision=era), "tools/call", {"name": "t"})
        for dialect in (modern_server, legacy_server):
            assert dialect.failure(call, error).message == "Error"
    assert refusal(error) == {"code": -32000, "message": "Error"}
    assert input_requests_server.visits(error) == "Error"
    told = input_requests_client.read("roots/list", Response(1, error=error))
    assert isinstance(told, input_requests_client.Unanswered) and told.why.endswith(": Error")
