"""A worker's client of its own instance, for messages to rooms and to users.

Owns the client, which is opened when a message first needs it, and the meaning of an outcome for the message. It must
not know fires or results.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import muster
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec
from muster_server.systems.messages.firing import PublishError
from muster_server.systems.messages.places import Places
from muster_server.systems.messages.shapes import Envelope

PUBLISH_S: Final = 10.0
USER_S: Final = 5.0
"""Limit of a device's time to confirm a message, in seconds."""


class InstanceClient:
    """Call `close` once."""

    def __init__(self, folder: str, spec: Spec, context: Context, places: Places) -> None:
        self._folder, self._spec, self._context, self._places = folder, spec, context, places
        self._client: muster.Client | None = None
        self._map: Any = None
        self._opening = asyncio.Lock()

    async def to_room(self, room: str, envelope: Envelope) -> None:
        """Publish; returns once the room's owner has acknowledged. Raises `PublishError`."""
        try:
            client = await self._opened()
            await client.publish(room, envelope.body, timeout=PUBLISH_S)
        except muster.MusterError as error:
            raise _undone(error) from None

    async def to_user(self, user: str, envelope: Envelope) -> None:
        """Send to all online devices of a user; returns once one of them has it. Raises `PublishError`."""
        try:
            client = await self._opened()
            results = await client.send(int(user), envelope.body, expires=USER_S)
        except muster.MusterError as error:
            raise _undone(error) from None
        if why := missed(user, results):
            raise PublishError(why)

    async def _opened(self) -> muster.Client:
        async with self._opening:
            snapshot = None if self._spec.registry is None else self._context.snapshot()
            if self._client is None or self._client.closed:
                where = self._folder if snapshot is None else self._places.address(snapshot)
                if isinstance(where, muster.Address) and not where.proxies:
                    raise muster.Unavailable("no proxy is known yet")
                self._client = await muster.connect(where, gateways=())
            elif snapshot is not None and snapshot is not self._map:
                self._client.redirect(self._places.address(snapshot))
            self._map = snapshot
            return self._client

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None and not self._client.closed:
            try:
                await self._client.close(timeout=1.0)
            except muster.MusterError:
                return


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
