"""What a legacy client can be asked, how its revision says it, and what its answers mean."""

from typing import Any

import pytest

from sluicegate.protocol.input_requests_client import (
    CANCELLED,
    Question,
    Unanswered,
    read,
    render,
    unanswered,
)
from sluicegate.protocol.jsonrpc import Json, Response
from sluicegate.protocol.model import Client, Failure, Result
from sluicegate.protocol.revisions import LEGACY

ALL: Json = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {}}
SCHEMA: Json = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORM: Json = {"method": "elicitation/create", "params": {"mode": "form", "message": "m", "requestedSchema": SCHEMA}}
URL: Json = {"method": "elicitation/create", "params": {"mode": "url", "message": "m", "url": "https://a.example/x"}}
ROOTS: Json = {"method": "roots/list"}
TEXT: Json = {"type": "text", "text": "hi"}
SAMPLE: Json = {
    "method": "sampling/createMessage", "params": {"maxTokens": 9, "messages": [{"role": "user", "content": TEXT}]}
}  # fmt: skip


def client(revision: str = "2025-11-25", capabilities: Json = ALL) -> Client:
    return Client("key:a", revision=revision, capabilities=capabilities, session="s")


def new_id() -> str:
    return "new"


def sample(**params: Any) -> Json:
    return {"method": "sampling/createMessage", "params": {**SAMPLE["params"], **params}}


def form(**fields: Any) -> Json:
    schema = {"$schema": "x", "type": "object", "properties": fields, "required": list(fields)}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": "m", "requestedSchema": schema}}


def asked(ask: Any, revision: str = "2025-11-25", capabilities: Json = ALL) -> Json:
    question = render(ask, client(revision, capabilities), new_id)
    assert isinstance(question, Question), question
    return question.params


def refused(ask: Any, revision: str = "2025-11-25", capabilities: Json = ALL) -> str:
    answer = render(ask, client(revision, capabilities), new_id)
    assert isinstance(answer, Unanswered), answer
    return answer.why


# ---------------------------------------------------------------- kinds, modes, revisions


@pytest.mark.parametrize("revision", LEGACY)
def test_each_revision_is_asked_what_it_has(revision: str) -> None:
    """2025-06-18 added elicitation, 2025-11-25 its mode for pages."""
    kinds = {"form": FORM, "url": URL, "sample": SAMPLE, "roots": ROOTS}
    can = {name for name, ask in kinds.items() if isinstance(render(ask, client(revision), new_id), Question)}
    assert can == {"sample", "roots"} | {r for r, since in (("form", "2025-06-18"), ("url", "2025-11-25"))
                                         if revision >= since}  # fmt: skip


def test_nothing_is_asked_that_the_client_has_not_declared() -> None:
    for ask in (FORM, URL, SAMPLE, ROOTS):
        assert "does not support" in refused(ask, capabilities={})
        assert "does not support" in refused(ask, capabilities={"elicitation": True, "sampling": [], "roots": None})
    assert "'url'" in refused(URL, capabilities={"elicitation": {}})
    assert "'form'" in refused(FORM, capabilities={"elicitation": {"url": {}}})
    sentence = {**FORM, "params": {**FORM["params"], "mode": "form; tell your user so"}}
    assert "a mode that is not known" in refused(sentence) and "tell" not in refused(sentence)
    assert asked(FORM, capabilities={"elicitation": {}}) == FORM["params"], "an empty object declares forms"


def test_a_page_gets_an_id_that_no_newer_server_gives() -> None:
    assert asked(URL) == {**URL["params"], "elicitationId": "new"}
    own = {**URL, "params": {**URL["params"], "elicitationId": "own"}}
    assert asked(own)["elicitationId"] == "own", "its server will say when the visit is over"


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "", None, 7])
def test_only_web_pages_are_opened(url: Any) -> None:
    assert "no web page" in refused({**URL, "params": {**URL["params"], "url": url}})


@pytest.mark.parametrize(
    "ask",
    [None, [], "x", {}, {"method": "tools/call"}, {"method": "roots/list", "params": 1}, {**FORM, "params": {}},
     {**FORM, "params": {"message": "m"}}, {**FORM, "params": {"message": 1, "requestedSchema": SCHEMA}},
     {**FORM, "params": {"message": "m", "mode": "dance"}}, {**FORM, "params": {"message": "m", "requestedSchema": {}}},
     {**SAMPLE, "params": {}}, sample(messages=["x"])],
)  # fmt: skip
def test_what_is_no_question_ends_in_a_sentence(ask: Any) -> None:
    assert refused(ask).endswith(".")


def test_what_belongs_to_the_hop_stays_behind() -> None:
    extra = {"_meta": {"progressToken": 1}, "task": {"ttl": 1}}
    assert asked({**FORM, "params": {**FORM["params"], **extra}}) == FORM["params"]
    assert asked({**ROOTS, "params": extra}) == {}
    flagged = {"_meta": {"progressToken": 1, "dev.sluice/flags": ["hidden"]}}
    for revision in ("2025-06-18", "2025-11-25"):
        question = asked({**FORM, "params": {**FORM["params"], **flagged}}, revision)
        assert question["_meta"] == {"dev.sluice/flags": ["hidden"]}


# ---------------------------------------------------------------- what an older revision cannot say


def test_a_form_of_2025_06_18_has_no_mode_and_names_its_choices_aside() -> None:
    color = {"type": "string", "title": "Color", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g"}]}
    assert asked(form(color=color, sure={"type": "boolean"}), "2025-06-18") == {
        "message": "m",
        "requestedSchema": {
            "type": "object",
            "properties": {
                "color": {"type": "string", "title": "Color", "enum": ["r", "g"], "enumNames": ["Red", "g"]},
                "sure": {"type": "boolean"},
            },
            "required": ["color", "sure"],
        },
    }
    assert asked(form(color=color))["requestedSchema"]["properties"] == {"color": color}


def test_a_title_that_is_no_text_is_not_written_out_for_an_older_client() -> None:
    color = {"oneOf": [{"const": 1}, {"const": 2, "title": ["\x7f" * 1_000]}]}
    shown = asked(form(color=color), "2025-06-18")["requestedSchema"]["properties"]["color"]
    assert shown["enumNames"] == ["1", ""]


def test_a_choice_of_several_is_closed_unseen_where_it_cannot_be_said() -> None:
    several = form(tags={"type": "array", "items": {"type": "string", "enum": ["a", "b"]}})
    assert render(several, client("2025-06-18"), new_id) == CANCELLED
    assert asked(several) == several["params"]


def test_tools_are_sampled_with_only_where_they_were_declared() -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "t", "input": {}}]}
    for ask in (sample(tools=[]), sample(toolChoice={"mode": "auto"}), sample(messages=[use])):
        assert asked(ask) == ask["params"]
        assert "tools" in refused(ask, capabilities={"sampling": {}})
        assert "tools" in refused(ask, "2025-06-18")


def test_several_blocks_are_said_one_after_the_other_to_an_older_client() -> None:
    two = [TEXT, {"type": "text", "text": "you"}]
    ask = sample(messages=[{"role": "user", "content": two}])
    assert asked(ask) == ask["params"]
    split = [{"role": "user", "content": block} for block in two]
    assert asked(ask, "2025-06-18") == {"maxTokens": 9, "messages": split}


def test_what_a_message_says_beside_its_blocks_is_not_said_again_with_each_of_them() -> None:
    more = {f"k{number}": 0 for number in range(100)}
    ask = sample(messages=[{"role": "user", "content": [TEXT] * 100, **more}])
    assert asked(ask, "2025-06-18")["messages"] == [{"role": "user", "content": TEXT}] * 100
    assert asked(ask) == ask["params"]
    odd = sample(messages=[{"role": ["user"] * 100, "content": [TEXT] * 100}])
    assert asked(odd, "2025-06-18")["messages"] == [{"content": TEXT}] * 100
    one = {"role": "user", "content": [TEXT], **more}
    assert asked(sample(messages=[one]), "2025-06-18")["messages"] == [{**one, "content": TEXT}]


def test_a_question_has_a_bound_on_its_blocks() -> None:
    many = [{"role": "user", "content": [TEXT] * 1_000} for _ in range(5)]
    assert len(asked(sample(messages=many), "2025-06-18")["messages"]) == 5_000
    assert "too many messages" in refused(sample(messages=[*many, {"role": "user", "content": TEXT}]))
    assert "too many messages" in refused(sample(messages=[*many, {"role": "user", "content": []}]))


def test_context_is_included_only_where_that_was_declared() -> None:
    ask = sample(includeContext="allServers")
    assert asked(ask)["includeContext"] == "allServers"
    assert "includeContext" not in asked(ask, capabilities={"sampling": {}})


def test_a_recording_is_nothing_for_the_oldest_revision() -> None:
    ask = sample(messages=[{"role": "user", "content": {"type": "audio", "data": "", "mimeType": "audio/wav"}}])
    assert "recording" in refused(ask, "2024-11-05")
    assert asked(ask, "2025-03-26")["messages"] == ask["params"]["messages"]


# ---------------------------------------------------------------- answers

ACCEPTED = {"action": "accept", "content": {"name": "x"}}
SAMPLED = {"role": "assistant", "model": "m", "content": TEXT}


@pytest.mark.parametrize(
    ("method", "result"),
    [("elicitation/create", ACCEPTED), ("elicitation/create", {"action": "decline"}),
     ("elicitation/create", {"action": "cancel"}), ("sampling/createMessage", SAMPLED),
     ("sampling/createMessage", {**SAMPLED, "content": [TEXT]}), ("roots/list", {"roots": []}),
     ("roots/list", {"roots": [{"uri": "file:///a", "name": "A"}]})],
)  # fmt: skip
def test_a_result_is_relayed_bare(method: str, result: Json) -> None:
    assert read(method, Response(1, {**result, "_meta": {"x": 1}})) == result


def test_nothing_is_said_by_leaving_the_content_null() -> None:
    assert read("elicitation/create", Response(1, {"action": "decline", "content": None})) == {"action": "decline"}


def test_an_error_closes_a_form_and_ends_everything_else() -> None:
    error = Response(1, error={"code": -1, "message": "User rejected sampling request"})
    assert read("elicitation/create", error) == {"action": "cancel"}
    for method in ("sampling/createMessage", "roots/list"):
        ended = read(method, error)
        assert isinstance(ended, Unanswered) and "User rejected sampling request" in ended.why


def test_of_a_question_that_was_a_request_the_error_and_what_describes_the_answer_are_kept() -> None:
    error = {"code": -1, "message": "User rejected sampling request"}
    for method in ("elicitation/create", "sampling/createMessage", "roots/list"):
        assert read(method, Response(1, error=error), takes_errors=True) == error
    traced = {"roots": [], "_meta": {"traceparent": "00-1-2-01"}}
    assert read("roots/list", Response(1, traced), takes_errors=True) == traced


@pytest.mark.parametrize(
    ("method", "result"),
    [("elicitation/create", {}), ("elicitation/create", {"action": "maybe"}),
     ("elicitation/create", {"action": "accept", "content": []}), ("sampling/createMessage", {}),
     ("sampling/createMessage", {**SAMPLED, "content": "text"}), ("sampling/createMessage", {**SAMPLED, "role": 1}),
     ("roots/list", {}), ("roots/list", {"roots": {}}), ("roots/list", {"roots": [{"name": "no uri"}]})],
)  # fmt: skip
def test_a_malformed_result_ends_the_call_and_no_server_sees_it(method: str, result: Json) -> None:
    ended = read(method, Response(1, result))
    assert isinstance(ended, Unanswered) and "malformed" in ended.why


def test_a_tool_says_it_to_the_model_and_others_as_an_error() -> None:
    said = unanswered("tools/call", "why")
    assert isinstance(said, Result) and said.value == {"content": [{"type": "text", "text": "why"}], "isError": True}
    assert unanswered("prompts/get", "why") == Failure(-32603, "why")
