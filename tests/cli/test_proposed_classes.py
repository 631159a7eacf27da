"""Which classes `install` proposes: a name that destroys outweighs what a server says of itself."""

import json
import sys
from pathlib import Path

import pytest
from desktop import listing_server

from sluicegate import config
from sluicegate.app import state
from sluicegate.catalog_cache.snapshot_store import hung_key
from sluicegate.cli import proposed_classes
from sluicegate.cli.proposed_classes import (
    START_WITHIN,
    Proposal,
    propose,
    proposed,
    remember_hanging,
    show_classes,
)

READS, DESTROYS = {"readOnlyHint": True}, {"destructiveHint": True}


@pytest.mark.parametrize(("name", "annotations", "class_"), [
    ("get_issue", {}, "read"), ("listFiles", {}, "read"), ("search-code", {}, "read"), ("HTTPStatus", {}, ""),
    ("get-env", {}, ""), ("get-env", READS, ""), ("readSecret", READS, ""), ("listAPIKey", {}, ""),
    ("get_environment_list", READS, ""), ("list_monkeys", {}, "read"), ("get_token_delete", {}, "destroy"),
    ("whoami", {}, ""), ("whoami", READS, "read"), ("current_time", READS, "read"),
    ("delete_repo", {}, "destroy"), ("repoDelete", READS, "destroy"), ("REMOVE_ALL", {}, "destroy"),
    ("weird", DESTROYS, "destroy"), ("get_thing", DESTROYS, "destroy"), ("get_thing", READS | DESTROYS, ""),
    ("create_issue", {}, ""), ("create_issue", READS, ""), ("get_or_create", {}, ""), ("search_and_replace", {}, ""),
    ("write_file", {}, ""), ("run_query", READS, ""), ("updates", {}, ""), ("issue_list", {}, ""),
    ("findAndModify", {}, ""), ("check_out", {}, ""), ("check_in", {}, ""), ("list_change_owner", {}, ""),
    ("status_disable", {}, ""), ("get_deploy", {}, ""), ("read_transfer_funds", {}, ""), ("getIDdelete", {}, "destroy"),
    ("getURLs", {}, "read"), ("getIDs", {}, "read"), ("find_grant_admin", {}, ""), ("getSQLexec", READS, ""),
    ("deploy", READS, ""), ("pay", READS, ""), ("transfer", READS, ""), ("modify", READS, ""), ("shell", READS, ""),
    ("eval", READS, ""), ("sql", READS, ""), ("runSQL", READS, ""), ("IDdelete", READS, "destroy"),
    ("get_issue", {"readOnlyHint": "true"}, "read"), ("whoami", {"readOnlyHint": "true"}, ""), ("", {}, ""),
])  # fmt: skip
def test_a_class_is_proposed_by_words_and_annotations(name: str, annotations: dict[str, object], class_: str) -> None:
    assert proposed([{"name": name, "annotations": annotations}]) == ({name: class_} if class_ else {})


@pytest.mark.parametrize("kinds", ["rd", "dr", "rwd", "dwr"])
def test_a_name_that_is_listed_twice_has_the_strictest_class(kinds: str) -> None:
    about = {"r": READS, "w": {}, "d": DESTROYS}
    assert proposed({"name": "whoami", "annotations": about[kind]} for kind in kinds) == {"whoami": "destroy"}
    kinds = kinds.replace("d", "w")
    assert proposed({"name": "whoami", "annotations": about[kind]} for kind in kinds) == {}


def test_what_is_no_tool_has_no_class() -> None:
    assert proposed([{}, {"name": 5}, {"name": "get_x", "annotations": "x"}]) == {"get_x": "read"}


@pytest.mark.parametrize(
    "name", ["*", "get_*", "get_?", "get_[a-z]", "!get", "get x", "get\n", "gét", "g" * 129, "{get}"]
)
def test_a_name_that_could_speak_for_other_tools_gets_no_class(name: str) -> None:
    assert proposed([{"name": name, "annotations": READS}]) == {}


def test_a_server_with_very_many_tools_does_not_fill_the_config() -> None:
    assert len(proposed({"name": f"get_{number}"} for number in range(5_000))) == 1_000


def test_the_next_start_waits_for_no_server_that_hung_when_classes_were_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposed_classes, "START_WITHIN", 1.0)
    file = tmp_path / "sluice.yaml"
    added = {"slow": {"command": "sleep", "args": ["100"]}, "gone": {"command": "false"}}
    rest = {"version": 1, "policy": {"use": "personal"}, "state": {"dir": str(tmp_path / "state")}}
    file.write_text(json.dumps(rest | {"servers": added}))
    found = propose(file, "", added)
    assert {key: one.hangs for key, one in found.items()} == {"slow": True, "gone": False}
    remember_hanging(file, found)
    loaded = config.load(file)
    places = {key: hung_key(key, loaded.servers[key].identity) for key in added}
    assert set(state.read(loaded, ["hung/"])) == {places["slow"]}


def test_a_first_start_that_downloads_has_longer_than_a_client_waits(tmp_path: Path) -> None:
    words = [sys.executable, listing_server.__file__]
    late = {"command": "/bin/sh", "args": ["-c", 'sleep 2; exec "$0" "$1"', *words], "start_timeout": "1s"}
    file = tmp_path / "sluice.yaml"
    (found,) = propose(file, "", {"late": late}).values()
    assert found.classes == {"get_issue": "read", "whoami": "read", "delete_repo": "destroy"}
    tutorial = Path(__file__).parents[2] / "docs" / "tutorials" / "desktop.md"
    assert START_WITHIN >= 45 and f"within {START_WITHIN:g} seconds" in tutorial.read_text()


def test_who_has_to_log_in_first_is_told_the_command_for_that_config(capsys: pytest.CaptureFixture[str]) -> None:
    show_classes({"web": Proposal(None, "it wants a login first", needs_login=True)}, Path("/x/s.yaml"))
    assert "See `sluice login web -c /x/s.yaml`." in capsys.readouterr().err
