"""Commands where this user may not look into `state.dir`, such as after one `sudo sluice`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sluicegate import config
from sluicegate.cli.doctor_machine import Examined, state_directory
from sluicegate.cli.install import uninstall
from sluicegate.cli.keys import revoke
from sluicegate.cli.output import Stopped
from sluicegate.desktop.changes import Journal

NOBODY = 65534


@contextmanager
def without_rights() -> Iterator[None]:
    """Root may look everywhere, so it is nobody for a moment."""
    was = os.geteuid()
    if was == 0:
        os.setresuid(NOBODY, NOBODY, was)
    try:
        yield
    finally:
        if was == 0:
            os.setresuid(was, was, was)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody may enter, with one in it that nobody else may."""
    with TemporaryDirectory() as made:
        home = Path(made)
        home.chmod(0o755)
        closed = home / "closed"
        (closed / "state").mkdir(parents=True)
        (home / "sluice.yaml").touch()
        closed.chmod(0 if os.geteuid() else 0o700)
        yield home
        closed.chmod(0o700)


@pytest.mark.parametrize("state", ["closed", "closed/state"])
def test_a_state_directory_that_cannot_be_looked_into_is_a_fault_and_no_traceback(folder: Path, state: str) -> None:
    text = f"policy: {{use: personal}}\nservers: {{}}\nstate: {{dir: {state}}}\naudit: {{enabled: false}}\n"
    loaded = config.check_text(text, str(folder / "sluice.yaml"), folder, {}).config
    assert loaded is not None
    examined = Examined(folder / "sluice.yaml", [], loaded, None, None)
    with without_rights():
        found = [one for one in state_directory(examined) if one.subject.startswith("state.dir")]
    assert {one.state for one in found} == {"failed"}
    assert found[0].message == f"you may not write in {folder / 'closed'}"


def test_the_journal_of_a_state_that_cannot_be_looked_into_has_no_time(folder: Path) -> None:
    with without_rights():
        assert Journal(folder / "closed" / "state", "cursor").written_at() is None


def test_uninstall_names_the_file_that_it_cannot_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    path = folder / "sluice.yaml"
    path.write_text("policy: {use: personal}\nservers: {}\nstate: {dir: closed/state}\n")
    assert config.check(path).config is not None  # imports what nobody might not read
    with without_rights(), pytest.raises(Stopped) as stopped:
        uninstall(["cursor"], dry_run=True, config_file=path)
    journal = folder / "closed" / "state" / "desktop" / "cursor.json"
    assert stopped.value.args[0].endswith(f"mcp.json: Permission denied: {journal}")


def test_a_key_is_not_revoked_in_a_state_that_cannot_be_looked_into_and_that_is_said(folder: Path) -> None:
    path = folder / "sluice.yaml"
    path.write_text("policy: {use: personal}\nservers: {}\nstate: {dir: closed/state}\nclients: {keys: {ci: {}}}\n")
    assert config.check(path).config is None
    with without_rights(), pytest.raises(Stopped) as stopped:
        revoke("ci", config_file=path)
    assert stopped.value.args[0].startswith(f"ci is NOT revoked: cannot write in {folder / 'closed' / 'state'}: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone meets a folder of somebody else that it may write in")
def test_root_is_told_as_whom_to_revoke_a_key(folder: Path) -> None:
    path, state = folder / "sluice.yaml", folder / "closed" / "state"
    path.write_text("policy: {use: personal}\nservers: {}\nstate: {dir: closed/state}\nclients: {keys: {ci: {}}}\n")
    os.chown(state, NOBODY, NOBODY)
    with pytest.raises(Stopped) as stopped:
        revoke("ci", config_file=path)
    assert f"run this as uid {NOBODY}" in stopped.value.args[0]
