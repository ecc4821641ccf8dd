"""A node of likes that is alone: opens its one log, serves clients, writes behind, drains.

Combines the other files here. `systems/likes/node.py` is a node among several.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec
from muster_server.systems.likes.means import Means, passwords
from muster_server.systems.likes.options import LikesSettings
from muster_server.systems.likes.partition import Partition
from muster_server.systems.likes.served import Served, moves, shares


class LikesService:
    """The `plane.service.Service` of a node that is alone."""

    take_trust: Final = None
    """It checks no user's token."""

    def __init__(self, spec: Spec, settings: LikesSettings, context_: Context) -> None:
        """Raises `SpecError`."""
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self._log = context_.log
        self._bind = spec.bind or ("127.0.0.1", 0)
        self._means = Means(spec, settings, context_)
        self._served: Served | None = None

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Serve until `stop` is set. Raises `OSError` if the log cannot be opened, or accepts no more changes."""
        opening = asyncio.create_task(self._means.opened(0))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([opening, stopping], return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                await self._serve(opening.result(), stopping, drain_s)
        finally:
            self.closed = True
            for task in (opening, stopping):
                task.cancel()
            await asyncio.wait([opening, stopping])
            await self._means.close()

    async def _serve(self, partition: Partition, stopping: asyncio.Task[bool], drain_s: float) -> None:
        served = Served(self._means, partition)
        self._bind = served.start(self._bind, self._means.tls)
        self._served = served
        figures = served.engine.figures()
        self._log.info(
            "serves likes", bind=self._bind, **{name: figures[name] for name in ("items", "users", "likes", "offset")}
        )
        self.ready = True
        self.on_ready(True)
        lives = [asyncio.create_task(each) for each in self._means.lives()]
        try:
            await asyncio.wait([stopping, *served.tasks, *lives], return_when=asyncio.FIRST_COMPLETED)
            for task in (*served.tasks, *lives):
                if task.done():
                    task.result()
        finally:
            self.draining = True
            for task in lives:
                task.cancel()
            if lives:
                await asyncio.wait(lives)
            await served.end(drain_s)
            self.ready = False

    # --- status -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The state of its partition, and the lag of its database."""
        state = "draining" if self.draining else "ready" if self.ready else "starting"
        served, live = self._served, self._means.live
        if served is None:
            return {"state": state}
        return {
            "state": state,
            **served.engine.figures(),
            "connections": served.listener.clients().connected,
            "write_behind": served.behind.status(),
            **({} if live is None else {"live_counts": live.status()}),
            **({} if served.mirror is None else {"redis": served.mirror.status()}),
            "notes": [
                *served.notes(),
                served.behind.note(),
                *([] if served.mirror is None else [served.mirror.note()]),
            ],
        }

    def counters(self) -> list[Figure]:
        """Commands, batches, clients, passes."""
        live = self._means.live
        if self._served is None:
            return []
        return [*self._served.counters(), *moves(1, 0, 0), *([] if live is None else live.counters())]

    def gauges(self) -> list[Figure]:
        """Items, users, likes, and waiting changes."""
        live = self._means.live
        if self._served is None:
            return []
        return [*self._served.gauges(), *shares(1, 0), *([] if live is None else live.gauges())]

    def addresses(self) -> list[tuple[str, int]]:
        """The address that it listens on."""
        return [self._bind]

    def take(self, settings: LikesSettings) -> None:
        """Read the users' file again. Raises `SpecError`."""
        self._means.passwords = passwords(settings.users_file)
        if self._served is not None:
            self._served.engine.set_passwords(self._means.passwords)


def build(spec: Spec, settings: LikesSettings, context_: Context) -> LikesService:
    """Make the node. Raises `SpecError`."""
    return LikesService(spec, settings, context_)
