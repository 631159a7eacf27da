"""A real Sluice on a disk that stands still, or whose syncs fail. `tests/chaos/shim.c` does what such a disk does."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from audit_sluice import KEY, META, VERSION, Sluice, start
from chaos.shim import HOLD, Shim

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
HEADERS = {"authorization": f"Bearer {KEY}", "accept": "application/json, text/event-stream",
           "mcp-method": "tools/list", **VERSION}  # fmt: skip


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    try:
        return Shim(tmp_path)
    except FileNotFoundError as error:
        pytest.skip(f"gcc is not here: {error}")


@pytest.fixture
def sluice(tmp_path: Path, shim: Shim) -> Iterator[Sluice]:
    found = start(tmp_path, environment=shim.environment)
    try:
        yield found
    finally:
        shim.set()
        found.process.kill()
        found.process.wait(30)


def test_while_a_sync_stands_still_others_are_served_and_its_call_waits(sluice: Sluice, shim: Shim) -> None:
    """No step of the event loop waits for it: it goes on only once all of them have their answers."""
    with ThreadPoolExecutor(1) as pool, httpx.Client(trust_env=False, timeout=30, headers=HEADERS) as client:
        shim.set(slow=HOLD)
        call = pool.submit(sluice.call, "rec__note", {"n": 1})
        give_up = time.monotonic() + 30
        while b'"type":"intent"' not in sluice.log.read_bytes():
            assert time.monotonic() < give_up
        for _ in range(100):
            assert client.post(f"http://127.0.0.1:{sluice.mcp}/mcp", json=LIST).json()["result"]["tools"]
        assert not call.done() and not sluice.seen()
        shim.set()
        assert "isError" not in call.result().json()["result"] and len(sluice.seen()) == 1
    sluice.stop()
    assert sluice.run("audit", "verify").returncode == 0


def test_a_failed_sync_refuses_its_call_until_a_new_segment_says_so(sluice: Sluice, shim: Shim) -> None:
    """What is in the file may not be on the disk: it is given up, though it can be read."""
    assert "isError" not in sluice.call("rec__note", {"n": 1}).json()["result"]
    shim.set(broken=1)
    for number in (2, 3):
        refused = sluice.call("rec__note", {"n": number}).json()["result"]
        assert refused["_meta"]["dev.sluice/reason"] == "audit_unavailable" and len(sluice.seen()) == 1
    sluice.wait("/readyz", 503)
    assert "input/output error" in sluice.get("/readyz").text.lower()
    shim.set()
    sluice.wait("/readyz", 200)
    assert "isError" not in sluice.call("rec__note", {"n": 4}).json()["result"] and len(sluice.seen()) == 2
    sluice.stop()
    done = sluice.run("audit", "verify")
    assert done.returncode == 0, done.stdout
    assert "input/output error" in sluice.log.read_text().partition("\n")[0].lower()
