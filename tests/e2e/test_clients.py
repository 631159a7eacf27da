"""Five SDK clients and the Inspector in front of Sluice, eight real servers behind it.

Each client does the whole script of peers/clients/script.py against the fixture server behind Sluice, once the one
that is reached over HTTP and once the one over stdio, and calls a tool of every other server. The one over stdio is
shared by all clients: it is told of no capabilities, so through it nobody is asked anything.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e.servers import calls, eight_servers
from e2e.sluice_process import Sluice, sluice, stdio_command
from frames.watch import Watch
from peers.fleet import DRIVERS, MODERN_DRIVERS, Json, check, drive_all, fixture_over_http, inspect, job_for, was_asked

PREFIXES = ["web__", "pipe__", "time__", "git__", "everything__", "everyweb__", "files__", "memory__"]


@dataclass(frozen=True, slots=True)
class Bed:
    process: Sluice
    folder: Path
    reports: dict[str, dict[str, Json]]


@pytest.fixture(scope="module")
def bed(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("bed")
    with eight_servers(folder) as servers, sluice({"servers": servers}, folder, watched=True) as process:
        further = {"calls": [[name, arguments] for name, arguments, _ in calls(folder)]}
        target = {"url": process.url}
        reports = {
            "web": drive_all(job_for(target, "web__", "web+") | further),
            "pipe": drive_all(job_for(target, "pipe__", "pipe+")),
        }
        yield Bed(process, folder, reports)


@pytest.mark.parametrize("server", ["web", "pipe"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_client_gets_everything_through_sluice(bed: Bed, driver: str, server: str) -> None:
    check(bed.reports[server][driver], modern=driver in MODERN_DRIVERS)


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_client_is_asked_by_a_server_of_its_own(bed: Bed, driver: str) -> None:
    assert was_asked(bed.reports["web"][driver]), bed.reports["web"][driver]["errors"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_nobody_is_asked_by_a_server_that_is_shared(bed: Bed, driver: str) -> None:
    assert not was_asked(bed.reports["pipe"][driver])


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_client_sees_the_tools_of_all_servers(bed: Bed, driver: str) -> None:
    names = [name for page in bed.reports["web"][driver]["tools"] for name in page]
    assert len(names) == len(set(names))
    counts = {prefix: len([name for name in names if name.startswith(prefix)]) for prefix in PREFIXES}
    assert sum(counts.values()) == len(names)
    assert counts["time__"] == 2 and counts["git__"] == 12 and counts["memory__"] == 9, counts
    assert all(counts.values()), counts


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_client_reaches_a_tool_of_every_server(bed: Bed, driver: str) -> None:
    answers = bed.reports["web"][driver]["calls"]
    for (name, _, expected), answer in zip(calls(bed.folder), answers, strict=True):
        assert not answer["error"], (name, answer)
        assert expected in json.dumps(answer["value"]), (name, answer)


@pytest.mark.parametrize("driver", DRIVERS)
def test_resources_of_several_servers_are_told_apart_by_their_scheme(bed: Bed, driver: str) -> None:
    uris = {uri for page in bed.reports["web"][driver]["resources"] for uri in page}
    assert {"web+test://static-text", "pipe+test://static-text", "memory+memory://knowledge-graph"} <= uris


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_lists_and_calls_through_sluice(bed: Bed, era: str) -> None:
    target = {"url": bed.process.url}
    listed = inspect(target, bed.folder, "--method", "tools/list", era=era)
    names = {tool["name"] for tool in listed["result"]["tools"]}
    assert {"web__echo", "time__get_current_time", "files__read_text_file"} <= names
    call = ["--method", "tools/call", "--tool-name", "everything__echo", "--tool-args-json", '{"message": "ok"}']
    called = inspect(target, bed.folder, *call, era=era)
    assert called["result"]["content"][0]["text"] == "Echo: ok"


def test_sluice_wrote_no_error_about_any_of_it(bed: Bed) -> None:
    bad = [line for line in bed.process.log().splitlines() if "Traceback" in line or '"level": "error"' in line]
    assert not bad, bad[:5]


@pytest.fixture(scope="module")
def over_stdio(peers: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    """The front over stdio: each client starts its own Sluice, as a desktop client does."""
    folder = tmp_path_factory.mktemp("stdio")
    with Watch(folder) as watch, fixture_over_http(folder) as url, ThreadPoolExecutor(len(DRIVERS)) as pool:

        def one(driver: str) -> Json:
            home = folder / driver
            home.mkdir()
            servers = watch.behind({"web": {"url": url, "pin": "warn"}})
            command = watch.front_pipe(stdio_command({"servers": servers}, home))
            return drive_all(job_for({"command": command}, "web__", "web+"), [driver])[driver]

        return dict(zip(DRIVERS, pool.map(one, DRIVERS), strict=True))


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_client_gets_everything_through_sluice_over_stdio(over_stdio: dict[str, Json], driver: str) -> None:
    check(over_stdio[driver], modern=driver in MODERN_DRIVERS)
    assert was_asked(over_stdio[driver]), over_stdio[driver]["errors"]


@pytest.fixture(scope="module")
def across(peers: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Json]]:
    """The same server twice, spoken to in one era only: half of the clients are of the other one."""
    folder = tmp_path_factory.mktemp("across")
    with fixture_over_http(folder) as url:
        servers = {era: {"url": url, "era": era, "pin": "warn"} for era in ("legacy", "modern")}
        with sluice({"servers": servers}, folder, watched=True) as process:

            def drive_in(era: str) -> dict[str, Json]:
                job = job_for({"url": process.url}, f"{era}__", f"{era}+")
                return drive_all(job | {"adds": f"added_{era}", "added": f"{era}__added_{era}"})

            return {era: drive_in(era) for era in servers}


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_client_gets_everything_from_a_server_of_either_era(
    across: dict[str, dict[str, Json]], driver: str, era: str
) -> None:
    check(across[era][driver], modern=driver in MODERN_DRIVERS)
    assert was_asked(across[era][driver]), across[era][driver]["errors"]
