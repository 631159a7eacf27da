"""Counters and histograms that one thread feeds and any may scrape.

prometheus_client's own take a lock for every number: 4 us of the five series that a call counts in, where plain
integers take half of one. The price: a scrape may see a call in one series and not yet in another. Knows Prometheus,
and no series of ours.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class Count:
    """One set of labels of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Counter:
    def __init__(self, name: str, text: str, labels: Labels, registry: CollectorRegistry) -> None:
        self._head = (name, text)
        self._labels = labels
        self._series: dict[Labels, Count] = {}
        registry.register(self)

    def labels(self, *values: str) -> Count:
        return self._series.setdefault(values, Count())

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(*self._head, labels=self._labels)
        for values, count in self._series.copy().items():
            family.add_metric(values, count.value)
        yield family


class Seconds:
    """One set of labels of a histogram."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds


class Histogram:
    """`bounds` are the upper ends of its buckets, in seconds."""

    def __init__(
        self, name: str, text: str, labels: Labels, bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._head = (name, text)
        self._labels = labels
        self._bounds = bounds
        self._shown = [*map(floatToGoString, bounds), "+Inf"]
        self._series: dict[Labels, Seconds] = {}
        registry.register(self)

    def labels(self, *values: str) -> Seconds:
        return self._series.setdefault(values, Seconds(self._bounds))

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(*self._head, labels=self._labels)
        for values, seconds in self._series.copy().items():
            family.add_metric(values, list(zip(self._shown, accumulate(seconds.counts), strict=True)), seconds.sum)
        yield family
