"""The series of several workers as those of one Sluice: what is counted is added up, what is a state is told once.

What a worker counted before it ended stays in the sums, as far as somebody has looked: a counter that fell would be
read as one that began anew. Knows Prometheus' text form, and no worker.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import prometheus_client  # its own file imports servers and clients of HTTP: only who renders names it
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

Key = tuple[str, tuple[tuple[str, str], ...]]
"""Name of a sample, and its labels."""
Together = Callable[[Iterable[float]], float]

STATES: Final[Mapping[str, Together]] = {
    # the worst of them
    "sluice_server_up": min,
    "sluice_circuit_state": max,
    "sluice_approval_oldest_pending_seconds": max,
    "sluice_policy_shadow": max,
    "sluice_policy_blocks": max,
    "sluice_policy_reload_success": min,
    "sluice_policy_last_reload_timestamp_seconds": min,
    "sluice_audit_lag_seconds": max,
    # the same in all of them
    "sluice_catalog_tools": max,
    "sluice_definitions_withheld": max,
    "sluice_policy_info": max,
    "sluice_build_info": max,
    "process_start_time_seconds": min,
}
"""Gauges that say how something is; all others say how many there are."""


@dataclass(frozen=True, slots=True)
class _Series:
    """A family, and its samples in the order in which they came."""

    name: str
    type: str
    text: str
    samples: Mapping[Key, float]

    @property
    def counts(self) -> bool:
        return self.type in ("counter", "histogram")


SeriesByName = Mapping[str, _Series]


class Merged:
    """`take` is told what a worker says, under a name that no later process has; `of` gives all as one text."""

    def __init__(self) -> None:
        self._reported: dict[Hashable, SeriesByName] = {}
        self._over: SeriesByName = {}

    @property
    def workers(self) -> frozenset[Hashable]:
        """The workers that were heard and have not ended."""
        return frozenset(self._reported)

    def take(self, worker: Hashable, text: str) -> None:
        """Takes the series of a worker. It may take long: call it in a worker thread."""
        self._reported[worker] = {family.name: _read(family) for family in text_string_to_metric_families(text)}

    def end(self, worker: Hashable) -> None:
        """Notes that a worker has ended: its counters stay, its gauges go."""
        last = self._reported.pop(worker, {})
        counters = {name: series for name, series in last.items() if series.counts}
        self._over = {one.name: one for one in _merge([self._over, counters])}

    def render(self) -> tuple[bytes, str]:
        registry = CollectorRegistry()
        registry.register(_Whole(list(_merge([*self._reported.values(), self._over]))))
        return prometheus_client.generate_latest(registry), prometheus_client.CONTENT_TYPE_LATEST


class _Whole:
    def __init__(self, series: Iterable[_Series]) -> None:
        self._series = series

    def collect(self) -> Iterator[Metric]:
        for one in self._series:
            family = Metric(one.name, one.text, one.type)
            for (name, labels), value in one.samples.items():
                family.add_sample(name, dict(labels), value)
            yield family


def _read(family: Metric) -> _Series:
    samples = {(one.name, tuple(one.labels.items())): one.value for one in family.samples}
    return _Series(family.name, family.type, family.documentation, samples)


def _merge(all_series: Iterable[SeriesByName]) -> Iterator[_Series]:
    found: dict[str, list[_Series]] = {}
    for reported in all_series:
        for name, series in reported.items():
            found.setdefault(name, []).append(series)
    for name, parts in found.items():
        yield _together(parts, math.fsum if parts[0].counts else STATES.get(name, math.fsum))


def _together(parts: list[_Series], together: Together) -> _Series:
    values: dict[Key, list[float]] = {}
    for part in parts:
        for key, value in part.samples.items():
            values.setdefault(key, []).append(value)
    return replace(parts[0], samples={key: together(found) for key, found in values.items()})
