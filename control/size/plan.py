"""The plan of one demand: nodes of each role, what they hold and carry, and what limits each.

Owns the shapes, and the choice of a number of nodes from limits. Knows no system.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Annotated, Final

import msgspec

FULL: Final = 0.7
"""Share of a core, of memory, of a network or of a fixed limit that a plan fills: growth takes its time."""
WINDOW_S: Final = 0.002
"""What comes for one receiver within this time leaves together (`loop.linger_us`)."""
HEAD_B: Final = 140
"""Bytes of a datagram on the wire beyond its messages: IP, UDP, seal, numbers."""
MESSAGE_B: Final = 24
"""Bytes of a message in a datagram beyond its payload."""
DATAGRAM_B: Final = 1_200

Us = Annotated[float, msgspec.Meta(gt=0)]
Bytes = Annotated[float, msgspec.Meta(ge=0)]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The memory and the network of one node. A node of a role that is one process has one core."""

    memory_bytes: float = 8 * 2**30
    network_bps: float = 10e9


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of one role. Memory and network are those of one node, sent and received together."""

    role: str
    nodes: int
    layout: str = ""
    """Partitions and replicas, where the role has them."""
    cores: float
    """Busy cores of all its nodes together."""
    memory_bytes: float
    network_bps: float
    limits: Mapping[str, float]
    """Share of each limit that one node uses, of 1."""
    carries: str
    """What its nodes share: `members`, `messages/s`."""
    more: float
    """How much more of it one more node carries."""

    @property
    def first(self) -> str:
        """The limit that is reached first."""
        return max(self.limits, key=lambda name: self.limits[name])


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One system's part of a plan."""

    parts: Sequence[Part] = ()
    notes: Sequence[str] = ()
    """Limits that more nodes do not move, and assumptions, a sentence each."""
    config: Mapping[str, Mapping[str, object]] = {}
    """Sections and keys of the configuration."""


def bundled(rate: float) -> float:
    """Datagrams a second to one receiver that gets `rate` messages a second: those of one window leave together."""
    return rate / (1.0 + rate * WINDOW_S)


def wire_bytes(messages: float, datagrams: float, payload: int) -> float:
    """Bytes a second of these messages, with at least this number of datagrams."""
    size = payload + MESSAGE_B
    return messages * size + max(datagrams, messages * size / DATAGRAM_B) * HEAD_B


def cost_us(rate: float, alone_us: float, together_us: float) -> float:
    """A message's CPU where a node gets `rate` of them a second: dear alone, cheap among others of its window."""
    return together_us + max(0.0, alone_us - together_us) / (1.0 + rate * WINDOW_S)


def needed(shares: Mapping[str, float]) -> int:
    """Number of nodes for these whole shares: `{"CPU": 3.2}` is 3.2 nodes that are each filled up to `FULL`."""
    return max(1, ceil(max(shares.values()) / FULL))
