"""deploy/fleet/nginx.conf in url of three real replicas."""

import signal
from pathlib import Path

import httpx
from fleet_stage import Session, forwarded, staged
from peers.postgres import postgres


def test_the_balancer_keeps_sessions_where_they_are_and_hides_what_is_no_clients(tmp_path: Path) -> None:
    with postgres("fsync=off") as cluster, staged(tmp_path, cluster.url) as (replicas, url):
        beds = [one.bed for one in replicas if one.bed is not None]
        sessions = [Session(url, f"c{number}") for number in range(6)]
        for session in sessions * 2:
            assert "isError" not in session.call(url, "bank__look").json()["result"]
        assert [forwarded(one) for one in beds] == [{}, {}, {}]
        origin = url.removesuffix("/mcp")
        for path in ("/api/v1/approvals", "/metrics", "/readyz", "/console", "/mcpx"):
            assert httpx.get(origin + path, timeout=20).status_code == 404
        dead = sessions[0].id.partition(".")[0]
        replicas[int(dead[1:])].stop(signal.SIGKILL)
        for session in sessions:
            answer = session.call(url, "bank__look")
            assert answer.status_code == (404 if session.id.startswith(dead) else 200), answer.text
        assert "isError" not in Session(url, "c0").call(url, "bank__look").json()["result"]
