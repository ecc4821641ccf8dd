"""Keeps the statuses of a site like those of the others, and has them change when it is time.

Each reader follows a reader of each other site: first all statuses, then each that changes. What it has not is taken
(I-2), so that a site that was cut off, or whose store came back empty, has all of them again. Must not know what a
status means.
"""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator
from typing import Final

from muster_server.plane.calls import CallError
from muster_server.plane.ownership.errors import StoreError
from muster_server.plane.service import Context
from muster_server.systems.presence.asking import Readers, addresses
from muster_server.systems.presence.statuses import Statuses

AGAIN_S: Final = 1.0
STEP_S: Final = 1.0
"""Statuses turn away and end up to this late for watches; look-ups are exact."""
SILENT_S: Final = 5.0
"""A reader that says nothing for this long is asked again: it says something each second."""


class Twins:
    """The statuses of one site beside those of the others, while the context of `running` is open."""

    def __init__(self, statuses: Statuses, site: int, sites: int, key: bytes, context: Context) -> None:
        self._statuses, self._log = statuses, context.log
        self._others = [each for each in range(1, sites + 1) if each != site]
        self._readers = Readers(lambda: addresses(context.snapshot()), key)
        self.count = 0
        """Number of the site's statuses."""
        self._lost: set[int] = set()
        self._name, self._mark = secrets.token_hex(8), ""
        self._tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the other sites, and step, until the context is left."""
        self._follow_all()
        stepping = asyncio.create_task(self._stepping(), name="steps statuses")
        try:
            yield
        finally:
            for task in (stepping, *self._tasks):
                task.cancel()
            await asyncio.gather(stepping, *self._tasks, return_exceptions=True)
            await self._readers.close()

    def _follow_all(self) -> None:
        """Follow all other sites from the beginning."""
        for task in self._tasks:
            task.cancel()
        self._tasks = [asyncio.create_task(self._following(site), name=f"follows site {site}") for site in self._others]

    async def _stepping(self) -> None:
        for number in itertools.count(1):
            try:
                self.count, before = await self._statuses.step(self._name, str(number))
                lost = before != self._mark
                self._mark = str(number)
            except StoreError:  # requests say why
                lost = False
                self._mark = "away"
            if lost:
                self._log.info("the store of statuses was away or lost some; taking those of other sites")
                self._follow_all()
            await asyncio.sleep(STEP_S)

    async def _following(self, site: int) -> None:
        while True:
            try:
                await self._follow(site)
            except (CallError, StoreError, TimeoutError) as error:
                if site not in self._lost:
                    self._lost.add(site)
                    self._log.info("statuses of another site do not come; trying again", site=site, cause=str(error))
            await asyncio.sleep(AGAIN_S)

    async def _follow(self, site: int) -> None:
        async with contextlib.aclosing(self._readers.follow_statuses(site)) as told:
            while True:
                async with asyncio.timeout(SILENT_S):
                    try:
                        records = (await anext(told)).records
                    except StopAsyncIteration:
                        return
                self._lost.discard(site)
                if records:
                    await self._statuses.take(records)
