"""Methods of the room engines besides those of every engine."""

from typing import Any, Protocol

from muster_server.plane.engine import DoorEngine, Engine, Node, Server

Cluster = tuple[list[Node], int, int]
"""The brokers of one further cluster, its number of partitions, and the step of its growth."""


class RoomsEngine(Engine, Protocol):
    """An engine of any role of rooms."""

    def placement(
        self,
        epoch: int,
        nodes: list[Node],
        partitions: tuple[int, int],
        growth: tuple[int, int] = (0, 0),
        beside: list[Cluster] = ...,
    ) -> None:
        """Use a newer placement; an older epoch changes nothing. `partitions`: of brokers and of routers.

        `growth` has the step of each: 0 none, 1 the new partitions prepare, 2 they serve. A broker or proxy gets the
        brokers of its own cluster. `beside` has those of the other clusters, for a router or a gateway, each always at
        the same index. Raises `ValueError` if a number of partitions is not a power of two up to 256, or a step of a
        growth is unknown.
        """

    def rooms(self, place: int, limit: int, text: str = "", /) -> tuple[list[dict[str, Any]], int | None]:
        """Return up to `limit` rooms with `text` in their names from the index `place` on, and the index of the next
        page."""

    def room(self, name: str) -> dict[str, Any] | None:
        """Return one room, if known here."""

    def interest(self, start: tuple[int, int], limit: int, /) -> tuple[list[tuple[int, int]], tuple[int, int] | None]:
        """Return at most `limit` pairs (gateway, room id) of known interest, and the next page."""


class RoomsDoor(RoomsEngine, DoorEngine, Protocol):
    """The engine of a gateway or a proxy."""

    def servers(self, gateways: list[Server], proxies: list[Server]) -> None:
        """Name these servers to clients from now on, except those of weight 0. Raises `ValueError` for a wrong key."""
