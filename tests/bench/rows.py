"""Rows of a table: one kind of call to one subject, measured in rounds with the others. Knows no page."""

import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from load import Call, Figures, NoAnswer, middle, run
from subjects import LOAD_CORE, NotMeasured, Subject

CONCURRENCIES = (1, 16, 64)


@dataclass(slots=True)
class Row:
    """One kind of call to one subject, `seconds` at each concurrency. `base` is nginx with the same bytes, or what else
    it is compared with; none for what nothing is compared with. One that `may_fail` is left out from then on, and
    `stopped` says why; where it answers nothing at more than 16 at once, that concurrency alone is."""

    kind: str
    name: str
    subject: Subject
    call: Call
    concurrencies: tuple[int, ...]
    base: "Row | None" = None
    seconds: int = 1
    may_fail: bool = False
    stopped: str = ""
    runs: dict[int, list[Figures]] = field(default_factory=dict)

    def ratio(self, concurrency: int) -> float | None:
        """CPU per call relative to the base in the same round; the median over the rounds."""
        if self.base is None:
            return None
        pairs = zip(self.runs[concurrency], self.base.runs[concurrency], strict=True)
        return round(median(mine.cpu / theirs.cpu for mine, theirs in pairs), 2)

    def result(self) -> dict[str, Any]:
        at = {str(c): {**asdict(middle(self.runs[c])), "ratio": self.ratio(c)} for c in self.concurrencies}
        return {"kind": self.kind, "name": self.name, "to": self.base and self.base.name, "at": at}

    def run(self, concurrency: int, folder: Path) -> Figures | None:
        """None where it fails and may."""
        try:
            return run(self.subject, self.call, concurrency, self.seconds, folder, LOAD_CORE)
        except NotMeasured as why:
            if not self.may_fail:
                raise
            if isinstance(why, NoAnswer) and concurrency > 16:
                self.concurrencies = tuple(one for one in self.concurrencies if one != concurrency)
            else:
                self.stopped = why.why
            return None


def measure(rows: list[Row], rounds: int, folder: Path, warms_up: bool = False) -> None:
    """Rounds of all rows, not rows of all rounds: what else the machine does then hits all of them. And all rows at
    one concurrency, before the next: what is compared is seconds apart, on a machine that others slow down at times.
    `warms_up`: each row is run once before it counts."""
    for row in rows if warms_up else ():
        row.run(16, folder)
    concurrencies = sorted({concurrency for row in rows for concurrency in row.concurrencies})
    for round in range(rounds):
        for concurrency, row in ((c, row) for c in concurrencies for row in rows if c in row.concurrencies):
            if row.stopped:
                continue
            os.sync()  # or the log that one row leaves unsynced is written, and paid for, by the next one that syncs
            if (figures := row.run(concurrency, folder)) is not None:
                row.runs.setdefault(concurrency, []).append(figures)
        print(f"bench: {rows[-1].kind}, round {round + 1} of {rounds}", file=sys.stderr)
