"""Every place of a resource URI is rewritten, nothing else is, and nothing is copied or mutated in vain."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.catalog import uri_fields
from sluicegate.protocol.jsonrpc import dump

Json = dict[str, Any]

LINK = {"type": "resource_link", "uri": "memo:a", "name": "memo:a", "icons": [{"src": "memo:a"}], "_meta": {"uri": "m"}}
EMBEDDED = {"type": "resource", "resource": {"uri": "memo:a", "text": "memo:a"}, "annotations": {"uri": "memo:a"}}
TEXT = {"type": "text", "text": "memo:a", "uri": "memo:a"}
PUBLIC_LINK = {**LINK, "uri": "gh+memo:a"}
PUBLIC_EMBEDDED = {**EMBEDDED, "resource": {"uri": "gh+memo:a", "text": "memo:a"}}
TOOL_RESULT = {"type": "tool_result", "toolUseId": "1", "content": [TEXT, LINK], "structuredContent": LINK}
PUBLIC_TOOL_RESULT = {**TOOL_RESULT, "content": [TEXT, PUBLIC_LINK]}


def prefixed(uri: str) -> str:
    return f"gh+{uri}"


def sampling(content: Any) -> Json:
    return {"s": {"method": "sampling/createMessage", "params": {"messages": [{"role": "user", "content": content}]}}}


CHANGED: list[tuple[str, Callable[[Any, uri_fields.Change], Any], Any, Any]] = [
    ("app of a tool", lambda v, f: uri_fields.items("tools/list", v, f),
     {"name": "t", "_meta": {"ui": {"resourceUri": "ui://a", "visibility": ["app"]}, "ui/resourceUri": "ui://a"}},
     {"name": "t", "_meta": {"ui": {"resourceUri": "gh+ui://a", "visibility": ["app"]}, "ui/resourceUri": "gh+ui://a"}}),
    ("listed resource", lambda v, f: uri_fields.items("resources/list", v, f),
     {"uri": "memo:a", "name": "a"}, {"uri": "gh+memo:a", "name": "a"}),
    ("listed template", lambda v, f: uri_fields.items("resources/templates/list", v, f),
     {"uriTemplate": "memo:{a}", "uri": "x"}, {"uriTemplate": "gh+memo:{a}", "uri": "x"}),
    ("tool result", lambda v, f: uri_fields.result("tools/call", v, f),
     {"content": [TEXT, LINK, EMBEDDED], "structuredContent": LINK, "_meta": {"ui": {"resourceUri": "ui://a"}}},
     {"content": [TEXT, PUBLIC_LINK, PUBLIC_EMBEDDED], "structuredContent": LINK,
      "_meta": {"ui": {"resourceUri": "gh+ui://a"}}}),
    ("prompt", lambda v, f: uri_fields.result("prompts/get", v, f),
     {"messages": [{"role": "user", "content": TEXT}, {"role": "user", "content": EMBEDDED}]},
     {"messages": [{"role": "user", "content": TEXT}, {"role": "user", "content": PUBLIC_EMBEDDED}]}),
    ("read contents", lambda v, f: uri_fields.result("resources/read", v, f),
     {"contents": [{"uri": "memo:a", "text": "x"}, {"uri": "memo:b", "blob": ""}]},
     {"contents": [{"uri": "gh+memo:a", "text": "x"}, {"uri": "gh+memo:b", "blob": ""}]}),
    ("sampling, one block", uri_fields.asks, sampling(LINK), sampling(PUBLIC_LINK)),
    ("sampling, blocks and a tool result", uri_fields.asks,
     sampling([TEXT, TOOL_RESULT, EMBEDDED]), sampling([TEXT, PUBLIC_TOOL_RESULT, PUBLIC_EMBEDDED])),
    ("sampled answer", uri_fields.answers, {"s": {"role": "assistant", "content": [TOOL_RESULT]}},
     {"s": {"role": "assistant", "content": [PUBLIC_TOOL_RESULT]}}),
    ("error", uri_fields.error_data, {"uri": "memo:a", "x": LINK}, {"uri": "gh+memo:a", "x": LINK}),
]  # fmt: skip

UNCHANGED: list[tuple[str, Callable[[Any, uri_fields.Change], Any], Any]] = [
    ("text result", lambda v, f: uri_fields.result("tools/call", v, f),
     {"content": [TEXT], "structuredContent": {"uri": "memo:a", "content": [LINK]}, "_meta": {"uri": "memo:a"}}),
    ("tool result in a tool result", lambda v, f: uri_fields.result("tools/call", v, f), {"content": [TOOL_RESULT]}),
    ("tool without app", lambda v, f: uri_fields.items("tools/list", v, f), {"name": "memo:a", "uri": "memo:a"}),
    ("prompt item", lambda v, f: uri_fields.items("prompts/list", v, f), {"name": "memo:a", "uri": "memo:a"}),
    ("elicitation", uri_fields.asks,
     {"e": {"method": "elicitation/create", "params": {"messages": [LINK], "uri": "x"}}}),
    ("roots", uri_fields.asks, {"r": {"method": "roots/list"}}),
    ("form with a field called content", uri_fields.answers, {"e": {"action": "accept", "content": LINK}}),
    ("roots of the client", uri_fields.answers, {"r": {"roots": [{"uri": "file:///home"}]}}),
    ("error of another kind", uri_fields.error_data, {"elicitations": [{"url": "https://a"}]}),
    ("no error data", uri_fields.error_data, None),
    ("discover", lambda v, f: uri_fields.result("server/discover", v, f),
     {"uri": "memo:a", "contents": [{"uri": "x"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("rewrite", "before", "after"), [row[1:] for row in CHANGED], ids=[row[0] for row in CHANGED])
def test_every_place_is_rewritten_and_the_input_stays(rewrite: Any, before: Any, after: Any) -> None:
    kept = copy.deepcopy(before)
    assert rewrite(before, prefixed) == after
    assert before == kept
    assert rewrite(before, lambda uri: uri) is before
    assert rewrite(before, lambda uri: "".join(list(uri))) is before  # equal, though another object


@pytest.mark.parametrize(("rewrite", "value"), [row[1:] for row in UNCHANGED], ids=[row[0] for row in UNCHANGED])
def test_nothing_else_is_touched_or_copied(rewrite: Any, value: Any) -> None:
    assert rewrite(value, prefixed) is value


def test_a_result_without_a_uri_is_seen_as_one() -> None:
    plain = {"content": [{"type": "text", "text": "uri"}], "structuredContent": {"uris": ["memo:a"], "a": "uri"}}
    assert not uri_fields.may_hold(dump(plain))
    for name, _, before, _ in CHANGED:
        assert uri_fields.may_hold(dump(before)) or name in ("listed template", "filter of a listen"), "no results"


def test_what_does_not_change_is_shared() -> None:
    before = {"content": [TEXT, LINK], "structuredContent": {"a": 1}}
    after = uri_fields.result("tools/call", before, prefixed)
    assert after["content"][0] is TEXT
    assert after["content"][1]["icons"] is LINK["icons"]
    assert after["structuredContent"] is before["structuredContent"]


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
names = st.sampled_from(
    ["content", "contents", "messages", "type", "uri", "resource", "_meta", "ui", "resourceUri", "params", "method",
     "ref", "role", "notifications", "resourceSubscriptions", "uriTemplate", "ui/resourceUri"]
)  # fmt: skip
words = st.sampled_from(["resource_link", "resource", "tool_result", "text", "sampling/createMessage", "memo:a"])
shapes = st.recursive(
    scalars | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=25,
)
methods = st.sampled_from(
    ["tools/call", "prompts/get", "resources/read", "completion/complete", "subscriptions/listen", "tools/list",
     "resources/list", "resources/templates/list", "prompts/list"]
)  # fmt: skip


@settings(deadline=None)
@given(method=methods, value=st.dictionaries(names, shapes, max_size=5))
def test_whatever_a_peer_sends_nothing_breaks_or_is_mutated_and_identity_costs_no_copy(
    method: str, value: Json
) -> None:
    kept = copy.deepcopy(value)
    for table in (uri_fields.items, uri_fields.result):
        table(method, value, prefixed)
        assert table(method, value, lambda uri: uri) is value
    assert uri_fields.result(method, value, prefixed) is value or uri_fields.may_hold(dump(value))
    for rewrite in (uri_fields.asks, uri_fields.answers, uri_fields.error_data):
        rewrite(value, prefixed)
        assert rewrite(value, lambda uri: uri) is value
    assert value == kept
