"""The official conformance suite: against the fixture server alone, then through Sluice in transparent mode.

Transparent mode is one server without prefix, so that the suite, which knows every fixture by its exact name, can be
run through Sluice unchanged. Sluice speaks to the server in the era of the client, and, forced by its config, in the
other one: what one era can say must survive the translation into the other. Every scored scenario must pass, but for
the tables below; an entry that passes fails the test, so that no table can go stale.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.run import REVISIONS, Scenario, run, table
from e2e.sluice_process import sluice
from peers.fleet import fixture_over_http

ASKS_OF_LEGACY_CLIENTS = {
    "tools-call-sampling",
    "tools-call-elicitation",
    "elicitation-sep1034-defaults",
    "elicitation-sep1330-enums",
}
SUBSCRIPTIONS_TO_ONE_RESOURCE = {"resources-subscribe", "resources-unsubscribe"}
ASKS_OF_LEGACY_SERVERS = {
    "server-stateless",  # one of its checks wants a tool that asks
    "input-required-result-basic-elicitation",
    "input-required-result-basic-list-roots",
    "input-required-result-basic-sampling",
    "input-required-result-capability-check",
    "input-required-result-missing-input-response",
    "input-required-result-multi-round",
    "input-required-result-multiple-input-requests",
    "input-required-result-non-tool-request",
    "input-required-result-request-state",
    "input-required-result-result-type",
    "input-required-result-tampered-state",
}
# (era towards the server, revision of the client) -> what is not relayed there yet
NOT_YET: dict[tuple[str, str], set[str]] = {
    ("auto", "2025-11-25"): ASKS_OF_LEGACY_CLIENTS | SUBSCRIPTIONS_TO_ONE_RESOURCE,
    ("auto", "2026-07-28"): set(),
    ("modern", "2025-11-25"): ASKS_OF_LEGACY_CLIENTS | SUBSCRIPTIONS_TO_ONE_RESOURCE,
    ("legacy", "2026-07-28"): ASKS_OF_LEGACY_SERVERS,
}


@pytest.fixture(scope="module")
def fixture_url(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with fixture_over_http(tmp_path_factory.mktemp("fixture")) as url:
        yield url


def scored(scenarios: list[Scenario]) -> list[Scenario]:
    return [scenario for scenario in scenarios if scenario.scored]


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_fixture_server_alone_passes_every_scored_scenario(fixture_url: str, revision: str, tmp_path: Path) -> None:
    scenarios = scored(run(fixture_url, revision, tmp_path))
    assert len(scenarios) == {"2025-11-25": 30, "2026-07-28": 37}[revision]
    failed = [scenario for scenario in scenarios if not scenario.passed]
    assert not failed, table(failed)


@pytest.mark.parametrize(("era", "revision"), NOT_YET)
def test_sluice_passes_every_scored_scenario_but_the_named_ones(
    fixture_url: str, era: str, revision: str, tmp_path: Path
) -> None:
    config = {"servers": {"fixture": {"url": fixture_url, "prefix": "", "unlisted": "forward", "era": era}}}
    with sluice(config, tmp_path) as process:
        scenarios = run(process.url, revision, tmp_path)
    print(table(scenarios))
    failed, expected = {s.name for s in scored(scenarios) if not s.passed}, NOT_YET[era, revision]
    assert failed == expected, f"new failures: {sorted(failed - expected)}; now passing: {sorted(expected - failed)}"
