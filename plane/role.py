"""The interface of a machine to its server: an engine, and what the server passes on to it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from muster_server.plane.engine import Engine, Placement, Server
from muster_server.plane.service import Context, Figure, TakeTrust
from muster_server.plane.users import Texts

Handler = Callable[..., None]
Servers = Mapping[str, list[Server]]
"""For each role, the addresses of its nodes for clients."""


def _nothing(told: Any) -> None:
    """Default handler: ignore."""


def _none() -> list[Figure]:
    """Default of counters."""
    return []


@dataclass(frozen=True, slots=True)
class Role:
    """An engine and the handlers of its events, by the event's name."""

    engine: Engine
    handlers: Mapping[str, Handler] = field(default_factory=dict[str, Handler])
    take_trust: TakeTrust | None = None
    """Only for a door: use new secrets and keys of tokens."""
    place: Callable[[Placement], None] = _nothing
    """Use a newer placement."""
    take: Callable[[Any], None] = _nothing
    """Use new values of the settings that a running node can change."""
    name: Callable[[Servers], None] = _nothing
    """Only for a door: name these servers to clients from now on."""
    texts: Texts | None = None
    """Only for a door: the names of users that are text."""
    beside: Callable[[Context], AbstractAsyncContextManager[object]] | None = None
    """Work beside the engine, as long as its context is open; it gets the parts of its process."""
    counters: Callable[[], list[Figure]] = _none
    """Counters of that work, as `Service.counters`."""
