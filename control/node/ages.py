"""The age of messages that a node received, by the node that sent them (ROOM-26).

The node's status has it, measured by messages that carry their age. An age begins at a proxy, so a gateway's age covers
the whole path.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

HELP: Final = (
    "Time from a message's arrival at the proxy to its number (brokers) or its place (gateways), by the previous node"
)

Histogram = tuple[str, str, list[tuple[str, float]], float]
"""Name with labels, help, (upper end, count up to it), and the sum."""


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """The ages of messages from `node`: since the start in buckets, and recent percentiles."""

    node: int
    buckets: list[tuple[float | None, int]]
    """Upper bound in seconds, and the count up to it; the last bucket has no bound."""
    sum_s: float
    p50_us: int | None
    p99_us: int | None

    @property
    def count(self) -> int:
        """Since the start."""
        return self.buckets[-1][1]


def ages(status: Mapping[str, Any]) -> Iterator[Ages]:
    """The ages of a broker or a gateway; other roles have none."""
    for entry in status.get("ages", ()):
        yield msgspec.convert(entry, Ages)


def histograms(status: Mapping[str, Any], name_of: Callable[[int], str] | None = None) -> list[Histogram]:
    """The same as metrics. `name_of`: returns the stable name of a node, for the label `peer_name`."""

    def peer(node: int) -> str:
        return f'peer="{node}"' + ("" if name_of is None else f',peer_name="{name_of(node)}"')

    return [
        (
            f"message_age_seconds{{{peer(each.node)}}}",
            HELP,
            [("+Inf" if end is None else str(end), count) for end, count in each.buckets],
            each.sum_s,
        )
        for each in ages(status)
    ]
