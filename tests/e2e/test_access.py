"""Who may come in, and what of each server they may use: with a key, without one, past a deny list, over a bridge."""

import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from e2e.sluice_process import COMMAND, Sluice, sluice
from peers.fleet import (
    DRIVERS,
    MODERN_DRIVERS,
    Json,
    check,
    drive,
    drive_all,
    fixture_over_http,
    inspect,
    job_for,
    was_asked,
)

KEY = secrets.token_urlsafe(32)
KEYS: Json = {"keys": {"laptop": {"hash": f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}", "roles": []}}}
DENIED = ["test_tool_*", "crash"]
BEARER = {"Authorization": f"Bearer {KEY}"}


@dataclass(frozen=True, slots=True)
class Guarded:
    """Keys only, and a deny list."""

    process: Sluice
    folder: Path

    @property
    def target(self) -> Json:
        return {"url": self.process.url, "headers": BEARER}


@pytest.fixture(scope="module")
def guarded(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    with fixture_over_http(folder) as url:
        servers = {"web": {"url": url, "tools": {"deny": DENIED}, "pin": "warn"}}
        with sluice({"servers": servers, "clients": KEYS}, folder) as process:
            yield Guarded(process, folder)


@pytest.fixture(scope="module")
def reports(guarded: Guarded) -> dict[str, Json]:
    job = job_for(guarded.target, "web__", "web+")
    return drive_all(job | {"calls": [["web__environment", {}]]})


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_client_comes_in_with_its_key(reports: dict[str, Json], driver: str) -> None:
    check(reports[driver], modern=driver in MODERN_DRIVERS)
    assert was_asked(reports[driver]), reports[driver]["errors"]
    names = [name for page in reports[driver]["tools"] for name in page]
    assert "web__echo" in names and not [name for name in names if "test_tool_" in name or "crash" in name]


@pytest.mark.parametrize("credential", [None, "", "Bearer", "Bearer guess", f"Basic {KEY}", KEY],
                         ids=["none", "empty", "scheme-alone", "guess", "other-scheme", "no-scheme"])
def test_nobody_comes_in_without_it(guarded: Guarded, credential: str | None) -> None:
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28"}
    if credential is not None:
        headers["Authorization"] = credential
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    answer = httpx.post(guarded.process.url, json=body, headers=headers, timeout=30)
    assert answer.status_code == 401 and "web__" not in answer.text


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_denied_tool_answers_as_one_that_does_not_exist(guarded: Guarded, era: str) -> None:
    """Design: what is denied looks exactly like what is unknown."""

    def call(tool: str) -> str:
        arguments = ["--method", "tools/call", "--tool-name", tool]
        with pytest.raises(AssertionError) as refusal:
            inspect(guarded.target, guarded.folder, *arguments, era=era)
        return str(refusal.value).replace(tool, "TOOL")

    assert call("web__crash") == call("web__clash")


@pytest.mark.parametrize("driver", ["py2-modern", "ts1"])
def test_a_stdio_client_is_bridged_to_a_sluice_that_runs(guarded: Guarded, driver: str) -> None:
    key = guarded.folder / "bridge.key"
    key.write_text(KEY)
    command = [*COMMAND, "stdio", "--url", guarded.process.url, "--key-file", str(key)]
    job = job_for({"command": command}, "web__", "web+")
    name = f"bridged_{driver.replace('-', '_')}"
    report = drive(driver, job | {"adds": name, "added": f"web__{name}"})
    check(report, modern=driver in MODERN_DRIVERS)
    assert was_asked(report), report["errors"]
