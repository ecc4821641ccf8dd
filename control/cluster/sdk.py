"""What the commands use of the client library `muster`, in one place.

The commands open everything through `connect`, so that a missing instance, a wrong token and a time-out end in one
clear line with the right exit code.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeGuard

import muster
from control.cluster import instance
from control.cluster.instance import Endpoint, Folder
from control.errors import FAILURE, TRY_LATER, UNAVAILABLE, USAGE, UserError
from muster.client import check_name as check_room_name

EXIT_CODES: Final[Mapping[str, int]] = {
    "unavailable": UNAVAILABLE,
    "invalid": USAGE,
    "bad_room_name": USAGE,
    "too_long": USAGE,
}
"""The library's error codes that are no plain failure, nor for later."""


class Message(Protocol):
    """One message of a room."""

    @property
    def room(self) -> str:
        """As it was joined."""

    @property
    def position(self) -> object:
        """Its place, as text `stream:offset`."""

    @property
    def sender(self) -> int:
        """The user who published it."""

    @property
    def data(self) -> bytes:
        """What was published."""


class Gap(Protocol):
    """What is known to be missing; `last` is None when nobody knows where it ends."""

    @property
    def stream(self) -> object:
        """What the offsets count in."""

    @property
    def first(self) -> int:
        """The first offset that is missing."""

    @property
    def last(self) -> int | None:
        """The last one."""

    @property
    def reason(self) -> str:
        """Why."""


class Command(Protocol):
    """What somebody had told to every member."""

    @property
    def room(self) -> str:
        """As it was joined."""

    @property
    def number(self) -> int:
        """The same in each try."""

    @property
    def sender(self) -> int:
        """The user who sent it."""

    @property
    def data(self) -> bytes:
        """What is to be told."""


Item: TypeAlias = Message | Gap | Command


class Room(Protocol):
    """A joined room."""

    @property
    def history(self) -> muster.History:
        """How many of the last messages come first."""

    def batches(self) -> AsyncIterator[Sequence[Item]]:
        """What came since the last batch, in order."""


class Client(Protocol):
    """A connected client."""

    def join(self, room: str, *, history: int = 0) -> AbstractAsyncContextManager[Room]:
        """Join for as long as the block lasts, up to so many of the last messages coming first."""

    async def publish(self, room: str, data: bytes) -> object:
        """Return the position once the owner has numbered it, and with it everything published before."""

    def publish_nowait(self, room: str, data: bytes) -> bool:
        """Publish if there is credit; False says there is none."""

    async def writable(self, room: str) -> None:
        """Return when there is credit again."""

    async def command(self, room: str, data: bytes, *, expires: float) -> muster.Outcome:
        """Have every member told, and learn what came of it."""

    async def members(self, room: str, *, ids: bool, start: int, wait: float) -> muster.Members:
        """Count a room's members and, with `ids`, name users from `start` on."""

    async def flush(self) -> None:
        """Return when the owners have numbered everything that was published."""

    def stats(self) -> Mapping[str, int]:
        """What this client has counted."""


def is_message(item: Item) -> TypeGuard[Message]:
    """Tell a message from what else there is."""
    return hasattr(item, "position")


def is_gap(item: Item) -> TypeGuard[Gap]:
    """Tell a gap from what else there is."""
    return hasattr(item, "reason")


def is_command(item: Item) -> TypeGuard[Command]:
    """Tell a command from what else there is."""
    return hasattr(item, "number")


def check_name(room: str) -> None:
    """Raise `UserError` unless it is a room name."""
    try:
        check_room_name(room)
    except muster.BadRoomName as error:
        raise _user_error(error) from None


@asynccontextmanager
async def connect(
    place: Folder | muster.Address, *, publishes: bool = True, reads: bool = True, at: Endpoint | None = None
) -> AsyncIterator[Client]:
    """Connect to the instance in `place`, with a session for each thing that the client does. Raises `UserError`.

    `at`: of an address, with this gateway, or proxy, and no other one.
    """
    known: Path | muster.Address | None
    if isinstance(place, Folder):
        instance.find(place)
        known = place.path if place.chosen else None
    else:
        known = place
    servers = None if at is None else [(at.host, at.port, at.public_key)]
    with in_one_line():
        async with muster.connect(
            known,
            gateways=servers if reads else (),
            proxies=servers if publishes else (),
        ) as client:
            yield client


@contextmanager
def in_one_line() -> Iterator[None]:
    """Turn errors of the library into `UserError`, with the right exit code."""
    try:
        yield
    except muster.MusterError as error:
        raise _user_error(error) from None


def _user_error(error: muster.MusterError) -> UserError:
    return UserError(str(error), EXIT_CODES.get(error.code, TRY_LATER if error.retry else FAILURE))
