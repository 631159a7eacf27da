"""What every test shares: asyncio is the event loop that Sluice runs on, and Hypothesis draws the same in every run."""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# How busy a machine is is no reason to fail, and what fails once fails again. Others are drawn with
# `--hypothesis-profile=default`.
settings.register_profile("calm", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calm")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where the time goes, in continuous integration."""
    if "CI" not in os.environ:
        return
    seconds: Counter[str] = Counter()
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.split("::")[0].rpartition("/")[0]] += report.duration
    terminalreporter.section("minutes of one worker, by folder")
    for folder, spent in seconds.most_common():
        terminalreporter.line(f"{spent / 60:6.1f}  {folder}")
