"""The official conformance suite: against the fixture server alone, then through Sluice in transparent mode.

Transparent mode is one server without prefix, so that the suite, which knows every fixture by its exact name, can be
run through Sluice unchanged. Sluice speaks to the server in the era of the client, and, forced by its config, in the
other one: what one era can say must survive the translation into the other. Every scenario must pass, but for the
table below; an entry that passes fails the test, so that no table can go stale.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.run import REVISIONS, WITHOUT_SET, Scenario, run, table
from e2e.sluice_process import sluice
from peers.fleet import fixture_over_http

# Not scored: younger than the requirement sets, or pending there. What is an extension has tests of its own.
BEYOND: dict[str, set[str]] = {
    "2025-06-18": set(),
    "2025-11-25": {"json-schema-2020-12", "server-session-lifecycle", "server-sse-polling"},
    "2026-07-28": {"json-schema-2020-12", "http-header-validation", "http-custom-header-server-validation"},
}
COUNTS = {"2025-06-18": 27, "2025-11-25": 30 + 3, "2026-07-28": 37 + 3}
# These two look for a question under the key `user_name`, and answer under it. A legacy server's questions are requests
# with ids, no keys: under which key they reach a modern client is Sluice's choice, and `user_name` is said nowhere.
KEYS_OF_QUESTIONS = {"input-required-result-basic-elicitation", "input-required-result-ignore-extra-params"}
# (era towards the server, revision of the client) -> what does not pass there
NOT_YET: dict[tuple[str, str], set[str]] = {
    ("auto", "2025-06-18"): set(),
    ("auto", "2025-11-25"): set(),
    ("auto", "2026-07-28"): set(),
    ("modern", "2025-11-25"): set(),
    ("legacy", "2026-07-28"): KEYS_OF_QUESTIONS,
}


@pytest.fixture(scope="module")
def fixture_url(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with fixture_over_http(tmp_path_factory.mktemp("fixture"), "--resumable") as url:
        yield url


def wanted(scenarios: list[Scenario], revision: str) -> list[Scenario]:
    """What has to pass; all of it was run."""
    chosen = [scenario for scenario in scenarios if scenario.scored or scenario.name in BEYOND[revision]]
    assert len(chosen) == COUNTS[revision], table(scenarios)
    return chosen


@pytest.mark.parametrize("revision", WITHOUT_SET + REVISIONS)
def test_the_fixture_server_alone_passes_every_scenario(fixture_url: str, revision: str, tmp_path: Path) -> None:
    scenarios = wanted(run(fixture_url, revision, tmp_path), revision)
    failed = [scenario for scenario in scenarios if not scenario.passed]
    assert not failed, table(failed)


@pytest.mark.parametrize(("era", "revision"), NOT_YET)
def test_sluice_passes_every_scenario_but_the_named_ones(
    fixture_url: str, era: str, revision: str, tmp_path: Path
) -> None:
    unlisted = "refuse" if era == "auto" else "forward"  # the fixture lists every tool that the suite calls
    config = {"servers": {"fixture": {"url": fixture_url, "prefix": "", "unlisted": unlisted, "era": era}}}
    with sluice(config, tmp_path, watched=True) as process:
        scenarios = run(process.url, revision, tmp_path)
    print(table(scenarios))
    failed = {scenario.name for scenario in wanted(scenarios, revision) if not scenario.passed}
    expected = NOT_YET[era, revision]
    assert failed == expected, f"new failures: {sorted(failed - expected)}; now passing: {sorted(expected - failed)}"
