"""A worker's client of its own instance, for messages to rooms and to users.

Owns the meaning of an outcome for the message. It must not know fires or results.
"""

from collections.abc import Sequence
from typing import Final

import muster
from muster_server.control.cluster.own_client import OwnClient
from muster_server.control.cluster.places import Places
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec
from muster_server.systems.messages.firing import PublishError
from muster_server.systems.messages.shapes import Envelope

PUBLISH_S: Final = 10.0
USER_S: Final = 5.0
"""Limit of a device's time to confirm a message, in seconds."""


class InstanceClient:
    """Call `close` once."""

    def __init__(self, folder: str, spec: Spec, context: Context, places: Places) -> None:
        self._own = OwnClient(folder, spec, context, places)

    async def to_room(self, room: str, envelope: Envelope, topic: str = "") -> None:
        """Publish; returns once the room's owner has acknowledged. Raises `PublishError`."""
        try:
            client = await self._own.opened()
            await client.publish(room, envelope.body, timeout=PUBLISH_S)
        except muster.MusterError as error:
            raise _undone(error) from None

    async def to_user(self, user: str, envelope: Envelope, topic: str = "") -> None:
        """Send to all online devices of a user; returns once one of them has it. Raises `PublishError`."""
        try:
            client = await self._own.opened()
            results = await client.send(int(user), envelope.body, expires=USER_S)
        except muster.MusterError as error:
            raise _undone(error) from None
        if why := missed(user, results):
            raise PublishError(why)

    async def close(self) -> None:
        """Close the client."""
        await self._own.close()


def missed(user: str, results: Sequence[muster.DeviceResult]) -> str:
    """Why no device of a user has a message; empty if one has it. Another attempt would give it to that device again."""
    outcomes = {each.outcome for each in results}
    if "delivered" in outcomes:
        return ""
    if "expired" in outcomes:
        return f"expired: no device of user {user} confirmed the message within {USER_S:g} s"
    if "unknown" in outcomes:
        return f"unknown: the gateway of user {user} was lost before a device confirmed the message"
    return f"not_online: user {user} is not online"


def _undone(error: muster.MusterError) -> PublishError:
    return PublishError(f"{error.code}: {error}", lasting=isinstance(error, muster.Invalid | muster.TooLong))
