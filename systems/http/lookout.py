"""The nodes that a system's routes ask, looked up again each second, and the key that proves the cluster's secret to
them.

Knows no system.
"""

import time
from collections.abc import Sequence
from typing import Final

from muster_server.control.cluster.instance import Process
from muster_server.control.errors import UserError
from muster_server.plane.calls import key_of
from muster_server.plane.spec import SpecError, secret
from muster_server.systems.http.face import Base
from muster_server.systems.http.problems import Problem

LOOK_S: Final = 1.0


class Lookout:
    """The nodes of one system. Call `look` before using `nodes`."""

    def __init__(self, base: Base) -> None:
        self.nodes: Sequence[Process] = ()
        self._base, self._looked = base, 0.0

    async def look(self) -> None:
        """Look up the nodes, unless that was done within a second. Raises `Problem`."""
        if time.monotonic() - self._looked > LOOK_S:
            try:
                self.nodes = await self._base.nodes()
            except UserError as error:
                raise Problem("unavailable", str(error)) from None
            self._looked = time.monotonic()

    def forget(self) -> None:
        """Look them up again with the next request."""
        self._looked = 0.0

    def key(self) -> bytes:
        """The key of calls between nodes. Raises `Problem`."""
        try:
            return key_of(secret(self._base.cluster_secret_file, 32))
        except SpecError as error:
            raise Problem("unavailable", str(error)) from None
