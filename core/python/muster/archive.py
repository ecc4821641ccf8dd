"""Messages of rooms over HTTP, for any program: pages of a room's history, from memory and from the archive. Needs nothing
besides this library.

Owns the shapes of answers (`docs/archive.md`), and two clients: `Archive` with one connection, for threads, and
`AsyncArchive` with several, for asyncio.
"""

import base64
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote, urlencode

from ._core import Position
from .errors import Invalid
from .face import CONNECTIONS, Face
from .face_sync import TIMEOUT_S, SyncFace
from .items import Gap, Stream

LIMIT: Final = 100
LATEST_PAGE: Final = 1_000
Since = Position | datetime | float
"""A position, or a time: with a zone, or in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One message of a room. `at`: when the archive got it, in seconds since 1970; None: it came from memory."""

    position: Position
    sender: int
    data: bytes
    at: float | None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """Messages of a room, with gaps in place of missing ones. `whole`: as many messages as requested, or all that the room
    ever had. `next`: the `after` of the next page; None: there is none now."""

    items: tuple[Kept | Gap, ...]
    whole: bool
    next: str | None

    @property
    def messages(self) -> tuple[Kept, ...]:
        """The messages alone."""
        return tuple(item for item in self.items if isinstance(item, Kept))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The gaps alone."""
        return tuple(item for item in self.items if isinstance(item, Gap))


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest message of each value of the header `key` of a room, in the order in which they came.

    `positions`: for `client.join`, which brings every later message once. `whole`: no key was left out as one too many
    (`archive.keys_max`), and the archive missed no message since the oldest of them."""

    messages: tuple[Kept, ...]
    positions: bytes
    whole: bool


class Archive:
    """One connection to an HTTP face. Several threads may share it; their calls run one after another."""

    def __init__(self, url: str, *, key: str = "", token: str = "", timeout: float = TIMEOUT_S) -> None:
        """`url`: `http://host:port` or `https://…` of the face, or of the proxy in front of it. `key`: an API key, or
        `token`: that of a user. Raises `Invalid`."""
        self._face = SyncFace(url, key=key, token=token, timeout=timeout)

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Another call opens it again."""
        self._face.close()

    def page(
        self,
        room: str,
        *,
        limit: int = LIMIT,
        since: Since | None = None,
        reverse: bool = False,
        after: str | None = None,
    ) -> Page:
        """The last `limit` messages of a room, the oldest first; `reverse`: the newest first.

        `since`: those behind a position, or from a time on; with `reverse` those before it. `after`: the `next` of a page
        with the same `since` and `reverse`. Raises `Refused`, `Unavailable`, `TimedOut`.
        """
        return _page(room, self._face.ask("GET", _path(room, limit, since, reverse, after)))

    def latest(self, room: str) -> Latest:
        """The latest message of each key of a room that the archive keeps, as of one moment.

        Raises `Refused` if no archive keeps the room, `Unavailable`, `TimedOut`.
        """
        pages = [self._face.ask("GET", _latest_path(room, None))]
        while (after := pages[-1]["next"]) is not None:
            pages.append(self._face.ask("GET", _latest_path(room, after)))
        return _latest(pages)

    def items(
        self, room: str, *, since: Since | None = None, reverse: bool = False, limit: int = LIMIT
    ) -> Iterator[Kept | Gap]:
        """Iterate over all messages of a room and its gaps, in pages of `limit`, until none follows.

        With `since` it begins there, the oldest first; else with the newest one, and goes back.
        """
        after: str | None = None
        while True:
            page = self.page(room, limit=limit, since=since, reverse=reverse or since is None, after=after)
            yield from page.items
            if (after := page.next) is None:
                return


class AsyncArchive:
    """Several connections to an HTTP face, for a program of asyncio. The calls are those of `Archive`."""

    def __init__(
        self, url: str, *, key: str = "", token: str = "", timeout: float = TIMEOUT_S, connections: int = CONNECTIONS
    ) -> None:
        """`url`: as of `Archive`. `connections`: concurrent calls; further ones wait. Raises `Invalid`."""
        self._face = Face(url, key=key, token=token, timeout=timeout, connections=connections)

    async def __aenter__(self) -> "AsyncArchive":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._face.close()

    async def page(
        self,
        room: str,
        *,
        limit: int = LIMIT,
        since: Since | None = None,
        reverse: bool = False,
        after: str | None = None,
    ) -> Page:
        """As `Archive.page`."""
        return _page(room, await self._face.ask("GET", _path(room, limit, since, reverse, after)))

    async def latest(self, room: str) -> Latest:
        """As `Archive.latest`."""
        pages = [await self._face.ask("GET", _latest_path(room, None))]
        while (after := pages[-1]["next"]) is not None:
            pages.append(await self._face.ask("GET", _latest_path(room, after)))
        return _latest(pages)

    async def items(
        self, room: str, *, since: Since | None = None, reverse: bool = False, limit: int = LIMIT
    ) -> AsyncIterator[Kept | Gap]:
        """As `Archive.items`."""
        after: str | None = None
        while True:
            page = await self.page(room, limit=limit, since=since, reverse=reverse or since is None, after=after)
            for each in page.items:
                yield each
            if (after := page.next) is None:
                return


def _path(room: str, limit: int, since: Since | None, reverse: bool, after: str | None) -> str:
    words: dict[str, Any] = {"history": limit}
    if isinstance(since, Position):
        words["since"] = f"{since.stream}:{since.offset}"
    elif isinstance(since, datetime):
        if since.tzinfo is None:
            raise Invalid(f"since: {since} has no zone")
        words["since"] = round(since.timestamp() * 1_000)
    elif since is not None:
        words["since"] = round(since * 1_000)
    if reverse:
        words["reverse"] = "true"
    if after is not None:
        words["after"] = after
    return f"/api/v1/rooms/{quote(room, safe='')}/messages?{urlencode(words)}"


def _latest_path(room: str, after: str | None) -> str:
    words = {"limit": LATEST_PAGE} | ({} if after is None else {"after": after})
    return f"/api/v1/rooms/{quote(room, safe='')}/latest?{urlencode(words)}"


def _latest(pages: Sequence[Any]) -> Latest:
    messages = tuple(_kept(each) for page in pages for each in page["messages"])
    return Latest(messages, base64.b64decode(pages[0]["resume"]["positions"]), all(page["whole"] for page in pages))


def _page(room: str, said: Any) -> Page:
    items: list[Kept | Gap] = list(map(_kept, said["messages"]))
    for each in reversed(said["gaps"]):
        gap = Gap(_stream(each["stream"]), each["first"], each["last"], each["reason"], room)
        items.insert(each["before"], gap)
    return Page(tuple(items), said["whole"], said["next"])


def _kept(said: Any) -> Kept:
    stream, _, offset = said["position"].rpartition(":")
    data = base64.b64decode(said["data"]) if said.get("encoding") == "base64" else said["data"].encode()
    at = said.get("at")
    place = Position(_stream(stream), int(offset))
    return Kept(place, int(said["sender"]), data, None if at is None else at / 1_000, said.get("headers", {}))


def _stream(text: str) -> Stream:
    node, epoch, generation = map(int, text.split("."))
    return Stream(node, epoch, generation)
