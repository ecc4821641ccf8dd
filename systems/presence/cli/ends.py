"""`muster presence end`: ends the sessions of a user, or of one of its devices, through the client library."""

from muster_server.control.errors import UNAVAILABLE, UserError
from muster_server.control.terminal.found import Target, connected, found
from muster_server.control.terminal.users import user_of
from muster_server.systems.presence.asking import ROLE
from muster_server.systems.presence.cli.reach import NONE_RUNS
from muster_server.systems.presence.cli.send import check_device, show


async def end(where: Target, user: str, device: str | None, expires: float, as_json: bool) -> int:
    """End them, and print the outcomes. Raises `UserError`."""
    number = user_of(where, user)
    check_device(device)
    async with found(where) as nodes:
        if ROLE not in {each.role for each in (await nodes.record()).processes}:
            raise UserError(NONE_RUNS, UNAVAILABLE)
    async with connected(where, reads=False) as client:
        results = await client.end_sessions(number, device=device, expires=expires)
    return show(number, user, results, as_json)
