"""What a balancer sees of a Sluice that stops: not ready first, while everything is served, then gone."""

import signal
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from e2e.wire import META, MODERN
from policy_bed import ACTS, Bed, bearer, bed, client_keys, recorder

ROWS = "p, role:authenticated, *, *, *, allow\n"
WORKERS: Sequence[Sequence[str]] = ([], ["--workers", "2"])


def call(client: httpx.Client, at: Bed) -> httpx.Response:
    head = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "bank__look", **bearer("ann")}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bank__look", "_meta": META}}
    accept = {"Accept": "application/json, text/event-stream"}
    return client.post(at.process.url, json=body, headers={**accept, **head}, timeout=20)


def is_ready(at: Bed) -> bool:
    return httpx.get(f"{at.process.admin}/readyz", timeout=20).status_code == 200


@pytest.mark.parametrize("arguments", WORKERS, ids=["one", "workers"])
def test_everything_is_served_until_balancers_know(tmp_path: Path, arguments: Sequence[str]) -> None:
    config = {"clients": {"keys": client_keys(ann=[])}, "drain_delay": "10m"}
    servers = {"bank": recorder(tmp_path, "bank", tools=["look"])}
    with bed(tmp_path, ROWS, servers, arguments=arguments, **config) as at, httpx.Client() as kept:
        before = call(kept, at)
        assert before.status_code == 200 and "connection" not in before.headers
        at.process.process.send_signal(signal.SIGTERM)
        at.until(lambda: not is_ready(at))
        # The worker that has the connection may not know yet.
        at.until(lambda: call(kept, at).headers.get("connection") == "close")
        for _ in range(3):  # each of them by a new connection
            last = call(kept, at)
            assert last.status_code == 200 and last.headers["connection"] == "close"
        at.process.process.send_signal(signal.SIGTERM)  # waits for nothing more
        at.process.process.wait(30)
        with pytest.raises(httpx.ConnectError):
            call(kept, at)
    assert {one["method"] for one in at.seen("bank")} <= ACTS


@pytest.mark.parametrize("arguments", WORKERS, ids=["one", "workers"])
def test_it_ends_by_itself_once_the_delay_is_over(tmp_path: Path, arguments: Sequence[str]) -> None:
    config = {"clients": {"keys": client_keys(ann=[])}, "drain_delay": "300ms"}
    with bed(tmp_path, ROWS, {"bank": recorder(tmp_path, "bank")}, arguments=arguments, **config) as at:
        at.process.process.send_signal(signal.SIGTERM)
        assert at.process.process.wait(60) == 0
