"""Times of the hops of a request for a probe room's members: the asked broker, and its gateways (ROOM-13).

A hop's time is measured by the clock of the asking node, from the request to the answer. So the broker's time includes
its slowest gateway. Knows no clock and no network; its memory is the last `KEPT` times of each hop.
"""

from array import array
from collections.abc import Collection, Sequence
from statistics import median_low
from typing import Final

import msgspec

import muster

KEPT: Final = 20


class HopTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One hop of a path. `seen`: the number of answers since the start."""

    node: int
    seen: int
    last_ms: float
    p50_ms: float
    max_ms: float


class Hops:
    """The hops of the probed paths."""

    def __init__(self) -> None:
        self._pairs: frozenset[tuple[int, int]] = frozenset()
        self._gateways: frozenset[int] = frozenset()
        self._times: dict[tuple[int, ...], array[float]] = {}
        """Times in ms, by proxy and broker, and by proxy, broker and gateway."""

    def follow(self, pairs: Collection[tuple[int, int]], gateways: Collection[int]) -> None:
        """Set the current pairs of proxy and broker, and the current gateways."""
        self._pairs, self._gateways = frozenset(pairs), frozenset(gateways)
        for way in [way for way in self._times if not self._is_probed(way)]:
            del self._times[way]

    def take(self, proxy: int, hops: Sequence[muster.Hop]) -> None:
        """Take the hops of an answer through a proxy: the broker, then the gateways that it asked."""
        for at, hop in enumerate(hops):
            way = (proxy, hops[0].node, hop.node) if at else (proxy, hop.node)
            if self._is_probed(way):
                times = self._times.setdefault(way, array("f"))
                if len(times) == KEPT:
                    times.pop(0)
                times.append(1000 * hop.seconds)

    def of(self, path: tuple[int, int, int]) -> list[HopTimes]:
        """Return the broker and the gateway of a path, as far as answers named them."""
        return [_told(way[-1], self._times[way]) for way in (path[:2], path) if way in self._times]

    def _is_probed(self, way: tuple[int, ...]) -> bool:
        return way[:2] in self._pairs and self._gateways.issuperset(way[2:])


def _told(node: int, times: "array[float]") -> HopTimes:
    last, middle, most = (round(ms, 3) for ms in (times[-1], median_low(times), max(times)))
    return HopTimes(node=node, seen=len(times), last_ms=last, p50_ms=middle, max_ms=most)
