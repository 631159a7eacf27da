"""The test bed without Sluice: every client driver against the fixture server. What fails here is no fault of ours."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.fleet import (
    DRIVERS,
    FIXTURE,
    MODERN_DRIVERS,
    Json,
    check,
    drive_all,
    everything_over_http,
    fixture_over_http,
    inspect,
    job_for,
    was_asked,
)


@pytest.fixture(scope="module")
def reports(peers: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Json]]:
    folder = tmp_path_factory.mktemp("fixture")
    with fixture_over_http(folder, "--page", "10") as url:
        over_http = drive_all(job_for({"url": url}))
    return {"http": over_http, "stdio": drive_all(job_for({"command": [*FIXTURE, "--page", "10"]}))}


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_client_gets_everything_from_the_fixture_server(
    reports: dict[str, dict[str, Json]], driver: str, transport: str
) -> None:
    check(reports[transport][driver], modern=driver in MODERN_DRIVERS)
    assert was_asked(reports[transport][driver]), reports[transport][driver]["errors"]


def test_all_clients_see_the_same_lists_whatever_their_page_size(reports: dict[str, dict[str, Json]]) -> None:
    for kind in ("prompts", "resources", "templates"):
        seen = [[name for page in report[kind] for name in page] for report in reports["stdio"].values()]
        assert all(names == seen[0] and names for names in seen), kind


@pytest.fixture
def fixture_url(peers: None, tmp_path: Path) -> Iterator[str]:
    with fixture_over_http(tmp_path) as url:
        yield url


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_lists_and_calls(fixture_url: str, tmp_path: Path, era: str) -> None:
    target = {"url": fixture_url}
    listed = inspect(target, tmp_path, "--method", "tools/list", era=era)
    assert "echo" in [tool["name"] for tool in listed["result"]["tools"]]
    call = ["--method", "tools/call", "--tool-name", "test_simple_text"]
    called = inspect(target, tmp_path, *call, era=era)
    assert called["result"]["content"][0]["text"] == "This is a simple text response for testing."


def test_the_reference_server_starts_on_a_port(peers: None, tmp_path: Path) -> None:
    with everything_over_http(tmp_path) as url:
        listed = inspect({"url": url}, tmp_path, "--method", "tools/list")
        assert "echo" in [tool["name"] for tool in listed["result"]["tools"]]
