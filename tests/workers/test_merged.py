"""Series of several workers: what is counted is added up and never falls, what is a state is told once."""

from prometheus_client.parser import text_string_to_metric_families

from sluicegate.app.partition import Partition
from sluicegate.metrics import Metrics
from sluicegate.metrics.merged import STATES, Merged
from sluicegate.metrics.scraped import TABLE


def worker(up: int, sessions: int, changes: int, waits: tuple[float, ...]) -> str:
    made = Metrics(version="1")
    made.watch(lambda: [("sluice_server_up", ("a",), up), ("sluice_sessions", (), sessions)])
    for _ in range(changes):
        made.definition_changed("a", "tool")
    for seconds in waits:
        made.waited("confirm", seconds)
    return made.scrape()()[0].decode()


def values(merged: Merged) -> dict[str, float]:
    families = text_string_to_metric_families(merged.render()[0].decode())
    return {f"{one.name}{sorted(one.labels.values())}": one.value for family in families for one in family.samples}


def test_the_series_of_one_are_its_own() -> None:
    merged, text = Merged(), worker(1, 3, 2, (1, 20))
    merged.take("w", text)
    assert merged.render()[0].decode() == text


def test_counts_are_added_and_states_are_the_worst() -> None:
    merged = Merged()
    merged.take(1, worker(1, 3, 2, (2,)))
    merged.take(2, worker(0, 4, 5, (2, 100)))
    found = values(merged)
    assert found["sluice_server_up['a']"] == 0 and found["sluice_sessions[]"] == 7
    assert found["sluice_tool_definition_changes_total['a', 'tool']"] == 7
    assert found["sluice_approval_wait_seconds_bucket['5.0', 'confirm']"] == 2
    assert found["sluice_approval_wait_seconds_count['confirm']"] == 3
    assert found["sluice_approval_wait_seconds_sum['confirm']"] == 104
    assert sum(name.startswith("sluice_build_info") for name in found) == 1


def test_what_somebody_counted_who_has_ended_stays_and_how_it_was_does_not() -> None:
    merged = Merged()
    for mark in range(3):  # one after the other has the same place
        merged.take(mark, worker(0, 5, 2, (1,)))
        merged.take("other", worker(1, 1, 1, ()))
        merged.end(mark)
        assert values(merged)["sluice_tool_definition_changes_total['a', 'tool']"] == 2 * (mark + 1) + 1
    found = values(merged)
    assert found["sluice_server_up['a']"] == 1 and found["sluice_sessions[]"] == 1
    assert found["sluice_approval_wait_seconds_count['confirm']"] == 3
    assert merged.workers == {"other"}


def test_every_state_that_is_named_is_a_gauge_of_ours_or_of_the_process() -> None:
    gauges = {name for name, asked in TABLE.items() if not asked.is_counter} | {"sluice_build_info"}
    assert {name for name in STATES if not name.startswith("process_")} <= gauges


def test_shares_of_all_are_the_whole() -> None:
    for count in range(1, 9):
        for amount in range(1, 40):
            shares = [Partition(index, count).of(amount) for index in range(count)]
            assert sum(shares) == amount and max(shares) - min(shares) <= 1
    assert [Partition(index, 2).has("key:a") for index in range(2)].count(True) == 1
