"""Five SDK clients, the Inspector and a framework for agents at a toolset with the search: they get all that is in it,
and nothing else."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e.sluice_process import Sluice, sluice
from peers.fleet import (
    AGENT_DRIVER,
    DRIVERS,
    MODERN_DRIVERS,
    Json,
    check,
    drive_all,
    fixture_over_http,
    inspect,
    job_for,
    run_client,
)

TOOLSETS: Json = {
    "few": {"tools": ["web/echo"]},
    "found": {"tools": ["web/*"], "search": "on", "pinned": ["web/echo", "web/added*"]},
}
CALLS: Json = [
    ["find_tools", {"query": "echo what I say", "limit": 3}],
    ["call_tool", {"name": "web__echo", "arguments": {"text": "found"}}],
    ["web__echo", {"text": "direct"}],
]


@dataclass(frozen=True, slots=True)
class Bed:
    process: Sluice
    folder: Path
    reports: dict[str, Json]


@pytest.fixture(scope="module")
def bed(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("toolsets")
    with fixture_over_http(folder) as url:
        servers = {"web": {"url": url, "pin": "warn"}, "other": {"url": url}}
        with sluice({"servers": servers, "toolsets": TOOLSETS}, folder) as process:
            job = job_for({"url": f"{process.url}/found"}, "web__", "web+") | {"calls": CALLS}
            yield Bed(process, folder, drive_all(job))


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_client_gets_everything_of_a_toolset_and_nothing_else(bed: Bed, driver: str) -> None:
    report = bed.reports[driver]
    check(report, modern=driver in MODERN_DRIVERS)
    prompts = [name for page in report["prompts"] for name in page]
    assert prompts and all(name.startswith("web__") for name in prompts), prompts


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_client_finds_and_calls_a_tool(bed: Bed, driver: str) -> None:
    report = bed.reports[driver]
    names = {name for page in report["tools"] for name in page if not name.startswith("web__added")}
    assert names == {"find_tools", "call_tool", "web__echo"}
    found, called, direct = report["calls"]
    assert not (found["error"] or called["error"] or direct["error"]), report["calls"]
    assert "web__echo" in json.dumps(found["value"]) and "found" in json.dumps(called["value"])
    assert "direct" in json.dumps(direct["value"])


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_lists_and_calls_at_a_toolset(bed: Bed, era: str) -> None:
    few = {"url": f"{bed.process.url}/few"}
    listed = inspect(few, bed.folder, "--method", "tools/list", era=era)
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["web__echo"]
    wanted = json.dumps({"name": "web__echo", "arguments": {"text": "ok"}})
    call = ["--method", "tools/call", "--tool-name", "call_tool", "--tool-args-json", wanted]
    called = inspect({"url": f"{bed.process.url}/found"}, bed.folder, *call, era=era)
    assert "ok" in json.dumps(called["result"]), called


@pytest.mark.parametrize("toolset", ["few", "found"])
def test_an_agent_calls_what_it_is_shown_or_finds(bed: Bed, toolset: str) -> None:
    report = run_client(AGENT_DRIVER, {"url": f"{bed.process.url}/{toolset}", "say": "a word"})
    shown = {name for name in report["shown"] if not name.startswith("web__added")}
    assert shown == {"web__echo"} | ({"find_tools", "call_tool"} if toolset == "found" else set())
    assert len(report["got"]) == (2 if toolset == "found" else 1)
    assert "a word" in report["got"][-1] and report["said"] == f"It said {report['got'][-1]}"
