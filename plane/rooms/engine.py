"""What the engines of rooms do beyond what every engine does."""

from typing import Any, Protocol

from plane.engine import DoorEngine, Engine, Node, Server

Cluster = tuple[list[Node], int, int]
"""The brokers of one more cluster, how many partitions they have, and how far these double."""


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
        """Put a newer placement in force; an older epoch changes nothing. `partitions`: of brokers and of routers.

        `growth` says of each of them whether they double: 0 no, 1 the new ones prepare, 2 the new ones serve. To a broker or
        a proxy the brokers are those of its own cluster; `beside` are the other clusters', for a router or a gateway, each
        always at the same place. Raises `ValueError` where a number of partitions is no power of two up to 256, or a
        growth is none of these.
        """

    def rooms(self, place: int, limit: int, /) -> tuple[list[dict[str, Any]], int | None]:
        """Return those of the rooms here that stand in `limit` places from one on, and the place at which others follow."""

    def room(self, name: str) -> dict[str, Any] | None:
        """Return one room, if known here."""

    def interest(self, start: tuple[int, int], limit: int, /) -> tuple[list[tuple[int, int]], tuple[int, int] | None]:
        """Return at most `limit` (gateway, room id) that are wanted, as far as is known here, and where others follow."""


class RoomsDoor(RoomsEngine, DoorEngine, Protocol):
    """The engine of a gateway or a proxy."""

    def servers(self, gateways: list[Server], proxies: list[Server]) -> None:
        """From now on clients are told of these, without those of weight 0. Raises `ValueError` for a wrong key."""


class GatewayEngine(RoomsDoor, Protocol):
    """The engine of a gateway."""

    def history_max(self, messages: int) -> None:
        """From now on a join may ask for so many messages to come first."""


class ProxyEngine(RoomsDoor, Protocol):
    """The engine of a proxy."""

    def command_limit(self, rate: int, burst: int) -> None:
        """From now on a user may send so many commands a second, and so many at once."""
