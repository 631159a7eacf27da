"""Every outcome is counted under words and names of ours, and nobody can make series without end."""

import math
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluicegate import metrics
from sluicegate.metrics import CHANGED_KINDS, MAX_LABEL_SETS, Metrics, Seconds
from sluicegate.metrics.scraped import TABLE
from sluicegate.protocol.model import (
    Call,
    Client,
    Decision,
    Failure,
    InputRequired,
    Outcome,
    Result,
    Target,
    Trail,
    Verdict,
    not_found,
    refuse,
)

CI = Client("key:ci")
ECHO = Target("github", "tool", "echo", "gh__echo", {"name": "echo"})
OK = Result({"content": []})


def called(target: Target | None = ECHO, method: str = "tools/call", client: Client = CI, deny: bool = False) -> Call:
    """A call as the outermost guard sees it: the target stands in the trail alone."""
    trail = Trail("t")
    if target is not None:
        trail.set_target(target)
        trail.add(Decision(Verdict.DENY if deny else Verdict.ALLOW, "row 1", "because"))
    return Call(client, method, {"name": target.public if target else "gh__nothing"}, trail=trail)


def fresh(**options: Any) -> Metrics:
    return Metrics(version="1.2.3", classify=lambda target: "write", piped={"github"}.__contains__, **options)


def series(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """The series' values by their label values, in the order of declaration."""
    metrics.fold()
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    return {tuple(sample.labels.values()): sample.value for sample in samples if sample.name == name}


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (OK, "ok"),
        (Result({"content": [], "isError": False}), "ok"),
        (InputRequired({}, "s"), "ok"),
        (Result({"content": [], "isError": True}), "tool_error"),
        (Result({"isError": True, "_meta": {"dev.sluice/reason": "invented"}}), "tool_error"),
        (Result({"isError": True, "_meta": {"dev.sluice/reason": "timeout"}}), "tool_error"),
        (Failure(-32603, "x", {"reason": "timeout"}), "protocol_error"),
        (Result({"isError": True, "_meta": "none"}), "tool_error"),
        (refuse("tools/call", "timeout", "too slow"), "timeout"),
        (refuse("prompts/get", "rate_limited", "too often"), "rate_limited"),
        (Failure(-32603, "broken"), "protocol_error"),
        (Failure(-32602, "bad", {"reason": "invented"}), "protocol_error"),
        (None, "cancelled"),
    ],
)
def test_every_outcome_has_its_word(outcome: Outcome | None, word: str) -> None:
    counted = fresh()
    counted.call(called(), outcome, 0.1)
    assert series(counted, "sluice_calls_total") == {("github", "echo", "tools/call", word): 1}
    assert series(counted, "sluice_client_calls_total") == {("key:ci", word): 1}


def test_hidden_and_unknown_look_alike_to_clients_but_not_to_operators() -> None:
    counted = fresh()
    hidden, unknown = called(deny=True), called(None)
    counted.call(hidden, not_found(hidden.method, hidden.params), 0.1)
    counted.call(unknown, not_found(unknown.method, unknown.params), 0.1)
    assert series(counted, "sluice_calls_total") == {
        ("github", "echo", "tools/call", "denied"): 1,
        ("_other", "_other", "tools/call", "unknown"): 1,
    }
    assert series(counted, "sluice_decisions_total") == {("deny", "github", "write"): 1}


def test_seconds_have_the_public_name_towards_clients_and_the_own_name_towards_servers() -> None:
    counted = fresh()
    counted.call(called(), Result({"isError": True}), 0.03)
    counted.server_call(replace(called(), target=ECHO), OK, 7)
    counted.server_call(called(None, "tools/list"), OK, 7)
    towards_clients = series(counted, "mcp_server_operation_duration_seconds_bucket")
    labels = ("tools/call", "execute_tool", "gh__echo", "", "tool_error", "", "tcp", "2026-07-28")
    assert towards_clients[(*labels, "0.02")] == 0 and towards_clients[(*labels, "0.05")] == 1
    labels = ("tools/call", "execute_tool", "echo", "", "", "", "pipe", "github")
    assert series(counted, "mcp_client_operation_duration_seconds_sum") == {labels: 7}


def test_buckets_count_what_took_no_longer_than_their_ends_whenever_they_are_folded() -> None:
    seconds = Seconds((0.1, 1, math.inf))
    for number in (0.1, 0.5, 7):
        seconds.observe(number)
    assert (seconds.counts, seconds.sum) == ([0, 0, 0], 0)
    seconds.fold()
    seconds.observe(0.25)
    seconds.fold()
    seconds.fold()
    assert (seconds.counts, seconds.sum) == ([1, 3, 4], 7.85)


def test_what_is_observed_does_not_pile_up_where_nobody_scrapes() -> None:
    counted = fresh()
    counted.call(called(), OK, 0.1)
    counted.lagged(0.001)
    samples = [sample for family in counted.registry.collect() for sample in family.samples]
    assert {sample.value for sample in samples if sample.name == "mcp_server_operation_duration_seconds_count"} == {1}


def test_prompts_and_codes_of_errors_are_attributes_and_codes_that_nobody_knows_are_other() -> None:
    counted = fresh()
    hello = Target("github", "prompt", "hello", "gh__hello", {"name": "hello"})
    for code in (-32602, 7, 8):
        counted.server_call(replace(called(hello, "prompts/get"), target=hello), Failure(code, "no"), 1)
    found = series(counted, "mcp_client_operation_duration_seconds_count")
    labels = ("prompts/get", "", "", "hello", "protocol_error")
    assert found == {(*labels, "-32602", "pipe", "github"): 1, (*labels, "_other", "pipe", "github"): 2}


def test_label_values_come_from_catalog_and_configuration_alone() -> None:
    counted = fresh()
    for number in range(100):
        counted.call(called(None), not_found("tools/call", {"name": "gh__nothing"}), 0.1)
        counted.call(called(Target("github", "tool", f"x{number}", f"gh__x{number}", None)), OK, 0.1)
        counted.call(called(Target("github", "res", f"x:{number}", f"gh+x:{number}", {}), "resources/read"), OK, 0.1)
        counted.call(called(method="tools/list", target=None, client=Client(f"jwt:https://i#{number}")), OK, 0.1)
    assert series(counted, "sluice_calls_total") == {
        ("_other", "_other", "tools/call", "unknown"): 100,
        ("github", "_other", "tools/call", "ok"): 100,
        ("github", "", "resources/read", "ok"): 100,
        ("", "", "tools/list", "ok"): 100,
    }
    clients = set(series(counted, "sluice_client_calls_total"))
    assert clients == {("key:ci", "unknown"), ("key:ci", "ok"), ("_other", "ok")}


def test_a_class_that_is_none_is_other() -> None:
    counted = Metrics(version="1", classify=lambda target: "anything")
    counted.call(called(), OK, 0.1)
    assert series(counted, "sluice_decisions_total") == {("allow", "github", "_other"): 1}


def test_labels_are_looked_up_anew_when_told() -> None:
    classes = iter(["read", "write"])
    counted = Metrics(version="1", classify=lambda target: next(classes))
    counted.call(called(), OK, 0.1)
    counted.call(called(), OK, 0.1)
    counted.forget()
    counted.call(called(), OK, 0.1)
    found = series(counted, "sluice_decisions_total")
    assert found == {("allow", "github", "read"): 2, ("allow", "github", "write"): 1}


def test_a_series_has_at_most_its_label_sets_and_the_rest_is_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_CACHED", MAX_LABEL_SETS // 2)
    counted = fresh()
    for number in range(MAX_LABEL_SETS + 10):
        counted.call(called(Target("github", "tool", f"t{number}", f"gh__t{number}", {})), OK, 0.1)
    counted.call(called(Target("github", "tool", "t1", "gh__t1", {})), OK, 0.1)
    found = series(counted, "sluice_calls_total")
    assert len(found) == MAX_LABEL_SETS + 1
    assert found["_other", "_other", "tools/call", "ok"] == 10
    assert found["github", "t1", "tools/call", "ok"] == 2


def test_what_is_configured_has_its_series_before_anything_happens() -> None:
    counted = fresh()
    counted.expect(["github", "linear"], ["key:ci", "local"], ["confirm"])
    calls = series(counted, "sluice_calls_total")
    assert calls["github", "_other", "tools/call", "ok"] == calls["linear", "_other", "tools/call", "timeout"] == 0
    assert series(counted, "sluice_client_calls_total")["local", "denied"] == 0
    decisions = series(counted, "sluice_decisions_total")
    assert len(decisions) == 2 * 3 * 3 and decisions["deny", "linear", "destroy"] == 0
    changes = series(counted, "sluice_tool_definition_changes_total")
    assert changes.keys() == {(server, kind) for server in ("github", "linear") for kind in CHANGED_KINDS}
    assert series(counted, "sluice_approval_wait_seconds_count") == {("confirm",): 0}
    counted.definition_changed("github", "tool")
    counted.call(called(), OK, 0.1)
    counted.expect(["github", "linear", "later"], ["key:ci"], [])
    assert series(counted, "sluice_tool_definition_changes_total")["github", "tool"] == 1
    assert series(counted, "sluice_client_calls_total")["key:ci", "ok"] == 1
    assert series(counted, "sluice_calls_total")["later", "_other", "tools/call", "ok"] == 0


def test_what_is_configured_takes_half_of_the_label_sets_of_a_series_at_most() -> None:
    counted = fresh()
    counted.expect([f"s{number}" for number in range(1_000)], [f"key:k{number}" for number in range(1_000)], [])
    for name in ("calls", "client_calls", "decisions", "tool_definition_changes"):
        assert len(series(counted, f"sluice_{name}_total")) == MAX_LABEL_SETS // 2


def test_what_is_asked_for_at_each_scrape() -> None:
    up = {"github": 1.0, "linear": 0.0}
    sampled = fresh()
    sampled.watch(lambda: [("sluice_server_up", (key,), value) for key, value in up.items()])
    sampled.watch(lambda: [("sluice_sessions", (), 3)])
    sampled.scrape()
    assert series(sampled, "sluice_server_up") == {("github",): 1, ("linear",): 0}
    assert series(sampled, "sluice_sessions") == {(): 3}
    del up["linear"]
    assert series(sampled, "sluice_server_up") == {("github",): 1, ("linear",): 0}, "as it was at the scrape"
    sampled.scrape()
    assert series(sampled, "sluice_server_up") == {("github",): 1}
    assert next(iter(series(sampled, "sluice_build_info")))[0] == "1.2.3"
    assert series(sampled, "process_open_fds")


def test_a_series_that_was_not_declared_is_a_bug() -> None:
    sampled = fresh()
    sampled.watch(lambda: [("sluice_surprises", (), 1)])
    with pytest.raises(KeyError):
        sampled.scrape()()


def test_every_series_of_ours_says_what_to_do_about_it() -> None:
    text, kind = fresh().scrape()()
    assert kind.startswith("text/plain")
    for family in text_string_to_metric_families(text.decode()):
        if family.name.startswith(("sluice_", "mcp_")):
            assert len(family.documentation) > 60
    assert all(len(asked.text) > 60 for asked in TABLE.values())
