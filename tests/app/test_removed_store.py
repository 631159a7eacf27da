"""`sluice.db` is taken away under a running Sluice: it says so, and does nothing that must happen only once."""

import sys
import time
from pathlib import Path

import httpx
import pytest
from e2e.desktop_clients import SERVER
from e2e.sluice_process import sluice


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is open stays there")
def test_a_removed_store_is_named_and_refuses_what_needs_it(tmp_path: Path) -> None:
    with sluice({"servers": {"one": SERVER}}, tmp_path) as process:
        database = tmp_path / "state" / "sluice.db"
        kept = database.rename(database.with_name("kept"))
        give_up = time.monotonic() + 30
        while (ready := process.get("/readyz"))[0] != 503:
            assert time.monotonic() < give_up
            time.sleep(0.1)
        assert "the store in state.dir cannot be used" in ready[1] and "sluice.db was removed" in ready[1]
        token = (tmp_path / "state" / "operator.token").read_text().strip()
        head = {"authorization": f"Bearer {token}"}
        listed = httpx.get(f"{process.admin}/api/v1/approvals", headers=head, timeout=20, trust_env=False)
        assert listed.status_code == 503, listed.text
        kept.rename(database)
        process.wait_ready()
        assert process.log().count("store cannot write") == 1
        assert "task crashed" not in process.log()
