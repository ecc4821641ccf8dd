"""What the commands use of the client library `muster`, in one place.

The commands open everything through `connect`, so that a missing instance, a wrong token and a time-out end in one
clear line with the right exit code.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol, TypeGuard

from control import instance
from control.errors import FAILURE, TRY_LATER, UNAVAILABLE, USAGE, UserError
from control.instance import Folder

EXIT_CODES: Final[Mapping[str, int]] = {
    "unavailable": UNAVAILABLE,
    "timeout": TRY_LATER,
    "invalid": USAGE,
    "bad_room_name": USAGE,
}
"""The library's error codes that are no plain failure."""


class Message(Protocol):
    """One message of a room."""

    room: str
    position: Any
    sender: int
    data: bytes


class Gap(Protocol):
    """What is known to be missing; `last` is None when nobody knows where it ends."""

    stream: int
    first: int
    last: int | None
    reason: str


class Room(Protocol):
    """A joined room."""

    def batches(self) -> AsyncIterator[Sequence[Message | Gap]]:
        """What came since the last batch, in order."""


class Client(Protocol):
    """A connected client."""

    def join(self, room: str) -> AbstractAsyncContextManager[Room]:
        """Join for as long as the block lasts."""

    async def publish(self, room: str, data: bytes) -> Any:
        """Return the position once the owner has numbered it, and with it everything published before."""

    def publish_nowait(self, room: str, data: bytes) -> bool:
        """Publish if there is credit; False says there is none."""

    def stats(self) -> Mapping[str, int]:
        """What this client has counted."""


def is_message(item: Message | Gap) -> TypeGuard[Message]:
    """Tell a message from a gap."""
    return hasattr(item, "data")


def is_gap(item: Message | Gap) -> TypeGuard[Gap]:
    """Tell a gap from a message."""
    return not hasattr(item, "data")


@asynccontextmanager
async def connect(place: Folder) -> AsyncIterator[Client]:
    """Connect to the instance in `place`. Raises `UserError`."""
    import muster

    instance.find(place)
    opened = getattr(muster, "connect", None)
    if opened is None:
        raise UserError("this build of the library has no client", UNAVAILABLE)
    failure: type[Exception] = getattr(muster, "MusterError", OSError)
    try:
        async with opened(instance=place.path) as client:
            yield client
    except failure as error:
        raise UserError(str(error), EXIT_CODES.get(str(getattr(error, "code", "")), FAILURE)) from None
