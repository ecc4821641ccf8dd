"""`muster rooms request ROOM` asks a room's responders; `muster rooms respond ROOM` is one, to try it."""

import asyncio
import contextlib
import sys

import msgspec

import muster
from muster_server.control.cluster.sdk import Client
from muster_server.control.errors import EXPIRED, FAILURE, NO_MEMBER
from muster_server.control.host.shown import shown_json
from muster_server.control.terminal.common import print_json, typed, verdict_after
from muster_server.control.terminal.found import Target, connected
from muster_server.control.terminal.pipes import Writer
from muster_server.systems.rooms.cli.sub import data_fields, escaped


async def ask(where: Target, room: str, text: str, timeout: float, as_json: bool) -> int:
    """Send one request and print the reply: 0; 3 if the room has no responder, 4 without a reply in time, 1 if the
    responder failed. Raises `UserError`."""
    async with connected(where) as client:
        document, words, code = await _asked(client, room, typed(text), timeout)
    with verdict_after():
        if as_json:
            print_json(document, line=True)
        else:
            print(words)
    return code


async def _asked(client: Client, room: str, data: bytes, timeout: float) -> tuple[dict[str, object], str, int]:
    """The outcome as JSON, as a line, and as an exit code."""
    try:
        reply = await client.request(room, data, timeout=timeout)
    except muster.NoResponders:
        return {"outcome": "no_responders"}, "the room has no responder", NO_MEMBER
    except muster.TimedOut as error:
        return {"outcome": "timeout"}, str(error), EXPIRED
    except muster.ResponderFailed as error:
        return {"outcome": "failed", "reason": error.reason}, str(error), FAILURE
    document: dict[str, object] = {"outcome": "replied", "responder": reply.responder, **data_fields(reply.data)}
    return document, escaped(reply.data).decode(), 0


async def answer(where: Target, room: str, text: str | None, as_json: bool) -> int:
    """Answer requests with a text, or with themselves, and print each, until a signal cancels this. Raises `UserError`."""
    writer, words = Writer(1), Writer(2)
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def handler(request: muster.Request) -> bytes:
        document = {"room": request.room, "sender": request.sender, **data_fields(request.data)}
        line = shown_json(msgspec.json.encode(document)) if as_json else escaped(request.data)
        try:
            await writer.write(line + b"\n")
        except BrokenPipeError:  # the reader has closed stdout
            if not over.done():
                over.set_result(None)
        return request.data if text is None else typed(text)

    async with connected(where) as client, client.respond(room, handler, at_once=1) as responder:
        with contextlib.suppress(OSError):
            await words.write(f"answering requests to {room}\n".encode(sys.stderr.encoding, "backslashreplace"))
        ended = asyncio.ensure_future(responder.wait())
        try:
            await asyncio.wait([ended, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if ended.done() and not ended.cancelled():
            ended.result()
    return 0
