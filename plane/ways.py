"""The ways from one system to another, which descriptors name: systems import each other not.

`System.targets` has ways into a system, for messages that fire; `System.outlet` is the way into topics of messages;
`System.calls` has methods for clients of an edge; `System.undelivered` hands on messages to users who are not online.
Knows no system.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

from muster_server.plane import systems
from muster_server.plane.kind import Into, named

if TYPE_CHECKING:  # descriptors of systems load this module, and need none of these
    from contextlib import AbstractAsyncContextManager

    from muster_server._engines import Grant, Undelivered
    from muster_server.plane.service import Context
    from muster_server.plane.spec import Spec


class NotTaken(Exception):
    """The other system did not accept the message. The text is one line. `lasting`: no retry can succeed."""

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class Way(Protocol):
    """Hands things over to another system, until `close`."""

    async def put(self, place: str, id: str, body: bytes, kind: str) -> None:
        """Hand over a body of this media type; returns once it is durable. The same id is taken once. Raises
        `NotTaken`."""

    async def close(self) -> None:
        """Close all connections."""


Failure = Literal["internal", "bad_request", "not_allowed", "not_available", "too_many_requests"]
FAILURES: Final[tuple[Failure, ...]] = get_args(Failure)


class CallRefused(Exception):
    """A call of a client failed for this reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Calls(Protocol):
    """Answers one method that clients of an edge call, until `close`."""

    outcomes: Sequence[str]
    """Outcomes of answered calls, for the edge's metric."""

    async def answer(self, user: int, grant: "Grant", data: bytes) -> tuple[str, bytes]:
        """The outcome and the answer of a call of this user, with its rights in rooms; data and answer are JSON. Raises
        `CallRefused`."""

    async def close(self) -> None:
        """Close all connections."""


def calls(runs: Callable[[str], bool]) -> dict[str, str]:
    """The methods of the systems that run, by name. `runs`: `Around.runs`."""
    found = (system for system in systems.named().values() if runs(system.name))
    return {method: path for system in found for method, path in system.calls.items()}


def hands_on(
    spec: "Spec", folder: str, where: str, queue: "Undelivered"
) -> "Callable[[Context], AbstractAsyncContextManager[object]]":
    """Hands on the messages of a queue to `KIND:NAME`, as long as its context is open, as `Role.beside`."""
    path = next(system.undelivered for system in systems.named().values() if system.undelivered)
    made: Callable[[Context], AbstractAsyncContextManager[object]] = named(path)(spec, folder, where, queue)
    return made


def targets() -> Mapping[str, Into]:
    """The kinds of targets that lead into systems."""
    return {kind: into for system in systems.named().values() for kind, into in system.targets.items()}


def owner(kind: str) -> str:
    """The system into which a kind of targets leads."""
    return next(system.name for system in systems.named().values() if kind in system.targets)


def into(kind: str, spec: "Spec", context: "Context", folder: str) -> Way:
    """The way into topics (`topic`) or, by its kind of targets, into another system. Raises `SpecError`."""
    return made(outlet() if kind == "topic" else targets()[kind].way, spec, context, folder)


def made(path: str, spec: "Spec", context: "Context", folder: str) -> Way:
    """A way, by its function. Raises `SpecError`."""
    way: Way = named(path)(spec, context, folder)
    return way


def outlet() -> str:
    """The function that makes a way into topics; empty: no system has one."""
    return next((system.outlet for system in systems.named().values() if system.outlet), "")
