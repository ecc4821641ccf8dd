"""Erasures of users: drives each job of one partition from step to step, until no file names the user.

Owns the order of steps and waits. The engine has the state of each job, so a restart, or the next owner of the
partition, continues where the job was. The write-behind owns the database, the engine its log.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from muster.clock import now_ms
from muster_server._engines import LikesEngine
from muster_server.plane.ownership.errors import StoreError
from muster_server.plane.service import Figure
from muster_server.systems.likes.behind import Behind
from muster_server.systems.likes.logged import Logged

LOOK_S: Final = 0.2
"""Seconds between two looks for erasures."""
STEP_S: Final = 0.002
"""Seconds between two looks whether a step is durable. Between two steps, changes of clients go on."""
WAIT_S: Final = 30.0
"""Longest wait for one step, in seconds."""
AGAIN_S: Final = 1.0
AGAIN_MAX_S: Final = 60.0
"""Longest pause after a failure: each attempt writes two snapshots."""
CHECKED: Final = 16_384
"""Slots that are checked in one call: some 2 ms."""
Job = tuple[int, str, int, int | None, int]
"""As `LikesEngine.erasures` has it."""


class Eraser:
    """Erases while `run` runs. `logged`: for an engine whose log is elsewhere."""

    def __init__(
        self,
        engine: LikesEngine,
        behind: Behind,
        logged: Logged | None,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self.erased = 0
        """Number of erasures that ended here."""
        self.error = ""
        """Why the last attempt failed; empty after a success."""
        self.paused = False
        """Whether no further step begins: the partition is given up."""
        self._engine, self._behind, self._logged, self._log = engine, behind, logged, log

    async def run(self) -> None:
        """Run until cancelled. Raises `OSError` as the write-behind does."""
        pause_s = AGAIN_S
        while True:
            try:
                worked = await self.turn()
            except (StoreError, Unfinished) as error:
                if not self.error:
                    self._log.warning("an erasure of a user waits", reason=str(error))
                self.error = str(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, AGAIN_MAX_S)
                continue
            self.error, pause_s = "", AGAIN_S
            if not worked:
                await asyncio.sleep(LOOK_S)

    async def turn(self) -> bool:
        """Take the next step of each erasure; returns whether there is one. Raises `Unfinished` and `DatabaseError`."""
        jobs: Sequence[Job] = self._engine.erasures()
        if not jobs or self.paused:
            return False
        for job, phase, *_ in jobs:
            if phase in {"likes", "leaderboards"}:
                await self._step(job, drop_id=False)
            elif phase == "check":
                await self._check(job)
                await self._step(job, drop_id=True)
        if files := [job for job in jobs if job[1] == "files"]:
            await self._forget(files)
        return True

    # --- the state ----------------------------------------------------------------------------------------------

    async def _step(self, job: int, *, drop_id: bool) -> None:
        before = self._state(job)
        self._append(self._engine.erase_step(job, now_ms(), drop_id))
        await self._until(lambda: self._state(job) != before)

    async def _check(self, job: int) -> None:
        """Look for what the steps should have taken. Raises `Unfinished`."""
        cursor = left = 0
        while True:
            cursor, found = self._engine.traces(job, cursor, CHECKED)
            left += found
            if not cursor:
                break
            await asyncio.sleep(0)
        if left:
            raise Unfinished(f"{left} items or leaderboards still have the user of erasure {job}")

    # --- files --------------------------------------------------------------------------------------------------

    async def _forget(self, jobs: Sequence[Job]) -> None:
        """Leave no snapshot, row and segment that names the users of these jobs, then end the jobs."""
        engine = self._engine
        dense = [each for *_, each, _ in jobs if each is not None]
        since = max(since for *_, since in jobs)
        if self._logged is None:
            await self._begin_clean()

        async def more() -> None:
            """A step of an erasure that has none left changes nothing."""
            before = engine.offset()
            self._append(engine.erase_step(jobs[0][0], now_ms(), False))
            await self._until(lambda: engine.offset() > before)

        snapshots = await self._behind.forget(dense, since, more)
        segments = 0 if self._logged is not None else await self._trimmed()
        for job, *_ in jobs:
            self._append(engine.erasure_done(job, now_ms(), snapshots, segments))
            await self._until(lambda job=job: self._state(job) is None)  # type: ignore[misc]
            self.erased += 1
            self._log.info("erased a user", job=job, snapshots=snapshots, segments=segments)
        if self._logged is None and not any(phase == "files" for _, phase, *_ in engine.erasures()):
            engine.reuse_again()

    async def _begin_clean(self) -> None:
        """Let the log continue in a file without old bytes. Raises `Unfinished`."""
        self._engine.begin_clean()
        await self._clean()

    async def _trimmed(self) -> int:
        """Wait until the log has no segment from before the clean one; returns the number of segments. Raises
        `Unfinished`."""
        clean = await self._clean()
        start, segments = self._engine.log_files()
        if start < clean:
            raise Unfinished(f"the log still begins at offset {start} and not at {clean}")
        return segments

    async def _clean(self) -> int:
        """The first offset of the clean segment, once the log has carried out all orders. Raises `Unfinished`."""
        try:
            while (clean := self._engine.clean()) is None:  # noqa: ASYNC110 - the log tells no one
                await asyncio.sleep(STEP_S)
        except OSError as error:
            raise Unfinished(f"the log could not begin a new segment: {error}") from None
        return clean

    # --- waiting ------------------------------------------------------------------------------------------------

    def _state(self, job: int) -> Job | None:
        return next((each for each in self._engine.erasures() if each[0] == job), None)

    def _append(self, taken: bool) -> None:
        if not taken:
            raise Unfinished("the log takes no changes now")
        if self._logged is not None:
            self._logged.begin()

    async def _until(self, done: Callable[[], bool]) -> None:
        """Wait for the log. Raises `Unfinished` if it does not take the step; a step may be taken twice."""
        deadline = time.monotonic() + WAIT_S
        while not done():
            trouble = None if self._engine.pending() else self._engine.figures()["trouble"]
            if trouble or time.monotonic() > deadline:
                raise Unfinished(str(trouble or "the log did not take a step in time"))
            await asyncio.sleep(STEP_S)

    # --- status -------------------------------------------------------------------------------------------------

    def counters(self) -> list[Figure]:
        """As `Service.counters`."""
        return [("likes_erased_users", "Erasures of users that ended", self.erased)]

    def gauges(self) -> list[Figure]:
        """As `Service.gauges`."""
        return [("likes_erasures", "Erasures of users under way", len(self._engine.erasures()))]

    def notes(self) -> list[str]:
        """Erasures under way as text, for `muster status`."""
        if not (jobs := self._engine.erasures()):
            return []
        why = f", which wait: {self.error}" if self.error else ""
        return [f"{len(jobs)} erasures of users under way{why}"]


class Unfinished(Exception):
    """An erasure cannot go on now; it is tried again."""
