"""What every test shares: asyncio is the event loop that Sluice runs on."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
