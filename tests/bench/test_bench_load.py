"""The benchmark counts right answers only."""

import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from load import Call, Kind, make_call, message, run
from subjects import LOAD_CORE, Subject, fast_server

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pins cores")
KINDS = [
    Kind(f"{era}{suffix}", era, suffix) for era in ("legacy", "modern") for suffix in ("", "_sse", "_1k", "_1024k")
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with fast_server(tmp_path_factory.mktemp("server"), LOAD_CORE) as subject:
        yield subject


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=30) as client:
        yield client


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_call_is_proven_by_its_answer(server: Subject, client: httpx.Client, kind: Kind) -> None:
    assert make_call(kind, server, client).answered > 180


@pytest.mark.parametrize("kind", KINDS[::4], ids=lambda kind: kind.name)
def test_another_answer_ends_it(server: Subject, client: httpx.Client, kind: Kind) -> None:
    with pytest.raises(SystemExit, match="Method not found"):
        make_call(kind, replace(server, tool="none"), client)
    with pytest.raises(SystemExit, match="answered 200"):  # a right one, of another tool
        make_call(replace(kind, suffix=""), replace(server, tool="echo_1k"), client)


@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk")
def test_answers_that_are_too_short_end_it(server: Subject, client: httpx.Client, tmp_path: Path) -> None:
    call = make_call(KINDS[0], server, client)
    assert run(server, call, 4, 1, tmp_path, LOAD_CORE).rate > 0
    with pytest.raises(SystemExit, match="each were expected"):
        run(server, replace(call, answered=call.answered * 2), 4, 1, tmp_path, LOAD_CORE)


@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk")
def test_each_call_has_an_id_of_its_own_where_that_is_wanted(tmp_path: Path) -> None:
    ids: list[int] = []

    class Recorder(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            ids.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["id"])
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *about: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/mcp"
        call = Call(url, {}, json.dumps(message("tools/call", {}, 7), separators=(",", ":")), is_numbered=True)
        run(Subject(os.getpid(), url), call, 2, 1, tmp_path, LOAD_CORE)
        server.shutdown()
    assert len(ids) > 1 and len(set(ids)) == len(ids)
