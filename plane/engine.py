"""What a compiled engine is to Python: one descriptor, one call per turn, a short list of events.

Owns the words only; the engines are in `muster._core`.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

MORE: Final = 1
"""Bit of `turn`: more work waits, call again soon."""
EVENTS: Final = 2
"""Bit of `turn`: `events` has something."""

Event = tuple[Any, ...]
"""Name first: `("authenticate", question, credential)`, `("link_up", node, role, epoch)`, `("ready",)`, …"""
Node = tuple[int, str, str, int, int, str]
"""Node, role, host, link port, partition, state ("init", "running" or "draining")."""
Server = tuple[str, int, bytes, int]
"""Where clients reach a gateway or a proxy: host and port, the public key that it proves itself by, and its weight."""
Layers = Mapping[str, tuple[int, int]]
"""By partitioned role: how many partitions its layer has, and how far that doubles: 0 not, 1 the new ones prepare,
2 the new ones serve."""
OtherCluster = tuple[list[Node], Layers]
"""The nodes of one more cluster, and its layers."""


class Placement(NamedTuple):
    """The map as one node takes it. Nodes of clustered roles are those of its own cluster."""

    epoch: int
    """An older one than that in force changes nothing."""
    nodes: list[Node]
    layers: Layers
    beside: list[OtherCluster]
    """The other clusters, each always at the same place, for a role that serves all of them."""


class Engine(Protocol):
    """One role's engine. No call blocks. Deadlines are its own: its descriptor becomes readable when one passes."""

    def fd(self) -> int:
        """Return the one descriptor to watch for reading."""

    def turn(self) -> int:
        """Receive a batch, let time pass, send; bounded in datagrams and microseconds. Returns bits."""

    def events(self) -> list[Event]:
        """Take what happened since the last call."""

    def take_late(self) -> float:
        """Return by how many seconds a turn was late, the longest since the last call."""

    def cluster_keys(
        self,
        key: tuple[int, bytes],
        other: tuple[int, bytes] | None = None,
        allow: tuple[bytes, list[tuple[int, str, bytes]], str] | None = None,
    ) -> None:
        """Put other secrets of the cluster in force: that of new links, and another one that is accepted.

        `allow`: this node's private key, number, role and public key of each node, and whether links with proof of these
        keys are `accepted`, `offered` or `required`. Links of a node whose key is not there any more end at once.

        Links that were made with another than the first are made anew by who dialled them; those whose secret is not
        accepted any more end within seconds. Raises `ValueError` where both have one id or one has not 32 bytes.
        """

    def settled(self) -> bool:
        """Whether all is done that the last placement asks of this role."""

    def counters(self) -> list[tuple[str, str, int]]:
        """Name, help and value of everything counted since the start; a name may carry `{label="value"}`."""

    def gauges(self) -> list[tuple[str, str, float]]:
        """Name, help and value of everything that goes up and down."""

    def status(self) -> dict[str, Any]:
        """Everything an operator asks first, ready for JSON."""

    def addresses(self) -> list[tuple[str, int]]:
        """Return the sockets as bound: that for clients first, where there is one, then that for links."""

    def buffers(self) -> list[tuple[int, int]]:
        """Per socket: receive buffer asked for and effective, in bytes."""

    def drain(self) -> None:
        """Refuse new work and finish what was taken."""

    def drained(self) -> bool:
        """Whether everything that was taken is finished."""

    def close(self) -> None:
        """Close the sockets; nothing may be called after."""


class DoorEngine(Engine, Protocol):
    """The engine of a role that clients speak to."""

    def answer(self, question_id: int, user: int | None, denied: str = ...) -> None:
        """Answer an `authenticate` question; None refuses, with the code `bad_credential` or `not_allowed`."""

    def backoff(self, first_ms: int, max_ms: int) -> None:
        """From now on clients are told how to come back from a loss."""

    def session_limits(self, sessions: int, accept_rate: int) -> None:
        """From now on so many sessions are let in, and so many handshakes a second from one network."""

    def stay(self) -> None:
        """Let clients in again, after `drain`."""

    def cut_off(self) -> str | None:
        """Return what other nodes can do for clients and this one cannot, as it does not reach some; None: nothing."""
