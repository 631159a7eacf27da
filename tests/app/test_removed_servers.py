"""Servers that were removed: calls that began before find them, and memory does not grow with every reload."""

import gc
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from waiting import until

from sluicegate import config
from sluicegate.app.core import core
from sluicegate.app.server_control import MAX_REMOVED
from sluicegate.config import Config
from sluicegate.downstream.server import DownstreamServer

pytestmark = pytest.mark.anyio
RELOADS = 3 * MAX_REMOVED


def config_of(folder: Path, *keys: str) -> Config:
    servers = {key: {"url": "http://127.0.0.1:9/mcp", "lazy": True} for key in keys}
    return config.make({"policy": {"use": "personal"}, "servers": servers, "state": {"dir": str(folder / "state")},
                        "audit": {"enabled": False}}, folder)  # fmt: skip


def alive() -> int:
    gc.collect()
    return sum(isinstance(one, DownstreamServer) for one in gc.get_objects())


async def test_servers_that_came_and_went_leave_memory_after_many_reloads(tmp_path: Path) -> None:
    async with core(config_of(tmp_path, "stays"), "stdio") as inner:
        control = inner.behind.control
        others = alive() - 1
        for number in range(RELOADS):
            control.take(config_of(tmp_path, "stays", f"s{number}"))
            await anyio.lowlevel.checkpoint()
        newest = f"s{RELOADS - 2}"
        assert newest not in control.servers and control.servers[newest].status == "down"
        await until(lambda: alive() - others <= MAX_REMOVED + 4)  # those that are about to end have a task each
        tables = control.tables
        assert len(tables.rewriting) == len(tables.inspection) <= MAX_REMOVED + 4
        assert {"stays", newest, f"s{RELOADS - 1}"} <= tables.rewriting.keys()
        with pytest.raises(KeyError):
            control.servers["s0"]


async def test_all_servers_that_one_reload_removes_are_found_by_calls_that_began_before(tmp_path: Path) -> None:
    many = [f"s{number}" for number in range(MAX_REMOVED + 10)]
    async with core(config_of(tmp_path, *many), "stdio") as inner:
        control = inner.behind.control
        control.take(config_of(tmp_path, "other"))
        assert list(control.servers) == ["other"]
        assert all(control.servers[key].status == "down" and key in control.tables.inspection for key in many)
