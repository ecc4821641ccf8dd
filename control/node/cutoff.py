"""A gateway or a proxy that does not reach what others reach sends its clients to them, and lets clients in again later.

Owns when that is right: not for a while only, not where most others could take nobody, and not where nobody would do better.
Everybody who is cut off waits, asks the map and says so in it before clients are sent away: so that not all leave at once.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import structlog

from plane.engine import DoorEngine
from plane.server import Server

if TYPE_CHECKING:
    from control.node.enrolment import Enrolment

LOOK_S: Final = 0.5
BACK_S: Final = 5.0
"""Who reaches all again for so long lets clients in."""


class CutOff:
    """Used in one loop, while the process is not to end."""

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
        """Until it is cancelled."""
        while True:
            # Who is cut off together with others is seldom the first twice.
            await self._lasts(True, self._after_s * (1 + self._dice()))
            if self._may_leave() and await self._said():
                await self._away()

    async def _lasts(self, cut: bool, seconds: float) -> None:
        """Wait until it has been cut off, or has not been, for so long."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while loop.time() < since + seconds:
            await asyncio.sleep(self._look_s)
            if (self._engine.cut_off() is not None) != cut:
                since = loop.time()

    def _may_leave(self) -> bool:
        """Whether enough others serve. Without the registry that is an old tale, good enough for who reaches nobody."""
        fresh = self._enrolment.connected or not self._server.ready
        return fresh and self._enrolment.can_be_spared()

    async def _said(self) -> bool:
        """Say that nobody is to come, and look whether too many others said so at the same time."""
        await self._enrolment.step_back()
        if self._may_leave():
            return True
        self._enrolment.step_forward()
        return False

    async def _away(self) -> None:
        self._log.warning("cut off, clients are sent to others", reason=self._engine.cut_off())
        self._server.draining = True
        self._engine.drain()
        await self._lasts(False, self._back_s)
        self._engine.stay()
        self._server.draining = False
        self._enrolment.step_forward()
        self._log.info("clients are let in again")
