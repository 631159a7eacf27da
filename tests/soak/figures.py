"""What a process holds, and whether it stays flat. Knows /proc and numbers; knows nothing of Sluice.

A run has four quarters. The first one is warm-up: caches fill. Flat is what has in the last quarter, on average, no
more and no less than in the second one, within `WITHIN`. Medians of threads are whole numbers, and one of 18 is 5.6 %.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

WITHIN: Final = 0.05
FLAT: Final = ("rss", "pss", "descriptors", "threads", "tasks")
MIN_SAMPLES: Final = 8
"""Two of each quarter; of fewer nothing can be said."""


@dataclass(frozen=True, slots=True)
class FlatRow:
    """How a figure has changed: its averages in the second and in the last quarter."""

    name: str
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after / self.before - 1 if self.before else float(self.after != 0)

    @property
    def is_held(self) -> bool:
        return abs(self.change) <= WITHIN

    def __str__(self) -> str:
        return f"{self.before:,.1f} in the second quarter, {self.after:,.1f} in the last: {self.change:+.1%}"


def of_process(pid: int) -> dict[str, float]:
    """MiB of memory, open descriptors and threads."""
    place = Path(f"/proc/{pid}")
    sizes = dict(line.split(":") for line in (place / "smaps_rollup").read_text().splitlines()[1:])
    memory = {name.lower(): int(sizes[name].split()[0]) / 1024 for name in ("Rss", "Pss")}
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    return {**memory, "descriptors": len(os.listdir(place / "fd")), "threads": int(status["Threads"])}


def size_of(place: Path) -> float:
    """MiB of a file, or of all files below a folder; those that leave meanwhile do not count."""
    total = 0
    for file in [place] if place.is_file() else place.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue
    return total / 2**20


def flatness(samples: Sequence[Mapping[str, float]], names: Sequence[str] = FLAT) -> list[FlatRow]:
    """Raises `ValueError` where there are too few samples to say."""
    if len(samples) < MIN_SAMPLES:
        raise ValueError(f"{len(samples)} samples are too few: a run has at least {MIN_SAMPLES}")
    quarter = len(samples) // 4
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    return [FlatRow(name, *(mean(one[name] for one in part) for part in (second, last))) for name in names]
