"""`muster command ROOM TEXT`: every member is told, and the exit code says what came of it."""

import asyncio

import msgspec

import muster
from control.commands.common import counted, typed
from control.commands.found import Where, connected
from control.errors import EXPIRED, NO_MEMBER, UserError


async def command(where: Where, room: str, text: str, expires: float, as_json: bool) -> int:
    """Send one and wait until it is known what came of it: 0 delivered, 3 no member, 4 expired. Raises `UserError`.

    In JSON there is a document in any case; of who is interrupted it says that nobody knows.
    """
    try:
        async with connected(where, reads=False) as client:
            outcome = await client.command(room, typed(text), expires=expires)
    except (UserError, asyncio.CancelledError) as error:
        if as_json and isinstance(error, UserError):
            _say({"outcome": "failed", "error": str(error)})
        elif as_json:
            _say({"outcome": "unknown", "error": "interrupted"})
        raise
    match outcome:
        case muster.Delivered(members):
            word, count, words, code = "delivered", members, f"delivered to {counted(members, 'member')}", 0
        case muster.NoMember():
            word, count, words, code = "no_member", 0, "nobody is in the room", NO_MEMBER
        case muster.Expired(members):
            word, count, code = "expired", members, EXPIRED
            words = f"expired; {counted(members, 'member')} had it by then"
    if as_json:
        _say({"outcome": word, "members": count})
    else:
        print(words)
    return code


def _say(document: dict[str, object]) -> None:
    print(msgspec.json.encode(document).decode())
