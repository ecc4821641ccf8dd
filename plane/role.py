"""What a machine is to its server: its engine, and what the server passes on to it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from muster_server.plane.engine import Engine, Placement, Server
from muster_server.plane.service import Context, TakeTrust
from muster_server.plane.users import Texts

Handler = Callable[..., None]
Servers = Mapping[str, list[Server]]
"""By role, where clients reach its nodes."""


def _nothing(told: Any) -> None:
    """What a role does with what is nothing to it."""


@dataclass(frozen=True, slots=True)
class Role:
    """An engine and the handlers of its events, by the event's name."""

    engine: Engine
    handlers: Mapping[str, Handler] = field(default_factory=dict[str, Handler])
    take_trust: TakeTrust | None = None
    """Of a door: judge tokens by this from now on."""
    place: Callable[[Placement], None] = _nothing
    """Put a newer map in force."""
    take: Callable[[Any], None] = _nothing
    """Put those settings in force that a running node takes."""
    name: Callable[[Servers], None] = _nothing
    """Of a door: tell clients of these servers from now on."""
    texts: Texts | None = None
    """A door has the texts of users that it has seen."""
    beside: Callable[[Context], AbstractAsyncContextManager[object]] | None = None
    """The work beside the engine, with the parts of its process, while its context is open."""
