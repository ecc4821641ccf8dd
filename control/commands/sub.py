"""`muster sub ROOM`: prints what a room's members get."""

import base64
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from control import sdk
from control.commands.pipes import Writer
from control.instance import Folder
from control.sdk import Gap, Message


async def subscribe(place: Folder, room: str, count: int | None, as_json: bool) -> int:
    """Print messages until `count` have come, the reader has gone, or a signal cancels this."""
    left = count
    async with sdk.connect(place, publishes=False) as client, client.join(room) as joined:
        print(f"joined {room}", file=sys.stderr, flush=True)
        writer = Writer(1)
        async for batch in joined.batches():
            wanted, left = take(batch, left)
            try:
                await writer.write(render(wanted, as_json))
            except BrokenPipeError:
                return 0
            if left == 0:
                return 0
    return 0


def take(batch: Iterable[Message | Gap], left: int | None) -> tuple[list[Message | Gap], int | None]:
    """The part of a batch that is still wanted; only messages count."""
    if left is None:
        return list(batch), None
    wanted: list[Message | Gap] = []
    for item in batch:
        if left == 0:
            break
        wanted.append(item)
        left -= sdk.is_message(item)
    return wanted, left


def render(batch: Iterable[Message | Gap], as_json: bool) -> bytes:
    """What goes to stdout. Gaps go to stderr, as lines; in JSON they stand among the messages, in order."""
    pieces: list[bytes] = []
    for item in batch:
        if sdk.is_message(item):
            pieces.append(_message_json(item) if as_json else item.data)
        elif sdk.is_gap(item) and as_json:
            gap = {"stream": str(item.stream), "first": item.first, "last": item.last, "reason": str(item.reason)}
            pieces.append(msgspec.json.encode({"gap": gap}))
        elif sdk.is_gap(item):
            last = "unknown" if item.last is None else item.last
            words = f"gap stream={item.stream} first={item.first} last={last} reason={item.reason}"
            print(words, file=sys.stderr, flush=True)
    return b"".join(piece + b"\n" for piece in pieces)


def _message_json(message: Message) -> bytes:
    document: dict[str, Any] = {
        "room": message.room,
        "position": str(message.position),
        "sender": message.sender,
    }
    try:
        document["data"] = message.data.decode()
    except UnicodeDecodeError:
        document["data_base64"] = base64.b64encode(message.data).decode()
    return msgspec.json.encode(document)
