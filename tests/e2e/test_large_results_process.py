"""Answers over the limits of servers with `results_over: page`: read in parts, by whoever made the call and nobody
else. On every transport of a real server, in both eras of clients."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.test_toolset_endpoints import BOTH, Endpoint
from peers.fleet import free_port, running, wait_for_port
from peers.install import MCP1
from policy_bed import Bed, bearer, bed, client_keys, reason

Json = dict[str, Any]
SERVER = [str(MCP1 / "python"), str(Path(__file__).with_name("sdk1_large.py"))]
LINE = 100
ROWS = """\
p, role:caller, *, *, *, allow
p2, *, pipe, tool:asked, *, one-of-leads
p, role:lead, sluice, admin:*, *, allow
"""
TRANSPORTS = ["pipe", "streams", "json", "sse"]


def lines(size: int) -> str:
    return "".join(f"{number:0{LINE - 2}}\u00e9\n" for number in range(size // LINE))


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("large")
    with ExitStack() as stack:
        servers: Json = {
            "pipe": {"command": SERVER[0], "args": SERVER[1:], "cwd": str(folder)},
            "refusing": {"command": SERVER[0], "args": SERVER[1:], "cwd": str(folder), "results_over": "refuse"},
        }
        for kind in TRANSPORTS[1:]:
            port = free_port()
            command = [*SERVER, str(port), *([] if kind == "streams" else [kind])]
            log = folder / f"{kind}.log"
            wait_for_port(port, stack.enter_context(running(command, log, cwd=folder)), log)
            path = "sse" if kind == "sse" else "mcp/"
            servers[kind] = {"url": f"http://127.0.0.1:{port}/{path}"}
        for server in servers.values():
            server.setdefault("results_over", "page")
        config: Json = {
            "clients": {"keys": client_keys(ann=["role:caller"], bob=["role:caller"], lea=["role:lead"])},
            "limits": {"max_result": "64KiB", "result_nodes": 1000, "paged_results": "1MiB", "paged_for": "5m"},
            "approvals": {"hold_for": "100ms"},
        }
        yield stack.enter_context(bed(folder, ROWS, servers, **config))


def called(client: Endpoint, tool: str, **arguments: Any) -> Json:
    answer: Json = client.post("tools/call", {"name": tool, "arguments": arguments}).json()["result"]
    return answer


def read(client: Endpoint, uri: str) -> Json:
    (content,) = client.post("resources/read", {"uri": uri}).json()["result"]["contents"]
    return dict(content)


def every_part(client: Endpoint, answer: Json) -> list[Json]:
    """By the links alone: the first part, and what each names as the next."""
    uri, found = answer["content"][1]["uri"], []
    while uri:
        found.append(read(client, uri))
        assert found[-1]["uri"] == uri
        uri = found[-1]["_meta"]["dev.sluice/part"].get("next")
    return found


@BOTH
@pytest.mark.parametrize("server", TRANSPORTS)
def test_a_large_text_is_read_in_parts_and_none_of_it_is_lost(town: Bed, server: str, era: str) -> None:
    client = Endpoint(town, "ann", "", era)
    size = 200_000
    answer = called(client, f"{server}__text", size=size)
    text, link = answer["content"]
    assert not answer["isError"] and "do not call it again" in text["text"]
    assert link["type"] == "resource_link" and link["mimeType"] == "text/plain"
    parts = every_part(client, answer)
    assert len(parts) == 4 and "".join(part["text"] for part in parts) == lines(size)
    assert all(part["text"].endswith("\n") for part in parts), "no line is cut"
    assert [part["_meta"]["dev.sluice/part"]["number"] for part in parts] == [1, 2, 3, 4]
    assert f"{link['uri']} to {parts[-1]['uri']}" in text["text"]
    assert re.search(r"in 4 parts until \d\d:\d\d UTC", text["text"])
    small = called(client, f"{server}__text", size=1000)
    assert small["content"] == [{"type": "text", "text": lines(1000)}], "the connection goes on"


@BOTH
@pytest.mark.parametrize("server", TRANSPORTS)
def test_an_answer_with_too_many_values_too(town: Bed, server: str, era: str) -> None:
    client = Endpoint(town, "ann", "", era)
    answer = called(client, f"{server}__values", size=2000)
    (part,) = every_part(client, answer)
    assert json.loads(part["text"]) == {"numbers": [[]] * 2000}, "the structured content says the same, and is left out"
    strict = called(client, f"{server}__strict", size=2000)
    assert strict["isError"], "a client that knows the schema takes no result without structuredContent"
    assert "The tool was executed" in strict["content"][0]["text"]


def test_blocks_are_parts_of_their_own(town: Bed) -> None:
    client = Endpoint(town, "ann", "", "modern")
    answer = called(client, "streams__blocks", size=70_000)
    parts = every_part(client, answer)
    assert [part["mimeType"] for part in parts] == ["text/plain", "text/plain", "application/json", "text/csv"]
    assert json.loads(parts[2]["text"])["mimeType"] == "image/png" and parts[3]["text"] == "a,b\n" * 10
    assert "Parts: 1 to 2 text, 3 JSON, 4 text." in answer["content"][0]["text"]


@BOTH
def test_a_large_resource_is_refused_with_where_its_parts_are(town: Bed, era: str) -> None:
    client = Endpoint(town, "ann", "", era)
    refused = client.post("resources/read", {"uri": "pipe+big:100000"})
    assert reason(refused) == "result_too_large"
    parts = refused.json()["error"]["data"]["parts"]
    assert parts["count"] == 2
    assert "".join(read(client, parts[end])["text"] for end in ("first", "last")) == lines(100_000)


@BOTH
def test_nobody_else_reads_it_and_nothing_else_is_there(town: Bed, era: str) -> None:
    ann, bob = (Endpoint(town, who, "", era) for who in ("ann", "bob"))
    uri = called(ann, "json__text", size=70_000)["content"][1]["uri"]
    assert read(ann, uri)["text"]

    def denied(client: Endpoint, uri: str) -> Json:
        answer: Json = client.post("resources/read", {"uri": uri}).json()["error"]
        return json.loads(json.dumps(answer).replace(uri, "URI"))

    unknown = denied(ann, "sluice:results/none/1")
    id = uri.split("/")[1]
    others = [f"sluice:results/{id}/0", f"sluice:results/{id}/3", f"sluice:results/{id}/01", f"sluice:results/{id}",
              f"sluice:results/{'x' * 32}/1", f"sluice:results/{id}/1?", f"sluice:results/{id}/1/../2"]  # fmt: skip
    assert all(denied(ann, other) == unknown for other in others)
    assert denied(bob, uri) == unknown


def test_who_loses_the_tool_loses_its_answers(town: Bed) -> None:
    ann = Endpoint(town, "ann", "", "modern")
    kept = called(ann, "json__text", size=70_000)["content"][1]["uri"]
    other = called(ann, "sse__text", size=70_000)["content"][1]["uri"]
    town.write(ROWS + "p, role:caller, json, tool:text, *, deny\n")
    try:
        town.until(lambda: "error" in ann.post("resources/read", {"uri": kept}).json())
        assert read(ann, other)["text"]
    finally:
        town.write(ROWS)
    town.until(lambda: "result" in ann.post("resources/read", {"uri": kept}).json())


def test_whoever_was_asked_is_not_asked_for_each_part(town: Bed) -> None:
    ann = Endpoint(town, "ann", "", "legacy")
    asked: Json = {"name": "pipe__asked", "arguments": {"size": 200_000}}
    held = ann.post("tools/call", asked).json()["result"]["_meta"]["dev.sluice/approval"]["id"]
    api = f"{town.process.admin}/api/v1/approvals/{held}"
    shown = httpx.get(api, headers=bearer("lea"), timeout=20).json()
    body = {"decision": "approve", "seen_digest": shown["digest"]}
    assert httpx.post(f"{api}/decisions", json=body, headers=bearer("lea"), timeout=20).status_code == 200
    answer = ann.post("tools/call", asked).json()["result"]
    assert "".join(part["text"] for part in every_part(ann, answer)) == lines(200_000)


def test_what_a_client_has_kept_is_bounded_and_its_oldest_leaves_first(town: Bed) -> None:
    bob, ann = (Endpoint(town, who, "", "modern") for who in ("bob", "ann"))
    safe = called(ann, "streams__text", size=70_000)["content"][1]["uri"]
    uris = [called(bob, "streams__text", size=300_000)["content"][1]["uri"] for _ in range(5)]
    there = ["result" in bob.post("resources/read", {"uri": uri}).json() for uri in uris]
    assert there == [False, False, True, True, True], "each has 306,000 bytes, and 1 MiB is theirs"
    assert read(ann, safe)["text"], "they push out their own"
    more = bob.post("tools/call", {"name": "streams__text", "arguments": {"size": 2_000_000}})
    assert reason(more) == "result_too_large"
    assert read(bob, uris[-1])["text"], "what is refused takes nobody's place"


def test_a_line_over_the_largest_ends_its_connection_and_the_next_call_has_another(town: Bed) -> None:
    ann = Endpoint(town, "ann", "", "modern")
    lost = ann.post("tools/call", {"name": "pipe__text", "arguments": {"size": 2_000_000}})
    assert reason(lost) == "outcome_unknown"
    assert called(ann, "pipe__text", size=1000)["content"][0]["text"] == lines(1000)


def test_a_server_that_refuses_does_so(town: Bed) -> None:
    ann = Endpoint(town, "ann", "", "modern")
    refused = ann.post("tools/call", {"name": "refusing__values", "arguments": {"size": 2000}})
    assert reason(refused) == "result_too_large"


def test_the_log_says_what_was_kept_and_what_was_read(town: Bed) -> None:
    ann = Endpoint(town, "ann", "", "modern")
    answer = called(ann, "streams__text", size=70_000)
    uri = answer["content"][1]["uri"]
    read(ann, uri)
    id = uri.split("/")[1]

    def about() -> list[Json]:
        return [record for record in town.audit() if record.get("parts", {}).get("id") == id]

    town.until(lambda: len(about()) == 2)
    kept, taken = about()
    assert kept["method"] == "tools/call" and kept["parts"] == {"id": id, "bytes": kept["parts"]["bytes"], "parts": 2}
    assert kept["parts"]["bytes"] > 70_000
    assert taken["method"] == "resources/read" and taken["parts"] == {"id": id, "part": 1}
    assert (taken["server"], taken["own"]) == ("streams", "text")
