"""The links in a node's status as metrics, by the node at the other end.

Both ends report a link, each for its own datagrams: the loss is that of one direction.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any, Final

import msgspec

from muster_server.control.node.ages import Histogram, histograms


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One link to a node, from the engine's status. `lasts_s` None: there was never a link."""

    node: int
    role: str
    up: bool = True
    lasts_s: float | None
    observed_s: float
    availability: float
    failures: int
    ejected: str | None = None
    """The reason why choices skip it, if they do: `away`, `loss`, `delay` or `unanswered`."""
    rtt_us: int | None = None
    loss: float | None = None


Figure = tuple[str, str, float]


def links(status: Mapping[str, Any]) -> Iterator[Link]:
    """The links that are up, and those that are down. Workers and faces have none."""
    for entry in status.get("links", ()):
        yield msgspec.convert(entry, Link)
    for entry in status.get("links_lost", ()):
        yield msgspec.convert({**entry, "up": False}, Link)


class Links:
    """The links of a status as metrics, one per node that this one deals with.

    `known`: the nodes of the map. A lost link to any other node is skipped, so that it raises no alarm. `name_of`:
    returns the stable name of a node of the map, for the label `peer_name`.
    """

    _UP: Final = "1 while there is a link to the peer"
    _AVAILABILITY: Final = "Share of the time since the first link to the peer during which a link was up"
    _RTT: Final = "Smoothed round trip to the peer, 0 before the first one"
    _LOSS: Final = "Share of recent datagrams to the peer that it did not receive"
    _FAILURES: Final = "Links to the peer that were lost"

    def __init__(
        self, status: Mapping[str, Any], known: Set[int] | None = None, name_of: Callable[[int], str] | None = None
    ) -> None:
        self._name_of = name_of
        self._links = [each for each in links(status) if each.up or known is None or each.node in known]
        self._ages = histograms(status, name_of)

    def counters(self) -> list[Figure]:
        """The number of losses of each link."""
        return [(self._named("link_failures", link), self._FAILURES, link.failures) for link in self._links]

    def gauges(self) -> list[Figure]:
        """The current state of each link."""
        found: list[Figure] = []
        for link in self._links:
            found.append((self._named("link_up", link), self._UP, float(link.up)))
            found.append((self._named("link_availability_ratio", link), self._AVAILABILITY, link.availability))
            if link.up:
                found.append((self._named("link_rtt_seconds", link), self._RTT, (link.rtt_us or 0) / 1e6))
                found.append((self._named("link_loss_ratio", link), self._LOSS, link.loss or 0.0))
        return found

    def histograms(self) -> list[Histogram]:
        """The age of messages over each link."""
        return self._ages

    def _named(self, name: str, link: Link) -> str:
        by = "" if self._name_of is None else f'peer_name="{self._name_of(link.node)}",'
        return f'{name}{{peer="{link.node}",{by}peer_role="{link.role}"}}'
