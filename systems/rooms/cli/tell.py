"""`muster command ROOM TEXT`: sends a command to every member, and exits with a code for the outcome."""

import asyncio
from collections.abc import Mapping

import msgspec

import muster
from muster_server.control.errors import EXPIRED, NO_MEMBER, UserError
from muster_server.control.terminal.common import counted, typed, verdict_after
from muster_server.control.terminal.found import Target, connected


async def command(where: Target, room: str, text: str, expires: float, as_json: bool) -> int:
    """Send one and wait for the outcome: 0 delivered, 3 no member, 4 expired. Raises `UserError`.

    In JSON there is always a document; for an interrupted command its outcome is unknown.
    """
    try:
        async with connected(where, reads=False) as client:
            outcome = await client.command(room, typed(text), expires=expires)
    except (UserError, asyncio.CancelledError) as error:
        known = isinstance(error, UserError)
        document = (
            {"outcome": "failed", "error": str(error)} if known else {"outcome": "unknown", "error": "interrupted"}
        )
        with verdict_after():
            if as_json:
                print(_json(document))
        raise
    match outcome:
        case muster.Delivered(members):
            word, count, words, code = "delivered", members, f"delivered to {counted(members, 'member')}", 0
        case muster.NoMember():
            word, count, words, code = "no_member", 0, "the room has no member", NO_MEMBER
        case muster.Expired(members):
            word, count, code = "expired", members, EXPIRED
            words = f"expired; {counted(members, 'member')} had confirmed it"
    with verdict_after():
        print(_json({"outcome": word, "members": count}) if as_json else words)
    return code


def _json(document: Mapping[str, object]) -> str:
    return msgspec.json.encode(document).decode()
