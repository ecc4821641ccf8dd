"""The counters of the HTTP face, in the form of the nodes' `/metrics` (`control/node/metrics.py`).

Every name exists from the start, with 0 before the first event: otherwise a rate would miss that event.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from muster_server.control.node.ages import Histogram
from muster_server.systems.http.problems import KINDS

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
NO_ROUTE: Final = "none"
"""Label of requests without a route: their paths are not labels, since strangers choose them."""
REJECTED: Final = (*KINDS, "connections", "unread")
"""Reasons of refusals: codes of problems, too many connections, an unread answer."""


class Counts:
    """Counters, gauges and histograms of one process. A gauge is computed when it is read."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._times: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._named: Counter[tuple[str, str]] = Counter()
        self._texts: dict[str, str] = {}
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self.expect(NO_ROUTE, "GET", 404)
        for reason in REJECTED:
            self.rejected(reason, 0)

    def expect(self, route: str, method: str, status: int = 200) -> None:
        """Count a route from now on, starting at 0."""
        self._requests[route, method, status] += 0
        self._buckets(route)

    def request(self, route: str, method: str, status: int, seconds: float, *, timed: bool) -> None:
        """Count a request that ended. A stream is not `timed`: its duration tells nothing about the server."""
        self._requests[route, method, status] += 1
        if timed:
            self._buckets(route)[bisect_left(BOUNDS_S, seconds)] += 1
            self._seconds[route] += seconds

    def rejected(self, code: str, count: int = 1) -> None:
        """Count a request, or a connection, that got a problem."""
        text = "Requests and connections that were refused, by the code of the problem"
        self.add("http_rejected", text, count, reason=code)

    def add(self, name: str, text: str, count: float = 1, **labels: str) -> None:
        """Count another event; a `count` of 0 makes its name known."""
        said = ",".join(f'{key}="{value}"' for key, value in labels.items())
        self._texts[name] = text
        self._named[name, said] += count  # type: ignore[assignment]

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Register a value that is computed at each scrape."""
        self._gauges[name] = text, value

    def value(self, name: str, **labels: str) -> float:
        """The counts under this name."""
        return self._named[name, ",".join(f'{key}="{value}"' for key, value in labels.items())]

    def counters(self) -> list[tuple[str, str, float]]:
        """As `control.node.metrics.Counted`."""
        text = "Requests that ended, by route, method and status"
        requests = [
            (f'http_requests{{route="{route}",method="{method}",status="{status}"}}', text, float(count))
            for (route, method, status), count in self._requests.items()
        ]
        others = [
            (f"{name}{{{labels}}}" if labels else name, self._texts[name], float(count))
            for (name, labels), count in self._named.items()
        ]
        return requests + others

    def gauges(self) -> list[tuple[str, str, float]]:
        """As `control.node.metrics.Counted`."""
        return [(name, text, value()) for name, (text, value) in self._gauges.items()]

    def histograms(self) -> list[Histogram]:
        """As `control.node.metrics.Distributed`."""
        return [self._histogram(route, counts) for route, counts in self._times.items()]

    def totals(self) -> Mapping[str, float]:
        """The counts for `status`."""
        return {
            "requests": sum(self._requests.values()),
            "rejected": sum(count for (name, _), count in self._named.items() if name == "http_rejected"),
        }

    def _buckets(self, route: str) -> list[int]:
        if route not in self._times:
            self._times[route], self._seconds[route] = [0] * (len(BOUNDS_S) + 1), 0.0
        return self._times[route]

    def _histogram(self, route: str, counts: list[int]) -> Histogram:
        total, buckets = 0, []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        text = "From the head of a request to the end of its answer, streams apart"
        return f'http_request_seconds{{route="{route}"}}', text, buckets, self._seconds[route]
