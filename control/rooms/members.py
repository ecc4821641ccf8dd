"""`muster members ROOM`: the number of a room's members and, if asked, their users; the exit code tells partial
answers."""

import msgspec

import muster
from control.console.common import counted, verdict_after
from control.console.found import Target, connected
from control.errors import TRY_LATER


async def show(where: Target, room: str, ids: bool, start: int, wait: float, as_json: bool) -> int:
    """Ask all gateways and print the answer. Returns 0, or 75 if a gateway did not answer in time."""
    async with connected(where, reads=False) as client:
        members = await client.members(room, ids=ids, start=start, wait=wait)
    with verdict_after():
        _print(members, ids, as_json)
    return TRY_LATER if members.partial else 0


def _print(members: muster.Members, ids: bool, as_json: bool) -> None:
    if as_json:
        document: dict[str, object] = {"count": members.count, "partial": members.partial}
        named = {"ids": members.ids, "truncated": members.truncated} if ids else {}
        print(msgspec.json.encode(document | named).decode())
        return
    print(counted(members.count, "member") + ("; a gateway has not answered" if members.partial else ""))
    for user in members.ids:
        print(user)
    if members.truncated:
        print(f"and maybe more: --start {members.ids[-1] + 1}" if members.ids else "too much is asked: try again")
