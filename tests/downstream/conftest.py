"""Fixtures of this room."""

from pathlib import Path

import pytest
from scripted_servers import Child


@pytest.fixture
def process(tmp_path: Path) -> Child:
    return Child(tmp_path)
