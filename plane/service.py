"""The interface of a process to a face or a worker. A machine's server has the same methods (`plane/server.py`)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from muster_server.plane.trust import Trust

TakeTrust = Callable[[Trust], None]
"""Use these secrets, keys and revocations for users' tokens from now on. Raises `SpecError` and changes nothing."""
Figure = tuple[str, str, float]
"""Name, help and value of a metric; a name may carry `{label="value"}`."""


class Service(Protocol):
    """Runs in one loop, from the start to the end of `run`."""

    ready: bool
    draining: bool
    closed: bool
    """True: it must not be called any more."""
    on_ready: Callable[[bool], None]
    """Called when `ready` changes."""

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Serve until `stop` is set, then finish accepted work, for at most `drain_s` seconds."""

    def status(self) -> dict[str, Any]:
        """The state for operators, ready for JSON; `state` is `ready`, `not ready` or `draining`."""

    def counters(self) -> list[Figure]:
        """Every counter since the start."""

    def gauges(self) -> list[Figure]:
        """Every gauge."""

    def addresses(self) -> list[tuple[str, int]]:
        """The bound addresses, the one for clients first."""

    def take(self, settings: Any) -> None:
        """Use new values of the settings that a running node can change."""

    @property
    def take_trust(self) -> TakeTrust | None:
        """The function that changes the secrets and keys of users' tokens; None if the service judges none."""


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of its process that a service may use."""

    log: structlog.typing.FilteringBoundLogger
    snapshot: Callable[[], Any]
    """The current map of all nodes, a `control.registry.Snapshot`."""
    session: Callable[[], str | None]
    """The state of the connection to the registry; None without a registry."""
    name: str = ""
    """The node's stable name."""
