"""The interface of a compiled engine to Python: one descriptor, one call per turn, a short list of events.

Owns only the types; the engines are in `muster_server._engines`.
"""

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from muster import turns

if TYPE_CHECKING:  # for type hints only
    from muster_server._engines import Grant, Mailboxes, Recipients

Event = turns.Event
"""A tuple that begins with a name: `("authenticate", question, credential)`, `("link_up", node, role, epoch)`,
`("ready",)`, …"""
Node = tuple[int, str, str, int, int, str]
"""Node, role, host, link port, partition, state ("init", "running" or "draining")."""
Server = tuple[str, int, bytes, int]
"""The address of a gateway or proxy for clients: host and port, its public key, and its weight."""
Layers = Mapping[str, tuple[int, int]]
"""For each partitioned role: the number of partitions of its layer, and the step of its growth: 0 none, 1 the new ones
prepare, 2 they serve."""
OtherCluster = tuple[list[Node], Layers]
"""The nodes of one more cluster, and its layers."""


class Placement(NamedTuple):
    """The map as one node uses it. Nodes of clustered roles are those of its own cluster."""

    epoch: int
    """A placement with a lower epoch than the current one changes nothing."""
    nodes: list[Node]
    layers: Layers
    beside: list[OtherCluster]
    """The other clusters, each always at the same index, for a role that serves all of them."""


class Engine(turns.Engine, Protocol):
    """One role's engine. No call blocks. The engine keeps its own deadlines: its descriptor becomes readable when one
    passes."""

    def join(self, mailboxes: "Mailboxes") -> int:
        """Share memory and one descriptor with the other engines of the process, and return this engine's number there.
        The mailboxes watch its descriptor from now on. Raises `OverflowError` beyond 64 engines at a time."""

    def linger(self, us: int) -> None:
        """Set the linger time. A turn that begins within 500 us of the last one then waits at most `us` microseconds
        for the next datagram, if the engine has a descriptor of its own."""

    def take_late(self) -> float:
        """Return the longest delay of a turn since the last call, in seconds."""

    def cluster_keys(
        self,
        key: tuple[int, bytes],
        other: tuple[int, bytes] | None = None,
        allow: tuple[bytes, list[tuple[int, str, bytes]], str] | None = None,
    ) -> None:
        """Use other secrets of the cluster: one for new links, and another one that is accepted.

        `allow`: this node's private key, number, role and public key of each node, and whether links with proof of
        these keys are `accepted`, `offered` or `required`. Links of a node whose key is no longer listed end at once.
        Dialling nodes replace links that use another secret than the first; links with a secret that is not accepted
        end within seconds. Raises `ValueError` if both secrets have the same id or one does not have 32 bytes.
        """

    def settled(self) -> bool:
        """Whether everything that the last placement requires of this role is done."""

    def counters(self) -> list[tuple[str, str, int]]:
        """Name, help and value of every counter since the start; a name may carry `{label="value"}`."""

    def gauges(self) -> list[tuple[str, str, float]]:
        """Name, help and value of every gauge."""

    def status(self) -> dict[str, Any]:
        """The state for operators, ready for JSON."""

    def addresses(self) -> list[tuple[str, int]]:
        """Return the bound addresses: the one for clients first, if there is one, then the one for links."""

    def buffers(self) -> list[tuple[int, int]]:
        """Per socket: the requested and the actual receive buffer, in bytes."""

    def drain(self) -> None:
        """Refuse new work and finish accepted work."""

    def drained(self) -> bool:
        """Whether all accepted work is finished."""

    def close(self) -> None:
        """Close the sockets; no call is allowed afterwards."""


class DoorEngine(Engine, Protocol):
    """The engine of a role that clients connect to."""

    def answer(
        self,
        question_id: int,
        user: int | None,
        denied: str = ...,
        *,
        grant: "Grant | None" = ...,
        left_ms: int | None = ...,
        token: int = ...,
        device: bytes = ...,
        recipients: "Recipients | None" = ...,
        takes_over: bool = ...,
    ) -> None:
        """Answer an `authenticate` question; `user` None refuses it, with the code `bad_credential`, `not_allowed` or
        `not_ready`.

        `grant`: the user's rights in each room; None: all. `left_ms`: the session ends after this, unless its user
        sends another token; None: no end. `token`: the number by which `revoke` names the credential; 0: none.
        `device`: name of the user's device in the credential; empty: none. `recipients`: to whom it may send; None:
        nobody. `takes_over`: the device may come although another one has just replaced it.
        """

    def revoke(self, users: Set[int], tokens: Set[int]) -> None:
        """End the sessions of these users, and those opened by these tokens."""

    def settings(self, json: bytes, /) -> None:
        """Use the settings that may change while it runs; `json` has all, as at the start. Raises `ValueError`."""

    def stay(self) -> None:
        """Accept clients again, after `drain`."""

    def cut_off(self) -> str | None:
        """Describe the partition that this node cannot reach though others may; None: it reaches all."""
