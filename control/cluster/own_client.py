"""A node's client of its own instance, for messages to rooms and to users.

Owns the client, which is opened when it is first needed and follows the map of the registry. It must not know what is
sent.
"""

import asyncio
from typing import Any

import muster
from muster_server.control.cluster.places import Places
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec


class OwnClient:
    """Call `close` once."""

    def __init__(self, folder: str, spec: Spec, context: Context, places: Places) -> None:
        self._folder, self._spec, self._context, self._places = folder, spec, context, places
        self._client: muster.Client | None = None
        self._map: Any = None
        self._opening = asyncio.Lock()

    async def opened(self) -> muster.Client:
        """The client. Raises `MusterError`."""
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
