"""What a plain call costs a replica of a fleet: what it costs a Sluice whose state is on its disk, but for a look at
whose request it is. Counted, for on a busy machine no time proves anything; what is done by the clock is left out."""

import sys
from pathlib import Path

import pytest
from bytecodes import FILE, counted, room
from peers.postgres import postgres

BY_THE_CLOCK = ("libraries", "store", "metrics", "downstream")
"""Rooms that do as much as a call in each batch of calls on a busy machine."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pins cores")


@pytest.mark.parametrize("kind", ["modern", "legacy"])
def test_a_plain_call_costs_no_more_where_state_is_in_postgres(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv(FILE, "")  # which is set there, for the process that counts

    def total(name: str, database: str = "") -> float:
        rows = counted(kind, tmp_path / name, database)
        ours = (row for row in rows if room(row.file) not in BY_THE_CLOCK)
        return sum(row.codes for row in ours if row.entered >= 1)

    with postgres("fsync=off") as engine:
        there = total("postgres", engine.url)
    here = total("sqlite")
    print(f"{kind}: {here:.0f} bytecodes with SQLite, {there:.0f} in a fleet on PostgreSQL ({there / here:.3f})")
    assert there <= 1.03 * here
