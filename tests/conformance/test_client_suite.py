"""The suite's scenarios for clients, with Sluice as the client: between the suite's mock server and client.py.

All that need no authorization, scored or not, in both revisions. A warning counts as not passed. None is excepted.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conformance.run import REVISIONS, reasons_of, scored_names
from peers.install import CONFORMANCE, NODE

CLIENT = Path(__file__).with_name("client.py")
# Added to the suite after its requirements were written down
UNSCORED = ("json-schema-2020-12-preservation",)


def names(revision: str) -> list[str]:
    return [name for name in (*scored_names(revision, "client"), *UNSCORED) if not name.startswith("auth/")]


def run(revision: str, name: str, folder: Path) -> tuple[str, ...]:
    """Why it did not pass: nothing if it did."""
    out = folder / name
    options = ["--scenario", name, "--spec-version", revision, "--timeout", "60000", "--output-dir", str(out)]
    command = [str(NODE), str(CONFORMANCE), "client", "--command", f"{sys.executable} {CLIENT}", *options]
    ours = {key: value for key, value in os.environ.items() if not key.startswith("SLUICE_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=ours)
    reasons = reasons_of(next(iter(out.glob("*")), None))
    return (*reasons, *([] if done.returncode == 0 else [done.stderr[-2000:]]))


@pytest.fixture(scope="module")
def reasons(peers: None, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[str, ...]]:
    """Of every scenario, several at a time; those that take the time run alone, at the end."""
    folder = tmp_path_factory.mktemp("clients")
    every = [(revision, name) for revision in REVISIONS for name in names(revision)]
    timed = [pair for pair in every if pair[1] == "sse-retry"]
    with ThreadPoolExecutor(2) as pool:
        others = [pair for pair in every if pair not in timed]
        found = dict(zip(others, pool.map(lambda pair: run(*pair, folder / pair[0]), others), strict=True))
    return found | {pair: run(*pair, folder / pair[0]) for pair in timed}


@pytest.mark.parametrize("revision", REVISIONS)
def test_sluice_passes_every_scenario_for_clients(
    reasons: dict[tuple[str, str], tuple[str, ...]], revision: str
) -> None:
    of_revision = {name: why for (dated, name), why in reasons.items() if dated == revision}
    assert len(of_revision) == {"2025-11-25": 5, "2026-07-28": 8}[revision], sorted(of_revision)
    assert {name: why for name, why in of_revision.items() if why} == {}
