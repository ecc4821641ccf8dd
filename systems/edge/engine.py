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

    def tls(self, certificates: bytes, key: bytes) -> None:
        """Use these for connections from now on. Raises `ValueError`."""

    def settings(self, json: bytes, /) -> None:
        """As `DoorEngine.settings`."""
