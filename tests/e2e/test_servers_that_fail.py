"""Servers that are not there, hang, crash or are many pages long: the others go on, and Sluice ends when it is told."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.sluice_process import Sluice, sluice
from peers.fleet import FIXTURE, fixture_over_http, free_port
from waiting import until_so

Json = dict[str, Any]
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
HANGS: Json = {"command": "sleep", "args": ["1000"], "required": False}


def ask(process: Sluice, method: str, patience: float = 30, /, **params: Any) -> Json:
    """One modern request: the whole answer."""
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": method,
    }
    if name := params.get("name") or params.get("uri"):
        headers["Mcp-Name"] = name
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params | {"_meta": META}}
    answer = httpx.post(process.url, json=body, headers=headers, timeout=patience)
    if answer.headers["Content-Type"].startswith("text/event-stream"):
        return dict(json.loads(answer.text.rsplit("data:", 1)[1]))
    return dict(answer.json())


def tools(process: Sluice) -> set[str]:
    return {tool["name"] for tool in ask(process, "tools/list")["result"]["tools"]}


@contextmanager
def sluice_in_front_of(folder: Path, **servers: Json) -> Iterator[Sluice]:
    with sluice({"servers": servers}, folder) as process:
        yield process


def test_a_server_that_hangs_and_one_that_is_not_there_delay_nobody(peers: None, tmp_path: Path) -> None:
    with fixture_over_http(tmp_path) as url:
        with sluice_in_front_of(
            tmp_path,
            good={"url": url},
            hangs=HANGS | {"start_timeout": "1h"},  # whoever waits for it fails here
            absent={"url": f"http://127.0.0.1:{free_port()}/mcp", "required": False},
            nothing={"command": "no-such-program-anywhere", "required": False},
            dies={"command": "false", "required": False},
            babbles={"command": "yes", "required": False},
        ) as process:
            assert "good__echo" in tools(process)
            called = ask(process, "tools/call", name="good__echo", arguments={"a": 1})
            assert called["result"]["structuredContent"]["arguments"] == {"a": 1}


def test_a_stdio_server_that_crashes_in_a_call_is_started_again(peers: None, tmp_path: Path) -> None:
    pipe = {"command": FIXTURE[0], "args": FIXTURE[1:]}
    with sluice_in_front_of(tmp_path, pipe=pipe) as process:
        first = ask(process, "tools/call", name="pipe__echo", arguments={})["result"]
        crashed = ask(process, "tools/call", name="pipe__crash", arguments={})["result"]
        # not executed cannot be proven, so it is never sent again
        assert crashed["isError"] and crashed["_meta"]["dev.sluice/reason"] == "outcome_unknown", crashed
        again = until_answered(process, "pipe__echo")
        assert again["structuredContent"]["process"] != first["structuredContent"]["process"]


def until_answered(process: Sluice, name: str, seconds: float = 60) -> Json:
    """A server that is being started again has no signal that a client could wait for: call until it answers."""
    give_up = time.monotonic() + seconds
    while True:
        result: Json = ask(process, "tools/call", name=name, arguments={})["result"]
        if not result.get("isError") or time.monotonic() > give_up:
            assert not result.get("isError"), result
            return result
        time.sleep(0.1)


def test_an_http_server_that_dies_in_a_call_and_comes_back_is_used_again(peers: None, tmp_path: Path) -> None:
    port = free_port()
    web = {"url": f"http://127.0.0.1:{port}/mcp"}
    with fixture_over_http(tmp_path, port=port):
        with sluice_in_front_of(tmp_path, web=web) as process:
            before = ask(process, "tools/call", name="web__echo", arguments={})["result"]
            crashed = ask(process, "tools/call", name="web__crash", arguments={})["result"]
            assert crashed["isError"] and crashed["_meta"]["dev.sluice/reason"] == "outcome_unknown", crashed
            gone = ask(process, "tools/call", name="web__echo", arguments={})["result"]
            assert gone["isError"] and gone["_meta"]["dev.sluice/reason"] == "server_unavailable", gone
            with fixture_over_http(tmp_path, port=port):
                after = until_answered(process, "web__echo")
                assert after["structuredContent"]["process"] != before["structuredContent"]["process"]


def test_a_call_to_a_server_that_was_never_there_says_so(tmp_path: Path) -> None:
    web = {"url": f"http://127.0.0.1:{free_port()}/mcp", "required": False}
    with sluice_in_front_of(tmp_path, web=web) as process:
        gone = ask(process, "tools/call", name="web__echo", arguments={})["result"]
        assert gone["isError"] and gone["_meta"]["dev.sluice/reason"] == "server_unavailable", gone
        assert ask(process, "prompts/get", name="web__p")["error"]["data"] == {"reason": "server_unavailable"}
        assert ask(process, "tools/call", name="nowhere__echo")["error"]["code"] == -32602


def test_a_call_in_flight_is_finished_before_sluice_ends(peers: None, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with fixture_over_http(tmp_path, "--journal", str(journal)) as url:
        with (
            sluice({"servers": {"web": {"url": url}}, "drain": "20s"}, tmp_path) as process,
            ThreadPoolExecutor(1) as pool,
        ):
            arguments = {"ms": 1000, "steps": 10, "run": "last"}
            answer = pool.submit(ask, process, "tools/call", name="web__slow", arguments=arguments)
            wait_for_line(journal, "running")
            assert process.interrupt() == 0, process.log()
            assert answer.result(30)["result"]["structuredContent"] == {"run": "last", "state": "finished"}


def wait_for_line(journal: Path, word: str, seconds: float = 60) -> None:
    """A file tells nobody that it was written to."""
    until_so(lambda: journal.exists() and word in journal.read_text(), seconds)


def test_a_client_that_goes_away_ends_its_call_at_the_server(peers: None, tmp_path: Path) -> None:
    """2026-07-28 basic/patterns/cancellation: closing the response stream is the cancellation."""
    journal = tmp_path / "journal"
    with fixture_over_http(tmp_path, "--journal", str(journal)) as url:
        with sluice_in_front_of(tmp_path, web={"url": url}) as process:
            with pytest.raises(httpx.ReadTimeout):
                ask(process, "tools/call", 2, name="web__slow", arguments={"ms": 20_000, "run": "left"})
            wait_for_line(journal, "cancelled")


def test_a_list_of_fifty_thousand_resources_is_walked_in_order(peers: None, tmp_path: Path) -> None:
    with fixture_over_http(tmp_path, "--resources", "50000", "--page", "1000") as url:
        with sluice_in_front_of(
            tmp_path, many={"url": url}, few={"command": FIXTURE[0], "args": FIXTURE[1:]}
        ) as process:
            uris: list[str] = []
            cursor: Json = {}
            while True:
                page = ask(process, "resources/list", **cursor)["result"]
                assert page["resources"]
                uris += [resource["uri"] for resource in page["resources"]]
                if "nextCursor" not in page:
                    break
                cursor = {"cursor": page["nextCursor"]}
    numbered = [f"many+test://numbered/{number}" for number in range(50_000)]
    assert [uri for uri in uris if "numbered" in uri] == numbered
    assert len(uris) == 50_006


def test_a_server_gets_no_environment_but_its_own(peers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET_TOKEN", "of this test")
    pipe = {"command": FIXTURE[0], "args": FIXTURE[1:], "env": {"GIVEN": "yes"}}
    with sluice_in_front_of(tmp_path, pipe=pipe) as process:
        arguments = {"names": ["GIVEN", "SOME_SECRET_TOKEN", "PATH"]}
        result = ask(process, "tools/call", name="pipe__environment", arguments=arguments)["result"]
        values = result["structuredContent"]["values"]
        assert values["GIVEN"] == "yes" and values["SOME_SECRET_TOKEN"] is None and values["PATH"]


def test_a_large_result_passes_and_a_too_large_one_is_named(peers: None, tmp_path: Path) -> None:
    with fixture_over_http(tmp_path) as url, sluice_in_front_of(tmp_path, web={"url": url}) as process:
        large = ask(process, "tools/call", name="web__large", arguments={"bytes": 2_000_000})["result"]
        assert len(large["content"][0]["text"]) == 2_000_000
        larger = ask(process, "tools/call", name="web__large", arguments={"bytes": 20_000_000})["result"]
        assert larger["isError"] and larger["_meta"]["dev.sluice/reason"] == "result_too_large", str(larger)[:300]


def test_sluice_ends_when_it_is_told_and_takes_its_children_along(peers: None, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    pipe = {"command": FIXTURE[0], "args": [*FIXTURE[1:], "--journal", str(journal)]}
    with sluice_in_front_of(tmp_path, pipe=pipe, sleeper=HANGS) as process:
        ask(process, "tools/call", name="pipe__echo", arguments={})
        children = children_of(process.process.pid)
        assert children
        assert process.interrupt() == 0, process.log()
        # A process that was killed still has to get its turn to end.
        until_so(lambda: not any(map(is_alive, children)))


def children_of(pid: int) -> list[int]:
    every = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [int(path.name) for path in every if parent_of(path) == pid]


def parent_of(path: Path) -> int | None:
    try:
        return int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:  # it ended while we looked
        return None


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
