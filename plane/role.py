"""What a role is to the server: its engine, and which events it answers itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from plane.engine import Engine

Handler = Callable[..., None]
TakeSecrets = Callable[[Sequence[bytes]], None]


@dataclass(frozen=True, slots=True)
class Role:
    """An engine and the handlers of its events, by the event's name.

    `take_secrets`: where it checks who clients are, with what it checks their tokens from now on.
    """

    engine: Engine
    handlers: Mapping[str, Handler] = field(default_factory=dict[str, Handler])
    take_secrets: TakeSecrets | None = None
