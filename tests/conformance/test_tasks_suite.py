"""The ten `tasks-*` scenarios of the official suite: against our task server alone, then through Sluice.

They are of an extension, which the suite runs one by one and on demand only. In transparent mode Sluice is as that
server is: what a client may not have, it is refused in the server's own words.
"""

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conformance.run import name_of, reasons_of
from e2e.sluice_process import sluice
from peers.fleet import task_server
from peers.install import CONFORMANCE, NODE

SCENARIOS = [
    f"tasks-{name}"
    for name in (
        "lifecycle", "capability-negotiation", "wire-fields", "request-state-removal", "mrtr-input",
        "request-headers", "dispatch-and-envelope", "status-notifications", "required-task-error", "mrtr-composition",
    )
]  # fmt: skip
AT_ONCE = 4


@pytest.fixture(scope="module")
def url(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with task_server(tmp_path_factory.mktemp("tasks")) as url:
        yield url


def run(url: str, scenario: str, folder: Path) -> tuple[str, ...]:
    """Why it did not pass; nothing if it did."""
    out = folder / scenario
    command = [NODE, CONFORMANCE, "server", "--url", url, "--scenario", scenario, "--spec-version", "2026-07-28"]
    done = subprocess.run(
        [*command, "--force", "--output-dir", out], capture_output=True, text=True, timeout=120, check=False
    )
    found = [folder for folder in out.glob("server-*") if name_of(folder) == scenario]
    return reasons_of(found[0]) if found else (f"was not run: {done.stdout[-500:]}{done.stderr[-500:]}",)


def failures(url: str, folder: Path) -> dict[str, tuple[str, ...]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        reasons = pool.map(lambda scenario: run(url, scenario, folder), SCENARIOS)
        return {scenario: why for scenario, why in zip(SCENARIOS, reasons, strict=True) if why}


def test_the_task_server_alone_passes_every_scenario_about_tasks(url: str, tmp_path: Path) -> None:
    assert failures(url, tmp_path) == {}


def test_sluice_in_front_of_it_passes_every_scenario_about_tasks(url: str, tmp_path: Path) -> None:
    config = {"servers": {"tasks": {"url": url, "prefix": ""}}}
    with sluice(config, tmp_path) as process:
        assert failures(process.url, tmp_path) == {}
