"""HTTP+SSE as users have it: real clients, a real nginx that takes a path prefix away, Sluice, and a FastMCP server.

The server speaks nothing but HTTP+SSE and is configured by the address that it redirects from; the fixture server
beside it has everything that the clients' script wants. Both ways to say where Sluice is published are used.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from e2e.sluice_process import COMMAND, ROOT, Sluice, clean_environment, sluice
from peers.fleet import (
    DRIVERS,
    Json,
    check,
    drive_all,
    fixture_over_http,
    free_port,
    inspect,
    job_for,
    running,
    wait_for_port,
    was_asked,
)
from peers.install import MCP1
from peers.nginx import nginx

ASKER = [str(MCP1 / "python"), str(Path(__file__).parent / "sdk1_asker.py")]
KEY = "a key that is only used here"
BEARER = {"Authorization": f"Bearer {KEY}"}
CLIENTS: Json = {"keys": {"laptop": {"hash": f"sha256:{sha256(KEY.encode()).hexdigest()}"}}}


@dataclass(frozen=True, slots=True)
class Bed:
    process: Sluice
    folder: Path
    origin: str

    def target(self, prefix: str) -> Json:
        return {"url": f"{self.origin}{prefix}/sse", "sse": True, "headers": BEARER}


def location(path: str, process: Sluice, more: str = "") -> str:
    """As little as somebody may write who forgets half of it: buffering, Host and HTTP/1.0 are nginx's defaults."""
    return f"location {path} {{ proxy_pass {process.url.removesuffix('/mcp')}/; {more} }}"


@contextmanager
def older_server(folder: Path) -> Iterator[str]:
    port, log = free_port(), folder / "asker.log"
    with running([*ASKER, str(folder / "journal"), str(port), "sse"], log, stdout=subprocess.DEVNULL) as process:
        wait_for_port(port, process, log)
        yield f"http://127.0.0.1:{port}/sse/"


@pytest.fixture(scope="module")
def bed(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("sse")
    with older_server(folder) as older, fixture_over_http(folder, "--name", "web", "--page", "7") as web:
        servers: Json = {"older": {"url": older}, "web": {"url": web, "pin": "warn"}}
        settings: Json = {"servers": servers, "clients": CLIENTS}
        told: Json = {"listen": {"trusted_proxies": ["127.0.0.1"]}}
        public: Json = {"listen": {"public_url": "https://mcp.example.com/public/mcp"}}
        (other := folder / "other").mkdir()
        with sluice(settings | told, folder) as process, sluice(settings | public, other) as published:
            locations = [
                location("/tools/", process, "proxy_set_header X-Forwarded-Prefix /tools;"),
                location("/public/", published),
            ]
            with nginx("\n".join(locations), folder) as origin:
                yield Bed(process, folder, origin)


@pytest.fixture(scope="module")
def reports(bed: Bed) -> dict[str, Json]:
    further = {"calls": [["older__greet", {"who": "Ada"}], ["older__two_rounds", {}], ["older__roots", {}]]}
    return drive_all(job_for(bed.target("/tools"), "web__", "web+") | further)


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_client_gets_everything_over_sse_behind_nginx(reports: dict[str, Json], driver: str) -> None:
    check(reports[driver], modern=False)  # also those that would like to speak the newer era
    assert was_asked(reports[driver]), reports[driver]["errors"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_server_behind_sse_asks_the_client_whose_call_it_is(reports: dict[str, Json], driver: str) -> None:
    greeting, rounds, roots = (answer["value"] for answer in reports[driver]["calls"])
    assert (greeting, rounds, roots) == ("Ada: accept Ada", "Ada Ada", "file:///home/ada")


def test_the_server_was_found_out_and_its_redirect_followed(bed: Bed, reports: dict[str, Json]) -> None:
    command = [*COMMAND, "servers", "-c", str(bed.process.config), "--json"]
    done = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, check=True, timeout=60)
    told = {server["key"]: server for server in json.loads(done.stdout)["servers"]}
    assert (told["older"]["transport"], told["older"]["eras"]) == ("sse", ["legacy"])
    assert (told["web"]["transport"], told["web"]["eras"]) == ("http", ["modern"])
    assert "Traceback" not in bed.process.log()


@pytest.mark.parametrize("prefix", ["/tools", "/public"], ids=["told by nginx", "told by public_url"])
def test_the_inspector_lists_and_calls_over_sse(bed: Bed, prefix: str) -> None:
    listed = inspect(bed.target(prefix), bed.folder, "--method", "tools/list")
    assert {"web__echo", "older__greet"} <= {tool["name"] for tool in listed["result"]["tools"]}
    call = ["--method", "tools/call", "--tool-name", "web__echo", "--tool-args-json", '{"message": "ok"}']
    called = inspect(bed.target(prefix), bed.folder, *call)
    assert json.loads(called["result"]["content"][0]["text"])["arguments"] == {"message": "ok"}


def test_a_stream_passes_a_buffering_proxy_at_once_and_ends_when_the_client_goes(bed: Bed) -> None:
    """nginx buffers unless it is told not to: without X-Accel-Buffering the first event would never come."""
    with httpx.Client(headers=BEARER, timeout=30, trust_env=False) as client:
        with client.stream("GET", f"{bed.origin}/tools/sse") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: endpoint"
            endpoint = next(lines).removeprefix("data: ")
            assert endpoint.startswith("/tools/messages?session_id=")
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            assert client.post(f"{bed.origin}{endpoint}", json=ping).status_code == 202
            assert client.post(f"{bed.origin}{endpoint}x", json=ping).status_code == 404
            no_key = httpx.post(f"{bed.origin}{endpoint}", json=ping, timeout=30, trust_env=False)
            assert no_key.status_code == 401
        give_up = time.monotonic() + 30
        while client.post(f"{bed.origin}{endpoint}", json=ping).status_code != 404:
            assert time.monotonic() < give_up
