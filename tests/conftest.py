"""What every test shares: asyncio is the event loop that Sluice runs on, and Hypothesis draws the same in every run."""

import pytest
from hypothesis import HealthCheck, settings

# How busy a machine is is no reason to fail, and what fails once fails again. Others are drawn with
# `--hypothesis-profile=default`.
settings.register_profile("calm", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calm")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
