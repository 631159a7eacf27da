"""`sluice explain` beside the Sluice that runs, and without it: both say what happens to the call."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from command_line import run
from e2e.sluice_process import COMMAND, clean_environment
from policy_bed import Bed, Json, bed, client_keys, key_of, reason, recorder

ROWS = """\
p, role:authenticated, *, *, read, allow
p, role:dev, *, *, *, allow
p, *, git, tool:drop, *, deny
p2, *, git, *, write, one-of-leads
p, local, sluice, admin:*, *, allow
p, key:eve, sluice, admin:approvals, read, allow
"""
EXIT = {"allow": 0, "deny": 1, "ask": 10}


def explain(folder: Path, *words: str, who: str = "ann") -> "CompletedProcess[str]":
    return run(folder, "explain", "--json", "-c", "sluice.yaml", "--as", who, *words)


def sluice(folder: Path, *words: str) -> "CompletedProcess[str]":
    return sluice_with(folder / "sluice.yaml", *words)


def sluice_with(file: Path, *words: str) -> "CompletedProcess[str]":
    return run(file.parent, *words, "-c", file.name)


def verdict(done: "CompletedProcess[str]") -> str:
    found: str = json.loads(done.stdout)["verdict"]
    assert done.returncode == EXIT[found], done.stderr
    return found


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("explain")
    reads = {"annotations": {"readOnlyHint": True}}
    git = recorder(folder, "git", tools=["scale", "drop", {"name": "look", **reads}, {"name": "look2", **reads}])
    k8s = recorder(folder, "k8s", tools=["x"]) | {"prefix": "kube"}
    devs = {key: ["role:dev"] for key in ("ann", "bob", "cem", "dan")}
    clients: Json = {"keys": client_keys(eve=[], **devs)}
    clients["local"] = {"roles": ["role:lead"]}
    approvals = {"hold_for": "0s"}
    with bed(folder, ROWS, {"git": git, "k8s": k8s}, clients=clients, approvals=approvals) as made:
        assert "git__scale" in made.names("ann")
        done = sluice(folder, "pins", "accept", "git", "look")
        assert done.returncode == 0, done.stderr
        yield made


def happens(made: Bed, who: str, name: str) -> str:
    """What becomes of the call itself."""
    answer = made.call(who, name)
    said = reason(answer)
    return "ask" if said == "approval_pending" else "allow" if "result" in answer.json() and not said else "deny"


@pytest.mark.parametrize("offline", [[], ["--offline"]])
@pytest.mark.parametrize("name", ["scale", "drop", "look", "look2", "nothing"])
def test_accepted_annotations_and_tools_that_are_not_there_are_explained(
    town: Bed, name: str, offline: list[str]
) -> None:
    wanted = {"scale": "ask", "drop": "deny", "look": "allow", "look2": "ask", "nothing": "deny"}[name]
    assert happens(town, "ann", f"git__{name}") == wanted
    done = explain(town.folder, *offline, "call", f"git/{name}" if offline else f"git__{name}")
    assert verdict(done) == wanted and "note:" not in done.stderr, done.stderr
    if name == "nothing":
        assert json.loads(done.stdout)["absent"].startswith("git lists no tool nothing")
    if name == "look":
        assert json.loads(done.stdout)["class_from"] == "annotations.readOnlyHint, accepted"


def test_public_names_are_those_of_the_prefix(town: Bed) -> None:
    words = ["explain", "--json", "--as", "ann", "call", "kube__x", "-c", str(town.process.config)]
    said = subprocess.run([*COMMAND, *words], env=clean_environment(), capture_output=True, check=False)
    assert json.loads(said.stdout)["server"] == "k8s"
    for name in ("zzz__x", "k8s__x"):
        done = explain(town.folder, "call", name)
        assert verdict(done) == "deny" and "no server is known" in done.stdout
    assert verdict(explain(town.folder, "read", "kube+file:///a")) == "allow"
    assert verdict(explain(town.folder, "read", "kube+file:///a/../b")) == "deny"
    assert explain(town.folder, "call", "x").returncode == 2


def test_who_has_no_right_is_answered_by_the_stores(town: Bed) -> None:
    done = explain(town.folder, "--key", key_of("eve"), "call", "git/look")
    assert "eve lacks the right admin:policy read" in done.stderr and verdict(done) == "allow"


@pytest.mark.parametrize("offline", [[], ["--offline"]])
def test_a_grant_is_part_of_what_is_explained(town: Bed, offline: list[str]) -> None:
    who = "bob" if offline else "cem"
    before = explain(town.folder, *offline, "call", "git/scale", who=who)
    assert happens(town, who, "git__scale") == "ask" == verdict(before)
    listed = json.loads(sluice(town.folder, "approvals", "list", "--json").stdout)["approvals"]
    (id,) = [one["id"] for one in listed if one["principal"] == f"key:{who}"]
    done = sluice(town.folder, "approve", id, "--for", "15m")
    assert done.returncode == 0, done.stderr
    assert happens(town, who, "git__scale") == "allow"
    done = explain(town.folder, *offline, "call", "git/scale", who=who)
    assert verdict(done) == "allow" and json.loads(done.stdout)["grant"].startswith("grt_")


def test_a_grant_of_whoever_could_not_give_it_now_is_none_in_the_stores(town: Bed) -> None:
    assert happens(town, "dan", "git__scale") == "ask"
    listed = json.loads(sluice(town.folder, "approvals", "list", "--json").stdout)["approvals"]
    (id,) = [one["id"] for one in listed if one["principal"] == "key:dan"]
    assert sluice(town.folder, "approve", id, "--for", "15m").returncode == 0
    question = ["explain", "--json", "--offline", "--as", "dan", "call", "git/scale"]
    assert verdict(sluice(town.folder, *question)) == "allow"
    edited = town.folder / "nobody-leads.yaml"
    edited.write_text((town.folder / "sluice.yaml").read_text().replace('"role:lead"', '"role:follower"', 1))
    assert verdict(sluice_with(edited, *question)) == "ask"


def test_another_config_than_the_one_in_force_is_explained_by_the_stores(town: Bed) -> None:
    text = (town.folder / "sluice.yaml").read_text()
    edited = town.folder / "edited.yaml"
    edited.write_text(text.replace('"role:dev"', '"role:ops"'))
    done = sluice_with(edited, "explain", "--as", "ann", "call", "git/scale")
    assert done.returncode == 1 and "it decides by another config" in done.stderr


def test_the_variables_are_those_of_the_process_that_runs(tmp_path: Path) -> None:
    git = recorder(tmp_path, "git", tools=["look"]) | {"env": {"X": "${env:HOME_OF_EXPLAIN}"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME_OF_EXPLAIN", "x")
        more: Json = {"clients": {"keys": client_keys(ann=["role:dev"])}, "approvals": {"hold_for": "0s"}}
        with bed(tmp_path, ROWS, {"git": git}, **more) as made:
            assert made.names("ann") == ["git__look"]
            patch.delenv("HOME_OF_EXPLAIN")
            assert happens(made, "ann", "git__look") == "ask" == verdict(explain(tmp_path, "call", "git__look"))
            done = explain(tmp_path, "--offline", "call", "git/look")
            assert verdict(done) == "deny" and "server git is disabled" in done.stderr
