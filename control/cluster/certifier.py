"""The certificates of an instance's servers: the process that has the key writes a file for each, which the server
reads.

Owns the key and the renewals. Servers get certificates only, never the key (`control/registry/certified.py`).
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from muster_server.control.cluster.instance import Folder
from muster_server.control.registry.places import Certificate
from muster_server.plane.certificate import Claim, is_due, issue
from muster_server.plane.files import write_atomically
from muster_server.plane.spec import Spec

LOOK_S: Final = 5.0
"""Seconds between checks for certificates that are due: the clock may have jumped, for example after suspend."""


class Certifier:
    """Certifies the servers passed to `take`, until `forget`."""

    def __init__(
        self,
        place: Folder,
        key: bytes,
        log: structlog.typing.FilteringBoundLogger,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._place, self._key, self._log, self._wall = place, key, log, wall
        self._claims: dict[str, Claim] = {}
        self._until: dict[str, int] = {}
        """Ends of the written certificates, by the server's name."""
        self._failed = False
        """The last one could not be written, which is logged once."""

    def take(self, name: str, spec: Spec) -> None:
        """Certify the server of this spec, at each of its starts, and renew its certificate from now on. Raises
        `OSError`."""
        where = spec.registry
        assert where is not None
        assert where.client is not None
        self._claims[name] = Claim(spec.node, spec.role, where.cluster, *where.client, where.public_key)
        self._write(name, self._claims[name])

    def forget(self, name: str) -> None:
        """Stop renewing a server's certificate."""
        self._claims.pop(name, None)
        self._until.pop(name, None)

    async def run(self) -> None:
        """Renew what is due, until cancelled."""
        while True:
            self.renew()
            await asyncio.sleep(LOOK_S)

    def renew(self) -> None:
        """Renew what is due. A certificate that cannot be written stays due."""
        now = self._wall()
        for name, claim in self._claims.items():
            if is_due(self._until.get(name), now):
                try:
                    self._write(name, claim)
                except OSError as error:
                    if not self._failed:
                        file = str(self._place.certificate(name))
                        self._log.warning("cannot be written", file=file, error=error.strerror)
                    self._failed = True
                else:
                    self._failed = False

    def _write(self, name: str, claim: Claim) -> None:
        made = Certificate(*issue(self._key, claim, self._wall()))
        write_atomically(self._place.certificate(name), msgspec.json.encode(made) + b"\n")
        self._until[name] = made.until
