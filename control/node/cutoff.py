"""Lets a gateway or proxy that is cut off send its clients to others, and accept clients again later.

Owns the conditions: not for a short failure, not if most others accept no clients, and not if no other server is better
off. A node that is cut off waits, checks the map, and announces itself there before it sends clients away, so that not
all leave at once.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import structlog

from muster_server.plane.engine import DoorEngine
from muster_server.plane.server import Server

if TYPE_CHECKING:
    from muster_server.control.node.enrolment import Enrolment

LOOK_S: Final = 0.5
BACK_S: Final = 5.0
"""Seconds with all links before it accepts clients again."""


class CutOff:
    """Used in one loop, while the process is not about to end."""

    def __init__(
        self,
        server: Server,
        enrolment: "Enrolment",
        log: structlog.typing.FilteringBoundLogger,
        *,
        after_s: float,
        look_s: float = LOOK_S,
        back_s: float = BACK_S,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._server, self._enrolment, self._log = server, enrolment, log
        self._engine = cast(DoorEngine, server.engine)
        self._after_s, self._look_s, self._back_s, self._dice = after_s, look_s, back_s, dice

    async def run(self) -> None:
        """Run until it is cancelled."""
        while True:
            # Random, so that nodes that were cut off together do not act at once.
            await self._lasts(True, self._after_s * (1 + self._dice()))
            if self._may_leave() and await self._said():
                await self._away()

    async def _lasts(self, cut: bool, seconds: float) -> None:
        """Wait until the state `cut` has lasted for this many seconds."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while loop.time() < since + seconds:
            await asyncio.sleep(self._look_s)
            if (self._engine.cut_off() is not None) != cut:
                since = loop.time()

    def _may_leave(self) -> bool:
        """Whether enough other servers serve. Without the registry the map is old: it is then used only if this node
        reaches nobody."""
        fresh = self._enrolment.connected or not self._server.ready
        return fresh and self._enrolment.can_be_spared()

    async def _said(self) -> bool:
        """Announce that no client should come, and check whether too many others did so at the same time."""
        await self._enrolment.step_back()
        if self._may_leave():
            return True
        self._enrolment.step_forward()
        return False

    async def _away(self) -> None:
        self._log.warning("cut off, sending clients to other servers", reason=self._engine.cut_off())
        self._server.draining = True
        self._engine.drain()
        await self._lasts(False, self._back_s)
        self._engine.stay()
        self._server.draining = False
        self._enrolment.step_forward()
        self._log.info("accepting clients again")
