"""`muster rooms history ROOM`: a room's messages, from memory and from the archive. `muster rooms latest ROOM`: the latest
of each key, from the archive."""

import asyncio
import base64
import datetime
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import msgspec

import muster
from muster_server.control.errors import FAILURE, TRY_LATER, UNAVAILABLE, USAGE, UserError
from muster_server.control.host.shown import shown_json
from muster_server.control.terminal import calls
from muster_server.control.terminal.found import Target, connected, found
from muster_server.control.terminal.pipes import Writer
from muster_server.control.terminal.words import say
from muster_server.plane.calls import CallError
from muster_server.systems.rooms import history
from muster_server.systems.rooms.archive.asking import Archive
from muster_server.systems.rooms.archive.shapes import (
    LATEST_MAX,
    ROLE,
    Gap,
    Item,
    Latest,
    Message,
    Place,
    ReadLatest,
    place,
    shown,
)
from muster_server.systems.rooms.cli.sub import is_plain, show
from muster_server.systems.rooms.history import Asked, Found, Recent, Untimed

MEMORY_S: Final = 10.0
"""Limit of the wait for messages in memory, in seconds."""
MEMORY_MAX: Final = 1_024
"""Messages in memory that are asked for."""
PAGE: Final = 10_000
"""Messages of one page of the archive."""
CODES: Final = {"question": USAGE, "away": UNAVAILABLE, "late": TRY_LATER, "store": TRY_LATER}


async def print_history(
    where: Target, room: str, limit: int, since: str, reverse: bool, as_json: bool, raw: bool
) -> int:
    """Print messages on stdout, oldest first unless `reverse`, and gaps on stderr; in JSON all on stdout."""
    at, since_ms = _since(since)
    back = not since or reverse
    async with connected(where, publishes=False) as client, _archive(where) as archive:
        read = None if archive is None else archive.read
        recent, whole = await _recent(cast(muster.Client, client), room, MEMORY_MAX)
        items: list[Recent[muster.Message] | Item] = []
        left: int = limit
        asked = Asked(room, min(left, PAGE), back, at, since_ms)
        try:
            while True:
                page: Found[muster.Message] = await history.found(asked, recent, whole, read)
                items += page.items
                left -= page.messages
                if page.next is None or left <= 0:
                    break
                asked = Asked(room, min(left, PAGE), back, page.next)
        except Untimed:
            raise UserError(
                f"--since: messages of {room} have no time, as no archive keeps the room (archive.rooms)", USAGE
            ) from None
        except CallError as error:
            raise UserError(str(error), CODES.get(error.code, FAILURE)) from None
    if back and not reverse:
        items.reverse()
    await _print(room, items, as_json=as_json, raw=raw)
    if not page.whole:
        say(f"muster: older messages of {room} are no longer stored")
    return 0


async def print_latest(where: Target, room: str, as_json: bool, raw: bool) -> int:
    """Print the latest message of each key, in the order in which they came."""
    messages: list[Message] = []
    async with _archive(where) as archive:
        page = Latest()
        try:
            if archive is not None:
                page = await archive.latest(ReadLatest(room, LATEST_MAX))
            messages += page.messages
            while archive is not None and page.next is not None:
                page = await archive.latest(ReadLatest(room, LATEST_MAX, page.next, page.upto))
                messages += page.messages
        except CallError as error:
            raise UserError(str(error), CODES.get(error.code, FAILURE)) from None
    if not page.kept:
        raise UserError(f"no archive keeps {room}; to mend: add it to archive.rooms", UNAVAILABLE)
    await _print(room, messages, as_json=as_json, raw=raw)
    if not page.whole:
        say(
            f"muster: {room} has more keys than archive.keys_max, or the archive missed messages: some may be missing or old"
        )
    return 0


async def _recent(client: muster.Client, room: str, count: int) -> tuple[list[Recent[muster.Message]], bool]:
    """The messages in memory, and whether the room never had others, as far as its servers know."""
    messages: list[Recent[muster.Message]] = []
    joined, whole = await history.with_history(client, room, count)
    try:
        left = joined.history.messages
        async with asyncio.timeout(MEMORY_S):
            while left > 0:
                item = await anext(joined)
                if isinstance(item, muster.Message):
                    at = item.position
                    messages.append(Recent(str(at.stream), at.offset, item))
                    left -= 1
                elif isinstance(item, muster.Gap):
                    left -= left if item.last is None else item.last - item.first + 1
    except TimeoutError:
        raise UserError(f"the history of {room} was not received within {MEMORY_S:g} s; try again", TRY_LATER) from None
    finally:
        joined.leave()
    return messages, whole


@asynccontextmanager
async def _archive(where: Target) -> AsyncIterator[Archive | None]:
    """The archive, for a program that has the cluster's secret; None: there is none, or a user asks."""
    if where.end.is_user:
        yield None
        return
    async with found(where) as nodes:
        record = await nodes.record()
        look = calls.look(where, nodes, record, ROLE)
        if not look():
            yield None
            return
        archive = Archive(look, calls.key(where))
        try:
            yield archive
        finally:
            await archive.close()


def _since(text: str) -> tuple[Place | None, int | None]:
    """A position, or a time in milliseconds since 1970. Raises `UserError`."""
    if not text:
        return None, None
    try:
        if ":" in text and "." in text.partition(":")[0]:
            return place(text), None
        time = datetime.datetime.fromisoformat(text)
        if time.tzinfo is None:
            raise ValueError
    except ValueError:
        raise UserError(
            f"--since: invalid {text!a:.80} (expected a position as --json prints it, or a time with its zone, for example "
            "2027-01-01T00:00:00+00:00)",
            USAGE,
        ) from None
    return None, round(time.timestamp() * 1_000)


async def _print(room: str, items: Sequence[Recent[muster.Message] | Item], *, as_json: bool, raw: bool) -> None:
    writer, words = Writer(1), Writer(2)
    if as_json:
        lines = [shown_json(msgspec.json.encode(_document(room, item))) + b"\n" for item in items]
        await writer.write(b"".join(lines))
        return
    await show(writer, words, [_item(room, item) for item in items], False, is_plain(raw))


def _item(room: str, item: Recent[muster.Message] | Item) -> muster.Item:
    """An item as a member has it."""
    if isinstance(item, Recent):
        message: muster.Message = item.value
        return message
    if isinstance(item, Gap):
        return muster.Gap(muster.Stream(*item.stream), item.first, item.last, item.reason, room)
    return muster.Message(room, item.place.stream, item.place.offset, item.sender, item.data, None, item.headers)


def _document(room: str, item: Recent[muster.Message] | Item) -> dict[str, Any]:
    if isinstance(item, Gap):
        gap = {"stream": shown(item.stream), "first": item.first, "last": item.last, "reason": item.reason}
        return {"gap": gap, "room": room}
    message: muster.Message | Message = item.value if isinstance(item, Recent) else item
    sender, data, headers = message.sender, message.data, message.headers
    said: dict[str, Any] = {"room": room, "position": str(item.place), "sender": sender}
    if headers:
        said["headers"] = headers
    if not isinstance(item, Recent):
        at = datetime.datetime.fromtimestamp(item.at_ms / 1_000, datetime.UTC)
        said["time"] = at.isoformat(timespec="milliseconds")
    try:
        return said | {"data": data.decode()}
    except UnicodeDecodeError:
        return said | {"data_base64": base64.b64encode(data).decode()}
