"""What a role is to the server: its engine, and which events it answers itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from plane.engine import Engine

Handler = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Role:
    """An engine and the handlers of its events, by the event's name."""

    engine: Engine
    handlers: Mapping[str, Handler] = field(default_factory=dict[str, Handler])
