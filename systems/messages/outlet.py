"""The way into topics for other systems: a `plane.ways.Way` whose places are topics."""

from muster_server.control.cluster.places import Places, token
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec
from muster_server.plane.ways import NotTaken
from muster_server.systems.messages.link import Link
from muster_server.systems.messages.receiver import Unreachable
from muster_server.systems.messages.refusal import PASSING, Refusal
from muster_server.systems.messages.shapes import Refused, Send, Sent
from muster_server.systems.messages.system import RECEIVE


class Outlet:
    """Sends to receivers."""

    def __init__(self, spec: Spec, context: Context, folder: str) -> None:
        """Raises `SpecError`."""
        self._link = Link(RECEIVE, Places(spec, context, folder).of(RECEIVE), token(spec))

    async def put(self, place: str, id: str, body: bytes, kind: str) -> None:
        """Send a message to a topic, due at once. A message that was sent before stays as it is. Raises `NotTaken`."""
        try:
            (said,) = await self._link.ask("send", (place, [Send(body=body, id=id, kind=kind)]), tuple[Sent | Refused])
        except Unreachable as error:
            raise NotTaken(str(error)) from None
        except Refusal as error:
            raise NotTaken(error.detail, lasting=error.code not in PASSING) from None
        if isinstance(said, Refused) and said.code != "conflict":
            raise NotTaken(said.detail, lasting=said.code not in PASSING)

    async def close(self) -> None:
        """Close the connections."""
        await self._link.close()


def made(spec: Spec, context: Context, folder: str) -> Outlet:
    """As `Into.way`. Raises `SpecError`."""
    return Outlet(spec, context, folder)
