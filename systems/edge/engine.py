"""Methods of the edge's engine beyond those of every engine."""

from typing import Any, Protocol

from muster_server.plane.engine import Engine, Node


class EdgeEngine(Engine, Protocol):
    """A gateway whose members come by WebSocket."""

    def placement(
        self,
        epoch: int,
        nodes: list[Node],
        partitions: tuple[int, int],
        growth: tuple[int, int] = (0, 0),
        beside: list[Any] = ...,
    ) -> None:
        """As `RoomsEngine.placement`."""

    def answer_call(self, question_id: int, data: bytes | None, failure: str = ...) -> None:
        """Answer a call of a client with JSON; without data it failed: `internal`, `bad_request`, `not_allowed`,
        `not_available` or `too_many_requests`."""

    def allow_origins(self, origins: list[str] | None) -> None:
        """Sets the web sites whose pages may connect; None: those of the edge's own host; `*`: any."""

    def tls(self, certificates: bytes, key: bytes) -> None:
        """Use these for connections from now on. Raises `ValueError`."""

    def connection_limits(
        self, *, connections: int, address_connections: int, half_open: int, user_timeout_ms: int
    ) -> None:
        """Sets the bounds of connections."""

    def write_interval(self, interval_ms: int) -> None:
        """Messages of rooms leave this long after each other from now on; 0: each as soon as it is there."""

    def join_leave_max(self, users: int) -> None:
        """Joins and leaves are told in rooms with at most this many users; 0: in none."""

    def history_max(self, messages: int) -> None:
        """As `GatewayEngine.history_max`."""

    def bounds(self, *, sessions: int, places: int, rooms: int) -> None:
        """As `GatewayEngine.bounds`."""
