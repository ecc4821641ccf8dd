"""`muster members ROOM`: the number of a room's members and, with --ids, their users; the exit code reports partial
answers."""

from collections.abc import Iterable, Mapping

import msgspec

import muster
from muster_server.control.cluster.instance import Process
from muster_server.control.errors import TRY_LATER
from muster_server.control.host.shown import one_line, shown_json
from muster_server.control.terminal.common import counted, verdict_after
from muster_server.control.terminal.found import Target, connected, everybody
from muster_server.control.terminal.texts import Texts


async def show(where: Target, room: str, ids: bool, start: int, wait: float, as_json: bool) -> int:
    """Ask all gateways and print the answer. Returns 0, or 75 if a gateway did not answer in time."""
    async with connected(where, reads=False) as client:
        members = await client.members(room, ids=ids, start=start, wait=wait)

    async def nodes() -> Iterable[Process]:
        async with everybody(where) as every:
            return (await every.record()).processes

    texts = await Texts(nodes).of(members.ids)
    with verdict_after():
        _print(members, texts, ids, as_json)
    return TRY_LATER if members.partial else 0


def _print(members: muster.Members, texts: Mapping[int, str], ids: bool, as_json: bool) -> None:
    if as_json:
        document: dict[str, object] = {"count": members.count, "partial": members.partial}
        shown = {str(user): text for user, text in texts.items()}
        named = {"ids": members.ids, "texts": shown, "truncated": members.truncated} if ids else {}
        print(shown_json(msgspec.json.encode(document | named)).decode())
        return
    print(counted(members.count, "member") + ("; a gateway has not answered" if members.partial else ""))
    for user in members.ids:
        text = texts.get(user)
        print(user if text is None else f"{user} {one_line(text)}")
    if members.truncated:
        print(
            f"and maybe more: --start {members.ids[-1] + 1}"
            if members.ids
            else "the servers have too many requests; try again"
        )
