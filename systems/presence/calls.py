"""Methods for clients of an edge: `muster.status` sets the status of the client's user."""

import msgspec

from muster_server._engines import Grant
from muster_server.plane.calls import CallError, key_of
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec, secret
from muster_server.plane.users import EMBEDDED_USER
from muster_server.plane.ways import CallRefused
from muster_server.systems.presence.asking import Readers, addresses
from muster_server.systems.presence.status import StatusNow, StatusWanted


class StatusCalls:
    """A `plane.ways.Calls`. Its data are those of `PUT /api/v1/presence/status`."""

    outcomes = ("answered",)

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def answer(self, user: int, grant: Grant, data: bytes) -> tuple[str, bytes]:
        """Set the status of this user."""
        if user == EMBEDDED_USER:  # without a token, or with the one that programs share
            raise CallRefused("not_allowed")
        try:
            new = msgspec.json.decode(data or b"{}", type=StatusWanted).checked()
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise CallRefused("bad_request") from None
        try:
            return self.outcomes[0], msgspec.json.encode(StatusNow(await self._readers.set_status(user, new)))
        except CallError as error:
            raise CallRefused("not_available" if error.code == "question" else "internal") from None

    async def close(self) -> None:
        """Close the connections."""
        await self._readers.close()


def status(spec: Spec, context: Context) -> StatusCalls:
    """As `System.calls`. Raises `SpecError`."""
    return StatusCalls(Readers(lambda: addresses(context.snapshot()), key_of(secret(spec.cluster_secret_file, 32))))
