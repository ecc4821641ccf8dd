"""The checks of `muster doctor`, run for pages: one examination at a time, in a thread."""

import asyncio
import time
from pathlib import Path
from typing import Final

import msgspec

from muster_server.control.doctor.finding import Finding
from muster_server.control.errors import ConfigError
from muster_server.systems.http.problems import Problem

LIMIT_S: Final = 8.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one examination. `at`: seconds since 1970."""

    at: float
    failures: int
    warnings: int
    findings: list[Finding]


class Examiner:
    """The last report, and another one on demand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._report: Report | None = None
        self._running: asyncio.Future[Report] | None = None

    async def last(self) -> Report:
        """The last report; the first page waits for the first one. Raises `Problem`."""
        return self._report or await self.again()

    async def again(self) -> Report:
        """A report of now. Requests that come meanwhile share it. Raises `Problem`."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(asyncio.to_thread(self._examine))
        try:
            self._report = await asyncio.shield(self._running)
        except ConfigError as error:
            raise Problem("unavailable", str(error)) from None
        return self._report

    def _examine(self) -> Report:
        # The terminal's parts are loaded with the first report, and by no console without one.
        from muster_server.control.cli.doctor import Examination, examined
        from muster_server.control.config.load import load
        from muster_server.control.config.options import UP
        from muster_server.control.terminal.found import Target

        loaded = load(None, flags={"instance.dir": (str(self._folder), "the console's folder")}, profile=UP)
        found = examined(Examination(loaded.config, Target()).checks(), LIMIT_S)
        counts = {level: sum(each.level == level for each in found) for level in ("fail", "warn")}
        return Report(at=time.time(), failures=counts["fail"], warnings=counts["warn"], findings=found)
