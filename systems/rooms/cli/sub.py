"""`muster sub ROOM`: prints the items that a member of a room gets."""

import asyncio
import base64
import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

import msgspec

import muster
from muster_server.control.cluster import sdk
from muster_server.control.cluster.instance import Process
from muster_server.control.cluster.sdk import Item
from muster_server.control.errors import USAGE, UserError
from muster_server.control.host.shown import one_line, shown, shown_json
from muster_server.control.terminal.common import counted
from muster_server.control.terminal.found import Target, connected, found
from muster_server.control.terminal.pipes import Writer
from muster_server.control.terminal.texts import Texts
from muster_server.systems.rooms.where import parse_where

NO_TEXTS: Final[Mapping[int, str]] = {}


def filter_of(where: Iterable[str], one_in: int, per_second: int | None = None) -> muster.Filter | None:
    """The filter of `--where NAME=VALUE[,VALUE]`, `--one-in N` and `--per-second R`; None if they ask for everything."""
    try:
        equal = parse_where(where)
    except ValueError as error:
        raise UserError(f"--where: {error}", USAGE) from None
    return muster.Filter(equal, one_in, per_second) if equal or one_in != 1 or per_second else None


async def subscribe(
    where: Target,
    room: str,
    count: int | None,
    history: int,
    wanted: muster.Filter | None,
    as_json: bool,
    raw: bool,
) -> int:
    """Print messages until `count` have come, the reader has closed stdout, or a signal cancels this."""
    left, plain = count, is_plain(raw)

    async def nodes() -> Iterable[Process]:
        if where.end.gateway() is not None:  # an end client asks no node
            return ()
        async with found(where) as every:
            return (await every.record()).processes

    texts = Texts(nodes)
    async with (
        connected(where, publishes=False, ages=as_json) as client,
        client.join(room, history=history, filter=wanted) as joined,
    ):
        writer, words = Writer(1), Writer(2)
        await _tell(words, f"joined {room}" + _history(joined, history))
        direct = asyncio.create_task(_direct(client, writer, words, texts, as_json)) if where.end.is_user else None
        try:
            async for batch in joined.batches():
                items, left = take(batch, left)
                await show(writer, words, items, as_json, plain, await texts.of(_senders(items, as_json)))
                if left == 0:
                    break
        except BrokenPipeError:
            pass  # the reader has closed stdout
        finally:
            if direct is not None:
                direct.cancel()
                await asyncio.wait([direct])
        if direct is not None and not direct.cancelled() and (error := direct.exception()) is not None:
            raise error
    return 0


async def _direct(client: sdk.Client, writer: Writer, words: Writer, texts: Texts, as_json: bool) -> None:
    """Print messages to the client's user, on stderr; in JSON on stdout."""
    async for message in client.direct():
        known = await texts.of([message.sender])
        if as_json:
            document: dict[str, Any] = (
                {"direct": message.number} | _sender(message.sender, known) | data_fields(message.data)
            )
            await writer.write(shown_json(msgspec.json.encode(document)) + b"\n")
        else:
            data = message.data.decode(errors="replace")
            await _tell(words, f"direct sender={_named(message.sender, known)} data={data}")


def _history(joined: sdk.Room, asked: int) -> str:
    if not asked:
        return ""
    given = joined.history
    return (
        f", {counted(given.messages, 'message')} of history{'' if given.whole else '; older ones are no longer stored'}"
    )


def take(batch: Iterable[Item], left: int | None) -> tuple[list[Item], int | None]:
    """The part of a batch up to the limit; only messages count."""
    if left is None:
        return list(batch), None
    wanted: list[Item] = []
    for item in batch:
        if left == 0:
            break
        wanted.append(item)
        left -= sdk.is_message(item)
    return wanted, left


def is_plain(raw: bool) -> bool:
    """Whether messages are printed byte for byte: into a file or pipe, or with --raw."""
    return raw or not sys.stdout.isatty()


async def show(
    writer: Writer,
    words: Writer,
    batch: Iterable[Item],
    as_json: bool,
    plain: bool = True,
    texts: Mapping[int, str] = NO_TEXTS,
) -> None:
    """Print in order: messages on stdout, other items on stderr after all earlier messages; in JSON all on stdout.

    Messages are printed unchanged if `plain`, else escaped for a terminal. `texts`: names of senders that are text.
    Raises `BrokenPipeError` when the reader of the messages has closed stdout.
    """
    if as_json:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        await writer.write(b"".join(_json(item, now, texts) + b"\n" for item in batch))
        return
    for messages, items in groupby(batch, sdk.is_message):
        if messages:
            data = (item.data if plain else escaped(item.data) for item in filter(sdk.is_message, items))
            await writer.write(b"".join(each + b"\n" for each in data))
            continue
        for item in items:
            await _tell(words, _words(item, texts))


async def _tell(words: Writer, line: str) -> None:
    """Print a line for people on stderr, if it is open; messages continue without it."""
    with contextlib.suppress(OSError):
        await words.write(f"{shown(line)}\n".encode(sys.stderr.encoding, "backslashreplace"))


def escaped(data: bytes) -> bytes:
    """Escape for a terminal; JSON becomes one line."""
    if b"\n" in data and data.lstrip()[:1] in {b"{", b"["}:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            data = msgspec.json.format(data, indent=0)
    return shown(data.decode(errors="backslashreplace")).encode()


def _words(item: Item, texts: Mapping[int, str]) -> str:
    if sdk.is_gap(item):
        last = "unknown" if item.last is None else item.last
        return f"gap stream={item.stream} first={item.first} last={last} reason={item.reason}"
    assert sdk.is_command(item)
    return f"command sender={_named(item.sender, texts)} data={item.data.decode(errors='replace')}"


def _senders(batch: Iterable[Item], as_json: bool) -> Iterator[int]:
    """The users whose names are printed."""
    for item in batch:
        if (as_json and sdk.is_message(item)) or sdk.is_command(item):
            yield item.sender


def _named(user: int, texts: Mapping[int, str]) -> str:
    return f"{user} ({one_line(texts[user])})" if user in texts else str(user)


def _sender(user: int, texts: Mapping[int, str]) -> dict[str, Any]:
    return {"sender": user} | ({"sender_text": texts[user]} if user in texts else {})


def _json(item: Item, now: str, texts: Mapping[int, str]) -> bytes:
    """`now`: the time at which the item arrived, in UTC."""
    document: dict[str, Any] = {}
    if sdk.is_message(item):
        at = item.position
        where = {"room": item.room, "position": str(at), "stream": str(at.stream)}
        age = {} if item.age is None else {"age": round(item.age, 6)}
        headers = {"headers": item.headers} if item.headers else {}
        document = where | _sender(item.sender, texts) | {"time": now} | age | headers | data_fields(item.data)
    elif sdk.is_command(item):
        document = (
            {"room": item.room, "command": item.number}
            | _sender(item.sender, texts)
            | {"time": now}
            | data_fields(item.data)
        )
    elif sdk.is_gap(item):
        reason = str(item.reason)
        document["gap"] = {"stream": str(item.stream), "first": item.first, "last": item.last, "reason": reason}
        document |= {"room": item.room, "time": now}
    return shown_json(msgspec.json.encode(document))


def data_fields(data: bytes) -> dict[str, str]:
    """The fields of a document that have the data: as text, or as base64."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(data).decode()}
