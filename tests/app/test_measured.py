"""What `sluice servers` shows is found without holding up calls."""

import threading
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from sluicegate import config
from sluicegate.app import core


async def test_the_memory_of_processes_is_looked_up_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def memory(pids: Iterable[int]) -> int:
        asked.append(threading.get_ident())
        return 7

    monkeypatch.setattr(core, "memory", memory)
    servers = {"a": {"command": "nowhere", "lazy": True}, "b": {"command": "nowhere", "lazy": True}}
    made = config.make({"policy": {"use": "open"}, "servers": servers, "state": {"dir": "state"}}, tmp_path)
    with anyio.fail_after(30):
        async with core.core(made, "stdio", tmp_path / "sluice.yaml") as inner:
            rows = await inner.measured()
            inner.describe()
    assert [(row["key"], row["memory"]) for row in rows] == [("a", 7), ("b", 7)]
    assert len(asked) == 2 and threading.get_ident() not in asked
