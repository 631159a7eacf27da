"""Fixtures of this room."""

from pathlib import Path

import pytest
from scripted_servers import Child

from sluicegate.downstream import call_limits
from sluicegate.downstream.transport import process as processes
from sluicegate.telemetry import Backoff


@pytest.fixture
def process(tmp_path: Path) -> Child:
    return Child(tmp_path)


@pytest.fixture
def dialled_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that failed is dialled again after a moment, and not after a second."""
    monkeypatch.setattr(call_limits, "DEFAULT_BACKOFF", Backoff(first=0.05))


@pytest.fixture
def ended_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that does not end by itself is told to, and killed, after a moment."""
    monkeypatch.setattr(processes, "GRACE", 0.2)
