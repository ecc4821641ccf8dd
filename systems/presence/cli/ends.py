"""`muster presence end`: ends the sessions of a user, or of one of its devices, through the client library."""

from typing import Final

import muster
from muster_server.control.errors import UserError
from muster_server.control.terminal.common import print_json, verdict_after
from muster_server.control.terminal.found import Target, connected
from muster_server.control.terminal.users import user_of
from muster_server.control.terminal.words import tell
from muster_server.systems.presence.cli.reach import named_json, texts_among
from muster_server.systems.presence.cli.send import check_device, code, document, words

NOT_ALLOWED: Final = (
    "only the shared token may end sessions; run this on a machine of the cluster, or use POST /api/v1/presence/end"
)


async def end(where: Target, user: str, device: str | None, expires: float, as_json: bool) -> int:
    """End them, and print the outcomes. Raises `UserError`."""
    number = user_of(where, user)
    check_device(device)
    async with connected(where, reads=False) as client:
        try:
            results = await client.end_sessions(number, device=device, expires=expires)
        except muster.Refused as refused:
            if refused.code == "not_allowed":
                raise UserError(NOT_ALLOWED) from None
            raise
    with verdict_after():
        if as_json:
            named = named_json(number, texts_among([(number, user)]))
            print_json(named | {"devices": [document(each) for each in results]}, line=True)
        else:
            tell(words(results))
    return code(results)
