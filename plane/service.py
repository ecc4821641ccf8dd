"""What an edge or a worker is to its process. A machine's server has the same words (`plane/server.py`)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

TakeSecrets = Callable[[Sequence[bytes]], None]
Figure = tuple[str, str, float]
"""Name, help and value of a metric; a name may carry `{label="value"}`."""


class Service(Protocol):
    """Runs in one loop. `run` begins it and ends it."""

    ready: bool
    draining: bool
    closed: bool
    """Nothing may be asked any more."""
    on_ready: Callable[[bool], None]
    """Called when `ready` changes."""

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Serve until `stop` is set, then finish what was taken, for at most `drain_s` seconds."""

    def status(self) -> dict[str, Any]:
        """Everything an operator asks first, ready for JSON; `state` is `ready`, `not ready` or `draining`."""

    def counters(self) -> list[Figure]:
        """Everything counted since the start."""

    def gauges(self) -> list[Figure]:
        """Everything that goes up and down."""

    def addresses(self) -> list[tuple[str, int]]:
        """The sockets as bound, that for clients first."""

    def take(self, settings: Any) -> None:
        """Put those settings in force that a running node takes."""

    @property
    def take_secrets(self) -> TakeSecrets | None:
        """Takes the secrets that users' tokens are signed with; None where it checks none."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a service may use of its process."""

    log: structlog.typing.FilteringBoundLogger
    snapshot: Callable[[], Any]
    """The map of all nodes in force, a `control.registry.Snapshot`."""
    session: Callable[[], str | None]
    """How the connection to the registry stands; None without a registry."""
