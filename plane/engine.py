"""What a compiled engine is to Python: one descriptor, one call per turn, a short list of events.

Owns the words only; the engines are in `muster._core`.
"""

from typing import Any, Final, Protocol

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
Beside = tuple[list[Node], int, int]
"""The brokers of one more cluster, how many partitions they have, and how far these double."""


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

    def answer(self, question_id: int, user: int | None, denied: str = ...) -> None:
        """Answer an `authenticate` question; None refuses, with the code `bad_credential` or `not_allowed`."""

    def placement(
        self,
        epoch: int,
        nodes: list[Node],
        partitions: tuple[int, int],
        growth: tuple[int, int] = (0, 0),
        beside: list[Beside] = ...,
    ) -> None:
        """Put a newer placement in force; an older epoch changes nothing. `partitions`: of brokers and of routers.

        `growth` says of each of them whether they double: 0 no, 1 the new ones prepare, 2 the new ones serve. To a broker or
        a proxy the brokers are those of its own cluster; `beside` are the other clusters', for a router or a gateway, each
        always at the same place. Raises `ValueError` where a number of partitions is no power of two up to 256, or a
        growth is none of these.
        """

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

    def history_max(self, messages: int) -> None:
        """From now on a join may ask a gateway for so many messages to come first; nothing to other roles."""

    def backoff(self, first_ms: int, max_ms: int) -> None:
        """From now on clients are told how to come back from a loss; nothing to roles that have none."""

    def session_limits(self, sessions: int, accept_rate: int) -> None:
        """From now on so many sessions are let in, and so many handshakes a second from one network.

        Nothing to roles that have none.
        """

    def command_limit(self, rate: int, burst: int) -> None:
        """From now on a proxy takes so many commands a second of a user, and so many at once; nothing to other roles."""

    def servers(self, gateways: list[Server], proxies: list[Server]) -> None:
        """From now on clients are told of these, but for those of weight 0; nothing to roles that have none.

        Raises `ValueError` where a key has not 32 bytes.
        """

    def settled(self) -> bool:
        """Whether all is done that the last placement asks of this role."""

    def counters(self) -> list[tuple[str, str, int]]:
        """Name, help and value of everything counted since the start; a name may carry `{label="value"}`."""

    def gauges(self) -> list[tuple[str, str, float]]:
        """Name, help and value of everything that goes up and down."""

    def status(self) -> dict[str, Any]:
        """Everything an operator asks first, ready for JSON."""

    def rooms(self, place: int, limit: int, /) -> tuple[list[dict[str, Any]], int | None]:
        """Return those of the rooms here that stand in `limit` places from one on, and the place at which others follow."""

    def room(self, name: str) -> dict[str, Any] | None:
        """Return one room, if known here."""

    def interest(self, start: tuple[int, int], limit: int, /) -> tuple[list[tuple[int, int]], tuple[int, int] | None]:
        """Return at most `limit` (gateway, room id) that are wanted, as far as is known here, and where others follow."""

    def addresses(self) -> list[tuple[str, int]]:
        """Return the sockets as bound: that for clients first, where there is one, then that for links."""

    def buffers(self) -> list[tuple[int, int]]:
        """Per socket: receive buffer asked for and effective, in bytes."""

    def drain(self) -> None:
        """Refuse new work and finish what was taken."""

    def drained(self) -> bool:
        """Whether everything that was taken is finished."""

    def stay(self) -> None:
        """Let clients in again, after `drain`."""

    def cut_off(self) -> str | None:
        """Return what others can do for clients and this one cannot: nodes run that it does not reach. None: nothing."""

    def close(self) -> None:
        """Close the sockets; nothing may be called after."""
