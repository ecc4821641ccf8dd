"""An engine's counters and gauges as Prometheus metrics, read at each scrape.

Every name begins with `muster_` and has the labels role, node and name; counters end with `_total`. An engine may put
labels into a name, for example `datagrams_dropped{reason="malformed"}`.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from muster_server.control.node import logs
from muster_server.control.node.ages import Histogram

NAME: Final = re.compile(r"(?P<name>[a-z][a-z0-9_]*)(?:\{(?P<labels>.*)\})?")
LABEL: Final = re.compile(r'([a-z_]+)="([^"]*)"')
SLICE: Final = 16
"""Number of metrics that are rendered at once: about 0.2 ms."""
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Counted(Protocol):
    """Further sources of metrics, in the form of an engine's."""

    def counters(self) -> list[tuple[str, str, float]]:
        """Name, help and value of each counter since the start."""

    def gauges(self) -> list[tuple[str, str, float]]:
        """Name, help and value of each gauge."""


@runtime_checkable
class Distributed(Protocol):
    """Sources that also have histograms."""

    def histograms(self) -> list[Histogram]:
        """All histograms since the start."""


More = Callable[[], Iterable[Counted]]


class ServiceCollector(Collector):
    """Reads one service. Collected in its own loop, so nothing is locked.

    `own`: the labels of this node. `more` returns further sources, once per scrape.
    """

    def __init__(self, service: Counted, own: Mapping[str, str], version: str, more: More) -> None:
        self._service, self._version, self._more = service, version, more
        self._labels = dict(own)

    def collect(self) -> Iterator[Metric]:
        """All metrics of the service and its process."""
        yield _build(self._version)
        lost = ("log_lines_lost", "Log lines lost because stderr accepted no more", logs.lost())
        yield from self._families(CounterMetricFamily, [*self._service.counters(), lost])
        yield from self._families(GaugeMetricFamily, self._service.gauges())
        if isinstance(self._service, Distributed):
            yield from _histograms(self._labels, self._service.histograms())
        for each in self._more():
            yield from self._families(CounterMetricFamily, each.counters())
            yield from self._families(GaugeMetricFamily, each.gauges())
            if isinstance(each, Distributed):
                yield from _histograms(self._labels, each.histograms())

    def _families(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        samples: Iterable[tuple[str, str, float]],
    ) -> Iterator[Metric]:
        return _families(kind, self._labels, samples)


def _build(version: str) -> Metric:
    build = InfoMetricFamily("muster_build", "Version of the running program")
    build.add_metric([], {"version": version})
    return build


def _families(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    own: Mapping[str, str],
    samples: Iterable[tuple[str, str, float]],
) -> Iterator[Metric]:
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for full, text, value in samples:
        name, labels = _named(own, full)
        family = families.setdefault(name, kind(name, text, labels=list(labels)))
        family.add_metric(list(labels.values()), value)
    yield from families.values()


def _histograms(own: Mapping[str, str], samples: Iterable[Histogram]) -> Iterator[Metric]:
    families: dict[str, HistogramMetricFamily] = {}
    for full, text, buckets, total in samples:
        name, labels = _named(own, full)
        family = families.setdefault(name, HistogramMetricFamily(name, text, labels=list(labels)))
        family.add_metric(list(labels.values()), buckets, total)
    yield from families.values()


def _named(own: Mapping[str, str], full: str) -> tuple[str, dict[str, str]]:
    """Split a name into Prometheus's name and the labels."""
    match = NAME.fullmatch(full)
    assert match is not None, f"invalid metric name {full!r} of an engine"
    return "muster_" + match["name"].removesuffix("_total"), {**own, **dict(LABEL.findall(match["labels"] or ""))}


def registry(service: Counted, own: Mapping[str, str], version: str, more: More) -> CollectorRegistry:
    """The service's metrics, with these labels, those of its process, and `more`."""
    made = CollectorRegistry()
    made.register(ServiceCollector(service, own, version, more))
    ProcessCollector(namespace="muster", registry=made)
    return made


def read(source: CollectorRegistry) -> list[Metric]:
    """All metrics with their present values."""
    return list(source.collect())


async def text(metrics: Sequence[Metric]) -> bytes:
    """The page for Prometheus, rendered in slices: the loop does other work between them."""
    pages: list[bytes] = []
    for first in range(0, len(metrics), SLICE):
        pages.append(generate_latest(_Some(metrics[first : first + SLICE])))
        await asyncio.sleep(0)
    return b"".join(pages)


class _Some(Collector):
    """Some metrics, in the form that is rendered."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        """They have been read already."""
        return self._metrics
