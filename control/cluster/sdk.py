"""The commands' use of the client library `muster`.

The commands open everything through `connect`, so that a missing instance, a wrong token and a time-out end in one
clear line with the right exit code.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeGuard

import muster
from muster.inputs import check_name as check_room_name
from muster.responder import Handler
from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Endpoint, Folder
from muster_server.control.errors import FAILURE, TRY_LATER, UNAVAILABLE, USAGE, UserError

EXIT_CODES: Final[Mapping[str, int]] = {
    "unavailable": UNAVAILABLE,
    "invalid": USAGE,
    "bad_room_name": USAGE,
    "too_long": USAGE,
}
"""The library's error codes with exit codes of their own."""


END_CLIENT_S: Final = 5.0
"""Limit of a connection to servers that a user named by hand, perhaps wrongly, in seconds."""


class Message(Protocol):
    """One message of a room."""

    @property
    def room(self) -> str:
        """Name of the room, as the join gave it."""

    @property
    def position(self) -> muster.Position:
        """Its position."""

    @property
    def age(self) -> float | None:
        """Seconds since a proxy accepted it, if known."""

    @property
    def sender(self) -> int:
        """The user who published it."""

    @property
    def data(self) -> bytes:
        """Its content."""

    @property
    def headers(self) -> dict[str, str]:
        """Its headers by name."""


class Gap(Protocol):
    """An announced loss; `last` is None when no server knows the end."""

    @property
    def stream(self) -> object:
        """The stream of the offsets."""

    @property
    def first(self) -> int:
        """The first missing offset."""

    @property
    def last(self) -> int | None:
        """The last one."""

    @property
    def reason(self) -> str:
        """The reason."""

    @property
    def room(self) -> str:
        """Name of the room, as the join gave it."""


class Command(Protocol):
    """A command to every member."""

    @property
    def room(self) -> str:
        """Name of the room, as the join gave it."""

    @property
    def number(self) -> int:
        """All tries of one command have the same number."""

    @property
    def sender(self) -> int:
        """The user who sent it."""

    @property
    def data(self) -> bytes:
        """Its content."""


Item: TypeAlias = Message | Gap | Command


class Room(Protocol):
    """A joined room."""

    @property
    def history(self) -> muster.History:
        """The number of history messages that come first."""

    def batches(self) -> AsyncIterator[Sequence[Item]]:
        """The items since the last batch, in order."""


class Client(Protocol):
    """A connected client."""

    def join(
        self, room: str, *, history: int = 0, filter: muster.Filter | None = None
    ) -> AbstractAsyncContextManager[Room]:
        """Join while the block lasts; up to this many of the last messages come first. A filter leaves messages out."""

    async def publish(self, room: str, data: bytes) -> object:
        """Return the position once the owner has numbered it, and all that was published before."""

    def publish_nowait(self, room: str, data: bytes, *, headers: Mapping[str, str] | None = None) -> bool:
        """Publish if there is credit; False if there is none."""

    async def writable(self, room: str) -> None:
        """Return when there is credit again."""

    async def command(self, room: str, data: bytes, *, expires: float) -> muster.Outcome:
        """Send a command to every member, and return the outcome."""

    async def request(self, room: str, data: bytes, *, timeout: float) -> muster.Reply:
        """Ask a room's responders, and return the reply of the one that answers."""

    def respond(self, room: str, handler: Handler, *, at_once: int) -> muster.Responder:
        """Answer requests to a room while the block lasts."""

    async def send(
        self, user: int, data: bytes, *, device: str | None, expires: float
    ) -> Sequence[muster.DeviceResult]:
        """Send a message to a user's devices, and return the outcomes."""

    async def end_sessions(self, user: int, *, device: str | None, expires: float) -> Sequence[muster.DeviceResult]:
        """End the sessions of a user's devices, and return the outcomes."""

    async def end_member(self, room: str, user: int, *, expires: float) -> int:
        """End the sessions with which a user is a member, and return their number."""

    def direct(self) -> AsyncIterator[muster.Direct]:
        """Messages to this client's user, as they arrive."""

    async def members(self, room: str, *, ids: bool, start: int, wait: float) -> muster.Members:
        """Count a room's members and, with `ids`, list users from `start` on."""

    async def flush(self) -> None:
        """Return when the owners have numbered everything that was published."""

    def stats(self) -> Mapping[str, int]:
        """The counts of this client."""


def is_message(item: Item) -> TypeGuard[Message]:
    """Whether the item is a message."""
    return hasattr(item, "position")


def is_gap(item: Item) -> TypeGuard[Gap]:
    """Whether the item is a gap."""
    return hasattr(item, "reason")


def is_command(item: Item) -> TypeGuard[Command]:
    """Whether the item is a command."""
    return hasattr(item, "number")


def check_name(room: str) -> None:
    """Raise `UserError` for an invalid room name."""
    try:
        check_room_name(room)
    except muster.BadRoomName as error:
        raise _user_error(error) from None


@asynccontextmanager
async def connect(
    place: Folder | muster.Address,
    *,
    publishes: bool = True,
    reads: bool = True,
    at: Endpoint | None = None,
    token: bytes | None = None,
    ages: bool = False,
) -> AsyncIterator[Client]:
    """Connect to the instance in `place`, with the sessions that the client needs. Raises `UserError`.

    `at`: use only this gateway or proxy of the address. `token`: use this credential. `ages`: ask for the ages of
    messages.
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
            token=token,
            ages=ages,
        ) as client:
            yield client


@asynccontextmanager
async def end_client(known: muster.Address, *, publishes: bool = True, ages: bool = False) -> AsyncIterator[Client]:
    """Connect as an end client, which knows these gateways and learns the other servers from them. Raises `UserError`."""
    with in_one_line():
        async with muster.connect(
            gateways=known.gateways,
            proxies=None if publishes else (),
            token=known.token,
            timeout=END_CLIENT_S,
            ages=ages,
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
