"""The prober as a worker: it probes steadily and reports the results. It is a client of the nodes."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import muster
from muster.instance import read_token
from muster_server.control.cluster import instance
from muster_server.control.cluster.fixed import Fixed
from muster_server.control.cluster.instance import Folder
from muster_server.control.errors import UserError
from muster_server.control.registry.places import Snapshot
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec, SpecError, secret
from muster_server.systems.probes.counts import ProbeCounts
from muster_server.systems.probes.prober import Prober, Source
from muster_server.systems.probes.system import ProberSettings

LOOK_S: Final = 0.2
"""Seconds between checks for the first map."""


class Probing:
    """The `plane.service.Service` of a prober."""

    take_trust: Final = None
    """It checks no tokens."""

    def __init__(self, prober: Prober, snapshot: Callable[[], Snapshot]) -> None:
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self._prober, self._snapshot = prober, snapshot

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Probe until `stop` is set, without waiting for sent probes."""
        work, stopped = asyncio.create_task(self._prober.run()), asyncio.create_task(stop.wait())
        knowing = asyncio.create_task(self._known())
        try:
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.closed = True
            for task in (work, stopped, knowing):
                task.cancel()
            await asyncio.wait([work, stopped, knowing])
        if not work.cancelled():
            work.result()

    async def _known(self) -> None:
        """Become ready once there is a map."""
        while self._snapshot().epoch == 0:  # noqa: ASYNC110 - the map is another's
            await asyncio.sleep(LOOK_S)
        self.ready = True
        self.on_ready(True)

    def status(self) -> dict[str, Any]:
        """The paths, each with its results."""
        prober = self._prober
        return {
            "state": "ready" if self.ready else "starting",
            "probed": prober.paths,
            "left_out": prober.left_out,
            "paths": list(prober.figures(time.monotonic())),
        }

    def counters(self) -> list[Figure]:
        """Sums over all paths."""
        return ProbeCounts(self._prober).counters()

    def gauges(self) -> list[Figure]:
        """Figures of all paths together, and of each of the worst ones."""
        return ProbeCounts(self._prober).gauges()

    def addresses(self) -> list[tuple[str, int]]:
        """Empty: it has no listener."""
        return []

    def take(self, settings: ProberSettings) -> None:
        """Use these limits from now on."""
        self._prober.limit(settings.probes)


def build(spec: Spec, settings: ProberSettings, context: Context) -> Probing:
    """Make the prober. Raises `SpecError`."""
    snapshot = context.snapshot if spec.registry is not None else _fixed(settings.folder)
    prober = Prober(settings.probes, Source(snapshot, _client(settings), secret(spec.name_key_file, 16)), context.log)
    return Probing(prober, snapshot)


def _client(settings: ProberSettings) -> muster.Address:
    """The prober's credential."""
    try:
        return muster.Address((), (), read_token(settings.token_file))
    except muster.MusterError as error:
        raise SpecError(str(error)) from None


def _fixed(folder: str) -> Callable[[], Snapshot]:
    try:
        return Fixed(instance.find(Folder(Path(folder)))).snapshot
    except UserError as error:
        raise SpecError(str(error)) from None
