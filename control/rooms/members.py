"""`muster members ROOM`: the number of a room's members and, if asked, their users; the exit code tells partial
answers."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

import muster
from control.console import common
from control.console.common import counted, verdict_after
from control.console.found import Target, connected, everybody
from control.errors import TRY_LATER, UserError
from control.host.shown import one_line, shown_json
from plane.users import HASHED


async def show(where: Target, room: str, ids: bool, start: int, wait: float, as_json: bool) -> int:
    """Ask all gateways and print the answer. Returns 0, or 75 if a gateway did not answer in time."""
    async with connected(where, reads=False) as client:
        members = await client.members(room, ids=ids, start=start, wait=wait)
    texts = await _texts(where, [user for user in members.ids if user >= HASHED])
    with verdict_after():
        _print(members, texts, ids, as_json)
    return TRY_LATER if members.partial else 0


async def _texts(where: Target, users: Sequence[int]) -> Mapping[str, str]:
    """The texts of users, by number, as far as gateways that can be asked from here know them."""
    if not users:
        return {}
    path = f"/api/v1/users?ids={','.join(map(str, users))}"
    try:
        async with everybody(where) as nodes:
            gateways = (await nodes.record()).of("gateway")
    except UserError:  # the users are numbers then
        return {}
    answers = await asyncio.to_thread(common.Asking().all, gateways, path)
    return {user: text for said in answers if said is not None for user, text in said["users"].items()}


def _print(members: muster.Members, texts: Mapping[str, str], ids: bool, as_json: bool) -> None:
    if as_json:
        document: dict[str, object] = {"count": members.count, "partial": members.partial}
        named = {"ids": members.ids, "texts": texts, "truncated": members.truncated} if ids else {}
        print(shown_json(msgspec.json.encode(document | named)).decode())
        return
    print(counted(members.count, "member") + ("; a gateway has not answered" if members.partial else ""))
    for user in members.ids:
        text = texts.get(str(user))
        print(user if text is None else f"{user} {one_line(text)}")
    if members.truncated:
        print(f"and maybe more: --start {members.ids[-1] + 1}" if members.ids else "too much is asked: try again")
