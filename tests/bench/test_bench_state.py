"""What a plain call costs a replica of a fleet: what it costs a Sluice whose state is on its disk, but for a look at
whose request it is. Counted, for on a busy machine no time proves anything; what is done by the clock is left out."""

import sys
from pathlib import Path

import pytest
from bytecodes import FILE, Counted, counted, room
from peers.postgres import postgres

BY_THE_CLOCK = ("libraries", "store", "metrics", "downstream")
"""Rooms that do as much as a call in each batch of calls on a busy machine."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pins cores")


@pytest.mark.parametrize("kind", ["modern", "legacy"])
def test_a_plain_call_costs_no_more_where_state_is_in_postgres(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv(FILE, "")  # which is set there, for the process that counts

    def costs(name: str, database: str = "") -> dict[tuple[str, str, int], Counted]:
        rows = counted(kind, tmp_path / name, database)
        return {row[:3]: row for row in rows if room(row.file) not in BY_THE_CLOCK}

    with postgres("fsync=off") as engine:
        fleet = costs("postgres", engine.url)
    alone = costs("sqlite")
    # What belongs to a batch of calls is entered once in a call, or a little less: it counts on both sides or on none.
    each = {key for found in (fleet, alone) for key, row in found.items() if row.entered >= 1}
    there, here = (sum(found[key].codes for key in each & found.keys()) for found in (fleet, alone))
    print(f"{kind}: {here:.0f} bytecodes with SQLite, {there:.0f} in a fleet on PostgreSQL ({there / here:.3f})")
    assert there <= 1.03 * here
