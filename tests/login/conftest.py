"""What the tests of logins share."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from login_bench import Bench, Clock
from small_authorization_server import AuthorizationServer, ProtectedServer, listening

from sluicegate.login.model import LoginSettings


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    at = AuthorizationServer()
    server = ProtectedServer(at=at)
    async with listening(at, server):
        here = Bench(tmp_path, at, server, Clock(time.time), LoginSettings("srv", server.mcp, server.mcp))
        here.logins = here.make()
        with anyio.fail_after(60 + int(os.environ.get("SLUICE_CRASH_ROUNDS", "0"))):
            yield here
        for logins, store in here.others:
            await logins.aclose()
            await store.close()
