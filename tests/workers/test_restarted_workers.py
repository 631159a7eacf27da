"""A worker that is started later has what is in force in the others, whatever the files say by then."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.sluice_process import Sluice
from policy_bed import client_keys
from waiting import until_so as until
from workers_kit import Talker, names, sluice, workers

Json = dict[str, Any]
SERVER = str(Path(__file__).with_name("echo_server.py"))
KEYS = names(2, 1)
ROWS = "p, role:authenticated, echo, *, *, allow\np, local, sluice, admin:*, *, allow\n"
SAY = "echo__say"


def config(folder: Path, **more: Any) -> Json:
    (folder / "policy.csv").write_text(ROWS)
    server = {"command": sys.executable, "args": [SERVER, str(folder)]}
    return {
        "servers": {"echo": server}, "clients": {"keys": client_keys(**{name: [] for name in KEYS})},
        "policy": {"files": ["policy.csv"], "watch": False}, "log": {"format": "json"}, **more,
    }  # fmt: skip


def edit(process: Sluice, change: Callable[[Json], object]) -> None:
    settings = json.loads(process.config.read_text())
    change(settings["servers"]["echo"])
    process.config.write_text(json.dumps(settings))


def reload(process: Sluice) -> None:
    process.process.send_signal(signal.SIGHUP)


def shows(process: Sluice) -> list[bool]:
    """Which workers show the tool."""
    lists = [Talker(process.url, who).modern(None, "tools/list")["tools"] for who in KEYS]
    return [SAY in {one["name"] for one in found} for found in lists]


def says(process: Sluice) -> list[bool]:
    """Which workers show the tool, and have it called; nothing comes into force meanwhile."""
    shown = shows(process)
    params: Json = {"name": SAY, "arguments": {"text": "x"}}
    answers = [Talker(process.url, who).outcome("tools/call", **params) for who in KEYS]
    assert [answer.get("isError", False) for answer in answers] == [not one for one in shown], answers
    return shown


def restart_second(process: Sluice) -> None:
    before = workers(process)
    os.kill(before[1], signal.SIGKILL)
    until(lambda: before[1] not in workers(process) and process.get("/readyz")[0] == 200)


def test_a_server_that_stays_as_it_was_is_so_in_a_worker_that_comes_later(tmp_path: Path) -> None:
    with sluice(config(tmp_path), tmp_path, 2) as process:
        assert says(process) == [True, True]
        edit(process, lambda echo: echo.update(tools={"deny": ["say"]}))
        reload(process)
        until(lambda: shows(process) == [False, False])
        assert says(process) == [False, False]
        edit(process, lambda echo: echo.update(env={"A": "${env:SLUICE_NOT_THERE}"}))
        reload(process)
        until(lambda: "echo stays as it was" in process.get("/readyz")[1])
        restart_second(process)
        assert says(process) == [False, False]
        assert "echo stays as it was" in process.get("/readyz")[1]


def test_a_file_that_nobody_was_told_to_read_is_not_in_force_in_a_worker_that_comes_later(tmp_path: Path) -> None:
    settings = config(tmp_path)
    settings["servers"]["echo"]["tools"] = {"deny": ["say"]}
    with sluice(settings, tmp_path, 2) as process:
        assert says(process) == [False, False]
        edit(process, lambda echo: echo.pop("tools"))
        restart_second(process)
        assert says(process) == [False, False]
        reload(process)
        until(lambda: shows(process) == [True, True])
        assert says(process) == [True, True]


def test_policy_rows_that_nobody_was_told_to_read_are_not_in_force_in_a_worker_that_comes_later(
    tmp_path: Path,
) -> None:
    settings = config(tmp_path)
    (tmp_path / "policy.csv").write_text(ROWS + "p, *, echo, tool:say, *, deny\n")
    with sluice(settings, tmp_path, 2) as process:
        assert says(process) == [False, False]
        (tmp_path / "policy.csv").write_text(ROWS)
        restart_second(process)
        assert says(process) == [False, False]
        reload(process)
        until(lambda: shows(process) == [True, True])
        assert says(process) == [True, True]


def test_a_reload_during_the_start_of_a_worker_is_not_missed_by_it(tmp_path: Path) -> None:
    with sluice(config(tmp_path), tmp_path, 2) as process:
        before = workers(process)
        os.kill(before[1], signal.SIGKILL)
        until(lambda: set(workers(process)) - set(before))
        (starting,) = set(workers(process)) - set(before)
        os.kill(starting, signal.SIGSTOP)
        try:
            edit(process, lambda echo: echo.update(tools={"deny": ["say"]}))
            reload(process)
            first = Talker(process.url, KEYS[0])
            until(lambda: SAY not in {one["name"] for one in first.modern(None, "tools/list")["tools"]})
            assert "worker 2 is not up" in process.get("/readyz")[1], "it was up before it could be stopped"
        finally:
            os.kill(starting, signal.SIGCONT)
        until(lambda: process.get("/readyz")[0] == 200)
        until(lambda: shows(process) == [False, False])
        assert says(process) == [False, False]


def test_a_hangup_of_one_worker_reloads_all(tmp_path: Path) -> None:
    with sluice(config(tmp_path), tmp_path, 2) as process:
        edit(process, lambda echo: echo.update(tools={"deny": ["say"]}))
        os.kill(workers(process)[1], signal.SIGHUP)
        until(lambda: shows(process) == [False, False])
        assert says(process) == [False, False]


def test_a_worker_that_is_not_started_for_what_the_files_say_is_told_with_the_reason(tmp_path: Path) -> None:
    with sluice(config(tmp_path), tmp_path, 2) as process:
        (tmp_path / "policy.csv").write_text(ROWS.replace("allow", "Allow"))
        os.kill(workers(process)[1], signal.SIGKILL)
        until(lambda: "worker 2 is not started: policy.csv:1" in process.get("/readyz")[1])
        (tmp_path / "policy.csv").write_text(ROWS)
        until(lambda: process.get("/readyz")[0] == 200)
        assert "is not started" not in process.get("/readyz")[1]
        assert says(process) == [True, True]


def test_workers_say_what_needs_a_restart_and_so_does_one_that_comes_later(tmp_path: Path) -> None:
    with sluice(config(tmp_path), tmp_path, 2) as process:
        settings = json.loads(process.config.read_text())
        settings.setdefault("limits", {})["page"] = 7
        process.config.write_text(json.dumps(settings))
        reload(process)
        until(lambda: "needs a restart: limits" in process.get("/readyz")[1])
        restart_second(process)
        assert "needs a restart: limits" in process.get("/readyz")[1]
