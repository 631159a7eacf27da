"""Keys that were taken back: by hash, by name where there is no other way, seen by every process, never forgotten."""

from pathlib import Path

import pytest

from sluicegate.store.private import Exposed
from sluicegate.store.revoked import FILE, Revoked, revoke


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


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    revoke(tmp_path, "ci", None)
    (tmp_path / FILE).chmod(0o622)
    with pytest.raises(Exposed):
        Revoked(tmp_path)
