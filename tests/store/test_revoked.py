"""Keys that were taken back: by hash, by name where there is no other way, seen by every process, never forgotten."""

import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.store.private import Exposed
from sluicegate.store.revoked import FILE, Revoked, entries, revoke


def test_a_key_is_taken_back_by_its_hash_and_its_name_stays_good(tmp_path: Path) -> None:
    running = Revoked(tmp_path / "state")
    assert not running.look()
    revoke(tmp_path / "state", "ci", "sha256:aa")
    assert running.look() and not running.look()
    assert running.has("ci", "sha256:aa") and running.has("other", "sha256:aa")
    assert not running.has("ci", "sha256:bb")


def test_a_name_is_taken_back_where_its_hash_is_not_known(tmp_path: Path) -> None:
    revoke(tmp_path, "ci", None)
    assert Revoked(tmp_path).has("ci", "sha256:whatever")


def test_what_was_taken_back_stays_so_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    revoke(tmp_path, "ci", "sha256:aa")
    running = Revoked(tmp_path)
    (tmp_path / FILE).write_bytes(b'{"name": "x"\n\xff\n[1]\n{"name": "b", "hash": "sha256:bb", "at": 1}\n')
    assert running.look() and running.has("b", "sha256:bb") and running.has("ci", "sha256:aa")
    (tmp_path / FILE).unlink()
    assert not running.look() and running.has("ci", "sha256:aa")


def test_lines_that_cannot_be_read_are_told_until_somebody_removes_them(tmp_path: Path) -> None:
    revoke(tmp_path, "ci", "sha256:aa")
    running, file = Revoked(tmp_path), tmp_path / FILE
    assert running.problem == ""
    sound = file.read_bytes()
    file.write_bytes(sound + b"\n \r\n")
    assert Revoked(tmp_path).has("ci", "sha256:aa") and [one[:2] for one in entries(tmp_path)] == [("ci", "sha256:aa")]
    file.write_bytes(b"[" * 100_000)
    running.look()
    assert running.problem.endswith("line 1 cannot be read")
    file.write_bytes(sound + b"lea\n" + sound + b"{}\n")
    running.look()
    assert running.problem == f"{file}: a key that was revoked may be good: lines 2, 4 cannot be read"
    with pytest.raises(OSError, match=r"lines 2, 4 cannot be read\. Put that right"):
        Revoked(tmp_path)  # nobody knows who would be let in
    with pytest.raises(OSError, match="line 2 cannot be read"):
        list(entries(tmp_path))
    file.write_bytes(sound)
    running.look()
    assert running.problem == ""
    file.write_bytes(b"lea\n" * 10**5)
    running.look()
    assert running.problem.endswith("may be good: lines 1, 2, 3, 4, 5 and 99995 more cannot be read")
    aside = file.rename(tmp_path / "aside")
    assert not running.look() and running.problem == ""
    aside.rename(file)
    running.look()
    assert "99995 more" in running.problem, "the same file has come back"


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    revoke(tmp_path, "ci", None)
    (tmp_path / FILE).chmod(0o622)
    with pytest.raises(Exposed):
        Revoked(tmp_path)


def test_a_file_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path) -> None:
    """It was passed over, and who was taken back was let in."""
    (tmp_path / FILE).mkdir(0o600)
    with pytest.raises(OSError, match="it cannot be read"):
        Revoked(tmp_path)


def test_a_file_that_cannot_be_read_any_more_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Keys that were revoked since were good, and only a line of the log said so, twice a second."""
    running, file = Revoked(tmp_path), tmp_path / FILE
    file.mkdir()
    for _ in range(2):
        assert not running.look()
        assert running.problem == f"{file}: a key that was revoked may be good: it cannot be read"
    assert [one.message for one in caplog.records] == [running.problem]
    file.rmdir()
    revoke(tmp_path, "ci", "sha256:aa")
    assert running.look() and running.problem == ""


def test_nothing_is_revoked_where_another_user_could_not_read_it(tmp_path: Path) -> None:
    """A line of root's in the directory of the user who runs Sluice was a file that Sluice cannot read."""
    tmp_path.chmod(0o755)
    with pytest.raises(Exposed):
        revoke(tmp_path, "ci", "sha256:aa")
    assert not (tmp_path / FILE).exists()


def test_a_line_that_was_not_written_whole_swallows_no_other(tmp_path: Path) -> None:
    revoke(tmp_path, "ann", "sha256:aa")
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes() + b'{"name": "eve", "has')
    revoke(tmp_path, "bob", "sha256:bb")
    with pytest.raises(OSError, match="line 2 cannot be read"):
        Revoked(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[2])
    found = Revoked(tmp_path)
    assert found.has("ann", "sha256:aa") and found.has("bob", "sha256:bb")


def test_a_disk_without_room_for_the_whole_line_is_an_error(tmp_path: Path) -> None:
    """A limit of the size of files cuts a write short as a full disk does."""
    code = (
        "import pathlib, resource, signal, sys\n"
        "from sluicegate.store.revoked import revoke\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
        "revoke(pathlib.Path(sys.argv[1]), 'ann', 'sha256:aa')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "File too large" in done.stderr
    assert (tmp_path / FILE).stat().st_size == 20
