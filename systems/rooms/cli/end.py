"""`muster rooms end ROOM USER`: ends the sessions with which a user is a member of a room, through the client library."""

import msgspec

from muster_server.control.errors import NO_MEMBER
from muster_server.control.host.shown import one_line
from muster_server.control.terminal.common import counted, verdict_after
from muster_server.control.terminal.found import Target, connected
from muster_server.control.terminal.users import user_of


async def end(where: Target, room: str, user: str, expires: float, as_json: bool) -> int:
    """End them and print their number. Returns 0, or 3 if the user is no member. Raises `UserError`."""
    number = user_of(where, user)
    async with connected(where, reads=False) as client:
        ended = await client.end_member(room, number, expires=expires)
    with verdict_after():
        if as_json:
            print(msgspec.json.encode({"ended": ended}).decode())
        else:
            print(
                f"ended {counted(ended, 'session')} of {one_line(user)}" if ended else f"{one_line(user)} is no member"
            )
    return 0 if ended else NO_MEMBER
