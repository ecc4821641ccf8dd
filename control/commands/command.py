"""`muster command ROOM TEXT`: every member is told, and the exit code says what came of it."""

import msgspec

import muster
from control.commands.common import counted, typed
from control.commands.found import Where, connected
from control.errors import FAILURE, TRY_LATER


async def command(where: Where, room: str, text: str, expires: float, as_json: bool) -> int:
    """Send one and wait until it is known what came of it: 0 delivered, 1 no member, 75 expired."""
    async with connected(where, reads=False) as client:
        outcome = await client.command(room, typed(text), expires=expires)
    match outcome:
        case muster.Delivered(members):
            word, count, words, code = "delivered", members, f"delivered to {counted(members, 'member')}", 0
        case muster.NoMember():
            word, count, words, code = "no_member", 0, "nobody is in the room", FAILURE
        case muster.Expired(members):
            word, count, code = "expired", members, TRY_LATER
            words = f"expired; {counted(members, 'member')} had it by then"
    print(msgspec.json.encode({"outcome": word, "members": count}).decode() if as_json else words)
    return code
