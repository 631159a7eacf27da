"""The first list of a client on stdio, in front of real processes that are quick, slow, hang or are not there: it is
whole but for those that cannot be had, and a later start shows what is stored before any server has answered."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from command_line import run
from e2e.sluice_process import stdio_command
from e2e.test_stdio_shared import Desktop

Json = dict[str, Any]
LATE = str(Path(__file__).parent / "late_server.py")
QUICK = ["a", "b", "c", "d", "e"]


def late(folder: Path, name: str, *seconds: str, **more: Any) -> Json:
    return {"command": sys.executable, "args": [LATE, str(folder), name, *seconds], "era": "legacy", **more}


def eight(folder: Path, hanging_for: str) -> Json:
    servers = {name: late(folder, name) for name in QUICK}
    servers["slow"] = late(folder, "slow", "3")
    servers["hangs"] = {"command": "sleep", "args": ["600"], "era": "legacy", "start_timeout": hanging_for}
    servers["absent"] = {"command": "no-such-command-anywhere"}
    return {"servers": servers}


@contextmanager
def desktop(config: Json, folder: Path) -> Iterator[Desktop]:
    client = Desktop(stdio_command(config, folder), "one")
    try:
        yield client
        client.leave()
    finally:
        client.close()


def names(answer: Json) -> list[str]:
    return [tool["name"] for tool in answer["result"]["tools"]]


def text(answer: Json) -> str:
    return str(answer["result"]["content"][0]["text"])


def heard_until(client: Desktop, method: str) -> list[str]:
    """The methods of notifications, up to that one."""
    heard = [str(client.hear().get("method"))]
    while heard[-1] != method:
        heard.append(str(client.hear().get("method")))
    return heard


WHOLE = [f"{name}__{name}" for name in [*QUICK, "slow"]]
CHANGED = "notifications/tools/list_changed"


def test_the_first_list_is_whole_but_for_what_hangs_or_is_missing_and_later_ones_wait_for_nobody(
    tmp_path: Path,
) -> None:
    with desktop(eight(tmp_path, "8s"), tmp_path) as client:
        client.hello()
        assert names(client.ask("tools/list")) == WHOLE
        assert text(client.ask("tools/call", name="slow__slow", arguments={})) == "slow"

    for name in (*QUICK, "slow"):
        (tmp_path / f"{name}.shut").touch()
    # Whoever waited for the one that hung, or for any start, would wait longer than this test may take.
    with desktop(eight(tmp_path, "10m"), tmp_path) as client:
        client.hello()
        listed = client.ask("tools/list")
        assert names(listed) == WHOLE
        id = client.begin("tools/call", name="slow__slow", arguments={})
        for name in (*QUICK, "slow"):
            (tmp_path / f"{name}.shut").unlink()
        while (message := client.hear()).get("id") != id:
            pass
        assert text(message) == "slow"


def test_the_instructions_name_the_servers_that_are_not_listed_yet(tmp_path: Path) -> None:
    (tmp_path / "a.shut").touch()
    servers = {"a": late(tmp_path, "a"), "absent": {"command": "no-such-command-anywhere"}}
    with desktop({"servers": servers}, tmp_path) as client:
        agreed = client.ask(
            "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "c", "version": "1"}
        )
        said = agreed["result"]["instructions"]
        assert "Still starting: a" in said and "absent" in said
        (tmp_path / "a.shut").unlink()
        client.send(method="notifications/initialized")
        assert names(client.ask("tools/list")) == ["a__a"]


def test_a_definition_that_is_withheld_when_its_server_has_started_is_unknown(tmp_path: Path) -> None:
    """What a stored list has is shown, but a call is decided by what the server has when it is sent."""
    config = {"servers": {"a": late(tmp_path, "a"), "b": late(tmp_path, "b")}}
    (tmp_path / "a.tools").write_text("one=first two=second")
    with desktop(config, tmp_path) as client:
        client.hello()
        assert names(client.ask("tools/list")) == ["a__one", "a__two", "b__b"]
    (tmp_path / "a.tools").write_text("one=changed two=second")
    (tmp_path / "a.shut").touch()
    with desktop(config, tmp_path) as client:
        client.hello()
        assert names(client.ask("tools/list")) == ["a__one", "a__two", "b__b"]
        id = client.begin("tools/call", name="a__one", arguments={})
        (tmp_path / "a.shut").unlink()
        heard: list[str] = []
        while (message := client.hear()).get("id") != id:
            heard.append(str(message.get("method")))
        assert message["error"]["message"] == "Unknown tool: a__one"
        if CHANGED not in heard:
            heard += heard_until(client, CHANGED)
        assert names(client.ask("tools/list")) == ["a__two", "b__b"]
        assert set(heard) == {CHANGED}


def test_resources_wait_for_a_start_that_is_quick_enough_and_are_announced_after_one_that_is_not(
    tmp_path: Path,
) -> None:
    """The other lists are stored, so that nothing else waits."""
    (tmp_path / "a.resources").write_text("x:1")

    def config(start_timeout: str) -> Json:
        return {"servers": {"a": late(tmp_path, "a", start_timeout=start_timeout), "b": late(tmp_path, "b")}}

    def uris(answer: Json) -> list[str]:
        return [resource["uri"] for resource in answer["result"]["resources"]]

    with desktop(config("10m"), tmp_path) as client:
        client.hello()
        assert names(client.ask("tools/list")) == ["a__a", "b__b"]
    (tmp_path / "a.shut").touch()
    with desktop(config("10m"), tmp_path) as client:
        client.hello()
        id = client.begin("resources/list")
        assert names(client.ask("tools/list")) == ["a__a", "b__b"]
        (tmp_path / "a.shut").unlink()
        while (message := client.hear()).get("id") != id:
            pass
        assert uris(message) == ["a+x:1"]
    (tmp_path / "a.shut").touch()
    with desktop(config("1s"), tmp_path) as client:
        client.hello()
        assert uris(client.ask("resources/list")) == []
        (tmp_path / "a.shut").unlink()
        heard_until(client, "notifications/resources/list_changed")
        assert uris(client.ask("resources/list")) == ["a+x:1"]


def lists_column(folder: Path) -> dict[str, str]:
    """What `sluice servers` shows of the lists, as JSON and in its table, read while nothing changes."""

    def rows() -> dict[str, str]:
        found = json.loads(run(folder, "servers", "--json", "-c", "sluice.yaml").stdout)["servers"]
        return {row["key"]: row["lists"] for row in found}

    before: dict[str, str] = {}
    table: list[str] = []
    while before != (before := rows()) or not table:  # a server may be up between two commands
        table = run(folder, "servers", "-c", "sluice.yaml").stdout.splitlines()
    at = table[0].index("LISTS")
    for key, lists in before.items():
        (line,) = (line for line in table if line.startswith(f"{key} "))
        assert line[at:].startswith(lists), line
    return before


def test_servers_shows_how_complete_the_lists_of_each_are(tmp_path: Path) -> None:
    def config(*names: str) -> Json:
        servers = {name: late(tmp_path, name) for name in names}
        return {"servers": servers | {"absent": {"command": "no-such-command-anywhere"}}}

    (tmp_path / "b.shut").touch()
    with desktop(config("a", "b"), tmp_path) as client:
        client.hello()
        id = client.begin("tools/list")
        found: dict[str, str] = {}
        while found.get("a") != "complete" or found["absent"] != "missing: the server is down":
            found = lists_column(tmp_path)
        assert found["b"] == "missing: the server is still starting"
        (tmp_path / "b.shut").unlink()
        while client.hear().get("id") != id:
            pass
        assert lists_column(tmp_path)["b"] == "complete"
    (tmp_path / "a.shut").touch()
    with desktop(config("a"), tmp_path) as client:
        client.hello()
        assert names(client.ask("tools/list")) == ["a__a"]
        assert lists_column(tmp_path)["a"] == "as stored: the server is still starting"
        (tmp_path / "a.shut").unlink()


def test_a_server_under_the_same_key_does_not_show_what_another_had_listed(tmp_path: Path) -> None:
    with desktop({"servers": {"a": late(tmp_path, "one"), "b": late(tmp_path, "b")}}, tmp_path) as client:
        client.hello()
        assert names(client.ask("tools/list")) == ["a__one", "b__b"]
    with desktop({"servers": {"a": late(tmp_path, "two", pin="off"), "b": late(tmp_path, "b")}}, tmp_path) as client:
        client.hello()
        assert names(client.ask("tools/list")) == ["a__two", "b__b"]


def test_a_server_that_goes_and_returns_is_told_once_each_and_only_of_its_tools(tmp_path: Path) -> None:
    (tmp_path / "a.tools").write_text("exit stay")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "a"
    program.symlink_to(sys.executable)
    servers = {"a": {**late(tmp_path, "a"), "command": str(program)}, "b": late(tmp_path, "b")}
    with desktop({"servers": servers}, tmp_path) as client:
        client.hello()
        assert names(client.ask("tools/list")) == ["a__exit", "a__stay", "b__b"]
        program.unlink()
        client.begin("tools/call", name="a__exit", arguments={})
        assert [method for method in heard_until(client, CHANGED) if method != "None"] == [CHANGED]
        assert names(client.ask("tools/list")) == ["b__b"]
        program.symlink_to(sys.executable)
        assert heard_until(client, CHANGED) == [CHANGED]
        assert names(client.ask("tools/list")) == ["a__exit", "a__stay", "b__b"]
        id = client.begin("tools/call", name="b__b", arguments={})
        assert client.hear()["id"] == id  # and nothing else was told
